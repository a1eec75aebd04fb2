"""`clozelab plan`: what an experiment costs, before anything runs."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.console import Console

from clozelab.launch.progress import PlanPart, plan_file, write_plan
from clozelab.launch.sweep import Sweep
from clozelab.planning.steps import Step, chooses_seeds, make_steps, step_of
from clozelab.planning.tables import (
    busy_lines,
    disk_line,
    power_table,
    share_table,
    stage_tables,
    sums,
    warnings,
)
from clozelab.results.experiment import Experiment, open_experiment
from clozelab.runs.find import Runs, find
from clozelab.terminal import ParsedArgs, print_table, say, verb
from clozelab.text.did_you_mean import key_of

if TYPE_CHECKING:  # they import torch: not for --help and mistakes
    import pandas

    from clozelab.planning.choice import Allocation, PowerQuestion, StdDevs
    from clozelab.planning.cost import Costing

HELP = """clozelab plan EXPERIMENT [scale=NAME] [name=value ...]
        [budget=TIME [difference=POINTS]] [--no-measure]
clozelab plan EXPERIMENT ... budget=TIME matched_by=QUANTITY
clozelab plan pretrain|finetune [--config-dir FOLDER] [--config-name NAME]
        [name=value ...]

Counts parameters and FLOPs, measures tokens per second once a shape (a few
steps on made-up text, kept in the cache), and says how many jobs there are and
how many of them are left, how long all takes (measures, start-ups, pre-flight
and report included) and what of it, what it leaves on disk, and the smallest
difference that the seeds can be expected to show. Overrides are those of
`clozelab reproduce`. A speed that was measured while the machine was busy is
not kept.

  budget=10h       for the whole experiment: seeds of both kinds and tokens that
                   give its primary claims (without any, all claims) most power,
                   the power of every number of seeds, and the command to run
  difference=2     the true difference in points that is to be found (default:
                   2)
  matched_by=      instead: what each arm can afford where arms get equal steps,
                   tokens, flops or time, and its steps_factor, a line of `arms`
                   or pretrain.arm=NAME pretrain.steps_factor=...
  --no-measure     only speeds that are in the cache
  --measure-again  measures anew what the cache has
  --brief          says the time alone, and leaves it for the sweeps of a
                   reproduction to count by

With a stage, the same of what `clozelab pretrain` or `clozelab finetune` would
start with these words.

