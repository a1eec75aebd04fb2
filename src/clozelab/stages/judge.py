"""`clozelab judge`: claims against scores that were made anywhere, without run folders."""

from __future__ import annotations

from pathlib import Path
from typing import cast, get_args

from claims.report.score_page import judge_files, print_score_page
from claims.tables.claim_file import Compared
from claims.text.terminal import make_console
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
    page = judge_files(scores, claims[0] if claims else None, folder, compare)
    print_score_page(page, folder, make_console())
    return 0
