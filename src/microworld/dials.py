"""A small world with two dials, where theory says what pre-training must find.

Every sentence has four words and a full stop: a person, a verb, an article and a thing.

    Anna peels ki plum .        plum ki peels Anna .

Things belong to eight kinds, and so do most verbs and the tastes of people. Each thing takes one of
three articles.

- `right` is the share of sentences in the first order. There, what decides the person, the verb
  and the article stands to their right. In the second order it stands to their left.
- `following` is how often a sentence is about the same kind as the one before it.

The tasks use things that fine-tuning never saw, so only text can have told their kinds. Bayes' rule
can be followed to the end: `known_losses` says how low each loss can be.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from microworld.world import checksums, is_written, refuse_foreign_files, write_files

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
_PEOPLE = (
    "Anna Olga Mark Leo Niels Julia Irene Emma Karl Lars Jonas Marta Tomas Harald David Eric Greta"
    " Ida Nora Otto Paul Ruth Vera Hugo"
)
PEOPLE = _PEOPLE.split()
PLAIN_VERBS = ["sees", "has", "finds"]
"""Of any kind: they say nothing of the thing."""
VERBS = [*OWN_VERBS.split(), *PLAIN_VERBS]
ARTICLES = ["ka", "ki", "ko"]
PLAIN_SHARE = 0.5
"""How many sentences have a verb of any kind."""
OWN_PERSON_SHARE = 0.75
"""How many have a person who likes things of the kind."""
FULL_STOP = 4
"""Its position in a sentence."""
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
        """The article of each thing.

        Of a kind's sixteen things, six, five and five take each article, and both halves are dealt
        alike: so no article tells a kind.
        """
        articles = {}
        for things in THINGS:
            for start in (0, 8):
                half = things[start : start + 8]
                draw = random.Random(f"{self.seed}/articles/{half[0]}").random
                shuffled = sorted(half, key=lambda _: draw())
                for number, thing in enumerate(shuffled):
                    # The second half begins one article later: 3, 3, 2 and then 2, 3, 3.
                    articles[thing] = ARTICLES[(number + start // 8) % 3]
        return articles

    def sentence(
        self, draw: random.Random, kind: int, things: Sequence[str], is_plain: bool = False
    ) -> list[str]:
        """Five words of one kind. `is_plain`: neither the verb nor the person tells the kind."""
        thing = _one_of(draw, things)
        has_plain_verb = is_plain or draw.random() < PLAIN_SHARE
        verb = _one_of(draw, PLAIN_VERBS if has_plain_verb else _verbs_of(kind))
        is_anybody = is_plain or draw.random() >= OWN_PERSON_SHARE
        person = _one_of(draw, PEOPLE if is_anybody else _people_of(kind))
        words = [person, verb, self.articles[thing], thing]
        if draw.random() >= self.right:
            words.reverse()
        return [*words, "."]

    def document(self, name: str) -> list[list[str]]:
        """Sentences of five words, most of them about the kind of the one before."""
        draw = random.Random(f"{self.seed}/{name}")
        fewest, most = SENTENCES
        length = fewest + int(draw.random() * (most - fewest + 1))
        kind = _draw_kind(draw)
        sentences = []
        for _ in range(length):
            sentences.append(self.sentence(draw, kind, THINGS[kind]))
            if draw.random() >= self.following:
                kind = _draw_kind(draw)
        return sentences


def _one_of(draw: random.Random, choices: Sequence[str]) -> str:
    return choices[int(draw.random() * len(choices))]


def _draw_kind(draw: random.Random) -> int:
    return int(draw.random() * len(THINGS))


def _draw_another_kind(draw: random.Random, kind: int) -> int:
    step = 1 + int(draw.random() * (len(THINGS) - 1))
    return (kind + step) % len(THINGS)


def _people_of(kind: int) -> Sequence[str]:
    """Three people like things of each kind."""
    return PEOPLE[3 * kind : 3 * kind + 3]


def _verbs_of(kind: int) -> Sequence[str]:
    """Two verbs are of each kind."""
    return VERBS[2 * kind : 2 * kind + 2]


# The tasks


def task_files(world: World, train: int, validation: int) -> dict[str, str]:
    """Path -> content of three tasks: what each person is concerned with (tags), whether the thing
    is natural or made (kinds), and whether two texts are about one kind (pairs).

    Training shows the first half of each kind's things, validation the second. An eighth of the
    pairs is enough: with many, an encoder learns here to compare two texts, and nothing is left to
    be shown.
    """
    return {
        **_split_files(world, "train", train, max(2, train // 8), slice(0, 8)),
        **_split_files(world, "dev", validation, max(2, validation), slice(8, 16)),
    }


def _split_files(
    world: World, split: str, count: int, num_pairs: int, half: slice
) -> dict[str, str]:
    draw = random.Random(f"{world.seed}/{split}")
    tags: list[str] = []
    kinds = ["sentence\tlabel"]
    pairs = ["index\tsentence1\tsentence2\tlabel"]
    for index in range(count):
        tags += _tagged_lines(world, draw, half)
        kind = _draw_kind(draw)
        label = "made" if list(KINDS)[kind] in MADE else "natural"
        kinds.append(f"{_plain_sentence(world, draw, kind, half)}\t{label}")
        # Pairs beyond the last are drawn all the same: the other tasks do not depend on it.
        pair = _pair(world, draw, kind, half, index)
        if index < num_pairs:
            pairs.append(pair)
    return {
        f"{FOLDER}/tags/{split}.txt": "\n".join(tags) + "\n",
        f"{FOLDER}/kinds/{split}.tsv": "\n".join(kinds) + "\n",
        f"{FOLDER}/pairs/{split}.tsv": "\n".join(pairs) + "\n",
    }


def _plain_sentence(world: World, draw: random.Random, kind: int, half: slice) -> str:
    return " ".join(world.sentence(draw, kind, THINGS[kind][half], is_plain=True))


def _tagged_lines(world: World, draw: random.Random, half: slice) -> list[str]:
    """Three sentences in CoNLL-2003's columns. A person's tag is the group of the thing's kind."""
    lines = []
    for _ in range(3):
        kind = _draw_kind(draw)
        for word in _plain_sentence(world, draw, kind, half).split(" "):
            tag = f"B-{GROUPS[kind]}" if word in PEOPLE else "O"
            lines.append(f"{word} X X {tag}")
    return [*lines, ""]


