"""Rows that were not made in the same way are not compared, and the reason names what differs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clozelab.runs.find import collect
from clozelab.verdicts.experiment import Experiment, find_experiment, load_experiment
from clozelab.verdicts.judging import HOLDS, NOT_COMPARABLE, Judgement, judge
from clozelab.verdicts.table import build_table

MEANS = {("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0}


@pytest.fixture
def experiment() -> Experiment:
    return load_experiment(find_experiment("table5_pretraining_tasks"))


@pytest.fixture
def root(make_runs: Callable[..., Path]) -> Path:
    return make_runs(MEANS)


def change(root: Path, pattern: str, **values: Any) -> None:
    """Set dotted keys of run.json in all folders that match."""
    folders = list(root.glob(pattern))
    assert folders
    for folder in folders:
        state = json.loads((folder / "run.json").read_text())
        for key, value in values.items():
            part = state
            *parents, last = key.split("__")
            for name in parents:
                part = part.setdefault(name, {})
            part[last] = value
        (folder / "run.json").write_text(json.dumps(state))


def mrpc(experiment: Experiment, root: Path) -> Judgement:
    found = judge(build_table(experiment, collect(root)))
    return next(one for one in found if one.claim.id == "ltr_hurts_mrpc")


def test_equal_protocols_are_compared(experiment: Experiment, root: Path) -> None:
    change(root, "finetune/*/*/*/*", config__epochs=3.0, config__optimizer__learning_rate=1e-3)
    assert mrpc(experiment, root).verdict == HOLDS


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("config__epochs", 5.0, "epochs 5.0 against none"),
        ("config__max_train_examples", 100, "max_train_examples 100 against none"),
        ("config__task__data__max_length", 64, "task.data.max_length 64 against none"),
        ("inputs__task_files", "0123", "input task_files 0123 against none"),
        ("facts__precision", "32-true", "precision 32-true against none"),
    ],
)
def test_another_protocol(experiment: Experiment, root: Path, key: str, value: Any, reason: str) -> None:
    change(root, "finetune/ltr/*/*/*", **{key: value})
    found = mrpc(experiment, root)
    assert found.verdict == NOT_COMPARABLE and f"another protocol: fine-tuned with {reason}" in found.note
    # The difference is there to see, and decides nothing: nor is it one of the table's tests.
    assert found.difference is not None and found.corrected is None and found.family == 0


def test_a_single_run_of_another_protocol_is_enough(experiment: Experiment, root: Path) -> None:
    change(root, "finetune/*/*/*/*", config__epochs=3.0)
    change(root, "finetune/ltr/pretrain-seed-2/mrpc/seed-1", config__epochs=9.0)
    assert "epochs 9.0 against 3.0" in mrpc(experiment, root).note


def test_settings_are_compared_seed_by_seed(experiment: Experiment, root: Path) -> None:
    """A difference is paired: as sets, both rows' epochs would be equal here."""
    for row, (first, second) in {"ltr": (1.0, 3.0), "mlm": (3.0, 1.0)}.items():
        change(root, f"finetune/{row}/*/*/seed-1", config__epochs=first)
        change(root, f"finetune/{row}/*/*/seed-2", config__epochs=second)
    assert "epochs 1.0/3.0 against 3.0/1.0" in mrpc(experiment, root).note
    for seed, epochs in ((1, 1.0), (2, 3.0)):
        change(root, f"finetune/*/*/*/seed-{seed}", config__epochs=epochs)
    assert mrpc(experiment, root).verdict == HOLDS  # the control: unequal runs (a problem of its own), equal pairs


@pytest.mark.parametrize(
    ("arm", "key"),
    [("mlm", "objective__token__weight"), ("mlm", "objective__input__negative_scope"), ("ltr", "model__hidden_act")],
)
def test_what_no_arm_is_about_has_to_be_equal(experiment: Experiment, root: Path, arm: str, key: str) -> None:
    change(root, "pretrain/*/*", config__objective={"token": {"weight": 1.0}, "input": {}})
    found = [one for one in judge(build_table(experiment, collect(root))) if one.claim.id == "nsp_helps_qnli"]
    assert found[0].verdict == NOT_COMPARABLE and "another protocol" not in found[0].note  # no runs on QNLI
    change(root, f"pretrain/{arm}/*", **{f"config__{key}": "other"})
    table = build_table(experiment, collect(root))
    other = "mlm_nsp" if arm == "mlm" else "mlm"
    assert f"pre-trained with {key.replace('__', '.')} " in table.comparability.why_not(arm, other, ())


def test_another_search_over_learning_rates(experiment: Experiment, root: Path) -> None:
    change(root, "finetune/mlm/*/*/*", config__learning_rate=1e-4)
    change(
        root,
        "finetune/ltr/*/*/*",
        config__learning_rate=5e-5,
        config__optimizer={"learning_rate": 5e-5},
    )
    note = mrpc(experiment, root).note
    assert "learning_rate 5e-05 against 0.0001" in note and "optimizer" not in note


