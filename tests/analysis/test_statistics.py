"""Statistics of a comparison against scipy and against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from claims.analysis.multiplicity import holm
from claims.analysis.power import minimum_detectable_difference, required_seeds
from claims.analysis.statistics import (
    FINETUNING_SEEDS,
    ONE_RUN,
    PRETRAINING_SEEDS,
    estimate,
    estimate_contrast,
    sequential_p,
)


def t_interval(values: list[float]) -> tuple[float, float | None, float | None]:
    """(mean, low, high) of one value a pre-training seed."""
    found = estimate({(seed, 1): value for seed, value in enumerate(values)})
    return found.mean, found.low, found.high


def test_interval_equals_scipys() -> None:
    values = [70.1, 68.3, 71.9, 69.0]
    mean, low, high = t_interval(values)
    expected = stats.t.interval(0.95, df=3, loc=np.mean(values), scale=stats.sem(values))
    assert (low, high) == pytest.approx(expected)
    assert mean == pytest.approx(np.mean(values))


def test_finetuning_seeds_are_averaged_inside_pretraining_seeds() -> None:
    scores = {(1, 1): 60.0, (1, 2): 62.0, (2, 1): 70.0, (2, 2): 72.0}
    found = estimate(scores)
    assert (found.low, found.high) == pytest.approx(t_interval([61.0, 71.0])[1:])
    assert (found.mean, found.count, found.basis) == (66.0, 2, PRETRAINING_SEEDS)


def test_unequal_groups_do_not_weigh_more() -> None:
    assert estimate({(1, 1): 60.0, (1, 2): 60.0, (1, 3): 60.0, (2, 1): 70.0}).mean == 65.0


def test_one_pretraining_seed_says_so() -> None:
    found = estimate({(1, 1): 60.0, (1, 2): 62.0})
    assert (found.basis, found.count) == (FINETUNING_SEEDS, 2)
    alone = estimate({(1, 1): 60.0})
    assert (alone.basis, alone.low, alone.half_width) == (ONE_RUN, None, None)


def test_difference_is_paired() -> None:
    first = {(seed, 1): 60.0 + 5.0 * seed for seed in (1, 2, 3)}
    second = {(seed, 1): 58.0 + 5.0 * seed + 0.1 * seed for seed in (1, 2, 3)}
    found = estimate_contrast([(1.0, first), (-1.0, second)])
    assert found is not None
    assert (found.low, found.high) == pytest.approx(t_interval([1.9, 1.8, 1.7])[1:])
    # unpaired, the spread between seeds would drown it
    assert found.low is not None and found.low > 1.0


def test_difference_uses_common_seeds_only() -> None:
    found = estimate_contrast(
        [(1.0, {(1, 1): 5.0, (2, 1): 6.0, (3, 1): 90.0}), (-1.0, {(1, 1): 4.0, (2, 1): 4.5})]
    )
    assert found is not None and (found.mean, found.count) == (1.25, 2)
    assert estimate_contrast([(1.0, {(1, 1): 1.0}), (-1.0, {(2, 1): 1.0})]) is None


SIMULATIONS = 1000
FINETUNING = 3
SPREADS = {"dominates": (1.0, 0.3), "is negligible": (0.0, 1.0)}
"""Standard deviation between pre-training seeds and between fine-tuning seeds."""


def simulated(
    pretrain_seeds: int,
    spread: tuple[float, float],
    truth: float = 0.5,
    columns: tuple[float, ...] = (1.0,),
) -> np.ndarray:
    """Differences [SIMULATIONS, columns, pre-training seeds, fine-tuning seeds] whose true mean is
    `truth`.
    """
    generator = np.random.default_rng(7)
    shape = (SIMULATIONS, len(columns), pretrain_seeds, FINETUNING)
    between = generator.normal(0.0, spread[0], size=(*shape[:3], 1))
    return truth + np.array(columns)[:, None, None] * (
        between + generator.normal(0.0, spread[1], size=shape)
    )


def as_scores(differences: np.ndarray) -> dict[tuple[int, int], float]:
    """[pre-training seeds, fine-tuning seeds] as a cell's scores."""
    return {(i + 1, j + 1): float(value) for (i, j), value in np.ndenumerate(differences)}


def share(hits: list[bool]) -> float:
    return sum(hits) / len(hits)


