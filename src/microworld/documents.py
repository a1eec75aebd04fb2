"""Stories: a scene, two or three people, facts about them, and how each is told.

`Story` is used twice: for the corpus (`tell_document`) and for the short passages of the tasks. What was mentioned is
likelier to come up again, a fact may be told a second time in other words, and a person who was just spoken of may be a
pronoun or a job; so a word is often decided by what stands elsewhere in the document. Only what a sentence shows is
ever decided (no hidden variables), which keeps a document's probability equal to that of its decisions.
"""

from __future__ import annotations

from collections.abc import Sequence

from microworld import lexicon as words
from microworld.choices import Choices
from microworld.facts import FactMaker
from microworld.grammar import (
    FRAME_WEIGHTS,
    FRAMES,
    OPENINGS,
    QUESTIONS,
    TEMPLATES,
    Fact,
    Sentence,
    article_for,
    in_frame,
    render,
    slots_of,
)
from microworld.lexicon import Person, Scene

KIND_WEIGHTS = {
    "did": 5.0,
    "transfer": 3.0,
    "own": 2.0,
    "home": 1.5,
    "employ": 1.0,
    "compare": 1.0,
    "group": 1.2,
    "there": 1.2,
    "bought": 1.0,
    "need": 1.0,
    "quality": 2.5,
    "cause": 1.2,
}
RETELLABLE = frozenset({"did", "transfer", "own", "home", "employ", "compare"})
RETELL_PROB = 0.25
REACTION_PROB = 0.6
ASK_PROB = 0.2
"""How often the next sentence is asked for first, so that the words of the tasks' questions are not foreign."""
MENTION_WEIGHTS = {"name": 0.5, "pronoun": 0.4, "job": 0.2}
MIN_FACTS, MAX_FACTS = 7, 12


