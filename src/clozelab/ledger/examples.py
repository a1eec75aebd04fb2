"""What two fine-tuning runs answered to the same examples, and whether their scores differ by more than chance.

Only about these two runs and these examples: another seed of either may end elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.data.readers.squad import read_squad
from clozelab.ledger.inventory import Record
from clozelab.ledger.wording import signed
from clozelab.metrics import glue, squad
from clozelab.metrics.entities import entities
from clozelab.metrics.paired_tests import Bootstrap, McNemar, bootstrap_mean, bootstrap_score, mcnemar

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
    first, second = read_answers(one), read_answers(two)
    if first.ids != second.ids or first.labels != second.labels:
        raise ValueError("they were not scored on the same examples with the same labels")
    if first.labels is None:
        return _questions(one, two, first, second, data_dir)
    if first.labels and isinstance(first.labels[0], list):
        return _tags(one, first, second)
    if first.labels and isinstance(first.labels[0], float | int):
        return _numbers(one, first, second)
    return _classes(one, first, second)


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


def read_answers(record: Record) -> Answers:
    """A run's predictions file, in its order.

    Raises:
        ValueError: there is none, or it cannot be read.
    """
    lines, questions = record.folder / "predictions.jsonl", record.folder / "predictions.json"
    try:
        if questions.is_file():
            texts = json.loads(questions.read_text(encoding="utf-8"))
            return Answers(list(texts), list(texts.values()), None)
        rows = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
        ids = [str(row["id"]) for row in rows]
        return Answers(ids, [row["prediction"] for row in rows], [row["label"] for row in rows])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{record.place} has no readable predictions ({error})") from error


def _classes(one: Record, first: Answers, second: Answers) -> PairedTest:
    """Right and wrong; and the task's own score where that is another than accuracy."""
    assert first.labels is not None
    names = list(dict.fromkeys(_label_names(one) + [str(label) for label in first.labels]))
    labels, *predicted = (
        np.array([names.index(str(value)) if str(value) in names else -1 for value in values])
        for values in (first.labels, first.predictions, second.predictions)
    )
    test = mcnemar(predicted[0] == labels, predicted[1] == labels)
    metric = one.metric.rpartition("/")[2]
    if metric == "accuracy" or metric not in glue.SCORERS:
        right = [100.0 * (values == labels) for values in predicted]
        return PairedTest(len(labels), "accuracy", test, bootstrap_mean(*right))
    scorer = glue.SCORERS[metric]
    found = bootstrap_score(lambda index, which: 100.0 * scorer(predicted[which][index], labels[index]), len(labels))
    return PairedTest(len(labels), metric, test, found)


def _label_names(record: Record) -> list[str]:
    """Labels in the task's own order: F1 asks for the second one."""
    return [str(name) for name in record.state["config_resolved"]["task"].get("data", {}).get("labels") or []]


def _numbers(one: Record, first: Answers, second: Answers) -> PairedTest:
    labels, *predicted = (np.array(values, float) for values in (first.labels, first.predictions, second.predictions))
    metric = one.metric.rpartition("/")[2]
    scorer = glue.SCORERS[metric]
    found = bootstrap_score(lambda index, which: 100.0 * scorer(predicted[which][index], labels[index]), len(labels))
    return PairedTest(len(labels), metric, None, found)


def _tags(one: Record, first: Answers, second: Answers) -> PairedTest:
    """Sentences are resampled, not words: the words of one sentence share their fate."""
    assert first.labels is not None
    metric = one.metric.rpartition("/")[2]
    count = _entity_counts if metric == "f1" else _word_counts
    counts = [
        np.array([count(p, label) for p, label in zip(run.predictions, first.labels, strict=True)])
        for run in (first, second)
    ]

    def score(index: NDArray[np.int64], which: int) -> float:
        right, total = counts[which][index].sum(axis=0)
        return 100.0 * right / total if total else 0.0

    return PairedTest(len(first.ids), metric, None, bootstrap_score(score, len(first.ids)))


def _entity_counts(predicted: Sequence[str], labels: Sequence[str]) -> tuple[int, int]:
    """Numerator and denominator of F1."""
    found, expected = set(entities(predicted)), set(entities(labels))
    return 2 * len(found & expected), len(found) + len(expected)


def _word_counts(predicted: Sequence[str], labels: Sequence[str]) -> tuple[int, int]:
    return sum(p == label for p, label in zip(predicted, labels, strict=True)), len(labels)


def _questions(one: Record, two: Record, first: Answers, second: Answers, data_dir: str | None) -> PairedTest:
    data = one.state["config_resolved"]["task"]["data"]
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
    name = str(record.state["config_resolved"]["task"]["data"]["validation_file"])
    seen = [Path(path) for path in record.state.get("watched", {}) if path.endswith(name)]
    for path in [Path(data_dir) / name] if data_dir else seen:
        if path.is_file():
            return path
    raise ValueError(f"the right answers ({name}) are not to be found; say data_dir=FOLDER")
