"""A run's folder, owned by one process.

What is complete is skipped, what is not goes on, and what is not the same is refused. A folder
belongs to one configuration for good (its fingerprint) and to one process at a time (a file lock,
which the kernel takes from a killed process). Ranks above 0 wait for rank 0's record and compare
fingerprints.

One pre-training run serves every experiment of its scale and runs_dir that asks for the same one
(docs/decisions/0005): the second folder gets a record (`shared` says where the first lies) and
relative links to encoders and metrics.csv.
"""

from __future__ import annotations

import logging
import os
import platform
import shutil
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from clozelab.config import Composed
from clozelab.files.digests import digest
from clozelab.files.origin import RUN_FILE
from clozelab.runs.code import code_of
from clozelab.runs.early_log import hand_over
from clozelab.runs.find import is_of_killed_process
from clozelab.runs.identity import identity_of, results_version_of
from clozelab.runs.inputs import UNWATCHED, encoder_fingerprint, watched_files
from clozelab.runs.outcome import ending
from clozelab.runs.provenance import provenance_of
from clozelab.runs.record import (
    BUSY_STATUS,
    CONFIG_FILE,
    ID_FACT,
    LOCK_FILE,
    LOG_FILE,
    TEMPORARY,
    TRACKERS_FACT,
    Process,
    Record,
    Score,
    Shared,
    changes,
    now,
    read_record,
    write_record,
)
from clozelab.runs.reuse import find_equal_run, other_code, shared_run_exists
from clozelab.schema import LAYOUT, is_as_before, meaning_of, seconds_of
from clozelab.text.plain import JsonObject, PlainMapping, flatten
from clozelab.text.redaction import scrubbed
from clozelab.training.host import holder, host_facts, process_rank
from clozelab.training.stopping import Watch, interrupt, taken_signals

LEFT_BY_RUNS = ("checkpoints", "encoder", "encoders", "metrics.csv", "scores.json")
LINKED = ("encoder", "encoders", "metrics.csv")
# Facts about a run at its trackers.
OF_TRACKERS = (ID_FACT, TRACKERS_FACT)
SESSION_FIELDS = {"code", "modules", "environment", "git", "versions", "host"}
"""What a record says of the code and the machine of one session."""
OF_THE_TRAINING = SESSION_FIELDS | {
    "status",
    "started",
    "finished",
    "seconds",
    "sessions",
    "facts",
    "process",
    "earlier_sessions",
}
"""What a record that shares an equal run has from that run's."""
# Facts that a run has found out for its devices, and finds out anew for others.
CHOSEN_FOR_A_LAYOUT = ("micro_batch_sizes", "compiled", "cuda_graphs")
# For rank 0, which reads every byte of a corpus before it claims the folder: as long as ranks wait
# for one another in a training (torch's process groups).
FOLLOWER_WAIT_SECONDS = 1800.0

logger = logging.getLogger(__name__)


class RunConflictError(ValueError):
    """The folder holds a run of another configuration."""


class RunBusyError(ValueError):
    """Another process is working in the folder."""

    exit_status = BUSY_STATUS


