"""`clozelab list` and `clozelab show`: the experiments that come along, and a look into a world."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clozelab.planning.steps import runs_root
from clozelab.runs.find import find
from clozelab.runs.upkeep import read_launches
from clozelab.suggestions import CONF_DIR, EXPERIMENTS_DIR, hint
from clozelab.targets import locate
from clozelab.terminal import make_console, parse, wants_help
from clozelab.verdicts.experiment import list_experiments, load_experiment
from clozelab.verdicts.judging import judge, summarise
from clozelab.verdicts.table import build_table

LIST_HELP = """clozelab list [runs_dir=FOLDER]

The experiments that come with the project; for each scale that has runs: how many are done, and the verdicts."""
SHOW_HELP = """clozelab show microworld [--n 3] [--seed 1]

Prints documents of the embedded synthetic world and one training example of each task; writes nothing.

  --n NUMBER       how many documents (at least 1)
  --seed NUMBER    which world: the corpus.generator.world_seed of the other verbs"""
INDENT = "  "
LEAST, USUAL = {"n": 1, "seed": 0}, {"n": 3, "seed": 1}
STYLES = {"": "", "right": "bold green", "PER": "bold cyan", "LOC": "bold yellow", "ORG": "bold magenta"}


def list_all(words: Sequence[str]) -> int:
    """Every experiment's name and title, and a line below for every scale with runs."""
    if wants_help(words):
        print(LIST_HELP)
        return 0
    values = parse("list", words, names=(0, 0), keys=("runs_dir",)).values
    if "runs_dir" in values and not Path(values["runs_dir"]).is_dir():
        raise ValueError(f"runs_dir={values['runs_dir']}: there is no such folder")
    console = make_console()
    for name in list_experiments():
        experiment = load_experiment(EXPERIMENTS_DIR / name)
        console.print(Text(name, style="bold"), soft_wrap=True)
        below = [Text(experiment.title)]
        root, _ = runs_root(EXPERIMENTS_DIR / name, [f"{key}={value}" for key, value in values.items()])
        for place in sorted(path for path in root.parent.glob("*") if path.is_dir()):
            found = find(place)
            if found.runs:
                planned = sum(len(one.jobs or ()) for one in read_launches(place).values()) or len(found.runs)
                done = f"{sum(run.is_complete for run in found.runs)} of {planned} runs"
                verdicts = summarise(judge(build_table(experiment, found)))
                below.append(Text.assemble((place.name, "cyan"), f": {done}; {verdicts}"))
        for line in (line for text in below for line in text.wrap(console, console.width - len(INDENT))):
            line.rstrip()  # rich's own Padding fills every line up to the console's width
            console.print(Text.assemble(INDENT, line), soft_wrap=True)
    return 0


def show(words: Sequence[str]) -> int:
    """Documents of a generated corpus and one example of each of its tasks, to be read.

    ValueError: another corpus, an unknown option, or no whole number.
    """
    if wants_help(words, also_without_words=True):
        print(SHOW_HELP)
        return 0
    said = parse("show", words, names=(1, 1), options=tuple(LEAST))
    nodes = {path.stem: OmegaConf.load(path) for path in sorted((CONF_DIR / "corpus").glob("*.yaml"))}
    targets = {name: OmegaConf.select(node, "generator._target_") for name, node in nodes.items()}
    name, known = said.names[0], [name for name, target in targets.items() if target]
    if name not in known:
        raise ValueError(f"show has no world {name!r}; {hint(name, known)}")
    for option, value in said.options.items():
        if not (value.isascii() and value.isdigit()) or int(value) < LEAST[option]:
            raise ValueError(f"--{option} takes a whole number of at least {LEAST[option]}, not {value or 'nothing'}")
    numbers = USUAL | {option: int(value) for option, value in said.options.items()}
    generator = locate(targets[name], f"corpus.generator of {name}")
    console = Console(highlight=False)
    console.print(
        f"[bold]{name}[/], seed {numbers['seed']}. [yellow]Synthetic text: no real person, place or event.[/]"
    )
    # A generator's module offers `samples` beside the function that writes the files.
    for sample in sys.modules[generator.__module__].samples(numbers["n"], numbers["seed"]):
        console.print(f"\n[bold]{sample.name}[/] [dim]{sample.question}[/]")
        grid = Table.grid(padding=(0, 1), pad_edge=True)
        for label, parts in sample.lines:  # a mark that no style is known for stays plain
            grid.add_row(
                Text(label, style="dim"), Text.assemble(*((text, STYLES.get(mark, "")) for text, mark in parts))
            )
        console.print(grid)
    return 0
