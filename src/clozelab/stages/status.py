"""`clozelab status`: what runs now and how far it is, what failed and why, what is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from clozelab.analysis.grouping import group_by
from clozelab.analysis.phrases import rough
from clozelab.files.origin import RUN_FILE
from clozelab.runs.find import find_below, no_match, select
from clozelab.runs.outcome import has_learnt_nothing, score_in_context
from clozelab.runs.progress import (
    Launch,
    Progress,
    SweepState,
    read_launches,
    read_progress,
    sweep_state,
)
from clozelab.runs.record import DAMAGED, KILLED, LOG_FILE, STATUSES, JobName, Record
from clozelab.terminal import Heading, ParsedArgs, path_of, print_table, say, verb
from clozelab.text.formatting import DASH, STAGE_NAMES, duration, several
from clozelab.training.host import usable_cores

HELP = """clozelab status [EXPERIMENT] [scale=NAME] [runs_dir=FOLDER]

For every experiment and scale with runs: jobs by stage and state, the runs that
go on now (steps, speed, time left, process), what failed and why, and about how
long the rest takes.

The jobs are those of the last launch there; runs that are none of them are
"others". Processes on other machines are not seen."""
LAUNCHER_FOLDER = "launcher"  # below EXPERIMENT/SCALE: a sweep's own, with a log of each job
SILENT_SECONDS = 600.0  # after so long without a new line, a run's silence is worth saying
TROUBLE = ("failed", DAMAGED, KILLED, "interrupted")
MAX_COMMANDS = 3  # of single runs that no launch speaks for


@dataclass(frozen=True)
class ExperimentStatus:
    """How an experiment at one scale stands."""

    experiment: str
    scale: str
    sweeps: list[SweepState]
    running: list[tuple[Record, Progress]]
    trouble: list[Record]
    # jobs that ended before their run began: the run folder, why, and the log
    unbegun: list[tuple[str, str, Path]]
    commands: list[str]  # what goes on with it; none while it runs, and where nothing tells

    @property
    def is_done(self) -> bool:
        """Every job of every launch is complete, and every run where no launch is noted."""
        return not self.trouble and all(sweep.is_done for sweep in self.sweeps)


@verb("status", HELP, names=(0, 1), keys=("runs_dir", "scale"))
def main(args: ParsedArgs) -> int:
    """Print how each experiment stands; returns the exit status."""
    runs_dir = path_of("runs_dir", args.values)
    filters = {}
    for key, value in args.values.items():
        if key == "scale":
            filters[key] = value
    experiment = next(iter(args.names), None)
    every_record = find_below(runs_dir)
    records = select(every_record, experiment, filters)
    # A folder without runs is no mistake, filters that leave none may be one.
    if not every_record:
        say(f"no runs in {Path(runs_dir).resolve()}")
        for launcher in sorted(Path(runs_dir).glob(f"*/*/{LAUNCHER_FOLDER}")):
            print_unbegun(list(failed_before_begun(launcher.parent)))
    elif not records:
        say(no_match(select(every_record, experiment, {}), filters))
    for status in experiment_statuses(records):
        print_status(status)
    for record in records:
        if record.is_complete and has_learnt_nothing(record):
            say(f"{record.place}: {score_in_context(record)}", "yellow", wraps=True)
    return 0


def experiment_statuses(records: Sequence[Record]) -> Iterator[ExperimentStatus]:
    """Tell the status of every experiment and scale that has a run; records come in that order."""
    for (experiment, scale), runs in groupby(
        records, key=lambda record: (record.experiment, record.scale)
    ):
        yield _status_of(experiment, scale, list(runs))


def _status_of(experiment: str, scale: str, runs: Sequence[Record]) -> ExperimentStatus:
    """Tell the status of an experiment at a scale by its runs, and by the notes of its launches."""
    root = _folder_of_launches(runs, experiment, scale)
    launches = read_launches(root)
    jobs = {stage: launch.jobs for stage, launch in launches.items()}
    stages_with_runs = {run.stage for run in runs}
    sweeps = []
    for stage in STAGE_NAMES:
        # No job: the stage was not to be run. None: a search chooses its jobs on its way.
        if jobs.get(stage, []) != [] or stage in stages_with_runs:
            sweeps.append(sweep_state(stage, runs, jobs.get(stage)))
    running = []
    for run in runs:
        if run.status == "running":
            running.append((run, read_progress(run)))
    trouble = [run for run in runs if run.status in TROUBLE]
    unbegun = list(failed_before_begun(root)) if any(sweep.not_begun for sweep in sweeps) else []
    commands = []
    if not running:
        commands = _commands_to_go_on(launches, sweeps, trouble, root)
    return ExperimentStatus(experiment, scale, sweeps, running, trouble, unbegun, commands)


def failed_before_begun(root: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield the folder, the reason and the log of each job of the last launch that has no run.

    What is wrong with its words or its files ends a job before it claims a folder.
    """
    planned_runs = set()
    for stage, launch in read_launches(root).items():
        planned_runs |= {_usual_place(stage, job) for job in launch.jobs or ()}
    for log in sorted((root / LAUNCHER_FOLDER).glob("logs/*.log")):
        # pretrain-pretrain--mlm--seed-1.log is of the run pretrain/mlm/seed-1
        place = log.stem.partition("-")[2].replace("--", "/")
        _, is_error, reason = log.read_text(errors="replace").rpartition("\nerror: ")
        if is_error and place in planned_runs and not (root / place / RUN_FILE).is_file():
            yield place, reason.strip(), log


