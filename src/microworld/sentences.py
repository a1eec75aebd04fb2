"""Two tasks about which sentence fits: question-sentence entailment (QNLI) and four-way continuation (SWAG)."""

from __future__ import annotations

from collections.abc import Sequence

from microworld import lexicon as words
from microworld.choices import Choices
from microworld.documents import Story
from microworld.grammar import QUESTIONS, TEMPLATES, Fact, tell_alone
from microworld.lexicon import Scene
from microworld.pairs import Row, moved, other_noun, story_text
from microworld.spans import ask_text


def qnli(choices: Choices, split: str, scenes: Sequence[Scene]) -> Row:
    """Does the sentence answer the question? What does not: another thing, another person, the answer left out, or two
    clauses with their people exchanged."""
    label = choices.pick("label", ("entailment", "not_entailment"))
    story = Story(choices, split, scenes, cast_size=2)
    fact = story.new_fact("did", story.cast[0])
    rival = story.new_fact("did", story.cast[1])
    slot, wordings = choices.pick("slot", [question for question in QUESTIONS["did"] if question[0] != "P"])
    template = choices.pick("wording", wordings)
    if label == "entailment":
        sentence = _two_clauses(choices, fact, rival) if choices.chance("two", 0.4) else _alone(choices, fact)
    else:
        reason = choices.pick("reason", ("person", "thing", "missing", "exchanged"))
        sentence = _no_answer(choices, fact, rival, slot, reason)
    return {
        "question": ask_text(choices, fact, template, "question"),
        "sentence": sentence,
        "label": label,
        "people": "|".join(person.full for person in story.cast),
    }


def _alone(choices: Choices, fact: Fact) -> str:
    templates = [template for template in TEMPLATES["did"] if "place2" not in template]
    return tell_alone(fact, choices.pick("template", templates)).text


def _two_clauses(choices: Choices, fact: Fact, rival: Fact) -> str:
    first, second = choices.shuffled("clauses", (fact, rival))
    templates = TEMPLATES["did"][:3]
    left = tell_alone(first, choices.pick("left", templates)).text
    right = tell_alone(second, choices.pick("right", templates)).text
    names = {person.first for person in (*fact.people, *rival.people)}
    right = right if right.split(" ")[0] in names else right[0].lower() + right[1:]
    return f"{left[:-1]}, and {right}"


def _no_answer(choices: Choices, fact: Fact, rival: Fact, slot: str, reason: str) -> str:
    """A sentence that shares the question's words and does not answer it."""
    if reason == "exchanged":
        return _two_clauses(choices, fact.replace(people=rival.people), rival.replace(people=fact.people))
    if reason == "missing":
        return _without(choices, fact, slot)
    if reason == "person":
        return _alone(choices, fact.replace(people=rival.people))
    if slot == "obj":  # the question names the place: another place then
        return _alone(choices, moved(choices, fact, "elsewhere"))
    return _alone(choices, other_noun(choices, fact, "other"))


def _without(choices: Choices, fact: Fact, slot: str) -> str:
    """All of the fact but what is asked for."""
    wordings = {
        "place": (
            "{P} {past} {obj} on {day}.",
            "On {day}, {obj} was {part} by {P}.",
            "It was {P} who {past} {obj} on {day}.",
        ),
        "day": (
            "{P} {past} {obj} {prep} {place}.",
            "{prep} {place}, {P} {past} {obj}.",
            "{place} is where {P} {past} {obj}.",
        ),
        "obj": (
            "{P} was {prep} {place} on {day}.",
            "{prep} {place}, {P} was seen on {day}.",
            "On {day}, {P} was {prep} {place}.",
        ),
    }
    return tell_alone(fact, choices.pick("without", wordings[slot])).text


def continuation(choices: Choices, split: str, scenes: Sequence[Scene]) -> Row:
    """SWAG: a judgement and its reaction, a cause and its effect, or a need and what is taken; three endings of the
    wrong sort."""
    story = Story(choices, split, scenes, cast_size=2)
    kind = choices.pick("kind", ("quality", "cause", "need"))
    fact = story.new_fact(kind)
    person = fact.people[0]
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    if kind == "quality":
        first, begin = story_text(story, fact), f"So {person.first}"
        right, wrong = words.GLAD_REACTIONS, words.SORRY_REACTIONS
        if not story.last_is_good:
            right, wrong = wrong, right
    elif kind == "cause":
        first, begin = f"{person.full} saw that {fact['cause']}.", f"So {person.first}"
        right = next(cause[1] for cause in words.CAUSES if fact["cause"] in cause[0])
        wrong = tuple(effect for cause in words.CAUSES for effect in cause[1] if effect not in right)
    else:
        kind_of = fact["kind_of"]
        first, begin = f"{person.full} wanted {words.article(kind_of)} {kind_of}.", person.first
        taken = {noun: f"took the {noun} from {fact['place']}" for noun in words.OBJECTS}
        right = tuple(taken[noun] for noun in words.KINDS[kind_of])
        wrong = tuple(taken[noun] for noun in words.OBJECTS if noun not in words.KINDS[kind_of])
    label = choices.pick("label", range(4))
    endings = choices.shuffled("wrong", wrong)[:3]
    endings.insert(label, choices.pick("right", right))
    row = {f"ending{index}": f"{ending}." for index, ending in enumerate(endings)}
    return row | {"sent1": first, "sent2": begin, "label": str(label), "people": person.full}
