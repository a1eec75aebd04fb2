"""How far the surface goes: bag of words and longest overlap, from the written files.

The bag is a multinomial logistic regression (numpy, gradient descent with momentum) over the words of each side and
over the words that both sides share or only one has; so it includes counting the overlap. The overlap baseline is a
threshold on (or, for SWAG, the largest) share of the second text's words found in the first. For spans: the sentence
that shares most words with the question, and in it the first phrase that answered such a question in training. For
entities: each word's most frequent tag in training.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clozelab.data.microworld.entropy import words_of

Texts = list[tuple[str, str]]

TASK_FILES: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    # name: train, validation, text columns, label column
    "SST-2": ("SST-2/train", "SST-2/dev", ("sentence",), "label"),
    "MRPC": ("MRPC/train", "MRPC/dev", ("#1 String", "#2 String"), "Quality"),
    "QQP": ("QQP/train", "QQP/dev", ("question1", "question2"), "is_duplicate"),
    "RTE": ("RTE/train", "RTE/dev", ("sentence1", "sentence2"), "label"),
    "QNLI": ("QNLI/train", "QNLI/dev", ("question", "sentence"), "label"),
    "MNLI matched": ("MNLI/train", "MNLI/dev_matched", ("sentence1", "sentence2"), "gold_label"),
    "MNLI mismatched": ("MNLI/train", "MNLI/dev_mismatched", ("sentence1", "sentence2"), "gold_label"),
    "STS-B": ("STS-B/train", "STS-B/dev", ("sentence1", "sentence2"), "score"),
}


def surface_baselines(folder: str | Path) -> dict[str, dict[str, float]]:
    """Task -> {"majority", "bag_of_words", "overlap"}: accuracy; Spearman's rank correlation for STS-B, F1 for spans
    and entities.

    The majority of SQuAD is to answer nothing.
    """
    folder = Path(folder)
    train, validation = (_read_cola(folder / f"glue/CoLA/{name}.tsv") for name in ("train", "dev"))
    results = {"CoLA": _classify(train, validation)}
    for name, (train_file, dev_file, columns, label) in TASK_FILES.items():
        train = _read_tsv(folder / f"glue/{train_file}.tsv", columns, label)
        validation = _read_tsv(folder / f"glue/{dev_file}.tsv", columns, label)
        results[name] = _regress(train, validation) if name == "STS-B" else _classify(train, validation)
    results["SWAG"] = _choose(_read_swag(folder / "swag/train.csv"), _read_swag(folder / "swag/val.csv"))
    for version in ("1.1", "2.0"):
        answered = [bool(qa["answers"]) for _, qa in _questions(folder / f"squad/dev-v{version}.json")]
        abstain = 1.0 - float(np.mean(answered))
        results[f"SQuAD {version}"] = {"majority": abstain, "overlap": span_overlap_f1(folder / "squad", version)}
    results["NER"] = {"bag_of_words": word_tag_f1(folder / "ner/train.txt", folder / "ner/dev.txt")}
    return results


# ---- reading ---------------------------------------------------------------------------------------------------------


def _read_tsv(path: Path, columns: Sequence[str], label: str) -> tuple[Texts, list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    texts = [(row[columns[0]], row[columns[1]] if len(columns) > 1 else "") for row in rows]
    return texts, [row[label] for row in rows]


def _read_cola(path: Path) -> tuple[Texts, list[str]]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    return [(row[3], "") for row in rows], [row[1] for row in rows]


def _read_swag(path: Path) -> list[tuple[str, list[str], int]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [(row["startphrase"], [row[f"ending{n}"] for n in range(4)], int(row["label"])) for row in rows]


# ---- bag of words ----------------------------------------------------------------------------------------------------


def _features(texts: Texts) -> list[list[str]]:
    result = []
    for first, second in texts:
        one, two = set(words_of(first)), set(words_of(second))
        bag = [f"1:{word}" for word in sorted(one)] + [f"2:{word}" for word in sorted(two)]
        if two:
            bag += [f"both:{word}" for word in sorted(one & two)] + [f"only2:{word}" for word in sorted(two - one)]
            bag += [f"share:{round(10 * _overlap(first, second))}", f"missing:{len(two - one)}"]
        result.append(bag)
    return result


def _matrix(bags: Sequence[Sequence[str]], index: dict[str, int]) -> np.ndarray:
    matrix = np.zeros((len(bags), len(index) + 1), dtype=np.float32)
    matrix[:, -1] = 1.0
    for row, bag in enumerate(bags):
        matrix[row, [index[word] for word in bag if word in index]] = 1.0
    return matrix


def _train_matrices(train: Texts, validation: Texts) -> tuple[np.ndarray, np.ndarray]:
    bags = _features(train)
    counts = Counter(word for bag in bags for word in bag)
    index = {word: number for number, word in enumerate(sorted(word for word, count in counts.items() if count > 1))}
    return _matrix(bags, index), _matrix(_features(validation), index)


def _softmax_regression(x: np.ndarray, y: np.ndarray, classes: int, steps: int = 200) -> np.ndarray:
    """Weights [features, classes] after full-batch gradient descent with momentum and a little weight decay."""
    weights = np.zeros((x.shape[1], classes), dtype=np.float32)
    speed = np.zeros_like(weights)
    target = np.eye(classes, dtype=np.float32)[y]
    for _ in range(steps):
        scores = x @ weights
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        gradient = x.T @ (scores / scores.sum(axis=1, keepdims=True) - target) / len(x) + 1e-4 * weights
        speed = 0.9 * speed - 0.5 * gradient
        weights += speed
    return weights


def _classify(train: tuple[Texts, list[str]], validation: tuple[Texts, list[str]]) -> dict[str, float]:
    labels = sorted(set(train[1]))
    y, truth = (np.array([labels.index(label) for label in part[1]]) for part in (train, validation))
    x, x_validation = _train_matrices(train[0], validation[0])
    guesses = (x_validation @ _softmax_regression(x, y, len(labels))).argmax(axis=1)
    result = {
        "majority": float(np.bincount(truth).max() / len(truth)),
        "bag_of_words": float((guesses == truth).mean()),
    }
    if validation[0][0][1]:
        result["overlap"] = _overlap_accuracy(train[0], y, validation[0], truth)
    return result


def _overlap(first: str, second: str) -> float:
    two = set(words_of(second))
    return len(two & set(words_of(first))) / max(len(two), 1)


def _overlap_accuracy(train: Texts, y: np.ndarray, validation: Texts, truth: np.ndarray) -> float:
    """The most frequent training label at each share of overlap, in tenths."""
    by_share: dict[int, Counter[int]] = defaultdict(Counter)
    for pair, label in zip(train, y, strict=True):
        by_share[round(10 * _overlap(*pair))][int(label)] += 1
    majority = int(np.bincount(y).argmax())
    guesses = []
    for pair in validation:
        counts = by_share.get(round(10 * _overlap(*pair)))
        guesses.append(counts.most_common(1)[0][0] if counts else majority)
    return float((np.array(guesses) == truth).mean())


def _regress(train: tuple[Texts, list[str]], validation: tuple[Texts, list[str]]) -> dict[str, float]:
    """Ridge regression on the same features, and the overlap itself, by Spearman's correlation."""
    x, x_validation = _train_matrices(train[0], validation[0])
    y, truth = np.array(train[1], dtype=np.float32), np.array(validation[1], dtype=np.float32)
    weights = np.linalg.solve(x.T @ x + 10.0 * np.eye(x.shape[1], dtype=np.float32), x.T @ (y - y.mean()))
    overlap = np.array([_overlap(*pair) for pair in validation[0]])
    return {"bag_of_words": _spearman(x_validation @ weights, truth), "overlap": _spearman(overlap, truth)}


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _spearman(one: np.ndarray, two: np.ndarray) -> float:
    return float(np.corrcoef(_ranks(one), _ranks(two))[0, 1])


