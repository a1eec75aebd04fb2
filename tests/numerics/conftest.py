"""Comparison with transformers: the same weights, the same tokens, its padded batches against our
streams.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clozelab.models.encoder import Encoder
from clozelab.models.folders import to_hf_tensors
from clozelab.models.layout import Layout


@dataclass
class TokenBatch:
    """The same random sequences as a padded batch of transformers and as a stream of ours."""

    input_ids: Tensor
    token_type_ids: Tensor
    attention_mask: Tensor
    layout: Layout
    stream_rows: Tensor
    """Stream rows that hold tokens, sequence by sequence."""
    stream: dict[str, Tensor]

    @property
    def real(self) -> Tensor:
        """bool [B, S]: where transformers' batch holds tokens."""
        return self.attention_mask.bool()

    @property
    def hf(self) -> dict[str, Tensor]:
        names = ("input_ids", "token_type_ids", "attention_mask")
        return {name: getattr(self, name) for name in names}

    @property
    def ours(self) -> dict[str, Any]:
        return {**self.stream, "layout": self.layout}


@pytest.fixture
def token_batch() -> Callable[..., TokenBatch]:
    """token_batch(lengths, kind, vocab_size, seed) with kind "ragged" or "rectangle"."""
    return _token_batch


def _token_batch(lengths: list[int], kind: str, vocab_size: int, seed: int = 0) -> TokenBatch:
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    slots = torch.arange(width)
    real = slots < torch.tensor(lengths)[:, None]
    ids = torch.randint(1, vocab_size, (len(lengths), width), generator=generator) * real
    types = (slots > torch.tensor(lengths)[:, None] // 2) * real
    positions = slots.expand_as(ids)
    padded = {"input_ids": ids, "token_type_ids": types.long(), "position_ids": positions}
    if kind == "rectangle":
        layout = Layout.rectangle(lengths, width)
        stream = {name: x.flatten() for name, x in padded.items()}
        rows = real.flatten().nonzero().squeeze(1)
    else:
        layout = Layout.ragged(lengths)
        stream = {name: x[real] for name, x in padded.items()}
        rows = torch.arange(layout.num_slots)
    return TokenBatch(ids, types.long(), real.long(), layout, rows, stream)


@pytest.fixture
def hf_gradients() -> Callable[[Encoder, dict[str, nn.Module]], dict[str, Tensor]]:
    """Our gradients under Hugging Face's names."""
    return _hf_gradients


def _hf_gradients(encoder: Encoder, heads: dict[str, nn.Module]) -> dict[str, Tensor]:
    both = copy.deepcopy(nn.ModuleList([encoder, *heads.values()]))
    originals = nn.ModuleList([encoder, *heads.values()])
    for mine, original in zip(both.parameters(), originals.parameters(), strict=True):
        mine.data = torch.zeros_like(original) if original.grad is None else original.grad.clone()
    return to_hf_tensors(both[0], dict(zip(heads, list(both)[1:], strict=True)))
