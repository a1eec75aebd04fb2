"""The scores of a report as LaTeX tables: what the template report.tex.j2 loops over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from string import ascii_lowercase

from jinja2 import Environment, PackageLoader

from clozelab.analysis.schema import PERCENT
from clozelab.report.page import Page
from clozelab.report.tables import ColumnGroup, Heading, RowView
from clozelab.text.formatting import DASH, in_units

# data sets side by side; more do not fit on a page
SETS_A_TABLE = 4
_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "{}&%$#_"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "\u00b1": r"$\pm$",
    "\u2212": r"$-$",
    "\u2013": "--",
    "\u2192": r"$\to$",
}


def escape(text: object) -> str:
    """Plain text as LaTeX sets it; one line."""
    line = " ".join(str(text).split())
    return "".join(_SPECIAL.get(character, character) for character in line)


def mark(text: str, notes: dict[str, str]) -> str:
    """What a cell with this note ends in: its letter among a table's `notes` (note -> letter).

    A note without a letter gets the next one: a to z, then aa. Nothing for an empty note.
    """
    if not text:
        return ""
    if text not in notes:
        rounds, index = divmod(len(notes), len(ascii_lowercase))
        notes[text] = ascii_lowercase[index] * (rounds + 1)
    return rf"\textsuperscript{{{notes[text]}}}"


@cache
def latex_templates() -> Environment:
    """Templates in which LaTeX's own braces and percent signs stay what they are."""
    environment = Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        block_start_string="((*",
        block_end_string="*))",
        variable_start_string="(((",
        variable_end_string=")))",
        comment_start_string="((=",
        comment_end_string="=))",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(tex=escape, mark=mark)
    return environment


@dataclass(frozen=True)
class LatexTable:
    """Rows by a few data sets; beside the paper's number stands ours on the same data alone."""

    caption: str
    headings: list[Heading]
    # with a cell for each of the headings
    rows: list[RowView]
    # sentences below the table
    below: list[str]


def latex_tables(page: Page) -> Iterator[LatexTable]:
    """The page's groups of data sets, each in tables that fit on a page."""
    for group in page.table.groups:
        filled = [index for index, heading in enumerate(group.headings) if heading.width]
        for start in range(0, len(filled), SETS_A_TABLE):
            yield _latex_table(page, group, filled[start : start + SETS_A_TABLE])


def _latex_table(page: Page, group: ColumnGroup, indices: Sequence[int]) -> LatexTable:
    """The table of those data sets of a group that have these indices."""
    headings = [group.headings[index] for index in indices]
    rows = [_narrow(row, indices) for row in group.rows]
    for baseline in group.baselines:
        row = _narrow(baseline, indices)
        if _has_scores(row, headings):
            rows.append(row)

    units = in_units(PERCENT, {heading.name: heading.unit for heading in headings})
    caption = f"{page.about.title}: {group.title}, {units}."
    if not any(heading.has_ours for heading in headings):
        return LatexTable(caption, headings, rows, below=[])

    # A table that is taken into a paper takes along what the page says of our scores.
    caption = f"{caption} {page.overview.setup}."
    if page.table.interval:
        caption += f" {page.table.interval.capitalize()}."
    if page.about.synthetic:
        caption = f"Synthetic data ({page.about.synthetic}). {caption}"
    below = [page.judged.selection] if page.judged.selection else []
    for heading, lines in page.problems.items():
        below += [f"{heading}: {line}" for line in lines]
    return LatexTable(caption, headings, rows, below)


def _narrow(row: RowView, indices: Sequence[int]) -> RowView:
    return replace(row, cells=[row.cells[index] for index in indices])


def _has_scores(row: RowView, headings: Sequence[Heading]) -> bool:
    pairs = zip(row.cells, headings, strict=True)
    return any(cell.ours != DASH and heading.has_ours for cell, heading in pairs)
