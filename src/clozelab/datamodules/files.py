"""What every benchmark reader does with files: find them or say how to get them, name their content, read their lines.

A rare damaged row is skipped and counted by the reader; a file with more than `MAX_BAD_FRACTION` of them is refused.

Arrays kept between runs in a content-addressed folder: whole or absent, and checked when read.

A folder holds one `.npy` file an array and `meta.json` with their checksums and the facts that came with them. It is
written beside its place and renamed, so a killed run leaves nothing half-written under the real name. A folder that
does not match its checksums is built anew with a warning: the cache never decides a result.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import zstandard
from numpy.typing import NDArray

from clozelab.corpus.files import file_sha256
from clozelab.corpus.generated import BASELINES_FILE, generator_of

MAX_BAD_FRACTION = 0.01


def require_file(data_dir: str | Path, relative: str, how_to_get: str) -> Path:
    """`data_dir/relative`, or a ValueError that names the file, the expected layout and where it comes from."""
    path = Path(data_dir) / relative
    if path.is_file():
        return path
    raise ValueError(
        f"benchmark file not found: {path}\n"
        f"  expected layout: data_dir/{relative} (data_dir is {Path(data_dir).absolute()}; set data_dir=FOLDER)\n"
        f"  how to get it: {' '.join(how_to_get.split())}"
    )


def text_lines(path: Path) -> Iterator[tuple[int, str | None]]:
    """(line number from 1, text without line end); None for a line that is not UTF-8. Drops empty lines at the end.

    A byte order mark and CRLF line ends are taken off; a file named `.zst` is decompressed on the way.
    """
    empty = 0
    with path.open("rb") as raw_file:
        for number, raw in enumerate(_decompressed(path, raw_file), start=1):
            raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            raw = raw.rstrip(b"\r\n")
            if not raw:
                empty += 1
                continue
            for skipped in range(number - empty, number):
                yield skipped, ""
            empty = 0
            try:
                yield number, raw.decode("utf-8")
            except UnicodeDecodeError:
                yield number, None


def refuse_wrong_file(path: Path, bad: Sequence[str], num_rows: int, expected: str) -> None:
    """ValueError for a file without rows, or with too many damaged ones; `bad` says where and what, one text a row."""
    if num_rows == 0:
        raise ValueError(f"{path} has no examples")
    if len(bad) > MAX_BAD_FRACTION * num_rows:
        raise ValueError(
            f"{bad[0]}\n  {len(bad)} of {num_rows} rows do not fit {expected}: another format, or a damaged file"
        )


def _decompressed(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """The file's lines in bytes."""
    if path.suffix != ".zst":
        yield from file
        return
    try:
        with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as reader:
            rest = b""
            while chunk := reader.read(2**20):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (line + b"\n" for line in lines)
            if rest:
                yield rest
    except zstandard.ZstdError as problem:
        raise ValueError(f"{path} is not a readable zstd file: {problem}") from problem


def baselines_of(data_dir: str | Path, path: Path) -> dict[str, dict[str, float]]:
    """Baseline -> score's name -> value, as `baselines.json` beside a validation file says; empty where none is there.

    A generator's list says nothing of a real file that has taken the generated one's place.
    ValueError where that file is there and is something else.
    """
    listed = path.with_name(BASELINES_FILE)
    if not listed.is_file() or generator_of(data_dir, [listed]) != generator_of(data_dir, [path]):
        return {}
    try:
        found = json.loads(listed.read_text(encoding="utf-8")).get(path.name, {})
        return {
            str(name): {str(metric): float(value) for metric, value in scores.items()} for name, scores in found.items()
        }
    except (ValueError, TypeError, AttributeError) as problem:
        raise ValueError(
            f"{listed} is no list of baselines ({problem}): it holds "
            f'{{"{path.name}": {{"name of a baseline": {{"accuracy": 0.5}}}}}}; mend it or delete it'
        ) from problem


log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[Any]]
Facts = dict[str, Any]
_used: set[str] = set()


def content_key(parts: Mapping[str, Any]) -> str:
    """16 hex digits that name everything which decides the content."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def used_folders() -> list[str]:
    """Names of the cache folders that this process has asked for: what a run's record may say it refers to."""
    return sorted(_used)


def cached_arrays(folder: Path, build: Callable[[], tuple[Arrays, Facts]]) -> tuple[Arrays, Facts]:
    """The arrays and facts stored in `folder`, built and stored first where they are missing or damaged."""
    built: Arrays = {}

    def write(target: Path) -> Facts:
        arrays, facts = build()
        built.update(arrays)
        for name, array in arrays.items():
            np.save(target / f"{name}.npy", array, allow_pickle=False)
        return facts

    facts = cached_folder(folder, write)
    return built or {path.stem: np.load(path, allow_pickle=False) for path in folder.glob("*.npy")}, facts


def cached_folder(folder: Path, write: Callable[[Path], Facts]) -> Facts:
    """The facts of `folder`, which then holds whole and checked `.npy` files.

    Where it is missing or damaged, `write` first fills an empty folder with them: for arrays that do not fit in memory.
    """
    _used.add(f"{folder.parent.name}/{folder.name}")
    if folder.is_dir():
        try:
            return _checked_facts(folder)
        except (OSError, ValueError, KeyError) as problem:
            log.warning("cached task data in %s is damaged (%s); building it anew", folder, problem)
            shutil.rmtree(folder, ignore_errors=True)
    return _write(folder, write)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Hold back other processes that want the same: who waits finds the work of the first one done."""
    folder.mkdir(parents=True, exist_ok=True)
    # A file beside it, open for writing: network file systems lock nothing else.
    with (folder.parent / f".{folder.name}.lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _checked_facts(folder: Path) -> Facts:
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    for name, checksum in meta["checksums"].items():
        if file_sha256(folder / f"{name}.npy") != checksum:
            raise ValueError(f"checksum of {name}.npy")
    return meta["facts"]


def _write(folder: Path, write: Callable[[Path], Facts]) -> Facts:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        facts = write(temporary)
        checksums = {path.stem: file_sha256(path) for path in sorted(temporary.glob("*.npy"))}
        meta = json.dumps({"checksums": checksums, "facts": facts}, indent=1, sort_keys=True)
        (temporary / "meta.json").write_text(meta, encoding="utf-8")
        temporary.chmod(0o755)  # mkdtemp makes it private, a cache may be shared
        temporary.rename(folder)
        return facts
    except OSError:
        if not folder.is_dir():  # else another process was faster with the same content
            raise
        return _checked_facts(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
