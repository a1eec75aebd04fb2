"""The files of a report: report.md, one self-contained report.html, plots, results.csv, claims.csv,
and report.tex on demand.

A report reads run folders and the experiment's own files and nothing else, so it can be made again
at any time, also while runs are going on. What the pages say is in page.py, how they look in
templates/; docs/runs.md says what each column of results.csv holds, and how to compute a cell of
the table from it.
"""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from os.path import relpath
from pathlib import Path
from string import ascii_lowercase

from jinja2 import Environment

from claims.analysis.schema import PERCENT
from claims.analysis.verdicts import Judgement, run_interim_analysis
from claims.report.files import Drawing, spreadsheet_text, write_claims, write_page, write_pictures
from claims.report.forest_picture import draw_forest, forest_files
from claims.report.page import ColumnGroup, ColumnHeading, RowView
from claims.report.pictures import use_style
from claims.tables.layout import CLAIMS_FILE, SCORES_FILE
from claims.text.phrases import DASH, in_units
from clozelab.metrics.metric import NO_UNIT, PREFIX
from clozelab.report.page import Page, build_page, templates
from clozelab.report.plots import draw_curves, draw_layers, draw_lines
from clozelab.report.registration import registration_summary
from clozelab.report.summaries import with_own_sizes
from clozelab.results.adhoc import infer_table
from clozelab.results.columns import is_scored, stand_in_for
from clozelab.results.experiment import Experiment
from clozelab.results.table import ResultTable, build_table
from clozelab.runs.find import find, of_other_scales
from clozelab.runs.record import Record
from clozelab.text.paths import EXPERIMENTS_DIR
from clozelab.text.plain import JsonObject, PlainDict, PlainMapping

RUN_FIELDS = [
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
]
SCORE_FIELDS = [
    "metric",
    "positive_label",
    "unit",
    "higher_is_better",
    "score",
    "is_headline",
    "column",
    "counts",
    "majority",
    "baseline",
    "examples",
    "collapsed",
    "status",
]
PROVENANCE_FIELDS = [
    "tokens",
    "tokens_per_second",
    "seconds",
    "machine",
    "commit",
    "local_changes",
    "fingerprint",
    "folder",
]
RESULT_FIELDS = RUN_FIELDS + SCORE_FIELDS + PROVENANCE_FIELDS
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
DRAWINGS = {
    "points": draw_lines,
    "layers": draw_layers,
    "curves": draw_curves,
}


@dataclass(frozen=True)
class Report:
    """What was written and what it says."""

    folder: Path
    table: ResultTable
    judgements: list[Judgement]
    page: Page


def write_report(experiment: Experiment, root: Path, folder: Path, *, scale: str) -> Report:
    """Judge an experiment from the runs below `root` and write the report into `folder`.

    ValueError: there is no run at all.
    """
    runs = find(root) if root.is_dir() else None
    if runs is None or not runs.runs:
        name = relpath(experiment.folder)
        if experiment.folder.parent == EXPERIMENTS_DIR:
            name = experiment.folder.name
        raise ValueError(
            f"no run below {root}{of_other_scales(root)};"
            f" `clozelab reproduce {name} scale={scale}` makes them"
        )
    registered = registration_summary(experiment, runs)
    return write_table(build_table(experiment, runs), folder, scale=scale, registered=registered)


def write_sweep_report(root: Path, folder: Path, fixed_rows: Sequence[str] = ()) -> Report:
    """Write the report of any sweep's runs, without an experiment.

    There is a row for whatever differs between them; each of `fixed_rows` has one encoder.
    """
    table = infer_table(find(root), fixed_rows)
    scales = {run.scale for run in table.runs.runs if run.scale}
    registered = registration_summary(None, table.runs)
    return write_table(table, folder, scale=", ".join(sorted(scales)), registered=registered)


