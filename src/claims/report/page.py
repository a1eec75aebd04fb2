"""What a judged table says, as text: what HTML, Markdown and the terminal lay out.

The claims are made in claims.py. Substitutes and generated tasks are in a group of data sets of
their own: the paper's number never stands beside a score on other data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader

from claims.analysis.history import InterimAnalysis
from claims.analysis.schema import PERCENT
from claims.analysis.scores import DataColumn, ScoreTable
from claims.analysis.verdicts import AnalysedTable, Judgement
from claims.report import wording
from claims.report.claims import (
    POINTS,
    ClaimView,
    DifferenceView,
    claim_views,
    differences,
    unit_of,
)
from claims.report.estimates import half_width, percent, scores_by_seed
from claims.report.forest import Forest, forest_of
from claims.report.verdict_styles import COLOURS, LABELS
from claims.text.phrases import DASH, in_units, with_direction

DATA_SETS = "Data sets"
METRIC_NAMES = {
    "f1": "F1",
    "macro f1": "macro F1",
    "weighted f1": "weighted F1",
    "matthews": "Matthews",
}
# where a reader of Markdown would take a "<" for the beginning of HTML
HTML_START = re.compile(r"<(?=[A-Za-z/!?])")


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
    # it has no pre-training
    is_floor: bool = False


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
class About:
    """What a page is about."""

    title: str
    name: str
    source: str = ""
    has_paper: bool = False
    scale: str = ""
    # the generated world that wrote the data; None for real text
    synthetic: str | None = None
    # from the experiment's README
    question: str = ""
    # the question that its primary claims answer, with the answer; empty for most
    answer: str = ""


@dataclass(frozen=True)
class TableSection:
    """The table, and what its numbers are."""

    units: str
    # which examples scores are over
    sets: str
    # what a cell is: each of two seeds, or a mean with an interval; empty where there is none
    interval: str
    # whether a score behind a mean has one seed, of which nobody knows what it decides
    has_plain_seeds: bool
    # what the paper's cells are
    statistic: str
    groups: list[ColumnGroup]
    # row -> its label in paper.yaml, where ours may name another size
    paper_labels: Mapping[str, str]


@dataclass(frozen=True)
class ClaimSection:
    """The claims; of a table without any, the differences."""

    claims: list[ClaimView]
    # the verdicts counted
    summary: str
    # how many interim analyses there were, and when
    analyses: str
    forest: Forest
    differences: list[DifferenceView]
    # those of all pairs of rows, rather than from the first one
    every_pair: bool
    units: str
    # how to read intervals and verdicts, and how scores were chosen
    reading: list[str]
    selection: str

    @property
    def leaves_pairs_out(self) -> bool:
        """Whether there are differences between rows that it does not show."""
        return not self.every_pair and len({one.row for one in self.differences}) > 1


@dataclass(frozen=True, kw_only=True)
class JudgedPage:
    """What a page shows of a judged table, wherever its scores are from."""

    about: About
    table: TableSection
    judged: ClaimSection
    # heading -> lines
    problems: Mapping[str, list[str]]
    provenance: list[tuple[str, str]]
    # picture -> style -> the SVG as base64; none before they are drawn
    plots: Mapping[str, Mapping[str, str]]


@cache
def templates(*, is_markdown: bool = False) -> Environment:
    """How reports look; what goes into HTML is escaped, and in Markdown what would not be text."""
    environment = Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        autoescape=lambda name: bool(name and ".html" in name),
        finalize=_as_markdown if is_markdown else None,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(verdict_colours=COLOURS, verdict_labels=LABELS)
    return environment


def _as_markdown(value: object) -> object:
    """A text with what begins HTML or a cell escaped, unless a template says that it is safe."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return HTML_START.sub("&lt;", value).replace("|", r"\|")


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, each as one line."""
    lines = []
    for paragraph in text.split("\n\n"):
        line = " ".join(paragraph.split())
        if line:
            lines.append(line)
    return lines


def _sentences(name: str, table: ScoreTable, **values: object) -> list[str]:
    """The paragraphs of a text template about a table."""
    text = templates().get_template(name).render(values)
    return paragraphs(wording.seed_words(text, table))


# -- the table -------------------------------------------------------------------------------------


def table_section(
    table: ScoreTable, sets: str, statistic: str, paper_labels: Mapping[str, str]
) -> TableSection:
    """The table in words.

    Args:
        sets: which examples its scores are over.
        statistic: what the paper's numbers are.
        paper_labels: row -> label as the file of claims has it.
    """
    units = {column.heading: column.unit for column in table.with_results}
    return TableSection(
        units=in_units(PERCENT, units),
        sets=sets,
        interval=_interval(table),
        has_plain_seeds=table.has_plain_seeds,
        statistic=statistic,
        groups=column_groups(table),
        paper_labels=paper_labels,
    )


def _interval(table: ScoreTable) -> str:
    """What a cell of ours is: a mean over which seeds, with which interval; empty without any."""
    if not any(cell.estimate for cell in table.cells.values()):
        return ""
    return _sentences(
        "interval.txt.j2",
        table,
        has_paper=table.has_paper,
        basis=table.most_common_basis,
        num_seeds=_num_seeds(table),
        is_finetuned=table.is_finetuned,
        has_fixed_encoders=table.spec.has_fixed_encoders,
    )[0]


def _num_seeds(table: ScoreTable) -> int:
    """How many seeds the interval of a cell is over, where no run is missing; 0 without one."""
    num_seeds = 0
    for cell in table.cells.values():
        if cell.estimate and cell.estimate.basis == table.most_common_basis:
            num_seeds = max(num_seeds, len(cell.estimate.values))
    return num_seeds


def column_groups(table: ScoreTable) -> list[ColumnGroup]:
    """The table in groups of data sets, the paper's first if any of our runs is on them."""
    of_paper = [column for column in table.columns if column.is_paper]
    apart = [column for column in table.columns if not column.is_paper]
    has_results = any(table.has_results(column) for column in of_paper)
    if apart and not has_results and not table.spec.has_numbers:
        of_paper = []  # it would show nothing but dashes
    groups = [
        _column_group(_paper_title(table, has_results=has_results), of_paper, table),
        _column_group(_title_apart(table, apart, has_results=has_results), apart, table),
    ]
    if not has_results:
        groups.reverse()
    return [group for group in groups if group.headings]


