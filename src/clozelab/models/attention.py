"""Attention inside each sequence of a token stream: one entry, `attention`, that picks the kernel.

Which kernel:
- stream viewable as [B, S], CPU: batched matmul and softmax, which has dropout and took half the time of the CPU flash
  kernel or less at every S from 32 to 512, in training and in inference (bf16, one thread);
- the same elsewhere: scaled_dot_product_attention;
- ragged, CUDA, half precision, no dropout in force: torch's variable-length flash kernel;
- ragged otherwise: sequences sorted by length in groups, padded inside the group. So dropout is never dropped silently.

Letters: T tokens in the stream, B sequences, S slots a row, N heads, D head dimension.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clozelab.models.dropout import dropout
from clozelab.models.layout import Layout, from_padded, to_padded

__all__ = ["Layout", "attention", "has_varlen_attention", "reference_attention"]

CPU_GROUP_SIZE = 8
"""Measured: groups of eight lose little to padding and little to the Python loop."""
ACCELERATOR_GROUP_SIZE = 64
"""Not measured: a kernel launch costs more there than padding."""


def attention(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, *, dropout_prob: float, is_causal: bool, training: bool
) -> Tensor:
    """softmax(q k^T / sqrt(D)) v inside each sequence: q, k, v [T, N, D] -> [T, N, D].

    Padding slots of a rectangle get finite values that mean nothing. `is_causal`: position i sees 0..i only.
    """
    prob = dropout_prob if training else 0.0
    width = layout.dense_width
    if width is not None:
        bias = _dense_bias(layout, width, q, is_causal)
        return _dense(q, k, v, layout.batch_size, width, bias, prob, is_causal)
    if prob == 0.0 and _has_varlen_kernel(q):
        return _varlen(q, k, v, layout, is_causal)
    return _grouped(q, k, v, layout, prob, is_causal)


def reference_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout, *, is_causal: bool) -> Tensor:
    """The oracle of the tests: one scaled_dot_product_attention a sequence, zero in padding slots; [T, N, D]."""
    out = torch.zeros_like(q)
    for start, length in zip(layout.first_rows.tolist(), layout.lengths_list, strict=True):
        q_i, k_i, v_i = (x[start : start + length].transpose(0, 1) for x in (q, k, v))  # [N, length, D]
        attended = F.scaled_dot_product_attention(q_i, k_i, v_i, is_causal=is_causal)
        out = out.index_copy(
            0, torch.arange(start, start + length, device=q.device), attended.transpose(0, 1).to(out.dtype)
        )
    return out


def _dense(
    q: Tensor, k: Tensor, v: Tensor, batch_size: int, width: int, bias: Tensor | None, prob: float, is_causal: bool
) -> Tensor:
    """Equal rows: q, k, v [B*S, N, D] -> [B*S, N, D]; `bias` as `_dense_bias` gives it."""
    num_heads, head_dim = q.shape[1:]
    shape = (batch_size, width, num_heads, head_dim)
    q, k, v = (x.reshape(shape).transpose(1, 2) for x in (q, k, v))  # [B, N, S, D]
    if _prefers_bmm(q):
        out = _bmm_attention(q, k, v, bias, prob)
    else:
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, dropout_p=prob, is_causal=is_causal and bias is None
        )
    return out.transpose(1, 2).reshape(batch_size * width, num_heads, head_dim)


def _bmm_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, prob: float) -> Tensor:
    """q, k, v [B, N, S, D] -> [B, N, S, D]; `bias` [1, S, S] or [B*N, 1, S], added to the scores."""
    batch_size, num_heads, width, head_dim = q.shape
    q, k, v = (x.reshape(batch_size * num_heads, width, head_dim) for x in (q, k, v))
    scale = head_dim**-0.5
    if bias is None:
        scores = torch.bmm(q * scale, k.transpose(1, 2))  # [B*N, S, S]
    else:
        bias = bias.expand(batch_size * num_heads, width, width)
        scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=scale)
    probs = dropout(torch.softmax(scores, dim=-1), prob, training=True)
    return torch.bmm(probs, v).view(batch_size, num_heads, width, head_dim)


def _prefers_bmm(q: Tensor) -> bool:
    return q.device.type == "cpu"


def _dense_bias(layout: Layout, width: int, q: Tensor, is_causal: bool) -> Tensor | None:
    """What is added to the scores of equal rows, remembered for all layers of a batch.

    Causal rows need no padding mask: real tokens come first, so none of them sees a padding slot.
    """
    if is_causal:
        return layout.remember(("causal", q.dtype), lambda: _causal_bias(width, q)) if _prefers_bmm(q) else None
    if layout.row_slots is None or layout.full:
        return None
    key = ("padding", q.dtype, q.shape[1])
    return layout.remember(key, lambda: _padding_bias(layout.key_padding(), q))


def _causal_bias(width: int, q: Tensor) -> Tensor:
    """[1, S, S]: minus infinity right of the diagonal."""
    return torch.full((1, width, width), -torch.inf, dtype=q.dtype, device=q.device).triu_(1)


def _padding_bias(key_padding: Tensor, q: Tensor) -> Tensor:
    """bool [B, S] -> minus infinity on padding keys: [B*N, 1, S] for matmul, [B, 1, 1, S] for torch's kernels."""
    bias = torch.zeros(key_padding.shape, dtype=q.dtype, device=q.device).masked_fill_(key_padding, -torch.inf)
    if _prefers_bmm(q):
        return bias.repeat_interleave(q.shape[1], dim=0)[:, None, :]
    return bias[:, None, None, :]