def write_table(table: ResultTable, folder: Path, *, scale: str, registered: str = "") -> Report:
    """Judge a table and write its page, plots, results.csv and claims.csv.

    `registered` is what registration.py says of its runs.
    """
    paper_labels = {row.name: row.label for row in table.experiment.rows}
    table = with_own_sizes(table)
    analysed = run_interim_analysis(table, table.runs.root)
    folder.mkdir(parents=True, exist_ok=True)
    page = build_page(
        table,
        analysed,
        scale,
        registered=registered,
        paper_labels=paper_labels,
    )
    page = replace(page, plots=_plots(table, page, folder))
    for name in ("report.html", "report.md"):
        environment = templates(is_markdown=name == "report.md")
        write_page(page, environment.get_template(f"{name}.j2"), folder / name)
    write_results(folder / SCORES_FILE, table, scale)
    write_claims(folder / CLAIMS_FILE, page.judged.claims)
    return Report(folder, table, analysed.judgements, page)


# -- files of numbers ------------------------------------------------------------------------------


def write_results(path: Path, table: ResultTable, scale: str) -> None:
    """Write every run of an experiment at one scale, complete or not."""
    with path.open("w", newline="", encoding="utf-8") as file:
        # A value of no column is an error.
        writer = csv.DictWriter(file, RESULT_FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(result_lines(table, scale))


def result_lines(table: ResultTable, scale: str) -> Iterator[dict[str, str]]:
    """Field -> text of every score of every run, complete or not; of a run without one, a line."""
    counted = _counted_folders(table)
    arms = {row.name: row.arm for row in table.experiment.rows}
    for run in table.runs.runs:
        about: dict[str, object] = {"experiment": table.experiment.name, "scale": scale}
        about |= _about_run(run)
        about["counts"] = run.folder in counted
        lines = _task_lines(run, table, arms)
        if run.stage == "pretrain":
            lines = _pretraining_lines(run, table)
        about_as_text = _as_text(about)
        for line in lines:
            yield about_as_text | _as_text(line)


def _as_text(values: PlainMapping) -> dict[str, str]:
    return {key: spreadsheet_text(value) for key, value in values.items()}


def _counted_folders(table: ResultTable) -> set[Path]:
    """The runs behind some cell, and the pre-training runs that may be compared."""
    folders = {run.folder for run in table.current.pretrain if run.is_complete}
    for cell in table.cells.values():
        for part in (cell, *cell.parts):
            folders |= {run.folder for run in part.runs.values()}
    return folders


def _about_run(run: Record) -> PlainDict:
    """The fields of a run that are its record's, or one of its facts."""
    about = {name: run.facts.get(name) for name in ("tokens", "tokens_per_second")}
    for name in ("stage", "status", "seconds", "machine", "fingerprint", "synthetic"):
        about[name] = getattr(run, name)
    about["folder"] = run.place
    # Pre-training has its learning rate in the optimizer, a task's run on its own.
    optimizer = run.config.get("optimizer") or {}
    about["learning_rate"] = run.config.get("learning_rate", optimizer.get("learning_rate"))
    if run.git:
        about |= {"commit": run.git.commit, "local_changes": run.git.dirty}
    return about


def _pretraining_lines(run: Record, table: ResultTable) -> Iterator[PlainDict]:
    """The facts of a run that are held-out figures, or that a column of the table shows."""
    # fact -> the column of the table that shows it
    ours = [column for column in table.columns if column.is_pretraining and not column.is_paper]
    headings = {column.metric: column.heading for column in ours}
    scores = {}
    for key, value in run.figures.items():
        is_listed = key.startswith("validation/") or key in headings
        if run.is_complete and is_listed and isinstance(value, int | float):
            scores[key] = float(value)

    for line in _score_lines(scores, "validation/loss", headings):
        line |= {"arm": run.name, "pretrain_seed": run.seed, "unit": NO_UNIT}
        if line.get("metric", "").startswith(PREFIX):
            score = run.score_of(line["metric"])
            line |= {"unit": score.unit, "higher_is_better": score.higher_is_better}
        yield line


def _task_lines(
    run: Record, table: ResultTable, arms: Mapping[str, str | None]
) -> Iterator[PlainDict]:
    """The scores of a fine-tuning or an evaluation, each with what it stands beside.

    `arms`: row -> arm.
    """
    # score -> the column of the table that shows it; a row of nobody is in no column
    columns = [column for column in table.columns if column.task == run.task and run.name in arms]
    headings = {column.metric: column.heading for column in columns}
    arm = arms.get(run.name, run.encoder_arm)
    about = {
        "row": run.name,
        "arm": arm,
        "task": run.task,
        "stand_in_for": stand_in_for(run),
        "pretrain_seed": run.pretrain_seed,
        "seed": run.seed,
        "examples": run.facts.get("num_examples"),
    }
    if is_scored(run):
        about["collapsed"] = bool(run.facts.get("collapsed"))
    for line in _score_lines(run.values if run.is_complete else {}, run.metric, headings):
        score = run.scores.get(line.get("metric", ""))
        if score:
            line |= {"unit": score.unit, "positive_label": score.positive_label}
            line["higher_is_better"] = score.higher_is_better
            _, baseline = score.best_baseline or ("", None)
            line["baseline"] = baseline
            if line["is_headline"]:
                line["majority"] = score.majority
        yield about | line


def _score_lines(
    scores: Mapping[str, float], headline: str, headings: Mapping[str, str]
) -> Iterator[JsonObject]:
    """A line a score, the headline's first; one empty line where there is none."""
    for metric in sorted(scores, key=lambda metric: (metric != headline, metric)):
        line = {"metric": metric, "score": scores[metric], "is_headline": metric == headline}
        yield line | {"column": headings.get(metric)}
    if not scores:
        yield {}


# -- pictures --------------------------------------------------------------------------------------


def _plots(table: ResultTable, page: Page, folder: Path) -> dict[str, dict[str, str]]:
    """Write the pictures that there are data for; returns name -> style -> the SVG as base64."""
    drawings: dict[str, Drawing] = {"forest": partial(draw_forest, page.judged.forest)}
    for name, draw in DRAWINGS.items():
        drawings[name] = partial(draw, table)
    return write_pictures(drawings, folder)


# -- LaTeX -----------------------------------------------------------------------------------------


def write_for_paper(page: Page, folder: Path) -> list[Path]:
    """Write report.tex, and the forest plot as report.pdf, .svg and .png; returns their paths."""
    paths = [write_latex(page, folder / "report.tex")]
    if page.judged.forest.groups:
        with use_style("light"):
            figures = forest_files(page.judged.forest)
        for suffix, contents in figures.items():
            paths.append(folder / f"report.{suffix}")
            paths[-1].write_bytes(contents)
    return paths


def write_latex(page: Page, path: Path) -> Path:
    """Write scores and verdicts as LaTeX tables; returns the path."""
    template = latex_templates().get_template("report.tex.j2")
    text = template.render(vars(page), scores=list(latex_tables(page)))
    path.write_text(text, encoding="utf-8")
    return path


def escape(text: object) -> str:
    """Plain text as LaTeX sets it; one line."""
    # Of a letter and its accent as two characters pdfLaTeX knows the letter alone.
    line = unicodedata.normalize("NFC", " ".join(str(text).split()))
    return "".join(_SPECIAL.get(character, character) for character in line)


def first_cell(text: object) -> str:
    """Plain text as the first cell of a line.

    LaTeX would take a bracket or a star there for an argument of the line break before it.
    """
    escaped = escape(text)
    return f"{{}}{escaped}" if escaped.startswith(("[", "*")) else escaped


def label(text: str) -> str:
    """What a label may be made of: ASCII letters, digits and dashes."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text)


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
    environment = templates().overlay(
        block_start_string="((*",
        block_end_string="*))",
        variable_start_string="(((",
        variable_end_string=")))",
        comment_start_string="((=",
        comment_end_string="=))",
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(tex=escape, first_cell=first_cell, label=label, mark=mark)
    return environment


@dataclass(frozen=True)
class LatexTable:
    """Rows by a few data sets; beside the paper's number stands ours on the same data alone."""

    caption: str
    headings: list[ColumnHeading]
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


def _has_scores(row: RowView, headings: Sequence[ColumnHeading]) -> bool:
    pairs = zip(row.cells, headings, strict=True)
    return any(cell.ours != DASH and heading.has_ours for cell, heading in pairs)
