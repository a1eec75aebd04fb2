"""What two fine-tuning runs answered to the same examples, and whether their scores differ by more than chance.

Only about these two runs and these examples: another seed of either may end elsewhere. So it stands in a note beside
a claim with one pre-training seed, and decides no verdict. Span tasks keep no gold answers in their run folders, and
get no note. Scorers are imported where they are called: most notes need none of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clozelab.metrics.statistics import Bootstrap, McNemar, bootstrap_mean, bootstrap_score, mcnemar
from clozelab.verdicts.wording import signed

if TYPE_CHECKING:
    from clozelab.runs.record import Record

TOLERANCE = 0.05
"""Points by which scores computed here may differ from scores.json's (predictions are rounded there)."""


@dataclass(frozen=True)
class PairedTest:
    """What can be said of two runs on the same examples.

    Attributes:
        num_examples: in both.
        metric: what `bootstrap` is about; its values are in percent.
        mcnemar: of right and wrong answers; None where an answer is neither.
        bootstrap: None where nothing beyond right and wrong is scored.
    """

    num_examples: int
    metric: str
    mcnemar: McNemar | None = None
    bootstrap: Bootstrap | None = None


@dataclass(frozen=True)
class Answers:
    """One run's answers: `labels` None for questions, whose gold texts are in the task's file."""

    ids: list[str]
    predictions: list[Any]
    labels: list[Any] | None = None


@dataclass(frozen=True)
class Scoring:
    """How answers are scored: the score's name, and the task's labels in its own order (F1 asks for the second one)."""

    metric: str
    label_names: tuple[str, ...] = ()


def paired_test(one: Record, two: Record, data_dir: str | None = None) -> PairedTest:
    """Test two complete fine-tuning runs on the examples of their validation split.

    Args:
        one, two: the runs.
        data_dir: where the task's files lie, should they not be where the runs have read them.

    Raises:
        ValueError: there is nothing to pair; says why.
    """
    for record in (one, two):
        if record.stage != "finetune" or record.status != "complete":
            raise ValueError(f"{record.place} is no complete fine-tuning run")
    if one.task != two.task:
        raise ValueError(f"they are on different tasks ({one.task} and {two.task})")
    first, second = read_answers(one.folder), read_answers(two.folder)
    if first.labels is None and first.ids == second.ids:
        return _questions(one, two, first, second, data_dir)
    return pair_answers(first, second, scoring_of(one, one.metric))


def pair_answers(first: Answers, second: Answers, scoring: Scoring) -> PairedTest:
    """Test two runs' answers to labelled examples.

    Raises:
        ValueError: other examples, other labels, or a score that these labels do not have.
    """
    if first.ids != second.ids or first.labels != second.labels or not first.labels:
        raise ValueError("they were not scored on the same examples with the same labels")
    if isinstance(first.labels[0], list):
        return _tags(first, second, scoring)
    if isinstance(first.labels[0], float | int):
        return _numbers(first, second, scoring)
    return _classes(first, second, scoring)


def scoring_of(run: Record, metric: str) -> Scoring:
    """By a run's own configuration; `metric` as in scores.json ("validation/accuracy")."""
    data = (run.config.get("task") or {}).get("data") or {}
    return Scoring(metric.rpartition("/")[2], tuple(str(name) for name in data.get("labels") or ()))


def describe(test: PairedTest) -> list[str]:
    """The test in words; differences are second - first."""
    lines = [f"These two runs on their {test.num_examples:,} common examples (other seeds are another question):"]
    if (right := test.mcnemar) is not None:
        only = f"only A right {right.only_first}, only B right {right.only_second}"
        lines.append(f"  {only}: exact McNemar p = {right.p_value:.3g}")
    if (gap := test.bootstrap) is not None:
        interval = f"95 % [{signed(-gap.high)}, {signed(-gap.low)}]"
        how = f"by paired bootstrap ({gap.num_resamples:,} resamples)"
        lines.append(f"  {test.metric}, B - A: {signed(-gap.difference)} points, {interval} {how}")
    return lines


def read_answers(folder: Path, name: str = "predictions.jsonl") -> Answers:
    """A run's predictions file, in its order; a question task's is predictions.json.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    lines, questions = folder / name, folder / "predictions.json"
    try:
        if questions.is_file():
            texts = json.loads(questions.read_text(encoding="utf-8"))
            return Answers(list(texts), list(texts.values()), None)
        rows = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
        ids = [str(row["id"]) for row in rows]
        return Answers(ids, [row["prediction"] for row in rows], [row["label"] for row in rows])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} has no readable predictions ({error})") from error


def _classes(first: Answers, second: Answers, scoring: Scoring) -> PairedTest:
    """Right and wrong; and the task's own score where that is another than accuracy."""
    assert first.labels is not None
    names = list(dict.fromkeys([*scoring.label_names, *sorted({str(label) for label in first.labels})]))
    labels, *predicted = (
        np.array([names.index(str(value)) if str(value) in names else -1 for value in values])
        for values in (first.labels, first.predictions, second.predictions)
    )
    test = mcnemar(predicted[0] == labels, predicted[1] == labels)
    if scoring.metric == "accuracy":
        right = [100.0 * (values == labels) for values in predicted]
        return PairedTest(len(labels), "accuracy", test, bootstrap_mean(*right))
    if not scoring.label_names and set(names) != {"0", "1"}:
        raise ValueError(f"{scoring.metric} needs the order of the labels {names}, which the run does not say")
    return PairedTest(len(labels), scoring.metric, test, _bootstrap(predicted, labels, scoring))


