"""metrics.csv: long form, appended, cut for a resume, and read while somebody writes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clozelab.training.measuring import MetricRow, read_rows
from clozelab.training.tracking import MetricsCsv

ROWS = [
    MetricRow(step, 10 * step, step / 4, 'validation/f1/books, "old" \u2028', 1 / step)
    for step in range(1, 200)
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    logger = MetricsCsv(tmp_path)
    for row in ROWS:
        logger.log_metrics(
            {row.key: row.value, "train/tokens": row.tokens, "train/seconds": row.seconds}, row.step
        )
    return tmp_path / "metrics.csv"


def test_a_cut_at_any_byte_of_the_last_line_gives_no_half_number(path: Path) -> None:
    whole = path.read_bytes()
    last = len(whole) - len(whole.rstrip(b"\n").rpartition(b"\n")[2]) - 1
    for length in range(last, len(whole)):
        path.write_bytes(whole[:length])
        assert list(read_rows(path)) == ROWS[:-1]
        assert list(read_rows(path, 500)) == ROWS[:-1][-len(list(read_rows(path, 500))) :]


def test_rows_come_back_as_they_were_logged(path: Path) -> None:
    """Of the last bytes alone, the last rows."""
    assert list(read_rows(path)) == ROWS
    rows = list(read_rows(path, 500))
    assert 5 < len(rows) < 20
    assert rows == ROWS[-len(rows) :]
    assert list(read_rows(path, path.stat().st_size)) == ROWS
    path.unlink()
    assert list(read_rows(path)) == []


def test_reading_starts_without_lightning() -> None:
    code = "import sys, clozelab.training.measuring; print({'lightning', 'torch'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


def test_rows_columns_and_truncation(tmp_path: Path) -> None:
    logger = MetricsCsv(tmp_path)
    logger.log_metrics({"train/loss": 1.5, "train/tokens": 10.0, "train/seconds": 0.25}, 1)
    logger.log_metrics({"validation/loss": 2.0, "epoch": 0}, 1)
    logger.log_metrics({"train/loss": 0.1, "train/tokens": 20, "train/seconds": 0.5}, 2)
    path = tmp_path / "metrics.csv"
    expected = [
        "step,tokens,seconds,key,value",
        "1,10,0.250,train/loss,1.5",
        "1,10,0.250,validation/loss,2.0",
        "2,20,0.500,train/loss,0.1",
    ]
    assert path.read_text().splitlines() == expected
    with path.open("a") as stream:
        stream.write("3,30,0.7")  # a killed process
    logger.truncate_after(1)
    assert path.read_text().splitlines() == expected[:3]
    MetricsCsv(tmp_path).log_metrics(
        {"train/loss": 0.1, "train/tokens": 20, "train/seconds": 0.5}, 2
    )
    assert path.read_text().splitlines() == expected
    logger.truncate_after(0)
    assert path.read_text().splitlines() == expected[:1]


def test_a_comma_in_a_key_survives_a_resume(path: Path) -> None:
    assert ", " in ROWS[0].key
    MetricsCsv(path.parent).truncate_after(150)
    assert list(read_rows(path)) == ROWS[:150]


def test_rows_without_a_clock_of_their_own_go_on_with_that_of_the_last_kept(tmp_path: Path) -> None:
    logger = MetricsCsv(tmp_path)
    logger.log_metrics({"train/loss": 1.5, "train/tokens": 10, "train/seconds": 0.25}, 1)
    with logger.path.open("ab") as stream:
        stream.write("2,20,0.5,train/loss/Ž".encode()[:-1])  # a disk that was full within a letter
    resumed = MetricsCsv(tmp_path)
    resumed.truncate_after(1)
    resumed.log_metrics({"gradient/norm": 2.0}, 2)
    assert logger.path.read_text().splitlines()[1:] == [
        "1,10,0.250,train/loss,1.5",
        "2,10,0.250,gradient/norm,2.0",
    ]


def test_a_header_that_was_cut_is_whole_after_a_resume(tmp_path: Path) -> None:
    MetricsCsv(tmp_path).truncate_after(0)
    assert not list(tmp_path.iterdir()), "nothing was begun"
    (tmp_path / "metrics.csv").write_text("step,tok")
    MetricsCsv(tmp_path).truncate_after(0)
    assert (tmp_path / "metrics.csv").read_text() == "step,tokens,seconds,key,value\n"
