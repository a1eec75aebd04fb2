"""What a report says, as text: the page that HTML, Markdown, LaTeX and the terminal lay out.

The claims are made in claims.py, what runs learnt and cost in summaries.py, what went wrong in
problems.py. Stand-ins and generated tasks stand in a group of data sets of their own: the paper's
number never stands beside a score on other data.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, product

from jinja2 import Environment, PackageLoader

from clozelab.analysis.history import InterimAnalysis
from clozelab.analysis.phrases import format_count
from clozelab.analysis.schema import OUR_SPLIT, PERCENT
from clozelab.analysis.scores import DataColumn
from clozelab.analysis.verdicts import AnalysedTable, Judgement
from clozelab.files.origin import GIVEN
from clozelab.report import wording
from clozelab.report.claims import (
    POINTS,
    ClaimView,
    DifferenceView,
    claim_views,
    differences,
    unit_of,
)
from clozelab.report.classes import ClassTable, class_tables
from clozelab.report.estimates import half_width, percent, scores_by_seed, span
from clozelab.report.forest import Forest, forest_of
from clozelab.report.problems import problems
from clozelab.report.provenance import provenance
from clozelab.report.summaries import (
    ArmsBelowBaseline,
    ArmSummary,
    Cost,
    arms_below_baseline,
    costs,
    learning_summary,
    loss_bounds,
    seed_counts,
)
from clozelab.report.verdict_styles import COLOURS, LABELS
from clozelab.results.experiment import Experiment
from clozelab.results.table import ResultTable
from clozelab.runs.record import Record
from clozelab.text.formatting import DASH, STAGE_NAMES, distinct, in_units, with_direction
from clozelab.text.safe_yaml import own_text

DATA_SETS = "Data sets"
METRIC_NAMES = {
    "f1": "F1",
    "macro f1": "macro F1",
    "weighted f1": "weighted F1",
    "matthews": "Matthews",
}
SELECTION = (
    "A fine-tuning run was scored several times on the way, and stands here with its best score on"
    " the very set that it is scored on, as the paper selects too: a little better than on new"
    " examples, most so where scores jump about."
)
# where a reader of Markdown would take a "<" for the beginning of HTML
HTML_START = re.compile(r"<(?=[A-Za-z/!?])")
QUESTION = re.compile(r"^\*\*The question\.\*\*\s*(.+?)(?:\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class ColumnHeading:
    """What stands over a data set."""

    name: str
    # what the data set is, where it is not the paper's
    note: str
    metric: str
    unit: str
    # "F1 of fraud"; empty where the score is of no single class
    of_class: str
    # "408 examples"; empty where it is not known
    examples: str
    # "1,000 of 3,668"; empty where runs saw all training examples
    trained_on: str
    # whether the paper's numbers and ours have a column below it
    has_paper: bool
    has_ours: bool

    @property
    def width(self) -> int:
        """Columns below it: none, one or two."""
        return int(self.has_paper) + int(self.has_ours)


@dataclass(frozen=True)
class CellView:
    """A row's score on a data set, in words."""

    mean: str
    # what stands behind the mean: "± 1.7", "(65.7, 69.1)", "collapsed"
    half: str = ""
    paper: str = ""
    # what sets it apart from the other cells
    note: str = ""
    # "1/1: 65.7, 1/2: 69.1"
    seeds: str = ""
    is_collapsed: bool = False
    # there should be a score, and there is none
    is_absent: bool = False

    @property
    def ours(self) -> str:
        return f"{self.mean} {self.half}".rstrip()


@dataclass(frozen=True)
class RowView:
    """A row with a cell for each data set of its group."""

    label: str
    cells: list[CellView]
    name: str = ""
    # it has no pre-training, or that of a given encoder
    is_floor: bool = False
    is_given: bool = False


