"""The main screens at 80, 100 and 160 columns: no line is wider than the terminal, and none breaks
inside a word.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.screens import Screens, read_sections

from claims.report.claims import DifferenceView
from claims.report.screen import print_differences
from claims.text.terminal import make_console
from clozelab.checks.doctor import Fact, print_facts, print_findings
from clozelab.checks.subject import ERROR, OK, WARNING, Finding
from clozelab.runs.find import find
from clozelab.runs.outcome import ending
from clozelab.runs.record import Record
from clozelab.stages import compare, plan, runs, status
from clozelab.stages import list as list_verb
from clozelab.stages.report import main as report

WIDTHS = 80, 100, 160
WHOLE = re.compile(r"^(next|run|to go on|from Python|Report|error|  log)\b|clozelab |/")
"""Lines that hold a command or a path, which stay whole so that they can be copied."""
FINDINGS = [
    Finding("corpus", OK, "the text is prepared", "1.2 M tokens"),
    Finding(
        "arm mlm",
        WARNING,
        "the budget may end before the masked model leaves its plateau (about 5.4 M tokens)",
        "0.7 M tokens",
        "a rule of thumb: more steps, or a phase of 32 or 64 tokens first",
    ),
    Finding(
        "task intent",
        ERROR,
        "the label column of validation.tsv names a class that training has not",
        "1 of 200 lines",
        "give the class to the training file, or leave the line out",
    ),
]
UNTESTED = "their objectives predict other tokens or score them otherwise, so losses do not compare"
DIFFERENCES = [
    DifferenceView(
        *("predict_prob=0.4", "predict_prob=0.15", f"held-out {score}"),
        *(figure, unit, interval, "", UNTESTED),
    )
    for score, figure, unit, interval in (
        ("loss", "\u22120.14", "loss", "[\u22120.15, \u22120.13]"),
        ("perplexity", "\u2212141.82", "perplexity", "[\u2212176.39, \u2212107.25]"),
        ("text", "\u22120.014", "bits per character", "[\u22120.015, \u22120.013]"),
    )
]
FACTS = [
    Fact("ceilings", "matmul bf16", "312 GFLOP/s"),
    Fact(
        "here",
        "allocator",
        "glibc",
        "threshold set so that large blocks are kept and not asked for at every step",
    ),
]


@pytest.fixture
def screens(
    tmp_path: Path, writers: Any, monkeypatch: pytest.MonkeyPatch, no_pictures: None
) -> dict[str, Callable[[], object]]:
    root = tmp_path / "runs" / "table5_pretraining_tasks" / "demo"
    for arm, loss in (("mlm", 6.36), ("ltr", 4.4)):
        writers.pretrain(root, arm, 1, known={"unigram_loss": 6.32, "validation/loss": loss})
        for seed in (1, 2):
            known = {"majority_baseline": 0.684, "baselines": {"bag of words": {"accuracy": 0.723}}}
            writers.finetune(root, arm, "mrpc", (1, seed), 68.0 + seed, **known)
    writers.finetune(root, "ltr", "sst2", (1, 1), 0.0, status="failed")
    runs_dir = f"runs_dir={tmp_path / 'runs'}"
    folders = [str(root / "pretrain" / arm / "seed-1") for arm in ("mlm", "ltr")]
    words = ["pretrain", "scale=demo", "objective=mlm", "steps_factor=0.1", "--no-measure"]
    words.append(runs_dir)
    words += [f"{name}={tmp_path}/{name}" for name in ("cache_dir", "data_dir")]
    monkeypatch.chdir(tmp_path)
    return {
        "list": lambda: list_verb.main([]),
        "architectures": lambda: list_verb.main(["architectures"]),
        "status": lambda: status.main([runs_dir]),
        "runs": lambda: runs.main([runs_dir]),
        "compare": lambda: compare.main(folders),
        "report": lambda: report([str(root / "finetune")]),
        "findings": lambda: print_findings(FINDINGS, shows_all=True),
        "differences": lambda: print_differences(DIFFERENCES, make_console()),
        "machine": lambda: print_facts(
            FACTS, {"processor": "Intel(R) Xeon(R) Processor @ 2.70GHz"}
        ),
        "plan": lambda: plan.main(words),
        "end": lambda: print_endings(find(root).runs),
    }


def test_one_reason_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    print_differences(DIFFERENCES, make_console())
    shown = capsys.readouterr().out
    assert shown.count(UNTESTED) == 1
    assert "on held-out loss, held-out perplexity, held-out text: " in shown


def print_endings(runs: Iterable[Record]) -> None:
    """What the end of each complete run says, a line each."""
    for run in runs:
        if run.is_complete:
            print(*ending(run), sep="\n")


def test_no_line_is_wider_than_the_terminal_or_breaks_inside_a_word(
    screens: dict[str, Callable[[], object]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def lines(name: str, width: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        screens[name]()
        return capsys.readouterr().out.splitlines()

    for name in screens:
        known = set()
        for line in lines(name, 2000):
            known.update(line.split())
        assert known, name
        for width in WIDTHS:
            shown = [line for line in lines(name, width) if not WHOLE.search(line)]
            assert [line for line in shown if len(line.rstrip()) > width] == [], (name, width)
            words = set()
            for line in shown:
                for word in line.split():
                    if set(word) != {"\u2500"}:
                        words.add(word)
            assert words - known == set(), (name, width)


def test_what_the_pre_flight_finds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], screen: Screens
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    print_findings(FINDINGS, shows_all=True)
    screen(capsys.readouterr().out)


def test_ten_screens_are_whole_and_each_is_of_a_test_that_is_there() -> None:
    num_screens = 0
    files = [*Path(__file__).parent.rglob("screens/*.txt")]
    assert files
    for file in files:
        tests = (file.parents[1] / f"{file.stem}.py").read_text(encoding="utf-8")
        functions = [one for one in ast.walk(ast.parse(tests)) if isinstance(one, ast.FunctionDef)]
        names = {one.name for one in functions}
        sections = read_sections(file)
        num_screens += len(sections)
        headings = {re.split(r"[\[ ]", heading)[0] for heading in sections}
        assert headings <= names, file
    assert num_screens <= 10, "hold the rows that must be there (tests.screens.shows)"
