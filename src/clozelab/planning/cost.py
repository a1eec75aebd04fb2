"""What an experiment costs: time by speeds that are known, disk, and what a budget buys when arms are matched.

Asked for time, it says None where a speed is not known; it never guesses one silently.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from clozelab.launch.jobs import planned_jobs
from clozelab.planning.jobs import Arm, Corpus, Past, Words, kinds, make_arm
from clozelab.planning.tasks import Kind, TaskFiles, TaskJob, task_jobs
from clozelab.planning.timing import Request, Speed, measured_speeds
from clozelab.runs.fingerprint import canonical
from clozelab.runs.record import JobName, Record
from clozelab.suggestions import duration
from clozelab.training.host import host_facts

if TYPE_CHECKING:
    from clozelab.planning.steps import Step
    from clozelab.runs.find import Runs

START_SECONDS = {"pretrain": 2.5, "finetune": 0.9}
"""Between the launcher's decision and the first step, and after the last one: imports, reading the corpus, writing."""
FORWARD_SHARE = 1 / 3
"""Of a training step's work: what a validation pass costs per token."""
MATCHINGS = ("steps", "tokens", "flops", "time")


@dataclass(frozen=True)
class Pool:
    """How a stage's jobs run: so many at a time, with so many threads each."""

    num_jobs: int
    num_seeds: int
    """Of pre-training."""
    at_once: int
    threads: int
    timed_at_once: int
    """Processes side by side in which speeds are measured here: one where the jobs run elsewhere."""

    @classmethod
    def of(cls, step: Step) -> Pool:
        from clozelab.launch.launcher import share_cores

        sweep = step.sweep
        launcher = sweep.master.hydra.launcher
        at_once, threads = share_cores(launcher.get("jobs_at_once", 1), sweep.master, len(sweep.jobs))
        seed = "pretrain_seed" if step.verb == "finetune" else "seed"
        num_seeds = len(sweep.groups(lambda key: key == seed))
        return cls(len(sweep.jobs), num_seeds, at_once, threads, at_once if sweep.runs_here else 1)


@dataclass(frozen=True)
class Costing:
    """What an experiment at one scale costs: its arms, its tasks, and how each stage's jobs share this machine."""

    arms: Sequence[Arm]
    tasks: Sequence[TaskJob]
    pools: Mapping[str, Pool]
    lowest_share: float = 1.0
    """Of a core that the slowest measurement got; 1 where nothing was measured."""
    problems: Sequence[str] = ()
    """Shapes that could not be timed, and why."""

    @property
    def num_seeds(self) -> int:
        """Of pre-training."""
        return next((pool.num_seeds for pool in self.pools.values()), 1)

    @property
    def all_shapes(self) -> list[Arm | TaskJob]:
        return [*self.arms, *self.tasks]

    def shapes(self, verb: str) -> Sequence[Arm | TaskJob]:
        return self.arms if verb == "pretrain" else self.tasks

    def wall(self, verb: str, *, only_left: bool = False) -> float | None:
        """Wall time of a stage's jobs, or of those that runs so far leave; None where a speed is not known."""
        durations: list[float] = []
        for shape in self.shapes(verb):
            count = shape.count - (shape.past.done if only_left else 0)
            seconds = seconds_of(shape)
            if seconds is None and count:
                return None
            durations += [seconds or 0.0] * count
        return makespan(durations, self.pools[verb].at_once if verb in self.pools else 1)

    def left(self, verb: str) -> int:
        """Jobs that are neither complete nor will be taken from another experiment."""
        return sum(shape.count - shape.past.done for shape in self.shapes(verb))

    def flops_left(self, verb: str) -> float:
        """Of the same jobs; a task without its files counts as nothing."""
        return sum((shape.count - shape.past.done) * (shape.flops or 0.0) for shape in self.shapes(verb))

    @property
    def run_bytes(self) -> int:
        """Of all run folders: checkpoints, encoders, predictions, saved models."""
        return sum(shape.count * shape.result_bytes for shape in self.all_shapes)


ALIKE = {
    "pretrain": ("model", "architecture", "objective", "phases"),
    "finetune": ("epochs", "global_batch_size", "head", "learning_rate", "max_train_examples"),
}
"""Settings in which a run has to be equal to take as long."""
DONE = ("complete", "check", "shared", "shared?")
"""Of a planned job; `check` is complete, and most likely of the same inputs."""


