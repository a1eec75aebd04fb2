"""Runs that are not what their row or arm is called: named, and barred from claims."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clozelab.config import EXPERIMENTS_DIR
from clozelab.runs.find import collect
from clozelab.verdicts.accounts import problems
from clozelab.verdicts.comparability import misfiled
from clozelab.verdicts.experiment import Experiment, load_experiment
from clozelab.verdicts.judging import NOT_COMPARABLE, judge
from clozelab.verdicts.table import build_table

MEANS = {("mlm", "mrpc"): 80.0, ("ltr", "mrpc"): 70.0}


@pytest.fixture
def experiment() -> Experiment:
    return load_experiment(EXPERIMENTS_DIR / "table5_pretraining_tasks")


@pytest.fixture
def root(make_runs: Callable[..., Path]) -> Path:
    root = make_runs(MEANS, pretrain_seeds=(1, 2, 3))
    for row in ("mlm", "ltr"):
        change(root, f"finetune/{row}/*/*/*", encoder_arm=row, initialisation="pretrained", head="linear")
    return root


def change(root: Path, pattern: str, status: str = "complete", **values: Any) -> None:
    for path in root.glob(f"{pattern}/run.json"):
        state = json.loads(path.read_text())
        state["config"] |= values
        path.write_text(json.dumps(state | {"status": status}))


def test_runs_that_are_what_they_are_called_say_nothing(experiment: Experiment, root: Path) -> None:
    change(root, "pretrain/mlm/*", objective={"token": {"_target_": "clozelab.objectives.mlm.MaskedLanguageModel"}})
    assert misfiled(experiment, collect(root)) == {}
    change(root, "finetune/ltr/pretrain-seed-1/mrpc/seed-1", status="failed", head="bilstm")
    assert misfiled(experiment, collect(root)) == {}  # not complete: no score of it is shown


def test_two_rows_of_one_arm_from_different_encoders_are_not_compared(
    experiment: Experiment, make_runs: Callable[..., Path]
) -> None:
    """A row may keep its arm's name when its encoder is given: the arm's other rows then began from another one."""
    root = make_runs({("ltr", "squad_v1"): 20.0, ("ltr_bilstm", "squad_v1"): 25.0})

    def began_from(row: str, encoder: str) -> None:
        for path in root.glob(f"finetune/{row}/*/*/*/run.json"):
            state = json.loads(path.read_text())
            state["config"] |= {"encoder_arm": "ltr", "initialisation": "pretrained"}
            path.write_text(json.dumps(state | {"inputs": {"encoder": encoder}}))

    def judged() -> tuple[str, str]:
        found = next(
            one for one in judge(build_table(experiment, collect(root))) if one.claim.id == "bilstm_helps_squad"
        )
        return found.verdict, found.note

    began_from("ltr", "one")
    began_from("ltr_bilstm", "one")
    assert judged()[0] != NOT_COMPARABLE
    began_from("ltr_bilstm", "another")
    verdict, note = judged()
    assert verdict == NOT_COMPARABLE and "stand for one encoder, and began from different ones" in note


def test_a_row_with_another_arms_encoder_is_barred_and_named(experiment: Experiment, root: Path) -> None:
    def judged() -> tuple[str, str]:
        table = build_table(experiment, collect(root))
        found = next(one for one in judge(table) if one.claim.id == "ltr_hurts_mrpc")
        return found.verdict, found.note

    assert judged()[0] != NOT_COMPARABLE
    change(root, "finetune/ltr/*/mrpc/seed-1", encoder_arm="mlm_nsp")
    verdict, note = judged()
    assert verdict == NOT_COMPARABLE
    assert note.startswith("not what it is called: row/ltr.yaml says encoder_arm=ltr, and 3 of ")
    assert "(e.g. finetune/ltr/pretrain-seed-1/mrpc/seed-1: mlm_nsp)" in note
    collected = collect(root)
    assert problems(collected, build_table(experiment, collected))["Misfiled"] == [note]


def test_an_arm_trained_otherwise_bars_every_row_of_it(experiment: Experiment, root: Path) -> None:
    objective = {"token": {"_target_": "clozelab.objectives.mlm.MaskedLanguageModel"}, "pair": None}
    change(root, "pretrain/ltr/*", objective=objective)
    found = misfiled(experiment, collect(root))
    assert found.keys() == {"ltr", "ltr_bilstm"}
    assert "arm/ltr.yaml says objective.token._target_=clozelab.objectives.ltr.LeftToRight" in found["ltr"]
