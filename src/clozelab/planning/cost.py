"""What an experiment costs: time by known speeds, disk, and what a budget buys matched arms.

Asked for time, it says None where a speed is not known; it never guesses one silently.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from claims.analysis.grouping import group_by
from claims.text.phrases import duration
from clozelab.datamodules.files import MissingFileError
from clozelab.launch.process_launcher import allowed_threads, is_one_cpu_process, share_cores
from clozelab.launch.progress import PlanPart, job_key
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import parameter_count
from clozelab.planning.arms import Arm, Corpus
from clozelab.planning.finished import done_jobs
from clozelab.planning.measures import MeasureJob, measure_job
from clozelab.planning.shapes import (
    C,
    JobGroup,
    Request,
    Shape,
    Speed,
    TaskPlace,
    Words,
    optimizer_kind,
)
from clozelab.planning.speeds import measured_speeds
from clozelab.planning.starts import constants, start_seconds
from clozelab.planning.steps import Step
from clozelab.planning.tasks import (
    CHARACTERS_A_TOKEN,
    NO_SAMPLES,
    ExampleLengths,
    Features,
    Sample,
    Samples,
    TaskJob,
)
from clozelab.runs.cleanup import size
from clozelab.runs.find import Runs
from clozelab.runs.time_left import JobForecast, makespan, wall_seconds_left
from clozelab.schema import (
    Component,
    EncoderStageConfig,
    EvaluateConfig,
    FinetuneConfig,
    TaskConfig,
)
from clozelab.tasks.preview import TaskPreview
from clozelab.text.did_you_mean import values_of

if TYPE_CHECKING:  # a second, for a budget alone
    import pandas

# settings in which a fine-tuning has to be equal to take as long
ALIKE = (
    "epochs",
    "global_batch_size",
    "head",
    "max_train_examples",
    "evaluations_per_epoch",
    "adaptation",
    "freeze",
    "keep_model",
)
NO_SPEED = (
    "no speed is known yet: leave --no-measure out (and the tasks' files must be in data_dir)"
)


@dataclass(frozen=True)
class Pool:
    """How a stage's jobs run: so many at a time, with so many threads each.

    Attributes:
        num_jobs: of the stage.
        num_seeds: of pre-training.
        at_once: jobs that run side by side.
        threads: of each job's process.
        timed_at_once: processes side by side that are timed: one where jobs run elsewhere.
        forks: jobs are forked from a server that has imported what they need.
    """

    num_jobs: int
    num_seeds: int
    at_once: int
    threads: int
    timed_at_once: int
    forks: bool = False

    @classmethod
    def from_step(cls, step: Step) -> Pool:
        sweep = step.sweep
        launcher = sweep.master.hydra_value("launcher")
        at_once, threads = share_cores(
            launcher.get("jobs_at_once", 1), sweep.master, len(sweep.jobs)
        )
        seed_key = "pretrain_seed"
        if step.verb == "pretrain":
            seed_key = "seed"
        timed_at_once = 1
        forks = False
        if sweep.runs_here:
            timed_at_once = at_once
            threads = allowed_threads(threads)
            is_forkable = len(sweep.jobs) > 1 and is_one_cpu_process(sweep.master)
            forks = bool(launcher.get("fork")) and is_forkable
        return cls(
            num_jobs=len(sweep.jobs),
            num_seeds=len(sweep.groups(lambda key: key == seed_key)),
            at_once=at_once,
            threads=threads,
            timed_at_once=timed_at_once,
            forks=forks,
        )


class TaskFiles:
    """What the files of each task hold, each read once.

    Args:
        read: reads them.
    """

    def __init__(self, read: Callable[[TaskPlace], TaskPreview]) -> None:
        self.read = read
        self._samples: dict[str, Samples] = {}

    def of(self, place: TaskPlace, preview: TaskPreview | None = None) -> Samples:
        """Both splits, by the caller's preview if it has one.

        They are None for files that are not there, or on the hub.
        """
        key = json.dumps([place.data_dir, place.task["data"]], default=str)
        if preview is None:
            if key not in self._samples:
                self._samples[key] = self._read(place)
            return self._samples[key]
        self._samples[key] = _samples_of(preview)
        return self._samples[key]

    def _read(self, place: TaskPlace) -> Samples:
        if place.hub:  # an evaluation has none
            return NO_SAMPLES
        try:
            return _samples_of(self.read(place))
        except (FileNotFoundError, MissingFileError):
            return NO_SAMPLES
        except (OSError, ValueError) as error:
            return NO_SAMPLES._replace(fault=str(error))


def _samples_of(preview: TaskPreview) -> Samples:
    train, validation = map(Sample.from_preview, (preview.train, preview.validation))
    return Samples(train, validation)


class DiskUsage(NamedTuple):
    """Room on the disk, in bytes."""

    folder: str  # where the runs go
    free_bytes: int
    run_bytes: int = 0  # of all run folders
    used_bytes: int = 0  # of them, that are there already


@dataclass(frozen=True)
class Costing:
    """An experiment at one scale.

    Attributes:
        arms, tasks, measures: what runs in each stage.
        pools: how each stage's jobs share this machine.
        problems: what was not timed, and why.
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
        shapes_of = {
            "pretrain": self.arms,
            "finetune": self.tasks,
            "evaluate": self.measures,
        }
        return shapes_of[verb]

    def wall(self, verb: str, *, only_left: bool = False) -> float | None:
        """Wall time of a stage's jobs, or of those that runs so far leave.

        It is None where a speed is not known.
        """
        jobs: list[JobForecast] = []
        for shape in self.of(verb):
            count = shape.left if only_left else shape.count
            jobs += [JobForecast(shape.seconds)] * count
        at_once = 1
        if verb in self.pools:
            at_once = self.pools[verb].at_once
        return wall_seconds_left(jobs, at_once)

    def left(self, verb: str) -> int:
        return sum(shape.left for shape in self.of(verb))

    def disk_usage(self, root: Path, steps: Iterable[Step]) -> DiskUsage:
        """What the runs below a folder want, and what there is."""
        folder = root.absolute()
        while not folder.is_dir():
            folder = folder.parent
        used_bytes = 0
        for step in steps:
            # Runs outside an experiment are of many sweeps: none is known to be one of these.
            if step.folder and (root / step.verb).is_dir():
                used_bytes += size(root / step.verb)
        return DiskUsage(
            folder=str(root),
            free_bytes=shutil.disk_usage(folder).free,
            run_bytes=sum(shape.count * shape.result_bytes for shape in self.shapes),
            used_bytes=used_bytes,
        )


