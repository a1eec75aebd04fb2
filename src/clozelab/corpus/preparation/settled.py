"""What is settled once all shards are surveyed: copies, what is held out, what is sampled.

It follows from hashes and from the order of documents, so it is the same for any shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from clozelab.corpus.documents import DUPLICATE
from clozelab.corpus.preparation.shard_files import read_arrays, read_facts, write_file
from clozelab.corpus.preparation.survey import COLUMNS
from clozelab.corpus.preparation.tallies import Tally, add_tallies
from clozelab.corpus.steps.step import Arrays

ALL_HASHES = 2**64
# of all characters: lines that have more of them are counted
COUNTED_SHARE = 0.0005
ARRAYS = ("is_kept", "starts", "held_out_anywhere")  # of what is settled
Units = tuple[np.ndarray, np.ndarray]  # hashes uint64 [N] and characters int64 [N]


@dataclass(frozen=True)
class Settled:
    """What the last pass has to know of the corpus as a whole."""

    is_kept: np.ndarray  # bool [D], in the order of the shards: not the copy of an earlier document
    starts: np.ndarray  # int64 [shards + 1], of each shard's documents
    limits: Mapping[int, int]  # by source: stretches of lower hashes are held out
    held_out_anywhere: np.ndarray  # uint64: of stretches that one source holds out, others not
    sample_limit: int  # blocks of lower hashes are what a vocabulary is learnt from
    lines: Sequence[str]  # that may be frequent
    num_sentences: int
    num_stretches: int  # of different text; of several sources the same text counts for each
    tallies: Sequence[Tally]  # of each step, the copies' too

    def kept_of(self, shard: int) -> np.ndarray:
        """Whether each document of a shard is kept, bool."""
        return self.is_kept[self.starts[shard] : self.starts[shard + 1]]

    @cached_property
    def num_kept_before(self) -> list[int]:
        """How many documents of earlier shards are kept, of each shard."""
        return np.append(0, np.cumsum(self.is_kept))[self.starts].tolist()

    def is_held_out(self, sources: np.ndarray, hashes: np.ndarray) -> np.ndarray:
        """Whether each stretch is held out, bool [T]; `sources` and `hashes` are [T]."""
        is_held_out = np.isin(hashes, self.held_out_anywhere)
        for source, limit in self.limits.items():
            is_held_out |= (sources == source) & (hashes < limit)
        return is_held_out

    def write(self, path: Path) -> None:
        """Write it as a file."""
        facts = dict(vars(self))
        arrays = {name: facts.pop(name) for name in ARRAYS}
        facts["limits"] = list(self.limits.items())
        facts["tallies"] = [tally.facts() for tally in self.tallies]
        write_file(path, arrays, facts)

    @classmethod
    def read(cls, path: Path) -> Settled:
        """Read what `write` has written."""
        facts = read_facts(path)
        facts["limits"] = dict(facts["limits"])
        facts["tallies"] = add_tallies([facts["tallies"]])
        facts |= read_arrays(path, ARRAYS)
        return cls(**facts)


def settle(paths: Sequence[Path], validation_fraction: float, sample_characters: float) -> Settled:
    """Settle a corpus from its shards' files, in order.

    `sample_characters` is how much text a vocabulary is learnt from at most.
    """
    shards = [read_arrays(path, COLUMNS) for path in paths]
    starts = np.cumsum([0, *(len(shard["document_hash"]) for shard in shards)])
    columns: dict[str, np.ndarray] = {}
    for name, kind in COLUMNS.items():
        columns[name] = np.concatenate([np.empty(0, kind), *(shard[name] for shard in shards)])
    is_kept = first_of_each(columns["document_hash"])
    stretches = {}
    for source in np.unique(columns["document_source"][is_kept]).tolist():
        is_here = is_kept & (columns["document_source"] == source)
        stretches[source] = _units_of(columns, "stretch", is_here)
    copies = _tally_copies(columns, is_kept)
    tallies = add_tallies(read_facts(path)["tallies"] for path in paths)
    hashes, characters = _units_of(columns, "block", is_kept)
    block_limit = sample_limit(hashes, characters, sample_characters)
    lines = _frequent_lines(paths, COUNTED_SHARE * copies.characters.total())
    limits = held_out_limits(stretches, validation_fraction)
    num_sentences = columns["document_sentences"][is_kept].sum()
    num_stretches = sum(len(np.unique(each)) for each, _ in stretches.values())
    return Settled(
        is_kept=is_kept,
        starts=starts,
        limits=limits,
        held_out_anywhere=_held_out_anywhere(stretches, limits),
        sample_limit=block_limit,
        lines=lines,
        num_sentences=int(num_sentences),
        num_stretches=num_stretches,
        tallies=[*tallies, copies],
    )


def _tally_copies(arrays: Arrays, is_kept: np.ndarray) -> Tally:
    """The documents that are kept, and those that are copies of earlier ones."""
    tally = Tally("duplicates")
    characters = arrays["document_characters"]
    for source in np.unique(arrays["document_source"]).tolist():
        is_here = is_kept & (arrays["document_source"] == source)
        tally.documents[source] += int(is_here.sum())
        tally.characters[source] += int(characters[is_here].sum())
    num_copies = int((~is_kept).sum())
    if num_copies:
        tally.report.documents[DUPLICATE] += num_copies
        tally.report.characters[DUPLICATE] += int(characters[~is_kept].sum())
    return tally


def _frequent_lines(paths: Sequence[Path], min_characters: float) -> list[str]:
    """The lines that may have so many characters of the corpus, by their copies in shards."""
    characters: Counter[str] = Counter()
    for path in paths:
        characters.update(read_facts(path)["lines"])
    return [line for line, number in characters.most_common() if number > min_characters]


def _units_of(arrays: Arrays, unit: str, is_chosen: np.ndarray) -> Units:
    """The stretches or blocks of the chosen documents."""
    chosen = np.repeat(is_chosen, arrays[f"{unit}_counts"])
    return arrays[f"{unit}_hash"][chosen], arrays[f"{unit}_characters"][chosen]


def first_of_each(hashes: np.ndarray) -> np.ndarray:
    """Whether each hash is the first of its value, bool [N]."""
    _, first = np.unique(hashes, return_index=True)
    is_first = np.zeros(len(hashes), dtype=bool)
    is_first[first] = True
    return is_first


def held_out_limits(stretches: Mapping[int, Units], validation_fraction: float) -> dict[int, int]:
    """Source -> the hash below which its stretches are held out.

    They are up to a share of the source's characters, so no source or long document has more than
    its share, and a short document lies on one side as a whole. At least one stretch is held out. A
    source of a single stretch is trained on, unless all are.
    """
    limits = {}
    all_single = True
    for source, (hashes, characters) in stretches.items():
        distinct, inverse = np.unique(hashes, return_inverse=True)
        # By ascending hash: a stretch is held out whose middle lies inside the share.
        weights = np.bincount(inverse, characters)
        middles = np.cumsum(weights) - weights / 2
        share = validation_fraction * weights.sum()
        num_held_out = max(1, int(np.searchsorted(middles, share)))
        limits[source] = int(distinct[min(num_held_out, len(distinct) - 1)])
        all_single &= len(distinct) == 1
    if limits and all_single:
        limits[min(limits, key=limits.__getitem__)] = ALL_HASHES
    return limits


def _held_out_anywhere(stretches: Mapping[int, Units], limits: Mapping[int, int]) -> np.ndarray:
    """The hashes of stretches that one source holds out and another one would train on."""
    hashes = np.concatenate([np.empty(0, np.uint64), *(each for each, _ in stretches.values())])
    below = [each < limits[source] for source, (each, _) in stretches.items()]
    is_held_out = np.concatenate([np.empty(0, bool), *below])
    return np.intersect1d(hashes[is_held_out], hashes[~is_held_out])


def sample_limit(hashes: np.ndarray, characters: np.ndarray, max_characters: float) -> int:
    """The hash below which blocks have `max_characters` together at most: halved at need."""
    limit = ALL_HASHES
    total = characters.sum()
    while total > max_characters:
        limit //= 2
        total = characters[hashes < limit].sum()
    return limit