class Run:
    """An owned run folder, and in `content` what run.json says.

    Use it as a context manager around the work. `is_complete`: the very same run has finished here
    before, so nothing is to be done. `is_leader`: this process writes; it is False on ranks above
    0.
    """

    def __init__(self, content: Record, lock: FileLock | None, watch: Watch) -> None:
        self.dir = content.folder
        self.content = content
        self.facts = content.facts
        self.fingerprint = content.fingerprint
        self.is_complete = content.is_complete
        self.is_leader = lock is not None
        self.watch = watch
        self._lock = lock
        self._log: logging.Handler | None = None
        # what is on while the work goes on: signal handlers and the watch
        self._inside = ExitStack()
        # of earlier sessions, and when this one began
        self._seconds_before = content.seconds
        self._started = time.monotonic()

    @classmethod
    def claim(
        cls,
        run_dir: str | Path,
        *,
        stage: str,
        config: Composed,
        inputs: Mapping[str, str] | None = None,
        scores: Mapping[str, Score] | None = None,
        metric: str = "",
    ) -> Run:
        """Take the folder for a configuration; it is made if it is not there.

        Args:
            run_dir: the folder.
            stage: pretrain, finetune or evaluate.
            config: as composed.
            inputs: name -> fingerprint of everything that the run reads.
            scores: what it will be scored by.
            metric: the headline's key in `scores`.

        Raises RunConflictError, RunBusyError, and ValueError where a run without a record has left
        something.
        """
        folder = Path(run_dir)
        fresh = new_record(folder, stage, config, inputs or {}, scores or {}, metric)
        trainer = config.get("trainer") or {}
        watch = Watch(
            trainer.get("hang_seconds"),
            trainer.get("grace_seconds"),
            seconds_of(trainer.get("max_time")),
        )
        # only rank 0 owns the folder; the others look at its record
        if process_rank() > 0:
            record = _continue_or_replace(folder, fresh, replaces=config.get("reuse") == "never")
            return cls(record, None, watch)
        lock = _lock(folder)
        try:
            return cls._claim_locked(fresh, config, lock, watch)
        except OSError as error:
            lock.release()
            raise ValueError(
                f"{folder} cannot be written ({error}); make way and run again"
            ) from error
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _claim_locked(cls, fresh: Record, config: Composed, lock: FileLock, watch: Watch) -> Run:
        """Claim the locked folder of a fresh record."""
        folder = fresh.folder
        _remove_temporary(folder)
        if config.get("reuse") == "never" and (folder / RUN_FILE).is_file():
            _clear(folder, config)

        # whose the folder is: of this run, or of another one
        old = read_record(folder)
        if old is not None and old.fingerprint != fresh.fingerprint:
            raise RunConflictError(
                f"{folder} holds a run ({old.status}) of another"
                f" configuration:\n{changes(old, fresh)}\nGive this run another folder"
                " (run_dir=..., row=... for one fine-tuning, experiment=... for a whole"
                f" experiment), or remove the folder to run it again.{_arm_of_floor(old, fresh)}"
            )
        # nothing to do: it is complete
        if old is not None and old.is_complete:
            warn_of_other_code([old])
            if old.watched != fresh.watched and UNWATCHED not in fresh.watched:
                # the same inputs, with other times or in another place
                old.watched = fresh.watched
                write_record(old)
            return cls(old, lock, watch)

        # begin, or go on
        if old is None:
            _refuse_leftovers(folder)
        else:
            _continue_session(old, fresh)
        (folder / CONFIG_FILE).write_text(config.yaml, encoding="utf-8")
        run = cls(fresh, lock, watch)
        run._log = logging.FileHandler(folder / LOG_FILE, encoding="utf-8")
        run._log.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        run._write()
        return run

    def record(self, **facts: object) -> None:
        """Add facts (JSON values) to run.json at once."""
        self.facts.update(facts)
        self._write()

    def complete(self, results: PlainMapping | None = None, **facts: object) -> None:
        """Mark the run as finished; `results` as scores.json has them.

        ValueError where a score is no number.
        """
        self.content.take(results or {})
        self.facts.update(facts)
        self._end("complete", None)
        logger.info("%s", "\n".join([f"complete: {self.dir}", *ending(self.content)]))

    def __enter__(self) -> Run:
        if self._log is not None:
            hand_over(self._log)
        if not self.is_complete:
            stacks_file = self.dir / LOG_FILE if self.is_leader else None
            self._inside.enter_context(taken_signals(interrupt))
            self._inside.enter_context(self.watch.on(stacks_file, self._end))
        return self

    def _end(self, status: str, error: str | None) -> None:
        """Record an end; also that of the watch, in a process that cannot end itself."""
        self.content.status = status
        self.content.error = error
        self.content.finished = now()
        self._write()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._inside.close()
        try:
            if self.is_leader and self.content.status == "running":
                self._record_end(error)
        finally:
            if self._log is not None:
                logging.getLogger().removeHandler(self._log)
                self._log.close()
            if self._lock is not None:
                self._lock.release()

    def _record_end(self, error: BaseException | None) -> None:
        """Write how a run ended that is not complete."""
        # Lightning turns SIGTERM into an exception of its own.
        is_sigterm = type(error).__name__ == "SIGTERMException"
        # a full disk: what it broke is said
        with suppress(OSError):
            if error is None:
                self._end("failed", "the stage ended without saying that it is complete")
            elif is_sigterm or isinstance(error, KeyboardInterrupt | SystemExit):
                self._end("interrupted", None)
            else:
                self._end("failed", scrubbed(f"{type(error).__name__}: {error}"))
        if self._log is not None and self.content.status == "failed" and error is not None:
            # Into the file alone: who runs the command is told in a line.
            text = scrubbed("".join(traceback.format_exception(error)))
            self._log.handle(
                logging.LogRecord(__name__, logging.ERROR, __file__, 0, text, None, None)
            )

    def _write(self) -> None:
        if self.is_leader:
            self.content.seconds = round(self._seconds_before + time.monotonic() - self._started, 3)
            write_record(self.content)


