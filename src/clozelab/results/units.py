"""Unit and direction of a column's scores: as its runs record them, else as paper.yaml says.

Before the first run, names that older versions have written keep the unit that they had then. The
main score of a task, and the cells of a paper, are in percent unless the column says otherwise. The
unit of anything else is unknown until there is a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from claims.analysis.schema import IN_PERCENT, Column, Scale
from clozelab.metrics.metric import PREFIX, UNKNOWN_UNIT
from clozelab.runs.older_scores import older_metric

if TYPE_CHECKING:
    from clozelab.runs.record import Score


UNKNOWN = Scale(UNKNOWN_UNIT, None)


def plain_name(metric: str) -> str:
    """A score's name for people: `bits per character` of "validation/bits_per_character"."""
    return metric.rpartition("/")[2].replace("_", " ")


def scale_without_runs(column: Column, metric: str = "") -> Scale:
    """The scale of a column's metric, or of another `metric`, as far as known without runs."""
    if column.scale is not None and metric in ("", column.metric):
        return column.scale
    metric = metric or column.metric
    # A task's main score, or a paper's cells.
    if not metric:
        return IN_PERCENT
    older = older_metric(metric)
    if older is not None:
        return Scale(older.unit or plain_name(metric), older.higher_is_better)
    # A fact such as "tokens" is its own unit, and neither good nor bad.
    if column.is_pretraining and not metric.startswith(PREFIX):
        return Scale(plain_name(metric), None)
    return UNKNOWN


def scale_of(column: Column | None, metric: str, score: Score | None) -> Scale:
    """The scale of the scores that a column's runs have by `metric`; `score` is that of one run.

    ValueError where paper.yaml declares another unit or direction than the runs have recorded.
    """
    if score is None or score.unit == UNKNOWN_UNIT:
        return UNKNOWN if column is None else scale_without_runs(column, metric)
    # A number without a unit is shown with its name: "perplexity".
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
    directions = {True: "higher is better", False: "lower is better", None: "neither good nor bad"}
    return f"{scale.unit}, {directions[scale.higher_is_better]}"
