"""A report on the screen: what it is about, what went wrong, its scores and its verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from claims.report.screen import print_judged, print_plain
from claims.text.phrases import count_noun
from claims.text.terminal import make_console
from clozelab.terminal import say

if TYPE_CHECKING:
    from clozelab.report.page import Page
    from clozelab.report.render import Report

# Of a kind of trouble that small encoders may have in every cell of a row, and of any other.
MOST_LINES = {"Collapsed": 3, "Below the baseline": 3}
MOST_LINES_OF_OTHERS = 8
# of one line, such as one that names all arms of a large sweep
MOST_CHARACTERS = 600


def show(report: Report) -> None:
    """Print table, verdicts and where the report lies."""
    print_page(report.page, make_console())
    say(f"Report: {(report.folder / 'report.html').resolve()}")


def print_page(page: Page, console: Console) -> None:
    """Print what it is about, what went wrong, scores, and verdicts."""
    print_title(page, console)
    print_problems(page.problems, console)
    print_judged(page, console)


def print_title(page: Page, console: Console) -> None:
    """Print what the page is about: title, data, seeds, interim analyses, registration."""
    if page.about.synthetic:
        console.print(
            "[bold yellow]Synthetic data: encoders were trained or scored on generated text.[/]"
        )
    console.print(f"[bold]{escape(page.about.title)}[/] ({escape(page.about.scale)})")
    if page.about.answer:
        print_plain(page.about.answer, console, "bold")
    analyses = ""
    if page.judged.analyses:
        analyses = f"; interim analyses: {page.judged.analyses}"
    runs = f"{page.overview.setup}\n{page.overview.runs}"
    interval = ""
    if page.table.interval:
        interval = f"; {page.table.interval}"
    print_plain(f"{runs}{analyses}{interval}", console, "dim")
    if page.overview.registered:
        print_plain(page.overview.registered, console, "dim")


def print_problems(problems: Mapping[str, Sequence[str]], console: Console) -> None:
    """Print the first lines of each kind of trouble, and the beginning of a long one."""
    for heading, lines in problems.items():
        shown_lines = []
        for line in lines[: MOST_LINES.get(heading, MOST_LINES_OF_OTHERS)]:
            shown_lines.append(shorten(line, MOST_CHARACTERS, placeholder=" ... (see report.md)"))
        num_more = len(lines) - len(shown_lines)
        if num_more:
            noun = "more cell" if heading in MOST_LINES else "more line"
            shown_lines.append(f"{count_noun(num_more, noun)}, in report.md")
        text = "\n".join(f"{heading.lower()}: {line}" for line in shown_lines)
        print_plain(text, console, "yellow")
