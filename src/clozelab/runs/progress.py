"""How far a run is, what a sweep was to be, and how long what is left of it will take.

A launch (`clozelab reproduce`, or a sweep that was started by itself) leaves a note beside its runs: its command line
and its jobs. So nothing has to be composed again to say what is missing, and which command goes on.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from clozelab.runs.fingerprint import redacted_words
from clozelab.runs.record import DAMAGED, KILLED, STATUSES, JobName, Record, command_line, write_json
from clozelab.training.measuring import read_rows

LAUNCH_FILE = Path("launcher") / "launch.json"  # below the folder of an experiment's runs at one scale
TAIL_BYTES = 16_384
RECENT_VALUES = 5  # logged speeds whose median counts as the speed now
SPEED_KEY = "train/tokens_per_second"


class Launch(BaseModel):
    """What one stage was last started by: `clozelab reproduce`, or a sweep of its own."""

    words: list[str]  # of the command line, after `clozelab`; what looks like a secret is hidden
    started_in: str
    root: str  # where its runs were to lie
    jobs: list[JobName] | None  # None of a search, which chooses on its way; no job where the stage was not to be run

    def command(self, root: Path) -> str:
        """The command line that goes on with it, where its runs lie in `root` now."""
        words = ["clozelab", *self.words]
        if Path(self.root) != root.resolve():
            words = [word for word in words if not word.startswith("runs_dir=")]
            words.append(f"runs_dir={root.resolve().parent.parent}")
        return command_line(words, self.started_in)


def write_launch(root: Path, words: Sequence[str], jobs: Mapping[str, Sequence[JobName] | None]) -> None:
    """Note a launch in the folder of its runs: what `words` start is, for each stage in `jobs`, these jobs."""
    path, known = root / LAUNCH_FILE, read_launches(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    said = {"words": redacted_words(words), "started_in": str(Path.cwd()), "root": str(root.resolve())}
    known |= {stage: Launch(**said, jobs=names) for stage, names in jobs.items()}  # type: ignore[arg-type]
    write_json(path, {stage: one.model_dump() for stage, one in known.items()})


def read_launches(root: Path) -> dict[str, Launch]:
    """Stage -> its last launch; a note that is not there or cannot be read tells nothing."""
    try:
        saved = json.loads((root / LAUNCH_FILE).read_text(encoding="utf-8"))
        return {str(stage): Launch(**note) for stage, note in saved.items()}
    except (OSError, ValueError, TypeError, AttributeError):  # ValueError: also pydantic's
        return {}


@dataclass(frozen=True)
class Progress:
    """Where a run stands; None where its folder does not say.

    `tokens_per_second` is the recent speed, `seconds_left` of training alone, `silent_seconds` since the last line.
    """

    step: int = 0
    total_steps: int | None = None
    tokens: int = 0
    training_seconds: float = 0.0
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    silent_seconds: float | None = None


def read_progress(record: Record) -> Progress:
    """The progress of a run from the end of its metrics.csv."""
    path, phases = record.folder / "metrics.csv", record.config.get("phases") or []
    total = int(record.facts.get("total_steps") or sum(phase["steps"] for phase in phases)) or None
    rows = list(read_rows(path, TAIL_BYTES))
    if not rows:
        return Progress(total_steps=total)
    step, tokens, seconds, *_ = rows[-1]
    speeds = [row.value for row in rows if row.key == SPEED_KEY][-RECENT_VALUES:]
    speed = statistics.median(speeds) if speeds else None
    left = None
    if speed and total and step:
        # What is left to read in units of what has been read: phases differ in slots a step.
        done = rest = first = 0
        for phase in phases or [{"steps": total, "global_batch_size": 1, "seq_length": 1}]:
            slots, inside = phase["global_batch_size"] * phase["seq_length"], min(max(step - first, 0), phase["steps"])
            done, rest, first = done + inside * slots, rest + (phase["steps"] - inside) * slots, first + phase["steps"]
        left = tokens / speed * rest / done
    return Progress(step, total, tokens, seconds, speed, left, max(0.0, time.time() - path.stat().st_mtime))


def elapsed(record: Record) -> float:
    """Seconds that a run took; of one that has not ended its training's alone, for its record is older."""
    if record.status in ("running", KILLED):
        return max(record.seconds, read_progress(record).training_seconds)
    return record.seconds


@dataclass(frozen=True)
class SweepState:
    """A stage of an experiment at one scale: its jobs counted, and how long the rest takes.

    `planned` is None where no launch says which jobs there were to be, and then `counts` are of all runs; else they are
    of runs that are a job of the launch, and `others` are not. `seconds_left` (one job after the other) is None where
    no finished run says how long one takes.
    """

    stage: str
    planned: int | None
    counts: Counter[str]
    others: int
    not_begun: int
    seconds_left: float | None

    @property
    def is_done(self) -> bool:
        return self.planned == self.counts["complete"]


def sweep_state(stage: str, records: Sequence[Record], jobs: Sequence[JobName] | None) -> SweepState:
    """Count the runs that are a stage's jobs, and add up what is left.

    A job that has no folder takes as long as the median of finished runs of its arm or row on the same task (else of
    the task, else of the stage), one that has begun what its own speed says.
    """
    runs = every = [one for one in records if one.stage == stage]
    missing = Counter(jobs or ())
    if jobs is not None:
        runs = []
        for one in sorted(every, key=lambda run: STATUSES.index(run.status)):  # of two with one name the better counts
            if missing[one.job_name]:
                missing[one.job_name] -= 1
                runs.append(one)
    finished = [one for one in every if one.is_complete and one.seconds]

    def typical_seconds(job: JobName) -> float | None:
        same_task = [one for one in finished if one.task == job.task]
        like = [one for one in same_task if one.name == job.name] or same_task or finished
        return statistics.median(one.seconds for one in like) if like else None

    left = [typical_seconds(job) for job in missing.elements()]
    for one in runs:
        if one.status not in ("complete", DAMAGED):
            rest = read_progress(one).seconds_left
            left.append(typical_seconds(one.job_name) if rest is None else rest)
    known = [rest for rest in left if rest is not None]
    return SweepState(
        stage=stage,
        planned=None if jobs is None else len(jobs),
        counts=Counter(one.status for one in runs),
        others=len(every) - len(runs),
        not_begun=missing.total(),
        seconds_left=sum(known) if len(known) == len(left) else None,
    )