def _pair(world: World, draw: random.Random, kind: int, half: slice, index: int) -> str:
    """A row of two texts of two sentences each: of one kind where `index` is even."""
    second_kind = _draw_another_kind(draw, kind)
    label = "other"
    if index % 2 == 0:
        second_kind = kind
        label = "same"
    texts = []
    for kind_of_text in (kind, second_kind):
        sentences = [_plain_sentence(world, draw, kind_of_text, half) for _ in range(2)]
        texts.append(" ".join(sentences))
    return f"{index}\t{texts[0]}\t{texts[1]}\t{label}"


def minimal_pairs(world: World, count: int) -> str:
    """Lines of JSON as BLiMP's: two sentences that differ in one word, of which one cannot be, or
    hardly.

    Groups say what is wrong and on which side of it stands what decides: `article_right`,
    `article_left`, `verb_right`, `verb_left`. The person's taste is the thing's kind.
    """
    draw = random.Random(f"{world.seed}/minimal pairs")
    lines = []
    for index in range(count):
        kind = _draw_kind(draw)
        wrong_kind = _draw_another_kind(draw, kind)
        thing = _one_of(draw, THINGS[kind])
        person = _one_of(draw, _people_of(kind))
        verb = _one_of(draw, _verbs_of(kind))
        wrong_verb = _one_of(draw, _verbs_of(wrong_kind))
        article = world.articles[thing]
        wrong_article = _one_of(draw, [choice for choice in ARTICLES if choice != article])

        side = "right" if index % 2 == 0 else "left"
        good = [person, verb, article, thing]
        wrong = {
            "article": [person, verb, wrong_article, thing],
            "verb": [person, wrong_verb, article, thing],
        }
        for group, bad in wrong.items():
            pair = {
                "sentence_good": _in_order(good, side),
                "sentence_bad": _in_order(bad, side),
                "UID": f"{group}_{side}",
                "field": side,
            }
            lines.append(json.dumps(pair))
    return "\n".join(lines) + "\n"


