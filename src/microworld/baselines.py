"""What the surface of a world's tasks gives away, from the files as they are written.

Methods and scorers are those of `clozelab` for real files. Beside the bag of words there is the
overlap alone: a threshold on (or, for SWAG, the largest) share of the second text's words found in
the first.

`baselines.json` beside a task's files holds them: validation file -> baseline -> score of
scores.json, in the unit of the task's scorer (shares of one, SQuAD's in percent).
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clozelab.corpus.generated import BASELINES_FILE
from clozelab.datamodules.baselines import (
    BAG,
    OVERLAP,
    TAGS,
    PhraseGuesser,
    guess_choices,
    guess_classes,
    guess_numbers,
    most_frequent_tags,
    overlap,
)
from clozelab.metrics import glue
from clozelab.metrics.entities import entity_scores
from clozelab.metrics.squad import f1

MAJORITY = "majority"
Texts = list[tuple[str, str]]
Scores = dict[str, dict[str, float]]
"""Baseline -> score's name -> value."""

TASK_FILES: dict[str, tuple[tuple[str, ...], str]] = {
    # validation file below glue/: text columns, label column
    "SST-2/dev": (("sentence",), "label"),
    "MRPC/dev": (("#1 String", "#2 String"), "Quality"),
    "QQP/dev": (("question1", "question2"), "is_duplicate"),
    "RTE/dev": (("sentence1", "sentence2"), "label"),
    "QNLI/dev": (("question", "sentence"), "label"),
    "MNLI/dev_matched": (("sentence1", "sentence2"), "gold_label"),
    "MNLI/dev_mismatched": (("sentence1", "sentence2"), "gold_label"),
    "STS-B/dev": (("sentence1", "sentence2"), "score"),
}


def surface_baselines(files: Mapping[str, str]) -> dict[str, Scores]:
    """Validation file -> its baselines, from all files of a world (path -> content). With
    "majority", where that means
    something: the most frequent label of the validation split; for SQuAD, to answer nothing."""
    train, validation = (_read_cola(files[f"glue/CoLA/{name}.tsv"]) for name in ("train", "dev"))
    results = {"glue/CoLA/dev.tsv": _classify(train, validation)}
    for name, (columns, label) in TASK_FILES.items():
        train = _read_tsv(files[f"glue/{name.split('/')[0]}/train.tsv"], columns, label)
        validation = _read_tsv(files[f"glue/{name}.tsv"], columns, label)
        results[f"glue/{name}.tsv"] = (_regress if name == "STS-B/dev" else _classify)(
            train, validation
        )
    results["swag/val.csv"] = _choose(
        _read_swag(files["swag/train.csv"]), _read_swag(files["swag/val.csv"])
    )
    for version in ("v1.1", "v2.0"):
        train_text, text = (files[f"squad/{split}-{version}.json"] for split in ("train", "dev"))
        abstain = float(np.mean([not qa["answers"] for _, qa in _questions(text)]))
        found = {MAJORITY: abstain, OVERLAP: span_overlap_f1(train_text, text)}
        results[f"squad/dev-{version}.json"] = {
            name: {"f1": 100.0 * value} for name, value in found.items()
        }
    results["ner/dev.txt"] = {
        TAGS: {"f1": word_tag_f1(files["ner/train.txt"], files["ner/dev.txt"])}
    }
    return results


def baseline_files(files: Mapping[str, str]) -> dict[str, str]:
    """Path -> content of every task folder's `baselines.json`, without the majority (each run knows
    its own).
    """
    folders: dict[str, dict[str, Scores]] = {}
    for path, scores in surface_baselines(files).items():
        folder, _, name = path.rpartition("/")
        kept = {
            key: {metric: round(value, 4) for metric, value in named.items()}
            for key, named in scores.items()
            if key != MAJORITY
        }
        folders.setdefault(folder, {})[name] = kept
    return {
        f"{folder}/{BASELINES_FILE}": json.dumps(content, indent=1) + "\n"
        for folder, content in folders.items()
    }


# ---- reading
# ------------------------------------------------------------------------------


def _read_tsv(text: str, columns: Sequence[str], label: str) -> tuple[Texts, list[str]]:
    rows = list(
        csv.DictReader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)
    )
    texts = [(row[columns[0]], row[columns[1]] if len(columns) > 1 else "") for row in rows]
    return texts, [row[label] for row in rows]


def _read_cola(text: str) -> tuple[Texts, list[str]]:
    rows = [line.split("\t") for line in text.splitlines()]
    return [(row[3], "") for row in rows], [row[1] for row in rows]


