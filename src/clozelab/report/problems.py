"""What is missing, went wrong, or makes runs unequal: the report's list of problems."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product

from claims.analysis.comparability import NO_VALUE, is_within, keys_apart, tried_rates
from claims.analysis.contrasts import shared_encoder
from claims.analysis.grouping import group_by
from claims.analysis.schema import Row
from claims.analysis.scores import Cell, DataColumn
from claims.report.estimates import percent
from claims.text.phrases import SHOWN, join_list, truncate_list
from clozelab.report.summaries import arms_below_baseline
from clozelab.results.evidence import encoder_of, own_factors, seeds_of
from clozelab.results.table import ResultTable, scored_run
from clozelab.runs.progress import trouble_of
from clozelab.runs.record import STAGE_NAMES, Record


def problems(table: ResultTable) -> dict[str, list[str]]:
    """Heading -> lines, of what a reader has to know is not there or not well."""
    runs = table.runs
    baselines = [_below_baseline(column, table) for column in table.with_results]
    floors = []
    for column, row in product(table.with_results, table.rows):
        floors.append(table.below_baseline(row, column))
    troubles: dict[str, Iterable[str]] = {}
    troubles["Another data set"] = table.excluded
    troubles["Another results version"] = _outdated_runs(table)
    troubles["Unequal"] = inconsistencies(table)
    troubles["Not learnt"] = [lack.text for lack in arms_below_baseline(table)]
    troubles["Missing"] = _missing_runs(table)
    troubles["Not complete"] = _unfinished(runs.runs)
    troubles["Collapsed"] = _collapsed_cells(table)
    troubles["Below the baseline"] = filter(None, [*floors, *baselines])
    troubles["Left out"] = _unknown_rows(table)
    troubles["Sudden gradients"] = _left_out_updates(runs.pretrain)
    unreadable = [*runs.damaged, *runs.lost]
    troubles["Unreadable"] = [line.replace(f"{runs.root}/", "") for line in unreadable]
    as_lists = {heading: list(lines) for heading, lines in troubles.items()}
    return {heading: lines for heading, lines in as_lists.items() if lines}


def _outdated_runs(table: ResultTable) -> Iterator[str]:
    """A line for each stage, task and reason: how many runs are left out, of which rows."""
    outdated = table.outdated
    runs = [run for run in table.runs.runs if run.folder in outdated]
    groups = group_by(runs, lambda run: (run.stage, run.task, outdated[run.folder]))
    for (stage, task, reason), group in groups.items():
        rows = ", ".join(dict.fromkeys(run.name for run in group))
        yield (
            f"{f'{stage} {task}'.strip()}: {len(group)} run(s) of {rows} are {reason}: no"
            " comparison mixes them, so they are in no cell; make them again, or give them a"
            " runs_dir of their own"
        )


def _unfinished(runs: Iterable[Record]) -> Iterator[str]:
    for run in runs:
        if not run.is_complete:
            trouble = trouble_of(run)
            problem = f": {trouble}" if trouble else ""
            yield f"{run.place} ({run.status}){problem}"


def _left_out_updates(runs: Iterable[Record]) -> Iterator[str]:
    """A line for each pre-training without the updates of some steps (training/guards.py)."""
    for run in runs:
        steps = run.facts.get("steps_left_out", [])
        if steps:
            yield f"{run.place}: without the update of step {join_list(map(str, steps))}"


def _unknown_rows(table: ResultTable) -> Iterator[str]:
    runs = [*table.runs.finetune, *table.runs.evaluate]
    for row, group in group_by(runs, lambda run: run.name).items():
        if row not in table.rows:
            yield f"{len(group)} runs of row {row}, which paper.yaml does not have"


def _below_baseline(column: DataColumn, table: ResultTable) -> str:
    """The rows with an encoder that a method without any beats; empty for none."""
    if column.baseline is None:
        return ""
    name, best = column.baseline
    labels = []
    for row in table.experiment.rows:
        estimate = table.cells[row.name, column.key].estimate
        if row.has_encoder and estimate and column.sign * estimate.mean < column.sign * best:
            labels.append(row.label)
    if not labels:
        return ""
    side = "above" if column.falls else "below"
    baseline = f"the surface baseline of {column.heading} ({name}: {best:.{column.decimals}f})"
    return f"{join_list(labels)} {side} {baseline}"


def _missing_runs(table: ResultTable) -> Iterator[str]:
    """A line for each row that lacks runs on a data set which other rows have runs on."""
    for row in table.experiment.rows:
        gaps: list[str] = []
        for column in table.with_results:
            cell = table.cells[row.name, column.key]
            if column.task and cell.missing:
                gaps.append(f"{column.heading} ({_missing_seeds(cell)})")
        if gaps:
            yield f"{row.label} on {'; '.join(gaps)}"


def _missing_seeds(cell: Cell) -> str:
    if not cell.scores:
        return "every seed"
    seeds = [f"{pretrain_seed}/{seed}" for pretrain_seed, seed in cell.missing]
    return f"pre-training/fine-tuning seed {', '.join(seeds)}"


def _collapsed_cells(table: ResultTable) -> Iterator[str]:
    """A line for each cell with runs that give one answer to everything."""
    for row, column in product(table.experiment.rows, table.columns):
        cell = table.cells[row.name, column.key]
        if column.task and cell.num_collapsed:
            yield _collapsed_cell(row, column, cell)


def _collapsed_cell(row: Row, column: DataColumn, cell: Cell) -> str:
    mean = percent(cell.estimate, column.decimals)
    if cell.is_collapsed and cell.estimate:
        # The spread of runs that have all collapsed measures nothing.
        mean = f"{cell.estimate.mean:.{column.decimals}f}"
    without = "none left"
    if cell.without_collapsed:
        without = percent(cell.without_collapsed, column.decimals)
    return (
        f"{row.label} on {column.heading}: {cell.num_collapsed} of {len(cell.scores)}"
        f" runs give one answer to (nearly) every example; mean with them {mean},"
        f" without them {without}"
    )


# -- runs that are unequal beyond what their names and their own lines say -------------------------


def inconsistencies(table: ResultTable) -> list[str]:
    """A line for everything that makes complete runs unequal."""
    experiment = table.experiment
    runs = table.runs
    complete = [run for run in runs.runs if run.is_complete]
    lines: list[str] = []
    by_task = group_by(complete, lambda run: (run.stage != "pretrain", run.stage, run.task))
    for (_, stage, task), group in sorted(by_task.items(), key=lambda item: item[0]):
        subject = f"{STAGE_NAMES[stage]} runs{f' on {task}' if task else ''}"
        lines += _unequal_settings(subject, group, table)
    scored = [run for run in complete if run.stage != "pretrain"]
    fixed = {row.name for row in experiment.rows if row.fixed_encoder}
    for row, group in group_by(scored, lambda run: run.name).items():
        lines += _encoders_of_row(row, group, may_share=row in fixed)
    return [*lines, *_edited_lines(table), *_began_too_early(runs.pretrain, scored)]


def _edited_lines(table: ResultTable) -> Iterator[str]:
    """A line for each arm and row whose runs are not of what paper.yaml says of it now."""
    runs = [run for run in table.runs.runs if run.folder in table.edited]
    groups = group_by(runs, lambda run: (run.stage, run.name, table.edited[run.folder]))
    for (stage, name, edited), group in groups.items():
        yield (
            f"{len(group)} {STAGE_NAMES[stage]} run(s) of {name} are not of its lines in"
            f" paper.yaml ({truncate_list(list(map(str, edited)), '; ')}): remove them and run"
            " again, or put the lines back"
        )


def _began_too_early(pretrain: Iterable[Record], scored: Iterable[Record]) -> Iterator[str]:
    """Runs that began from an encoder before its training ended."""
    finished = {(run.name, run.seed): run.finished or "" for run in pretrain if run.is_complete}
    for run in scored:
        arm = str(run.encoder_arm)
        is_last = float(run.config.get("encoder_fraction", 1.0)) == 1.0
        # ISO 8601 in UTC: as texts such times sort as they passed.
        end = finished.get((arm, run.pretrain_seed), "")
        if encoder_of(run) and is_last and end > run.started:
            yield (
                f"{run.place}: began before {arm} seed {run.pretrain_seed} was trained to its end"
                " (anew since?)"
            )


def _encoders_of_row(row: str, runs: Sequence[Record], *, may_share: bool) -> Iterator[str]:
    """A pre-training seed that stands for several encoders, or an encoder for several seeds."""
    trained = [run for run in runs if encoder_of(run)]

    def point(run: Record) -> tuple[object, ...]:
        # A given encoder is measured with the heads of a training of its own, and fine-tuned alone.
        stage = run.stage if may_share else ""
        return run.pretrain_seed, run.config.get("encoder_fraction", 1.0), stage

    for (seed, *_), group in group_by(trained, point).items():
        count = len({encoder_of(run) for run in group})
        if count > 1:
            yield (
                f"{row}, pre-training seed {seed}: its runs began with {count} different encoders"
            )
    shared = shared_encoder(scored_run(run) for run in runs)
    if shared and not may_share:
        yield f"{row}: {shared}"


def _unequal_settings(subject: str, runs: Sequence[Record], table: ResultTable) -> Iterator[str]:
    """A line for each setting that is not the same in all runs.

    One that sets an arm or row apart has to be the same in all of its own runs.
    """
    by_name = group_by(runs, lambda run: run.name)
    free_keys = table.experiment.free_keys
    own_keys = {name: free_keys | keys for name, keys in own_factors(by_name).items()}
    compared = [_settings_to_compare(run, by_name[run.name], table) for run in runs]
    unlike: set[str] = set()
    for settings in compared:
        unlike |= keys_apart(compared[0], settings)
    for key in sorted(unlike):
        values = [settings.get(key, NO_VALUE) for settings in compared]
        owners = {name for name, keys in own_keys.items() if is_within(key, keys)}
        for of_owner, by_value in _runs_by_owner(runs, owners, values).items():
            if len(by_value) > 1:
                yield f"{subject}{of_owner} differ in {key}: {_values(by_value)}"


def _runs_by_owner(
    runs: Sequence[Record], owners: Collection[str], values: Sequence[str]
) -> dict[str, dict[str, list[Record]]]:
    """Owner of a setting in words, or "" for nobody -> value -> runs."""
    by_owner: dict[str, dict[str, list[Record]]] = {}
    for run, value in zip(runs, values, strict=True):
        owner = f" of {run.name}" if run.name in owners else ""
        by_value = by_owner.setdefault(owner, {})
        by_value.setdefault(value, []).append(run)
    return by_owner


def _settings_to_compare(
    run: Record, group: Sequence[Record], table: ResultTable
) -> dict[str, str]:
    """A run's settings, and what its encoder decides for it, which no setting says."""
    same_seeds = [candidate for candidate in group if seeds_of(candidate) == seeds_of(run)]
    run_settings = dict(table.evidence_of(run).settings)
    if len(same_seeds) > 1:
        # A row takes one of the learning rates that were tried for all its seeds.
        tuned = [candidate for candidate in same_seeds if candidate.stage == "finetune"]
        run_settings |= tried_rates([table.evidence_of(candidate).settings for candidate in tuned])
    data = run.facts.get("data") or {}
    if data.get("max_seq_length"):
        run_settings["the length that texts are cut to"] = f"{data['max_seq_length']} tokens"
    if data.get("token_types"):
        run_settings["the token types of a pair"] = str(data["token_types"])
    return run_settings


def _values(by_value: Mapping[str, Sequence[Record]]) -> str:
    """The first values with their runs; those that lack it come last."""
    ordered = sorted(by_value.items(), key=lambda item: item[0] == NO_VALUE)
    texts = []
    for value, runs in ordered[:SHOWN]:
        example = runs[0]
        texts.append(f"{value} ({len(runs)} runs, e.g. {example.name} seed {example.seeds})")
    return ", ".join(texts)
