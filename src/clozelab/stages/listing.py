"""`clozelab list`: the experiments that come with the project, and how far their runs are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from clozelab.planning.steps import runs_root, sweep_names
from clozelab.runs.find import find
from clozelab.runs.progress import read_launches
from clozelab.suggestions import EXPERIMENTS_DIR
from clozelab.terminal import make_console, parse, wants_help
from clozelab.verdicts.experiment import list_experiments, load_experiment
from clozelab.verdicts.judging import judge, summarise
from clozelab.verdicts.table import build_table

HELP = """clozelab list [runs_dir=FOLDER]

The experiments that come with the project; for each scale that has runs: how many are done, and the verdicts."""


INDENT = "  "


def main(words: Sequence[str]) -> int:
    """Print the list; returns the exit status."""
    if wants_help(words):
        print(HELP)
        return 0
    values = parse("list", words, names=(0, 0), keys=("runs_dir",)).values
    if "runs_dir" in values and not Path(values["runs_dir"]).is_dir():
        raise ValueError(f"runs_dir={values['runs_dir']}: there is no such folder")
    console = make_console()
    for name in list_experiments():
        show(name, [f"{key}={value}" for key, value in values.items()], console)
    return 0


def show(name: str, words: list[str], console: Console) -> None:
    """An experiment's name and title, and a line below for every scale with runs."""
    folder = EXPERIMENTS_DIR / name
    console.print(Text(name, style="bold"), soft_wrap=True)
    below = [Text(load_experiment(folder).title)]
    below += [
        Text.assemble((scale, "cyan"), f": {done} runs; {verdicts}") for scale, done, verdicts in _scales(folder, words)
    ]
    for line in (line for text in below for line in text.wrap(console, console.width - len(INDENT))):
        line.rstrip()  # rich's own Padding fills every line up to the console's width
        console.print(Text.assemble(INDENT, line), soft_wrap=True)


def _scales(folder: Path, words: list[str]) -> list[tuple[str, str, str]]:
    """(scale, runs done of all, verdicts) of each scale with runs."""
    root, _ = runs_root(folder, words, sweep_names(folder)[0])
    experiment = load_experiment(folder)
    found = []
    for scale_root in sorted(path for path in root.parent.glob("*") if path.is_dir()):
        found_runs = find(scale_root)
        runs = found_runs.runs
        if runs:
            done = sum(run.is_complete for run in runs)
            verdicts = summarise(judge(build_table(experiment, found_runs)))
            planned = sum(len(one.jobs or ()) for one in read_launches(scale_root).values())
            found.append((scale_root.name, f"{done} of {planned or len(runs)}", verdicts))
    return found
