"""Entities in CoNLL columns: people, towns (LOC) and houses of trade (ORG).

Many surnames are also towns or the first word of a house's name, so the word alone does not decide; the word to its
right often does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from microworld.choices import Choices
from microworld.documents import Story
from microworld.grammar import Sentence
from microworld.lexicon import Person, Scene

TOKEN = re.compile(r"\w+|[^\w\s]")
Tagged = list[tuple[str, str]]
KINDS = ("home", "home", "employ", "employ", "transfer", "compare", "did")


def tagged_sentence(sentence: Sentence, cast: Sequence[Person]) -> Tagged:
    """(token, IOB2 tag) of each token."""
    names = {name for person in cast for name in (person.first, person.full)}
    types = {"town": "LOC", "org": "ORG"} | dict.fromkeys(("P", "Q", "P_obj", "Q_obj"), "PER")
    spans = []
    for slot, start, end in sentence.spans:
        if slot in types and (types[slot] != "PER" or sentence.text[start:end] in names):
            spans.append((start, end, types[slot]))
    tagged = []
    for match in TOKEN.finditer(sentence.text):
        tag = "O"
        for start, end, name in spans:
            if start <= match.start() < end:
                tag = f"{'B' if match.start() == start else 'I'}-{name}"
        tagged.append((match.group(), tag))
    return tagged


def tagged_document(choices: Choices, split: str, scenes: Sequence[Scene]) -> list[Tagged]:
    """A short story as tagged sentences."""
    story = Story(choices, split, scenes)
    result = []
    for index in range(choices.pick("length", range(4, 8))):
        kinds = [kind for kind in KINDS if story.can_tell(kind)]
        fact = story.new_fact(choices.pick((index, "kind"), kinds))
        result.append(tagged_sentence(story.tell(fact), story.cast))
    return result