def _paper_title(table: ScoreTable, *, has_results: bool) -> str:
    if not table.has_paper:
        return DATA_SETS
    if has_results:
        return "The paper's data sets"
    return "The paper's own numbers, on data that none of our runs has seen"


def _title_apart(table: ScoreTable, columns: Sequence[DataColumn], *, has_results: bool) -> str:
    """The title of what is not the paper's data; `has_results`: some of the paper's data are."""
    if columns and all(column.is_synthetic for column in columns):
        return f"Generated tasks of {table.generator}"
    if table.has_paper:
        return "Substitutes and other data sets"
    return f"Other {DATA_SETS.lower()}" if has_results else DATA_SETS


def _column_group(title: str, columns: Sequence[DataColumn], table: ScoreTable) -> ColumnGroup:
    rows = []
    for row in table.spec.rows:
        cells = [_cell_view(row.name, column, table) for column in columns]
        is_floor = not row.has_encoder
        rows.append(RowView(row.label, cells, row.name, is_floor=is_floor))
    return ColumnGroup(
        title=title,
        headings=[_heading(column, table) for column in columns],
        rows=rows,
        majority=_majority_row(columns),
        surface=_surface_row(columns),
    )


# -- headings --------------------------------------------------------------------------------------


def _heading(column: DataColumn, table: ScoreTable) -> ColumnHeading:
    has_results = table.has_results(column)
    has_numbers = table.spec.has_numbers
    # Without a paper the group's title says already that the data are generated.
    is_plain = column.is_synthetic and not table.has_paper
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
    if column.group_column is not None:
        examples += f"; rows with one {column.group_column} are in one part"
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


def _heading_note(column: DataColumn, table: ScoreTable) -> str:
    """What a data set is to the paper's; empty where the name or the group's title says it."""
    has_paper = table.has_paper
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


def _cell_view(row: str, column: DataColumn, table: ScoreTable) -> CellView:
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


def _cell_note(row: str, column: DataColumn, table: ScoreTable) -> str:
    """What sets a cell apart from the others."""
    cell = table.cells[row, column.key]
    estimate = cell.estimate
    notes = [*cell.notes, table.retained(row, column)]
    if table.below_baseline(row, column):
        notes.append("below its baseline")
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


def _score(score: float | None, decimals: int) -> str:
    return DASH if score is None else f"{score:.{decimals}f}"


# -- the claims ------------------------------------------------------------------------------------


def claim_section(
    table: ScoreTable, analysed: AnalysedTable, selection: str = "", *, every_pair: bool = False
) -> ClaimSection:
    """The claims in words; `selection` says how scores were chosen.

    Without claims the differences from the first row; with `every_pair` those of all pairs.
    """
    judgements = analysed.judgements
    claims = claim_views(judgements, table)
    summary = wording.summarise(judgements)
    units = in_units(POINTS, {judgement.judged_on: unit_of(judgement) for judgement in judgements})
    reading = _reading(table, judgements, selection)
    tested: list[DifferenceView] = []
    if not table.spec.claims:
        tested = differences(table, every_pair=every_pair)
    return ClaimSection(
        claims=claims,
        summary=summary,
        analyses=_analyses(analysed.analyses),
        forest=forest_of(claims, table),
        differences=tested,
        every_pair=every_pair,
        units=units,
        reading=reading,
        selection=selection,
    )


def _reading(table: ScoreTable, judgements: Sequence[Judgement], selection: str) -> list[str]:
    """How to read intervals and verdicts, of the kinds that this table has."""
    return _sentences(
        "reading.txt.j2",
        table,
        experiment=table.spec,
        has_evidence=table.has_evidence,
        has_resampled=not table.has_evidence and _has_several_scores_a_seed(table),
        has_plain_seeds=table.has_plain_seeds,
        family=max((judgement.num_tests for judgement in judgements), default=0),
        selection=selection,
        has_forecasts=any(judgement.forecast for judgement in judgements),
    )


def _has_several_scores_a_seed(table: ScoreTable) -> bool:
    """Whether some seed has several fine-tunings, or scores of single examples."""
    for cell in table.cells.values():
        if cell.examples or len(cell.scores) > len(cell.pretraining_seeds):
            return True
    return False


def _analyses(analyses: Sequence[InterimAnalysis]) -> str:
    """`2 (2026-11-20, 2026-11-25)`: the analyses so far; empty for none."""
    if not analyses:
        return ""
    days = ", ".join(analysis.time[:10] for analysis in analyses)
    return f"{len(analyses)} ({days})"
