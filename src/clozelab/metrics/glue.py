"""Scores of classification and regression tasks, and GLUE's submissions.

Scores are pure functions of arrays. Each takes `predictions` and `labels` of shape [N] and returns
a plain float: a share of one or a correlation, never percent, or a number in the labels' own unit.
A `Metric` beside each says how it is shown, and whether higher is better. Unusual: a
constant input has no correlation; where the official GLUE scripts return nan for it, these return
0.0 (Matthews is 0.0 there by scikit-learn's convention too), so that a collapsed run has a score
that can be compared and is reported as collapsed beside it.

A GLUE submission is a flat zip with one file a test set: `index<TAB>prediction`, then a line an
example in the file's order, from 0, with a label as the task's files spell it (STS-B: a number). A
set that nobody predicted can be filled with one constant answer, so that the server takes the rest.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from clozelab.files.atomic import atomic_open
from clozelab.metrics.classes import macro_f1, weighted_f1
from clozelab.metrics.metric import Metric, Scorer, by_name


def accuracy(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of equal entries."""
    predicted, expected = paired(predictions, labels)
    return float((predicted == expected).mean())


def f1_binary(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return F1 of class 1 (GLUE: the paraphrase).

    It is 0.0 when the class is neither predicted nor present.
    """
    predicted, expected = paired(predictions, labels)
    is_predicted = predicted == 1
    is_expected = expected == 1
    true_positives = int((is_predicted & is_expected).sum())
    denominator = int(is_predicted.sum()) + int(is_expected.sum())
    return 2.0 * true_positives / denominator if denominator else 0.0


def matthews_correlation(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return the Matthews correlation for any number of classes (Gorodkin 2004).

    It is 0.0 when one side is constant.
    """
    predicted, expected = paired(predictions, labels)
    classes = np.unique(np.concatenate([predicted, expected]))
    # how often each class is predicted, and is right: [number of classes]
    predicted_counts = (predicted[:, None] == classes).sum(0).astype(np.float64)
    expected_counts = (expected[:, None] == classes).sum(0).astype(np.float64)
    total = float(len(predicted))
    correct = float((predicted == expected).sum())
    # each is its statistic times total**2
    covariance = correct * total - predicted_counts @ expected_counts
    predicted_variance = total**2 - predicted_counts @ predicted_counts
    expected_variance = total**2 - expected_counts @ expected_counts
    product = predicted_variance * expected_variance
    return float(covariance / np.sqrt(product)) if product > 0 else 0.0


def correlation(kind: str, predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return scipy's `kind` of correlation, pearsonr or spearmanr (ties share their mean rank).

    It is 0.0 when one side is constant.
    """
    from scipy import stats  # takes half a second: only who needs it pays

    predicted, expected = paired(predictions, labels)
    if np.ptp(predicted) == 0 or np.ptp(expected) == 0:
        return 0.0
    return float(getattr(stats, kind)(predicted, expected).statistic)


def mean_absolute_error(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean distance of a prediction from its label, in the labels' own unit."""
    predicted, expected = paired(predictions, labels)
    return float(np.abs(predicted - expected).mean())


# What a task's YAML may list under `metrics`: a new score is its function and a line here.
OF_CLASSES = by_name(
    Scorer.share("accuracy", accuracy),
    Scorer(Metric.share("f1", is_of_one_class=True), f1_binary),
    Scorer.share("macro_f1", macro_f1),
    Scorer.share("weighted_f1", weighted_f1),
    Scorer.share("matthews", matthews_correlation),
)
OF_NUMBERS = by_name(
    Scorer.share("pearson", partial(correlation, "pearsonr")),
    Scorer.share("spearman", partial(correlation, "spearmanr")),
    Scorer(Metric("mae", "points", higher_is_better=False), mean_absolute_error),
)
SCORERS = OF_CLASSES | OF_NUMBERS
# One class is predicted for nearly all examples, while the others are over FEWER times as frequent
# among the labels as among the predictions: a run that has collapsed, but for a few.
NEARLY_ALL = 0.95
FEWER = 4.0


def check_metrics(names: Sequence[str]) -> None:
    """ValueError for a score that does not exist."""
    unknown = [name for name in names if name not in SCORERS]
    if unknown or not names:
        raise ValueError(
            f"unknown metrics {unknown} in the task's config; known: {', '.join(SCORERS)}"
        )


def check_fit(names: Sequence[str], fitting: Iterable[str], predicted: str) -> None:
    """ValueError for a score that does not exist, or means nothing for what is `predicted`."""
    check_metrics(names)
    fitting_names = list(fitting)
    unfit = [name for name in names if name not in fitting_names]
    if unfit:
        raise ValueError(
            f"metrics {unfit} do not fit a task that predicts {predicted};"
            f" {', '.join(fitting_names)} do (module.metrics of a task lists them, and its"
            " metric is the main one, validation/NAME)"
        )


def score(names: Sequence[str], predictions: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Return the named scores of one set of predictions."""
    check_metrics(names)
    return {name: SCORERS[name](predictions, labels) for name in names}


def is_collapsed(predictions: ArrayLike, labels: ArrayLike | None = None) -> bool:
    """Whether one class is predicted for every example.

    That is the known failure of small tasks. With the right `labels` it is also where one class is
    predicted for NEARLY_ALL examples, unless they are so: the other classes are over FEWER times as
    frequent there.
    """
    predicted = np.asarray(predictions)
    classes, counts = np.unique(predicted, return_counts=True)
    if len(classes) <= 1 or labels is None:
        return len(classes) <= 1
    most_predicted = classes[counts.argmax()]
    others_expected = np.mean(np.asarray(labels) != most_predicted)
    others_predicted = 1.0 - counts.max() / len(predicted)
    is_nearly_all = counts.max() >= NEARLY_ALL * len(predicted)
    return bool(is_nearly_all and others_expected > FEWER * others_predicted)


def paired(predictions: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return both as arrays; ValueError where they are not [N] of one length, or empty."""
    predicted = np.asarray(predictions)
    expected = np.asarray(labels)
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
    """What one test set expects.

    `labels` are in the spelling of the files; without any the prediction is a number.
    """

    num_examples: int
    labels: tuple[str, ...]


BINARY = ("0", "1")
ENTAILMENT = ("entailment", "not_entailment")
THREE_WAY = ("contradiction", "entailment", "neutral")
SINGLE_SENTENCE: dict[str, Expected] = {
    "CoLA": Expected(1063, BINARY),
    "SST-2": Expected(1821, BINARY),
}
SIMILARITY: dict[str, Expected] = {
    "MRPC": Expected(1725, BINARY),
    "STS-B": Expected(1379, ()),
    "QQP": Expected(390_965, BINARY),
}
INFERENCE: dict[str, Expected] = {
    "MNLI-m": Expected(9796, THREE_WAY),
    "MNLI-mm": Expected(9847, THREE_WAY),
    "QNLI": Expected(5463, ENTAILMENT),
    "RTE": Expected(3000, ENTAILMENT),
    "WNLI": Expected(146, BINARY),
}
DIAGNOSTICS: dict[str, Expected] = {
    "AX": Expected(1104, THREE_WAY),
}
# In the order of GLUE's paper, by its groups of tasks.
TEST_SETS = SINGLE_SENTENCE | SIMILARITY | INFERENCE | DIAGNOSTICS


def prediction_lines(ids: Iterable[str], answers: Sequence[str]) -> Iterator[str]:
    """Yield the lines of one file without line ends."""
    yield "\t".join(HEADER)
    for index, answer in zip(ids, answers, strict=True):
        yield f"{index}\t{answer}"


def placeholder(name: str) -> str:
    """Return the content of a test set's file with one constant answer."""
    expected = TEST_SETS[name]
    answer = expected.labels[0] if expected.labels else "0.0"
    ids = [str(index) for index in range(expected.num_examples)]
    lines = prediction_lines(ids, [answer] * expected.num_examples)
    return "".join(f"{line}\n" for line in lines)


def write_submission(path: Path, contents: Mapping[str, bytes]) -> None:
    """Write the zip from test set -> file content.

    ValueError, and nothing written, where the server would refuse it.
    """
    problems = []
    for name, content in contents.items():
        problems += file_problems(name, content)
    problems += [f"{name}.tsv: missing" for name in TEST_SETS if name not in contents]
    if problems:
        raise ValueError("not a valid GLUE submission:\n  " + "\n  ".join(problems))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_open(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in TEST_SETS:
            entry = zipfile.ZipInfo(f"{name}.tsv", FIRST_ZIP_DATE)
            archive.writestr(entry, contents[name], compress_type=zipfile.ZIP_DEFLATED)


def file_problems(name: str, content: bytes) -> list[str]:
    """Return what is wrong with one test set's file; of wrong rows the first MAX_SHOWN."""
    file = f"{name}.tsv"
    try:
        header, *rows = content.decode("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        return [f"{file}: not UTF-8 text ({error.reason} at byte {error.start})"]
    if header != "\t".join(HEADER):
        return [f"{file}: the first line must be 'index<TAB>prediction', not {header[:60]!r}"]
    expected = TEST_SETS[name]
    if len(rows) != expected.num_examples:
        return [
            f"{file}: {len(rows)} predictions, the test set has {expected.num_examples} examples"
        ]
    problems = []
    for number, row in enumerate(rows):
        problem = _row_problem(number, row, expected.labels)
        if problem:
            # lines count from 1 and begin with the header
            problems.append(f"{file}:{number + 2}: {problem}")
    num_more = len(problems) - MAX_SHOWN
    if num_more > 0:
        return [*problems[:MAX_SHOWN], f"{file}: and {num_more} more such rows"]
    return problems


def _row_problem(number: int, row: str, labels: Sequence[str]) -> str:
    """Return what is wrong with the row of example `number`; "" where nothing is."""
    index, *predictions = row.split("\t")
    if len(predictions) != 1:
        return f"{len(predictions) + 1} tab-separated fields, expected 2"
    if index != str(number):
        return f"index {index!r}, expected {number} (each index once, in the test file's order)"
    prediction = predictions[0]
    if labels and prediction not in labels:
        return f"prediction {prediction!r} is not one of {', '.join(labels)}"
    if not labels and not is_number(prediction):
        return f"prediction {prediction!r} is not a number"
    return ""


def is_number(text: str) -> bool:
    """Whether a text is a finite number, as others than Python write it too.

    `1_0` and `inf` are none.
    """
    return NUMBER.fullmatch(text.strip()) is not None and math.isfinite(float(text))
