"""A run's folder, owned by one process: skip what is complete, resume what is not, refuse what is
not the same.

A folder belongs to one configuration for good (its fingerprint) and to one process at a time (a
file lock, which the kernel takes from a killed process). Ranks above 0 wait for rank 0's record and
compare fingerprints.

One pre-training run serves every experiment of its scale and runs_dir that asks for the same one
(docs/decisions/0005): the second folder gets a record (`shared` says where the first lies) and
relative links to encoders and metrics.csv.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf

from clozelab.corpus.files import digest
from clozelab.runs import record as ledger
from clozelab.runs.find import find_equal_run, other_code, shared_run_is_there
from clozelab.runs.fingerprint import (
    RESULTS_VERSIONS,
    UNWATCHED,
    code_of,
    encoder_fingerprint,
    flatten,
    identity_of,
    scrubbed,
    watched_files,
)
from clozelab.runs.record import Process, Record, Score, Shared
from clozelab.runs.upkeep import ending
from clozelab.schema import LAYOUT, meaning_of, seconds_of
from clozelab.training.host import host_facts, process_rank
from clozelab.training.stopping import Watch, interrupt, taken_signals

LEFT_BY_RUNS = ("checkpoints", "encoder", "encoders", "metrics.csv", "scores.json")
LINKED = ("encoder", "encoders", "metrics.csv")
OF_THE_TRAINING = (
    "status",
    "started",
    "finished",
    "seconds",
    "sessions",
    "facts",
    "process",
    "versions",
    "git",
    "host",
    "earlier_sessions",
    "code",
    "modules",
    "environment",
)
"""What a record that shares an equal run has from that run's."""
CHOSEN_FOR_A_LAYOUT = ("micro_batch_sizes", "compiled")
FOLLOWER_WAIT_SECONDS = 120.0

logger = logging.getLogger(__name__)


class RunConflictError(ValueError):
    """The folder holds a run of another configuration."""


class RunBusyError(ValueError):
    """Another process is working in the folder."""

    exit_status = ledger.BUSY_STATUS


