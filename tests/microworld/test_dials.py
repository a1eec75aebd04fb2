"""Tests of microworld.dials: the world with two dials, what can be known of it, and its tasks."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import numpy as np
import pytest

from microworld.dials import (
    ARTICLES,
    GROUPS,
    KINDS,
    MADE,
    OWN_PERSON_SHARE,
    PEOPLE,
    PLAIN_SHARE,
    PLAIN_VERBS,
    THINGS,
    VERBS,
    Reader,
    World,
    known_losses,
    task_files,
    write_world,
)

KIND_OF: dict[str, int] = {}
for number, things_of_kind in enumerate(THINGS):
    KIND_OF |= dict.fromkeys(things_of_kind, number)
SETTINGS = {
    "world_seed": 1,
    "right": 1.0,
    "following": 1.0,
    "num_documents": 12,
    "train_examples": 4,
}
SETTINGS |= {"validation_examples": 4, "entropy_documents": 3}


def all_sentences(world: World, kind: int) -> dict[tuple[str, ...], float]:
    """Every sentence of a kind with its probability, written out from the description of the
    world.
    """
    found = {}
    for person, verb, thing in itertools.product(PEOPLE, VERBS, THINGS[kind]):
        chance = (1 - OWN_PERSON_SHARE) / len(PEOPLE) + OWN_PERSON_SHARE / 3 * (
            PEOPLE.index(person) // 3 == kind
        )
        own = (1 - PLAIN_SHARE) / 2 * (VERBS.index(verb) // 2 == kind and verb not in PLAIN_VERBS)
        chance *= (PLAIN_SHARE / len(PLAIN_VERBS) if verb in PLAIN_VERBS else own) / len(
            THINGS[kind]
        )
        words = (person, verb, world.articles[thing], thing)
        if chance:
            found[words], found[words[::-1]] = chance * world.right, chance * (1 - world.right)
    return found


@pytest.mark.parametrize(
    ("right", "following"), [pytest.param(1.0, 1.0, marks=pytest.mark.slow), (0.3, 0.6), (0.0, 0.0)]
)
def test_what_can_be_known_is_what_counting_all_sentences_says(
    right: float, following: float
) -> None:
    """Two sentences: the probability of each word is a ratio of sums over all that they could
    be.
    """
    world, kinds = World(3, right, following), range(len(THINGS))
    tables = [all_sentences(world, kind) for kind in kinds]
    assert all(sum(table.values()) == pytest.approx(1) for table in tables)

    def share(seen: list[str | None], table: dict[tuple[str, ...], float]) -> float:
        total = 0.0
        for words, probability in table.items():
            if all(a in (None, b) for a, b in zip(seen, words, strict=True)):
                total += probability
        return total

    def chance(*seen: list[str | None]) -> float:
        shares = []
        for one in seen:
            shares.append([share(one, table) for table in tables])
        return sum(
            shares[0][a] * shares[1][b] / 8 * (following * (a == b) + (1 - following) / 8)
            for a, b in itertools.product(kinds, kinds)
        )

    first, second = world.document("held out/0")[:2]
    draw = random.Random(7)
    hidden = []
    for _ in range(2):
        hidden.append([draw.random() < 0.4 for _ in range(5)])
    seen = []
    for words, row in zip((first, second), hidden, strict=True):
        pairs = zip(words[:4], row, strict=False)
        seen.append([None if gone else word for word, gone in pairs])
    expected = []
    for at, words in enumerate((first, second)):
        for place in range(5):
            if hidden[at][place]:
                filled = [list(one) for one in seen]
                if place < 4:
                    filled[at][place] = words[place]
                expected.append(-math.log(chance(*filled) / chance(*seen)))
    assert Reader(world).masked([first, second], hidden) == pytest.approx(expected, abs=1e-12)
    whole = [-math.log(chance(list(first[:4]), list(second[:4])))]
    assert sum(Reader(world).left_to_right([first, second])) == pytest.approx(whole[0], abs=1e-12)


def test_dials_do_what_they_say() -> None:
    for right, ends in ((1.0, {True}), (0.0, {False}), (0.5, {True, False})):
        texts = []
        for n in range(20):
            texts.extend(World(1, right, 1.0).document(str(n)))
        assert {words[0] in PEOPLE for words in texts} == ends and all(
            words[4] == "." for words in texts
        )
    kinds = []
    for n in range(20):
        kinds.append([KIND_OF[words[3]] for words in World(1, 1.0, 1.0).document(str(n))])
    assert all(len(set(one)) == 1 for one in kinds) and len({one[0] for one in kinds}) > 3
    mixed = []
    for n in range(100):
        for words in World(1, 1.0, 0.0).document(str(n)):
            mixed.append(KIND_OF[words[3]])
    same = np.mean([a == b for a, b in itertools.pairwise(mixed)])
    assert same == pytest.approx(1 / 8, abs=0.04)


def test_labels_follow_from_the_text_and_no_thing_is_in_both_splits() -> None:
    files = task_files(World(1, 0.5, 1.0), 200, 200)
    things = {}
    for split in ("train", "dev"):
        words = " ".join(
            files[f"dials/{name}/{split}.{end}"]
            for name, end in (("tags", "txt"), ("kinds", "tsv"), ("pairs", "tsv"))
        )
        things[split] = {word for word in words.split() if word in KIND_OF}
        for line in files[f"dials/kinds/{split}.tsv"].splitlines()[1:]:
            text, label = line.split("\t")
            kind = next(KIND_OF[word] for word in text.split() if word in KIND_OF)
            assert label == ("made" if list(KINDS)[kind] in MADE else "natural")
        for line in files[f"dials/pairs/{split}.tsv"].splitlines()[1:]:
            _, *texts, label = line.split("\t")
            kinds = []
            for text in texts:
                kinds.append({KIND_OF[word] for word in text.split() if word in KIND_OF})
            assert len(kinds[0]) == len(kinds[1]) == 1 and label == (
                "same" if kinds[0] == kinds[1] else "other"
            )
        for block in files[f"dials/tags/{split}.txt"].replace(". X X O\n", "\n").split("\n\n"):
            cells = [line.split(" ") for line in block.splitlines()]
            wanted = [GROUPS[KIND_OF[cell[0]]] for cell in cells if cell[0] in KIND_OF]
            assert [cell[-1] for cell in cells if cell[0] in PEOPLE] == [
                f"B-{group}" for group in wanted
            ]
    assert not things["train"] & things["dev"] and len(things["train"] | things["dev"]) == 128


def test_an_article_says_nothing_of_a_kind() -> None:
    world = World(5, 1.0, 1.0)
    counts = []
    for things in THINGS:
        for half in (things[:8], things[8:]):
            articles = [world.articles[thing] for thing in half]
            counts.append([articles.count(one) for one in ARTICLES])
    assert counts[::2] == [counts[0]] * 8 and counts[1::2] == [counts[1]] * 8


def test_bounds_move_with_the_dials() -> None:
    nats = {}
    for dials in ((1.0, 1.0), (1.0, 0.0)):
        nats[dials] = [one["nats_per_word"] for one in known_losses(World(1, *dials), 40)]
    assert all(masked < left for left, masked in nats.values()), "both sides tell more than one"
    assert all(near < far for near, far in zip(*nats.values(), strict=True)), (
        "sentences of one kind tell of each other"
    )


def test_a_world_is_written_once_and_never_over_another(tmp_path: Path) -> None:
    assert write_world(tmp_path, **SETTINGS, only_look=True) is None and not list(
        tmp_path.iterdir()
    )
    folder = write_world(tmp_path, **SETTINGS)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert (
        write_world(tmp_path, **SETTINGS)
        == folder
        == write_world(tmp_path, **SETTINGS, only_look=True)
    )
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"holds another generated world \(right 1.0 -> 0.5\)"):
        write_world(tmp_path, **SETTINGS | {"right": 0.5})
    with pytest.raises(ValueError, match="right must be between 0 and 1, not 2"):
        write_world(tmp_path / "other", **SETTINGS | {"right": 2})
    assert not (tmp_path / "other").exists()
