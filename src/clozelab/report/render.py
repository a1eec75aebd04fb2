"""The report of an experiment or a sweep: report.md, one self-contained report.html, plots,
results.csv, claims.csv.

It reads run folders and the experiment's own files and nothing else, so it can be made again at any
time, also while runs are going on. What the pages say is in page.py, how they look in templates/.
results.csv has every score of every run, one a line: pre-training first, then fine-tuning, each by
folder; docs/runs.md says how to compute a cell.
"""

from __future__ import annotations

import base64
import csv
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from os.path import relpath
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from jinja2 import Environment, PackageLoader

from clozelab.analysis.verdicts import Judgement
from clozelab.report import wording
from clozelab.report.page import build_page, templates
from clozelab.report.plots import (
    STYLES,
    Picture,
    draw_curves,
    draw_lines,
    draw_sizes,
    draw_table,
    look,
)
from clozelab.report.registration import said_of
from clozelab.report.summaries import arm_labels, encoder_sizes, rows_by_size, with_own_sizes
from clozelab.results.adhoc import infer_table
from clozelab.results.analyses import run_interim_analysis
from clozelab.results.experiment import Experiment
from clozelab.results.table import ResultTable, build_table, is_scored, stand_in_for
from clozelab.runs.find import find
from clozelab.runs.record import NO_UNIT, PERCENT, Record, Score
from clozelab.text.formatting import DASH, in_units

RESULT_FIELDS = (
    "experiment",
    "scale",
    "stage",
    "row",
    "arm",
    "task",
    "stand_in_for",
    "synthetic",
    "pretrain_seed",
    "seed",
    "learning_rate",
    "metric",
    "unit",
    "score",
    "is_headline",
    "column",
    "counts",
    "majority",
    "baseline",
    "examples",
    "collapsed",
    "status",
    "tokens",
    "tokens_per_second",
    "seconds",
    "machine",
    "commit",
    "local_changes",
    "fingerprint",
    "folder",
)
"""What each holds is in docs/runs.md."""
# of the page, in claims.csv
CLAIM_FIELDS = "text", "judged_on", "verdict", "ours", "interval", "p", "needs", "note"
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_results(path: Path, table: ResultTable, scale: str) -> None:
    """Write every run of an experiment at one scale, complete or not."""
    runs = table.runs
    cells = [part for cell in table.cells.values() for part in (cell, *cell.parts)]
    counting = {run.folder for cell in cells for run in cell.runs.values()}
    counting |= {run.folder for run in table.current.pretrain if run.is_complete}
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, RESULT_FIELDS, restval="", lineterminator="\n")
        writer.writeheader()
        for run in runs.runs:
            optimizer = run.config.get("optimizer") or {}
            common = {
                name: getattr(run, name)
                for name in ("stage", "status", "seconds", "machine", "fingerprint")
            }
            common |= {name: run.facts.get(name) for name in ("tokens", "tokens_per_second")}
            common |= {
                "experiment": table.experiment.name,
                "scale": scale,
                "counts": run.folder in counting,
                "synthetic": runs.synthetic if run.stage == "pretrain" else run.synthetic,
                "learning_rate": run.config.get("learning_rate", optimizer.get("learning_rate")),
                "commit": run.git.commit if run.git else None,
                "local_changes": run.git.dirty if run.git else None,
                "folder": run.place,
            }
            for line in (
                _pretraining(run, table) if run.stage == "pretrain" else _finetuning(run, table)
            ):
                # Ten digits: more of a score is the noise of its arithmetic.
                shown = {
                    key: f"{one:.10g}" if isinstance(one, float) else one
                    for key, one in (common | line).items()
                }
                writer.writerow(
                    {key: "" if one is None else _cell_text(one) for key, one in shown.items()}
                )


def _cell_text(value: object) -> str:
    """As a spreadsheet shows it: a text that it would take for a formula begins with an
    apostrophe.
    """
    text = str(value)
    with suppress(ValueError):
        float(text)
        return text
    return f"'{text}" if text.startswith(FORMULA) else text