@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS)
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_cover_and_false_verdicts_are_rare(
    seeds: int, spread: tuple[float, float]
) -> None:
    found = [estimate(as_scores(one[0])) for one in simulated(seeds, spread)]
    assert 0.92 <= share([one.low <= 0.5 <= one.high for one in found]) <= 0.98
    null = [estimate(as_scores(one[0])) for one in simulated(seeds, spread, truth=0.0)]
    assert share([one.high < 0.0 for one in null]) < 0.05
    assert share([one.low > 0.0 for one in null]) < 0.05


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_runs_taken_as_independent_do_not_cover(seeds: int) -> None:
    """The negative control: what n = seeds x restarts would claim."""
    found = [t_interval(one.ravel().tolist()) for one in simulated(seeds, SPREADS["dominates"])]
    assert share([low <= 0.5 <= high for _, low, high in found]) < 0.8


@pytest.mark.parametrize("seeds", [3, 5])
def test_fine_tuning_seeds_drawn_alike_for_every_encoder_do_not_cover(seeds: int) -> None:
    """Another negative control, docs/decisions/0013: their effect is in every mean, not in the
    means' spread.
    """
    alike = np.random.default_rng(8).normal(0.0, 1.0, size=(SIMULATIONS, 1, FINETUNING))
    found = [estimate(as_scores(one)) for one in simulated(seeds, (0.5, 0.5))[:, 0] + alike]
    assert share([one.low <= 0.5 <= one.high for one in found]) < 0.9


def test_a_spread_borrowed_from_other_columns_does_not_cover() -> None:
    """Why nothing is pooled over the table, docs/decisions/0006: the column that spreads most is
    too sure of itself.
    """
    values = simulated(2, SPREADS["dominates"], columns=(0.3, 1.0, 3.0)).mean(-1)
    half = stats.t.ppf(0.975, df=3) * np.sqrt(values.var(-1, ddof=1).mean(-1) / 2)
    covered = np.abs(values.mean(-1) - 0.5) <= half[:, None]
    assert covered[:, 2].mean() < 0.85 and covered[:, 0].mean() > 0.98


def test_corrected_tables_are_rarely_wrong_anywhere() -> None:
    """Nine differences, none true: the correction keeps the whole table below 5 %, without it a
    third is wrong.
    """
    tables = simulated(3, SPREADS["dominates"], truth=0.0, columns=(1.0,) * 9).mean(-1)
    statistics = np.abs(tables.mean(-1)) * np.sqrt(3) / tables.std(-1, ddof=1)
    p_values = 2 * stats.t.sf(statistics, df=2)
    assert share([min(one) < 0.05 for one in p_values]) > 0.25
    # 0.05 and two standard errors
    assert share([holm(one).min() < 0.05 for one in p_values]) < 0.065


def test_p_value_equals_scipys() -> None:
    values = [0.4, 1.1, 0.2, 0.9]
    found = estimate({(seed, 1): value for seed, value in enumerate(values)})
    for point in (0.0, 0.5):
        assert found.p_value(point) == pytest.approx(stats.ttest_1samp(values, point).pvalue)
    assert estimate({(1, 1): 1.0}).p_value() is None


def test_holm_by_hand() -> None:
    # sorted 0.01 0.02 0.03 0.04 -> x4, x3, x2, x1 = 0.04 0.06 0.06 0.04 -> never falling
    assert holm(np.array([0.04, 0.01, 0.03, 0.02])) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm(np.array([0.6, 0.7])) == pytest.approx([1.0, 1.0])
    assert holm(np.array([])).tolist() == [] and holm(np.array([0.03])).tolist() == [0.03]


def test_difference_of_differences_is_paired() -> None:
    cells = []
    for base, noise in ((5, 9), (3, 8.9), (4, 2), (3, 2.1)):
        cells.append({(seed, 1): base + noise * seed for seed in (1, 2, 3)})
    found = estimate_contrast(list(zip((1.0, -1.0, -1.0, 1.0), cells, strict=True)))
    assert found is not None
    # (2 + 0.1 s) - (1 - 0.1 s) over s = 1, 2, 3
    assert (found.mean, found.count) == (pytest.approx(1.4), 3)
    assert estimate_contrast([(1.0, cells[0]), (-1.0, {(9, 1): 1.0})]) is None


