"""How an experiment at one scale stands: by its runs, and by the notes of its launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path

from claims.text.phrases import DASH, duration, format_count
from clozelab.files.origin import RUN_FILE
from clozelab.runs.progress import (
    Launch,
    Progress,
    SweepState,
    read_launches,
    read_progress,
    sweep_state,
)
from clozelab.runs.record import (
    DAMAGED,
    KILLED,
    STAGE_NAMES,
    JobName,
    Record,
    command_line,
    words_to_go_on,
)
from clozelab.text.did_you_mean import key_of, values_of
from clozelab.text.plain import hydra_text
from clozelab.training.host import usable_cores

LAUNCHER_FOLDER = "launcher"  # below EXPERIMENT/SCALE: a sweep's own, with a log of each job
TROUBLE = ("failed", DAMAGED, KILLED, "interrupted")
RUNS_DIR = "runs"  # that of conf/paths.yaml, where a command names no other
MAX_COMMANDS = 3  # of single runs that no launch speaks for


@dataclass(frozen=True)
class ExperimentStatus:
    """How an experiment at one scale stands."""

    experiment: str
    scale: str
    root: Path  # EXPERIMENT/SCALE, where its launches are noted; "." where there is no such folder
    sweeps: list[SweepState]
    running: list[tuple[Record, Progress]]
    trouble: list[Record]
    refused: list[Record]  # runs of other settings or files in the folders of jobs
    # jobs that ended before their run began: the run folder, why, and the log
    unbegun: list[tuple[str, str, Path]]
    commands: list[str]  # what goes on with it; none while it runs, and where nothing tells

    @property
    def jobs_at_once(self) -> int:
        """Where nothing runs, a job a core is what a launch would start."""
        return len(self.running) or usable_cores()

    @property
    def is_done(self) -> bool:
        """Every job of every launch is complete, and every run where no launch is noted."""
        return not self.trouble and all(sweep.is_done for sweep in self.sweeps)


def experiment_statuses(records: Sequence[Record]) -> Iterator[ExperimentStatus]:
    """Tell the status of every experiment and scale that has a run; records come in that order."""
    for (experiment, scale), runs in groupby(
        records, key=lambda record: (record.experiment, record.scale)
    ):
        yield _status_of(experiment, scale, list(runs))


def _status_of(experiment: str, scale: str, runs: Sequence[Record]) -> ExperimentStatus:
    """Tell the status of an experiment at a scale by its runs, and by the notes of its launches."""
    root = _folder_of_launches(runs, experiment, scale)
    launches = {}
    for stage, launch in read_launches(root).items():
        # Of a folder that was renamed they are another experiment's: its runs say so themselves.
        if launch.is_of(root):
            launches[stage] = launch
    sweeps = _sweep_states(launches, runs)
    running = [(run, read_progress(run)) for run in runs if run.status == "running"]
    trouble = [run for run in runs if run.status in TROUBLE]
    refused = []
    for run in runs:
        if run.stage in launches and run.fingerprint in launches[run.stage].refused:
            refused.append(run)
    unbegun = []
    if any(sweep.not_begun for sweep in sweeps):
        unbegun = list(failed_before_begun(root))
    commands = []
    if not running:
        commands = _commands_to_go_on(launches, sweeps, trouble, root)
    return ExperimentStatus(
        experiment,
        scale,
        root,
        sweeps,
        running,
        trouble,
        refused,
        unbegun,
        commands,
    )


def _sweep_states(launches: Mapping[str, Launch], runs: Sequence[Record]) -> list[SweepState]:
    """How each stage stands that has a run, or a job in the notes of its last launch."""
    stages_with_runs = {run.stage for run in runs}
    sweeps = []
    for stage in STAGE_NAMES:
        launch = launches.get(stage)
        if launch is None and stage in stages_with_runs:
            sweeps.append(sweep_state(stage, runs, None, []))
        elif launch is not None and (launch.jobs or stage in stages_with_runs):
            sweeps.append(sweep_state(stage, runs, launch.jobs, launch.refused))
    return sweeps


def failed_before_begun(root: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield the folder, the reason and the log of each job of the last launch that has no run.

    What is wrong with its arguments or its files ends a job before it claims a folder.
    """
    planned_runs = set()
    for stage, launch in read_launches(root).items():
        planned_runs |= {_default_folder(stage, job) for job in launch.jobs}
    for log in sorted((root / LAUNCHER_FOLDER).glob("logs/*.log")):
        # pretrain-pretrain--mlm--seed-1.log is of the run pretrain/mlm/seed-1
        place = log.stem.partition("-")[2].replace("--", "/")
        _, is_error, reason = log.read_text(errors="replace").rpartition("\nerror: ")
        if is_error and place in planned_runs and not (root / place / RUN_FILE).is_file():
            yield place, reason.strip(), log