class PastRuns:
    """What the runs so far say of a stage's jobs: which need not run again, and how long like ones took here."""

    def __init__(self, step: Step, runs: Runs | None) -> None:
        self.keys = ALIKE[step.verb]
        of_stage = [] if runs is None else runs.pretrain if step.verb == "pretrain" else runs.finetune
        self.complete = [run for run in of_stage if run.is_complete]
        # Runs of other experiments are shared in pre-training alone.
        asks = runs is not None and (self.complete or step.verb == "pretrain")
        self.done = {job.overrides for job in planned_jobs(step.sweep) if job.status in DONE} if asks else set()

    def __call__(self, settings: Mapping[str, Any], jobs: Sequence[Words]) -> Past:
        wanted = json.loads(json.dumps(canonical(OmegaConf.create(dict(settings)))))
        name = JobName.of(settings)[:2]
        alike = [
            run.seconds for run in self.complete
            if run.job_name[:2] == name and all(run.config.get(key) == wanted.get(key) for key in self.keys)
            and _is_timed_here(run)
        ]  # fmt: skip
        return Past(sum(words in self.done for words in jobs), sum(alike) / len(alike) if alike else None)


def _is_timed_here(run: Record) -> bool:
    here = host_facts()["host"]
    is_same = all(run.host.get(key) == here[key] for key in ("cpu", "cores", "gpus"))
    return is_same and run.shared is None and bool(run.seconds)


def analyse(
    steps: Sequence[Step], corpus_of: Callable[[Mapping[str, Any]], Corpus], runs: Runs | None = None
) -> Costing:
    """What is known of an experiment without timing anything.

    Args:
        steps: of `make_steps`.
        corpus_of: a composed pre-training configuration -> its corpus.
        runs: the experiment's at this scale, where there may be some.
    """
    found = {
        step.verb: [(step.sweep.settings(jobs[0]), jobs) for jobs in kinds(step.sweep).values()]
        for step in steps if step.is_sweep
    }  # fmt: skip
    arms = [make_arm(settings, jobs, corpus_of(settings)) for settings, jobs in found.get("pretrain", ())]
    return assemble(steps, arms, found.get("finetune", ()), TaskFiles(), runs)


def assemble(
    steps: Sequence[Step], arms: Sequence[Arm], finetunings: Sequence[Kind], files: TaskFiles, runs: Runs | None
) -> Costing:
    """From composed arms and fine-tuning configurations, with what the runs so far say of their jobs."""
    sweeps = {step.verb: step for step in steps if step.is_sweep}
    past_of = {verb: PastRuns(step, runs) for verb, step in sweeps.items()}
    arms = [replace(arm, past=past_of["pretrain"](arm.settings, arm.jobs)) for arm in arms]
    tasks = task_jobs(finetunings, arms, files, past_of["finetune"]) if finetunings else []
    return Costing(arms, tasks, {verb: Pool.of(step) for verb, step in sweeps.items()})


def seconds_of(shape: Arm | TaskJob) -> float | None:
    """Of one run, with its validations and its start; without speeds what finished runs took."""
    found = _pretraining(shape) if isinstance(shape, Arm) else _finetuning(shape)
    return shape.past.seconds if found is None else found


def _pretraining(arm: Arm) -> float | None:
    if not arm.is_timed:
        return None
    slots = [phase["steps"] * phase["global_batch_size"] * phase["seq_length"] for phase in arm.phases]
    training = sum(number / speed for number, speed in zip(slots, arm.speeds, strict=True) if speed)
    validation = arm.settings["validation"]
    rounds = -(-arm.steps // validation["interval_steps"])
    tokens = rounds * validation["instances"] * validation["seq_length"]
    return START_SECONDS["pretrain"] + training + FORWARD_SHARE * tokens * training / arm.tokens


def _finetuning(job: TaskJob) -> float | None:
    if not job.speed or job.train_tokens is None:
        return None
    if job.features is None:
        forward = job.forward_speed or job.speed / FORWARD_SHARE
        evaluated = job.passes * job.validation_examples * job.tokens_per_example
        return START_SECONDS["finetune"] + job.train_tokens / job.speed + evaluated / forward
    # Where nothing was timed, the encoder's products are taken to be as fast as the BiLSTM's.
    forward = job.forward_speed or job.speed * job.features.flops_per_word / (job.flops_per_token / 3)
    words = job.features.words_per_example
    training = (job.train_examples or 0) * job.epochs * words / job.speed
    evaluation = job.passes * job.validation_examples * words * FORWARD_SHARE / job.speed
    return START_SECONDS["finetune"] + job.pass_tokens / forward + training + evaluation


def makespan(durations: Sequence[float], at_once: int) -> float:
    """Wall time of jobs that are started in order, so many at a time."""
    free = [0.0] * max(1, at_once)
    for seconds in durations:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)


