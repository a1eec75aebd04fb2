"""What a job takes besides its steps: its start and its end, by conf/planning.yaml."""

from __future__ import annotations

import time
import timeit
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from clozelab.results.experiment import read_yaml
from clozelab.text.paths import CONF_DIR


@dataclass(frozen=True)
class Starts:
    """Seconds of a job of each stage besides its steps, validations and saved files."""

    server: float  # until the first job of a sweep can be forked, counted from the sweep's start
    pretrain: float
    finetune: float
    evaluate: float
    validation: float  # one validation of a fine-tuning, besides its forward passes


@cache
def constants() -> Mapping[str, Any]:
    """conf/planning.yaml: what is taken for granted."""
    return read_yaml(CONF_DIR / "planning.yaml")


def usual_starts() -> Starts:
    """Those of forked jobs on the machine that conf/planning.yaml is of."""
    return Starts(**constants()["usual_starts"])


@cache
def machine_starts(*, forks: bool) -> Starts:
    """The usual ones, by how fast a core of this machine runs Python.

    A job that is not forked imports for itself what a server would have imported.
    """
    # the quickest of five: others may want the core
    loops = timeit.repeat(
        "[str(number) for number in range(10_000)]", timer=time.process_time, number=10, repeat=5
    )
    slowness = min(loops) / float(constants()["python_seconds"])
    seconds = {name: slowness * value for name, value in asdict(usual_starts()).items()}
    if not forks:
        for stage in ("pretrain", "finetune", "evaluate"):
            seconds[stage] += seconds["server"]
    return Starts(**seconds)
