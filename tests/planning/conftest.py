"""Plans of the tests are those of one machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from clozelab.planning import starts


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans share two cores, one thread a job, however many cores this machine has."""
    monkeypatch.setattr("clozelab.launch.process_launcher.usable_cores", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """The words that place all that a plan reads and writes."""
    return [f"{key}={tmp_path}" for key in ("cache_dir", "runs_dir", "data_dir")]


@pytest.fixture(scope="module", autouse=True)
def usual_starts() -> Iterator[None]:
    """Jobs start as fast as conf/planning.yaml says, however fast this machine runs Python."""
    loops = [float(starts.constants().python_seconds)]
    starts.core_slowness.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starts, "timeit", SimpleNamespace(repeat=lambda *_, **__: loops))
        yield
    starts.core_slowness.cache_clear()