# What runs, without timing anything


def assemble(
    steps: Sequence[Step],
    arms: Sequence[Arm],
    finetunings: Sequence[JobGroup[FinetuneConfig]],
    files: TaskFiles,
    runs: Runs | None,
    evaluations: Sequence[JobGroup[EvaluateConfig]],
) -> Costing:
    """What is known without timing anything.

    Args:
        steps: of the experiment.
        arms: that are pre-trained.
        finetunings, evaluations: the jobs of these stages.
        files: of the tasks.
        runs: those so far, of the experiment at its scale.
    """
    sweeps = {step.verb: step for step in steps if step.is_sweep}
    shapes: dict[str, list[Any]] = {
        "pretrain": list(arms),
        "finetune": task_jobs(finetunings, arms, files),
        "evaluate": measure_jobs(evaluations, arms, files),
    }
    for verb, step in sweeps.items():
        done = done_jobs(step, runs)
        shapes[verb] = [
            replace(shape, done=len(done.intersection(shape.jobs))) for shape in shapes[verb]
        ]
    pools = {verb: Pool.from_step(step) for verb, step in sweeps.items()}
    return Costing(shapes["pretrain"], shapes["finetune"], pools, measures=shapes["evaluate"])


@dataclass(frozen=True)
class EncoderShape:
    """The encoder that a job stands on, as far as its cost goes."""

    config: EncoderConfig
    # Of an arm's: what it is trained on, and tokens of the longest instance of that.
    corpus: Corpus | None = None
    longest: int | None = None


def _encoder_of(settings: EncoderStageConfig, arms: Sequence[Arm]) -> EncoderShape:
    """That of the arm that a job names, else the first arm's; without arms the given one.

    ValueError, OSError: the given one is not there.
    """
    for arm in arms:
        if arm.name == settings.encoder_arm:
            return EncoderShape(arm.config, arm.corpus, arm.longest)
    if arms:
        return EncoderShape(arms[0].config, arms[0].corpus, arms[0].longest)
    from clozelab.models.folders import read_config  # lazy: only a given encoder is read

    return EncoderShape(read_config(str(settings.encoder)))


