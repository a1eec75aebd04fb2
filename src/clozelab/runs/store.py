"""Who works in a run folder, asked without touching its lock.

Taking the lock to see whether it is free could refuse a run that starts at this very moment. Linux lists every held
lock in /proc/locks; elsewhere, and for another machine's processes on a shared file system, the answer is unknown.

A run folder: who owns it, what it was made from and how it ended.

A folder is claimed under a file lock. The fingerprint says what is in it: the resolved configuration without the keys
that cannot change a result, the fingerprints of the inputs, and the stage's results version. Same and complete:
skipped. Same and incomplete: resumed. Different: refused, with the difference. Ranks above 0 of a multi-process job
follow the folder that rank 0 claimed and only compare fingerprints, so two ranks can never train two configurations.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any

from omegaconf import DictConfig

from clozelab.runs.record import (
    CONFIG_FILE,
    LOG_FILE,
    RUN_FILE,
    UNWATCHED,
    changes,
    earlier_sessions,
    fresh_state,
    now,
    read_state,
    shown_config,
    write_json,
)

LOCK_FILE = ".lock"
BUSY_STATUS = os.EX_TEMPFAIL
"""Exit status of a command whose run folder another process holds: try again later."""
_PROC_LOCKS = Path("/proc/locks")


def can_tell() -> bool:
    """Whether this machine says who holds a lock."""
    return _PROC_LOCKS.is_file()


def holders() -> dict[tuple[int, int, int], int]:
    """(device major, device minor, inode) -> process id, of every file that this machine holds a flock on."""
    found: dict[tuple[int, int, int], int] = {}
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


def holder(folder: Path, held: dict[tuple[int, int, int], int] | None = None) -> int | None:
    """Process id of who holds a run folder's lock; None where nobody does, or it cannot be told.

    `held` is an answer of `holders`, for asking about many folders at once. Process 0 is one of another container.
    """
    try:
        status = (folder / LOCK_FILE).stat()
    except OSError:
        return None
    held = holders() if held is None else held
    found = held.get((os.major(status.st_dev), os.minor(status.st_dev), status.st_ino))
    if found is not None:
        return found
    # Some file systems show programs another device number than the kernel's own list has.
    same_inode = [pid for (_, _, inode), pid in held.items() if inode == status.st_ino]
    return next((pid for pid in same_inode if _has_open(pid, folder / LOCK_FILE)), None)


def _has_open(pid: int, path: Path) -> bool:
    wanted = str(path.resolve())
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for link in links:
        try:
            if str(link.readlink()) == wanted:
                return True
        except OSError:
            continue
    return False


@contextmanager
def owned(folder: Path) -> Iterator[bool]:
    """Hold a folder's lock while inside; yields False, and holds nothing, where somebody else has it."""
    try:
        lock = (folder / LOCK_FILE).open("a", encoding="utf-8")
    except FileNotFoundError:
        yield True  # the folder itself has gone
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


logger = logging.getLogger(__name__)

