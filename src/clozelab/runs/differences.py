"""What sets runs apart: the overrides of their command lines that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from operator import methodcaller

from claims.analysis.comparability import is_within
from clozelab.runs.record import Record
from clozelab.text.did_you_mean import values_of

# what overrides say that makes no other row: seeds, columns, places and machines
NO_DIFFERENCE = (
    "seed",
    "pretrain_seed",
    "task",
    "measure",
    "hydra",
    "trainer",
    "logger",
    "hub",
    "share_runs",
    "reuse",
    "runs_dir",
    "run_dir",
    "data_dir",
    "cache_dir",
    "encoder",
    "keep_model",
    "allow_validation_in_training",
    "predict_test",
)


def overrides_of(runs: Sequence[Record]) -> list[dict[str, str]]:
    """Of each run the overrides that may set it apart."""
    overrides = []
    for run in runs:
        values = values_of(run.overrides)
        overrides.append({key: values[key] for key in values if not is_within(key, NO_DIFFERENCE)})
    return overrides


def differing_keys(values: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys that some of the mappings have otherwise, or lack."""
    differing = []
    for key in dict.fromkeys(chain.from_iterable(values)):
        if len(set(map(methodcaller("get", key), values))) > 1:
            differing.append(key)
    return differing
