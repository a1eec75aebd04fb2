"""What an experiment costs: time by speeds that are known, disk, and what a budget buys when arms
are matched.

Asked for time, it says None where a speed is not known; it never guesses one silently.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pandas
from omegaconf import OmegaConf
from scipy.optimize import brentq

from clozelab.datamodules.files import TaskPreview
from clozelab.launch.jobs import planned_jobs
from clozelab.launch.process_launcher import is_one_cpu_process, share_cores
from clozelab.launch.progress import Part, job_key, makespan
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import parameter_count
from clozelab.planning.jobs import (
    CHARACTERS_A_TOKEN,
    Arm,
    Corpus,
    Features,
    Kind,
    Request,
    Sample,
    Shape,
    Speed,
    TaskJob,
    Words,
)
from clozelab.planning.measures import MeasureJob, measure_job
from clozelab.planning.starts import Starts, constants, measured_starts, usual_starts
from clozelab.planning.steps import Step
from clozelab.planning.timing import HOST, measured_speeds
from clozelab.runs.cleanup import size
from clozelab.runs.find import Runs
from clozelab.runs.identity import canonical
from clozelab.runs.record import JobName
from clozelab.text.did_you_mean import key_of
from clozelab.text.formatting import duration
from clozelab.training.host import host_facts

ALIKE = {  # settings in which a run has to be equal to take as long
    "pretrain": ("model", "architecture", "objective", "phases"),
    "finetune": ("epochs", "global_batch_size", "head", "max_train_examples"),
    "evaluate": ("initialisation",),
}
# of a planned job; `check`: complete, most likely of the same inputs
DONE = ("complete", "check", "shared", "shared?")
MEASURE_OF_TASK: dict[str, Any] = {
    "hub": None,
    "epochs": 1,
    "global_batch_size": 1,
    "evaluations_per_epoch": 1,
    "max_train_examples": None,
}
"""What the reader of a task's files wants beside a measure's own settings."""
Samples = tuple[Sample | None, Sample | None]
NO_SPEED = (
    "no speed is known yet: leave --no-measure out (and the tasks' files must be in data_dir)"
)


@dataclass(frozen=True)
class Pool:
    """How a stage's jobs run: so many at a time, with so many threads each."""

    num_jobs: int
    num_seeds: int  # of pre-training
    at_once: int
    threads: int
    timed_at_once: int  # processes side by side that are timed: one where jobs run elsewhere
    forks: bool = False  # jobs are forked from a server that has imported what they need

    @classmethod
    def of(cls, step: Step) -> Pool:
        sweep = step.sweep
        seed = "pretrain_seed"
        if step.verb == "pretrain":
            seed = "seed"
        launcher = sweep.master.hydra.launcher
        at_once, threads = share_cores(
            launcher.get("jobs_at_once", 1), sweep.master, len(sweep.jobs)
        )
        num_seeds = len(sweep.groups(lambda key: key == seed))
        is_forkable = len(sweep.jobs) > 1 and is_one_cpu_process(sweep.master)
        forks = sweep.runs_here and bool(launcher.get("fork")) and is_forkable
        return cls(
            len(sweep.jobs),
            num_seeds,
            at_once,
            threads,
            at_once if sweep.runs_here else 1,
            forks,
        )


class TaskFiles:
    """What the files of each task hold, each read once by `read`, which takes a fine-tuning's
    settings.
    """

    def __init__(self, read: Callable[[Mapping[str, Any]], TaskPreview]) -> None:
        self.read = read
        self._found: dict[str, Samples] = {}

    def of(self, settings: Mapping[str, Any], preview: TaskPreview | None = None) -> Samples:
        """(training, validation), by the caller's preview if it has one; Nones for files not there,
        or on the hub.
        """
        key = json.dumps([settings["data_dir"], settings["task"]["data"]], default=str)
        if key not in self._found or preview is not None:
            try:
                preview = preview or (None if settings["hub"] else self.read(settings))
            except (OSError, ValueError):
                preview = None
            self._found[key] = (
                (Sample.of(preview.train), Sample.of(preview.validation))
                if preview
                else (None, None)
            )
        return self._found[key]


