"""Attention inside each sequence of a token stream: one entry, `attention`, that picks the kernel.

A `Mask` says what a token may see, a pattern which mask each layer has. What a batch decides itself
(a prefix, the order of a permutation) is its layout's `visibility`.

Which kernel:
- stream viewable as [B, S], CPU, a window much narrower than S: chunks (windows.py), whose cost
  grows with S alone;
- the same, CPU, no dropout in force, from the width on that FLASH_LEAST_WIDTH has, or in training
  FLASH_LEAST_WIDTH_IN_TRAINING, or with rotary positions FLASH_LEAST_WIDTH_OF_TURNED: torch's flash
  kernel, which holds no scores;
- the same, CPU: batched matmul and softmax, which has dropout, and trained in half the time of the
  flash kernel at every S from 32 to 512 (bf16, one thread);
- the same elsewhere: scaled_dot_product_attention;
- ragged, CUDA, half precision, no dropout in force, a head size it takes: torch's variable-length
  flash kernel;
- ragged otherwise: sequences sorted by length in groups, padded inside the group. So dropout is
  never dropped silently.

Letters: T tokens in the stream, B sequences, S slots a row, N heads, D head dimension.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.models.config import EncoderConfig
from clozelab.models.layers import (
    ReadSlots,
    draw_dropout_bits,
    dropout,
    dropout_scale,
    has_fast_dropout,
    quantise_drop_prob,
    without_dropped,
)
from clozelab.models.layout import Layout, from_padded, to_padded
from clozelab.models.windows import Chunks, block_bias, longest_whole, make_chunks

CPU_GROUP_SIZE = 8  # measured: groups of eight lose little to padding and little to the Python loop
# Sequences of one width in a group where no dropout is drawn; 8 took a tenth longer.
CPU_EQUAL_WIDTHS = 64
# Of a group's slots: oneDNN builds a kernel a shape, which takes longer than a small product.
CPU_WIDTH_MULTIPLE = 8
ACCELERATOR_GROUP_SIZE = 64  # not measured: a kernel launch costs more there than padding
# Of flash attention, whose head sizes also are multiples of eight (torch's flash_api.cpp).
VARLEN_MAX_HEAD_DIM = 256
# Measured on the CPU: from six windows of one side on, and 256 slots, chunks took less time.
CHUNKS_FROM = 6
CHUNKS_LEAST_WIDTH = 256
# Measured on the CPU: from so many slots on torch's flash kernel took no more time than matmul and
# softmax, 0.3 to 0.9 of it without gradients. In fp32 8 slots with heads of 32 took 1.4 times as
# long.
FLASH_LEAST_WIDTH = {torch.float32: 16, torch.bfloat16: 1}
FLASH_LEAST_WIDTH_IN_TRAINING = {torch.float32: 1024, torch.bfloat16: 4096}
# Where query and key are to be turned, which the other way does in place.
FLASH_LEAST_WIDTH_OF_TURNED = 1024


class Mask(NamedTuple):
    """What a token may see of its own sequence."""

    is_causal: bool = False  # itself and what stands before it
    window: int | None = None  # so many tokens on each side; None: all
    blocks: tuple[int, int] | None = None  # of BlockAttention: their size, and how many are random

    def num_keys(self, width: int) -> int:
        """Tokens of a text of `width` that a token sees, on average."""
        if self.window is not None:
            return min(width, 2 * self.window + 1)
        if self.blocks is None or width <= longest_whole(*self.blocks):
            return width
        # Three in a row, the first, the last and random ones; these two see all.
        size, num_random = self.blocks
        return min(width, (7 + num_random) * size)


FULL = Mask()
CAUSAL = Mask(is_causal=True)


class FullAttention:
    """Every layer sees the whole sequence."""

    def __init__(self, config: EncoderConfig) -> None:
        self.is_causal = config.is_causal

    def mask(self, layer: int) -> Mask:  # noqa: ARG002
        return Mask(self.is_causal)


class LocalAttention(FullAttention):
    """Layers that see a window around each token, and some that see all (Beltagy et al. 2020).

    `window`: tokens that are seen on each side. `global_every`: layers 0, n, 2 n, ... see
    everything; 0: none does. `first_global`: the first of them, where it is not layer 0.
    """

    def __init__(
        self, config: EncoderConfig, window: int, global_every: int = 0, first_global: int = 0
    ) -> None:
        if window < 1 or global_every < 0:
            raise ValueError(
                f"attention: window {window} must be at least 1, global_every {global_every} at"
                " least 0"
            )
        if not 0 <= first_global < max(1, global_every):
            raise ValueError(
                f"attention: first_global {first_global} must be at least 0, and below"
                f" global_every {global_every}"
            )
        super().__init__(config)
        self.window = window
        self.global_every = global_every
        self.first_global = first_global

    def mask(self, layer: int) -> Mask:
        is_global = self.global_every and layer % self.global_every == self.first_global
        return Mask(self.is_causal, None if is_global else self.window)


class LongAttention(LocalAttention):
    """A window in each layer, beside tokens that see all and are seen by all (Beltagy et al. 2020).

    `window`: tokens that are seen on each side, half of the paper's; of a list each layer has one,
    over and over. Which tokens are global is the layout's `global_slots`.
    """

    def __init__(self, config: EncoderConfig, window: int | Sequence[int]) -> None:
        if isinstance(window, int):
            window = [window]
        super().__init__(config, min(window))
        self.windows = window

    def mask(self, layer: int) -> Mask:
        return Mask(self.is_causal, self.windows[layer % len(self.windows)])


class BlockAttention(FullAttention):
    """Blocks of tokens see their neighbours, the first and the last one, and random ones.

    First and last see everything, as does every token of a text of at most (5 + 2 r) blocks (Zaheer
    et al. 2020). For each of the r random blocks stands block 0, which so counts 1 + r times. That
    is what transformers computes when it does not train.
    """

    def __init__(self, config: EncoderConfig, block_size: int, num_random_blocks: int) -> None:
        if block_size < 1 or num_random_blocks < 0:
            raise ValueError(
                f"attention: block_size {block_size} must be at least 1, num_random_blocks"
                f" {num_random_blocks} at least 0"
            )
        super().__init__(config)
        self.blocks = (block_size, num_random_blocks)

    def mask(self, layer: int) -> Mask:  # noqa: ARG002
        return Mask(self.is_causal, None, self.blocks)


class DenseRows(NamedTuple):
    """Equal rows, worked out once for all layers of a batch.

    Plain values: a compiled layer guards on these alone.
    """

    batch_size: int
    width: int
    # What is added to the scores: minus infinity where a token may not look, and on padding keys;
    # None: nothing. [1 or B*N, 1 or S, S] for matmul, [1 or B, 1, 1 or S, S] for torch's kernels.
    bias: Tensor | None
    kernel: str  # bmm | sdpa | chunks
    mask: Mask
    chunks: Chunks | None = None


class Rotation(NamedTuple):
    """What rotary positions do to query and key; one angle a pair of numbers."""

    cos: Tensor  # [T, 1, D / 2]
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[T, N, D] -> [T, N, D]: number i turns with number i + D / 2."""
        left, right = x.chunk(2, dim=-1)
        cos = self.cos.to(x.dtype)
        sin = self.sin.to(x.dtype)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)

    def at(self, rows: Tensor) -> Rotation:
        """The same of some rows of the stream."""
        return Rotation(self.cos[rows], self.sin[rows])

    def of_rows(self, batch_size: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines [B, 1, S, D / 2] of equal rows."""
        shape = (batch_size, 1, width, self.cos.shape[-1])
        return self.cos.to(dtype).view(shape), self.sin.to(dtype).view(shape)


def rotate_(x: Tensor, cos: Tensor, sin: Tensor, sign: float) -> None:
    """Turns x [.., B, N, S, D] where it stands, as Rotation does; back where `sign` is -1."""
    # Number i and number i + D / 2 are a point in the plane. Turning back is turning by the
    # negative angle: the sine alone changes its sign.
    left, right = x.chunk(2, dim=-1)
    old_left = left.clone()
    left.mul_(cos).addcmul_(right, sin, value=-sign)
    right.mul_(cos).addcmul_(old_left, sin, value=sign)


class ScoreBias(NamedTuple):
    """What is added to the scaled scores, by the positions of query and key."""

    # query, key [B, N, S, D] and positions [B, S] -> [B or 1, N, S, S]
    compute: Callable[[Any, Any, Tensor], Tensor]
    position_ids: Tensor  # int64 [T], or what the scheme has made of them: [T, ...]
    reads_states: bool = True  # False: query and key are not looked at
    scale: float = 1.0  # of the scores that it is added to, beside 1 / sqrt(D)
    # This, a layer's SelfAttention and the widest row -> the layer's own.
    bind: Callable[[ScoreBias, Any, int], ScoreBias] | None = None
    # All of attention on equal rows on the CPU, where `compute` is not the fastest way to it:
    # [T, 3, N, D], the rows and dropout's levels -> [T, N, D].
    attend: Callable[[Tensor, DenseRows, int], Tensor] | None = None

    def at(self, rows: Tensor) -> ScoreBias:
        """The same of some rows of the stream."""
        return self._replace(position_ids=self.position_ids[rows])


class AttentionInputs(NamedTuple):
    """What attention knows beside query, key and value, in all layers that have one mask."""

    layout: Layout | DenseRows
    mask: Mask
    rotation: Rotation | None = None  # what the position scheme does to query and key
    score_bias: ScoreBias | None = None  # of the position scheme, or of a layer
    stream: Layout | None = None  # of a batch that has global tokens
    read: ReadSlots | None = None  # where the layer goes on behind attention; None: everywhere

    def with_fixed_bias(self, dtype: torch.dtype) -> AttentionInputs:
        """In equal rows, a bias that positions alone decide becomes part of theirs.

        So it is worked out once for all layers. `dtype` is that of the scores.
        """
        rows = self.layout
        bias = self.score_bias
        if bias is None or bias.reads_states or not isinstance(rows, DenseRows):
            return self
        # A table of distances (MPNet's) adds the same to every layer's scores.
        positions = bias.position_ids.view(rows.batch_size, rows.width)
        added = bias.compute(None, None, positions).to(dtype)
        rows = rows._replace(bias=_with_score_bias(added, rows))
        return self._replace(layout=rows, score_bias=None)

    def at(self, rows: Tensor) -> AttentionInputs:
        """The same of some rows of the stream."""
        rotation = None if self.rotation is None else self.rotation.at(rows)
        score_bias = None if self.score_bias is None else self.score_bias.at(rows)
        return self._replace(rotation=rotation, score_bias=score_bias)

    def of_layer(self, layer: nn.Module) -> AttentionInputs:
        """The same for one layer's SelfAttention, whose projections a score bias may need."""
        bias = self.score_bias
        if bias is None or bias.bind is None:
            return self
        if isinstance(self.layout, DenseRows):
            widest = self.layout.width
        else:
            widest = self.layout.max_seqlen
        # A group of a ragged stream is a little wider than its longest sequence.
        widest = -(-widest // CPU_WIDTH_MULTIPLE) * CPU_WIDTH_MULTIPLE
        return self._replace(score_bias=bias.bind(bias, layer, widest))


def dense_rows(
    layout: Layout,
    mask: Mask,
    num_heads: int,
    dtype: torch.dtype,
    device: torch.device,
    in_chunks: bool = True,
) -> DenseRows | None:
    """The layout as equal rows, or None where it is ragged. `dtype` is that of the scores.

    `in_chunks` False: never in chunks, which take no score bias.
    """
    width = layout.dense_width
    if width is None:
        return None
    if mask.blocks and layout.max_seqlen <= longest_whole(*mask.blocks):
        mask = mask._replace(blocks=None)
    kernel = _default_kernel(device)
    if in_chunks and kernel == "bmm" and _is_faster_in_chunks(layout, mask, width):
        return _chunked_rows(layout, mask, width, dtype)
    # Causal rows need no padding mask: real tokens come first, so none of them sees a padding slot.
    is_padded = layout.row_slots is not None and not layout.full and not mask.is_causal
    padding = layout.key_padding() if is_padded else None
    visibility = layout.visibility

    def make_bias() -> Tensor:
        hidden = _hidden_pairs(width, mask, padding, device)
        bias = _bias_of(hidden, layout, mask, dtype)
        if kernel != "bmm":
            return bias[:, None]
        if len(bias) == 1:
            return bias
        return bias.repeat_interleave(num_heads, dim=0)

    hides_nothing = mask == FULL and padding is None and visibility is None
    # torch's kernel knows a causal mask by a word.
    is_spoken = mask == CAUSAL and kernel == "sdpa" and visibility is None
    bias = None
    if not hides_nothing and not is_spoken:
        bias = layout.cached(("bias", mask, dtype, kernel, num_heads), make_bias)
    return DenseRows(layout.batch_size, width, bias, kernel, mask)


def _bias_of(hidden: Tensor, layout: Layout, mask: Mask, dtype: torch.dtype) -> Tensor:
    """[1 or B, 1 or S, S]: of pairs hidden by the mask, and by what the batch itself decides."""
    width = hidden.shape[-1]
    # Global tokens are seen beyond their windows.
    is_global = layout.global_rows_of(width)
    if is_global is not None:
        hidden = hidden & ~is_global[:, None]
    if layout.visibility is not None:
        hidden = hidden | ~layout.visibility
        # A slot that may see nothing sees itself, as below.
        itself = torch.eye(width, dtype=torch.bool, device=hidden.device)
        hidden &= ~(itself & hidden.all(dim=-1, keepdim=True))
    bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    bias.masked_fill_(hidden, -torch.inf)
    if mask.blocks:
        bias = bias + block_bias(layout.lengths_list, width, *mask.blocks).to(bias)
    return bias


def _is_faster_in_chunks(layout: Layout, mask: Mask, width: int) -> bool:
    """Of rows that are asked for a window alone."""
    if mask.window is None or mask.is_causal or layout.visibility is not None:
        return False
    return width >= max(CHUNKS_LEAST_WIDTH, CHUNKS_FROM * mask.window)


def _chunked_rows(layout: Layout, mask: Mask, width: int, dtype: torch.dtype) -> DenseRows:
    window = mask.window
    assert window is not None

    def make() -> Chunks:
        is_global = layout.global_rows_of(width)
        return make_chunks(layout.key_padding(), window, is_global, dtype)

    chunks = layout.cached(("chunks", mask, dtype), make)
    return DenseRows(layout.batch_size, width, None, "chunks", mask, chunks)


def _hidden_pairs(width: int, mask: Mask, padding: Tensor | None, device: torch.device) -> Tensor:
    """bool [1 or B, 1 or S, S]: True where the token of a row may not see that of a column.

    `padding` [B, S]: True on padding slots.
    """
    if padding is None:
        return masked_pairs(width, mask, device)[None]
    hidden_keys = padding[:, None]
    if mask == FULL:
        return hidden_keys
    # A padding slot sees itself: else one far from all real tokens has a NaN, which reaches
    # gradients.
    itself = torch.eye(width, dtype=torch.bool, device=device)
    return masked_pairs(width, mask, device)[None] | (hidden_keys & ~itself)


def masked_pairs(width: int, mask: Mask, device: torch.device) -> Tensor:
    """bool [S, S]: True where the token of a row may not see that of a column."""
    slots = torch.arange(width, device=device)
    ahead = slots[None, :] - slots[:, None]
    unseen = torch.zeros(width, width, dtype=torch.bool, device=device)
    if mask.is_causal:
        unseen |= ahead > 0
    if mask.window is not None:
        unseen |= ahead.abs() > mask.window
    return unseen


def _default_kernel(device: torch.device) -> str:
    return "bmm" if device.type == "cpu" else "sdpa"


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    inputs: AttentionInputs,
    *,
    dropout_prob: float,
    training: bool,
) -> Tensor:
    """softmax(q k^T / sqrt(D) + bias) v inside each sequence: q, k, v [T, N, D] -> [T, N, D].

    Padding slots of a rectangle get finite values that mean nothing; on the CPU a ragged stream may
    go on after its last sequence, and get zeros.
    """
    layout, mask, rotation, score_bias, *_ = inputs
    prob = dropout_prob if training else 0.0
    if rotation is not None:
        q = rotation(q)
        k = rotation(k)
    if not isinstance(layout, DenseRows):
        in_chunks = score_bias is None
        rows = dense_rows(layout, mask, q.shape[1], q.dtype, q.device, in_chunks)
        layout = rows or layout
    if isinstance(layout, DenseRows):
        return _dense(q, k, v, layout, prob, score_bias)
    is_plain = score_bias is None and layout.global_slots is None
    if prob == 0.0 and is_plain and has_varlen_kernel(q, mask):
        return _varlen(q, k, v, layout, mask)
    return _grouped(torch.stack([q, k, v], dim=1), layout, prob, inputs._replace(rotation=None))


def attention_of(
    qkv: Tensor, inputs: AttentionInputs, *, dropout_prob: float, training: bool
) -> Tensor:
    """`attention` for query, key and value in one tensor [T, 3, N, D]."""
    layout = inputs.layout
    prob = dropout_prob if training else 0.0
    # Elsewhere torch's variable-length kernel is asked first.
    if isinstance(layout, Layout) and layout.dense_width is None and qkv.device.type == "cpu":
        return _grouped(qkv, layout, prob, inputs)
    # Rows of the bmm kernel have a forward and a backward by hand.
    if isinstance(layout, DenseRows) and layout.kernel == "bmm" and has_fast_path(qkv, prob):
        rotation = inputs.rotation
        score_bias = inputs.score_bias
        levels = quantise_drop_prob(prob)
        is_turned = rotation is not None
        if score_bias is None and not has_flash_kernel(qkv, layout, prob, is_turned=is_turned):
            cos_sin = None
            if rotation is not None:
                cos_sin = rotation.of_rows(layout.batch_size, layout.width, qkv.dtype)
            return _CpuAttention.apply(
                qkv, layout.batch_size, layout.width, layout.bias, cos_sin, levels
            )
        # DeBERTa's has a backward of its own.
        if score_bias is not None and score_bias.attend is not None and rotation is None:
            return score_bias.attend(qkv, layout, levels)
    q, k, v = qkv.unbind(1)
    return attention(q, k, v, inputs, dropout_prob=dropout_prob, training=training)


def reference_attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout, *, mask: Mask) -> Tensor:
    """The oracle of the tests: one scaled_dot_product_attention a sequence; [T, N, D].

    It is zero in padding slots.
    """
    out = torch.zeros_like(q)
    for start, length in zip(layout.first_rows.tolist(), layout.lengths_list, strict=True):
        slots = torch.arange(start, start + length, device=q.device)
        q_i, k_i, v_i = (x[slots].transpose(0, 1) for x in (q, k, v))  # [N, length, D]
        attended = F.scaled_dot_product_attention(
            q_i, k_i, v_i, attn_mask=~masked_pairs(length, mask, q.device)
        )
        out = out.index_copy(0, slots, attended.transpose(0, 1).to(out.dtype))
    return out


