"""The table of any sweep's runs, without an experiment: its rows are what differs between runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from pathlib import Path

from claims.analysis.contrasts import LOSS_FIGURES
from claims.analysis.grouping import group_by
from claims.analysis.schema import Column, Row
from claims.text.did_you_mean import hint
from clozelab.files.origin import GIVEN
from clozelab.results.evidence import NAMES, encoder_of, is_pretrained, settings
from clozelab.results.experiment import Experiment
from clozelab.results.table import ResultTable, build_table
from clozelab.runs.differences import differing_keys, overrides_of
from clozelab.runs.find import Runs
from clozelab.runs.record import Record
from clozelab.text.did_you_mean import values_of
from clozelab.text.plain import PlainDict, flatten

# held-out figures that a table of pre-trainings shows
FIGURES = (*LOSS_FIGURES, "validation/nsp_accuracy", "validation/nsp_accuracy_one_source")


def infer_table(runs: Runs, fixed_rows: Collection[str] = ()) -> ResultTable:
    """The table of a folder's runs: of pre-training where there are no others.

    Args:
        runs: all below the folder.
        fixed_rows: rows with one encoder each, whose seeds are of fine-tuning alone. Rows of a
            given encoder are so by themselves.

    Raises:
        ValueError: there is no run, or no such row.
    """
    recorded = [
        run for run in runs.records if run.fingerprint and run.config.get("seed") is not None
    ]
    if not recorded:
        raise ValueError(
            f"{runs.root}: no run; give the folder of a sweep's runs, or the name of an experiment"
        )
    tuned = [run for run in recorded if run.stage != "pretrain"]
    row_runs = tuned if tuned else recorded
    pretrained = [run for run in runs.records if run.stage == "pretrain"] if tuned else []

    keys = _row_keys(row_runs)
    short = _short_names(keys)
    named = _named_by_values(row_runs, short, "row" if tuned else "arm")
    if tuned:
        places = _varying_places(recorded)
        pretrained = _with_places(pretrained, places, "arm")
        named = _with_places(named, places, "encoder_arm")
    experiment = _infer_experiment(runs.root, named, list(short.values()))
    experiment = _with_fixed_encoders(experiment, named, fixed_rows)
    # Whatever the rows are named by is what they are about.
    swept = differing_keys(overrides_of(row_runs)) or keys
    swept += differing_keys(overrides_of(pretrained))
    experiment = experiment.model_copy(update={"differ_in": tuple(swept)})
    table = build_table(experiment, replace(runs, records=[*pretrained, *named]))
    # Nobody has asked for more than was begun, and what has not ended is told of by itself.
    cells = {key: replace(cell, missing=()) for key, cell in table.cells.items()}
    return replace(table, cells=cells, is_inferred=True)


def _varying_places(runs: Sequence[Record]) -> list[str]:
    """Of "experiment" and "scale" what is not the same for all: arms of one name are then two."""
    names = ("experiment", "scale")
    return [name for name in names if len(group_by(runs, attrgetter(name))) > 1]


def _with_places(runs: Iterable[Record], places: Sequence[str], key: str) -> list[Record]:
    """The runs, with these before the name of each one's arm, which `key` of its config has."""
    renamed = []
    for run in runs:
        parts = [getattr(run, place) for place in places]
        name = "/".join([*parts, str(run.config.get(key))])
        renamed.append(run.model_copy(update={"config": run.config | {key: name}}))
    return renamed


def _infer_experiment(root: Path, runs: Sequence[Record], swept: Sequence[str]) -> Experiment:
    """An experiment with a row for each name of these runs, all of them of pre-training or none."""
    is_tuned = runs[0].stage != "pretrain"
    entries = _task_columns(runs) if is_tuned else _figure_columns(runs)
    columns = tuple(map(Column.model_validate, entries))
    empty = (None,) * len(columns)
    rows = {}
    for run in runs:
        arm: str | None = str(run.encoder_arm) if is_tuned else run.name
        if run.config.get("initialisation") == "random":
            arm = None
        rows[run.name] = Row(row=run.name, label=run.name, arm=arm, cells=empty)
    return Experiment(
        folder=root,
        name=root.name,
        title=f"What {' and '.join(swept) or 'this recipe'} changes",
        columns=columns,
        rows=tuple(rows.values()),
        matched_by="none",
    )


def _with_fixed_encoders(
    experiment: Experiment, runs: Sequence[Record], fixed_rows: Collection[str]
) -> Experiment:
    """The experiment in which rows of one given encoder, and those that are named, are fixed.

    An encoder that was pre-trained here from fresh weights is one of several that its recipe may
    give: its row is fixed only by name.
    """
    runs_of_row = group_by(runs, lambda run: run.name)
    for name in fixed_rows:
        if name not in runs_of_row:
            raise ValueError(f"fixed_encoder={name}: no such row; {hint(name, runs_of_row)}")
    rows = []
    for row in experiment.rows:
        if row.name in fixed_rows or have_one_given_encoder(runs_of_row[row.name]):
            row = row.model_copy(update={"arm": None, "fixed_encoder": True})
        rows.append(row)
    return experiment.model_copy(update={"rows": tuple(rows)})


