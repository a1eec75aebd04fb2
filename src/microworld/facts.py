"""What is true in a story: its scene, its people, and facts about them, made one by one.

Nothing told so far is contradicted by a new fact. Only what a sentence shows is ever decided (no hidden variables),
which keeps a document's probability equal to that of its decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from microworld import lexicon as words
from microworld.choices import Choices
from microworld.grammar import Fact
from microworld.lexicon import Person, Scene

FOCUS_WEIGHT = 3.0
"""How much likelier the person just spoken of is to be the next subject than another one."""
COMPANY_WEIGHT = 8.0
"""How much likelier the other people of a document are of the first one's gender: a coarse thread through it."""
MENTIONED_WEIGHT = 20.0
"""How much likelier a thing or place already mentioned is to come up again than a new one."""


class FactMaker:
    """A scene and its people, and facts about them. `split` names whose people they may be."""

    def __init__(self, choices: Choices, split: str, scenes: Sequence[Scene], cast_size: int | None = None) -> None:
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

    def _newcomer(self, index: int, split: str) -> Person:
        taken = {person.first for person in self.cast}
        options = [name for name in words.first_names(split) if name not in taken]
        company = words.WOMEN if self.cast and self.cast[0].is_woman else words.MEN if self.cast else ()
        first = self.pick(("first", index), options, [COMPANY_WEIGHT if name in company else 1.0 for name in options])
        return Person(first, self.pick(("surname", index), words.surnames_of(first, split)))

    def new_fact(self, kind: str, subject: Person | None = None) -> Fact:
        """A fact of `kind` that nothing told so far contradicts, about `subject` or somebody of the cast."""
        self.step += 1
        people = self._people(kind, subject)
        self.subject = people[0]
        maker: Callable[[], dict[str, str]] = getattr(self, f"_{kind}")
        fact = Fact(kind, tuple(people), tuple(maker().items()))
        self.facts.append(fact)
        return fact

    def _people(self, kind: str, subject: Person | None) -> list[Person]:
        """`P`, and `Q` where the kind has two. Picked by number, so that a decision survives another name."""
        if subject is None:
            cast = [number for number, person in enumerate(self.cast) if (kind, person.full) not in self.used]
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
        """One of `options`: the scene's favourites and what was mentioned (by the factor `mentioned`) are likelier."""
        weights = [
            (words.SCENE_WEIGHT if option in self.scene.favourites else 1.0)
            * (mentioned if option in self.mentioned else 1.0)
            for option in options
        ]
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
        verb = self.pick((self.step, "verb"), words.ANY_VERBS + words.KIND_VERBS[words.KIND_OF[noun]])
        prep, place = self._place()
        base, past, part = verb
        return {
            "noun": noun,
            "base": base,
            "past": past,
            "part": part,
            "prep": prep,
            "place": place,
            "day": self._day(),
        }

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
        return {"org": f"{owner} {self.pick((self.step, 'organisation'), words.ORGANISATIONS)}", "day": self._day()}

    def _compare(self) -> dict[str, str]:
        self.used.add(("compare", ""))
        more = self.pick((self.step, "more"), tuple(words.COMPARISONS))
        less, plain = words.COMPARISONS[more]
        return {"more": more, "less": less, "plain": plain}

    def _group(self) -> dict[str, str]:
        nouns = self._topical("nouns", tuple(words.CLASSIFIER_OF))
        prep, place = self._place()
        group = words.CLASSIFIER_OF[nouns]
        return {"nouns": nouns, "group": group, "adj": self._adjective(), "prep": prep, "place": place}

    def _there(self) -> dict[str, str]:
        things = self._topical("things", words.OBJECTS + tuple(words.CLASSIFIER_OF))
        adjective = self._adjective()
        prep, place = self._place()
        if things in words.KIND_OF:
            was, quantity = "was", words.article(adjective)
        else:
            was, quantity = "were", self.pick((self.step, "quantity"), ("two", "three", "five", "ten", "many", "few"))
        what = {"things": things, "adj": adjective, "was": was, "quantity": quantity}
        return what | {"prep": prep, "place": place}

    def _bought(self) -> dict[str, str]:
        args: dict[str, str] = {}
        for index in "123":
            left = [food for food in words.MASS_FOODS + words.COUNT_FOODS if food not in args.values()]
            food = self.pick((self.step, "food", index), left)
            quantifiers = words.MASS_QUANTIFIERS if food in words.MASS_FOODS else words.COUNT_QUANTIFIERS
            args |= {f"food{index}": food, f"q{index}": self.pick((self.step, "quantifier", index), quantifiers)}
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
        causes = [cause for cause in words.CAUSES if ("cause", cause[0][0]) not in self.used]
        wording = self.pick((self.step, "cause"), [text for cause in causes for text in cause[0]])
        cause = next(cause for cause in causes if wording in cause[0])
        self.used.add(("cause", cause[0][0]))
        return {"cause": wording, "effect": self.pick((self.step, "effect"), cause[1])}
