"""metrics.csv: long form, appended, truncated for a resume."""

from __future__ import annotations

from pathlib import Path

from clozelab.training.measuring import MetricsCsv


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
    MetricsCsv(tmp_path).log_metrics({"train/loss": 0.1, "train/tokens": 20, "train/seconds": 0.5}, 2)
    assert path.read_text().splitlines() == expected
    logger.truncate_after(0)
    assert path.read_text().splitlines() == expected[:1]


def test_a_comma_in_a_key_survives_a_resume(tmp_path: Path) -> None:
    logger = MetricsCsv(tmp_path)
    logger.log_metrics({"validation/nsp_accuracy/books, old": 0.5, "train/tokens": 10, "train/seconds": 1.0}, 1)
    before = (tmp_path / "metrics.csv").read_text()
    logger.truncate_after(1)
    assert (tmp_path / "metrics.csv").read_text() == before


def test_a_header_that_was_cut_is_whole_after_a_resume(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,tok")
    MetricsCsv(tmp_path).truncate_after(0)
    assert (tmp_path / "metrics.csv").read_text() == "step,tokens,seconds,key,value\n"


def test_truncating_nothing(tmp_path: Path) -> None:
    MetricsCsv(tmp_path).truncate_after(0)
    assert not list(tmp_path.iterdir())
