"""Scores of the GLUE kind, and the files of a submission."""

from __future__ import annotations

import re
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from clozelab.metrics import glue
from clozelab.metrics.glue import TEST_SETS, file_problems, placeholder, write_submission
from clozelab.tasks.classes import ClassTarget
from clozelab.tasks.sequences import TokenSequences
from clozelab.tasks.unit import Split

CASES = 120


def random_labels(rng: np.random.Generator, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    size = int(rng.integers(1, 40))
    labels = rng.integers(0, num_classes, size)
    predictions = np.where(rng.random(size) < 0.5, labels, rng.integers(0, num_classes, size))
    return predictions, labels


@pytest.mark.parametrize(
    ("name", "oracle", "num_classes"),
    [
        ("accuracy", "accuracy_score", 3),
        ("f1", "f1_score", 2),
        ("matthews", "matthews_corrcoef", 3),
    ],
)
def test_equals_scikit_learn(name: str, oracle: str, num_classes: int) -> None:
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    extra = {"zero_division": 0.0, "labels": [1], "average": "macro"} if name == "f1" else {}
    with warnings.catch_warnings():
        # scikit-learn warns about single-class cases, which are meant here
        warnings.simplefilter("ignore")
        for _ in range(CASES):
            predictions, labels = random_labels(rng, num_classes)
            expected = getattr(sklearn_metrics, oracle)(labels, predictions, **extra)
            assert glue.SCORERS[name](predictions, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("name", "oracle"), [("pearson", "pearsonr"), ("spearman", "spearmanr")])
def test_correlations_equal_scipy(name: str, oracle: str) -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(2)
    for _ in range(CASES):
        labels = rng.integers(0, 6, int(rng.integers(5, 30))) / 5.0
        predictions = labels + rng.normal(size=len(labels)).round(1)
        if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
            continue
        expected = getattr(stats, oracle)(predictions, labels).statistic
        assert glue.SCORERS[name](predictions, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["matthews", "pearson", "spearman"])
def test_constant_predictions_have_no_correlation(name: str) -> None:
    assert glue.SCORERS[name]([1, 1, 1, 1], [0, 1, 2, 1]) == 0.0


def test_majority_baseline_and_collapse() -> None:
    labels = [1, 1, 0, 1]
    target = ClassTarget(labels=["no", "yes"], metrics=["accuracy", "matthews"])
    no_ids = np.zeros(0, np.int32)
    nothing = TokenSequences(no_ids, np.zeros(1, np.int64), no_ids)
    split = Split(sequences=nothing, ids=np.arange(4).astype(str), labels=np.array(labels))
    scores = {name: target.majority_score(name, split) for name in ("accuracy", "matthews")}
    assert scores == {"accuracy": 0.75, "matthews": 0.0}
    assert glue.is_collapsed([2, 2, 2])
    assert not glue.is_collapsed([2, 2, 0])


@pytest.mark.parametrize(
    ("ones", "gold_ones", "is_collapsed"),
    [
        (95, 50, True),
        (99, 68, True),
        (94, 50, False),
        (97, 97, False),  # what the examples are like
        (95, 85, False),  # a third as many others as there are
        (98, 90, True),
        (100, 100, True),  # one class is one class
    ],
)
def test_nearly_one_answer_is_collapsed_too(ones: int, gold_ones: int, is_collapsed: bool) -> None:
    answers, labels = (np.arange(100) < count for count in (ones, gold_ones))
    assert glue.is_collapsed(answers, labels=labels) is is_collapsed
    names = np.array(["no", "yes"])
    assert (
        glue.is_collapsed(names[answers.astype(int)], labels=names[labels.astype(int)])
        is is_collapsed
    )


def test_several_classes_that_are_hardly_ever_given() -> None:
    assert glue.is_collapsed([0] * 96 + [1, 2, 1, 2], labels=[0, 1, 2, 0] * 25)
    assert not glue.is_collapsed([0] * 90 + [1, 2] * 5, labels=[0, 1, 2, 0] * 25)


GOOD = {name: placeholder(name).encode() for name in TEST_SETS}


def test_good_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "glue.zip"
    write_submission(path, GOOD)
    first = path.read_bytes()
    write_submission(path, GOOD)
    assert path.read_bytes() == first
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == [f"{name}.tsv" for name in GOOD]
        assert archive.read("RTE.tsv").startswith(b"index\tprediction\n0\tentailment\n")


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("MRPC", b"index\tprediction", b"id\tlabel", "line must be 'index<TAB>prediction'"),
        ("MRPC", b"index\tprediction\n", b"", "line must be 'index<TAB>prediction'"),
        ("CoLA", b"1062\t0\n", b"", "CoLA.tsv: 1062 predictions, the test set has 1063"),
        (
            "RTE",
            b"\n7\tentailment",
            b"\n7\t1",
            "RTE.tsv:9: prediction '1' is not one of entailment",
        ),
        ("QNLI", b"\n3\t", b"\n2\t", "QNLI.tsv:5: index '2', expected 3"),
        ("STS-B", b"\n5\t0.0", b"\n5\tnan", "STS-B.tsv:7: prediction 'nan' is not a number"),
        ("SST-2", b"\n9\t0", b"\n9,0", "SST-2.tsv:11: 1 tab-separated fields"),
        ("AX", b"0\tcontradiction\n", b"0\tcontradiction\r\n", r"prediction 'contradiction\r'"),
        ("MNLI-m", b"index", b"\xef\xbb\xbfindex", "MNLI-m.tsv: the first line must be"),
        ("MNLI-mm", b"contradiction", b"\xff", "MNLI-mm.tsv: not UTF-8 text"),
    ],
)
def test_broken_ones(tmp_path: Path, name: str, old: bytes, new: bytes, message: str) -> None:
    """Of the good files the first `old` of one is replaced."""
    broken = GOOD[name].replace(old, new, 1)
    assert broken != GOOD[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        write_submission(tmp_path / "glue.zip", GOOD | {name: broken})
    assert not list(tmp_path.iterdir())


def test_a_missing_one(tmp_path: Path) -> None:
    others = {name: content for name, content in GOOD.items() if name != "WNLI"}
    with pytest.raises(ValueError, match=r"WNLI\.tsv: missing"):
        write_submission(tmp_path / "glue.zip", others)


def test_many_wrong_rows_are_counted_not_listed() -> None:
    wrong = GOOD["WNLI"].replace(b"\t0", b"\tno")
    problems = file_problems("WNLI", wrong)
    assert len(problems) == 4 and problems[-1] == "WNLI.tsv: and 143 more such rows"


@pytest.mark.parametrize("names", [["accuracy", "acuracy"], []])
def test_an_unknown_metric_is_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match=r"unknown metrics .*known: accuracy"):
        glue.score(names, [1], [1])


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="must be equal"):
        glue.accuracy([1, 2], [1])
