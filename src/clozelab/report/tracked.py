"""What trackers get to know: of one job, of a sweep as a whole, and the report of an experiment."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from claims.analysis.statistics import Estimate, Seeds, estimate
from claims.report.wording import verdict_label
from clozelab.addresses import build
from clozelab.config import Composed
from clozelab.runs.tracked import command_argv
from clozelab.text.plain import PlainDict, PlainMapping, flatten
from clozelab.text.redaction import redacted
from clozelab.training.jobs import TrackedJob
from clozelab.training.measuring import read_rows

if TYPE_CHECKING:
    from claims.analysis.verdicts import Judgement
    from clozelab.report.render import Report
    from clozelab.results.table import ResultTable
    from clozelab.training.background import BackgroundLogger

WANDB = "clozelab.training.tracking.build_wandb_logger"
REPORT_FILES = ("report.html", "report.md", "results.csv", "*.png", "*.svg")


def track_sweep(job: Composed, stage: str, folder: Path, rows: Sequence[PlainMapping]) -> None:
    """Send one table of a sweep's jobs to a W&B run of its own, where the jobs have W&B.

    Args:
        job: one of the jobs.
        folder: where the run's notes go.
        rows: a row a job, column -> value.
    """
    name = f"{job.get('scale.name')}/sweep/{stage}"
    tracker = _wandb(job, "sweep", folder, name, str(job.get("experiment")), "sweep")
    if tracker is None:
        return
    columns = list(dict.fromkeys(chain.from_iterable(rows)))
    values: list[list[object]] = []
    for row in rows:
        values.append([redacted(row.get(key), key) for key in columns])
    tracker.call("log_table", "jobs", columns, values)
    tracker.close()


def track_report(job: Composed, report: Report, *, experiment: str, scale: str) -> None:
    """Send the report as an artifact of a W&B run of its own, where `logger` has W&B.

    The verdicts are in its summary. Means over seeds are a run in the group of each arm and row.
    """
    tracker = _wandb(job, "report", report.folder, f"{scale}/report", experiment, "report")
    if tracker is None:
        return
    paths = list(chain.from_iterable(sorted(report.folder.glob(each)) for each in REPORT_FILES))
    artifact = f"{experiment}-{scale}-report".replace("/", "-")
    tracker.call("log_report", artifact, paths)
    tracker.summarise(_verdicts_by_claim(report.judgements))
    tracker.close()
    table = report.table
    for arm in dict.fromkeys([*(run.name for run in table.current.pretrain), *table.rows]):
        curve, scores = means_over_seeds(arm, table)
        # Of other runs it is another run: a tracker keeps the points that it has.
        version = hashlib.sha256(repr((curve, scores)).encode()).hexdigest()[:8]
        folder = report.folder / "seeds" / f"{arm}-{version}"
        if not folder.exists() and (curve or scores):
            tracker = _wandb(job, "seeds", folder, f"{scale}/seeds/{arm}", experiment, arm)
            assert tracker is not None, "the report has gone there"
            for step, means in curve:
                tracker.log_metrics(means, step)
            tracker.summarise(scores)
            tracker.close()


def means_over_seeds(
    arm: str, table: ResultTable
) -> tuple[list[tuple[int, dict[str, float]]], dict[str, float]]:
    """Return an arm's held-out figures at each step, and its row's scores.

    Each as KEY/mean, with the ends of its interval as KEY/low and KEY/high, which a single seed
    does not have. Steps that some seed has not reached are left out.
    """
    runs = table.complete("pretrain", arm)
    values: dict[tuple[int, str], dict[Seeds, float]] = {}
    for run in runs:
        for row in read_rows(run.folder / "metrics.csv"):
            if row.key.startswith("validation/"):
                values.setdefault((row.step, row.key), {})[run.seed, 0] = row.value
    curve = []
    for (step, key), by_seed in values.items():
        if len(by_seed) == len(runs):
            curve.append((step, _with_interval(key, estimate(by_seed))))
    scores = {}
    for column in table.columns:
        cell = table.cells.get((arm, column.key))
        if cell is not None and cell.estimate is not None:
            scores |= _with_interval(column.heading, cell.estimate)
    return curve, scores


def _with_interval(key: str, estimate: Estimate) -> dict[str, float]:
    figures = {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
    return {f"{key}/{name}": value for name, value in figures.items() if value is not None}


def _verdicts_by_claim(judgements: Sequence[Judgement]) -> dict[str, str]:
    """Claim -> verdict; a claim on several data sets has each with its name."""
    names = []
    for number, judgement in enumerate(judgements, 1):
        names.append(judgement.claim.id or f"claim {number}")
    verdicts = {}
    for name, judgement in zip(names, judgements, strict=True):
        key = f"{name} on {judgement.judged_on}" if names.count(name) > 1 else name
        verdicts[key] = verdict_label(judgement)
    return verdicts


def _wandb(
    composed: Composed, stage: str, folder: Path, name: str, experiment: str, arm: str
) -> BackgroundLogger | None:
    """W&B for something that is not a job; None where it is not chosen."""
    chosen = (composed.get("logger") or {}).values()
    node = next((node for node in chosen if node and node["_target_"] == WANDB), None)
    if node is None:
        return None
    from clozelab.training.background import BackgroundLogger

    # Unresolved, and whole: nothing of it may be missing.
    config: PlainDict = {}
    for key, value in flatten(composed.unresolved).items():
        config[key] = redacted(value, key)
    job = TrackedJob(
        folder,
        _saved_id(folder / f"{stage}_wandb_id.txt"),
        experiment,
        arm=arm,
        stage=stage,
        name=name,
        tags=(f"scale:{composed.get('scale.name')}",),
        command=command_argv(),
        config=config,
    )
    return BackgroundLogger(build("logger", node)(job=job), "wandb")


def _saved_id(path: Path) -> str:
    """The id that a file keeps; a new one is written where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(secrets.token_hex(8), encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()
