"""Tests of clozelab.models.config."""

from __future__ import annotations

import pytest

from clozelab.models.config import family_of


def test_hf_round_trip(tiny_config):
    for config in (
        tiny_config(),
        tiny_config(is_causal=True, position_embedding_init="sinusoidal"),
    ):
        assert config.family.from_hf(config.family.to_hf(config)) == config
    assert family_of("bert").to_hf(tiny_config(is_causal=True))["is_decoder"] is True


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"hidden_size": 25}, "num_attention_heads"),
        ({"hidden_act": "swish"}, "hidden_act"),
        ({"position_embedding_init": "rotary"}, "position_embedding_init"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 1.0}, "num_hidden_layers is 1.0; it must be a whole number"),
        ({"vocab_size": "16"}, "vocab_size is '16'; it must be a whole number"),
        ({"num_attention_heads": True}, "num_attention_heads is True"),
        ({"layer_norm_eps": "1e-12"}, "layer_norm_eps is '1e-12'; it must be a number"),
        ({"initializer_range": 0.0}, "initializer_range"),
    ],
)
def test_impossible_values_are_refused(tiny_config, changes, word):
    with pytest.raises(ValueError, match=word):
        tiny_config(**changes)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"add_cross_attention": True}, "cross-attention"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_foreign_configs_are_refused(tiny_config, changes, word):
    with pytest.raises(ValueError, match=word):
        family_of("bert").from_hf({**family_of("bert").to_hf(tiny_config()), **changes})