docs/runs.md says how times and FLOPs are counted, and what the marks beside
them mean."""

MATCHINGS = ("steps", "tokens", "flops", "time")
STAGES = ("pretrain", "finetune")


@dataclass(frozen=True)
class Plan:
    """What an experiment, or a stage, costs.

    Attributes:
        args: what was asked.
        budget: seconds for all of it; None where nothing is to be divided.
        difference: the true one that is to be found, in points.
        experiment: its claims; one without any for a stage.
        steps: its commands.
        runs: those so far, at this scale.
        costing: what its jobs cost.
        parts: of its time; None where a speed is unknown.
    """

    args: ParsedArgs
    budget: float | None
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


@verb(
    "plan",
    HELP,
    names=(1, 1),
    keys=("budget", "difference"),
    choices={"matched_by": MATCHINGS},
    flags=("no-measure", "measure-again", "brief"),
    options=("config-dir", "config-name"),
    takes_overrides=True,
)
def main(args: ParsedArgs) -> int:
    """Print the plan; returns the exit status."""
    plan = make_plan(args)
    for line in sums(plan.costing, plan.parts):  # what is asked first
        say(line, "bold", wraps=True)
    _print_warnings(busy_lines(plan.costing))  # of these times
    if "brief" in args.flags:
        _print_warnings([f"not timed: {problem}" for problem in plan.costing.problems])
        sweep = next(iter(plan.sweeps.values()))
        keep_plan(sweep.folder, plan.parts)
    else:
        print_plan(plan)
    return 0


def parse_budget(text: str) -> float:
    """Seconds of "2h", "90min", "1.5 h", "1h30min".

    ValueError: it is not a time of a second or more.
    """
    from pandas import Timedelta

    number = text
    if text.startswith("."):
        number = f"0{text}"
    try:
        seconds = float(Timedelta(number).total_seconds())
    except ValueError:
        seconds = 0.0
    # 10 would be nanoseconds, 1,5h 15 hours
    if not seconds >= 1.0 or text.strip().isdigit() or "," in text:
        raise ValueError(f"budget={text}: give a time above zero, such as 2h, 90min or 1h30min")
    return seconds


def parse_difference(text: str) -> float:
    """Points. ValueError: they are no number between 0 and 100."""
    try:
        difference = float(text)
    except ValueError:
        difference = 0.0
    if not 0.0 < difference < 100.0:
        raise ValueError(f"difference={text}: give a true difference in points above 0, such as 2")
    return difference


# Counting


def make_plan(args: ParsedArgs) -> Plan:
    """Count what is asked for costs, with speeds that the cache has or that are measured now.

    ValueError: a value is wrong, or goes with another that is missing.
    """
    from clozelab.planning.cost import parts_of, with_speeds
    from clozelab.stages.subject import Corpora, analyse

    budget = None
    if "budget" in args.values:
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
        steps = make_steps(experiment.folder, args.overrides)

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
        costing = analyse(steps, corpora, runs)
        # All until here is what opening the experiment takes: imports, and composing each kind of
        # job.
        opening = time.process_time() - corpora.sampling
        sweep = first_sweep.sweep
        costing = with_speeds(
            costing,
            Path(sweep.settings(sweep.jobs[0])["cache_dir"]),
            measure=measures,
            anew="measure-again" in args.flags,
            say=lambda line: say(line, "dim", console=progress),
        )
        parts = parts_of(costing, steps, opening, corpora.preparing)
    return Plan(args, budget, difference, experiment, steps, runs, costing, parts)


def keep_plan(folder: Path, parts: Sequence[PlanPart] | None) -> None:
    """Leave a plan for the sweeps of a reproduction to count by.

    An older one goes where the time is not known.
    """
    if parts is None:
        (folder / plan_file(None)).unlink(missing_ok=True)
    else:
        write_plan(folder, parts)


# Printing


def print_plan(plan: Plan) -> None:
    """Print a plan below its sums: tables, what a budget buys, warnings."""
    costing = plan.costing
    for table in stage_tables(costing):
        print_table(*table)
    flops = sum(shape.count * (shape.flops or 0.0) for shape in costing.shapes)
    say(f"all runs: {flops:.3g} FLOPs")
    root, _ = next(step for step in plan.steps if step.is_sweep).root
    say(disk_line(costing, costing.disk_usage(root, plan.steps)))

    # A budget is divided among arms where they are to be matched, or where nothing is claimed;
    # else it buys power.
    shares: dict[str, pandas.DataFrame] = {}
    matched_by = plan.args.values.get("matched_by")
    if plan.budget is not None and costing.arms and (matched_by or not plan.experiment.claims):
        shares = _divide_budget(plan, plan.budget, matched_by)
        _print_shares(plan, shares)
    elif plan.budget is not None:
        _allocate(plan, plan.budget)
    if plan.experiment.claims:
        _print_detectable(plan)
    _print_warnings(warnings(costing, shares))


def _print_warnings(lines: Sequence[str]) -> None:
    for line in lines:
        say(line, "yellow", wraps=True)


def _print_detectable(plan: Plan) -> None:
    """The smallest difference that the seeds can be expected to show."""
    from clozelab.analysis.verdicts import detectable_difference
    from clozelab.report import wording
    from clozelab.results.table import build_table

    table = build_table(plan.experiment, plan.runs)
    detectable = detectable_difference(table, plan.costing.num_seeds)
    say(wording.detectable_difference(detectable), wraps=True)


def _divide_budget(
    plan: Plan, budget: float, matched_by: str | None
) -> dict[str, pandas.DataFrame]:
    """What each arm gets, by each way to match arms that was asked for."""
    from clozelab.planning.cost import affordable

    matchings: Sequence[str] = MATCHINGS
    if matched_by:
        matchings = [matched_by]
    elif plan.args.names[0] in STAGES:
        matchings = ["time"]  # what a budget buys one run
    return affordable(plan.costing, budget, matchings)


def _print_shares(plan: Plan, shares: Mapping[str, pandas.DataFrame]) -> None:
    for matched_by, share in shares.items():
        print_table(*share_table(matched_by, share))
        factors = {f"steps_factor={factor:.3g}" for factor in share.steps_factor}
        # Of several arms each has its own.
        if plan.args.names == ["pretrain"] and len(factors) == 1:
            words = shlex.join([*plan.args.overrides, *factors])
            say(f"run: clozelab pretrain {words}", style="bold")


# What a budget buys in power


def _allocate(plan: Plan, budget: float) -> None:
    """Print the power of every number of seeds, the choice among them, and its command."""
    from clozelab.planning import choice
    from clozelab.results.table import build_table

    costing = plan.costing
    # How many seeds each task is fine-tuned with; 0 where nothing is.
    finetune_seeds = 0
    if "finetune" in plan.sweeps:
        finetune_seeds = len(plan.sweeps["finetune"].groups(lambda key: key == "seed"))
    measures = [job.measure for job in costing.measures]
    tasks = list(dict.fromkeys([*(job.task for job in costing.tasks), *measures]))
    question = choice.power_study(plan.experiment, tasks, plan.difference)
    if not question.claims:
        say(
            f"no claim of {plan.experiment.name} is about a task of this plan: there is no power to"
            " reckon",
        )
        return
    table = None
    if plan.runs.runs:
        table = build_table(plan.experiment, plan.runs)
    std_devs = choice.std_devs_of(tasks, table)
    for measure in measures:
        # one number a pre-training seed
        std_devs[measure] = replace(std_devs[measure], finetuning=0.0)
    # Arms with lengths of their own keep them.
    may_shorten = all(arm.settings["steps_factor"] == 1.0 for arm in costing.arms)
    rule = plan.experiment.stopping
    analyses = None
    if rule:
        analyses = (rule.first, rule.most)
    allocations = choice.allocations(
        costing,
        question,
        std_devs,
        budget,
        tuned_seeds=max(1, finetune_seeds),
        analyses=analyses,
        may_shorten=may_shorten,
    )
    _print_allocations(plan, question, std_devs, allocations, finetune_seeds)


def _print_allocations(
    plan: Plan,
    question: PowerQuestion,
    std_devs: Mapping[str, StdDevs],
    allocations: Sequence[Allocation],
    finetune_seeds: int,
) -> None:
    best = max(allocations, key=lambda allocation: allocation.utility)

    decided = f"one of {len(question.claims)} claims is"
    if question.num_primary:
        decided = f"all of {question.num_primary} primary claims are"
    points = f"{plan.difference:g} points"
    say(f"power: how often {decided} decided where true differences are {points}")
    most_tokens = max(arm.tokens for arm in plan.costing.arms)
    table = power_table(allocations, best, most_tokens=most_tokens, is_tuned=bool(finetune_seeds))
    print_table(*table)
    is_enough, *_ = best.utility
    if not is_enough:
        say("no line reaches 80 %: give more time, fewer rows, or a larger difference=")
    sources = [
        f"{task} {deviations.pretraining:.2g} and {deviations.finetuning:.2g} ({deviations.source})"
        for task, deviations in std_devs.items()
    ]
    say(
        "standard deviations between pre-training and between fine-tuning seeds:"
        f" {'; '.join(sources)}",
    )
    if question.unknown:
        say(
            "not counted, since no task of this plan speaks for them:"
            f" {'; '.join(question.unknown)}",
        )
    words = _words_of(plan, best, is_tuned=bool(finetune_seeds))
    say(f"run: clozelab reproduce {shlex.join(words)}")


def _words_of(plan: Plan, best: Allocation, *, is_tuned: bool) -> list[str]:
    """The words of `clozelab reproduce` that run an allocation."""
    has_rule = bool(plan.experiment.stopping)
    chosen_values = {}
    if is_tuned:
        chosen_values["finetune.seed"] = _first_seeds(best.finetune_seeds)
    if not has_rule:
        chosen_values["seeds"] = _first_seeds(best.seeds)
    if best.factor < 1.0:
        chosen_values["pretrain.steps_factor"] = f"{best.factor:.2f}"
    arguments = list(plan.args.names)
    for override in plan.args.overrides:
        if key_of(override) not in chosen_values and not chooses_seeds(override):
            arguments.append(override)
    arguments += [f"{key}={value}" for key, value in chosen_values.items()]
    if has_rule:
        # The rule stops by itself, within the budget.
        arguments += ["until=decided", f"budget={plan.args.values['budget']}"]
    return arguments


def _first_seeds(number: int) -> str:
    return ",".join(str(seed) for seed in range(1, number + 1))
