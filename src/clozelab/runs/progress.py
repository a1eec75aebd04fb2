"""How far runs are, and how long the rest of a sweep takes.

A launch leaves a note beside its runs: its command line and its jobs. So nothing has to be composed
again to say what is missing, and which command goes on.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from pydantic import BaseModel

from claims.analysis.grouping import group_by
from claims.text.phrases import duration
from clozelab.addresses import with_permission
from clozelab.runs.record import (
    DAMAGED,
    KILLED,
    STATUSES,
    STEP_FILE,
    JobName,
    Record,
    command_line,
    read_record,
    words_to_go_on,
    write_json,
)
from clozelab.runs.time_left import JobForecast, wall_seconds_left
from clozelab.text.plain import read_json
from clozelab.text.redaction import redact_argv
from clozelab.training.measuring import read_rows

LAUNCH_FILE = Path("launcher") / "launch.json"
"""Below the folder of an experiment's runs at one scale."""
# of a metrics.csv: its last few hundred lines, however long it is
TAIL_BYTES = 16_384
SILENT_SECONDS = 20.0  # after so long without a sign, a run's silence is worth saying
REFUSED = "refused"  # how a job counts whose folder holds a run of other settings or files
RECENT_VALUES = 5  # logged speeds whose median counts as the speed now
SPEED_KEY = "train/tokens_per_second"
LOSS_KEY = "train/loss"


class Launch(BaseModel):
    """What one stage was last started by: `clozelab reproduce`, or a sweep of its own."""

    # The command line's arguments after `clozelab`, secrets hidden; launch.json has this name.
    words: list[str]
    started_in: str
    root: str  # where its runs were to lie
    jobs: list[JobName]  # none where the stage was not to be run
    refused: list[str] = []  # fingerprints of the runs in whose folders its jobs were refused

    @cached_property
    def job_names(self) -> frozenset[JobName]:
        return frozenset(self.jobs)

    def is_of(self, root: Path) -> bool:
        """Whether its runs were to lie in this folder, or in one of its name: EXPERIMENT/SCALE."""
        here = root.absolute()
        made_in = Path(self.root)
        return made_in == root.resolve() or made_in.parts[-2:] == here.parts[-2:]

    def command(self, root: Path) -> str:
        """Return the command line that goes on with it, where its runs lie in `root` now."""
        arguments = ["clozelab", *words_to_go_on(self.words)]
        # Moved since then, and not behind a link. The root is RUNS_DIR/EXPERIMENT/SCALE.
        here = root.absolute()
        if Path(self.root) not in (here, root.resolve()):
            arguments = [argument for argument in arguments if not argument.startswith("runs_dir=")]
            arguments.append(f"runs_dir={here.parent.parent}")
        return command_line(arguments, self.started_in)


def write_launch(root: Path, argv: Sequence[str], jobs: Mapping[str, Sequence[JobName]]) -> None:
    """Note in the folder of its runs what `argv` starts: for each stage in `jobs`, these jobs."""
    launches = read_launches(root)
    for stage, names in jobs.items():
        launches[stage] = Launch(
            words=redact_argv(with_permission(argv)),
            started_in=str(Path.cwd()),
            root=str(root.resolve()),
            jobs=list(names),
        )
    (root / LAUNCH_FILE).parent.mkdir(parents=True, exist_ok=True)
    _write_launches(root, launches)


def read_launches(root: Path) -> dict[str, Launch]:
    """Return stage -> its last launch; a note that is not there or cannot be read tells nothing."""
    try:
        saved = read_json(root / LAUNCH_FILE).items()
    except (OSError, ValueError, AttributeError):
        return {}
    launches = {}
    for stage, note in saved:
        with suppress(ValueError, TypeError):  # ValueError: also pydantic's
            launches[str(stage)] = Launch(**note)
    return launches


def note_refused(root: Path, stage: str, fingerprints: Iterable[str]) -> None:
    """Note the runs in whose folders jobs of a stage's last launch were refused."""
    launches = read_launches(root)
    if stage in launches:
        launches[stage].refused = sorted(fingerprints)
        _write_launches(root, launches)