def _usual_place(stage: str, job: JobName) -> str:
    """Where a job's run lies below EXPERIMENT/SCALE, unless its command line said otherwise."""
    # "1" of a pre-training, "1/2" of what stands on one
    *pretrain_seeds, seed = job.seeds.split("/")
    parts = [stage, job.name]
    if pretrain_seeds:
        parts += [f"pretrain-seed-{pretrain_seeds[0]}", job.task]
    return "/".join([*parts, f"seed-{seed}"])


def _folder_of_launches(runs: Sequence[Record], experiment: str, scale: str) -> Path:
    """The folder EXPERIMENT/SCALE above some run, or one that has no launches."""
    # A run lies some folders below: EXPERIMENT/SCALE/pretrain/ARM/seed-1.
    for run in runs:
        for parent in run.folder.resolve().parents:
            if (parent.parent.name, parent.name) == (experiment, scale):
                return parent
    return Path()


def _commands_to_go_on(
    launches: dict[str, Launch],
    sweeps: Sequence[SweepState],
    trouble: Sequence[Record],
    root: Path,
) -> list[str]:
    """The launches of stages that are not done, and the commands of single runs beside them."""
    unfinished = {}
    for sweep in sweeps:
        if not sweep.is_done and sweep.stage in launches:
            unfinished[sweep.stage] = launches[sweep.stage]
    commands = [launch.command(root) for launch in unfinished.values()]
    single_runs = []
    for run in trouble:
        launch = unfinished.get(run.stage)
        is_of_launch = launch is not None and (launch.jobs is None or run.job_name in launch.jobs)
        if not is_of_launch and run.command:
            single_runs.append(run.command)
    return list(dict.fromkeys([*commands, *single_runs[:MAX_COMMANDS]]))


def print_status(status: ExperimentStatus) -> None:
    """Print the jobs of an experiment, what runs, what went wrong, and how to go on."""
    # Where nothing runs, a job a core is what a launch would start.
    num_at_once = len(status.running) or usable_cores()
    say(f"{status.experiment or 'unknown'} {status.scale}".rstrip(), style="bold")
    print_jobs(status.sweeps, num_at_once)
    if status.running:
        print_running(status.running)
    print_trouble(status.trouble)
    print_unbegun(status.unbegun)
    if status.is_done:
        sentence = "all done"
        if any(sweep.planned is None for sweep in status.sweeps):
            sentence = "every run is complete; whether there were to be more no record tells"
        say(f"{sentence}\n", style="green")
        return
    jobs = several(num_at_once, "job")
    say(f"time left: with {jobs} at a time, from finished and running runs")
    if not status.running:
        for command in status.commands or ["the command that began it"]:
            say(f"to go on: {command}")
    say("")