def _numbers(first: Answers, second: Answers, scoring: Scoring) -> PairedTest:
    labels, *predicted = (np.array(values, float) for values in (first.labels, first.predictions, second.predictions))
    return PairedTest(len(labels), scoring.metric, None, _bootstrap(predicted, labels, scoring))


def _bootstrap(predicted: Sequence[NDArray[Any]], labels: NDArray[Any], scoring: Scoring) -> Bootstrap:
    from clozelab.metrics import glue

    if (scorer := glue.SCORERS.get(scoring.metric)) is None:
        raise ValueError(f"{scoring.metric} is no score of labelled examples")
    return bootstrap_score(lambda index, which: 100.0 * scorer(predicted[which][index], labels[index]), len(labels))


def _tags(first: Answers, second: Answers, scoring: Scoring) -> PairedTest:
    """Sentences are resampled, not words: the words of one sentence share their fate."""
    assert first.labels is not None
    count = _entity_counts if scoring.metric == "f1" else _word_counts
    counts = [
        np.array([count(p, label) for p, label in zip(run.predictions, first.labels, strict=True)])
        for run in (first, second)
    ]

    def score(index: NDArray[np.int64], which: int) -> float:
        right, total = counts[which][index].sum(axis=0)
        return 100.0 * right / total if total else 0.0

    return PairedTest(len(first.ids), scoring.metric, None, bootstrap_score(score, len(first.ids)))


def _entity_counts(predicted: Sequence[str], labels: Sequence[str]) -> tuple[int, int]:
    """Numerator and denominator of F1."""
    from clozelab.metrics.entities import entities

    found, expected = set(entities(predicted)), set(entities(labels))
    return 2 * len(found & expected), len(found) + len(expected)


def _word_counts(predicted: Sequence[str], labels: Sequence[str]) -> tuple[int, int]:
    return sum(p == label for p, label in zip(predicted, labels, strict=True)), len(labels)


def _questions(one: Record, two: Record, first: Answers, second: Answers, data_dir: str | None) -> PairedTest:
    from clozelab.datamodules.squad import read_squad
    from clozelab.metrics import squad

    data = one.config["task"]["data"]
    unanswerable = bool(data.get("with_unanswerable", False))
    path = validation_file(one, data_dir)
    gold = read_squad(path, for_training=False, with_unanswerable=unanswerable)
    answers = {question.id: question.answers for question in gold.questions}
    if set(answers) != set(first.ids):
        raise ValueError(f"{path} does not have the questions that the runs answered")
    each = []
    for record, run in ((one, first), (two, second)):
        texts = dict(zip(run.ids, run.predictions, strict=True))
        if unanswerable:
            scores = squad.score_each(squad.f1_or_both_empty, answers, texts)  # 2.0's threshold is in the texts
        else:
            scores = squad.best_over_golds(squad.f1, answers, texts)
        values = np.array([100.0 * scores.get(key, 0.0) for key in answers])
        if record.metric == "validation/f1" and abs(values.mean() - (record.score or 0.0)) > TOLERANCE:
            raise ValueError(
                f"{record.place}: its answers score {values.mean():.2f}, its scores.json {record.score:.2f}"
            )
        each.append(values)
    return PairedTest(len(answers), "f1", None, bootstrap_mean(*each))


def validation_file(record: Record, data_dir: str | None) -> Path:
    """The file that a run was scored on.

    Raises:
        ValueError: it is not where the run read it, nor below `data_dir`.
    """
    name = str(record.config["task"]["data"]["validation_file"])
    seen = [Path(path) for path in record.watched if path.endswith(name)]
    for path in [Path(data_dir) / name] if data_dir else seen:
        if path.is_file():
            return path
    raise ValueError(f"the right answers ({name}) are not to be found; say data_dir=FOLDER")


def compare_examples(first: Record, second: Record, metric: str) -> str:
    """What these two runs' answers say, in words; empty where there is nothing to pair."""
    names = [path.name for path in sorted(first.folder.glob("predictions*.jsonl"))]
    name, score = _file_and_score(names, metric.rpartition("/")[2])
    files = [run.folder / name for run in (first, second)]
    if not name or not all(path.is_file() for path in files):
        return ""
    try:
        answers = [_read(path, path.stat().st_mtime_ns) for path in files]
        found = pair_answers(answers[0], answers[1], scoring_of(first, score))
    except ValueError:
        return ""
    return (
        f"on these examples, this pair of runs ({first.seeds}): {_words(found)}; says nothing about pre-training seeds"
    )


@lru_cache(maxsize=64)
def _read(path: Path, _modified: int) -> Answers:
    """The time is there for the cache alone: a page asks for the same files several times."""
    return read_answers(path.parent, path.name)


def _file_and_score(names: list[str], metric: str) -> tuple[str, str]:
    """(file, score): a second development set has a file of its own, and its name before the score's."""
    for name in names:
        other = name.removeprefix("predictions").removesuffix(".jsonl").lstrip("_")
        if other and metric.startswith(f"{other}_"):
            return name, metric.removeprefix(f"{other}_")
    return ("predictions.jsonl", metric) if "predictions.jsonl" in names else ("", metric)


def _words(found: PairedTest) -> str:
    if found.metric == "accuracy" and (right := found.mcnemar) is not None:
        if right.only_first + right.only_second == 0:
            return "both answer the same examples rightly"
        counts = f"{right.only_first} against {right.only_second} times"
        return f"right where the other is wrong {counts}, McNemar p = {right.p_value:.2g}"
    assert found.bootstrap is not None
    gap = found.bootstrap
    return f"95 % of resampled examples give {signed(gap.low)} to {signed(gap.high)} points"
