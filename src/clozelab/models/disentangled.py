"""Disentangled attention (He et al. 2021, DeBERTa): tokens and distances have scores of their own.

A table has a vector for each bucket of distances. A layer's own matrices make a key and a query of
each. To the score of two tokens are added the query's product with the distance's key (c2p), and
the key's with the distance's query (p2c). All of them are divided by sqrt(D (1 + terms)).

Unusual: a row of products holds all distances in order, so that the scores of a row's keys stand
side by side in it, one number further for each query. A view of other strides takes them out, where
an index would pick them one by one.

Letters: T tokens in the stream, B sequences, S slots a row, N heads, D head dimension, H hidden
size, W = 2 S - 1 distances.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozelab.models.attention import (
    AttentionInputs,
    DenseRows,
    ScoreBias,
    scaled_product,
    score_gradient,
)
from clozelab.models.config import EncoderConfig
from clozelab.models.embeddings import Positions
from clozelab.models.encoder import Encoder, EncoderOutput, PostNorm, SelfAttention, layer_norm
from clozelab.models.heads import MaskedLMHead
from clozelab.models.layers import (
    Dropout,
    Embedding,
    Linear,
    activation,
    draw_dropout_bits,
    dropout_scale,
    initialise_,
    without_dropped,
)
from clozelab.models.layout import Layout, from_padded, to_padded

TERMS = ("c2p", "p2c")


@lru_cache(maxsize=64)
def distance_rows(width: int, buckets: int, reach: int) -> NDArray[np.int64]:
    """[2 width - 1]: the table's row of each distance, query less key, from width - 1 down.

    With `buckets` b, distances up to b / 2 have a row each, and further ones up to `reach` share
    rows by their logarithm; 0: each has its own up to `reach`. In fp32, as Hugging Face's, whose
    rounding decides which bucket a distance is in.

    Unusual: remembered for the process, so made without torch, whose modes, devices and compilers
    would leave their mark on what later forwards read.
    """
    distance = np.arange(width - 1, -width, -1)
    # Rows 0 ... span - 1 are of keys after the query, row span of itself, others of keys before.
    span = buckets or reach
    if buckets:
        # With 8 buckets: 0 1 2 3 4 alone, then 5, 6 and 7 for ever longer stretches.
        middle = buckets // 2
        size = np.maximum(np.abs(distance), middle) / middle
        share = np.log(size.astype(np.float32)) / np.log(np.float32((reach - 1) / middle))
        bucket = np.ceil(share * np.float32(middle - 1)).astype(np.int64) + middle
        distance = np.where(np.abs(distance) <= middle, distance, bucket * np.sign(distance))
    return (distance + span).clip(0, 2 * span - 1)


def by_distance(x: Tensor) -> Tensor:
    """[..., S, W] -> a view [..., S, S]: number j of row i is x[i, j - i + S - 1]."""
    # Of three slots, with d for the distance of key and query:
    #
    #     row   d = -2 -1  0  1  2
    #     0             .  .  a  b  c
    #     1             .  a  b  c  .
    #     2             a  b  c  .  .
    #
    # a, b, c are keys 0, 1, 2. A step down is one number less than a whole row, so the three stand
    # under each other, and nothing is copied.
    slots, width = x.shape[-2:]
    shape = (*x.shape[:-1], slots)
    strides = (*x.stride()[:-2], width - 1, 1)
    return x.as_strided(shape, strides, x.storage_offset() + slots - 1)


class DisentangledPositions(Positions):
    """A table of distances for all layers; options are called as in DeBERTa's config.json.

    `position_buckets`: see distance_rows. `max_relative_positions` below 1: the model's positions.
    `norm_rel_ebd`: layer_norm or none, of the table. `position_biased_input`: learned positions
    are added to the embeddings, too.
    """

    counts_slots = True
    has_layers_shape = True

    def __init__(
        self,
        config: EncoderConfig,
        pos_att_type: str = "c2p|p2c",
        position_buckets: int = 256,
        max_relative_positions: int = -1,
        norm_rel_ebd: str = "layer_norm",
        position_biased_input: bool = False,
    ) -> None:
        super().__init__()
        self.terms = pos_att_type.split("|")
        self.buckets = max(position_buckets, 0)
        self.reach = max_relative_positions
        if max_relative_positions < 1:
            self.reach = config.max_position_embeddings
        self._refuse(pos_att_type, norm_rel_ebd)
        self.relative = Embedding(2 * (self.buckets or self.reach), config.hidden_size)
        self.LayerNorm = layer_norm(config) if norm_rel_ebd == "layer_norm" else nn.Identity()
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.absolute = None
        if position_biased_input:
            self.absolute = Embedding(config.max_position_embeddings, config.embedding_size)

    def _refuse(self, pos_att_type: str, norm_rel_ebd: str) -> None:
        """ValueError names the option that cannot be."""
        if not set(self.terms) <= set(TERMS):
            raise ValueError(f"pos_att_type is {pos_att_type!r}: choose c2p|p2c, c2p or p2c")
        if norm_rel_ebd not in ("layer_norm", "none"):
            raise ValueError(f"norm_rel_ebd is {norm_rel_ebd!r}: choose layer_norm or none")
        if self.buckets and not 2 <= self.buckets < 2 * (self.reach - 1):
            raise ValueError(
                f"position_buckets is {self.buckets}: choose 2 or more, and below twice"
                f" max_relative_positions - 1, which is {self.reach - 1}"
            )

    def forward(self, position_ids: Tensor) -> Tensor | None:
        """int64 [T] -> [T, E]; None: nothing is added."""
        return None if self.absolute is None else self.absolute(position_ids)

    def score_bias(self, position_ids: Tensor) -> ScoreBias:
        scale = (1 + len(self.terms)) ** -0.5
        # The projections are a layer's: `bind` gives them.
        return ScoreBias(partial(distance_scores, {}), position_ids, scale=scale, bind=self.bind)

    def score_flops(self, seq_length: int) -> float:
        """Of a row of products half is for no key: not counted, as what a window hides."""
        return 2.0 * len(self.terms) * seq_length * self.relative.embedding_dim

    def bind(self, bias: ScoreBias, layer: SelfAttention, widest: int) -> ScoreBias:
        """What a layer adds to the scores of rows up to `widest` slots."""
        projected = self.project(layer, widest)
        compute = partial(distance_scores, projected)
        attend = partial(_disentangled_attention, projected, bias.scale)
        return bias._replace(compute=compute, attend=attend)

    def project(self, layer: SelfAttention, widest: int) -> dict[str, Tensor]:
        """By term, the distances' keys or queries [N, D, W], in the order that by_distance reads.

        They are scaled as the scores are.
        """
        table = self.relative.weight
        index = distance_rows(widest, self.buckets, self.reach)
        # Only the rows that so wide a row has; they follow each other.
        first = int(index[-1])
        last = int(index[0])
        rows = self.dropout(self.LayerNorm(table[first : last + 1]))
        of_distance = torch.from_numpy(index - first).to(rows.device)
        hidden = rows.shape[1]
        scale = (layer.head_dim * (1 + len(self.terms))) ** -0.5
        projected = {}
        for term in self.terms:
            # c2p: of query i and key j the distance i - j; p2c: of key i and query j, j - i.
            # A distance is a key to the queries of tokens, and a query to their keys; `block` is
            # the part of a layer's matrix of query, key and value that makes it.
            block = slice(hidden)
            order = of_distance.flip(0)
            if term == "c2p":
                block = slice(hidden, 2 * hidden)
                order = of_distance
            vectors = layer.project(rows, block).index_select(0, order) * scale
            projected[term] = vectors.view(-1, layer.num_heads, layer.head_dim).permute(1, 2, 0)
        return projected


def distance_scores(
    projected: dict[str, Tensor],
    q: Tensor,
    k: Tensor,
    positions: Tensor,  # noqa: ARG001
) -> Tensor:
    """q, k [B, N, S, D] and DisentangledPositions.project -> [B, N, S, S]."""
    slots = q.shape[2]
    added = []
    for term, vectors in projected.items():
        x = q if term == "c2p" else k
        # Attention maps ask in fp32, whatever the layer's projections are in.
        vectors = _of_row(vectors, slots).to(x.dtype)
        # All sequences in one product a head: [N, B*S, D] with [N, D, W].
        products = x.transpose(0, 1).flatten(1, 2) @ vectors
        scores = by_distance(products.unflatten(1, (-1, slots))).transpose(0, 1)
        added.append(scores if term == "c2p" else scores.transpose(2, 3))
    return sum(added[1:], added[0])


def _of_row(vectors: Tensor, slots: int) -> Tensor:
    """[N, D, W]: of vectors of a wider row's distances, those in the middle."""
    start = vectors.shape[2] // 2 - (slots - 1)
    return vectors[..., start : start + 2 * slots - 1]


