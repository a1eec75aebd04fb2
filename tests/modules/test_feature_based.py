"""Feature-based tagging: never calls the encoder, and its six choices all train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.modules.training import evaluate, train
from tests.parts import feature_tagging

from clozelab.models.heads import FEATURES, feature_layers
from clozelab.tasks.batches import make_batch
from clozelab.tasks.features import FeatureSequences
from clozelab.tasks.sequences import TokenSequences
from clozelab.tasks.words import TaggedSequences, WordSplit

LAYERS = 4
HIDDEN = 32


@pytest.fixture(scope="module")
def split() -> WordSplit:
    """30 sentences of random tags; only what the features say of a word matters here."""
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 7, 30))])
    labels = rng.integers(0, 3, offsets[-1])
    words = [f"w{i}" for i in range(len(labels))]
    rows = TaggedSequences(
        TokenSequences(np.zeros(0, np.int32), offsets, np.zeros(30, np.int32)),
        offsets,
        labels,
        labels,
    )
    ids = np.array([str(i) for i in range(30)])
    return WordSplit(
        sequences=rows, ids=ids, labels=labels, sentence_offsets=offsets, words=words, key="key"
    )


def feature_sequences(split: WordSplit, features: str) -> FeatureSequences:
    """Every layer says the next word's tag, with noise; a BiLSTM can bring it back."""
    rng = np.random.default_rng(1)
    layers = []
    for _ in feature_layers(features, LAYERS):
        layer = rng.normal(0, 0.1, (len(split.labels), HIDDEN)).astype(np.float32)
        for a, b in zip(split.sentence_offsets, split.sentence_offsets[1:], strict=False):
            layer[np.arange(a, b), np.roll(split.labels[a:b], -1)] += 1
        layers.append(layer)
    return FeatureSequences(layers, split.sentence_offsets, split.labels)


@pytest.mark.parametrize("features", FEATURES)
def test_learns_without_the_encoder(
    split: WordSplit, tiny_module: Callable[..., Any], features: str
) -> None:
    module = tiny_module(
        feature_tagging,
        names=["A", "B", "C"],
        encoder={"num_hidden_layers": LAYERS},
        head="bilstm",
        features=features,
        validation=split,
        metric="validation/accuracy",
        bilstm_num_layers=2,
        bilstm_hidden_size=24,
    )
    module.encoder.forward = None  # would fail
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert trained and not any(name.startswith("encoder.") for name in trained)
    assert ("feature_mix.layer_weights" in trained) == features.startswith("weighted_sum")
    rows = feature_sequences(split, features)
    train(module, [make_batch(rows, np.arange(30), {})] * 40, rate=1e-2)
    parts = [make_batch(rows, index, {}) for index in np.array_split(np.arange(30), 4)]
    assert evaluate(module, parts).scores["validation/accuracy"] > 0.95


def test_a_linear_head_is_refused(split: WordSplit, tiny_module: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="set head=bilstm"):
        tiny_module(
            feature_tagging,
            names=["A", "B", "C"],
            features="last",
            validation=split,
            metric="validation/accuracy",
        )
