"""What share of a file's rows may be unusable: large files count alone, small ones together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clozelab.corpus.files import CorpusCounts, CorpusSource
from clozelab.corpus.preparation.forecast import forecast_source
from clozelab.corpus.preparation.texts import SMALL_FILE_ROWS, cut_shards


def write_rows(path: Path, num_good: int, num_bad: int) -> None:
    rows = [json.dumps({"text": f"Row {index} is good."}) for index in range(num_good)]
    path.write_text("\n".join([*rows, *["{"] * num_bad, ""]))


def read(folder: Path) -> CorpusCounts:
    counts = CorpusCounts()
    for _ in cut_shards(CorpusSource("mine", ".").shards(0, folder), counts):
        pass
    return counts


@pytest.mark.parametrize("num_good", [60, 2 * SMALL_FILE_ROWS])
def test_a_broken_file_does_not_hide_beside_a_large_one(tmp_path: Path, num_good: int) -> None:
    (tmp_path / "a.txt").write_text("A line of it.\n" * 20_000)
    num_bad = num_good // 10
    write_rows(tmp_path / "b.jsonl", num_good, num_bad)
    (tmp_path / "c.txt").write_text("Another line of it.\n" * 20_000)
    sentence = rf"^{num_bad} of {num_good + num_bad} rows (?s:.*)b.jsonl:{num_good + 1}: no JSON"
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path)


def test_small_files_of_a_source_count_together(tmp_path: Path) -> None:
    """Two bad rows of one are 4 %, and of them all 0.2 %."""
    for number in range(20):
        write_rows(tmp_path / f"{number}.jsonl", 50, 0)
    write_rows(tmp_path / "broken.jsonl", 48, 2)
    counts = read(tmp_path)
    assert (counts.rows, counts.bad) == (1050, {"no JSON object": 2})
    assert counts.first_bad == [
        "broken.jsonl:49: no JSON object",
        "broken.jsonl:50: no JSON object",
    ]
    write_rows(tmp_path / "broken.jsonl", 38, 12)
    with pytest.raises(ValueError, match=r"^12 of 1050 rows cannot be read"):
        read(tmp_path)


def test_a_plan_looks_at_each_large_file_that_it_reads_whole(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A line of it.\n" * 20_000)
    write_rows(tmp_path / "b.jsonl", SMALL_FILE_ROWS, 100)
    files = CorpusSource("mine", ".").shards(0, tmp_path)
    with pytest.raises(ValueError, match=r"^100 of 1100 rows cannot be read"):
        forecast_source(files, [], None, seconds=5.0)
