"""Files, tables and generated data; and arrays in the cache: whole, checked, found again."""

from __future__ import annotations

import gzip
import json
import logging
import threading
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from tests.screens import refuses, shows

from clozelab.corpus.generated import MANIFEST
from clozelab.datamodules.files import baselines_of, require_file
from clozelab.files.digests import file_sha256
from clozelab.files.locks import exclusive_lock
from clozelab.readers.bad_rows import refuse_wrong_file
from clozelab.readers.lines import text_lines
from clozelab.tasks.cache import cached_arrays, cached_folder
from clozelab.tasks.tables import TableFormat


@pytest.mark.parametrize("packed", ["no", "one frame", "two frames"])
def test_lines_of_any_file(tmp_path: Path, packed: str) -> None:
    content = b"\xef\xbb\xbfa\r\n\n\xff\nb \n" + b"c" * 3_000_000 + b"\nend\n\n\n"
    path = tmp_path / ("x.txt" if packed == "no" else "x.txt.zst")
    frames = {"no": [], "one frame": [content], "two frames": [content[:5], content[5:]]}[packed]
    path.write_bytes(b"".join(map(zstandard.compress, frames)) or content)
    lines = list(text_lines(path))
    assert lines[:4] == [(1, "a"), (2, ""), (3, None), (4, "b ")]
    assert lines[5:] == [(6, "end")]
    assert len(lines[4][1] or "") == 3_000_000


