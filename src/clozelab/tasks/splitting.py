"""Training and validation rows: which stand in both, and which are held out of one file.

Rows are compared by a hash of their texts, exact, as the task reads them. Letters: N rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.random import uniform01, uniform_u64

Hashes = NDArray[np.uint64]
Lines = NDArray[np.int64]
NO_LINES: Lines = np.zeros(0, dtype=np.int64)
MAX_SEEN = 0.01  # of validation rows that may stand in training, as in benchmarks, unwarned
NUM_QUANTILES = 10  # by which numbers are held out alike


def text_hashes(rows: Iterable[Sequence[str]]) -> Hashes:
    """A hash of each row's texts: [N]."""
    digests = []
    for texts in rows:
        # no text holds the character between two of them
        content = "\x1f".join(texts).encode("utf-8", "surrogatepass")
        digests.append(hashlib.blake2b(content, digest_size=8).digest())
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def swapped_hashes(rows: Sequence[Sequence[str]]) -> Hashes:
    """The same [N] of each pair in the other order."""
    return text_hashes(row[::-1] for row in rows)


def pair_groups(rows: Sequence[Sequence[str]]) -> list[str]:
    """The group of each row: [N].

    Rows with the same first text are of one group, and so are a pair and its swap. A group is named
    by the first of its first texts, whatever the rows' order.
    """
    # A text -> another one of its group, until there is none.
    parents: dict[str, str] = {}
    distinct = {tuple(row) for row in rows}
    for row in distinct:
        if len(row) == 2 and row[::-1] in distinct:
            roots = sorted({_root_of(text, parents) for text in row})
            parents.update(dict.fromkeys(roots[1:], roots[0]))
    return [_root_of(first, parents) for first, *_ in rows]


def _root_of(text: str, parents: Mapping[str, str]) -> str:
    while text in parents:
        text = parents[text]
    return text


@dataclass(frozen=True)
class Overlap:
    """How many of the validation rows stand in training, and where the first of them stands."""

    num_seen: int
    num_rows: int
    validation_line: int = 0
    training_line: int = 0
    num_swapped: int = 0  # of those seen: pairs that stand there in the other order alone

    @property
    def is_large(self) -> bool:
        return self.num_seen > MAX_SEEN * self.num_rows

    @classmethod
    def between(
        cls,
        train: Hashes,
        validation: Hashes,
        train_lines: Lines = NO_LINES,
        validation_lines: Lines = NO_LINES,
        swapped: Hashes | None = None,
    ) -> Overlap:
        """Of hashed rows and the lines of each; without lines the first row has no place.

        `swapped` has the hashes of validation pairs in the other order, which count as well.
        """
        ordered = np.sort(train)
        is_seen = _is_among(ordered, validation)
        hashes = validation
        num_exact = int(is_seen.sum())
        if swapped is not None:
            hashes = np.where(is_seen, validation, swapped)
            is_seen = _is_among(ordered, hashes)
        num_seen = int(is_seen.sum())
        num_swapped = num_seen - num_exact
        if not num_seen or not len(train_lines):
            return cls(num_seen, len(validation), num_swapped=num_swapped)
        first = int(is_seen.argmax())
        row = int((train == hashes[first]).argmax())
        lines = (int(validation_lines[first]), int(train_lines[row]))
        return cls(num_seen, len(validation), *lines, num_swapped)


def _is_among(ordered: Hashes, hashes: Hashes) -> NDArray[np.bool_]:
    """[N]; by bisection, which takes a tenth of numpy's isin."""
    places = np.searchsorted(ordered, hashes)
    return ordered[np.minimum(places, len(ordered) - 1)] == hashes


@dataclass(frozen=True)
class HeldOut:
    """A part of a training file that is its validation split, the same whatever its rows' order."""

    fraction: float
    seed: int

    def __post_init__(self) -> None:
        if not 0 < self.fraction < 1:
            raise ValueError(
                f"task.data.validation_fraction={self.fraction}: give a share between 0 and 1"
            )

    def drawn(self, groups: Sequence[str]) -> NDArray[np.bool_]:
        """Whether each row [N] is held out; its group alone decides."""
        hashes = text_hashes((group,) for group in groups)
        return uniform01(self.seed, 0, "validation split", hashes) < self.fraction

    def stratified(self, groups: Sequence[str], strata: Lines) -> NDArray[np.bool_]:
        """The same [N], with nearly the same fraction of each stratum; groups stay together.

        A group is of its lowest stratum. One row is held out of a small stratum, never its only
        group.
        """
        hashes, group_of_row, sizes = np.unique(
            text_hashes((group,) for group in groups), return_inverse=True, return_counts=True
        )
        stratum_of_group = np.full(len(hashes), strata.max(initial=0))
        np.minimum.at(stratum_of_group, group_of_row, strata)
        order = np.argsort(uniform_u64(self.seed, 0, "validation split", hashes), kind="stable")
        is_held_out = np.zeros(len(hashes), dtype=np.bool_)
        for stratum in np.unique(stratum_of_group):
            members = order[stratum_of_group[order] == stratum]
            room = max(1, round(self.fraction * int(sizes[members].sum())))
            # the last group is never taken: something stays in training
            for group in members[:-1].tolist():
                if sizes[group] <= room:
                    is_held_out[group] = True
                    room -= sizes[group]
        return is_held_out[group_of_row]


def quantiles_of(values: NDArray[np.floating]) -> NDArray[np.int64]:
    """Into which tenth of all values each falls: [N]."""
    bounds = np.quantile(values, np.arange(1, NUM_QUANTILES) / NUM_QUANTILES)
    return np.searchsorted(bounds, values)
