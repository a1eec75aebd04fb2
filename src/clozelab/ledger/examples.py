"""Two runs on the same examples: McNemar's exact test for accuracy, a paired bootstrap for other scores.

It says how sure one may be about this pair of runs and nothing about pre-training seeds, so it stands in a note and
decides no verdict. Reads `predictions*.jsonl` of two run folders; span tasks keep no gold answers there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from clozelab.ledger.collect import FinetuneRun
from clozelab.ledger.wording import signed

MOST_VALUES = 4_000_000
"""Examples x resamples of a bootstrap: a second's work at the most."""

Answers = dict[str, tuple[Any, Any]]
"""id of an example -> (prediction, label)."""


def compare_examples(first: FinetuneRun, second: FinetuneRun, metric: str) -> str:
    """What these two runs' answers say, in words; empty where there are no answers to read."""
    names = [path.name for path in sorted(first.dir.glob("predictions*.jsonl"))]
    name, score = _file_and_score(names, metric.rpartition("/")[2])
    answers = [_answers(run.dir / name) for run in (first, second)] if name else []
    if not answers or not all(answers):
        return ""
    ids = sorted(answers[0].keys() & answers[1].keys())
    if not ids or any(answers[0][one][1] != answers[1][one][1] for one in ids):
        return ""
    pair = answers[0], answers[1]
    found = _mcnemar(*pair, ids) if score == "accuracy" else _bootstrap(*pair, ids, score)
    which = f"{first.pretrain_seed}/{first.seed}"
    if not found:
        return ""
    return f"on these examples, this pair of runs ({which}): {found}; says nothing about pre-training seeds"


def _file_and_score(names: list[str], metric: str) -> tuple[str, str]:
    """(file, score): a second development set has a file of its own, and its name before the score's."""
    for name in names:
        other = name.removeprefix("predictions").removesuffix(".jsonl").lstrip("_")
        if other and metric.startswith(f"{other}_"):
            return name, metric.removeprefix(f"{other}_")
    return ("predictions.jsonl", metric) if "predictions.jsonl" in names else ("", metric)


def _answers(path: Path) -> Answers:
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else {}


@lru_cache(maxsize=64)
def _read(path: Path, _modified: int) -> Answers:
    """Empty where the file is not what it should be; the time is there for the cache alone."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return {str(row["id"]): (row["prediction"], row["label"]) for row in rows}
    except (ValueError, KeyError, TypeError):
        return {}


def _mcnemar(first: Answers, second: Answers, ids: list[str]) -> str:
    """Exact: of the examples that one alone answers rightly, each is a fair coin if the two are equally good."""
    right = [np.array([answers[one][0] == answers[one][1] for one in ids]) for answers in (first, second)]
    only_first, only_second = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    if only_first + only_second == 0:
        return "both answer the same examples rightly"
    p = float(stats.binomtest(only_first, only_first + only_second).pvalue)
    return f"right where the other is wrong {only_first} against {only_second} times, McNemar p = {p:.2g}"


def _bootstrap(first: Answers, second: Answers, ids: list[str], score: str) -> str:
    """The 95 % interval of the difference over resampled examples, in points."""
    try:
        values = [first[one][0] for one in ids], [second[one][0] for one in ids], [first[one][1] for one in ids]
        columns = [np.array([float(value) for value in column]) for column in values]
    except (TypeError, ValueError):
        return ""  # labels that are words: no class 1 to score
    scorer = STATISTICS.get(score)
    if scorer is None:
        return ""

    def difference(one: np.ndarray, other: np.ndarray, labels: np.ndarray, axis: int = -1) -> np.ndarray:
        return 100.0 * (scorer(one, labels, axis) - scorer(other, labels, axis))

    resamples = int(np.clip(MOST_VALUES // len(ids), 200, 2000))
    found = stats.bootstrap(
        columns, difference, paired=True, vectorized=True, n_resamples=resamples, batch=100, method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return f"95 % of resampled examples give {signed(found.low)} to {signed(found.high)} points"


def _f1(predicted: np.ndarray, labels: np.ndarray, axis: int) -> np.ndarray:
    both = ((predicted == 1.0) & (labels == 1.0)).sum(axis)
    either = (predicted == 1.0).sum(axis) + (labels == 1.0).sum(axis)
    return np.where(either > 0, 2.0 * both / np.maximum(either, 1), 0.0)


def _pearson(predicted: np.ndarray, labels: np.ndarray, axis: int) -> np.ndarray:
    """Of two classes this is Matthews' correlation. 0 for a constant input, as everywhere else."""
    one = predicted - predicted.mean(axis, keepdims=True)
    other = labels - labels.mean(axis, keepdims=True)
    spread = np.sqrt((one**2).sum(axis) * (other**2).sum(axis))
    return np.where(spread > 1e-12, (one * other).sum(axis) / np.maximum(spread, 1e-12), 0.0)


def _spearman(predicted: np.ndarray, labels: np.ndarray, axis: int) -> np.ndarray:
    return _pearson(stats.rankdata(predicted, axis=axis), stats.rankdata(labels, axis=axis), axis)


STATISTICS: dict[str, Callable[[np.ndarray, np.ndarray, int], np.ndarray]] = {
    "f1": _f1,
    "matthews": _pearson,
    "pearson": _pearson,
    "spearman": _spearman,
}
