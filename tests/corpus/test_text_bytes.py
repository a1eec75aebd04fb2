"""How much text a source has: the same for one text, in whatever files it lies."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import random
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow
import pytest
import zstandard
from pyarrow import feather, ipc, parquet

from clozelab.corpus import sizes
from clozelab.corpus.files import CorpusSource, Shard
from clozelab.corpus.sizes import text_bytes

MARKUP = "<p class='x'>" * 300  # that stands beside each text


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Some 2 MB of documents of a few lines each."""
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnoprstuwü", k=6)) for _ in range(3000)]
    documents = []
    for _ in range(1500):
        lines = [" ".join(draw.choices(words, k=20)) for _ in range(draw.randint(2, 16))]
        documents.append("\n".join(lines))
    return documents


def plain(texts: Sequence[str]) -> bytes:
    return "".join(f"{text}\n\n" for text in texts).encode()


def objects(texts: Sequence[str]) -> bytes:
    lines = [json.dumps({"html": MARKUP + text, "text": text}) for text in texts]
    return "".join(f"{line}\n" for line in lines).encode()


def array(texts: Sequence[str]) -> bytes:
    return json.dumps([{"html": MARKUP + text, "text": text} for text in texts]).encode()


def write_csv(path: Path, texts: Sequence[str]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "html"])
        writer.writerows([number, text, MARKUP] for number, text in enumerate(texts))


def table(texts: Sequence[str]) -> pyarrow.Table:
    return pyarrow.table({"html": [MARKUP + text for text in texts], "text": texts})


def write_parquet(path: Path, texts: Sequence[str]) -> None:
    parquet.write_table(table(texts), path, compression="zstd", row_group_size=200)


def write_feather(path: Path, texts: Sequence[str]) -> None:
    feather.write_feather(table(texts), path, compression="lz4", chunksize=100)


def write_uneven_feather(path: Path, texts: Sequence[str]) -> None:
    feather.write_feather(table(texts), path, chunksize=len(texts) - 10)


def write_stream(path: Path, texts: Sequence[str], compression: str | None = None) -> None:
    rows = table(texts)
    options = ipc.IpcWriteOptions(compression=compression)
    with ipc.new_stream(str(path), rows.schema, options=options) as stream:
        stream.write_table(rows, max_chunksize=100)


Write = Callable[[Path, Sequence[str]], object]
LAYOUTS: dict[str, Write] = {
    "a.txt": lambda path, texts: path.write_bytes(plain(texts)),
    "a.txt.zst": lambda path, texts: path.write_bytes(zstandard.compress(plain(texts))),
    "a.txt.bz2": lambda path, texts: path.write_bytes(bz2.compress(plain(texts))),
    "a.jsonl": lambda path, texts: path.write_bytes(objects(texts)),
    "a.jsonl.gz": lambda path, texts: path.write_bytes(gzip.compress(objects(texts))),
    "a.json": lambda path, texts: path.write_bytes(array(texts)),
    "a.json.gz": lambda path, texts: path.write_bytes(gzip.compress(array(texts))),
    "a.csv": write_csv,
    "a.parquet": write_parquet,
    "a.feather": write_feather,
    "uneven.feather": write_uneven_feather,
    "a.arrow": write_stream,
    "packed.arrow": partial(write_stream, compression="zstd"),
}


