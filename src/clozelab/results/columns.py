"""The columns of a table: the paper's, and the data sets that runs are on.

A data set that only stands in for the paper's, that is generated, or that is another split than the
paper's, is a column of its own under its own name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from claims.analysis.schema import IN_PERCENT, OUR_SPLIT, PERCENT, Column, Part
from claims.analysis.scores import DataColumn, Origin, datasets_for_column
from clozelab.results.experiment import Experiment
from clozelab.results.units import scale_of, scale_without_runs
from clozelab.runs.record import Record

Generators = Mapping[str, str | None]  # task -> the generator of its data; None: real data


def is_scored(run: Record) -> bool:
    return run.is_complete and bool(run.values)


def stand_in_for(run: Record) -> str | None:
    """The column or benchmark that the run's task stands in for, by its own configuration."""
    recorded = run.facts.get("stand_in_for")
    if recorded:
        return str(recorded)
    task = run.config.get("task") or {}
    return task.get("stand_in_for")


def paper_column(column: Column) -> DataColumn:
    """The paper's own column, which no run of ours is on."""
    return DataColumn(
        column.name,
        f"paper:{column.name}",
        column.metric,
        column,
        Origin.PAPER,
        scale=scale_without_runs(column),
    )


def task_columns(
    experiment: Experiment, runs: Sequence[Record], generators: Generators
) -> Iterator[DataColumn]:
    """The paper's columns, with or without runs, each followed by its stand-ins; then other tasks
    by name.
    """
    # The run that a task's columns are described by: a complete one knows its scores.
    ordered = sorted(runs, key=_completeness)
    by_task = {run.task: run for run in ordered}
    # task -> its scores that have a column: it may fill several, each with another
    used_metrics: dict[str, set[str]] = {}
    for column in experiment.columns:
        if not column.task:
            continue
        datasets = _datasets_on(column, by_task, ordered, generators, used_metrics)
        if not experiment.has_paper:
            datasets = [_without_paper(dataset) for dataset in datasets]
        if not column.is_measured and not any(dataset.is_paper for dataset in datasets):
            yield paper_column(column)
        yield from datasets
    for task in sorted(by_task.keys() - used_metrics):
        yield _data_column(by_task[task], None, generators[task], ordered, is_first=True)


def _datasets_on(
    column: Column,
    by_task: Mapping[str, Record],
    runs: Sequence[Record],
    generators: Generators,
    used_metrics: dict[str, set[str]],
) -> list[DataColumn]:
    """The tasks that fill a column, its own first; their scores are noted as used."""
    datasets = []
    # False sorts first: the column's own task, then the others by name.
    for task in sorted(by_task, key=lambda name: (name != column.task, name)):
        # The run that knows most, as they are sorted, and has the metric. Of a measure some runs
        # lack a score: no causal encoder reads from the right, for example.
        having = (run for run in reversed(runs) if run.task == task and column.metric in run.values)
        run = next(having, by_task[task])
        used = used_metrics.get(task, set())
        if _belongs(run, column, used):
            dataset = _data_column(run, column, generators[task], runs, is_first=not used)
            used_metrics[task] = used | {dataset.metric}
            datasets.append(dataset)
    return datasets


def _without_paper(dataset: DataColumn) -> DataColumn:
    """Where there is no paper, nothing is "not in the paper"."""
    if dataset.origin is Origin.OWN_MEASURE:
        return replace(dataset, origin=Origin.OTHER)
    return dataset


def _completeness(run: Record) -> tuple[bool, bool]:
    """How much a run tells of its task's columns: the larger, the more."""
    return is_scored(run), any(score.baselines for score in run.scores.values())


def _belongs(run: Record, column: Column, used: Set[str]) -> bool:
    """Whether a task's runs fill a column: they are of its stage, and the score is still free."""
    is_of_stage = (run.stage == "evaluate") == column.is_measured
    is_free = not used or (column.metric in run.values and column.metric not in used)
    return is_of_stage and is_free and column.accepts(run.task, stand_in_for(run))


def _data_column(
    run: Record,
    column: Column | None,
    generator: str | None,
    runs: Sequence[Record],
    *,
    is_first: bool,
) -> DataColumn:
    """A task's runs as a data set. Generated data is never the paper's, whatever its name.

    Of `runs`, those of the task may be scored on several classes, or trained on several numbers of
    examples: no floor is that of all, and no simple method that learnt from the examples.
    """
    origin = _origin(run, column, generator)
    headline = _headline(run)
    metric = _shown_metric(run, column, origin)
    baseline = None
    majority = None
    positive_label = None
    score = run.scores.get(metric)
    having = [other for other in runs if other.task == run.task and metric in other.values]
    classes = {class_of(other, metric) for other in having}
    shares = {_training_share(other) for other in having}
    if score and len(classes) <= 1:
        positive_label = score.positive_label
        baseline = score.best_baseline
        majority = score.majority
    trained_on = _training_share(run)
    if len(shares) > 1:
        baseline = None
        trained_on = None
    # The task's title is about its headline score; another one goes by its column's name.
    name = ""
    if column is not None and headline and (metric != headline or column.is_measured):
        name = column.name
    # "mrpc", then "mrpc:validation/f1" for a second column of it
    key = run.task if is_first else f"{run.task}:{metric}"
    num_examples = None
    num_entities = None
    if not _is_of_another_file(run, metric):
        num_examples = run.facts.get("num_examples")
        num_entities = run.facts.get("num_entities")
    held_out = (run.facts.get("data") or {}).get("held_out") or {}
    heading = _heading(run, column, origin, generator, name)
    data_column = DataColumn(
        heading=heading,
        key=key,
        metric=metric,
        column=column,
        origin=origin,
        scale=scale_of(column, metric, score),
        task=run.task,
        tasks=(run.task,),
    )
    return replace(
        data_column,
        majority=majority,
        baseline=baseline,
        num_examples=num_examples,
        num_entities=num_entities,
        trained_on=trained_on,
        positive_label=positive_label,
        held_out=held_out.get("fraction"),
        folds=held_out.get("folds"),
        group_column=held_out.get("group_column"),
    )


