"""`clozelab verify RUN` makes a run again by its record, whatever the defaults of today are."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runs.records import edit, read_json, record_of
from tests.runs.test_labelled_scores import data_of, rows, write
from tests.runs.test_pretrain_run import command, run_alone
from tests.runs.test_verify import forks, verify

from clozelab.results import rerun
from clozelab.runs.store import fingerprint_of

__all__ = ["forks"]

RECIPE = ("learning_rate=0.001", "epochs=2", "global_batch_size=16")
CLASS = "task.data.positive_label"


@pytest.fixture(scope="module")
def place(workplace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder, and a fine-tuning of it whose command says all that it does."""
    folder = tmp_path_factory.mktemp("recipes")
    shutil.copy(workplace / "text.txt", folder)
    run_alone(command(folder, folder / "first"))
    shutil.copytree(folder / "first/encoder", folder / "given")
    write(folder / "train.tsv", rows(60, "film"))
    write(folder / "dev.tsv", rows(24, "dog"))
    settings = {f"task.data.{key}": value for key, value in data_of("dev.tsv").items()}
    settings |= {
        "task.module.metrics": "[f1,accuracy]",
        "task.metric": "validation/f1",
        CLASS: "ok",
        "data_dir": folder,
        "cache_dir": folder / "cache",
        "encoder": folder / "given",
        "run_dir": folder / "tuned",
        "row": "mine",
        "max_unknown_share": 1.0,
        "trainer.progress_bar": "false",
    }
    words = ["task=sst2", *RECIPE, *(f"{key}={value}" for key, value in settings.items())]
    run_alone([sys.executable, "-m", "clozelab", "finetune", *words])
    return folder