@dataclass(frozen=True)
class Costing:
    """An experiment at one scale: its arms, its tasks, how each stage's jobs share this machine,
    what was not timed.
    """

    arms: Sequence[Arm]
    tasks: Sequence[TaskJob]
    pools: Mapping[str, Pool]
    problems: Sequence[str] = ()
    measures: Sequence[MeasureJob] = ()

    @property
    def num_seeds(self) -> int:
        """Of pre-training."""
        return next((pool.num_seeds for pool in self.pools.values()), 1)

    @property
    def shapes(self) -> list[Shape]:
        return [*self.arms, *self.tasks, *self.measures]

    def of(self, verb: str) -> Sequence[Shape]:
        of_stage: dict[str, Sequence[Shape]] = {
            "pretrain": self.arms,
            "finetune": self.tasks,
            "evaluate": self.measures,
        }
        return of_stage[verb]

    @property
    def starts(self) -> Starts:
        """Start-ups of its jobs, as far as they are known."""
        return next((shape.starts for shape in self.shapes), usual_starts())

    def wall(self, verb: str, *, only_left: bool = False) -> float | None:
        """Wall time of a stage's jobs, or of those that runs so far leave; None where a speed is
        not known.
        """
        durations: list[float] = []
        for shape in self.of(verb):
            count = shape.left if only_left else shape.count
            if shape.seconds is None and count:
                return None
            durations += [shape.seconds or 0.0] * count
        return makespan(durations, self.pools[verb].at_once if verb in self.pools else 1)

    def left(self, verb: str) -> int:
        return sum(shape.left for shape in self.of(verb))

    def room(self, root: Path, steps: Iterable[Step]) -> tuple[str, int, int, int]:
        """(where the runs go, bytes free there, bytes of all run folders, of those that are there
        already).
        """
        there = next(
            folder for folder in (root.absolute(), *root.absolute().parents) if folder.is_dir()
        )
        # Runs outside an experiment are of many sweeps: none is known to be one of these.
        mine = [root / step.verb for step in steps if step.folder and (root / step.verb).is_dir()]
        wanted = sum(shape.count * shape.result_bytes for shape in self.shapes)
        return str(root), shutil.disk_usage(there).free, wanted, sum(map(size, mine))


def assemble(
    steps: Sequence[Step],
    arms: Sequence[Arm],
    finetunings: Sequence[Kind],
    files: TaskFiles,
    runs: Runs | None,
    evaluations: Sequence[Kind] = (),
) -> Costing:
    """What is known without timing anything, with what the runs so far (of the experiment, at its
    scale) say.
    """
    sweeps = {step.verb: step for step in steps if step.is_sweep}
    past_of = {verb: past_runs(step, runs) for verb, step in sweeps.items()}
    looked = [(arm, past_of["pretrain"](arm.settings, arm.jobs)) for arm in arms]
    arms = [replace(arm, done=done, took=took) for arm, (done, took) in looked]
    tasks = task_jobs(finetunings, arms, files, past_of["finetune"]) if finetunings else []
    measures = []
    if evaluations:
        measures = measure_jobs(evaluations, arms, files, past_of["evaluate"])
    return Costing(
        arms,
        tasks,
        {verb: Pool.of(step) for verb, step in sweeps.items()},
        measures=measures,
    )


def measure_jobs(
    kinds: Iterable[Kind],
    arms: Sequence[Arm],
    files: TaskFiles,
    past_of: Callable[..., tuple[int, list[float]]],
) -> list[MeasureJob]:
    """Every measure on every size of encoder, over rows and seeds."""
    groups: dict[tuple[Any, ...], list[tuple[EncoderConfig, Corpus | None, Kind]]] = {}
    for settings, jobs in kinds:
        encoder, corpus = _measured_encoder(settings, arms)
        if encoder is None:
            continue
        key = settings["measure"]["name"], parameter_count(encoder), encoder.is_causal
        groups.setdefault(key, []).append((encoder, corpus, (settings, jobs)))

    made = []
    for group in groups.values():
        encoder, corpus, (settings, _) = group[0]
        jobs = [words for *_, (_, its_jobs) in group for words in its_jobs]
        past = [past_of(*kind) for *_, kind in group]
        took = [seconds for _, one in past for seconds in one]
        samples: Samples = (None, None)
        if settings["measure"]["task"] is not None:
            samples = files.of({**settings, **MEASURE_OF_TASK, "task": settings["measure"]["task"]})
        more: dict[str, Any] = {"done": sum(done for done, _ in past), "took": took}
        made.append(measure_job(settings, jobs, encoder, corpus, samples, **more))
    return made