def have_one_given_encoder(runs: Sequence[Record]) -> bool:
    """Whether runs began with one encoder that was given, so that all are fine-tunings of it."""
    origins = {run.facts.get("encoder", {}).get("scale") for run in runs}
    is_one = len(set(map(encoder_of, runs))) == 1
    return is_one and origins == {GIVEN} and all(map(is_pretrained, runs))


def _row_keys(runs: Sequence[Record]) -> list[str]:
    """The settings that tell rows apart; experiments do where there are several."""
    keys = _varying(runs)
    # A row's own name suffices where it tells as many apart. The other is a default, and says
    # nothing, where the encoder was given as a folder.
    if "row" in keys and "encoder_arm" in keys:
        configs = [run.config for run in runs]
        num_rows = _num_combinations(["row"], configs)
        if num_rows == _num_combinations(["row", "encoder_arm"], configs):
            keys.remove("encoder_arm")
    if len({run.experiment for run in runs}) > 1:
        keys = ["experiment", *keys]
    return list(dict.fromkeys(keys))


def _short_names(keys: Sequence[str]) -> dict[str, str]:
    """Key -> its last part where no other key ends so, such as learning_rate."""
    ends = [key.rpartition(".")[2] for key in keys]
    short = {}
    for key, end in zip(keys, ends, strict=True):
        short[key] = end if ends.count(end) == 1 else key
    return short


def _named_by_values(runs: Sequence[Record], short: Mapping[str, str], kind: str) -> list[Record]:
    """The runs, each called by its values as a `kind`: "learning_rate=0.001, steps=500".

    What no run of its stage has, such as the epochs of an evaluation, is left out.
    """
    settings_of_stage: dict[str, set[str]] = {}
    for run, overrides in zip(runs, overrides_of(runs), strict=True):
        settings_of_stage.setdefault(run.stage, set()).update(overrides, flatten(run.config))
    renamed_runs = []
    for run, overrides in zip(runs, overrides_of(runs), strict=True):
        config = flatten(run.config)
        values = {}
        for key, name in short.items():
            if key in settings_of_stage[run.stage]:
                values[name] = overrides.get(key, str(config.get(key, "default")))
        label = ", ".join(f"{name}={value}" for name, value in values.items()) or run.name
        only_name = next(iter(values)) if len(values) == 1 else ""
        if only_name in NAMES:
            label = values[only_name]
        renamed_runs.append(run.model_copy(update={"config": run.config | {kind: label}}))
    return renamed_runs


def _task_columns(runs: Sequence[Record]) -> list[PlainDict]:
    """A column a task, called by its title where that is clear."""
    titles = {run.task: run.title for run in runs}
    is_clear = len(set(titles.values())) == len(titles)
    evaluations: dict[str, PlainDict] = {}
    for run in runs:
        if run.stage == "evaluate":
            evaluations[run.task] = {"from": "evaluate", "metric": run.metric}
    columns: list[PlainDict] = []
    for task, title in titles.items():
        name = title if is_clear else task
        columns.append({"name": name, "task": task} | evaluations.get(task, {}))
    return columns


def _figure_columns(runs: Sequence[Record]) -> list[PlainDict]:
    """A column a held-out figure that some run has; the loss where none has any."""
    facts = set(chain.from_iterable(run.facts for run in runs))
    known = [key for key in FIGURES if key in facts]
    columns: list[PlainDict] = []
    for key in known or FIGURES[:1]:
        figure = key.removeprefix("validation/").replace("_", " ")
        columns.append({"name": f"held-out {figure}", "from": "pretrain", "metric": key})
    return columns


def _varying(runs: Sequence[Record]) -> list[str]:
    """The keys that the runs' overrides say differently; else their names, else their settings."""
    names = [_names_of(run) for run in runs]
    # A task's own settings set no row apart, so settings are compared task by task.
    by_task = group_by(runs, lambda run: run.task).values()
    settings_by_task = [list(map(settings, group)) for group in by_task]
    has_own_encoders = _has_own_encoders(runs)
    for groups in ([overrides_of(runs)], [names], settings_by_task):
        keys = list(dict.fromkeys(chain.from_iterable(map(differing_keys, groups))))
        if not keys:
            continue
        # A multirun names its arms by what differs, and that says more than the name. Arm a at
        # rate 1, arm b at rate 2: the rate alone tells both apart. It says nothing of two encoders.
        plain = [key for key in keys if key not in NAMES]
        values = list(chain.from_iterable(groups))
        is_enough = _num_combinations(plain, values) == _num_combinations(keys, values)
        return plain if plain and is_enough and not has_own_encoders else keys
    return []


def _has_own_encoders(runs: Sequence[Record]) -> bool:
    """Whether each arm or row began with encoders of its own, of several."""
    names_of_encoder = defaultdict[str | None, set[str]](set)
    for run in runs:
        encoder = values_of(run.overrides).get("encoder")
        names_of_encoder[encoder].add(str(_names_of(run)))
    return len(names_of_encoder) > 1 and all(len(names) == 1 for names in names_of_encoder.values())


def _names_of(run: Record) -> dict[str, str]:
    """The arm or row that a run says it is."""
    return {key: str(value) for key, value in run.config.items() if key in ("arm", "row")}


def _num_combinations(keys: Sequence[str], values: Sequence[Mapping[str, object]]) -> int:
    combinations = set()
    for mapping in values:
        combinations.add(tuple(map(mapping.get, keys)))
    return len(combinations)
