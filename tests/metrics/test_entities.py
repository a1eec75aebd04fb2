"""Entities as conlleval sees them: equal to seqeval on anything, in every scheme."""

from __future__ import annotations

import random

import pytest

from clozelab.metrics.entities import (
    Entity,
    entities,
    entity_scores,
    scheme_of,
    tag_scores,
    to_iob2,
)

TYPES = ("PER", "LOC", "MISC")


def random_tags(rng: random.Random, prefixes: str, length: int) -> list[str]:
    """Any prefix anywhere: mostly sequences that break their scheme."""
    return [
        "O" if rng.random() < 0.4 else f"{rng.choice(prefixes)}-{rng.choice(TYPES)}"
        for _ in range(length)
    ]


def with_mistakes(rng: random.Random, prefixes: str, tags: list[str]) -> list[str]:
    """The tags, three in ten of them replaced by any other."""
    return [tag if rng.random() < 0.7 else random_tags(rng, prefixes, 1)[0] for tag in tags]


def iob1(rng: random.Random, length: int) -> list[str]:
    """A true IOB1 sequence: B only where an entity follows one of its type."""
    tags: list[str] = []
    while len(tags) < length:
        name, size = rng.choice([*TYPES, ""]), rng.randint(1, 3)
        if not name:
            tags += ["O"] * size
        else:
            touches = bool(tags) and tags[-1].endswith(name)
            tags += [f"B-{name}" if touches else f"I-{name}"] + [f"I-{name}"] * (size - 1)
    return tags[:length]


@pytest.mark.parametrize("prefixes", ["BI", "I", "BIES"])
def test_equals_seqeval_on_random_tags(prefixes: str) -> None:
    """120 files of a few sentences each: entities, precision, recall, F1."""
    metrics = pytest.importorskip("seqeval.metrics")
    labelling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    rng = random.Random(prefixes)
    for case in range(120):
        lengths = [rng.randint(1, 9) for _ in range(rng.randint(1, 3))]
        gold = [iob1(rng, n) if case % 2 else random_tags(rng, prefixes, n) for n in lengths]
        predicted = [with_mistakes(rng, prefixes, sentence) for sentence in gold]
        for tags in gold:
            expected = [(name, start, end + 1) for name, start, end in labelling.get_entities(tags)]
            assert entities(tags) == expected, tags
        ours = entity_scores(predicted, gold)
        for name in ("precision", "recall", "f1"):
            theirs = getattr(metrics, f"{name}_score")(gold, predicted, zero_division=0)
            assert ours[name] == pytest.approx(theirs, abs=1e-12), (name, gold, predicted)
        assert ours["accuracy"] == pytest.approx(metrics.accuracy_score(gold, predicted))


def test_conversion_keeps_the_entities() -> None:
    rng = random.Random(1)
    for _ in range(1000):
        tags = random_tags(rng, "BIES", rng.randint(1, 12))
        converted = to_iob2(tags)
        assert entities(converted) == entities(tags)
        assert scheme_of([converted]) == "IOB2"
        assert to_iob2(converted) == converted


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("I-PER I-PER B-PER O I-LOC", "IOB1"),
        ("B-PER I-PER B-PER O B-LOC", "IOB2"),
        ("B-PER E-PER S-PER O S-LOC", "BIOES"),
        ("B-PER L-PER U-PER O U-LOC", "BIOES"),
        ("I-PER I-PER B-PER O B-LOC", "mixed"),
        ("O O", "IOB2"),
        ("PER PER LOC O LOC", "plain"),
    ],
)
def test_schemes_are_told_apart(tags: str, scheme: str) -> None:
    assert scheme_of([tags.split()]) == scheme
    if scheme != "IOB2":
        return
    assert to_iob2(tags.split()) == tags.split()


def written(rng: random.Random, scheme: str, length: int) -> tuple[list[str], list[Entity]]:
    """A valid sequence of a scheme, and the entities that it was made of."""
    tags: list[str] = []
    made = []
    while len(tags) < length:
        name, size = rng.choice([*TYPES, ""]), min(rng.randint(1, 3), length - len(tags))
        if not name:
            tags += ["O"] * size
            continue
        touches = bool(tags) and tags[-1].endswith(name)
        made.append(Entity(name, len(tags), len(tags) + size))
        # marks of a single word, and of the first, inner and last words
        single, first, inner, last = {
            "IOB1": ("B" if touches else "I", "B" if touches else "I", "I", "I"),
            "IOB2": ("B", "B", "I", "I"),
            "IOE2": ("E", "I", "I", "E"),
            "IOBES": ("S", "B", "I", "E"),
            "BILOU": ("U", "B", "I", "L"),
        }[scheme]
        marks = [single] if size == 1 else [first, *[inner] * (size - 2), last]
        tags += [f"{mark}-{name}" for mark in marks]
    return tags, made


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "IOE2", "IOBES", "BILOU"])
def test_each_scheme_equals_seqevals_strict_reading(scheme: str) -> None:
    """Valid files are the entities that were written, and score as by the scheme's own rules."""
    from seqeval import scheme as schemes
    from seqeval.metrics import f1_score

    rng = random.Random(scheme)
    for _ in range(100):
        gold, made = written(rng, scheme, 8)
        predicted, _ = written(rng, scheme, 8)
        assert entities(gold) == made == entities(to_iob2(gold))
        strict = {"mode": "strict", "scheme": getattr(schemes, scheme), "zero_division": 0}
        expected = f1_score([gold, gold], [predicted, gold], **strict)
        ours = entity_scores([predicted, gold], [gold, gold])["f1"]
        assert ours == pytest.approx(expected, abs=1e-12), (gold, predicted)


@pytest.mark.parametrize("tag", ["B-PER|B-ORG", "B-PER|O", "O|I-ORG"])
def test_entities_inside_of_others_are_refused(tag: str) -> None:
    with pytest.raises(ValueError, match="inside of others: keep one layer"):
        scheme_of([["O", "B-A|B"], [tag]])


def test_a_right_word_is_no_right_entity() -> None:
    scores = entity_scores([["B-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "B-LOC"]])
    assert scores == {"f1": 0.5, "precision": 0.5, "recall": 0.5, "accuracy": pytest.approx(2 / 3)}
    assert entity_scores([["O", "O"]], [["O", "O"]])["f1"] == 0.0
    assert tag_scores([["NOUN", "VERB"], ["X"]], [["NOUN", "NOUN"], ["X"]]) == {
        "accuracy": pytest.approx(2 / 3)
    }


@pytest.mark.parametrize("tag", ["B_PER", "Q-PER", "B-", "B", "", "BI-PER"])
def test_what_is_no_tag_is_refused(tag: str) -> None:
    with pytest.raises(ValueError, match="is not an entity tag"):
        entities(["O", tag])


def test_sentences_must_match() -> None:
    with pytest.raises(ValueError, match="longer than"):
        entity_scores([["O"]], [["O", "O"]])
