"""Declarations of scores: units that do not exist, keys of parts, and that every scorer has one."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from claims.analysis import schema
from clozelab.metrics import entities, metric, squad
from clozelab.metrics.metric import Metric, MetricUnit, metric_of
from clozelab.runs.older_scores import older_metric


def test_an_unknown_unit_is_refused() -> None:
    unit: Any = "precent"
    with pytest.raises(ValueError, match=r"metric mae: the unit 'precent' is unknown; .*percent"):
        Metric("mae", unit, higher_is_better=False)


def test_a_key_of_a_part_is_of_its_metric() -> None:
    loss = Metric("loss", "nats", higher_is_better=False)
    accuracy = Metric.share("accuracy")
    assert metric_of("validation/loss/wiki", (accuracy, loss)) is loss
    assert metric_of("accuracy", (accuracy, loss)) is accuracy
    with pytest.raises(ValueError, match=r"validation/losses: .* declared are accuracy, loss"):
        metric_of("validation/losses", (accuracy, loss))


def test_percent_is_one_word_in_both_rooms() -> None:
    """`analysis` imports nothing of the package, so it has the word again."""
    assert schema.PERCENT == metric.PERCENT in get_args(MetricUnit)


def test_what_is_computed_is_declared() -> None:
    names = {one.name for one in entities.ENTITY_METRICS}
    assert names == set(entities.entity_scores([["B-PER"]], [["B-PER"]]))
    golds = {"a": ["x"], "b": []}
    texts = {"a": "x", "b": ""}
    odds = {"a": 0.0, "b": 1.0}
    computed = squad.score_v2(golds, texts, odds) | squad.average_precisions(golds, texts, odds)
    counts = {"total", "HasAns_total", "NoAns_total"}
    assert computed.keys() - counts <= set(squad.V2_SCORES)


@pytest.mark.parametrize(
    ("key", "unit", "higher"),
    [
        ("validation/mismatched_accuracy", "percent", True),
        ("validation/accuracy/layer_3", "percent", True),
        ("validation/ltr_sep_loss", "nats", False),
        ("validation/bits_per_character", "bits", False),
        ("validation/perplexity", "", False),
        ("validation/best_f1_thresh", "logits", None),
    ],
)
def test_an_older_name_is_what_it_was(key: str, unit: str, higher: bool | None) -> None:
    found = older_metric(key, ("mismatched",))
    assert found is not None and (found.unit, found.higher_is_better) == (unit, higher)


@pytest.mark.parametrize("name", ["mae", "accuracy_loss", "my_accuracy", "bits_of_luck"])
def test_a_name_that_was_never_written_is_not_guessed(name: str) -> None:
    """By its end or its beginning each of these had a unit and a direction."""
    assert older_metric(f"validation/{name}") is None
