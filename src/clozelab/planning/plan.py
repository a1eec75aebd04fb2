"""What an experiment, or a stage, costs: counted before anything runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.console import Console

from clozelab.launch.progress import PlanPart, plan_file, write_plan
from clozelab.launch.sweep import Sweep
from clozelab.planning.budget import parse_budget, parse_difference, parse_words
from clozelab.planning.steps import Step, make_steps, step_of
from clozelab.results.experiment import Experiment, open_experiment
from clozelab.runs.find import Runs, find
from clozelab.terminal import ParsedArgs, say, told_if_slow

if TYPE_CHECKING:  # they import torch: not for --help and mistakes
    from clozelab.planning.cost import Costing

MATCHINGS = ("steps", "tokens", "flops", "time")
STAGES = ("pretrain", "finetune")


@dataclass(frozen=True)
class Plan:
    """What an experiment, or a stage, costs.

    Attributes:
        args: what was asked.
        budget: seconds for all of it; None where nothing is to be divided.
        words: to be read by a pre-training, repeated ones counted; None without a budget in words.
        difference: the true one that is to be found, in points.
        experiment: its claims; one without any for a stage.
        steps: its commands.
        runs: those so far, at this scale.
        costing: what its jobs cost.
        parts: of its time; None where a speed is unknown.
    """

    args: ParsedArgs
    budget: float | None
    words: float | None
    difference: float
    experiment: Experiment
    steps: Sequence[Step]
    runs: Runs
    costing: Costing
    parts: list[PlanPart] | None

    @property
    def sweeps(self) -> dict[str, Sweep]:
        """Stage -> its jobs."""
        return {step.verb: step.sweep for step in self.steps if step.is_sweep}


def make_plan(args: ParsedArgs) -> Plan:
    """Count what is asked for costs, with speeds that the cache has or that are measured now.

    ValueError: a value is wrong, or goes with another that is missing.
    """
    with told_if_slow("plan: loading PyTorch"):
        from clozelab.planning.cost import parts_of, with_speeds
        from clozelab.planning.sweeps import Corpora, analyse

    budget = None
    word_budget = parse_words(args.values.get("budget", ""))
    if word_budget is not None and args.names != ["pretrain"]:
        raise ValueError("a budget in words is for `plan pretrain`; give a time, such as 2h")
    if word_budget is None and "budget" in args.values:
        budget = parse_budget(args.values["budget"])
    matched_by = args.values.get("matched_by")
    if matched_by and budget is None:
        raise ValueError(
            f"matched_by={matched_by} divides a budget among the arms: say budget=TIME too"
        )
    difference = parse_difference(args.values.get("difference", "2"))

    (name,) = args.names
    if name in STAGES:
        steps = [step_of(args)]
        experiment = Experiment(folder=Path(), name=name, columns=())
    else:
        experiment = open_experiment(name)
        with told_if_slow(f"plan: composing the jobs of {name}"):
            steps = make_steps(experiment.folder, args.overrides)
        if budget is not None:
            _require_pretraining(name, steps)

    first_sweep = next(step for step in steps if step.is_sweep)
    root, _ = first_sweep.root
    runs = find(root)
    progress = Console(stderr=True)
    with TemporaryDirectory(prefix="clozelab-plan-") as world:
        measures = "no-measure" not in args.flags
        # A generated world that is not there yet is written small, to count what it and its tasks
        # hold.
        corpora = Corpora(strict=False)
        if measures:
            corpora.world = Path(world)
        with told_if_slow("plan: counting what the jobs read: texts, tasks, parameters"):
            costing = analyse(steps, corpora, runs)
        _require_percentages(experiment, costing)
        # All until here is what opening the experiment takes: imports, and composing each kind of
        # job.
        opening = time.process_time() - corpora.sampling
        sweep = first_sweep.sweep
        costing = with_speeds(
            costing,
            Path(sweep.settings(sweep.jobs[0])["cache_dir"]),
            measure=measures,
            measures_again="measure-again" in args.flags,
            say=lambda line: say(line, "dim", console=progress),
        )
        parts = parts_of(costing, steps, opening, corpora.preparing)
    return Plan(args, budget, word_budget, difference, experiment, steps, runs, costing, parts)


def _require_percentages(experiment: Experiment, costing: Costing) -> None:
    """ValueError where the claims of an experiment with inputs do not fit a task's score."""
    from clozelab.planning.tasks import require_percent

    if experiment.given:
        for job in costing.tasks:
            require_percent(job.settings.task)


def _require_pretraining(name: str, steps: Sequence[Step]) -> None:
    """ValueError where no step pre-trains: a budget has nothing to be divided among."""
    if all(step.verb != "pretrain" for step in steps):
        raise ValueError(
            f"{name} pre-trains nothing here, and a budget is divided among pre-trainings: leave"
            " budget= out for the time of all jobs"
        )


def save_plan(folder: Path, parts: Sequence[PlanPart] | None) -> None:
    """Leave a plan for the sweeps of a reproduction to count by.

    An older one goes where the time is not known.
    """
    if parts is None:
        (folder / plan_file(None)).unlink(missing_ok=True)
    else:
        write_plan(folder, parts)
