"""A whole small experiment on a real engine: what `reproduce` makes there and on this machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cluster.engines import COMMON, CORPUS, MODEL, Engine, Place, checksums, phases

FILES = ("model.safetensors", "predictions.jsonl")
TIME = re.compile(r"(?<=about )[\d.]+ \w+(?=, as these runs took)")
"""How long further seeds would take: as the jobs before them, which is no result."""


def words_of(data: Path) -> list[str]:
    shape = [*CORPUS, "tokenizer.vocab_size=60", *MODEL, *COMMON]
    trained = ["finetune.epochs=2", "finetune.allow_validation_in_training=true"]
    seeds = ["seeds=1", "finetune.seed=1"]
    out = ["--no-measure"]
    pretrained = f"pretrain.{phases(60)}"
    return ["reproduce", f"{data}/small", "scale=demo", *seeds, pretrained, *shape, *trained, *out]


@pytest.fixture(scope="module")
def expected(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = Place(data, tmp_path_factory.mktemp("alone"), None)
    place.run(*words_of(data))
    return results(place)


def results(place: Place) -> dict[str, str]:
    """The checksums of models and predictions, and the verdicts as they stand in claims.csv."""
    (claims,) = place.runs.glob("small/*/report/claims.csv")
    verdicts = TIME.sub("...", claims.read_text())
    return checksums(place.runs / "small", *FILES) | {"claims.csv": verdicts}


def test_an_experiment_is_the_same_as_on_this_machine(
    engine: Engine, data: Path, expected: dict[str, str], tmp_path: Path
) -> None:
    place = Place(data, tmp_path / "runs", engine)
    text = place.run(*words_of(data))
    sums = results(place)
    names = [path.rpartition("/")[2] for path in sums]
    # Two arms, and three rows under a task and a measure.
    assert names.count("model.safetensors") == 2 + 3, sorted(sums)
    assert names.count("predictions.jsonl") == 3 + 3
    assert sums == expected
    assert "Traceback" not in text, text
