"""Tests of clozelab.models.config."""

from __future__ import annotations

import re
from typing import Any

import pytest

from clozelab.models.encoder import Encoder

E = "clozelab.models.embeddings"
A = "clozelab.models.attention"


@pytest.mark.parametrize(
    ("changes", "reason"),
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
        ({"num_hidden_groups": 3}, "num_hidden_groups is 3"),
        ({"positions": {"_target_": "os.system"}}, "architecture.positions"),
        ({"positions": {"_target_": "os.system"}}, "below clozelab.models"),
        ({"block": {}}, "architecture.block"),
        ({"positions": {"_target_": f"{E}.Absolute"}}, "there is no part"),
        ({"attention": {"_target_": f"{A}.LocalAttention", "window": 0}}, "window 0 must be at le"),
        ({"positions": {"_target_": f"{E}.RotaryPositions"}, "hidden_size": 15}, "heads have 5"),
    ],
)
def test_impossible_values_are_refused(
    tiny_config: Any, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        Encoder(tiny_config(**changes))
