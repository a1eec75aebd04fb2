"""Overrides that cannot be meant: a value that changes nothing, an encoder under another's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from clozelab.config import EXPERIMENTS_DIR
from clozelab.ledger import sweep
from clozelab.ledger.override_checks import check_overrides


@pytest.mark.parametrize(("key", "value"), [("learning_rate", "7.0"), ("epochs", "7.0"), ("global_batch_size", "7")])
def test_a_tasks_value_that_the_scale_replaces_is_refused(key: str, value: str) -> None:
    def check(*words: str) -> None:
        composed = sweep.compose("finetune", ["scale=demo", *words])
        with sweep.hydra_config(composed):
            check_overrides(sweep.without_hydra(composed))

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
        (["encoder=F", "row=given", "task=mrpc"], "table1_glue", ""),
        (["encoder=F", "row=mlm_nsp"], "table1_glue", "take row=given"),
        (["encoder=F", "row=last", "task=ner_conll2003"], "table7_feature_based_ner", ""),
        (["row=ltr", "encoder='elsewhere/${encoder_arm}'"], "table5_pretraining_tasks", ""),
    ],
)
def test_a_given_encoder_needs_a_name_of_its_own(words: list[str], experiment: str, message: str) -> None:
    folder = EXPERIMENTS_DIR / experiment if experiment else None
    name = "sweep_finetune" if experiment else "finetune"
    composed = sweep.compose(name, ["scale=demo", *words], folder=folder)
    with sweep.hydra_config(composed):
        if not message:
            check_overrides(sweep.without_hydra(composed))
            return
        with pytest.raises(ValueError, match=message):
            check_overrides(sweep.without_hydra(composed))


def test_an_encoder_in_a_configuration_of_ones_own_needs_a_name_too(tmp_path: Path) -> None:
    text = "defaults: [finetune, _self_]\nexperiment: mine\nencoder: /some/FOLDER\n"
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ValueError, match="filed as the row mlm_nsp"):
        sweep.plan_job(sweep.compose("mine", [], folder=tmp_path), [])
    (tmp_path / "mine.yaml").write_text(text + "row: mine\n")
    sweep.plan_job(sweep.compose("mine", [], folder=tmp_path), [])