def with_speeds(
    costing: Costing, cache_dir: Path, *, measure: bool, say: Callable[[str], None] = lambda _: None
) -> Costing:
    """The same with the speeds that the cache has, or (`measure`) that it will then have.

    `say` gets a line before each measurement.
    """
    asked: list[Request] = []
    answers: list[Speed | None] = []

    def ask(verb: str, requests: Sequence[Request]) -> list[Speed | None]:
        pool = costing.pools[verb]
        settings: dict[str, Any] = {"at_once": pool.timed_at_once, "threads": pool.threads}
        found = measured_speeds(requests, cache_dir, **settings, measure=measure, say=say)
        asked.extend(requests)
        answers.extend(found)
        return found

    by_arm = [list(timing_requests(arm)) for arm in costing.arms]
    speeds = iter(ask("pretrain", [one for own in by_arm for one in own]) if by_arm else [])
    arms = [_timed(arm, [next(speeds) for _ in own]) for arm, own in zip(costing.arms, by_arm, strict=True)]
    tasks = list(costing.tasks)
    if tasks:
        found = ask("finetune", [task_request(job) for job in tasks])
        tasks = [
            replace(job, speed=one.tokens_per_second, forward_speed=one.forward, is_estimated=one.is_estimated)
            if one else job
            for job, one in zip(tasks, found, strict=True)
        ]  # fmt: skip
    told = [(one, speed) for one, speed in zip(asked, answers, strict=True) if speed]
    problems = dict.fromkeys(f"{one.title}: {speed.problem}" for one, speed in told if speed.problem)
    lowest = min((speed.share for _, speed in told), default=1.0)
    return replace(costing, arms=arms, tasks=tasks, lowest_share=lowest, problems=tuple(problems))


def _timed(arm: Arm, speeds: Sequence[Speed | None]) -> Arm:
    rates = [one.tokens_per_second if one else None for one in speeds]
    return replace(arm, speeds=rates, is_estimated=any(one.is_estimated for one in speeds if one))


def timing_requests(arm: Arm) -> Iterator[Request]:
    """What to time of an arm: every phase."""
    from clozelab.launch.sweep import phase_objectives

    nodes = phase_objectives(arm.settings)
    for phase, node, flops in zip(arm.phases, nodes, arm.step_flops, strict=True):
        question = {
            "kind": "pretrain", "model": arm.config.to_dict(), "phase": {**phase, "steps": 1, "objective": None},
            "objective": node, "hardware": hardware(arm.settings),
            **{key: arm.settings[key] for key in ("optimizer", "schedule")},
        }  # fmt: skip
        title = f"pre-training {arm.name}, instances of {phase['seq_length']} tokens"
        yield Request(question, title, phase["global_batch_size"] * phase["seq_length"], flops)


def task_request(job: TaskJob) -> Request:
    """What to time of a fine-tuning shape; lengths are rounded, so that like tasks share a measurement."""
    length, batch = job.tokens_per_example / job.inputs_per_example, int(job.settings["global_batch_size"])
    question = {
        "kind": "finetune", "model": job.encoder.to_dict(), "head": job.head, "batch_size": batch,
        "tokens_each": round(length / 4) * 4 or 4, "max_tokens": job.longest,
        "evaluation_tokens": int(job.settings["task"]["data"].get("evaluation_tokens", 8192)),
        "optimizer": job.settings["optimizer"], "hardware": hardware(job.settings),
    }  # fmt: skip
    tokens = batch * length
    flops = tokens * job.flops_per_token
    if job.features:
        words = max(1, round(job.features.words_per_example))
        sizes = {key: getattr(job.features, key) for key in ("input_size", "hidden_size", "num_layers")}
        question |= {"kind": "features", "bilstm": sizes, "words_each": words}
        tokens = batch * words
        flops = tokens * job.features.flops_per_word
    size = f"{job.encoder.num_hidden_layers} layers of {job.encoder.hidden_size}"
    return Request(question, f"fine-tuning {size} on {job.task} ({job.head})", tokens, flops)


