"""Numbers as a report writes them."""

from __future__ import annotations

import pytest

from clozelab.metrics.statistics import estimate
from clozelab.verdicts.wording import interval, percent, span


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([2_720_000, 957_000, 1_290_000], "957 k to 2.72 M"),
        ([10_648_000, 10_647_938], "10.6 M"),
        ([1_527_680], "1.53 M"),
        ([], ""),
    ],
)
def test_span(values: list[float], text: str) -> None:
    assert span(values) == text


def test_seeds_that_happen_to_agree_are_no_certainty() -> None:
    tied = estimate({(1, 1): 68.7, (1, 2): 71.1, (2, 1): 71.1, (2, 2): 68.7})
    assert percent(tied) == "69.9 (no spread)" and interval(tied) == "no spread"
    assert percent(estimate({(1, 1): 68.7, (2, 1): 71.1})) == "69.9 \u00b1 15.2"
