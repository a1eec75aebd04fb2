"""What a report says, as text: the page that HTML, Markdown, LaTeX and the terminal lay out.

The table is made in tables.py, the claims in claims.py, what runs learnt and cost in summaries.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from clozelab.analysis.history import InterimAnalysis
from clozelab.analysis.schema import OUR_SPLIT, PERCENT
from clozelab.analysis.statistics import PRETRAINING_SEEDS
from clozelab.analysis.verdicts import Judgement
from clozelab.report import wording
from clozelab.report.claims import (
    POINTS,
    ClaimView,
    DifferenceView,
    axis_half_width,
    claim_views,
    differences,
    unit_of,
)
from clozelab.report.summaries import (
    ArmSummary,
    Cost,
    NotLearnt,
    costs,
    learnt,
    loss_bounds,
    not_learnt,
    problems,
    provenance,
    seed_counts,
)
from clozelab.report.tables import ColumnGroup, column_groups, usual_basis
from clozelab.results.analyses import AnalysedTable
from clozelab.results.experiment import Experiment
from clozelab.results.table import ResultTable
from clozelab.runs.record import Record
from clozelab.text.formatting import (
    DASH,
    distinct,
    in_units,
    several,
    span,
)
from clozelab.text.safe_yaml import own_text

SELECTION = (
    "A fine-tuning run was scored several times on the way, and stands here with its best score on"
    " the very set that it is scored on, as the paper selects too: a little better than on new"
    " examples, most so where scores jump about."
)
QUESTION = re.compile(r"^\*\*The question\.\*\*\s*(.+?)(?:\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Unlearnt:
    """What pre-training has not learnt, and the claims that cannot be judged without it."""

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
    unlearnt: list[Unlearnt]
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
    differences: list[DifferenceView]
    units: str
    # half the width of the claims' common axis
    axis: str
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
    # what pre-training reached, and what no model can be below
    arms: list[ArmSummary]
    bounds: list[str]
    costs: list[Cost]
    # heading -> lines
    problems: Mapping[str, list[str]]
    provenance: list[tuple[str, str]]
    # picture -> style -> the SVG as base64
    plots: Mapping[str, Mapping[str, str]]


def build_page(
    table: ResultTable,
    analysed: AnalysedTable,
    scale: str,
    *,
    registered: str,
    paper_labels: Mapping[str, str],
    plots: Mapping[str, Mapping[str, str]],
) -> Page:
    """Put a judged table into words.

    Args:
        table: with the labels that the page shows.
        registered: what registration.py says of the runs.
        paper_labels: row -> label as paper.yaml has it.
        plots: picture -> style -> the SVG as base64.
    """
    troubles = problems(table)
    if analysed.error:
        troubles["Looks"] = [wording.unnoted_analysis(analysed.error)]
    score_table = _table_section(table, paper_labels)
    overview = _overview(table, analysed, registered)
    judged = _claim_section(table, analysed.judgements)
    bounds = _lines("bounds.txt.j2", {"bounds": loss_bounds(table)})
    return Page(
        about=_about(table, scale),
        overview=overview,
        table=score_table,
        judged=judged,
        arms=learnt(table),
        bounds=bounds,
        costs=costs(table),
        problems=troubles,
        provenance=provenance(table),
        plots=plots,
    )


@cache
def templates() -> Environment:
    """How reports look; what goes into HTML is escaped."""
    return Environment(
        loader=PackageLoader(__package__ or "", "templates"),
        autoescape=lambda name: bool(name and ".html" in name),
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _lines(name: str, values: Mapping[str, Any]) -> list[str]:
    """The lines of a text template; empty ones are left out."""
    text = templates().get_template(name).render(values)
    return [line for line in text.splitlines() if line]


# -- what it is about ------------------------------------------------------------------------------


def _about(table: ResultTable, scale: str) -> About:
    experiment = table.experiment
    return About(
        title=experiment.title,
        name=experiment.name,
        source=experiment.source,
        has_paper=experiment.has_paper,
        scale=scale,
        synthetic=table.runs.synthetic,
        question=_question(experiment),
    )


def _question(experiment: Experiment) -> str:
    """The paragraph of an experiment's README that begins with "The question."; one line."""
    readme = experiment.folder / "README.md"
    if not readme.is_file():
        return ""
    question = QUESTION.search(own_text(readme, experiment.folder))
    return " ".join(question[1].split()) if question else ""


# -- the first screen ------------------------------------------------------------------------------


def _overview(table: ResultTable, analysed: AnalysedTable, registered: str) -> Overview:
    return Overview(
        summary=wording.summarise(analysed.judgements),
        unlearnt=_unlearnt(table, analysed.judgements),
        registered=registered,
        analyses=_analyses(analysed.analyses),
        setup=_setup(table),
        runs=_run_counts(table),
    )


def _unlearnt(table: ResultTable, judgements: Sequence[Judgement]) -> list[Unlearnt]:
    lacks: list[Unlearnt] = []
    for lack in not_learnt(table):
        claims = [one.claim.text for one in judgements if _rests_on(one, lack, table)]
        lacks.append(Unlearnt(lack.text, claims))
    return lacks


