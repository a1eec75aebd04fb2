"""Training and validation rows: which stand in both, and which are held out of one file.

Rows are compared by a hash of their texts, exact, as the task reads them. Letters: N rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.random import Draws

Hashes = NDArray[np.uint64]
Lines = NDArray[np.int64]
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
    """How many of the validation rows stand in training, and which is the first in both."""

    num_seen: int
    num_rows: int
    validation_row: int = 0
    training_row: int = 0
    num_swapped: int = 0  # of those seen: pairs that stand there in the other order alone

    @property
    def is_large(self) -> bool:
        return self.num_seen > MAX_SEEN * self.num_rows

    @classmethod
    def between(cls, train: Hashes, validation: Hashes, swapped: Hashes | None = None) -> Overlap:
        """Of hashed rows.

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
        if not num_seen:
            return cls(0, len(validation))
        first = int(is_seen.argmax())
        row = int((train == hashes[first]).argmax())
        return cls(num_seen, len(validation), first, row, num_swapped)


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

    @property
    def setting(self) -> str:
        """What says so, for messages."""
        return f"task.data.validation_fraction={self.fraction:g}"

    @property
    def draw(self) -> dict[str, float]:
        """The settings that say which rows these are."""
        return {"validation_fraction": self.fraction, "validation_seed": self.seed}

    @property
    def share(self) -> str:
        return f"{self.fraction:g}"

    def drawn(self, groups: Sequence[str]) -> NDArray[np.bool_]:
        """Whether each row [N] is held out; its group alone decides."""
        hashes = text_hashes((group,) for group in groups)
        return Draws(self.seed, 0, hashes).uniform("validation split") < self.fraction

    def stratified(self, groups: Sequence[str], strata: Lines) -> NDArray[np.bool_]:
        """The same [N], with nearly the same fraction of each stratum; groups stay together.

        A group is of its lowest stratum. One row is held out of a small stratum, never its only
        group.
        """
        group_of_row, sizes, members_of_strata = _shuffled(groups, strata, self.seed)
        is_held_out = np.zeros(len(sizes), dtype=np.bool_)
        for members in members_of_strata:
            room = max(1, round(self.fraction * int(sizes[members].sum())))
            # the last group is never taken: something stays in training
            for group in members[:-1].tolist():
                if sizes[group] <= room:
                    is_held_out[group] = True
                    room -= sizes[group]
        return is_held_out[group_of_row]

    def balanced(self, groups: Sequence[str], strata: Lines) -> NDArray[np.bool_]:
        """The same [N] of groups that have rows of several strata.

        In random order, a group is held out if that brings the strata nearer to the fraction.
        """
        group_of_row, counts = _shuffled_counts(groups, strata, self.seed)
        ideal = self.fraction * counts.sum(axis=0)
        held_out = np.zeros_like(ideal)
        is_held_out = np.zeros(len(counts), dtype=np.bool_)
        for group, of_group in enumerate(counts):
            before = ((held_out - ideal) ** 2 / ideal).sum()
            after = ((held_out + of_group - ideal) ** 2 / ideal).sum()
            if after < before:
                is_held_out[group] = True
                held_out += of_group
        return is_held_out[group_of_row]


@dataclass(frozen=True)
class Fold:
    """One of some parts of a training file, of which each is the validation split of a run.

    Every row is in one of them, whatever the rows' order: `number` counts from 0.
    """

    folds: int
    seed: int
    number: int

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise ValueError(f"{self.setting}: give 2 or more")

    @property
    def setting(self) -> str:
        """What says so, for messages."""
        return f"task.data.validation_folds={self.folds}"

    @property
    def draw(self) -> dict[str, float]:
        """The settings that say which rows are in which fold."""
        return {"validation_folds": self.folds, "validation_seed": self.seed}

    @property
    def share(self) -> str:
        return f"fold {self.number} of 0 to {self.folds - 1}"

    def drawn(self, groups: Sequence[str]) -> NDArray[np.bool_]:
        """Whether each row [N] is in the fold."""
        return self.stratified(groups, np.zeros(len(groups), dtype=np.int64))

    def stratified(self, groups: Sequence[str], strata: Lines) -> NDArray[np.bool_]:
        """The same [N], with the same number of each stratum in all folds, but for large groups.

        A group is of its lowest stratum, and goes where fewest rows of that one are, then of all.
        """
        group_of_row, sizes, members_of_strata = _shuffled(groups, strata, self.seed)
        fold_of_group = np.zeros(len(sizes), dtype=np.int64)
        of_all = np.zeros(self.folds)
        for members in members_of_strata:
            of_stratum = np.zeros(self.folds)
            for group in members.tolist():
                fold = np.lexsort((of_all, of_stratum))[0]
                fold_of_group[group] = fold
                for counts in (of_stratum, of_all):
                    counts[fold] += sizes[group]
        return fold_of_group[group_of_row] == self.number

    def balanced(self, groups: Sequence[str], strata: Lines) -> NDArray[np.bool_]:
        """The same [N] of groups that have rows of several strata.

        The largest go first, each where its strata have the fewest rows.
        """
        group_of_row, counts = _shuffled_counts(groups, strata, self.seed)
        shares = counts / counts.sum(axis=0)
        of_folds = np.zeros((self.folds, counts.shape[1]))
        fold_of_group = np.zeros(len(counts), dtype=np.int64)
        for group in np.argsort(-counts.sum(axis=1), kind="stable").tolist():
            fold = int((of_folds @ shares[group]).argmin())
            fold_of_group[group] = fold
            of_folds[fold] += counts[group]
        return fold_of_group[group_of_row] == self.number


def _shuffled(groups: Sequence[str], strata: Lines, seed: int) -> tuple[Lines, Lines, list[Lines]]:
    """The group of each row [N]; of G groups the sizes [G]; each stratum's groups in random order.

    A group is of its lowest stratum. All is a function of the seed and of the groups' names.
    """
    hashes, group_of_row, sizes = np.unique(
        text_hashes((group,) for group in groups), return_inverse=True, return_counts=True
    )
    stratum_of_group = np.full(len(hashes), strata.max(initial=0))
    np.minimum.at(stratum_of_group, group_of_row, strata)
    order = np.argsort(Draws(seed, 0, hashes).bits("validation split"), kind="stable")
    stratum_in_order = stratum_of_group[order]
    members = [order[stratum_in_order == stratum] for stratum in np.unique(stratum_of_group)]
    return group_of_row, sizes, members


def _shuffled_counts(
    groups: Sequence[str], strata: Lines, seed: int
) -> tuple[Lines, NDArray[np.float64]]:
    """The group of each row [N], and the rows of each of G groups in each of K strata [G, K].

    Groups are numbered in a random order, which is a function of the seed and of their names.
    """
    hashes, group_of_row = np.unique(text_hashes((group,) for group in groups), return_inverse=True)
    _, stratum_of_row = np.unique(strata, return_inverse=True)
    order = np.argsort(Draws(seed, 0, hashes).bits("validation split"), kind="stable")
    place_of_group = np.argsort(order)
    group_of_row = place_of_group[group_of_row]
    counts = np.zeros((len(hashes), stratum_of_row.max(initial=0) + 1))
    np.add.at(counts, (group_of_row, stratum_of_row), 1)
    return group_of_row, counts


def quantiles_of(values: NDArray[np.floating]) -> NDArray[np.int64]:
    """Into which tenth of all values each falls: [N]."""
    bounds = np.quantile(values, np.arange(1, NUM_QUANTILES) / NUM_QUANTILES)
    return np.searchsorted(bounds, values)
