"""Attention that reads a part of a long text: chunks of a window, tokens seen by all, blocks.

A chunk of queries sees the chunks beside it, as far as the window goes, and the global tokens. So
time and memory grow with the length, not with its square. With windows of two tokens on each side,
the second chunk sees:

    queries   [2 3]
    keys      [0 1 | 2 3 | 4 5] and global tokens

Letters: B sequences, S slots a row, C chunks, W slots of a chunk, G global tokens of a row, N
heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from clozelab.models.layers import dropout


class Chunks(NamedTuple):
    """How rows are cut: a chunk of queries is as long as one side of a window."""

    size: int  # W
    bias: Tensor  # [B or 1, C, 1, W, 3 W + G]: minus infinity where a key is hidden
    slots: Tensor | None  # int64 [B, G]: the global tokens' slots

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float, prob: float) -> Tensor:
        """[B, S, N, D] -> [B, S, N, D]."""
        seen = []
        for x in (k, v):
            near = with_neighbours(x, self.size)  # [B, C, 3 W, N, D]
            if self.slots is not None:
                far = x[torch.arange(len(x))[:, None], self.slots]  # [B, G, N, D]
                far = far[:, None].expand(-1, near.shape[1], -1, -1, -1)
                near = torch.cat([near, far], dim=2)
            seen.append(near.transpose(2, 3))
        keys, values = seen
        queries = in_chunks(q, self.size).transpose(2, 3)
        out = weighted_values(queries, keys, values, scale, prob, self.bias)  # [B, C, N, W, D]
        return out.transpose(2, 3).flatten(1, 2)[:, : q.shape[1]]


def make_chunks(padding: Tensor, size: int, is_global: Tensor | None, dtype: torch.dtype) -> Chunks:
    """How rows are cut, and what each chunk may see; `padding`, `is_global`: bool [B, S]."""
    # Slots count from 1, and 0 is no key. A global token is a key behind all chunks, and in none.
    queries = torch.arange(1, padding.shape[1] + 1)[None]
    keys = queries.masked_fill(padding, 0)
    if is_global is not None:
        keys = keys.masked_fill(is_global, 0)
    near = with_neighbours(keys, size)[:, :, None]  # [B or 1, C, 1, 3 W]
    ahead = near - in_chunks(queries, size)[..., None]
    hidden = (near == 0) | (ahead.abs() > size)
    # A slot sees itself in any case, so that none sees nothing.
    hidden.diagonal(size, -2, -1).fill_(False)
    slots = None
    if is_global is not None:
        most = int(is_global.sum(1).max())
        slots = is_global.int().argsort(dim=1, descending=True, stable=True)[:, :most]
        is_none = ~is_global.gather(1, slots)[:, None, None]
        hidden = torch.cat([hidden, is_none.expand(-1, *hidden.shape[1:3], -1)], dim=-1)
    bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)
    return Chunks(size, bias[:, :, None], slots)


def weighted_values(
    q: Tensor, k: Tensor, v: Tensor, scale: float, prob: float, bias: Tensor | float = 0.0
) -> Tensor:
    """[..., queries, D], [..., keys, D] twice -> [..., queries, D]."""
    scores = torch.matmul(q * scale, k.transpose(-1, -2)) + bias
    probs = dropout(torch.softmax(scores, dim=-1), prob, training=True)
    return torch.matmul(probs, v)


def in_chunks(x: Tensor, size: int, num_neighbours: int = 0) -> Tensor:
    """[B, S, ...] -> [B, C, W, ...], filled up with zeros; so many chunks more at both ends."""
    ends = (num_neighbours * size, num_neighbours * size + -x.shape[1] % size)
    return F.pad(x, (0, 0) * (x.ndim - 2) + ends).unflatten(1, (-1, size))


def with_neighbours(x: Tensor, size: int) -> Tensor:
    """[B, S, ...] -> [B, C, 3 W, ...]: each chunk between those beside it."""
    chunks = in_chunks(x, size, 1)
    return torch.cat([chunks[:, :-2], chunks[:, 1:-1], chunks[:, 2:]], dim=2)


def longest_whole(size: int, num_random: int) -> int:
    """The most tokens of a text in which every token sees all, in spite of blocks."""
    return (5 + 2 * num_random) * size


def block_bias(lengths: Sequence[int], width: int, size: int, num_random: int) -> Tensor:
    """[B or 1, S, S]: what blocks add to the scores of texts that are not seen whole.

    That is the logarithm of how often a query counts a key.
    """
    equal = lengths[:1] if len(set(lengths)) == 1 else lengths
    bias = torch.zeros(len(equal), width, width)
    for row, length in zip(bias, equal, strict=True):
        if length > longest_whole(size, num_random):
            blocks = torch.arange(length) // size
            counts = ((blocks[:, None] - blocks).abs() <= 1).float()
            is_end = (blocks == 0) | (blocks == blocks[-1])
            counts[is_end] = 1.0
            counts[:, is_end] = 1.0
            # Block 0 stands for the random ones, which the ends do not have.
            counts += num_random * (~is_end[:, None] & (blocks == 0))
            row[:length, :length] = counts.log()
    return bias
