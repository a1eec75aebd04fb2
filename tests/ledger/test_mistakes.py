"""Configuration errors in words that help: the nearest key, and overrides that would change nothing."""

from __future__ import annotations

import pytest
from hydra.errors import ConfigCompositionException

from clozelab.ledger import sweep
from clozelab.ledger.mistakes import explain, known_keys, nearest_key, refuse_idle_overrides


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("sed", "seed"),
        ("trainer.thread", "trainer.threads"),
        ("optimizer.lerning_rate", "optimizer.learning_rate"),
        ("hidden_size", "model.hidden_size"),  # right name, wrong place
        ("objectiv", "objective"),
        ("xyzzy.q", None),
    ],
)
def test_nearest_key(key: str, expected: str | None) -> None:
    known = [
        name for name in known_keys("pretrain", None) if not name.startswith("scale.")
    ]  # the scale repeats many names
    assert nearest_key(key, known) == expected


def test_a_wrong_key_is_explained_without_hydras_advice() -> None:
    with pytest.raises(ConfigCompositionException) as caught:
        sweep.compose("pretrain", ["sed=3"])
    text = explain(caught.value, "pretrain")
    assert text == "pretrain has no key 'sed'; did you mean 'seed'? (see `clozelab pretrain --cfg job`)"
    # verbs without a configuration of their own point to one that has it
    assert "`clozelab pretrain --cfg job`" in explain(caught.value, "report")


def test_a_wrong_value_keeps_its_reason() -> None:
    with pytest.raises(ConfigCompositionException) as caught:
        sweep.compose("pretrain", ["seed=one"])
    assert "seed=one" in explain(caught.value, "pretrain") and "Integer" in explain(caught.value, "pretrain")


def test_a_wrong_key_inside_a_value_is_named() -> None:
    with pytest.raises(ConfigCompositionException) as caught:
        sweep.compose("pretrain", ["phases=[{step: 3}]"])
    text = explain(caught.value, "pretrain")
    assert text.startswith("phases: ") and "'step'" in text and "PhaseConfig" in text


def test_other_errors_keep_their_words() -> None:
    assert explain(ValueError("just so"), "pretrain") == "just so"


@pytest.mark.parametrize(("key", "value"), [("learning_rate", "7.0"), ("epochs", "7.0"), ("global_batch_size", "7")])
def test_a_tasks_value_that_the_scale_replaces_is_refused(key: str, value: str) -> None:
    def check(*words: str) -> None:
        composed = sweep.compose("finetune", ["scale=demo", *words])
        with sweep.hydra_config(composed):
            refuse_idle_overrides(sweep.without_hydra(composed))

    with pytest.raises(ValueError, match=rf"task\.{key}={value} would change nothing.*scale=demo.*Say {key}={value}"):
        check(f"task.{key}=7")
    check(f"{key}=7")
    check(f"task.{key}=7", f"scale.finetune.{key}=null")
