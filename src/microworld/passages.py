"""Tasks about passages and what fits them: spans (SQuAD), question and sentence (QNLI), four
endings (SWAG).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from microworld import lexicon as words
from microworld.decisions import Choices
from microworld.grammar import (
    QUESTIONS,
    TEMPLATES,
    Fact,
    Sentence,
    plain_values,
    render,
    slots_of,
    tell_alone,
)
from microworld.lexicon import Person, Scene
from microworld.pairs import Row, moved, other_day, other_noun, story_text
from microworld.stories import Story

# ---- spans: a story about two people who do the same kinds of things, so every question has a
# rival answer -----------

PASSAGES_PER_ARTICLE = 5
QUESTIONS_PER_PASSAGE = 3


@dataclass(frozen=True)
class Passage:
    text: str
    told: tuple[tuple[Sentence, int], ...]
    """Each sentence with its offset in `text`."""
    cast: tuple[Person, ...]

    @property
    def facts(self) -> list[Fact]:
        return [sentence.fact for sentence, _ in self.told if sentence.fact is not None]


def tell_passage(choices: Choices, split: str, scenes: Sequence[Scene]) -> Passage:
    """Three or four sentences: both people do something (half of the time the same to the same
    object, elsewhere and on another day), and a fact of another kind is told of one or both."""
    story = Story(choices, split, scenes, cast_size=2)
    other = choices.pick("kind", ("transfer", "own", "home", "employ"))
    kinds = ["did", "did"] + [other] * choices.pick("others", (1, 2))
    same_deed = choices.chance("same deed", 0.5)
    told, offset, deed = [], 0, None
    for index in choices.shuffled("order", range(len(kinds))):
        person = story.cast[index % 2]
        if kinds[index] == "did" and deed and same_deed:
            fact = other_day(choices, moved(choices, deed, "same deed"), "same deed day").replace(
                people=(person,)
            )
            story.step += 1
            story.facts.append(fact)
        else:
            fact = story.new_fact(kinds[index], person)
        deed = fact if fact.kind == "did" else deed
        sentence = story.tell(fact)
        told.append((sentence, offset))
        offset += len(sentence.text) + 1
    return Passage(" ".join(sentence.text for sentence, _ in told), tuple(told), tuple(story.cast))


@dataclass(frozen=True)
class Asked:
    question: str
    answer: str
    start: int
    fact: Fact
    template: str


def _answer(passage: Passage, index: int, slot: str) -> tuple[str, int] | None:
    """The answer's text and offset, or None where the sentence has only a pronoun or a job in its
    place.
    """
    sentence, offset = passage.told[index]
    span = sentence.span(slot) or sentence.span(f"{slot}_obj")
    if span is None:
        return None
    text = sentence.text[span[0] : span[1]]
    if slot in "PQ" and text.split(" ")[0] not in {person.first for person in passage.cast}:
        return None
    return text, offset + span[0]


def ask_text(choices: Choices, fact: Fact, template: str, address: Any) -> str:
    """The question, its people by full or first name."""
    values = plain_values(fact)
    if choices.chance((address, "first name"), 0.5):
        values |= {letter: person.first for letter, person in zip("PQ", fact.people, strict=False)}
    return render(template, values, None).text


def _matches(fact: Fact, other: Fact, template: str) -> bool:
    """Whether `other` fits everything the question says of `fact`."""
    mine, theirs = plain_values(fact), plain_values(other)
    return other.kind == fact.kind and all(
        mine[slot] == theirs[slot] for slot in slots_of(template)
    )


def questions(choices: Choices, passage: Passage) -> list[Asked]:
    """Every question with exactly one answer in the passage, in random order."""
    found = []
    for index, fact in enumerate(passage.facts):
        for number, (slot, wordings) in enumerate(QUESTIONS[fact.kind]):
            answer = _answer(passage, index, slot)
            template = choices.pick((index, number, "wording"), wordings)
            if answer and sum(_matches(fact, other, template) for other in passage.facts) == 1:
                text = ask_text(choices, fact, template, (index, number))
                found.append(Asked(text, answer[0], answer[1], fact, template))
    return choices.shuffled("questions", found)


def unanswerable(choices: Choices, passage: Passage, asked: Asked, address: Any) -> str | None:
    """The question with one key exchanged for another of the passage, so that nothing answers
    it.
    """
    changes = []
    for changed in _exchanged(passage, asked.fact):
        # The change must show in the question, and must not make it another fact's.
        if _matches(asked.fact, changed, asked.template):
            continue
        if not any(_matches(changed, fact, asked.template) for fact in passage.facts):
            changes.append(changed)
    if not changes:
        return None
    changed = choices.pick((address, "change"), changes)
    return ask_text(choices, changed, asked.template, (address, "changed"))


def _exchanged(passage: Passage, fact: Fact) -> list[Fact]:
    """The fact with its people exchanged, or with people or the thing of another fact."""
    rivals = [rival for rival in passage.facts if rival != fact]
    changes = []
    if len(fact.people) == 2:
        changes.append(fact.replace(people=fact.people[::-1]))
    for rival in rivals:
        if rival.kind == fact.kind and rival.people != fact.people:
            changes.append(fact.replace(people=rival.people))
    for rival in rivals:
        if "noun" in dict(rival.args):
            changes.append(fact.replace(noun=rival["noun"]))
    return changes


def squad(
    seed: str, split: str, scenes: Sequence[Scene], num_questions: int, version: str
) -> dict[str, Any]:
    """A SQuAD file (`version` "1.1" or "v2.0"); in 2.0 about 40 % of the questions have no
    answer.
    """
    articles: list[dict[str, Any]] = []
    count = number = 0
    while count < num_questions:
        choices = Choices(f"{seed}/squad-{version}/{split}/{number}")
        passage = tell_passage(choices, split, scenes)
        if number % PASSAGES_PER_ARTICLE == 0:
            articles.append({"title": f"Story_{split}_{len(articles)}", "paragraphs": []})
        asked = questions(choices, passage)[: min(QUESTIONS_PER_PASSAGE, num_questions - count)]
        name = f"{split}-{number}"
        entries = [
            _entry(choices, passage, one, f"{name}-{index}", version)
            for index, one in enumerate(asked)
        ]
        articles[-1]["paragraphs"].append({"context": passage.text, "qas": entries})
        number += 1
        count += len(entries)
    return {"version": version, "data": articles}


def _entry(
    choices: Choices, passage: Passage, asked: Asked, name: str, version: str
) -> dict[str, Any]:
    answers = [{"text": asked.answer, "answer_start": asked.start}]
    if version == "1.1":
        return {"id": name, "question": asked.question, "answers": answers}
    wrong = (
        unanswerable(choices, passage, asked, name)
        if choices.chance((name, "impossible"), 0.45)
        else None
    )
    if wrong is None:
        return {"id": name, "question": asked.question, "answers": answers, "is_impossible": False}
    return {
        "id": name,
        "question": wrong,
        "answers": [],
        "is_impossible": True,
        "plausible_answers": answers,
    }


# ---- a question and a sentence, and four endings
# ---------------------------------------------------------------------


def qnli(choices: Choices, split: str, scenes: Sequence[Scene]) -> Row:
    """Does the sentence answer the question? What does not: another thing, another person, the
    answer left out, or two clauses with their people exchanged."""
    label = choices.pick("label", ("entailment", "not_entailment"))
    story = Story(choices, split, scenes, cast_size=2)
    fact = story.new_fact("did", story.cast[0])
    rival = story.new_fact("did", story.cast[1])
    slot, wordings = choices.pick(
        "slot", [question for question in QUESTIONS["did"] if question[0] != "P"]
    )
    template = choices.pick("wording", wordings)
    if label == "entailment":
        sentence = (
            _two_clauses(choices, fact, rival)
            if choices.chance("two", 0.4)
            else _alone(choices, fact)
        )
    else:
        reason = choices.pick("reason", ("person", "thing", "missing", "exchanged"))
        sentence = _no_answer(choices, fact, rival, slot, reason)
    return {
        "question": ask_text(choices, fact, template, "question"),
        "sentence": sentence,
        "label": label,
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
        return _two_clauses(
            choices, fact.replace(people=rival.people), rival.replace(people=fact.people)
        )
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
    """SWAG: a judgement and its reaction, a cause and its effect, or a need and what is taken;
    three endings of the wrong sort."""
    story = Story(choices, split, scenes, cast_size=2)
    kind = choices.pick("kind", ("quality", "cause", "need"))
    fact = story.new_fact(kind)
    if kind == "quality":
        beginning = _judgement(story, fact)
    elif kind == "cause":
        beginning = _cause(fact)
    else:
        beginning = _need(fact)
    label = choices.pick("label", range(4))
    endings = choices.shuffled("wrong", beginning.wrong)[:3]
    endings.insert(label, choices.pick("right", beginning.right))
    row = {f"ending{index}": f"{ending}." for index, ending in enumerate(endings)}
    return row | {"sent1": beginning.first, "sent2": beginning.second, "label": str(label)}


@dataclass(frozen=True)
class Beginning:
    """A sentence, the beginning of a second one, and endings that do and do not fit."""

    first: str
    second: str
    right: tuple[str, ...]
    wrong: tuple[str, ...]


def _judgement(story: Story, fact: Fact) -> Beginning:
    first = story_text(story, fact)
    second = f"So {fact.people[0].first}"
    if story.last_is_good:
        return Beginning(first, second, words.GLAD_REACTIONS, words.SORRY_REACTIONS)
    return Beginning(first, second, words.SORRY_REACTIONS, words.GLAD_REACTIONS)


def _cause(fact: Fact) -> Beginning:
    person = fact.people[0]
    right = next(effects for causes, effects in words.CAUSES if fact["cause"] in causes)
    effects = chain.from_iterable(effects for _, effects in words.CAUSES)
    wrong = [effect for effect in effects if effect not in right]
    first = f"{person.full} saw that {fact['cause']}."
    return Beginning(first, f"So {person.first}", right, tuple(wrong))


def _need(fact: Fact) -> Beginning:
    person = fact.people[0]
    kind = fact["kind_of"]
    right: list[str] = []
    wrong: list[str] = []
    for noun in words.OBJECTS:
        endings = right if noun in words.KINDS[kind] else wrong
        endings.append(f"took the {noun} from {fact['place']}")
    first = f"{person.full} wanted {words.article(kind)} {kind}."
    return Beginning(first, person.first, tuple(right), tuple(wrong))
