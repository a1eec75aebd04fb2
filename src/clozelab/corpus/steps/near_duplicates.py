"""The step `near_duplicates` drops documents that share most of their text with an earlier one.

Two documents are as similar as the share of their runs of five words that both have (Jaccard's
similarity). It is estimated by MinHash: under each of 128 random orders of all runs, a document is
represented by its first run. A share of J of the 128 then agrees for two documents of similarity
J, with a standard error of sqrt(J (1 - J) / 128): .035 at .8. A byte of each is kept.

Only documents are compared that agree in four neighbouring bytes (locality-sensitive hashing):
of pairs of similarity .8 all but one in twenty million are compared, of .6 98.8 %, of .1 .3 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np

from clozelab.corpus.documents import DUPLICATE, hash_of
from clozelab.corpus.steps.ngrams import ngram_hashes, words_of
from clozelab.corpus.steps.settings import check_count, check_range
from clozelab.corpus.steps.step import MAX_EXAMPLES, Arrays, Document, StepReport, SurveyStep

NUM_ORDERS = 128
BAND = np.uint32  # four bytes that agree make two documents candidates
# Of the documents that stay and agree in a band. A text that is part of very many documents would
# otherwise make the time grow with the square of their number.
MAX_COMPARED = 1000
MIN_THRESHOLD = 0.5  # below, LSH would miss more than one pair of ten
BLOCK = 2**14  # runs at a time: [NUM_ORDERS, BLOCK] of uint32 are 8 MB
REASON = "near duplicate of an earlier document"
SHOWN_CHARACTERS = 70  # of each of two documents


def _constants(name: str) -> np.ndarray:
    """[NUM_ORDERS, 1] uint32, the same on every machine and for every version of numpy."""
    values = [hash_of(f"{name} {number}") % 2**32 for number in range(NUM_ORDERS)]
    return np.array(values, dtype=np.uint32)[:, np.newaxis]


# The runs are ordered by (factor * hash + shift) modulo 2**32; odd factors make it a permutation.
_FACTORS = _constants("factor") | np.uint32(1)
_SHIFTS = _constants("shift")
_MIX = np.uint32(0x9E3779B1)


class NearDuplicates(SurveyStep):
    """Drops a document that is similar to an earlier one that stays.

    Of similar documents the first stays, in the order in which the corpus is read. A document with
    fewer words than a run has always stays. The parent process needs 300 bytes a document, and some
    4 kB more for each document that stays and has near duplicates.
    """

    name = "near_duplicates"
    version = 2  # a vowel of Hindi is a part of its word

    def __init__(self, threshold: float = 0.8, ngram: int = 5) -> None:
        check_range("near_duplicates: threshold", threshold, MIN_THRESHOLD, 1)
        check_count("near_duplicates: ngram", ngram, 1)
        self.threshold = threshold
        self.ngram = ngram

    def survey(self, documents: Iterable[Document]) -> Arrays:
        """Of the documents.

        Keys [D] int64, hashes of the texts [D] uint64, their beginnings [D] as bytes, and sketches
        [D, NUM_ORDERS] uint8.
        """
        keys = []
        texts = []
        beginnings = []
        sketches = [np.empty((0, NUM_ORDERS), dtype=np.uint8)]
        for document in documents:
            text = "\n".join(document.lines)
            hashes = ngram_hashes(words_of(text), self.ngram)
            if len(hashes):
                keys.append(document.key)
                texts.append(hash_of(text))
                beginnings.append(_beginning(document.lines).encode(errors="replace"))
                sketches.append(sketch_of(hashes)[np.newaxis])
        return {
            "keys": np.array(keys, dtype=np.int64),
            "texts": np.array(texts, dtype=np.uint64),
            "beginnings": np.array(beginnings, dtype=np.bytes_),
            "sketches": np.concatenate(sketches),
        }

    def settle(self, surveys: Sequence[Arrays]) -> Arrays:
        """Sorted keys [D] int64 of the documents that are dropped, and what the report says.

        `is_copy` [D]: whether an earlier document is the same to the letter. `earlier`: beginnings
        of the documents that the first near duplicates are similar to.
        """
        keys = np.concatenate([survey["keys"] for survey in surveys])
        texts = np.concatenate([survey["texts"] for survey in surveys])
        sketches = np.concatenate([survey["sketches"] for survey in surveys])
        similar = similar_to_earlier(sketches, self.threshold)
        rows = np.array(list(similar), dtype=np.int64)
        _, first = np.unique(texts, return_index=True)
        is_copy = ~np.isin(rows, first)
        ends = np.cumsum([len(survey["keys"]) for survey in surveys])
        earlier = []
        for row in rows[~is_copy][:MAX_EXAMPLES].tolist():
            shard = int(np.searchsorted(ends, similar[row], side="right"))
            earlier.append(surveys[shard]["beginnings"][similar[row] - ends[shard]])
        return {"dropped": keys[rows], "is_copy": is_copy, "earlier": np.array(earlier)}

    def apply(
        self, documents: Iterable[Document], table: Arrays, report: StepReport
    ) -> Iterator[Document]:
        """As `CorpusStep` says."""
        dropped = table["dropped"]
        for document in documents:
            row = np.searchsorted(dropped, document.key)
            if row == len(dropped) or dropped[row] != document.key:
                yield document
            elif table["is_copy"][row]:
                report.drop(document, DUPLICATE)
            else:
                number = np.count_nonzero(~table["is_copy"][:row])
                examples = []
                for earlier in table["earlier"][number : number + 1].tolist():
                    examples = [f"{_beginning(document.lines)} | {earlier.decode()}"]
                report.drop(document, REASON, examples)


def _beginning(lines: Sequence[str]) -> str:
    return " ".join(lines)[:SHOWN_CHARACTERS]


def sketch_of(hashes: np.ndarray) -> np.ndarray:
    """[NUM_ORDERS] uint8 of a document's runs of words, given as uint64 hashes (one at least)."""
    first = np.full(NUM_ORDERS, 2**32 - 1, dtype=np.uint32)
    for start in range(0, len(hashes), BLOCK):
        block = (hashes[start : start + BLOCK] >> np.uint64(32)).astype(np.uint32)
        first = np.minimum(first, (_FACTORS * block + _SHIFTS).min(axis=1))
    # The first runs have small numbers: their upper bits are zero until they are mixed.
    return (first * _MIX >> np.uint32(24)).astype(np.uint8)