def measure_jobs(
    groups: Iterable[JobGroup[EvaluateConfig]], arms: Sequence[Arm], files: TaskFiles
) -> list[MeasureJob]:
    """Every measure on every size of encoder, over rows and seeds."""
    with_encoder = []
    for group in groups:
        with_encoder.append((group, _encoder_of(group.settings, arms)))

    def kind(job: tuple[JobGroup[EvaluateConfig], EncoderShape]) -> Hashable:
        # A mask of attention counts: a masked model reads a sentence once for each of its tokens.
        config = job[1].config
        return job[0].settings.measure.name, parameter_count(config), config.is_causal

    measures = []
    for alike in group_by(with_encoder, kind).values():
        group, encoder = alike[0]
        settings = group.settings
        samples = NO_SAMPLES
        if settings.measure.task is not None:
            samples = files.of(TaskPlace.of_measure(settings))
        jobs = _jobs_of(alike)
        measures.append(measure_job(settings, jobs, encoder.config, encoder.corpus, samples))
    return measures


def _jobs_of(alike: Iterable[tuple[JobGroup[C], EncoderShape]]) -> list[Words]:
    jobs: list[Words] = []
    for group, _ in alike:
        jobs += group.jobs
    return jobs


def task_jobs(
    groups: Iterable[JobGroup[FinetuneConfig]], arms: Sequence[Arm], files: TaskFiles
) -> list[TaskJob]:
    """Every task, head and size of encoder, over rows and seeds."""
    # it imports the modules, and only a given encoder needs it
    from clozelab.modules.model import max_positions

    with_encoder = [(group, _encoder_of(group.settings, arms)) for group in groups]
    # A frozen encoder passes over a task's text once, for all jobs that stand on it.
    passes = set()
    num_readers = 0
    for group, encoder in with_encoder:
        if Features.from_task(group.settings.task, encoder.config):
            passes |= set(_encoders_read(group))
            num_readers += len(group.jobs)

    def kind(job: tuple[JobGroup[FinetuneConfig], EncoderShape]) -> Hashable:
        settings = job[0].settings
        config = job[1].config
        values = [str(getattr(settings, key)) for key in ALIKE]
        values += [str(optimizer_kind(settings.optimizer)), settings.task.data["max_seq_length"]]
        features = Features.from_task(settings.task, config)
        return settings.task.name, parameter_count(config), features, *values

    tasks = []
    for alike in group_by(with_encoder, kind).values():
        group, encoder = alike[0]
        trained_length = encoder.longest
        if trained_length is None:
            trained_length = max_positions(Path(str(group.settings.encoder)))
        samples = files.of(TaskPlace.of_finetuning(group.settings))
        jobs = _jobs_of(alike)
        rows = dict.fromkeys(of_row.settings.row for of_row, _ in alike)
        task = _task_job(group.settings, jobs, encoder.config, samples, trained_length)
        task = replace(task, rows=list(rows))
        if task.features:
            task = replace(task, pass_share=len(passes) / num_readers)
        tasks.append(task)
    return tasks


def _task_job(
    settings: FinetuneConfig,
    jobs: Sequence[Words],
    encoder: EncoderConfig,
    samples: Samples,
    trained_length: int,
) -> TaskJob:
    """The fine-tunings that cost the same as the first of them, whose settings these are."""
    task = settings.task
    longest = min(int(task.data["max_seq_length"]), trained_length)
    lengths = lengths_of(task, samples.train, longest)
    return TaskJob(
        task=task.name,
        head=settings.head,
        encoder=encoder,
        samples=samples,
        lengths=lengths,
        longest=longest,
        features=Features.from_task(task, encoder),
        settings=settings,
        jobs=jobs,
    )


def lengths_of(task: TaskConfig, train: Sample | None, longest: int) -> ExampleLengths:
    """By the training file; guesses where it is not there.

    Args:
        task: whose examples they are.
        train: what its training file holds.
        longest: tokens of the longest input.
    """
    inputs = 1.0
    length = longest / 2
    if train is not None:
        inputs = train.inputs
        length = train.characters / CHARACTERS_A_TOKEN + 2
    if task.data.get("document_context"):
        length = longest  # neighbouring sentences fill the input
    stride = _window_stride(task.data, longest)
    if stride is None or length <= longest:
        return ExampleLengths(max(4.0, inputs * min(length, longest)), inputs)
    # Every further window reads again what it shares with the one before.
    further = math.ceil((length - longest) / stride)
    return ExampleLengths(length + further * (longest - stride), 1.0 + further)


