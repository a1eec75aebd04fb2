"""The differences of a table without claims: which pairs they are, and why some have no p."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.results.test_sweep import write_tunings
from tests.screens import shows

from claims.cli import main as claims
from clozelab.results.adhoc import infer_table
from clozelab.runs.find import find
from clozelab.stages.judge import main as judge
from clozelab.stages.report import main

SCORES = {
    "public": [78.0, 79.0, 77.5],
    "further": [80.0, 81.5, 81.0],
    "longer": [80.5, 81.0, 82.0],
}


def page_of(folder: Path, name: str) -> str:
    return (folder / "report" / name).read_text().replace("&nbsp;", " ")


def test_a_report_says_that_it_compares_with_the_first_row_alone(
    tmp_path: Path, writers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tunings(tmp_path, writers, SCORES)
    assert main([str(tmp_path)]) == 0
    first = next(iter(infer_table(find(tmp_path)).rows))
    shows(capsys.readouterr().out, f"differences from {first} alone: other pairs are not compared;")
    sentence = "Other pairs are not compared: a file of claims for "
    for name in ("report.md", "report.html"):
        shows(page_of(tmp_path, name), f"against the first one ({first}), paired by seed", sentence)
    # what it says to do, and the same in a word
    pairs = tmp_path / "pairs.yaml"
    pairs.write_text("compare: all\n")
    assert judge([str(tmp_path / "report/results.csv"), str(pairs)]) == 0
    printed = capsys.readouterr().out
    assert judge([str(tmp_path / "report/results.csv"), "compare=all"]) == 0
    shows(capsys.readouterr().out, "differences of all pairs; paired by seed", "longer against")
    shows(printed, "differences of all pairs; paired by seed", "longer against")


def test_a_pipe_gets_the_corrected_p_however_long_the_names_are(
    tmp_path: Path, writers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a_row_whose_name_leaves_no_room_for_more_in_eighty_columns"
    write_tunings(tmp_path, writers, {"public": SCORES["public"], name: SCORES["further"]})
    assert main([str(tmp_path)]) == 0
    shows(capsys.readouterr().out, "corrected p", "p = 0.0")
    assert claims(["judge", str(tmp_path / "report/results.csv")]) == 0
    shows(capsys.readouterr().out, "corrected p")


def test_two_rows_have_no_other_pairs(
    tmp_path: Path, writers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    two = {name: SCORES[name] for name in ("public", "further")}
    write_tunings(tmp_path, writers, two)
    assert main([str(tmp_path)]) == 0
    assert "other pairs" not in capsys.readouterr().out
    assert "Other pairs" not in page_of(tmp_path, "report.md")


def test_a_difference_without_p_says_why(
    tmp_path: Path, writers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """One pre-training of ours: its interval is narrow, and says nothing of another one."""
    write_tunings(tmp_path, writers, {"ours": SCORES["further"], "public": SCORES["public"]})
    assert main([str(tmp_path)]) == 0
    reason = "no p: a test takes two pre-training seeds that both rows have"
    shows(capsys.readouterr().out, reason)
    shows(page_of(tmp_path, "report.md"), reason)
