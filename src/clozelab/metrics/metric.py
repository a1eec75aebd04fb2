"""What a score is: its unit, and whether a higher value is better.

Code that computes a score declares a `Metric` beside the computation. The declaration goes into the
record of a run, and from there into tables, verdicts and their sentences. So nobody has to guess a
unit or a direction from the name of a score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

MetricUnit = Literal["percent", "points", "nats", "bits", "logits", ""]
PERCENT: Final = "percent"
NO_UNIT: Final = ""
UNKNOWN_UNIT: Final = "unknown unit"  # of an older score whose name was never declared
PREFIX = "validation/"  # of a key of scores.json
HUNDRED = 100.0  # a share of one is computed, and shown in percent
# The fields of a metric that scores.json keeps under the metric's name.
DECLARED = ("unit", "higher_is_better", "factor", "is_of_one_class")


@dataclass(frozen=True)
class Metric:
    """The name, the unit and the direction of a score.

    Args:
        name: the score's key in scores.json, without "validation/". The key `NAME/PART`, such as
            "loss/wiki", belongs to the metric NAME.
        unit: of the number that is shown. "points" are those of the labels' own scale; "" means a
            number without a unit, such as a perplexity.
        higher_is_better: None for a number that is neither good nor bad, such as a threshold.
        factor: the shown number is the computed one times this factor: 100 for a share of one that
            is shown in percent.
        is_of_one_class: the score is about the positive label alone, as the F1 of two classes is.

    Raises:
        ValueError: the unit is unknown.
    """

    name: str
    unit: MetricUnit
    higher_is_better: bool | None
    factor: float = 1.0
    is_of_one_class: bool = False

    def __post_init__(self) -> None:
        if self.unit not in get_args(MetricUnit):
            known = ", ".join(filter(None, get_args(MetricUnit)))
            raise ValueError(
                f"metric {self.name}: the unit {self.unit!r} is unknown; known units: {known}, and"
                " '' for none"
            )

    @classmethod
    def share(cls, name: str, *, is_of_one_class: bool = False) -> Metric:
        """A share of one, or a correlation: shown in percent, and higher is better."""
        return cls(
            name,
            PERCENT,
            higher_is_better=True,
            factor=HUNDRED,
            is_of_one_class=is_of_one_class,
        )

    @property
    def key(self) -> str:
        """The key of the score in scores.json, and in a task's `metric`."""
        return PREFIX + self.name


@dataclass(frozen=True)
class Scorer:
    """A metric, and the function of predictions and labels that computes it."""

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
    """The name of the metric that a key belongs to: `loss` of "validation/loss/wiki"."""
    return key.removeprefix(PREFIX).partition("/")[0]


def metric_of(key: str, metrics: Iterable[Metric]) -> Metric:
    """The one of `metrics` that a score's key belongs to; ValueError where none declares it."""
    names = {metric.name: metric for metric in metrics}
    name = base_name(key)
    if name not in names:
        raise ValueError(
            f"{key}: no Metric declares the unit and the direction of this score; declared are"
            f" {', '.join(names)}"
        )
    return names[name]