def launches_above(runs: Iterable[Record]) -> dict[Path, dict[str, Launch]]:
    """Return folder of a run -> the launches noted in the nearest folder above it that has any."""

    @cache
    def nearest(root: Path) -> dict[str, Launch]:
        noted = read_launches(root)
        is_last = root == root.parent
        return noted if noted or is_last else nearest(root.parent)

    launches = {}
    for run in runs:
        noted = nearest(run.folder.resolve().parent)
        if noted:
            launches[run.folder] = noted
    return launches


def merge_launches(root: Path, added_root: Path) -> None:
    """Add the jobs of another folder's launches to those of a folder."""
    launches = read_launches(root)
    for stage, added in read_launches(added_root).items():
        launch = launches.setdefault(stage, added)
        # A job has one name at all learning rates of a sweep.
        counts = Counter(launch.jobs) | Counter(added.jobs)
        launch.jobs = list(counts.elements())
        launch.refused = sorted({*launch.refused, *added.refused})
    _write_launches(root, launches)


def _write_launches(root: Path, launches: Mapping[str, Launch]) -> None:
    notes = {stage: launch.model_dump() for stage, launch in launches.items()}
    write_json(root / LAUNCH_FILE, notes)


@dataclass(frozen=True)
class Progress:
    """Where a run stands; None where its folder does not say."""

    step: int = 0
    total_steps: int | None = None
    tokens: int = 0
    training_seconds: float = 0.0
    tokens_per_second: float | None = None
    loss: float | None = None  # the last logged one of training
    seconds_left: float | None = None  # of training alone
    # since its last line of metrics.csv, or its last note of the step
    seconds_since_sign: float | None = None

    @property
    def silence(self) -> str:
        """`silent for 12 min`; empty after a sign a moment ago."""
        if self.seconds_since_sign is None or self.seconds_since_sign < SILENT_SECONDS:
            return ""
        return f"silent for {duration(self.seconds_since_sign)}"


NO_PROGRESS = Progress()


def progress_in(folder: Path) -> Progress:
    """Return the progress of the run in a folder: nothing where no record can be read."""
    with suppress(ValueError):
        record = read_record(folder)
        if record is not None:
            return read_progress(record)
    return NO_PROGRESS


def read_progress(record: Record) -> Progress:
    """Return the progress of a run from the end of its metrics.csv, and its note of the step."""
    path = record.folder / "metrics.csv"
    note = record.folder / STEP_FILE
    phases = record.config.get("phases") or []
    total_steps = record.facts.get("total_steps") or sum(phase["steps"] for phase in phases)
    # 0: the record names no phases
    total_steps = int(total_steps) or None
    rows = list(read_rows(path, TAIL_BYTES))
    current_step = 0
    with suppress(OSError, ValueError):  # there is none, or it is being written
        current_step = int(note.read_text())
    seconds_since_sign = _seconds_since_change(path, note)
    if not rows:
        return Progress(current_step, total_steps, seconds_since_sign=seconds_since_sign)

    # where it stood at the last line, and how fast it was lately
    step, tokens, seconds, *_ = rows[-1]
    current_step = max(step, current_step)
    speeds = [row.value for row in rows if row.key == SPEED_KEY][-RECENT_VALUES:]
    speed = statistics.median(speeds) if speeds else None
    losses = [row.value for row in rows if row.key == LOSS_KEY]
    loss = losses[-1] if losses else None
    seconds_left = None
    if speed and total_steps and step:
        # what is left to read in units of what has been read
        slots = _slots_per_step(phases) or [1] * total_steps
        seconds_left = tokens / speed * sum(slots[current_step:]) / sum(slots[:step])
    return Progress(
        step=current_step,
        total_steps=total_steps,
        tokens=tokens,
        training_seconds=seconds,
        tokens_per_second=speed,
        loss=loss,
        seconds_left=seconds_left,
        seconds_since_sign=seconds_since_sign,
    )


def trouble_of(record: Record) -> str:
    """Why it failed; of one that nobody here holds, for how long it has been silent."""
    silence = ""
    if record.status == "running" and record.holder is None:
        silence = read_progress(record).silence
    if not silence:
        return record.problem
    return f"{silence}; its process on {record.machine} is not seen from here"


def _seconds_since_change(*paths: Path) -> float | None:
    """Return how long ago one of these files was written to; None where there is none."""
    times = []
    for path in paths:
        with suppress(OSError):
            times.append(path.stat().st_mtime)
    if not times:
        return None
    return max(0.0, time.time() - max(times))


