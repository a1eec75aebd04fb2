"""`clozelab judge`: claims against scores that were made anywhere, without run folders."""

from __future__ import annotations

from pathlib import Path
from typing import cast, get_args

from claims.report.score_page import judge_files, print_score_page
from claims.tables.claim_file import Compared
from claims.tables.layout import SCORES_FILE
from claims.tables.result_folders import NoResultFile
from claims.text.terminal import make_console
from clozelab.files.origin import RUN_FILE
from clozelab.terminal import ParsedArgs, verb

HELP = """clozelab judge SCORES [CLAIMS.yaml] [compare=all] [out=FOLDER]

Judges claims from scores that were made anywhere. SCORES is a CSV or Parquet
file with a line a run, or with the columns arm, seed, task and score, or a
folder of results of lm-evaluation-harness, MTEB or transformers' Trainer.
CLAIMS.yaml has `claims:` as paper.yaml has them, or `compare: all`, and names
columns of the file; docs/judge.md shows each form. Scores are taken for
percent, where higher is better, unless it has, for example,
`columns: [{name: sts mae, unit: points, higher_is_better: false}]`.

  compare=all    without CLAIMS.yaml: all pairs, not each row with the first alone
  out=FOLDER     also writes the report: pages, pictures and tables

Scores say nothing of how their runs were made, so whether they may be compared
is not checked. Arms are paired by seed: equal seeds should share what they can.

  clozelab judge scores.csv claims.yaml"""


@verb("judge", HELP, names=(1, 2), keys=("out",), choices={"compare": get_args(Compared)})
def main(args: ParsedArgs) -> int:
    """Print a verdict for each claim; returns the exit status."""
    scores, *claims = map(Path, args.names)
    folder = Path(args.values["out"]) if "out" in args.values else None
    # the parser takes no other values
    compare = cast("Compared | None", args.values.get("compare"))
    try:
        page = judge_files(scores, claims[0] if claims else None, folder, compare)
    except NoResultFile as error:
        raise ValueError(f"{error}{_of_own_runs(scores)}") from error
    print_score_page(page, folder, make_console())
    return 0


def _of_own_runs(folder: Path) -> str:
    """What judges a folder of our own runs; "" where there are none."""
    if next(folder.rglob(RUN_FILE), None) is None:
        return ""
    advice = f"; these are runs of clozelab, which `clozelab report {folder}` compares"
    table = next(folder.rglob(SCORES_FILE), None)
    if table is not None:
        advice += f", and `judge` takes {table}"
    return advice
