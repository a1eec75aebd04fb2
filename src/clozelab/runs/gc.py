"""What may be deleted without losing a result, and deleting it.

Nothing is touched that a process holds the lock of, or that changed a moment ago. A cache entry counts as unused when
none of the given runs refers to it; whatever is deleted of the cache is made again when it is needed.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from clozelab.runs.record import LOCK_FILE, RUN_FILE, Record

KINDS = {
    "checkpoints": "checkpoints of complete runs (their encoders stay)",
    "unfinished": "failed, interrupted and killed runs, whole",
    "leftovers": "temporary files and folders of killed processes",
    "cache": "prepared corpora and tokenised tasks that none of these runs refers to",
}
UNFINISHED = ("failed", "interrupted", "killed")
QUIET_SECONDS = 3600.0  # what changed later than this ago may be in somebody's hands
TEMPORARY = (".*.tmp", ".encoder.*", ".model.*")
CACHE_PARTS = ("corpora", "tasks", "features", "baselines")


@dataclass
class Garbage:
    """One thing that may go.

    `lock` is the run folder (or the corpus's lock file) to hold meanwhile; None for what nobody claims.
    """

    kind: str
    path: Path
    reason: str
    lock: Path | None = None
    num_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_bytes = size(self.path)


def find_garbage(records: Sequence[Record], runs_dir: Path, cache_dir: Path, older_than_days: float) -> list[Garbage]:
    """Everything that may go, by kind and place.

    Args:
        records: every run below `runs_dir`.
        older_than_days: unfinished runs that ended longer ago.
    """
    busy = {one.folder for one in records if one.holder is not None or one.status == "running"}
    found = list(_unused_cache(records, cache_dir))
    for one in (one for one in records if one.folder not in busy and _is_quiet(one.folder)):
        checkpoints = one.folder / "checkpoints"
        if one.is_complete and checkpoints.is_dir() and (one.folder / "encoder" / "config.json").is_file():
            found.append(Garbage("checkpoints", checkpoints, "the run is complete", one.folder))
        age = (time.time() - last_change(one.folder)) / 86_400
        if one.status in UNFINISHED and age >= older_than_days:
            found.append(Garbage("unfinished", one.folder, f"{one.status} {age:.0f} days ago", one.folder))
    for path in (path for pattern in TEMPORARY for path in runs_dir.rglob(pattern)):
        if not busy & set(path.parents) and _is_quiet(path):
            run = next((folder for folder in path.parents if (folder / RUN_FILE).is_file()), None)
            found.append(Garbage("leftovers", path, "a killed process left it", run))
    whole = {one.path for one in found if one.kind == "unfinished"}
    found = [one for one in found if one.kind == "unfinished" or not whole & set(one.path.parents)]
    return sorted(found, key=lambda one: ([*KINDS].index(one.kind), str(one.path)))


def _unused_cache(records: Sequence[Record], cache_dir: Path) -> Iterator[Garbage]:
    corpora = {one.inputs.get("corpus") for one in records}
    named = {name for one in records for name in one.facts.get("cache", ())}
    # Tasks of unfinished runs, which may have used any entry of theirs.
    silent = {one.task for one in records if one.task and "cache" not in one.facts}
    for path in sorted(path for part in CACHE_PARTS for path in cache_dir.glob(f"{part}/*")):  # hidden ones, too
        part, name = path.parent.name, path.name
        if not path.is_dir() or not _is_quiet(path):
            continue
        if name.startswith("."):
            with held(path.with_name(name.removesuffix(".tmp") + ".lock")) as is_free:  # of a preparation that fills it
                if is_free:
                    yield Garbage("leftovers", path, "a killed process left it")
        elif part == "corpora":
            try:
                fingerprint = json.loads((path / "manifest.json").read_text(encoding="utf-8"))["fingerprint"]
            except (OSError, ValueError, KeyError, TypeError):
                fingerprint = None
            if fingerprint not in corpora:
                yield Garbage("cache", path, "no run was trained on it", path.with_name(f".{name}.lock"))
        elif f"{part}/{name}" not in named and name.rpartition("-")[0] not in silent:
            yield Garbage("cache", path, "no run refers to it")


def _is_quiet(path: Path) -> bool:
    try:
        return time.time() - last_change(path) > QUIET_SECONDS
    except OSError:  # gone while we looked: somebody is at work
        return False


def last_change(path: Path) -> float:
    """Time of the newest change at or below a path; reading does not count, nor does a lock file."""
    times = [path.stat().st_mtime]
    if path.is_dir():
        times += [child.stat().st_mtime for child in path.rglob("*") if child.name != ".lock" and child.is_file()]
    return max(times)


def size(path: Path) -> int:
    """Bytes at and below a path, without following links."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(child.lstat().st_size for child in path.rglob("*") if child.is_symlink() or child.is_file())


def delete(item: Garbage) -> str:
    """Delete one thing; returns "" or why it stays."""
    if item.kind == "unfinished" and item.path.exists() and not _is_quiet(item.path):
        return "it has changed since it was listed"
    with held(item.lock) as is_free:
        if not is_free:
            return "in use by another process"
        try:
            if item.path.is_symlink() or not item.path.is_dir():
                item.path.unlink()
            else:
                # Out of sight first: half a folder must never pass for a whole one, nor a new run's files go with it.
                (item.path / RUN_FILE).unlink(missing_ok=True)
                doomed = item.path.rename(item.path.with_name(f".{item.path.name}.deleted.tmp"))
                shutil.rmtree(doomed)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return str(error)
    return ""


@contextmanager
def held(lock: Path | None) -> Iterator[bool]:
    """Hold a lock file, or a run folder's, while inside; False, and nothing held, where somebody else has it."""
    with ExitStack() as stack:
        is_free = True
        if lock is not None and lock.exists():
            try:
                stack.enter_context(FileLock(lock / LOCK_FILE if lock.is_dir() else lock, timeout=0))
            except Timeout:
                is_free = False
        yield is_free


def describe_size(num_bytes: float) -> str:
    """Bytes in the unit that suits them."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000.0:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000.0
    return f"{num_bytes:.1f} TB"