class Run:
    """An owned run folder, and in `content` what run.json says; use as a context manager around the
    work.
    """

    def __init__(
        self,
        content: Record,
        *,
        lock: FileLock | None,
        is_resumed: bool,
        watch: Watch | None = None,
    ) -> None:
        self.dir, self.content = content.folder, content
        self.facts, self.fingerprint = content.facts, content.fingerprint
        # the very same run has finished here before: nothing is to be done
        self.is_complete = content.is_complete
        self.is_resumed = is_resumed  # it was begun here and not finished
        self.is_leader = lock is not None  # this process writes; False on ranks above 0
        self._lock = lock
        self._log: logging.Handler | None = None
        self.watch, self._inside = watch or Watch(), ExitStack()
        self._seconds_before, self._started = content.seconds, time.monotonic()

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
        """Take the folder, made if it is not there, for this configuration (as composed,
        unresolved), its `inputs` (name -> fingerprint of everything read) and what it will be
        scored by. Raises RunConflictError, RunBusyError, and ValueError where a run without a
        record has left something."""
        folder = Path(run_dir)
        fresh = new_record(folder, stage, config, inputs or {}, scores or {}, metric)
        keys = ("hang_seconds", "grace_seconds", "max_time")
        hang, grace, most = (OmegaConf.select(config, f"trainer.{key}") for key in keys)
        watch = Watch(hang, grace, seconds_of(most))
        if process_rank() > 0:
            return cls(
                _follow(folder, fresh, config.get("reuse") == "never"),
                lock=None,
                is_resumed=False,
                watch=watch,
            )
        lock = _lock(folder)
        try:
            _sweep(folder)
            if config.get("reuse") == "never" and (folder / ledger.RUN_FILE).is_file():
                _clear(folder, config)
            old = ledger.read_record(folder)
            if old is not None and old.fingerprint != fresh.fingerprint:
                holds = (
                    f"{folder} holds a run ({old.status}) of another"
                    f" configuration:\n{ledger.changes(old, fresh)}"
                )
                instead = (
                    "Give this run another folder (run_dir=..., or experiment=... for a whole"
                    " experiment)"
                )
                raise RunConflictError(f"{holds}\n{instead}, or remove the folder to run it again.")
            accept_other_code([old], str(config.get("reuse")))
            if old is not None and old.is_complete:
                if old.watched != fresh.watched and UNWATCHED not in fresh.watched:
                    # the same inputs, with other times or in another place
                    old.watched = fresh.watched
                    ledger.write_record(old)
                return cls(old, lock=lock, is_resumed=False)
            if old is None:
                _refuse_leftovers(folder)
            else:  # an unfinished session of the same run
                fresh.seconds, fresh.facts, fresh.started = old.seconds, old.facts, old.started
                _change_layout(old, fresh)
                fresh.sessions = old.sessions + 1
                made_by = {"code", "modules", "environment", "git", "versions", "host"}
                for one in (*old.earlier_sessions, old.model_dump(include=made_by)):
                    if one not in fresh.earlier_sessions and one != fresh.model_dump(
                        include=made_by
                    ):
                        fresh.earlier_sessions.append(one)
                if (folder / "checkpoints").is_dir() and not (folder / "metrics.csv").is_file():
                    logger.warning(
                        "%s has lost its metrics.csv: its curve begins where the run goes on",
                        folder,
                    )
            (folder / ledger.CONFIG_FILE).write_text(ledger.shown_config(config), encoding="utf-8")
            run = cls(fresh, lock=lock, is_resumed=old is not None, watch=watch)
            run._log = logging.FileHandler(folder / ledger.LOG_FILE, encoding="utf-8")
            run._log.setFormatter(
                logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
            )
            run._write()
            return run
        except BaseException as error:
            lock.release()
            if isinstance(error, OSError):
                raise ValueError(
                    f"{folder} cannot be written ({error}); make way and run again"
                ) from error
            raise

    def record(self, **facts: Any) -> None:
        """Add facts (JSON values) to run.json at once."""
        self.facts.update(facts)
        self._write()

    def complete(self, results: Mapping[str, Any] | None = None, **facts: Any) -> None:
        """Mark the run as finished; `results` as scores.json has them. ValueError where a score is
        no number.
        """
        self.content.take(results or {})
        self.facts.update(facts)
        self.content.status, self.content.finished = "complete", ledger.now()
        self._write()
        logger.info("%s", "\n".join([f"complete: {self.dir}", *ending(self.content)]))

    def __enter__(self) -> Run:
        if self._log is not None:
            logging.getLogger().addHandler(self._log)
        if not self.is_complete:
            self._inside.enter_context(taken_signals(interrupt))
            self._inside.enter_context(
                self.watch.on(self.dir / ledger.LOG_FILE if self.is_leader else None, self._leave)
            )
        return self

    def _leave(self, status: str, error: str) -> None:
        self.content.status, self.content.error, self.content.finished = status, error, ledger.now()
        self._write()

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        self._inside.close()
        try:
            if self.is_leader and self.content.status == "running":
                self.content.status, self.content.finished = "failed", ledger.now()
                # Lightning turns SIGTERM into an exception of its own.
                if (
                    isinstance(error, KeyboardInterrupt | SystemExit)
                    or type(error).__name__ == "SIGTERMException"
                ):
                    self.content.status = "interrupted"
                elif error is None:
                    self.content.error = "the stage ended without saying that it is complete"
                else:
                    self.content.error = scrubbed(f"{type(error).__name__}: {error}")
                    if self._log is not None:  # only there: who runs the command is told in a line
                        text = scrubbed("".join(traceback.format_exception(error)))
                        self._log.handle(
                            logging.LogRecord(
                                __name__, logging.ERROR, __file__, 0, text, None, None
                            )
                        )
                # a full disk: what it broke is said
                with suppress(OSError) if error is not None else nullcontext():
                    self._write()
        finally:
            if self._log is not None:
                logging.getLogger().removeHandler(self._log)
                self._log.close()
            if self._lock is not None:
                self._lock.release()

    def _write(self) -> None:
        if self.is_leader:
            self.content.seconds = round(self._seconds_before + time.monotonic() - self._started, 3)
            ledger.write_record(self.content)


