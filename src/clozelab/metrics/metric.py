"""What a score is, as whoever computes it declares it: its unit, and whether higher is better.

A metric stands beside its computation and travels from there: into the record of a run, into the
table, into verdicts and their sentences. No reader concludes a unit from a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

Unit = Literal["percent", "points", "nats", "bits", "logits", ""]
PERCENT: Final = "percent"
NO_UNIT: Final = ""
UNKNOWN_UNIT: Final = "unknown unit"  # of an older score whose name was never declared
PREFIX = "validation/"  # of a key of scores.json
# a share of one in percent
HUNDRED = 100.0
# what scores.json keeps of a metric beside its name
DECLARED = ("unit", "higher_is_better", "factor", "is_of_one_class")


@dataclass(frozen=True)
class Metric:
    """A score by its name, unit and direction.

    Args:
        name: the score's key in scores.json behind "validation/". A key `NAME/PART`, such as
            "loss/wiki", is of the metric NAME.
        unit: of the number that people are shown. "points" are those of the labels' own scale; ""
            is a number without a unit, such as a perplexity.
        higher_is_better: None for a number that is no achievement, such as a threshold.
        factor: the shown number is this times the computed one: 100 for a share of one in percent.
        is_of_one_class: it is of the positive label alone, as an F1 of two classes is.

    Raises:
        ValueError: there is no such unit.
    """

    name: str
    unit: Unit
    higher_is_better: bool | None
    factor: float = 1.0
    is_of_one_class: bool = False

    def __post_init__(self) -> None:
        if self.unit not in get_args(Unit):
            known = ", ".join(filter(None, get_args(Unit)))
            raise ValueError(
                f"metric {self.name}: the unit {self.unit!r} is unknown; known units: {known}, and"
                " '' for none"
            )

    @classmethod
    def share(cls, name: str, *, is_of_one_class: bool = False) -> Metric:
        """A share of one, or a correlation, which is shown in percent; higher is better."""
        return cls(
            name,
            PERCENT,
            higher_is_better=True,
            factor=HUNDRED,
            is_of_one_class=is_of_one_class,
        )

    @property
    def key(self) -> str:
        """Its key in scores.json and in a task's `metric`."""
        return PREFIX + self.name


@dataclass(frozen=True)
class Scorer:
    """A metric and the function of predictions and labels that computes it."""

    metric: Metric
    compute: Callable[..., float]

    @classmethod
    def share(cls, name: str, compute: Callable[..., float]) -> Scorer:
        """A scorer whose result is a share of one, or a correlation (`Metric.share`)."""
        return cls(Metric.share(name), compute)

    def __call__(self, *arguments: Any) -> float:
        return self.compute(*arguments)


def by_name(*scorers: Scorer) -> dict[str, Scorer]:
    """Name of the metric -> its scorer."""
    return {scorer.metric.name: scorer for scorer in scorers}


def base_name(key: str) -> str:
    """The name of a key's metric: `loss` of "validation/loss/wiki"."""
    return key.removeprefix(PREFIX).partition("/")[0]


def metric_of(key: str, metrics: Iterable[Metric]) -> Metric:
    """The metric of a score's key; ValueError where none of `metrics` declares it."""
    names = {metric.name: metric for metric in metrics}
    name = base_name(key)
    if name not in names:
        raise ValueError(
            f"{key}: whoever computes this score does not declare it; declared are"
            f" {', '.join(names)} (a Metric has a unit and a direction)"
        )
    return names[name]
