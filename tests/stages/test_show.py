"""`clozelab show`: documents, one example of each task with its answer marked, and clear words for wrong use."""

from __future__ import annotations

import re

import pytest

from clozelab.stages.inventory import show

TASKS = ["CoLA", "SST-2", "MRPC", "QQP", "STS-B", "RTE", "QNLI", "MNLI", "SWAG", "SQuAD 1.1", "SQuAD 2.0", "NER"]


def test_prints_documents_and_every_task(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert show(["microworld", "--n", "2", "--seed=7"]) == 0
    printed = capsys.readouterr().out
    assert "Synthetic" in printed and "seed 7" in printed
    assert re.findall(r"^document (\d)", printed, re.MULTILINE) == ["0", "1"]
    assert [line for line in TASKS if re.search(rf"^{re.escape(line)} ", printed, re.MULTILINE)] == TASKS
    assert max(map(len, printed.split("\n"))) < 300


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["microword"], "did you mean 'microworld'"),
        (["mrpc"], "show has no world 'mrpc'; there are microworld"),
        (["microworld", "mrpc"], "takes 1 name, not microworld mrpc"),
        (["--n", "3"], "takes 1 name, not none"),
        (["microworld", "--n", "0"], "--n takes a whole number of at least 1, not 0"),
        (["microworld", "--n", "many"], "not many"),
        (["microworld", "--n"], "--n needs a value"),
        (["microworld", "--n="], "not nothing"),
        (["microworld", "--seed=-1"], "--seed takes a whole number of at least 0, not -1"),
        (["microworld", "--count", "3"], "no option --count; there are --n, --seed"),
        (["microworld", "n=3"], "show has no key 'n'"),
    ],
)
def test_wrong_use_is_said(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        show(words)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert show(["microworld", "--help"]) == 0
    assert "--seed" in capsys.readouterr().out
