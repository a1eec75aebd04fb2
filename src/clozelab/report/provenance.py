"""What the runs of a report were made with: commands, commits, versions, machines, times.

A launch leaves its arguments beside its runs. Of runs that no launch names, their own overrides
say how each is made again.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain

from claims.analysis.grouping import group_by
from claims.text.phrases import DASH, distinct, join_list
from clozelab.addresses import PERMISSION
from clozelab.report.summaries import seed_counts
from clozelab.results.table import ResultTable
from clozelab.runs.progress import Launch, launches_above
from clozelab.runs.record import Git, Host, Record, command_line

# what makes of an override of a sweep more than a list of values: range(1,5), [a,b], "a,b"
GROUPING = frozenset("()[]{}'\"")
# of runs outside any launch
MAX_OWN_COMMANDS = 10


def provenance(table: ResultTable) -> list[tuple[str, str]]:
    """(heading, what the runs were made with)."""
    runs = table.runs.runs
    # The code, versions and machine of each session: earlier ones of all runs, then the last.
    sessions = list(chain.from_iterable(run.sessions_before for run in runs))
    sessions += [run.last_session for run in runs]
    entries = [("Command", command) for command in commands(runs)]
    commits = distinct(_commit(session.git) for session in sessions)
    versions = distinct(_versions(session.versions) for session in sessions)
    hosts = distinct(_host(session.host) for session in sessions)
    entries += [("Commit", commits), ("Versions", versions), ("Machine", hosts)]
    by_machine = group_by([run for run in runs if run.machine], lambda run: run.machine)
    if len(by_machine) > 1:
        machines = [f"{name} ({len(by_machine[name])} runs)" for name in sorted(by_machine)]
        entries.append(("Machines", join_list(machines)))
    entries += [
        ("Seeds", seed_counts(table)),
        ("Runs", _first_and_last_time(runs)),
        ("Report", f"made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC from run folders alone"),
    ]
    return entries


def _commit(git: Git | None) -> str:
    if git is None:
        return "not from a checkout"
    changed = " with local changes" if git.dirty else ""
    return f"{git.commit[:12]}{changed}"


def _versions(versions: Mapping[str, str]) -> str:
    """`torch 2.13.0, numpy 2.4.0`; empty where none is known."""
    return ", ".join(f"{package} {version}" for package, version in versions.items())


def _host(host: Host) -> str:
    gpus = f", {len(host.gpus)} x {host.gpus[0]}" if host.gpus else ""
    return f"{host.cpu}, {host.cores or '?'} cores{gpus}"


def _first_and_last_time(runs: Sequence[Record]) -> str:
    times = [*(run.started for run in runs), *(run.finished for run in runs)]
    minutes = sorted(time[:16].replace("T", " ") for time in times if time)
    return f"{minutes[0]} to {minutes[-1]} UTC" if minutes else DASH


# -- commands --------------------------------------------------------------------------------------


def commands(runs: Sequence[Record]) -> list[str]:
    """Return the launches of some runs, then the first commands of runs outside any launch."""
    launches = launches_above(runs)
    given: dict[str, None] = {}
    outside = []
    for run in runs:
        launch = launches.get(run.folder, {}).get(run.stage)
        if launch is not None and _has_launched(launch, run):
            given[command_line(["clozelab", *launch.words], launch.started_in)] = None
        elif run.config_name:
            outside.append(run)
    single = list(dict.fromkeys(map(_own_command, outside)))
    num_hidden = len(single) - MAX_OWN_COMMANDS
    if num_hidden > 0:
        single[MAX_OWN_COMMANDS:] = [f"# and {num_hidden} more: clozelab runs FOLDER --csv"]
    return [*given, *single]


def _has_launched(launch: Launch, run: Record) -> bool:
    """Say whether a run is one of a launch's jobs, with the values that the launch gave."""
    if run.job_name not in launch.job_names:
        return False
    if launch.words[:1] != [run.stage]:
        return True  # a reproduction, whose arguments are not those of its jobs
    values = dict(map(_split, run.overrides))
    settings = [override for override in launch.words[1:] if "=" in override]
    return all(
        _sets_value(override, values)
        for override in settings
        if not override.startswith(("-", "hydra.", "hydra/", PERMISSION))
    )


def _sets_value(override: str, values: Mapping[str, str]) -> bool:
    """Say whether an override of a sweep gives a job the value that it has."""
    key, value = _split(override)
    if key not in values:
        return False
    choices = [_normalised(choice) for choice in value.split(",")]
    return not GROUPING.isdisjoint(value) or _normalised(values[key]) in choices


def _split(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key.lstrip("+"), value


def _normalised(value: str) -> str | float:
    """A value as Hydra means it, which hands 1e-3 to a job as 0.001, and True as true."""
    try:
        return float(value)
    except ValueError:
        return value.strip().casefold()


def _own_command(run: Record) -> str:
    """A run's command line, without the folder that it was started in.

    A pack does not know that folder, and its report is the same.
    """
    folder = run.config_dir.removeprefix(f"{run.started_in}/")
    return shlex.join(["clozelab", *run.model_copy(update={"config_dir": folder}).argv])
