r"""A report's tables for a paper: report.tex, to be `\input` where the package booktabs is loaded.

Laid out from the same page as the HTML and the terminal's, so it cannot say anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from clozelab.verdicts.experiment import PERCENT
from clozelab.verdicts.wording import DASH, in_units

INTERVALS = "Intervals are not corrected for the number of points."
SETS_A_TABLE = 4
"""Data sets side by side; more do not fit on a page."""
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
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
        self._letters: dict[str, str] = {}

    def mark(self, text: str) -> str:
        """What a cell with this note ends in; nothing for no note."""
        if not text:
            return ""
        rounds, place = divmod(len(self._letters), len(ascii_lowercase))
        return _raised(self._letters.setdefault(text, ascii_lowercase[place] * (rounds + 1)))

    def lines(self) -> list[str]:
        notes = [rf"{_raised(letter)} {escape(text)}\par" for text, letter in self._letters.items()]
        return [r"\par\smallskip\raggedright\footnotesize", *notes] if notes else []


def _raised(text: str) -> str:
    return rf"\textsuperscript{{{text}}}"


def escape(text: object) -> str:
    """Plain text as LaTeX sets it; one line."""
    return "".join(_SPECIAL.get(character, character) for character in " ".join(str(text).split()))


def write_latex(page: Mapping[str, Any], path: Path) -> Path:
    """Write the tables; returns the path."""
    lines = [f"% {escape(page['title'])} (scale {escape(page['scale'])}). Needs \\usepackage{{booktabs}}."]
    if page["synthetic"]:
        lines.append("% Synthetic data: these numbers say nothing about English.")
    number = 0
    for group in page["groups"]:
        shown = [
            index for index, heading in enumerate(group["headings"]) if heading["has_ours"] or heading["has_paper"]
        ]
        for start in range(0, len(shown), SETS_A_TABLE):
            number += 1
            label = f"tab:{page['name']}-{number}".replace("_", "-")
            lines += ["", *_scores(page, group, shown[start : start + SETS_A_TABLE], label)]
    for number, race in enumerate(page["races"], 1):
        lines += ["", *_race(page, race, f"tab:{page['name']}-points-{number}".replace("_", "-"))]
    if page["judgements"]:
        lines += ["", *_verdicts(page)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _scores(page: Mapping[str, Any], group: Mapping[str, Any], indices: Sequence[int], label: str) -> list[str]:
    """One table of rows by data sets; beside the paper's number stands ours on the same data, and nowhere else."""
    headings = [group["headings"][index] for index in indices]
    kinds = [_kinds(heading) for heading in headings]
    tops, rules, column = [], [], 2
    for heading, own in zip(headings, kinds, strict=True):
        note = f" ({heading['note']})" if heading["note"] else ""
        tops.append(rf"\multicolumn{{{len(own)}}}{{c}}{{{escape(heading['name'] + note)}}}")
        rules.append(rf"\cmidrule(lr){{{column}-{column + len(own) - 1}}}")
        column += len(own)
    body, notes = [], Notes()
    for row in group["rows"]:
        cells = [row["cells"][index] for index in indices]
        values = [_value(cell, kind, notes) for cell, own in zip(cells, kinds, strict=True) for kind in own]
        body.append([escape(row["label"]), *values])
    baselines = [_baseline(*one, indices, kinds, notes) for one in _baselines(group)]
    body += [line for line in baselines if set(line[1:]) - {"", escape(DASH)}]
    names = [kind for own in kinds for kind in own]
    units = in_units(PERCENT, {heading["name"]: heading["unit"] for heading in headings})
    caption = f"{page['title']}: {group['title']}, {units}."
    has_ours = any(heading["has_ours"] for heading in headings)
    if has_ours:
        caption = f"{caption} {page['setup']}. {page['interval'].capitalize()}."
    if has_ours and page["synthetic"]:
        caption = f"Synthetic data ({page['synthetic']}). {caption}"
    head = [_line(["", *tops]), " ".join(rules), _line(["", *names])]
    return _table(caption, label, "l" + "r" * len(names), head, body, notes)


def _baselines(group: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, str]]]]:
    """The rows below the rows, where there are any: what the most frequent label and simple methods get."""
    majority = [{"mean": value, "note": ""} for value in group["majority"] or ()]
    rows = [("most frequent label", majority), ("surface baseline", list(group["surface"] or ()))]
    return [(label, cells) for label, cells in rows if cells]


def _baseline(
    label: str, cells: Sequence[Mapping[str, str]], indices: Sequence[int], kinds: Sequence[list[str]], notes: Notes
) -> list[str]:
    found = [escape(cells[index]["mean"]) + notes.mark(cells[index]["note"]) for index in indices]
    pairs = zip(found, kinds, strict=True)
    return [escape(label), *("" if kind == "paper" else value for value, own in pairs for kind in own)]


def _kinds(heading: Mapping[str, Any]) -> list[str]:
    return [name for name, has in (("paper", heading["has_paper"]), ("ours", heading["has_ours"])) if has]


def _value(cell: Mapping[str, str], kind: str, notes: Notes) -> str:
    if kind == "paper":
        return escape(cell["paper"])
    note = f"collapsed: {cell['note']}" if cell["half"] == "collapsed" else cell["note"]
    return escape(f"{cell['mean']} {cell['half']}".strip()) + notes.mark(note)


def _race(page: Mapping[str, Any], race: Mapping[str, Any], label: str) -> list[str]:
    """Two arms along their pre-training, and what is said of one overtaking the other."""
    notes = Notes()
    keys = ("fraction", "tokens", "first", "second", "difference", "interval")
    body = []
    for one in race["points"]:
        cells = [escape(one[key] or DASH) for key in keys]
        body.append([*cells[:-1], cells[-1] + notes.mark(one["note"])])
    names = ("of the steps", "tokens", race["first"], race["second"], race["name"], "95 % interval")
    caption = f"{page['title']}: {race['judged_on']}, percent, differences in points. {race['sentence']} {INTERVALS}"
    return _table(caption, label, "rrrrrr", [_line([escape(name) for name in names])], body, notes)


def _verdicts(page: Mapping[str, Any]) -> list[str]:
    body, notes = [], Notes()
    for one in page["judgements"]:
        cells = [escape(one[key] or DASH) for key in ("text", "judged_on", "paper", "ours", "interval", "verdict")]
        said = "; ".join(one[key] for key in ("shown", "basis", "needs", "note") if one[key])
        body.append([*cells[:-1], cells[-1] + notes.mark(said)])
    head = [_line(["claim", "judged on", "paper", "ours", r"95\,\% interval", "verdict"])]
    caption = (
        f"{page['title']}: the claims, judged one by one; differences in {page['difference_units']}. {page['summary']}."
    )
    return _table(caption, f"tab:{page['name']}-verdicts".replace("_", "-"), "llrrrl", head, body, notes)


def _table(
    caption: str, label: str, columns: str, head: Sequence[str], body: Sequence[Sequence[str]], notes: Notes
) -> list[str]:
    return [
        r"\begin{table}",
        r"\centering\small",
        rf"\caption{{{escape(caption)}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *head,
        r"\midrule",
        *(_line(row) for row in body),
        r"\bottomrule",
        r"\end{tabular}",
        *notes.lines(),
        r"\end{table}",
    ]


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
