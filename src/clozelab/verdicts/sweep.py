"""A table of any sweep's runs without an experiment: its rows are what differs between the runs.

`clozelab pretrain -m objective.token.predict_prob=0.15,0.3` gives a row a rate, and the held-out figures as columns;
runs of fine-tuning give a column a task. What differs is what the runs' recorded overrides say differently, or, where
they say nothing, their settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from clozelab.runs.fingerprint import flatten
from clozelab.verdicts.comparability import NAMES, is_within, settings
from clozelab.verdicts.experiment import Column, Experiment, Row
from clozelab.verdicts.table import Table, build_table

if TYPE_CHECKING:
    from clozelab.runs.find import Runs
    from clozelab.runs.record import Record

NO_DIFFERENCE = (
    *("seed", "pretrain_seed", "task", "experiment", "hydra", "trainer", "logger", "hub", "share_runs"),
    *("runs_dir", "run_dir", "data_dir", "cache_dir", "encoder", "save_model", "predict_test"),
)
"""What overrides say that makes no other row: seeds, columns, places and machines."""
FIGURES = ("validation/loss", "validation/perplexity", "validation/accuracy", "validation/nsp_accuracy")


def sweep_table(runs: Runs) -> Table:
    """The table of the runs below a folder: of fine-tuning where there is any, else of pre-training.

    Raises:
        ValueError: there is no run.
    """
    known = [run for run in runs.records if run.fingerprint and run.config.get("seed") is not None]
    trained = [run for run in known if run.stage == "pretrain"]
    tuned = [run for run in known if run.stage == "finetune"]
    if not known:
        raise ValueError(f"{runs.root}: no run; give the folder of a sweep's runs, or the name of an experiment")
    shown, kind = (tuned, "row") if tuned else (trained, "arm")
    said = [_said(run) for run in shown]
    keys = _varying(shown, said)
    ends = [key.rpartition(".")[2] for key in keys]
    short = {key: end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)}
    named = []
    for run, words in zip(shown, said, strict=True):
        config = flatten(run.config)
        values = {short[key]: words.get(key, str(config.get(key, "default"))) for key in keys}
        label = ", ".join(f"{key}={value}" for key, value in values.items()) or run.name
        label = values[keys[0]] if len(keys) == 1 and keys[0] in NAMES else label
        named.append(run.model_copy(update={"config": run.config | {kind: label}}))
    columns = _task_columns(named) if tuned else _figure_columns(named)
    arms = {run.name: str(run.config.get("encoder_arm")) if tuned else run.name for run in named}
    experiment = Experiment(
        folder=runs.root,
        name=runs.root.name,
        title=f"What {' and '.join(short.values()) or 'this recipe'} changes",
        columns=columns,
        rows=tuple(Row(row=name, label=name, arm=arm, cells=(None,) * len(columns)) for name, arm in arms.items()),
        matched_by="none",
    )
    # Whatever the rows are named by is what they are about.
    about = experiment.model_copy(update={"differ_in": tuple(_unequal(said) or keys)})
    others = [run for run in runs.records if run.stage == "pretrain"] if tuned else []
    return build_table(about, replace(runs, records=[*others, *named]))


def _said(run: Record) -> dict[str, str]:
    """Key -> value of what was said for this run; the last one counts."""
    pairs = (word.lstrip("+~").partition("=") for word in run.overrides)
    return {key: value for key, _, value in pairs if not is_within(key, NO_DIFFERENCE)}


def _varying(runs: Sequence[Record], said: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys that the runs' overrides, or else their names or settings, say differently."""
    names: list[Mapping[str, str]] = [
        {key: str(run.config[key]) for key in ("arm", "row") if key in run.config} for run in runs
    ]
    for values in (said, names, [*map(settings, runs)]):
        if keys := _unequal(values):
            # A multirun names its arms by what differs: that says more than the name.
            own = [key for key in keys if key not in NAMES]
            return own if own and _groups(values, own) == _groups(values, keys) else keys
    return []


def _unequal(values: Sequence[Mapping[str, str]]) -> list[str]:
    keys = dict.fromkeys(key for one in values for key in one)
    return [key for key in keys if len({one.get(key) for one in values}) > 1]


def _groups(values: Sequence[Mapping[str, str]], keys: Iterable[str]) -> int:
    chosen = list(keys)
    return len({tuple(one.get(key) for key in chosen) for one in values})


def _task_columns(runs: Sequence[Record]) -> tuple[Column, ...]:
    titles = {run.task: run.title for run in runs}
    twice = len(set(titles.values())) < len(titles)
    return tuple(Column(name=task if twice else title, task=task) for task, title in titles.items())


def _figure_columns(runs: Sequence[Record]) -> tuple[Column, ...]:
    names = {key: f"held-out {key.removeprefix('validation/').replace('_', ' ')}" for key in FIGURES}
    known = [key for key in FIGURES if any(key in run.facts for run in runs)] or FIGURES[:1]
    return tuple(Column.model_validate({"name": names[key], "from": "pretrain", "metric": key}) for key in known)
