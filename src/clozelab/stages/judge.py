"""`clozelab judge`: claims against a CSV of scores, without run folders."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from claims.analysis.verdicts import Judgement, judge
from claims.report import wording
from claims.report.estimates import interval, probability
from claims.report.verdict_styles import COLOURS
from claims.tables.claim_file import check_declared, check_names, read_claim_file
from claims.tables.score_file import make_score_table, read_score_file
from claims.text.phrases import join_list, signed
from clozelab.terminal import ParsedArgs, say, verb
from clozelab.text.plain import PlainDict

HELP = """clozelab judge SCORES.csv CLAIMS.yaml [out=FILE.csv]

Judges claims from scores that were made anywhere. SCORES.csv has a line a run
with the columns arm, seed, task and score; a column finetuning_seed and a
column metric may be there, too. CLAIMS.yaml has `claims:` as paper.yaml has
them, and `stopping:` if there is one. Scores are taken for percent, where
higher is better, unless it has, for example,
`columns: [{name: sts mae, unit: points, higher_is_better: false}]`.

  out=FILE.csv   also writes the verdicts, a line each

A CSV says nothing of how its runs were made, so whether they may be compared is
not checked. Arms are paired by seed: equal seeds should share what they can.

  clozelab judge scores.csv claims.yaml"""
FIELDS = (
    "claim",
    "judged_on",
    "verdict",
    "exploratory",
    "difference",
    "low",
    "high",
    "p",
    "corrected_p",
    "seeds",
    "note",
)


@verb("judge", HELP, names=(2, 2), keys=("out",))
def main(args: ParsedArgs) -> int:
    """Print a verdict for each claim; returns the exit status."""
    score_path = Path(args.names[0])
    claim_path = Path(args.names[1])
    lines = read_score_file(score_path)
    spec = read_claim_file(claim_path)
    table = make_score_table(lines, spec.claims, spec.stopping, spec.columns)
    # A misspelt arm would else be judged as one without runs.
    check_names(table, score_path, claim_path)
    check_declared(table, spec, claim_path)
    judgements = judge(table)

    for judgement in judgements:
        print_judgement(judgement)
    assumed = [column.name for column in table.spec.columns if not column.unit]
    if assumed:
        say(
            f"Taken for percent, where higher is better: {join_list(assumed)}. `columns:` in"
            f" {claim_path} declares others (docs/claims.md).",
            style="dim",
        )
    say(
        "Whether these runs may be compared was not checked: a CSV does not record how they were"
        " made.",
        style="yellow",
    )
    if "out" in args.values:
        write_verdicts(Path(args.values["out"]), judgements)
        say(f"Verdicts: {args.values['out']}")
    return 0


def print_judgement(judgement: Judgement) -> None:
    """Print a claim's verdict, its figures and what to keep in mind, a line each."""
    verdict = wording.verdict_label(judgement)
    style = COLOURS[judgement.verdict].terminal
    say(f"{verdict}: {judgement.claim.text} ({judgement.judged_on})", style=style)
    figures = _figures(judgement)
    if figures:
        say(f"   {figures}")
    for text in (wording.forecast(judgement, None), wording.judgement_note(judgement)):
        if text:
            say(f"   {text}", style="dim")


def _figures(judgement: Judgement) -> str:
    """`+6.3 [+5.1, +7.5], p < 0.001, corrected p = 0.002, 5 seeds`; empty without a difference."""
    difference = judgement.difference
    if difference is None:
        return ""
    estimate = f"{signed(difference.mean, 2)} {interval(difference, 2)}".strip()
    # A claim of one difference has no name for it: then no ": " stands before the figures.
    texts = [f"{judgement.reported_contrast}: {estimate}".removeprefix(": ")]
    if judgement.p_value is not None:
        texts.append(probability(judgement.p_value))
    if judgement.corrected_p is not None:
        texts.append(f"corrected {probability(judgement.corrected_p)}")
    texts.append(f"over {difference.count} {difference.basis}")
    return ", ".join(texts)


def write_verdicts(path: Path, judgements: Sequence[Judgement]) -> None:
    """Write a line a judgement; an empty cell where there is no such figure."""
    with path.open("w", newline="", encoding="utf-8") as file:
        # What a row lacks, DictWriter leaves empty.
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(_row, judgements))


def _row(judgement: Judgement) -> PlainDict:
    row: PlainDict = {
        "claim": judgement.claim.text,
        "judged_on": judgement.judged_on,
        "verdict": judgement.verdict,
        "exploratory": judgement.is_exploratory,
        "p": judgement.p_value,
        "corrected_p": judgement.corrected_p,
        "note": wording.judgement_note(judgement),
    }
    difference = judgement.difference
    if difference is not None:
        row |= {"difference": difference.mean, "low": difference.low, "high": difference.high}
        row["seeds"] = difference.count
    return row
