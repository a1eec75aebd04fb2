"""`clozelab verify`, which trains in a fork of the tests' server."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import forked
from tests.runs.archives import say
from tests.runs.test_pretrain_run import environment

from clozelab.results import rerun


def train(words: list[str]) -> None:
    done = forked.run(words, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


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
