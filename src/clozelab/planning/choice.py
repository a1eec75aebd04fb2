"""What a budget decides: seeds of both kinds, and how long to pre-train, that give an experiment's
claims most power.

Power is counted in simulated tables, corrected as the judge corrects, at a true difference that the
user names. How much scores vary from seed to seed is measured: on finished runs, or else on those
that conf/spreads.yaml names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean, variance

import numpy as np

from clozelab.analysis.claims import ALL_COLUMNS, EquivalenceClaim
from clozelab.analysis.power import POWER, simulate_decided
from clozelab.analysis.schema import PERCENT
from clozelab.planning.cost import NO_SPEED, Costing
from clozelab.results.experiment import Experiment, read_yaml
from clozelab.results.table import ResultTable
from clozelab.text.formatting import duration
from clozelab.text.paths import CONF_DIR

MOST_FINETUNE_SEEDS, MOST_SEEDS = 5, 20
# a masked model has to see so many times the tokens after which it leaves its first plateau
PLATEAUS = 2.0
FEWEST = 3  # pre-training seeds from which a spread is worth more than the shipped one


@dataclass(frozen=True)
class Spread:
    """Standard deviations in points: of a difference of rows between pre-training seeds, of a run
    between its own.
    """

    pretraining: float
    finetuning: float
    source: str


@dataclass(frozen=True)
class Question:
    """The differences that an experiment's claims rest on before they are measured. `effects` are
    (true difference, margin, cells) in points by task; `claims` the places of each claim's, the
    `num_primary` primary ones first;
    `unknown` the claims about columns that have no such spread."""

    effects: Sequence[tuple[float, float, int, str]]
    claims: Sequence[Sequence[int]]
    num_primary: int
    unknown: Sequence[str]

    @property
    def families(self) -> list[list[int]]:
        first = [list(places) for places in self.claims[: self.num_primary]]
        rest = dict.fromkeys(
            place for places in self.claims[self.num_primary :] for place in places
        )
        found, seen = [], set[int]()
        for family in (*first, list(rest)):
            found.append([place for place in family if place not in seen])
            seen |= set(family)
        *primary, others = found
        # the last one is of the others, also where there are none
        return [*filter(None, primary), others]

    def power(
        self, spreads: Mapping[str, Spread], seeds: int, tuned: int, looks: tuple[int, int] | None
    ) -> float:
        """The share of tables that decide all primary claims; without any, of all claims the share
        that is decided.
        """
        # a sum of so many cells
        known = [(spreads[task], cells) for *_, cells, task in self.effects]
        variances = [
            cells * (one.pretraining**2 / 2 + one.finetuning**2 / tuned) for one, cells in known
        ]
        scales = np.maximum(1e-9, np.sqrt(variances)).tolist()
        effects = [
            (gap / sd, margin / sd)
            for (gap, margin, *_), sd in zip(self.effects, scales, strict=True)
        ]
        decided = simulate_decided(effects, self.families, seeds, looks)
        shares = [decided[:, list(places)].all(axis=1) for places in self.claims]
        if self.num_primary:
            return float(np.all(shares[: self.num_primary], axis=0).mean())
        return float(np.mean(shares))


def ask(experiment: Experiment, tasks: Iterable[str], difference: float) -> Question:
    """What an experiment's claims will rest on, where these tasks are fine-tuned and the true
    differences are alike.
    """
    here = set(tasks)
    places: dict[object, int] = {}
    effects: list[tuple[float, float, int, str]] = []
    claims: list[list[int]] = []
    unknown, num_primary = [], 0
    for claim in sorted(experiment.claims, key=lambda one: not one.primary):
        mine = []
        named = [column for column in experiment.columns if column.name == claim.column]
        for column in experiment.all_columns if claim.column == ALL_COLUMNS else named:
            # spreads are in points
            names = (column.task, *column.stand_ins) if column.unit == PERCENT else ()
            task = next((one for one in names if one in here), None)
            for key in claim.hypotheses(column.name) if task else ():
                if key not in places:
                    places[key] = len(effects)
                    gap, margin = (
                        (0.0, claim.points)
                        if isinstance(claim, EquivalenceClaim)
                        else (difference, 0.0)
                    )
                    effects.append((gap, margin, 4 if claim.against else 2, str(task)))
                mine.append(places[key])
        if mine:
            claims.append(mine)
            num_primary += claim.primary
        else:
            unknown.append(claim.text)
    return Question(effects, claims, num_primary, unknown)


def spreads_of(tasks: Iterable[str], table: ResultTable | None) -> dict[str, Spread]:
    """Of each task: from the finished runs, where those are of three pre-training seeds; else the
    shipped ones.
    """
    shipped = {name: Spread(**said) for name, said in read_yaml(CONF_DIR / "spreads.yaml").items()}
    return {
        task: (_own(task, table) if table else None) or shipped.get(task, shipped["default"])
        for task in tasks
    }


def _own(task: str, table: ResultTable) -> Spread | None:
    column = next(
        (one for one in table.with_results if one.tasks == (task,) and one.unit == PERCENT), None
    )
    if column is None:
        return None
    cells = [cell.healthy for row in table.rows if (cell := table.cells[row, column.key]).healthy]
    groups = [
        {seed: [cell[key] for key in cell if key[0] == seed] for seed, _ in cell} for cell in cells
    ]
    inside = [
        (len(one) - 1, variance(one)) for group in groups for one in group.values() if len(one) > 1
    ]
    tuned = (
        sum(count * found for count, found in inside) / sum(count for count, _ in inside)
        if inside
        else 0.0
    )
    found = []
    for one, other in combinations(groups, 2):
        if len(common := one.keys() & other.keys()) >= FEWEST:
            noise = tuned * fmean(1 / len(one[seed]) + 1 / len(other[seed]) for seed in common)
            found.append(variance(fmean(one[seed]) - fmean(other[seed]) for seed in common) - noise)
    if not found:
        return None
    seeds = max(map(len, groups))
    return Spread(
        float(np.sqrt(max(0.0, fmean(found)))),
        float(np.sqrt(tuned)),
        f"your own runs, {seeds} seeds",
    )


@dataclass(frozen=True)
class Choice:
    """So many seeds of both kinds, at this multiple of the scale's steps."""

    seeds: int
    finetune_seeds: int
    factor: float
    seconds: float
    power: float = 0.0

    @property
    def worth(self) -> tuple[float, ...]:
        """Power up to four in five; then tokens, up to the scale's own; then more power, by
        percents, and less time.
        """
        enough, power = self.power >= POWER, round(self.power, 2)
        return (
            enough,
            self.factor if enough else power,
            power if enough else self.factor,
            -self.seconds,
        )


