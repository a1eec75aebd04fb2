"""`make odd` on five of its cases, and its judge: what is wrong in silence, and what nobody raised,
is called so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import forked

from clozelab.files.digests import file_sha256
from clozelab.models.folders import read_config

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = [
    "model folders/gamma_beta",
    "prediction inputs/lines_bom_crlf",
    "label files/csv_bom",
    "label files/csv_no_label",
    "corpora/zero_width",
]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import lab

    return lab


def disagrees(_: Path) -> None:
    import lab

    lab.equal([1], [2], "ids")


@pytest.mark.parametrize(
    ("act", "expected", "names", "verdict"),
    [
        (lambda _: None, "read", (), "right"),
        (lambda _: None, "refused", (), "WRONG"),
        (disagrees, "read or refused", (), "WRONG"),
        (read_config, "refused", ("config.json",), "refused"),
        (read_config, "refused", ("vocab.txt",), "VAGUE"),
        (read_config, "read", (), "REFUSED"),
        (lambda _: read_config(None), "refused", (), "TRACEBACK"),  # type: ignore[arg-type]
        (lambda place: file_sha256(place / "nowhere"), "refused", ("nowhere",), "refused"),
    ],
)
def test_the_judge(
    lab: Any,
    tmp_path: Path,
    act: Callable[[Path], object],
    expected: str,
    names: tuple[str, ...],
    verdict: str,
) -> None:
    case = lab.Case("kind", "name", "what is odd", "load", expected, act, names)
    assert lab.run_case(case, tmp_path / "place").verdict == verdict


def test_an_error_of_the_trial_itself_is_no_verdict(lab: Any, tmp_path: Path) -> None:
    case = lab.Case("kind", "name", "what is odd", "load", "read", lambda _: int("x"))
    with pytest.raises(RuntimeError, match="the trial name itself is broken"):
        lab.run_case(case, tmp_path / "place")


def run_only(*names: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "benchmarks/the package", "--only", *names]
    done = forked.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="users and signals")
def test_a_sample() -> None:
    output = run_only(*SAMPLE)
    assert "5 cases" in output and "4 right, 1 refused" in output


def test_words_at_wrong_places_are_refused_by_what_to_write_instead() -> None:
    """All of benchmarks/words.py: what each case must say stands there."""
    assert "29 right" in run_only("words at wrong places/")
