"""A run's folder, owned by one process: skip what is complete, resume what is not, refuse what is not the same.

A folder belongs to one configuration for good (its fingerprint) and to one process at a time (a file lock, which the
kernel takes from a killed process). Ranks above 0 write nothing: they wait for rank 0's record and compare
fingerprints, so two ranks can never train two configurations.

One pre-training run serves every experiment that asks for the same one (docs/decisions/0005). Two runs are equal when
everything in their fingerprints is, but for what the experiment and its arm are called. A complete equal run of another
experiment at the same scale below the same runs_dir is taken over: the second folder gets a record of its own
(complete, with the facts of the first, and `shared` saying where it lies) and relative links to the encoders and
metrics.csv. Only complete runs are taken, so nothing waits for anything.
"""

from __future__ import annotations

import logging
import os
import signal
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import DictConfig

from clozelab.config import kept_step, total_steps
from clozelab.runs.fingerprint import (
    RESULTS_VERSIONS,
    UNWATCHED,
    are_untouched,
    encoder_fingerprint,
    watched_files,
)
from clozelab.runs.record import (
    BUSY_STATUS,
    CONFIG_FILE,
    LOCK_FILE,
    LOG_FILE,
    RUN_FILE,
    Record,
    Score,
    Shared,
    changes,
    new_record,
    now,
    plain_config,
    read_record,
    shown_config,
    write_record,
)
from clozelab.training.host import process_rank

LEFT_BY_RUNS = ("checkpoints", "encoder", "encoders", "metrics.csv", "scores.json")
LINKED = ("encoder", "encoders", "metrics.csv")
ENCODER_FILES = ("config.json", "model.safetensors")
OF_THE_TRAINING = ("status", "started", "finished", "seconds", "sessions", "facts", "process", "versions", "git",
                   "host", "earlier_sessions")  # fmt: skip
"""What a record that shares an equal run has from that run's."""
NAMES = frozenset({"experiment", "arm"})
"""What a run is called: nothing that was trained depends on it."""
FOLLOWER_WAIT_SECONDS = 120.0

logger = logging.getLogger(__name__)


class RunConflictError(ValueError):
    """The folder holds a run of another configuration."""


class RunBusyError(ValueError):
    """Another process is working in the folder."""

    exit_status = BUSY_STATUS


class Interrupted(KeyboardInterrupt):
    """SIGTERM, turned into an exception so that the run folder can be marked."""