def choices(
    costing: Costing,
    question: Question,
    spreads: Mapping[str, Spread],
    budget: float,
    *,
    tuned_seeds: int,
    looks: tuple[int, int] | None,
    may_shorten: bool,
    measuring: float = 0.0,
) -> list[Choice]:
    """The best of each number of pre-training seeds that the budget pays for, fewest seeds first.

    `costing` counts `tuned_seeds` fine-tuning seeds; `looks` are the first and the last of a
    stopping rule. Steps that
    `may_shorten` never do below the first plateau of a masked model. `measuring`: seconds of the
    evaluations of one pre-training seed, one after another. ValueError: no speed, or too small a
    budget."""
    if not costing.arms or any(one.seconds is None for one in costing.shapes):
        raise ValueError(NO_SPEED)
    at_once = {verb: pool.at_once for verb, pool in costing.pools.items()}
    share = 1 / costing.num_seeds / at_once["pretrain"]
    starts = sum(arm.starts.pretrain * arm.count for arm in costing.arms) * share
    train = sum((arm.seconds or 0.0) * arm.count for arm in costing.arms) * share - starts
    start = starts + measuring / at_once["pretrain"]
    tune = (
        sum((job.seconds or 0.0) * job.count for job in costing.tasks)
        / costing.num_seeds
        / tuned_seeds
    )
    tune /= at_once.get("finetune", 1)
    plateaus = [PLATEAUS * arm.tokens_to_plateau / arm.tokens for arm in costing.arms]
    least = min(1.0, max([0.05, *plateaus])) if may_shorten else 1.0

    def fits(seeds: int, tuned: int) -> Choice:
        factor = min(1.0, (budget / seeds - start - tuned * tune) / train)
        return Choice(seeds, tuned, factor, seeds * (start + factor * train + tuned * tune))

    fewest, most = looks or (2, MOST_SEEDS)
    found = []
    for seeds in range(fewest, most + 1):
        able = [
            one
            for tuned in range(1, MOST_FINETUNE_SEEDS + 1)
            if (one := fits(seeds, tuned)).factor >= least
        ]
        known = [
            replace(one, power=question.power(spreads, seeds, one.finetune_seeds, looks))
            for one in able
        ]
        found += [max(known, key=lambda one: one.worth)] if known else []
    if not found:
        least_time = duration(fewest * (start + least * train + tune))
        these = f"{fewest} pre-training seeds with one fine-tuning seed"
        raise ValueError(
            f"{these} take about {least_time}: a larger budget, or fewer rows or tasks"
        )
    return found
