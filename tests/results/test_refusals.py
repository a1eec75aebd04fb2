"""A paper.yaml that means nothing is refused in a sentence that names the key and what it takes.

test_experiment.py has the slips in the table of a paper; here are those of claims and of rules.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from clozelab.results.experiment import load_experiment

ACCURACY = "validation/accuracy"
TASK = {"name": "task", "task": "task", "metric": ACCURACY}
OTHER = {"name": "other", "task": "other", "metric": ACCURACY}
BITS = {"from": "evaluate", "metric": "validation/bits_per_character"}
OF_TWO_ROWS = "crosses takes a compare of two rows on one column"


def claiming(**keys: Any) -> dict[str, Any]:
    """paper.yaml with one claim."""
    claim = {"text": "t", "compare": ["a", "b", "task"], "direction": "higher"} | keys
    return {"claims": [claim]}


def against(**keys: Any) -> dict[str, Any]:
    """paper.yaml with a difference of differences of listed rows."""
    claim = {"text": "t", "rows": ["b", "a"], "column": "task", "against": ["b", "a", "other"]}
    return {"columns": [TASK, OTHER], "claims": [claim | keys]}


REFUSED = {
    "a mean of bits": (
        {
            "columns": [
                BITS | {"name": "m", "task": "m"},
                BITS | {"name": "n", "task": "n"},
                {"name": "M", "mean_of": ["m", "n"]},
            ]
        },
        "mean_of: m is not in percent",
    ),
    "a margin of differences": (against(direction="within", points=2.0), "higher or lower"),
    "a trend of differences": (against(direction="increasing"), "higher or lower"),
    "a crossing of several rows": (
        claiming(direction="crosses", compare=["a", ["b", "c"], "task"]),
        OF_TWO_ROWS,
    ),
    "a crossing on all columns": (
        claiming(direction="crosses", compare=["a", "b", "all"]),
        OF_TWO_ROWS,
    ),
    "a crossing with a size": (
        claiming(direction="crosses", paper_delta=1.0),
        "and neither against nor paper_delta",
    ),
    "a crossing in hours": (
        claiming(direction="crosses", measured_in="hours"),
        "measured_in is 'hours'; it is tokens, flops or seconds of pre-training",
    ),
    "a difference in FLOPs": (
        claiming(measured_in="flops"),
        "measured_in belongs to direction: crosses",
    ),
    "a first primary claim": (
        claiming(primary="first"),
        "claims.0.primary is 'first'; it is true where it is tested before the others",
    ),
    "two orders of primary claims": (
        {
            "claims": [
                *claiming(primary=True)["claims"],
                *claiming(primary="together", text="another")["claims"],
            ]
        },
        "claims: primary is true for some and together for others; choose one",
    ),
    "a look at one seed": (
        {"stopping": {"first": 1, "most": 3}},
        "stopping.first is 1; it is pre-training seeds of the first interim analysis, 2 or more",
    ),
    "a last look before the first": (
        {"stopping": {"first": 5, "most": 3}},
        "stopping: the last interim analysis is at 3 seeds, before the first at 5",
    ),
    "no last look": (
        {"stopping": {"first": 3}},
        "stopping: lacks most, seeds of the last interim analysis",
    ),
    "a look too many": (
        {"stopping": {"first": 3, "most": 8, "last": 9}},
        "stopping: has no key 'last'",
    ),
}


@pytest.mark.parametrize(("keys", "sentence"), REFUSED.values(), ids=REFUSED)
def test_a_paper_that_means_nothing(tmp_path: Path, keys: dict[str, Any], sentence: str) -> None:
    paper = {
        "columns": [TASK],
        "arms": {row: {} for row in "abc"},
        "rows": [{"row": row, "arm": row} for row in "abc"],
    }
    (tmp_path / "paper.yaml").write_text(json.dumps(paper | keys))
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load_experiment(tmp_path)
