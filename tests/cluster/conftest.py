"""The engines of this machine, each started once and stopped at the end; else tests skip."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cluster.engines import Engine, Place, pretraining, ray_engine, slurm_engine, write_data

SLURM_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder is one of a cluster, and takes its time."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(5400))


def require_slurm() -> None:
    missing = [name for name in SLURM_PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no Slurm here ({missing[0]} is missing): apt-get install slurm-wlm munge")
    if os.geteuid() != 0:
        pytest.skip("a Slurm of one's own wants root: slurmd starts jobs as root alone")
    if importlib.util.find_spec("submitit") is None:
        pytest.skip("the extra slurm is missing: pip install -c constraints.txt -e '.[slurm]'")


def require_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("the extra ray is missing: pip install -c constraints.txt -e '.[ray]'")


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Engine]]:
    """engines(name) -> the engine of that name, started when it is first asked for."""
    running: dict[str, Engine] = {}
    folder = tmp_path_factory.mktemp("engines")
    with ExitStack() as stack:

        def engine(name: str) -> Engine:
            if name not in running and name == "slurm":
                require_slurm()
                running[name] = stack.enter_context(slurm_engine(folder / name))
            elif name not in running:
                require_ray()
                running[name], _ = stack.enter_context(ray_engine(folder / name))
            return running[name]

        yield engine


@pytest.fixture(params=["slurm", "ray"])
def engine(request: pytest.FixtureRequest, engines: Callable[[str], Engine]) -> Engine:
    return engines(request.param)


@pytest.fixture
def slurm(engines: Callable[[str], Engine]) -> Engine:
    return engines("slurm")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


@pytest.fixture(scope="session")
def local(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """What this machine alone makes of the same commands: two encoders at first."""
    place = Place(data, tmp_path_factory.mktemp("local"), None)
    place.run(*pretraining())
    return place
