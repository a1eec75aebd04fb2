"""What a job takes besides its steps, and what else conf/planning.yaml takes for granted."""

from __future__ import annotations

import time
import timeit
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from clozelab.results.experiment import read_yaml
from clozelab.text.paths import CONF_DIR


class Constants(NamedTuple):
    """conf/planning.yaml: what is taken for granted."""

    usual_starts: Mapping[str, float]
    python_seconds: float
    times_of_opening: Mapping[str, float]
    prepared_bytes_per_second: float
    generated_documents_per_second: float
    fitted_values_per_second: float
    unknown_evaluation_seconds: float


@cache
def constants() -> Constants:
    """Read conf/planning.yaml."""
    return Constants(**read_yaml(CONF_DIR / "planning.yaml"))


@cache
def core_slowness() -> float:
    """How many times as long as the core of the start-ups one of this machine runs Python."""
    # the quickest of five: others may want the core
    loops = timeit.repeat(
        "[str(number) for number in range(10_000)]", timer=time.process_time, number=10, repeat=5
    )
    return min(loops) / constants().python_seconds


def start_seconds(name: str, *, forks: bool) -> float:
    """Of a job of a stage (or of `server`, until the first job of a sweep can be forked).

    It is by how fast a core of this machine runs Python. A job that is not forked imports for
    itself what a server would have imported.
    """
    usual = constants().usual_starts
    seconds = usual[name]
    if not forks:
        seconds += usual["server"]
    return seconds * core_slowness()
