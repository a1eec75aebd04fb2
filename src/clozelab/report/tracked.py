"""What trackers get to know: of one job, of a sweep as a whole, and the report of an experiment."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from claims.analysis.grouping import group_by
from claims.analysis.statistics import Estimate, Seeds, estimate
from claims.report.wording import verdict_label
from claims.tables.layout import SCORES_FILE
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
    from clozelab.runs.record import Record
    from clozelab.training.background import BackgroundLogger

WANDB = "wandb"
# builder of a tracker that shows runs beside each other -> its label
TRACKERS = {
    "clozelab.training.tracking.build_wandb_logger": WANDB,
    "clozelab.training.tracking.build_mlflow_logger": "mlflow",
}
INTERVAL = ("mean", "low", "high")
REPORT_FILES = ("report.html", "report.md", SCORES_FILE, "*.png", "*.svg")


def track_sweep(job: Composed, stage: str, folder: Path, rows: Sequence[PlainMapping]) -> None:
    """Send one table of a sweep's jobs to a W&B run of its own, where the jobs have W&B.

    The same jobs again go on in that run; other ones, and those of another stage, have another run.

    Args:
        job: one of the jobs.
        folder: where the run's notes go.
        rows: a row a job, column -> value.
    """
    if WANDB not in _chosen_trackers(job):
        return
    name = f"{job.get('scale.name')}/sweep/{stage}"
    names = sorted(str(row["name"]) for row in rows)
    version = hashlib.sha256(repr([stage, names]).encode()).hexdigest()[:8]
    experiment = str(job.get("experiment"))
    tracker = _open(WANDB, job, "sweep", folder, name, experiment, "sweep", version)
    columns = {}
    for key in dict.fromkeys(chain.from_iterable(rows)):
        columns[key] = numbers_where_all_are([redacted(row.get(key), key) for row in rows])
    values = [list(row) for row in zip(*columns.values(), strict=True)]
    tracker.call("log_table", "jobs", list(columns), values)
    tracker.close()


def numbers_where_all_are(column: Sequence[object]) -> list[Any]:
    """A column's values, as numbers where each is spelt as one or missing: W&B draws these."""
    numbers: list[Any] = []
    for value in column:
        try:
            numbers.append(None if value is None else float(str(value)))
        except ValueError:
            return list(column)
    return numbers


def track_report(job: Composed, report: Report, *, experiment: str, scale: str) -> None:
    """Send the report as an artifact of a W&B run of its own, where `logger` has W&B.

    The verdicts are in its summary, and a panel of each curve has the arms beside each other. Means
    over seeds are a run in the group of each arm and row, for W&B and for MLflow.
    """
    labels = _chosen_trackers(job)
    if not labels:
        return
    arms = [run.name for run in report.table.current.pretrain]
    points_by_arm = {}
    for arm in dict.fromkeys([*arms, *report.table.rows]):
        points_by_arm[arm] = points_over_seeds(arm, report.table)
    if WANDB in labels:
        _send_report(job, report, experiment, scale, lines_by_curve(points_by_arm))
    for arm, points in points_by_arm.items():
        # A tracker keeps the points that it has: those of other seeds are another run.
        version = hashlib.sha256(repr(points).encode()).hexdigest()[:8]
        folder = report.folder / "seeds" / f"{arm}-{version}"
        for label in labels:
            mark = folder / f"sent_to_{label}"
            if points and not mark.exists():
                tracker = _open(
                    label, job, "seeds", folder, f"{scale}/seeds/{arm}", experiment, arm
                )
                _send_points(tracker, points)
                # A report that is killed before this, or does not reach the tracker, sends again.
                if tracker.taken == tracker.given:
                    mark.touch()


def _send_report(
    job: Composed,
    report: Report,
    experiment: str,
    scale: str,
    lines_of_curves: Mapping[str, Mapping[str, Mapping[int, float]]],
) -> None:
    tracker = _open(WANDB, job, "report", report.folder, f"{scale}/report", experiment, "report")
    paths = list(chain.from_iterable(sorted(report.folder.glob(each)) for each in REPORT_FILES))
    artifact = f"{experiment}-{scale}-report".replace("/", "-")
    tracker.call("log_report", artifact, paths)
    for curve, lines in lines_of_curves.items():
        tracker.call("log_lines", f"{curve} over seeds", lines)
    tracker.summarise(_verdicts_by_claim(report.judgements))
    tracker.close()


