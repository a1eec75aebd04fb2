"""What a tracker gets to know of a run: its name, its tags, its configuration."""

from __future__ import annotations

import hashlib
import secrets
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from clozelab.runs.record import ID_FACT, JobName, Record
from clozelab.text.plain import PlainDict, PlainMapping, flatten
from clozelab.text.redaction import DIGEST, redact_argv
from clozelab.training.jobs import TrackedJob

if TYPE_CHECKING:
    from clozelab.runs.store import Run
    from clozelab.schema import StageConfig


def tracked_job(cfg: StageConfig, run: Run, *, arm: str) -> TrackedJob:
    """What the trackers of a stage are told.

    The id is kept in run.json, so it goes where the folder goes.
    """
    run_id = run.facts.get(ID_FACT) or secrets.token_hex(8)
    # In run.json, so that a resumed run goes on in the tracker's same run.
    if run.is_leader and ID_FACT not in run.facts:
        run.record(**{ID_FACT: run_id})
    return replace(_job(cfg, run.content, run_id), arm=arm, command=command_argv())


def job_of_record(cfg: StageConfig, record: Record) -> TrackedJob:
    """The same of a run that has ended; one that had no tracker has an id that is always the
    same."""
    run_hash = hashlib.sha256(f"{record.fingerprint} {record.started}".encode()).hexdigest()
    run_id = str(record.facts.get(ID_FACT, run_hash[:16]))
    return _job(cfg, record, run_id)


def _job(cfg: StageConfig, record: Record, run_id: str) -> TrackedJob:
    config = tracked_config(record.config)
    if "encoder_arm" in config:  # of a given encoder its folder or name, not the arm of conf/
        config["encoder_arm"] = record.encoder_arm
    return TrackedJob(
        folder=record.folder,
        run_id=run_id,
        experiment=record.experiment,
        arm=record.name,
        stage=record.stage,
        name=f"{cfg.scale.name}/{record.stage}/{name_of(record.job_name)}",
        tags=tags_of(cfg),
        config=config,
    )


def name_of(job: JobName) -> str:
    """What a run is called below its stage, as its folder is: mlm/mrpc/pretrain-seed-1/seed-2."""
    *pretrain_seed, seed = job.seeds.split("/")
    parts = [job.name, job.task, *(f"pretrain-seed-{one}" for one in pretrain_seed)]
    return "/".join([*filter(None, parts), f"seed-{seed}"])


def command_argv() -> tuple[str, ...]:
    """The arguments of this process's command line, without secrets."""
    return tuple(redact_argv(sys.argv[1:]))


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
