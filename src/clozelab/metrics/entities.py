"""Entities in sequences of tags, and their scores, as CoNLL-2000's `conlleval` sees them.

A tag is `O` or a prefix, a hyphen and a type: `B-PER`. A type alone, `PER`, is read as `I-PER`, as
transformers' aggregation_strategy=simple does. One rule reads all schemes (IOB1, IOB2, IOE, BIOES;
L and U of BILOU are taken for E and S, M of BMES for I): an entity begins at B or S, after an E or
S, after O, and where the type changes. So a sequence that breaks its scheme, as a model's
may, still has well-defined entities.

Scores are shares of one, over all entities (micro average): an entity counts when its type and both
ends are right.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from clozelab.metrics.classes import ClassScores
from clozelab.metrics.metric import Metric

OUTSIDE = "O"
PLAIN = "plain"
# what `entity_scores` and `tag_scores` compute
ENTITY_METRICS = tuple(map(Metric.share, ("f1", "precision", "recall", "accuracy")))
TAG_METRICS = (Metric.share("accuracy"),)
# Other schemes' L(ast), U(nit) and M(iddle) -> E(nd), S(ingle) and I(nside).
_SAME_PREFIX = {"L": "E", "U": "S", "M": "I"}
_PREFIXES = "BIES"
# no hyphen, nor a lone prefix, nor one with another mark behind it
PLAIN_TYPE = re.compile(r"(?![BIESLUM]([_.:/].*)?$)\w[^-]*")

# two layers of tags in one cell, as sets with entities inside of others have them
NESTED = re.compile(r"\|(O$|[BIESLUM]-)")


class Entity(NamedTuple):
    type: str
    start: int  # number of its first word
    end: int  # one behind its last word


def split_tag(tag: str) -> tuple[str, str]:
    """Return (prefix B, I, E, S or O; type of a tag); the prefix of a plain type is I.

    ValueError for anything that is no such tag.
    """
    if tag == OUTSIDE:
        return OUTSIDE, ""
    if NESTED.search(tag):
        raise ValueError(f"{tag!r} marks entities inside of others: keep one layer of tags")
    prefix, _, name = tag.partition("-")
    prefix = _SAME_PREFIX.get(prefix, prefix)
    if len(prefix) != 1 or prefix not in _PREFIXES or not name:
        if PLAIN_TYPE.fullmatch(tag):
            return "I", tag
        raise ValueError(
            f"{tag!r} is not an entity tag: expected O, and types, or B-, I-, E- or S- and a type"
        )
    return prefix, name


def are_plain(tags: Collection[str]) -> bool:
    """Whether these tags, all that there are, are types without prefixes beside O: `O`, `PER`.

    ValueError where they mark no entities: types alone (`NOUN`, `VERB`), or some with a prefix.
    """
    plain = [tag for tag in tags if split_tag(tag)[1] == tag]
    num_outside = int(OUTSIDE in tags)
    if plain and (not num_outside or len(plain) + num_outside < len(tags)):
        raise ValueError(
            f"{plain[0]!r} is not an entity tag: expected O, and B-, I-, E- or S- and a type, or O"
            " and types alone"
        )
    return bool(plain)


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of one sentence, in order."""
    result = []
    start = 0
    previous_prefix = OUTSIDE
    previous_type = ""
    # an O behind the last tag ends the last entity
    for position, tag in enumerate([*tags, OUTSIDE]):
        prefix, entity_type = split_tag(tag)
        is_outside = prefix == OUTSIDE
        # Inside one, and not the one before it going on.
        begins = not is_outside and (
            prefix in "BS" or previous_prefix in "ESO" or previous_type != entity_type
        )
        if previous_prefix != OUTSIDE and (begins or is_outside):
            result.append(Entity(previous_type, start, position))
        if begins:
            start = position
        previous_prefix = prefix
        previous_type = entity_type
    return result


def scheme_of(sentences: Sequence[Sequence[str]]) -> str:
    """Return how a file's tags are written; IOB2 for a file without entities.

    BIOES; IOB2, every entity begins with B; IOB1, B stands only between two of a type; PLAIN, types
    without prefixes; or `mixed`, which fits neither. ValueError for tags that are no entities.
    """
    if are_plain(dict.fromkeys(chain.from_iterable(sentences))):
        return PLAIN
    num_started_by_i = 0
    num_needless_b = 0
    for tags in sentences:
        previous_type = ""
        for tag in tags:
            prefix, entity_type = split_tag(tag)
            if prefix in "ES":
                return "BIOES"
            if previous_type != entity_type:
                num_started_by_i += prefix == "I"
                num_needless_b += prefix == "B"
            previous_type = entity_type
    if not num_started_by_i:
        return "IOB2"
    return "mixed" if num_needless_b else "IOB1"


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Return the same entities of one sentence, every first word tagged B and every other one I."""
    result = [OUTSIDE] * len(tags)
    for entity in entities(tags):
        result[entity.start : entity.end] = [f"I-{entity.type}"] * (entity.end - entity.start)
        result[entity.start] = f"B-{entity.type}"
    return result


def to_plain(tags: Sequence[str]) -> list[str]:
    """Return the type of each tag, without its prefix; O as it is."""
    return [split_tag(tag)[1] or OUTSIDE for tag in tags]


def entity_scores(
    predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return precision, recall and f1 of entities, and accuracy of tags, over all sentences.

    A score is 0.0 where nothing is to count.
    """
    num_predicted = 0
    num_expected = 0
    num_correct = 0
    for predicted_tags, label_tags in zip(predictions, labels, strict=True):
        predicted = set(entities(predicted_tags))
        expected = set(entities(label_tags))
        num_predicted += len(predicted)
        num_expected += len(expected)
        num_correct += len(predicted & expected)
    return {
        "f1": _share(2 * num_correct, num_predicted + num_expected),
        "precision": _share(num_correct, num_predicted),
        "recall": _share(num_correct, num_expected),
        **tag_scores(predictions, labels),
    }


def scores_of_types(
    predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]
) -> tuple[list[str], ClassScores]:
    """Return the types that occur, sorted, and the scores of each one's entities."""
    correct = Counter[str]()
    of_labels = Counter[str]()
    of_answers = Counter[str]()
    type_of = attrgetter("type")
    for predicted_tags, label_tags in zip(predictions, labels, strict=True):
        predicted = set(entities(predicted_tags))
        expected = set(entities(label_tags))
        correct.update(map(type_of, predicted & expected))
        of_labels.update(map(type_of, expected))
        of_answers.update(map(type_of, predicted))
    names = sorted(of_labels | of_answers)
    counts = []
    for counter in (correct, of_labels, of_answers):
        counts.append(np.array(list(map(counter.__getitem__, names)), dtype=np.int64))
    return names, ClassScores(*counts)


def tag_scores(
    predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Return the accuracy of tags, also of those that are no entities (parts of speech)."""
    num_correct = 0
    num_tags = 0
    for predicted_tags, label_tags in zip(predictions, labels, strict=True):
        for predicted, label in zip(predicted_tags, label_tags, strict=True):
            num_correct += predicted == label
            num_tags += 1
    return {"accuracy": _share(num_correct, num_tags)}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
