"""A corpus that datatrove's pipelines prepare on a real engine is the one of this machine alone."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from tests.cluster.engines import Engine, Place, checksums, jobs_of, outcome, wait_until

pytest.importorskip(
    "datatrove",
    reason="the extra corpus is missing: pip install -c constraints.txt -e '.[corpus]'",
)

EXECUTORS = {
    "local": "{local:{tasks:2}}",
    "slurm": '{slurm:{tasks:2,partition:main,time:"00:20:00",mem_per_cpu_gb:1}}',
    "ray": "{ray:{tasks:2,mem_per_cpu_gb:1}}",
}
FILES = ("*.bin", "*.npy", "*.json", "*.txt")
WORDS = (
    "prepare",
    "corpus=text",
    "corpus.sources.0.path=long.txt",
    "corpus.validation_fraction=0.1",
    "tokenizer.vocab_size=60",
)


@pytest.fixture(scope="module")
def long_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text of three shards, so that each of two ranks has one at least."""
    folder = tmp_path_factory.mktemp("long")
    draw = random.Random(0)
    words = [first + second for first, second in product("bcdfg", "aeiou")]
    documents = []
    for _ in range(6_000):
        lines = [" ".join(draw.choices(words, k=100)) for _ in range(5)]
        documents.append("\n".join(lines))
    (folder / "long.txt").write_text("\n\n".join(documents))
    return folder


@pytest.fixture(scope="module")
def alone(long_text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The checksums of what our own processes prepare."""
    place = Place(long_text, tmp_path_factory.mktemp("alone"), None)
    place.run(*WORDS)
    return checksums(place.runs / "cache", *FILES)


def without_launcher(engine: Engine) -> Engine:
    """The engine for a preparation, which itself finds the cluster."""
    environment = dict(engine.environment)
    if engine.name == "ray":
        environment["RAY_ADDRESS"] = address_of(engine)
    return Engine(engine.name, (), environment)


def address_of(ray: Engine) -> str:
    return ray.words[1].partition("=")[2]


@pytest.mark.parametrize("name", list(EXECUTORS))
def test_pipelines_prepare_the_same(
    name: str,
    engines: Callable[[str], Engine],
    long_text: Path,
    alone: dict[str, str],
    tmp_path: Path,
) -> None:
    engine = None if name == "local" else without_launcher(engines(name))
    place = Place(long_text, tmp_path / "runs", engine)
    place.run(*WORDS, f"corpus.executor={EXECUTORS[name]}")
    assert checksums(place.runs / "cache", *FILES) == alone != {}


def test_a_killed_rank_of_slurms_is_named_and_taken_up(
    slurm: Engine, long_text: Path, alone: dict[str, str], tmp_path: Path
) -> None:
    words = [*WORDS, f"corpus.executor={EXECUTORS['slurm']}"]
    place = Place(long_text, tmp_path / "runs", without_launcher(slurm))
    preparing = place.start(*words)
    wait_until(lambda: kill_rank(place.runs) or preparing.poll() is not None, "a rank")
    text = outcome(preparing, 1)
    assert re.search(r"ranks \[[01]\] of a pipeline ended before they were done", text), text
    assert "the same command goes on where it was" in text and "Traceback" not in text, text
    place.run(*words)
    assert checksums(place.runs / "cache", *FILES) == alone
    wait_until(lambda: not jobs_of(slurm), "an empty line: no job waits for the killed rank")


def kill_rank(runs: Path) -> bool:
    """Kill -9 the program of datatrove's that is a rank of a pipeline below a folder."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            program, *words = path.read_bytes().split(b"\0")
            is_rank = any(word.endswith(b"/launch_pickled_pipeline") for word in words)
            if b"python" in program and is_rank and str(runs).encode() in b" ".join(words):
                os.kill(int(path.parent.name), signal.SIGKILL)
                return True
    return False


def test_a_killed_rank_of_rays_is_started_again(
    engines: Callable[[str], Engine], long_text: Path, alone: dict[str, str], tmp_path: Path
) -> None:
    """Datatrove does it: the same command ends well."""
    ray = engines("ray")
    place = Place(long_text, tmp_path / "runs", without_launcher(ray))
    preparing = place.start(*WORDS, f"corpus.executor={EXECUTORS['ray']}")
    killed: list[int] = []

    def has_killed() -> bool:
        killed.extend(kill_worker(address_of(ray).rpartition(":")[2]))
        return bool(killed) or preparing.poll() is not None

    wait_until(has_killed, "a rank")
    outcome(preparing, 0)
    assert killed and checksums(place.runs / "cache", *FILES) == alone


def kill_worker(port: str) -> list[int]:
    """Kill -9 a worker that runs a rank, of the Ray with a port; its number, if there is one."""
    address = re.compile(rf"--gcs-address=[\w.]+:{port}\b".encode())
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().startswith(b"ray::RankWorker.run_for_rank"):
                parent = path.with_name("stat").read_text().rpartition(")")[2].split()[1]
                if address.search(Path("/proc", parent, "cmdline").read_bytes()):
                    worker = int(path.parent.name)
                    os.kill(worker, signal.SIGKILL)
                    return [worker]
    return []
