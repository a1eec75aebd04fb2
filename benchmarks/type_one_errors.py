"""How often each test of `claims judge` is wrong where nothing differs, and what its intervals
cover.

`python benchmarks/type_one_errors.py [--tables N] [--resampled N]` prints two Markdown tables, of
seeds and of examples; docs/results/2026-11-28-type-one-errors.md has a run of it. Scores are drawn
without a true difference (or with one that lies exactly on the margin), normal or heavy-tailed
(Student's t with 3 degrees of freedom, scaled to the same standard deviation). The tests are
computed for all tables at once by scipy, and tests/claims/test_error_rates.py holds them against
the judge itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from claims.analysis.examples import mcnemar, multi_bootstrap
from claims.analysis.multiplicity import holm
from claims.analysis.statistics import SIGNIFICANCE, nominal_level

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]
Draw = Callable[..., Floats]

SEEDS = (3, 5, 10)
EXAMPLES = (50, 200, 1000)
MARGIN = 3.0
"""Of equivalence and noninferiority, in standard deviations of a row."""
STEP = 50.0
"""A difference that every test finds."""
FINETUNINGS = 2
"""Of each pre-training seed, where seeds are nested."""


def normal(generator: np.random.Generator, size: tuple[int, ...]) -> Floats:
    return generator.normal(size=size)


def heavy_tailed(generator: np.random.Generator, size: tuple[int, ...]) -> Floats:
    """Student's t with 3 degrees of freedom, whose variance is 3, at a variance of 1."""
    return generator.standard_t(3, size=size) / np.sqrt(3.0)


DISTRIBUTIONS: dict[str, Draw] = {"normal": normal, "heavy-tailed": heavy_tailed}


def p_values(differences: Floats, value: Floats | float = 0.0) -> Floats:
    """Two-sided, of [..., seeds] against a value or [...]."""
    shifted = differences - np.asarray(value)[..., np.newaxis]
    return np.asarray(stats.ttest_1samp(shifted, 0.0, axis=-1).pvalue)


# -- what the judge decides, for [tables, rows, seeds] without a true difference: [tables] ---------


def order(rows: Floats) -> Booleans:
    """`direction: higher` of two equal rows: it holds or is contradicted."""
    return p_values(rows[:, 0] - rows[:, 1]) < SIGNIFICANCE


def equivalence(rows: Floats) -> Booleans:
    """`within` of two rows whose difference is the margin itself."""
    differences = rows[:, 0] - rows[:, 1] + MARGIN
    nearest = np.copysign(MARGIN, differences.mean(axis=-1))
    return p_values(differences, nearest) < SIGNIFICANCE


def noninferiority(rows: Floats) -> Booleans:
    """`not_lower` of a row that is lower by the margin itself."""
    return p_values(rows[:, 0] - MARGIN - rows[:, 1], -MARGIN) < SIGNIFICANCE


def trend(rows: Floats) -> Booleans:
    """`increasing` of three rows, of which the second lies far above the first.

    The third is equal to the second. A claim that lines cross rests on two differences likewise.
    """
    steps = np.diff(rows, axis=1)
    steps[:, 0] += STEP
    is_significant = holm(p_values(steps)) < SIGNIFICANCE
    rises = steps.mean(axis=-1) > 0.0
    holds = (is_significant & rises).all(axis=-1)
    return holds | (is_significant & ~rises).any(axis=-1)


def all_pairs(rows: Floats) -> Booleans:
    """`compare: all` of four equal rows: some pair differs after Holm's correction."""
    pairs = combinations(range(rows.shape[1]), 2)
    differences = np.stack([rows[:, second] - rows[:, first] for first, second in pairs], axis=1)
    is_significant: Booleans = holm(p_values(differences)) < SIGNIFICANCE
    return np.asarray(is_significant.any(axis=-1))


def stopping_rule(rows: Floats) -> Booleans:
    """`stopping: {first: 3, most: seeds}` of two equal rows: some analysis decides."""
    differences = rows[:, 0] - rows[:, 1]
    most = rows.shape[-1]
    first = min(SEEDS)
    analyses = [p_values(differences[:, :count]) for count in range(first, most + 1)]
    return np.min(analyses, axis=0) < nominal_level(SIGNIFICANCE, first, most)


def nested_t(rows: Floats) -> Booleans:
    """`direction: higher` of two equal rows with two fine-tunings of each pre-training seed.

    The last axis has the seeds, and the effects of the fine-tunings of each.
    """
    num_seeds = rows.shape[-1] // (1 + FINETUNINGS)
    differences = rows[:, 0] - rows[:, 1]
    finetunings = differences[:, num_seeds:].reshape(len(rows), num_seeds, FINETUNINGS)
    return p_values(differences[:, :num_seeds] + finetunings.mean(axis=-1)) < SIGNIFICANCE


