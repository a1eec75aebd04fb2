"""Nothing of a validation or test example can be looked up in the pre-training text, nor in the training file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from microworld.lexicon import MEN, SURNAMES, WOMEN, Person, split_of

FULL_NAME = re.compile(rf"\b({'|'.join(WOMEN + MEN)}) ({'|'.join(SURNAMES)})\b")
FILES = {
    "train": ["glue/*/train.tsv", "squad/train-*.json", "swag/train.csv", "ner/train.txt"],
    "validation": ["glue/*/dev*.tsv", "squad/dev-*.json", "swag/val.csv", "ner/dev.txt"],
    "test": ["glue/*/test*.tsv", "ner/test.txt"],
}


def _text(folder: Path, patterns: list[str]) -> str:
    paths = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    assert paths
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return "\n".join(re.sub(r" -X- O \S+\n", " ", text) if "-DOCSTART-" in text else text for text in texts)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_people_of_a_split_are_nowhere_else(small_world: Path, split: str) -> None:
    corpus = (small_world / "corpus/microworld.txt").read_text(encoding="utf-8")
    people = {" ".join(match.groups()) for match in FULL_NAME.finditer(_text(small_world, FILES[split]))}
    assert len(people) > 100
    assert {split_of(Person(*name.split())) for name in people} == {split}
    assert not [name for name in people if name in corpus]
    for other in set(FILES) - {split}:
        text = _text(small_world, FILES[other])
        assert not [name for name in people if name in text]


def test_no_sentence_of_an_evaluated_text_names_its_people_in_the_corpus(small_world: Path) -> None:
    """Whole passages and premises: their sentences with a full name are not sentences of the corpus."""
    corpus = set((small_world / "corpus/microworld.txt").read_text(encoding="utf-8").splitlines())
    content = json.loads((small_world / "squad/dev-v1.1.json").read_text(encoding="utf-8"))
    passages = [paragraph["context"] for article in content["data"] for paragraph in article["paragraphs"]]
    sentences = [f"{text.rstrip('.')}." for passage in passages for text in passage.split(". ")]
    assert not [sentence for sentence in sentences if FULL_NAME.search(sentence) and sentence in corpus]


def test_answers_cannot_be_read_off_the_corpus(small_world: Path) -> None:
    """Looking up the sentence of the corpus that shares most words with a question gives the answer no oftener than
    looking up the question of another passage."""
    sentences = (small_world / "corpus/microworld.txt").read_text(encoding="utf-8").lower().splitlines()
    bags = [set(re.findall(r"\w+", sentence)) for sentence in sentences if sentence]
    content = json.loads((small_world / "squad/dev-v1.1.json").read_text(encoding="utf-8"))
    entries = [qa for article in content["data"] for paragraph in article["paragraphs"] for qa in paragraph["qas"]][
        :150
    ]
    answers = [set(re.findall(r"\w+", qa["answers"][0]["text"].lower())) - {"the"} for qa in entries]
    found = []
    for qa in entries:
        asked = set(re.findall(r"\w+", qa["question"].lower()))
        found.append(max(bags, key=lambda bag: len(bag & asked)))
    right = sum(answer <= bag for answer, bag in zip(answers, found, strict=True))
    chance = (
        sum(
            answer <= bag
            for shift in range(1, 11)
            for answer, bag in zip(answers, found[shift:] + found[:shift], strict=True)
        )
        / 10
    )
    assert right - chance < 0.08 * len(entries)
