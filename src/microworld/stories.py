"""Stories: a scene, two or three people, facts about them made one by one, and how each is told.

`Story` is used twice: for the corpus (`tell_document`) and for the short passages of the tasks. No
new fact contradicts what was told. What was mentioned is likelier to come up again, a fact may be
told a second time in other words, and a person who was just spoken of may be a pronoun or a job; so
a word is often decided by what stands elsewhere in the document. Only what a sentence shows is ever
decided (no hidden variables), so a document is as likely as its decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import chain

from microworld import grammar
from microworld import lexicon as words
from microworld.decisions import Choices
from microworld.grammar import (
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

FOCUS_WEIGHT = 3.0
"""How much likelier the person just spoken of is to be the next subject than another one."""
COMPANY_WEIGHT = 8.0
"""How much likelier the other people of a document are of the first one's gender: a coarse thread
through it.
"""
MENTIONED_WEIGHT = 20.0
"""How much likelier a thing or place already mentioned is to come up again than a new one."""
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
"""How often the next sentence is asked for first, so that the words of the tasks' questions are not
foreign.
"""
MENTION_WEIGHTS = {"name": 0.5, "pronoun": 0.4, "job": 0.2}
MIN_FACTS, MAX_FACTS = 7, 12


class Story:
    """One document in the making: a scene, its people, facts about them, and how each is told.

    `split` names whose people they may be.
    """

    def __init__(
        self, choices: Choices, split: str, scenes: Sequence[Scene], cast_size: int | None = None
    ) -> None:
        self.pick = choices.pick
        self.chance = choices.chance
        self.scene = self.pick("scene", scenes)
        size = cast_size or self.pick("cast size", (2, 3), (0.6, 0.4))
        self.cast: list[Person] = []
        for index in range(size):
            self.cast.append(self._newcomer(index, split))
        self.facts: list[Fact] = []
        self.subject = self.cast[0]
        self.focus: Person | None = None
        self.jobs: dict[Person, str] = {}
        self.adjectives: dict[str, str] = {}
        self.mentioned: dict[str, None] = {}
        self.used: set[tuple[str, str]] = set()
        self.last_is_good = True
        self.step = 0
        self.told: dict[int, list[str]] = {}
        self.introduced: set[Person] = set()
        self.last_people: set[Person] = set()

    def _newcomer(self, index: int, split: str) -> Person:
        first_names = {person.first for person in self.cast}
        options = [name for name in words.first_names(split) if name not in first_names]
        company: tuple[str, ...] = ()
        if self.cast:
            company = words.WOMEN if self.cast[0].is_woman else words.MEN
        weights = [COMPANY_WEIGHT if name in company else 1.0 for name in options]
        first = self.pick(("first", index), options, weights)
        return Person(first, self.pick(("surname", index), words.surnames_of(first, split)))

    def new_fact(self, kind: str, subject: Person | None = None) -> Fact:
        """A fact of `kind` that nothing told so far contradicts, about `subject` or somebody of the
        cast.
        """
        self.step += 1
        people = self._people(kind, subject)
        self.subject = people[0]
        maker: Callable[[], dict[str, str]] = getattr(self, f"_{kind}")
        fact = Fact(kind, tuple(people), tuple(maker().items()))
        self.facts.append(fact)
        return fact

    def _people(self, kind: str, subject: Person | None) -> list[Person]:
        """`P`, and `Q` where the kind has two. Picked by number, so that a decision survives
        another name.
        """
        if subject is None:
            cast = [
                number
                for number, person in enumerate(self.cast)
                if (kind, person.full) not in self.used
            ]
            weights = [FOCUS_WEIGHT if self.cast[number] == self.focus else 1.0 for number in cast]
            subject = self.cast[self.pick((self.step, "subject"), cast, weights)]
        if kind not in ("transfer", "compare"):
            return [subject]
        others = [number for number, person in enumerate(self.cast) if person != subject]
        return [subject, self.cast[self.pick((self.step, "other"), others)]]

    def can_tell(self, kind: str) -> bool:
        """Home and employer are told once a person, a comparison once a document."""
        if kind == "compare":
            return ("compare", "") not in self.used
        return any((kind, person.full) not in self.used for person in self.cast)

    def _topical(self, name: Hashable, options: Sequence[str], mentioned: float = 1.0) -> str:
        """One of `options`: the scene's favourites and what was mentioned (by the factor
        `mentioned`) are likelier.
        """
        weights = []
        for option in options:
            weight = words.SCENE_WEIGHT if option in self.scene.favourites else 1.0
            if option in self.mentioned:
                weight *= mentioned
            weights.append(weight)
        return self.pick((self.step, name), options, weights)

    def _noun(self, kind: str) -> str:
        options = [noun for noun in words.OBJECTS if (kind, noun) not in self.used]
        noun = self._topical("noun", options, MENTIONED_WEIGHT)
        self.used.add((kind, noun))
        self.mentioned[noun] = None
        return noun

    def _place(self, name: str = "place", without: str = "") -> tuple[str, str]:
        options = [place for place in words.PLACES if place != without]
        place = self._topical(name, options, MENTIONED_WEIGHT / 3)
        self.mentioned[place] = None
        return words.PREPOSITION_OF[place], f"the {place}"

    def _day(self) -> str:
        return self.pick((self.step, "day"), words.DAYS)

    def _adjective(self) -> str:
        return self.pick((self.step, "adjective"), words.ADJECTIVES)

    def _did(self) -> dict[str, str]:
        noun = self._noun("did")
        verb = self.pick(
            (self.step, "verb"), words.ANY_VERBS + words.KIND_VERBS[words.KIND_OF[noun]]
        )
        prep, place = self._place()
        base, past, part = verb
        deed = {"noun": noun, "base": base, "past": past, "part": part}
        return {**deed, "prep": prep, "place": place, "day": self._day()}

    def _transfer(self) -> dict[str, str]:
        noun = self._noun("transfer")
        base, past, part, rbase, rpast = self.pick((self.step, "verb"), words.TRANSFERS)
        verb = {"base": base, "past": past, "part": part, "rbase": rbase, "rpast": rpast}
        return {"noun": noun, **verb, "day": self._day()}

    def _own(self) -> dict[str, str]:
        noun, adjective = self._noun("own"), self._adjective()
        self.adjectives[noun] = adjective
        return {"noun": noun, "adj": adjective}

    def _home(self) -> dict[str, str]:
        self.used.add(("home", self.subject.full))
        job = self._topical("job", [job for job in words.JOBS if job not in self.jobs.values()])
        return {"job": job, "town": self._topical("town", words.TOWNS)}

    def _employ(self) -> dict[str, str]:
        self.used.add(("employ", self.subject.full))
        owner = self.pick((self.step, "owner"), words.SURNAMES)
        return {
            "org": f"{owner} {self.pick((self.step, 'organisation'), words.ORGANISATIONS)}",
            "day": self._day(),
        }

    def _compare(self) -> dict[str, str]:
        self.used.add(("compare", ""))
        more = self.pick((self.step, "more"), tuple(words.COMPARISONS))
        less, plain = words.COMPARISONS[more]
        return {"more": more, "less": less, "plain": plain}

    def _group(self) -> dict[str, str]:
        nouns = self._topical("nouns", tuple(words.CLASSIFIER_OF))
        prep, place = self._place()
        group = words.CLASSIFIER_OF[nouns]
        return {
            "nouns": nouns,
            "group": group,
            "adj": self._adjective(),
            "prep": prep,
            "place": place,
        }

    def _there(self) -> dict[str, str]:
        things = self._topical("things", words.OBJECTS + tuple(words.CLASSIFIER_OF))
        adjective = self._adjective()
        prep, place = self._place()
        if things in words.KIND_OF:
            was = "was"
            quantity = words.article(adjective)
        else:
            was = "were"
            quantities = ("two", "three", "five", "ten", "many", "few")
            quantity = self.pick((self.step, "quantity"), quantities)
        return {
            "things": things,
            "adj": adjective,
            "was": was,
            "quantity": quantity,
            "prep": prep,
            "place": place,
        }

    def _bought(self) -> dict[str, str]:
        args: dict[str, str] = {}
        foods = [*words.MASS_FOODS, *words.COUNT_FOODS]
        for index in "123":
            food = self.pick((self.step, "food", index), foods)
            foods.remove(food)
            quantifiers: Sequence[str] = words.COUNT_QUANTIFIERS
            if food in words.MASS_FOODS:
                quantifiers = words.MASS_QUANTIFIERS
            args[f"food{index}"] = food
            args[f"q{index}"] = self.pick((self.step, "quantifier", index), quantifiers)
        return args

    def _need(self) -> dict[str, str]:
        noun = self._noun("need")
        return {"noun": noun, "kind_of": words.KIND_OF[noun], "place": self._place()[1]}

    def _quality(self) -> dict[str, str]:
        return {"noun": self._noun("quality")}

    def _react(self) -> dict[str, str]:
        reactions = words.GLAD_REACTIONS if self.last_is_good else words.SORRY_REACTIONS
        return {"reaction": self.pick((self.step, "reaction"), reactions)}

    def _cause(self) -> dict[str, str]:
        unused = [cause for cause in words.CAUSES if ("cause", cause[0][0]) not in self.used]
        options = [*chain.from_iterable(wordings for wordings, _ in unused)]
        wording = self.pick((self.step, "cause"), options)
        wordings, effects = next(cause for cause in unused if wording in cause[0])
        self.used.add(("cause", wordings[0]))
        return {"cause": wording, "effect": self.pick((self.step, "effect"), effects)}

    # ---- how a fact is told
    # ------------------------------------------------------------------------------------------

    def tell(
        self, fact: Fact, templates: Sequence[str] | None = None, framed: bool = True
    ) -> Sentence:
        """The fact as the next sentence. `templates`: the wordings to choose from; all of the
        kind's where None.
        """
        number = self.facts.index(fact)
        before = self.told.setdefault(number, [])
        template = self.pick(
            (self.step, "template"),
            [t for t in templates or TEMPLATES[fact.kind] if t not in before],
        )
        before.append(template)
        values, people = self._values(fact, template)
        if framed and fact.kind != "react":
            template = in_frame(
                self.pick((self.step, "frame"), grammar.FRAMES, grammar.FRAME_WEIGHTS), template
            )
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
                forms = self._forms(
                    person, name_only or person in people, name_only or fact.kind == "home"
                )
                values[slot] = self._mention(person, slot, index, forms)
                people.add(person)
            elif slot == "obj":
                values["obj"] = self._object(fact["noun"])
            elif slot == "prep2":
                values["prep2"], values["place2"] = self._place(
                    "decoy", fact["place"].removeprefix("the ")
                )
            elif slot == "day" and "day" not in values:
                values["day"] = self._day()
            elif slot in ("good", "bad"):
                values |= self._praise(slot, values.get("polarity"))
        return values, people

    def _praise(self, slot: str, polarity: str | None) -> dict[str, str]:
        """The first adjective decides the fact's polarity (`good` agrees with it, `bad` is what it
        is not).
        """
        if polarity is None:
            word = self.pick((self.step, "praise"), words.GOOD + words.BAD)
            agrees = (word in words.GOOD) == (slot == "good")
            return {slot: word, "polarity": "good" if agrees else "bad"}
        agrees = (polarity == "good") == (slot == "good")
        return {slot: self.pick((self.step, "contrast"), words.GOOD if agrees else words.BAD)}

    def _forms(self, person: Person, no_pronoun: bool, no_job: bool) -> list[str]:
        """The ways to mention somebody who has been introduced. A pronoun is for the last subject,
        where nobody rivals it."""
        forms = ["name"]
        if person == self.focus and not no_pronoun:
            company = self.last_people - {person}
            if not any(rival.is_woman == person.is_woman for rival in company):
                forms.append("pronoun")
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
        form = self.pick(
            (self.step, "mention", index), forms, [MENTION_WEIGHTS[form] for form in forms]
        )
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
        return render(self.pick("opening", grammar.OPENINGS), values, None)


def tell_document(
    choices: Choices, split: str = "corpus", scenes: Sequence[Scene] = words.SCENES
) -> list[Sentence]:
    """A whole document of the corpus: an opening and `MIN_FACTS` to `MAX_FACTS` facts, asked for or
    reacted to.

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