def _default_folder(stage: str, job: JobName) -> str:
    """Where a job's run lies below EXPERIMENT/SCALE, unless its command line said otherwise."""
    # "1" of a pre-training, "1/2" of what stands on one
    *pretrain_seeds, seed = job.seeds.split("/")
    parts = [stage, job.name]
    if pretrain_seeds:
        parts += [f"pretrain-seed-{pretrain_seeds[0]}", job.task]
    return "/".join([*parts, f"seed-{seed}"])


def _folder_of_launches(runs: Sequence[Record], experiment: str, scale: str) -> Path:
    """The folder EXPERIMENT/SCALE above some run, or one that has no launches."""
    # A run lies some folders below: EXPERIMENT/SCALE/pretrain/ARM/seed-1. Behind a link on the way
    # the folders may be called otherwise.
    for run in runs:
        for parent in chain(run.folder.absolute().parents, run.folder.resolve().parents):
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
        is_of_launch = launch is not None and run.job_name in launch.job_names
        if not is_of_launch and run.command:
            single_runs.append(_command_here(run))
    return list(dict.fromkeys([*commands, *single_runs[:MAX_COMMANDS]]))


def _command_here(run: Record) -> str:
    """The command that goes on with a run in the folder that it lies in now."""
    home = Path(run.home).parts  # below runs_dir; () of an older record
    overrides = values_of(run.overrides)
    folder = run.folder.absolute()
    made_in = Path(run.started_in, overrides.get("runs_dir", RUNS_DIR), *home)
    if "run_dir" in overrides:
        made_in = Path(run.started_in, overrides["run_dir"])
    if not home or made_in.resolve() == folder.resolve():
        return run.command

    # Moved since then: with all runs of its runs_dir, or by itself.
    key = "run_dir"
    target = folder
    if "run_dir" not in overrides and folder.parts[-len(home) :] == home:
        key = "runs_dir"
        target = folder.parents[len(home) - 1]
    arguments = [word for word in words_to_go_on(run.argv) if key_of(word) != key]
    arguments.append(f"{key}={hydra_text(str(target))}")
    return command_line(["clozelab", *arguments], run.started_in)


def running_cells(record: Record, progress: Progress) -> list[str]:
    """A running run: name, steps, loss, tokens a second, time left, process, a long silence."""
    names = (record.name or record.place, record.task, f"seed {record.seeds}")
    steps = f"{progress.step:,}"
    if progress.total_steps:
        steps += f" of {progress.total_steps:,}"
    loss = DASH
    if progress.loss is not None:
        loss = f"{progress.loss:.2f}"
    speed = DASH
    if progress.tokens_per_second is not None:
        speed = format_count(progress.tokens_per_second)
    time_left = DASH
    if progress.seconds_left is not None:
        time_left = duration(progress.seconds_left)
    process = DASH
    if record.holder is not None:
        process = str(record.holder)
    name = "/".join(filter(None, names))
    return [name, steps, loss, speed, time_left, process, progress.silence]
