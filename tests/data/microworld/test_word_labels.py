"""Endings and entities, decided from the text and the word lists alone; see test_labels.py for facts and questions."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from microworld import lexicon as words

FIRST = words.WOMEN + words.MEN


def check(rows: Sequence[tuple[Any, str]], judge: Callable[[Any], str]) -> None:
    """Every label is the reader's; labels moved on by one row are not."""
    wrong = [(row, label, judge(row)) for row, label in rows if judge(row) != label]
    assert rows and not wrong, wrong[0]
    moved = [label for _, label in rows[1:] + rows[:1]]
    assert sum(judge(row) == label for (row, _), label in zip(rows, moved, strict=True)) < 0.8 * len(rows)


def test_swag(small_world: Path) -> None:
    """The reaction by the judgement, the effect by the cause, the thing by the need: one ending, and no other."""

    def fits(start: str, ending: str) -> bool:
        ending = ending.rstrip(".")
        if wanted := re.search(r" wanted an? ([a-z ]+)\. ", start):
            return words.KIND_OF[ending.split(" ")[2]] == wanted[1]
        if cause := re.search(r" saw that ([^.]+)\. ", start):
            return any(cause[1] in causes and ending in effects for causes, effects in words.CAUSES)
        text = re.sub(r"(, although it )?seemed [a-z]+ at first(, but then)?", "", start.split(". ")[0])
        said = re.findall(r"[a-z]+", text.lower())
        is_good = any(word in words.GOOD for word in said) != any(word in said for word in ("not", "never", "far"))
        return ending in (words.GLAD_REACTIONS if is_good else words.SORRY_REACTIONS)

    def judge(row: dict[str, str]) -> str:
        return "".join(str(n) for n in range(4) if fits(row["startphrase"], row[f"ending{n}"]))

    with (small_world / "swag/train.csv").open(encoding="utf-8", newline="") as file:
        check([(row, row["label"]) for row in csv.DictReader(file)], judge)


def entity_tags(tokens: Sequence[str]) -> list[str]:
    """A house of trade ends in Guild or the like, a person begins with a first name, a town follows `in` or `from` or
    stands before `is where`."""
    tags = ["O"] * len(tokens)
    for index, token in enumerate(tokens):
        before, after = tokens[index - 1] if index else "", tokens[index + 1] if index + 1 < len(tokens) else ""
        if after in words.ORGANISATIONS and before.lower() == "the":
            tags[index : index + 2] = "B-ORG", "I-ORG"
        elif token in FIRST and tags[index] == "O":
            tags[index] = "B-PER"
            if after in words.SURNAMES:
                tags[index + 1] = "I-PER"
        elif token in words.TOWNS and tags[index] == "O" and (before.lower() in ("in", "from") or after == "is"):
            tags[index] = "B-LOC"
    return tags


def test_entities(small_world: Path) -> None:
    blocks = (small_world / "ner/train.txt").read_text(encoding="utf-8").strip().split("\n\n")
    sentences = [[line.split(" ") for line in block.splitlines()] for block in blocks if "DOCSTART" not in block]
    rows = [([cells[0] for cells in one], " ".join(cells[-1] for cells in one)) for one in sentences]
    check(rows, lambda tokens: " ".join(entity_tags(tokens)))
