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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import DictConfig

from clozelab.runs.fingerprint import UNWATCHED
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

LOCK_FILE = ".lock"
BUSY_STATUS = os.EX_TEMPFAIL
"""Exit status of a command whose run folder another process holds: try again later."""
LEFT_BY_RUNS = ("checkpoints", "encoder", "encoders", "metrics.csv", "scores.json")
FOLLOWER_WAIT_SECONDS = 120.0
_PROC_LOCKS = Path("/proc/locks")
Held = dict[tuple[int, int, int], int]
"""(device major, device minor, inode) -> process id, of every locked file of this machine."""

logger = logging.getLogger(__name__)


def can_tell() -> bool:
    """Whether this machine says who holds a lock."""
    return _PROC_LOCKS.is_file()


def holders() -> Held:
    """Every file that a process of this machine holds a flock on."""
    found: Held = {}
    try:
        lines = _PROC_LOCKS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        parts = line.split()
        if len(parts) >= 8 and parts[1] == "FLOCK":  # "->" in its place marks one that waits
            major, minor, inode = parts[5].split(":")
            found[int(major, 16), int(minor, 16), int(inode)] = int(parts[4])
    return found


def holder(folder: Path, held: Held | None = None) -> int | None:
    """Process id of who holds a run folder's lock; None where nobody does, or it cannot be told.

    `held` is an answer of `holders`, for asking about many folders at once. Process 0 is one of another container.
    """
    path = folder / LOCK_FILE
    try:
        status = path.stat()
    except OSError:
        return None
    held = holders() if held is None else held
    found = held.get((os.major(status.st_dev), os.minor(status.st_dev), status.st_ino))
    if found is not None:
        return found
    # Some file systems show programs another device number than the kernel's own list has.
    same_inode = [pid for (_, _, inode), pid in held.items() if inode == status.st_ino]
    return next((pid for pid in same_inode if _has_open(pid, path)), None)


def _has_open(pid: int, path: Path) -> bool:
    wanted = str(path.resolve())
    try:
        return any(_target(link) == wanted for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # closed since
        return ""


@contextmanager
def owned(lock_file: Path) -> Iterator[bool]:
    """Hold a lock file while inside; yields False, and holds nothing, where somebody else has it."""
    if not lock_file.parent.is_dir():
        yield True  # the folder itself has gone
        return
    lock = FileLock(lock_file, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


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

    @classmethod
    def record_shared(
        cls,
        run_dir: str | Path,
        *,
        config: DictConfig,
        inputs: Mapping[str, str],
        source: Path,
        linked: Sequence[str],
        weights: str,
    ) -> None:
        """Make a folder without a run the record of a complete, equal run in another folder.

        What is said of the training (facts, scores, times, versions, machine) is the source's; what was said and the
        fingerprint are this run's.

        Args:
            linked: names that become relative links to the source's files, where it has them.
            weights: fingerprint of what the source trained; its own fingerprint only says what it was to train.

        Raises:
            RunBusyError: another process holds the folder.
            ValueError: the folder holds what a run has left and no record that says which.
        """
        folder = Path(run_dir)
        lock = _lock(folder)
        try:
            theirs = read_record(source)
            if theirs is None or read_record(folder) is not None:
                return
            _refuse_leftovers(folder)
            for name in linked:
                if (source / name).exists():
                    (folder / name).symlink_to(os.path.relpath((source / name).resolve(), folder.resolve()))
            (folder / CONFIG_FILE).write_text(shown_config(config), encoding="utf-8")
            own = new_record(folder, theirs.stage, config, inputs, theirs.scores, theirs.metric)
            trained = ("status", "finished", "started", "seconds", "sessions", "facts", "process", "versions", "git")
            for name in (*trained, "host", "earlier_sessions"):
                setattr(own, name, getattr(theirs, name))
            place = os.path.relpath(source.resolve(), folder.resolve())
            own.shared = Shared(run=place, fingerprint=theirs.fingerprint, weights=weights)
            write_record(own)
        finally:
            lock.release()

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


def process_rank() -> int:
    """0 for the first process of a job (and outside one), by the launcher's environment; above 0 for all others.

    SLURM_PROCID counts only in a step of several tasks (srun): children of a batch script's one process inherit its 0.
    Where only LOCAL_RANK and NODE_RANK are known (Lightning's own launcher), their sum stands in for the rank.
    """
    named = ["RANK"]
    if os.environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        named.append("SLURM_PROCID")
    for name in named:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    texts = (os.environ.get(name, "") for name in ("LOCAL_RANK", "NODE_RANK"))
    return sum(int(text) for text in texts if text.isdigit())


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
