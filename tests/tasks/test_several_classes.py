"""Several classes for a text: read, trained on, scored, predicted, and read by transformers."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score
from sklearn.preprocessing import MultiLabelBinarizer
from tests.tasks.labelled_files import (
    evaluate,
    finetune,
    module_on,
    read_task,
    records_of,
    write_rows,
)
from tests.tasks.test_targets import split_of
from torch.nn import functional as F

from clozelab.modules.predictor import load
from clozelab.tasks.baselines import BAG
from clozelab.tasks.batches import make_batch
from clozelab.tasks.several_classes import FREQUENT_SET, PREVALENCE, SeveralClassesTarget

TEXTS = {
    "the red car": ["car", "red"],
    "the blue house": ["house"],
    "a big red house": ["house", "red"],
    "a small thing": [],
    "the big blue car": ["car"],
}
ROWS = [(text, ", ".join(labels)) for text, labels in TEXTS.items()]
NAMES = ["car", "house", "red"]


def target(**settings: Any) -> SeveralClassesTarget:
    return SeveralClassesTarget(labels=NAMES, **settings)


def random_outputs(seed: int, count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = (generator.random((count, 3)) < [0.2, 0.5, 0.3]).astype(np.float32)
    logits = generator.normal(size=(count, 3)).astype(np.float32) + labels
    return logits, labels


def test_a_cell_is_taken_apart(tmp_path: Path) -> None:
    """By the separator but inside of quotation marks, or as the list that it is."""
    cells = ["b,a", "", ["a", "c, d"], '"c, d", b', None, " b ", [], [1]]
    rows = [(f"the car {number}", cell) for number, cell in enumerate(cells)]
    data = read_task(tmp_path, SeveralClassesTarget, rows, rows, separator=",")
    assert data.target.classes == ["1", "a", "b", "c, d"]
    expected = ["0110", "0000", "0101", "0011", "0000", "0010", "0000", "1000"]
    assert ["".join(map(str, row)) for row in data.train.labels.astype(int).tolist()] == expected
    assert data.target._written(["b", "c, d"]) == 'b,"c, d"'
    preview = data.preview()
    assert preview.label_names == data.target.classes and not preview.one_label_each


@pytest.mark.parametrize(
    ("rows", "validation", "message"),
    [
        (ROWS, [("a", "car, cat")], r"dev.jsonl:1: label 'cat' is not one of the known labels"),
        (ROWS, [("a", "Car")], "differs from 'car' by"),
        ([("a", "car,red,car")], ROWS, r"train.jsonl:1: label 'car' stands twice in a cell: give"),
        ([("a", "car,,red")], ROWS, r"train.jsonl:1: label is empty"),
        ([("a", '"car,red')], ROWS, "quotation marks or line ends amiss"),
        ([("a", "['car', 'red']")], ROWS, r"is a list or an object written as text .*a list$"),
        ([("a", {"car": 1})], ROWS, "label is an object"),
        ([("a", [["car"]])], ROWS, r"label is a list \(\['car'\]\)"),
        ([("a", ""), ("b", [])], ROWS, "train.jsonl: no row has a label, so there is nothing"),
        ([("a", "car"), ("b", "")], [("a", "car")], "there is one label, 'car': a class for each"),
    ],
)
def test_odd_cells_are_refused(tmp_path: Path, rows: Any, validation: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_task(tmp_path, SeveralClassesTarget, rows, validation)


def test_a_class_without_a_row_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read_task(tmp_path, SeveralClassesTarget, ROWS, ROWS, labels=[*NAMES, "boat"])
    assert "has no example of 1 of 4 classes: 'boat'" in caplog.text


def test_settings_and_validation_without_labels_are_refused() -> None:
    for separator in ("", "::", '"', "\n"):
        with pytest.raises(ValueError, match=r"separator=.*: give one character"):
            target(separator=separator)
    with pytest.raises(ValueError, match=r"threshold=1\.5: give a number between 0 and 1"):
        target(threshold=1.5)
    with pytest.raises(ValueError, match="no row of the validation split has a label"):
        target().check_validation(split_of(np.zeros((2, 3))))


def test_the_loss_is_torchs_mean_over_labels_and_examples(tmp_path: Path, tiny_module: Any) -> None:
    data = read_task(tmp_path, SeveralClassesTarget, ROWS, ROWS)
    module = module_on(data, tiny_module, "micro_f1").eval()
    batch = make_batch(data.train_sequences, np.arange(5), data.train_targets)
    logits = module.logits(batch)
    mean = F.binary_cross_entropy_with_logits(logits, batch["labels"])
    assert module.loss(logits, batch).item() == pytest.approx(5 * mean.item(), rel=1e-6)
    module.loss(logits, batch).backward()
    expected = (logits.sigmoid() - batch["labels"]).sum(0) / 3
    torch.testing.assert_close(module.classifier.bias.grad, expected.detach())


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_scikit_learns(seed: int) -> None:
    logits, labels = random_outputs(seed)
    outcome = target(threshold=0.6).evaluate(logits, split_of(labels))
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    predicted = probabilities > 0.6
    scores = outcome.scores
    assert scores["micro_f1"] == pytest.approx(f1_score(labels, predicted, average="micro"))
    assert scores["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    precision = average_precision_score(labels, probabilities, average="macro")
    assert scores["mean_average_precision"] == pytest.approx(precision, abs=1e-6)
    assert scores["threshold"] == 0.6 and not outcome.is_collapsed
    for record, row, gold in zip(outcome.records, predicted, labels, strict=True):
        assert record["prediction"] == [NAMES[place] for place in np.flatnonzero(row)]
        assert record["label"] == [NAMES[place] for place in np.flatnonzero(gold)]
    assert outcome.records[0]["probabilities"]["red"] == pytest.approx(
        probabilities[0, 2], abs=1e-5
    )
    report = target().class_report(outcome.records)
    assert report.scores.f1.tolist() == pytest.approx(f1_score(labels, predicted, average=None))


def test_a_given_threshold_goes_before_the_models_own() -> None:
    for saved, value in (({"threshold": 0.7}, 0.7), ({}, 0.5)):
        chosen = target()
        chosen.restore_config({"answers": saved})
        given = target(threshold=0.3)
        of_record = given.restore_config({"answers": saved})["label_threshold"]
        assert (chosen.threshold, given.threshold) == (value, 0.3)
        assert of_record == {"value": 0.3, "source": "given by module.threshold"}


def test_no_example_helps_to_choose_its_own_threshold() -> None:
    """By a plain loop over the folds. Another label of an example never changes its answer."""
    logits, labels = random_outputs(4)
    outcome = target().evaluate(logits, split_of(labels))
    probabilities = torch.from_numpy(logits).sigmoid().numpy()

    def best(rows: np.ndarray) -> float:
        candidates = np.unique(probabilities[rows])
        scores = []
        for candidate in candidates:
            predicted = probabilities[rows] >= candidate
            scores.append(f1_score(labels[rows], predicted, average="micro"))
        place = len(scores) - 1 - int(np.argmax(scores[::-1]))  # the highest of equally good ones
        return float(candidates[place - 1 : place + 1].mean())

    numbers = np.arange(len(labels))
    thresholds = [best(numbers[numbers % 5 != fold]) for fold in range(5)]
    for number in numbers:
        places = np.flatnonzero(probabilities[number] > thresholds[number % 5])
        expected = [NAMES[place] for place in places]
        assert outcome.records[number]["prediction"] == expected
    changed = labels.copy()
    changed[7] = 1 - changed[7]
    other = target().evaluate(logits, split_of(changed))
    assert other.records[7]["prediction"] == outcome.records[7]["prediction"]
    # all examples choose the one that the model keeps
    kept = target().model_config_to_save(outcome.scores)["answers"]["threshold"]
    assert f1_score(labels, probabilities > kept, average="micro") == pytest.approx(
        f1_score(labels, probabilities > best(numbers), average="micro")
    )


def test_the_same_answer_for_every_example_is_a_collapse() -> None:
    _, labels = random_outputs(0)
    logits = np.tile(np.array([[-1, 1, -1]], np.float32), (40, 1))
    outcome = target(threshold=0.5).evaluate(logits, split_of(labels))
    assert outcome.is_collapsed
    assert target().majority_score("threshold", split_of(labels)) is None


def test_the_simple_rules(tmp_path: Path) -> None:
    """Against scikit-learn; words tell labels, which no constant does."""
    rows = ROWS * 6
    found = read_task(tmp_path, SeveralClassesTarget, rows, rows).compute_baselines()
    expected = MultiLabelBinarizer(classes=NAMES).fit_transform([*TEXTS.values()] * 6)
    sets = np.tile(expected.mean(0), (30, 1))
    assert found[PREVALENCE]["micro_f1"] == 0.0  # no label is in more than half of the rows
    assert found[PREVALENCE]["mean_average_precision"] == pytest.approx(
        average_precision_score(expected, sets, average="macro")
    )
    # each set is there six times, and the empty one is the first
    assert found[FREQUENT_SET]["micro_f1"] == 0.0
    assert found[BAG]["micro_f1"] == 1.0


TASK = """\
defaults:
  - format/several_labels@_here_
  - _self_
