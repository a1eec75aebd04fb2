"""The BERT encoder: post-LayerNorm transformer blocks over one token stream.

Unusual: no batch dimension and no padding arithmetic; hidden states are [T, H] all the way and only attention looks at
the layout. Query, key and value are one matrix. Parameter names are Hugging Face's, but for that matrix (folders.py
translates).

Letters: T tokens in the stream, B sequences, H hidden size, N heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from clozelab.models import attention
from clozelab.models.attention import DenseRows, Layout, dense_rows
from clozelab.models.block import Layer
from clozelab.models.config import EncoderConfig
from clozelab.models.embeddings import Embeddings
from clozelab.models.layers import Linear, initialise_, sinusoidal_


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


class Pooler(nn.Module):
    """Dense and tanh on one token of each sequence."""

    def __init__(self, config: EncoderConfig) -> None:
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

    def __init__(self, config: EncoderConfig, generator: torch.Generator | None = None) -> None:
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


MAX_SHAPES = 64
"""Shapes that are compiled before torch gives up and runs the rest uncompiled: phases x (with, without padding) x
(last micro-batch, others)."""


def compile_encoder(encoder: Encoder, *, dynamic: bool, **options: Any) -> None:
    """Compile `encoder` where it stands.

    Args:
        encoder: any; its state_dict stays as it is.
        dynamic: False: one compilation a shape, for batches of few shapes; True: one for all, for ragged batches.
        options: of torch.compile (backend, mode).
    """
    import torch._dynamo  # a second of start-up that only compiled runs pay

    config: Any = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # before torch 2.7
    setattr(config, name, max(getattr(config, name), MAX_SHAPES))
    # Host-side grouping of ragged batches: nothing in it to compile, and every batch is another one.
    if not getattr(attention._grouped, "_torchdynamo_disable", False):
        attention._grouped = torch.compiler.disable(attention._grouped)
    for part in (encoder.embeddings, *encoder.layer):
        part.compile(dynamic=dynamic, **options)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Inside, compiled modules run as written: for a few evaluations a compilation of their own costs more."""
    # Asked for by its submodule's presence: importing it would cost what an uncompiled run saves.
    import sys

    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
