"""What a budget decides: seeds of both kinds, and how long to pre-train.

The allocation is the one that gives an experiment's claims most power. Power is counted in
simulated tables, corrected as the judge corrects, at a true difference that the user names. How
much scores vary from seed to seed is measured: on finished runs, or else on those that
conf/spreads.yaml names.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, product
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pandas

from claims.analysis.power import POWER, simulate_decided
from claims.analysis.schema import ALL_COLUMNS, PERCENT, BaseClaim, Column
from claims.text.phrases import duration
from clozelab.metrics.metric import base_name
from clozelab.planning.cost import NO_SPEED, Costing
from clozelab.results.experiment import Experiment, read_yaml
from clozelab.results.table import ResultTable
from clozelab.results.units import scale_without_runs
from clozelab.text.paths import CONF_DIR

MOST_SEEDS = 20
MOST_FINETUNE_SEEDS = 5
# a masked model has to see so many times the tokens after which it leaves its first plateau
PLATEAUS = 2.0
LEAST_STEPS_FACTOR = 0.05
MIN_SHARED_SEEDS = 3  # pre-training seeds from which a deviation is worth more than the shipped one
MIN_SCALE = 1e-9  # points: scores that never vary are not divided by zero


@dataclass(frozen=True)
class StdDevs:
    """Standard deviations in points.

    Attributes:
        pretraining: of a difference of two rows, between pre-training seeds.
        finetuning: of a run's score, between the fine-tuning seeds of one encoder.
        source: where they are from.
    """

    pretraining: float
    finetuning: float
    source: str


class Effect(NamedTuple):
    """A difference that claims rest on: a sum of some cells of one task, in points."""

    difference: float  # the true one
    boundaries: tuple[float, ...]  # that it is tested against
    cells: int
    task: str


@dataclass(frozen=True)
class PowerQuestion:
    """The differences that an experiment's claims rest on, before they are measured.

    Attributes:
        effects: every difference once.
        claims: of each claim the places of its differences, primary claims first.
        num_primary: how many claims are primary.
        is_together: whether these are tested together.
        unknown: the claims about columns whose deviations nobody knows.
    """

    effects: Sequence[Effect]
    claims: Sequence[Sequence[int]]
    num_primary: int
    is_together: bool
    unknown: Sequence[str]

    @property
    def families(self) -> list[list[int]]:
        """Places of differences: a family for each primary claim, and last one for the others.

        Claims that are primary together are one family. A place belongs to the first family that
        has it. The last family is there even if empty.
        """
        secondary: list[int] = []
        for effect_indices in self.claims[self.num_primary :]:
            secondary += effect_indices
        primary_claims = self.claims[: self.num_primary]
        if self.is_together:
            primary_claims = [list(chain.from_iterable(primary_claims))]
        families = []
        seen: set[int] = set()
        for effect_indices in (*primary_claims, secondary):
            unique = dict.fromkeys(effect_indices)
            families.append([index for index in unique if index not in seen])
            seen |= set(effect_indices)
        # A primary claim may have nothing of its own left; simulate_decided wants the others last.
        *primary, secondary = families
        return [*filter(None, primary), secondary]

    def power(
        self,
        std_devs: Mapping[str, StdDevs],
        seeds: int,
        finetune_seeds: int,
        analyses: tuple[int, int] | None,
    ) -> float:
        """The share of tables that decide all primary claims.

        Without primary claims: of all claims the share that is decided.
        """
        effects = []
        for effect in self.effects:
            deviations = std_devs[effect.task]
            # A difference of two rows has the variance of two cells, so each cell brings half.
            of_cell = deviations.pretraining**2 / 2 + deviations.finetuning**2 / finetune_seeds
            scale = max(MIN_SCALE, float(np.sqrt(effect.cells * of_cell)))
            boundaries = tuple(boundary / scale for boundary in effect.boundaries)
            effects.append((effect.difference / scale, boundaries))
        # bool [tables, effects]
        decided = simulate_decided(effects, self.families, seeds, analyses)
        decided_claims = []
        for places in self.claims:
            decided_claims.append(decided[:, list(places)].all(axis=1))
        if self.num_primary:
            return float(np.all(decided_claims[: self.num_primary], axis=0).mean())
        return float(np.mean(decided_claims))


def power_study(
    experiment: Experiment, units_of_tasks: Mapping[str, Mapping[str, str]], difference: float
) -> PowerQuestion:
    """What an experiment's claims will rest on.

    Args:
        experiment: with the claims.
        units_of_tasks: what is fine-tuned or measured -> name of a score -> its unit.
        difference: the true one of every test against zero, in points.
    """
    index_of_effect = {}
    effects: list[Effect] = []
    claims = []
    unknown = []
    num_primary = 0
    # Primary claims come first, in their order.
    for claim in sorted(experiment.claims, key=lambda claim: not claim.primary):
        effect_indices = []
        for hypothesis, task in _hypotheses(claim, experiment, units_of_tasks):
            # Two claims may test the same thing: it is one effect.
            if hypothesis not in index_of_effect:
                index_of_effect[hypothesis] = len(effects)
                effects.append(_effect_of(claim, task, difference))
            effect_indices.append(index_of_effect[hypothesis])
        if effect_indices:
            claims.append(effect_indices)
            num_primary += bool(claim.primary)
        else:
            unknown.append(claim.text)
    is_together = any(claim.primary == "together" for claim in experiment.claims)
    return PowerQuestion(effects, claims, num_primary, is_together, unknown)


def _hypotheses(
    claim: BaseClaim, experiment: Experiment, units_of_tasks: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[Hashable, str]]:
    """What a claim tests on columns of planned tasks: each hypothesis with its task."""
    columns = [column for column in experiment.columns if column.name == claim.column]
    if claim.column == ALL_COLUMNS:
        columns = list(experiment.all_columns)
    for column in columns:
        task = _planned_task(column, units_of_tasks)
        if task is not None:
            for hypothesis in claim.hypotheses(column.name):
                yield hypothesis, task


def _planned_task(column: Column, units_of_tasks: Mapping[str, Mapping[str, str]]) -> str | None:
    """The planned task that speaks for a column, itself or as a stand-in.

    It is None for a column in another unit, since deviations are in points.
    """
    for task in column.tasks:
        if task not in units_of_tasks:
            continue
        # A column that names no score has the task's main one; a measure declares none.
        unit = units_of_tasks[task].get(base_name(column.metric))
        if unit is None or column.scale is not None:
            unit = scale_without_runs(column).unit
        return task if unit == PERCENT else None
    return None


def _effect_of(claim: BaseClaim, task: str, difference: float) -> Effect:
    cells = 2
    if claim.against:
        cells = 4  # a difference of differences
    mean = 0.0 if claim.expects_equality else difference
    # A margin below zero is claimed of a difference that is below it.
    if claim.has_margin and not claim.is_supported_by(math.inf):
        mean = -mean
    return Effect(mean, claim.boundaries, cells, task)


def std_devs_of(tasks: Iterable[str], table: ResultTable | None) -> dict[str, StdDevs]:
    """The deviations of each task, from the finished runs of a table or else the shipped ones.

    The finished runs have to be of three pre-training seeds.
    """
    shipped = {}
    for name, entry in read_yaml(CONF_DIR / "spreads.yaml").items():
        shipped[name] = StdDevs(**entry)
    std_devs = {}
    for task in tasks:
        measured = None
        if table is not None:
            measured = _measured_std_devs(task, table)
        if measured is None:
            measured = shipped.get(task, shipped["default"])
        std_devs[task] = measured
    return std_devs


def _measured_std_devs(task: str, table: ResultTable) -> StdDevs | None:
    """The deviations of a task by the rows of a table; None where they share too few seeds."""
    columns = [
        column
        for column in table.with_results
        if column.tasks == (task,) and column.unit == PERCENT
    ]
    lines = []
    for row, column in product(table.rows, columns[:1]):
        for (seed, _), score in table.cells[row, column.key].healthy.items():
            lines.append((seed, row, score))
    if not lines:
        return None

    # The fine-tunings of each encoder.
    frame = pandas.DataFrame(lines, columns=["seed", "row", "score"])
    encoders = frame.groupby(["seed", "row"]).score
    # The variance between fine-tuning seeds, pooled over encoders; 0 where none has two.
    freedom = encoders.count() - 1
    within = (encoders.var() * freedom).sum() / max(1, freedom.sum())
    # Two rows' difference, a value a pre-training seed. Its variance holds the noise of
    # fine-tuning too, of which means over several fine-tuning seeds have less.
    means = encoders.mean().unstack()
    shares = (1 / encoders.count()).unstack()
    between = []
    for first, second in combinations(means, 2):
        gaps = (means[first] - means[second]).dropna()
        if len(gaps) >= MIN_SHARED_SEEDS:
            noises = (shares[first] + shares[second])[gaps.index]
            between.append(gaps.var() - within * noises.mean())
    if not between:
        return None
    return StdDevs(
        pretraining=float(np.sqrt(max(0.0, fmean(between)))),
        finetuning=float(np.sqrt(within)),
        source=f"your own runs, {means.count().max()} seeds",
    )


@dataclass(frozen=True)
class Allocation:
    """So many seeds of both kinds, at this multiple of the scale's steps."""

    seeds: int
    finetune_seeds: int
    factor: float
    seconds: float
    power: float = 0.0

    @property
    def utility(self) -> tuple[float, ...]:
        """What an allocation is chosen by: the largest is best.

        First comes power up to four in five, then tokens up to the scale's own, then more power by
        percents, and less time.
        """
        power = round(self.power, 2)
        if self.power >= POWER:
            return True, self.factor, power, -self.seconds
        return False, power, self.factor, -self.seconds