def _lock(folder: Path) -> FileLock:
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise RunBusyError(
            f"{folder} is in use by another process; wait, or give run_dir another name"
        ) from None
    return lock


def _remove_temporary(folder: Path) -> None:
    """Delete what killed processes of this run were writing.

    They hold no lock, and a full disk would stay full.
    """
    for pattern in TEMPORARY:
        for path in [*folder.glob(pattern), *folder.glob(f"*/{pattern}")]:
            if path.parent.is_symlink():  # behind a link lies another run
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _clear(folder: Path, config: Composed) -> None:
    """Remove all that a run's folder holds, but the lock on it; what links lead to stays.

    ValueError where it holds another run, what this one reads, or the working directory.
    """
    needed = []
    for key in ("data_dir", "cache_dir", "runs_dir", "encoder"):
        needed.append(Path(str(config.get(key) or "")))
    needed.append(Path())
    needed += [path.parent for path in folder.glob(f"*/**/{RUN_FILE}")]
    for path in needed:
        if path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"{folder} holds {path.resolve()}, which reuse=never would remove; give another"
                " run_dir"
            )
    for path in folder.iterdir():
        if path.name == LOCK_FILE:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _continue_session(old: Record, fresh: Record) -> None:
    """Let the record of a new session go on from that of an unfinished one."""
    fresh.seconds = old.seconds
    fresh.facts = old.facts
    fresh.started = old.started
    _change_layout(old, fresh)
    fresh.sessions = old.sessions + 1

    # A session that left no checkpoint has trained nothing of what follows.
    folder = fresh.folder
    if any(folder.glob("checkpoints/*.ckpt")):
        warn_of_other_code([old])
        _keep_sessions(old, fresh)
    else:
        logger.info("%s begins anew: its last start left no checkpoint", folder)
    if (folder / "checkpoints").is_dir() and not (folder / "metrics.csv").is_file():
        logger.warning(
            "%s has no metrics.csv (it was lost, or no line was written yet): its curve begins"
            " where the run goes on",
            folder,
        )


def _keep_sessions(old: Record, fresh: Record) -> None:
    """Keep each other code and machine that has trained a run before, once."""
    this_session = fresh.model_dump(include=SESSION_FIELDS)
    last_session = old.model_dump(include=SESSION_FIELDS)
    for session in (*old.earlier_sessions, last_session):
        if session not in fresh.earlier_sessions and session != this_session:
            fresh.earlier_sessions.append(session)