LEFT_BY_RUNS = ("checkpoints", "encoder", "encoders", "metrics.csv", "scores.json")
FOLLOWER_WAIT_SECONDS = 120.0


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
        is_complete: the very same run has finished here before; there is nothing to do.
        is_resumed: the very same run was begun here and not finished.
        is_leader: this process writes; False on ranks above 0.
    """

    def __init__(self, run_dir: Path, state: dict[str, Any], *, lock: IO[str] | None, is_resumed: bool) -> None:
        self.dir = run_dir
        self.state = state
        self.is_leader = lock is not None
        self.is_complete = state["status"] == "complete"
        self.is_resumed = is_resumed
        self._lock = lock
        self._handlers: list[tuple[int, Any]] = []
        self._log: logging.Handler | None = None
        self._seconds_before = float(state.get("seconds", 0.0))
        self._started = time.monotonic()

    @classmethod
    def claim(
        cls, run_dir: str | Path, *, stage: str, config: DictConfig, inputs: Mapping[str, str] | None = None
    ) -> Run:
        """Take the folder for this configuration.

        Args:
            run_dir: made if it is not there.
            stage: pretrain, finetune, ...
            config: as composed, unresolved.
            inputs: name -> fingerprint of everything read (corpus, encoder, data).

        Raises:
            RunConflictError: the folder holds another configuration; the message lists the keys that differ.
            RunBusyError: another process holds the folder.
            ValueError: the folder holds what a run has left and no record that says which.
        """
        folder = Path(run_dir)
        fresh = fresh_state(stage, config, dict(inputs or {}))
        if process_rank() > 0:
            return cls(folder, _follow(folder, fresh), lock=None, is_resumed=False)
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder)
        try:
            old = read_state(folder)
            if old is not None and old["fingerprint"] != fresh["fingerprint"]:
                raise RunConflictError(_difference(folder, old, fresh))
            if old is not None and old["status"] == "complete":
                if old.get("watched") != fresh["watched"] and UNWATCHED not in fresh["watched"]:
                    old["watched"] = fresh["watched"]  # the same inputs, with other times or in another place
                    write_json(folder / RUN_FILE, old)
                return cls(folder, old, lock=lock, is_resumed=False)
            if old is None:
                _refuse_leftovers(folder)
            else:
                fresh |= {"seconds": old.get("seconds", 0.0), "facts": old.get("facts", {}), "started": old["started"]}
                fresh["earlier_sessions"] = earlier_sessions(old, fresh)
            fresh["sessions"] = (old or {}).get("sessions", 0) + 1
            (folder / CONFIG_FILE).write_text(shown_config(config), encoding="utf-8")
            run = cls(folder, fresh, lock=lock, is_resumed=old is not None)
            run._write()
            return run
        except BaseException:
            lock.close()
            raise

    @classmethod
    def record_shared(
        cls,
        run_dir: str | Path,
        *,
        stage: str,
        config: DictConfig,
        inputs: Mapping[str, str],
        source: Path,
        linked: Sequence[str],
        weights: str,
    ) -> None:
        """Make a folder without a run the record of a complete, equal run in another folder.

        What is said of the training (facts, times, versions, machine) is the source's; configuration and fingerprint
        are this run's.

        Args:
            linked: names that become relative links to the source's files, where it has them.
            weights: fingerprint of what the source trained; its own fingerprint only says what it was to train.

        Raises:
            RunBusyError: another process holds the folder.
            ValueError: the folder holds what a run has left and no record that says which.
        """
        folder = Path(run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            theirs = read_state(source)
            if theirs is None or read_state(folder) is not None:
                return
            _refuse_leftovers(folder)
            for name in linked:
                if (source / name).exists():
                    _link(folder / name, source / name)
            (folder / CONFIG_FILE).write_text(shown_config(config), encoding="utf-8")
            own = fresh_state(stage, config, dict(inputs))
            state = theirs | {key: own[key] for key in ("fingerprint", "inputs", "watched", "config_resolved")}
            place = os.path.relpath(source.resolve(), folder.resolve())
            state["shared"] = {"run": place, "fingerprint": theirs["fingerprint"], "weights": weights}
            write_json(folder / RUN_FILE, state)

    def record(self, **facts: Any) -> None:
        """Add facts (JSON values) to run.json at once."""
        self.state["facts"] |= facts
        self._write()

    def complete(self, **facts: Any) -> None:
        """Mark the run as finished; from now on the same configuration is skipped."""
        self.state["facts"] |= facts
        self.state |= {"status": "complete", "finished": now()}
        self._write()
        logger.info("complete: %s", self.dir)

    def __enter__(self) -> Run:
        if self.is_leader and not self.is_complete:
            try:
                self._open_log()
            except OSError as error:
                problem = ValueError(
                    f"{self.dir / LOG_FILE} cannot be written ({error}); make way for it and run again"
                )
                self.__exit__(type(problem), problem, None)  # nobody else will say that the claimed run has ended
                raise problem from error
            self._catch_sigterm()
        return self

    def _open_log(self) -> None:
        self._log = logging.FileHandler(self.dir / LOG_FILE, encoding="utf-8")
        self._log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.getLogger().addHandler(self._log)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers:
            signal.signal(number, handler)
        try:
            if self.is_leader and self.state["status"] == "running":
                self._mark_end(error)
        finally:
            if self._log is not None:
                logging.getLogger().removeHandler(self._log)
                self._log.close()
            if self._lock is not None:
                self._lock.close()

    def _mark_end(self, error: BaseException | None) -> None:
        # Lightning turns Ctrl-C into SystemExit and SIGTERM into an exception of its own.
        interrupted = isinstance(error, KeyboardInterrupt | SystemExit) or type(error).__name__ == "SIGTERMException"
        if error is None:
            self.state |= {"status": "failed", "error": "the stage ended without saying that it is complete"}
        elif interrupted:
            self.state |= {"status": "interrupted", "error": None}
        else:
            text = "".join(traceback.format_exception(error))
            self.state |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
            if self._log is not None:
                self._log.handle(logging.LogRecord(__name__, logging.ERROR, __file__, 0, text, None, None))
        self.state["finished"] = now()
        self._write()

    def _catch_sigterm(self) -> None:
        def stop(_number: int, _frame: FrameType | None) -> None:
            raise Interrupted("SIGTERM")

        try:
            self._handlers.append((signal.SIGTERM, signal.signal(signal.SIGTERM, stop)))
        except ValueError:
            logger.debug("not in the main thread: SIGTERM keeps its handler")

    def _write(self) -> None:
        if not self.is_leader:
            return
        self.state["seconds"] = round(self._seconds_before + time.monotonic() - self._started, 3)
        write_json(self.dir / RUN_FILE, self.state)


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


def _link(link: Path, target: Path) -> None:
    """A relative link, so that the folder of all runs can be moved."""
    link.symlink_to(os.path.relpath(target.resolve(), link.parent.resolve()))


def _lock(folder: Path) -> IO[str]:
    lock = (folder / LOCK_FILE).open("a", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise RunBusyError(
            f"{folder} is in use by another process; wait for it, or give run_dir another name"
        ) from error
    return lock


def _follow(folder: Path, fresh: dict[str, Any]) -> dict[str, Any]:
    """Wait for rank 0's record and insist on the same configuration."""
    deadline = time.monotonic() + FOLLOWER_WAIT_SECONDS
    while (state := read_state(folder)) is None or state["status"] in ("failed", "interrupted"):
        if time.monotonic() > deadline:
            raise ValueError(f"rank {process_rank()}: rank 0 has not claimed {folder}")
        time.sleep(0.2)
    if state["fingerprint"] != fresh["fingerprint"]:
        raise RunConflictError(
            f"rank {process_rank()} has another configuration than rank 0:\n" + changes(state, fresh)
        )
    return state


def _difference(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> str:
    return (
        f"{folder} holds a {old['status']} run of another configuration:\n{changes(old, new)}\n"
        "Give this run another folder (run_dir=..., or experiment=... for a whole experiment), "
        "or remove the folder to run it again."
    )
