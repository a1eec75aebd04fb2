"""After how much text a pre-training leaves its first plateau."""

from __future__ import annotations

from pathlib import Path

from clozelab.models.locate import may_have_head
from clozelab.objectives.objective import Objective, plateau_tokens
from clozelab.schema import PretrainConfig

# MiniLM's fresh head on 0.5 MB of reviews: 6.39 nats after 36 k tokens and 5.81 after 72 k, where
# frequencies give 6.29
FRESH_HEAD_TOKENS = 75_000.0


def tokens_to_plateau(
    cfg: PretrainConfig, objective: Objective, vocab_size: int, first_seq_length: int
) -> float:
    """After how many tokens a pre-training knows more than frequencies, by rule of thumb.

    Muon (`matrix_learning_rate`) halves it. An encoder with given weights is past it, unless its
    head is fresh. `objective` is the last phase's.
    """
    if cfg.encoder is not None and not cfg.fresh_weights:
        token = objective.token
        if token.is_causal or not token.predicts_tokens:
            return 0.0
        return 0.0 if may_have_head(Path(cfg.encoder)) else FRESH_HEAD_TOKENS
    tokens = plateau_tokens(
        vocab_size=vocab_size,
        first_seq_length=first_seq_length,
        is_causal=objective.is_causal,
    )
    if cfg.optimizer.get("matrix_learning_rate"):
        return tokens / 2
    return tokens
