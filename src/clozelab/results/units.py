"""What the scores of a column are in: as its runs record it, else as paper.yaml says.

Before there is a run, a name that older versions wrote is what it was then. A task's own main
score, and a paper's cells, are in percent unless the column says otherwise. Nothing else is known
without runs: it has no unit until there are some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clozelab.analysis.schema import PERCENT, Column
from clozelab.metrics.metric import PREFIX, UNKNOWN_UNIT
from clozelab.runs.older_scores import older_metric

if TYPE_CHECKING:
    from clozelab.runs.record import Score


class Scale(NamedTuple):
    """What scores are in, and whether a higher one is better; None where that is not known."""

    unit: str
    higher_is_better: bool | None


UNKNOWN = Scale(UNKNOWN_UNIT, None)


def plain_name(metric: str) -> str:
    """`bits per character` of "validation/bits_per_character"."""
    return metric.rpartition("/")[2].replace("_", " ")


def scale_without_runs(column: Column, metric: str = "") -> Scale:
    """The scale of a column as far as it is known before a run; of another `metric` of its runs."""
    if column.higher_is_better is not None and metric in ("", column.metric):
        return Scale(column.unit, column.higher_is_better)
    metric = metric or column.metric
    if not metric:
        return Scale(PERCENT, higher_is_better=True)
    older = older_metric(metric)
    if older is not None:
        return Scale(older.unit or plain_name(metric), older.higher_is_better)
    # A fact such as "tokens" is counted in itself, and is no achievement.
    if column.is_pretraining and not metric.startswith(PREFIX):
        return Scale(plain_name(metric), None)
    return UNKNOWN


def scale_of(column: Column | None, metric: str, score: Score | None) -> Scale:
    """The scale of a column's runs, one of which has this `score` by this `metric`.

    ValueError where runs and paper.yaml say different things.
    """
    given = UNKNOWN
    if column is not None:
        given = scale_without_runs(column, metric)
    if score is None or score.unit == UNKNOWN_UNIT:
        return given
    recorded = Scale(score.unit or plain_name(metric), score.higher_is_better)
    is_declared = column is not None and column.higher_is_better is not None
    if column is not None and is_declared and metric == column.metric and given != recorded:
        raise ValueError(
            f"columns: {column.name} says {_in_words(given)}, and its runs have"
            f" {_in_words(recorded)}: leave unit and higher_is_better out, or correct them"
        )
    return recorded


def _in_words(scale: Scale) -> str:
    better = "higher" if scale.higher_is_better else "lower"
    return f"{scale.unit}, {better} is better"