def class_of(run: Record, metric: str) -> str | None:
    """The class that a score is of, as far as the run says; None for scores of all classes.

    An older run names none: its F1 is of the second of its configured labels.
    """
    score = run.scores.get(metric)
    if score is None:
        return None
    task = run.config.get("task") or {}
    labels = list((task.get("data") or {}).get("labels") or ())
    if score.positive_label is None and metric.endswith("/f1") and len(labels) == 2:
        return str(labels[1])
    return score.positive_label


def _headline(run: Record) -> str:
    """The task's own metric; empty where the run has no score yet."""
    return run.metric if run.values else ""


def _shown_metric(run: Record, column: Column | None, origin: Origin) -> str:
    """The column's metric, but for other data sets that do not have it: those show their own."""
    headline = _headline(run)
    if column is None or not column.metric:
        return headline
    is_same_data = origin in (Origin.PAPER, Origin.OTHER_SPLIT)
    may_have = column.metric in run.values or not headline
    if is_same_data or column.is_measured or may_have:
        return column.metric
    return headline


def _training_share(run: Record) -> tuple[int, int] | None:
    """(examples that it was trained on, all that there are); None where it was all of them."""
    data = run.facts.get("data") or {}
    used = data.get("train_examples")
    available = data.get("train_examples_available")
    if used and available and used < available:
        return used, available
    return None


def _origin(run: Record, column: Column | None, generator: str | None) -> Origin:
    if generator:
        return Origin.SYNTHETIC
    if column is None:
        return Origin.OTHER
    if column.is_measured:
        return Origin.OWN_MEASURE if run.task == column.task else Origin.STAND_IN
    if stand_in_for(run) or run.task != column.task:
        return Origin.STAND_IN
    return Origin.PAPER if column.split == OUR_SPLIT else Origin.OTHER_SPLIT


def _heading(
    run: Record, column: Column | None, origin: Origin, generator: str | None, name: str
) -> str:
    """`name` is that of the column where the score is not the task's own."""
    if origin is Origin.SYNTHETIC:
        return f"{generator} {name or run.title}"
    if column is not None:
        if origin is Origin.OTHER_SPLIT:
            return f"{column.name} ({OUR_SPLIT})"
        if origin in (Origin.PAPER, Origin.OWN_MEASURE):
            return column.name
    return f"{run.task} {name}" if name else run.title


def _is_of_another_file(run: Record, metric: str) -> bool:
    """Whether a score is over one of the task's further validation files.

    MNLI's mismatched one is such a file: its scores are of other examples.
    """
    task = run.config.get("task") or {}
    data = task.get("data") or {}
    files = data.get("extra_validation_files") or {}
    # "validation/mismatched_accuracy" is of the file called "mismatched".
    name = metric.rpartition("/")[2]
    return any(name.startswith(f"{file}_") for file in files)


def mean_column(column: Column, parts: Sequence[DataColumn]) -> DataColumn:
    """The data set of a mean. ValueError where a part is not in percent."""
    for dataset in parts:
        if dataset.unit != PERCENT:
            raise ValueError(
                f"columns: {column.name} is a mean of percent, and {dataset.heading} is in"
                f" {dataset.unit}: leave it out of mean_of"
            )
    unlike = (Origin.STAND_IN, Origin.SYNTHETIC)
    stand_ins = tuple(dataset.heading for dataset in parts if dataset.origin in unlike)
    is_measured = all(dataset.is_measured for dataset in parts)
    tasks = tuple(dict.fromkeys(dataset.task for dataset in parts))
    is_other_split = column.split != OUR_SPLIT or any(dataset.is_other_split for dataset in parts)
    heading = column.name
    origin = Origin.PAPER
    if any(dataset.is_synthetic for dataset in parts):
        heading = f"synthetic {column.name}"
        origin = Origin.SYNTHETIC
    elif stand_ins:
        heading = f"{column.name} with substitutes"
        origin = Origin.STAND_IN
    elif is_measured:
        origin = parts[0].origin
    elif is_other_split:
        heading = f"{column.name} ({OUR_SPLIT})"
        origin = Origin.OTHER_SPLIT
    return DataColumn(
        heading,
        f"mean:{column.name}",
        metric="",
        column=column,
        origin=origin,
        scale=IN_PERCENT,
        stand_in_parts=stand_ins,
        averages_measures=is_measured,
        tasks=tasks,
    )


def datasets_of_parts(
    parts: Sequence[Part], filled: Sequence[DataColumn]
) -> dict[Part, DataColumn]:
    """The data set with scores of each part of a mean, where there is one."""
    datasets = {}
    for member in parts:
        candidates = datasets_for_column(member.column, filled)
        if candidates:
            metric = member.metric or candidates[0].metric
            datasets[member] = replace(candidates[0], metric=metric)
    return datasets
