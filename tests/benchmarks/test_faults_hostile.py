"""Trials of `make faults` that are tests: what they are called, and how their ends are counted."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
OUTCOMES = """\
import pytest
@pytest.mark.parametrize("number", [1, 2, 3])
def test_one(number): assert number < 3
def test_other(): pytest.skip("not here")
@pytest.fixture
def broken(): raise OSError
def test_broken(broken): pass
@pytest.mark.slow
def test_slow(): pass
"""


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("faults_hostile")


def test_every_trial_is_there(hostile: Any) -> None:
    for kind in hostile.KINDS:
        written = ast.parse((ROOT / kind.file).read_text()).body
        assert {*kind.tests} <= {one.name for one in written if isinstance(one, ast.FunctionDef)}


def test_failures_are_counted(
    hostile: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is skipped is no trial; what breaks before it begins has failed."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n")
    (tmp_path / "test_x.py").write_text(OUTCOMES)
    monkeypatch.setattr(hostile, "ROOT", tmp_path)
    tests = [("test_x.py", name) for name in ("test_one", "test_other", "test_broken", "test_slow")]
    counts = hostile.outcomes_of(tests, tmp_path, slow=False)
    assert [dict(counts[test]) for test in tests] == [{True: 2, False: 1}, {}, {False: 1}, {}]
    with pytest.raises(RuntimeError, match="pytest ended with 4"):
        hostile.outcomes_of([("test_x.py", "test_gone")], tmp_path, slow=False)
