"""The step `quality` drops documents that are hardly running text: lists, menus, spam, word salad.

Its measures and their limits are those of Gopher (Rae et al. 2021, table A1 and section A.1.1).
`punctuated_lines` is from FineWeb (Penedo et al. 2024), and `lorem_ipsum` from C4 (Raffel et al.
2020).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from claims.text.did_you_mean import hint
from clozelab.corpus.steps.ngrams import ngram_hashes
from clozelab.corpus.steps.step import Arrays, CorpusStep, Document, StepReport

Limits = dict[str, Sequence[float]]
LIMITS: Limits = {}
"""Measure -> its least and its greatest value in a document that stays."""
LIMITS["words"] = (50, 100_000)
LIMITS["mean_word_length"] = (3, 10)  # characters
LIMITS["symbols_per_word"] = (0, 0.1)  # number signs or ellipses, whichever are more
LIMITS["alphabetic_words"] = (0.8, 1)  # share of the words
LIMITS["stop_words"] = (2, 8)  # different ones of STOP_WORDS
LIMITS["lorem_ipsum"] = (0, 0)  # occurrences
LIMITS["bullet_lines"] = (0, 0.9)  # share of the lines, as the next three
LIMITS["ellipsis_lines"] = (0, 0.3)
LIMITS["punctuated_lines"] = (0.12, 1)
LIMITS["repeated_lines"] = (0, 0.3)
LIMITS["repeated_line_characters"] = (0, 0.2)  # share of the characters
# n -> the greatest share of characters in the most frequent run of n words, or in all repeats
TOP_NGRAMS = {2: 0.20, 3: 0.18, 4: 0.16}
REPEATED_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
LIMITS |= {f"most_frequent_{n}gram": (0, limit) for n, limit in TOP_NGRAMS.items()}
LIMITS |= {f"repeated_{n}grams": (0, limit) for n, limit in REPEATED_NGRAMS.items()}

BULLETS = ("•", "‣", "◦", "▪", "●", "*", "-")
ELLIPSES = ("...", "…")
ENDS = (".", "!", "?", '"', "'", "”", "’", "。", "！", "？")
MARKS = ".,;:!?\"'()"
STOP_WORDS = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})


UNCHANGED: Limits = {}


class Quality(CorpusStep):
    """Drops a document of which a measure lies outside its limits.

    `limits` has the names of measures with other limits than those of LIMITS, [least, greatest], or
    with null where a measure should not count: `{words: [20, 100000], stop_words: null}`. For text
    that is not English, `stop_words` should be null.
    """

    name = "quality"

    def __init__(self, limits: Mapping[str, Sequence[float] | None] = UNCHANGED) -> None:
        self.limits: Limits = dict(LIMITS)
        if not isinstance(limits, Mapping):
            raise ValueError(f"quality: limits={limits} must be {{MEASURE: [least, greatest]}}")
        for name, values in limits.items():
            if name not in LIMITS:
                raise ValueError(f"quality has no measure {name!r}: {hint(name, LIMITS)}")
            if values is None:
                del self.limits[name]
                continue
            if not _are_limits(values):
                raise ValueError(
                    f"quality: {name}={values} must be [least, greatest], two numbers in order"
                )
            self.limits[name] = tuple(values)

    def apply(
        self,
        documents: Iterable[Document],
        table: Arrays,  # noqa: ARG002
        report: StepReport,
    ) -> Iterator[Document]:
        """As `CorpusStep` says; a document counts for the first measure that is outside."""
        for document in documents:
            reason = self._reason_against(document.lines)
            if reason is None:
                yield document
            else:
                report.drop(document, reason)

    def _reason_against(self, lines: Sequence[str]) -> str | None:
        measures = measures_of(lines)
        for name, (least, greatest) in self.limits.items():
            if measures[name] < least:
                return f"{name} below {least:g}"
            if measures[name] > greatest:
                return f"{name} above {greatest:g}"
        return None


def _are_limits(values: object) -> bool:
    """Whether it is a list of two numbers in order."""
    if not isinstance(values, list | tuple) or len(values) != 2:
        return False
    return all(isinstance(value, int | float) for value in values) and values[0] <= values[1]


def measures_of(lines: Sequence[str]) -> dict[str, float]:
    """All measures of a document, by their names in LIMITS."""
    text = "\n".join(lines)
    words = text.split()
    return word_measures(text, words) | line_measures(lines) | ngram_measures(words)


def word_measures(text: str, words: Sequence[str]) -> dict[str, float]:
    """Measures of a text by its words."""
    num_words = max(1, len(words))
    num_symbols = max(text.count("#"), sum(map(text.count, ELLIPSES)))
    num_alphabetic = sum(any(map(str.isalpha, word)) for word in words)
    lower_words = {word.strip(MARKS).lower() for word in words}
    measures: dict[str, float] = {"words": len(words)}
    measures["mean_word_length"] = sum(map(len, words)) / num_words
    measures["symbols_per_word"] = num_symbols / num_words
    measures["alphabetic_words"] = num_alphabetic / num_words
    measures["stop_words"] = len(STOP_WORDS & lower_words)
    measures["lorem_ipsum"] = text.lower().count("lorem ipsum")
    return measures


def line_measures(lines: Sequence[str]) -> dict[str, float]:
    """Measures of a text by its lines."""
    num_lines = max(1, len(lines))
    num_characters = max(1, sum(map(len, lines)))
    # all copies of a line but the first
    repeated = list((Counter(lines) - Counter(set(lines))).elements())
    measures: dict[str, float] = {}
    measures["bullet_lines"] = sum(line.startswith(BULLETS) for line in lines) / num_lines
    measures["ellipsis_lines"] = sum(line.endswith(ELLIPSES) for line in lines) / num_lines
    measures["punctuated_lines"] = sum(line.endswith(ENDS) for line in lines) / num_lines
    measures["repeated_lines"] = len(repeated) / num_lines
    measures["repeated_line_characters"] = sum(map(len, repeated)) / num_characters
    return measures


def ngram_measures(words: Sequence[str]) -> dict[str, float]:
    """Measures of a text by its runs of words."""
    lengths = np.array([len(word) for word in words])
    measures = {}
    most_frequent = repeated = 1.0
    for size in (*TOP_NGRAMS, *REPEATED_NGRAMS):
        # Where no run of four words occurs twice, none of five does.
        if repeated:
            most_frequent, repeated = _ngram_shares(words, lengths, size)
        measures[f"most_frequent_{size}gram"] = most_frequent
        measures[f"repeated_{size}grams"] = repeated
    return measures


def _ngram_shares(words: Sequence[str], lengths: np.ndarray, size: int) -> tuple[float, float]:
    """Shares of characters in the most frequent run of `size` words, and in repeats of such runs.

    Both are 0 where none occurs twice. `lengths` [W] are the words' characters.
    """
    hashes = ngram_hashes(words, size)
    _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    if len(counts) == len(hashes):
        return 0.0, 0.0
    # of several equally frequent ones the one with most characters
    ends = np.concatenate([[0], np.cumsum(lengths)])
    characters = ends[first + size] - ends[first]
    most_frequent = (counts * characters)[counts == counts.max()].max()
    # all occurrences but the first; a word in several of them counts once
    is_repeat = np.ones(len(hashes), dtype=bool)
    is_repeat[first] = False
    is_covered = np.zeros(len(words), dtype=bool)
    for offset in range(size):
        is_covered[offset : offset + len(hashes)] |= is_repeat
    total = lengths.sum()
    return float(most_frequent / total), float(lengths[is_covered].sum() / total)
