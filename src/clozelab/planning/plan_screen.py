"""A plan on the screen: tables, and what a budget buys."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from claims.text.phrases import format_count
from clozelab.addresses import with_permission
from clozelab.planning.budget import factor_within
from clozelab.planning.plan import MATCHINGS, STAGES, Plan
from clozelab.planning.steps import chooses_seeds
from clozelab.planning.tables import disk_lines, power_table, share_table, stage_tables, warnings
from clozelab.terminal import print_table, say
from clozelab.text.did_you_mean import key_of

if TYPE_CHECKING:  # they import torch: not for --help and mistakes
    import pandas

    from clozelab.planning.choice import Allocation, PowerQuestion, StdDevs


def print_plan(plan: Plan) -> None:
    """Print a plan below its sums: tables, what a budget buys, warnings."""
    from clozelab.planning.sweeps import doubts_of_own_tasks

    costing = plan.costing
    for table in stage_tables(costing):
        print_table(*table)
    flops = sum(shape.count * (shape.flops or 0.0) for shape in costing.shapes)
    say(f"all runs: {flops:.3g} FLOPs")
    root, _ = next(step for step in plan.steps if step.is_sweep).root
    say(disk_lines(costing, costing.disk_usage(root, plan.steps)))

    # A budget is divided among arms where they are to be matched, or where nothing is claimed;
    # else it buys power.
    shares: dict[str, pandas.DataFrame] = {}
    matched_by = plan.args.values.get("matched_by")
    if plan.budget is not None and costing.arms and (matched_by or not plan.experiment.claims):
        shares = _divide_budget(plan, plan.budget, matched_by)
        _print_shares(plan, shares)
        if plan.args.names == ["pretrain"] and len(costing.arms) == 1:
            (share,) = shares.values()
            _print_sizes(plan, share.flops.item())
    elif plan.budget is not None:
        _allocate(plan, plan.budget)
    factors: Sequence[float] = ()
    if plan.words is not None:
        factors = _print_words(plan, plan.words)
    if plan.experiment.claims:
        _print_detectable(plan)
    print_warnings(warnings(costing, shares, factors))
    for sweep in plan.sweeps.values():
        print_warnings(doubts_of_own_tasks(sweep))


def print_warnings(lines: Sequence[str]) -> None:
    for line in lines:
        say(line, "yellow", wraps=True)


def _print_detectable(plan: Plan) -> None:
    """The smallest difference that the seeds can be expected to show."""
    from claims.analysis.schema import FINETUNING_SEED
    from claims.analysis.verdicts import detectable_difference
    from claims.report import wording
    from clozelab.results.table import build_table

    table = build_table(plan.experiment, plan.runs)
    replication = plan.experiment.replication
    num_seeds = plan.costing.num_seeds
    if replication == FINETUNING_SEED and "finetune" in plan.sweeps:
        # Each pair of both seeds draws a fine-tuning of its own.
        pairs = plan.sweeps["finetune"].groups(lambda key: key in ("pretrain_seed", "seed"))
        num_seeds = len(pairs)
    detectable = detectable_difference(table, num_seeds)
    say(wording.detectable_difference(detectable, replication), wraps=True)


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
            _print_command(plan.args.overrides, *factors)


def _print_command(overrides: Sequence[str], factor: str) -> None:
    """Print the pre-training of these words with another `steps_factor`.

    It multiplies the scale's phases, so those of the words become the scale's.
    """
    command = ["clozelab", "pretrain"]
    for override in overrides:
        root = key_of(override).partition(".")[0]
        if root == "phases":
            command.append(override.replace("phases", "scale.pretrain.phases", 1))
        elif root != "steps_factor":
            command.append(override)
    command.append(factor)
    say(f"run: {shlex.join(with_permission(command))}", style="bold")


def _print_sizes(plan: Plan, flops: float) -> None:
    """Print what published runs say of the sizes that so many FLOPs could train."""
    from clozelab.corpus.shards import PreparedCorpus
    from clozelab.planning.sizes import bands_of_sizes, forecasts
    from clozelab.runs.store import new_record

    folder = plan.costing.arms[0].corpus.folder
    inputs = {}
    if folder is not None:
        inputs["corpus"] = PreparedCorpus.open(folder).fingerprint
    sweep = plan.sweeps["pretrain"]
    job = sweep.composer.compose(sweep.jobs[0])
    bands = bands_of_sizes(new_record(Path(), "pretrain", job, inputs, {}, ""))
    expected = forecasts(bands, flops)
    if not expected:
        return
    say(f"sizes at {flops:.3g} FLOPs, by {len(bands)} published sizes and lengths:", style="bold")
    for forecast in expected:
        is_apart = forecast.loss - expected[0].loss > forecast.error
        say(
            f"{'' if is_apart else 'favoured: '}{forecast.name}, {format_count(forecast.tokens)}"
            f" tokens: {forecast.loss:.2f} \u00b1 {forecast.error:.2f} nats",
        )


def _print_words(plan: Plan, words: float) -> Sequence[float]:
    """Print how many words each arm reads, and the steps_factor with which it reads `words`.

    Returns how many times its steps that is of each arm; nothing where that is not known.
    """
    from clozelab.assembly.pretraining import make_data
    from clozelab.corpus.shards import PreparedCorpus

    factors = []
    for arm in plan.costing.arms:
        if arm.corpus.folder is None:
            say("the words of a corpus are known once it is prepared: clozelab prepare ...")
            return ()
        cfg = arm.settings
        data = make_data(cfg, PreparedCorpus.open(arm.corpus.folder), arm.objectives)
        by_step = data.words_by_step()
        read = by_step[-1]
        # What the factor multiplies: the steps of `phases` are rounded.
        whole_phases = cfg.phases if cfg.steps_factor == 1.0 else cfg.scale.pretrain.phases
        phases = []
        for phase, whole_phase in zip(cfg.phases, whole_phases, strict=True):
            phases.append((whole_phase.steps, by_step[0]))
            by_step = by_step[phase.steps :] - by_step[phase.steps - 1]
        steps_factor = factor_within(words, phases)
        factors.append(steps_factor / cfg.steps_factor)
        factor = f"steps_factor={steps_factor:.4g}"
        say(f"{arm.name}: {format_count(read)} words; {format_count(words)} with {factor}")
        if len(plan.costing.arms) == 1:
            _print_command(plan.args.overrides, factor)
    return factors


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
    # A column of a measure names its score.
    units: dict[str, dict[str, str]] = {measure: {} for measure in measures}
    units |= {job.task: job.units for job in costing.tasks}
    question = choice.power_study(plan.experiment, units, plan.difference)
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
    may_shorten = all(arm.settings.steps_factor == 1.0 for arm in costing.arms)
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
            "not counted, since no task of this plan is known to speak for them in percent:"
            f" {'; '.join(question.unknown)}",
        )
    words = _describe_allocation(plan, best, is_tuned=bool(finetune_seeds))
    say(f"run: clozelab reproduce {shlex.join(with_permission(words))}")


def _describe_allocation(plan: Plan, best: Allocation, *, is_tuned: bool) -> list[str]:
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
