"""The step `repeated_lines` drops lines that stand in a corpus again and again.

A notice about cookies, a menu or a footer stands in each document of a web site. An encoder learns
it by heart, and its held-out loss looks better than it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from itertools import pairwise

import numpy as np

from clozelab.corpus.documents import hash_of
from clozelab.corpus.steps.settings import check_count, check_range, list_of_texts
from clozelab.corpus.steps.step import Arrays, Document, StepReport, SurveyStep

LINES_AT_ONCE = 2**25  # that the parent process counts at a time
REASON = "repeated line"
NOTHING_LEFT = "nothing but repeated lines"


class RepeatedLines(SurveyStep):
    """Drops each line that is repeated, wherever it stands.

    A line is repeated that stands more than `max_count` times in all documents, or in more than
    `max_document_share` of them, and in two at least. Lines that are listed in `keep`, or have
    fewer than `min_characters`, stay. Counts are exact, unless two lines have the same 64-bit hash.

    A shard's survey takes 24 bytes for each different line. The parent process counts at most
    LINES_AT_ONCE of them at a time, by ranges of their hashes. So it needs 2 GB at most.
    """

    name = "repeated_lines"

    def __init__(
        self,
        max_count: int | None = None,
        max_document_share: float | None = None,
        keep: Sequence[str] = (),
        min_characters: int = 0,
    ) -> None:
        if max_count is None and max_document_share is None:
            raise ValueError(
                "repeated_lines needs max_count (lines that occur more often are dropped) or"
                " max_document_share (lines of a larger share of all documents are dropped)"
            )
        if max_count is not None:
            check_count("repeated_lines: max_count", max_count, 1)
        if max_document_share is not None:
            check_range("repeated_lines: max_document_share", max_document_share, 0, 1)
        check_count("repeated_lines: min_characters", min_characters, 0)
        self.max_count = max_count
        self.max_document_share = max_document_share
        self.keep = list_of_texts("repeated_lines: keep", keep)
        self.min_characters = min_characters

    def survey(self, documents: Iterable[Document]) -> Arrays:
        """`lines` [3, L] uint64: sorted hashes, how often each occurs, in how many documents."""
        occurrences: list[int] = []
        once_a_document: list[int] = []
        num_documents = 0
        for document in documents:
            hashes = [hash_of(line) for line in document.lines]
            occurrences += hashes
            once_a_document += set(hashes)
            num_documents += 1
        lines, counts = _count(occurrences)
        _, document_counts = _count(once_a_document)
        return {
            "lines": np.stack([lines, counts, document_counts]),
            "num_documents": np.array(num_documents),
        }

    def settle(self, surveys: Sequence[Arrays]) -> Arrays:
        """`lines` [R] uint64: the hashes of the repeated ones."""
        num_lines = sum(survey["lines"].shape[1] for survey in surveys)
        num_documents = sum(int(survey["num_documents"]) for survey in surveys)
        # Hashes are spread evenly, so each part of their range has about as many lines.
        num_parts = 1 + num_lines // LINES_AT_ONCE
        limits = [2**64 * number // num_parts for number in range(num_parts + 1)]
        repeated = []
        for lowest, end in pairwise(limits):
            lines = _add_up(surveys, lowest, end - 1)
            is_repeated = np.zeros(lines.shape[1], dtype=bool)
            if self.max_count is not None:
                is_repeated |= lines[1] > self.max_count
            if self.max_document_share is not None:
                is_repeated |= lines[2] > max(1, self.max_document_share * num_documents)
            repeated.append(lines[0, is_repeated])
        return {"lines": np.concatenate(repeated)}

    def apply(
        self, documents: Iterable[Document], table: Arrays, report: StepReport
    ) -> Iterator[Document]:
        """As `CorpusStep` says."""
        repeated = frozenset(table["lines"].tolist())
        for document in documents:
            dropped = [line for line in document.lines if self._is_dropped(line, repeated)]
            if not dropped:
                yield document
                continue
            distinct = frozenset(dropped)
            lines = [line for line in document.lines if line not in distinct]
            if lines:
                report.drop_lines(dropped, REASON, dropped)
                yield replace(document, lines=lines)
            else:
                report.drop(document, NOTHING_LEFT)

    def _is_dropped(self, line: str, repeated: Set[int]) -> bool:
        is_exempt = len(line) < self.min_characters or line in self.keep
        return not is_exempt and hash_of(line) in repeated


def _count(hashes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The different hashes [L] uint64, sorted, and how often each occurs."""
    distinct, counts = np.unique(np.array(hashes, dtype=np.uint64), return_counts=True)
    return distinct, counts.astype(np.uint64)


def _add_up(surveys: Sequence[Arrays], lowest: int, highest: int) -> np.ndarray:
    """[3, L] uint64: the lines of all surveys whose hashes lie from `lowest` to `highest`."""
    selected = []
    for survey in surveys:
        lines = survey["lines"]
        start = np.searchsorted(lines[0], np.uint64(lowest))
        end = np.searchsorted(lines[0], np.uint64(highest), side="right")
        selected.append(lines[:, start:end])
    lines, counts, document_counts = np.concatenate(selected, axis=1)
    distinct, inverse = np.unique(lines, return_inverse=True)
    # bincount adds float64, which is exact below 2**53
    sums = [np.bincount(inverse, column) for column in (counts, document_counts)]
    return np.stack([distinct, *(column.astype(np.uint64) for column in sums)])