def _rests_on(judgement: Judgement, lack: NotLearnt, table: ResultTable) -> bool:
    """Whether a claim compares arms of all the groups that a lack keeps apart."""
    for arms in lack.groups:
        rows = {row.name for row in table.experiment.rows if row.arm in arms}
        if rows.isdisjoint(judgement.rows):
            return False
    return True


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
    corpora = [run.config["corpus"]["name"] for run in runs if run.config.get("corpus")]
    phrases = [
        _layers(runs),
        f"{parameters} parameters" if parameters else DASH,
        f"{tokens} tokens a pre-training run" if tokens else DASH,
        distinct(f"corpus {name}" for name in corpora),
        seed_counts(table),
    ]
    return ", ".join(phrase for phrase in phrases if phrase != DASH)


def _layers(runs: Sequence[Record]) -> str:
    """`2 layers of 128`, `2 to 8 layers of 64 to 128`; a dash where no run has a model."""
    models = [run.config["model"] for run in runs if run.config.get("model")]
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
    stages = {
        "pre-training": runs.pretrain,
        "fine-tuning": runs.finetune,
        "evaluation": runs.evaluate,
    }
    complete: list[str] = []
    for stage, stage_runs in stages.items():
        if stage_runs:
            count = sum(run.is_complete for run in stage_runs)
            complete.append(f"{count} of {len(stage_runs)} {stage}")
    phrases = [f"{' and '.join(complete)} runs complete"]

    unfinished = Counter(run.status for run in runs.runs if not run.is_complete)
    phrases += [f"{count} {status}" for status, count in unfinished.items()]
    num_missing = _num_cells_lacking_runs(table)
    if num_missing:
        phrases.append(
            f"{several(num_missing, 'cell')} {'lacks' if num_missing == 1 else 'lack'} runs"
        )
    num_collapsed = _num_collapsed_runs(table)
    if num_collapsed:
        phrases.append(f"{num_collapsed} collapsed")
    if runs.damaged:
        phrases.append(f"{len(runs.damaged)} unreadable")
    return ", ".join(phrases)


def _num_cells_lacking_runs(table: ResultTable) -> int:
    count = 0
    for column in table.with_results:
        if column.task:
            count += sum(bool(table.cells[row, column.key].missing) for row in table.rows)
    return count


def _num_collapsed_runs(table: ResultTable) -> int:
    """Runs behind the table's cells, each counted once."""
    is_collapsed: dict[Path, bool] = {}
    for cell in table.cells.values():
        for run in cell.runs.values():
            is_collapsed[run.folder] = run.is_collapsed
    return sum(is_collapsed.values())


# -- the table -------------------------------------------------------------------------------------


def _table_section(table: ResultTable, paper_labels: Mapping[str, str]) -> TableSection:
    statistic = wording.statistic(table.experiment)
    units = {column.heading: column.unit for column in table.with_results}
    return TableSection(
        units=in_units(PERCENT, units),
        sets=_sets(table),
        interval=_interval(table),
        has_two_seeds=_has_two_seeds(table),
        statistic=f"; the paper's numbers are {statistic}" if statistic else "",
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
    values = {
        "has_paper": table.experiment.has_paper,
        "basis": usual_basis(table),
        "num_seeds": len(table.pretrain_seeds),
        "is_finetuned": bool(table.runs.finetune),
    }
    (line,) = _lines("interval.txt.j2", values)
    return line


def _has_two_seeds(table: ResultTable) -> bool:
    """Whether cells show the values of two pre-training seeds, which an interval says less of."""
    return usual_basis(table) == PRETRAINING_SEEDS and len(table.pretrain_seeds) == 2


# -- the claims ------------------------------------------------------------------------------------


def _claim_section(table: ResultTable, judgements: Sequence[Judgement]) -> ClaimSection:
    axis = axis_half_width(judgements)
    units = {judgement.judged_on: unit_of(judgement) for judgement in judgements}
    selection = SELECTION if _is_selected(table.runs.finetune) else ""
    claims = claim_views(judgements, table, axis)
    return ClaimSection(
        claims=claims,
        differences=[] if table.experiment.claims else differences(table),
        units=in_units(POINTS, units),
        axis=f"{axis:.0f}",
        reading=_reading(table.experiment, judgements, selection),
        selection=selection,
    )


def _is_selected(runs: Iterable[Record]) -> bool:
    """Whether some fine-tuning run stands with the best of several evaluations."""
    return any(run.facts.get("num_evaluations", 0) > 1 for run in runs)


def _reading(experiment: Experiment, judgements: Sequence[Judgement], selection: str) -> list[str]:
    """How to read intervals and verdicts, a line a paragraph."""
    values = {
        "experiment": experiment,
        "family": max((judgement.num_tests for judgement in judgements), default=0),
        "selection": selection,
        "has_forecasts": any(judgement.forecast for judgement in judgements),
    }
    return _lines("reading.txt.j2", values)
