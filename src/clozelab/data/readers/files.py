"""What every benchmark reader does with files: find them or say how to get them, name their content, read their lines,
and know generated files, which have the official names and formats, from real ones.

A rare damaged row is skipped and counted by the reader; a file with more than `MAX_BAD_FRACTION` of them is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import zstandard

from clozelab.data.checksums import file_sha256
from clozelab.data.microworld.formats import BASELINES_FILE
from clozelab.data.microworld.world import MANIFEST

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


def generator_of(data_dir: str | Path, paths: Iterable[Path]) -> str | None:
    """The generator that wrote any of these files, by the manifest it left in `data_dir`; None for real ones.

    Goes by content, so real files that have taken a generated file's place are real.
    """
    manifest = Path(data_dir) / MANIFEST
    if not manifest.is_file():
        return None
    try:
        checksums = set(json.loads(manifest.read_text(encoding="utf-8"))["sha256"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(
            f"{manifest} is damaged ({problem}); delete it and what it describes, or restore it"
        ) from problem
    return manifest.stem if any(file_sha256(path) in checksums for path in paths) else None


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
