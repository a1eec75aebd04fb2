"""A whole small experiment on a real engine: what `reproduce` makes there and on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.engines import (
    COMMON,
    CORPUS,
    MODEL,
    Engine,
    Place,
    checksums,
    phases,
)

FILES = ("model.safetensors", "predictions.jsonl", "claims.csv")


def words_of(data: Path) -> list[str]:
    shape = [*CORPUS, "tokenizer.vocab_size=60", *MODEL, *COMMON]
    trained = ["finetune.epochs=2", "finetune.allow_validation_in_training=true"]
    seeds = ["seeds=1,2", "finetune.seed=1"]
    out = ["--no-measure"]
    pretrained = f"pretrain.{phases(60)}"
    return ["reproduce", f"{data}/small", "scale=demo", *seeds, pretrained, *shape, *trained, *out]


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = Place(data, tmp_path_factory.mktemp("alone"), None)
    place.run(*words_of(data))
    return checksums(place.runs / "small", *FILES)


def test_an_experiment_is_the_same_as_on_this_machine(
    engine: Engine, data: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    place = Place(data, tmp_path / "runs", engine)
    text = place.run(*words_of(data))
    sums = checksums(place.runs / "small", *FILES)
    names = [path.rpartition("/")[2] for path in sums]
    # Two arms of two seeds, and three rows of two seeds under a task and a measure.
    assert names.count("model.safetensors") == 4 + 6, sorted(sums)
    assert names.count("predictions.jsonl") == 6 + 6 and names.count("claims.csv") == 1
    assert sums == expected
    assert "Traceback" not in text, text
