"""A claim of the paper against our runs: holds, fails or inconclusive, and on what.

A verdict needs the 95 % interval of the difference, over pre-training seeds, to lie on one side of zero. One
pre-training seed cannot tell an arm from its luck: then the difference over fine-tuning seeds is shown and the verdict
is "inconclusive (one seed)".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clozelab.ledger.experiment import ALL_COLUMNS, Claim
from clozelab.ledger.table import Cell, DataColumn, Table
from clozelab.metrics.statistics import PRETRAINING_SEEDS, Estimate, paired_difference

HOLDS, FAILS, INCONCLUSIVE = "holds", "fails", "inconclusive"
ONE_SEED, NOT_COMPARABLE = "inconclusive (one seed)", "not comparable"
FLOOR_ROWS = ("random", "random_bilstm")


@dataclass(frozen=True)
class Judgement:
    """One claim on one data set (or on all of them).

    Attributes:
        claim: what the paper says.
        column: the data set; None where there is none, or for a claim about all columns.
        judged_on: in words, for the table.
        difference: first - second in points, with its interval; None where there is no pair of runs.
        verdict: HOLDS, FAILS, INCONCLUSIVE, ONE_SEED or NOT_COMPARABLE.
        note: the reason, or what to keep in mind.
    """

    claim: Claim
    column: DataColumn | None
    judged_on: str
    difference: Estimate | None
    verdict: str
    note: str = ""


def judge(table: Table) -> list[Judgement]:
    """Every claim on every data set that speaks for its column; at least one judgement a claim."""
    judgements: list[Judgement] = []
    for claim in table.experiment.claims:
        if claim.column == ALL_COLUMNS:
            judgements.append(_judge_all(claim, table))
            continue
        column = next(one for one in table.experiment.columns if one.name == claim.column)
        data = table.of_column(column)
        judgements += [_judge_one(claim, one, table) for one in data]
        if not data:
            note = f"no run on {column.name} or a stand-in for it"
            judgements.append(Judgement(claim, None, "nothing", None, NOT_COMPARABLE, note))
    return judgements


def summarise(judgements: Sequence[Judgement]) -> str:
    """The verdicts counted: "2 hold, 1 fails, 3 inconclusive"."""
    names = {
        HOLDS: "hold",
        FAILS: "fail",
        INCONCLUSIVE: INCONCLUSIVE,
        ONE_SEED: ONE_SEED,
        NOT_COMPARABLE: NOT_COMPARABLE,
    }
    counts = {text: sum(one.verdict == verdict for one in judgements) for verdict, text in names.items()}
    return ", ".join(f"{count} {text}" for text, count in counts.items() if count) or "no claims"


def direction_verdict(difference: Estimate | None, direction: str) -> str:
    """The verdict on "first is lower (higher) than second" from first - second."""
    if difference is None:
        return NOT_COMPARABLE
    if difference.basis != PRETRAINING_SEEDS or difference.low is None or difference.high is None:
        return ONE_SEED
    if difference.low <= 0.0 <= difference.high or is_suspicious(difference):
        return INCONCLUSIVE
    return HOLDS if (difference.mean < 0.0) == (direction == "lower") else FAILS


def is_suspicious(difference: Estimate) -> bool:
    """No spread at all over seeds: copies of one run rather than independent ones."""
    return difference.count >= 2 and difference.half_width is not None and difference.half_width < 1e-9


def _judge_one(claim: Claim, column: DataColumn, table: Table) -> Judgement:
    first, second = table.cells[claim.first, column.key], table.cells[claim.second, column.key]
    difference = paired_difference(first.scores, second.scores)
    if column.is_other_split:
        return Judgement(claim, column, column.heading, difference, NOT_COMPARABLE, column.role)
    verdict = direction_verdict(difference, claim.direction)
    notes = (
        []
        if column.is_paper
        else [f"{'synthetic' if column.role.startswith('synthetic') else 'stand-in'}: direction only"]
    )
    if verdict in (HOLDS, FAILS) and any(cell.num_collapsed == len(cell.scores) for cell in (first, second)):
        # A row that answers the same whatever it reads has measured nothing, however small its spread.
        verdict = INCONCLUSIVE
    if verdict == NOT_COMPARABLE:
        notes.append(_why_not(claim, first, second, table))
    else:
        notes += _cautions(claim, column, table)
        if difference is not None and is_suspicious(difference):
            notes.append("no spread at all between seeds: are these independent runs?")
    return Judgement(claim, column, column.heading, difference, verdict, "; ".join(notes))


def _judge_all(claim: Claim, table: Table) -> Judgement:
    """A claim about every column: all must hold; one that confidently goes the other way is enough to fail."""
    parts, silent = [], []
    for column in table.experiment.columns:
        data = table.of_column(column)
        part = _judge_one(claim, data[0], table) if data else None
        if part is None or part.verdict == NOT_COMPARABLE:
            silent.append(f"{column.name} ({data[0].role})" if data and data[0].is_other_split else column.name)
        else:
            parts.append(part)
    notes = [f"{part.judged_on}: {part.verdict}" for part in parts]
    if silent:
        notes.append(f"no runs for {', '.join(silent)}")
    judged_on = f"{len(parts)} of {len(table.experiment.columns)} columns"
    return Judgement(
        claim, None, judged_on, None, _conjunction([part.verdict for part in parts], silent), "; ".join(notes)
    )


def _conjunction(verdicts: Sequence[str], silent: Sequence[str]) -> str:
    if not verdicts:
        return NOT_COMPARABLE
    if FAILS in verdicts:
        return FAILS
    if ONE_SEED in verdicts:
        return ONE_SEED
    return HOLDS if all(verdict == HOLDS for verdict in verdicts) and not silent else INCONCLUSIVE


def _why_not(claim: Claim, first: Cell, second: Cell, table: Table) -> str:
    absent = [
        table.experiment.label(row) for row, cell in ((claim.first, first), (claim.second, second)) if not cell.scores
    ]
    return f"no complete run of {' and '.join(absent)}" if absent else "the two rows have no seed in common"


def _cautions(claim: Claim, column: DataColumn, table: Table) -> list[str]:
    """What a reader must know beside the verdict."""
    notes = []
    cells = {row: table.cells[row, column.key] for row in (claim.first, claim.second)}
    for row, cell in cells.items():
        if cell.missing:
            notes.append(f"{len(cell.missing)} run(s) of {table.experiment.label(row)} missing")
        if cell.num_collapsed:
            notes.append(f"{cell.num_collapsed} collapsed run(s) of {table.experiment.label(row)}")
    floors = [table.cells[row, column.key].estimate for row in FLOOR_ROWS if (row, column.key) in table.cells]
    floor = max((one.mean for one in floors if one is not None), default=None)
    if floor is not None and all(cell.estimate and cell.estimate.mean <= floor for cell in cells.values()):
        notes.append("neither row is above the no-pre-training floor")
    return notes