def test_unequal_runs_are_marked() -> None:
    assert not estimate({(1, 1): 60.0, (1, 2): 60.0, (2, 1): 70.0}).is_balanced
    assert estimate({(1, 1): 60.0, (2, 1): 70.0}).is_balanced


def test_seeds_needed() -> None:
    """Textbook sizes of a one-sample t test at 5 % and 80 %: 34 for half a standard deviation, 15,
    10, 5.
    """
    assert [required_seeds([effect]) for effect in (0.5, 0.8, 1.0, 2.0)] == [34, 15, 10, 5]
    assert required_seeds([0.1]) is None and required_seeds([0.0]) is None
    assert required_seeds([np.inf]) == required_seeds([1e9]) == 2
    strict, plain = required_seeds([1.0], confidence=0.995), required_seeds([1.0])
    assert strict is not None and plain is not None and strict > plain


@pytest.mark.parametrize("effects", [(1.0,), (1.0, 1.0, 1.0), (0.9, 2.0)])
def test_seeds_needed_are_enough_for_all(effects: tuple[float, ...]) -> None:
    """Independent tests: the worst case of what is promised, but for a little."""
    count = required_seeds(effects)
    assert count is not None
    draw = np.random.default_rng(1)

    def found(n: int) -> float:
        values = draw.normal(size=(20_000, len(effects), n)) + np.array(effects)[:, None]
        shown = (
            values.mean(2) - stats.t.ppf(0.975, n - 1) * values.std(2, ddof=1) / np.sqrt(n) > 0.0
        )
        return float(shown.all(1).mean())

    assert found(count) > 0.79 and found(count - 2) < 0.8


def test_both_ends_of_a_margin_have_to_be_excluded() -> None:
    """Two standard deviations of room on each side: one test at a time would promise too few."""
    count = required_seeds([1.0, 1.0])
    assert count is not None and count > (required_seeds([1.0]) or 0)
    values = np.random.default_rng(1).normal(size=(20_000, count))
    half = stats.t.ppf(0.975, count - 1) * values.std(1, ddof=1) / np.sqrt(count)
    assert float((abs(values.mean(1)) + half < 1.0).mean()) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("tests", [1, 13])
@pytest.mark.parametrize("n", [2, 3, 5, 6, 16])
def test_smallest_gap_is_found_that_often(n: int, tests: int) -> None:
    """Also by the hardest step of a correction for several tests."""
    truth = minimum_detectable_difference(2.0, n, confidence=1.0 - 0.05 / tests)
    values = np.random.default_rng(1).normal(truth, 2.0, size=(20_000, n))
    low = values.mean(1) - stats.t.ppf(1.0 - 0.025 / tests, n - 1) * values.std(
        1, ddof=1
    ) / np.sqrt(n)
    assert (low > 0).mean() == pytest.approx(0.8, abs=0.015)


def test_one_look_is_the_plain_test() -> None:
    for p in (0.5, 0.05, 0.01):
        assert sequential_p([p], 5, 5) == pytest.approx(p, rel=0.05)
    assert sequential_p([1e-9], 3, 10) == pytest.approx(8e-9), "no more than the sum of all looks"
    assert sequential_p([0.2, 0.01, 0.9], 3, 10) == sequential_p([0.01], 3, 10) > 0.02


def test_looking_after_every_seed_is_wrong_once_in_twenty() -> None:
    """Against t tests of scipy on other draws; without the correction three times as often."""
    values, looks = np.random.default_rng(11).normal(size=(4000, 10)), range(3, 11)
    plain = np.array(
        [stats.ttest_1samp(values[:, :count], 0.0, axis=1).pvalue for count in looks]
    ).T
    smallest = np.array([sequential_p(one[:8], 3, 10) for one in plain])

    def is_stopped(p_values: np.ndarray) -> bool:
        return any(sequential_p(p_values[:number], 3, 10) < 0.05 for number in range(1, 9))

    stopped = np.array([is_stopped(one) for one in plain[:400]])
    assert np.array_equal(stopped, smallest[:400] < 0.05), (
        "whoever stops at a look has what the last one says"
    )
    low, high = stats.binom.ppf([0.001, 0.999], 4000, 0.05)
    assert low <= (smallest < 0.05).sum() <= high
    assert (plain.min(axis=1) < 0.05).sum() > 2 * high
