"""The experiment that most tests judge."""

from __future__ import annotations

import pytest

from clozelab.results.experiment import Experiment, find_experiment, load_experiment


@pytest.fixture
def experiment() -> Experiment:
    return load_experiment(find_experiment("table5_pretraining_tasks"))
