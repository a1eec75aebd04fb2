"""Sequence classification: learns, pools, keeps the best, says when it collapsed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.modules.training import evaluate, train
from tests.parts import classification

from clozelab.modules.finetuning import FineTuning
from clozelab.tasks.batches import make_batch
from clozelab.tasks.sequences import TokenSequences, concatenate, join_sequences
from clozelab.tasks.texts import TextSplit

VOCAB_SIZE = 40
NAMES = ["no", "yes", "maybe"]
CLS = 2
SEP = 3


@pytest.fixture(scope="module")
def split() -> TextSplit:
    """64 rows of 3 to 12 tokens; the class is which of three markers stands inside."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 64)
    rows = []
    for label in labels:
        text = rng.integers(10, VOCAB_SIZE, rng.integers(1, 11))
        text[rng.integers(0, len(text))] = 5 + label
        rows.append(np.concatenate([[CLS], text, [SEP]]).astype(np.int32))
    flat, offsets = concatenate(rows)
    token_sequences = TokenSequences(flat, offsets, np.diff(offsets).astype(np.int32))
    ids = np.array([f"e{i}" for i in range(64)])
    return TextSplit(sequences=token_sequences, ids=ids, labels=labels)


@pytest.fixture
def make(split: TextSplit, tiny_module: Callable[..., Any]) -> Callable[..., FineTuning]:
    """make(head, encoder, changes) -> a module with a stand-in trainer at step 7."""

    def build(head: str = "linear", encoder: Any = None, **changes: Any) -> FineTuning:
        settings = {
            "metrics": ["accuracy", "matthews"],
            "metric": "validation/accuracy",
            "number_range": None,
        }
        settings |= {"validation": split, "head": head, "names": NAMES}
        return tiny_module(classification, encoder, **(settings | changes))

    return build


def steps(split: TextSplit, number: int) -> Iterator[Any]:
    """Batches of every other row, in turn."""
    for step in range(number):
        yield make_batch(split.sequences, np.arange(64)[step % 2 :: 2], {"labels": split.labels})


def parts(rows: Any) -> list[Any]:
    """Three batches of all rows, shuffled."""
    order = np.random.default_rng(1).permutation(len(rows))
    return [make_batch(rows, index, {}) for index in np.array_split(order, 3)]


def test_a_bilstm_learns(make: Any, split: TextSplit) -> None:
    module = make("bilstm", {"is_causal": True})
    train(module, steps(split, 120))
    best = evaluate(module, parts(split.sequences))
    assert best.scores["validation/accuracy"] > 0.95
    assert not best.is_collapsed


def test_logits_do_not_depend_on_the_company(make: Any, split: TextSplit) -> None:
    for head in ("linear", "bilstm"):
        module = make(head=head).eval()
        together = module.logits(make_batch(split.sequences, np.arange(10), {}))
        for i in range(10):
            alone = module.logits(make_batch(split.sequences, np.array([i]), {}))
            torch.testing.assert_close(together[i : i + 1], alone, atol=1e-5, rtol=1e-5)


def test_predictions_are_kept_in_file_order(make: Any, split: TextSplit) -> None:
    module = make()
    best = evaluate(module, parts(split.sequences))
    assert [row["id"] for row in best.predictions] == [f"e{i}" for i in range(64)]
    assert [row["label"] for row in best.predictions] == [NAMES[i] for i in split.labels]
    for row in best.predictions:
        assert row["prediction"] == NAMES[int(np.argmax(row["logits"]))]
    accuracy = np.mean([row["prediction"] == row["label"] for row in best.predictions])
    assert best.scores["validation/accuracy"] == accuracy
    assert best.step == 7


def test_first_best_evaluation_wins_with_its_weights(make: Any, split: TextSplit) -> None:
    module = make()
    train(module, steps(split, 60))
    good = evaluate(module, parts(split.sequences))
    with torch.no_grad():
        module.classifier.weight.zero_()
        module.classifier.bias.copy_(torch.tensor([0.0, 0.0, 5.0]))
    evaluate(module, parts(split.sequences))
    assert module.require_best() is good
    assert len(module.history) == 2
    module.restore_best()
    assert module.classifier.weight.abs().sum() > 0


def test_collapsed_run_is_recognised(make: Any, split: TextSplit) -> None:
    module = make()
    with torch.no_grad():
        module.classifier.weight.zero_()
        module.classifier.bias.copy_(torch.tensor([0.0, 0.0, 5.0]))
    best = evaluate(module, parts(split.sequences))
    assert best.is_collapsed
    assert best.scores["validation/matthews"] == 0.0
    assert module.baseline() == np.bincount(split.labels).max() / 64