def _send_points(tracker: BackgroundLogger, points: Mapping[tuple[str, int], Estimate]) -> None:
    for (key, step), mean in points.items():
        metrics = {f"{key}/{name}": getattr(mean, name) for name in INTERVAL}
        tracker.log_metrics(metrics, step)
    tracker.close()


def points_over_seeds(arm: str, table: ResultTable) -> dict[tuple[str, int], Estimate]:
    """Return (figure, step) -> its mean over an arm's seeds, two at least, with the interval.

    Held-out figures of pre-training at the steps that all seeds have reached, of each learning rate
    where there are several; scores at step 0.
    """
    points = {}
    by_rate = group_by(table.complete("pretrain", arm), lambda run: run.learning_rate)
    for rate, runs in by_rate.items():
        suffix = f" at learning rate {rate}" if len(by_rate) > 1 else ""
        for (key, step), values in _held_out_figures(runs).items():
            if len(values) == len(runs) > 1:
                points[key + suffix, step] = estimate(values)
    for column in table.columns:
        cell = table.cells.get((arm, column.key))
        if cell and cell.estimate and cell.estimate.count > 1:
            points[column.heading, 0] = cell.estimate
    return points


def lines_by_curve(
    points_by_arm: Mapping[str, Mapping[tuple[str, int], Estimate]],
) -> dict[str, dict[str, dict[int, float]]]:
    """Return curve -> label of a line -> step -> value, from each arm's means over seeds.

    For example "validation/loss" has the lines "mlm mean", "mlm low" and "mlm high", and those of
    the other arms. Scores have one step, and are no curve.
    """
    curves: dict[str, dict[str, dict[int, float]]] = {}
    for arm, points in points_by_arm.items():
        for (key, step), mean in points.items():
            if step == 0:
                continue
            lines = curves.setdefault(key, {})
            for end in INTERVAL:
                lines.setdefault(f"{arm} {end}", {})[step] = getattr(mean, end)
    return curves


def _held_out_figures(runs: Iterable[Record]) -> dict[tuple[str, int], dict[Seeds, float]]:
    """(figure, step) -> its value of each seed."""
    by_seed: dict[tuple[str, int], dict[Seeds, float]] = {}
    for run in runs:
        for row in read_rows(run.folder / "metrics.csv"):
            if row.key.startswith("validation/"):
                by_seed.setdefault((row.key, row.step), {})[run.seed, 0] = row.value
    return by_seed


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


def _chosen_trackers(composed: Composed) -> dict[str, PlainDict]:
    """Label -> its node of the configuration, of those of TRACKERS that `logger` has."""
    trackers = {}
    for node in (composed.get("logger") or {}).values():
        if node and node["_target_"] in TRACKERS:
            trackers[TRACKERS[node["_target_"]]] = node
    return trackers


def _open(
    label: str,
    composed: Composed,
    stage: str,
    folder: Path,
    name: str,
    experiment: str,
    arm: str,
    version: str = "",
) -> BackgroundLogger:
    """A chosen tracker for something that is not a job.

    Its run of this stage and `version` in the folder goes on, where there is one.
    """
    from clozelab.training.background import BackgroundLogger

    # Unresolved, and whole: nothing of it may be missing.
    config: PlainDict = {}
    for key, value in flatten(composed.unresolved).items():
        config[key] = redacted(value, key)
    job = TrackedJob(
        folder,
        _saved_id(folder / f"{stage}{version}_{label}_id.txt"),
        experiment,
        arm=arm,
        stage=stage,
        name=name,
        tags=(f"scale:{composed.get('scale.name')}",),
        command=command_argv(),
        config=config,
    )
    node = _chosen_trackers(composed)[label]
    return BackgroundLogger(build("logger", node)(job=job), label)


def _saved_id(path: Path) -> str:
    """The id that a file keeps; a new one is written where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(secrets.token_hex(8), encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()