def _disentangled_attention(
    projected: dict[str, Tensor], scale: float, qkv: Tensor, rows: DenseRows, levels: int
) -> Tensor:
    """qkv [T, 3, N, D] and DisentangledPositions.project -> [T, N, D]."""
    of_row = {term: _of_row(vectors, rows.width) for term, vectors in projected.items()}
    alpha = scale * qkv.shape[3] ** -0.5
    c2p = of_row.get("c2p")
    p2c = of_row.get("p2c")
    return _CpuDisentangledAttention.apply(qkv, c2p, p2c, rows, levels, alpha)


class _CpuDisentangledAttention(torch.autograd.Function):
    """Attention with scores of distances, forward and backward by hand, as attention.py's.

    Heads come first here, so that all sequences are one product with a head's distances.
    """

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        c2p: Tensor | None,
        p2c: Tensor | None,
        rows: DenseRows,
        levels: int,
        alpha: float,
    ) -> Tensor:
        _, _, num_heads, head_dim = qkv.shape
        size = rows.batch_size
        width = rows.width
        ctx.shape = (num_heads, size, width, head_dim)
        ctx.alpha = alpha
        ctx.levels = levels
        # [T, 3, N, D] -> three times [N, B, S, D], by one copy
        by_slot = qkv.view(size, width, 3, num_heads, head_dim)
        q, k, v = by_slot.permute(2, 3, 0, 1, 4).reshape(3, -1, width, head_dim)
        # Content to content; then both terms of distances are added in place, p2c to the transpose,
        # since there keys ask and queries are the columns.
        scores = scaled_product(q, k.transpose(1, 2), alpha)
        by_head = scores.view(num_heads, size, width, width)
        if rows.bias is not None:
            by_head += rows.bias.unflatten(0, (-1, min(len(rows.bias), num_heads))).transpose(0, 1)
        for x, vectors, added in ((q, c2p, by_head), (k, p2c, by_head.transpose(2, 3))):
            if vectors is not None:
                products = torch.bmm(x.view(num_heads, -1, head_dim), vectors)
                added += by_distance(products.view(num_heads, size, width, -1))
        probs = torch.softmax(scores, dim=-1)
        mask = draw_dropout_bits(probs, levels)
        ctx.save_for_backward(q, k, v, c2p, p2c, probs, mask)
        out = scaled_product(without_dropped(probs, mask), v, dropout_scale(levels)).view(ctx.shape)
        return out.permute(1, 2, 0, 3).reshape(-1, num_heads, head_dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, c2p, p2c, probs, mask = ctx.saved_tensors
        num_heads, size, width, head_dim = ctx.shape
        # From the output back: values, probabilities, scores, then whatever scores were made of.
        by_slot = grads[0].view(size, width, num_heads, head_dim)
        grad_out = by_slot.permute(2, 0, 1, 3).reshape(q.shape)
        gradient = torch.empty((3, *q.shape), dtype=q.dtype)
        grad_scores = score_gradient(grad_out, v, probs, mask, ctx.levels, out=gradient[2])
        by_head = grad_scores.view(num_heads, size, width, width)
        of_distances: list[Tensor | None] = []
        terms = ((q, c2p, by_head), (k, p2c, by_head.transpose(2, 3)))
        for x, (of_content, vectors, grad_added) in zip(gradient, terms, strict=False):
            if vectors is None:
                x.zero_()
                of_distances.append(None)
                continue
            # The view of the forward pass, written to: each score's gradient goes back to its
            # distance, and distances that a row has no key for keep zero.
            wide = grad_added.new_zeros(num_heads, size, width, 2 * width - 1)
            by_distance(wide).copy_(grad_added)
            wide = wide.view(num_heads, -1, 2 * width - 1)
            torch.bmm(wide, vectors.transpose(1, 2), out=x.view(num_heads, -1, head_dim))
            content = of_content.view(num_heads, -1, head_dim)
            of_distances.append(torch.bmm(content.transpose(1, 2), wide))
        # What content to content adds to the gradients of query and key.
        gradient[0].baddbmm_(grad_scores, k, alpha=ctx.alpha)
        gradient[1].baddbmm_(grad_scores.transpose(1, 2), q, alpha=ctx.alpha)
        by_slot = gradient.view(3, *ctx.shape).permute(2, 3, 0, 1, 4)
        grad_qkv = by_slot.reshape(-1, 3, num_heads, head_dim)
        return grad_qkv, *of_distances, None, None, None


class EnhancedMaskDecoder(MaskedLMHead):
    """Prediction of tokens from the last layer once more, twice, asked by absolute positions.

    He et al. 2021, section 3.2: keys and values are the states below the last layer; the queries
    are these plus learned positions, then what the first pass gives. The layer is the encoder's
    own, so that only the positions are further weights.
    """

    is_stock = False
    reads_hidden_states = True
    passes = 2

    def __init__(self, encoder: Encoder, generator: torch.Generator | None = None) -> None:
        config = encoder.config
        weight: Any = encoder.embeddings.word_embeddings.weight
        super().__init__(config, weight, generator)
        if not isinstance(encoder.layer[-1], PostNorm):
            raise ValueError("the enhanced mask decoder needs architecture.block PostNorm")
        self.position_embeddings = Embedding(config.max_position_embeddings, config.hidden_size)
        initialise_(self.position_embeddings, config.initializer_range, generator)

    def states(self, encoder: Encoder, output: EncoderOutput, batch: Mapping[str, Any]) -> Tensor:
        """[P, H]."""
        position_ids = batch["position_ids"]
        hidden = output.hidden_states[-2]
        rows = encoder.rows_of(hidden, batch["layout"])
        inputs = encoder.attention_inputs(position_ids, rows)[encoder.masks[-1]]
        # Here the model learns where in the text it stands: "a new store opened beside the
        # new mall" has one distance between either "new" and its noun.
        queries = hidden + self.position_embeddings(position_ids)
        for _ in range(self.passes):
            queries = encoder.layers()[-1](hidden, inputs, queries)
        return queries.index_select(0, batch["prediction_positions"])


class ConvolvedPostNorm(PostNorm):
    """BERT's layer; to the first one's output a convolution of its input is added, and a norm.

    `conv_kernel_size`: tokens that it sees, an odd number.
    """

    def __init__(
        self,
        config: EncoderConfig,
        layer_index: int,
        gated: bool = False,
        conv_kernel_size: int = 3,
        conv_act: str = "tanh",
    ) -> None:
        super().__init__(config, layer_index, gated)
        if conv_kernel_size < 1 or conv_kernel_size % 2 == 0:
            raise ValueError(f"conv_kernel_size is {conv_kernel_size}: give an odd number")
        self.conv = None
        if layer_index == 0:
            self.conv = Convolution(config, conv_kernel_size, conv_act)

    @property
    def reads_neighbours(self) -> bool:  # type: ignore[override]
        return self.conv is not None

    def forward(
        self, hidden: Tensor, inputs: AttentionInputs, queries: Tensor | None = None
    ) -> Tensor:
        """[T, H] -> [T, H]."""
        output = super().forward(hidden, inputs, queries)
        if self.conv is None or queries is not None:
            return output
        return self.conv(hidden, output, inputs)


class Convolution(nn.Module):
    """A window of tokens by one matrix, added to a layer's output."""

    def __init__(self, config: EncoderConfig, kernel_size: int, hidden_act: str) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        # A row for each output: its inputs one after the other, each with its window.
        self.dense = Linear(config.hidden_size * kernel_size, config.hidden_size)
        self.activation = activation(hidden_act)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.LayerNorm = layer_norm(config)

    def forward(self, hidden: Tensor, output: Tensor, inputs: AttentionInputs) -> Tensor:
        """The layer's input, which is zero in padding slots, and output, [T, H] -> [T, H]."""
        if inputs.mask.is_causal:
            raise ValueError("a causal encoder cannot have a convolution: it sees the next token")
        layout = inputs.layout
        groups = None
        if isinstance(layout, Layout):  # ragged: rows that end with zeros
            groups = layout.padded_groups(layout.batch_size, len(hidden))
            hidden = to_padded(hidden, groups)
            layout = groups.groups[0][1]
        rows = hidden.view(layout.batch_size, -1, hidden.shape[1])
        # As many zeros on each side as the window has neighbours there: the width stays.
        edge = self.kernel_size // 2
        padded = nn.functional.pad(rows, (0, 0, edge, edge))
        windows = padded.unfold(1, self.kernel_size, 1).flatten(2)  # [B, S, H * kernel size]
        convolved = self.dense(windows).flatten(0, 1)
        if groups is not None:
            convolved = from_padded(convolved, groups)
        return self.LayerNorm(output + self.activation(self.dropout(convolved)))