def _in_order(words: list[str], side: str) -> str:
    """The sentence in which what decides stands on this side."""
    ordered = words if side == "right" else words[::-1]
    return " ".join([*ordered, "."])


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
        probability = np.ones(len(THINGS))
        for name, word, choices in (("person", person, PEOPLE), ("verb", verb, VERBS)):
            if word is None:
                continue
            if word not in choices:
                return np.zeros(len(THINGS))
            probability = probability * self.tables[name][:, choices.index(word)]
        if article is not None and article not in ARTICLES:
            return np.zeros(len(THINGS))

        if thing is not None:
            # A thing has one article and one kind: other articles and kinds are impossible.
            fits = thing in self.world.articles and article in (None, self.world.articles[thing])
            return probability * [fits * (thing in things) / len(things) for things in THINGS]
        if article is not None:
            return probability * self.tables["article"][:, ARTICLES.index(article)]
        return probability

    def likelihood(self, words: Sequence[str | None]) -> Floats:
        right = self.world.right
        return right * self.factor(words, True) + (1 - right) * self.factor(words, False)

    def step(self, belief: Floats) -> Floats:
        """From what is believed of a sentence's kind to what is believed of the next one's."""
        belief = belief / belief.sum()
        return self.world.following * belief + (1 - self.world.following) / len(THINGS)

    def left_to_right(self, document: Sequence[Sequence[str]]) -> list[float]:
        """-log P(word | all words before it in the document), for every word."""
        belief = np.full(len(THINGS), 1 / len(THINGS))
        costs = []
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
        seen: list[list[str | None]] = []
        for words, flags in zip(document, hidden, strict=True):
            pairs = zip(words, flags, strict=True)
            seen.append([None if is_hidden else word for word, is_hidden in pairs])
        evidence = [self.likelihood(words) for words in seen]
        costs = []
        for number, belief in enumerate(self._beliefs(evidence)):
            total = (belief * evidence[number]).sum()
            for position, is_hidden in enumerate(hidden[number]):
                if not is_hidden:
                    continue
                if position == FULL_STOP:
                    costs.append(0.0)
                    continue
                filled = [*seen[number]]
                filled[position] = document[number][position]
                share = (belief * self.likelihood(filled)).sum() / total
                costs.append(-float(np.log(share)))
        return costs

    def _beliefs(self, evidence: Sequence[Floats]) -> list[Floats]:
        """What all other sentences say of the kind of each sentence, [K] each."""
        kinds = len(THINGS)
        before = [np.full(kinds, 1 / kinds)]
        for likelihood in evidence[:-1]:
            before.append(self.step(before[-1] * likelihood))
        after = [np.ones(kinds)]
        for likelihood in reversed(evidence[1:]):
            # the step is its own mirror image: it is symmetric
            after.insert(0, self.step(after[0] * likelihood) * kinds)
        return [left * right for left, right in zip(before, after, strict=True)]


def known_losses(world: World, documents: int) -> list[dict[str, Any]]:
    """What no model gets below on average, from documents outside the corpus
    (clozelab/corpus/generated.py).
    """
    reader = Reader(world)
    draw = random.Random(f"{world.seed}/hidden")
    left = []
    masked = []
    for index in range(documents):
        document = world.document(f"held out/{index}")
        left.append(reader.left_to_right(document))
        hidden = []
        for words in document:
            hidden.append([draw.random() < HIDDEN_FRACTION for _ in words])
        masked.append(reader.masked(document, hidden))
    return [
        {
            "reader": "left_to_right",
            "view": "its document from the beginning",
            **_mean_cost(left),
        },
        {
            "reader": "masked",
            "view": "all unmasked words of its document",
            **_mean_cost(masked),
            "hidden_fraction": HIDDEN_FRACTION,
        },
    ]


def _mean_cost(costs: Sequence[Sequence[float]]) -> dict[str, float]:
    """The mean over all words of all documents, with the error of a ratio of two means."""
    sums = np.array([sum(of_document) for of_document in costs])
    counts = np.array([len(of_document) for of_document in costs])
    mean = sums.sum() / counts.sum()
    error = np.std(sums - mean * counts, ddof=1) / counts.mean() / np.sqrt(len(costs))
    return {"nats_per_word": float(mean), "standard_error": float(error)}


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
        "world_seed": world_seed,
        "right": right,
        "following": following,
        "num_documents": num_documents,
        "train_examples": train_examples,
        "validation_examples": validation_examples,
        "entropy_documents": entropy_documents,
        "world_version": WORLD_VERSION,
    }
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
    documents = []
    for number in range(num_documents):
        sentences = [" ".join(words) for words in world.document(f"corpus/{number}")]
        documents.append("\n".join(sentences))
    files = {CORPUS: "\n\n".join(documents) + "\n"}
    files |= task_files(world, train_examples, validation_examples)
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
        "sha256": checksums(files),
    }
    write_files(folder, files, manifest)
    return folder