def print_jobs(sweeps: Sequence[SweepState], num_at_once: int) -> None:
    """Print how many jobs of each stage are in which state, and how long the rest takes."""
    total = sum((sweep.counts for sweep in sweeps), Counter[str]())
    states = [state for state in STATUSES if total[state]]
    has_others = any(sweep.others for sweep in sweeps)
    rows = []
    for sweep in sweeps:
        # Where no launch says how many jobs there were to be, there are as many as runs.
        planned = sweep.planned
        if planned is None:
            planned = sweep.counts.total()
        counts = [*(sweep.counts[state] for state in states), sweep.not_begun, planned]
        if has_others:
            counts.append(sweep.others)
        time_left = _time_left(sweep.seconds_left(num_at_once))
        rows.append([STAGE_NAMES[sweep.stage], *map(str, counts), time_left])
    columns = [*states, "not begun", "jobs"]
    if has_others:
        columns.append("others")
    columns.append("time left")
    headings = [Heading("stage"), *(Heading(name, is_number=True) for name in columns)]
    print_table(headings, rows)


def _time_left(seconds: float | None) -> str:
    """How long the rest of a stage takes."""
    if seconds is None:
        return "unknown yet"
    if not seconds:
        return DASH
    return duration(seconds)


def print_running(running: Sequence[tuple[Record, Progress]]) -> None:
    """Print the runs that go on: steps, speed, time left, process, and a long silence."""
    headings = [
        Heading("running"),
        Heading("steps", is_number=True),
        Heading("tokens/s", is_number=True, drop=2),
        Heading("time left", is_number=True),
    ]
    headings += [Heading("process", is_number=True, drop=3), Heading("", drop=1)]
    rows = [_running_cells(record, progress) for record, progress in running]
    print_table(headings, rows)


def _running_cells(record: Record, progress: Progress) -> list[str]:
    names = (record.name or record.place, record.task, f"seed {record.seeds}")
    steps = f"{progress.step:,}"
    if progress.total_steps:
        steps += f" of {progress.total_steps:,}"
    speed = DASH
    if progress.tokens_per_second is not None:
        speed = rough(progress.tokens_per_second)
    time_left = DASH
    if progress.seconds_left is not None:
        time_left = duration(progress.seconds_left)
    process = DASH
    if record.holder is not None:
        process = str(record.holder)
    silence = ""
    if progress.silent_seconds is not None and progress.silent_seconds > SILENT_SECONDS:
        silence = f"silent for {duration(progress.silent_seconds)}"
    return ["/".join(filter(None, names)), steps, speed, time_left, process, silence]


def print_trouble(records: Sequence[Record]) -> None:
    """Print why runs did not end well, and where more is written."""
    for record in records:
        reason = record.problem or "stopped"
        if record.status == KILLED:
            reason = "its process has gone without a word (killed, or the machine stopped)"
        elif record.status == DAMAGED:
            reason = f"{record.problem}; remove the folder to run it again"
        say(f"{record.status}: {record.place}: {reason}", "yellow", wraps=True)
        log = record.folder / LOG_FILE
        if record.status == "failed" and log.is_file():
            say(f"  log: {log}", style="dim")


def print_unbegun(jobs: Sequence[tuple[str, str, Path]]) -> None:
    """Print why jobs ended before their run began: each reason once."""
    for reason, same in group_by(jobs, itemgetter(1)).items():
        place, _, log = same[0]
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        say(f"failed before its run began: {place}{more}: {reason}", "yellow", wraps=True)
        say(f"  log: {log}", style="dim")
