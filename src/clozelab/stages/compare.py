"""`clozelab compare A B`: what differs between two runs, and what they score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from clozelab.analysis.phrases import listed, rough
from clozelab.files.origin import RUN_FILE
from clozelab.results.answers import describe, paired_test
from clozelab.runs.find import open_folder
from clozelab.runs.outcome import score_in_context
from clozelab.runs.record import DAMAGED, PERCENT, Record, Score
from clozelab.terminal import Heading, ParsedArgs, print_table, say, verb
from clozelab.text.formatting import signed
from clozelab.text.plain import JsonObject, flatten

HELP = """clozelab compare RUN RUN [data_dir=FOLDER]

Two run folders: the configuration and inputs that differ, held-out figures at
the last evaluation and at equal tokens, scores (of the best evaluation), and,
for two fine-tuning runs on one task, a paired test on their common examples:
McNemar's exact test of right and wrong answers, a paired bootstrap for other
scores. It is about these two runs: another seed may differ more than they do.

  data_dir=FOLDER   where the task's files lie, should they have moved (SQuAD's
                    right answers)

`clozelab report FOLDER` draws the curves of all runs below a folder."""
NONE = "(none)"
SHOWN_DIGITS = 12  # of a checksum: its beginning tells it apart
# Fields of a record: what its fingerprint is made of, and what was the same by intention, and may
# not be.
COMPARED_FIELDS: dict[str, JsonObject] = {
    "configuration": {"config": True, "inputs": True, "results_version": True},
    "made with": {"versions": True, "git": True, "host": True, "facts": {"precision"}},
}


@verb("compare", HELP, names=(2, 2), keys=("data_dir",))
def main(args: ParsedArgs) -> int:
    """Print the comparison; returns the exit status."""
    records = [open_run(name) for name in args.names]
    print_runs(records)
    for aspect in COMPARED_FIELDS:
        print_differences(records, aspect)
    first, second = records
    print_held_out(first, second)
    if first.stage == second.stage:
        print_caution(records)
    print_final_scores(first, second)
    if first.stage == second.stage == "finetune":
        try:
            for line in describe(paired_test(first, second, args.values.get("data_dir"))):
                say(line)
        except ValueError as error:
            say(f"no paired test: {error}", style="yellow")
    return 0


def open_run(path: str) -> Record:
    """Read the record of one run folder; ValueError where there is none, or it is damaged."""
    folder = Path(path)
    if not (folder / RUN_FILE).is_file():
        raise ValueError(f"{path} is no run folder (no run.json); `clozelab runs --csv` lists them")
    record = open_folder(folder, folder)
    if record.status == DAMAGED:
        raise ValueError(f"{path} is damaged: {record.problem}")
    return record


def print_runs(records: Sequence[Record]) -> None:
    """Give each run a letter, and say what it is."""
    for letter, record in zip("AB", records, strict=True):
        description = [record.stage, record.name, record.task, f"seed {record.seeds}"]
        title = " ".join(filter(None, description))
        fingerprint = record.fingerprint[:SHOWN_DIGITS]
        say(f"{letter}  {title}, {record.status}, {fingerprint}: {record.folder}")
        score = score_in_context(record)
        if score:
            say(f"   {score}")


def print_differences(records: Sequence[Record], aspect: str) -> None:
    """Print what is not the same of one of COMPARED_FIELDS, a column a run."""
    rows = differences(records, aspect)
    if not rows:
        say(f"{aspect}: the same")
        return
    headings = [Heading(aspect), Heading("A", folds=True), Heading("B", folds=True)]
    print_table(headings, rows)


def differences(records: Sequence[Record], aspect: str) -> list[list[str]]:
    """List [dotted key, value of A, value of B, ...] of everything that is not the same."""
    dumps = []
    for record in records:
        dumps.append(flatten(record.model_dump(include=COMPARED_FIELDS[aspect])))
    rows = []
    # In the order in which they first come.
    for key in dict.fromkeys(chain(*dumps)):
        values = [str(dump.get(key, NONE)) for dump in dumps]
        if len(set(values)) == 1:
            continue
        if key.startswith("inputs."):
            values = [checksum[:SHOWN_DIGITS] for checksum in values]
        rows.append([key.removeprefix("config."), *values])
    return rows


@dataclass(frozen=True)
class HeldOutFigure:
    """A held-out figure of two runs: at their ends, and at the last tokens that both have seen.

    There the longer run's lies on the line between its evaluations around them. None: there are no
    such tokens.
    """

    key: str
    last: tuple[float, ...]
    common_tokens: int | None
    common: tuple[float, ...] | None


def held_out_figures(first: Record, second: Record) -> list[HeldOutFigure]:
    """Every held-out figure that two trainings of one stage have.

    Those of two stages only share names, and an evaluation has no course.
    """
    if first.stage != second.stage or first.stage == "evaluate":
        return []
    return [_held_out_figure(key, first, second) for key in first.curves if key in second.curves]


def _held_out_figure(key: str, first: Record, second: Record) -> HeldOutFigure:
    curves = []  # of each run [2, evaluations]: tokens, and the figure in its unit
    for run in (first, second):
        tokens, values = np.array(run.curves[key], dtype=np.float64).T
        curves.append((tokens, score_of(run, key).factor * values))
    last = tuple(float(values[-1]) for _, values in curves)
    # The curve that goes on is read off where the other one ends.
    limit = min(int(tokens[-1]) for tokens, _ in curves)
    # One had ended before the other was first evaluated.
    if any(tokens[0] > limit for tokens, _ in curves):
        return HeldOutFigure(key, last, None, None)
    common = tuple(float(np.interp(limit, tokens, values)) for tokens, values in curves)
    return HeldOutFigure(key, last, limit, common)


def print_held_out(first: Record, second: Record) -> None:
    """Print held-out figures at the end and at equal tokens."""
    rows = []
    for figure in held_out_figures(first, second):
        decimals = 4
        if score_of(first, figure.key).unit == PERCENT:
            decimals = 2
        row = [name_with_unit(first, figure.key)]
        row += (f"{value:.{decimals}f}" for value in figure.last)
        if figure.common is None:
            row += ["", "", ""]
        else:
            row.append(rough(figure.common_tokens or 0))
            row += (f"{value:.{decimals}f}" for value in figure.common)
        rows.append(row)
    if rows:
        columns = ("A, last", "B, last", "tokens", "A, there", "B, there")
        heading = Heading("held out, last evaluation", folds=True)
        _print_numbers(heading, columns, rows)


def final_scores(first: Record, second: Record) -> list[tuple[str, float, float]]:
    """List (key, first, second) of two complete fine-tunings or evaluations, each in its unit."""
    if any(record.stage == "pretrain" or not record.is_complete for record in (first, second)):
        return []
    common = [key for key in first.values if key in second.values]
    return [(key, first.values[key], second.values[key]) for key in common]


def print_final_scores(first: Record, second: Record) -> None:
    """Print the scores of two runs, and of which evaluation they are."""
    scores = final_scores(first, second)
    if not scores:
        return
    rows = []
    for key, a, b in scores:
        rows.append([name_with_unit(first, key), f"{a:.2f}", f"{b:.2f}", signed(b - a)])
    heading = Heading("score")
    if first.stage == "finetune":
        heading = Heading("score, best evaluation")
    _print_numbers(heading, ("A", "B", "B - A"), rows)
    if first.stage == "finetune":
        steps = " and ".join(str(run.facts.get("best_step", NONE)) for run in (first, second))
        say(
            "Scores are those of each run's best evaluation by"
            f" {first.score_name(first.metric)} (steps {steps}), as in reports; held-out"
            " figures are of the last one.",
            style="dim",
        )


def print_caution(records: Sequence[Record]) -> None:
    """Say why figures of some runs cannot be compared, if so."""
    # What their figures are over: one corpus, or one task's files.
    data = set()
    for record in records:
        data.add((record.stage, record.inputs.get("corpus"), record.inputs.get("task_files")))
    versions = sorted({record.results_version for record in records})
    predicted = {record.predicts for record in records}
    cautions = []
    if len(data) > 1:
        cautions.append(
            "They were not evaluated on the same data: their figures cannot be compared."
        )
    if len(versions) > 1:
        cautions.append(
            f"They are of results versions {listed(map(str, versions))}: their figures cannot be"
            " compared."
        )
    if records[0].stage == "pretrain" and len(predicted) > 1:
        cautions.append("The objectives predict other tokens: their losses cannot be compared.")
    for caution in cautions:
        say(caution, style="yellow")


def score_of(record: Record, key: str) -> Score:
    """What a figure is, also one that was not declared (of one source of a corpus)."""
    if key in record.scores:
        return record.scores[key]
    are_shares = any(score.factor != 1.0 for score in record.scores.values())
    return Score.of(key, are_shares=are_shares or record.stage == "pretrain")


def name_with_unit(record: Record, key: str) -> str:
    """`f1, percent`; a perplexity has its name alone."""
    name = record.score_name(key)
    unit = score_of(record, key).unit
    if not unit:
        return name
    return f"{name}, {unit}"


def _print_numbers(heading: Heading, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column has names, all others numbers."""
    headings = [heading, *(Heading(column, is_number=True) for column in columns)]
    print_table(headings, rows)