@pytest.mark.parametrize(("others", "is_collapsed"), [(0, True), (1, True), (3, True), (4, False)])
def test_nearly_one_answer_is_recognised(
    make: Any, split: TextSplit, others: int, is_collapsed: bool
) -> None:
    """Of 64 examples with three classes, 61 are 95 %."""
    module = make()
    logits = torch.zeros(64, 3)
    logits[:, 2] = 1.0
    logits[:others, 0] = 2.0
    found = module.evaluate([module.outputs(logits, {"example_index": torch.arange(64)})])
    assert [one["prediction"] for one in found.predictions].count(NAMES[2]) == 64 - others
    assert found.is_collapsed is is_collapsed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "validation/f1"}, "'validation/f1' is not a score of this task; it has valid"),
        ({"metrics": ["accuracy", "f1"]}, "name it by task.data.positive_label="),
    ],
)
def test_bad_settings(make: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_further_validation_sets_have_scores_of_their_own(make: Any, split: TextSplit) -> None:
    flipped = replace(split, labels=(split.labels + 1) % 3)
    module = make(
        validation=replace(split, extra={"other": flipped}), metric="validation/other_accuracy"
    )
    rows = join_sequences([split.sequences, flipped.sequences])
    best = evaluate(module, parts(rows))
    predicted = np.array([NAMES.index(row["prediction"]) for row in best.predictions])
    assert best.scores["validation/accuracy"] == np.mean(predicted == split.labels)
    assert best.scores["validation/other_accuracy"] == np.mean(predicted == flipped.labels)
    assert {row["id"] for row in best.extra_predictions["other"]} == set(split.ids)


def test_regression(make: Any, split: TextSplit) -> None:
    numbers = replace(split, labels=split.labels.astype(np.float32) * 2)
    changes = {
        "metrics": ["spearman", "pearson"],
        "metric": "validation/spearman",
        "number_range": [0, 3],
    }
    module = make(validation=numbers, names=(), **changes)
    train(module, steps(numbers, 150))
    best = evaluate(module, parts(numbers.sequences))
    assert best.scores["validation/spearman"] > 0.85 and not best.is_collapsed
    assert module.baseline() is None and module.classifier.weight.shape[0] == 1
    part = module.predict_step(make_batch(numbers.sequences, np.arange(64), {}), 0)
    lines = list(module.prediction_files("STS", numbers, [part])["STS.tsv"])
    assert len(lines) == 65 and all(0 <= float(line.split("\t")[1]) <= 3 for line in lines[1:])
    with pytest.raises(ValueError, match="do not fit a task that predicts a number"):
        make(validation=numbers, names=())


def test_predictions_are_label_names_in_order(make: Any, split: TextSplit) -> None:
    module = make().eval()
    chunks = np.array_split(np.arange(64)[::-1], 3)
    parts = [module.predict_step(make_batch(split.sequences, index, {}), 0) for index in chunks]
    together = module.logits(make_batch(split.sequences, np.arange(64), {})).argmax(1)
    expected = [f"{key}\t{NAMES[i]}" for key, i in zip(split.ids, together, strict=True)]
    assert list(module.prediction_files("Toy", split, parts)["Toy.tsv"]) == [
        "index\tprediction",
        *expected,
    ]
    with pytest.raises(AssertionError, match="each one is scored exactly once"):
        module.prediction_files("Toy", split, parts[:2])


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_windows_of_a_text_give_one_prediction(make: Any, split: TextSplit, pooling: str) -> None:
    """64 rows are the windows of 24 texts, whose logits are pooled text by text."""
    counts = np.random.default_rng(0).permutation([1] * 8 + [2] * 4 + [4] * 12)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    texts = replace(
        split, ids=split.ids[:24], labels=split.labels[:24], window_offsets=offsets, pooling=pooling
    )
    module = make(validation=texts).eval()
    logits = module.logits(make_batch(split.sequences, np.arange(64), {})).detach().numpy()
    expected = np.stack(
        [getattr(logits[a:b], pooling)(axis=0) for a, b in itertools.pairwise(offsets)]
    )
    best = evaluate(module, parts(split.sequences))
    np.testing.assert_allclose([row["logits"] for row in best.predictions], expected, atol=1e-4)
    assert [row["label"] for row in best.predictions] == [NAMES[i] for i in split.labels[:24]]
    assert best.scores["validation/accuracy"] == np.mean(expected.argmax(1) == split.labels[:24])
    part = module.predict_step(make_batch(split.sequences, np.arange(64), {}), 0)
    lines = list(module.prediction_files("Toy", texts, [part])["Toy.tsv"])
    assert [line.split("\t")[1] for line in lines[1:]] == [NAMES[i] for i in expected.argmax(1)]
    assert texts.input_labels.tolist() == np.repeat(split.labels[:24], counts).tolist()


@pytest.mark.parametrize(
    ("family", "head", "reads_pooler", "output"),
    [
        ({}, "linear", True, "SequenceClassificationHead"),
        ({}, "bilstm", False, "SequenceClassificationHead"),
        ({"model_type": "roberta"}, "linear", False, "DenseClassificationHead"),
        ({"model_type": "roberta"}, "bilstm", False, "SequenceClassificationHead"),
        ({"model_type": "electra", "pooler": None}, "linear", False, "DenseClassificationHead"),
    ],
)
def test_each_family_has_its_own_output_layer(
    make: Any,
    split: TextSplit,
    family: dict[str, Any],
    head: str,
    reads_pooler: bool,
    output: str,
) -> None:
    """And what is trained gets a gradient, all of it: DDP would wait for the rest."""
    module = make(head, family)
    assert type(module.classifier).__name__ == output
    assert all(
        parameter.requires_grad is reads_pooler for parameter in module.encoder.pooler.parameters()
    )
    batch = make_batch(split.sequences, np.arange(8), {"labels": split.labels})
    module.loss(module.logits(batch), batch).backward()
    assert [
        name
        for name, value in module.named_parameters()
        if value.requires_grad and value.grad is None
    ] == []