def _dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: DenseRows,
    prob: float,
    score_bias: ScoreBias | None,
) -> Tensor:
    """Equal rows: q, k, v [B*S, N, D] -> [B*S, N, D]."""
    num_heads, head_dim = q.shape[1:]
    shape = (rows.batch_size, rows.width, num_heads, head_dim)
    bias = rows.bias
    scale = head_dim**-0.5
    if rows.chunks is not None:
        q, k, v = (x.reshape(shape) for x in (q, k, v))
        return rows.chunks.attend(q, k, v, scale, prob).flatten(0, 1)
    q, k, v = (x.reshape(shape).transpose(1, 2) for x in (q, k, v))  # [B, N, S, D]
    if score_bias is not None:
        scale *= score_bias.scale
        positions = score_bias.position_ids.unflatten(0, shape[:2])
        bias = _with_score_bias(score_bias.compute(q, k, positions), rows)
    if has_flash_kernel(q, rows, prob):
        if bias is not None:
            # [1 or B*N, 1 or S, S] -> [1 or B, 1 or N, 1 or S, S]
            bias = bias.unflatten(0, (1, 1) if len(bias) == 1 else (rows.batch_size, num_heads))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    elif rows.kernel == "bmm":
        out = _by_matmul(q, k, v, bias, scale, prob)
    else:
        is_causal = rows.mask.is_causal and bias is None
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, dropout_p=prob, is_causal=is_causal, scale=scale
        )
    return out.transpose(1, 2).reshape(rows.batch_size * rows.width, num_heads, head_dim)


