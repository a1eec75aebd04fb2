"""`clozelab status [EXPERIMENT]`: what runs now and how far it is, what failed and why, what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from clozelab.runs.find import find_below, no_match, select
from clozelab.runs.progress import Launch, Progress, SweepState, read_launches, read_progress, sweep_state
from clozelab.runs.record import DAMAGED, KILLED, LOG_FILE, STATUSES, Record
from clozelab.stages.runs import STAGES
from clozelab.suggestions import DASH, duration, rough
from clozelab.terminal import Heading, make_console, make_table, parse, path_of, say, wants_help
from clozelab.training.host import usable_cores

HELP = """clozelab status [EXPERIMENT] [scale=NAME] [runs_dir=FOLDER]

For every experiment and scale with runs: jobs by stage and state, the runs that go on now (steps, speed, time left,
process), what failed and why, and about how long the rest takes.

The jobs are those of the last launch there (`clozelab reproduce`, or a sweep by itself), with its overrides; runs that
are none of them are "others". The time left is from finished runs and from the speed of those that run. Processes on
other machines are not seen."""
SILENT_SECONDS = 600.0
"""After so long without a new line, a run's silence is worth saying."""
TROUBLE = ("failed", DAMAGED, KILLED, "interrupted")
SHOWN_COMMANDS = 3
"""Of single runs that no launch speaks for."""


@dataclass(frozen=True)
class Standing:
    """An experiment at one scale. `commands` are what goes on with it; none while it runs, and where nothing tells."""

    experiment: str
    scale: str
    sweeps: list[SweepState]
    running: list[tuple[Record, Progress]]
    trouble: list[Record]
    commands: list[str]

    @property
    def jobs_at_once(self) -> int:
        return len(self.running) or usable_cores()

    def time_left(self, sweep: SweepState) -> str:
        """Of one stage, with as many jobs at a time as run now (or fit)."""
        if sweep.seconds_left is None:
            return "unknown yet"
        return duration(sweep.seconds_left / self.jobs_at_once) if sweep.seconds_left else DASH

    @property
    def is_done(self) -> bool:
        return bool(self.sweeps) and all(one.is_done for one in self.sweeps) and not self.trouble

    @property
    def is_all_there_is(self) -> bool:
        """Every run is complete, and of some stage nothing tells which jobs there were to be."""
        untold = [one for one in self.sweeps if one.planned is None]
        told = [one for one in self.sweeps if one.planned is not None]
        are_complete = all(one.counts.keys() == {"complete"} for one in untold) and all(one.is_done for one in told)
        return bool(untold) and are_complete and not self.trouble


def main(words: Sequence[str]) -> int:
    """Print how things stand; returns the exit status."""
    if wants_help(words):
        print(HELP)
        return 0
    said = parse("status", words, names=(0, 1), keys=("runs_dir", "scale"))
    runs_dir = path_of("runs_dir", said.values)
    filters = {key: value for key, value in said.values.items() if key == "scale"}
    found, name = find_below(runs_dir), said.names[0] if said.names else None
    records = select(found, name, filters)
    console = make_console()
    if not records:
        say(console, no_match(found, name, filters) if found else f"no runs in {Path(runs_dir).resolve()}")
    for one in standings(records):
        show(one, console)
    return 0


