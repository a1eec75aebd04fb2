"""Numbers as a report writes them."""

from __future__ import annotations

import pytest

from clozelab.ledger.reporting.wording import span


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
