"""Scores of classification and regression tasks as pure functions of arrays, and what a trivial
predictor would reach.

Every function takes `predictions` and `labels` of shape [N] and returns a plain float in the
scorer's own unit (a share of one or a correlation, never percent). Unusual: a constant input has no
correlation; where the official GLUE scripts return nan for it, these return 0.0 (Matthews is 0.0
there by scikit-learn's convention too), so that a collapsed run has a score that can be compared
and is reported as collapsed beside it.

A GLUE submission is a flat zip with one file a test set: `index<TAB>prediction`, then a line an
example in the file's order, from 0, with a label as the task's files spell it (STS-B: a number). A
set that nobody predicted can be filled with one constant answer, so that the server takes the rest.
"""

from __future__ import annotations

import math
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def accuracy(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Share of equal entries."""
    predicted, expected = _paired(predictions, labels)
    return float((predicted == expected).mean())


def f1_binary(predictions: ArrayLike, labels: ArrayLike) -> float:
    """F1 of class 1 (GLUE: the paraphrase); 0.0 when the class is neither predicted nor present."""
    predicted, expected = (one == 1 for one in _paired(predictions, labels))
    true_positives = int((predicted & expected).sum())
    denominator = int(predicted.sum()) + int(expected.sum())
    return 2.0 * true_positives / denominator if denominator else 0.0


def matthews_correlation(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Matthews correlation for any number of classes (Gorodkin 2004); 0.0 when one side is
    constant.
    """
    predicted, expected = _paired(predictions, labels)
    classes = np.unique(np.concatenate([predicted, expected]))
    predicted_counts = (predicted[:, None] == classes).sum(0).astype(np.float64)
    expected_counts = (expected[:, None] == classes).sum(0).astype(np.float64)
    total, correct = float(len(predicted)), float((predicted == expected).sum())
    covariance = correct * total - predicted_counts @ expected_counts
    spread = (total**2 - predicted_counts @ predicted_counts) * (
        total**2 - expected_counts @ expected_counts
    )
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def correlation(kind: str, predictions: ArrayLike, labels: ArrayLike) -> float:
    """scipy's `kind`, pearsonr or spearmanr (ties share their mean rank); 0.0 when one side is
    constant.
    """
    from scipy import stats  # takes half a second: only who needs it pays

    predicted, expected = _paired(predictions, labels)
    if np.ptp(predicted) == 0 or np.ptp(expected) == 0:
        return 0.0
    return float(getattr(stats, kind)(predicted, expected).statistic)


SCORERS: dict[str, Callable[..., float]] = {  # what a task's YAML may list under `metrics`
    "accuracy": accuracy,
    "f1": f1_binary,
    "matthews": matthews_correlation,
    "pearson": partial(correlation, "pearsonr"),
    "spearman": partial(correlation, "spearmanr"),
}
CORRELATIONS = ("pearson", "spearman")
CONSTANT_RANGE = 1e-3  # predicted numbers that differ by less are one answer
NEARLY_ALL, FEWER = 0.95, 4.0


def check_metrics(names: Sequence[str], *, is_regression: bool | None = None) -> None:
    """ValueError for a score that does not exist, or means nothing for classes (or numbers; None:
    either).
    """
    unknown = [name for name in names if name not in SCORERS]
    if unknown or not names:
        raise ValueError(
            f"unknown metrics {unknown} in the task's config; known: {', '.join(SCORERS)}"
        )
    wrong = [
        name
        for name in names
        if is_regression is not None and (name in CORRELATIONS) != is_regression
    ]
    if wrong:
        kind = "predicts a number" if is_regression else "predicts a class"
        raise ValueError(
            f"metrics {wrong} do not fit a task that {kind}; {', '.join(CORRELATIONS)} are for"
            " numbers"
        )


def score(names: Sequence[str], predictions: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """The named scores of one set of predictions."""
    check_metrics(names)
    return {name: SCORERS[name](predictions, labels) for name in names}


def majority_baseline(names: Sequence[str], labels: ArrayLike) -> dict[str, float]:
    """The scores of predicting the most frequent label everywhere (the lowest of equally frequent
    ones).
    """
    values, counts = np.unique(np.asarray(labels), return_counts=True)
    return score(names, np.full(len(np.asarray(labels)), values[counts.argmax()]), labels)


def is_collapsed(
    predictions: ArrayLike, is_regression: bool = False, labels: ArrayLike | None = None
) -> bool:
    """Whether one class (or number) is predicted for every example, the known failure of small
    tasks; with the right
    `labels` also for NEARLY_ALL, unless they are so: the other classes are over FEWER times as
    frequent there."""
    values = np.asarray(predictions)
    if is_regression:
        return bool(np.ptp(values) < CONSTANT_RANGE)
    classes, counts = np.unique(values, return_counts=True)
    if len(classes) <= 1 or labels is None:
        return len(classes) <= 1
    others = np.mean(np.asarray(labels) != classes[counts.argmax()])
    return bool(
        counts.max() >= NEARLY_ALL * len(values)
        and others > FEWER * (1.0 - counts.max() / len(values))
    )


def _paired(predictions: ArrayLike, labels: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    predicted, expected = np.asarray(predictions), np.asarray(labels)
    if predicted.shape != expected.shape or predicted.ndim != 1 or not len(predicted):
        raise ValueError(
            f"predictions {predicted.shape} and labels {expected.shape} must be equal,"
            " non-empty [N]"
        )
    return predicted, expected


HEADER = ("index", "prediction")
FIRST_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # a zip that depends on its content alone
MAX_SHOWN = 3
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Expected:
    """Of one test set: `labels` in the spelling of the files; empty: the prediction is a number."""

    num_examples: int
    labels: tuple[str, ...]


BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
THREE_WAY = ("contradiction", "entailment", "neutral")
TEST_SETS: dict[str, Expected] = {
    "CoLA": Expected(1063, BINARY),
    "SST-2": Expected(1821, BINARY),
    "MRPC": Expected(1725, BINARY),
    "STS-B": Expected(1379, ()),
    "QQP": Expected(390_965, BINARY),
    "MNLI-m": Expected(9796, THREE_WAY),
    "MNLI-mm": Expected(9847, THREE_WAY),
    "QNLI": Expected(5463, ENTAILMENT),
    "RTE": Expected(3000, ENTAILMENT),
    "WNLI": Expected(146, BINARY),
    "AX": Expected(1104, THREE_WAY),
}


def prediction_lines(ids: Sequence[str], answers: Sequence[str]) -> Iterator[str]:
    """The lines of one file without line ends."""
    yield "\t".join(HEADER)
    for index, answer in zip(ids, answers, strict=True):
        yield f"{index}\t{answer}"


def placeholder(name: str) -> str:
    """The content of a file with one constant answer."""
    number, labels = TEST_SETS[name].num_examples, TEST_SETS[name].labels
    ids = [str(index) for index in range(number)]
    return "".join(
        f"{line}\n" for line in prediction_lines(ids, [labels[0] if labels else "0.0"] * number)
    )


def write_submission(path: Path, contents: Mapping[str, bytes]) -> None:
    """Write the zip from test set -> file content; ValueError, and nothing written, where the
    server refuses it.
    """
    problems = [
        problem for name, content in contents.items() for problem in file_problems(name, content)
    ]
    problems += [f"{name}.tsv: missing" for name in TEST_SETS if name not in contents]
    if problems:
        raise ValueError("not a valid GLUE submission:\n  " + "\n  ".join(problems))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in TEST_SETS:
            entry = zipfile.ZipInfo(f"{name}.tsv", FIRST_ZIP_DATE)
            archive.writestr(entry, contents[name], compress_type=zipfile.ZIP_DEFLATED)
    temporary.replace(path)


def file_problems(name: str, content: bytes) -> list[str]:
    """What is wrong with one test set's file."""
    where = f"{name}.tsv"
    try:
        header, *rows = content.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        return [f"{where}: not UTF-8 text ({error.reason} at byte {error.start})"]
    if header != "\t".join(HEADER):
        return [f"{where}: the first line must be 'index<TAB>prediction', not {header[:60]!r}"]
    expected = TEST_SETS[name]
    if len(rows) != expected.num_examples:
        return [
            f"{where}: {len(rows)} predictions, the test set has {expected.num_examples} examples"
        ]
    known, wrong = expected.labels, []
    kind = f"one of {', '.join(known)}" if known else "a number"
    for number, row in enumerate(rows):
        index, *predictions = row.split("\t")
        if len(predictions) != 1:
            problem = f"{len(predictions) + 1} tab-separated fields, expected 2"
        elif index != str(number):
            problem = (
                f"index {index!r}, expected {number} (each index once, in the test file's order)"
            )
        elif not (predictions[0] in known if known else is_number(predictions[0])):
            problem = f"prediction {predictions[0]!r} is not {kind}"
        else:
            continue
        # lines count from 1 and begin with the header
        wrong.append(f"{where}:{number + 2}: {problem}")
    more = (
        [f"{where}: and {len(wrong) - MAX_SHOWN} more such rows"] if len(wrong) > MAX_SHOWN else []
    )
    return wrong[:MAX_SHOWN] + more


def is_number(text: str) -> bool:
    """Whether it is a finite one, as others than Python write it too: `1_0` and `inf` are none."""
    return NUMBER.fullmatch(text.strip()) is not None and math.isfinite(float(text))