def _grouped(q: Tensor, k: Tensor, v: Tensor, layout: Layout, prob: float, is_causal: bool) -> Tensor:
    """Ragged stream in sorted groups, each padded to its longest sequence."""
    groups = layout.padded_groups(CPU_GROUP_SIZE if _prefers_bmm(q) else ACCELERATOR_GROUP_SIZE)
    q, k, v = (to_padded(x, groups) for x in (q, k, v))
    outputs = []
    for group in groups.groups:
        rows = slice(group.start, group.start + group.batch_size * group.width)
        make = _group_layout_maker(group.lengths, group.width, q.device)
        inner = layout.remember(("group", group.start, group.batch_size, group.width), make)
        bias = _dense_bias(inner, group.width, q, is_causal)
        outputs.append(_dense(q[rows], k[rows], v[rows], group.batch_size, group.width, bias, prob, is_causal))
    return from_padded(torch.cat(outputs), groups)


def _group_layout_maker(lengths: list[int], width: int, device: torch.device) -> Callable[[], Layout]:
    return lambda: Layout.rectangle(lengths, width).to(device)


def _has_varlen_kernel(q: Tensor) -> bool:
    return q.device.type == "cuda" and q.dtype in (torch.bfloat16, torch.float16) and _load_varlen() is not None


def _varlen(q: Tensor, k: Tensor, v: Tensor, layout: Layout, is_causal: bool) -> Tensor:
    """torch.nn.attention.varlen on q, k, v [T, N, D]; it has no dropout."""
    loaded = _load_varlen()
    assert loaded is not None
    kernel, parameters = loaded
    # torch 2.10 and 2.11 spell the causal mask is_causal, later ones as a window that ends at the query.
    causal: dict[str, Any] = {"is_causal": is_causal} if "is_causal" in parameters else {}
    if not causal and is_causal:
        causal = {"window_size": (-1, 0)}
    bounds, longest = layout.cu_seqlens, layout.max_seqlen
    return kernel(q.contiguous(), k.contiguous(), v.contiguous(), bounds, bounds, longest, longest, **causal)


def has_varlen_attention() -> bool:
    """Whether this torch brings the variable-length kernel; it runs on CUDA in half precision."""
    return _load_varlen() is not None


@lru_cache(maxsize=1)
def _load_varlen() -> tuple[Callable[..., Any], frozenset[str]] | None:
    """The kernel and its parameter names, or None where torch lacks it (before 2.10); imported when first wanted."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn, frozenset(inspect.signature(varlen_attn).parameters)
