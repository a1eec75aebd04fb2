"""What trackers get to know: of one job, of a sweep as a whole, and the report of an experiment."""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from clozelab.report.wording import verdict_label
from clozelab.runs.identity import flatten
from clozelab.runs.redaction import DIGEST, redacted, redacted_words
from clozelab.targets import build

if TYPE_CHECKING:
    from clozelab.report.render import Report
    from clozelab.runs.record import Record
    from clozelab.runs.store import Run
    from clozelab.training.background import BackgroundLogger
    from clozelab.training.tracking import TrackedJob

WANDB = "clozelab.training.tracking.build_wandb_logger"
ID_FACT = "tracker_id"
REPORT_FILES = ("report.html", "report.md", "results.csv", "*.png", "*.svg")


def tracked_job(cfg: DictConfig, run: Run, *, arm: str, name: str) -> Any:
    """What the trackers of a stage are told; the id is kept in run.json, so it goes where the
    folder goes.
    """
    from clozelab.training.tracking import TrackedJob  # Lightning, which a launcher does without

    run_id = run.facts.get(ID_FACT) or secrets.token_hex(8)
    if run.is_leader and ID_FACT not in run.facts:
        run.record(**{ID_FACT: run_id})
    stage, tags, command = run.content.stage, tags_of(cfg), tuple(redacted_words(sys.argv[1:]))
    config, name = tracked_config(run.content.config), f"{cfg.scale.name}/{stage}/{name}"
    return TrackedJob(run.dir, run_id, str(cfg.experiment), arm, stage, name, tags, config, command)


def job_of_record(cfg: DictConfig, record: Record) -> TrackedJob:
    """The same of a run that has ended; one that had no tracker has an id that is always the
    same."""
    from clozelab.training.tracking import TrackedJob

    made = hashlib.sha256(f"{record.fingerprint} {record.started}".encode()).hexdigest()[:16]
    return TrackedJob(
        folder=Path(record.folder),
        run_id=str(record.facts.get(ID_FACT, made)),
        experiment=record.experiment,
        arm=record.name,
        stage=record.stage,
        name=f"{cfg.scale.name}/{record.stage}/{record.name}/seed-{record.seeds}",
        tags=tags_of(cfg),
        config=tracked_config(record.config),
    )


def tags_of(cfg: DictConfig) -> tuple[str, ...]:
    """scale:..., corpus:..., task:..., seed:..., as far as the stage has them."""
    found = {key: cfg[key].name for key in ("scale", "corpus", "task") if cfg.get(key)}
    found |= {key: cfg[key] for key in ("pretrain_seed", "seed") if cfg.get(key) is not None}
    return tuple(f"{key}:{value}" for key, value in found.items())


def tracked_config(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A record's configuration by dotted keys, without the hashes of secrets."""
    return {
        key: DIGEST.sub("", one) if isinstance(one, str) else one
        for key, one in flatten(dict(recorded)).items()
    }


def track_sweep(
    cfg: DictConfig, stage: str, folder: Path, rows: Sequence[Mapping[str, Any]]
) -> None:
    """A W&B run with one table of a sweep's jobs (`rows`), where they (`cfg`: of one) have W&B;
    notes in `folder`.
    """
    tracker = _wandb(
        cfg, "sweep", folder, f"{cfg.scale.name}/sweep/{stage}", str(cfg.get("experiment"))
    )
    if tracker is not None:
        columns = list(dict.fromkeys(key for row in rows for key in row))
        values = []
        for row in rows:
            values.append([redacted(row.get(key), key) for key in columns])
        tracker.call("log_table", "jobs", columns, values)
        tracker.close()


def track_report(cfg: DictConfig, report: Report, *, experiment: str, scale: str) -> None:
    """The report as an artifact of a W&B run of its own, where `logger` has W&B; the verdicts are
    in its summary.
    """
    tracker = _wandb(cfg, "report", report.folder, f"{scale}/report", experiment)
    if tracker is not None:
        paths = [path for pattern in REPORT_FILES for path in sorted(report.folder.glob(pattern))]
        tracker.call("log_report", f"{experiment}-{scale}-report".replace("/", "-"), paths)
        known = [
            one.claim.id or f"claim {number}" for number, one in enumerate(report.judgements, 1)
        ]
        names = [
            f"{name} on {one.judged_on}" if known.count(name) > 1 else name
            for name, one in zip(known, report.judgements, strict=True)
        ]
        tracker.summarise(dict(zip(names, map(verdict_label, report.judgements), strict=True)))
        tracker.close()


def _wandb(
    cfg: DictConfig,
    stage: str,
    folder: Path,
    name: str,
    experiment: str,
) -> BackgroundLogger | None:
    """W&B for something that is not a job; None where it is not chosen."""
    node = next(
        (node for node in (cfg.get("logger") or {}).values() if node and node["_target_"] == WANDB),
        None,
    )
    if node is None:
        return None
    from clozelab.training.background import BackgroundLogger
    from clozelab.training.tracking import TrackedJob

    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{stage}_wandb_id.txt"
    if not kept.exists():
        kept.write_text(secrets.token_hex(8), encoding="utf-8")
    tags, command = (f"scale:{cfg.scale.name}",), tuple(redacted_words(sys.argv[1:]))
    run_id = kept.read_text(encoding="utf-8").strip()
    # as it is said: nothing may be missing
    known = flatten(dict(OmegaConf.to_container(cfg)))  # type: ignore[arg-type]
    job = TrackedJob(
        folder,
        run_id,
        experiment,
        arm=stage,
        stage=stage,
        name=name,
        tags=tags,
        command=command,
        config={
            key: redacted(one, key) for key, one in known.items() if not key.startswith("hydra")
        },
    )
    return BackgroundLogger(build("logger", node)(job=job), "wandb")