def _lock(folder: Path) -> FileLock:
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ledger.LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise RunBusyError(
            f"{folder} is in use by another process; wait, or give run_dir another name"
        ) from None
    return lock


def _sweep(folder: Path) -> None:
    """Delete what killed processes of this run were writing: they hold no lock, and a full disk
    would stay full.
    """
    for path in (
        path
        for name in ledger.TEMPORARY
        for start in ("", "*/")
        for path in folder.glob(start + name)
    ):
        if not path.parent.is_symlink():  # behind a link lies another run
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _clear(folder: Path, config: DictConfig) -> None:
    """Remove all that a run's folder holds, but the lock on it; what links lead to stays.
    ValueError where it holds another run, what this one reads, or where one stands."""
    others = [
        Path(str(config.get(key) or "")) for key in ("data_dir", "cache_dir", "runs_dir", "encoder")
    ]
    others += [Path(), *(path.parent for path in folder.glob(f"*/**/{ledger.RUN_FILE}"))]
    if inside := next(
        (one for one in others if one.resolve().is_relative_to(folder.resolve())), None
    ):
        raise ValueError(
            f"{folder} holds {inside.resolve()}, which reuse=never would remove; give another"
            " run_dir"
        )
    for path in folder.iterdir():
        if path.name != ledger.LOCK_FILE:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _change_layout(old: Record, fresh: Record) -> None:
    """Say and record that a run goes on with other devices or micro-batches, which then are chosen
    anew.
    """
    one, two = flatten(old.config), flatten(fresh.config)
    layout = {key: one.get(key) for key in one | two if meaning_of(key) == LAYOUT}
    if changed := sorted(key for key, was in layout.items() if was != two.get(key)):
        text = ", ".join(f"{key} was {one.get(key)} and is {two.get(key)}" for key in changed)
        logger.warning("%s goes on in another layout, with other rounding: %s", old.folder, text)
        fresh.facts = {
            key: value for key, value in fresh.facts.items() if key not in CHOSEN_FOR_A_LAYOUT
        }
        fresh.facts["earlier_layouts"] = [*fresh.facts.get("earlier_layouts", []), layout]


def _refuse_leftovers(folder: Path) -> None:
    """A checkpoint of nobody knows which configuration would be trained on, and its result taken
    for this one's.
    """
    for path in folder.iterdir():
        # of a record that shared another run: nothing of ours, and not to be written through
        if path.is_symlink():
            path.unlink()
    if left := [name for name in LEFT_BY_RUNS if (folder / name).exists()]:
        holds = f"{folder} holds {', '.join(left)} and no {ledger.RUN_FILE} that says of which run"
        raise ValueError(f"{holds}; remove the folder, or give run_dir another name")


def _follow(folder: Path, fresh: Record, anew: bool) -> Record:
    """Wait for rank 0's record and insist on the same configuration; `anew`: a complete run is not
    yet rank 0's.
    """
    deadline, rank = time.monotonic() + FOLLOWER_WAIT_SECONDS, process_rank()
    old = ("failed", "interrupted", *(["complete"] if anew else []))
    while (found := ledger.read_record(folder)) is None or found.status in old:
        if time.monotonic() > deadline:
            raise ValueError(f"rank {rank}: rank 0 has not claimed {folder}")
        time.sleep(0.2)
    if found.fingerprint != fresh.fingerprint:
        raise RunConflictError(
            f"rank {rank} has another configuration than rank 0:\n{ledger.changes(found, fresh)}"
        )
    return found