def similar_to_earlier(sketches: np.ndarray, threshold: float) -> dict[int, int]:
    """Row of each document that is similar to an earlier one that stays -> the row of that one."""
    bands = np.ascontiguousarray(sketches).view(BAND)
    is_shared = _shared_bands(bands)
    # number and value of a band -> rows of the documents that stay and have it
    kept: dict[int, list[int]] = {}
    similar = {}
    for row in np.flatnonzero(is_shared.any(axis=1)).tolist():
        shared = np.flatnonzero(is_shared[row])
        names = shared << 32 | bands[row, shared]
        buckets = [kept.setdefault(name, []) for name in names.tolist()]
        candidates = sorted(set(chain.from_iterable(buckets)))
        agreement = (sketches[candidates] == sketches[row]).mean(axis=1)
        is_similar = agreement >= threshold
        if is_similar.any():
            similar[row] = candidates[int(is_similar.argmax())]
            continue
        for bucket in buckets:
            if len(bucket) < MAX_COMPARED:
                bucket.append(row)
    return similar


def _shared_bands(bands: np.ndarray) -> np.ndarray:
    """[D, bands] bool: whether another document has the same band."""
    is_shared = np.zeros(bands.shape, dtype=bool)
    for number, band in enumerate(bands.T):
        order = np.argsort(band, kind="stable")
        is_same = band[order][1:] == band[order][:-1]
        is_shared[order[1:][is_same], number] = True
        is_shared[order[:-1][is_same], number] = True
    return is_shared
