r"""A report's tables for a paper: report.tex, to be `\input` where the package booktabs is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from jinja2 import Environment, PackageLoader

from clozelab.suggestions import DASH, in_units
from clozelab.verdicts.experiment import PERCENT

SETS_A_TABLE = 4
"""Data sets side by side; more do not fit on a page."""
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


class Notes:
    """What is said below a table: each text once, with a letter that its cells bear."""

    def __init__(self) -> None:
        self.letters: dict[str, str] = {}

    def mark(self, text: str) -> str:
        """What a cell with this note ends in; nothing for no note."""
        if not text:
            return ""
        rounds, place = divmod(len(self.letters), len(ascii_lowercase))
        return rf"\textsuperscript{{{self.letters.setdefault(text, ascii_lowercase[place] * (rounds + 1))}}}"


def escape(text: object) -> str:
    """Plain text as LaTeX sets it; one line."""
    return "".join(_SPECIAL.get(character, character) for character in " ".join(str(text).split()))


def write_latex(page: Mapping[str, Any], path: Path) -> Path:
    """Write the tables; returns the path."""
    environment = Environment(  # LaTeX's own braces and percent signs stay what they are
        loader=PackageLoader(__package__ or "", "templates"),
        block_start_string="((*", block_end_string="*))", variable_start_string="(((", variable_end_string=")))",
        comment_start_string="((=", comment_end_string="=))", trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    environment.filters["tex"] = escape
    template = environment.get_template("report.tex.j2")
    path.write_text(template.render(page, scores=list(_scores(page)), make_notes=Notes), encoding="utf-8")
    return path


def _scores(page: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Tables of rows by data sets; beside the paper's number stands ours on the same data, and nowhere else."""
    for group in page["groups"]:
        majority = [{"mean": value, "note": ""} for value in group["majority"] or ()]
        found = [(row["label"], row["cells"]) for row in group["rows"]]
        found += [("most frequent label", majority), ("surface baseline", group["surface"] or [])]
        shown = [index for index, one in enumerate(group["headings"]) if one["has_ours"] or one["has_paper"]]
        for start in range(0, len(shown), SETS_A_TABLE):
            indices = shown[start : start + SETS_A_TABLE]
            headings = [group["headings"][index] for index in indices]
            rows = []
            for number, (label, all_cells) in enumerate(found):
                cells = [_cell(all_cells[index], group["headings"][index]) for index in indices if all_cells]
                is_known = any(cell["ours"] != DASH and cell["heading"]["has_ours"] for cell in cells)
                if is_known or number < len(group["rows"]):
                    rows.append((label, cells))
            units = in_units(PERCENT, {one["name"]: one["unit"] for one in headings})
            caption = f"{page['title']}: {group['title']}, {units}."
            if any(one["has_ours"] for one in headings):
                caption = f"{caption} {page['setup']}. {page['interval'].capitalize()}."
                caption = f"Synthetic data ({page['synthetic']}). {caption}" if page["synthetic"] else caption
            widths = [(one, one["has_paper"] + one["has_ours"]) for one in headings]
            yield {"caption": caption, "widths": widths, "rows": rows}


def _cell(cell: Mapping[str, str], heading: Mapping[str, Any]) -> dict[str, Any]:
    half = cell.get("half", "")
    note = f"collapsed: {cell['note']}" if half == "collapsed" else cell["note"]
    ours = f"{cell['mean']} {half}".strip()
    return {"heading": heading, "paper": cell.get("paper", ""), "ours": ours, "note": note}
