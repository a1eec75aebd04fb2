"""What `clozelab status` says: an experiment at one scale, its stages, what runs, what went wrong, how to go on.

`clozelab status [EXPERIMENT]`: what runs now and how far it is, what failed and why, what is left.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from clozelab.config import EXPERIMENTS_DIR
from clozelab.launch.commands import Launch, command, read_launch, reproduce_again
from clozelab.launch.plan import SWEEPS
from clozelab.launch.sweep import job_names
from clozelab.runs.find import collect, find, no_match, select
from clozelab.runs.progress import Progress, SweepState, read_progress, sweep_state
from clozelab.runs.record import DAMAGED, KILLED, LOG_FILE, STATUSES, JobName, Record
from clozelab.stages.runs import STAGES
from clozelab.terminal import Heading, make_console, make_table, parse, path_of, say, wants_help
from clozelab.training.host import usable_cores
from clozelab.verdicts.wording import DASH, duration, rough

SILENT_SECONDS = 600.0
"""After so long without a new line, a run's silence is worth saying."""
TROUBLE = ("failed", DAMAGED, KILLED, "interrupted")


@dataclass(frozen=True)
class Standing:
    """An experiment at one scale."""

    experiment: str
    scale: str
    sweeps: list[SweepState]
    running: list[tuple[Record, Progress]]
    trouble: list[Record]
    command: str
    """What goes on with it; empty while it runs, and where nothing tells."""
    is_guessed: bool
    """The launch that began it has left no record: jobs and command are as the experiment and its runs tell."""

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
        """Every run is complete, and nothing tells which jobs there were to be (a sweep without an experiment)."""
        untold = [one for one in self.sweeps if one.planned is None]
        told = [one for one in self.sweeps if one.planned is not None]
        are_complete = all(one.counts.keys() == {"complete"} for one in untold) and all(one.is_done for one in told)
        return bool(untold) and are_complete and not self.trouble


def standings(records: Sequence[Record], runs_dir: str) -> list[Standing]:
    """One for every experiment and scale that has a run."""
    keys = dict.fromkeys((one.experiment, one.scale) for one in records)
    return [_standing(*key, [one for one in records if (one.experiment, one.scale) == key], runs_dir) for key in keys]


def _standing(experiment: str, scale: str, records: list[Record], runs_dir: str) -> Standing:
    root = _root(records, experiment, scale)
    known = read_launch(root) if root else None
    launch = known or _guess(experiment, scale, records)
    stages = [stage for stage in SWEEPS if stage in launch.sweeps or any(one.stage == stage for one in records)]
    sweeps = [sweep_state(stage, records, _planned(launch, stage)) for stage in stages]
    running = [(one, read_progress(one)) for one in records if one.status == "running"]
    again = ""
    if not running and known and root:
        again = command(known, root.parent.parent)
    elif not running and launch.sweeps:
        again = _guessed_command(launch, root, scale, runs_dir)
    trouble = [one for one in records if one.status in TROUBLE]
    return Standing(experiment, scale, sweeps, running, trouble, again, known is None)


def _root(records: Sequence[Record], experiment: str, scale: str) -> Path | None:
    """The folder of an experiment's runs at a scale, where they lie as conf/ has it."""
    for folder in (parent for one in records for parent in one.folder.resolve().parents):
        if folder.name == scale and folder.parent.name == experiment:
            return folder
    return None


def _planned(launch: Launch, stage: str) -> list[JobName] | None:
    """The stage's jobs; None where that cannot be said, none where the launch was not to run it."""
    if stage not in launch.sweeps:
        return [] if launch.sweeps else None
    try:
        return job_names(SWEEPS[stage], launch.sweeps[stage], folder=Path(launch.experiment))
    except Exception:  # any failure to compose means the same here
        return None


def _guess(experiment: str, scale: str, records: Sequence[Record]) -> Launch:
    """A launch without a record: the experiment's sweeps, with the pre-training seeds that its runs have."""
    folder = EXPERIMENTS_DIR / experiment
    swept = [stage for stage, name in SWEEPS.items() if experiment and scale and (folder / f"{name}.yaml").is_file()]
    launch = Launch(str(folder.resolve()), [], {stage: [f"scale={scale}"] for stage in swept})
    usual = {job.seeds for job in _planned(launch, "pretrain") or []}
    seeds = sorted({one.seeds for one in records if one.stage == "pretrain" and one.seeds})
    if usual and not set(seeds) <= usual:
        for stage, key in (("pretrain", "seed"), ("finetune", "pretrain_seed")):
            if stage in launch.sweeps:
                launch.sweeps[stage].append(f"{key}={','.join(seeds)}")
                launch.words.append(f"{stage}.{key}={','.join(seeds)}")
    return launch


