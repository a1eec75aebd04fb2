"""Configuration errors in words that help: the nearest key, and overrides that would change nothing."""

from __future__ import annotations

import pytest
from hydra.errors import ConfigCompositionException

from clozelab.config import EXPERIMENTS_DIR
from clozelab.ledger import sweep
from clozelab.ledger.mistakes import check_words, explain, known_keys, nearest_key


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
    said = "seed=one: Value 'one' of type 'str' could not be converted to Integer"
    assert explain(caught.value, "pretrain") == said
    with pytest.raises(ConfigCompositionException) as caught:
        sweep.compose("pretrain", ["phases=[{seq_length: abc}]"])
    assert explain(caught.value, "pretrain").startswith("phases=[{seq_length: abc}]: Value 'abc'")


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
            check_words(sweep.without_hydra(composed))

    with pytest.raises(ValueError, match=rf"task\.{key}={value} would change nothing.*scale=demo.*Say {key}={value}"):
        check(f"task.{key}=7")
    check(f"{key}=7")
    check(f"task.{key}=7", f"scale.finetune.{key}=null")


@pytest.mark.parametrize(
    ("words", "experiment", "message"),
    [
        (["encoder=F"], "", "filed as the row mlm_nsp: say row=NAME"),
        (["encoder=F", "run_dir=R"], "", "filed as the row mlm_nsp: say row=NAME"),
        (["encoder=F", "row=mine"], "", ""),
        (["encoder=F", "encoder_arm=mlm"], "", ""),
        (["encoder_arm=mlm"], "", ""),
        (["encoder=F", "row=ltr"], "table5_pretraining_tasks", "the row ltr stands for the encoder that the arm ltr"),
        (["row=ltr"], "table5_pretraining_tasks", ""),
        (["encoder=F", "row=given"], "table1_glue", ""),
        (["encoder=F", "row=mlm_nsp"], "table1_glue", "take row=given"),
    ],
)
def test_a_given_encoder_needs_a_name_of_its_own(words: list[str], experiment: str, message: str) -> None:
    folder = EXPERIMENTS_DIR / experiment if experiment else None
    name = "sweep_finetune" if experiment else "finetune"
    composed = sweep.compose(name, ["scale=demo", "task=mrpc", *words], folder=folder)
    with sweep.hydra_config(composed):
        if not message:
            check_words(sweep.without_hydra(composed))
            return
        with pytest.raises(ValueError, match=message):
            check_words(sweep.without_hydra(composed))
