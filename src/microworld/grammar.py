"""Facts and the sentences and questions that tell them.

A fact is a kind with arguments; each kind has several templates, about half of which put what is
told (a place, a thing, a person) *before* the words that say whose it is. That is unusual for
generated text and meant: a reader from left to right meets such a word before knowing what it
answers. Slots: `P`, `Q` are people as subjects, `P_obj`, `Q_obj` as objects, `P_he` a pronoun for
`P` inside its own sentence, `obj` a definite phrase; the rest are arguments by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from string import Formatter

from microworld.lexicon import Person, article


@dataclass(frozen=True)
class Fact:
    kind: str
    people: tuple[Person, ...]
    """`P`, then `Q` where the kind has two."""
    args: tuple[tuple[str, str], ...]

    def __getitem__(self, name: str) -> str:
        for key, value in self.args:
            if key == name:
                return value
        raise KeyError(name)

    def replace(self, people: tuple[Person, ...] | None = None, **changes: str) -> Fact:
        args = tuple((key, changes.get(key, value)) for key, value in self.args)
        return Fact(self.kind, people or self.people, args)


@dataclass(frozen=True)
class Sentence:
    text: str
    fact: Fact | None
    spans: tuple[tuple[str, int, int], ...]
    """(slot, start, end) in characters of `text`."""

    def span(self, slot: str) -> tuple[int, int] | None:
        return next(((start, end) for name, start, end in self.spans if name == slot), None)


TEMPLATES: dict[str, tuple[str, ...]] = {
    "did": (
        "{P} {past} {obj} {prep} {place} on {day}.",
        "{prep} {place}, {P} {past} {obj} on {day}.",
        "On {day}, {obj} was {part} {prep} {place} by {P_obj}.",
        "It was {P} who {past} {obj} {prep} {place} on {day}.",
        "{place} is where {P} {past} {obj} on {day}.",
        "What {P} {past} {prep} {place} on {day} was {obj}.",
        "{obj} was {part} {prep} {place} on {day} by {P_obj}.",
        "Not {prep2} {place2} but {prep} {place}, {P} {past} {obj} on {day}.",
        "{P} did not {base} {obj} {prep2} {place2} but {prep} {place} on {day}.",
        "On {day} it was {prep} {place} that {P} {past} {obj}.",
    ),
    "transfer": (
        "{P} {past} {obj} to {Q_obj} on {day}.",
        "{Q} {rpast} {obj} from {P_obj} on {day}.",
        "On {day}, {obj} was {part} to {Q_obj} by {P_obj}.",
        "From {P_obj}, {Q} {rpast} {obj} on {day}.",
        "To {Q_obj}, {P} {past} {obj} on {day}.",
        "It was {obj} that {Q} {rpast} from {P_obj} on {day}.",
        "It was {Q} who {rpast} {obj} from {P_obj} on {day}.",
        "On {day} it was {P} who {past} {obj} to {Q_obj}.",
    ),
    "own": (
        "{P} owns {a} {adj} {noun}.",
        "{a} {adj} {noun} belongs to {P_obj}.",
        "The owner of {a} {adj} {noun} is {P}.",
        "{a} {adj} {noun} is what {P} calls {P_his} own.",
    ),
    "home": (
        "{P} lives in {town}, {P_he} is {a} {job}.",
        "{P}, who works as {a} {job}, lives in {town}.",
        "{a} {job} from {town} is what {P} has become.",
        "In {town}, {P} works as {a} {job}.",
        "{town} is where {P} works as {a} {job}.",
    ),
    "employ": (
        "{P} works for the {org} every {day}.",
        "The {org} pays {P_obj} every {day}.",
        "Every {day} it is the {org} that pays {P_obj}.",
        "For the {org}, {P} works every {day}.",
    ),
    "compare": (
        "{P} is {more} than {Q}.",
        "{Q} is {less} than {P}.",
        "{Q} is not as {plain} as {P}.",
        "Not {Q} but {P} is the {more} one.",
    ),
    "group": (
        "{P} saw {a} {group} of {adj} {nouns} {prep} {place}.",
        "{prep} {place}, {P} saw {a} {group} of {adj} {nouns}.",
        "{a} {group} of {adj} {nouns} {prep} {place} was what {P} saw.",
        "{a} {group} of {adj} {nouns} was seen {prep} {place} by {P_obj}.",
    ),
    "there": (
        "{P} said that there {was} {quantity} {adj} {things} {prep} {place}.",
        "There {was} {quantity} {adj} {things} {prep} {place}, said {P}.",
        "{prep} {place} there {was} {quantity} {adj} {things}, said {P}.",
    ),
    "bought": (
        "{P} needed {q1} {food1}, {q2} {food2} and {q3} {food3}.",
        "{q1} {food1}, {q2} {food2} and {q3} {food3} were what {P} needed.",
        "On {day} {P} asked for {q1} {food1}, {q2} {food2} and {q3} {food3}.",
    ),
    "need": (
        "{P} wanted {a} {kind_of} and took {obj} from {place}.",
        "As {P_he} wanted {a} {kind_of}, {P} took {obj} from {place}.",
        "From {place} {P} took {obj}, because {P_he} wanted {a} {kind_of}.",
    ),
    "quality": (
        "{P} thought that {obj} was {good}.",
        "To {P_obj}, {obj} seemed {good}.",
        "{P} called {obj} {good}.",
        "{P} thought that {obj} was not {bad}.",
        "{obj} seemed far from {bad} to {P_obj}.",
        "{P} never called {obj} {bad}.",
        "{obj} seemed {bad} at first, but then {P} called it {good}.",
        "{P} called {obj} {good}, although it seemed {bad} at first.",
    ),
    "react": ("{P} {reaction}.", "So {P} {reaction}.", "That is why {P} {reaction}."),
    "cause": (
        "Because {cause}, {P} {effect}.",
        "{P} {effect}, because {cause}.",
        "{cause}, so {P} {effect}.",
        "That {P} {effect} was only because {cause}.",
    ),
}
FRAMES = ("{}", "People say that {}", "Everyone knew that {}", "It was no secret that {}")
FRAME_WEIGHTS = (0.88, 0.04, 0.04, 0.04)
OPENINGS = (
    "It was {a} {weather} {part} in {month} at the {scene}.",
    "One {weather} {part} in {month}, everybody met at the {scene}.",
    "This happened at the {scene}, on {a} {weather} {part} in {month}.",
)

Question = tuple[str, tuple[str, ...]]
"""The slot that answers, and wordings."""
QUESTIONS: dict[str, tuple[Question, ...]] = {
    "did": (
        ("place", ("Where did {P} {base} {obj}?", "In which place was {obj} {part} by {P}?")),
        ("P", ("Who {past} {obj} {prep} {place}?", "By whom was {obj} {part} {prep} {place}?")),
        (
            "obj",
            (
                "What did {P} {base} {prep} {place}?",
                "Which thing was {part} {prep} {place} by {P}?",
            ),
        ),
        ("day", ("When did {P} {base} {obj}?", "On which day was {obj} {part} by {P}?")),
    ),
    "transfer": (
        ("Q", ("Who {rpast} {obj} from {P}?", "To whom did {P} {base} {obj}?")),
        ("P", ("Who {past} {obj} to {Q}?", "From whom did {Q} {rbase} {obj}?")),
        ("obj", ("What did {P} {base} to {Q}?", "What did {Q} {rbase} from {P}?")),
    ),
    "home": (
        ("town", ("Where does {P} live?", "In which town does {P} work?")),
        ("job", ("What is the job of {P}?", "As what does {P} work?")),
    ),
    "employ": (
        ("org", ("Who pays {P} every {day}?", "For which house does {P} work every {day}?")),
    ),
    "own": (
        ("P", ("Who owns the {adj} {noun}?", "To whom does the {adj} {noun} belong?")),
        ("noun", ("What does {P} own?", "What belongs to {P}?")),
    ),
}


@cache
def parsed(template: str) -> tuple[tuple[str, str | None], ...]:
    return tuple((literal, slot) for literal, slot, _, _ in Formatter().parse(template))


@cache
def slots_of(template: str) -> tuple[str, ...]:
    return tuple(slot for _, slot in parsed(template) if slot)


def render(template: str, values: Mapping[str, str], fact: Fact | None) -> Sentence:
    """The template with its slots filled and a capital in front."""
    parts: list[str] = []
    spans: list[tuple[str, int, int]] = []
    length = 0
    for literal, slot in parsed(template):
        parts.append(literal)
        length += len(literal)
        if slot is None:
            continue
        value = values[slot]
        spans.append((slot, length, length + len(value)))
        parts.append(value)
        length += len(value)
    text = "".join(parts)
    return Sentence(text[0].upper() + text[1:], fact, tuple(spans))


def plain_values(fact: Fact) -> dict[str, str]:
    """Slot values of a fact that stands alone: full names, bare objects."""
    values = dict(fact.args)
    for letter, person in zip("PQ", fact.people, strict=False):
        values[letter] = values[f"{letter}_obj"] = person.full
        values[f"{letter}_he"] = "she" if person.is_woman else "he"
        values[f"{letter}_his"] = "her" if person.is_woman else "his"
    if "noun" in values:
        values["obj"] = "the " + values["noun"]
    values["a"] = article_for(fact)
    return values


def article_for(fact: Fact) -> str:
    """a/an of the phrase after the slot `a`: an adjective, a job, a classifier or a kind, by the
    fact's kind.
    """
    head = {"own": "adj", "home": "job", "group": "group", "need": "kind_of"}.get(fact.kind)
    return article(fact[head]) if head else "a"


def tell_alone(fact: Fact, template: str, **changes: str) -> Sentence:
    """The fact outside any story; `changes` overwrite slots."""
    return render(template, plain_values(fact) | changes, fact)


@cache
def in_frame(frame: str, template: str) -> str:
    """The template as a clause of `frame`."""
    return template if frame == "{}" else frame.replace("{}", template[0].lower() + template[1:])