@dataclass(frozen=True)
class SeedCosts:
    """Seconds of one pre-training seed of all arms, by the clock."""

    start: float  # start-ups and evaluations, whatever the steps
    train: float  # at the scale's own steps
    tune: float  # of one fine-tuning seed

    def seconds(self, seeds: int, finetune_seeds: int, factor: float) -> float:
        return seeds * (self.start + factor * self.train + finetune_seeds * self.tune)

    def affordable(self, budget: float, seeds: int, finetune_seeds: int) -> Allocation:
        """So many seeds at the largest multiple of steps, 1 at most, that a budget pays for."""
        for_training = budget / seeds - self.start - finetune_seeds * self.tune
        factor = min(1.0, for_training / self.train)
        seconds = self.seconds(seeds, finetune_seeds, factor)
        return Allocation(seeds, finetune_seeds, factor, seconds)


def allocations(
    costing: Costing,
    question: PowerQuestion,
    std_devs: Mapping[str, StdDevs],
    budget: float,
    *,
    tuned_seeds: int,
    analyses: tuple[int, int] | None,
    may_shorten: bool,
) -> list[Allocation]:
    """The best of each number of pre-training seeds that the budget pays for, fewest seeds first.

    ValueError: no speed is known, or the budget is too small.

    Args:
        costing: of the experiment as it stands.
        question: whose power counts.
        std_devs: of each task.
        budget: seconds by the clock.
        tuned_seeds: fine-tuning seeds that `costing` counts.
        analyses: pre-training seeds at the first and the last analysis of a stopping rule.
        may_shorten: arms may take fewer steps, never below a masked model's first plateau.
    """
    if not costing.arms or any(shape.seconds is None for shape in costing.shapes):
        raise ValueError(NO_SPEED)
    costs = _seed_costs(costing, tuned_seeds)
    least_factor = 1.0
    if may_shorten:
        least_factor = _least_steps_factor(costing)

    fewest, most = analyses or (2, MOST_SEEDS)
    best_of_each = []
    for seeds in range(fewest, most + 1):
        affordable = []
        for finetune_seeds in range(1, MOST_FINETUNE_SEEDS + 1):
            allocation = costs.affordable(budget, seeds, finetune_seeds)
            if allocation.factor >= least_factor:
                power = question.power(std_devs, seeds, finetune_seeds, analyses)
                affordable.append(replace(allocation, power=power))
        if affordable:
            best_of_each.append(max(affordable, key=lambda allocation: allocation.utility))
    if not best_of_each:
        least_time = duration(costs.seconds(fewest, 1, least_factor))
        these = f"{fewest} pre-training seeds with one fine-tuning seed"
        raise ValueError(
            f"{these} take about {least_time}: a larger budget, or fewer rows or tasks"
        )
    return best_of_each


