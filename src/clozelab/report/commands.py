"""The commands that the runs of a report were made by: `clozelab reproduce table8_masking`.

A launch leaves its words beside its runs. Of runs that no launch names, their own overrides say how
each is made again; those that fill a grid stand in one sweep.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from clozelab.runs.progress import Launch, launches_above
from clozelab.runs.record import Record, command_line, grouped

# what makes of a word of a sweep more than a list of values: range(1,5), [a,b], "a,b"
GROUPING = frozenset("()[]{}'\"")


def commands(runs: Sequence[Record]) -> list[str]:
    """Return the launches of some runs, then the commands of runs outside any launch."""
    launches = launches_above(runs)
    given: dict[str, None] = {}
    outside: list[Record] = []
    for run in runs:
        launch = launches.get(run.folder, {}).get(run.stage)
        if launch is not None and _has_made(launch, run):
            given[command_line(["clozelab", *launch.words], launch.started_in)] = None
        elif run.config_name:
            outside.append(run)
    return [*given, *_own_commands(outside)]


def _has_made(launch: Launch, run: Record) -> bool:
    """Say whether a run is one of a launch's jobs, with the values that the launch gave."""
    if launch.jobs is not None and run.job_name not in launch.jobs:
        return False
    if launch.words[:1] != [run.stage]:
        return True  # a reproduction, whose words are not those of its jobs
    values = dict(map(_split, run.overrides))
    for word in launch.words[1:]:
        if "=" not in word or word.startswith(("-", "hydra.", "hydra/")):
            continue
        key, value = _split(word)
        if key not in values:
            return False
        if GROUPING.isdisjoint(value):
            choices = [_normalised(choice) for choice in value.split(",")]
            if _normalised(values[key]) not in choices:
                return False
    return True


def _split(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key.lstrip("+"), value


def _normalised(value: str) -> str | float:
    """A value as Hydra means it, which hands 1e-3 to a job as 0.001, and True as true."""
    try:
        return float(value)
    except ValueError:
        return value.strip().casefold()


def _own_commands(runs: Sequence[Record]) -> list[str]:
    """Return a sweep for all runs that fill a grid, else a command a run."""
    lines: list[str] = []
    for same in grouped(runs, _config_and_keys).values():
        jobs = list(dict.fromkeys(tuple(run.overrides) for run in same))
        lines += [_grid_command(same[0], grid) for grid in _grids(jobs)]
    return lines


def _config_and_keys(run: Record) -> tuple[str, ...]:
    """What the runs of one sweep have in common: their configuration, and the keys given."""
    keys = [_split(override)[0] for override in run.overrides]
    return run.stage, run.started_in, run.config_dir, run.config_name, *keys


def _grids(jobs: Sequence[tuple[str, ...]]) -> list[list[list[str]]]:
    """Split jobs into grids that together have each job once, and no other.

    Args:
        jobs: overrides, as `("arm=a", "seed=1")`; those at one position have one key.

    Returns:
        Of each grid the overrides at every position: `[["arm=a", "arm=b"], ["seed=1"]]`.
    """
    if not jobs[0]:
        return [[]]
    # Overrides at the first position that go with the same ones behind it make one grid.
    by_first = grouped(jobs, lambda job: job[0])
    grids: list[list[list[str]]] = []
    for alike in grouped(by_first, lambda first: frozenset(_behind(by_first[first]))).values():
        for grid in _grids(_behind(by_first[alike[0]])):
            grids.append([alike, *grid])
    return grids


def _behind(jobs: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [job[1:] for job in jobs]


def _grid_command(run: Record, grid: Sequence[Sequence[str]]) -> str:
    """Return the command line of a grid of jobs like this run."""
    words = ["clozelab", run.stage]
    folder = run.config_dir.removeprefix(f"{run.started_in}/")
    if folder:
        words += ["--config-dir", folder]
    has_own_name = run.config_name != run.stage
    if has_own_name:
        words += ["--config-name", run.config_name]
    is_sweep = any(len(overrides) > 1 for overrides in grid)
    if is_sweep:
        words.append("-m")
    for overrides in grid:
        word = overrides[0]
        for other in overrides[1:]:
            word += "," + other.partition("=")[2]
        words.append(word)
    if has_own_name and not is_sweep:
        # A configuration of another name may say of itself that it is a sweep.
        words.append("hydra.mode=RUN")
    # Where it was given is left out: a pack does not know it, and its report is the same.
    return shlex.join(words)