def _measured_encoder(
    settings: Mapping[str, Any],
    arms: Sequence[Arm],
) -> tuple[EncoderConfig | None, Corpus | None]:
    """The shape of the encoder of an evaluation and the corpus it was trained on; Nones where it is
    not there yet."""
    if arms:
        arm = next((arm for arm in arms if arm.name == str(settings["encoder_arm"])), arms[0])
        return arm.config, arm.corpus
    from clozelab.models.folders import read_config  # lazy: only a given encoder is read

    try:
        return read_config(settings["encoder"]), None
    except (OSError, ValueError):
        return None, None


def task_jobs(
    found: Iterable[Kind],
    arms: Sequence[Arm],
    files: TaskFiles,
    past_of: Callable[..., tuple[int, list[float]]],
) -> list[TaskJob]:
    """Every task, head and size of encoder, over rows and seeds; `past_of` says what runs so far
    tell of a kind.
    """
    # it imports the modules, and only a given encoder needs it
    from clozelab.modules.model import max_positions

    by_name = {arm.name: arm for arm in arms}
    groups: dict[tuple[Any, ...], list[tuple[EncoderConfig, int, Kind]]] = {}
    for settings, jobs in found:
        if arms:
            arm = by_name.get(str(settings["encoder_arm"]), arms[0])
            encoder, trained = arm.config, arm.longest
        else:
            from clozelab.models.folders import read_config  # lazy: only a given encoder is read

            encoder, trained = (
                read_config(settings["encoder"]),
                max_positions(Path(settings["encoder"])),
            )
        work = (
            parameter_count(encoder),
            *(str(settings[one]) for one in (*ALIKE["finetune"], "evaluations_per_epoch")),
        )
        key = settings["task"]["name"], settings["head"], work, Features.of(settings, encoder)
        groups.setdefault(key, []).append((encoder, trained, (settings, jobs)))
    # A frozen encoder passes over a task's text once, for all jobs that stand on it.
    readers = Counter(
        one
        for (*_, features), group in groups.items()
        if features
        for *_, kind in group
        for one in _encoders(*kind)
    )
    made = []
    for (task, head, _, features), group in groups.items():
        encoder, trained, (settings, _) = group[0]
        kinds = [kind for *_, kind in group]
        jobs = [words for _, its_jobs in kinds for words in its_jobs]
        done, took = zip(*(past_of(*kind) for kind in kinds), strict=True)
        past: Any = {"done": sum(done), "took": [*chain.from_iterable(took)]}
        share = (
            sum(1 / readers[one] for kind in kinds for one in _encoders(*kind)) / len(jobs)
            if features
            else 0.0
        )
        train, validation = files.of(settings)
        sizes = _sizes(
            settings["task"]["data"],
            train,
            min(int(settings["task"]["data"]["max_seq_length"]), trained),
        )
        shape = task, head, encoder, train, validation, *sizes, features, share
        made.append(TaskJob(*shape, settings=settings, jobs=jobs, **past))
    return made


