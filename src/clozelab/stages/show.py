"""`clozelab show microworld`: documents of the embedded world and one example of each task, to be read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clozelab.suggestions import hint
from clozelab.terminal import parse, wants_help

if TYPE_CHECKING:
    from microworld.samples import Parts
HELP = """clozelab show microworld [--n 3] [--seed 1]

Prints documents of the embedded synthetic world and one training example of each task; writes nothing.

  --n NUMBER       how many documents (at least 1)
  --seed NUMBER    which world: the corpus.generator.world_seed of the other verbs"""
WORLDS = ("microworld",)
LEAST = {"n": 1, "seed": 0}
STYLES = {"": "", "right": "bold green", "PER": "bold cyan", "LOC": "bold yellow", "ORG": "bold magenta"}


def main(words: Sequence[str]) -> int:
    """Print a world's documents and examples; returns the exit status."""
    if wants_help(words, also_without_words=True):
        print(HELP)
        return 0
    count, seed = read(words)
    from microworld.samples import sample_documents, sample_tasks  # numpy: not for --help

    console = Console(highlight=False)
    console.print(f"[bold]microworld[/], seed {seed}. [yellow]Synthetic text: no real person, place or event.[/]")
    for number, sentences in enumerate(sample_documents(count, seed)):
        console.print(f"\n[bold]document {number}[/] [dim]of the corpus[/]")
        console.print(_grid(("", [(sentence, "")]) for sentence in sentences))
    for sample in sample_tasks(seed):
        console.print(f"\n[bold]{sample.task}[/] [dim]{sample.question}[/]")
        console.print(_grid(sample.lines))
    return 0


def read(words: Sequence[str]) -> tuple[int, int]:
    """(number of documents, seed). ValueError for another world, an unknown option, or no whole number."""
    said = parse("show", words, names=(1, 1), options=tuple(LEAST))
    if said.names[0] not in WORLDS:
        raise ValueError(f"show has no world {said.names[0]!r}; {hint(said.names[0], WORLDS)}")
    numbers = {"n": 3, "seed": 1}
    for name, value in said.options.items():
        if not (value.isascii() and value.isdigit()) or int(value) < LEAST[name]:
            raise ValueError(f"--{name} takes a whole number of at least {LEAST[name]}, not {value or 'nothing'}")
        numbers[name] = int(value)
    return numbers["n"], numbers["seed"]


def _grid(lines: Iterable[tuple[str, Parts]]) -> Table:
    grid = Table.grid(padding=(0, 1), pad_edge=True)
    for name, parts in lines:
        grid.add_row(Text(name, style="dim"), Text.assemble(*((text, STYLES[mark]) for text, mark in parts)))
    return grid
