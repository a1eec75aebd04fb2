"""Token classification: learns from context, scores words once and whole entities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.modules.training import evaluate, train
from tests.parts import tagging

from clozelab.tasks.batches import make_batch
from clozelab.tasks.sequences import TokenSequences, concatenate
from clozelab.tasks.words import TaggedSequences, WordSplit

NAMES = ["O", "B-X", "I-X"]
CLS = 2
SEP = 3
OPEN = 5


@pytest.fixture(scope="module")
def split() -> WordSplit:
    """40 sentences of words of 1 or 2 tokens; after the marker word come two words of an entity.

    Every row has a neighbour's marker on both sides that must not be scored.
    """
    rng = np.random.default_rng(0)
    rows = []
    positions = []
    labels = []
    counts = []
    for _ in range(40):
        words = []
        for _ in range(rng.integers(4, 8)):
            words.append(rng.integers(10, 40, rng.integers(1, 3)).tolist())
        place = int(rng.integers(0, len(words) - 2))
        words[place] = [OPEN]
        tags = [0] * len(words)
        tags[place + 1 : place + 3] = [1, 2]
        ids = [CLS, 11, OPEN]
        at = []
        for word in words:
            at.append(len(ids))
            ids += word
        rows.append(np.array([*ids, OPEN, SEP], dtype=np.int32))
        positions.append(np.array(at, dtype=np.int32))
        labels += tags
        counts.append(len(words))
    flat, offsets = concatenate(rows)
    token_sequences = TokenSequences(flat, offsets, np.diff(offsets).astype(np.int32))
    word_offsets = np.concatenate([[0], np.cumsum(counts)])
    tagged = TaggedSequences(
        token_sequences, word_offsets, concatenate(positions)[0], np.array(labels)
    )
    texts = [f"w{i}" for i in range(len(labels))]
    ids_ = np.array([str(i) for i in range(40)])
    return WordSplit(
        sequences=tagged,
        ids=ids_,
        labels=np.array(labels),
        sentence_offsets=word_offsets,
        words=texts,
        key="key",
    )


def parts(rows: Any) -> list[Any]:
    """Three batches of all rows, shuffled."""
    order = np.random.default_rng(1).permutation(len(rows))
    return [make_batch(rows, index, {}) for index in np.array_split(order, 3)]


@pytest.mark.parametrize("head", ["linear", "bilstm"])
def test_learns_entities(split: WordSplit, tiny_module: Callable[..., Any], head: str) -> None:
    module = tiny_module(tagging, names=NAMES, head=head, validation=split, metric="validation/f1")
    whole = make_batch(split.sequences, np.arange(40), {})
    train(module, [whole] * 60, rate=2e-3)
    best = evaluate(module, parts(split.sequences))
    assert best.scores["validation/f1"] > 0.95
    assert list(best.scores) == [
        f"validation/{key}" for key in ("f1", "precision", "recall", "accuracy")
    ]
    assert not best.is_collapsed
    row = best.predictions[3]
    a, b = split.sentence_offsets[3:5]
    assert row["words"] == split.words[a:b]
    assert row["label"] == [NAMES[label] for label in split.labels[a:b]]
    assert len(row["prediction"]) == b - a
    assert module.baseline() == 0.0


def test_scored_words_see_their_neighbours(
    split: WordSplit, tiny_module: Callable[..., Any]
) -> None:
    """A context token changes the logits of the sentence's words, and gets none of its own."""
    module = tiny_module(tagging, names=NAMES, validation=split, metric="validation/f1").eval()
    batch = make_batch(split.sequences, np.array([0]), {})
    before = module.logits(batch)
    assert len(before) == split.sequences.num_targets[0] < len(batch["input_ids"]) - 4
    for neighbour in (1, len(batch["input_ids"]) - 2):
        changed = batch | {"input_ids": batch["input_ids"].clone()}
        changed["input_ids"][neighbour] = 30
        assert (module.logits(changed) - before).abs().max(1).values.min() > 1e-6


def test_collapse_and_parts_of_speech(split: WordSplit, tiny_module: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="is not a score of this task; it has validation/f1"):
        tiny_module(tagging, names=NAMES, validation=split, metric="validation/loss")
    module = tiny_module(tagging, names=NAMES, validation=split, metric="validation/accuracy")
    with torch.no_grad():
        module.classifier.bias.copy_(torch.tensor([9.0, 0.0, 0.0]))
    best = evaluate(module, parts(split.sequences))
    assert best.is_collapsed
    assert best.scores["validation/f1"] == 0.0
    assert best.scores["validation/accuracy"] == module.baseline()
