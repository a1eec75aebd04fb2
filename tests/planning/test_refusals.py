"""What cannot be planned, and the sentence that refuses it before anything is timed or run."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.planning.workers import Worker

from clozelab.planning.budget import parse_budget
from clozelab.planning.steps import make_steps
from clozelab.stages.doctor import main as doctor
from clozelab.stages.plan import main as plan
from clozelab.text.paths import EXPERIMENTS_DIR

GIVEN = "with encoder= nothing is prepared and pre-trained"
# An experiment -> words that no steps are made of -> a part of the sentence.
STEPS = {
    "table8_masking": {"pretrain=none": "no stage takes 'pretrain=none'"},
    "table4_swag": {
        "encoder=/x finetune=none": "nothing is left to run",
        "encoder=/x pretrain.seed=3": GIVEN,
        "encoder=/x prepare.corpus=text": GIVEN,
    },
    "zero_shot": {"row=mml": "row=mml: there is no measured 'mml'; did you mean 'mlm'?"},
    "table5_pretraining_tasks": {
        "seeds=x": "seeds=x: give whole numbers",
        "encoder=/x": "has no row given",
        "scale=lapto": "no stage takes",
        "trainr=gpu": "no stage takes",
        "corpus=nothing": "no stage takes",
        "seed": "no stage takes",
        "finetune.sed=1": "finetune has no key 'sed'; did you mean 'seed'",
        "pretrain.task=mrpc": "pretrain has no key 'task'",
        "prepare.sed=1": "prepare has no key 'sed'",
        "pretrain.seed=x,1": "pretrain.seed=x,1: seed=x: Value 'x'",
        "finetune.nothing=glob(*)": "finetune has no key 'nothing'",
    },
}
REFUSED = []
for name, sentences in STEPS.items():
    REFUSED += [(name, words, sentence) for words, sentence in sentences.items()]

# The words of plan, before the folders -> a part of the sentence.
ONE_ARM = ["finetune.task=mrpc", "finetune.row=mlm", "pretrain.arm=mlm"]
PLANS: dict[str, tuple[Sequence[str], str]] = {
    "match by epochs": (["budget=20min", "matched_by=epochs"], "matched_by=epochs: choose one of"),
    "a second for fine-tuning": (
        [*ONE_ARM, "budget=1s", "matched_by=time"],
        "fine-tuning and measures alone take",
    ),
    "a second for all": ([*ONE_ARM, "budget=1s"], "2 pre-training seeds with one fine"),
    "no difference": (
        ["difference=none"],
        "difference=none: give a true difference in points above 0, such as 2",
    ),
    "misspelt key": (["sed=3"], "did you mean 'seed'"),
}


@pytest.mark.parametrize(("experiment", "words", "sentence"), REFUSED)
def test_what_steps_are_not_made_of(experiment: str, words: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        make_steps(EXPERIMENTS_DIR / experiment, words.split())


@pytest.mark.parametrize(("words", "sentence"), PLANS.values(), ids=PLANS)
def test_what_plan_refuses(
    words: Sequence[str], sentence: str, folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Worker(monkeypatch)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        plan(["table5_pretraining_tasks", "scale=demo", *folders, *words])


def test_a_text_that_prepare_refuses_is_not_planned(tmp_path: Path, folders: list[str]) -> None:
    """As `prepare` would say it; a text that is not there yet is planned."""
    text = tmp_path / "a.jsonl.gz"
    rows = [json.dumps({"body": f"The cat number {number} sat."}) + "\n" for number in range(200)]
    text.write_bytes(gzip.compress("".join(rows).encode()))
    words = ["pretrain", "scale=own", "objective=mlm", "--no-measure", *folders]
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz: .* rows cannot be read .*text_field"):
        plan([*words, f"text={text}"])
    assert plan([*words, f"text={tmp_path / 'later'}"]) == 0


def test_a_student_is_planned_before_its_teacher_is_trained(
    folders: list[str], capsys: Any
) -> None:
    words = ["scale=demo", "pretrain.seed=1", "finetune.task=mrpc", *folders]
    assert plan(["distillation_retention", "--no-measure", *words]) == 0
    capsys.readouterr()
    doctor(["distillation_retention", *words])
    # The files of the task are not there; that the teacher is not is no finding.
    assert "does not exist" not in capsys.readouterr().out


def test_an_encoder_that_is_measured_has_to_be_there(tmp_path: Path, folders: list[str]) -> None:
    experiment = tmp_path / "mine.yaml"
    experiment.write_text(
        "columns:\n  - {name: Pairs, from: evaluate, task: blimp, metric: validation/accuracy}\n"
        "rows:\n  - {row: one, fixed_encoder: true, set: {encoder: nowhere, encoder_arm: null}}\n"
    )
    with pytest.raises(ValueError, match="nowhere"):
        plan([str(experiment), "scale=laptop", "--no-measure", *folders])


def test_a_budget_is_for_what_is_pre_trained() -> None:
    with pytest.raises(ValueError, match="mined_negatives pre-trains nothing here"):
        plan(["mined_negatives", "scale=demo", "budget=2h"])


@pytest.mark.parametrize("text", ["", "2", "h", "0h", "-1h", "two", "1,5h"])
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(ValueError, match="budget="):
        parse_budget(text)
