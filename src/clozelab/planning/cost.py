"""What an experiment costs: time by speeds that are known, disk, and what a budget buys when arms are matched.

Asked for time, it says None where a speed is not known; it never guesses one silently. A speed is measured once a
shape and machine, and kept in the cache. As many processes are timed side by side as jobs will run, because cores
share their memory and caches. Where a process has one thread, its speed is taken by processor time: whatever else the
machine does now, it will not do then.
"""

from __future__ import annotations

import heapq
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas
from omegaconf import OmegaConf
from scipy.optimize import brentq

from clozelab.launch.jobs import planned_jobs
from clozelab.launch.launcher import share_cores
from clozelab.planning.jobs import Arm
from clozelab.planning.tasks import ANSWER, START_SECONDS, Kind, Request, Speed, TaskFiles, TaskJob, Words, task_jobs
from clozelab.runs.fingerprint import canonical, digest
from clozelab.runs.record import JobName, write_json
from clozelab.runs.upkeep import size
from clozelab.suggestions import duration
from clozelab.training.host import host_facts

if TYPE_CHECKING:
    from clozelab.planning.steps import Step
    from clozelab.runs.find import Runs

ALIKE = {
    "pretrain": ("model", "architecture", "objective", "phases"),
    "finetune": ("epochs", "global_batch_size", "head", "learning_rate", "max_train_examples"),
}
"""Settings in which a run has to be equal to take as long."""
DONE = ("complete", "check", "shared", "shared?")
"""Of a planned job; `check` is complete, and most likely of the same inputs."""
MATCHINGS = ("steps", "tokens", "flops", "time")
HOST = ("cpu", "cores", "gpus")
"""What a speed depends on of a machine."""
TIMING_VERSION = 1
"""Raised when what is timed changes."""
SECONDS = 1.5
"""Of each measurement."""
MAX_STEP_SECONDS = 30.0
"""Shapes whose steps take longer, by their FLOPs, are not timed."""
KEPT = ("tokens_per_second", "forward")
"""Of a speed, in the cache."""
WORKER = "clozelab.planning.timing_worker"


@dataclass(frozen=True)
class Pool:
    """How a stage's jobs run: so many at a time, with so many threads each.

    `num_seeds` are of pre-training. `timed_at_once` processes side by side are timed: one where jobs run elsewhere.
    """

    num_jobs: int
    num_seeds: int
    at_once: int
    threads: int
    timed_at_once: int

    @classmethod
    def of(cls, step: Step) -> Pool:
        sweep, seed = step.sweep, "pretrain_seed" if step.verb == "finetune" else "seed"
        launcher = sweep.master.hydra.launcher
        at_once, threads = share_cores(launcher.get("jobs_at_once", 1), sweep.master, len(sweep.jobs))
        num_seeds = len(sweep.groups(lambda key: key == seed))
        return cls(len(sweep.jobs), num_seeds, at_once, threads, at_once if sweep.runs_here else 1)


@dataclass(frozen=True)
class Costing:
    """What an experiment at one scale costs: its arms, its tasks, and how each stage's jobs share this machine.

    `problems` say what could not be timed, and why.
    """

    arms: Sequence[Arm]
    tasks: Sequence[TaskJob]
    pools: Mapping[str, Pool]
    problems: Sequence[str] = ()

    @property
    def num_seeds(self) -> int:
        """Of pre-training."""
        return next((pool.num_seeds for pool in self.pools.values()), 1)

    @property
    def shapes(self) -> list[Arm | TaskJob]:
        return [*self.arms, *self.tasks]

    def of(self, verb: str) -> Sequence[Arm | TaskJob]:
        """The shapes of a stage."""
        return self.arms if verb == "pretrain" else self.tasks

    def wall(self, verb: str, *, only_left: bool = False) -> float | None:
        """Wall time of a stage's jobs, or of those that runs so far leave; None where a speed is not known."""
        durations: list[float] = []
        for shape in self.of(verb):
            count = shape.left if only_left else shape.count
            if shape.seconds is None and count:
                return None
            durations += [shape.seconds or 0.0] * count
        return makespan(durations, self.pools[verb].at_once if verb in self.pools else 1)

    def left(self, verb: str) -> int:
        return sum(shape.left for shape in self.of(verb))

    @property
    def run_bytes(self) -> int:
        """Of all run folders: checkpoints, encoders, predictions, saved models."""
        return sum(shape.count * shape.result_bytes for shape in self.shapes)

    def room(self, root: Path, steps: Iterable[Step]) -> tuple[str, int, int, int]:
        """(where the runs go, bytes free there, bytes of all run folders, of those that are there already)."""
        there = next(folder for folder in (root.absolute(), *root.absolute().parents) if folder.is_dir())
        # Runs outside an experiment are of many sweeps: none is known to be one of these.
        mine = [root / step.verb for step in steps if step.folder and (root / step.verb).is_dir()]
        return str(root), shutil.disk_usage(there).free, self.run_bytes, sum(map(size, mine))