def _choose(train: list[tuple[str, list[str], int]], validation: list[tuple[str, list[str], int]]) -> dict[str, float]:
    """Each ending scored as right or wrong by the bag; the best of four wins."""

    def pairs(rows: list[tuple[str, list[str], int]]) -> Texts:
        return [(start, ending) for start, endings, _ in rows for ending in endings]

    y = np.array([int(number == label) for _, _, label in train for number in range(4)])
    truth = np.array([label for _, _, label in validation])
    x, x_validation = _train_matrices(pairs(train), pairs(validation))
    scores = (x_validation @ _softmax_regression(x, y, 2))[:, 1].reshape(-1, 4)
    overlap = np.array([_overlap(*pair) for pair in pairs(validation)]).reshape(-1, 4)
    return {
        "majority": float(np.bincount(truth).max() / len(truth)),
        "bag_of_words": float((scores.argmax(axis=1) == truth).mean()),
        "overlap": float((overlap.argmax(axis=1) == truth).mean()),
    }


# ---- spans and entities ----------------------------------------------------------------------------------------------


def _questions(path: Path) -> list[tuple[str, dict[str, Any]]]:
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    return [
        (paragraph["context"], qa)
        for article in articles
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]


def _bare(text: str) -> list[str]:
    """Words without articles and punctuation, as the official scorer compares them."""
    return [word for word in re.findall(r"\w+", text.lower()) if word not in ("a", "an", "the")]


