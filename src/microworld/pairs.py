"""The GLUE-like tasks: one function makes one example's columns.

Each example has its own decisions (seed, task, split, number), people of its own split, and a label
drawn first, so classes are even and nothing but the label's own reason tells them apart. Wrong
versions are made by changing what is said, seldom how: word order, roles, negation and agreement
decide, not the bag of words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from microworld import lexicon as words
from microworld.decisions import Choices
from microworld.grammar import (
    QUESTIONS,
    TEMPLATES,
    Fact,
    Sentence,
    plain_values,
    render,
    tell_alone,
)
from microworld.lexicon import Scene
from microworld.stories import Story

Row = dict[str, str]
Maker = Callable[[Choices, str, Sequence[Scene]], Row]

HOME_SCENES = tuple(scene for scene in words.SCENES if scene.name not in words.HELD_OUT_SCENES)
AWAY_SCENES = tuple(scene for scene in words.SCENES if scene.name in words.HELD_OUT_SCENES)
NEGATED_PROB = 0.25
NEGATIONS = {
    "did": (
        "{P} did not {base} {obj} {prep} {place} on {day}.",
        "{obj} was not {part} {prep} {place} on {day} by {P_obj}.",
    ),
    "transfer": (
        "{P} did not {base} {obj} to {Q_obj} on {day}.",
        "{Q} never {rpast} {obj} from {P_obj} on {day}.",
    ),
}
NLI_LABELS = ("entailment", "neutral", "contradiction")


def with_decoy(choices: Choices, fact: Fact) -> Fact:
    """A `did` fact that also knows a place where it did not happen."""
    if fact.kind != "did":
        return fact
    place = choices.pick(
        "decoy", [place for place in words.PLACES if f"the {place}" != fact["place"]]
    )
    decoy = (("prep2", words.PREPOSITION_OF[place]), ("place2", f"the {place}"))
    return Fact(fact.kind, fact.people, fact.args + decoy)


def swapped(fact: Fact) -> Fact:
    return fact.replace(people=fact.people[::-1])


def moved(choices: Choices, fact: Fact, address: str, near: Sequence[str] = ()) -> Fact:
    """A `did` fact elsewhere; half of the time at one of the places `near`."""
    others = [place for place in near if place != fact["place"]]
    if not (others and choices.chance((address, "near"), 0.5)):
        others = [f"the {place}" for place in words.PLACES if f"the {place}" != fact["place"]]
    place = choices.pick((address, "place"), others)
    return fact.replace(place=place, prep=words.PREPOSITION_OF[place.removeprefix("the ")])


def other_verb(choices: Choices, fact: Fact, address: str) -> Fact:
    if fact.kind == "transfer":
        base, past, part, rbase, rpast = choices.pick(
            address, [v for v in words.TRANSFERS if v[0] != fact["base"]]
        )
        return fact.replace(base=base, past=past, part=part, rbase=rbase, rpast=rpast)
    verbs = words.ANY_VERBS + words.KIND_VERBS[words.KIND_OF[fact["noun"]]]
    base, past, part = choices.pick(address, [verb for verb in verbs if verb[0] != fact["base"]])
    return fact.replace(base=base, past=past, part=part)


def other_noun(choices: Choices, fact: Fact, address: str) -> Fact:
    """Another thing of the same kind, so that the verb still fits."""
    kind = words.KINDS[words.KIND_OF[fact["noun"]]]
    return fact.replace(noun=choices.pick(address, [noun for noun in kind if noun != fact["noun"]]))


def other_day(choices: Choices, fact: Fact, address: str) -> Fact:
    return fact.replace(
        day=choices.pick(address, [day for day in words.DAYS if day != fact["day"]])
    )


CHANGES = {"noun": other_noun, "verb": other_verb, "day": other_day}


# ---- single sentences
# ------------------------------------------------------------------------------------------------


def cola(choices: Choices, split: str, scenes: Sequence[Scene]) -> Row:
    """Acceptability: agreement, selection or word order broken (0) or not (1)."""
    acceptable = choices.chance("label", 0.5)
    kind = choices.pick("kind", ("did", "there", "group", "bought", "own", "home"))
    story = Story(choices, split, scenes, cast_size=2)
    fact = with_decoy(choices, story.new_fact(kind))
    plain = tell_alone(
        fact, choices.pick("template", TEMPLATES[kind]), day=choices.pick("any day", words.DAYS)
    )
    text = plain.text if acceptable else _broken(choices, fact, plain.text)
    return {"sentence": text, "label": str(int(acceptable))}


def _broken(choices: Choices, fact: Fact, text: str) -> str:
    """`text` with one word exchanged for one that its right or left context forbids, or two words
    in the wrong order."""
    tokens = text[:-1].split(" ")
    wrong = _wrong_words(fact)
    exchangeable = [index for index, token in enumerate(tokens) if token.lower() in wrong]
    if exchangeable and choices.chance("one word", 0.7):
        index = choices.pick("which word", exchangeable)
        tokens[index] = choices.pick("wrong word", wrong[tokens[index].lower()])
    else:
        pairs = [index for index in range(1, len(tokens) - 1) if not tokens[index].endswith(",")]
        index = choices.pick("which pair", pairs)
        tokens[index : index + 2] = [tokens[index + 1], tokens[index]]
    result = " ".join(tokens) + "."
    return result[0].upper() + result[1:]


def _wrong_words(fact: Fact) -> dict[str, tuple[str, ...]]:
    """Word of a sentence about the fact -> words that cannot stand in its place."""
    wrong: dict[str, tuple[str, ...]] = {
        "a": ("an",),
        "an": ("a",),
        "was": ("were",),
        "were": ("was",),
    }
    if "prep" in dict(fact.args):
        prepositions = sorted(set(words.PREPOSITION_OF.values()))
        wrong[fact["prep"]] = tuple(word for word in prepositions if word != fact["prep"])
    if fact.kind == "group":
        wrong[fact["group"]] = tuple(word for word in words.GROUPS if word != fact["group"])
    if fact.kind == "did":
        verbs = _verbs_of_other_kinds(fact["noun"])
        wrong[fact["past"]] = tuple(past for _, past, _ in verbs)
        wrong[fact["base"]] = tuple(base for base, _, _ in verbs)
    if fact.kind == "bought":
        wrong |= dict.fromkeys(words.MASS_QUANTIFIERS, words.COUNT_QUANTIFIERS)
        wrong |= dict.fromkeys(words.COUNT_QUANTIFIERS, words.MASS_QUANTIFIERS)
    return wrong


def _verbs_of_other_kinds(noun: str) -> list[words.Verb]:
    verbs: list[words.Verb] = []
    for kind, verbs_of_kind in words.KIND_VERBS.items():
        if kind != words.KIND_OF[noun]:
            verbs += verbs_of_kind
    return verbs


def sst2(choices: Choices, split: str, scenes: Sequence[Scene]) -> Row:
    """Sentiment: polarity of the word times negation, and which of two opposite judgements is the
    last.
    """
    good = choices.chance("label", 0.5)
    story = Story(choices, split, scenes, cast_size=2)
    fact = story.new_fact("quality")
    template = choices.pick("template", TEMPLATES["quality"], (2, 2, 2, 1, 1, 1, 2, 2))
    agreeing, opposite = (words.GOOD, words.BAD) if good else (words.BAD, words.GOOD)
    values = {"good": choices.pick("good", agreeing), "bad": choices.pick("bad", opposite)}
    text = tell_alone(fact, template, **values).text
    return {"sentence": text, "label": str(int(good))}


# ---- sentence pairs
# --------------------------------------------------------------------------------------------------


def _pair(first: Sentence, second: Sentence, label: str) -> Row:
    return {"sentence1": first.text, "sentence2": second.text, "label": label}


def mrpc(choices: Choices, split: str, scenes: Sequence[Scene]) -> Row:
    """Paraphrase: one fact in two wordings, or with one to three parts changed, or roles or places
    exchanged.
    """
    same = choices.chance("label", 0.5)
    story = Story(choices, split, scenes, cast_size=2)
    kind = choices.pick("kind", ("did", "transfer", "compare"), (3, 2, 1))
    fact = with_decoy(choices, story.new_fact(kind))
    first, second = choices.shuffled("templates", TEMPLATES[fact.kind])[:2]
    second_fact = fact if same else _another_fact(choices, fact, first + second)
    return _pair(tell_alone(fact, first), tell_alone(second_fact, second), str(int(same)))


def _another_fact(choices: Choices, fact: Fact, templates: str) -> Fact:
    """The fact with roles or places exchanged where it has two, or one to three parts changed."""
    if fact.kind == "compare":
        return swapped(fact)
    if fact.kind == "transfer" and choices.chance("exchange", 0.4):
        return swapped(fact)
    if "place2" in templates and choices.chance("exchange", 0.4):
        return fact.replace(
            place=fact["place2"], prep=fact["prep2"], place2=fact["place"], prep2=fact["prep"]
        )
    order = choices.shuffled("changes", tuple(CHANGES))
    for change in order[: choices.pick("how many", (1, 2, 3))]:
        fact = CHANGES[change](choices, fact, f"other {change}")
    return fact


def qqp(choices: Choices, split: str, scenes: Sequence[Scene]) -> Row:
    """Duplicate questions. Mostly about gifts, where giver's and receiver's verb and the order of
    the people decide together; else another thing asked with the same words, or one word
    changed."""
    same = choices.chance("label", 0.5)
    story = Story(choices, split, scenes, cast_size=2)
    fact = story.new_fact(choices.pick("kind", ("transfer", "did"), (3, 2)))
    ask = _gift_questions if fact.kind == "transfer" else _deed_questions
    first, second, second_fact = ask(choices, fact, same)
    return _pair(
        render(first, plain_values(fact), None),
        render(second, plain_values(second_fact), None),
        str(int(same)),
    )


def _gift_questions(choices: Choices, fact: Fact, same: bool) -> tuple[str, str, Fact]:
    first, second = choices.shuffled("wordings", dict(QUESTIONS["transfer"])["obj"])
    if same:
        return first, second, fact
    return first, choices.pick("second", (second, first), (3, 1)), swapped(fact)


def _deed_questions(choices: Choices, fact: Fact, same: bool) -> tuple[str, str, Fact]:
    wordings = dict(QUESTIONS["did"])
    slot = choices.pick("slot", tuple(wordings))
    first, second = choices.shuffled("wordings", wordings[slot])
    if same:
        return first, second, fact
    if choices.chance("another slot", 0.5):
        twin = {"place": "day", "day": "place", "P": "obj", "obj": "P"}[slot]
        return first, choices.pick("twin", wordings[twin]), fact
    slots = [name for name in ("{obj}", "{place}", "{day}") if name in second]
    return first, second, _changed(choices, fact, choices.pick("change", slots or ["{base}"]))


def _changed(choices: Choices, fact: Fact, slot: str) -> Fact:
    if slot == "{obj}":
        return other_noun(choices, fact, "other")
    if slot == "{place}":
        return moved(choices, fact, "other")
    if slot == "{base}":
        return other_verb(choices, fact, "other")
    return other_day(choices, fact, "other")


def stsb(choices: Choices, split: str, scenes: Sequence[Scene]) -> Row:
    """Similarity: 5 less one for each part of the fact that differs (exchanged roles count two)."""
    story = Story(choices, split, scenes, cast_size=2)
    fact = with_decoy(choices, story.new_fact(choices.pick("kind", ("did", "transfer"))))
    first, second = choices.shuffled("templates", TEMPLATES[fact.kind])[:2]
    score = 5
    changed = fact
    for change in CHANGES:
        if choices.chance(change, 0.5):
            score -= 1
            changed = CHANGES[change](choices, changed, f"other {change}")
    if choices.chance("role", 0.5):
        score -= 2
        if fact.kind == "transfer":
            changed = swapped(changed)
        else:
            changed = moved(choices, changed, "role", (fact["place2"],))
    # its decoy cannot be where it happened
    if changed.kind == "did" and changed["place"] == changed["place2"]:
        changed = changed.replace(place2=fact["place"], prep2=fact["prep"])
    return _pair(tell_alone(fact, first), tell_alone(changed, second), f"{score:.3f}")


def mnli(choices: Choices, split: str, scenes: Sequence[Scene]) -> Row:
    """Three-way entailment over a premise of two sentences. One thing is in one place, and a gift
    has one direction, on one day; another verb or another thing is open."""
    label = choices.pick("label", NLI_LABELS)
    return _entailment(choices, split, scenes, label) | {"label": label}


def rte(choices: Choices, split: str, scenes: Sequence[Scene]) -> Row:
    """Two-way entailment; what does not follow is half contradiction, half open."""
    label = choices.pick("label", NLI_LABELS, (2, 1, 1))
    row = _entailment(choices, split, scenes, label)
    return row | {"label": "entailment" if label == "entailment" else "not_entailment"}


def _entailment(choices: Choices, split: str, scenes: Sequence[Scene], label: str) -> Row:
    story = Story(choices, split, scenes, cast_size=2)
    kinds = choices.pick("kinds", (("did", "did"), ("did", "transfer"), ("transfer", "did")))
    facts = [story.new_fact(kind, story.cast[index]) for index, kind in enumerate(kinds)]
    premise = " ".join(story_text(story, fact) for fact in facts)
    target = choices.pick("target", facts)
    negated = choices.chance("negated", NEGATED_PROB)
    if label == "neutral":
        change = other_verb if choices.chance("verb", 0.5) else other_noun
        claim = change(choices, target, "open")
    elif (label == "contradiction") == negated:
        # What is true follows, and its denial contradicts.
        claim = target
    elif target.kind == "did":
        places = [fact["place"] for fact in facts if fact.kind == "did"]
        claim = moved(choices, target, "moved", places)
    else:
        claim = swapped(target)

    templates: Sequence[str]
    if negated:
        templates = NEGATIONS[claim.kind]
    else:
        templates = _other_wordings(claim, story.told[facts.index(target)])
    template = choices.pick("hypothesis", templates)
    hypothesis = tell_alone(claim, template, **first_names(claim)).text
    return {"sentence1": premise, "sentence2": hypothesis}


def _other_wordings(fact: Fact, used: Sequence[str]) -> tuple[str, ...]:
    """Templates of the fact's kind that the premise has not used, those with a decoy left out."""
    plain = [template for template in TEMPLATES[fact.kind] if "place2" not in template]
    return tuple(template for template in plain if template not in used)


def story_text(story: Story, fact: Fact) -> str:
    story.step += 1
    return story.tell(fact).text


def first_names(fact: Fact) -> dict[str, str]:
    """Slots that call the fact's people by first name only."""
    names = {}
    for letter, person in zip("PQ", fact.people, strict=False):
        names[letter] = person.first
        names[f"{letter}_obj"] = person.first
    return names