def _by_matmul(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, prob: float
) -> Tensor:
    """Matmul and softmax: q, k, v [B, N, S, D], bias [1 or B*N, 1 or S, S] -> [B, N, S, D]."""
    width = q.shape[2]
    by_head = (-1, *q.shape[2:])
    q, k, v_by_head = (x.reshape(by_head) for x in (q, k, v))  # [B*N, S, D]
    if bias is None:
        scores = torch.bmm(q * scale, k.transpose(1, 2))  # [B*N, S, S]
    else:
        bias = bias.expand(len(q), width, width)
        scores = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=scale)
    probs = dropout(torch.softmax(scores, dim=-1), prob, training=True)
    return torch.bmm(probs, v_by_head).view(v.shape)


def _with_score_bias(added: Tensor, rows: DenseRows) -> Tensor:
    """What is added to the scores in all, as the kernel takes it; `added` [B or 1, N, S, S]."""
    bias = rows.bias
    if bias is None and rows.mask.is_causal:
        # torch's kernel is told of a causal mask by a word alone, which stands beside no bias.
        unseen = masked_pairs(rows.width, rows.mask, added.device)
        added = added.masked_fill(unseen, -torch.inf)
    if rows.kernel == "sdpa":
        return added if bias is None else added + bias
    added = added.expand(rows.batch_size, *added.shape[1:]).flatten(0, 1)  # [B*N, S, S]
    return added if bias is None else added + bias


