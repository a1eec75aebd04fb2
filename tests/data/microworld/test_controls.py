"""The controls: shuffled sentences leave no thread through a document, shuffled labels nothing to learn."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from clozelab.datamodules.baselines import words_of
from microworld import lexicon
from microworld.world import write_world

CHANCE = {"MRPC": 0.5, "QQP": 0.5, "RTE": 0.5, "QNLI": 0.5, "MNLI": 1 / 3}
COLUMN = {"MRPC": "Quality", "QQP": "is_duplicate", "RTE": "label", "QNLI": "label", "MNLI": "gold_label"}


@pytest.fixture(scope="module")
def control_world(tmp_path_factory: pytest.TempPathFactory, small_settings: dict[str, Any]) -> Path:
    settings = small_settings | {"shuffle_sentences": True, "shuffle_labels": True, "entropy_documents": 0}
    return write_world(tmp_path_factory.mktemp("control"), **settings)


def continued_share(folder: Path) -> tuple[float, float]:
    """Share of document halves in which the second repeats a first name of the first: true halves, and other ones."""
    names = {name.lower() for name in lexicon.WOMEN + lexicon.MEN}
    text = (folder / "corpus/microworld.txt").read_text(encoding="utf-8")
    documents = [block.splitlines() for block in text.strip().split("\n\n")]
    halves = [(document[1:4], document[4:7]) for document in documents if len(document) >= 7]
    bags = [[set(words_of(" ".join(half))) & names for half in pair] for pair in halves]
    others = [second for _, second in bags[1:] + bags[:1]]
    true = sum(bool(first & second) for first, second in bags) / len(bags)
    false = sum(bool(first & other) for (first, _), other in zip(bags, others, strict=True)) / len(bags)
    return true, false


def test_shuffled_sentences_leave_no_thread(small_world: Path, control_world: Path) -> None:
    """What tells a true next segment from a random one is gone; in the plain world it is plain."""
    true, false = continued_share(small_world)
    assert true > false + 0.5
    true, false = continued_share(control_world)
    assert abs(true - false) < 0.12  # 400 documents: three standard errors


def labels(folder: Path, task: str) -> list[str]:
    with (folder / f"glue/{task}/train.tsv").open(encoding="utf-8", newline="") as file:
        return [row[COLUMN[task]] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def bag_of_words(folder: Path, task: str) -> float:
    found = json.loads((folder / f"glue/{task}/baselines.json").read_text(encoding="utf-8"))
    return float(found["dev_matched.tsv" if task == "MNLI" else "dev.tsv"]["bag of words"]["accuracy"])


def test_shuffled_labels_agree_with_the_true_ones_by_chance(small_world: Path, control_world: Path) -> None:
    for task, chance in CHANCE.items():
        pairs = list(zip(labels(small_world, task), labels(control_world, task), strict=True))
        assert abs(sum(one == two for one, two in pairs) / len(pairs) - chance) < 0.08, task


def test_what_is_trained_on_shuffled_labels_is_at_chance(small_world: Path, control_world: Path) -> None:
    """The validation split keeps its labels, and the bag of words, which reads the plain world, finds nothing."""
    plain, mixed = ({task: bag_of_words(folder, task) for task in CHANCE} for folder in (small_world, control_world))
    assert all(abs(mixed[task] - chance) < 0.1 for task, chance in CHANCE.items()), mixed
    assert sum(plain.values()) > sum(mixed.values()) + 0.3, (plain, mixed)
    for task in CHANCE:
        name = "dev_matched" if task == "MNLI" else "dev"
        files = [(folder / f"glue/{task}/{name}.tsv").read_bytes() for folder in (small_world, control_world)]
        assert files[0] == files[1]