def _read_swag(text: str) -> list[tuple[str, list[str], int]]:
    rows = csv.DictReader(io.StringIO(text, newline=""))
    return [
        (row["startphrase"], [row[f"ending{n}"] for n in range(4)], int(row["label"]))
        for row in rows
    ]


# ---- words
# ------------------------------------------------------------------------------


def _classify(train: tuple[Texts, list[str]], validation: tuple[Texts, list[str]]) -> Scores:
    labels = sorted({*train[1], *validation[1]})
    y, truth = (
        np.array([labels.index(label) for label in part[1]]) for part in (train, validation)
    )
    guesses = {
        MAJORITY: np.full(len(truth), np.bincount(truth).argmax()),
        BAG: guess_classes(train[0], y, validation[0], len(labels)),
    }
    if validation[0][0][1]:
        guesses[OVERLAP] = _overlap_guesses(train[0], y, validation[0])
    metrics = ["accuracy", "f1", "matthews"] if len(labels) == 2 else ["accuracy"]
    return {name: glue.score(metrics, guess, truth) for name, guess in guesses.items()}


def _overlap_guesses(train: Texts, y: np.ndarray, validation: Texts) -> np.ndarray:
    """The most frequent training label at each share of overlap, in tenths."""
    by_share: dict[int, Counter[int]] = defaultdict(Counter)
    for pair, label in zip(train, y, strict=True):
        by_share[round(10 * overlap(*pair))][int(label)] += 1
    majority = int(np.bincount(y).argmax())
    guesses = []
    for pair in validation:
        counts = by_share.get(round(10 * overlap(*pair)))
        guesses.append(counts.most_common(1)[0][0] if counts else majority)
    return np.array(guesses)


def _regress(train: tuple[Texts, list[str]], validation: tuple[Texts, list[str]]) -> Scores:
    """Numbers from the bag, and the overlap itself."""
    y, truth = (np.array(part[1], dtype=np.float64) for part in (train, validation))
    guesses = {
        BAG: guess_numbers(train[0], y, validation[0]),
        OVERLAP: np.array([overlap(*pair) for pair in validation[0]]),
    }
    return {
        name: glue.score(["spearman", "pearson"], guess, truth) for name, guess in guesses.items()
    }


def _choose(
    train: list[tuple[str, list[str], int]], validation: list[tuple[str, list[str], int]]
) -> Scores:
    """The ending that looks most like a right one, or shares most words with the beginning."""
    asked = [(start, endings) for start, endings, _ in validation]
    labels, truth = (np.array([label for _, _, label in part]) for part in (train, validation))
    shares = np.array([[overlap(start, ending) for ending in endings] for start, endings in asked])
    guesses = {
        MAJORITY: np.full(len(truth), np.bincount(truth).argmax()),
        BAG: guess_choices([(start, endings) for start, endings, _ in train], labels, asked),
        OVERLAP: shares.argmax(axis=1),
    }
    return {name: glue.score(["accuracy"], guess, truth) for name, guess in guesses.items()}


# ---- spans and entities
# ------------------------------------------------------------------------------


def _questions(text: str) -> list[tuple[str, dict[str, Any]]]:
    articles = json.loads(text)["data"]
    return [
        (paragraph["context"], qa)
        for article in articles
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]


def span_overlap_f1(train: str, validation: str) -> float:
    """Mean token F1 (0 to 1) of the overlap baseline; in 2.0 an unanswerable question counts as
    wrong.
    """
    learnt = [qa for _, qa in _questions(train)]
    guesser = PhraseGuesser(
        [qa["question"] for qa in learnt],
        [[answer["text"] for answer in qa["answers"]] for qa in learnt],
    )
    scores = [
        (
            f1(guesser.guess(context, qa["question"]), qa["answers"][0]["text"])
            if qa["answers"]
            else 0.0
        )
        for context, qa in _questions(validation)
    ]
    return float(np.mean(scores))


def _read_conll(text: str) -> list[tuple[list[str], list[str]]]:
    """(words, tags) of each sentence."""
    blocks = text.split("\n\n")
    lines = (
        [line.split(" ") for line in block.splitlines() if not line.startswith("-DOCSTART-")]
        for block in blocks
    )
    return [
        ([cells[0] for cells in sentence], [cells[-1] for cells in sentence])
        for sentence in lines
        if sentence
    ]


def word_tag_f1(train: str, validation: str) -> float:
    """Entity F1 (0 to 1) of each word's most frequent tag."""
    asked = _read_conll(validation)
    guesses = most_frequent_tags(_read_conll(train), [words for words, _ in asked], "O")
    return entity_scores(guesses, [wanted for _, wanted in asked])["f1"]