def _pretraining(run: Record, table: ResultTable) -> Iterator[dict[str, Any]]:
    """The facts of a pre-training run that are held-out figures, or that a column of the table
    shows.
    """
    shown = {
        one.metric: one.heading for one in table.columns if one.is_pretraining and not one.is_paper
    }
    known = (
        [key for key in run.figures if key.startswith("validation/") or key in shown]
        if run.is_complete
        else []
    )
    scores = {
        key: float(run.figures[key]) for key in known if isinstance(run.figures[key], int | float)
    }
    for line in _scores(scores, "validation/loss"):
        metric = line.get("metric", "")
        unit = (
            Score.of(metric, are_shares=True).unit if metric.startswith("validation/") else NO_UNIT
        )
        yield line | {
            "arm": run.name,
            "pretrain_seed": run.seed,
            "column": shown.get(metric),
            "unit": unit,
        }


def _finetuning(run: Record, table: ResultTable) -> Iterator[dict[str, Any]]:
    arms = {row.name: row.arm for row in table.experiment.rows}
    shown = (
        {one.metric: one.heading for one in table.columns if one.task == run.task}
        if run.name in arms
        else {}
    )
    for line in _scores(run.values if run.is_complete else {}, run.metric):
        metric = line.get("metric", "")
        one = run.scores.get(metric)
        yield line | {
            "row": run.name,
            "arm": arms.get(run.name, run.config.get("encoder_arm")),
            "task": run.task,
            "stand_in_for": stand_in_for(run),
            "pretrain_seed": run.pretrain_seed,
            "seed": run.seed,
            "examples": run.facts.get("num_examples"),
            "collapsed": bool(run.facts.get("collapsed")) if is_scored(run) else None,
            "column": shown.get(metric),
            "unit": one.unit if one else "",
            "majority": one.majority if one and line["is_headline"] else None,
            "baseline": max(one.baselines.values(), default=None) if one else None,
        }


def _scores(scores: Mapping[str, float], headline: str) -> Iterator[dict[str, Any]]:
    """A line a score, the headline's first, or an empty one."""
    for metric in sorted(scores, key=lambda metric: (metric != headline, metric)):
        yield {"metric": metric, "score": scores[metric], "is_headline": metric == headline}
    if not scores:
        yield {}


@dataclass(frozen=True)
class Report:
    """What was written and what it says."""

    folder: Path
    table: ResultTable
    judgements: list[Judgement]
    page: dict[str, Any]


def write_report(experiment: Experiment, root: Path, folder: Path, *, scale: str) -> Report:
    """Judge an experiment from the runs below `root` and write the report into `folder`.
    ValueError: no run at all.
    """
    runs = find(root) if root.is_dir() else None
    if runs is None or not runs.runs:
        raise ValueError(
            f"no run below {root}; `clozelab reproduce {relpath(experiment.folder)} scale={scale}`"
            " makes them"
        )
    return write_table(build_table(experiment, runs), folder, scale=scale)


def write_sweep_report(root: Path, folder: Path) -> Report:
    """The same of any sweep's runs, without an experiment: a row for whatever differs between
    them.
    """
    table = infer_table(find(root))
    return write_table(
        table, folder, scale=", ".join(sorted({run.scale for run in table.runs.runs} - {""}))
    )


