"""`clozelab submit`: the best run of each test set is taken, what is missing is said, the result is
checked.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from tests.screens import refuses, shows

from clozelab.metrics.glue import TEST_SETS, placeholder
from clozelab.stages.submit import main


def run(folder: Path, test_set: str, score: float, answer: str | None = None, **about: str) -> Path:
    """A run folder with predictions for one test set."""
    (folder / "test_predictions").mkdir(parents=True)
    text = placeholder(test_set)
    if answer is not None:
        text = text.replace(f"\t{TEST_SETS[test_set].labels[0]}", f"\t{answer}")
    (folder / "test_predictions" / f"{test_set}.tsv").write_text(text)
    scores = {
        "metric": "validation/accuracy",
        "scores": {"validation/accuracy": score},
        "stand_in_for": None,
    }
    (folder / "scores.json").write_text(json.dumps({"name": test_set.lower()} | scores | about))
    return folder


def test_best_run_of_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in TEST_SETS:
        run(tmp_path / "runs" / name, name, 0.5)
    run(tmp_path / "runs" / "rte-better", "RTE", 0.7, "not_entailment")
    run(tmp_path / "runs" / "rte-worse", "RTE", 0.4)
    out = tmp_path / "glue.zip"
    assert main(["glue", str(tmp_path / "runs"), f"out={out}"]) == 0
    with zipfile.ZipFile(out) as archive:
        assert archive.read("RTE.tsv").splitlines()[1] == b"0\tnot_entailment"
    shows(capsys.readouterr().out, "CoLA validation/accuracy 0.5000")


def test_a_stand_ins_model_is_taken_only_where_there_is_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its score is on another validation set: higher says nothing."""
    snli = run(tmp_path / "snli", "AX", 0.8, name="snli_95k", stand_in_for="mnli")
    mnli = run(tmp_path / "mnli", "AX", 0.7, name="mnli")
    other = run(tmp_path / "other", "AX", 0.9, name="xnli_part", stand_in_for="mnli")
    out = [f"out={tmp_path / 'x.zip'}", "--placeholders"]
    assert main(["glue", str(snli), str(mnli), *out]) == 0
    placeholders = "CoLA placeholder: one constant answer"
    shows(capsys.readouterr().out, placeholders, "AX validation/accuracy 0.7000")
    assert main(["glue", str(snli), *out]) == 0
    shows(capsys.readouterr().out, placeholders, "AX validation/accuracy 0.8000")
    with refuses("(xnli_part, validation/accuracy); give only the run that you"):
        main(["glue", str(snli), str(other), *out])


def test_missing_sets_are_an_error_or_placeholders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = str(run(tmp_path / "wnli", "WNLI", 0.5)), tmp_path / "x.zip"
    with refuses("no predictions for CoLA, SST-2, MRPC, STS-B, QQP, MNLI-m"):
        main(["glue", folder, f"out={out}"])
    assert not out.exists()
    assert main(["glue", folder, f"out={out}", "--placeholders"]) == 0
    assert capsys.readouterr().out.count("placeholder") == len(TEST_SETS) - 1
    assert out.is_file()