def _sizes(data: Mapping[str, Any], train: Sample | None, longest: int) -> tuple[float, float, int]:
    """(tokens of an example, its inputs, tokens of the longest input)."""
    length = train.characters / CHARACTERS_A_TOKEN + 2 if train else longest / 2
    if data.get("document_context"):
        length = longest  # neighbouring sentences fill the input
    inputs = train.inputs if train else 1.0
    if length > longest and "doc_stride" in data:
        inputs = 1.0 + -(-(length - longest) // min(int(data["doc_stride"]), longest // 2))
    else:
        length *= inputs
    return max(4.0, min(length, inputs * longest)), inputs, longest


def _encoders(settings: Mapping[str, Any], jobs: Sequence[Words]) -> Iterator[Words]:
    """A task and the encoder that each of some jobs of one configuration stands on, in words that
    tell them apart.
    """
    keys = ("encoder_arm", "encoder_fraction", "initialisation")
    which = settings["task"]["name"], *(str(settings[key]) for key in keys)
    for words in jobs:
        seeds = [word.partition("=")[2] for word in words if key_of(word) == "pretrain_seed"]
        yield (*which, *(seeds or [str(settings["pretrain_seed"])]))


def past_runs(
    step: Step, runs: Runs | None
) -> Callable[[Mapping[str, Any], Sequence[Words]], tuple[int, list[float]]]:
    """How many of a kind's jobs need not run again, and how many seconds each run like it took on
    this machine.
    """
    if runs is None:
        of_stage = []
    else:
        of_stage = getattr(runs, step.verb)
    complete, here = [run for run in of_stage if run.is_complete], host_facts()["host"]
    timed = []
    for run in complete:
        is_of_here = all(run.host.get(key) == here[key] for key in HOST)
        if run.shared is None and run.seconds and is_of_here:
            timed.append(run)
    # Runs of other experiments are shared in pre-training alone.
    asks = runs is not None and (complete or step.verb == "pretrain")
    done = (
        {job.overrides for job in planned_jobs(step.sweep) if job.status in DONE} if asks else set()
    )

    def look(settings: Mapping[str, Any], jobs: Sequence[Words]) -> tuple[int, list[float]]:
        config = json.loads(json.dumps(canonical(OmegaConf.create(dict(settings)))))
        name, wanted = JobName.of(settings)[:2], {key: config.get(key) for key in ALIKE[step.verb]}
        took = []
        for run in timed:
            its_own = {key: run.config.get(key) for key in wanted}
            if run.job_name[:2] == name and wanted == its_own:
                took.append(run.seconds)
        return sum(words in done for words in jobs), took

    return look


def with_speeds(
    costing: Costing,
    cache_dir: Path,
    *,
    measure: bool,
    anew: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Costing:
    """The same with the speeds and start-ups that the cache has, or (`measure`) will then have; see
    measured_speeds."""
    # What runs alike is timed together: it costs seconds to start the timing processes.
    groups: dict[tuple[int, int], list[str]] = {}
    for verb, pool in costing.pools.items():
        groups.setdefault((pool.timed_at_once, pool.threads), []).append(verb)

    timed: dict[str, list[Any]] = {"pretrain": [], "finetune": [], "evaluate": []}
    told: list[tuple[Request, Speed | None]] = []
    for (at_once, threads), verbs in groups.items():
        requests = [
            request for verb in verbs for shape in costing.of(verb) for request in shape.requests()
        ]
        how: dict[str, Any] = {
            "at_once": at_once,
            "threads": threads,
            "measure": measure,
            "anew": anew,
            "say": say,
        }
        speeds = []
        if requests:
            speeds = measured_speeds(requests, cache_dir, **how)
        starts = _starts(costing, verbs, cache_dir, how)
        told += zip(requests, speeds, strict=True)
        answers = iter(speeds)
        for verb in verbs:
            for shape in costing.of(verb):
                own = [next(answers) for _ in shape.requests()]
                timed[verb].append(replace(shape, speeds=own, starts=starts))
    problems = dict.fromkeys(
        f"{one.title}: {speed.problem}" for one, speed in told if speed and speed.problem
    )
    return replace(
        costing,
        arms=timed["pretrain"],
        tasks=timed["finetune"],
        measures=timed["evaluate"],
        problems=tuple(problems),
    )


def _starts(
    costing: Costing,
    verbs: Sequence[str],
    cache_dir: Path,
    how: Mapping[str, Any],
) -> Starts:
    """Start-ups of the jobs of some stages, which run alike."""
    shape = next((shape for verb in verbs for shape in costing.of(verb)), None)
    if shape is None:
        return usual_starts()
    forks = any(costing.pools[verb].forks for verb in verbs)
    return measured_starts(shape.settings["trainer"], cache_dir, forks=forks, **how)


def affordable(
    costing: Costing, budget_seconds: float, matchings: Iterable[str]
) -> dict[str, pandas.DataFrame]:
    """What every arm gets of a budget for the whole experiment, by each of these ways to match
    arms.
    """
    finetune = costing.wall("finetune")
    if finetune is None or not costing.arms or any(arm.seconds is None for arm in costing.arms):
        raise ValueError(NO_SPEED)
    left = budget_seconds - finetune
    if left <= 0.0:
        raise ValueError(
            f"fine-tuning alone takes about {duration(finetune)}: fewer tasks or seeds, or more"
            " time"
        )
    return {
        name: divide(costing.arms, left, costing.pools["pretrain"].at_once, name)
        for name in matchings
    }


def divide(
    arms: Sequence[Arm], wall_seconds: float, at_once: int, matched_by: str
) -> pandas.DataFrame:
    """What a run of each arm gets of some wall time, so many jobs at a time, at equal steps,
    tokens, flops or time.

    A line an arm: its steps, tokens, flops and seconds; `factor` times its planned run; and the
    `steps_factor` that its configuration has to say for it. ValueError: an arm takes no time, or
    the time is gone before a first step."""
    start = max(arm.starts.pretrain for arm in arms)
    planned = pandas.DataFrame(
        {
            "arm": arm.name,
            "steps": arm.steps,
            "tokens": arm.tokens,
            "flops": arm.flops,
            "time": max((arm.seconds or 0.0) - start, 0.0),
            "steps_factor": arm.settings["steps_factor"],
        }
        for arm in arms
    )
    if instant := list(planned.arm[planned.time == 0.0]):
        raise ValueError(
            f"a run of {', '.join(instant)} takes no longer than its start: there is nothing to"
            " divide"
        )
    counts, amounts = [arm.count for arm in arms], planned[matched_by]

    def wall(amount: float) -> float:
        """Where one run of each arm gets so much of the quantity: that share of its planned run,
        and the start.
        """
        return makespan((start + planned.time * amount / amounts).repeat(counts), at_once)

    if wall(0.0) >= wall_seconds:
        raise ValueError(
            "starting the runs alone takes longer: fewer arms or seeds, or a larger budget"
        )
    # With this much the processes would be busy all the time without starting: never less than what
    # there is time for.
    most = wall_seconds * at_once / (counts * planned.time / amounts).sum()
    factor = (
        brentq(lambda amount: wall(amount) - wall_seconds, 0.0, most, xtol=1e-9 * most) / amounts
    )
    shares = planned[["steps", "tokens", "flops", "steps_factor"]].mul(factor, axis=0)
    return shares.assign(arm=planned.arm, seconds=start + planned.time * factor, factor=factor)


def parts_of(
    costing: Costing,
    steps: Sequence[Step],
    opening: float,
    preparing: float,
) -> list[Part] | None:
    """The parts of a reproduction, or of one sweep, with what each takes by the clock; None where a
    speed is unknown.

    Args:
        opening: seconds that it took to open the experiment here, imports included; the other steps
        open it again.
        preparing: seconds of preparing its corpora.
    """
    times, whole = constants()["times_of_opening"], len(steps) > 1
    parts = []
    for step in steps:
        if not step.is_sweep:
            parts.append(Part("prepare", preparing))
            continue
        if whole and not any(part.name == "doctor" for part in parts):
            parts.append(Part("doctor", times["doctor"] * opening))
        seconds = costing.wall(step.verb, only_left=True)
        if seconds is None:
            return None
        start = times[step.verb] * opening
        if costing.pools[step.verb].forks and costing.left(step.verb):
            start = max(start, costing.starts.server)
        parts.append(Part(step.verb, start + seconds, job_seconds(costing.of(step.verb))))
    if whole:
        parts.append(Part("report", times["report"] * opening))
    return parts


def job_seconds(shapes: Iterable[Shape]) -> dict[str, float]:
    """Of every job, by its words."""
    return {job_key(words): shape.seconds or 0.0 for shape in shapes for words in shape.jobs}


def sizes(costing: Costing, verb: str) -> Part:
    """How long the jobs of one stage take or, where no speed is known, how large they are beside
    each other."""
    shapes = costing.of(verb)
    seconds = costing.wall(verb, only_left=True)
    if seconds is not None:
        return Part(verb, seconds, job_seconds(shapes))
    work = {job_key(words): shape.flops for shape in shapes for words in shape.jobs}
    if any(flops is None for flops in work.values()):
        return Part(verb, 0.0)
    return Part(verb, 0.0, {key: flops or 0.0 for key, flops in work.items()}, is_relative=True)
