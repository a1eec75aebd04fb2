"""Questions on passages, as spans (SQuAD 1.1 and 2.0).

A passage is a short story about two people who do the same kinds of things, so every question has a rival answer of the
right type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from microworld.choices import Choices
from microworld.documents import Story
from microworld.grammar import QUESTIONS, Fact, Sentence, plain_values, render, slots_of
from microworld.lexicon import Person, Scene
from microworld.pairs import moved, other_day

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
    """Three or four sentences: both people do something (half of the time the same to the same object, elsewhere and on
    another day), and a fact of another kind is told of one or both."""
    story = Story(choices, split, scenes, cast_size=2)
    other = choices.pick("kind", ("transfer", "own", "home", "employ"))
    kinds = ["did", "did"] + [other] * choices.pick("others", (1, 2))
    same_deed = choices.chance("same deed", 0.5)
    told, offset, deed = [], 0, None
    for index in choices.shuffled("order", range(len(kinds))):
        person = story.cast[index % 2]
        if kinds[index] == "did" and deed and same_deed:
            fact = other_day(choices, moved(choices, deed, "same deed"), "same deed day").replace(people=(person,))
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
    """The answer's text and offset, or None where the sentence has only a pronoun or a job in its place."""
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
    return other.kind == fact.kind and all(mine[slot] == theirs[slot] for slot in slots_of(template))


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
    """The question with one key exchanged for another of the passage, so that nothing answers it."""
    facts = [fact for fact in passage.facts if fact != asked.fact]
    changes = [asked.fact.replace(people=asked.fact.people[::-1])] if len(asked.fact.people) == 2 else []
    same_kind = [fact for fact in facts if fact.kind == asked.fact.kind and fact.people != asked.fact.people]
    changes += [asked.fact.replace(people=fact.people) for fact in same_kind]
    changes += [asked.fact.replace(noun=fact["noun"]) for fact in facts if "noun" in dict(fact.args)]
    good = [fact for fact in changes if not any(_matches(fact, other, asked.template) for other in passage.facts)]
    good = [fact for fact in good if not _matches(asked.fact, fact, asked.template)]
    if not good:
        return None
    return ask_text(choices, choices.pick((address, "change"), good), asked.template, (address, "changed"))


def squad(seed: str, split: str, scenes: Sequence[Scene], num_questions: int, version: str) -> dict[str, Any]:
    """A SQuAD file (`version` "1.1" or "v2.0"); in 2.0 about 40 % of the questions have no answer."""
    articles: list[dict[str, Any]] = []
    count = number = 0
    while count < num_questions:
        choices = Choices(f"{seed}/squad-{version}/{split}/{number}")
        passage = tell_passage(choices, split, scenes)
        if number % PASSAGES_PER_ARTICLE == 0:
            articles.append({"title": f"Story_{split}_{len(articles)}", "paragraphs": []})
        asked = questions(choices, passage)[: min(QUESTIONS_PER_PASSAGE, num_questions - count)]
        name = f"{split}-{number}"
        entries = [_entry(choices, passage, one, f"{name}-{index}", version) for index, one in enumerate(asked)]
        articles[-1]["paragraphs"].append({"context": passage.text, "qas": entries})
        number += 1
        count += len(entries)
    return {"version": version, "data": articles}


def _entry(choices: Choices, passage: Passage, asked: Asked, name: str, version: str) -> dict[str, Any]:
    answers = [{"text": asked.answer, "answer_start": asked.start}]
    if version == "1.1":
        return {"id": name, "question": asked.question, "answers": answers}
    wrong = unanswerable(choices, passage, asked, name) if choices.chance((name, "impossible"), 0.45) else None
    if wrong is None:
        return {"id": name, "question": asked.question, "answers": answers, "is_impossible": False}
    return {"id": name, "question": wrong, "answers": [], "is_impossible": True, "plausible_answers": answers}