def _seed_costs(costing: Costing, tuned_seeds: int) -> SeedCosts:
    pretrain_at_once = costing.pools["pretrain"].at_once
    finetune_at_once = 1
    if "finetune" in costing.pools:
        finetune_at_once = costing.pools["finetune"].at_once

    starts = sum(arm.start * arm.count for arm in costing.arms)
    pretrain = sum((arm.seconds or 0.0) * arm.count for arm in costing.arms)
    finetune = sum((job.seconds or 0.0) * job.count for job in costing.tasks)
    # Evaluations take no longer where the arms are trained for longer.
    measuring = sum((job.seconds or 0.0) * job.count for job in costing.measures)
    jobs_of_seed = costing.num_seeds * pretrain_at_once
    return SeedCosts(
        start=(starts + measuring) / jobs_of_seed,
        train=(pretrain - starts) / jobs_of_seed,
        tune=finetune / costing.num_seeds / tuned_seeds / finetune_at_once,
    )


def _least_steps_factor(costing: Costing) -> float:
    """The multiple of steps, 1 at most, at which every masked model leaves its first plateau."""
    factors = [PLATEAUS * arm.tokens_to_plateau / arm.tokens for arm in costing.arms]
    return min(1.0, max([LEAST_STEPS_FACTOR, *factors]))