name: mine
title: Things
data:
  train_file: train.csv
  validation_file: dev.jsonl
  test_files: {dev: dev.jsonl}
  text_columns: [text]
  label_column: label
"""


def test_a_task_is_one_yaml(tmp_path: Path, save_encoder: Callable[..., None]) -> None:
    """From a csv to a model whose answers, and transformers', are those of the run."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "data"
    folder.mkdir()
    with (folder / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *ROWS * 8])
    write_rows(folder / "dev.jsonl", list(TEXTS.items()))
    run = finetune(tmp_path, TASK, save_encoder)
    scores = json.loads((run / "run.json").read_text())["scores"]
    units = {name: score["unit"] for name, score in scores.items()}
    assert units["validation/micro_f1"] == units["validation/mean_average_precision"] == "percent"
    records = records_of(run)
    gold = [TEXTS[text] for text in TEXTS]
    assert [record["label"] for record in records] == gold
    assert scores["validation/micro_f1"]["value"] > 0.5

    config = json.loads((run / "model/config.json").read_text())
    assert config["problem_type"] == "multi_label_classification"
    threshold = config["clozelab"]["answers"]["threshold"]
    predictor = load(run / "model", device="cpu", precision="32-true")
    answers = predictor.classify(list(TEXTS))
    expected_sets = []
    for answer, record in zip(answers, records, strict=True):
        expected = [name for name, share in answer.probabilities.items() if share > threshold]
        assert list(answer.labels) == expected
        expected_sets.append(", ".join(expected).replace(", ", ","))
        for name, share in record["probabilities"].items():
            assert answer.probabilities[name] == pytest.approx(share, abs=2e-5)
    lines = (run / "test_predictions/dev.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[1] for line in lines] == expected_sets

    other = transformers.AutoModelForSequenceClassification.from_pretrained(run / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "model")
    batch = tokenizer(list(TEXTS), padding=True, return_tensors="pt")
    labels = torch.tensor(MultiLabelBinarizer(classes=NAMES).fit_transform(gold)).float()
    with torch.no_grad():
        output = other(**batch, labels=labels)
    ours = torch.tensor([list(answer.probabilities.values()) for answer in answers])
    torch.testing.assert_close(output.logits.sigmoid(), ours, rtol=1e-4, atol=1e-5)
    loss = target().loss(output.logits, {"labels": labels})
    assert output.loss.item() == pytest.approx(loss.item() / len(TEXTS), rel=1e-6)

    # An evaluation takes the model's threshold, though another is best on the rows that it scores:
    # here every label is right.
    write_rows(folder / "more.jsonl", [(text, NAMES) for text in TEXTS])
    evaluated = evaluate(tmp_path, "measure.task.data.validation_file=more.jsonl")
    record = json.loads((evaluated / "run.json").read_text())
    assert record["scores"]["validation/threshold"]["value"] == threshold
    assert "the model's own" in json.dumps(record)
    again = records_of(evaluated)
    assert [record["prediction"] for record in again] == [list(one.labels) for one in answers]
    shares = np.array([list(record["probabilities"].values()) for record in again])
    logits = np.log(shares / (1 - shares)).astype(np.float32)
    tuned = target().evaluate(logits, split_of(np.ones((len(TEXTS), 3), np.float32)))
    assert tuned.scores["threshold"] < shares.min() < threshold
    assert 100 * tuned.scores["micro_f1"] > record["scores"]["validation/micro_f1"]["value"]


def test_a_model_that_is_read_back_answers_at_the_border_as_in_training() -> None:
    """All probabilities are one number, and the threshold stands just below it."""
    labels = np.array([[1, 1], [0, 0]] * 5, dtype=np.float32)
    logits = np.full((10, 2), -1.1, dtype=np.float32)
    split = split_of(labels)
    trained = SeveralClassesTarget(labels=["a", "b"]).with_classes(["a", "b"])
    chosen = trained.evaluate(logits, split)
    read_back = SeveralClassesTarget(labels=["a", "b"]).with_classes(["a", "b"])
    read_back.restore_config(trained.model_config_to_save(chosen.scores))
    again = read_back.evaluate(logits, split)
    assert again.scores["micro_f1"] == pytest.approx(f1_score(labels, labels >= 0, average="micro"))
