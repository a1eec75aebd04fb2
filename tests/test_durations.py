"""How long files took is summed, printed and kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import durations


def report(name: str, when: str, duration: float) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid=name,
        location=("", 0, ""),
        keywords={},
        outcome="passed",
        longrepr=None,
        when=when,  # type: ignore[arg-type]
        duration=duration,
    )


def test_a_file_is_the_sum_of_its_tests_and_their_fixtures() -> None:
    reports = [
        report("a.py::one", "setup", 0.5),
        report("a.py::one", "call", 1.0),
        report("b.py::two[x::y]", "call", 3.0),
        report("a.py::other", "teardown", 0.25),
    ]
    seconds = durations.seconds_of_files(reports)
    assert list(seconds.items()) == [("b.py", 3.0), ("a.py", 1.75)]
    table = durations.table_of(seconds, 2)
    lines = table.splitlines()
    assert "2 processes: 5 s of work in 2 files" in lines[2]
    assert lines[-2:] == ["| `b.py` | 3.0 |", "| `a.py` | 1.8 |"]
    root = Path("/here")
    assert durations.seconds_of_table(table, root) == {root / "b.py": 3.0, root / "a.py": 1.8}