def source_of(path: Path, **settings: str) -> CorpusSource:
    return CorpusSource("mine", str(path), **settings)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_text_is_as_long_in_whatever_it_is_packed(
    name: str, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read to its end it is the same number, and in part nearly the same."""
    expected = len(plain(texts))
    LAYOUTS[name](tmp_path / name, texts)
    assert text_bytes(source_of(tmp_path / name), "") == pytest.approx(expected, abs=2)
    monkeypatch.setattr(sizes, "SAMPLED_BYTES", expected // 4)
    in_part = text_bytes(source_of(tmp_path / name), "")
    assert in_part == pytest.approx(expected, rel=0.08)
    assert text_bytes(source_of(tmp_path / name), "") == in_part


def test_the_number_is_the_same_with_every_python(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gzip module reads 8 KB at a time in Python 3.11, and 128 KB from 3.12 on."""
    monkeypatch.setattr(sizes, "SAMPLED_BYTES", len(plain(texts)) // 4)
    numbers = set()
    for buffer_bytes in (2**13, 2**17):
        monkeypatch.setattr(io, "DEFAULT_BUFFER_SIZE", buffer_bytes)
        path = tmp_path / f"{buffer_bytes}.txt.gz"
        path.write_bytes(gzip.compress(plain(texts), mtime=0))
        numbers.add(text_bytes(source_of(path), ""))
    assert len(numbers) == 1


def test_files_of_several_kinds_are_counted_each_by_its_own_sample(
    texts: list[str], tmp_path: Path
) -> None:
    """One folder of many files, of which few are read."""
    step = 50
    for start in range(0, len(texts), step):
        part = texts[start : start + step]
        if start % 100:
            (tmp_path / f"{start:04d}.txt").write_bytes(plain(part))
        else:
            (tmp_path / f"{start:04d}.jsonl").write_bytes(objects(part))
    expected = len(plain(texts))
    assert text_bytes(source_of(tmp_path), "") == pytest.approx(expected, rel=0.1)
    assert text_bytes(source_of(Path("*.*")), str(tmp_path)) == text_bytes(source_of(tmp_path), "")


def test_a_list_of_objects_is_not_held_in_memory(tmp_path: Path) -> None:
    """Its beginning is enough, and of a long first object as much as is needed."""
    long_text = "word " * 2**20
    (tmp_path / "a.json").write_bytes(array([long_text] * 12))
    num_bytes = 12 * len(plain([long_text]))
    tracemalloc.start()
    assert text_bytes(source_of(tmp_path / "a.json"), "") == pytest.approx(num_bytes, rel=0.01)
    _, most_memory = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_memory < num_bytes
    shard = source_of(tmp_path / "a.json").shard(0, "a.json", tmp_path / "a.json")
    assert sizes._extrapolated(shard, 1000) == pytest.approx(num_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("part.{:03d}.gz", {}), ("part.{:03d}", {"format": "jsonl"})],
)
def test_files_with_numbers_at_their_ends_are_of_one_kind(
    name: str,
    settings: dict[str, str],
    texts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = []
    of_one = sizes._extrapolated

    def noted(shard: Shard, most_bytes: int) -> float:
        opened.append(shard.name)
        return of_one(shard, most_bytes)

    monkeypatch.setattr(sizes, "_extrapolated", noted)
    for number in range(30):
        part = texts[number * 50 : (number + 1) * 50]
        content = objects(part)
        if name.endswith(".gz"):
            content = gzip.compress(plain(part))
        (tmp_path / name.format(number)).write_bytes(content)
    num_bytes = text_bytes(source_of(tmp_path / "*", **settings), "")
    assert num_bytes == pytest.approx(len(plain(texts)), rel=0.1)
    assert len(opened) == sizes.SAMPLED_FILES


def test_the_column_that_is_read_counts(tmp_path: Path) -> None:
    LAYOUTS["a.jsonl"](tmp_path / "a.jsonl", ["one", "two"])
    assert text_bytes(source_of(tmp_path / "a.jsonl"), "") == 2 * len("one\n\n")
    of_markup = text_bytes(source_of(tmp_path / "a.jsonl", text_field="html"), "")
    assert of_markup == 2 * len(MARKUP + "one\n\n")


def test_a_plain_text_is_not_opened_and_what_cannot_be_read_has_none(tmp_path: Path) -> None:
    with (tmp_path / "a.txt").open("wb") as file:
        file.truncate(10**10)
    assert text_bytes(source_of(tmp_path / "a.txt"), "") == 10**10
    (tmp_path / "a.parquet").write_bytes(b"no table")
    (tmp_path / "b.txt.gz").write_bytes(b"not packed")
    for name in ("a.parquet", "b.txt.gz", "absent.csv"):
        assert text_bytes(source_of(tmp_path / name), "") == 0


def test_a_text_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    for number in (1, 3):
        LAYOUTS["a.jsonl"](tmp_path / "a.jsonl", ["one"] * number)
        assert text_bytes(source_of(tmp_path / "a.jsonl"), "") == number * len("one\n\n")
