"""Tests of clozelab.models.config."""

from __future__ import annotations

from clozelab.models.registry import family_for, family_of


def test_hf_round_trip(tiny_config):
    for config in (
        tiny_config(),
        tiny_config(is_causal=True, position_embedding_init="sinusoidal"),
    ):
        family = family_for(config)
        assert family.from_hf_config(family.to_hf_config(config)) == config
    assert family_of("bert").to_hf_config(tiny_config(is_causal=True))["is_decoder"] is True
