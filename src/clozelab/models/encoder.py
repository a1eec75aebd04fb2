"""The BERT encoder: post-LayerNorm transformer blocks over one token stream.

Unusual: no batch dimension and no padding arithmetic; hidden states are [T, H] all the way and only attention looks at
the layout. Query, key and value are one matrix. Parameter names are Hugging Face's, but for that matrix (weights.py
translates).

Letters: T tokens in the stream, B sequences, H hidden size, N heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from clozelab.models.attention import DenseRows, Layout, attention_of, dense_rows
from clozelab.models.config import BertConfig
from clozelab.models.dropout import Dropout
from clozelab.models.embeddings import Embeddings
from clozelab.models.initialisation import Linear, initialise_, sinusoidal_


class EncoderOutput(NamedTuple):
    """A named tuple, not a dataclass: wrappers for sharded training look for tensors in outputs and know tuples."""

    sequence_output: Tensor
    """[T, H]."""
    hidden_states: tuple[Tensor, ...] | None
    """Embedding output and each layer's, [T, H]; None unless asked for."""


def few_shapes(num_slots: int) -> int:
    """T of a ragged stream rounded up: sixteen sizes between powers of two, 3 % more on average; short ones to eights.

    oneDNN builds its matrix kernels anew for every T, and each ragged batch has another one: for 450 tokens at H 128
    that took 5 of 12 ms a training step.
    """
    step = max(8, 1 << max(0, num_slots.bit_length() - 5))
    return -(-num_slots // step) * step


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function behind a `hidden_act`; BERT's "gelu" is the exact one."""
    if name == "relu":
        return F.relu
    if name == "gelu":
        return F.gelu
    return partial(F.gelu, approximate="tanh")


class ResidualOutput(nn.Module):
    """Dense, dropout, add the residual, LayerNorm: how both halves of a layer end."""

    def __init__(self, input_size: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(input_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """[T, input size], [T, H] -> [T, H]."""
        return self.LayerNorm(self.dropout(self.dense(x)) + residual)


class SelfAttention(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.num_attention_heads, config.head_dim
        self.dropout_prob, self.is_causal = config.attention_probs_dropout_prob, config.is_causal
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = ResidualOutput(config.hidden_size, config)

    def forward(self, hidden: Tensor, layout: Layout | DenseRows) -> Tensor:
        """[T, H] -> [T, H]."""
        qkv = self.qkv(hidden).view(-1, 3, self.num_heads, self.head_dim)  # [T, 3, N, D]
        attended = attention_of(
            qkv, layout, dropout_prob=self.dropout_prob, is_causal=self.is_causal, training=self.training
        )
        return self.output(attended.flatten(1), hidden)


class Intermediate(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.intermediate_size)
        self.activation = activation(config.hidden_act)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, H] -> [T, intermediate size]."""
        return self.activation(self.dense(hidden))


class Layer(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.intermediate = Intermediate(config)
        self.output = ResidualOutput(config.intermediate_size, config)

    def forward(self, hidden: Tensor, layout: Layout | DenseRows) -> Tensor:
        """[T, H] -> [T, H]."""
        attended = self.attention(hidden, layout)
        return self.output(self.intermediate(attended), attended)


class Pooler(nn.Module):
    """Dense and tanh on one token of each sequence."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)

    def forward(self, token_states: Tensor) -> Tensor:
        """[B, H] -> [B, H]."""
        return torch.tanh(self.dense(token_states))


class Encoder(nn.Module):
    """Embeddings, layers and pooler, freshly initialised.

    Args:
        config: the shape.
        generator: source of the fresh weights; None means torch's global random state.

    Attributes, set from outside, that change how results are computed and not what they are:
        gradient_checkpointing: keep only each layer's input in training and compute the rest again for the backward.
        attention_kernels: of rows of S slots, {S: one of attention.KERNELS}; others have the device's usual one.
    """

    def __init__(self, config: BertConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        self.attention_kernels: dict[int, str] = {}
        self.embeddings = Embeddings(config)
        self.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.pooler = Pooler(config)
        initialise_(self, config.initializer_range, generator)
        if config.position_embedding_init == "sinusoidal":
            sinusoidal_(self.embeddings.position_embeddings.weight, config.initializer_range)

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        position_ids: Tensor,
        layout: Layout,
        output_hidden_states: bool = False,
    ) -> EncoderOutput:
        """int64 [T] each -> [T, H]; padding slots hold values that mean nothing."""
        hidden = self.embeddings(input_ids, token_type_ids, position_ids)
        hidden_states = [hidden]
        num_slots = len(hidden)
        where: Layout | DenseRows | None = self._dense_rows(layout, hidden)
        if where is None:
            where = layout
            if hidden.device.type == "cpu":
                hidden = F.pad(hidden, (0, 0, 0, few_shapes(num_slots) - num_slots))
        for layer in self.layer:
            if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
                # Dropout is drawn again from the saved generator state: the same bits.
                hidden = checkpoint(layer, hidden, where, use_reentrant=False)
            else:
                hidden = layer(hidden, where)
            if output_hidden_states:
                hidden_states.append(hidden[:num_slots])
        return EncoderOutput(hidden[:num_slots], tuple(hidden_states) if output_hidden_states else None)

    def _dense_rows(self, layout: Layout, hidden: Tensor) -> DenseRows | None:
        device_type = hidden.device.type
        in_autocast = torch.is_autocast_enabled(device_type)
        return dense_rows(
            layout,
            num_heads=self.config.num_attention_heads,
            dtype=torch.get_autocast_dtype(device_type) if in_autocast else hidden.dtype,
            device=hidden.device,
            is_causal=self.config.is_causal,
            kernel=self.attention_kernels.get(layout.row_slots or 0),
        )

    def pool(self, sequence_output: Tensor, layout: Layout) -> Tensor:
        """[T, H] -> [B, H]: the pooler on the first token or, for a causal encoder, on the last real one."""
        rows = layout.last_rows if self.config.pool_position == "last" else layout.first_rows
        return self.pooler(sequence_output.index_select(0, rows))