def assemble(
    steps: Sequence[Step], arms: Sequence[Arm], finetunings: Sequence[Kind], files: TaskFiles, runs: Runs | None
) -> Costing:
    """What is known without timing anything, with what the runs so far (of the experiment, at its scale) say."""
    sweeps = {step.verb: step for step in steps if step.is_sweep}
    past_of = {verb: past_runs(step, runs) for verb, step in sweeps.items()}
    looked = [(arm, past_of["pretrain"](arm.settings, arm.jobs)) for arm in arms]
    arms = [replace(arm, done=done, took=took) for arm, (done, took) in looked]
    tasks = task_jobs(finetunings, arms, files, past_of["finetune"]) if finetunings else []
    return Costing(arms, tasks, {verb: Pool.of(step) for verb, step in sweeps.items()})


def past_runs(step: Step, runs: Runs | None) -> Callable[[Mapping[str, Any], Sequence[Words]], tuple[int, list[float]]]:
    """How many of a kind's jobs need not run again, and how many seconds each run like it took on this machine."""
    of_stage = [] if runs is None else runs.pretrain if step.verb == "pretrain" else runs.finetune
    complete, here = [run for run in of_stage if run.is_complete], host_facts()["host"]
    timed = [
        run for run in complete
        if run.shared is None and run.seconds and all(run.host.get(key) == here[key] for key in HOST)
    ]  # fmt: skip
    # Runs of other experiments are shared in pre-training alone.
    asks = runs is not None and (complete or step.verb == "pretrain")
    done = {job.overrides for job in planned_jobs(step.sweep) if job.status in DONE} if asks else set()

    def look(settings: Mapping[str, Any], jobs: Sequence[Words]) -> tuple[int, list[float]]:
        config = json.loads(json.dumps(canonical(OmegaConf.create(dict(settings)))))
        name, wanted = JobName.of(settings)[:2], {key: config.get(key) for key in ALIKE[step.verb]}
        took = [
            run.seconds for run in timed
            if run.job_name[:2] == name and wanted == {key: run.config.get(key) for key in wanted}
        ]  # fmt: skip
        return sum(words in done for words in jobs), took

    return look


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
    timed: dict[str, list[Any]] = {"pretrain": [], "finetune": []}
    told: list[tuple[Request, Speed]] = []
    for verb, pool in costing.pools.items():
        asked = [list(shape.requests()) for shape in costing.of(verb)]
        requests, how = [*chain.from_iterable(asked)], {"at_once": pool.timed_at_once, "threads": pool.threads}
        speeds = measured_speeds(requests, cache_dir, **how, measure=measure, say=say) if requests else []
        told += [(one, speed) for one, speed in zip(requests, speeds, strict=True) if speed]
        answers = iter(speeds)
        timed[verb] = [
            replace(shape, speeds=[next(answers) for _ in own])
            for shape, own in zip(costing.of(verb), asked, strict=True)
        ]
    problems = dict.fromkeys(f"{one.title}: {speed.problem}" for one, speed in told if speed.problem)
    return replace(costing, arms=timed["pretrain"], tasks=timed["finetune"], problems=tuple(problems))


def measured_speeds(
    requests: Sequence[Request],
    cache_dir: Path,
    *,
    at_once: int,
    threads: int,
    measure: bool,
    say: Callable[[str], None] = lambda _: None,
) -> list[Speed | None]:
    """The speed of each request; None where it is not in the cache and must not be measured.

    Each is kept as soon as it is there. `say` gets a line before each measurement.
    """
    facts = host_facts()
    machine = {"version": TIMING_VERSION, **{key: facts["host"][key] for key in HOST}}
    machine |= {"torch": facts["versions"].get("torch"), "at_once": at_once, "threads": threads}
    keys = [digest({"machine": machine, "request": dict(one.question)})[:16] for one in requests]
    paths = [cache_dir / "speeds" / f"{key}.json" for key in keys]
    found: dict[Path, Speed | None] = dict.fromkeys(paths)
    for path in found:
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            found[path] = Speed(**{key: saved[key] for key in KEPT})
        except (OSError, ValueError, KeyError, TypeError):
            continue
    missing = {path: one for path, one in zip(paths, requests, strict=True) if found[path] is None}
    if missing and measure:
        answers = iter(_measure(list(missing.values()), at_once, threads))
        for number, (path, one) in enumerate(missing.items(), 1):
            say(f"timing {number} of {len(missing)}: {one.title}")
            speed = found[path] = next(answers)
            if not speed.problem and not speed.is_estimated:
                kept = {key: getattr(speed, key) for key in KEPT}
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, {**kept, "machine": machine, "request": dict(one.question)})
    return [found[path] for path in paths]


