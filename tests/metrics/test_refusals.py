"""What this room refuses, and the sentence that says so: a row a case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.calling import call_with_fixtures
from tests.metrics import test_glue

from clozelab.metrics import glue, squad
from clozelab.metrics.entities import entities, entity_scores
from clozelab.metrics.glue import write_submission
from clozelab.tasks.numbers import Numbers


def scores_fit_the_kind_of_task() -> None:
    Numbers(metrics=["spearman", "accuracy"])


def nothing_is_written_that_would_be_refused(tmp_path: Path) -> None:
    contents = {name.removesuffix(".tsv"): content for name, content in test_glue.GOOD.items()}
    write_submission(tmp_path / "x.zip", contents | {"RTE": b"index\tprediction\n"})


REFUSALS: list[tuple[str, Callable[..., Any], type[Exception], str]] = [
    (
        "what is no tag is refused: is not an entity tag",
        lambda: entities(["O", "B_PER"]),
        ValueError,
        "is not an entity tag",
    ),
    (
        "what is no tag is refused: is not an entity tag 2",
        lambda: entities(["O", "Q-PER"]),
        ValueError,
        "is not an entity tag",
    ),
    (
        "what is no tag is refused: is not an entity tag 3",
        lambda: entities(["O", "B-"]),
        ValueError,
        "is not an entity tag",
    ),
    (
        "what is no tag is refused: is not an entity tag 4",
        lambda: entities(["O", "B"]),
        ValueError,
        "is not an entity tag",
    ),
    (
        "what is no tag is refused: is not an entity tag 5",
        lambda: entities(["O", ""]),
        ValueError,
        "is not an entity tag",
    ),
    (
        "what is no tag is refused: is not an entity tag 6",
        lambda: entities(["O", "BI-PER"]),
        ValueError,
        "is not an entity tag",
    ),
    (
        "sentences must match",
        lambda: entity_scores([["O"]], [["O", "O"]]),
        ValueError,
        "longer than",
    ),
    (
        "unknown metric is refused: unknown metrics known: accuracy",
        lambda: glue.score(["accuracy", "acuracy"], [1], [1]),
        ValueError,
        r"unknown metrics .*known: accuracy",
    ),
    (
        "unknown metric is refused: unknown metrics known: accuracy 2",
        lambda: glue.score([], [1], [1]),
        ValueError,
        r"unknown metrics .*known: accuracy",
    ),
    (
        "unequal lengths are refused",
        lambda: glue.accuracy([1, 2], [1]),
        ValueError,
        "must be equal",
    ),
    (
        "scores fit the kind of task",
        scores_fit_the_kind_of_task,
        ValueError,
        r"\['accuracy'\] do not fit a task that predicts a number",
    ),
    (
        "nothing is written that would be refused",
        nothing_is_written_that_would_be_refused,
        ValueError,
        r"RTE.tsv: 0 predictions",
    ),
    (
        "v2 refuses missing predictions",
        lambda: squad.score_v2({"a": ["x"], "b": []}, {"a": "x"}),
        ValueError,
        r"1 are missing, e.g. b",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "sentence"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_refusal(
    request: pytest.FixtureRequest,
    call: Callable[..., Any],
    error: type[Exception],
    sentence: str,
) -> None:
    with pytest.raises(error, match=sentence):
        call_with_fixtures(call, request)
