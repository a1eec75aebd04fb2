"""A corpus that datatrove's pipelines prepare on a real engine is the one of this machine alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from tests.cluster.engines import Engine, Place, checksums

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


@pytest.mark.parametrize("name", list(EXECUTORS))
def test_pipelines_prepare_the_same(
    name: str,
    engines: Callable[[str], Engine],
    long_text: Path,
    alone: dict[str, str],
    tmp_path: Path,
) -> None:
    environment: dict[str, str] = {}
    # No launcher: the preparation itself finds the cluster.
    if name != "local":
        engine = engines(name)
        environment |= engine.environment
        if name == "ray":
            environment["RAY_ADDRESS"] = engine.words[1].partition("=")[2]
    place = Place(long_text, tmp_path / "runs", Engine(name, (), environment))
    place.run(*WORDS, f"corpus.executor={EXECUTORS[name]}")
    assert checksums(place.runs / "cache", *FILES) == alone != {}
