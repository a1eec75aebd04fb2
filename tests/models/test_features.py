"""The six feature choices of table 7: which layers, and how they become one vector."""

from __future__ import annotations

import pytest
import torch

from clozelab.models.heads import FEATURES, FeatureMix, feature_layers


def test_layers_of_bert_base() -> None:
    assert {name: feature_layers(name, 12) for name in FEATURES} == {
        "embeddings": [0],
        "second_to_last": [11],
        "last": [12],
        "weighted_sum_last_four": [9, 10, 11, 12],
        "concat_last_four": [9, 10, 11, 12],
        "weighted_sum_all": list(range(1, 13)),
    }


def test_mixes() -> None:
    x = torch.randn(3, 4, 5)
    assert torch.equal(FeatureMix("concat_last_four", 6, 5)(x), x.reshape(3, 20))
    mix = FeatureMix("weighted_sum_last_four", 6, 5)
    torch.testing.assert_close(mix(x), x.mean(1))  # a fresh mix is the mean
    with torch.no_grad():
        mix.layer_weights[2], mix.scale[0] = 50.0, 2.0  # type: ignore[index]
    torch.testing.assert_close(mix(x), 2 * x[:, 2])
    assert torch.equal(FeatureMix("last", 6, 5)(x[:, :1]), x[:, 0])
    assert [FeatureMix(name, 6, 5).output_size for name in FEATURES] == [5, 5, 5, 5, 20, 5]


@pytest.mark.parametrize(
    ("features", "num_layers", "reason"),
    [
        ("concat_last_four", 3, "features=concat_last_four needs more layers than this encoder"),
        ("second_to_last", 1, "features=second_to_last needs more layers than this encoder's 1"),
        ("all", 12, "features=all: choose one of embeddings"),
    ],
)
def test_layers_that_are_not_there_are_refused(features: str, num_layers: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        feature_layers(features, num_layers)
