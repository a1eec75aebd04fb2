"""`python -m microworld`: documents, one example of each task with its answer marked, and clear
words for wrong use.
"""

from __future__ import annotations

import re

import pytest
from tests.screens import shows

from microworld.__main__ import main

TASKS = [
    "CoLA",
    "SST-2",
    "MRPC",
    "QQP",
    "STS-B",
    "RTE",
    "QNLI",
    "MNLI",
    "SWAG",
    "SQuAD 1.1",
    "SQuAD 2.0",
    "NER",
]


def test_prints_documents_and_every_task(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    main(["--n", "2", "--seed=7"])
    printed = capsys.readouterr().out
    shows(
        printed,
        "microworld, seed 7. Synthetic text: no real person, place or event.",
        "SST-2 does it speak well (1) or ill (0) of the thing?",
        "label 4.000",
        "SQuAD 1.1 which words of the passage answer the question?",
        "SQuAD 2.0 which words of the passage answer the question?",
    )
    assert re.findall(r"^document (\d)", printed, re.MULTILINE) == ["0", "1"]
    assert [
        line for line in TASKS if re.search(rf"^{re.escape(line)} ", printed, re.MULTILINE)
    ] == TASKS
    assert max(map(len, printed.split("\n"))) < 300


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--n", "0"], "argument --n: give a whole number of at least 1, not 0"),
        (["--n", "many"], "not many"),
        (["--n="], "not nothing"),
        (["--seed=-1"], "argument --seed: give a whole number of at least 0, not -1"),
        (["--count=3"], "unrecognized arguments: --count=3"),
        (["dial"], "argument world: invalid choice: 'dial'"),
    ],
)
def test_wrong_use_is_said(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert message in capsys.readouterr().err