def standings(records: Sequence[Record]) -> list[Standing]:
    """One for every experiment and scale that has a run."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for one in records:
        groups.setdefault((one.experiment, one.scale), []).append(one)
    return [_standing(*names, runs) for names, runs in groups.items()]


def _standing(experiment: str, scale: str, records: list[Record]) -> Standing:
    parents = (parent for one in records for parent in one.folder.resolve().parents)
    root = next((one for one in parents if (one.parent.name, one.name) == (experiment, scale)), Path())
    launches = read_launches(root)
    stages = [stage for stage in STAGES if stage in launches or any(one.stage == stage for one in records)]
    sweeps = [sweep_state(stage, records, launches[stage].jobs if stage in launches else None) for stage in stages]
    running = [(one, read_progress(one)) for one in records if one.status == "running"]
    trouble = [one for one in records if one.status in TROUBLE]
    commands = [] if running else _commands(root, launches, sweeps, trouble)
    return Standing(experiment, scale, sweeps, running, trouble, commands)


def _commands(
    root: Path, launches: dict[str, Launch], sweeps: Sequence[SweepState], trouble: Sequence[Record]
) -> list[str]:
    """The launches of the stages that are not done; of runs without a launch their own commands."""
    open_stages = [one.stage for one in sweeps if not one.is_done] or list(launches)
    found = [launches[stage].command(root) for stage in open_stages if stage in launches]
    alone = [one.command for one in trouble if one.stage not in launches and one.command]
    return list(dict.fromkeys([*found, *alone[:SHOWN_COMMANDS]]))


def show(standing: Standing, console: Console) -> None:
    """One experiment at one scale."""
    say(console, f"{standing.experiment or 'unknown'} {standing.scale}".rstrip(), style="bold")
    _show_jobs(standing, console)
    if standing.running:
        headings = [Heading("running"), Heading("steps", True), Heading("tokens/s", True, 2),
                    Heading("time left", True), Heading("process", True, 3), Heading("", drop=1)]  # fmt: skip
        console.print(make_table(headings, [running_cells(*one) for one in standing.running], console.width))
    for one in standing.trouble:
        say(console, f"{one.status}: {one.place}: {reason(one)}", style="yellow")
        if one.status == "failed" and (one.folder / LOG_FILE).is_file():
            say(console, f"  log: {one.folder / LOG_FILE}", style="dim")
    if standing.is_done:
        say(console, "all done\n", style="green")
        return
    if standing.is_all_there_is:
        say(console, "every run is complete; whether there were to be more no record tells\n", style="green")
        return
    at_once = standing.jobs_at_once
    say(console, f"time left: with {at_once} job{'s' if at_once > 1 else ''} at a time, from finished and running runs")
    if not standing.running:
        for line in standing.commands or ["the command that began it"]:
            say(console, f"to go on: {line}")
    say(console, "")


def _show_jobs(standing: Standing, console: Console) -> None:
    """How many jobs of each stage are in which state."""
    states = [state for state in STATUSES if any(one.counts.get(state) for one in standing.sweeps)]
    others = ["others"] if any(one.others for one in standing.sweeps) else []
    rows = []
    for sweep in standing.sweeps:
        planned = sweep.counts.total() if sweep.planned is None else sweep.planned
        numbers = [sweep.counts.get(state, 0) for state in states]
        numbers += [sweep.not_begun, planned, *([sweep.others] if others else [])]
        rows.append([STAGES[sweep.stage], *map(str, numbers), standing.time_left(sweep)])
    names = (*states, "not begun", "jobs", *others, "time left")
    headings = [Heading("stage"), *(Heading(name, is_number=True) for name in names)]
    console.print(make_table(headings, rows, console.width))


def reason(record: Record) -> str:
    """What went wrong, in one line, and what is to be done where that is not the same command again."""
    if record.status == KILLED:
        return "its process has gone without a word (killed, or the machine stopped)"
    if record.status == DAMAGED:
        return f"{record.problem}; remove the folder to run it again"
    return record.problem or "stopped"


def running_cells(record: Record, at: Progress) -> list[str]:
    """The line of a run that goes on: which, steps, speed, time left, process, and a long silence."""
    name = "/".join(filter(None, (record.name or record.place, record.task, f"seed {record.seeds}")))
    steps = f"{at.step:,}" + (f" of {at.total_steps:,}" if at.total_steps else "")
    speed = DASH if at.tokens_per_second is None else rough(at.tokens_per_second)
    left = DASH if at.seconds_left is None else duration(at.seconds_left)
    silent = at.silent_seconds or 0.0
    note = f"silent for {duration(silent)}" if silent > SILENT_SECONDS else ""
    return [name, steps, speed, left, DASH if record.holder is None else str(record.holder), note]
