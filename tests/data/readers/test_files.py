"""A missing benchmark file: what, where, and how to get it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clozelab.data.microworld.world import MANIFEST
from clozelab.data.readers.files import file_sha256, generator_of, require_file


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


def test_generated_files_are_known_by_their_content(tmp_path: Path) -> None:
    real, made = tmp_path / "real.tsv", tmp_path / "made.tsv"
    real.write_text("real")
    made.write_text("made")
    assert generator_of(tmp_path, [real, made]) is None
    (tmp_path / MANIFEST).write_text(json.dumps({"sha256": {"made.tsv": file_sha256(made)}}))
    assert generator_of(tmp_path, [real]) is None
    assert generator_of(tmp_path, [real, made]) == "microworld"
    made.write_text("real data in its place")
    assert generator_of(tmp_path, [made]) is None
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(ValueError, match=r"microworld\.json is damaged"):
        generator_of(tmp_path, [made])
