"""A run's folder, owned by one process: skip what is complete, resume what is not, refuse what is not the same.

A folder belongs to one configuration for good (its fingerprint) and to one process at a time (a file lock, which the
kernel takes from a killed process). Ranks above 0 write nothing: they wait for rank 0's record and compare
fingerprints, so two ranks can never train two configurations.
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

from clozelab.runs.fingerprint import UNWATCHED, encoder_fingerprint
from clozelab.runs.locks import BUSY_STATUS, LOCK_FILE
from clozelab.runs.record import (
    CONFIG_FILE,
    LOG_FILE,
    RUN_FILE,
    Record,
    Score,
    Shared,
    changes,
    earlier_sessions,
    new_record,
    now,
    read_record,
    shown_config,
    write_record,
)
from clozelab.runs.sharing import find_equal_run, shared_run_is_there
from clozelab.training.host import process_rank

LEFT_BY_RUNS = ("checkpoints", "encoder", "encoders", "metrics.csv", "scores.json")
LINKED = ("encoder", "encoders", "metrics.csv")
OF_THE_TRAINING = ("status", "started", "finished", "seconds", "sessions", "facts", "process", "versions", "git",
                   "host", "earlier_sessions")  # fmt: skip
"""What a record that shares an equal run has from that run's."""
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
        self.is_leader = lock is not None
        self.is_complete = content.is_complete
        self.is_resumed = is_resumed
        self._lock = lock
        self._handlers: list[tuple[int, Any]] = []
        self._log: logging.Handler | None = None
        self._seconds_before = content.seconds
        self._started = time.monotonic()

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
                raise RunConflictError(_difference(old, fresh))
            if old is not None and old.is_complete:
                if old.watched != fresh.watched and UNWATCHED not in fresh.watched:
                    old.watched = fresh.watched  # the same inputs, with other times or in another place
                    write_record(old)
                return cls(old, lock=lock, is_resumed=False)
            if old is None:
                _refuse_leftovers(folder)
            else:
                fresh.seconds, fresh.facts, fresh.started = old.seconds, old.facts, old.started
                fresh.sessions, fresh.earlier_sessions = old.sessions + 1, earlier_sessions(old, fresh)
            (folder / CONFIG_FILE).write_text(shown_config(config), encoding="utf-8")
            run = cls(fresh, lock=lock, is_resumed=old is not None)
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
        if self.is_leader and not self.is_complete:
            try:
                self._log = logging.FileHandler(self.dir / LOG_FILE, encoding="utf-8")
            except OSError as error:
                problem = ValueError(
                    f"{self.dir / LOG_FILE} cannot be written ({error}); make way for it and run again"
                )
                self.__exit__(type(problem), problem, None)  # nobody else will say that the claimed run has ended
                raise problem from error
            self._log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            logging.getLogger().addHandler(self._log)
            self._catch_sigterm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers:
            signal.signal(number, handler)
        try:
            if self.is_leader and self.content.status == "running":
                self._mark_end(error)
        finally:
            if self._log is not None:
                logging.getLogger().removeHandler(self._log)
                self._log.close()
            if self._lock is not None:
                self._lock.release()

    def _mark_end(self, error: BaseException | None) -> None:
        # Lightning turns Ctrl-C into SystemExit and SIGTERM into an exception of its own.
        if isinstance(error, KeyboardInterrupt | SystemExit) or type(error).__name__ == "SIGTERMException":
            self.content.status, self.content.error = "interrupted", None
        elif error is None:
            self.content.status = "failed"
            self.content.error = "the stage ended without saying that it is complete"
        else:
            self.content.status, self.content.error = "failed", f"{type(error).__name__}: {error}"
            if self._log is not None:
                text = "".join(traceback.format_exception(error))
                self._log.handle(logging.LogRecord(__name__, logging.ERROR, __file__, 0, text, None, None))
        self.content.finished = now()
        self._write()

    def _catch_sigterm(self) -> None:
        def stop(_number: int, _frame: FrameType | None) -> None:
            raise Interrupted("SIGTERM")

        try:
            self._handlers.append((signal.SIGTERM, signal.signal(signal.SIGTERM, stop)))
        except ValueError:
            logger.debug("not in the main thread: SIGTERM keeps its handler")

    def _write(self) -> None:
        if self.is_leader:
            self.content.seconds = round(self._seconds_before + time.monotonic() - self._started, 3)
            write_record(self.content)


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
    lock, source = _lock(folder), theirs.folder
    try:
        if read_record(folder) is not None:
            return
        _refuse_leftovers(folder)
        logger.info("%s: shared from %s, which trained just this", folder, source)
        for name in LINKED:
            if (source / name).exists():
                (folder / name).symlink_to(os.path.relpath((source / name).resolve(), folder.resolve()))
        (folder / CONFIG_FILE).write_text(shown_config(config), encoding="utf-8")
        own = new_record(folder, theirs.stage, config, inputs, theirs.scores, theirs.metric)
        for name in OF_THE_TRAINING:
            setattr(own, name, getattr(theirs, name))
        place = os.path.relpath(source.resolve(), folder.resolve())
        weights = encoder_fingerprint(source / "encoder")
        own.shared = Shared(run=place, fingerprint=theirs.fingerprint, weights=weights)
        write_record(own)
    finally:
        lock.release()


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


def _follow(folder: Path, fresh: Record) -> Record:
    """Wait for rank 0's record and insist on the same configuration."""
    deadline = time.monotonic() + FOLLOWER_WAIT_SECONDS
    while (found := read_record(folder)) is None or found.status in ("failed", "interrupted"):
        if time.monotonic() > deadline:
            raise ValueError(f"rank {process_rank()}: rank 0 has not claimed {folder}")
        time.sleep(0.2)
    if found.fingerprint != fresh.fingerprint:
        raise RunConflictError(
            f"rank {process_rank()} has another configuration than rank 0:\n" + changes(found, fresh)
        )
    return found


def _difference(old: Record, new: Record) -> str:
    return (
        f"{old.folder} holds a {old.status} run of another configuration:\n{changes(old, new)}\n"
        "Give this run another folder (run_dir=..., or experiment=... for a whole experiment), "
        "or remove the folder to run it again."
    )
