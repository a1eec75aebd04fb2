"""What `clozelab status` says: an experiment at one scale, its stages, what runs, what went wrong, how to go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clozelab.config import EXPERIMENTS_DIR
from clozelab.ledger.host import usable_cores
from clozelab.ledger.inventory import DAMAGED, KILLED, Record
from clozelab.ledger.plan import SWEEPS
from clozelab.ledger.progress import Progress, SweepState, read_progress, sweep_state
from clozelab.ledger.reporting.wording import DASH, duration, rough
from clozelab.ledger.run import LOG_FILE
from clozelab.ledger.sweep import job_words

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
    """What goes on with it; empty for runs that belong to no experiment of the project."""

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
        return all(one.planned == one.counts.get("complete", 0) for one in self.sweeps)


def standings(records: Sequence[Record], runs_dir: str) -> list[Standing]:
    """One for every experiment and scale that has a run."""
    keys = dict.fromkeys((one.experiment, one.scale) for one in records)
    return [_standing(*key, [one for one in records if (one.experiment, one.scale) == key], runs_dir) for key in keys]


def _standing(experiment: str, scale: str, records: list[Record], runs_dir: str) -> Standing:
    stages = [stage for stage in SWEEPS if _is_swept(experiment, stage) or any(one.stage == stage for one in records)]
    sweeps = [sweep_state(stage, records, _planned(experiment, scale, stage)) for stage in stages]
    is_ours = (EXPERIMENTS_DIR / experiment / "paper.yaml").is_file() and bool(scale)
    return Standing(
        experiment=experiment,
        scale=scale,
        sweeps=sweeps,
        running=[(one, read_progress(one)) for one in records if one.status == "running"],
        trouble=[one for one in records if one.status in TROUBLE],
        command=f"clozelab reproduce {experiment} scale={scale} runs_dir={runs_dir}" if is_ours else "",
    )


def _is_swept(experiment: str, stage: str) -> bool:
    return bool(experiment) and (EXPERIMENTS_DIR / experiment / f"{SWEEPS[stage]}.yaml").is_file()


def _planned(experiment: str, scale: str, stage: str) -> list[dict[str, str]] | None:
    """The stage's jobs; None where that cannot be said (an experiment or a scale of the user's own)."""
    if not _is_swept(experiment, stage):
        return None
    try:
        return job_words(SWEEPS[stage], [f"scale={scale}"], folder=EXPERIMENTS_DIR / experiment)
    except Exception:  # any failure to compose means the same here
        return None


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
