"""What two fine-tuning runs answered to the same examples, and whether their scores differ by more
than chance.

Another seed of either may end elsewhere: so it decides no verdict, and stands in `clozelab compare`
alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clozelab.metrics.statistics import RESAMPLES, Bootstrap, McNemar, bootstrap, mcnemar
from clozelab.text.formatting import signed

if TYPE_CHECKING:
    from clozelab.runs.record import Record

# points by which scores computed here may differ from scores.json's (predictions are rounded there)
TOLERANCE = 0.05


@dataclass(frozen=True)
class PairedTest:
    num_examples: int  # in both
    metric: str  # what `bootstrap` is about, in percent
    bootstrap: Bootstrap
    mcnemar: McNemar | None = None  # of right and wrong answers; None where an answer is neither


@dataclass(frozen=True)
class Answers:
    """One run's answers: `labels` None for questions, whose gold texts are in the task's file."""

    ids: list[str]
    predictions: list[Any]
    labels: list[Any] | None = None


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
    return pair_runs(one, first, second, one.metric.rpartition("/")[2])


def describe(test: PairedTest) -> list[str]:
    """The test in words; differences are second - first."""
    lines = [
        (
            f"These two runs on their {test.num_examples:,} common examples (other seeds are another"
            " question):"
        )
    ]
    if (right := test.mcnemar) is not None:
        only = f"only A right {right.only_first}, only B right {right.only_second}"
        lines.append(f"  {only}: exact McNemar p = {right.p_value:.3g}")
    gap = test.bootstrap
    interval = f"95 % [{signed(-gap.high)}, {signed(-gap.low)}]"
    how = f"by paired bootstrap ({RESAMPLES:,} resamples)"
    return [*lines, f"  {test.metric}, B - A: {signed(-gap.difference)} points, {interval} {how}"]


def read_answers(path: Path) -> Answers:
    """A predictions file in its order; a question task's is predictions.json. ValueError: it cannot
    be read.
    """
    questions = path.with_name("predictions.json")
    try:
        if questions.is_file():
            texts = json.loads(questions.read_text(encoding="utf-8"))
            return Answers(list(texts), list(texts.values()))
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        ids = [str(row["id"]) for row in rows]
        return Answers(ids, [row["prediction"] for row in rows], [row["label"] for row in rows])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path.parent} has no readable predictions of labelled examples ({error!r})"
        ) from error


def pair_runs(run: Record, first: Answers, second: Answers, metric: str) -> PairedTest:
    """Test two runs' answers to labelled examples; `run` knows the task's labels in their order."""
    if first.ids != second.ids or first.labels != second.labels or not first.labels:
        raise ValueError("they were not scored on the same examples with the same labels")
    count, given, both = len(first.ids), first.labels, (first.predictions, second.predictions)
    if isinstance(given[0], list):
        return PairedTest(count, metric, _tags(both, given, metric))
    if isinstance(given[0], float | int):
        numbers = [np.array(values, float) for values in (*both, given)]
        return PairedTest(count, metric, _scores(numbers[:2], numbers[2], metric))
    own = _label_names(run)
    one, other, labels = _indices(run, *both, given)
    right = mcnemar(one == labels, other == labels)
    if metric == "accuracy":
        return PairedTest(
            count, metric, _means(100.0 * np.array([one == labels, other == labels])), right
        )
    if not own and (names := {*map(str, given)}) != {"0", "1"}:  # F1 asks for the second label
        raise ValueError(
            f"{metric} needs the order of the labels {sorted(names)}, which the run does not say"
        )
    return PairedTest(count, metric, _scores([one, other], labels, metric), right)


def _label_names(run: Record) -> list[str]:
    return [str(name) for name in (_task(run).get("data") or {}).get("labels") or ()]


def _task(run: Record) -> Mapping[str, Any]:
    """What it was scored on; a measure of a task has that in itself."""
    return run.config.get("task") or (run.config.get("measure") or {}).get("task") or {}


def _indices(run: Record, *answers: Sequence[Any]) -> list[NDArray[Any]]:
    """Labels as numbers in the task's order, or else sorted; the right ones are last, and others
    than those are -1.
    """
    names = dict.fromkeys([*_label_names(run), *sorted({str(label) for label in answers[-1]})])
    index = {name: i for i, name in enumerate(names)}
    return [np.array([index.get(str(value), -1) for value in values]) for values in answers]


def _means(each: NDArray[np.float64]) -> Bootstrap:
    """Of both systems' mean scores; `each` [2, N]."""
    return bootstrap(lambda index, which: float(each[which, index].mean()), each.shape[1])


def _scores(predicted: Sequence[NDArray[Any]], labels: NDArray[Any], metric: str) -> Bootstrap:
    from clozelab.metrics import glue

    if (scorer := glue.SCORERS.get(metric)) is None:
        raise ValueError(f"{metric} is no score of labelled examples")
    return bootstrap(
        lambda index, which: 100.0 * scorer(predicted[which][index], labels[index]), len(labels)
    )


