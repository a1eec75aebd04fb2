"""What is trained on both sides of the benchmarks: the sizes, clozelab's encoder and optimizer, and
a step.

torch is imported late: a worker sets its allocator first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

VOCAB_SIZE = 30_522
SHAPES = {
    "smoke": (1, 128),
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}
"""(layers, hidden size); "smoke" only shows that the code works."""


def shape(size: str) -> dict[str, Any]:
    """Keywords of a model configuration, the same in clozelab and transformers."""
    layers, hidden = SHAPES[size]
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
    }


def size_name(size: str) -> str:
    """As the tables call it."""
    layers, hidden = SHAPES[size]
    return f"L{layers} H{hidden}"


def clozelab_config(size: str, *, dropout: float = 0.1, vocab_size: int = VOCAB_SIZE) -> Any:
    """The configuration of an encoder, by default with BERT's own dropout and vocabulary."""
    from clozelab.models.config import EncoderConfig

    return EncoderConfig(
        vocab_size=vocab_size,
        hidden_act="gelu",
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        max_position_embeddings=512,
        type_vocab_size=2,
        initializer_range=0.02,
        layer_norm_eps=1e-12,
        position_embedding_init="normal",
        **shape(size),
    )


def clozelab_encoder(size: str) -> Any:
    """A fresh encoder of that configuration."""
    from clozelab.models.encoder import Encoder

    return Encoder(clozelab_config(size))


def pairs_objective() -> Any:
    """Masked tokens and next sentences, as in BERT."""
    from clozelab.corpus.instances import SegmentPairs
    from clozelab.objectives.mlm import MaskedLanguageModel
    from clozelab.objectives.nsp import NextSentencePrediction
    from clozelab.objectives.objective import Objective

    masking: dict[str, Any] = {"mask_fraction": 0.8, "random_fraction": 0.1, "same_fraction": 0.1}
    return Objective(
        input=SegmentPairs(random_next_prob=0.5, negative_scope="corpus"),
        token=MaskedLanguageModel(predict_prob=0.15, weight=1.0, **masking),
        pair=NextSentencePrediction(weight=1.0),
    )


def random_shards(
    generator: Any, num_sentences: Any, num_words: Any, vocab_size: int, first_word: int = 1000
) -> Any:
    """A corpus of random words in memory: sentences of each document, words of each sentence."""
    import numpy as np

    from clozelab.corpus.shards import TokenShards, TokenStream

    return TokenShards(
        tokens=TokenStream([generator.integers(first_word, vocab_size, num_words.sum())]),
        sentence_offsets=np.append(0, np.cumsum(num_words)),
        document_offsets=np.append(0, np.cumsum(num_sentences)),
        document_source=np.zeros(len(num_sentences), dtype=np.uint8),
        source_names=("random",),
        vocab_size=vocab_size,
        unigram_entropy=0.0,
        fingerprint="",
    )


def clozelab_optimizer(
    named_parameters: Any, learning_rate: float = 1e-4, matrix_learning_rate: float | None = None
) -> Any:
    from clozelab.optim.adamw import build_adamw

    return build_adamw(
        named_parameters,
        learning_rate=learning_rate,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0.01,
        bias_correction=True,
        matrix_learning_rate=matrix_learning_rate,
    )


def clozelab_precision() -> bool:
    """Whether `precision=auto` takes bf16 on this CPU; else fp32 is set up as clozelab does."""
    from clozelab.training.runtime import choose_precision, use_onednn_fp32

    is_bf16 = choose_precision("auto", "cpu") == "bf16-mixed"
    if not is_bf16:
        use_onednn_fp32()
    return is_bf16


def finish_step(loss: Any, model: Any, optimizer: Any) -> Any:
    """Backward, clip, update; the loss, detached and still on its device."""
    from torch.nn.utils import clip_grad_norm_

    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def training_step(loss: Callable[[], Any], model: Any, optimizer: Any, is_bf16: bool) -> float:
    """Forward, backward, clip, update on the CPU; the loss."""
    import torch

    with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
        value = loss()
    return float(finish_step(value, model, optimizer))


def peer_step(
    loss: Callable[[], Any], model: Any, is_bf16: bool, compiles: bool
) -> Callable[[], float]:
    """One step of a peer in the shortest loop; compiled ones have had two steps."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    step = partial(training_step, loss, model, optimizer, is_bf16)
    for _ in range(2 if compiles else 0):
        step()
    return step