def _grouped(qkv: Tensor, layout: Layout, prob: float, inputs: AttentionInputs) -> Tensor:
    """Ragged stream in sorted groups, each padded to its longest sequence: `attention_of` each."""
    if _default_kernel(qkv.device) == "bmm":
        size = CPU_GROUP_SIZE
        multiple = CPU_WIDTH_MULTIPLE
        # What dropout draws depends on the groups.
        largest = CPU_EQUAL_WIDTHS if prob == 0.0 else size
    else:
        size = ACCELERATOR_GROUP_SIZE
        multiple = 1
        largest = size
    num_heads = qkv.shape[2]
    groups = layout.padded_groups(size, qkv.shape[0], multiple, largest)
    in_chunks = inputs.score_bias is None
    outputs = []
    parts = to_padded(qkv, groups).split([inner.num_slots for _, inner in groups.groups])
    for part, (start, inner) in zip(parts, groups.groups, strict=True):
        rows = dense_rows(inner, inputs.mask, num_heads, qkv.dtype, qkv.device, in_chunks)
        assert rows is not None
        of_group = inputs.at(groups.gather[start : start + inner.num_slots])
        of_group = of_group._replace(layout=rows)
        # `prob` is 0 already where nothing is dropped.
        outputs.append(attention_of(part, of_group, dropout_prob=prob, training=True))
    return from_padded(torch.cat(outputs), groups)