@dataclass(frozen=True)
class ColumnGroup:
    """Data sets that stand together under a title."""

    title: str
    headings: list[ColumnHeading]
    rows: list[RowView]
    # what needs no encoder; None where no data set knows it
    majority: RowView | None
    surface: RowView | None

    @property
    def baselines(self) -> list[RowView]:
        return [row for row in (self.majority, self.surface) if row is not None]


@dataclass(frozen=True)
class ArmsBelowBaselineView:
    """Arms below a baseline, and the claims that cannot be judged without them."""

    text: str
    claims: list[str]


@dataclass(frozen=True)
class About:
    """What a page is about."""

    title: str
    name: str
    source: str
    has_paper: bool
    scale: str
    # the generated world that wrote the data; None for real text
    synthetic: str | None
    # from the experiment's README
    question: str


@dataclass(frozen=True)
class Overview:
    """What the first screen says beside the verdicts; an empty text is left out."""

    # the verdicts counted
    summary: str
    unlearnt: list[ArmsBelowBaselineView]
    registered: str
    # how many interim analyses there were, and when
    analyses: str
    # what was trained, and how far the runs are
    setup: str
    runs: str


@dataclass(frozen=True)
class TableSection:
    """The table, and what its numbers are."""

    units: str
    # which examples scores are over
    sets: str
    # what a cell is: each of two seeds, or a mean with an interval; empty where there is none
    interval: str
    has_two_seeds: bool
    # what the paper's cells are
    statistic: str
    groups: list[ColumnGroup]
    # row -> its label in paper.yaml, where ours may name another size
    paper_labels: Mapping[str, str]


@dataclass(frozen=True)
class ClaimSection:
    """The claims; of a table without any, the differences."""

    claims: list[ClaimView]
    forest: Forest
    differences: list[DifferenceView]
    units: str
    # how to read intervals and verdicts, and how scores were chosen
    reading: list[str]
    selection: str


@dataclass(frozen=True)
class Page:
    """Everything that the templates show, from top to bottom."""

    about: About
    overview: Overview
    table: TableSection
    judged: ClaimSection
    # where classifications fail
    classes: list[ClassTable]
    # what pre-training reached, and what no model can be below
    arms: list[ArmSummary]
    bounds: list[str]
    costs: list[Cost]
    # heading -> lines
    problems: Mapping[str, list[str]]
    provenance: list[tuple[str, str]]
    # picture -> style -> the SVG as base64; none before render.py has drawn them
    plots: Mapping[str, Mapping[str, str]]


def build_page(
    table: ResultTable,
    analysed: AnalysedTable,
    scale: str,
    *,
    registered: str,
    paper_labels: Mapping[str, str],
) -> Page:
    """Put a judged table into words.

    Args:
        table: with the labels that the page shows.
        registered: what registration.py says of the runs.
        paper_labels: row -> label as paper.yaml has it.
    """
    troubles = problems(table)
    if analysed.error:
        lost = f"this look could not be noted ({analysed.error}): a later one will not know of it"
        troubles["Looks"] = [lost]
    overview = Overview(
        summary=wording.summarise(analysed.judgements),
        unlearnt=_arms_below_baseline(table, analysed.judgements),
        registered=registered,
        analyses=_analyses(analysed.analyses),
        setup=_setup(table),
        runs=_run_counts(table),
    )
    judged = _claim_section(table, analysed.judgements)
    arms = learning_summary(table)
    classes = class_tables(table)
    bounds = _paragraphs("bounds.txt.j2", bounds=loss_bounds(table))
    experiment = table.experiment
    about = About(
        title=experiment.title,
        name=experiment.name,
        source=experiment.source,
        has_paper=experiment.has_paper,
        scale=scale,
        synthetic=table.runs.synthetic,
        question=_question(experiment),
    )
    return Page(
        about=about,
        overview=overview,
        table=_table_section(table, paper_labels),
        judged=judged,
        classes=classes,
        arms=arms,
        bounds=bounds,
        costs=costs(table),
        problems=troubles,
        provenance=provenance(table),
        plots={},
    )