def hardware(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the trainer's settings that decides a speed; a measurement has one process."""
    chosen = {key: settings["trainer"][key] for key in ("accelerator", "precision", "threads")}
    return chosen | {"devices": 1, "num_nodes": 1, "strategy": "auto"}


@dataclass(frozen=True)
class Share:
    """What an arm gets of a budget when arms are matched by one quantity; `factor` times its planned steps."""

    arm: str
    tokens: float
    steps: int
    flops: float
    seconds: float
    factor: float
    steps_factor: float
    """What the arm's configuration has to say for it: of the scale's steps."""


def affordable(costing: Costing, budget_seconds: float, matched_by: str | None) -> dict[str, list[Share]]:
    """What every arm gets of a budget for the whole experiment, by each way to match arms (or the one asked for).

    Raises:
        ValueError: fine-tuning alone takes longer, or there is no speed.
    """
    finetune = costing.wall("finetune")
    if finetune is None or not costing.arms:
        raise ValueError("no speed is known yet: leave --no-measure out (and the tasks' files must be in data_dir)")
    left = budget_seconds - finetune
    if left <= 0.0:
        raise ValueError(
            f"fine-tuning alone takes about {duration(finetune)}: fewer tasks or seeds, or a larger budget"
        )
    names = [matched_by] if matched_by else MATCHINGS
    return {name: divide(costing.arms, left, costing.pools["pretrain"].at_once, name) for name in names}


def divide(arms: Sequence[Arm], wall_seconds: float, at_once: int, matched_by: str) -> list[Share]:
    """What each run of each arm gets of some wall time with so many jobs at a time, one of MATCHINGS being equal.

    Raises:
        ValueError: an arm has no speed or takes no time, or the time is gone before a first step.
    """
    planned = [seconds_of(arm) for arm in arms]
    if any(one is None for one in planned):
        raise ValueError("no speed is known yet: leave --no-measure out")
    start = START_SECONDS["pretrain"]
    growing = [max((one or 0.0) - start, 0.0) for one in planned]
    if instant := [arm.name for arm, seconds in zip(arms, growing, strict=True) if not seconds]:
        raise ValueError(f"a run of {', '.join(instant)} takes no longer than its start: there is nothing to divide")
    amounts = {
        "steps": [float(arm.steps) for arm in arms], "tokens": [float(arm.tokens) for arm in arms],
        "flops": [arm.flops for arm in arms], "time": growing,
    }[matched_by]  # fmt: skip

    def durations(amount: float) -> list[float]:
        """Of one run of each arm that gets so much of the quantity: that share of its planned run, and the start."""
        return [start + one * amount / whole for one, whole in zip(growing, amounts, strict=True)]

    def wall(amount: float) -> float:
        each = zip(arms, durations(amount), strict=True)
        return makespan([one for arm, one in each for _ in range(arm.count)], at_once)

    if wall(0.0) >= wall_seconds:
        raise ValueError("starting the runs alone takes longer: fewer arms or seeds, or a larger budget")
    work = sum(arm.count * one / whole for arm, one, whole in zip(arms, growing, amounts, strict=True))
    # With this much the processes would be busy all the time without starting: never less than what there is time for.
    amount = largest(lambda amount: wall(amount) <= wall_seconds, wall_seconds * at_once / work)
    shares = []
    for arm, seconds, whole in zip(arms, durations(amount), amounts, strict=True):
        factor = amount / whole
        scaled = arm.tokens * factor, int(arm.steps * factor), arm.flops * factor
        shares.append(Share(arm.name, *scaled, seconds, factor, factor * arm.settings["steps_factor"]))
    return shares


def largest(fits: Callable[[float], bool], most: float) -> float:
    """The largest number from 0 to `most` that fits, where all smaller ones do; to a billionth of `most`."""
    low, high = 0.0, most
    while high - low > 1e-9 * most:
        middle = (low + high) / 2.0
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
