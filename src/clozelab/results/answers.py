"""What two fine-tuning runs answered to the same examples, and whether their scores differ by more
than chance.

Another seed of either may end elsewhere: so it decides no verdict, and stands in `clozelab compare`
alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from claims.analysis.examples import RESAMPLES, Bootstrap, McNemar, bootstrap, mcnemar
from claims.text.phrases import signed
from clozelab.metrics import glue, label_sets, ordinal, squad
from clozelab.metrics.answers import AnswerKind
from clozelab.metrics.entities import entities
from clozelab.readers.tables import open_table
from clozelab.runs.record import Record
from clozelab.text.plain import Json, ReadOnlyJson, read_json

TAG_METRICS = ("f1", "precision", "recall", "accuracy")
# points by which scores computed here may differ from scores.json's (predictions are rounded there)
TOLERANCE = 0.05


@dataclass(frozen=True)
class PairedTest:
    num_examples: int  # in both
    metric: str  # what `bootstrap` is about, in percent
    bootstrap: Bootstrap
    mcnemar: McNemar | None = None  # of right and wrong answers; None where an answer is neither


@dataclass(frozen=True)
class RunAnswers:
    """One run's answers: `labels` None for questions, whose gold texts are in the task's file."""

    ids: list[str]
    predictions: list[Json]
    labels: list[Json] | None = None
    names: Sequence[str] = ()  # all classes, where an example may have several


def paired_test(one: Record, two: Record, data_dir: str | None = None) -> PairedTest:
    """Test two fine-tuning runs on their validation examples (files in `data_dir`); ValueError:
    nothing to pair.
    """
    for record in (one, two):
        if record.stage != "finetune" or record.status != "complete":
            raise ValueError(f"{record.place} is no complete fine-tuning run")
    if one.task != two.task:
        raise ValueError(f"they are on different tasks ({one.task} and {two.task})")
    first, second = (read_answers(run.folder / "predictions.jsonl") for run in (one, two))
    if first.labels is None and first.ids == second.ids:
        return _questions(one, two, first, second, data_dir)
    test = pair_runs(one, first, second, one.metric.rpartition("/")[2])
    return replace(test, metric=one.score_name(one.metric))


def describe(test: PairedTest) -> list[str]:
    """The test in words; differences are second - first."""
    examples = f"{test.num_examples:,} common examples"
    lines = [f"These two runs on their {examples} (other seeds are another question):"]
    if test.mcnemar is not None:
        counts = f"only A right {test.mcnemar.only_first}, only B right {test.mcnemar.only_second}"
        lines.append(f"  {counts}: exact McNemar p = {test.mcnemar.p_value:.3g}")
    # It has A - B, and the line says B - A: signs turn, and the ends change places.
    gap = test.bootstrap
    lines.append(
        f"  {test.metric}, B - A: {signed(-gap.difference)} points, 95 %"
        f" [{signed(-gap.high)}, {signed(-gap.low)}] by paired bootstrap ({RESAMPLES:,} resamples)"
    )
    return lines


def read_answers(path: Path) -> RunAnswers:
    """A predictions file in its order; a question task's is predictions.json beside it.

    ValueError: it cannot be read.
    """
    questions = path.with_name("predictions.json")
    try:
        if questions.is_file():
            texts = read_json(questions)
            return RunAnswers(list(texts), list(texts.values()))
        rows = list(open_table(path).whole_rows())
        ids = [str(row["id"]) for row in rows]
        predictions = [row["prediction"] for row in rows]
        names = list(rows[0].get("probabilities", ())) if rows else []
        return RunAnswers(ids, predictions, [row["label"] for row in rows], names)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path.parent} has no readable predictions of labelled examples ({error!r})"
        ) from error


# -- labelled examples -----------------------------------------------------------------------------


def pair_runs(run: Record, first: RunAnswers, second: RunAnswers, metric: str) -> PairedTest:
    """Test two runs' answers to labelled examples; `run` knows the task's labels in their order."""
    if first.ids != second.ids or first.labels != second.labels or not first.labels:
        raise ValueError("they were not scored on the same examples with the same labels")
    count = len(first.ids)
    labels = first.labels
    answer_kind = run.facts.get("answers") or _kind_of(labels, first.names)
    if answer_kind in LISTS:
        metrics, compute = LISTS[answer_kind]
        if metric not in metrics:
            raise ValueError(
                f"{metric} is no score of predictions alone, so it cannot be resampled; of"
                f" {answer_kind} those are {', '.join(metrics)}"
            )
        return PairedTest(count, metric, compute(first, second, metric))
    if answer_kind not in ("labels", "numbers"):
        raise ValueError(f"their answers are {answer_kind}, which nothing here resamples")
    *values, label_values = _as_numbers(run, first.predictions, second.predictions, labels)
    test = None
    if answer_kind == "labels":
        right = np.array([answers == label_values for answers in values])
        test = mcnemar(right[0], right[1])
        names = {str(label) for label in labels}
        # F1 of a run that does not name its class is that of the second label.
        is_ordered = metric != "f1" or bool(_label_names(run)) or names == {"0", "1"}
        if not is_ordered:
            raise ValueError(
                f"{metric} needs the order of the labels {sorted(names)}, which the run does not"
                " say"
            )
    return PairedTest(count, metric, _bootstrap_scores(values, label_values, metric), test)


def _kind_of(labels: Sequence[Json], names: Sequence[str]) -> AnswerKind:
    """What the answers of an older run are, whose record has no `answers`.

    Only examples with several classes have their names; a word's null is a missing number.
    """
    if names:
        return "sets of labels"
    if not isinstance(labels[0], list):
        return "numbers" if isinstance(labels[0], float | int) else "labels"
    values = itertools.chain.from_iterable(labels)
    if any(isinstance(value, float | int) for value in values):
        return "words' numbers"
    return "tags"


def _label_names(run: Record) -> list[str]:
    """The task's labels in their order; the one that an F1 is of stands second."""
    data = _task(run).get("data") or {}
    names = [str(name) for name in data.get("labels") or ()]
    for score in run.scores.values():
        if score.positive_label is not None:
            return _with_second(names, score.positive_label)
    return names


