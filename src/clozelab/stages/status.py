"""`clozelab runs`, `status`, `gc` and `list`: what is there, how it stands, what may go."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich import filesize
from rich.console import Console
from rich.text import Text

from clozelab.runs import upkeep
from clozelab.runs.find import find, find_below, no_match, select
from clozelab.runs.record import DAMAGED, KILLED, LOG_FILE, STATUSES, Record
from clozelab.suggestions import DASH, EXPERIMENTS_DIR, STAGE_NAMES, duration, rough, several
from clozelab.terminal import Heading, Words, make_console, make_table, path_of, say, verb
from clozelab.training.host import usable_cores

RUNS_HELP = """clozelab runs [EXPERIMENT] [runs_dir=FOLDER] [name=value ...] [--csv]

Every run folder: arm or row, task, seeds, status, headline score, time, beginning, fingerprint.

  status=failed,killed   only these; status is complete, running, killed, interrupted, failed or damaged
  scale= stage= name= task= seeds=   likewise (name: arm or row; seeds: 1, or pre-training/fine-tuning 1/2)
  --csv                  every field, with whole fingerprints, folders and the command that makes each run

killed: the record says running, but no process holds the folder. The same command goes on where it was."""
STATUS_HELP = """clozelab status [EXPERIMENT] [scale=NAME] [runs_dir=FOLDER]

For every experiment and scale with runs: jobs by stage and state, the runs that go on now (steps, speed, time left,
process), what failed and why, and about how long the rest takes.

The jobs are those of the last launch there; runs that are none of them are "others". Processes on other machines are
not seen."""
GC_HELP = """clozelab gc [runs_dir=FOLDER] [cache_dir=FOLDER] [what=KIND,...] [older_than=DAYS] [--delete]

Lists what could be deleted, with its size; --delete deletes what is listed. A folder that a process holds is never
touched, nor is anything that changed within the last hour.

  what=KIND,...     checkpoints, leftovers, cache (these three without what=), models, unfinished; the list says what
                    each is. Cache that runs elsewhere need is made again; what unfinished runs have learnt is lost.
  older_than=DAYS   adds unfinished runs that ended longer ago (with what=unfinished alone: any)"""
LIST_HELP = """clozelab list [runs_dir=FOLDER]

The experiments that come with the project, and your own: folders with a paper.yaml, and experiments of one file,
where you stand or in experiments/ there. For each scale that has runs: how many are done."""
FILTERS = ("status", "scale", "stage", "name", "task", "seeds")
FIELDS = (
    "experiment",
    "scale",
    "stage",
    "name",
    "task",
    "seeds",
    "status",
    "metric",
    "score",
    "seconds",
    "started",
    "machine",
    "fingerprint",
    "place",
    "problem",
    "command",
)
USUAL_GARBAGE = ("checkpoints", "leftovers", "cache")
SILENT_SECONDS = 600.0  # after so long without a new line, a run's silence is worth saying
TROUBLE = ("failed", DAMAGED, KILLED, "interrupted")
SHOWN_COMMANDS = 3  # of single runs that no launch speaks for
INDENT = "  "


@verb("runs", RUNS_HELP, names=(0, 1), keys=("runs_dir", *FILTERS), flags=("csv",))
def runs(said: Words) -> int:
    """Every run folder, one line each; what is damaged is shown, not hidden."""
    filters = {key: value for key, value in said.values.items() if key in FILTERS}
    found, name = (
        find_below(path_of("runs_dir", said.values)),
        said.names[0] if said.names else None,
    )
    records, console = select(found, name, filters), make_console()
    if "csv" in said.flags:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(FIELDS)
        writer.writerows(
            ["" if (value := getattr(one, key)) is None else value for key in FIELDS]
            for one in records
        )
        return 0
    if found and not records:
        say(console, no_match(found, name, filters))
        return 0
    for (*names, stage), group in groupby(
        records, key=lambda one: (one.experiment, one.scale, one.stage)
    ):
        say(
            console,
            " ".join(filter(None, (*names, STAGE_NAMES.get(stage, stage) or "unknown"))),
            style="bold",
        )
        first = ("arm", "seed") if stage == "pretrain" else ("row", "task", "seeds")
        last = (
            ("beside", False, 1, True),
            ("time", True, 2),
            ("started (UTC)", False, 3),
            ("fingerprint", False, 4),
        )
        headings = [
            *map(Heading, (*first, "status")),
            Heading("score", True),
            *(Heading(*one) for one in last),
        ]
        console.print(make_table(headings, [_run_cells(one) for one in group], console.width))
    counts = Counter(one.status for one in records)
    states = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    say(console, f"{several(len(records), 'run')}{': ' if states else ''}{states}")
    for one in records:
        if one.problem:
            say(console, f"{one.status}: {one.place}: {one.problem}", style="yellow")
    return 0


def _run_cells(one: Record) -> list[str]:
    """A run's line; a damaged folder that says nothing else has its place."""
    names = [one.name or one.place, *([] if one.stage == "pretrain" else [one.task]), one.seeds]
    started = one.started[:16].replace("T", " ")
    beside = upkeep.reached(one).partition(":")[0] if one.is_complete else ""
    score = upkeep.shown_score(one, one.score)
    return [
        *names,
        one.status,
        score,
        beside,
        duration(upkeep.elapsed(one)),
        started,
        one.fingerprint[:8],
    ]