class Run:
    """An owned run folder; use as a context manager around the work.

    Attributes:
        dir: the folder.
        content: what run.json says.
        is_complete: the very same run has finished here before; there is nothing to do.
        is_resumed: the very same run was begun here and not finished.
        is_leader: this process writes; False on ranks above 0.
    """

    def __init__(self, content: Record, *, lock: FileLock | None, is_resumed: bool) -> None:
        self.dir, self.content = content.folder, content
        self.is_leader, self.is_complete, self.is_resumed = lock is not None, content.is_complete, is_resumed
        self._lock = lock
        self._log: logging.Handler | None = None
        self._sigterm: Any = None
        self._seconds_before, self._started = content.seconds, time.monotonic()

    @property
    def facts(self) -> dict[str, Any]:
        return self.content.facts

    @property
    def fingerprint(self) -> str:
        return self.content.fingerprint

    @classmethod
    def claim(
        cls,
        run_dir: str | Path,
        *,
        stage: str,
        config: DictConfig,
        inputs: Mapping[str, str] | None = None,
        scores: Mapping[str, Score] | None = None,
        metric: str = "",
    ) -> Run:
        """Take the folder for this configuration.

        Args:
            run_dir: made if it is not there.
            stage: pretrain or finetune.
            config: as composed, unresolved.
            inputs: name -> fingerprint of everything read (corpus, encoder, data).
            scores, metric: what it will be scored by, and the headline among them.

        Raises:
            RunConflictError: the folder holds another configuration; the message lists the keys that differ.
            RunBusyError: another process holds the folder.
            ValueError: the folder holds what a run has left and no record that says which.
        """
        folder = Path(run_dir)
        fresh = new_record(folder, stage, config, inputs or {}, scores or {}, metric)
        if process_rank() > 0:
            return cls(_follow(folder, fresh), lock=None, is_resumed=False)
        lock = _lock(folder)
        try:
            old = read_record(folder)
            if old is not None and old.fingerprint != fresh.fingerprint:
                raise RunConflictError(
                    f"{folder} holds a {old.status} run of another configuration:\n{changes(old, fresh)}\n"
                    "Give this run another folder (run_dir=..., or experiment=... for a whole experiment), "
                    "or remove the folder to run it again."
                )
            if old is not None and old.is_complete:
                if old.watched != fresh.watched and UNWATCHED not in fresh.watched:
                    old.watched = fresh.watched  # the same inputs, with other times or in another place
                    write_record(old)
                return cls(old, lock=lock, is_resumed=False)
            if old is None:
                _refuse_leftovers(folder)
            else:
                fresh.go_on_from(old)
            (folder / CONFIG_FILE).write_text(shown_config(config), encoding="utf-8")
            run = cls(fresh, lock=lock, is_resumed=old is not None)
            run._open_log()
            run._write()
            return run
        except BaseException:
            lock.release()
            raise

    def record(self, **facts: Any) -> None:
        """Add facts (JSON values) to run.json at once."""
        self.content.facts |= facts
        self._write()

    def complete(self, results: Mapping[str, Any] | None = None, **facts: Any) -> None:
        """Mark the run as finished; from now on the same configuration is skipped.

        Args:
            results: `scores` and what they are compared with, as scores.json has them.
            facts: JSON values.

        Raises:
            ValueError: a score is not a number.
        """
        self.content.take(results or {})
        self.content.facts |= facts
        self.content.status, self.content.finished = "complete", now()
        self._write()
        logger.info("complete: %s", self.dir)

    def __enter__(self) -> Run:
        def stop(_number: int, _frame: FrameType | None) -> None:
            raise Interrupted("SIGTERM")

        if self._log is not None:
            logging.getLogger().addHandler(self._log)
            try:
                self._sigterm = signal.signal(signal.SIGTERM, stop)
            except ValueError:
                logger.debug("not in the main thread: SIGTERM keeps its handler")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sigterm is not None:
            signal.signal(signal.SIGTERM, self._sigterm)
        try:
            if self.is_leader and self.content.status == "running":
                self._mark_end(error)
        finally:
            if self._log is not None:
                logging.getLogger().removeHandler(self._log)
                self._log.close()
            if self._lock is not None:
                self._lock.release()

    def _open_log(self) -> None:
        path = self.dir / LOG_FILE
        try:
            self._log = logging.FileHandler(path, encoding="utf-8")
        except OSError as error:
            raise ValueError(f"{path} cannot be written ({error}); make way for it and run again") from error
        self._log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def _mark_end(self, error: BaseException | None) -> None:
        self.content.status, self.content.finished = "failed", now()
        # Lightning turns Ctrl-C into SystemExit and SIGTERM into an exception of its own.
        if isinstance(error, KeyboardInterrupt | SystemExit) or type(error).__name__ == "SIGTERMException":
            self.content.status = "interrupted"
        elif error is None:
            self.content.error = "the stage ended without saying that it is complete"
        else:
            self.content.error = f"{type(error).__name__}: {error}"
            if self._log is not None:
                text = "".join(traceback.format_exception(error))
                self._log.handle(logging.LogRecord(__name__, logging.ERROR, __file__, 0, text, None, None))
        self._write()

    def _write(self) -> None:
        if self.is_leader:
            self.content.seconds = round(self._seconds_before + time.monotonic() - self._started, 3)
            write_record(self.content)


def _lock(folder: Path) -> FileLock:
    """The folder's lock, held; the folder is made where it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise RunBusyError(
            f"{folder} is in use by another process; wait for it, or give run_dir another name"
        ) from error
    return lock


def _refuse_leftovers(folder: Path) -> None:
    """A checkpoint of nobody knows which configuration would be trained on, and its result taken for this one's."""
    for path in folder.iterdir():
        if path.is_symlink():  # of a record that shared another run: nothing of ours, and not to be written through
            path.unlink()
    if left := [name for name in LEFT_BY_RUNS if (folder / name).exists()]:
        raise ValueError(
            f"{folder} holds {', '.join(left)} and no {RUN_FILE} that says of which run; remove the folder, or give"
            " run_dir another name"
        )


def _follow(folder: Path, fresh: Record) -> Record:
    """Wait for rank 0's record and insist on the same configuration."""
    deadline, rank = time.monotonic() + FOLLOWER_WAIT_SECONDS, process_rank()
    while (found := read_record(folder)) is None or found.status in ("failed", "interrupted"):
        if time.monotonic() > deadline:
            raise ValueError(f"rank {rank}: rank 0 has not claimed {folder}")
        time.sleep(0.2)
    if found.fingerprint != fresh.fingerprint:
        raise RunConflictError(f"rank {rank} has another configuration than rank 0:\n{changes(found, fresh)}")
    return found


def is_record_of(record: Record, *, stage: str, config: DictConfig) -> bool:
    """Whether a record is of this very configuration, whatever files it read.

    Raises:
        ValueError: a mandatory value of the configuration is missing.
    """
    is_current = record.stage == stage and record.results_version == RESULTS_VERSIONS[stage]
    return is_current and record.config == plain_config(config)


def is_done(run_dir: str | Path, *, stage: str, config: DictConfig) -> bool:
    """Whether nothing is left to do or to look at: the folder surely holds this very run, complete, no input file has
    been touched, and what others take from it is there.

    Cheap and careful: False only means that the run itself has to look. An encoder of its own may be missing: records
    alone are enough for a report, and who needs it says so.
    """
    folder = Path(run_dir)
    try:
        record = read_record(folder)
        if record is None or not record.is_complete or not is_record_of(record, stage=stage, config=config):
            return False
        if not are_untouched(watched_files(config), record.watched):
            return False
    except ValueError:
        return False
    if stage == "finetune":
        return (folder / "scores.json").is_file()
    return (record.shared is None or shared_run_is_there(record)) and not missing_encoders(config, folder)


