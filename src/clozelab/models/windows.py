"""Attention that reads a part of a long text: chunks of a window, tokens seen by all, blocks.

A chunk of queries sees the chunks beside it, as far as the window goes, and the global tokens. So
time and memory grow with the length, not with its square. Of windows of two tokens on each side:

    queries   [2 3]
    keys      [0 1 | 2 3 | 4 5] and global tokens

Letters: B sequences, S slots a row, C chunks, W slots of a chunk, G global tokens of a row, N
heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from clozelab.models.layers import dropout


class GlobalTokens(NamedTuple):
    """Where the global tokens of a batch and all that they see stand in the stream."""

    rows: Tensor  # int64 [B, G]
    is_real: Tensor  # bool [B, G]: a sequence may have fewer
    keys: Tensor  # int64 [B, S]
    bias: Tensor  # [B, 1, 1, S]: minus infinity where a row of keys holds no token


def global_slots(is_global: Tensor) -> tuple[Tensor, Tensor]:
    """bool [B, S] -> their slots int64 [B, G], and bool [B, G] where there is none."""
    most = int(is_global.sum(1).max())
    slots = is_global.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    return slots, ~is_global.gather(1, slots)


def weighted_values(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, prob: float
) -> Tensor:
    """[..., queries, D], [..., keys, D] twice -> [..., queries, D]."""
    scores = torch.matmul(q * scale, k.transpose(-1, -2)) + bias.to(q.dtype)
    probs = dropout(torch.softmax(scores, dim=-1), prob, training=True)
    return torch.matmul(probs, v)


def chunk_bias(
    width: int,
    window: int,
    is_causal: bool,
    padding: Tensor | None,
    is_global: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None]:
    """[B or 1, C, 1, W, 3 W + G]: what `attend_in_chunks` adds to the scores; and global slots.

    `padding`, `is_global`: bool [B, S]. A slot sees itself in any case, so that none sees nothing.
    """
    slots = in_chunks(torch.arange(width)[None], window)[0]
    first = slots[:, :1]
    keys = (first + torch.arange(-window, 2 * window))[:, None]  # [C, 1, 3 W]
    ahead = keys - (first + torch.arange(window))[:, :, None]  # [C, W, 3 W]
    hidden = (ahead.abs() > window) | (keys < 0) | (keys >= width)
    if is_causal:
        hidden = hidden | (ahead > 0)
    hidden = hidden[None]
    # A global token has a place of its own, and counts once.
    for unseen in (padding, is_global):
        if unseen is not None:
            hidden = hidden | with_neighbours(unseen, window)[:, :, None]
    hidden = hidden & (ahead != 0)
    global_keys = None
    if is_global is not None:
        global_keys, is_none = global_slots(is_global)
        shape = (len(is_none), *hidden.shape[1:3], -1)
        hidden = torch.cat([hidden.expand(*shape), is_none[:, None, None].expand(shape)], dim=-1)
    bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)
    return bias[:, :, None], global_keys


def attend_in_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int,
    bias: Tensor,
    slots: Tensor | None,
    scale: float,
    prob: float,
) -> Tensor:
    """[B, S, N, D] -> [B, S, N, D]; `bias` and `slots` are those of `chunk_bias`."""
    seen = []
    for x in (k, v):
        near = with_neighbours(x, window)  # [B, C, 3 W, N, D]
        if slots is not None:
            far = x[torch.arange(len(x))[:, None], slots]  # [B, G, N, D]
            near = torch.cat([near, far[:, None].expand(-1, near.shape[1], -1, -1, -1)], dim=2)
        seen.append(near.transpose(2, 3))
    queries = in_chunks(q, window).transpose(2, 3)
    out = weighted_values(queries, *seen, bias, scale, prob)  # [B, C, N, W, D]
    return out.transpose(2, 3).flatten(1, 2)[:, : q.shape[1]]


def in_chunks(x: Tensor, size: int, beside: int = 0) -> Tensor:
    """[B, S, ...] -> [B, C, W, ...], filled up with zeros; `beside` more of zeros at both ends."""
    ends = (beside * size, beside * size + -x.shape[1] % size)
    return F.pad(x, (0, 0) * (x.ndim - 2) + ends).unflatten(1, (-1, size))


def with_neighbours(x: Tensor, size: int) -> Tensor:
    """[B, S, ...] -> [B, C, 3 W, ...]: each chunk between those beside it."""
    chunks = in_chunks(x, size, 1)
    return torch.cat([chunks[:, :-2], chunks[:, 1:-1], chunks[:, 2:]], dim=2)


def block_bias(
    lengths: Sequence[int], width: int, size: int, num_random: int, plan: int | None
) -> Tensor:
    """[B or 1, S, S]: what blocks add to the scores of texts that are not seen whole.

    That is the logarithm of how often a query counts a key.
    """
    equal = lengths[:1] if len(set(lengths)) == 1 else lengths
    bias = torch.zeros(len(equal), width, width)
    for row, length in zip(bias, equal, strict=True):
        if length > (5 + 2 * num_random) * size:
            counts = block_counts(-(-length // size), num_random, plan)
            by_token = counts.repeat_interleave(size, 0).repeat_interleave(size, 1)
            row[:length, :length] = by_token[:length, :length].log()
    return bias


def block_counts(number: int, num_random: int, plan: int | None) -> Tensor:
    """[number, number]: how often a block of queries (row) counts a block of keys."""
    # Of seven: block 3 sees 0, 2, 3, 4 and 6, and random ones of 1 and 5.
    blocks = torch.arange(number)
    counts = ((blocks[:, None] - blocks).abs() <= 1).float()
    counts[[0, -1]] = 1.0
    counts[:, [0, -1]] = 1.0
    if plan is None:
        counts[1:-1, 0] += num_random
        return counts
    draws = torch.from_numpy(np.random.default_rng([plan, number]).random((number, number)))
    drawn = draws.masked_fill(counts > 0, 2.0).argsort(1)[1:-1, :num_random]
    counts[1:-1].scatter_(1, drawn, 1.0)
    return counts
