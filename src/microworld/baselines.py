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
from clozelab.metrics import glue
from clozelab.metrics.entities import entity_scores
from clozelab.metrics.squad import f1
from clozelab.tasks.baselines import (
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
    """Validation file -> its baselines, from all files of a world (path -> content).

    With "majority", where that means something: the most frequent label of the validation split;
    for SQuAD, to answer nothing.
    """
    train = _read_cola(files["glue/CoLA/train.tsv"])
    validation = _read_cola(files["glue/CoLA/dev.tsv"])
    results = {"glue/CoLA/dev.tsv": _classify(train, validation)}
    for name, (columns, label) in TASK_FILES.items():
        folder = name.split("/")[0]
        train = _read_tsv(files[f"glue/{folder}/train.tsv"], columns, label)
        validation = _read_tsv(files[f"glue/{name}.tsv"], columns, label)
        score = _regress if folder == "STS-B" else _classify
        results[f"glue/{name}.tsv"] = score(train, validation)
    results["swag/val.csv"] = _choose(
        _read_swag(files["swag/train.csv"]), _read_swag(files["swag/val.csv"])
    )
    for version in ("v1.1", "v2.0"):
        text = files[f"squad/dev-{version}.json"]
        abstain = float(np.mean([not entry["answers"] for _, entry in _questions(text)]))
        by_overlap = span_overlap_f1(files[f"squad/train-{version}.json"], text)
        results[f"squad/dev-{version}.json"] = {
            MAJORITY: {"f1": 100.0 * abstain},
            OVERLAP: {"f1": 100.0 * by_overlap},
        }
    by_word = word_tag_f1(files["ner/train.txt"], files["ner/dev.txt"])
    results["ner/dev.txt"] = {TAGS: {"f1": by_word}}
    return results


def baseline_files(files: Mapping[str, str]) -> dict[str, str]:
    """Path -> content of every task folder's `baselines.json`, without the majority (each run knows
    its own).
    """
    folders: dict[str, dict[str, Scores]] = {}
    for path, scores in surface_baselines(files).items():
        folder, _, name = path.rpartition("/")
        rounded = {}
        for baseline, values in scores.items():
            if baseline != MAJORITY:
                rounded[baseline] = {metric: round(value, 4) for metric, value in values.items()}
        folders.setdefault(folder, {})[name] = rounded
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
    """(beginning, four endings, label) of each row."""
    questions = []
    for row in csv.DictReader(io.StringIO(text, newline="")):
        endings = [row[f"ending{n}"] for n in range(4)]
        questions.append((row["startphrase"], endings, int(row["label"])))
    return questions


# ---- words
# ------------------------------------------------------------------------------


def _classify(train: tuple[Texts, list[str]], validation: tuple[Texts, list[str]]) -> Scores:
    train_texts, train_labels = train
    texts, text_labels = validation
    names = sorted({*train_labels, *text_labels})
    labels = np.array([names.index(label) for label in train_labels])
    truth = np.array([names.index(label) for label in text_labels])
    guesses = {
        MAJORITY: np.full(len(truth), np.bincount(truth).argmax()),
        BAG: guess_classes(train_texts, labels, texts, len(names)),
    }
    has_second_text = texts[0][1] != ""
    if has_second_text:
        guesses[OVERLAP] = _overlap_guesses(train_texts, labels, texts)
    metrics = ["accuracy", "f1", "matthews"] if len(names) == 2 else ["accuracy"]
    return {name: glue.score(metrics, guess, truth) for name, guess in guesses.items()}


def _overlap_guesses(train: Texts, labels: np.ndarray, validation: Texts) -> np.ndarray:
    """The most frequent training label at each share of overlap, in tenths."""
    by_share: dict[int, Counter[int]] = defaultdict(Counter)
    for pair, label in zip(train, labels, strict=True):
        by_share[round(10 * overlap(*pair))][int(label)] += 1
    majority = int(np.bincount(labels).argmax())
    guesses = []
    for pair in validation:
        counts = by_share.get(round(10 * overlap(*pair)))
        guesses.append(counts.most_common(1)[0][0] if counts else majority)
    return np.array(guesses)


def _regress(train: tuple[Texts, list[str]], validation: tuple[Texts, list[str]]) -> Scores:
    """Numbers from the bag, and the overlap itself."""
    numbers = np.array(train[1], dtype=np.float64)
    truth = np.array(validation[1], dtype=np.float64)
    guesses = {
        BAG: guess_numbers(train[0], numbers, validation[0]),
        OVERLAP: np.array([overlap(*pair) for pair in validation[0]]),
    }
    return {
        name: glue.score(["spearman", "pearson"], guess, truth) for name, guess in guesses.items()
    }


def _choose(
    train: list[tuple[str, list[str], int]], validation: list[tuple[str, list[str], int]]
) -> Scores:
    """The ending that looks most like a right one, or shares most words with the beginning."""
    learnt = [(start, endings) for start, endings, _ in train]
    questions = [(start, endings) for start, endings, _ in validation]
    labels = np.array([label for _, _, label in train])
    truth = np.array([label for _, _, label in validation])
    shares = []
    for start, endings in questions:
        shares.append([overlap(start, ending) for ending in endings])
    most_frequent = np.bincount(truth).argmax()
    guesses = {
        MAJORITY: np.full(len(truth), most_frequent),
        BAG: guess_choices(learnt, labels, questions),
        OVERLAP: np.array(shares).argmax(axis=1),
    }
    return {name: glue.score(["accuracy"], guess, truth) for name, guess in guesses.items()}


# ---- spans and entities
# ------------------------------------------------------------------------------


def _questions(text: str) -> list[tuple[str, dict[str, Any]]]:
    """(passage, question with its answers) of a SQuAD file."""
    questions = []
    for article in json.loads(text)["data"]:
        for paragraph in article["paragraphs"]:
            questions += [(paragraph["context"], entry) for entry in paragraph["qas"]]
    return questions


def span_overlap_f1(train: str, validation: str) -> float:
    """Mean token F1 (0 to 1) of the overlap baseline; in 2.0 an unanswerable question counts as
    wrong.
    """
    questions = []
    answers = []
    for _, entry in _questions(train):
        questions.append(entry["question"])
        answers.append([answer["text"] for answer in entry["answers"]])
    guesser = PhraseGuesser(questions, answers)
    scores = []
    for context, entry in _questions(validation):
        if entry["answers"]:
            guess = guesser.guess(context, entry["question"])
            scores.append(f1(guess, entry["answers"][0]["text"]))
        else:
            scores.append(0.0)
    return float(np.mean(scores))


def _read_conll(text: str) -> list[tuple[list[str], list[str]]]:
    """(words, tags) of each sentence."""
    sentences = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith("-DOCSTART-")]
        if lines:
            cells = [line.split(" ") for line in lines]
            sentences.append(([row[0] for row in cells], [row[-1] for row in cells]))
    return sentences


def word_tag_f1(train: str, validation: str) -> float:
    """Entity F1 (0 to 1) of each word's most frequent tag."""
    sentences = _read_conll(validation)
    guesses = most_frequent_tags(_read_conll(train), [words for words, _ in sentences], "O")
    return entity_scores(guesses, [tags for _, tags in sentences])["f1"]
