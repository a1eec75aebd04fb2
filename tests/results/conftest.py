"""Runs of table 5 that are made up, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.results.made_runs import MadeRuns

from clozelab.results.experiment import Experiment, find_experiment, load_experiment


@pytest.fixture
def experiment() -> Experiment:
    return load_experiment(find_experiment("table5_pretraining_tasks"))


@pytest.fixture
def runs(experiment: Experiment, make_runs: Callable[..., Path], writers: Any) -> MadeRuns:
    return MadeRuns(experiment, make_runs, writers)
