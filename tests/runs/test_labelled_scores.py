"""Runs of one's own labels: the class of an F1, rows in both files, one file alone."""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer
from sklearn import metrics as theirs
from tests.runs.records import predictions, read_json, record_of

from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.report.render import write_sweep_report

pytestmark = pytest.mark.usefixtures("no_pictures")
WORDS = ("red", "blue", "slow", "fast")
F1 = ("task.module.metrics=[f1,accuracy]", "task.metric=validation/f1")


def rows(number: int, name: str) -> list[tuple[str, str]]:
    labels = ("fraud", "ok", "ok", "ok")
    return [(f"the {WORDS[n % 4]} {name} {n}", labels[n % 4]) for n in range(number)]


def write(path: Path, content: list[tuple[str, str]]) -> None:
    path.write_text("text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in content))


def data_of(validation_file: str) -> dict[str, str]:
    """Settings of a task of such files, in the place of SST-2's."""
    files = {"train_file": "train.tsv", "validation_file": validation_file}
    return files | {"text_columns": "[text]", "labels": "null", "test_id_column": "null"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, save_encoder: Callable[..., None]) -> Path:
    folder = tmp_path_factory.mktemp("world")
    (folder / "data").mkdir()
    write(folder / "data/train.tsv", rows(60, "film"))
    write(folder / "data/dev.tsv", rows(24, "dog"))
    write(folder / "data/shared.tsv", [*rows(2, "film"), *rows(24, "dog")])
    texts = [text for text, _ in rows(60, "film") + rows(24, "dog")]
    save_encoder(folder / "encoder", WordPieceTokenizer.train(texts, 100, True))
    return folder


@pytest.fixture
def train(finetune: Callable[..., Path]) -> Callable[..., Path]:
    def run(validation: str, *words: str, name: str = "run") -> Path:
        settings = [f"task.data.{key}={value}" for key, value in data_of(validation).items()]
        checked = ["row=mine", "epochs=2", "allow_validation_in_training=false"]
        return finetune("task=sst2", *settings, *checked, *words, name=name)

    return run


def answers(run: Path) -> tuple[list[str], list[str]]:
    rows = predictions(run)
    return [row["label"] for row in rows], [row["prediction"] for row in rows]


def test_an_f1_says_of_which_class(
    train: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name in ("fraud", "ok"):
        run = train("dev.tsv", *F1, f"task.data.positive_label={name}", name=name)
        expected = theirs.f1_score(*answers(run), pos_label=name)
        scores = record_of(run).scores
        score = scores["validation/f1"]
        assert score.positive_label == name and score.value == pytest.approx(100 * expected)
        assert scores["validation/accuracy"].positive_label is None
        assert read_json(run, "model/config.json")["clozelab"]["positive_label"] == name
        assert f"f1 of {name}" in caplog.text
    report = write_sweep_report(tmp_path / "fraud", tmp_path / "report")
    page = (report.folder / "report.html").read_text()
    assert "F1 of fraud" in page and "F1 of fraud" in (report.folder / "report.md").read_text()
    with (report.folder / "results.csv").open(newline="") as file:
        lines = {line["metric"]: line["positive_label"] for line in csv.DictReader(file)}
    assert lines == {"validation/f1": "fraud", "validation/accuracy": ""}


def test_a_page_shows_where_it_fails(train: Callable[..., Path], tmp_path: Path) -> None:
    run = train("dev.tsv")
    report = write_sweep_report(run, tmp_path / "report")
    labels, predicted = answers(run)
    expected = theirs.classification_report(labels, predicted, output_dict=True, zero_division=0)
    (table,) = report.page.classes
    names = {"(macro mean)": "macro avg", "(weighted mean)": "weighted avg"}
    for name, cells in table.classes.items():
        scores = expected[names.get(name, name)]
        figures = [f"{100 * scores[key]:.1f}" for key in ("precision", "recall", "f1-score")]
        assert cells == [*figures, f"{scores['support']:.0f}"]
    matrix = theirs.confusion_matrix(labels, predicted, labels=list(table.matrix))
    assert list(table.matrix.values()) == matrix.tolist()
    for file in ("report.html", "report.md"):
        assert "Where it fails" in (report.folder / file).read_text()
    # Outside the heading of its table, which a narrow page hides.
    page = (report.folder / "report.html").read_text()
    assert '<p class="faint">How often each label got which answer, over all runs.</p>' in page
    for name, cells in table.classes.items():
        assert f"| {name} | {' | '.join(cells)} |\n" in (report.folder / "report.md").read_text()


def test_an_f1_of_nobody_knows_which_class_is_refused(train: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match=r"the labels are fraud, ok: name it by task.data.pos"):
        train("dev.tsv", *F1)
    with pytest.raises(ValueError, match="positive_label=scam is not one of the labels fraud, ok"):
        train("dev.tsv", *F1, "task.data.positive_label=scam", name="other")


def test_rows_in_both_files(
    train: Callable[..., Path], world: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match=r"60 of 60 rows .* \(the first: line 2 is line 2 of"):
        train("train.tsv")
    run = train("train.tsv", "allow_validation_in_training=true", name="meant")
    assert "stand in the training" not in caplog.text
    assert record_of(run).facts["data"]["validation_in_training"] == 60
    train("shared.tsv", name="warned")
    assert f"2 of 26 rows of {world / 'data/shared.tsv'} stand in the training" in caplog.text
    caplog.clear()
    train("shared.tsv", name="again")  # from the cache
    assert "2 of 26 rows" in caplog.text


def test_a_run_survives_its_validation_file(
    train: Any, world: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(world / "data/brief.tsv", rows(12, "cat"))
    fit = Trainer.fit

    def fit_and_change(trainer: Trainer, *words: Any, **more: Any) -> None:
        fit(trainer, *words, **more)
        write(world / "data/brief.tsv", rows(11, "cat"))

    monkeypatch.setattr(Trainer, "fit", fit_and_change)
    run = train("brief.tsv")
    assert record_of(run).status == "complete"
    assert "errors.csv is not written" in caplog.text and not (run / "errors.csv").exists()
    assert (run / "classes.csv").is_file()


def test_one_file_alone(
    train: Callable[..., Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run = train("null", "task.data.validation_fraction=0.2")
    data = record_of(run).facts["data"]
    assert data["held_out"] == {"fraction": 0.2, "seed": 1}
    model = read_json(run, "model/config.json")["clozelab"]
    assert model["held_out"] == {"validation_fraction": 0.2, "validation_seed": 1}
    assert (data["train_examples"], data["validation_examples"]) == (48, 12)
    assert sorted(answers(run)[0]) == ["fraud"] * 3 + ["ok"] * 9, "a fifth of each class"
    assert data["validation_in_training"] == 0
    assert "no validation file: 0.2 of the rows" in caplog.text
    # all seeds of a table are scored on the same rows; another seed of the split is another run
    again = train("null", "task.data.validation_fraction=0.2", "seed=2", name="again")
    other = train("null", "task.data.validation_seed=2", name="other")
    first, second, third = (predictions(folder) for folder in (run, again, other))
    assert [row["id"] for row in first] == [row["id"] for row in second]
    assert [row["id"] for row in first] != [row["id"] for row in third]
    assert record_of(run).inputs["task_files"] != record_of(other).inputs["task_files"]
    page = write_sweep_report(run, tmp_path / "report").folder / "report.html"
    assert "12 examples, 20 % of the training file" in page.read_text()


def test_rows_of_a_group_are_held_out_together(
    train: Callable[..., Path], world: Path, tmp_path: Path
) -> None:
    lines = [f"{a}\t{b}\ts{n // 4}" for n, (a, b) in enumerate(rows(60, "film"))]
    file = world / "data/grouped.tsv"
    file.write_text("\n".join(["text\tlabel\tspeaker", *lines]) + "\n")
    run = train("null", "task.data.train_file=grouped.tsv", "task.data.group_column=speaker")
    data = record_of(run).facts["data"]
    assert data["held_out"] == {"fraction": 0.1, "seed": 1, "group_column": "speaker"}
    model = read_json(run, "model/config.json")["clozelab"]
    assert model["held_out"]["group_column"] == "speaker"
    held_out = {int(row["id"]) for row in predictions(run)}
    speakers = {number // 4 for number in held_out}
    assert held_out == {n for n in range(60) if n // 4 in speakers} and len(speakers) == 1
    page = write_sweep_report(run, tmp_path / "report").folder / "report.html"
    assert "rows with one speaker are in one part" in page.read_text()
