"""A small world with two dials, where theory says what pre-training must find.

Every sentence has four words and a full stop: a person, a verb, an article and a thing.

    Anna peels ki plum .        plum ki peels Anna .

Things belong to eight kinds, and so do most verbs and the tastes of people. Each thing takes one of
three articles.

- `right` is the share of sentences in the first order. There, what decides the person, the verb and
the article stands
  to their right. In the second order it stands to their left.
- `following` is how often a sentence is about the same kind as the one before it.

The tasks use things that fine-tuning never saw, so only text can have told their kinds. Bayes' rule
can be followed to the end: `entropy` says how low each loss can be.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from microworld.world import Sample, is_written, refuse_foreign_files, write_files

KINDS = {
    "fruit": (
        "apple pear plum cherry peach grape lemon lime melon fig date orange mango quince olive"
        " berry"
    ),
    "animal": "dog cat horse cow sheep goat pig hen duck goose fox wolf bear deer hare mouse",
    "tool": (
        "hammer saw axe spade rake drill file knife chisel plane wrench shovel hoe pick needle"
        " anvil"
    ),
    "dish": (
        "soup stew pie cake bread roast salad omelette pudding porridge sauce curry pancake"
        " dumpling noodle waffle"
    ),
    "cloth": "coat hat shirt scarf glove sock shoe boot dress skirt belt cap cloak apron vest tie",
    "toy": (
        "ball doll kite puppet marble drum whistle top block puzzle rocket train robot swing sled"
        " balloon"
    ),
    "plant": (
        "oak pine birch elm rose tulip daisy lily fern moss ivy clover thistle willow maple cedar"
    ),
    "stone": (
        "flint slate granite chalk ruby pearl amber quartz jade opal basalt topaz coal onyx gravel"
        " garnet"
    ),
}
THINGS = [text.split() for text in KINDS.values()]
GROUPS = ["FOOD", "LIFE", "CRAFT", "FOOD", "HOME", "HOME", "LIFE", "CRAFT"]
"""Of the kinds, in order: what a person in the tagging task is concerned with."""
MADE = ("tool", "dish", "cloth", "toy")
OWN_VERBS = (
    "peels picks feeds strokes sharpens wields tastes serves wears sews winds throws waters prunes"
    " polishes carves"
)
PEOPLE = [
    "Anna",
    "Olga",
    "Mark",
    "Leo",
    "Niels",
    "Julia",
    "Irene",
    "Emma",
    "Karl",
    "Lars",
    "Jonas",
    "Marta",
]
PEOPLE += [
    "Tomas",
    "Harald",
    "David",
    "Eric",
    "Greta",
    "Ida",
    "Nora",
    "Otto",
    "Paul",
    "Ruth",
    "Vera",
    "Hugo",
]
PLAIN_VERBS = ["sees", "has", "finds"]
"""Of any kind: they say nothing of the thing."""
VERBS = [*OWN_VERBS.split(), *PLAIN_VERBS]
ARTICLES = ["ka", "ki", "ko"]
PLAIN_SHARE, OWN_PERSON_SHARE = 0.5, 0.75
HIDDEN_FRACTION = 0.135
"""Of BERT's predicted 15 % nine tenths are out of view."""
SENTENCES = (8, 12)
"""Fewest and most of a document."""
FOLDER = "dials"
CORPUS = f"{FOLDER}/corpus.txt"
WORLD_VERSION = FACTS_VERSION = 1
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """Which thing takes which article, and how sentences are drawn."""

    seed: int
    right: float
    following: float

    @cached_property
    def articles(self) -> dict[str, str]:
        """Of each thing; six, five and five of a kind's sixteen, in both halves alike, so that no
        kind tells.
        """
        found = {}
        for things in THINGS:
            for start in (0, 8):
                half, draw = (
                    things[start : start + 8],
                    random.Random(f"{self.seed}/articles/{things[start]}").random,
                )
                for place, thing in enumerate(sorted(half, key=lambda _: draw())):
                    found[thing] = ARTICLES[(place + start // 8) % 3]
        return found

    def sentence(
        self, draw: random.Random, kind: int, things: Sequence[str], is_plain: bool = False
    ) -> list[str]:
        """Five words of one kind. `is_plain`: neither the verb nor the person says anything of
        it.
        """
        thing = _one_of(draw, things)
        plain_verb = is_plain or draw.random() < PLAIN_SHARE
        verb = _one_of(draw, PLAIN_VERBS if plain_verb else VERBS[2 * kind : 2 * kind + 2])
        any_person = is_plain or draw.random() >= OWN_PERSON_SHARE
        words = [
            _one_of(draw, PEOPLE if any_person else PEOPLE[3 * kind : 3 * kind + 3]),
            verb,
            self.articles[thing],
            thing,
        ]
        return [*(words if draw.random() < self.right else words[::-1]), "."]

    def document(self, name: str) -> list[list[str]]:
        draw = random.Random(f"{self.seed}/{name}")
        length = SENTENCES[0] + int(draw.random() * (SENTENCES[1] - SENTENCES[0] + 1))
        kind, found = int(draw.random() * len(THINGS)), []
        for _ in range(length):
            found.append(self.sentence(draw, kind, THINGS[kind]))
            if draw.random() >= self.following:
                kind = int(draw.random() * len(THINGS))
        return found


def _one_of(draw: random.Random, choices: Sequence[str]) -> str:
    return choices[int(draw.random() * len(choices))]


# The tasks


def task_files(world: World, train: int, validation: int) -> dict[str, str]:
    """Path -> content of three tasks: what each person is concerned with (tags), whether the thing
    is natural or made (kinds), and whether two texts are about one kind (pairs).

    Training shows the first half of each kind's things, validation the second. An eighth of the
    pairs is enough: with many, an encoder learns here to compare two texts, and nothing is left to
    be shown.
    """
    files: dict[str, str] = {}
    for split, count, half in (("train", train, slice(0, 8)), ("dev", validation, slice(8, 16))):
        draw = random.Random(f"{world.seed}/{split}")
        tags, kinds, pairs = [], ["sentence\tlabel"], ["index\tsentence1\tsentence2\tlabel"]
        for index in range(count):
            for _ in range(3):
                kind = int(draw.random() * len(THINGS))
                for word in world.sentence(draw, kind, THINGS[kind][half], is_plain=True):
                    tags.append(f"{word} X X {'B-' + GROUPS[kind] if word in PEOPLE else 'O'}")
            tags.append("")
            kind = int(draw.random() * len(THINGS))
            text = " ".join(world.sentence(draw, kind, THINGS[kind][half], is_plain=True))
            kinds.append(f"{text}\t{'made' if list(KINDS)[kind] in MADE else 'natural'}")
            other = (kind + (index % 2) * (1 + int(draw.random() * (len(THINGS) - 1)))) % len(
                THINGS
            )
            texts = [
                " ".join(
                    " ".join(world.sentence(draw, one, THINGS[one][half], is_plain=True))
                    for _ in range(2)
                )
                for one in (kind, other)
            ]
            if index < max(2, count // (8 if split == "train" else 1)):
                pairs.append(f"{index}\t{texts[0]}\t{texts[1]}\t{'other' if index % 2 else 'same'}")
        files[f"{FOLDER}/tags/{split}.txt"] = "\n".join(tags) + "\n"
        files[f"{FOLDER}/kinds/{split}.tsv"] = "\n".join(kinds) + "\n"
        files[f"{FOLDER}/pairs/{split}.tsv"] = "\n".join(pairs) + "\n"
    return files


def minimal_pairs(world: World, count: int) -> str:
    """Lines of JSON as BLiMP's: two sentences that differ in one word, of which one cannot be, or
    hardly.

    Groups say what is wrong and on which side of it stands what decides: `article_right`,
    `article_left`, `verb_right`,
    `verb_left`. The person's taste is the thing's kind.
    """
    draw, lines = random.Random(f"{world.seed}/minimal pairs"), []
    for index in range(count):
        kind = int(draw.random() * len(THINGS))
        other = (kind + 1 + int(draw.random() * (len(THINGS) - 1))) % len(THINGS)
        thing, person = _one_of(draw, THINGS[kind]), _one_of(draw, PEOPLE[3 * kind : 3 * kind + 3])
        verbs = [_one_of(draw, VERBS[2 * one : 2 * one + 2]) for one in (kind, other)]
        articles = [
            world.articles[thing],
            _one_of(draw, [one for one in ARTICLES if one != world.articles[thing]]),
        ]
        for group, good, bad in (
            (
                "article",
                [person, verbs[0], articles[0], thing],
                [person, verbs[0], articles[1], thing],
            ),
            (
                "verb",
                [person, verbs[0], articles[0], thing],
                [person, verbs[1], articles[0], thing],
            ),
        ):
            is_right = index % 2 == 0
            texts = [
                " ".join([*(words if is_right else words[::-1]), "."]) for words in (good, bad)
            ]
            side = "right" if is_right else "left"
            found = {
                "sentence_good": texts[0],
                "sentence_bad": texts[1],
                "UID": f"{group}_{side}",
                "field": side,
            }
            lines.append(json.dumps(found))
    return "\n".join(lines) + "\n"


# What can be known


@dataclass(frozen=True)
class Reader:
    """Bayes' rule over a world: exact, because a sentence depends on the others through its kind
    alone.
    """

    world: World

    @cached_property
    def tables(self) -> dict[str, Floats]:
        """Probability of each person, verb and article, given the kind of the sentence: [kinds,
        words] each.
        """
        kinds, articles = range(len(THINGS)), self.world.articles
        people = np.full((len(kinds), len(PEOPLE)), (1 - OWN_PERSON_SHARE) / len(PEOPLE))
        verbs = np.zeros((len(kinds), len(VERBS)))
        verbs[:, -len(PLAIN_VERBS) :] = PLAIN_SHARE / len(PLAIN_VERBS)
        shares = np.zeros((len(kinds), len(ARTICLES)))
        for kind in kinds:
            people[kind, 3 * kind : 3 * kind + 3] += OWN_PERSON_SHARE / 3
            verbs[kind, 2 * kind : 2 * kind + 2] = (1 - PLAIN_SHARE) / 2
            for thing in THINGS[kind]:
                shares[kind, ARTICLES.index(articles[thing])] += 1 / len(THINGS[kind])
        return {"person": people, "verb": verbs, "article": shares}

    def factor(self, words: Sequence[str | None], is_right: bool) -> Floats:
        """P(the words that are given | kind, order) [K]; None is a word out of view."""
        person, verb, article, thing = words[:4] if is_right else words[3::-1]
        found = np.ones(len(THINGS))
        for name, word, choices in (("person", person, PEOPLE), ("verb", verb, VERBS)):
            if word is not None:
                found = found * (
                    self.tables[name][:, choices.index(word)] if word in choices else 0.0
                )
        if article is not None and article not in ARTICLES:
            return np.zeros(len(THINGS))
        if thing is not None:
            fits = thing in self.world.articles and article in (None, self.world.articles[thing])
            return found * [fits * (thing in things) / len(things) for things in THINGS]
        return found * (
            1.0 if article is None else self.tables["article"][:, ARTICLES.index(article)]
        )

    def likelihood(self, words: Sequence[str | None]) -> Floats:
        right = self.world.right
        return right * self.factor(words, True) + (1 - right) * self.factor(words, False)

    def step(self, belief: Floats) -> Floats:
        """From what is believed of a sentence's kind to what is believed of the next one's."""
        belief = belief / belief.sum()
        return self.world.following * belief + (1 - self.world.following) / len(THINGS)

    def left_to_right(self, document: Sequence[Sequence[str]]) -> list[float]:
        """-log P(word | all words before it in the document), for every word."""
        belief, costs = np.full(len(THINGS), 1 / len(THINGS)), []
        for words in document:
            before = float(belief.sum())
            for end in range(1, 5):
                seen = [*words[:end], *[None] * (4 - end)]
                now = float((belief * self.likelihood(seen)).sum())
                costs.append(-np.log(now / before))
                before = now
            costs.append(0.0)  # the full stop
            belief = self.step(belief * self.likelihood(words))
        return costs

    def masked(
        self, document: Sequence[Sequence[str]], hidden: Sequence[Sequence[bool]]
    ) -> list[float]:
        """-log P(word | all words of the document in view), for every hidden word."""
        seen = [
            [None if gone else word for word, gone in zip(*pair, strict=True)]
            for pair in zip(document, hidden, strict=True)
        ]
        kinds = len(THINGS)
        evidence = [self.likelihood(words) for words in seen]
        before, after = [np.full(kinds, 1 / kinds)], [np.ones(kinds)]
        for one in evidence[:-1]:
            before.append(self.step(before[-1] * one))
        for one in reversed(evidence[1:]):
            # the step is its own mirror image: it is symmetric
            after.insert(0, self.step(after[0] * one) * kinds)
        costs = []
        for place, words in enumerate(document):
            belief = before[place] * after[place]
            for at, gone in enumerate(hidden[place]):
                if gone and at < 4:
                    filled = [*seen[place][:at], words[at], *seen[place][at + 1 :]]
                    share = (belief * self.likelihood(filled)).sum() / (
                        belief * evidence[place]
                    ).sum()
                    costs.append(-float(np.log(share)))
                elif gone:
                    costs.append(0.0)
        return costs


def known_losses(world: World, documents: int) -> list[dict[str, Any]]:
    """What no model gets below on average, from documents outside the corpus
    (clozelab/corpus/generated.py).
    """
    reader, draw = Reader(world), random.Random(f"{world.seed}/hidden")
    left, masked = [], []
    for index in range(documents):
        document = world.document(f"held out/{index}")
        left.append(reader.left_to_right(document))
        masked.append(
            reader.masked(
                document, [[draw.random() < HIDDEN_FRACTION for _ in words] for words in document]
            )
        )
    bounds = []
    for name, view, costs, more in (
        ("left_to_right", "its document from the beginning", left, {}),
        (
            "masked",
            "all unmasked words of its document",
            masked,
            {"hidden_fraction": HIDDEN_FRACTION},
        ),
    ):
        sums, counts = np.array([sum(one) for one in costs]), np.array([len(one) for one in costs])
        mean = sums.sum() / counts.sum()
        error = np.std(sums - mean * counts, ddof=1) / counts.mean() / np.sqrt(len(costs))
        bounds.append(
            {
                "reader": name,
                "view": view,
                "nats_per_word": float(mean),
                "standard_error": float(error),
                **more,
            }
        )
    return bounds


# Writing


def write_world(
    output_dir: str | Path,
    world_seed: int,
    right: float,
    following: float,
    num_documents: int,
    train_examples: int,
    validation_examples: int,
    entropy_documents: int,
    only_look: bool = False,
) -> Path | None:
    """Writes the world below `output_dir` and returns it; does nothing where the same world already
    lies there.

    `right` and `following` are the dials, from 0 to 1. `only_look`: writes nothing; None where the
    world is not there. ValueError where a setting is impossible, or where the folder holds another
    world or files this would overwrite.
    """
    settings = {
        key: value for key, value in locals().items() if key not in ("output_dir", "only_look")
    }
    settings["world_version"] = WORLD_VERSION
    for name in ("right", "following"):
        if not 0 <= settings[name] <= 1:
            raise ValueError(f"dials: {name} must be between 0 and 1, not {settings[name]}")
    for name in ("num_documents", "train_examples", "validation_examples", "entropy_documents"):
        if settings[name] < 2:
            raise ValueError(f"dials: {name} must be at least 2, not {settings[name]}")
    folder = Path(output_dir)
    if is_written(folder, settings, FACTS_VERSION):
        return folder
    if only_look:
        return None
    world = World(world_seed, right, following)
    documents = [
        "\n".join(" ".join(words) for words in world.document(f"corpus/{n}"))
        for n in range(num_documents)
    ]
    files = {CORPUS: "\n\n".join(documents) + "\n"} | task_files(
        world, train_examples, validation_examples
    )
    files[f"{FOLDER}/minimal_pairs.jsonl"] = minimal_pairs(world, validation_examples)
    refuse_foreign_files(folder, files)
    manifest = {
        "about": (
            "Synthetic: text and tasks made by microworld.dials. No real person, place or event."
        ),
        "generator": "dials",
        "settings": settings,
        "facts_version": FACTS_VERSION,
        "known_loss": known_losses(world, entropy_documents),
        "sha256": {
            name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(files.items())
        },
    }
    write_files(folder, files, manifest)
    return folder


def samples(
    num_documents: int, world_seed: int, right: float = 1.0, following: float = 1.0
) -> Iterator[Sample]:
    """What `clozelab show` prints."""
    world = World(world_seed, right, following)
    for number in range(num_documents):
        lines = [("", [(" ".join(words), "")]) for words in world.document(f"corpus/{number}")]
        yield Sample(f"document {number}", "of the corpus", lines)
    for name, content in task_files(world, 1, 1).items():
        if "train" in name:
            lines = [("", [(line, "")]) for line in content.splitlines()]
            yield Sample(name.split("/")[1], "the first training example", lines)
