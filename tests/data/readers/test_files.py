"""Benchmark files: a missing one, what is read of one line by line, and when one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard

from clozelab.corpus.files import file_sha256
from clozelab.corpus.generated import MANIFEST
from clozelab.datamodules.files import baselines_of, refuse_wrong_file, require_file, text_lines


def test_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:
        require_file(tmp_path, "glue/RTE/train.tsv", "RTE.zip of the\n benchmark's page")
    message = str(error.value)
    assert str(tmp_path / "glue/RTE/train.tsv") in message
    assert "expected layout: data_dir/glue/RTE/train.tsv" in message
    assert "how to get it: RTE.zip of the benchmark's page" in message


def test_found_file_and_its_checksum(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"")
    path = require_file(tmp_path, "a.tsv", "")
    assert file_sha256(path) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


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


def test_damaged_zstd_file(tmp_path: Path) -> None:
    (tmp_path / "x.zst").write_bytes(b"no zstd at all")
    with pytest.raises(ValueError, match=r"x\.zst is damaged or incomplete"):
        list(text_lines(tmp_path / "x.zst"))


def test_wrong_files_are_refused_and_rare_damage_is_not() -> None:
    path = Path("x.tsv")
    refuse_wrong_file(path, ["x.tsv:3: short"], 100, "two columns")
    with pytest.raises(ValueError, match=r"x.tsv:3: short\n  2 of 199 rows do not fit two columns"):
        refuse_wrong_file(path, ["x.tsv:3: short"] * 2, 199, "two columns")
    with pytest.raises(ValueError, match=r"x\.tsv has no examples"):
        refuse_wrong_file(path, [], 0, "two columns")


def test_baselines_lie_beside_the_file_they_are_about(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    path.write_text("rows")
    assert baselines_of(tmp_path, path) == {}
    (tmp_path / "baselines.json").write_text('{"dev.tsv": {"a bag": {"accuracy": 0.5}}, "other.tsv": {}}')
    assert baselines_of(tmp_path, path) == {"a bag": {"accuracy": 0.5}}
    (tmp_path / "unknown.tsv").write_text("rows")
    assert baselines_of(tmp_path, tmp_path / "unknown.tsv") == {}


def test_generated_baselines_say_nothing_of_a_real_file(tmp_path: Path) -> None:
    path, listed = tmp_path / "dev.tsv", tmp_path / "baselines.json"
    path.write_text("generated")
    listed.write_text('{"dev.tsv": {"a bag": {"accuracy": 0.5}}}')
    sums = {file.name: file_sha256(file) for file in (path, listed)}
    (tmp_path / MANIFEST).write_text(json.dumps({"generator": "world", "sha256": sums, "known_loss": []}))
    assert baselines_of(tmp_path, path)
    path.write_text("real")
    assert baselines_of(tmp_path, path) == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"dev.tsv": {"a bag": 0.5}}', '{"dev.tsv": {"a bag": {"f1": "high"}}}'])
def test_damaged_baselines_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "dev.tsv").write_text("rows")
    (tmp_path / "baselines.json").write_text(text)
    with pytest.raises(ValueError, match="no list of baselines"):
        baselines_of(tmp_path, tmp_path / "dev.tsv")