@cache
def templates(*, is_markdown: bool = False) -> Environment:
    """How reports look; what goes into HTML is escaped, and in Markdown what looks like HTML."""
    environment = Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        autoescape=lambda name: bool(name and ".html" in name),
        finalize=_without_html if is_markdown else None,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(verdict_colours=COLOURS, verdict_labels=LABELS)
    return environment


def _without_html(value: object) -> object:
    """A text with every "<" escaped that begins HTML, unless a template says that it is safe."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return HTML_START.sub("&lt;", value)


def _paragraphs(name: str, **values: object) -> list[str]:
    """The paragraphs of a text template, each as one line."""
    text = templates().get_template(name).render(values)
    lines = []
    for paragraph in text.split("\n\n"):
        line = " ".join(paragraph.split())
        if line:
            lines.append(line)
    return lines


# -- what it is about ------------------------------------------------------------------------------


def _question(experiment: Experiment) -> str:
    """The paragraph of an experiment's README that begins with "The question."; one line."""
    readme = experiment.folder / "README.md"
    if not readme.is_file():
        return ""
    question = QUESTION.search(own_text(readme, experiment.folder))
    return " ".join(question[1].split()) if question else ""


# -- the first screen ------------------------------------------------------------------------------


def _arms_below_baseline(
    table: ResultTable, judgements: Sequence[Judgement]
) -> list[ArmsBelowBaselineView]:
    lacks = []
    for lack in arms_below_baseline(table):
        claims = []
        for one in judgements:
            if _rests_on(one, lack, table):
                claims.append(one.claim.text)
        lacks.append(ArmsBelowBaselineView(lack.text, claims))
    return lacks


def _rests_on(judgement: Judgement, lack: ArmsBelowBaseline, table: ResultTable) -> bool:
    """Whether a claim compares arms of all the groups that a lack keeps apart."""
    arms = set()
    for row in table.experiment.rows:
        if row.name in judgement.rows:
            arms.add(row.arm)
    return not any(arms.isdisjoint(group) for group in lack.groups)


def _analyses(analyses: Sequence[InterimAnalysis]) -> str:
    """`2 (2026-11-20, 2026-11-25)`: the analyses so far; empty for none."""
    if not analyses:
        return ""
    days = ", ".join(analysis.time[:10] for analysis in analyses)
    return f"{len(analyses)} ({days})"


def _setup(table: ResultTable) -> str:
    """What was trained, in one line: how far it is from the paper's size has to be seen at once."""
    # Before the first arm is complete, those to come.
    runs = [run for run in table.runs.pretrain if run.is_complete] or table.runs.pretrain
    parameters = _span_of_fact(runs, "parameters")
    tokens = _span_of_fact(runs, "tokens")
    corpora = []
    for run in runs:
        if run.config.get("corpus"):
            corpora.append(run.config["corpus"]["name"])
    phrases = [
        _layers(runs),
        f"{parameters} parameters" if parameters else DASH,
        f"{tokens} tokens a pre-training run" if tokens else DASH,
        distinct(f"corpus {name}" for name in corpora),
        *_given_encoders(table),
        seed_counts(table),
    ]
    return ", ".join(phrase for phrase in phrases if phrase != DASH)


def _given_encoders(table: ResultTable) -> list[str]:
    """`given encoder: 6 layers of 384, 22.7 M parameters` for each size, with its rows if others
    have another.
    """
    rows_of_size: dict[str, dict[str, None]] = {}
    for run in (*table.runs.finetune, *table.runs.evaluate):
        encoder = run.facts.get("encoder", {})
        if run.name in table.rows and encoder.get("scale") == GIVEN:
            size = f"{_layers([run])}, {format_count(encoder['parameters'])} parameters"
            rows_of_size.setdefault(size, {})[table.experiment.label(run.name)] = None
    phrases = []
    for size, rows in rows_of_size.items():
        is_of_all = len(rows) == len(table.rows)
        named = "" if is_of_all else f" ({'; '.join(rows)})"
        phrases.append(f"given encoder{named}: {size}")
    return phrases


