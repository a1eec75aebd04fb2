"""Mixing weights: which share of its tokens a training reads from each source of a corpus.

As in the data mixtures of GPT-3 and LLaMA: with weights 1 and 3, three quarters of the tokens are
of the second source, whatever the sources' sizes; a small one is then read several times. Without
weights each is read in proportion to the number of its instances, so all equally often.

Unusual: the order has no state. A period of instances is laid out once: each source's are spread
evenly over it, each at a drawn place of its own stretch. So any beginning of the order has each
source's share to within an instance or two, and no source stands at every second place. Where an
instance stands says how many of its source came before it, which says its number and epoch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from claims.text.did_you_mean import hint
from clozelab.corpus.packing import I64
from clozelab.corpus.random import Draws, derive_seed, instance_indices

PERIOD = 2**16  # instances: shares are multiples of 1 / PERIOD


def check_weights(key: str, weights: object, names: Sequence[str]) -> None:
    """ValueError for weights that are no share of each of the sources `names`.

    `key` is where they stand in the configuration.
    """
    if not isinstance(weights, Mapping):
        raise ValueError(f"{key}={weights}: give a number for each source: {{wiki: 1, books: 3}}")
    for name in dict.fromkeys([*weights, *names]):
        if name not in names:
            raise ValueError(f"{key}: there is no source {name!r}; {hint(name, names)}")
        weight = weights.get(name, "missing")
        is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight < math.inf:
            raise ValueError(
                f"{key}: the weight of {name} is {weight}: give a number, 0 to leave it out"
            )
    if not any(weights.values()):
        raise ValueError(f"{key}: all weights are 0: give one source more")


class PhaseReading(NamedTuple):
    """What a phase of pre-training reads of its text."""

    tokens: float  # as often as they are read
    weights: Mapping[str, float]  # empty: sources are read by their sizes
    # name of each source -> tokens of its text that some instance of the phase has
    sizes: Mapping[str, int]

    def tokens_of_sources(self) -> dict[str, float]:
        """Name of each source -> how many tokens are read from it."""
        shares = self.weights if self.weights else self.sizes
        total = sum(shares.values())
        return {name: self.tokens * share / total for name, share in shares.items()}


class Mixture:
    """The order in which a phase reads the instances of weighted sources.

    Args:
        sources: [instances] index of each instance's source.
        weights: name of each source -> its weight.
        lengths: name, in the order of the indices -> mean tokens of text of its instances; 0
            where it has none.
        seed: of the phase.

    Raises:
        ValueError: a source that is to be read has no instance, or too small a share.
    """

    def __init__(
        self,
        sources: NDArray[np.uint8],
        weights: Mapping[str, float],
        lengths: Mapping[str, float],
        seed: int,
    ) -> None:
        self.names = list(lengths)
        self.seed = seed
        self._members = []
        # Instances of a source that hold its share of the tokens: a source of short documents has
        # fewer tokens in an instance, so more instances are read of it.
        shares = np.zeros(len(self.names))
        for number, name in enumerate(self.names):
            members = np.flatnonzero(sources == number)
            self._members.append(members.astype(np.min_scalar_type(len(sources))))
            if len(members):
                shares[number] = weights[name] / max(1, lengths[name])
        self._quotas = _quotas(shares)
        for name, quota in zip(self.names, self._quotas, strict=True):
            if weights[name] and not quota:
                raise ValueError(
                    f"source {name} with weight {weights[name]:g} has no instance to read, or less"
                    f" than one of {PERIOD:,}: raise its weight, add text, or give it weight 0"
                )
        self._source, self._number = _layout(self._quotas, seed)

    def places(self, position: I64) -> tuple[I64, I64]:
        """Positions counted over the whole phase -> (epoch of its source, instance), alike."""
        period, place = np.divmod(position, PERIOD)
        source = self._source[place]
        # how many instances of the same source stand before
        count = period * self._quotas[source] + self._number[place]
        epoch = np.empty_like(count)
        index = np.empty_like(count)
        for number in np.unique(source):
            is_here = source == number
            members = self._members[number]
            seed = derive_seed(self.seed, f"source {self.names[number]}")
            epoch[is_here], order = instance_indices(seed, len(members), count[is_here])
            index[is_here] = members[order]
        return epoch, index


def _quotas(shares: NDArray[np.float64]) -> I64:
    """Instances of each source in a period, by largest remainders: their sum is PERIOD."""
    exact = shares / max(shares.sum(), np.finfo(float).tiny) * PERIOD
    quotas = np.floor(exact).astype(np.int64)
    largest_first = np.argsort(quotas - exact, kind="stable")
    quotas[largest_first[: PERIOD - quotas.sum()]] += 1
    return quotas


def _layout(quotas: I64, seed: int) -> tuple[I64, I64]:
    """Source of each place of a period, and how many of that source stand before it there.

    A source with quota q has one place in each q-th part of the period, drawn inside of it.
    """
    source = np.repeat(np.arange(len(quotas)), quotas)
    first = np.cumsum(quotas) - quotas
    number = np.arange(PERIOD) - first[source]
    draw = Draws(seed, 0, source).uniform("mixture", number)
    order = np.lexsort((source, (number + draw) / quotas[source]))
    return source[order], number[order]
