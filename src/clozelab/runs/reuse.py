"""Whether a run that exists is the one asked for, and which equal run may stand in for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clozelab.config import Composed, kept_step, total_steps
from clozelab.files.origin import RUN_FILE
from clozelab.runs.code import code_hash
from clozelab.runs.identity import RESULTS_VERSIONS, identity_of
from clozelab.runs.inputs import are_untouched, encoder_fingerprint
from clozelab.runs.record import Git, Record, read_record
from clozelab.text.plain import PlainDict, PlainMapping
from clozelab.training.host import host_facts

NAMES = frozenset({"experiment", "arm"})
"""Keys for what a run is called: nothing that was trained depends on it."""


def is_record_of(record: Record, *, stage: str, recorded: PlainMapping) -> bool:
    """Whether a record is of this very configuration, as it would be recorded, whatever it read."""
    if record.stage != stage or record.stage_version != RESULTS_VERSIONS[stage]:
        return False
    # A record of an older version may lack keys that mean nothing for it.
    return record.config == recorded or identity_of(record.config) == identity_of(recorded)


def is_complete_run(record: Record | None, *, stage: str, recorded: PlainMapping) -> bool:
    """Whether the record in a job's own folder is of that job, complete, whatever it read."""
    if record is None or not record.is_complete:
        return False
    return is_record_of(record, stage=stage, recorded=recorded)


def is_done(run_dir: str | Path, *, stage: str, config: Composed) -> bool:
    """Whether the folder surely holds this very run, complete.

    Then its inputs are untouched, and it has what others take from it.
    """
    folder = Path(run_dir)
    try:
        record = read_record(folder)
        if record is None or config.get("reuse") == "never":
            return False
        # A phase has the name of an objective alone: what its file says by now, the run compares.
        if "phase_objectives" in record.inputs:
            return False
        if not is_complete_run(record, stage=stage, recorded=config.recorded):
            return False
        if not are_untouched(config, record.watched):
            return False
    except ValueError:
        return False
    # what others take from it
    if never_kept(config.values, record):
        return False
    if stage != "pretrain":
        return (folder / "scores.json").is_file()
    if record.shared is not None and not shared_run_exists(record):
        return False
    return not missing_encoders(config, folder)


def other_code(record: Record | None) -> str:
    """Say of a run that other code has made it, or begun it, than would make it now; "" else."""
    if record is None:
        return ""
    code = code_hash(record.stage, record.config)
    # of all sessions that trained it, the last one's code included
    for session in (*record.sessions_before, record.last_session):
        if session.code != code:
            git = host_facts()["git"]
            before = _code_and_commit(session.code, session.git)
            after = _code_and_commit(code, Git.model_validate(git) if git else None)
            return f"{record.folder} was made by other code: {before}, now {after}"
    return ""


def _code_and_commit(code: str, git: Git | None) -> str:
    """Write `0a1b2c3d4e (commit 5f6a7b8c9d, changed)`."""
    commit = "no commit"
    if git is not None:
        commit = f"commit {git.commit[:10]}"
        if git.dirty:
            commit += ", changed"
    return f"{code[:10] or 'unknown'} ({commit})"


def kept_steps(fractions: Sequence[float], num_steps: int) -> list[int]:
    """Return the steps of `num_steps` after which a run keeps its encoder (`keep_encoders`).

    ValueError for an impossible fraction.
    """
    try:
        return [kept_step(fraction, num_steps) for fraction in fractions]
    except ValueError as error:
        raise ValueError(f"keep_encoders: {error}") from None


def kept_places(stage: str, settings: PlainMapping) -> list[str]:
    """Return where a run's folder has what these settings keep beside the last encoder."""
    if stage != "pretrain":
        return ["model"] if settings.get("keep_model") else []
    fractions: Any = settings["keep_encoders"]
    phases: Any = settings["phases"]
    steps = kept_steps(fractions, total_steps(phases))
    return [f"encoders/step-{step}" for step in steps]


def missing_places(
    stage: str, settings: PlainMapping, folder: Path, told: Sequence[str] = ()
) -> list[str]:
    """Return what these settings keep and a run's folder lacks; `told` may be missing."""
    missing = []
    for place in kept_places(stage, settings):
        if place not in told and not (folder / place / "config.json").is_file():
            missing.append(place)
    return missing