def test_what_rows_are_about_may_differ(experiment: Experiment, root: Path) -> None:
    """ltr.yaml and mlm.yaml both say which head: alike."""
    change(root, "finetune/*/*/*/*", config__head="linear")
    change(root, "finetune/ltr/*/*/*", config__head="bilstm")
    found = mrpc(experiment, root)
    assert found.verdict == NOT_COMPARABLE and "fine-tuned with head bilstm against linear" in found.note
    rows = experiment.folder / "row"
    folder = root.parent / "experiment"
    shutil.copytree(rows, folder / "row")
    ours = experiment.model_copy(update={"folder": folder})
    assert mrpc(ours, root).verdict == NOT_COMPARABLE  # the control: the copied files say the same
    ltr = folder / "row" / "ltr.yaml"
    ltr.write_text(ltr.read_text().replace("head: linear", "head: bilstm"))
    assert mrpc(ours, root).verdict == HOLDS
    change(root, "finetune/ltr/*/*/*", config__initialisation="random")
    assert "fine-tuned with initialisation random against none" in mrpc(ours, root).note


def test_what_paper_yaml_allows_to_differ(experiment: Experiment, root: Path) -> None:
    change(root, "finetune/ltr/*/*/*", config__epochs=5.0, config__task__data__layers=4)
    assert mrpc(experiment, root).verdict == NOT_COMPARABLE
    allowed = experiment.model_copy(update={"differ_in": ("epochs", "task.data")})
    assert mrpc(allowed, root).verdict == HOLDS
    assert mrpc(experiment.model_copy(update={"differ_in": ("epochs", "task.dat")}), root).verdict == NOT_COMPARABLE


def test_a_part_laid_over_a_task_frees_its_own_keys(experiment: Experiment, root: Path) -> None:
    """As table 7's rows do: what the laid-over file does not say has to be equal."""
    folder = root.parent / "experiment"
    shutil.copytree(experiment.folder / "row", folder / "row")
    ltr = folder / "row" / "ltr.yaml"
    ltr.write_text("# @package _global_\ndefaults:\n  - /task/format/features@task\nrow: ltr\n")
    ours = experiment.model_copy(update={"folder": folder})
    task = {"name": "mrpc", "title": "MRPC", "stand_in_for": None, "metric": "validation/accuracy"}
    module = {"bilstm_num_layers": 2, "features": "last"}
    change(root, "finetune/ltr/*/*/*", config__task=task | {"module": module})
    assert mrpc(ours, root).verdict == HOLDS
    change(root, "finetune/ltr/*/*/*", config__task=task | {"module": module, "data": {"max_length": 64}})
    found = mrpc(ours, root)
    assert found.verdict == NOT_COMPARABLE and "with task.data.max_length 64 against none, which" in found.note


def test_arms_of_another_pretraining_protocol(experiment: Experiment, root: Path) -> None:
    change(root, "pretrain/ltr/*", config__objective={"token": {"weight": 1.0}})
    assert mrpc(experiment, root).verdict == HOLDS  # what the arms are about
    change(root, "pretrain/ltr/*", config__model__hidden_size=256)
    found = mrpc(experiment, root)
    assert found.verdict == NOT_COMPARABLE
    assert "pre-trained with model.hidden_size 256 against 128" in found.note


@pytest.mark.parametrize(
    ("fact", "other", "matched", "verdict"),
    [
        ("tokens", 1_015_000, None, HOLDS),
        ("tokens", 1_025_000, None, NOT_COMPARABLE),
        ("tokens", 1_025_000, "steps", HOLDS),
        ("tokens", 2_000_000, "none", HOLDS),
        ("steps", 2000, None, NOT_COMPARABLE),
        ("steps", 2000, "tokens", HOLDS),
        ("training_seconds", 99.0, "time", NOT_COMPARABLE),
        ("training_seconds", 99.0, "flops", NOT_COMPARABLE),  # at the same speed, more work
    ],
)
def test_arms_that_saw_more(
    experiment: Experiment, root: Path, fact: str, other: float, matched: str | None, verdict: str
) -> None:
    for key, value in {"steps": 1000, "training_seconds": 60.0, "matmul_ceiling": 1e12}.items():
        change(root, "pretrain/*/*", **{f"facts__{key}": value})
    change(root, "pretrain/ltr/*", **{f"facts__{fact}": other})
    found = mrpc(experiment.model_copy(update={"matched_by": matched}), root)
    assert found.verdict == verdict
    assert ("arms not matched: " in found.note) == (verdict == NOT_COMPARABLE)


