"""Give the project folders and files that are odd in one way each, and write down how it takes
them.

`make odd` (python -m tests.fuzz, some minutes of one core) runs every case, prints those that do
not end well, and writes the table into docs/reliability.md; it exits with 1 where a case does not
end well. `--only WORD...` runs the cases whose kind or oddity has one of the words, and writes
nothing. lab.py says what a case is, and what its ends are called.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

from tests.fuzz.every import chosen
from tests.fuzz.lab import PACKAGE, ROOT, Case, End, quieten, run_case

PAGE = ROOT / "docs" / "reliability.md"
TABLE = re.compile(r"(<!-- make odd -->\n).*?(<!-- end -->)", re.DOTALL)


def commit() -> str:
    """The checkout's commit, with + where tracked files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty=+"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


def run_all(cases: Sequence[Case], root: Path) -> list[End]:
    """Run the cases one after the other; those that do not end well are printed as they come."""
    ends = []
    for number, case in enumerate(cases):
        end = run_case(case, root / str(number))
        ends.append(end)
        if not end.is_good:
            print(f"{end.verdict:<9} {case.kind}: {case.oddity}: {end.sentence}", flush=True)
    return ends


def table(ends: Sequence[End], seconds: float) -> str:
    """The ends as Markdown: a line of totals, then a table for each kind."""
    counts = Counter(end.verdict for end in ends)
    totals = ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common())
    lines = [
        f"{date.today()} · commit {commit()} · {len(ends)} cases in {seconds:.0f} s · {totals}"
    ]
    for kind in dict.fromkeys(end.case.kind for end in ends):
        lines += [
            "",
            f"**{kind}**",
            "",
            "| what is odd | verb | end | sentence |",
            "|---|---|---|---|",
        ]
        for end in ends:
            if end.case.kind == kind:
                cells = (end.case.oddity, end.case.verb, end.verdict, end.sentence)
                lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """A text inside a cell: nothing in it may end the cell, or be taken for HTML."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="WORD",
        help="cases whose kind or oddity has a word; writes nothing",
    )
    parser.add_argument("--list", action="store_true", help="name the cases, and run none")
    parser.add_argument("--verbose", action="store_true", help="print the table")
    options = parser.parse_args(words)
    cases = chosen(options.only)
    if options.list:
        print("\n".join(f"{case.kind}/{case.oddity}" for case in cases))
        return 0
    if not cases:
        parser.error(f"no case has one of the words {options.only}; --list names all")
    quieten()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="clozelab-odd-") as place:
        Path(place).chmod(0o755)
        ends = run_all(cases, Path(place).resolve())
    text = table(ends, time.monotonic() - began)
    if options.verbose:
        print(text)
    if options.only is None and not PACKAGE.is_relative_to(ROOT):
        print(f"not written: {PACKAGE} was tried, and {PAGE} is of another checkout")
    elif options.only is None:
        PAGE.write_text(
            TABLE.sub(lambda match: f"{match[1]}\n{text}\n{match[2]}", PAGE.read_text())
        )
    print(text.partition("\n")[0])
    return int(any(not end.is_good for end in ends))


if __name__ == "__main__":
    sys.exit(main())
