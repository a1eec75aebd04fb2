"""What the scores of a column are in: as its runs record it, else as paper.yaml says.

Before there is a run, a name that older versions wrote is what it was then. A task's own main
score, and a paper's cells, are in percent unless the column says otherwise. Nothing else is known
without runs: it has no unit until there are some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clozelab.analysis.schema import IN_PERCENT, Column, Scale
from clozelab.metrics.metric import PREFIX, UNKNOWN_UNIT
from clozelab.runs.older_scores import older_metric

if TYPE_CHECKING:
    from clozelab.runs.record import Score


UNKNOWN = Scale(UNKNOWN_UNIT, None)


def plain_name(metric: str) -> str:
    """`bits per character` of "validation/bits_per_character"."""
    return metric.rpartition("/")[2].replace("_", " ")


def scale_without_runs(column: Column, metric: str = "") -> Scale:
    """The scale of a column as far as it is known before a run; of another `metric` of its runs."""
    if column.scale is not None and metric in ("", column.metric):
        return column.scale
    metric = metric or column.metric
    if not metric:
        return IN_PERCENT
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
    if score is None or score.unit == UNKNOWN_UNIT:
        return UNKNOWN if column is None else scale_without_runs(column, metric)
    recorded = Scale(score.unit or plain_name(metric), score.higher_is_better)
    if column is None or column.metric not in ("", metric):
        return recorded
    declared = column.scale or recorded
    if declared != recorded:
        raise ValueError(
            f"columns: {column.name} says {_describe_scale(declared)}, and its runs have"
            f" {_describe_scale(recorded)}: leave unit and higher_is_better out, or correct them"
        )
    return recorded


def _describe_scale(scale: Scale) -> str:
    better = "higher" if scale.higher_is_better else "lower"
    return f"{scale.unit}, {better} is better"
