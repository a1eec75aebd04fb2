"""`clozelab list`: the experiments that come with the project, and how far their runs are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from clozelab.config import EXPERIMENTS_DIR
from clozelab.ledger.collect import collect
from clozelab.ledger.experiment import list_experiments, load_experiment
from clozelab.ledger.plan import SWEEPS, runs_root
from clozelab.ledger.sweep import expand
from clozelab.ledger.table import build_table
from clozelab.ledger.verdicts import judge, summarise

HELP = """clozelab list [runs_dir=FOLDER]

The experiments that come with the project; for each scale that has runs: how many are done, and the verdicts."""


def main(words: Sequence[str]) -> int:
    """Print the list; returns the exit status."""
    if {"-h", "--help"} & set(words):
        print(HELP)
        return 0
    table = Table(box=box.SIMPLE)
    for column in ("experiment", "title", "scale", "runs done", "verdicts"):
        table.add_column(column, no_wrap=column == "experiment")
    for name in list_experiments():
        folder = EXPERIMENTS_DIR / name
        rows = _scales(folder, list(words)) or [("\u2013", "", "")]
        for index, row in enumerate(rows):
            title = load_experiment(folder).title
            table.add_row(*(("", "") if index else (name, escape(title))), *map(escape, row))
    Console().print(table)
    return 0


def _scales(folder: Path, words: list[str]) -> list[tuple[str, str, str]]:
    """(scale, runs done of all, verdicts) of each scale with runs."""
    root, _ = runs_root(folder, words)
    experiment = load_experiment(folder)
    found = []
    for scale_root in sorted(path for path in root.parent.glob("*") if path.is_dir()):
        collected = collect(scale_root)
        runs = collected.runs
        if runs:
            done = sum(run.is_complete for run in runs)
            verdicts = summarise(judge(build_table(experiment, collected)))
            found.append(
                (scale_root.name, f"{done} of {_planned(folder, scale_root.name, words) or len(runs)}", verdicts)
            )
    return found


def _planned(folder: Path, scale: str, words: list[str]) -> int:
    """How many runs the experiment has at a scale; 0 where that cannot be said (a scale of the user's own)."""
    try:
        return sum(
            len(list(expand(name, [*words, f"scale={scale}"], folder=folder)))
            for name in SWEEPS.values()
            if (folder / f"{name}.yaml").is_file()
        )
    except Exception:  # any failure to compose means the same here
        return 0
