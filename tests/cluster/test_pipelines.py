"""A corpus that datatrove's pipelines prepare on a real engine is the one of this machine alone."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.engines import CORPUS, Engine, Place, checksums

EXECUTORS = {
    "slurm": '{slurm:{tasks:2,partition:main,time:"00:20:00",mem_per_cpu_gb:1}}',
    "ray": "{ray:{tasks:2,mem_per_cpu_gb:1}}",
}
FILES = ("*.bin", "*.json", "*.txt")


def test_pipelines_prepare_the_same(engine: Engine, data: Path, tmp_path: Path) -> None:
    environment = dict(engine.environment)
    # No launcher: the preparation itself finds the cluster.
    if engine.name == "ray":
        environment["RAY_ADDRESS"] = engine.words[1].partition("=")[2]
    words = ["prepare", *CORPUS, "tokenizer.vocab_size=60"]
    place = Place(data, tmp_path / "runs", Engine(engine.name, (), environment))
    place.run(*words, f"corpus.executor={EXECUTORS[engine.name]}")
    alone = Place(data, tmp_path / "alone", None)
    alone.run(*words)
    prepared = checksums(place.runs / "cache", *FILES)
    assert prepared == checksums(alone.runs / "cache", *FILES) != {}
