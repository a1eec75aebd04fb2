"""The console script: `claims judge SCORES CLAIMS`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ABOUT = """Judges claims about systems from scores over seeds: paired by seed, corrected for the
number of claims, with intervals and a forecast of the seeds that would decide an open one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, or 1 where a file has a slip."""
    parser = argparse.ArgumentParser("claims", description=ABOUT)
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    judge = parser.add_subparsers(required=True).add_parser("judge", description=ABOUT)
    judge.add_argument("scores", type=Path, help="a CSV, a Parquet file or a folder of results")
    judge.add_argument("claims", type=Path, nargs="?", help="a YAML file of claims")
    judge.add_argument("--out", type=Path, help="a folder for the report")
    judge.add_argument("--compare", choices=("first", "all"), help="what, without claims")
    options = parser.parse_args(arguments)

    from claims.report.score_page import judge_files, print_score_page  # not for --help
    from claims.text.terminal import make_console

    try:
        page = judge_files(options.scores, options.claims, options.out, options.compare)
    except (OSError, ValueError) as error:
        print(f"claims: {error}", file=sys.stderr)
        return 1
    print_score_page(page, options.out, make_console())
    return 0


def _version() -> str:
    """The version of the installed package: the small one, or clozelab, which contains it."""
    try:
        return version("clozelab-claims")
    except PackageNotFoundError:
        return version("clozelab")


if __name__ == "__main__":
    sys.exit(main())
