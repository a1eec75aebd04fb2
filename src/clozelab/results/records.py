"""The record table: the best score that is reached from one text within one budget.

A record is a row of an experiment: one recipe, and an encoder for each of its seeds. It counts
where its scores are above the ones of the record before with p < .01, on the same kind of machine.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, BeforeValidator, ValidationError
from scipy import stats

from clozelab.analysis.scores import Cell, DataColumn, datasets_for_column
from clozelab.analysis.statistics import estimate
from clozelab.corpus.files import write_whole
from clozelab.results.table import ResultTable
from clozelab.runs.record import Record
from clozelab.text.did_you_mean import hint
from clozelab.text.plain import JsonObject

LEAST_SEEDS = 5
SIGNIFICANCE = 0.01
SECONDS_PER_MINUTE = 60.0


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

    budget: str
    score: str  # the column's heading
    machine: str
    text: str  # checksum of the corpus's files
    name: str  # experiment/row
    mean: float
    # one a pre-training seed, with its fine-tuning seeds averaged
    values: Annotated[tuple[float, ...], BeforeValidator(_split)]
    device_minutes: float  # of the longest pre-training
    parameters: int
    tokens: int
    commit: str
    date: str

    @property
    def contest(self) -> tuple[str, ...]:
        """What two attempts have to share to be held against each other."""
        return (self.budget, self.score, self.machine, self.text)


def make_attempt(table: ResultTable, row: str, column_name: str, budget: Budget) -> Attempt:
    """Make a line from a row's runs.

    ValueError: the first thing that keeps it from being an attempt, in a sentence.
    """
    if row not in table.rows:
        raise ValueError(f"there is no row {row!r}; {hint(row, table.rows)}")
    column = find_column(table, column_name)
    cell = table.cells[row, column.key]
    require_every_seed(cell, f"{row} on {column.heading}")
    runs = pretrainings_of(table, row, cell)
    require_one_recipe(table, runs)
    longest = max(device_minutes(run) for run in runs)
    if longest > budget.device_minutes:
        raise ValueError(
            f"{row}: a pre-training took {longest:.2f} device minutes, and {budget.text} is"
            f" {budget.device_minutes:.2f}"
        )
    values = estimate(cell.scores).values
    return Attempt(
        budget=budget.text,
        score=column.heading,
        name=f"{runs[0].experiment}/{row}",
        mean=round(sum(values) / len(values), 4),
        values=values,
        device_minutes=round(longest, 1),
        **origin_of(runs[0]),
    )


def find_column(table: ResultTable, name: str) -> DataColumn:
    """The column's own data set, else its first stand-in. ValueError: no run has one."""
    columns = datasets_for_column(name, table.columns)
    if not columns:
        names = [column.column.name for column in table.columns if column.column]
        raise ValueError(f"no run has {name!r}; {hint(name, names)}")
    return columns[0]


def require_every_seed(cell: Cell, name: str) -> None:
    """ValueError where a cell is no sample of enough seeds."""
    if len({seed for seed, _ in cell.scores}) < LEAST_SEEDS:
        raise ValueError(f"{name}: a record has {LEAST_SEEDS} pre-training seeds or more")
    if any(part.missing or part.num_collapsed for part in cell.parts):
        raise ValueError(f"{name}: runs of some seeds are missing or collapsed")


def pretrainings_of(table: ResultTable, row: str, cell: Cell) -> list[Record]:
    """The pre-trainings behind a cell. ValueError where one is not here."""
    seeds = {seed for seed, _ in cell.scores}
    pretrained = table.complete("pretrain", table.spec.row(row).arm)
    runs = [run for run in pretrained if run.seed in seeds]
    if len(runs) < len(seeds):
        raise ValueError(f"{row}: the pre-training of some seeds is not here")
    return runs


def origin_of(run: Record) -> JsonObject:
    """What a line says of its pre-trainings, which all have alike."""
    commit = "unknown"
    if run.git:
        commit = run.git.commit[:7]
    return {
        "machine": kind_of_machine(run),
        "text": run.facts["text"],
        "parameters": run.facts["parameters"],
        "tokens": run.facts["tokens"],
        "commit": commit,
        "date": str(run.finished)[:10],
    }


def require_one_recipe(table: ResultTable, runs: Sequence[Record]) -> None:
    """ValueError where pre-trainings differ in more than their seed."""
    first = runs[0]
    for run in runs:
        evidence = table.evidence_of(run)
        if evidence.settings != table.evidence_of(first).settings:
            raise ValueError(f"{run.place} has other settings than {first.place}")
        if run.code != first.code:
            raise ValueError(f"{run.place} was made by other code than {first.place}")
        if kind_of_machine(run) != kind_of_machine(first) or run.earlier_sessions:
            raise ValueError(f"{run.place} was not made on one kind of machine from end to end")
        if "text" not in run.facts:
            raise ValueError(f"{run.place} is too old to say which text it read: train it again")
        if run.facts["text"] != first.facts["text"]:
            raise ValueError(f"{run.place} read another text than {first.place}")


def kind_of_machine(run: Record) -> str:
    """The device's name, and what a CPU multiplies by itself."""
    if trained_on_gpu(run):
        return str(run.host["gpus"][0])
    return f"{run.host['cpu']} ({run.environment['kernels']})"


def trained_on_gpu(run: Record) -> bool:
    return bool(run.host.get("gpus")) and run.config["trainer"]["accelerator"] != "cpu"


def device_minutes(run: Record) -> float:
    """Minutes of all sessions, start and validation included, times the cores or the GPUs."""
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
    write_whole(path, text.getvalue().splitlines())


def standing_record(attempts: Iterable[Attempt], attempt: Attempt) -> Attempt | None:
    """The record that an attempt has to beat: the last of its contest."""
    rivals = [other for other in attempts if other.contest == attempt.contest]
    if not rivals:
        return None
    return rivals[-1]


def p_above(attempt: Attempt, record: Attempt) -> float:
    """One-sided p of Welch's t test: seeds of two recipes are not pairs, and may vary unequally."""
    test = stats.ttest_ind(attempt.values, record.values, equal_var=False, alternative="greater")
    return float(test.pvalue)