def _tags(both: Sequence[list[Any]], labels: list[Any], metric: str) -> Bootstrap:
    """Sentences are resampled, not words: the words of one sentence share their fate."""
    from clozelab.metrics.entities import entities

    # numerator, denominator
    def count(predicted: Sequence[str], label: Sequence[str]) -> tuple[int, int]:
        if metric == "accuracy":
            return sum(p == one for p, one in zip(predicted, label, strict=True)), len(label)
        found, expected = set(entities(predicted)), set(entities(label))
        of = {"precision": [found], "recall": [expected]}.get(metric, [found, expected])
        return len(of) * len(found & expected), sum(map(len, of))

    counts = [
        np.array([count(p, label) for p, label in zip(answers, labels, strict=True)])
        for answers in both
    ]

    def score(index: NDArray[np.int64], which: int) -> float:
        right, total = counts[which][index].sum(axis=0)
        return 100.0 * right / total if total else 0.0

    return bootstrap(score, len(labels))


def _golds(
    run: Record, ids: Sequence[str], data_dir: str | None
) -> tuple[bool, Mapping[str, Sequence[str]]]:
    """(whether some questions have no answer, id -> right answers), from the file that a run was
    scored on.
    """
    from clozelab.datamodules.squad import read_squad

    data = _task(run)["data"]
    name, unanswerable = str(data["validation_file"]), bool(data.get("with_unanswerable", False))
    places = (
        [Path(data_dir) / name]
        if data_dir
        else [Path(path) for path in run.watched if path.endswith(name)]
    )
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise ValueError(f"the right answers ({name}) are not to be found; say data_dir=FOLDER")
    gold = read_squad(path, for_training=False, with_unanswerable=unanswerable)
    answers = {question.id: question.answers for question in gold.questions}
    if set(answers) != set(ids):
        raise ValueError(f"{path} does not have the questions that the runs answered")
    return unanswerable, answers


def rescored(run: Record, data_dir: str | None = None) -> dict[str, float]:
    """What the official scorers give a run's kept predictions: key -> score, as scores.json has it.
    ValueError: no predictions, or SQuAD's right answers (in the task's file) are not here."""
    from pandas import DataFrame

    from clozelab.metrics import glue, squad
    from clozelab.metrics.entities import entity_scores, tag_scores

    if (run.folder / "predictions.json").is_file():
        said = read_answers(run.folder / "predictions.jsonl")
        texts = dict(zip(said.ids, said.predictions, strict=True))
        unanswerable, answers = _golds(run, said.ids, data_dir)
        found = squad.score_v2(answers, texts) if unanswerable else squad.score_v1(answers, texts)
        return {
            f"validation/{key}": value
            for key, value in found.items()
            if f"validation/{key}" in run.scores
        }
    files = sorted(run.folder.glob("predictions*.jsonl"))
    if not files:
        raise ValueError(f"{run.place} has no predictions")
    scores: dict[str, float] = {}
    # minimal pairs
    if '"won":' in (text := files[0].read_text(encoding="utf-8")).partition("\n")[0]:
        rows = DataFrame([json.loads(line) for line in text.splitlines()])
        groups = rows.won.groupby(rows.id.str.rpartition("/")[0]).mean()
        return {"validation/accuracy": groups.mean()} | {
            f"validation/accuracy/{name}": one for name, one in groups.items()
        }
    for path in files:
        said, other = read_answers(path), path.stem.removeprefix("predictions").removeprefix("_")
        prefix = f"validation/{other}_" if other else "validation/"
        names = [key.removeprefix(prefix) for key in run.scores if key.startswith(prefix)]
        labels = said.labels or []
        if labels and isinstance(labels[0], list):
            found = (entity_scores if "f1" in names else tag_scores)(said.predictions, labels)
        else:
            are_numbers = bool(labels) and isinstance(labels[0], float | int)
            pair = said.predictions, labels
            sides = [np.array(one, float) for one in pair] if are_numbers else _indices(run, *pair)
            found = glue.score([name for name in names if name in glue.SCORERS], *sides)
        scores |= {f"{prefix}{name}": value for name, value in found.items() if name in names}
    return scores


def _questions(
    one: Record, two: Record, first: Answers, second: Answers, data_dir: str | None
) -> PairedTest:
    """F1 of each question, against the golds of the file that the first run was scored on."""
    from clozelab.metrics import squad

    unanswerable, answers = _golds(one, first.ids, data_dir)
    each = []
    for record, run in ((one, first), (two, second)):
        texts = dict(zip(run.ids, run.predictions, strict=True))
        if unanswerable:
            # 2.0's threshold is in the texts
            scores = squad.score_each(squad.f1_or_both_empty, answers, texts)
        else:
            scores = squad.best_over_golds(squad.f1, answers, texts)
        values = np.array([100.0 * scores.get(key, 0.0) for key in answers])
        mean, said = values.mean(), record.score or 0.0
        if record.metric == "validation/f1" and abs(mean - said) > TOLERANCE:
            raise ValueError(
                f"{record.place}: its answers score {mean:.2f}, its scores.json {said:.2f}"
            )
        each.append(values)
    return PairedTest(len(answers), "f1", _means(np.array(each)))
