"""How long each file of the tests took: printed at the end of a run, and kept where asked.

`CLOZELAB_DURATIONS=FILE` writes all files as a Markdown table with the date and the machine, as
`make durations` does into tests/durations.md. No test fails by a duration.
"""

from __future__ import annotations

import os
import platform
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from clozelab.processor import cpuinfo

FILE = Path(__file__).with_suffix(".md")
WRITE_TO = "CLOZELAB_DURATIONS"
SHOWN = 10
"""Slowest files that every run prints."""


def seconds_of_files(reports: Iterable[pytest.TestReport]) -> dict[str, float]:
    """File -> seconds of its tests with what they set up, the slowest first."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        seconds[report.nodeid.partition("::")[0]] += report.duration
    return dict(sorted(seconds.items(), key=lambda entry: -entry[1]))


def table_of(seconds: Mapping[str, float], workers: int) -> str:
    """The Markdown table of all files."""
    today = datetime.now(UTC).date().isoformat()
    processor = cpuinfo("model name") or platform.machine()
    work = f"{sum(seconds.values()):.0f} s of work in {len(seconds)} files"
    lines = [
        "# Durations of the tests",
        "",
        f"{today}, {os.cpu_count()} cores, {processor}, {workers} processes: {work}.",
        "`make durations` writes this table.",
        "",
        "| file | seconds |",
        "|---|--:|",
    ]
    for name, duration in seconds.items():
        lines.append(f"| `{name}` | {duration:.1f} |")
    return "\n".join(lines) + "\n"


def seconds_of_table(table: str, root: Path) -> dict[Path, float]:
    """The files of such a table, below the folder that their names begin in."""
    rows = re.findall(r"^\| `(.+)` \| ([\d.]+) \|$", table, re.MULTILINE)
    return {root / name: float(duration) for name, duration in rows}


def report_durations(reporter: pytest.TerminalReporter, workers: int) -> None:
    """Prints the slowest files, and writes the whole table where it is asked for."""
    reports: list[pytest.TestReport] = []
    for outcome in ("passed", "failed", "skipped", "error", ""):
        for report in reporter.stats.get(outcome, ()):
            if isinstance(report, pytest.TestReport):
                reports.append(report)
    seconds = seconds_of_files(reports)
    if len(seconds) > 1:
        reporter.section("slowest files")
        for name, duration in list(seconds.items())[:SHOWN]:
            reporter.write_line(f"{duration:7.1f} s  {name}")
    if os.environ.get(WRITE_TO):
        Path(os.environ[WRITE_TO]).write_text(table_of(seconds, workers), encoding="utf-8")
