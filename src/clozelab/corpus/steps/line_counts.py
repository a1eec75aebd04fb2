"""The most frequent lines of a corpus, in constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

MIN_SHARE = 1e-4  # of all lines: every line that is more frequent is named


@dataclass(frozen=True)
class FrequentLine:
    """A line, how often it was counted, and the share of all characters that this makes."""

    text: str
    count: int
    character_share: float


@dataclass
class LineCounts:
    """How often each line stands in documents.

    A shard counts all its lines and keeps its `frequent` ones; those of all shards are added up. A
    line that is more than MIN_SHARE of all lines is so in one shard at least, and therefore is
    among them. Its count is exact, or too low by at most MIN_SHARE of all lines.
    """

    num_lines: int = 0
    num_characters: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, lines: Sequence[str]) -> None:
        """Count the lines of a document."""
        self.num_lines += len(lines)
        self.num_characters += sum(map(len, lines))
        self.counts.update(lines)

    def frequent(self) -> LineCounts:
        """The same without the rare lines: at most 1 / MIN_SHARE lines stay."""
        least = max(2, MIN_SHARE * self.num_lines)
        frequent = Counter[str]()
        for line, count in self.counts.items():
            if count >= least:
                frequent[line] = count
        return LineCounts(self.num_lines, self.num_characters, frequent)

    def merge(self, other: LineCounts) -> None:
        """Add the frequent lines of another shard."""
        self.num_lines += other.num_lines
        self.num_characters += other.num_characters
        self.counts.update(other.counts)

    def top(self, number: int) -> list[FrequentLine]:
        """The lines that take most characters, those first that take more."""
        lines = []
        for text, count in self.counts.items():
            share = count * len(text) / self.num_characters
            lines.append(FrequentLine(text, count, share))
        return sorted(lines, key=lambda line: (-line.character_share, line.text))[:number]
