"""Multiple choice: learns, scores each choice by itself, keeps an example's together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.modules.training import evaluate, train
from tests.parts import multiple_choice

from clozelab.modules.finetuning import FineTuning
from clozelab.tasks.batches import make_batch
from clozelab.tasks.sequences import GroupedSequences, TokenSequences, concatenate
from clozelab.tasks.texts import TextSplit

CLS = 2
SEP = 3
MARK = 5
K = 3


@pytest.fixture(scope="module")
def split() -> TextSplit:
    """48 examples of 3 choices, each of 3 to 9 tokens; the right one holds the marker."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, K, 48)
    rows = []
    for label in labels:
        for choice in range(K):
            text = rng.integers(10, 40, rng.integers(1, 8))
            if choice == label:
                text[rng.integers(0, len(text))] = MARK
            rows.append(np.concatenate([[CLS], text, [SEP]]).astype(np.int32))
    flat, offsets = concatenate(rows)
    token_sequences = TokenSequences(flat, offsets, np.diff(offsets).astype(np.int32))
    ids = np.array([str(i) for i in range(48)])
    return TextSplit(sequences=token_sequences, ids=ids, labels=labels)


@pytest.fixture
def module(split: TextSplit, tiny_module: Callable[..., Any]) -> FineTuning:
    return tiny_module(
        multiple_choice,
        num_choices=K,
        validation=split,
        metrics=["accuracy"],
        metric="validation/accuracy",
    )


def batch_of(split: TextSplit, index: np.ndarray) -> dict[str, Any]:
    return make_batch(GroupedSequences(split.sequences, K), index, {"labels": split.labels})


def test_overfits_and_keeps_its_answers(module: FineTuning, split: TextSplit) -> None:
    train(module, [batch_of(split, np.arange(48)[start::2]) for start in (0, 1)] * 30, rate=1e-3)
    parts = np.array_split(np.random.default_rng(1).permutation(48), 3)
    best = evaluate(module, [batch_of(split, index) for index in parts])
    assert best.scores["validation/accuracy"] > 0.95
    assert [row["label"] for row in best.predictions] == [str(label) for label in split.labels]
    assert len(best.predictions[0]["logits"]) == K
    assert module.classifier.weight.shape == (1, 32)
    assert module.baseline() == pytest.approx(np.bincount(split.labels).max() / 48)


def test_predictions_of_a_test_file(module: FineTuning, split: TextSplit) -> None:
    module.eval()
    parts = [
        module.predict_step(batch_of(split, index), 0)
        for index in np.array_split(np.arange(48)[::-1], 5)
    ]
    header, *lines = module.prediction_files("SWAG", split, parts)["SWAG.csv"]
    assert header == "index,label,ending0,ending1,ending2"
    rows = [line.split(",") for line in lines]
    expected = module.logits(batch_of(split, np.arange(48))).softmax(1).detach().numpy()
    assert [row[0] for row in rows] == list(split.ids)
    numbers = [[*map(float, row[2:])] for row in rows]
    np.testing.assert_allclose(numbers, expected, atol=1e-5)
    assert [int(row[1]) for row in rows] == expected.argmax(1).tolist()


def test_a_choice_is_scored_by_itself(module: FineTuning, split: TextSplit) -> None:
    module.eval()
    together = module.logits(batch_of(split, np.arange(6)))
    assert together.shape == (6, K)
    for example in range(6):
        for choice in range(K):
            alone = make_batch(split.sequences, np.array([example * K + choice]), {})
            score = module.classifier(module.encoder.pool(module.encode(alone), alone["layout"]))
            torch.testing.assert_close(score[0, 0], together[example, choice], atol=1e-5, rtol=1e-5)