def _change_layout(old: Record, fresh: Record) -> None:
    """Say and record that a run goes on with other devices or micro-batches.

    What was chosen for the old layout is then chosen anew.
    """
    before = flatten(old.config)
    after = flatten(fresh.config)
    layout = {}
    for key in before | after:
        if meaning_of(key) == LAYOUT:
            layout[key] = before.get(key)
    changed = []
    for key in sorted(layout):
        is_added = key not in before and is_as_before(key, after[key])
        if layout[key] != after.get(key) and not is_added:
            changed.append(f"{key} was {layout[key]} and is {after.get(key)}")
    if not changed:
        return
    text = ", ".join(changed)
    logger.warning("%s goes on in another layout, with other rounding: %s", old.folder, text)
    facts = {key: value for key, value in fresh.facts.items() if key not in CHOSEN_FOR_A_LAYOUT}
    facts["earlier_layouts"] = [*facts.get("earlier_layouts", []), layout]
    fresh.facts = facts


def _refuse_leftovers(folder: Path) -> None:
    """ValueError where a folder without a record has what a run leaves.

    A checkpoint of nobody knows which configuration would be trained on, and its result taken for
    this one's.
    """
    for path in folder.iterdir():
        # of a record that shared another run: nothing of ours, and not to be written through
        if path.is_symlink():
            path.unlink()
    leftovers = [name for name in LEFT_BY_RUNS if (folder / name).exists()]
    if leftovers:
        raise ValueError(
            f"{folder} holds {', '.join(leftovers)} and no {RUN_FILE} that names its run;"
            " remove the folder, or give run_dir another name"
        )


def _continue_or_replace(folder: Path, fresh: Record, *, replaces: bool) -> Record:
    """Wait for rank 0's record and insist on the same configuration.

    That of a run which ended, or was killed, is not yet the one to wait for. `replaces`: neither is
    a complete one, which rank 0 removes first.
    """
    deadline = time.monotonic() + FOLLOWER_WAIT_SECONDS
    outdated = {"failed", "interrupted"}
    if replaces:
        outdated.add("complete")
    record = read_record(folder)
    while record is None or record.status in outdated or _was_killed(record):
        if time.monotonic() > deadline:
            raise ValueError(f"rank {process_rank()}: rank 0 has not claimed {folder}")
        time.sleep(0.2)
        record = read_record(folder)
    if record.fingerprint != fresh.fingerprint:
        raise RunConflictError(
            f"rank {process_rank()} has another configuration than rank"
            f" 0:\n{changes(record, fresh)}"
        )
    return record


def _was_killed(record: Record) -> bool:
    """Whether the process of a running record is surely gone.

    Some file systems name no holder of a lock: a process that is still there may be rank 0.
    """
    process = record.process
    if process is not None and Path(f"/proc/{process.pid}").exists():
        return False
    return is_of_killed_process(record, holder(record.folder / LOCK_FILE))


def _arm_of_floor(old: Record, fresh: Record) -> str:
    """How a floor keeps its runs where another arm is the first one now; empty elsewhere."""
    is_floor = fresh.row_delta.get("initialisation") == "random"
    arm = old.config.get("encoder_arm")
    if not is_floor or arm == fresh.config.get("encoder_arm"):
        return ""
    return (
        " A row without an arm takes the shape of the first row's arm: say"
        f" `set: {{encoder_arm: {arm}}}` of it in paper.yaml to keep its runs."
    )


def warn_of_other_code(records: Iterable[Record | None]) -> None:
    """Warn once of runs that other code has made: they are taken as they are."""
    sentences = [sentence for sentence in map(other_code, records) if sentence]
    if not sentences:
        return
    text = sentences[0]
    if len(sentences) > 1:
        text += f"; so were {len(sentences) - 1} more"
    logger.warning("%s; it is taken as it is (reuse=never trains anew)", text)