@dataclass(frozen=True)
class Standing:
    """An experiment at one scale. `commands` are what goes on with it; none while it runs, and
    where nothing tells.
    """

    experiment: str
    scale: str
    sweeps: list[upkeep.SweepState]
    running: list[tuple[Record, upkeep.Progress]]
    trouble: list[Record]
    commands: list[str]

    @property
    def is_done(self) -> bool:
        return bool(self.sweeps) and all(one.is_done for one in self.sweeps) and not self.trouble

    @property
    def is_all_there_is(self) -> bool:
        """Every run is complete, and of some stage nothing tells which jobs there were to be."""
        are_done = [
            one.counts.keys() == {"complete"} if one.planned is None else one.is_done
            for one in self.sweeps
        ]
        return (
            any(one.planned is None for one in self.sweeps) and all(are_done) and not self.trouble
        )


@verb("status", STATUS_HELP, names=(0, 1), keys=("runs_dir", "scale"))
def status(said: Words) -> int:
    """What runs now and how far it is, what failed and why, what is left."""
    runs_dir = path_of("runs_dir", said.values)
    filters = {key: value for key, value in said.values.items() if key == "scale"}
    found, name = find_below(runs_dir), said.names[0] if said.names else None
    records, console = select(found, name, filters), make_console()
    if not records:
        say(
            console,
            no_match(found, name, filters) if found else f"no runs in {Path(runs_dir).resolve()}",
        )
    for standing in standings(records):
        _show_standing(standing, console)
    for one in records:
        if one.is_complete and upkeep.reached(one).startswith(upkeep.LEARNT_NOTHING):
            console.print(Text(f"{one.place}: {upkeep.reached(one)}", style="yellow"))
    return 0


def standings(records: Sequence[Record]) -> Iterator[Standing]:
    """One for every experiment and scale that has a run; the records come in that order."""
    for (experiment, scale), group in groupby(records, key=lambda one: (one.experiment, one.scale)):
        mine = list(group)
        parents = (parent for one in mine for parent in one.folder.resolve().parents)
        root = next(
            (one for one in parents if (one.parent.name, one.name) == (experiment, scale)), Path()
        )
        launches = upkeep.read_launches(root)
        jobs = {stage: launch.jobs for stage, launch in launches.items()}
        stages = [
            one
            for one in STAGE_NAMES
            if jobs.get(one, []) != [] or any(run.stage == one for run in mine)
        ]
        sweeps = [upkeep.sweep_state(stage, mine, jobs.get(stage)) for stage in stages]
        running = [(one, upkeep.read_progress(one)) for one in mine if one.status == "running"]
        trouble = [one for one in mine if one.status in TROUBLE]
        # The launches of the stages that are not done; of runs without a launch their own commands.
        left = [one.stage for one in sweeps if not one.is_done] or list(launches)
        commands = [launches[stage].command(root) for stage in left if stage in launches]
        alone = [one.command for one in trouble if one.stage not in launches and one.command]
        commands = [] if running else list(dict.fromkeys([*commands, *alone[:SHOWN_COMMANDS]]))
        yield Standing(experiment, scale, sweeps, running, trouble, commands)


