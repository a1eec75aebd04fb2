"""Every random decision of the world goes through one object, by name.

A document is a deterministic function of its decisions. That is unusual for a text generator and buys the known
entropy: a document can be told again with one decision changed, and the probability of every telling is the product of
its decisions' probabilities. Only `random.Random.random` is used, whose sequence Python guarantees across versions; so
bytes are the same everywhere.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T", bound=Hashable)


class Unreachable(Exception):
    """The forced decisions cannot be made here: such a document has probability zero, or another structure."""


@dataclass(frozen=True)
class Decision:
    options: tuple[Any, ...]
    probabilities: tuple[float, ...]
    value: Any


class Choices:
    """Random decisions, each under an address that is unique in its document.

    `seed` names the stream. With `forced` (address -> value) nothing is random: every decision takes its forced value,
    and `Unreachable` is raised where that value is not on offer. `record=True` keeps the decisions in `decisions`.
    """

    def __init__(self, seed: str, forced: Mapping[Hashable, Any] | None = None, record: bool = False) -> None:
        self._random = random.Random(seed).random
        self._forced = forced
        self._record = record
        self.decisions: dict[Hashable, Decision] = {}
        self.log_probability = 0.0

    def pick(self, address: Hashable, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
        """One of `options`, uniformly or by `weights` (positive, any scale)."""
        if self._forced is not None:
            value = self._take_forced(address, options)
        elif weights is None:
            value = options[int(self._random() * len(options))]
        else:
            value = self._draw(options, weights)
        if self._record:
            self._note(address, options, weights, value)
        return value

    def chance(self, address: Hashable, probability: float) -> bool:
        return self.pick(address, (True, False), (probability, 1.0 - probability))

    def shuffled(self, address: Hashable, items: Sequence[T]) -> list[T]:
        left, result = list(items), []
        while left:
            index = self.pick((address, len(left)), range(len(left)))
            result.append(left.pop(index))
        return result

    def _draw(self, options: Sequence[T], weights: Sequence[float]) -> T:
        point = self._random() * sum(weights)
        for option, weight in zip(options, weights, strict=True):
            point -= weight
            if point < 0:
                return option
        return options[-1]

    def _take_forced(self, address: Hashable, options: Sequence[T]) -> T:
        assert self._forced is not None
        value = self._forced.get(address, Unreachable)
        if value is Unreachable or value not in options:
            raise Unreachable(address)
        return value

    def _note(self, address: Hashable, options: Sequence[Any], weights: Sequence[float] | None, value: Any) -> None:
        assert address not in self.decisions, f"decision {address} is made twice"
        total = float(len(options)) if weights is None else sum(weights)
        probabilities = tuple((1.0 if weights is None else weights[index]) / total for index in range(len(options)))
        self.decisions[address] = Decision(tuple(options), probabilities, value)
        self.log_probability += math.log(probabilities[options.index(value)])