# name -> (decisions, rows of a table, drawn values of a row and seed)
TESTS: dict[str, tuple[Callable[[Floats], Booleans], int, int]] = {
    "difference (`higher`)": (order, 2, 1),
    "the same, nested seeds": (nested_t, 2, 1 + FINETUNINGS),
    "equivalence (`within`)": (equivalence, 2, 1),
    "noninferiority (`not_lower`)": (noninferiority, 2, 1),
    "trend (`increasing`), crossing": (trend, 3, 1),
    "all six pairs of four rows": (all_pairs, 4, 1),
    "stopping rule, first analysis at 3": (stopping_rule, 2, 1),
}


def error_rate(name: str, seeds: int, draw: Draw, tables: int) -> float:
    """Share of tables without a true difference in which something is decided."""
    decide, num_rows, num_values = TESTS[name]
    generator = np.random.default_rng([list(TESTS).index(name), seeds])
    return float(decide(draw(generator, (tables, num_rows, seeds * num_values))).mean())


# -- resampling: these decide no claim, and their intervals are shown ------------------------------


def multi_bootstrap_misses(seeds: int, finetunings: int, draw: Draw, tables: int) -> float:
    """Share of intervals that miss the true difference of 0.

    Seeds, fine-tunings and each of 50 examples add an effect of one standard deviation; each score
    adds another one.
    """
    generator = np.random.default_rng([finetunings, seeds])
    examples = min(EXAMPLES)
    misses = 0
    for _ in range(tables):
        scores = draw(generator, (seeds, 1, 1)) + draw(generator, (seeds, finetunings, 1))
        scores = scores + draw(generator, (1, 1, examples))
        scores = scores + draw(generator, (seeds, finetunings, examples))
        found = multi_bootstrap(list(scores))
        misses += not found.low <= 0.0 <= found.high
    return misses / tables


def bootstrap_misses(examples: int, draw: Draw, tables: int) -> float:
    """Share of intervals over the examples of two runs that miss the true difference of 0."""
    generator = np.random.default_rng(examples)
    misses = 0
    for _ in range(tables):
        found = multi_bootstrap([draw(generator, (1, examples))])
        misses += not found.low <= 0.0 <= found.high
    return misses / tables


def mcnemar_errors(examples: int, tables: int) -> float:
    """Share of p below 5 % for two runs that are right on 80 of 100 examples each."""
    generator = np.random.default_rng(examples)
    errors = 0
    for _ in range(tables):
        right = generator.random((2, examples)) < 0.8
        errors += mcnemar(*right).p_value < SIGNIFICANCE
    return errors / tables


# -- pages -----------------------------------------------------------------------------------------


def cell(rate: float, count: int) -> str:
    """`4.97 %`, and by how many standard errors it differs from 5 %, if by more than two."""
    distance = (rate - SIGNIFICANCE) / np.sqrt(SIGNIFICANCE * (1.0 - SIGNIFICANCE) / count)
    text = f"{100.0 * rate:.2f} %"
    return f"**{text}** ({distance:+.0f} se)" if abs(distance) > 2.0 else text


def print_line(name: str, rates: list[tuple[float, int]]) -> None:
    cells = [cell(rate, count) for rate, count in rates]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def print_tables(tables: int, resampled: int) -> None:
    """Print both tables, with a column for each number of seeds or examples and distribution."""
    headings = [f"{seeds} seeds, {name}" for seeds, name in product(SEEDS, DISTRIBUTIONS)]
    print(f"| wrong | {' | '.join(headings)} |\n|---|{'--:|' * len(headings)}")
    for test in TESTS:
        rates = []
        for seeds in SEEDS:
            for draw in DISTRIBUTIONS.values():
                rates.append((error_rate(test, seeds, draw, tables), tables))
        print_line(test, rates)
    for finetunings in (FINETUNINGS, 1):
        rates = []
        for seeds in SEEDS:
            for draw in DISTRIBUTIONS.values():
                misses = multi_bootstrap_misses(seeds, finetunings, draw, resampled)
                rates.append((misses, resampled))
        print_line(f"interval of the multi-bootstrap, {finetunings} a seed", rates)

    headings = [f"{number} examples, {name}" for number, name in product(EXAMPLES, DISTRIBUTIONS)]
    print(f"\n| wrong | {' | '.join(headings)} |\n|---|{'--:|' * len(headings)}")
    rates = []
    exact = []
    for number in EXAMPLES:
        exact.append(cell(mcnemar_errors(number, 5 * resampled), 5 * resampled))
        for draw in DISTRIBUTIONS.values():
            rates.append((bootstrap_misses(number, draw, resampled), resampled))
    print_line("interval of the paired bootstrap", rates)
    print(f"| McNemar's exact test | {' | | '.join(exact)} | |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, default=100_000, help="of seeds, a cell")
    parser.add_argument("--resampled", type=int, default=2_000, help="by a bootstrap, a cell")
    options = parser.parse_args()
    print_tables(options.tables, options.resampled)


if __name__ == "__main__":
    main()
