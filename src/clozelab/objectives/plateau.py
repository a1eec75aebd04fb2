"""The plateau that a masked model begins on: its loss there, and a rule of thumb (no law) for how long it lasts."""

from __future__ import annotations

SHORT_INSTANCES = 64
TOKENS_PER_ENTRY = {"short": 660, "long": 2300}
"""Tokens of training for each entry of the vocabulary before a model of BERT-Tiny's shape leaves its plateau: 5.4 M
tokens at 8,192 entries when it begins with short ones; without them it was still there after 19 M."""


def plateau_tokens(*, vocab_size: int, first_seq_length: int, is_causal: bool) -> float:
    """How many tokens a model trains on before it knows more than frequencies; 0 for left-to-right, which never waits.

    Args:
        vocab_size: of its vocabulary.
        first_seq_length: of the first phase, in tokens.
        is_causal: it predicts every token from those to its left.
    """
    if is_causal:
        return 0.0
    return float(TOKENS_PER_ENTRY["short" if first_seq_length <= SHORT_INSTANCES else "long"] * vocab_size)


def context_free_loss(unigram_entropy: float, same_fraction: float) -> float:
    """Nats a predicted token that no model without context gets below: it knows frequencies, and copies.

    What is left in place where it predicts is the answer, and to copy it takes no context; so a loss below the unigram
    entropy may be of copying alone. (A little below what can be reached: a token in place of another looks the same.)

    Args:
        unigram_entropy: in nats.
        same_fraction: of the predicted positions, those left in place; 0 for left to right.
    """
    return (1.0 - same_fraction) * unigram_entropy
