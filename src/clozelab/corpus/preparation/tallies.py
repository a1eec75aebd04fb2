"""What became of the documents, step by step: counted by shard, added up, and shown as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, cast

from clozelab.corpus.steps.step import Document, StepReport


class ReportFacts(TypedDict):
    """A StepReport as JSON has it."""

    documents: dict[str, int]
    characters: dict[str, int]
    changed: dict[str, int]
    examples: dict[str, list[str]]


class TallyFacts(TypedDict):
    """A Tally as JSON has it: counts as pairs of a source and a number."""

    step: str
    documents: list[tuple[int, int]]
    characters: list[tuple[int, int]]
    report: ReportFacts


class ShardFacts(TypedDict, total=False):
    """What the file of a shard says beside its arrays."""

    digest: str
    bytes: int  # of its text on disk
    tallies: list[TallyFacts]


class DocumentFacts(ShardFacts, total=False):
    """The same of a shard of documents."""

    lines: dict[str, int]  # that may be frequent -> characters of all copies


class TokenFacts(ShardFacts, total=False):
    """The same of a tokenised shard."""

    lines: dict[str, list[int]]  # that may be frequent -> copies, and tokens of all
    words: list[list[int]]
    sentences_without_tokens: int


@dataclass
class Tally:
    """What a step kept, by the number of the source, and what it says of the rest."""

    step: str
    documents: Counter[int] = field(default_factory=Counter)
    characters: Counter[int] = field(default_factory=Counter)
    report: StepReport = field(default_factory=StepReport)

    def counted(self, documents: Iterable[Document]) -> Iterator[Document]:
        """The same documents, counted on their way."""
        for document in documents:
            self.documents[document.source] += 1
            self.characters[document.source] += document.num_characters
            yield document

    def facts(self) -> TallyFacts:
        """As JSON has it."""
        return {
            "step": self.step,
            "documents": list(self.documents.items()),
            "characters": list(self.characters.items()),
            "report": cast("ReportFacts", vars(self.report)),
        }

    def add(self, facts: TallyFacts) -> None:
        """Add the tally of a later shard."""
        self.documents.update(dict(facts["documents"]))
        self.characters.update(dict(facts["characters"]))
        report = facts["report"]
        self.report.add(
            StepReport(
                Counter(report["documents"]),
                Counter(report["characters"]),
                Counter(report["changed"]),
                report["examples"],
            )
        )


def add_tallies(shards: Iterable[Sequence[TallyFacts]]) -> list[Tally]:
    """The tallies of all shards, each of which has the same steps in order."""
    totals: list[Tally] = []
    for tallies in shards:
        if not totals:
            totals = [Tally(facts["step"]) for facts in tallies]
        for total, facts in zip(totals, tallies, strict=True):
            total.add(facts)
    return totals
