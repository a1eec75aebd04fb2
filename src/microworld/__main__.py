"""`python -m microworld [dials]`: documents of a world and one training example of each task, to be
read.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from microworld import dials, world

WORLDS = {"microworld": world.samples, "dials": dials.samples}
STYLES = {
    "": "",
    "right": "bold green",
    "PER": "bold cyan",
    "LOC": "bold yellow",
    "ORG": "bold magenta",
}


def at_least(least: int) -> Callable[[str], int]:
    """A whole number of a command line."""

    def number(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise ArgumentTypeError(
                f"give a whole number of at least {least}, not {text or 'nothing'}"
            )
        return int(text)

    return number


def main(words: Sequence[str] | None = None) -> None:
    """Print; nothing is written."""
    parser = ArgumentParser("python -m microworld", description=__doc__)
    parser.add_argument("--n", type=at_least(1), default=3, help="how many documents (3)")
    parser.add_argument(
        "--seed",
        type=at_least(0),
        default=1,
        help="which world: clozelab's corpus.generator.world_seed",
    )
    parser.add_argument("world", nargs="?", choices=sorted(WORLDS), default="microworld")
    said, console = parser.parse_args(words), Console(highlight=False)
    console.print(
        f"[bold]{said.world}[/], seed {said.seed}. [yellow]Synthetic text: no real person, place or"
        " event.[/]"
    )
    for sample in WORLDS[said.world](said.n, said.seed):
        console.print(f"\n[bold]{sample.name}[/] [dim]{sample.question}[/]")
        grid = Table.grid(padding=(0, 1), pad_edge=True)
        for label, parts in sample.lines:  # a mark that no style is known for stays plain
            marked = Text.assemble(*((text, STYLES.get(mark, "")) for text, mark in parts))
            grid.add_row(Text(label, style="dim"), marked)
        console.print(grid)


if __name__ == "__main__":
    main()
