"""Two runs on the same examples, against scipy's own tests and numbers worked out by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from clozelab.results.answers import describe, pair_runs, read_answers
from clozelab.runs.record import Record


def run(
    folder: Path, predictions: Sequence[Any], labels: Sequence[Any], name: str = "predictions.jsonl"
) -> Record:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"id": str(i), "prediction": p, "label": t}
        for i, (p, t) in enumerate(zip(predictions, labels, strict=True))
    ]
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return record(folder)


def record(folder: Path) -> Record:
    config = {"row": "r", "task": {"name": "t"}, "pretrain_seed": 1, "seed": 2}
    return Record.model_construct(stage="finetune", config=config, folder=folder)


def compared(first: Record, second: Record, score: str) -> str:
    """What `clozelab compare` says of two runs; differences are second - first."""
    answers = [read_answers(one.folder / "predictions.jsonl") for one in (first, second)]
    return " ".join(describe(pair_runs(first, *answers, score)))


def test_a_character_that_ends_lines_elsewhere_ends_no_answer(tmp_path: Path) -> None:
    """Python's splitlines() takes U+2028 and U+0085 for line ends; labels may hold them."""
    labels = ["one\u2028half", "two\x85", "three\x0c"]
    rows = [
        {"id": f"{n}\u2029", "prediction": label, "label": label} for n, label in enumerate(labels)
    ]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (tmp_path / "predictions.jsonl").write_text("".join(lines), encoding="utf-8")
    answers = read_answers(tmp_path / "predictions.jsonl")
    assert answers.labels == labels and answers.ids == ["0\u2029", "1\u2029", "2\u2029"]


def test_mcnemar_is_exact(tmp_path: Path) -> None:
    labels = ["1"] * 20
    first = run(tmp_path / "a", ["1"] * 12 + ["0"] * 8, labels)
    second = run(tmp_path / "b", ["1"] * 3 + ["0"] * 9 + ["1"] * 2 + ["0"] * 6, labels)
    found = compared(first, second, "accuracy")
    # 9 that the first alone gets right, 2 that the second alone does: 2 * (1 + 11 + 55) / 2**11
    for text in (
        "only A right 9, only B right 2: exact McNemar p = 0.0654",
        "20 common examples",
        "other seeds are another question",
    ):
        assert text in found


def test_bootstrap_knows_a_difference_from_none(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 400)
    good = np.where(generator.random(400) < 0.9, labels, 1 - labels)
    also = np.where(generator.random(400) < 0.9, labels, 1 - labels)
    poor = np.where(generator.random(400) < 0.6, labels, 1 - labels)
    runs = [
        run(tmp_path / str(i), list(map(str, one)), list(map(str, labels)))
        for i, one in enumerate((good, also, poor))
    ]
    for score in ("f1", "matthews"):
        assert re.search(r"95 % \[−.*, \+", compared(runs[0], runs[1], score))
        assert re.search(r"95 % \[−.*, −", compared(runs[0], runs[2], score))


def test_interval_is_scipys_paired_bootstrap(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    labels = generator.normal(size=80)
    values = [labels + generator.normal(size=80), labels + 2 * generator.normal(size=80)]
    runs = [run(tmp_path / str(i), one.tolist(), labels.tolist()) for i, one in enumerate(values)]
    found = compared(runs[0], runs[1], "pearson")

    def difference(one: np.ndarray, other: np.ndarray, truth: np.ndarray) -> float:
        return 100 * float(
            stats.pearsonr(one, truth).statistic - stats.pearsonr(other, truth).statistic
        )

    expected = stats.bootstrap(
        (*values, labels),
        difference,
        paired=True,
        vectorized=False,
        n_resamples=2000,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    low, high = (float(text.replace("−", "-")) for text in re.findall(r"[+−]\d+\.\d", found)[1:])
    # other batches, other draws
    assert (-high, -low) == pytest.approx((expected.low, expected.high), abs=1.5)


def test_scores_of_tags_are_of_entities(tmp_path: Path) -> None:
    """One finds an entity of three and no other, the other two and two that are none: half their
    words are right.
    """
    labels = [["B-PER", "B-PER", "B-LOC", "O"]] * 4
    first = run(tmp_path / "a", [["B-PER", "O", "O", "O"]] * 4, labels)
    second = run(tmp_path / "b", [["B-PER"] * 4] * 4, labels)
    for metric, gap in (
        ("accuracy", "0.0"),
        ("precision", "−50.0"),
        ("recall", "+33.3"),
        ("f1", "+7.1"),
    ):
        assert f"{metric}, B - A: {gap} points" in compared(first, second, metric)


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    number = run(tmp_path / "number", ["1"], ["1"])
    other_label = run(tmp_path / "other", ["1"], ["0"])
    nothing = record(tmp_path / "nothing")
    word = run(tmp_path / "word", ["yes"], ["no"])
    broken = run(tmp_path / "broken", ["yes"], ["no"])
    (broken.folder / "predictions.jsonl").write_text("{broken")
    for first, second, score, sentence in (
        (number, other_label, "accuracy", "the same examples with the same labels"),
        (number, nothing, "accuracy", "no readable predictions"),
        (word, word, "f1", "needs the order of the labels"),
        (word, broken, "accuracy", "no readable predictions"),
    ):
        with pytest.raises(ValueError, match=sentence):
            compared(first, second, score)
