"""results.csv: every score of every run, one a line; docs/runs.md says what each column holds.

Pre-training comes first, then fine-tuning and evaluation, each by folder. docs/runs.md also says
how to compute a cell of the table from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from clozelab.results.columns import is_scored, stand_in_for
from clozelab.results.table import ResultTable
from clozelab.runs.record import NO_UNIT, Record, Score

RUN_FIELDS = (
    "experiment",
    "scale",
    "stage",
    "row",
    "arm",
    "task",
    "stand_in_for",
    "synthetic",
    "pretrain_seed",
    "seed",
    "learning_rate",
)
SCORE_FIELDS = (
    "metric",
    "unit",
    "score",
    "is_headline",
    "column",
    "counts",
    "majority",
    "baseline",
    "examples",
    "collapsed",
    "status",
)
PROVENANCE_FIELDS = (
    "tokens",
    "tokens_per_second",
    "seconds",
    "machine",
    "commit",
    "local_changes",
    "fingerprint",
    "folder",
)
RESULT_FIELDS = RUN_FIELDS + SCORE_FIELDS + PROVENANCE_FIELDS
# what a spreadsheet takes for the beginning of a formula
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def result_lines(table: ResultTable, scale: str) -> Iterator[dict[str, str]]:
    """Field -> text of every score of every run, complete or not; of a run without one, a line."""
    counted = _counted_folders(table)
    for run in table.runs.runs:
        about = _about_run(run)
        about |= {
            "experiment": table.experiment.name,
            "scale": scale,
            "counts": run.folder in counted,
            "synthetic": run.synthetic,
        }
        if run.stage == "pretrain":
            # Encoders of one table are of one world, or all of real text.
            about["synthetic"] = table.runs.synthetic
            lines = _pretraining_lines(run, table)
        else:
            lines = _task_lines(run, table)
        for line in lines:
            yield {key: spreadsheet_text(value) for key, value in (about | line).items()}


def _counted_folders(table: ResultTable) -> set[Path]:
    """The runs behind some cell, and the pre-training runs that may be compared."""
    folders = {run.folder for run in table.current.pretrain if run.is_complete}
    for cell in table.cells.values():
        for part in (cell, *cell.parts):
            folders |= {run.folder for run in part.runs.values()}
    return folders


def _about_run(run: Record) -> dict[str, Any]:
    # Pre-training has its learning rate in the optimizer, a task's run on its own.
    optimizer = run.config.get("optimizer") or {}
    about = {
        "stage": run.stage,
        "status": run.status,
        "seconds": run.seconds,
        "machine": run.machine,
        "fingerprint": run.fingerprint,
        "folder": run.place,
    }
    for fact in ("tokens", "tokens_per_second"):
        about[fact] = run.facts.get(fact)
    about["learning_rate"] = run.config.get("learning_rate", optimizer.get("learning_rate"))
    if run.git:
        about["commit"] = run.git.commit
        about["local_changes"] = run.git.dirty
    return about


def spreadsheet_text(value: object) -> str:
    """A value as a spreadsheet shows it; nothing for None.

    A text that it would take for a formula begins with an apostrophe.
    """
    if value is None:
        return ""
    # Ten digits: more of a score is the noise of its arithmetic.
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    if text.startswith(FORMULA) and not _is_number(text):
        return f"'{text}"
    return text


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return True
    return False


def _pretraining_lines(run: Record, table: ResultTable) -> Iterator[dict[str, Any]]:
    """The facts of a run that are held-out figures, or that a column of the table shows."""
    # fact -> the column of the table that shows it
    headings = {
        column.metric: column.heading
        for column in table.columns
        if column.is_pretraining and not column.is_paper
    }
    scores: dict[str, float] = {}
    for key, value in run.figures.items():
        is_listed = key.startswith("validation/") or key in headings
        if run.is_complete and is_listed and isinstance(value, int | float):
            scores[key] = float(value)

    for line in _score_lines(scores, "validation/loss"):
        metric = line.get("metric", "")
        unit = NO_UNIT
        if metric.startswith("validation/"):
            unit = Score.of(metric, are_shares=True).unit
        yield line | {
            "arm": run.name,
            "pretrain_seed": run.seed,
            "column": headings.get(metric),
            "unit": unit,
        }


def _task_lines(run: Record, table: ResultTable) -> Iterator[dict[str, Any]]:
    """The scores of a fine-tuning or an evaluation, each with what it stands beside."""
    arms = {row.name: row.arm for row in table.experiment.rows}
    # score -> the column of the table that shows it; a row of nobody is in no column
    headings: dict[str, str] = {}
    if run.name in arms:
        for column in table.columns:
            if column.task == run.task:
                headings[column.metric] = column.heading
    about = _about_task_run(run)
    about["arm"] = arms.get(run.name, run.config.get("encoder_arm"))
    for line in _score_lines(run.values if run.is_complete else {}, run.metric):
        metric = line.get("metric", "")
        line = line | about | {"column": headings.get(metric), "unit": ""}
        score = run.scores.get(metric)
        if score:
            line["unit"] = score.unit
            line["baseline"] = max(score.baselines.values(), default=None)
            if line["is_headline"]:
                line["majority"] = score.majority
        yield line


def _about_task_run(run: Record) -> dict[str, Any]:
    collapsed = bool(run.facts.get("collapsed")) if is_scored(run) else None
    return {
        "row": run.name,
        "task": run.task,
        "stand_in_for": stand_in_for(run),
        "pretrain_seed": run.pretrain_seed,
        "seed": run.seed,
        "examples": run.facts.get("num_examples"),
        "collapsed": collapsed,
    }


def _score_lines(scores: Mapping[str, float], headline: str) -> Iterator[dict[str, Any]]:
    """A line a score, the headline's first; one empty line where there is none."""
    for metric in sorted(scores, key=lambda metric: (metric != headline, metric)):
        yield {"metric": metric, "score": scores[metric], "is_headline": metric == headline}
    if not scores:
        yield {}
