"""`clozelab verify`, which trains in a fork of the tests' server."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import forked
from tests.runs.archives import say

from clozelab.results import rerun


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        rerun.subprocess,
        "run",
        lambda words, preexec_fn=None, **options: forked.run(words, **options),
    )


def verify(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """(exit status, what is said, in one line)."""
    return say(["verify", str(folder)], capsys)
