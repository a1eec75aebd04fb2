"""What trackers get to know: of one job, of a sweep as a whole, and the report of an experiment."""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from clozelab.config import Composed
from clozelab.report.wording import verdict_label
from clozelab.targets import build
from clozelab.text.plain import PlainDict, PlainMapping, flatten
from clozelab.text.redaction import DIGEST, redacted, redacted_words
from clozelab.training.jobs import TrackedJob

if TYPE_CHECKING:
    from clozelab.analysis.verdicts import Judgement
    from clozelab.report.render import Report
    from clozelab.runs.record import Record
    from clozelab.runs.store import Run
    from clozelab.schema import StageConfig
    from clozelab.training.background import BackgroundLogger

WANDB = "clozelab.training.tracking.build_wandb_logger"
ID_FACT = "tracker_id"
REPORT_FILES = ("report.html", "report.md", "results.csv", "*.png", "*.svg")


def tracked_job(cfg: StageConfig, run: Run, *, arm: str, name: str) -> TrackedJob:
    """What the trackers of a stage are told.

    The id is kept in run.json, so it goes where the folder goes.
    """
    run_id = run.facts.get(ID_FACT) or secrets.token_hex(8)
    # In run.json, so that a resumed run goes on in the tracker's same run.
    if run.is_leader and ID_FACT not in run.facts:
        run.record(**{ID_FACT: run_id})
    return replace(_job(cfg, run.content, run_id, name), arm=arm, command=_command())


def job_of_record(cfg: StageConfig, record: Record) -> TrackedJob:
    """The same of a run that has ended; one that had no tracker has an id that is always the
    same."""
    run_hash = hashlib.sha256(f"{record.fingerprint} {record.started}".encode()).hexdigest()
    run_id = str(record.facts.get(ID_FACT, run_hash[:16]))
    return _job(cfg, record, run_id, f"{record.name}/seed-{record.seeds}")


def _job(cfg: StageConfig, record: Record, run_id: str, name: str) -> TrackedJob:
    return TrackedJob(
        folder=record.folder,
        run_id=run_id,
        experiment=record.experiment,
        arm=record.name,
        stage=record.stage,
        name=f"{cfg.scale.name}/{record.stage}/{name}",
        tags=tags_of(cfg),
        config=tracked_config(record.config),
    )


def _command() -> tuple[str, ...]:
    """The words of this process's command line, without secrets."""
    return tuple(redacted_words(sys.argv[1:]))


def tags_of(cfg: StageConfig) -> tuple[str, ...]:
    """scale:..., corpus:..., task:..., seed:..., as far as the stage has them."""
    tags = []
    for key in ("scale", "corpus", "task"):
        if hasattr(cfg, key):
            tags.append(f"{key}:{getattr(cfg, key).name}")
    for key in ("pretrain_seed", "seed"):
        if hasattr(cfg, key):
            tags.append(f"{key}:{getattr(cfg, key)}")
    return tuple(tags)


def tracked_config(recorded: PlainMapping) -> PlainDict:
    """A record's configuration by dotted keys, without the hashes of secrets."""
    config = flatten(dict(recorded))
    for key, value in config.items():
        if isinstance(value, str):
            config[key] = DIGEST.sub("", value)
    return config


def track_sweep(job: Composed, stage: str, folder: Path, rows: Sequence[PlainMapping]) -> None:
    """Send one table of a sweep's jobs to a W&B run of its own, where the jobs have W&B.

    Args:
        job: one of the jobs.
        folder: where the run's notes go.
        rows: a row a job, column -> value.
    """
    name = f"{job.get('scale.name')}/sweep/{stage}"
    tracker = _wandb(job, "sweep", folder, name, str(job.get("experiment")))
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

    The verdicts are in its summary.
    """
    tracker = _wandb(job, "report", report.folder, f"{scale}/report", experiment)
    if tracker is None:
        return
    paths = list(chain.from_iterable(sorted(report.folder.glob(each)) for each in REPORT_FILES))
    artifact = f"{experiment}-{scale}-report".replace("/", "-")
    tracker.call("log_report", artifact, paths)
    tracker.summarise(_verdicts_by_claim(report.judgements))
    tracker.close()


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
    composed: Composed, stage: str, folder: Path, name: str, experiment: str
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
        _kept_id(folder / f"{stage}_wandb_id.txt"),
        experiment,
        arm=stage,
        stage=stage,
        name=name,
        tags=(f"scale:{composed.get('scale.name')}",),
        command=_command(),
        config=config,
    )
    return BackgroundLogger(build("logger", node)(job=job), "wandb")


def _kept_id(path: Path) -> str:
    """The id that a file keeps; a new one is written where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(secrets.token_hex(8), encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()