def _show_standing(standing: Standing, console: Console) -> None:
    at_once = len(standing.running) or usable_cores()
    say(console, f"{standing.experiment or 'unknown'} {standing.scale}".rstrip(), style="bold")
    _show_jobs(standing, console, at_once)
    if standing.running:
        headings = [
            Heading("running"),
            Heading("steps", True),
            Heading("tokens/s", True, 2),
            Heading("time left", True),
            Heading("process", True, 3),
            Heading("", drop=1),
        ]
        console.print(
            make_table(headings, [_running_cells(*one) for one in standing.running], console.width)
        )
    for one in standing.trouble:
        reason = one.problem or "stopped"
        if one.status == KILLED:
            reason = "its process has gone without a word (killed, or the machine stopped)"
        elif one.status == DAMAGED:
            reason = f"{one.problem}; remove the folder to run it again"
        console.print(Text(f"{one.status}: {one.place}: {reason}", style="yellow"))
        if one.status == "failed" and (one.folder / LOG_FILE).is_file():
            say(console, f"  log: {one.folder / LOG_FILE}", style="dim")
    if standing.is_done:
        say(console, "all done\n", style="green")
        return
    if standing.is_all_there_is:
        say(
            console,
            "every run is complete; whether there were to be more no record tells\n",
            style="green",
        )
        return
    say(
        console,
        f"time left: with {several(at_once, 'job')} at a time, from finished and running runs",
    )
    for line in [] if standing.running else standing.commands or ["the command that began it"]:
        say(console, f"to go on: {line}")
    say(console, "")


def _show_jobs(standing: Standing, console: Console, at_once: int) -> None:
    """How many jobs of each stage are in which state, and how long the rest takes with so many at a
    time.
    """
    states = [state for state in STATUSES if any(one.counts.get(state) for one in standing.sweeps)]
    others = ["others"] if any(one.others for one in standing.sweeps) else []
    rows = []
    for sweep in standing.sweeps:
        planned = sweep.counts.total() if sweep.planned is None else sweep.planned
        numbers = [
            *(sweep.counts[state] for state in states),
            sweep.not_begun,
            planned,
            *[sweep.others] * len(others),
        ]
        left = duration(sweep.seconds_left / at_once) if sweep.seconds_left else DASH
        left = "unknown yet" if sweep.seconds_left is None else left
        rows.append([STAGE_NAMES[sweep.stage], *map(str, numbers), left])
    names = (*states, "not begun", "jobs", *others, "time left")
    console.print(
        make_table(
            [Heading("stage"), *(Heading(name, True) for name in names)], rows, console.width
        )
    )


def _running_cells(record: Record, at: upkeep.Progress) -> list[str]:
    """The line of a run that goes on: which, steps, speed, time left, process, and a long
    silence.
    """
    name = "/".join(
        filter(None, (record.name or record.place, record.task, f"seed {record.seeds}"))
    )
    steps = f"{at.step:,}" + (f" of {at.total_steps:,}" if at.total_steps else "")
    speed = DASH if at.tokens_per_second is None else rough(at.tokens_per_second)
    left = DASH if at.seconds_left is None else duration(at.seconds_left)
    silent = at.silent_seconds or 0.0
    note = f"silent for {duration(silent)}" if silent > SILENT_SECONDS else ""
    return [name, steps, speed, left, DASH if record.holder is None else str(record.holder), note]