def _slots_per_step(phases: Sequence[Mapping[str, int]]) -> list[int]:
    """Return how many slots each step has for tokens; phases differ in it."""
    slots_per_step = []
    for phase in phases:
        slots_per_step += [phase["global_batch_size"] * phase["seq_length"]] * phase["steps"]
    return slots_per_step


def elapsed(record: Record) -> float:
    """Return the seconds that a run took.

    Of one that has not ended its training's alone, for its record is older.
    """
    if record.status in ("running", KILLED):
        return max(record.seconds, read_progress(record).training_seconds)
    return record.seconds


@dataclass(frozen=True)
class SweepState:
    """A stage of an experiment at one scale: its jobs counted, and what is known of the rest."""

    stage: str
    planned: int | None  # jobs of the launch; None where none says which there were to be
    # of runs that are a job of the launch, or of all; REFUSED where the job is not of that run
    counts: Counter[str]
    others: int  # runs that are not
    not_begun: int
    left: Sequence[JobForecast]  # the jobs that have not ended

    @property
    def is_done(self) -> bool:
        """Every job is complete or, where none is noted, every run."""
        if self.planned is None:
            return self.counts.keys() == {"complete"}
        return self.planned == self.counts["complete"]

    def seconds_left(self, at_once: int = 1) -> float | None:
        """Wall time of the rest, so many jobs at a time.

        It is None where no finished run says how long a job takes.
        """
        return wall_seconds_left(self.left, at_once)


def sweep_state(
    stage: str,
    records: Sequence[Record],
    jobs: Sequence[JobName] | None,
    refused: Collection[str] = (),
) -> SweepState:
    """Count a stage's jobs, and forecast those that are left.

    Args:
        stage: pretrain, finetune or evaluate.
        records: runs of any stage.
        jobs: what the launch was to make; None where that is not known.
        refused: fingerprints of the runs in whose folders jobs were refused.
    """
    runs_of_stage = [run for run in records if run.stage == stage]
    if jobs is None:
        runs = runs_of_stage
        not_begun = Counter[JobName]()
    else:
        runs, not_begun = _match_jobs(runs_of_stage, jobs)
    statuses = [REFUSED if run.fingerprint in refused else run.status for run in runs]
    return SweepState(
        stage=stage,
        planned=None if jobs is None else len(jobs),
        counts=Counter(statuses),
        others=len(runs_of_stage) - len(runs),
        not_begun=not_begun.total(),
        left=_forecasts(runs, not_begun, runs_of_stage),
    )


def _match_jobs(
    runs: Sequence[Record], jobs: Sequence[JobName]
) -> tuple[list[Record], Counter[JobName]]:
    """Return the runs that are one of the jobs, and the jobs that none is.

    Of two runs with one name the better counts.
    """
    not_begun = Counter(jobs)
    matched = []
    # STATUSES begins with "complete": of two runs of one job the better one counts.
    for run in sorted(runs, key=lambda run: STATUSES.index(run.status)):
        if not_begun[run.job_name]:
            not_begun[run.job_name] -= 1
            matched.append(run)
    return matched, not_begun


def _forecasts(
    runs: Sequence[Record], not_begun: Counter[JobName], runs_of_stage: Sequence[Record]
) -> list[JobForecast]:
    """Return what is known of the jobs of a stage that are left, those that have begun first.

    A job without a folder takes as long as the finished runs most like it, one that has begun what
    its own speed says.
    """
    finished = [run for run in runs_of_stage if run.is_complete and run.seconds]
    by_task = group_by(finished, lambda run: run.task)
    by_name = group_by(finished, lambda run: (run.name, run.task))

    @cache
    def typical_seconds(name: str, task: str) -> float | None:
        """The median of the finished runs most like a job: of its name, of its task, any."""
        most_like = by_name.get((name, task), by_task.get(task, finished))
        if not most_like:
            return None
        return statistics.median(run.seconds for run in most_like)

    forecasts = []
    for run in runs:
        if run.status not in ("complete", DAMAGED):
            expected = typical_seconds(run.name, run.task)
            measured = read_progress(run).seconds_left
            forecasts.append(JobForecast(expected, measured_seconds_left=measured))
    for job in not_begun.elements():
        forecasts.append(JobForecast(typical_seconds(job.name, job.task)))
    return forecasts