def _window_stride(data: Component, longest: int) -> int | None:
    """Tokens between the windows that a task cuts long texts into; None where it cuts none."""
    if "doc_stride" in data:
        return min(int(data["doc_stride"]), longest // 2)
    if data.get("long_documents") == "windows":
        return min(int(data["window_stride"]), longest - 2)
    return None


def _encoders_read(group: JobGroup[FinetuneConfig]) -> Iterator[Words]:
    """A task and the encoder that each of some jobs stands on, in words that tell them apart."""
    settings = group.settings
    encoder = (settings.encoder_arm, settings.encoder_fraction, settings.initialisation)
    common = (settings.task.name, *map(str, encoder))
    for words in group.jobs:
        # A job without an override of the seed has the sweep's own.
        seed = values_of(words).get("pretrain_seed", str(settings.pretrain_seed))
        yield (*common, seed)


# Speeds


def with_speeds(costing: Costing, cache_dir: Path, **options: Any) -> Costing:
    """The same with the speeds that the cache has, or (`measure`) will then have.

    The options are those of measured_speeds.
    """
    # What runs alike is timed together: it costs seconds to start the timing processes.
    verbs_of: dict[tuple[int, int], list[str]] = {}
    for verb, pool in costing.pools.items():
        verbs_of.setdefault((pool.timed_at_once, pool.threads), []).append(verb)

    timed: dict[str, list[Any]] = {"pretrain": [], "finetune": [], "evaluate": []}
    problems: dict[str, None] = {}  # each once
    for (at_once, threads), verbs in verbs_of.items():
        requests: list[Request] = []
        for shape in chain.from_iterable(map(costing.of, verbs)):
            requests += shape.requests()
        speeds = measured_speeds(requests, cache_dir, at_once=at_once, threads=threads, **options)
        for request, speed in zip(requests, speeds, strict=True):
            if speed and speed.problem:
                problems[f"{request.title}: {speed.problem}"] = None
        for verb, shape in _timed_shapes(costing, verbs, speeds):
            timed[verb].append(shape)
    return replace(
        costing,
        arms=timed["pretrain"],
        tasks=timed["finetune"],
        measures=timed["evaluate"],
        problems=tuple(problems),
    )


def _timed_shapes(
    costing: Costing, verbs: Iterable[str], speeds: Iterable[Speed | None]
) -> Iterator[tuple[str, Shape]]:
    """The shapes of some verbs, each with its verb, with the speeds that answer their requests."""
    # The answers come in the order of the requests: each shape takes as many as it asked.
    answers = iter(speeds)
    for verb in verbs:
        start = start_seconds(verb, forks=costing.pools[verb].forks)
        for shape in costing.of(verb):
            answered = [next(answers) for _ in shape.requests()]
            yield verb, replace(shape, speeds=answered, start=start)


# What a budget buys


def affordable(
    costing: Costing, budget_seconds: float, matchings: Iterable[str]
) -> dict[str, pandas.DataFrame]:
    """What every arm gets of a budget for the whole experiment, by each way to match arms.

    ValueError: no speed is known, or the budget is too small.
    """
    # What comes after is paid for first: its steps are the tasks' and the measures', and
    # pre-training gets what is left.
    finetune = costing.wall("finetune")
    evaluate = costing.wall("evaluate")
    has_speeds = not any(arm.seconds is None for arm in costing.arms)
    if finetune is None or evaluate is None or not costing.arms or not has_speeds:
        raise ValueError(NO_SPEED)
    left = budget_seconds - finetune - evaluate
    if left <= 0.0:
        raise ValueError(
            f"fine-tuning and measures alone take about {duration(finetune + evaluate)}: fewer"
            " tasks, measures or seeds, or more time"
        )
    at_once = costing.pools["pretrain"].at_once
    return {name: divide(costing.arms, left, at_once, name) for name in matchings}


def divide(
    arms: Sequence[Arm], wall_seconds: float, at_once: int, matched_by: str
) -> pandas.DataFrame:
    """What a run of each arm gets of some wall time, at equal steps, tokens, flops or time.

    ValueError: the time is gone before a first step.

    Args:
        arms: all of them, each with its runs.
        wall_seconds: for all runs.
        at_once: runs side by side.
        matched_by: steps, tokens, flops or time.

    Returns:
        A line an arm: its steps, tokens, flops and seconds; `factor` times its planned run; and the
        `steps_factor` that its configuration has to say for it.
    """
    from scipy.optimize import brentq

    start = max(arm.start for arm in arms)
    planned = _planned_runs(arms, start)
    counts = [arm.count for arm in arms]
    amounts = planned[matched_by]

    def wall(amount: float) -> float:
        """Wall time of all runs where each gets so much of the quantity."""
        seconds = start + planned.time * amount / amounts
        return makespan(seconds.repeat(counts), at_once)

    if wall(0.0) >= wall_seconds:
        raise ValueError(
            "starting the runs alone takes longer: fewer arms or seeds, or a larger budget"
        )
    # With this much the processes would be busy all the time without starting: never less than what
    # there is time for.
    most = wall_seconds * at_once / (counts * planned.time / amounts).sum()
    # The wall time rises with the amount, piece by piece, since makespan packs whole runs: there is
    # no formula to be turned around.
    amount = brentq(lambda amount: wall(amount) - wall_seconds, 0.0, most, xtol=1e-9 * most)
    factor = amount / amounts
    # More than a text is good for is taken from all arms alike.
    spare = [arm.useful_factor / multiple for arm, multiple in zip(arms, factor, strict=True)]
    factor *= min(1.0, *spare)
    shares = planned[["steps", "tokens", "flops", "steps_factor"]].mul(factor, axis=0)
    return shares.assign(arm=planned.arm, seconds=start + planned.time * factor, factor=factor)


def _planned_runs(arms: Iterable[Arm], start: float) -> pandas.DataFrame:
    """One run of each arm as it is planned; its time is without the start."""
    import pandas

    lines = []
    for arm in arms:
        lines.append(
            {
                "arm": arm.name,
                "steps": arm.steps,
                "tokens": arm.tokens,
                "flops": arm.flops,
                "time": (arm.seconds or 0.0) - start,
                "steps_factor": arm.settings.steps_factor,
            }
        )
    return pandas.DataFrame(lines)


# The parts of a reproduction's time


def parts_of(
    costing: Costing,
    steps: Sequence[Step],
    opening: float,
    preparing: float,
) -> list[PlanPart] | None:
    """The parts of a reproduction, or of one sweep, with what each takes by the clock.

    It is None where a speed is unknown.

    Args:
        costing: of all sweeps.
        steps: the commands.
        opening: seconds that it took to open the experiment here, imports included; the other steps
            open it again.
        preparing: seconds of preparing its corpora.
    """
    # How many times `opening` a verb takes besides its jobs.
    times = constants().times_of_opening
    is_reproduction = len(steps) > 1
    plan = []
    for step in steps:
        if not step.is_sweep:
            plan.append(PlanPart("prepare", preparing))
            continue
        # The pre-flight is before the first sweep.
        if is_reproduction and not any(part.name == "doctor" for part in plan):
            plan.append(PlanPart("doctor", times["doctor"] * opening))
        seconds = costing.wall(step.verb, only_left=True)
        if seconds is None:
            return None
        start = times[step.verb] * opening
        if costing.pools[step.verb].forks and costing.left(step.verb):
            start = max(start, start_seconds("server", forks=True))
        plan.append(PlanPart(step.verb, start + seconds, job_seconds(costing.of(step.verb))))
    if is_reproduction:
        plan.append(PlanPart("report", times["report"] * opening))
    return plan


def job_seconds(shapes: Iterable[Shape]) -> dict[str, float]:
    """Of every job, by its words."""
    seconds_of: dict[str, float] = {}
    for shape in shapes:
        seconds_of |= dict.fromkeys(map(job_key, shape.jobs), shape.seconds or 0.0)
    return seconds_of


def sizes(costing: Costing, verb: str) -> PlanPart:
    """How long the jobs of one stage take.

    Where no speed is known: how large they are beside each other.
    """
    shapes = costing.of(verb)
    seconds = costing.wall(verb, only_left=True)
    if seconds is not None:
        return PlanPart(verb, seconds, job_seconds(shapes))
    work: dict[str, float] = {}
    for shape in shapes:
        if shape.flops is None:
            return PlanPart(verb, 0.0)
        work |= dict.fromkeys(map(job_key, shape.jobs), shape.flops)
    return PlanPart(verb, 0.0, work, is_relative=True)