@verb(
    "gc",
    GC_HELP,
    names=(0, 0),
    keys=("runs_dir", "cache_dir", "what", "older_than"),
    flags=("delete",),
)
def gc(said: Words) -> int:
    """What could be deleted without losing a result, and deleting it if told to; 1 if something
    could not be.
    """
    kinds = said.values["what"].split(",") if "what" in said.values else [*USUAL_GARBAGE]
    if wrong := ",".join(sorted(set(kinds) - set(upkeep.KINDS))):
        raise ValueError(f"what={wrong}: there are {', '.join(upkeep.KINDS)}")
    kinds += ["unfinished"] if "older_than" in said.values else []
    age = said.values.get("older_than", "0")
    if not age.replace(".", "", 1).isdecimal():
        raise ValueError(f"older_than={age}: give a number of days")
    runs_dir, cache_dir = (Path(path_of(name, said.values)) for name in ("runs_dir", "cache_dir"))
    found = upkeep.find_garbage(find_below(str(runs_dir)), runs_dir, cache_dir, float(age))
    items, console = [one for one in found if one.kind in kinds], make_console()
    if not items:
        say(console, "nothing to delete; what changed within the last hour is left alone")
        return 0
    headings = [
        Heading("kind"),
        Heading("size", is_number=True),
        Heading("why", drop=1),
        Heading("path", folds=True),
    ]
    rows = [[one.kind, filesize.decimal(one.num_bytes), one.reason, str(one.path)] for one in items]
    console.print(make_table(headings, rows, console.width))
    for kind in upkeep.KINDS:
        if sizes := [one.num_bytes for one in items if one.kind == kind]:
            say(
                console,
                f"{filesize.decimal(sum(sizes)):>9}  {len(sizes)} {kind}: {upkeep.KINDS[kind]}",
            )
    if "delete" not in said.flags:
        say(console, "nothing was deleted; --delete deletes the above")
        return 0
    kept = {one.path: why for one in items if (why := upkeep.delete(one))}
    for path, why in kept.items():
        say(console, f"kept: {path}: {why}", style="yellow")
    freed = sum(one.num_bytes for one in items if one.path not in kept)
    say(console, f"deleted {len(items) - len(kept)}, {filesize.decimal(freed)}")
    return 1 if kept else 0


@verb("list", LIST_HELP, names=(0, 0), keys=("runs_dir",))
def list_all(said: Words) -> int:
    """Every experiment's name and title, and a line below for every scale with runs."""
    if "runs_dir" in said.values and not Path(said.values["runs_dir"]).is_dir():
        raise ValueError(f"runs_dir={said.values['runs_dir']}: there is no such folder")
    from clozelab.verdicts.experiment import list_experiments, load_experiment, own_experiments

    console, runs_dir = make_console(), Path(path_of("runs_dir", said.values))
    for place in [*(EXPERIMENTS_DIR / name for name in list_experiments()), *own_experiments()]:
        name, own = (
            (place.name, "") if place.parent == EXPERIMENTS_DIR else (str(place), " (your own)")
        )
        console.print(Text(f"{name}{own}", style="bold"), soft_wrap=True)
        try:
            experiment = load_experiment(place.resolve())
        except ValueError as error:  # one's own, half written
            below = [Text(str(error), style="yellow")]
        else:
            below = [Text(experiment.title)]
            scales = sorted(
                path for path in (runs_dir / experiment.name).glob("*") if path.is_dir()
            )
            for scale, runs in ((one, found) for one in scales if (found := find(one).runs)):
                planned = sum(
                    len(one.jobs or ()) for one in upkeep.read_launches(scale).values()
                ) or len(runs)
                done = sum(run.is_complete for run in runs)
                # a later launch may have been of some alone
                whole = f" of {planned}" * (planned >= len(runs))
                below.append(Text.assemble((scale.name, "cyan"), f": {done}{whole} runs"))
        for line in (
            line for text in below for line in text.wrap(console, console.width - len(INDENT))
        ):
            line.rstrip()  # rich's own Padding fills every line up to the console's width
            console.print(Text.assemble(INDENT, line), soft_wrap=True)
    return 0
