"""Numbers for words: read, trained on, scored and predicted, by one file and a YAML."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import mean_absolute_error
from tests.modules.training import evaluate
from tests.parts import WORDS, data_of
from tests.tasks.labelled_files import finetune, module_on, records_of

import clozelab
from clozelab.cli import main
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.datamodules.finetuning import FinetuningDataModule, TrainingBatches
from clozelab.datamodules.labelled import TaskInputs, TrainingPlan
from clozelab.metrics.glue import OF_NUMBERS
from clozelab.tasks.features import FeatureSequences
from clozelab.tasks.token_numbers import MEAN, WORD_MEANS, TokenNumberTarget
from clozelab.tasks.words import WordUnit, count_targets

SENTENCES = [
    [("the", "0.5"), ("cat", "3"), ("sat", "_")],
    [("a", "0.25"), ("Cat", "4")],
    [("dog", "_"), ("the", "_")],
]
HELD_OUT = [[("the", "1"), ("cat", "3"), ("dog", "2")], [("sat", "_"), ("a", "0.5")]]
TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, "the", "cat", "sat", "a", "dog"], lowercase=True)


def file_of(sentences: list[list[tuple[str, str]]]) -> str:
    return "\n\n".join("\n".join(map("\t".join, words)) for words in sentences) + "\n"


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., FinetuningDataModule]:
    """make(training sentences) -> the data module, read."""

    def build(sentences: Any = SENTENCES, validation: Any = HELD_OUT) -> FinetuningDataModule:
        (tmp_path / "train.tsv").write_text(file_of(sentences))
        (tmp_path / "dev.tsv").write_text(file_of(validation))
        settings = WORDS | {
            "document_context": False,
            "inputs": TaskInputs("toy", tmp_path, tmp_path / "cache", TOKENIZER, 16),
            "plan": TrainingPlan(2, 1.0, 1, None, 1, 0),
            "train_file": "train.tsv",
            "validation_file": "dev.tsv",
            "max_seq_length": 16,
        }
        data = data_of(WordUnit, TokenNumberTarget, settings)
        data.setup()
        return data

    return build


def test_small_numbers_keep_their_digits(make: Any) -> None:
    split = make().validation
    outputs = np.full(len(split.labels), 1.25e-7, dtype=np.float32)
    records = TokenNumberTarget().evaluate(outputs, split).records
    assert set(chain.from_iterable(record["prediction"] for record in records)) == {1.25e-7}


def test_another_cell_for_no_number_is_another_reading_of_the_file() -> None:
    """The labels of the usual one are not taken from the cache, and older runs stay known."""
    assert TokenNumberTarget(missing="0").reading() == {"missing": "0"}
    assert TokenNumberTarget().reading() == {}


def test_a_number_may_say_that_a_word_has_none() -> None:
    """YAML reads -1 as a number, and the cells of a file are texts."""
    target = TokenNumberTarget(missing=-1)  # type: ignore[arg-type]
    np.testing.assert_array_equal(target.encode(["0.5", "-1"]), [np.float32(0.5), np.nan])
    assert target.listed == ("-1",)
    assert target.reading() == TokenNumberTarget(missing="-1").reading()


def test_a_target_may_have_other_scores() -> None:
    class Errors(TokenNumberTarget):
        metrics = (OF_NUMBERS["mae"].metric,)

    numbers = np.array([1.0, 2.0])
    assert Errors()._score(numbers, numbers + 1) == {"mae": 1.0}


def test_numbers_come_from_the_column_and_a_word_may_have_none(make: Any) -> None:
    data = make()
    expected = [0.5, 3, np.nan, 0.25, 4, np.nan, np.nan]
    np.testing.assert_array_equal(data.train.labels, np.array(expected, np.float32))
    assert data.train.sequences.num_targets.tolist() == [2, 2, 0]
    batches = list(TrainingBatches(data, range(data.total_steps), 0, 1))
    assert sorted(batch["global_targets"] for batch in batches) in ([1, 4], [2, 2])
    preview = data.preview()
    assert preview.train.labels == ["0.5", "3", "0.25", "4"] and preview.predicts_numbers


def test_the_loss_and_the_scores_are_those_of_the_words_with_a_number(
    make: Any, tiny_module: Any
) -> None:
    data = make()
    module = module_on(data, tiny_module, "mae").eval()
    rows = data.train_sequences
    index = np.arange(3)
    from clozelab.tasks.batches import make_batch

    batch = make_batch(rows, index, {})
    logits = module.logits(batch)
    assert logits.shape == (7, 1)
    # One word after the other, in plain numbers.
    expected = 0.0
    for logit, label in zip(logits[:, 0].tolist(), batch["labels"].tolist(), strict=True):
        if not np.isnan(label):
            expected += (logit - label) ** 2
    assert module.loss(logits, batch).item() == pytest.approx(expected, rel=1e-5)
    module.loss(logits, batch).backward()
    assert module.classifier.weight.grad.isfinite().all()
    best = evaluate(module, data.val_dataloader())
    predicted, labels = [], []
    for record in best.predictions:
        for number, label in zip(record["prediction"], record["label"], strict=True):
            if label is not None:
                predicted.append(number)
                labels.append(label)
    assert labels == [1, 3, 2, 0.5]
    scores = best.scores
    assert scores["validation/mae"] == pytest.approx(
        mean_absolute_error(labels, predicted), abs=1e-5
    )
    rank = stats.spearmanr(predicted, labels).statistic
    assert scores["validation/spearman"] == pytest.approx(rank, abs=1e-6)


def test_the_simple_rules_are_means(make: Any) -> None:
    """Over all of training, and over the occurrences of a word, whatever its case."""
    data = make()
    mean = np.mean([0.5, 3, 0.25, 4])
    labels = [1, 3, 2, 0.5]
    found = data.compute_baselines()
    assert found[MEAN]["mae"] == pytest.approx(mean_absolute_error(labels, [mean] * 4))
    # the: 0.5; cat: the mean of 3 and 4; dog has none; a: 0.25
    own = [0.5, 3.5, mean, 0.25]
    assert found[WORD_MEANS]["mae"] == pytest.approx(mean_absolute_error(labels, own))
    rank = stats.spearmanr(own, labels).statistic
    assert found[WORD_MEANS]["spearman"] == pytest.approx(rank)


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ([[("a", "high")]], r"train.tsv:1: tag 'high' is not a number; this task predicts one"),
        ([[("a", "_")], [("the", "_")]], r"train.tsv: no word has a number"),
    ],
)
def test_what_is_no_number_is_refused(make: Any, sentences: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(sentences)


TASK = """\
defaults:
  - format/word_numbers@_here_
  - _self_