def accept_other_code(records: Iterable[Record | None], reuse: str) -> None:
    """Say of runs that other code has made that they are taken; RunConflictError where they must
    not be. In a terminal reuse=ask asks; elsewhere nobody could answer, and what has been trained
    is not thrown away."""
    if not (found := [said for one in records if (said := other_code(one))]):
        return
    said = found[0] + (f"; so were {len(found) - 1} more" if found[1:] else "")
    is_asked = reuse == "ask" and sys.stdin.isatty() and sys.stderr.isatty()
    if is_asked:
        print(f"{said}. Go on with what it has made? [y/N] ", end="", file=sys.stderr, flush=True)
    if reuse == "same_code" or (
        is_asked and sys.stdin.readline().strip().lower() not in ("y", "yes")
    ):
        raise RunConflictError(
            f"{said}; remove the folder to train again, give run_dir another name, or say reuse=any"
        )
    logger.warning("%s; it is taken as it is (reuse=same_code refuses such runs)", said)


def share_equal_run(config: DictConfig, inputs: Mapping[str, str]) -> None:
    """Make the run's folder the record of an equal run elsewhere, if there is one and the folder
    holds no run yet.

    Only rank zero does, before any rank claims the folder: the others then find a complete run.
    Raises RunBusyError, and ValueError where the folder is such a record, and the run it speaks of
    is gone; or it holds what a run has left.
    """
    folder = Path(config.run_dir)
    if process_rank() > 0 or config.get("reuse") == "never":
        return
    record = ledger.read_record(folder)
    if record is not None and record.shared is not None and not shared_run_is_there(record):
        was = (
            f"{folder} was shared from {record.shared.run}, which is gone or has been trained anew"
        )
        raise ValueError(f"{was}; remove the folder to train here")
    theirs = find_equal_run(config, inputs) if record is None else None
    if theirs is None:
        if record is None and (other := find_equal_run(config, inputs, anyhow=True)):
            logger.warning("%s; so it is not shared (reuse=any would share it)", other_code(other))
        return
    lock = _lock(folder)
    try:
        if ledger.read_record(folder) is not None:
            return
        _refuse_leftovers(folder)
        logger.info("%s: shared from %s, which trained just this", folder, theirs.folder)
        source, here = theirs.folder.resolve(), folder.resolve()
        for name in LINKED:
            if (source / name).exists():
                (folder / name).symlink_to(os.path.relpath((source / name).resolve(), here))
        (folder / ledger.CONFIG_FILE).write_text(ledger.shown_config(config), encoding="utf-8")
        own = new_record(folder, theirs.stage, config, inputs, theirs.scores, theirs.metric)
        for name in OF_THE_TRAINING:
            setattr(own, name, getattr(theirs, name))
        weights = encoder_fingerprint(source / "encoder")
        own.shared = Shared(
            run=os.path.relpath(source, here), fingerprint=theirs.fingerprint, weights=weights
        )
        ledger.write_record(own)
    finally:
        lock.release()


def new_record(
    folder: Path,
    stage: str,
    config: DictConfig,
    inputs: Mapping[str, str],
    scores: Mapping[str, Score],
    metric: str,
) -> Record:
    """The record of a run that begins now; ValueError where a mandatory value of the configuration
    is missing.
    """
    plain, version = ledger.plain_config(config), RESULTS_VERSIONS[stage]
    place, runs_dir = folder.resolve(), Path(str(config.get("runs_dir") or "")).resolve()
    code = code_of(stage, plain)
    return Record(
        status="running",
        stage=stage,
        scale=str(OmegaConf.select(config, "scale.name", default="")),
        metric=metric,
        scores=dict(scores),
        results_version=version,
        fingerprint=digest(
            {"config": identity_of(plain), "inputs": dict(inputs), "results_version": version}
        ),
        home=(
            place.relative_to(runs_dir) if place.is_relative_to(runs_dir) else Path(place.name)
        ).as_posix(),
        config=plain,
        inputs=dict(inputs),
        watched=watched_files(config),
        **ledger.what_was_said(),
        started=ledger.now(),
        process=Process(pid=os.getpid(), host=platform.node()),
        folder=folder,
        code=digest(code),
        modules={name: one[:8] for name, one in code.items()},
        **host_facts(),
    )
