"""The report of a file of scores: what `claims judge` and `clozelab judge` print and write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path

from rich.console import Console

from claims.analysis.schema import ALL_COLUMNS
from claims.analysis.scores import DataColumn, ScoreTable
from claims.analysis.verdicts import AnalysedTable, judge, run_interim_analysis
from claims.report.claims import pairs_of_rows
from claims.report.files import write_claims, write_page, write_pictures, write_scores
from claims.report.forest_picture import draw_forest
from claims.report.page import About, JudgedPage, claim_section, table_section, templates
from claims.report.screen import print_judged, print_plain
from claims.tables.claim_file import ClaimFile, Compared, check_names, read_claim_file
from claims.tables.layout import CLAIMS_FILE, SCORES_FILE
from claims.tables.score_file import Scores, make_score_table, read_scores
from claims.text.phrases import count_noun, join_list

CAVEAT = (
    "Scores do not record how their runs were made. That the rows saw the same data, steps, tuning"
    " and code is taken on trust."
)
NAME_TASKS = "`scores: {tasks: [...]}` in the file of claims names the columns of scores"


@dataclass(frozen=True, kw_only=True)
class ScorePage(JudgedPage):
    """What a page shows of a file of scores."""

    # "30 scores of scores.csv, 5 seeds"
    setup: str
    # what the file cannot say
    caveat: str


def judge_files(
    scores: Path, claims: Path | None, folder: Path | None, compare: Compared | None = None
) -> ScorePage:
    """Judge the claims of a file against scores, and write the report where there is a folder.

    Args:
        scores: a CSV, a Parquet file or a folder of result files.
        claims: a YAML file; without it, all rows are compared with the first one.
        compare: the same without a file, or all pairs.
        folder: for report.html, report.md, pictures, results.csv and claims.csv. It keeps
            looks.jsonl, too, so that seeds which are added later count as added.

    Raises:
        ValueError: one of the files has a slip.
    """
    if folder is not None:
        _check_folder(folder, scores)
    scores.stat()  # a missing file of scores is named before one of claims
    if claims is not None and compare:
        raise ValueError(
            f"compare={compare} is for scores without a file of claims: write"
            f" `compare: {compare}` into {claims}, or leave the file out"
        )
    file = ClaimFile(columns=(), compare="first" if compare is None else compare)
    if claims is not None:
        file = read_claim_file(claims)
    content = read_scores(scores, file.scores, file.columns)
    table = make_score_table(content, file.claims, file.stopping, file.columns)
    if claims is not None:
        # A misspelt arm would else be judged as one without runs.
        check_names(table, file, scores, claims)
    if folder is None:
        analysed = AnalysedTable(judge(table), [])
    else:
        folder.mkdir(parents=True, exist_ok=True)
        analysed = run_interim_analysis(table, folder)
    page = build_score_page(table, analysed, file, scores, content)
    return write_report(page, table, folder) if folder else page


def _check_folder(folder: Path, scores: Path) -> None:
    """ValueError for a report that is no folder, or would replace the scores that it is made of."""
    if folder.suffix == ".csv":
        raise ValueError(f"{folder} is no folder: the report has several files")
    for name in (SCORES_FILE, CLAIMS_FILE):
        if scores.resolve() == (folder / name).resolve():
            raise ValueError(
                f"{scores} would be replaced by the report's own {name}: give the report a folder"
                " of its own"
            )


def build_score_page(
    table: ScoreTable, analysed: AnalysedTable, file: ClaimFile, scores: Path, content: Scores
) -> ScorePage:
    """Put judged scores into words."""
    seeds: list[int] = []
    for cell in table.cells.values():
        seeds += [seed for seed, _ in cell.scores]
    setup = f"{len(seeds)} scores of {scores.name}, {count_noun(len(set(seeds)), 'seed')}"
    unpaired = _runs_without_a_pair(table, analysed, every_pair=file.compare == "all")
    unpaired += _seeds_of_one_difference(table, analysed)
    remarks = {
        "Left out": content.notes,
        "Doubtful": _doubtful_scores(content) + _like_settings(content),
        "Not compared": _rows_without_a_pair(table),
        "Not paired": unpaired,
        "Assumed": _assumptions(table, content, file),
    }
    problems = {heading: lines for heading, lines in remarks.items() if lines}
    title = file.title if file.title else f"Claims about {scores.name}"
    labels = {row: row for row in table.rows}
    in_words = table_section(table, f"of {scores.name}", "", labels)
    judged = claim_section(table, analysed, every_pair=file.compare == "all")
    written = f"made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC from {scores.name} alone"
    return ScorePage(
        about=About(title, scores.name),
        setup=setup,
        caveat=CAVEAT,
        table=in_words,
        judged=judged,
        problems=problems,
        provenance=[("Report", written)],
        plots={},
    )


def _assumptions(table: ScoreTable, content: Scores, file: ClaimFile) -> list[str]:
    """Name tasks that nobody has named, and columns without a given unit and direction."""
    declared = {column.name for column in file.columns}
    undeclared = [column for column in content.columns if column.name not in declared]
    names = {
        "percent, where higher is better": [
            column.name for column in table.spec.columns if not column.unit
        ],
        "fractions, shown as percent": content.fractions,
    }
    names["lower is better"] = [column.name for column in undeclared if not column.higher_is_better]
    names["higher is better"] = [column.name for column in undeclared if column.higher_is_better]
    sentences = [f"{words}: {', '.join(columns)}" for words, columns in names.items() if columns]
    is_about_all = not file.claims or ALL_COLUMNS in {claim.column for claim in file.claims}
    if content.assumed_tasks and is_about_all:
        tasks = ", ".join(content.assumed_tasks)
        assumption = f"each column beside arm and seed is compared as a task: {tasks}"
        sentences.insert(0, f"{assumption}; {NAME_TASKS}")
    return sentences


def _doubtful_scores(content: Scores) -> list[str]:
    """Name scores that may be fractions in a column of percent."""
    sentences = []
    for column, arms in content.doubtful.items():
        if not arms:
            continue
        sentences.append(
            f"{column}: {join_list(arms)} with scores between 0 and 1, where others are far above;"
            " if these are fractions, write all of the column in percent, and judge again"
        )
    return sentences


def _like_settings(content: Scores) -> list[str]:
    """Name the columns that nobody has called a task, and that do not depend on the seed."""
    tasks = []
    for task in content.assumed_tasks:
        of_arms = [list(cell.values()) for (_, name), cell in content.cells.items() if name == task]
        is_of_setting = all(len(scores) > 1 and len(set(scores)) == 1 for scores in of_arms)
        if of_arms and is_of_setting:
            tasks.append(task)
    if not tasks:
        return []
    same = "every seed of an arm has the same number, as with a setting; if this is no score"
    return [f"{', '.join(tasks)}: {same}, {NAME_TASKS}"]


def _rows_without_a_pair(table: ScoreTable) -> list[str]:
    """Name each row that shares no seed with the first one."""
    seeds_of_row: dict[str, set[int]] = {}
    for (row, _), cell in table.cells.items():
        seeds_of_row.setdefault(row, set()).update(cell.pretraining_seeds)
    first, *others = seeds_of_row
    sentences = []
    for row in others:
        if seeds_of_row[row].isdisjoint(seeds_of_row[first]):
            sentences.append(
                f"{row} has no seed of {first}; differences are paired by seed: if the runs of"
                " both rows share nothing else, number their seeds alike"
            )
    return sentences


def _runs_without_a_pair(
    table: ScoreTable, analysed: AnalysedTable, *, every_pair: bool
) -> list[str]:
    """Name the pairs of rows whose difference leaves runs out, with the columns where it does."""
    columns: dict[tuple[str, str], list[str]] = {}  # (both rows, what is left out) -> names
    for first, second, column in _compared_cells(table, analysed, every_pair=every_pair):
        first_seeds = table.cells[first, column.key].scores.keys()
        second_seeds = table.cells[second, column.key].scores.keys()
        num_pairs = len(first_seeds & second_seeds)
        numbers = (len(first_seeds), len(second_seeds))
        if min(numbers) == 0 or num_pairs == max(numbers):
            continue
        text = "no run has the seeds of a run of the other, so no difference"
        if num_pairs:
            pairs = count_noun(num_pairs, "pair")
            text = f"{pairs} of equal seeds, of {numbers[0]} and {numbers[1]} runs"
        columns.setdefault((f"{first} and {second}", text), []).append(column.heading)
    return [f"{rows} on {', '.join(names)}: {text}" for (rows, text), names in columns.items()]


def _seeds_of_one_difference(table: ScoreTable, analysed: AnalysedTable) -> list[str]:
    """Name the claims about two differences that leave out the seeds of one alone."""
    sentences = []
    for judgement in analysed.judgements:
        if judgement.claim.against is None or judgement.weakest is None:
            continue
        seeds = []
        for term in judgement.weakest.terms:
            seeds.append(table.cells[term.row, term.column.key].pretraining_seeds)
        num_known = len(set.union(*seeds))
        common = set.intersection(*seeds)
        if 0 < len(common) < num_known:
            counted = f"{count_noun(len(common), 'seed')} of {num_known}"
            sentences.append(f"{judgement.claim.text}: {counted} in both of its differences")
    return sentences


def _compared_cells(
    table: ScoreTable, analysed: AnalysedTable, *, every_pair: bool
) -> Iterable[tuple[str, str, DataColumn]]:
    """(row, row, column) of every difference that the page is about, each once."""
    cells: dict[tuple[str, str, str], tuple[str, str, DataColumn]] = {}
    for judgement in analysed.judgements:
        for contrast in judgement.resolved.contrasts:
            for one, other in zip(contrast.terms[::2], contrast.terms[1::2], strict=True):
                cells[one.row, other.row, one.column.key] = (one.row, other.row, one.column)
    if cells:
        return cells.values()
    pairs = pairs_of_rows(table, every_pair)
    return [(row, first, column) for (first, row), column in product(pairs, table.with_results)]


def write_report(page: ScorePage, table: ScoreTable, folder: Path) -> ScorePage:
    """Write all files of a report; returns the page with its pictures."""
    drawings = {"forest": partial(draw_forest, page.judged.forest)}
    page = replace(page, plots=write_pictures(drawings, folder))
    for suffix in ("html", "md"):
        environment = templates(is_markdown=suffix == "md")
        template = environment.get_template(f"judged.{suffix}.j2")
        write_page(page, template, folder / f"report.{suffix}")
    write_scores(folder / SCORES_FILE, table)
    write_claims(folder / CLAIMS_FILE, page.judged.claims)
    return page


def print_score_page(page: ScorePage, folder: Path | None, console: Console) -> None:
    """Print what was read, what is taken on trust, scores, verdicts, and where the report lies."""
    print_plain(page.about.title, console, "bold")
    print_plain(f"{page.setup}; {page.table.interval}", console, "dim")
    for heading, lines in page.problems.items():
        for line in lines:
            print_plain(f"{heading.lower()}: {line}", console, "yellow")
    print_plain(page.caveat, console, "yellow")
    print_judged(page, console)
    if folder:
        console.print(f"Report: {(folder / 'report.html').resolve()}", markup=False, soft_wrap=True)
