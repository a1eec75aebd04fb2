"""Arithmetic about an encoder: parameters and useful floating-point operations."""

from __future__ import annotations

from clozelab.models.config import BertConfig


def parameter_count(config: BertConfig) -> int:
    """Parameters of the encoder with pooler, without any pre-training or task head (as published sizes are given)."""
    hidden, inner = config.hidden_size, config.intermediate_size
    embeddings = (config.vocab_size + config.max_position_embeddings + config.type_vocab_size) * hidden + 2 * hidden
    attention = 4 * (hidden * hidden + hidden) + 2 * hidden
    feed_forward = hidden * inner + inner + inner * hidden + hidden + 2 * hidden
    pooler = hidden * hidden + hidden
    return embeddings + config.num_hidden_layers * (attention + feed_forward) + pooler


def training_flops_per_token(config: BertConfig, seq_length: int, predicted_fraction: float) -> float:
    """Useful floating-point operations of one training step per token: forward once, backward twice.

    3 (L (24 H^2 + 4 S H) + f (2 H^2 + 2 H V)) for an intermediate size of 4H; f = share of positions with a vocabulary
    projection. Matrix products only. A causal mask is not discounted, though half of its scores are thrown away.
    """
    hidden, vocab = config.hidden_size, config.vocab_size
    layer = 8 * hidden**2 + 4 * hidden * config.intermediate_size + 4 * seq_length * hidden
    head = 2 * hidden**2 + 2 * hidden * vocab
    return 3.0 * (config.num_hidden_layers * layer + predicted_fraction * head)
