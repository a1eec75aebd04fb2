"""The record table: the highest score that is reached from one text within one budget.

An attempt is a row of an experiment: one recipe, and an encoder for each of its seeds. Attempts at
one score, from one text, within one budget and on one kind of machine are a contest. The best of a
contest is its record; another attempt takes its place where its scores are higher with p < .01.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, BeforeValidator, ValidationError
from scipy import stats

from claims.analysis.scores import Cell, DataColumn
from claims.analysis.statistics import estimate
from clozelab.files.atomic import atomic_write_lines
from clozelab.files.digests import digest
from clozelab.results.table import ResultTable
from clozelab.runs.inputs import encoder_fingerprint
from clozelab.runs.record import Record
from clozelab.text.plain import JsonObject

LEAST_SEEDS = 5
SIGNIFICANCE = 0.01
SECONDS_PER_MINUTE = 60.0
# inputs of a pre-training whose own minutes and text nobody has counted
GIVEN_WEIGHTS = ("encoder", "teacher")
# inputs of a fine-tuning or an evaluation that are not the task's
OF_THE_ENCODER = ("encoder", "task_data")


class Budget(NamedTuple):
    """So many devices (cores, or GPUs) for so long."""

    text: str  # 2x15min
    devices: int
    seconds: float

    @property
    def device_minutes(self) -> float:
        return self.devices * self.seconds / SECONDS_PER_MINUTE


def _split(values: object) -> object:
    """A cell of the file holds several numbers: "70.1 69.8"."""
    if isinstance(values, str):
        return tuple(values.split())
    return values


class Attempt(BaseModel, extra="forbid", frozen=True):
    """A line of the table."""

    budget: float  # in device minutes
    score: str  # the column's heading
    asked: str  # digest of what the score is over: tasks, metrics and files
    machine: str
    text: str  # digest of the corpus's files
    name: str  # experiment/row
    # one a pre-training seed, with its fine-tuning seeds averaged
    values: Annotated[tuple[float, ...], BeforeValidator(_split)]
    device_minutes: float  # of the longest pre-training
    parameters: int
    tokens: int
    commit: str
    date: str

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def contest(self) -> tuple[float | str, ...]:
        """What two attempts have to share to be held against each other."""
        return (self.budget, self.score, self.asked, self.machine, self.text)


def make_attempt(table: ResultTable, row: str, column_name: str, budget: Budget) -> Attempt:
    """Make a line from a row's runs.

    ValueError: the first thing that keeps it from being an attempt, in a sentence.
    """
    if table.row(row).arm is None:
        raise ValueError(f"{row} has no pre-training, so it is no attempt")
    column = find_column(table, column_name)
    cell = table.cells[row, column.key]
    values = values_of(cell, f"{row} on {column.heading}")
    pretrained = pretrainings_of(table, row, cell)
    scored = {task: table.runs_on(row, task) for task in column.tasks}
    require_own_training(pretrained.values())
    for runs in (list(pretrained.values()), *scored.values()):
        require_one_recipe(table, runs)
    require_own_encoders(pretrained, scored)
    minutes = longest_run(pretrained.values(), budget)
    origin = origin_of(next(iter(pretrained.values())), row)
    return Attempt(
        budget=budget.device_minutes,
        device_minutes=minutes,
        score=column.heading,
        asked=question_of(column, scored),
        values=values,
        **origin,
    )


def longest_run(runs: Iterable[Record], budget: Budget) -> float:
    """Device minutes of the longest run. ValueError: they are more than the budget."""
    longest = max(runs, key=device_minutes)
    minutes = device_minutes(longest)
    if minutes > budget.device_minutes:
        raise ValueError(
            f"{longest.place} took {minutes:.2f} device minutes, and {budget.text} is"
            f" {budget.device_minutes:.2f}"
        )
    return round(minutes, 1)


def find_column(table: ResultTable, name: str) -> DataColumn:
    """The first data set with scores that a name means.

    ValueError: there is none, or it is no score of tasks or measures that rises.
    """
    column = table.find_column(name)
    if not column.scale.higher_is_better or not column.tasks:
        raise ValueError(
            f"{column.heading}: a record is of a task's or a measure's score that rises"
        )
    return column


def values_of(cell: Cell, name: str) -> tuple[float, ...]:
    """A cell's scores by pre-training seed. ValueError where they are no sample of enough seeds."""
    if len(cell.pretraining_seeds) < LEAST_SEEDS:
        raise ValueError(f"{name}: an attempt has {LEAST_SEEDS} pre-training seeds or more")
    if any(part.missing or part.num_collapsed for part in cell.parts):
        raise ValueError(f"{name}: runs of some seeds are missing or collapsed")
    values = estimate(cell.scores).values
    if len(set(values)) == 1:
        raise ValueError(f"{name}: equal scores in all seeds say nothing of how they vary")
    return values


def pretrainings_of(table: ResultTable, row: str, cell: Cell) -> dict[int, Record]:
    """The pre-trainings behind a cell, by seed. ValueError where one is not here."""
    runs = {}
    for run in table.complete("pretrain", table.row(row).arm):
        runs[run.seed] = run
    seeds = sorted(cell.pretraining_seeds)
    for seed in seeds:
        if seed not in runs:
            raise ValueError(f"{row}: the pre-training of seed {seed} is not here, or not complete")
    return {seed: runs[seed] for seed in seeds}


