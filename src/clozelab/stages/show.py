"""`clozelab show NAME`: documents of a generated corpus and one example of each of its tasks, to be read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clozelab.suggestions import CONF_DIR, hint
from clozelab.targets import locate
from clozelab.terminal import parse, wants_help

HELP = """clozelab show microworld [--n 3] [--seed 1]

Prints documents of the embedded synthetic world and one training example of each task; writes nothing.

  --n NUMBER       how many documents (at least 1)
  --seed NUMBER    which world: the corpus.generator.world_seed of the other verbs"""
LEAST = {"n": 1, "seed": 0}
STYLES = {"": "", "right": "bold green", "PER": "bold cyan", "LOC": "bold yellow", "ORG": "bold magenta"}


def main(words: Sequence[str]) -> int:
    """Print a world's documents and examples; returns the exit status."""
    if wants_help(words, also_without_words=True):
        print(HELP)
        return 0
    name, count, seed = read(words)
    generator = locate(generators()[name], f"corpus.generator of {name}")
    console = Console(highlight=False)
    console.print(f"[bold]{name}[/], seed {seed}. [yellow]Synthetic text: no real person, place or event.[/]")
    # A generator's module offers `samples` beside the function that writes the files.
    for sample in sys.modules[generator.__module__].samples(count, seed):
        console.print(f"\n[bold]{sample.name}[/] [dim]{sample.question}[/]")
        console.print(_grid(sample.lines))
    return 0


def generators() -> dict[str, str]:
    """Corpus of conf/corpus -> the `_target_` that generates it."""
    nodes = {path.stem: OmegaConf.load(path) for path in sorted((CONF_DIR / "corpus").glob("*.yaml"))}
    targets = {name: OmegaConf.select(node, "generator._target_") for name, node in nodes.items()}
    return {name: target for name, target in targets.items() if target}


def read(words: Sequence[str]) -> tuple[str, int, int]:
    """(corpus, number of documents, seed). ValueError for another corpus, an unknown option, or no whole number."""
    said = parse("show", words, names=(1, 1), options=tuple(LEAST))
    name, known = said.names[0], list(generators())
    if name not in known:
        raise ValueError(f"show has no world {name!r}; {hint(name, known)}")
    numbers = {"n": 3, "seed": 1}
    for option, value in said.options.items():
        if not (value.isascii() and value.isdigit()) or int(value) < LEAST[option]:
            raise ValueError(f"--{option} takes a whole number of at least {LEAST[option]}, not {value or 'nothing'}")
        numbers[option] = int(value)
    return name, numbers["n"], numbers["seed"]


def _grid(lines: Iterable[tuple[str, Sequence[tuple[str, str]]]]) -> Table:
    """One line a row: its name, then its parts; a mark that no style is known for stays plain."""
    grid = Table.grid(padding=(0, 1), pad_edge=True)
    for name, parts in lines:
        grid.add_row(Text(name, style="dim"), Text.assemble(*((text, STYLES.get(mark, "")) for text, mark in parts)))
    return grid
