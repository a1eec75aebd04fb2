"""Runs that must not be compared in silence: other settings, other data, other encoders, copies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clozelab.runs.find import collect
from clozelab.runs.fingerprint import encoder_fingerprint
from clozelab.verdicts.consistency import inconsistencies

MEANS = {("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0, ("mlm", "sst2"): 80.0}


@pytest.fixture
def root(make_runs: Callable[..., Path]) -> Path:
    return make_runs(MEANS, pretrain_seeds=(1, 2))


def change(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    state = json.loads((folder / "run.json").read_text())
    edit(state)
    (folder / "run.json").write_text(json.dumps(state))


def finetuned(root: Path, row: str, seeds: tuple[int, int], task: str = "mrpc") -> Path:
    return root / "finetune" / row / f"pretrain-seed-{seeds[0]}" / task / f"seed-{seeds[1]}"


def began_with(encoder: str, arm: str = "mlm") -> Callable[[dict[str, Any]], None]:
    def edit(state: dict[str, Any]) -> None:
        state["config"] |= {"initialisation": "pretrained", "encoder_arm": arm}
        state["inputs"]["encoder"] = encoder

    return edit


def test_equal_runs_say_nothing(root: Path) -> None:
    assert inconsistencies(collect(root)) == []


def test_another_setting_in_one_run(root: Path) -> None:
    for folder in root.glob("finetune/*/*/mrpc/*"):
        change(folder, lambda state: state["config"].update(epochs=1.0))
    change(finetuned(root, "ltr", (2, 1)), lambda state: state["config"].update(epochs=3.0))
    (line,) = inconsistencies(collect(root))
    assert line.startswith("fine-tuning runs on mrpc differ in epochs: ")
    assert "3.0 (1 runs, e.g. ltr seed 2/1)" in line and "1.0 (7 runs" in line


def test_learning_rates_of_which_the_best_is_taken(root: Path) -> None:
    """The same rates for every row and seed are a search; one rate for some and another for others is not."""

    def at(rate: float) -> Callable[[dict[str, Any]], None]:
        return lambda state: state["config"].update(learning_rate=rate, optimizer={"learning_rate": rate})

    for folder in list(root.glob("finetune/*/*/mrpc/*")):
        shutil.copytree(folder, folder.parent / "rate-2" / folder.name)
        change(folder.parent / "rate-2" / folder.name, at(2e-5))
        change(folder, at(1e-5))
    collected = collect(root)
    assert inconsistencies(collected) == collected.damaged == []
    shutil.rmtree(finetuned(root, "ltr", (2, 1)))
    lines = inconsistencies(collect(root))
    assert [line.split(":")[0] for line in lines] == [
        f"fine-tuning runs on mrpc differ in {key}" for key in ("learning_rate", "optimizer.learning_rate")
    ]


def test_what_may_differ_between_rows_is_one_inside_a_row(root: Path) -> None:
    """As table 7's epochs: a row by its own recipe, and not half of it by another."""

    def trained(epochs: float, rate: float) -> Callable[[dict[str, Any]], None]:
        return lambda state: state["config"].update(epochs=epochs, learning_rate=rate)

    free = {"epochs", "learning_rate"}
    for row, recipe in {"mlm": (3.0, 1e-5), "ltr": (9.0, 1e-3)}.items():
        for folder in root.glob(f"finetune/{row}/*/mrpc/*"):
            change(folder, trained(*recipe))
    assert len(inconsistencies(collect(root))) == 2 and inconsistencies(collect(root), free=free) == []
    change(finetuned(root, "ltr", (2, 1)), trained(1.0, 1e-4))
    epochs, rate = inconsistencies(collect(root), free=free)
    assert epochs.startswith("fine-tuning runs on mrpc of ltr differ in epochs: ") and "1.0 (1 runs" in epochs
    assert rate.startswith("fine-tuning runs on mrpc of ltr differ in learning_rate: 0.001 (3 runs")


def test_a_row_may_search_its_own_rates(root: Path) -> None:
    def at(rate: float) -> Callable[[dict[str, Any]], None]:
        return lambda state: state["config"].update(learning_rate=rate)

    for folder in list(root.glob("finetune/ltr/*/mrpc/*")):
        shutil.copytree(folder, folder.parent / "rate-2" / folder.name)
        change(folder.parent / "rate-2" / folder.name, at(2e-5))
        change(folder, at(1e-5))
    for folder in root.glob("finetune/mlm/*/mrpc/*"):
        change(folder, at(5e-5))
    assert inconsistencies(collect(root), free={"learning_rate"}) == []
    shutil.rmtree(finetuned(root, "ltr", (2, 1)))
    (line,) = inconsistencies(collect(root), free={"learning_rate"})
    assert "of ltr differ in learning_rate: 1e-05/2e-05 (6 runs" in line and "2e-05 (1 runs" in line


def test_a_setting_that_only_some_have(root: Path) -> None:
    change(finetuned(root, "mlm", (1, 1)), lambda state: state["config"].update(extra=1))
    (line,) = inconsistencies(collect(root))
    assert "differ in extra: 1 (1 runs, e.g. mlm seed 1/1), none (7 runs)" in line


def test_names_of_a_row_may_differ(root: Path) -> None:
    change(finetuned(root, "ltr", (1, 1)), lambda state: state["config"].update(encoder_arm="other"))
    assert inconsistencies(collect(root)) == []
    for key in ("head", "initialisation"):  # not names: what was trained
        change(finetuned(root, "ltr", (1, 1)), lambda state, key=key: state["config"].update({key: "other"}))
    assert len(inconsistencies(collect(root))) == 2


