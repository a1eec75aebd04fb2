"""What a model costs: parameters, and the floating-point operations of a training step.

Both are read off the modules of an encoder on the meta device, where nothing has memory: so shared
layers count once as parameters and every time as work, and a gate or a second encoder is counted
without a line here. What attention multiplies beside the matrices, masks (`num_keys`) and
positions (`score_flops`) say.

Matrix products only, forward once and backward twice. A causal mask is not discounted, though half
of its scores are thrown away; nor are slots that the last layer leaves out on a CPU, since nobody
reads their states. So a count is the same on all machines. Heads on one state a sequence (next
sentence, classification) are below a thousandth, and left out.

Unusual: torch.utils.flop_counter gives the same figures (tests/models/test_cost.py), but runs a
forward, on the meta device by torch's kernels in Python, whose import takes seconds.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from clozelab.models.config import EncoderConfig
from clozelab.models.heads import VocabularyHead
from clozelab.models.registry import family_for

if TYPE_CHECKING:
    from clozelab.models.encoder import Encoder

# Matrices that a token alone does not pass through: one is multiplied once a batch, the other one
# where tokens see everything.
LEFT_OUT = frozenset({"distance", "qkv_global"})


def training_flops_per_token(
    config: EncoderConfig,
    seq_length: int,
    predicted_fraction: float,
    heads: tuple[str, ...] = ("lm",),
) -> float:
    """Of one training step of an encoder, without padding.

    `lm` and `sbo` read `predicted_fraction` of the tokens, `rtd` all. A second encoder (a
    generator, a teacher) is counted by a call of its own.
    """
    shares = {"lm": predicted_fraction, "sbo": predicted_fraction, "rtd": 1.0}
    head_flops = sum(shares[kind] * _head_flops(config, kind) for kind in heads if kind in shares)
    return 3.0 * (_encoder_flops(config, seq_length) + head_flops)


def frozen_flops_per_token(config: EncoderConfig, seq_length: int, frozen: frozenset[str]) -> float:
    """What a training step leaves out where some of the encoder's weights are frozen.

    `frozen`: names of the encoder's parameters.
    """
    return config.num_directions * sum(map(sum, frozen_flops_of_parts(config, seq_length, frozen)))


@lru_cache(maxsize=4096)
def frozen_flops_of_parts(
    config: EncoderConfig, seq_length: int, frozen: frozenset[str]
) -> Sequence[tuple[float, float]]:
    """The same of each part that a token passes through in turn: of its weights, of its inputs.

    A frozen matrix has no gradient, and nothing below the lowest layer that trains something has
    one: that layer is counted whole.
    """
    encoder = _on_meta(config)
    trained = {id(value) for name, value in encoder.named_parameters() if name not in frozen}
    passes_gradient = not trained.isdisjoint(map(id, encoder.embeddings.parameters()))
    flops = []
    for module, attended in _parts(encoder, seq_length):
        entries = _matrix_entries(module)
        of_weights = 2.0 * (entries - _matrix_entries(module, trained))
        passes_gradient |= not trained.isdisjoint(map(id, module.parameters()))
        of_inputs = 0.0 if passes_gradient else 2.0 * entries + 2.0 * attended
        flops.append((of_weights, of_inputs))
    return flops


@lru_cache(maxsize=256)
def weight_names(config: EncoderConfig) -> tuple[str, ...]:
    """The names of an encoder's parameters."""
    return tuple(name for name, _ in _on_meta(config).named_parameters())


@lru_cache(maxsize=256)
def parameter_count(config: EncoderConfig) -> int:
    """Parameters of the encoder with pooler, without any head, as published sizes are given."""
    return sum(parameter.numel() for parameter in _on_meta(config).parameters())


def trained_parameters(models: Mapping[str, nn.Module]) -> int:
    """Of everything that is trained, encoders and heads; what is shared or tied is counted once."""
    sizes = {}
    for model in models.values():
        if not getattr(model, "is_trained", True):
            continue
        for parameter in model.parameters():
            sizes[id(parameter)] = parameter.numel()
    return sum(sizes.values())


@lru_cache(maxsize=32)
def _on_meta(config: EncoderConfig) -> Encoder:
    from clozelab.models.encoder import Encoder  # here: who only names a cost builds nothing

    with torch.device("meta"):
        return Encoder(config).eval()


@lru_cache(maxsize=4096)
def _encoder_flops(config: EncoderConfig, seq_length: int) -> float:
    """Of the forward pass, per token of a sequence of this length."""
    flops = 0.0
    for part, attended in _parts(_on_meta(config), seq_length):
        flops += 2.0 * _matrix_entries(part) + attended
    return config.num_directions * flops


def _parts(encoder: Encoder, seq_length: int) -> Iterator[tuple[nn.Module, float]]:
    """What a token passes through in turn, with what attention multiplies there beside matrices."""
    if encoder.embeddings_project is not None:
        yield encoder.embeddings_project, 0.0
    positions: Any = encoder.embeddings.position_embeddings
    for layer, mask in zip(encoder.layers(), encoder.masks, strict=True):
        # Of a query with all keys that it sees, and of as many probabilities with values.
        attended = 4.0 * mask.num_keys(seq_length) * encoder.config.hidden_size
        yield layer, attended + positions.score_flops(seq_length)


@lru_cache(maxsize=256)
def _head_flops(config: EncoderConfig, kind: str) -> float:
    """Of the forward pass, per position that the head reads."""
    with torch.device("meta"):
        head = family_for(config).head(kind, _on_meta(config))
    entries = _matrix_entries(head)
    if isinstance(head, VocabularyHead):
        entries += head.word_embedding_weight.numel()
    return 2.0 * entries


def _matrix_entries(module: nn.Module, of_ids: Container[int] | None = None) -> int:
    """Numbers in the matrices of a module that a token passes through, or (`of_ids`) in some."""
    entries = 0
    for name, matrix in module.named_modules():
        if not isinstance(matrix, nn.Linear) or name.rpartition(".")[2] in LEFT_OUT:
            continue
        if of_ids is None or id(matrix.weight) in of_ids:
            entries += matrix.weight.numel()
    return entries
