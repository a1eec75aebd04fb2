"""What may be deleted of runs and of the cache.

Nothing is deleted that a process holds, or that changed a moment ago.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from filelock import FileLock, Timeout

from clozelab.files.origin import RUN_FILE
from clozelab.runs.record import LOCK_FILE, TEMPORARY, Record
from clozelab.text.plain import read_json

KINDS = {
    "checkpoints": "checkpoints of complete runs (their encoders stay)",
    "leftovers": "temporary files and folders of killed processes",
    "cache": "prepared corpora and tokenised tasks that none of these runs refers to",
}
QUIET_SECONDS = 3600.0  # what changed later than this ago may be in somebody's hands
CACHE_PARTS = ("corpora", "tasks", "features", "baselines", "embeddings")
PREPARATION_ENDINGS = (".tmp", ".work")  # of the hidden folders of a corpus


@dataclass
class Garbage:
    """One thing that may go.

    `lock` is the run folder, or the corpus's lock file, to hold meanwhile.
    """

    kind: str
    path: Path
    reason: str
    lock: Path | None = None

    @cached_property
    def num_bytes(self) -> int:
        return size(self.path)


def find_garbage(records: Sequence[Record], runs_dir: Path, cache_dir: Path) -> list[Garbage]:
    """Return everything that may go, by kind and place; `records` of every run in `runs_dir`."""
    # what a process of this machine, or perhaps of another one, works in
    busy_folders = set()
    for run in records:
        if run.holder is not None or run.status == "running":
            busy_folders.add(run.folder)

    items = list(_cut_off_preparations(cache_dir))
    if not unreadable_runs(records):
        items += _unused_cache(records, cache_dir)
    for run in records:
        if run.folder not in busy_folders and _is_quiet(run.folder):
            items += _checkpoints(run)
    items += _leftovers(runs_dir, busy_folders)

    kinds = list(KINDS)
    return sorted(items, key=lambda item: (kinds.index(item.kind), str(item.path)))


def unreadable_runs(records: Sequence[Record]) -> list[Record]:
    """Return the runs whose records do not say what of the cache they need.

    They are damaged, or of newer code.
    """
    # Only a record that was read has a fingerprint.
    return [run for run in records if not run.fingerprint and (run.folder / RUN_FILE).is_file()]


def _checkpoints(run: Record) -> Iterator[Garbage]:
    """Yield the checkpoints of a complete run; of a pre-training, where its weights are there."""
    checkpoints = run.folder / "checkpoints"
    is_whole = run.stage != "pretrain" or (run.folder / "encoder/model.safetensors").is_file()
    if run.is_complete and checkpoints.is_dir() and is_whole:
        yield Garbage("checkpoints", checkpoints, "the run is complete", run.folder)


def _leftovers(runs_dir: Path, busy_folders: set[Path]) -> Iterator[Garbage]:
    """Yield what killed processes were writing in run folders."""
    for pattern in TEMPORARY:
        for path in runs_dir.rglob(pattern):
            if not busy_folders.isdisjoint(path.parents) or not _is_quiet(path):
                continue
            folders = (folder for folder in path.parents if (folder / RUN_FILE).is_file())
            run_folder = next(folders, None)
            yield Garbage("leftovers", path, "a killed process left it", run_folder)


def _unused_cache(records: Sequence[Record], cache_dir: Path) -> Iterator[Garbage]:
    """Yield entries of the cache that no run refers to."""
    corpus_fingerprints = {run.inputs.get("corpus") for run in records}
    named_entries = set[str]()
    for run in records:
        named_entries.update(run.facts.get("cache", ()))
    # tasks of unfinished runs, which may have used any entry of theirs
    tasks_in_use = {run.task for run in records if "cache" not in run.facts}
    tasks_in_use.discard("")

    for path in _cache_entries(cache_dir, "[!.]*"):
        name = path.name
        room = path.parent.name
        if room == "corpora" and _corpus_fingerprint(path) not in corpus_fingerprints:
            lock = path.with_name(f".{name}.lock")
            yield Garbage("cache", path, "no run was trained on it", lock)
        elif room != "corpora":
            # TASK-KEY, such as mnli-0a1b2c3d
            task = name.rpartition("-")[0]
            if f"{room}/{name}" not in named_entries and task not in tasks_in_use:
                yield Garbage("cache", path, "no run refers to it")


def _cut_off_preparations(cache_dir: Path) -> Iterator[Garbage]:
    """Yield the hidden folders of preparations, unless these still fill them."""
    for path in _cache_entries(cache_dir, ".*"):
        # .wiki-0a1b.tmp and .wiki-0a1b.work are filled by whoever holds the lock .wiki-0a1b.lock;
        # .mrpc-0a1b-x1y2, which has no such ending, by whoever holds that of its room: .tasks.lock
        lock = path.parent.with_name(f".{path.parent.name}.lock")
        if path.suffix in PREPARATION_ENDINGS:
            lock = path.with_suffix(".lock")
        reason = "a killed process left it"
        if path.suffix == ".work":
            reason = "a stopped preparation would go on from it"
        if not is_held(lock):
            yield Garbage("leftovers", path, reason, lock)


def _cache_entries(cache_dir: Path, pattern: str) -> Iterator[Path]:
    """Yield the quiet folders of the cache with such names, in order."""
    paths = list[Path]()
    for part in CACHE_PARTS:
        paths += cache_dir.glob(f"{part}/{pattern}")
    for path in sorted(paths):
        if path.is_dir() and _is_quiet(path):
            yield path


def _corpus_fingerprint(folder: Path) -> object:
    """Return the fingerprint of a prepared corpus; None where its manifest cannot be read."""
    try:
        return read_json(folder / "manifest.json")["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_quiet(path: Path) -> bool:
    try:
        return time.time() - last_change(path) > QUIET_SECONDS
    except OSError:  # gone while we looked: somebody is at work
        return False


def last_change(path: Path) -> float:
    """Return the time of the newest change at or below a path.

    Reading does not count, nor does a lock file.
    """
    files = []
    for child in path.rglob("*"):
        if child.name != LOCK_FILE and child.is_file():
            files.append(child)
    return max(file.stat().st_mtime for file in [path, *files])


def size(path: Path) -> int:
    """Return the bytes at and below a path, without following links."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    total = 0
    for folder, subfolders, files in os.walk(path):
        for name in (*subfolders, *files):
            status = os.lstat(f"{folder}/{name}")
            if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                total += status.st_size
    return total


def delete(item: Garbage) -> str:
    """Delete one thing; return "" or why it stays."""
    try:
        with held(item.lock) as is_free:
            if not is_free:
                return "in use by another process"
            _remove(item.path)
    except OSError as error:
        return str(error)
    return ""


def _remove(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    # Out of sight first: half a folder must never pass for a whole one.
    shutil.rmtree(path.rename(path.with_name(f".{path.name}.deleted.tmp")))


def is_held(lock: Path) -> bool:
    """Whether somebody holds a lock, or it is not ours to take."""
    try:
        with held(lock) as is_free:
            return not is_free
    except OSError:
        return True


@contextmanager
def held(lock: Path | None) -> Iterator[bool]:
    """Hold a lock file, or a run folder's, while inside.

    It yields False, and holds nothing, where somebody else has it; True where there is no lock.
    """
    if lock is None or not lock.exists():
        yield True
        return
    file = FileLock(lock / LOCK_FILE if lock.is_dir() else lock, timeout=0)
    try:
        file.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        file.release()
