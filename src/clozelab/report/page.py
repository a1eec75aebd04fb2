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

from jinja2 import ChoiceLoader, Environment, PackageLoader

from claims.analysis.schema import OUR_SPLIT
from claims.analysis.verdicts import AVERAGES, AnalysedTable, Judgement
from claims.report import page, wording
from claims.report.estimates import span
from claims.report.page import About, JudgedPage, claim_section, paragraphs, table_section
from claims.text.phrases import DASH, distinct, format_count
from claims.text.safe_yaml import own_text
from clozelab.files.origin import GIVEN
from clozelab.report.classes import ClassTable, class_tables
from clozelab.report.problems import problems
from clozelab.report.provenance import provenance
from clozelab.report.summaries import (
    ArmSummary,
    Cost,
    arms_below_baseline,
    costs,
    learning_summary,
    loss_bounds,
    seed_counts,
)
from clozelab.results.experiment import Experiment
from clozelab.results.table import ResultTable
from clozelab.runs.record import STAGE_NAMES, Record

SELECTION = (
    "A fine-tuning run was scored several times on the way, and stands here with its best score on"
    " the very set that it is scored on, as the paper selects too: a little better than on new"
    " examples, most so where scores jump about."
)
QUESTION = re.compile(r"^\*\*The question\.\*\*\s*(.+?)(?:\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class ArmsBelowBaselineView:
    """Arms below a baseline, and the claims that cannot be judged without them."""

    text: str
    claims: list[str]


@dataclass(frozen=True)
class Overview:
    """What the first screen says beside the verdicts; an empty text is left out."""

    unlearnt: list[ArmsBelowBaselineView]
    registered: str
    # what was trained, and how far the runs are
    setup: str
    runs: str


@dataclass(frozen=True, kw_only=True)
class Page(JudgedPage):
    """Everything that the templates show of an experiment."""

    overview: Overview
    # where classifications fail
    classes: list[ClassTable]
    # what pre-training reached, and what no model can be below
    arms: list[ArmSummary]
    bounds: list[str]
    costs: list[Cost]


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
        lost = f"this interim analysis could not be noted ({analysed.error})"
        troubles["Interim analyses"] = [f"{lost}: a later one will not know of it"]
    unlearnt = _arms_below_baseline(table, analysed.judgements)
    overview = Overview(
        unlearnt=unlearnt,
        registered=registered,
        setup=_setup(table),
        runs=_run_counts(table),
    )
    # Some fine-tuning run stands with the best of several evaluations.
    is_selected = any(run.facts.get("num_evaluations", 0) > 1 for run in table.runs.finetune)
    selection = SELECTION if is_selected else ""
    judged = claim_section(table, analysed, selection)
    statistic = statistic_of(table.experiment)
    of_paper = f"; the paper's numbers are {statistic}" if statistic else ""
    arms = learning_summary(table)
    bounds_template = templates().get_template("bounds.txt.j2")
    bounds = paragraphs(bounds_template.render(bounds=loss_bounds(table)))
    in_words = table_section(table, _sets(table), of_paper, paper_labels)
    experiment = table.experiment
    question = _question(experiment)
    about = About(
        title=experiment.title,
        name=experiment.name,
        source=experiment.source,
        has_paper=experiment.has_paper,
        scale=scale,
        synthetic=table.generator,
        question=question,
        answer=answer(experiment, analysed.judgements, unlearnt),
    )
    return Page(
        about=about,
        overview=overview,
        table=in_words,
        judged=judged,
        classes=class_tables(table),
        arms=arms,
        bounds=bounds,
        costs=costs(table),
        problems=troubles,
        provenance=provenance(table),
        plots={},
    )


@cache
def templates(*, is_markdown: bool = False) -> Environment:
    """How pages look: the templates of this folder, and those of a judged table."""
    folders = [PackageLoader(name, "templates") for name in ("clozelab.report", "claims.report")]
    return page.templates(is_markdown=is_markdown).overlay(loader=ChoiceLoader(folders))


# -- what it is about ------------------------------------------------------------------------------


def _question(experiment: Experiment) -> str:
    """The paragraph of an experiment's README that begins with "The question."; one line."""
    readme = experiment.folder / "README.md"
    if not readme.is_file():
        return ""
    question = QUESTION.search(own_text(readme, experiment.folder))
    if question is None:
        return ""
    # A page elsewhere cannot follow the links: their words remain.
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(question[1].split()))


def answer(
    experiment: Experiment,
    judgements: Sequence[Judgement],
    unlearnt: Sequence[ArmsBelowBaselineView],
) -> str:
    """The question with its answer; with what its encoders lack where they learnt nothing."""
    if not experiment.asks:
        return ""
    primary = {one.claim.text for one in judgements if one.claim.primary}
    for lack in unlearnt:
        if primary.intersection(lack.claims):
            return f"{experiment.asks} No answer yet. {lack.text}."
    return f"{experiment.asks} {wording.answer(judgements)}."


# -- the first screen ------------------------------------------------------------------------------


def _arms_below_baseline(
    table: ResultTable, judgements: Sequence[Judgement]
) -> list[ArmsBelowBaselineView]:
    arm_of = {row.name: row.arm for row in table.experiment.rows}
    # arm -> numbers of the claims that compare it
    claims_of: dict[str | None, set[int]] = {}
    for number, one in enumerate(judgements):
        for row in one.rows:
            claims_of.setdefault(arm_of[row], set()).add(number)
    lacks = []
    for lack in arms_below_baseline(table):
        # A claim rests on a lack that compares arms of all the groups that it keeps apart.
        of_groups = []
        for group in lack.groups:
            of_groups.append(set().union(*(claims_of.get(arm, ()) for arm in group)))
        numbers = sorted(set.intersection(*of_groups))
        claims = [judgements[number].claim.text for number in numbers]
        lacks.append(ArmsBelowBaselineView(lack.text, claims))
    return lacks


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


def statistic_of(experiment: Experiment) -> str:
    """What the paper's cells are; empty where it does not say."""
    if not experiment.seeds and not experiment.averaging:
        return ""
    of_runs = f"{AVERAGES[experiment.averaging]} of " if experiment.averaging else "over "
    plural = "" if experiment.seeds == 1 else "s"
    return f"{of_runs}{experiment.seeds or 'several'} run{plural} a cell"


def _sets(table: ResultTable) -> str:
    """Which examples scores are over; ours are always on the labelled sets, or on held-out text."""
    split = table.experiment.split
    if all(column.is_pretraining for column in table.columns):
        return "on held-out text"
    if split != OUR_SPLIT:
        return f"ours on the {OUR_SPLIT} sets and the paper's on the {split} sets"
    return f"on the {split} sets"
