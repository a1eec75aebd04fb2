"""The price of several tests in one table: Holm's step-down, and the fallback procedure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from claims.analysis.statistics import SIGNIFICANCE

if TYPE_CHECKING:
    from claims.analysis.contrasts import Contrast, ContrastKey

# of the 5 %: what claims that are not primary have while a primary one is undecided
SECONDARY_SHARE = 0.2


def holm(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's step-down p-values of [..., tests], each last axis one family, in the order given.

    All below 0.05 together are false at most once in twenty families of tests, also of tests that
    share a row. (scipy has the method of Benjamini and Hochberg, which bounds another error.)
    """
    num_tests = p_values.shape[-1]
    order = np.argsort(p_values, kind="stable")
    # The smallest p counts for all tests, the next one for one test less, and so on. None may be
    # smaller than that of the step before.
    steps = np.take_along_axis(p_values, order, -1) * np.arange(num_tests, 0, -1)
    adjusted = np.empty_like(steps)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(steps, -1), -1)
    return np.minimum(1.0, adjusted)


@dataclass(frozen=True)
class Correction:
    """By a contrast's key: what the other tests of the table make of its p-value."""

    # corrected p
    corrected: Mapping[ContrastKey, float]
    # the plain p that would decide it
    local_level: Mapping[ContrastKey, float]
    # the undecided primary claim before it, in words; empty for none
    gated_by: Mapping[ContrastKey, str]

    @property
    def num_tests(self) -> int:
        return len(self.corrected)


def fallback_procedure(families: Mapping[str, Iterable[Contrast]]) -> Correction:
    """Test primary claims one after another at 4 %, and all others beside them at 1 %.

    A primary claim is tested only where all contrasts of those before it are decided, whichever
    way. The others do not wait: they keep SECONDARY_SHARE of the 5 %, and are given the rest once
    every primary claim is decided. So a table has a false verdict at most once in twenty tables
    (a fallback procedure: Wiens 2003). Contrasts of one family are corrected among themselves by
    Holm. A contrast that nothing was measured for is no test, and stops none.

    Args:
        families: by hypotheses.families_of. Without primary claims there are only the others, at
            5 %.
    """
    corrected: dict[ContrastKey, float] = {}
    local_level: dict[ContrastKey, float] = {}
    gated_by: dict[ContrastKey, str] = {}
    primary_share = share_of_primary(has_secondary="" in families)
    largest = 0.0
    undecided = ""
    for name, contrasts in families.items():
        new = {contrast.key: contrast for contrast in contrasts if contrast.key not in corrected}
        p_values = _p_values(new)
        adjusted = holm(np.array(list(p_values.values()), dtype=np.float64))
        if name:
            share = primary_share
            family = fallback_primary(adjusted, share, largest).tolist()
        else:
            share = SECONDARY_SHARE if undecided else 1.0
            family = fallback_secondary(adjusted, largest).tolist()
        corrected |= zip(p_values, family, strict=True)
        local_level |= dict.fromkeys(p_values, _local_level(adjusted, share))
        gated_by |= dict.fromkeys(p_values, undecided)

        largest = max([largest, *family, _p_of_untested(new, p_values)])
        if largest >= SIGNIFICANCE and not undecided:
            undecided = name
    return Correction(corrected, local_level, gated_by)


def share_of_primary(*, has_secondary: bool) -> float:
    """The part of the 5 % that primary claims have."""
    return 1.0 - SECONDARY_SHARE if has_secondary else 1.0


def fallback_primary(
    adjusted: NDArray[np.float64], share: float, largest: NDArray[np.float64] | float
) -> NDArray[np.float64]:
    """P-values [..., tests] of a primary family, with the price of the families before it.

    A test that waits for others is no surer than the least sure of them.

    Args:
        adjusted: p-values [..., tests] by Holm's method.
        share: of the 5 %, by share_of_primary.
        largest: largest p [..., 1] of the families before it; 0 where there is none.
    """
    return np.minimum(1.0, np.maximum(largest, adjusted / share))


def fallback_secondary(
    adjusted: NDArray[np.float64], largest: NDArray[np.float64] | float
) -> NDArray[np.float64]:
    """P-values [..., tests] of all others: they wait, too, or take their small share at once."""
    at_once = np.minimum(1.0, adjusted / SECONDARY_SHARE)
    return np.minimum(at_once, np.maximum(largest, adjusted))


def _local_level(adjusted: NDArray[np.float64], share: float) -> float:
    """The plain p that would decide a test: Holm divides by the tests that are still open."""
    level = share * SIGNIFICANCE
    num_open = int((adjusted >= level).sum())
    return level / max(1, num_open)


def _p_of_untested(
    contrasts: Mapping[ContrastKey, Contrast], p_values: Mapping[ContrastKey, float]
) -> float:
    """1 where one was measured and gives no p, by collapsed runs say: it has no verdict."""
    for key, contrast in contrasts.items():
        is_measured = contrast.difference and contrast.exclusions.is_comparable
        if is_measured and key not in p_values:
            return 1.0
    return 0.0


def _p_values(contrasts: Mapping[ContrastKey, Contrast]) -> dict[ContrastKey, float]:
    """Of those that have one: neither None nor NaN."""
    p_values = {}
    for key, contrast in contrasts.items():
        p_value = contrast.sequentially_adjusted_p
        if p_value is not None and p_value >= 0.0:
            p_values[key] = p_value
    return p_values