def has_flash_kernel(x: Tensor, rows: DenseRows, prob: float, *, is_turned: bool = False) -> bool:
    """Whether torch's flash kernel is faster than matmul and softmax for `x` on the CPU.

    `is_turned`: query and key are still to be turned by rotary positions.
    """
    least_width = FLASH_LEAST_WIDTH
    if torch.is_grad_enabled():
        least_width = FLASH_LEAST_WIDTH_IN_TRAINING
    if rows.kernel != "bmm" or prob > 0.0 or x.dtype not in least_width:
        return False
    if is_turned and rows.width < FLASH_LEAST_WIDTH_OF_TURNED:
        return False
    return rows.width >= least_width[x.dtype]


def has_varlen_kernel(q: Tensor, mask: Mask) -> bool:
    """Whether torch's variable-length kernel takes `q`.

    It raises where scaled_dot_product_attention would adapt.
    """
    if q.device.type != "cuda" or q.dtype not in (torch.bfloat16, torch.float16) or mask.blocks:
        return False
    loaded = _load_varlen()
    if loaded is None:
        return False
    _, parameters = loaded
    if mask.window is not None and "window_size" not in parameters:
        return False
    head_dim = q.shape[-1]
    # A compiler folds the properties, and not the capability, into a constant.
    is_ampere = torch.cuda.get_device_properties(q.device).major >= 8
    return is_ampere and head_dim % 8 == 0 and head_dim <= VARLEN_MAX_HEAD_DIM