def span_overlap_f1(folder: Path, version: str) -> float:
    """Mean token F1 (0 to 1) of the overlap baseline; in 2.0 it answers always, as it has no way to know better."""
    known: dict[str, Counter[str]] = defaultdict(Counter)
    for _, qa in _questions(folder / f"train-v{version}.json"):
        for answer in qa["answers"]:
            known[_sort_of(qa["question"])][" ".join(_bare(answer["text"]))] += 1
    scores = []
    for context, qa in _questions(folder / f"dev-v{version}.json"):
        guess = _guess_span(context, qa["question"], known[_sort_of(qa["question"])])
        truth = _bare(qa["answers"][0]["text"]) if qa["answers"] else []
        common = sum((Counter(guess) & Counter(truth)).values())
        scores.append(2 * common / (len(guess) + len(truth)) if common else 0.0)
    return float(np.mean(scores))


def _sort_of(question: str) -> str:
    return " ".join(question.split(" ")[:2])


def _guess_span(context: str, question: str, known: Counter[str]) -> list[str]:
    asked = set(_bare(question))
    sentences = sorted(context.split(". "), key=lambda text: -len(asked & set(_bare(text))))
    for sentence in sentences:
        words = _bare(sentence)
        found = [
            words[start : start + width]
            for width in (2, 1)
            for start in range(len(words) - width + 1)
            if known[" ".join(words[start : start + width])] and not asked & set(words[start : start + width])
        ]
        if found:
            return found[0]
    return []


def _read_conll(path: Path) -> list[list[tuple[str, str]]]:
    blocks = path.read_text(encoding="utf-8").split("\n\n")
    lines = ([line.split(" ") for line in block.splitlines() if not line.startswith("-DOCSTART-")] for block in blocks)
    return [[(cells[0].lower(), cells[-1]) for cells in sentence] for sentence in lines if sentence]


def word_tag_f1(train_path: Path, validation_path: Path) -> float:
    """Entity F1 (0 to 1) of each word's most frequent tag."""
    tags: dict[str, Counter[str]] = defaultdict(Counter)
    for sentence in _read_conll(train_path):
        for word, tag in sentence:
            tags[word][tag] += 1
    common = found = true = 0
    for sentence in _read_conll(validation_path):
        guess = _entities([tags[word].most_common(1)[0][0] if word in tags else "O" for word, _ in sentence])
        truth = _entities([tag for _, tag in sentence])
        common, found, true = common + len(guess & truth), found + len(guess), true + len(truth)
    return 2 * common / max(found + true, 1)


def _entities(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """(start, end, type) of each entity in IOB2 tags; a stray I- begins one, as conlleval has it."""
    found, start, kind = set(), 0, ""
    for index, tag in enumerate([*tags, "O"]):
        goes_on = tag.startswith("I-") and tag[2:] == kind
        if kind and not goes_on:
            found.add((start, index, kind))
            kind = ""
        if tag != "O" and not goes_on:
            start, kind = index, tag[2:]
    return found