@pytest.mark.parametrize(
    ("facts", "config", "verdict"),
    [
        ({"mfu": 0.41}, {"devices": 2}, NOT_COMPARABLE),  # the utilisation is one device's
        ({"mfu": 0.205}, {"devices": 2}, HOLDS),
        ({"mfu": 0.205, "world_size": 2}, {"devices": -1}, HOLDS),
        ({"flops": 0.41e12 * 60.0, "mfu": 0.1, "world_size": 4}, {"devices": 4}, HOLDS),
        ({"flops": 2 * 0.41e12 * 60.0}, {}, NOT_COMPARABLE),
    ],
)
def test_operations_are_those_of_all_devices(
    experiment: Experiment, root: Path, facts: dict[str, float], config: dict[str, int], verdict: str
) -> None:
    change(root, "pretrain/*/*", facts__training_seconds=60.0, facts__matmul_ceiling=1e12)
    change(root, "pretrain/ltr/*", config__trainer=config)
    change(root, "pretrain/ltr/*", **{f"facts__{key}": value for key, value in facts.items()})
    assert mrpc(experiment.model_copy(update={"matched_by": "flops"}), root).verdict == verdict


def test_time_is_that_of_all_devices(experiment: Experiment, root: Path) -> None:
    change(root, "pretrain/*/*", facts__training_seconds=60.0)
    matched = experiment.model_copy(update={"matched_by": "time"})
    assert mrpc(matched, root).verdict == HOLDS
    change(root, "pretrain/ltr/*", facts__world_size=2)
    assert "arms not matched: 120 against 60 training time (seconds x devices)" in mrpc(matched, root).note


@pytest.mark.parametrize(
    ("matched", "config", "amount"),
    [
        ("flops", {}, "flops"),
        ("time", {}, "training time (seconds x devices)"),
        ("time", {"devices": "auto"}, "training time (seconds x devices)"),
    ],
)
def test_what_is_not_known_is_not_matched(
    experiment: Experiment, root: Path, matched: str, config: dict[str, Any], amount: str
) -> None:
    change(root, "pretrain/mlm/*", facts__training_seconds=60.0, facts__matmul_ceiling=1e12)
    if config:  # it took as many devices as it found, and no record says how many
        change(root, "pretrain/ltr/*", facts__training_seconds=60.0, config__trainer=config)
    found = mrpc(experiment.model_copy(update={"matched_by": matched}), root)
    assert found.verdict == NOT_COMPARABLE
    assert f"{amount} of pre-training not known for ltr, so" in found.note


def test_arms_without_any_record_are_not_matched(experiment: Experiment, root: Path) -> None:
    shutil.rmtree(root / "pretrain" / "ltr")
    found = mrpc(experiment, root)
    assert found.verdict == NOT_COMPARABLE and "no complete pre-training run of ltr" in found.note
    assert mrpc(experiment.model_copy(update={"matched_by": "none"}), root).verdict == HOLDS


@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
@pytest.mark.parametrize(
    ("key", "value", "verdict"),
    [
        ("trainer__devices", 2, HOLDS),
        ("trainer__strategy", "ddp", HOLDS),
        ("trainer__accelerator", "gpu", HOLDS),
        ("trainer__num_workers", 2, HOLDS),  # not in records of today
        ("trainer__threads", 2, HOLDS),
        ("trainer__compile", "true", HOLDS),
        ("phases", [{"micro_batch_size": 8}], HOLDS),
        ("phases", [{"global_batch_size": 8}], NOT_COMPARABLE),
        ("trainer__precision", "32-true", NOT_COMPARABLE),
        ("trainer__tf32", True, NOT_COMPARABLE),
    ],
)
def test_how_the_work_is_laid_out_is_no_protocol(
    experiment: Experiment, root: Path, stage: str, key: str, value: Any, verdict: str
) -> None:
    change(root, f"{stage}/ltr/" + ("*" if stage == "pretrain" else "*/*/*"), **{f"config__{key}": value})
    assert mrpc(experiment, root).verdict == verdict


def test_predicting_the_test_files_is_no_protocol(experiment: Experiment, root: Path) -> None:
    change(
        root,
        "finetune/ltr/*/*/*",
        config__predict_test=True,
        config__task__data__test_files={"t": "f"},
    )
    assert mrpc(experiment, root).verdict == HOLDS


def test_another_metric(experiment: Experiment, root: Path) -> None:
    for path in root.glob("finetune/ltr/*/mrpc/*/run.json"):
        state = json.loads(path.read_text())
        state["scores"], state["metric"] = {"validation/f1": state["scores"]["validation/accuracy"]}, "validation/f1"
        path.write_text(json.dumps(state))
    found = mrpc(experiment, root)
    assert found.verdict == NOT_COMPARABLE
    assert "another metric: 6 complete run(s) of LTR & No NSP have no validation/accuracy" in found.note