class Story(FactMaker):
    """One document in the making: its facts, and how each is told."""

    def __init__(self, choices: Choices, split: str, scenes: Sequence[Scene], cast_size: int | None = None) -> None:
        super().__init__(choices, split, scenes, cast_size)
        self.told: dict[int, list[str]] = {}
        self.introduced: set[Person] = set()
        self.last_people: set[Person] = set()

    def tell(self, fact: Fact, templates: Sequence[str] | None = None, framed: bool = True) -> Sentence:
        """The fact as the next sentence. `templates`: the wordings to choose from; all of the kind's where None."""
        number = self.facts.index(fact)
        before = self.told.setdefault(number, [])
        template = self.pick((self.step, "template"), [t for t in templates or TEMPLATES[fact.kind] if t not in before])
        before.append(template)
        values, people = self._values(fact, template)
        if framed and fact.kind != "react":
            template = in_frame(self.pick((self.step, "frame"), FRAMES, FRAME_WEIGHTS), template)
        self.focus, self.last_people = fact.people[0], people
        if fact.kind == "quality":
            self.last_is_good = values["polarity"] == "good"
        if fact.kind == "home":
            self.jobs[fact.people[0]] = fact["job"]
        return render(template, values, fact)

    def ask(self, fact: Fact) -> Sentence:
        """A question that the next sentence answers; it names people and never hints at them."""
        _, wordings = self.pick((self.step, "asked for"), QUESTIONS[fact.kind])
        template = self.pick((self.step, "question"), wordings)
        values, people = self._values(fact, template)
        self.focus, self.last_people = fact.people[0] if fact.people[0] in people else None, people
        self.step += 1  # the answer's decisions are its own
        return render(template, values, fact)

    def _values(self, fact: Fact, template: str) -> tuple[dict[str, str], set[Person]]:
        values = dict(fact.args)
        values["a"] = article_for(fact)
        people: set[Person] = set()
        for index, slot in enumerate(slots_of(template)):
            if slot[0] in "PQ":
                person = fact.people["PQ".index(slot[0])]
                name_only = "{P_h" in template or template.endswith("?")
                forms = self._forms(person, name_only or person in people, name_only or fact.kind == "home")
                values[slot] = self._mention(person, slot, index, forms)
                people.add(person)
            elif slot == "obj":
                values["obj"] = self._object(fact["noun"])
            elif slot == "prep2":
                values["prep2"], values["place2"] = self._place("decoy", fact["place"].removeprefix("the "))
            elif slot == "day" and "day" not in values:
                values["day"] = self._day()
            elif slot in ("good", "bad"):
                values |= self._praise(slot, values.get("polarity"))
        return values, people

    def _praise(self, slot: str, polarity: str | None) -> dict[str, str]:
        """The first adjective decides the fact's polarity (`good` agrees with it, `bad` is what it is not)."""
        if polarity is None:
            word = self.pick((self.step, "praise"), words.GOOD + words.BAD)
            return {slot: word, "polarity": "good" if (word in words.GOOD) == (slot == "good") else "bad"}
        agrees = (polarity == "good") == (slot == "good")
        return {slot: self.pick((self.step, "contrast"), words.GOOD if agrees else words.BAD)}

    def _forms(self, person: Person, no_pronoun: bool, no_job: bool) -> list[str]:
        """The ways to mention somebody who has been introduced. A pronoun is for the last subject, where nobody rivals
        it."""
        forms = ["name"]
        if person == self.focus and not no_pronoun:
            rivals = [other for other in self.last_people if other != person and other.is_woman == person.is_woman]
            forms += [] if rivals else ["pronoun"]
        if person in self.jobs and not no_job:
            forms.append("job")
        return forms

    def _mention(self, person: Person, slot: str, index: int, forms: Sequence[str]) -> str:
        if slot.endswith("_he"):
            return "she" if person.is_woman else "he"
        if slot.endswith("_his"):
            return "her" if person.is_woman else "his"
        if person not in self.introduced:
            self.introduced.add(person)
            return person.full
        form = self.pick((self.step, "mention", index), forms, [MENTION_WEIGHTS[form] for form in forms])
        if form == "name":
            return person.first
        if form == "job":
            return f"the {self.jobs[person]}"
        if slot.endswith("_obj"):
            return "her" if person.is_woman else "him"
        return "she" if person.is_woman else "he"

    def _object(self, noun: str) -> str:
        adjective = self.adjectives.get(noun)
        if adjective and self.pick((self.step, "with adjective"), (True, False)):
            return f"the {adjective} {noun}"
        return f"the {noun}"

    def open(self) -> Sentence:
        values = {
            "weather": self.pick("weather", words.WEATHER),
            "part": self.pick("part of day", words.DAY_PARTS),
            "month": self.pick("month", words.MONTHS),
            "scene": self.scene.name,
        }
        values["a"] = words.article(values["weather"])
        return render(self.pick("opening", OPENINGS), values, None)


def tell_document(choices: Choices, split: str = "corpus", scenes: Sequence[Scene] = words.SCENES) -> list[Sentence]:
    """A whole document of the corpus: an opening and `MIN_FACTS` to `MAX_FACTS` facts, asked for or reacted to.

    The first facts are about one of the cast each, so nobody is decided on without being shown.
    """
    story = Story(choices, split, scenes)
    sentences = [story.open()]
    for index in range(choices.pick("length", range(MIN_FACTS, MAX_FACTS + 1))):
        fact = _next_fact(story, index)
        if fact.kind in QUESTIONS and choices.chance((index, "asked"), ASK_PROB):
            sentences.append(story.ask(fact))
        sentences.append(story.tell(fact))
        if fact.kind == "quality" and choices.chance((index, "reacts"), REACTION_PROB):
            sentences.append(story.tell(story.new_fact("react", fact.people[0])))
    return sentences


def _next_fact(story: Story, index: int) -> Fact:
    """A new fact, or one that is to be told again in other words."""
    newcomer = story.cast[index] if index < len(story.cast) else None
    old = [number for number in range(len(story.facts) - 1) if _can_retell(story, number)]
    if old and not newcomer and story.chance((index, "retell"), RETELL_PROB):
        story.step += 1
        return story.facts[story.pick((story.step, "which"), old)]
    kinds = [kind for kind in KIND_WEIGHTS if story.can_tell(kind)]
    kind = story.pick((index, "kind"), kinds, [KIND_WEIGHTS[kind] for kind in kinds])
    return story.new_fact(kind, newcomer)


def _can_retell(story: Story, number: int) -> bool:
    return story.facts[number].kind in RETELLABLE and len(story.told[number]) < 2