name: mine
title: Weights of words
data:
  train_file: train.tsv
  validation_file: dev.tsv
  test_files: {dev: dev.tsv}
"""


def test_a_task_is_one_yaml(tmp_path: Path, save_encoder: Callable[..., None]) -> None:
    """The lowest mean error is best; a model's numbers stand beside the words of a file."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.tsv").write_text(file_of(SENTENCES * 8))
    (tmp_path / "data/dev.tsv").write_text(file_of(HELD_OUT))
    folder = finetune(tmp_path, TASK, save_encoder, TOKENIZER)
    mae = json.loads((folder / "run.json").read_text())["scores"]["validation/mae"]
    assert (mae["unit"], mae["higher_is_better"]) == ("points", False)
    scores = json.loads((folder / "scores.json").read_text())
    history = [evaluation["validation/mae"] for evaluation in scores["evaluations"]]
    assert scores["scores"]["validation/mae"] == min(history) < history[0]
    lines = (folder / "test_predictions/dev.conll").read_text().splitlines()
    numbers = [float(line.split("\t")[2]) for line in lines if line]
    expected = list(chain.from_iterable(record["prediction"] for record in records_of(folder)))
    np.testing.assert_allclose(numbers, expected, rtol=1e-3, atol=1e-4)
    # The model by itself gives the same, of words and of a text, and so does its export.
    assert main(["export", str(folder), f"to={tmp_path / 'exported'}"]) == 0
    words = [list(dict(sentence)) for sentence in HELD_OUT]
    for texts, model in (words, folder), (list(map(" ".join, words)), tmp_path / "exported"):
        predictor = clozelab.load(model, precision="32-true")
        answered = chain.from_iterable(answer.words for answer in predictor.tag(texts))
        np.testing.assert_allclose([word.number for word in answered], expected, atol=1e-5)
    answer = predictor.tag("the cat")
    assert answer.words[1].text == answer.text[answer.words[1].start : answer.words[1].end] == "cat"


def test_words_without_a_number_are_no_targets() -> None:
    """Neither of a sequence of tokens nor of stored features: the loss is not a mean over them."""
    labels = np.array([1, np.nan, 2, np.nan, np.nan], dtype=np.float32)
    assert count_targets(labels, np.array([0, 3, 5])).tolist() == [2, 0]
    assert count_targets(np.arange(5), np.array([0, 3, 5])).tolist() == [3, 2]
    layers = [np.zeros((5, 4), dtype=np.float32)]
    stored = FeatureSequences(layers, np.array([0, 3, 5]), labels)
    assert stored.num_targets.tolist() == [2, 0]
