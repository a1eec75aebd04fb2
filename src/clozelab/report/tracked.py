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
INTERVAL = ("mean", "low", "high")
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
    arms = [run.name for run in report.table.current.pretrain]
    for arm in dict.fromkeys([*arms, *report.table.rows]):
        points = points_over_seeds(arm, report.table)
        # A tracker keeps the points that it has: those of other seeds are another run.
        version = hashlib.sha256(repr(points).encode()).hexdigest()[:8]
        folder = report.folder / "seeds" / f"{arm}-{version}"
        if points and not folder.exists():
            tracker = _wandb(job, "seeds", folder, f"{scale}/seeds/{arm}", experiment, arm)
            assert tracker is not None, "it has taken the report"
            for (key, step), found in points.items():
                metrics = {f"{key}/{name}": getattr(found, name) for name in INTERVAL}
                tracker.log_metrics(metrics, step)
            tracker.close()


def points_over_seeds(arm: str, table: ResultTable) -> dict[tuple[str, int], Estimate]:
    """Return (figure, step) -> its mean over an arm's seeds, two at least, with the interval.

    Held-out figures of pre-training at the steps that all seeds have reached; scores at step 0.
    """
    runs = table.complete("pretrain", arm)
    by_seed: dict[tuple[str, int], dict[Seeds, float]] = {}
    for run in runs:
        for row in read_rows(run.folder / "metrics.csv"):
            if row.key.startswith("validation/"):
                by_seed.setdefault((row.key, row.step), {})[run.seed, 0] = row.value
    points = {}
    for point, values in by_seed.items():
        if len(values) == len(runs) > 1:
            points[point] = estimate(values)
    for column in table.columns:
        cell = table.cells.get((arm, column.key))
        if cell and cell.estimate and cell.estimate.count > 1:
            points[column.heading, 0] = cell.estimate
    return points


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