def share_equal_run(config: Composed, inputs: Mapping[str, str]) -> None:
    """Make the run's folder the record of an equal run elsewhere.

    That is if there is one and the folder holds no run yet. Only rank zero does, before any rank
    claims the folder: the others then find a complete run. Raises RunBusyError, and ValueError
    where the folder is such a record, and the run it speaks of is gone; or it holds what a run has
    left.
    """
    folder = Path(config.values["run_dir"])
    if process_rank() > 0 or config.get("reuse") == "never":
        return
    record = read_record(folder)
    if record is not None:
        if record.shared is not None and not shared_run_exists(record):
            raise ValueError(
                f"{folder} was shared from {record.shared.run}, which is gone or has been trained"
                " anew; remove the folder to train here"
            )
        return
    equal_run = find_equal_run(config, inputs)
    if equal_run is None:
        return
    lock = _lock(folder)
    try:
        # another process may have claimed it since
        if read_record(folder) is None:
            _refuse_leftovers(folder)
            _link(folder, equal_run, config, inputs)
    finally:
        lock.release()


def _link(folder: Path, equal_run: Record, config: Composed, inputs: Mapping[str, str]) -> None:
    """Fill a folder with links to an equal run, and with a record that says so."""
    logger.info("%s: shared from %s, which trained just this", folder, equal_run.folder)
    source = equal_run.folder.resolve()
    target_folder = folder.resolve()
    # relative, so that a folder of runs may be moved as a whole
    for name in LINKED:
        if (source / name).exists():
            (folder / name).symlink_to(os.path.relpath((source / name).resolve(), target_folder))
    (folder / CONFIG_FILE).write_text(config.yaml, encoding="utf-8")
    record = new_record(folder, equal_run.stage, config, inputs, equal_run.scores, equal_run.metric)
    for field in OF_THE_TRAINING:
        setattr(record, field, getattr(equal_run, field))
    # A tracker's run of this id belongs to the other experiment: sent again from here, it would
    # move into this one.
    record.facts = {key: equal_run.facts[key] for key in equal_run.facts if key not in OF_TRACKERS}
    if ID_FACT in equal_run.facts:
        group = f"{equal_run.experiment}/{equal_run.name}"
        logger.info("%s: a tracker has its curves in the group %s", folder, group)
    record.shared = Shared(
        run=os.path.relpath(source, target_folder),
        fingerprint=equal_run.fingerprint,
        weights=encoder_fingerprint(source / "encoder"),
    )
    write_record(record)


def new_record(
    folder: Path,
    stage: str,
    config: Composed,
    inputs: Mapping[str, str],
    scores: Mapping[str, Score],
    metric: str,
) -> Record:
    """Return the record of a run that begins now.

    ValueError where a mandatory value of the configuration is missing.
    """
    plain = config.recorded
    version = results_version_of(stage, plain)
    code = code_of(stage, plain)
    # of each module, so that arms that use others may be compared in those of both
    modules = {name: module_hash[:8] for name, module_hash in code.items()}
    identity: JsonObject = {
        "config": plain,
        "inputs": dict(inputs),
        "results_version": version,
        "fingerprint": fingerprint_of(plain, inputs, version),
    }
    origin: JsonObject = {
        "code": digest(code),
        "modules": modules,
        "home": _home_of(folder, config),
        "watched": watched_files(config, since_composed=True),
        "process": Process(pid=os.getpid(), host=platform.node()),
    }
    origin |= {**provenance_of(config.origin), **host_facts()}
    return Record(
        status="running",
        stage=stage,
        scale=str(config.get("scale.name") or ""),
        metric=metric,
        scores=dict(scores),
        started=now(),
        folder=folder,
        **identity,
        **origin,
    )


def fingerprint_of(config: PlainMapping, inputs: Mapping[str, str], results_version: int) -> str:
    """Return the hash of what tells runs apart: configuration, inputs, and the code's results."""
    return digest(
        {
            "config": identity_of(config),
            "inputs": dict(inputs),
            "results_version": results_version,
        }
    )


def _home_of(folder: Path, config: Composed) -> str:
    """Return a folder's path below runs_dir, or its name where it is not there."""
    path = folder.resolve()
    runs_dir = Path(str(config.get("runs_dir") or "")).resolve()
    if path.is_relative_to(runs_dir):
        return path.relative_to(runs_dir).as_posix()
    return path.name