def require_own_training(runs: Iterable[Record]) -> None:
    """ValueError where a run's seconds, device or text are not all that its encoder took."""
    for run in runs:
        for name in GIVEN_WEIGHTS:
            if name in run.inputs:
                raise ValueError(
                    f"{run.place} began with, or learnt from, given weights ({name}): their minutes"
                    " and their text are not counted"
                )
        if run.sessions > 1:
            raise ValueError(f"{run.place} was stopped on its way: train it in one go")
        if run.config["trainer"]["accelerator"] not in ("cpu", "gpu"):
            raise ValueError(
                f"{run.place}: say trainer=cpu or trainer=gpu, so that its device is known"
            )
        if "text" not in run.facts:
            raise ValueError(f"{run.place} is too old to say which text it read: train it again")


def require_one_recipe(table: ResultTable, runs: Sequence[Record]) -> None:
    """ValueError where runs of one kind differ in more than their seeds."""
    first = runs[0]
    for run in runs:
        if table.evidence_of(run).settings != table.evidence_of(first).settings:
            raise ValueError(f"{run.place} has other settings than {first.place}")
        if run.code != first.code:
            raise ValueError(f"{run.place} was made by other code than {first.place}")
        if run.stage != "pretrain":
            continue
        if kind_of_machine(run) != kind_of_machine(first):
            raise ValueError(f"{run.place} was made on another kind of machine than {first.place}")
        if run.facts["text"] != first.facts["text"]:
            raise ValueError(f"{run.place} read another text than {first.place}")


def require_own_encoders(
    pretrained: Mapping[int, Record], scored: Mapping[str, Sequence[Record]]
) -> None:
    """ValueError where a score is not of the encoder that its pre-training has left."""
    encoders = {}
    for seed, run in pretrained.items():
        encoders[seed] = encoder_fingerprint(run.folder / "encoder")
    if len(set(encoders.values())) < len(encoders):
        raise ValueError(
            "two seeds have one encoder: copies of a run say nothing of how seeds vary"
        )
    for runs in scored.values():
        for run in runs:
            if run.inputs.get("encoder") != encoders.get(run.pretrain_seed):
                raise ValueError(
                    f"{run.place} read another encoder than the one that pre-training seed"
                    f" {run.pretrain_seed} has left"
                )


def question_of(column: DataColumn, scored: Mapping[str, Sequence[Record]]) -> str:
    """Digest of what a score is over: its metric, and the files and the scoring of each task."""
    tasks: dict[str, list[object]] = {}
    for task, runs in scored.items():
        tasks[task] = []
        for run in runs:
            # An encoder, and what its tokenizer makes of the files, are the attempt's own.
            files = {key: run.inputs[key] for key in run.inputs if key not in OF_THE_ENCODER}
            scoring = [files, run.results_version, run.facts.get("num_examples")]
            if scoring not in tasks[task]:
                tasks[task].append(scoring)
    parts = ""
    if column.column:
        parts = repr(column.column.parts)
    return digest({"metric": column.metric, "parts": parts, "tasks": tasks})


def origin_of(run: Record, row: str) -> JsonObject:
    """What a line says of its pre-trainings, equal in all seeds."""
    commit = "unknown"
    if run.git:
        commit = run.git.commit[:7]
        if run.git.dirty:
            commit += ", changed"
    return {
        "name": f"{run.experiment}/{row}",
        "machine": kind_of_machine(run),
        "text": run.facts["text"],
        "parameters": run.facts["parameters"],
        "tokens": run.facts["tokens"],
        "commit": commit,
        "date": str(run.finished)[:10],
    }


def kind_of_machine(run: Record) -> str:
    """The device's name, and what a CPU multiplies by itself."""
    if trained_on_gpu(run):
        return str(run.host["gpus"][0])
    return f"{run.host['cpu']} ({run.environment['kernels']})"


def trained_on_gpu(run: Record) -> bool:
    return bool(run.config["trainer"]["accelerator"] == "gpu")


def device_minutes(run: Record) -> float:
    """Minutes, start and validation included, times the threads or the GPUs."""
    devices = int(run.facts["world_size"])
    if not trained_on_gpu(run):
        devices *= int(run.facts["threads"])
    return run.seconds * devices / SECONDS_PER_MINUTE


# The table's file


def read_attempts(path: Path) -> list[Attempt]:
    """Read the lines of a record table; none where there is no file. ValueError: a bad line."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    attempts = []
    for number, line in enumerate(lines, 2):
        try:
            attempts.append(Attempt.model_validate(line))
        except ValidationError as error:
            name = ".".join(map(str, error.errors()[0]["loc"]))
            raise ValueError(
                f"{path}, line {number}: not a line of a record table, see {name!r}"
            ) from None
    return attempts


def write_attempts(path: Path, attempts: Iterable[Attempt]) -> None:
    """Write a record table, whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(Attempt.model_fields), lineterminator="\n")
    writer.writeheader()
    for attempt in attempts:
        values = " ".join(f"{value:.4f}" for value in attempt.values)
        writer.writerow(attempt.model_dump() | {"values": values})
    atomic_write_lines(path, text.getvalue().removesuffix("\n").split("\n"))


def best_of_contest(attempts: Iterable[Attempt], attempt: Attempt) -> Attempt | None:
    """The record that an attempt has to beat; None where it is the first of its contest."""
    rivals = [other for other in attempts if other.contest == attempt.contest]
    return max(rivals, key=lambda rival: rival.mean, default=None)


def p_above(attempt: Attempt, best: Attempt) -> float:
    """One-sided p of Welch's t test: seeds of two recipes are not pairs, and may vary unequally."""
    test = stats.ttest_ind(attempt.values, best.values, equal_var=False, alternative="greater")
    return float(test.pvalue)
