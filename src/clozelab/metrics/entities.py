"""Entities in sequences of tags, as the CoNLL-2000 shared task's `conlleval` sees them, and scores
over them.

A tag is `O` or a prefix, a hyphen and a type: `B-PER`. One rule reads all schemes (IOB1, IOB2, IOE,
BIOES; L and U of BILOU are taken for E and S, M of BMES for I): an entity begins at B or S, after
an E or S, after O, and where the type changes. So a sequence that breaks its scheme, as a model's
may, still has well-defined entities.

Scores are shares of one, over all entities (micro average): an entity counts when its type and both
ends are right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

OUTSIDE = "O"
_SAME_PREFIX = {"L": "E", "U": "S", "M": "I"}
_PREFIXES = "BIES"


class Entity(NamedTuple):
    type: str
    start: int  # number of its first word
    end: int  # one behind its last word


def split_tag(tag: str) -> tuple[str, str]:
    """(prefix B, I, E, S or O; type). Raises ValueError for anything that is not such a tag."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, _, name = tag.partition("-")
    prefix = _SAME_PREFIX.get(prefix, prefix)
    if len(prefix) != 1 or prefix not in _PREFIXES or not name:
        raise ValueError(
            f"{tag!r} is not an entity tag: expected O, or B-, I-, E- or S- and a type"
        )
    return prefix, name


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence, in order."""
    found: list[Entity] = []
    start, previous = 0, (OUTSIDE, "")
    for place, tag in enumerate([*tags, OUTSIDE]):
        current = split_tag(tag)
        is_outside = current[0] == OUTSIDE
        # Inside one, and not the one before it going on.
        begins = not is_outside and (
            current[0] in "BS" or previous[0] in "ESO" or previous[1] != current[1]
        )
        if previous[0] != OUTSIDE and (begins or is_outside):
            found.append(Entity(previous[1], start, place))
        if begins:
            start = place
        previous = current
    return found


def scheme_of(sentences: Sequence[Sequence[str]]) -> str:
    """How a file's tags are written: BIOES, IOB2 (every entity begins with B), IOB1 (B only between
    two of a type), or
    `mixed`, which fits neither; IOB2 for a file without entities."""
    started_by_i = needless_b = 0
    for tags in sentences:
        previous = (OUTSIDE, "")
        for tag in tags:
            current = split_tag(tag)
            if current[0] in "ES":
                return "BIOES"
            started_by_i += current[0] == "I" and previous[1] != current[1]
            needless_b += current[0] == "B" and previous[1] != current[1]
            previous = current
    if not started_by_i:
        return "IOB2"
    return "mixed" if needless_b else "IOB1"


def to_iob2(tags: Sequence[str]) -> list[str]:
    """The same entities of one sentence, every first word tagged B and every other one I."""
    result = [OUTSIDE] * len(tags)
    for entity in entities(tags):
        result[entity.start : entity.end] = [f"I-{entity.type}"] * (entity.end - entity.start)
        result[entity.start] = f"B-{entity.type}"
    return result


def entity_scores(
    predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]
) -> dict[str, float]:
    """precision, recall and f1 of entities, accuracy of tags, over all sentences; 0.0 where nothing
    is to count.
    """
    found = expected = right = 0
    for predicted_tags, label_tags in zip(predictions, labels, strict=True):
        predicted_set, label_set = set(entities(predicted_tags)), set(entities(label_tags))
        found, expected = found + len(predicted_set), expected + len(label_set)
        right += len(predicted_set & label_set)
    shares = {"f1": _share(2 * right, found + expected), "precision": _share(right, found)}
    return shares | {"recall": _share(right, expected)} | tag_scores(predictions, labels)


def tag_scores(
    predictions: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]
) -> dict[str, float]:
    """accuracy of tags that are no entities (parts of speech)."""
    pairs = [
        pair
        for p, label in zip(predictions, labels, strict=True)
        for pair in zip(p, label, strict=True)
    ]
    return {"accuracy": _share(sum(p == label for p, label in pairs), len(pairs))}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
