"""The table of scores as a page shows it: data sets in groups, a row of cells for each row.

Stand-ins and generated tasks are a group of their own: the paper's number never stands beside a
score on other data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clozelab.analysis.scores import Cell, DataColumn
from clozelab.analysis.statistics import FINETUNING_SEEDS, ONE_RUN, PRETRAINING_SEEDS
from clozelab.report import wording
from clozelab.results.table import ResultTable
from clozelab.text.formatting import DASH, half_width, percent, with_direction

DATA_SETS = "Data sets"
METRIC_NAMES = {"f1": "F1", "matthews": "Matthews"}


@dataclass(frozen=True)
class Heading:
    """What stands over a data set."""

    name: str
    # what the data set is, where it is not the paper's
    note: str
    metric: str
    unit: str
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
    headings: list[Heading]
    rows: list[RowView]
    # what needs no encoder; None where no data set knows it
    majority: RowView | None
    surface: RowView | None

    @property
    def baselines(self) -> list[RowView]:
        return [row for row in (self.majority, self.surface) if row is not None]


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
    basis = usual_basis(table)
    rows: list[RowView] = []
    for row in table.experiment.rows:
        cells = [_cell_view(row.name, column, table, basis) for column in columns]
        rows.append(RowView(row.label, cells, row.name, is_floor=row.arm is None))
    return ColumnGroup(
        title=title,
        headings=[_heading(column, table) for column in columns],
        rows=rows,
        majority=_majority_row(columns),
        surface=_surface_row(columns),
    )


def usual_basis(table: ResultTable) -> str:
    """What most intervals can be over; cells of another basis say so themselves."""
    bases = {cell.estimate.basis for cell in table.cells.values() if cell.estimate}
    for basis in (PRETRAINING_SEEDS, FINETUNING_SEEDS):
        if basis in bases:
            return basis
    return ONE_RUN


# -- headings --------------------------------------------------------------------------------------


def _heading(column: DataColumn, table: ResultTable) -> Heading:
    has_results = table.has_results(column)
    has_numbers = table.experiment.has_numbers
    # Without a paper the group's title says already that the data are generated.
    is_plain = column.is_synthetic and not table.experiment.has_paper
    name = column.heading
    if is_plain and column.column:
        name = column.column.name
    plain_metric = column.metric.rpartition("/")[2].replace("_", " ")
    metric = with_direction(METRIC_NAMES.get(plain_metric, plain_metric))
    trained_on = ""
    if column.trained_on:
        used, available = column.trained_on
        trained_on = f"{used:,} of {available:,}"
    examples = ""
    if column.num_examples:
        examples = f"{column.num_examples:,} examples"
    has_ours = has_results or not column.is_paper or not has_numbers
    return Heading(
        name=name,
        note=_heading_note(column, table),
        metric=metric,
        unit=column.unit,
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
        return "" if is_said else wording.role_of(column)
    return wording.role_of(column) or "not in the paper's table"


# -- cells -----------------------------------------------------------------------------------------


def _cell_view(row: str, column: DataColumn, table: ResultTable, basis: str) -> CellView:
    cell = table.cells[row, column.key]
    decimals = column.decimals
    paper = table.paper_value(row, column)
    # A row without an arm of its own has no pre-training to report, which is not a lack.
    is_absent = cell.estimate is None and bool(column.task or cell.missing)
    mean = "missing" if is_absent else DASH
    if cell.estimate:
        mean = f"{cell.estimate.mean:.{decimals}f}"
    half = half_width(cell.estimate, decimals)
    if cell.is_collapsed:
        # The same answer whatever the input: its spread is no measure of anything.
        half = "collapsed"
    paper_mean = DASH
    if paper is not None:
        paper_mean = f"{paper:.{decimals}f}"
    return CellView(
        mean=mean,
        half=half,
        paper=paper_mean,
        note=_cell_note(row, column, table, basis),
        seeds=_scores_by_seed(cell, decimals),
        is_collapsed=cell.is_collapsed,
        is_absent=is_absent,
    )


def _cell_note(row: str, column: DataColumn, table: ResultTable, basis: str) -> str:
    """What sets a cell apart; `basis` is what most of the table's intervals are over."""
    cell = table.cells[row, column.key]
    estimate = cell.estimate
    notes = [wording.cell_note(cell)]
    if table.below_floor(row, column):
        notes.append("below its floor")
    if estimate and cell.missing:
        num_expected = len(cell.scores) + len(cell.missing)
        notes.append(f"{len(cell.scores)} of {num_expected} runs")
    if estimate and estimate.basis != basis and not cell.is_collapsed:
        notes.append(estimate.basis)
    if cell.is_collapsed:
        notes.append("every run" if len(cell.scores) > 1 else "the only run")
    elif cell.num_collapsed:
        notes.append(_collapsed_note(cell, column.decimals))
    return "; ".join(filter(None, notes))


def _collapsed_note(cell: Cell, decimals: int) -> str:
    """How many runs of a cell collapsed, and its mean without them; a mean has parts, no runs."""
    note = f"{cell.num_collapsed} {'collapsed' if cell.runs else 'with collapsed parts'}"
    if cell.without_collapsed:
        note += f", {percent(cell.without_collapsed, decimals)} without"
    return note


def _scores_by_seed(cell: Cell, decimals: int) -> str:
    """`1/1: 65.7, 1/2: 69.1`, by pre-training and fine-tuning seed; `seed 1: 4.40` of one alone."""
    scores: list[tuple[str, float]] = []
    for (pretrain_seed, finetune_seed), score in cell.scores.items():
        name = f"seed {pretrain_seed}"
        if finetune_seed:
            name = f"{pretrain_seed}/{finetune_seed}"
        scores.append((name, score))
    return ", ".join(f"{name}: {score:.{decimals}f}" for name, score in sorted(scores))


# -- what needs no encoder -------------------------------------------------------------------------


def _majority_row(columns: Sequence[DataColumn]) -> RowView | None:
    """The scores of always answering the most frequent label."""
    if all(column.majority is None for column in columns):
        return None
    cells = [CellView(_score(column.majority)) for column in columns]
    return RowView("most frequent label", cells)


def _surface_row(columns: Sequence[DataColumn]) -> RowView | None:
    """The scores of the best simple method on each data set, with the method's name."""
    if not any(column.baseline for column in columns):
        return None
    cells: list[CellView] = []
    for column in columns:
        name, score = column.baseline or ("", None)
        cells.append(CellView(_score(score), note=name))
    return RowView("surface baseline", cells)


def _score(score: float | None) -> str:
    return DASH if score is None else f"{score:.1f}"