def _guessed_command(launch: Launch, root: Path | None, scale: str, runs_dir: str) -> str:
    """What the runs' records tell, or else the experiment alone."""
    folder = Path(launch.experiment)
    if root:
        return reproduce_again(folder, collect(root), scale, to_go_on=True)[0].line
    return shlex.join(["clozelab", "reproduce", folder.name, f"scale={scale}", *launch.words, f"runs_dir={runs_dir}"])


def reason(record: Record) -> str:
    """What went wrong, in one line, and what is to be done where that is not the same command again."""
    if record.status == KILLED:
        return "its process has gone without a word (killed, or the machine stopped)"
    if record.status == DAMAGED:
        return f"{record.problem}; remove the folder to run it again"
    return record.problem or "stopped"


def log_of(record: Record) -> Path | None:
    """The run's own log, where it has one."""
    path = record.folder / LOG_FILE
    return path if path.is_file() else None


def running_cells(record: Record, at: Progress) -> list[str]:
    """The line of a run that goes on: which, steps, speed, time left, process, and a long silence."""
    name = "/".join(filter(None, (record.name or record.place, record.task, f"seed {record.seeds}")))
    steps = f"{at.step:,}" + (f" of {at.total_steps:,}" if at.total_steps else "")
    speed = DASH if at.tokens_per_second is None else rough(at.tokens_per_second)
    left = DASH if at.seconds_left is None else duration(at.seconds_left)
    silent = at.silent_seconds or 0.0
    note = f"silent for {duration(silent)}" if silent > SILENT_SECONDS else ""
    return [name, steps, speed, left, DASH if record.holder is None else str(record.holder), note]


HELP = """clozelab status [EXPERIMENT] [scale=NAME] [runs_dir=FOLDER]

For every experiment and scale with runs: jobs by stage and state, the runs that go on now (steps, speed, time left,
process), what failed and why, and about how long the rest takes.

The jobs are those of the last `clozelab reproduce` there, with its overrides; where it has left no record, those of the
experiment's own sweeps. Runs that are none of them are "others". The time left is from finished runs and from the speed
of those that run. Processes on other machines are not seen."""


def main(words: Sequence[str]) -> int:
    """Print how things stand; returns the exit status."""
    if wants_help(words):
        print(HELP)
        return 0
    said = parse("status", words, names=(0, 1), keys=("runs_dir", "scale"))
    runs_dir = path_of("runs_dir", said.values)
    filters = {key: value for key, value in said.values.items() if key == "scale"}
    found, name = find(Path(runs_dir)).records, said.names[0] if said.names else None
    records = select(found, name, filters)
    console = make_console()
    if not records:
        say(console, no_match(found, name, filters) if found else f"no runs in {Path(runs_dir).resolve()}")
    for standing in standings(records, runs_dir):
        show(standing, console)
    return 0


def show(standing: Standing, console: Console) -> None:
    """One experiment at one scale."""
    say(console, f"{standing.experiment or 'unknown'} {standing.scale}".rstrip(), style="bold")
    states = [state for state in STATUSES if any(one.counts.get(state) for one in standing.sweeps)]
    others = ["others"] if any(one.others for one in standing.sweeps) else []
    numbers = (*states, "not begun", "jobs", *others, "time left")
    rows = []
    for sweep in standing.sweeps:
        counts = [sweep.counts.get(state, 0) for state in states]
        planned = sweep.counts.total() if sweep.planned is None else sweep.planned
        totals = (*counts, sweep.not_begun, planned, *([sweep.others] if others else []))
        rows.append([STAGES[sweep.stage], *map(str, totals), standing.time_left(sweep)])
    headings = [Heading("stage"), *(Heading(name, is_number=True) for name in numbers)]
    console.print(make_table(headings, rows, console.width))
    headings = [Heading("running"), Heading("steps", True), Heading("tokens/s", True, 2), Heading("time left", True),
                Heading("process", True, 3), Heading("", drop=1)]  # fmt: skip
    if standing.running:
        rows = [running_cells(one, at) for one, at in standing.running]
        console.print(make_table(headings, rows, console.width))
    for one in standing.trouble:
        say(console, f"{one.status}: {one.place}: {reason(one)}", style="yellow")
        if one.status == "failed" and (log := log_of(one)) is not None:
            say(console, f"  log: {log}", style="dim")
    if standing.is_done:
        say(console, "all done\n", style="green")
        return
    if standing.is_all_there_is:
        say(console, "every run is complete; whether there were to be more no record tells\n", style="green")
        return
    at_once = standing.jobs_at_once
    say(console, f"time left: with {at_once} job{'s' if at_once > 1 else ''} at a time, from finished and running runs")
    if not standing.running:
        say(console, f"to go on: {standing.command or 'the command that began it'}")
        if standing.command and standing.is_guessed:
            say(console, "  (as the runs tell: no launch has left a record here)", style="dim")
    say(console, "")
