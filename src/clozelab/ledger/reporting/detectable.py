"""The smallest difference that a number of pre-training seeds can be expected to show."""

from __future__ import annotations

from statistics import median

from clozelab.ledger.collect import Collected
from clozelab.ledger.reporting.claims import ALL_COLUMNS
from clozelab.ledger.reporting.experiment import Experiment
from clozelab.ledger.reporting.links import find_cases
from clozelab.ledger.reporting.table import build_table
from clozelab.ledger.reporting.verdicts import SIGNIFICANCE
from clozelab.metrics.statistics import smallest_detectable_difference

ASSUMED_SD = 1.0
"""Points, of the difference of two arms over pre-training seeds, where no finished run says more."""


def known_deviation(experiment: Experiment, collected: Collected) -> tuple[float, int]:
    """(median deviation of the differences that claims rest on, over pre-training seeds; how many it is from).

    ASSUMED_SD and 0 where no difference has two pre-training seeds yet. Only of scores in percent.
    """
    table = build_table(experiment, collected)
    links = [link for claim in experiment.claims for case in find_cases(claim, table) for link in case.links]
    found = {
        link.key: link.difference.sd
        for link in links
        if link.is_tested
        and link.difference
        and link.difference.sd is not None
        and all(c.tasks for _, _, c in link.terms)
    }
    return (median(found.values()), len(found)) if found else (ASSUMED_SD, 0)


def family_size(experiment: Experiment) -> int:
    """Different differences that the claims rest on, where each column has runs on one data set.

    Links of real cells, which the verdicts count, are there only after the runs.
    """
    tasks = [column.name for column in experiment.columns if column.is_task]
    found: set[tuple[object, ...]] = set()
    for claim in experiment.claims:
        columns = tasks if claim.column == ALL_COLUMNS else [claim.column]
        found |= {(frozenset(pair), column, claim.points, claim.against) for pair in claim.pairs for column in columns}
    return len(found)


def describe(experiment: Experiment, collected: Collected, seeds: int) -> str:
    """The smallest difference that so many pre-training seeds can show, alone and after the correction, in words."""
    if seeds < 2:
        return "smallest detectable difference: none; one pre-training seed cannot tell an arm from its luck"
    deviation, number = known_deviation(experiment, collected)
    least = smallest_detectable_difference(deviation, seeds)
    basis = f"median of {number} comparisons so far" if number else "assumed: no two seeds have finished"
    line = (
        f"smallest detectable difference: {least:.1f} points between two arms with {seeds} pre-training seeds "
        f"(found in 4 of 5 experiments), if it varies by {deviation:.1f} points from seed to seed ({basis})"
    )
    family = family_size(experiment)
    if family < 2:
        return line
    corrected = smallest_detectable_difference(deviation, seeds, confidence=1.0 - SIGNIFICANCE / family)
    return (
        f"{line}; so much for a test of one difference alone. Verdicts are corrected for all {family} that the claims "
        f"rest on, the hardest step of which takes {corrected:.1f} points"
    )