def edited(place: Path, copy: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the fine-tuning with another record, under the fingerprint that this one has."""
    run = Path(shutil.copytree(place / "tuned", copy))
    state = read_json(run, "run.json")
    change(state)
    known = [state[key] for key in ("config", "inputs", "results_version")]
    edit(run / "run.json", **state | {"fingerprint": fingerprint_of(*known)})
    return run


def take_out(state: dict[str, Any], *words: str) -> None:
    kept = [word for word in state["overrides"] if not word.startswith(words)]
    assert len(kept) == len(state["overrides"]) - len(words)
    state["overrides"] = kept


def before_classes(state: dict[str, Any]) -> None:
    """The record of a version in which no F1 had a class: it was that of the second label."""
    take_out(state, CLASS)
    del state["config"]["task"]["data"]["positive_label"]
    for score in state["scores"].values():
        score.pop("positive_label", None)


SAME = "is the same run (trained again and compared to the bit)"


@pytest.mark.parametrize(
    "change",
    [
        lambda state: take_out(state, *RECIPE),
        before_classes,
        lambda state: state["inputs"].update(task_data="0" * 64),
    ],
    ids=["other defaults", "no class of an F1", "another fingerprint of the same tokens"],
)
def test_a_run_of_an_older_version_is_the_same_run(
    place: Path, tmp_path: Path, capsys: Any, change: Callable[[dict[str, Any]], None]
) -> None:
    run = edited(place, tmp_path / "old", change)
    status, text = verify(run, capsys)
    assert status == 0 and SAME in text, text


def test_given_weights_are_trained_further_by_the_record(place: Path, capsys: Any) -> None:
    """Their learning rate was once the scale's, where it is given_learning_rate now."""
    recipe = {"optimizer.learning_rate": 0.003, "optimizer.weight_decay": 0.02}
    run = place / "further"
    words = command(place, run, encoder=place / "given", checkpoint_interval_steps=5, **recipe)
    # The encoder brings its own shape.
    run_alone([word for word in words if not word.startswith("model.")])
    state = read_json(run, "run.json")
    take_out(state, *recipe)
    edit(run / "run.json", overrides=state["overrides"])
    status, text = verify(run, capsys)
    assert status == 0 and "is the same run (steps" in text, text


def test_a_record_gives_a_command_numbers_alone(place: Path) -> None:
    """A pack may be forged."""
    record = record_of(place / "tuned")
    optimizer = {"_target_": "os.system", "eps": "${oc.env:HOME}", "a=1,2 b": 1, "_args_": 1}
    optimizer |= {"momentum": None, "learning_rate": 1e-5}
    record.config |= {"optimizer": optimizer, "epochs": "2 hydra.mode=MULTIRUN"}
    assert rerun.recorded_recipe(record) == {
        "learning_rate": "0.001",
        "global_batch_size": "16",
        "optimizer.momentum": "null",
        "optimizer.learning_rate": "1e-05",
    }


def test_another_recipe_than_that_of_the_record_is_noticed(
    place: Path, tmp_path: Path, capsys: Any
) -> None:
    """The figures are compared: a record with another learning rate is not of this run."""

    def change(state: dict[str, Any]) -> None:
        take_out(state, *RECIPE)
        state["config"]["learning_rate"] = 0.01
        state["config"]["optimizer"]["learning_rate"] = 0.01

    status, text = verify(edited(place, tmp_path / "old", change), capsys)
    assert status == 1 and "is not the same run" in text and "figures differ" in text


@pytest.mark.parametrize("file", ["train.tsv", "metrics.csv"])
def test_other_files_and_figures_are_still_noticed(
    place: Path, tmp_path: Path, capsys: Any, file: str
) -> None:
    run = edited(place, tmp_path / "old", lambda state: take_out(state, *RECIPE))
    path = run / file
    if file == "train.tsv":
        path = place / file
    whole = path.read_text()
    path.write_text(whole.replace("film 1", "cat 1").replace("0.", "0.9", 3))
    assert path.read_text() != whole
    status, text = verify(run, capsys)
    path.write_text(whole)
    assert status == 1 and "is not the same run" in text


def test_an_encoder_that_has_lost_its_run_is_trained_by_the_record(
    place: Path, tmp_path: Path, capsys: Any
) -> None:
    """The scale's recipe is for encoders of its runs, which only the run.json beside one tells."""
    run = edited(place, tmp_path / "old", lambda state: take_out(state, *RECIPE, "encoder"))
    words = [*record_of(run).overrides, f"encoder={place / 'first/encoder'}"]
    edit(run / "run.json", overrides=words)
    status, text = verify(run, capsys)
    assert status == 0 and SAME in text, text
    record = place / "first/run.json"
    try:
        record.rename(place / "moved.json")
        status, text = verify(run, capsys)
    finally:
        (place / "moved.json").rename(record)
    assert status == 0 and SAME in text, text


def test_other_settings_of_the_command_are_no_comparison(
    place: Path, tmp_path: Path, capsys: Any
) -> None:
    """As where a default has moved that is no number of the recipe."""

    def change(state: dict[str, Any]) -> None:
        state["config"]["max_train_examples"] = 50

    run = edited(place, tmp_path / "old", change)
    status, text = verify(run, capsys)
    assert status == 1 and "is not the same run" not in text
    assert f"{run} was not compared, because its command has other settings today" in text
    assert "max_train_examples: there 50, now" in text


def test_tokens_of_another_version_are_not_compared_on_another_machine(
    place: Path, tmp_path: Path, capsys: Any
) -> None:
    """A headline score within some percent would not tell them apart."""

    def change(state: dict[str, Any]) -> None:
        state["inputs"]["task_data"] = "0" * 64
        state["environment"] = {"torch": "another"}

    status, text = verify(edited(place, tmp_path / "old", change), capsys)
    assert status == 1 and "was not compared" in text and "input task_data: there '000" in text


def test_the_class_that_an_older_f1_is_of(place: Path, tmp_path: Path) -> None:
    for name, labels, expected in (
        ("sorted", None, "ok"),
        ("ordered", ["ok", "fraud"], "fraud"),
        ("three", ["fraud", "ok", "scam"], None),
    ):

        def change(state: dict[str, Any], labels: list[str] | None = labels) -> None:
            before_classes(state)
            state["config"]["task"]["data"]["labels"] = labels

        record = record_of(edited(place, tmp_path / name, change))
        assert rerun.unnamed_positive_label(record) == expected
    # A run of this version says it, and 0 and 1 need no name.
    assert rerun.unnamed_positive_label(record_of(place / "tuned")) is None
    numbers = edited(place, tmp_path / "numbers", before_classes)
    answers = numbers / "predictions.jsonl"
    answers.write_text(answers.read_text().replace('"ok"', '"1"').replace('"fraud"', '"0"'))
    record = record_of(numbers)
    assert rerun.unnamed_positive_label(record) is None
    # A pack may come without predictions.
    answers.unlink()
    assert rerun.unnamed_positive_label(record) is None