def _layers(runs: Sequence[Record]) -> str:
    """`2 layers of 128`, `2 to 8 layers of 64 to 128`; a dash where no run has a model."""
    models = [run.encoder_shape for run in runs if run.encoder_shape]
    if not models:
        return DASH
    layers = span((model["num_hidden_layers"] for model in models), str)
    widths = span((model["hidden_size"] for model in models), str)
    return f"{layers} layer{'' if layers == '1' else 's'} of {widths}"


def _span_of_fact(runs: Sequence[Record], key: str) -> str:
    return span(run.facts[key] for run in runs if run.facts.get(key))


def _run_counts(table: ResultTable) -> str:
    """How many runs of each stage are complete, and what is wrong with the others."""
    runs = table.runs
    complete = []
    for stage, name in STAGE_NAMES.items():
        of_stage = [run.is_complete for run in runs.runs if run.stage == stage]
        if of_stage:
            complete.append(f"{sum(of_stage)} of {len(of_stage)} {name}")
    phrases = [f"{' and '.join(complete)} runs complete"]

    counts = Counter(run.status for run in runs.runs if not run.is_complete)
    num_missing = _num_cells_lacking_runs(table)
    lack = "cell lacks runs" if num_missing == 1 else "cells lack runs"
    # Runs behind the table's cells, each counted once.
    behind = chain.from_iterable(cell.runs.values() for cell in table.cells.values())
    num_collapsed = len({run.folder for run in behind if run.is_collapsed})
    counts |= {lack: num_missing, "collapsed": num_collapsed, "unreadable": len(runs.damaged)}
    phrases += [f"{count} {status}" for status, count in counts.items() if count]
    return ", ".join(phrases)


def _num_cells_lacking_runs(table: ResultTable) -> int:
    columns = [column for column in table.with_results if column.task]
    cells = product(table.rows, columns)
    return sum(bool(table.cells[row, column.key].missing) for row, column in cells)


# -- the table -------------------------------------------------------------------------------------


def _table_section(table: ResultTable, paper_labels: Mapping[str, str]) -> TableSection:
    statistic = wording.statistic(table.experiment)
    of_paper = f"; the paper's numbers are {statistic}" if statistic else ""
    # Cells show the values of two seeds, which an interval says less of.
    has_two_seeds = _num_seeds(table) == 2
    units = {column.heading: column.unit for column in table.with_results}
    return TableSection(
        units=in_units(PERCENT, units),
        sets=_sets(table),
        interval=_interval(table),
        has_two_seeds=has_two_seeds,
        statistic=of_paper,
        groups=column_groups(table),
        paper_labels=paper_labels,
    )


def _sets(table: ResultTable) -> str:
    """Which examples scores are over; ours are always on the labelled sets, or on held-out text."""
    split = table.experiment.split
    if all(column.is_pretraining for column in table.columns):
        return "on held-out text"
    if split != OUR_SPLIT:
        return f"ours on the {OUR_SPLIT} sets and the paper's on the {split} sets"
    return f"on the {split} sets"


def _interval(table: ResultTable) -> str:
    """What a cell of ours is: a mean over which seeds, with which interval; empty without any."""
    if not any(cell.estimate for cell in table.cells.values()):
        return ""
    return _paragraphs(
        "interval.txt.j2",
        has_paper=table.experiment.has_paper,
        basis=table.most_common_basis,
        num_seeds=_num_seeds(table),
        is_finetuned=bool(table.runs.finetune),
        has_fixed_encoders=table.experiment.has_fixed_encoders,
    )[0]


def _num_seeds(table: ResultTable) -> int:
    """How many seeds the interval of a cell is over, where no run is missing; 0 without one."""
    num_seeds = 0
    for cell in table.cells.values():
        if cell.estimate and cell.estimate.basis == table.most_common_basis:
            num_seeds = max(num_seeds, len(cell.estimate.values))
    return num_seeds


