"""Arithmetic about an encoder: parameters and useful floating-point operations."""

from __future__ import annotations

from clozelab.models.config import EncoderConfig


def parameter_count(config: EncoderConfig) -> int:
    """Parameters of the encoder with pooler, without any pre-training or task head (as published sizes are given)."""
    hidden, inner = config.hidden_size, config.intermediate_size
    embeddings = (config.vocab_size + config.max_position_embeddings + config.type_vocab_size) * hidden + 2 * hidden
    attention = 4 * (hidden * hidden + hidden) + 2 * hidden
    feed_forward = hidden * inner + inner + inner * hidden + hidden + 2 * hidden
    pooler = hidden * hidden + hidden
    return embeddings + config.num_hidden_layers * (attention + feed_forward) + pooler


def training_flops_per_token(config: EncoderConfig, seq_length: int, predicted_fraction: float) -> float:
    """Useful floating-point operations of one training step per token: forward once, backward twice.

    3 (L (24 H^2 + 4 S H) + f (2 H^2 + 2 H V)) for an intermediate size of 4H; f = share of positions with a vocabulary
    projection. Matrix products only. A causal mask is not discounted, though half of its scores are thrown away.
    """
    hidden, vocab = config.hidden_size, config.vocab_size
    layer = 8 * hidden**2 + 4 * hidden * config.intermediate_size + 4 * seq_length * hidden
    head = 2 * hidden**2 + 2 * hidden * vocab
    return 3.0 * (config.num_hidden_layers * layer + predicted_fraction * head)


def electra_flops_per_token(config: EncoderConfig, seq_length: int, predicted_fraction: float) -> float:
    """The same step by the convention of Clark et al. 2020 (ELECTRA), for comparison with figures published under it.

    It counts the backward pass as one forward instead of two, elementwise operations too (5 for a softmax entry, 4 for
    dropout, 8 for an activation, 5 for layer normalisation), and the embedding look-up as if it were a product with the
    vocabulary. ELECTRA's figure for BERT-Base, 6.43e19, takes every step at 512 tokens.
    """
    hidden, inner, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    products = 8 * hidden**2 + 4 * hidden * inner + 4 * seq_length * hidden
    attention_entries = (5 + 4 + 1) * config.num_attention_heads * seq_length
    elementwise = (3 + 6 + 5 + 11) * hidden + 9 * inner
    layers = config.num_hidden_layers * (products + attention_entries + elementwise)
    look_up = 2 * hidden * vocab + 2 * hidden * (seq_length + 2) + 11 * hidden
    output = 2 * hidden * vocab + 2 * hidden**2 + 14 * hidden + 7 * vocab
    return 2.0 * (layers + look_up + predicted_fraction * output)
