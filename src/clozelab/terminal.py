"""The command line of the verbs that are no Hydra applications: names, `key=value`, `--flag`,
`--option VALUE`.

Tables for terminals of any width: what does not fit is left out by importance, and a pipe gets
every column.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from omegaconf import OmegaConf
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clozelab.text.did_you_mean import hint
from clozelab.text.formatting import fitted
from clozelab.text.paths import CONF_DIR


@dataclass(frozen=True)
class Words:
    """What was said: `names` in order, `values` by key (a later one wins), `flags` without their
    dashes.
    """

    names: list[str] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    options: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)  # all of it, as it was said
    # every `key=value` whose key is not the verb's own, for Hydra
    overrides: list[str] = field(default_factory=list)


def parse(
    verb: str,
    words: Sequence[str],
    *,
    names: tuple[int, int | None],
    keys: Sequence[str] = (),
    flags: Sequence[str] = (),
    options: Sequence[str] = (),
    takes_overrides: bool = False,
) -> Words:
    """Sort the words of a command line after its verb. ValueError: a wrong one; names the nearest
    that there is.

    Args:
        names: how many words may stand without `=` and dashes: (at least, at most; None: any
        number). keys, flags, options: of `key=value`, `--flag` and `--option VALUE`.
        takes_overrides: other keys are Hydra's rather than wrong.
    """
    said = Words(words=[*words])
    left = list(words)
    while left:
        word = left.pop(0)
        if word.startswith("-"):
            name, equals, value = word[2:].partition("=") if word.startswith("--") else ("", "", "")
            if name in options:
                if not equals and not left:
                    raise ValueError(f"{verb}: --{name} needs a value")
                said.options[name] = value if equals else left.pop(0)
            elif name in flags and not equals:
                said.flags.add(name)
            else:
                meant = hint(word.lstrip("-").partition("=")[0], [*flags, *options], prefix="--")
                raise ValueError(f"{verb} has no option {word}; {meant}")
        elif takes_overrides and word.startswith("~"):
            said.overrides.append(word)
        elif "=" in word and (takes_overrides or "/" not in word.partition("=")[0]):
            key, _, value = word.partition("=")
            if key in keys:
                said.values[key] = value
            elif takes_overrides:
                said.overrides.append(word)
            else:
                raise ValueError(f"{verb} has no key {key!r}; {hint(key, keys)}")
        else:
            said.names.append(word)
    least, most = names
    if len(said.names) < least or (most is not None and len(said.names) > most):
        wanted = (
            f"at least {least}"
            if most is None
            else f"{least} to {most}"
            if most > least
            else str(least)
        )
        got = " ".join(said.names) or "none"
        noun = "name" if wanted == "1" else "names"
        raise ValueError(f"{verb} takes {wanted} {noun}, not {got}; see `clozelab {verb} --help`")
    return said


def verb(
    name: str, text: str, **taken: Any
) -> Callable[[Callable[[Words], int]], Callable[[Sequence[str]], int]]:
    """Make a verb of what is to be done with its words, which it parses; `taken` is what `parse` is
    told of them.

    It prints its help, `text`, where it is said alone and wants names; `clozelab VERB --help` is
    the command line's.
    """
    least = taken["names"][0]

    def verb_of(act: Callable[[Words], int]) -> Callable[[Sequence[str]], int]:
        @wraps(act)
        def run(words: Sequence[str]) -> int:
            if not words and least > 0:
                print(fitted(text))
                return 0
            return act(parse(name, words, **taken))

        return run

    return verb_of


def path_of(name: str, values: Mapping[str, str]) -> str:
    """The user's `runs_dir`, `cache_dir` or `data_dir`, else conf/paths.yaml's."""
    return values.get(name) or str(OmegaConf.select(OmegaConf.load(CONF_DIR / "paths.yaml"), name))


# characters: no line that anybody prints is longer, so none is folded where a program reads it
PIPE_WIDTH = 10_000
GAP = 2
FOLDED = 20  # characters: a column that folds is no narrower, if its text is not
STYLES = {
    "complete": "green",
    "ok": "green",
    "running": "cyan",
    "interrupted": "yellow",
    "warning": "yellow",
}
STYLES |= {"killed": "red", "failed": "bold red", "damaged": "bold red", "error": "bold red"}


@dataclass(frozen=True)
class Heading:
    """A column: its name, how it is set, and how soon it is left out (0: never; the highest goes
    first).
    """

    name: str
    is_number: bool = False
    drop: int = 0
    folds: bool = False  # may break over several lines rather than push others out


def make_console() -> Console:
    """A console as wide as the terminal; in a pipe as wide as its longest line: one row is one line
    there.
    """
    is_pipe = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=PIPE_WIDTH if is_pipe else None, highlight=False)


def make_table(headings: Sequence[Heading], rows: Sequence[Sequence[str]], width: int) -> Table:
    """A table of plain strings that fits in `width`; words that are a status get their colour."""
    shown = fitting(headings, rows, width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP, 0, 0))
    for index in shown:
        heading = headings[index]
        fit: Any = (
            {"overflow": "fold"} if heading.folds else {"overflow": "ellipsis", "no_wrap": True}
        )
        table.add_column(heading.name, justify="right" if heading.is_number else "left", **fit)
    for row in rows:
        table.add_row(*(Text(row[index], style=STYLES.get(row[index], "")) for index in shown))
    return table


def fitting(headings: Sequence[Heading], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Indices of the columns that stand side by side in `width` characters, the less important ones
    left out.
    """
    needed = []
    for heading, *cells in zip(headings, *rows, strict=True):
        texts = [*heading.name.split("\n"), *cells]
        texts = (
            [word for text in texts for word in (text[:FOLDED], *text.split())]
            if heading.folds
            else texts
        )
        needed.append(max(map(len, texts), default=0))
    shown = list(range(len(headings)))
    empty = [not any(row[index] for row in rows) for index in shown]
    # rich draws a blank beside each
    while sum(needed[index] + GAP + 1 for index in shown) - 1 > width:
        droppable = [index for index in shown if headings[index].drop]
        if not droppable:
            break
        shown.remove(max(droppable, key=lambda index: (empty[index], headings[index].drop)))
    return shown


def say(console: Console, text: str, style: str = "") -> None:
    """A line of plain text that is never wrapped in a pipe or cut: paths and commands stay
    whole.
    """
    console.print(Text(text, style=style), soft_wrap=True)
