"""The inputs of `make odd` in pytest, and their judge: it sees what is wrong in silence, and what
nobody raised on purpose.

A kind is a test, because the cases are built from models that are made once. All of them run with
`pytest -m odd tests/fuzz`; every fiftieth, and all words at wrong places, run in the suite.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fuzz import lab

from clozelab.files.digests import file_sha256
from clozelab.models.folders import read_config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="users and signals")
ALWAYS = "words at wrong places"
KINDS = ["model folders", "weights and places", "prediction inputs", "files to predict"]
KINDS += ["label files", "files of tasks", "given encoders", "corpora", "places of corpora"]
KINDS += ["scores", "folder settings", "tokenizers and tensors of others", ALWAYS]


def assert_end_well(cases: list[lab.Case], tmp_path: Path) -> None:
    """Each case that does not end well is a line of the failure."""
    lab.quieten()
    tmp_path.chmod(0o755)
    ends = [lab.run_case(case, tmp_path / str(number)) for number, case in enumerate(cases)]
    bad = [end for end in ends if not end.is_good]
    lines = [f"{end.verdict} {end.case.kind}/{end.case.oddity}: {end.sentence}" for end in bad]
    assert not lines, "\n".join(lines)


@pytest.mark.odd
@pytest.mark.parametrize("kind", KINDS)
def test_every_input_of_a_kind(kind: str, tmp_path: Path) -> None:
    from tests.fuzz.every import chosen

    cases = [case for case in chosen() if case.kind == kind]
    assert cases
    assert_end_well(cases, tmp_path)


def test_a_sample(tmp_path: Path) -> None:
    from tests.fuzz.every import chosen

    cases = chosen()
    assert {case.kind for case in cases} == set(KINDS)
    assert len(cases) >= 1000
    always = [case for case in cases if case.kind == ALWAYS]
    assert_end_well([*cases[::50], *always], tmp_path)


def disagrees(_: Path) -> None:
    lab.equal([1], [2], "ids")


@pytest.mark.parametrize(
    ("act", "expected", "names", "verdict"),
    [
        (lambda _: None, lab.READ, "", "right"),
        (lambda _: None, lab.REFUSED, "", "WRONG"),
        (disagrees, lab.EITHER, "", "WRONG"),
        (read_config, lab.REFUSED, "config.json", "refused"),
        (read_config, lab.REFUSED, "vocab.txt", "VAGUE"),
        (read_config, lab.READ, "", "REFUSED"),
        (lambda _: read_config(None), lab.REFUSED, "", "TRACEBACK"),  # type: ignore[arg-type]
        (lambda place: file_sha256(place / "nowhere"), lab.REFUSED, "nowhere", "refused"),
    ],
)
def test_the_judge(
    tmp_path: Path, act: Callable[[Path], object], expected: str, names: str, verdict: str
) -> None:
    case = lab.Case("kind", "what is odd", "load", expected, act, names)
    assert lab.run_case(case, tmp_path / "place").verdict == verdict


def test_an_error_of_the_trial_itself_is_no_verdict(tmp_path: Path) -> None:
    case = lab.Case("kind", "what is odd", "load", lab.READ, lambda _: int("x"))
    with pytest.raises(RuntimeError, match="the trial 'what is odd' itself is broken"):
        lab.run_case(case, tmp_path / "place")


def test_the_command_lists_every_input(capsys: pytest.CaptureFixture[str]) -> None:
    from tests.fuzz.__main__ import main

    threads = os.environ.get("OMP_NUM_THREADS")
    assert main(["--list", "--only", "label files"]) == 0
    assert "label files/.csv: a byte order mark" in capsys.readouterr().out
    assert os.environ.get("OMP_NUM_THREADS") == "1" or threads is None