def column_groups(table: ResultTable) -> list[ColumnGroup]:
    """The table in groups of data sets, the paper's first if any of our runs is on them."""
    of_paper = [column for column in table.columns if column.is_paper]
    apart = [column for column in table.columns if not column.is_paper]
    has_results = any(table.has_results(column) for column in of_paper)
    if apart and not has_results and not table.experiment.has_numbers:
        of_paper = []  # it would show nothing but dashes
    groups = [
        _column_group(_paper_title(table, has_results=has_results), of_paper, table),
        _column_group(_title_apart(table, apart, has_results=has_results), apart, table),
    ]
    if not has_results:
        groups.reverse()
    return [group for group in groups if group.headings]


def _paper_title(table: ResultTable, *, has_results: bool) -> str:
    if not table.experiment.has_paper:
        return DATA_SETS
    if has_results:
        return "The paper's data sets"
    return "The paper's own numbers, on data that none of our runs has seen"


def _title_apart(table: ResultTable, columns: Sequence[DataColumn], *, has_results: bool) -> str:
    """The title of what is not the paper's data; `has_results`: some of the paper's data are."""
    if columns and all(column.is_synthetic for column in columns):
        return f"Generated tasks of {table.runs.synthetic}"
    if table.experiment.has_paper:
        return "Stand-ins and other data sets"
    return f"Other {DATA_SETS.lower()}" if has_results else DATA_SETS


def _column_group(title: str, columns: Sequence[DataColumn], table: ResultTable) -> ColumnGroup:
    rows = []
    for row in table.experiment.rows:
        cells = [_cell_view(row.name, column, table) for column in columns]
        is_given = row.fixed_encoder
        is_floor = row.arm is None and not is_given
        rows.append(RowView(row.label, cells, row.name, is_floor=is_floor, is_given=is_given))
    return ColumnGroup(
        title=title,
        headings=[_heading(column, table) for column in columns],
        rows=rows,
        majority=_majority_row(columns),
        surface=_surface_row(columns),
    )


# -- headings --------------------------------------------------------------------------------------


def _heading(column: DataColumn, table: ResultTable) -> ColumnHeading:
    has_results = table.has_results(column)
    has_numbers = table.experiment.has_numbers
    # Without a paper the group's title says already that the data are generated.
    is_plain = column.is_synthetic and not table.experiment.has_paper
    name = column.heading
    if is_plain and column.column:
        name = column.column.name
    plain_metric = column.metric.rpartition("/")[2].replace("_", " ")
    metric = METRIC_NAMES.get(plain_metric, plain_metric)
    metric = with_direction(metric, falls=column.falls)
    of_class = ""
    if column.positive_label is not None:
        of_class = f"{metric} of {column.positive_label}"
        metric = of_class
    trained_on = ""
    if column.trained_on:
        used, available = column.trained_on
        trained_on = f"{used:,} of {available:,}"
    examples = ""
    if column.num_examples:
        examples = f"{column.num_examples:,} examples"
    if column.held_out is not None:
        examples += f", {100 * column.held_out:g} % of the training file"
    if column.folds is not None:
        examples += f" in each of {column.folds} folds: the interval is over folds and draws"
    has_ours = has_results or not column.is_paper or not has_numbers
    return ColumnHeading(
        name=name,
        note=_heading_note(column, table),
        metric=metric,
        unit=column.unit,
        of_class=of_class,
        examples=examples,
        trained_on=trained_on,
        has_paper=column.is_paper and has_numbers,
        has_ours=has_ours,
    )


def _heading_note(column: DataColumn, table: ResultTable) -> str:
    """What a data set is to the paper's; empty where the name or the group's title says it."""
    has_paper = table.experiment.has_paper
    if column.is_paper:
        if table.has_results(column):
            return ""
        is_held_out_text = column.is_pretraining and has_paper
        return "held-out text of the paper's" if is_held_out_text else "no run"
    if not has_paper:
        is_said = column.is_pretraining or (column.is_synthetic and column.column is not None)
        return "" if is_said else column.role
    return column.role or "not in the paper's table"


