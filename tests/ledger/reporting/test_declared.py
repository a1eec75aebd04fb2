"""What the files of arms and rows set, and in what two of them are meant to differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from clozelab.config import EXPERIMENTS_DIR
from clozelab.verdicts.consistency import meant_to_differ, read_deltas, with_following

TABLE7 = EXPERIMENTS_DIR / "table7_feature_based_ner" / "row"


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def test_keys_of_a_file(tmp_path: Path) -> None:
    text = "defaults:\n  - override /objective: mlm\n  - _self_\narm: a\nsize: {depth: '1/2'}\nhydra: {mode: RUN}\n"
    deltas = read_deltas(write(tmp_path, a=text))
    choice = {"objective.input": "segment_pairs", "objective.token": "mlm"}
    assert deltas == {"a": {**choice, "arm": "a", "size.depth": "1/2"}}
    assert with_following(deltas["a"]) == {*choice, "arm", "size.depth", "model.num_hidden_layers"}
    assert read_deltas(tmp_path / "no such folder") == {}
    assert read_deltas(write(tmp_path, a="a: [")) == {}


@pytest.mark.parametrize("entry", ["/task/format/features@task", "/task/format@task: features"])
def test_a_file_laid_over_a_part_sets_what_it_says(tmp_path: Path, entry: str) -> None:
    delta = read_deltas(write(tmp_path, a=f"defaults:\n  - {entry}\nrow: a\n"))["a"]
    assert {"task.module.features", "task.data._target_", "task.epochs", "task.always.head"} < delta.keys()
    assert not {"task", "task.module", "task.name"} & delta.keys()
    assert "head" in with_following(delta)  # by task.always.head


def test_a_file_that_cannot_be_seen_through_sets_the_whole_part(tmp_path: Path) -> None:
    rows = tmp_path / "row"
    rows.mkdir()
    write(rows, a="defaults:\n  - /task/other@task\n", b="defaults:\n  - /task/nested@task\n")
    (tmp_path / "task").mkdir()
    write(tmp_path / "task", nested="defaults:\n  - format/conll\nx: 1\n")
    assert read_deltas(rows) == {"a": {"task": "task/other"}, "b": {"task": "task/nested"}}


def test_what_two_choices_have_in_common_is_not_meant_to_differ(tmp_path: Path) -> None:
    """MLM with and without NSP: how tokens are masked and pairs are made has to be equal."""
    names = {"both": "mlm_nsp", "mlm": "mlm", "ltr": "ltr"}
    texts = {key: f"defaults:\n  - override /objective: {choice}\n" for key, choice in names.items()}
    texts["full"] = texts["mlm"] + "  - override /objective/input: full_sentences\n"
    files = read_deltas(write(tmp_path, **texts))
    assert meant_to_differ(files["both"], files["mlm"]) == {"objective.pair"}
    assert meant_to_differ(files["mlm"], files["ltr"]) == {"objective.token"}
    assert meant_to_differ(files["mlm"], files["full"]) == {"objective.input"}


def test_a_choice_that_cannot_be_seen_through_is_a_whole(tmp_path: Path) -> None:
    text = "defaults:\n  - override /objective: of_my_own\n"
    assert read_deltas(write(tmp_path, a=text)) == {"a": {"objective": "of_my_own"}}
    model = read_deltas(write(tmp_path, a="defaults:\n  - override /model: ratio\n"))["a"]
    assert "model.hidden_size" in model and "model.hidden_dropout_prob" in model and "model" not in model


def test_what_both_say_alike_is_not_meant_to_differ() -> None:
    first, second = {"head": "linear", "epochs": "3", "row": "a"}, {"head": "linear", "row": "b"}
    assert meant_to_differ(first, second) == {"epochs", "row"} == meant_to_differ(second, first)
    assert meant_to_differ(first, first) == frozenset()


def test_the_same_reference_differs_where_its_target_does() -> None:
    first = {"rate": "${other}", "other": "${task.data.features}", "task.data.features": "a", "fixed": "${seed}"}
    assert meant_to_differ(first, first | {"task.data.features": "b"}) == {"rate", "other", "task.data.features"}


def test_rows_of_table_7() -> None:
    rows = read_deltas(TABLE7)
    # Two feature-based rows: which layers, and nothing else.
    assert meant_to_differ(rows["last"], rows["embeddings"]) == {"row", "task.data.features", "task.module.features"}
    about = meant_to_differ(rows["last"], rows["mlm_nsp"])
    assert {"head", "task.module.bilstm_num_layers"} < about
    assert not {"task", "initialisation", "task.data.max_seq_length"} & about