def write_table(table: ResultTable, folder: Path, *, scale: str) -> Report:
    """Judge a table and write its page, plots and results.csv."""
    known: dict[str, Any] = {"registered": said_of(table.experiment, table.runs)}
    known["named"] = {row.name: row.label for row in table.experiment.rows}
    table = with_own_sizes(table)
    analysed = run_interim_analysis(table)
    judgements = analysed.judgements
    folder.mkdir(parents=True, exist_ok=True)
    page = build_page(table, judgements, scale, analysed.analyses) | known
    if analysed.error:
        page["problems"]["Looks"] = [wording.unnoted_analysis(analysed.error)]
    page["plots"] = _plots(table, folder)
    for name, said in (("report.md", without_html(page)), ("report.html", page)):
        (folder / name).write_text(
            templates().get_template(f"{name}.j2").render(said), encoding="utf-8"
        )
    write_results(folder / "results.csv", table, scale)
    with (folder / "claims.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CLAIM_FIELDS)
        writer.writerows(
            [_cell_text(one[key]) for key in CLAIM_FIELDS] for one in page["judgements"]
        )
    return Report(folder, table, judgements, page)


def without_html(value: Any) -> Any:
    """Texts, wherever they are, with `<` in words where a reader of Markdown would take it for
    HTML.
    """
    if isinstance(value, Mapping):
        return {key: without_html(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [without_html(one) for one in value]
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", value) if isinstance(value, str) else value


def _plots(table: ResultTable, folder: Path) -> dict[str, dict[str, str]]:
    """Write NAME.png, NAME.svg and both with -dark, where there is data; name -> style -> the SVG
    as base64.
    """
    lines = table.checkpoint_series
    rows, sizes = rows_by_size(table), encoder_sizes(table)
    draw: dict[str, Callable[[], Picture | None]] = {
        "table": lambda: draw_table(table),
        "points": lambda: draw_lines(lines, table),
        "sizes": lambda: draw_sizes(rows, sizes, table),
        "curves": lambda: draw_curves(table.runs.pretrain, arm_labels(table)),
    }
    plots: dict[str, dict[str, str]] = {}
    for name, style in product(draw, STYLES):
        with look(style):
            picture = draw[name]()
        if picture is not None:
            stem = name if style == "light" else f"{name}-{style}"
            (folder / f"{stem}.png").write_bytes(picture.png)
            (folder / f"{stem}.svg").write_bytes(picture.svg)
            plots.setdefault(name, {})[style] = base64.b64encode(picture.svg).decode()
    return plots


SETS_A_TABLE = 4  # data sets side by side; more do not fit on a page
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


def mark(text: str, notes: dict[str, str]) -> str:
    """What a cell with this note ends in, its letter among a table's `notes`; nothing for no
    note.
    """
    rounds, place = divmod(len(notes), len(ascii_lowercase))
    return (
        rf"\textsuperscript{{{notes.setdefault(text, ascii_lowercase[place] * (rounds + 1))}}}"
        if text
        else ""
    )


def escape(text: object) -> str:
    """Plain text as LaTeX sets it; one line."""
    return "".join(_SPECIAL.get(character, character) for character in " ".join(str(text).split()))


def write_latex(page: Mapping[str, Any], path: Path) -> Path:
    """Write the tables; returns the path."""
    environment = Environment(  # LaTeX's own braces and percent signs stay what they are
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
    template = environment.get_template("report.tex.j2")
    path.write_text(template.render(page, scores=list(_score_tables(page))), encoding="utf-8")
    return path


def _score_tables(page: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Tables of rows by data sets; beside the paper's number stands ours on the same data, and
    nowhere else.
    """
    for group in page["groups"]:
        majority = [{"mean": value, "note": ""} for value in group["majority"] or ()]
        found = [(row["label"], row["cells"]) for row in group["rows"]]
        found += [("most frequent label", majority), ("surface baseline", group["surface"] or [])]
        shown = [
            index
            for index, one in enumerate(group["headings"])
            if one["has_ours"] or one["has_paper"]
        ]
        for start in range(0, len(shown), SETS_A_TABLE):
            indices = shown[start : start + SETS_A_TABLE]
            headings = [group["headings"][index] for index in indices]
            rows = []
            for number, (label, all_cells) in enumerate(found):
                cells = [
                    _cell(all_cells[index], group["headings"][index])
                    for index in indices
                    if all_cells
                ]
                is_known = any(
                    cell["ours"] != DASH and cell["heading"]["has_ours"] for cell in cells
                )
                if is_known or number < len(group["rows"]):
                    rows.append((label, cells))
            units = in_units(PERCENT, {one["name"]: one["unit"] for one in headings})
            caption = f"{page['title']}: {group['title']}, {units}."
            if any(one["has_ours"] for one in headings):
                caption = f"{caption} {page['setup']}. {page['interval'].capitalize()}."
                caption = (
                    f"Synthetic data ({page['synthetic']}). {caption}"
                    if page["synthetic"]
                    else caption
                )
            widths = [(one, one["has_paper"] + one["has_ours"]) for one in headings]
            warnings = [
                f"{heading}: {line}"
                for heading, lines in page["problems"].items()
                for line in lines
            ]
            below = (
                [page["selection"], *warnings] if any(one["has_ours"] for one in headings) else []
            )
            yield {
                "caption": caption,
                "widths": widths,
                "rows": rows,
                "below": list(filter(None, below)),
            }


def _cell(cell: Mapping[str, str], heading: Mapping[str, Any]) -> dict[str, Any]:
    half = cell.get("half", "")
    note = f"collapsed: {cell['note']}" if half == "collapsed" else cell["note"]
    ours = f"{cell['mean']} {half}".strip()
    return {"heading": heading, "paper": cell.get("paper", ""), "ours": ours, "note": note}