# -- cells -----------------------------------------------------------------------------------------


def _cell_view(row: str, column: DataColumn, table: ResultTable) -> CellView:
    cell = table.cells[row, column.key]
    decimals = column.decimals
    paper = table.paper_value(row, column)
    # A row without an arm of its own has no pre-training to report, which is not a lack.
    is_absent = cell.estimate is None and bool(cell.missing)
    mean = "missing" if is_absent else DASH
    if cell.estimate:
        mean = f"{cell.estimate.mean:.{decimals}f}"
    half = half_width(cell.estimate, decimals)
    if cell.is_collapsed:
        # The same answer whatever the input: its spread is no measure of anything.
        half = "collapsed"
    return CellView(
        mean=mean,
        half=half,
        paper=_score(paper, decimals),
        note=_cell_note(row, column, table),
        seeds=scores_by_seed(cell, decimals),
        is_collapsed=cell.is_collapsed,
        is_absent=is_absent,
    )


def _cell_note(row: str, column: DataColumn, table: ResultTable) -> str:
    """What sets a cell apart from the others."""
    cell = table.cells[row, column.key]
    estimate = cell.estimate
    notes = [*cell.notes, table.retained(row, column)]
    if table.below_baseline(row, column):
        notes.append("below its floor")
    if estimate and cell.missing:
        num_expected = len(cell.scores) + len(cell.missing)
        notes.append(f"{len(cell.scores)} of {num_expected} runs")
    if estimate and estimate.basis != table.most_common_basis and not cell.is_collapsed:
        notes.append(estimate.basis)
    if cell.is_collapsed:
        notes.append("every run" if len(cell.scores) > 1 else "the only run")
    elif cell.num_collapsed:
        # A mean of columns has parts, and no runs.
        note = f"{cell.num_collapsed} {'collapsed' if cell.runs else 'with collapsed parts'}"
        if cell.without_collapsed:
            note += f", {percent(cell.without_collapsed, column.decimals)} without"
        notes.append(note)
    return "; ".join(filter(None, notes))


# -- what needs no encoder -------------------------------------------------------------------------


def _majority_row(columns: Sequence[DataColumn]) -> RowView | None:
    """The scores of always answering the most frequent label."""
    if all(column.majority is None for column in columns):
        return None
    cells = [CellView(_score(column.majority, column.decimals)) for column in columns]
    return RowView("most frequent label", cells)


def _surface_row(columns: Sequence[DataColumn]) -> RowView | None:
    """The scores of the best simple method on each data set, with the method's name."""
    if not any(column.baseline for column in columns):
        return None
    cells = []
    for column in columns:
        name, score = column.baseline or ("", None)
        cells.append(CellView(_score(score, column.decimals), note=name))
    return RowView("surface baseline", cells)


def _score(score: float | None, decimals: int = 1) -> str:
    return DASH if score is None else f"{score:.{decimals}f}"


# -- the claims ------------------------------------------------------------------------------------


def _claim_section(table: ResultTable, judgements: Sequence[Judgement]) -> ClaimSection:
    claims = claim_views(judgements, table)
    units = {judgement.judged_on: unit_of(judgement) for judgement in judgements}
    # Some fine-tuning run stands with the best of several evaluations.
    is_selected = any(run.facts.get("num_evaluations", 0) > 1 for run in table.runs.finetune)
    selection = SELECTION if is_selected else ""
    claim_types = {type(claim).__name__ for claim in table.experiment.claims}
    reading = _paragraphs(
        "reading.txt.j2",
        experiment=table.experiment,
        claim_types=claim_types,
        family=max((judgement.num_tests for judgement in judgements), default=0),
        selection=selection,
        has_forecasts=any(judgement.forecast for judgement in judgements),
    )
    return ClaimSection(
        claims=claims,
        forest=forest_of(claims, table),
        differences=[] if table.experiment.claims else differences(table),
        units=in_units(POINTS, units),
        reading=reading,
        selection=selection,
    )
