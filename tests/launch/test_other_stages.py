"""A choice that needs what another stage has is refused with that stage's name."""

from __future__ import annotations

import pytest

from clozelab.cli import main


def test_a_choice_of_another_stage_names_the_stage(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["callbacks=early_stopping_score", "corpus=text", "corpus.sources.0.path=a.txt"]
    assert main(["pretrain", *words]) == 1
    said = capsys.readouterr().err
    assert "callbacks.early_stopping.monitor takes task.metric, which pretrain has not" in said
    assert "choose another callbacks= (this one is for finetune)" in said


def test_a_key_that_no_stage_has_is_named_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "callbacks=early_stopping", "seed=${nothing.here}"]) == 1
    assert "seed: Interpolation key 'nothing.here' not found" in capsys.readouterr().err
