"""Feature-based tagging trains what stands behind the encoder, which it never calls."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.modules.training import train
from tests.parts import feature_tagging

from clozelab.models.heads import FEATURES, feature_layers
from clozelab.tasks.batches import make_batch
from clozelab.tasks.features import FeatureSequences

LAYERS = 4


@pytest.mark.parametrize("features", FEATURES)
def test_learns_without_the_encoder(tiny_module: Callable[..., Any], features: str) -> None:
    module = tiny_module(
        feature_tagging,
        names=["A", "B", "C"],
        encoder={"num_hidden_layers": LAYERS},
        head="bilstm",
        features=features,
        validation=SimpleNamespace(extra={}),
        metric="validation/accuracy",
        bilstm_num_layers=2,
        bilstm_hidden_size=24,
    )
    module.encoder.forward = None  # would fail
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    assert trained and not any(name.startswith("encoder.") for name in trained)
    assert ("feature_mix.layer_weights" in trained) == features.startswith("weighted_sum")
    rng = np.random.default_rng(0)
    offsets = np.array([0, 3, 4, 9])
    layers = []
    for _ in feature_layers(features, LAYERS):
        layers.append(rng.normal(size=(9, 32)).astype(np.float32))
    rows = FeatureSequences(layers, offsets, rng.integers(0, 3, 9))
    losses = train(module, [make_batch(rows, np.arange(3), {})] * 30, rate=1e-2)
    assert losses[-1] < 0.2 * losses[0]
