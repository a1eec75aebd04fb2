"""What one asks of many runs: how far they are, how long the rest takes, and what may be deleted.

A launch leaves a note beside its runs: its command line and its jobs. So nothing has to be composed
again to say what is missing, and which command goes on. Nothing is deleted that a process holds, or
that changed a moment ago.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import BaseModel

from clozelab.runs import record as ledger
from clozelab.runs.fingerprint import grouped, redacted_words
from clozelab.runs.record import JobName, Record
from clozelab.text.formatting import DASH
from clozelab.training.measuring import read_rows

# below the folder of an experiment's runs at one scale
LAUNCH_FILE = Path("launcher") / "launch.json"
TAIL_BYTES = 16_384
RECENT_VALUES = 5  # logged speeds whose median counts as the speed now
SPEED_KEY = "train/tokens_per_second"
KINDS = {
    "checkpoints": "checkpoints of complete runs (their encoders stay)",
    "models": "models of complete fine-tunings (their scores and predictions stay)",
    "unfinished": "failed, interrupted and killed runs, whole",
    "leftovers": "temporary files and folders of killed processes",
    "cache": "prepared corpora and tokenised tasks that none of these runs refers to",
}
# a token, below the loss of a model without context: else a run is on its first plateau
LEARNT_CONTEXT_NATS = 0.2
LEARNT_NOTHING, BEHIND = "learnt nothing", "behind the "
UNFINISHED = ("failed", "interrupted", "killed")
QUIET_SECONDS = 3600.0  # what changed later than this ago may be in somebody's hands
CACHE_PARTS = ("corpora", "tasks", "features", "baselines")


class Launch(BaseModel):
    """What one stage was last started by: `clozelab reproduce`, or a sweep of its own."""

    words: list[str]  # of the command line, after `clozelab`; what looks like a secret is hidden
    started_in: str
    root: str  # where its runs were to lie
    # None of a search, which chooses on its way; no job where the stage was not to be run
    jobs: list[JobName] | None

    def command(self, root: Path) -> str:
        """The command line that goes on with it, where its runs lie in `root` now."""
        words = ["clozelab", *self.words]
        if Path(self.root) != root.resolve():
            words = [word for word in words if not word.startswith("runs_dir=")]
            words.append(f"runs_dir={root.resolve().parent.parent}")
        return ledger.command_line(words, self.started_in)


def write_launch(
    root: Path, words: Sequence[str], jobs: Mapping[str, Sequence[JobName] | None]
) -> None:
    """Note in the folder of its runs what `words` start: for each stage in `jobs`, these jobs."""
    path, known = root / LAUNCH_FILE, read_launches(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    said = {
        "words": redacted_words(words),
        "started_in": str(Path.cwd()),
        "root": str(root.resolve()),
    }
    known |= {stage: Launch(**said, jobs=names) for stage, names in jobs.items()}  # type: ignore[arg-type]
    ledger.write_json(path, {stage: one.model_dump() for stage, one in known.items()})


def read_launches(root: Path) -> dict[str, Launch]:
    """Stage -> its last launch; a note that is not there or cannot be read tells nothing."""
    try:
        saved = json.loads((root / LAUNCH_FILE).read_text(encoding="utf-8"))
        return {str(stage): Launch(**note) for stage, note in saved.items()}
    except (OSError, ValueError, TypeError, AttributeError):  # ValueError: also pydantic's
        return {}


def merge_launches(root: Path, theirs: Path) -> None:
    """Add the jobs of another folder's launches to those of a folder; without end (None) where
    either is.
    """
    known = read_launches(root)
    for stage, note in read_launches(theirs).items():
        mine = known.setdefault(stage, note)
        if mine.jobs is not None:
            mine.jobs = None if note.jobs is None else [*dict.fromkeys([*mine.jobs, *note.jobs])]
    ledger.write_json(root / LAUNCH_FILE, {stage: one.model_dump() for stage, one in known.items()})


@dataclass(frozen=True)
class Progress:
    """Where a run stands; None where its folder does not say."""

    step: int = 0
    total_steps: int | None = None
    tokens: int = 0
    training_seconds: float = 0.0
    tokens_per_second: float | None = None
    seconds_left: float | None = None  # of training alone
    silent_seconds: float | None = None  # since the last line of metrics.csv


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
        sizes = ([one["global_batch_size"] * one["seq_length"]] * one["steps"] for one in phases)
        slots = [*chain.from_iterable(sizes)] or [1] * total
        left = tokens / speed * sum(slots[step:]) / sum(slots[:step])
    return Progress(
        step, total, tokens, seconds, speed, left, max(0.0, time.time() - path.stat().st_mtime)
    )


def elapsed(record: Record) -> float:
    """Seconds that a run took; of one that has not ended its training's alone, for its record is
    older.
    """
    if record.status in ("running", ledger.KILLED):
        return max(record.seconds, read_progress(record).training_seconds)
    return record.seconds


def context_free(run: Record) -> float | None:
    """The held-out loss without context: by the training text's frequencies, and copying what is
    left in place.
    """
    loss = run.facts.get("unigram_loss")
    return None if loss is None else (1.0 - same_fraction(run)) * float(loss)


def same_fraction(run: Record) -> float:
    """Of the predicted tokens, what masking leaves in place; none where every token is
    predicted.
    """
    token = (run.config.get("objective") or {}).get("token") or {}
    return float(token.get("same_fraction") or 0.0)


def gain(run: Record) -> float:
    """Of the loss, or the errors, that take no context: the share which a pre-training has learnt
    to avoid.
    """
    loss, plateau = run.facts.get("validation/loss"), context_free(run)
    if "validation/rtd_accuracy" in run.facts:  # the loss is the generator's, which is not kept
        right, usual = (run.facts[f"validation/rtd_{name}accuracy"] for name in ("", "trivial_"))
        return float((right - usual) / (1 - usual)) if usual < 1 else 0.0
    return 1 - float(loss) / plateau if loss is not None and plateau else 0.0


def reached(run: Record) -> str:
    """What a finished run's score stands beside: no context, one fixed answer, the best simple
    method; or nothing.
    """
    loss, plateau = run.facts.get("validation/loss"), context_free(run)
    if "validation/rtd_accuracy" in run.facts:
        right, usual = (run.facts[f"validation/rtd_{name}accuracy"] for name in ("", "trivial_"))
        told = (
            f"{right:.1%} of tokens rightly told as replaced or not, one answer gives {usual:.1%}"
        )
        return told if gain(run) > 0.05 else f"{LEARNT_NOTHING}: {told}"
    if run.stage == "pretrain" and loss is not None and plateau is not None:
        told = f"{loss:.2f} nats, word frequencies give {plateau:.2f}"
        return told if loss <= plateau - LEARNT_CONTEXT_NATS else f"{LEARNT_NOTHING}: {told}"
    score = run.scores.get(run.metric)
    known = [("most frequent label", score.majority)] if score else []
    if score and score.baselines:
        name, value = max(score.baselines.items(), key=itemgetter(1))
        known.append((BEHIND + name if (run.score or 0.0) < value else name, value))
    said = [f"{name} {value:.1f}" for name, value in known if value is not None]
    return ", ".join(
        [*said, *(["collapsed: one answer to everything"] if run.facts.get("collapsed") else [])]
    )


def shown_score(run: Record, value: float | None) -> str:
    """A headline score as tables have it; a loss or perplexity by its name."""
    if value is None:
        return DASH
    name = run.metric.rpartition("/")[2].replace("_", " ")
    return (
        f"{value:.1f}" if run.scores[run.metric].unit == ledger.PERCENT else f"{name} {value:.3f}"
    )


def results(records: Iterable[Record]) -> list[list[str]]:
    """A line for each arm, or row and task: name, task, finished runs, mean score, what that stands
    beside.
    """
    lines = []
    for (name, task), mine in grouped(records, attrgetter("name", "task")).items():
        mean = (
            statistics.fmean(scores)
            if (scores := [run.score for run in mine if run.score is not None])
            else None
        )
        beside = [
            one if one.startswith(LEARNT_NOTHING) else one.rpartition(" nats, ")[2]
            for one in map(reached, mine)
        ]
        words = "; ".join(filter(None, dict.fromkeys(beside)))
        lines.append([name, task, str(len(mine)), shown_score(mine[0], mean), words])
    return lines


def ending(run: Record) -> list[str]:
    """What a finished run says: its score, beside what; the next command, if any is of use; how its
    model is loaded.
    """
    is_encoder = run.stage == "pretrain"
    folder = (run.folder / ("encoder" if is_encoder else "")).resolve()
    score = "" if is_encoder else f"{run.title}: {shown_score(run, run.score)}; "
    said = [f"{score}{reached(run)}".removesuffix("; ")]
    if BEHIND in said[0]:
        said.append("a method without context does better: train longer, or give more examples")
    following = (
        f"finetune encoder={folder} row={run.name} task=TASK"
        if is_encoder
        else f"predict {folder} text=..."
    )
    is_kept = is_encoder or (folder / "model").is_dir()
    if said[0].startswith(LEARNT_NOTHING):
        said.append("more steps, shorter sequences or more text may help")
    elif is_kept:
        said.append(f"next: clozelab {following}")
    return [*filter(None, said), *([f'from Python: clozelab.load("{folder}")'] if is_kept else [])]


@dataclass(frozen=True)
class SweepState:
    """A stage of an experiment at one scale: its jobs counted, and how long the rest takes."""

    stage: str
    planned: int | None  # jobs of the launch; None where none says which there were to be
    counts: Counter[str]  # of runs that are a job of the launch, or of all
    others: int  # runs that are not
    not_begun: int
    # one job after the other; None where no finished run says how long one takes
    seconds_left: float | None

    @property
    def is_done(self) -> bool:
        return self.planned == self.counts["complete"]


def sweep_state(
    stage: str, records: Sequence[Record], jobs: Sequence[JobName] | None
) -> SweepState:
    """Count a stage's jobs, and add up what is left: of a job without a folder the median of the
    finished runs most like it, of one that has begun what its own speed says."""
    runs = every = [one for one in records if one.stage == stage]
    missing = Counter(jobs or ())
    if jobs is not None:
        runs = []
        # Of two with one name the better counts.
        for one in sorted(every, key=lambda run: ledger.STATUSES.index(run.status)):
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
        if one.status not in ("complete", ledger.DAMAGED):
            rest = read_progress(one).seconds_left
            left.append(typical_seconds(one.job_name) if rest is None else rest)
    known = [rest for rest in left if rest is not None]
    seconds_left = sum(known) if len(known) == len(left) else None
    planned, counts = None if jobs is None else len(jobs), Counter(one.status for one in runs)
    return SweepState(stage, planned, counts, len(every) - len(runs), missing.total(), seconds_left)


@dataclass
class Garbage:
    """One thing that may go; `lock` is the run folder, or the corpus's lock file, to hold
    meanwhile.
    """

    kind: str
    path: Path
    reason: str
    lock: Path | None = None

    @cached_property
    def num_bytes(self) -> int:
        return size(self.path)


def find_garbage(
    records: Sequence[Record], runs_dir: Path, cache_dir: Path, older_than_days: float
) -> list[Garbage]:
    """Everything that may go, by kind and place; `records` are of every run below `runs_dir`."""
    busy = {one.folder for one in records if one.holder is not None or one.status == "running"}
    found = list(_unused_cache(records, cache_dir))
    for one in (one for one in records if one.folder not in busy and _is_quiet(one.folder)):
        checkpoints = one.folder / "checkpoints"
        if (
            one.is_complete
            and checkpoints.is_dir()
            and (one.folder / "encoder" / "config.json").is_file()
        ):
            found.append(Garbage("checkpoints", checkpoints, "the run is complete", one.folder))
        if one.is_complete and one.stage == "finetune" and (model := one.folder / "model").is_dir():
            found.append(Garbage("models", model, "only predicting with it needs it", one.folder))
        age = (time.time() - last_change(one.folder)) / 86_400
        if one.status in UNFINISHED and age >= older_than_days:
            found.append(
                Garbage("unfinished", one.folder, f"{one.status} {age:.0f} days ago", one.folder)
            )
    for path in (path for pattern in ledger.TEMPORARY for path in runs_dir.rglob(pattern)):
        if not busy & set(path.parents) and _is_quiet(path):
            run = next(
                (folder for folder in path.parents if (folder / ledger.RUN_FILE).is_file()), None
            )
            found.append(Garbage("leftovers", path, "a killed process left it", run))
    whole = {one.path for one in found if one.kind == "unfinished"}
    found = [one for one in found if one.kind == "unfinished" or not whole & set(one.path.parents)]
    return sorted(found, key=lambda one: ([*KINDS].index(one.kind), str(one.path)))


def _unused_cache(records: Sequence[Record], cache_dir: Path) -> Iterator[Garbage]:
    corpora = {one.inputs.get("corpus") for one in records}
    named = {name for one in records for name in one.facts.get("cache", ())}
    # Tasks of unfinished runs, which may have used any entry of theirs.
    silent = {one.task for one in records if one.task and "cache" not in one.facts}
    # hidden ones, too
    for path in sorted(path for part in CACHE_PARTS for path in cache_dir.glob(f"{part}/*")):
        part, name = path.parent.name, path.name
        if not path.is_dir() or not _is_quiet(path):
            continue
        if name.startswith("."):
            # of a preparation that fills it
            with held(path.with_name(name.removesuffix(".tmp") + ".lock")) as is_free:
                if is_free:
                    yield Garbage("leftovers", path, "a killed process left it")
        elif part == "corpora":
            try:
                fingerprint = json.loads((path / "manifest.json").read_text(encoding="utf-8"))[
                    "fingerprint"
                ]
            except (OSError, ValueError, KeyError, TypeError):
                fingerprint = None
            if fingerprint not in corpora:
                yield Garbage(
                    "cache", path, "no run was trained on it", path.with_name(f".{name}.lock")
                )
        elif f"{part}/{name}" not in named and name.rpartition("-")[0] not in silent:
            yield Garbage("cache", path, "no run refers to it")


def _is_quiet(path: Path) -> bool:
    try:
        return time.time() - last_change(path) > QUIET_SECONDS
    except OSError:  # gone while we looked: somebody is at work
        return False


def last_change(path: Path) -> float:
    """Time of the newest change at or below a path; reading does not count, nor does a lock
    file.
    """
    times = [path.stat().st_mtime]
    if path.is_dir():
        times += [
            child.stat().st_mtime
            for child in path.rglob("*")
            if child.name != ".lock" and child.is_file()
        ]
    return max(times)


def size(path: Path) -> int:
    """Bytes at and below a path, without following links."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(
        child.lstat().st_size for child in path.rglob("*") if child.is_symlink() or child.is_file()
    )


def delete(item: Garbage) -> str:
    """Delete one thing; returns "" or why it stays."""
    if item.kind == "unfinished" and item.path.exists() and not _is_quiet(item.path):
        return "it has changed since it was listed"
    with held(item.lock) as is_free:
        if not is_free:
            return "in use by another process"
        try:
            if item.path.is_symlink() or not item.path.is_dir():
                item.path.unlink(missing_ok=True)
            else:
                # Out of sight first: half a folder must never pass for a whole one, nor a new run's
                # files go with it.
                (item.path / ledger.RUN_FILE).unlink(missing_ok=True)
                shutil.rmtree(
                    item.path.rename(item.path.with_name(f".{item.path.name}.deleted.tmp"))
                )
        except OSError as error:
            return str(error)
    return ""


@contextmanager
def held(lock: Path | None) -> Iterator[bool]:
    """Hold a lock file, or a run folder's, while inside; False, and nothing held, where somebody
    else has it.
    """
    guard: AbstractContextManager[object] = nullcontext()
    if lock is not None and lock.exists():
        guard = FileLock(lock / ledger.LOCK_FILE if lock.is_dir() else lock, timeout=0)
    try:
        with guard:
            yield True
    except Timeout:
        yield False