def unnamed_positive_label(run: Record) -> str | None:
    """The class that an older fine-tuning's F1 is of, where its record does not name one.

    It is the second of two labels. None for 0 and 1 and the like, whose F1 needs no name.
    """
    from clozelab.tasks.classes import DEFAULT_POSITIVE_LABELS

    answers = run.folder / "predictions.jsonl"
    score = run.scores.get("validation/f1")
    if run.stage != "finetune" or score is None or not answers.is_file():
        return None
    labels = read_answers(answers).labels
    if score.positive_label is not None or not labels or not isinstance(labels[0], str):
        return None
    names = list(dict.fromkeys([*_label_names(run), *sorted(labels)]))
    # A text with $ would mean something to Hydra.
    if len(names) != 2 or frozenset(names) in DEFAULT_POSITIVE_LABELS or "$" in names[1]:
        return None
    return names[1]


def _with_second(names: Sequence[str], label: str) -> list[str]:
    """The names in their order, but for one that stands second; "" is before a single one."""
    before = [name for name in names if name != label]
    if not before:
        before = [""]
    return [before[0], label, *before[1:]]


def _task(run: Record) -> ReadOnlyJson:
    """What it was scored on; a measure of a task has that in itself."""
    measure = run.config.get("measure") or {}
    return run.config.get("task") or measure.get("task") or {}


def _as_numbers(run: Record, *answers: Sequence[object]) -> list[np.ndarray]:
    """Answers and, last, right ones as numbers; labels by their place in the task's order, or else
    sorted.

    Labels that are none of those are -1.
    """
    *_, right_answers = answers
    if right_answers and isinstance(right_answers[0], float | int):
        return [np.array(values, float) for values in answers]
    right_labels = sorted({str(label) for label in right_answers})
    names = dict.fromkeys([*_label_names(run), *right_labels])
    index = {name: number for number, name in enumerate(names)}
    numbers: list[np.ndarray] = []
    for values in answers:
        numbers.append(np.array([index.get(str(value), -1) for value in values]))
    return numbers


def _bootstrap_means(scores: NDArray[np.float64]) -> Bootstrap:
    """Of both systems' mean scores; `scores` [2, N]."""

    def mean(index: NDArray[np.int64], system: int) -> float:
        return float(scores[system, index].mean())

    return bootstrap(mean, scores.shape[1])


def _bootstrap_scores(
    predicted: Sequence[np.ndarray], labels: np.ndarray, metric: str
) -> Bootstrap:
    scorer = (glue.SCORERS | ordinal.SCORERS).get(metric)
    if scorer is None:
        raise ValueError(f"{metric} is no score of labelled examples")

    def score(index: NDArray[np.int64], system: int) -> float:
        return scorer.metric.factor * scorer(predicted[system][index], labels[index])

    return bootstrap(score, len(labels))


def _sentence_arrays(sentences: Sequence[Json]) -> list[NDArray[np.float64]]:
    return [np.array(sentence, dtype=np.float64) for sentence in sentences]


def _bootstrap_word_numbers(first: RunAnswers, second: RunAnswers, metric: str) -> Bootstrap:
    """Sentences are resampled, with the numbers of all their words; null is a word without one."""
    scorer = glue.OF_NUMBERS[metric]
    golds, *numbers = map(
        _sentence_arrays, (first.labels or [], first.predictions, second.predictions)
    )

    def score(index: NDArray[np.int64], system: int) -> float:
        expected = np.concatenate([golds[place] for place in index])
        predicted = np.concatenate([numbers[system][place] for place in index])
        is_known = ~np.isnan(expected)
        return scorer.metric.factor * scorer(predicted[is_known], expected[is_known])

    return bootstrap(score, len(golds))