def _varlen(q: Tensor, k: Tensor, v: Tensor, layout: Layout, mask: Mask) -> Tensor:
    """torch.nn.attention.varlen on q, k, v [T, N, D]; it has no dropout."""
    loaded = _load_varlen()
    assert loaded is not None
    kernel, parameters = loaded
    # torch 2.10 spells the causal mask is_causal, later ones spell it as a window that ends at the
    # query.
    options: dict[str, object] = {}
    if "is_causal" in parameters:
        options["is_causal"] = mask.is_causal
    if mask.window is not None or (mask.is_causal and not options):
        left = -1 if mask.window is None else mask.window  # -1: everything
        right = 0 if mask.is_causal else left
        options = {"window_size": (left, right)}
    bounds = layout.cu_seqlens
    longest = layout.max_seqlen
    return kernel(
        q.contiguous(), k.contiguous(), v.contiguous(), bounds, bounds, longest, longest, **options
    )


@lru_cache(maxsize=1)
def _load_varlen() -> tuple[Callable[..., Any], frozenset[str]] | None:
    """The kernel and its parameter names, imported when first wanted.

    None where torch lacks it (before 2.10).
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn, frozenset(inspect.signature(varlen_attn).parameters)


class _CpuAttention(torch.autograd.Function):
    """Attention of equal rows, forward and backward by hand around torch's own operations.

    It saves memory traffic: query, key and value are brought into matmul's order by one copy, and
    so are their gradients; both scales, of the scores and of dropout, cost nothing; query and key
    turn, and dropout's mask is drawn, in place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        batch_size: int,
        width: int,
        bias: Tensor | None,
        cos_sin: tuple[Tensor, Tensor] | None,
        levels: int,
    ) -> Tensor:
        _, _, num_heads, head_dim = qkv.shape
        ctx.shape = (batch_size, width, num_heads, head_dim)
        ctx.alpha = head_dim**-0.5
        # [T, 3, N, D] -> [3, B, N, S, D] -> three times [B*N, S, D], by one copy
        by_slot = qkv.view(batch_size, width, 3, num_heads, head_dim)
        by_head = by_slot.permute(2, 0, 3, 1, 4).clone(memory_format=torch.contiguous_format)
        ctx.cos_sin = cos_sin
        if cos_sin is not None:
            rotate_(by_head[:2], *cos_sin, 1.0)
        q, k, v = by_head.view(3, batch_size * num_heads, width, head_dim)
        if bias is None:
            scores = scaled_product(q, k.transpose(1, 2), ctx.alpha)
        else:
            added = bias.expand(len(q), width, width)
            scores = torch.baddbmm(added, q, k.transpose(1, 2), alpha=ctx.alpha)
        probs = torch.softmax(scores, dim=-1)
        mask = draw_dropout_bits(probs, levels)
        ctx.levels = levels
        ctx.save_for_backward(q, k, v, probs, mask)
        out = scaled_product(without_dropped(probs, mask), v, dropout_scale(levels))
        by_slot = out.view(batch_size, num_heads, width, head_dim).transpose(1, 2)
        return by_slot.reshape(batch_size * width, num_heads, head_dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, probs, mask = ctx.saved_tensors
        batch_size, width, num_heads, head_dim = ctx.shape
        grad_out = grads[0].view(ctx.shape).transpose(1, 2).reshape(q.shape)
        gradient = torch.empty((3, *q.shape), dtype=q.dtype)
        grad_scores = score_gradient(grad_out, v, probs, mask, ctx.levels, out=gradient[2])
        scaled_product(grad_scores, k, ctx.alpha, out=gradient[0])
        scaled_product(grad_scores.transpose(1, 2), q, ctx.alpha, out=gradient[1])
        by_head = gradient.view(3, batch_size, num_heads, width, head_dim)
        if ctx.cos_sin is not None:
            cos, sin = ctx.cos_sin
            rotate_(by_head[:2], cos, sin, -1.0)
        by_slot = by_head.permute(1, 3, 0, 2, 4)
        grad_qkv = by_slot.reshape(batch_size * width, 3, num_heads, head_dim)
        # A learned bias has the shape of the scores, and is added behind their scale.
        grad_bias = grad_scores if ctx.needs_input_grad[3] else None
        return grad_qkv, None, None, grad_bias, None, None


def score_gradient(
    grad_out: Tensor, v: Tensor, probs: Tensor, mask: Tensor | None, levels: int, *, out: Tensor
) -> Tensor:
    """The gradient of the scores from that of the output [N, S, D], by softmax and dropout.

    The gradient of the values is written to `out`.
    """
    scale = dropout_scale(levels)
    scaled_product(without_dropped(probs, mask).transpose(1, 2), grad_out, scale, out=out)
    grad_probs = without_dropped(scaled_product(grad_out, v.transpose(1, 2), scale), mask)
    return torch._softmax_backward_data(grad_probs, probs, -1, probs.dtype)


def scaled_product(left: Tensor, right: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """left [N, A, B] @ right [N, B, C] * scale, [N, A, C]; the scale costs nothing."""
    # With beta 0 the content of what is added is not read.
    added = left.new_empty(()).expand(*left.shape[:2], right.shape[2])
    return torch.baddbmm(added, left, right, beta=0.0, alpha=scale, out=out)


def has_fast_path(qkv: Tensor, prob: float) -> bool:
    """Whether the CPU's own attention can take it; a compiler does better with plain operations."""
    if qkv.device.type != "cpu" or qkv.dtype.itemsize not in (2, 4):
        return False
    if torch.compiler.is_compiling():
        return False
    return prob == 0.0 or has_fast_dropout(qkv, quantise_drop_prob(prob))