def kept_steps(config: DictConfig) -> list[int]:
    """Steps after which the run keeps its encoder; ValueError for an impossible fraction."""
    try:
        return [kept_step(fraction, total_steps(config.phases)) for fraction in config.keep_encoders]
    except ValueError as error:
        raise ValueError(f"keep_encoders: {error}") from None


def missing_encoders(config: DictConfig, folder: Path) -> list[str]:
    """Kept encoders that a run's folder lacks and this configuration needs."""
    places = [f"encoders/step-{step}" for step in kept_steps(config)] if config.get("needs_kept_encoders") else []
    return [place for place in places if not (folder / place / "config.json").is_file()]


def require_kept_encoders(config: DictConfig) -> None:
    """ValueError for a complete run that was made without the encoders that are needed here."""
    if missing := missing_encoders(config, Path(config.run_dir)):
        raise ValueError(
            f"{config.run_dir} is complete, but has no {', '.join(missing)}: it was trained without keep_encoders. "
            "Remove the folder to train again, or give run_dir another name"
        )


def trained_by(config: Mapping[str, Any]) -> dict[str, Any]:
    """What was trained: a record's configuration without its names."""
    return {key: value for key, value in config.items() if key not in NAMES}


def find_equal_run(
    config: DictConfig, inputs: Mapping[str, str] | None = None, *, is_touched_ok: bool = False
) -> Record | None:
    """A complete run of another experiment that trained just this by itself, with every encoder that is needed of it.

    Args:
        config: of the run that is looked for.
        inputs: fingerprints of what it reads; None where they are not known yet: then no input file of the other run
            may have been touched since, or, with `is_touched_ok`, it is equal if they are still what they were.
    """
    if not config.get("share_runs"):
        return None
    mine = trained_by(plain_config(config))
    pattern = f"*/{config.scale.name}/pretrain/*/seed-{config.seed}/{RUN_FILE}"
    for folder in (path.parent for path in sorted(Path(config.runs_dir).glob(pattern))):
        try:
            theirs = read_record(folder)
        except (OSError, ValueError):
            continue  # a damaged record is its own experiment's trouble
        if theirs is None or not theirs.is_complete or theirs.experiment == str(config.experiment):
            continue
        is_current = theirs.shared is None and theirs.results_version == RESULTS_VERSIONS["pretrain"]
        is_equal = trained_by(theirs.config) == mine and inputs in (None, theirs.inputs)
        has_encoder = all((folder / "encoder" / name).is_file() for name in ENCODER_FILES)
        if not (is_current and is_equal and has_encoder):
            continue
        is_certain = inputs is not None or is_touched_ok or are_untouched(watched_files(config), theirs.watched)
        if is_certain and not missing_encoders(config, folder):
            return theirs
    return None


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
        is_same = found is not None and found.is_complete and found.fingerprint == record.shared.fingerprint
        return is_same and encoder_fingerprint(source / "encoder") == record.shared.weights
    except (OSError, ValueError):
        return False


def share_equal_run(config: DictConfig, inputs: Mapping[str, str]) -> None:
    """Make the run's folder the record of an equal run elsewhere, if there is one and the folder holds no run yet.

    Only rank zero does, before any rank claims the folder: the others then find a complete run. What is said of the
    training (facts, scores, times, versions, machine) is the source's; words and fingerprint are this run's.

    Raises:
        RunBusyError: another process holds the folder.
        ValueError: the folder is such a record, and the run it speaks of is gone; or it holds what a run has left.
    """
    folder = Path(config.run_dir)
    if process_rank() > 0:
        return
    record = read_record(folder)
    if record is not None and record.shared is not None and not shared_run_is_there(record):
        raise ValueError(
            f"{folder} was shared from {record.shared.run}, which is gone or has been trained anew; remove the folder"
            " to train here"
        )
    theirs = find_equal_run(config, inputs) if record is None else None
    if theirs is None:
        return
    lock = _lock(folder)
    try:
        if read_record(folder) is not None:
            return
        _refuse_leftovers(folder)
        logger.info("%s: shared from %s, which trained just this", folder, theirs.folder)
        source, here = theirs.folder.resolve(), folder.resolve()
        for name in LINKED:
            if (source / name).exists():
                (folder / name).symlink_to(os.path.relpath((source / name).resolve(), here))
        (folder / CONFIG_FILE).write_text(shown_config(config), encoding="utf-8")
        own = new_record(folder, theirs.stage, config, inputs, theirs.scores, theirs.metric)
        for name in OF_THE_TRAINING:
            setattr(own, name, getattr(theirs, name))
        weights = encoder_fingerprint(source / "encoder")
        own.shared = Shared(run=os.path.relpath(source, here), fingerprint=theirs.fingerprint, weights=weights)
        write_record(own)
    finally:
        lock.release()