def test_baselines_lie_beside_the_file_they_are_about(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_text("rows")
    assert baselines_of(tmp_path, path) == {}
    (tmp_path / "baselines.json").write_text(
        '{"dev.tsv": {"a bag": {"accuracy": 0.5}}, "other.tsv": {}}'
    )
    assert baselines_of(tmp_path, path) == {"a bag": {"accuracy": 0.5}}
    (tmp_path / "unknown.tsv").write_text("rows")
    assert baselines_of(tmp_path, tmp_path / "unknown.tsv") == {}


def test_generated_baselines_say_nothing_of_a_real_file(tmp_path: Path) -> None:
    path, listed = tmp_path / "dev.tsv", tmp_path / "baselines.json"
    path.write_text("generated")
    listed.write_text('{"dev.tsv": {"a bag": {"accuracy": 0.5}}}')
    sums = {file.name: file_sha256(file) for file in (path, listed)}
    (tmp_path / MANIFEST).write_text(
        json.dumps({"generator": "world", "sha256": sums, "known_loss": []})
    )
    assert baselines_of(tmp_path, path)
    path.write_text("real")
    assert baselines_of(tmp_path, path) == {}


SOURCE = Path("data/x.tsv")


class Builder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.calls += 1
        return {"numbers": np.arange(5), "names": np.array(["a", "bé"])}, {"count": 5}


def test_second_time_comes_from_the_folder(tmp_path: Path) -> None:
    build = Builder()
    first, second = (cached_arrays(tmp_path / "tasks/x-1", SOURCE, build) for _ in range(2))
    assert build.calls == 1
    assert second[1] == first[1] == {"count": 5}
    assert second[0]["names"].tolist() == ["a", "bé"]
    assert second[0]["numbers"].dtype == np.int64
    # nothing temporary stays
    assert [path.name for path in (tmp_path / "tasks").iterdir()] == ["x-1"]


def test_what_building_warned_of_is_said_of_the_file_that_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("clozelab.somewhere.that.reads")

    def build() -> Any:
        log.warning("%s: odd labels", tmp_path / "old.tsv")
        log.info("not a warning")
        return {"numbers": np.arange(5)}, {"count": 5}

    for name in ("old", "new", "new"):
        caplog.clear()
        _, facts = cached_arrays(tmp_path / "x-1", tmp_path / f"{name}.tsv", build)
        assert facts == {"count": 5}
        assert caplog.messages == [f"{tmp_path / name}.tsv: odd labels"]


def test_facts_keep_their_order(tmp_path: Path) -> None:
    """So a run that reads them writes the same file as the one that made them."""
    facts = {"scores": {"b": 1.0, "a": 2.0}}
    for _ in range(2):
        read = cached_folder(tmp_path / "facts", lambda _: facts)
        assert list(read["scores"]) == ["b", "a"]


@pytest.mark.parametrize("damage", ["flip", "truncate", "missing", "meta"])
def test_damaged_folder_is_built_anew(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    build, folder = Builder(), tmp_path / "x-1"
    cached_arrays(folder, SOURCE, build)
    path = folder / ("meta.json" if damage == "meta" else "numbers.npy")
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(content[:-3])
    else:
        content[-2] ^= 1
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        arrays, _ = cached_arrays(folder, SOURCE, build)
    assert build.calls == 2
    assert arrays["numbers"].tolist() == [0, 1, 2, 3, 4]
    shows(caplog.text, "is damaged; building it anew")


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def build() -> Any:
        raise ValueError("bad label")

    with pytest.raises(ValueError, match="bad label"):
        cached_arrays(tmp_path / "x-1", SOURCE, build)
    assert list(tmp_path.iterdir()) == []


def test_large_content_is_written_into_the_folder_itself(tmp_path: Path) -> None:
    calls: list[Path] = []

    def write(target: Path) -> dict[str, Any]:
        calls.append(target)
        np.save(target / "layer.npy", np.arange(7))
        return {"words": 7}

    folder = tmp_path / "features/x-1"
    assert [cached_folder(folder, write) for _ in range(2)] == [{"words": 7}] * 2
    assert len(calls) == 1
    assert calls[0].parent == folder.parent  # the same file system: renamed, not copied
    assert np.load(folder / "layer.npy", mmap_mode="r").tolist() == list(range(7))


def test_who_comes_later_waits(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with exclusive_lock(tmp_path):
            order.append("second")

    thread = threading.Thread(target=second)
    with exclusive_lock(tmp_path):
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_file_that_unpacks_without_end_is_refused(tmp_path: Path, suffix: str) -> None:
    path, line = tmp_path / f"x.txt.{suffix}", b"a word " * 1000 + b"\n"
    packer: Any = (
        zlib.compressobj(9, wbits=31)
        if suffix == "gz"
        else zstandard.ZstdCompressor().compressobj()
    )
    with path.open("wb") as file:
        for _ in range(30):
            file.write(packer.compress(line * 150))
        file.write(packer.flush())
    assert 200 * path.stat().st_size < 30 * 150 * len(line) < 40e6
    tracemalloc.start()
    with pytest.raises(
        ValueError,
        match=rf"{path.name} unpacks to over [\d,]+ bytes, as no text does: leave it out",
    ):
        for _ in text_lines(path):
            pass
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()


def test_a_small_file_may_repeat_itself(tmp_path: Path) -> None:
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(b"a line\n" * 1_000_000))
    assert sum(1 for _ in text_lines(path)) == 1_000_000


# What is refused


def test_a_missing_file_says_where_and_what_to_do(tmp_path: Path) -> None:
    with refuses("benchmark file not found") as refused:
        require_file(tmp_path, "glue/RTE/train.tsv", "RTE.zip of the\n benchmark's page")
    shows(
        refused.value,
        f"{tmp_path}/glue/RTE/train.tsv expected layout: data_dir/glue/RTE/train.tsv",
        "how to get it: RTE.zip of the benchmark's page",
    )
    with refuses(f"not found: {tmp_path}/mine.csv how to get it: your own file"):
        require_file("data", str(tmp_path / "mine.csv"), "your own file")


def test_a_damaged_zstd_file(tmp_path: Path) -> None:
    (tmp_path / "x.zst").write_bytes(b"no zstd at all")
    with pytest.raises(ValueError, match=r"x\.zst is damaged or incomplete"):
        list(text_lines(tmp_path / "x.zst"))


@pytest.mark.parametrize(
    ("damages", "num_rows", "sentence"),
    [
        (["x.tsv:3: short"] * 2, 199, r"x.tsv:3: short\n  2 of 199 rows do not fit two columns"),
        ([], 0, r"x\.tsv has no examples"),
    ],
)
def test_more_damage_than_is_rare(
    tmp_path: Path, damages: list[str], num_rows: int, sentence: str
) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("a whole row\n")
    with pytest.raises(ValueError, match=sentence):
        refuse_wrong_file(path, damages, num_rows, "two columns")


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"dev.tsv": {"a bag": 0.5}}', '{"dev.tsv": {"a bag": {"f1": "high"}}}']
)
def test_damaged_baselines(tmp_path: Path, text: str) -> None:
    (tmp_path / "dev.tsv").write_text("rows")
    (tmp_path / "baselines.json").write_text(text)
    with pytest.raises(ValueError, match="no list of baselines"):
        baselines_of(tmp_path, tmp_path / "dev.tsv")


def test_a_row_that_is_cut_at_the_end_of_the_file(tmp_path: Path) -> None:
    """One damaged row of many is forgiven; not where the file ends in the middle of it."""
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\n" + "the film\t1\n" * 500 + "the fi")
    cut = r"train\.tsv:502: 1 fields, expected 2: .* it was cut; fetch it again"
    with pytest.raises(ValueError, match=cut):
        TableFormat(["text"], "label").read(path)


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_file_in_latin_1_was_not_cut(tmp_path: Path, end: str) -> None:
    path = tmp_path / "train.csv"
    rows = [f"un caf\xe9,{number % 2}" for number in range(120)]
    path.write_bytes(("\n".join(["text,label", *rows]) + end).encode("latin-1"))
    with pytest.raises(ValueError, match=r"train.csv:2: not UTF-8 text\n.*\(iconv -f latin1"):
        TableFormat(["text"], "label").read(path)