def _measure(requests: Sequence[Request], at_once: int, threads: int) -> Iterator[Speed]:
    """Time all requests in `at_once` processes side by side; one speed a request.

    A shape that ends its process (out of memory) is a problem of its own; the others are timed by new processes.
    """
    left = list(requests)
    while left:
        for speed in _until_one_dies(list(left), at_once, threads):
            left.pop(0)
            yield speed


def _until_one_dies(requests: Sequence[Request], at_once: int, threads: int) -> Iterator[Speed]:
    limits = {"seconds": SECONDS, "max_step_seconds": MAX_STEP_SECONDS}
    asked = json.dumps([{**limits, "step_flops": one.step_flops, **one.question} for one in requests])
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with ExitStack() as stack:
        workers = []
        for _ in range(at_once):
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))  # what two say at once would run together
            worker = subprocess.Popen([sys.executable, "-m", WORKER], stderr=errors, **pipes)
            stack.callback(worker.wait)
            stack.callback(worker.kill)
            worker.stdin.write(asked)  # type: ignore[union-attr]
            worker.stdin.close()  # type: ignore[union-attr]
            workers.append((worker, errors))
        for one in requests:
            answers = []
            for worker, errors in workers:
                line = next((line for line in worker.stdout or () if line.startswith(ANSWER)), None)
                if line is None:
                    errors.seek(0)
                    yield Speed(0.0, problem=(errors.read().strip().splitlines() or ["its process was killed"])[-1])
                    return
                answers.append(json.loads(line.removeprefix(ANSWER)))
            yield _speed(answers, one, threads)


def _speed(answers: Sequence[Mapping[str, Any]], request: Request, threads: int) -> Speed:
    """The mean of what the processes found."""
    if problems := [str(one["problem"]) for one in answers if "problem" in one]:
        return Speed(0.0, problem=problems[0])
    if estimates := [float(one["step_seconds"]) for one in answers if "step_seconds" in one]:
        return Speed(request.step_tokens / max(estimates), is_estimated=True)
    mean = pandas.DataFrame(answers).mean()
    if threads > 1:
        return Speed(mean["wall"], forward=mean.get("forward_wall"))
    forward = max(mean["forward_wall"], mean["forward_processor"]) if "forward_wall" in mean else None
    return Speed(max(mean["wall"], mean["processor"]), forward=forward)


def affordable(costing: Costing, budget_seconds: float, matched_by: str | None) -> dict[str, pandas.DataFrame]:
    """What every arm gets of a budget for the whole experiment, by each way to match arms (or the one asked for).

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


def divide(arms: Sequence[Arm], wall_seconds: float, at_once: int, matched_by: str) -> pandas.DataFrame:
    """What a run of each arm gets of some wall time with so many jobs at a time, one of MATCHINGS being equal.

    Returns:
        A line an arm: its steps, tokens, flops and seconds; `factor` times its planned run; and the `steps_factor` that
        its configuration has to say for it, of the scale's steps.

    Raises:
        ValueError: an arm has no speed or takes no time, or the time is gone before a first step.
    """
    if any(arm.seconds is None for arm in arms):
        raise ValueError("no speed is known yet: leave --no-measure out")
    start = START_SECONDS["pretrain"]
    planned = pandas.DataFrame(
        {
            "arm": arm.name, "steps": arm.steps, "tokens": arm.tokens, "flops": arm.flops,
            "time": max((arm.seconds or 0.0) - start, 0.0), "steps_factor": arm.settings["steps_factor"],
        }
        for arm in arms
    )  # fmt: skip
    if instant := list(planned.arm[planned.time == 0.0]):
        raise ValueError(f"a run of {', '.join(instant)} takes no longer than its start: there is nothing to divide")
    counts, amounts = [arm.count for arm in arms], planned[matched_by]

    def wall(amount: float) -> float:
        """Where one run of each arm gets so much of the quantity: that share of its planned run, and the start."""
        return makespan((start + planned.time * amount / amounts).repeat(counts), at_once)

    if wall(0.0) >= wall_seconds:
        raise ValueError("starting the runs alone takes longer: fewer arms or seeds, or a larger budget")
    # With this much the processes would be busy all the time without starting: never less than what there is time for.
    most = wall_seconds * at_once / (counts * planned.time / amounts).sum()
    factor = brentq(lambda amount: wall(amount) - wall_seconds, 0.0, most, xtol=1e-9 * most) / amounts
    shares = planned[["steps", "tokens", "flops", "steps_factor"]].mul(factor, axis=0)
    return shares.assign(arm=planned.arm, seconds=start + planned.time * factor, factor=factor)
