"""A missing benchmark file: what, where, and how to get it."""

from __future__ import annotations

from pathlib import Path

import pytest

from clozelab.data.readers.files import file_sha256, require_file


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