def _bootstrap_label_sets(first: RunAnswers, second: RunAnswers, metric: str) -> Bootstrap:
    """Examples are resampled, each with all of its labels."""
    scorer = label_sets.SCORERS[metric]
    systems = (first.predictions, second.predictions, first.labels or [])
    *predicted, expected = [label_sets.matrix_of(sets, first.names) for sets in systems]

    def score(index: NDArray[np.int64], system: int) -> float:
        return scorer.metric.factor * scorer(predicted[system][index], expected[index])

    return bootstrap(score, len(expected))


def _bootstrap_tags(first: RunAnswers, second: RunAnswers, metric: str) -> Bootstrap:
    """Sentences are resampled, not words: the words of one sentence share their fate."""
    # of each system [sentences, 2]: numerator and denominator
    counts: list[np.ndarray] = []
    labels = first.labels or []
    for answers in (first.predictions, second.predictions):
        pairs = zip(answers, labels, strict=True)
        counts.append(np.array([_count_tags(answer, label, metric) for answer, label in pairs]))

    def score(index: NDArray[np.int64], system: int) -> float:
        right, total = counts[system][index].sum(axis=0)
        return 100.0 * right / total if total else 0.0

    return bootstrap(score, len(labels))


def _count_tags(predicted: Sequence[str], label: Sequence[str], metric: str) -> tuple[int, int]:
    """Numerator and denominator of one sentence's score; F1 is 2 hits of (predicted + right)."""
    if metric == "accuracy":
        hits = sum(tag == right for tag, right in zip(predicted, label, strict=True))
        return hits, len(label)
    predicted_entities = set(entities(predicted))
    expected = set(entities(label))
    hits = len(predicted_entities & expected)
    if metric == "precision":
        return hits, len(predicted_entities)
    if metric == "recall":
        return hits, len(expected)
    return 2 * hits, len(predicted_entities) + len(expected)


# Kind of answers that are lists -> the scores of them, and what resamples one.
LISTS: dict[AnswerKind, tuple[Iterable[str], Callable[..., Bootstrap]]] = {
    "sets of labels": (label_sets.SCORERS, _bootstrap_label_sets),
    "tags": (TAG_METRICS, _bootstrap_tags),
    "words' numbers": (glue.OF_NUMBERS, _bootstrap_word_numbers),
}


# -- questions -------------------------------------------------------------------------------------


def _read_right_answers(
    run: Record, ids: Sequence[str], data_dir: str | None
) -> tuple[bool, Mapping[str, Sequence[str]]]:
    """(whether some questions have no answer, id -> right answers).

    They are read from the file that a run was scored on, in `data_dir` or where it was then.
    """
    from clozelab.readers.squad import read_squad

    data = _task(run)["data"]
    name = str(data["validation_file"])
    has_unanswerable = bool(data.get("with_unanswerable", False))
    paths = [Path(path) for path in run.watched if path.endswith(name)]
    if data_dir:
        paths = [Path(data_dir) / name]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise ValueError(f"the right answers ({name}) are not to be found; say data_dir=FOLDER")
    gold = read_squad(path, for_training=False, with_unanswerable=has_unanswerable)
    answers = {question.id: question.answers for question in gold.questions}
    if set(answers) != set(ids):
        raise ValueError(f"{path} does not have the questions that the runs answered")
    return has_unanswerable, answers


def _questions(
    one: Record, two: Record, first: RunAnswers, second: RunAnswers, data_dir: str | None
) -> PairedTest:
    """F1 of each question, against the golds of the file that the first run was scored on."""
    has_unanswerable, right_answers = _read_right_answers(one, first.ids, data_dir)
    scores_by_run: list[NDArray[np.float64]] = []
    for record, answers in ((one, first), (two, second)):
        texts = dict(zip(answers.ids, answers.predictions, strict=True))
        if has_unanswerable:
            # 2.0's threshold is in the texts
            scores = squad.score_each(squad.f1_or_both_empty, right_answers, texts)
        else:
            scores = squad.best_over_golds(squad.f1, right_answers, texts)
        values = np.array([100.0 * scores.get(key, 0.0) for key in right_answers])
        recorded = record.score or 0.0
        is_headline = record.metric == "validation/f1"
        if is_headline and abs(values.mean() - recorded) > TOLERANCE:
            raise ValueError(
                f"{record.place}: its answers score {values.mean():.2f}, its scores.json"
                f" {recorded:.2f}"
            )
        scores_by_run.append(values)
    return PairedTest(len(right_answers), "f1", _bootstrap_means(np.array(scores_by_run)))
