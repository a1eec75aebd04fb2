"""Hub names: rows with the hub's columns become files that the readers read as they read the
originals.

The hub itself is not reached: `load_dataset` is replaced by one that opens data sets saved to disk,
whose columns and classes are those of the hub's cards.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import pytest
from tests.datamodules.test_squad import question, rows_of, unanswerable
from tests.screens import refuses, shows

from clozelab.datamodules.files import HubSource, hub_files
from clozelab.launch import sweep
from clozelab.readers.squad import read_squad
from clozelab.readers.tables import open_table
from clozelab.tasks.choices import ChoiceFormat
from clozelab.tasks.several_classes import SeveralClassesTarget
from clozelab.tasks.tables import TableFormat, TextExamples

datasets = pytest.importorskip("datasets")
SENTENCES = datasets.Features(
    {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["0", "1"])}
)
WORDS = ["a", 'quote "here', "Zürich", "it 's", "don't", "1,2", "#", "x  y"]
CLASSES = {
    "cola": ["unacceptable", "acceptable"],
    "mnli": ["entailment", "neutral", "contradiction"],
    "mrpc": ["not_equivalent", "equivalent"],
    "qnli": ["entailment", "not_entailment"],
    "qqp": ["not_duplicate", "duplicate"],
    "rte": ["entailment", "not_entailment"],
    "sst2": ["negative", "positive"],
    "wnli": ["not_entailment", "entailment"],
}
FILE_LABELS = {"mnli": CLASSES["mnli"], "qnli": CLASSES["qnli"], "rte": CLASSES["rte"]}
TEXTS = {
    "cola": ["sentence"],
    "sst2": ["sentence"],
    "mnli": ["premise", "hypothesis"],
    "qnli": ["question", "sentence"],
    "qqp": ["question1", "question2"],
}
REVISION = "0" * 40
TEXT_CELLS = [["a", "1", "0.5", "true"], ["", "0", "", "false"], ["nan", "", "3.0", ""]]


def read(layout: TableFormat, path: Path, has_labels: bool = True) -> TextExamples:
    return layout.read(path, has_labels)


def task(name: str, *overrides: str) -> dict[str, Any]:
    settings: dict[str, Any] = sweep.compose("finetune", [f"task={name}", *overrides]).get("task")
    return settings


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=4))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[Any, ...]]]:
    """hub(name, config, {split: columns}, features) puts a data set there; gives what was asked."""
    asked: list[tuple[Any, ...]] = []

    def load(name: str, config: str | None, *, revision: str) -> Any:
        def as_dataset(split: str) -> Any:
            asked.append((name, config, split, revision))
            return datasets.load_from_disk(str(tmp_path / "hub" / name / str(config)))[split]

        return SimpleNamespace(
            hash=revision, download_and_prepare=lambda: None, as_dataset=as_dataset
        )

    def put(
        name: str, config: str, splits: dict[str, dict[str, list[Any]]], features: Any
    ) -> list[tuple[Any, ...]]:
        parts = {
            split: datasets.Dataset.from_dict(columns, features=features)
            for split, columns in splits.items()
        }
        datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "hub" / name / config))
        return asked

    monkeypatch.setattr(datasets, "load_dataset_builder", load)
    return put


@pytest.mark.parametrize("name", [*CLASSES, "stsb"])
def test_glue(hub: Any, tmp_path: Path, name: str) -> None:
    """Texts, labels as the files spell them, and row numbers are those of the official files."""
    rng = random.Random(name)
    columns = TEXTS.get(name, ["sentence1", "sentence2"])
    label = (
        datasets.Value("float32") if name == "stsb" else datasets.ClassLabel(names=CLASSES[name])
    )
    features = datasets.Features(
        {column: datasets.Value("string") for column in columns} | {"label": label}
    )
    features["idx"] = datasets.Value("int32")
    settings = task(name)
    splits: dict[str, Any] = {}
    for split in [place for place in settings["hub"]["splits"].values() if "/" not in place]:
        values = [
            rng.choice([1.25, 5.0]) if name == "stsb" else rng.randrange(len(CLASSES[name]))
            for _ in range(7)
        ]
        values = [-1] * 7 if split.startswith("test") else values
        texts = {}
        for column in columns:
            texts[column] = [sentence(rng) for _ in range(7)]
        splits[split] = {**texts, "label": values, "idx": list(range(100, 107))}
    asked = hub("nyu-mll/glue", name, splits, features)
    if name == "mnli":
        hub("nyu-mll/glue", "ax", {"test": splits["test_matched"]}, features)
    source = HubSource.from_task(settings)
    folder = hub_files(source, tmp_path / "cache")
    assert {call[3] for call in asked} == {settings["hub"]["revision"]}
    assert len(settings["hub"]["revision"]) == 40
    data, number = settings["data"], len(asked)
    for file, place in source.files.items():
        is_test = place.rpartition("/")[2].startswith("test")
        layout = TableFormat(
            data["text_columns"],
            data["label_column"],
            data["test_id_column"] if is_test else data["id_column"],
            None if is_test else data["columns"],
        )
        found = read(layout, folder / file, not is_test)
        expected = splits[place if "/" not in place else "test_matched"]
        assert found.num_bad_rows == 0 and found.ids == [str(i) for i in range(7)]
        assert found.texts == list(zip(*(expected[column] for column in columns), strict=True))
        if is_test:
            assert found.labels is None
        elif name == "stsb":
            assert [float(value) for value in found.labels or []] == expected["label"]
        else:
            spelling = FILE_LABELS.get(name, ["0", "1"])
            assert found.labels == [spelling[value] for value in expected["label"]]
    # the second time from the cache
    assert hub_files(source, tmp_path / "cache") == folder and len(asked) == number


@pytest.mark.parametrize("name", ["squad_v1", "squad_v2"])
def test_squad(hub: Any, tmp_path: Path, name: str) -> None:
    oslo = [question("q0", "Oslo", 11), question("q1", "Ann", 0)]
    rome = [question("q2", "Rome", 12)]
    none = [unanswerable("q3")] if name == "squad_v2" else []
    articles = []
    for title, passages in (
        ("T", {"Ann was in Oslo.": oslo, "Bob went to Rome and on.": rome}),
        ("U", {"Nobody went.": none}),
    ):
        paragraphs = [{"context": context, "qas": asked} for context, asked in passages.items()]
        articles.append({"title": title, "paragraphs": paragraphs})
    official = tmp_path / "official.json"
    official.write_text(json.dumps({"data": articles}))
    rows = pandas.DataFrame(rows_of(official)).to_dict("list")
    settings = task(name)
    text_value = datasets.Value("string")
    answers_value = {
        "text": datasets.List(text_value),
        "answer_start": datasets.List(datasets.Value("int32")),
    }
    features = datasets.Features(
        {column: text_value for column in rows if column != "answers"} | {"answers": answers_value}
    )
    where = (settings["hub"]["name"], settings["hub"]["config"])
    hub(*where, {"train": rows, "validation": rows}, features)
    source = HubSource.from_task(settings)
    assert list(source.files) == [
        settings["data"]["train_file"],
        settings["data"]["validation_file"],
    ]
    folder = hub_files(source, tmp_path / "cache")
    with_unanswerable = settings["data"]["with_unanswerable"]
    for file in source.files:
        for for_training in (True, False):
            both = [
                read_squad(path, for_training=for_training, with_unanswerable=with_unanswerable)
                for path in (folder / file, official)
            ]
            assert both[0] == both[1]


def test_swag(hub: Any, tmp_path: Path) -> None:
    rng = random.Random(1)
    settings = task("swag", f"task.hub.revision={'a' * 40}")
    texts = [column for column in settings["hub"]["columns"] if column != "label"]
    features = datasets.Features({column: datasets.Value("string") for column in texts})
    features["label"] = datasets.ClassLabel(names=["0", "1", "2", "3"])
    row = {}
    for column in texts:
        row[column] = [sentence(rng) + ',"\n' for _ in range(5)]
    row["label"] = [3, 0, 1, 2, 2]
    hub(
        "allenai/swag",
        "regular",
        {"train": row, "validation": row, "test": row | {"label": [-1] * 5}},
        features,
    )
    folder = hub_files(HubSource.from_task(settings), tmp_path / "cache")
    data = settings["data"]
    names = ("context_column", "start_column", "ending_columns", "label_column", "columns")
    layout = ChoiceFormat(*(data[name] for name in names))
    with (tmp_path / "official.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["", *row])
        writer.writerows(
            [str(i), *values] for i, values in enumerate(zip(*row.values(), strict=True))
        )
    expected = layout.read(tmp_path / "official.csv")
    assert layout.read(folder / "swag/train.csv") == expected
    test = layout.read(folder / "swag/test.csv", has_labels=False)
    assert (test.texts, test.ids) == (expected.texts, expected.ids)
    assert "label" not in (folder / "swag/test.csv").read_text().split("\n")[0]


def test_tabs_become_spaces(hub: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = {"sentence": ["a\tb\nc", "d"], "label": [0, 1]}
    hub("nyu-mll/glue", "sst2", {"train": rows, "validation": rows, "test": rows}, SENTENCES)
    folder = hub_files(HubSource.from_task(task("sst2")), tmp_path / "cache")
    assert (
        folder / "glue/SST-2/train.tsv"
    ).read_text() == "index\tsentence\tlabel\n0\ta b c\t0\n1\td\t1\n"
    shows(
        caplog.text,
        "train.tsv: tabs or line breaks inside the texts of 1 rows",
        "dev.tsv: tabs or line breaks inside the texts of 1 rows became",
        "test.tsv: tabs or line breaks inside the texts of 1 rows",
    )


def test_lists_of_classes_keep_their_names(hub: Any, tmp_path: Path) -> None:
    """A table of text has no lists: their numbers would become one label, such as "[0 1]"."""
    names = datasets.ClassLabel(names=["sad", "glad"])
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.List(names)}
    )
    rows = {"sentence": ["a", "b"], "label": [[0, 1], []]}
    hub("nyu-mll/glue", "sst2", {"train": rows, "validation": rows, "test": rows}, features)
    settings = HubSource.from_task(task("sst2"))
    with refuses("'label' holds lists or objects, which tsv has not: take task.hub.format=parquet"):
        hub_files(settings, tmp_path / "cache")
    files = {"train.parquet": "train", "test.parquet": "test"}
    settings = replace(settings, format="parquet", files=files)
    with refuses("parquet keeps the hub's classes and rows: leave task.hub.labels, index_column"):
        hub_files(settings, tmp_path / "cache")
    settings = replace(settings, labels=None, index_column=None)
    folder = hub_files(settings, tmp_path / "cache")
    read = SeveralClassesTarget(separator=",").read_cell
    examples = TableFormat(["sentence"], "label").read(folder / "train.parquet", read_cell=read)
    assert examples.labels == [("sad", "glad"), ()]
    assert open_table(folder / "test.parquet").columns == ["sentence"]


@pytest.mark.parametrize("last", [-1, None])
def test_a_row_without_a_class_is_not_the_last_class(
    hub: Any, tmp_path: Path, last: int | None
) -> None:
    """SNLI says -1 where annotators did not agree."""
    good, bad = ({"sentence": ["a", "b"], "label": [0, label]} for label in (1, last))
    hub("nyu-mll/glue", "sst2", {"train": good, "validation": bad, "test": bad}, SENTENCES)
    source = replace(HubSource.from_task(task("sst2")), labels=("negative", "positive"))
    with refuses("dev.tsv: 1 rows have a class such as -1, outside of ('negative',"):
        hub_files(source, tmp_path / "cache")


def test_a_cell_that_holds_nothing_is_no_text(hub: Any, tmp_path: Path) -> None:
    """Nor does it change how the numbers beside it are written; a truth stands as in JSON."""
    columns: dict[str, list[Any]] = {
        "text": ["a", None, "nan"],
        "number": [1, 0, None],
        "share": [0.5, None, 3.0],
        "truth": [True, False, None],
    }
    kinds = {"text": "string", "number": "int64", "share": "float32", "truth": "bool"}
    features = datasets.Features({name: datasets.Value(kind) for name, kind in kinds.items()})
    hub("me/mine", "all", {"train": columns}, features)
    names = {name: name for name in columns}
    settings = (None, None, None, None)
    for kind, mark in (("csv", ","), ("tsv", "\t")):
        source = HubSource("me/mine", "all", REVISION, kind, {"x": "train"}, names, *settings)
        lines = (hub_files(source, tmp_path / "cache") / "x").read_text().split("\n")
        assert lines[1:4] == [mark.join(cells) for cells in TEXT_CELLS]


def test_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left behind that a later attempt could take for whole."""

    def unreachable(*_args: Any, **_kwargs: Any) -> Any:
        raise ConnectionError("Couldn't reach 'nyu-mll/glue' on the Hub\nRetrying")

    monkeypatch.setattr(datasets, "load_dataset_builder", unreachable)
    source = HubSource.from_task(task("sst2"))
    with refuses("cannot be read (ConnectionError: Couldn't reach 'nyu-mll/glue' on") as refused:
        hub_files(source, tmp_path / "cache")
    assert f"revision {source.revision} " in str(refused.value)
    assert list((tmp_path / "cache/hub").iterdir()) == []


def test_other_columns_are_an_error(hub: Any, tmp_path: Path) -> None:
    rows = {"text": ["a"], "label": [0]}
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.Value("int64")}
    )
    hub("nyu-mll/glue", "sst2", dict.fromkeys(("train", "validation", "test"), rows), features)
    with refuses("train: the rows are not as expected"):
        hub_files(HubSource.from_task(task("sst2")), tmp_path / "cache")
    assert list((tmp_path / "cache/hub").iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["task=snli_95k"], "task 'snli_95k' has no source on the hub; set hub=false"),
        (["task=codah"], "task 'codah' has no source on the hub"),
        (["task=swag"], r"task.hub.revision=None is no commit of allenai/swag: give one"),
        (["task=sst2", "task.hub.revision=main"], "task.hub.revision='main' is no commit"),
        (["task=sst2", "task.hub.format=json"], "task.hub.format=json: choose one of tsv, csv"),
        (["task=sst2", "+task.hub.branch=x"], "task.hub: branch unknown or missing; it takes"),
    ],
)
def test_a_source_that_cannot_be(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        HubSource.from_task(sweep.compose("finetune", overrides).get("task"))