def missing_encoders(config: Composed, folder: Path) -> list[str]:
    """Return the kept encoders that a run's folder lacks and this configuration needs."""
    if not config.get("needs_kept_encoders"):
        return []
    return missing_places(config.stage, config.values, folder)


def never_kept(settings: PlainMapping, record: Record) -> list[str]:
    """Return what these settings keep, and a complete run was not told to.

    What was kept may be gone since: a run travels without its weights. The encoder's folder travels
    with every pre-training, which is of no use to others without it.
    """
    told = record.facts.get("kept")
    if told is None or record.shared is not None:
        return []
    missing = missing_places(record.stage, settings, record.folder, told)
    marks = settings.get("keep_encoders_at_words")
    if marks not in (None, record.facts.get("kept_at_words")):
        missing.append(f"encoders at {marks} words")
    if record.stage == "pretrain" and not (record.folder / "encoder/config.json").is_file():
        missing.append("encoder")
    return missing


def require_kept(config: Composed, record: Record) -> None:
    """ValueError for a complete run that was made without what is kept or needed here."""
    missing = missing_encoders(config, record.folder)
    if not missing:
        missing = never_kept(config.values, record)
    if missing:
        raise ValueError(
            f"{record.folder} is complete, but has no {', '.join(missing)}: it was trained without"
            " keep_encoders or keep_model, or lost it since. Remove the folder to train again, or"
            " give run_dir another name"
        )


def trained_by(config: PlainMapping) -> PlainDict:
    """Return what was trained: a record's configuration without its names and layout."""
    return {key: value for key, value in identity_of(config).items() if key not in NAMES}


def find_equal_run(config: Composed, inputs: Mapping[str, str] | None = None) -> Record | None:
    """Return a complete run of another experiment that trained just this by itself.

    Today's code made it, and it has every encoder that is needed of it.

    Args:
        config: of a pre-training.
        inputs: fingerprints of what it reads; None: the answer is only likely.
    """
    if not config.get("share_runs") or config.get("reuse") == "never":
        return None
    training = trained_by(config.recorded)
    for record in _complete_pretrainings_elsewhere(config):
        is_equal = trained_by(record.config) == training and inputs in (None, record.inputs)
        if is_equal and _has_encoders(record, config) and not other_code(record):
            return record
    return None


def _has_encoders(record: Record, config: Composed) -> bool:
    """Whether a run has its encoder, and every other one that is needed of it."""
    has_last_one = (record.folder / "encoder/model.safetensors").is_file()
    return has_last_one and not missing_encoders(config, record.folder)


def _complete_pretrainings_elsewhere(config: Composed) -> Iterator[Record]:
    """Yield complete pre-trainings of other experiments, of this scale and seed.

    Each was trained by itself, and has the present results version.
    """
    values = config.values
    # EXPERIMENT/SCALE/pretrain/ARM/seed-1/run.json
    pattern = f"*/{values['scale']['name']}/pretrain/*/seed-{values['seed']}/{RUN_FILE}"
    for path in sorted(Path(values["runs_dir"]).glob(pattern)):
        try:
            record = read_record(path.parent)
        except (OSError, ValueError):
            continue  # a damaged record is its own experiment's trouble
        # One that is itself shared is passed over: the run that it stands for is met, too.
        if record is None or not record.is_complete or record.shared is not None:
            continue
        is_current = record.stage_version == RESULTS_VERSIONS["pretrain"]
        if is_current and record.experiment != str(values["experiment"]):
            yield record


def shared_run_exists(record: Record) -> bool:
    """Whether the run that a shared record speaks of still has the same weights.

    Trained anew it may have others.
    """
    source = record.shared_folder
    if record.shared is None or source is None:
        return False
    try:
        shared_run = read_record(source)
        if shared_run is None or not shared_run.is_complete:
            return False
        if shared_run.fingerprint != record.shared.fingerprint:
            return False
        return encoder_fingerprint(source / "encoder") == record.shared.weights
    except (OSError, ValueError):
        return False