def test_other_data_and_other_precision(root: Path) -> None:
    for folder in root.glob("finetune/*/*/mrpc/*"):
        change(folder, lambda state: state["inputs"].update(task_files="a" * 64))
    change(finetuned(root, "ltr", (1, 2)), lambda state: state["inputs"].update(task_files="b" * 64))
    # The same files in another encoder's vocabulary.
    change(finetuned(root, "ltr", (1, 1)), lambda state: state["inputs"].update(task_data="c" * 64))
    for folder in root.glob("pretrain/*/*"):
        change(folder, lambda state: state["facts"].update(precision="bf16-mixed"))
    change(root / "pretrain" / "ltr" / "seed-1", lambda state: state["facts"].update(precision="32-true"))
    precision, data = inconsistencies(collect(root))
    assert precision.startswith("pre-training runs differ in precision: ") and "32-true (1 runs" in precision
    assert data.startswith("fine-tuning runs on mrpc differ in input task_files: ")


def test_rows_cut_to_other_lengths_and_records_without_a_files_hash(root: Path) -> None:
    folders = sorted(root.glob("finetune/*/*/mrpc/*"))
    for folder in folders:
        change(folder, lambda state: state["inputs"].update(task_data="a" * 64))
        change(folder, lambda state: state["facts"].update(data={"max_seq_length": 384}))
    assert inconsistencies(collect(root)) == []
    change(folders[0], lambda state: state["inputs"].update(task_data="b" * 64))
    change(folders[0], lambda state: state["facts"].update(data={"max_seq_length": 64}))
    data, cut = inconsistencies(collect(root))
    assert data.startswith("fine-tuning runs on mrpc differ in input task_data: ")
    assert "differ in the length that rows are cut to: " in cut and "64 tokens (1 runs" in cut


def test_incomplete_runs_do_not_count(root: Path) -> None:
    def edit(state: dict[str, Any]) -> None:
        state["status"] = "failed"
        state["config"]["epochs"] = 9

    change(finetuned(root, "mlm", (1, 1)), edit)
    assert inconsistencies(collect(root)) == []


def test_one_seed_with_two_encoders(root: Path) -> None:
    change(finetuned(root, "mlm", (1, 1)), began_with("e1"))
    change(finetuned(root, "mlm", (1, 2)), began_with("e2"))
    lines = inconsistencies(collect(root))
    assert "mlm, pre-training seed 1: its runs began with 2 different encoders" in lines


def test_two_seeds_with_one_encoder(root: Path) -> None:
    for seed in (1, 2):
        change(finetuned(root, "mlm", (seed, 1)), began_with("the same"))
    assert "mlm: pre-training seeds 1, 2 are one and the same encoder" in inconsistencies(collect(root))


def test_encoder_trained_anew_since(root: Path) -> None:
    encoder = root / "pretrain" / "mlm" / "seed-1" / "encoder"
    encoder.mkdir()
    (encoder / "config.json").write_text("{}")
    change(finetuned(root, "mlm", (1, 1)), began_with(encoder_fingerprint(encoder)))
    assert not any("another encoder" in line for line in inconsistencies(collect(root)))
    (encoder / "config.json").write_text('{"new": 1}')
    lines = [line for line in inconsistencies(collect(root)) if "another encoder" in line]
    assert len(lines) == 1 and "mlm seed 1" in lines[0] and str(finetuned(root, "mlm", (1, 1))) in lines[0]


def test_a_copied_run_folder_is_not_counted_twice(root: Path) -> None:
    import shutil

    original = finetuned(root, "mlm", (1, 1))
    copy = original.with_name("seed-1.old")
    shutil.copytree(original, copy)
    (copy / "run.json").write_text(original.joinpath("run.json").read_text().replace('"value": ', '"value": 1'))
    collected = collect(root)
    scores = [
        run.scores
        for run in collected.finetune
        if (run.row, run.task, run.pretrain_seed, run.seed) == ("mlm", "mrpc", 1, 1)
    ]
    assert len(scores) == 1 and scores[0]["validation/accuracy"] == pytest.approx(70.0, abs=1.0)
    assert any(str(copy) in line and "not counted" in line for line in collected.damaged)


def test_what_a_row_declares_is_its_own(root: Path, tmp_path: Path) -> None:
    """A row's file sets the task's features: that is the row, not an accident; inside the row it is one."""
    row = tmp_path / "experiment" / "row"
    row.mkdir(parents=True)
    (row / "mlm.yaml").write_text("# @package _global_\nrow: mlm\n")
    (row / "ltr.yaml").write_text(
        "# @package _global_\ndefaults:\n  - /task/format/features@task\nrow: ltr\nmax_train_examples: 5\n"
    )
    for folder in root.glob("finetune/ltr/*/mrpc/*"):
        change(folder, lambda state: state["config"].update(epochs=9.0, max_train_examples=5))
    assert {line.split(":")[0] for line in inconsistencies(collect(root))} >= {
        "fine-tuning runs on mrpc differ in max_train_examples"
    }
    assert inconsistencies(collect(root), row.parent) == []
    change(finetuned(root, "ltr", (2, 1)), lambda state: state["config"].update(max_train_examples=6))
    (line,) = inconsistencies(collect(root), row.parent)
    assert line.startswith("fine-tuning runs on mrpc of ltr differ in max_train_examples: ")
    # What no file declares still has to be equal in all rows.
    change(finetuned(root, "mlm", (2, 1)), lambda state: state["config"].update(evaluations_per_epoch=7))
    assert len(inconsistencies(collect(root), row.parent)) == 2
