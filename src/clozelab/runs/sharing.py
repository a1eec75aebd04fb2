"""One pre-training run for every experiment that asks for the same one (docs/decisions/0005).

Two runs are equal when everything in their fingerprints is, but for what the experiment and its arm are called. A
complete equal run of another experiment at the same scale below the same runs_dir is taken over: the second folder gets
a record of its own (complete, with the facts of the first, and `shared` saying where it lies) and relative links to the
encoders and metrics.csv. Only complete runs are taken, so nothing waits for anything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from clozelab.config import kept_step, total_steps
from clozelab.runs.fingerprint import (
    RESULTS_VERSIONS,
    are_untouched,
    canonical,
    digest,
    encoder_fingerprint,
    watched_files,
)
from clozelab.runs.record import RUN_FILE, Record, is_settled, read_record

NAMES = frozenset({"experiment", "arm"})
"""What a run is called: nothing that was trained depends on it."""
ENCODER_FILES = ("config.json", "model.safetensors")


def kept_steps(config: DictConfig) -> list[int]:
    """Steps after which the run keeps its encoder; ValueError for an impossible fraction."""
    steps = total_steps(config.phases)
    try:
        return [kept_step(fraction, steps) for fraction in config.keep_encoders]
    except ValueError as error:
        raise ValueError(f"keep_encoders: {error}") from None


def missing_encoders(config: DictConfig, folder: Path) -> list[str]:
    """Kept encoders that a run's folder lacks and this configuration needs."""
    if not config.get("needs_kept_encoders"):
        return []
    places = [f"encoders/step-{step}" for step in kept_steps(config)]
    return [place for place in places if not (folder / place / "config.json").is_file()]


def require_kept_encoders(config: DictConfig) -> None:
    """ValueError for a complete run that was made without the encoders that are needed here."""
    if missing := missing_encoders(config, Path(config.run_dir)):
        raise ValueError(
            f"{config.run_dir} is complete, but has no {', '.join(missing)}: it was trained without keep_encoders. "
            "Remove the folder to train again, or give run_dir another name"
        )


def is_done(run_dir: str | Path, *, stage: str, config: DictConfig) -> bool:
    """Whether nothing is left to do or to look at: settled, and with what others take from it.

    An encoder of its own may be missing: records alone are enough for a report, and who needs it says so.
    """
    folder = Path(run_dir)
    if not is_settled(folder, stage=stage, config=config):
        return False
    if stage == "finetune":
        return (folder / "scores.json").is_file()
    record = read_record(folder)
    if record is None or (record.shared is not None and not shared_run_is_there(record)):
        return False
    return not missing_encoders(config, folder)


def training_key(config: Mapping[str, Any], inputs: Mapping[str, str], results_version: int) -> str:
    """What was trained, as a hash: a run's fingerprint without its names."""
    plain = {key: value for key, value in config.items() if key not in NAMES}
    return digest({"config": plain, "inputs": dict(inputs), "results_version": results_version})


def find_equal_run(config: DictConfig, inputs: Mapping[str, str] | None = None) -> Record | None:
    """A complete run of another experiment that trained just this, with what is needed of it.

    Args:
        config: of the run that is looked for.
        inputs: fingerprints of what it reads; None where they are not known yet: then no input file of the other run
            may have been touched since.
    """
    for theirs in _equal_runs(config, inputs):
        if inputs is not None or are_untouched(watched_files(config), theirs.watched):
            return theirs
    return None


def find_likely_run(config: DictConfig) -> Record | None:
    """As `find_equal_run`, for inputs that nobody has looked into: equal if they are still what they were."""
    return next(_equal_runs(config, None), None)


def _equal_runs(config: DictConfig, inputs: Mapping[str, str] | None) -> Iterator[Record]:
    """Complete runs of other experiments with an equal configuration, equal inputs (where those are known), and every
    encoder that is needed."""
    if not config.get("share_runs"):
        return
    mine, version = json.loads(json.dumps(canonical(config))), RESULTS_VERSIONS["pretrain"]
    for theirs in _complete_runs(config):
        mine_key = training_key(mine, theirs.inputs if inputs is None else inputs, version)
        has_encoder = all((theirs.folder / "encoder" / name).is_file() for name in ENCODER_FILES)
        if mine_key != training_key(theirs.config, theirs.inputs, theirs.results_version) or not has_encoder:
            continue
        if not missing_encoders(config, theirs.folder):
            yield theirs


def _complete_runs(config: DictConfig) -> Iterator[Record]:
    """Runs of other experiments with this scale and seed that trained by themselves."""
    pattern = f"*/{config.scale.name}/pretrain/*/seed-{config.seed}/{RUN_FILE}"
    for path in sorted(Path(config.runs_dir).glob(pattern)):
        try:
            one = read_record(path.parent)
        except (OSError, ValueError):
            continue  # a damaged record is its own experiment's trouble
        is_other = one is not None and one.experiment != str(config.experiment)
        if one is not None and is_other and one.stage == "pretrain" and one.is_complete and one.shared is None:
            yield one


def shared_run_is_there(record: Record) -> bool:
    """Whether the run that a shared record speaks of is still the training it was.

    The same configuration trained anew has the same fingerprint, and on another machine or with other threads other
    weights: what counts is the encoder.
    """
    if record.shared is None:
        return False
    source = Path(os.path.normpath(record.folder.resolve() / record.shared.run))
    try:
        found = read_record(source)
        if found is None or not found.is_complete or found.fingerprint != record.shared.fingerprint:
            return False
        return encoder_fingerprint(source / "encoder") == record.shared.weights
    except (OSError, ValueError):
        return False
