"""XLNet's layers (Yang et al. 2019): scores of distances (Dai et al. 2019), and of segments.

The score of two tokens sums three products of the query: with the key, with a key of the distance,
and with a vector that says whether both are of one segment. Each product has a learned bias, which
is added to the query.

Unusual: XLNet's texts end with [CLS], as in A [SEP] B [SEP] [CLS]; here it stands first, as in all
other models. Only distances and segments tell where a token stands, so [CLS] gets the last position
and a segment of its own, and the states are those of XLNet's order.

Letters: T tokens in the stream, B sequences, S slots a row, N heads, D head dimension, H hidden
size, W distances.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from clozelab.models.attention import AttentionInputs, ScoreBias
from clozelab.models.config import EncoderConfig
from clozelab.models.embeddings import Positions
from clozelab.models.encoder import Block, Intermediate, ResidualOutput, SelfAttention
from clozelab.models.layers import Dropout, Embedding, Linear
from clozelab.models.layout import Layout
from clozelab.models.trained import freeze

CLS_SEGMENT = 2  # of a pair's texts the segments are 0 and 1
# What goes together.
PARTS = {
    "positions": f"{__name__}.SegmentedDistances",
    "block": f"{__name__}.SegmentedPostNorm",
    "attention": "clozelab.models.attention.FullAttention",
}


def _check_parts(config: EncoderConfig) -> None:
    """ValueError where one of XLNet's parts would stand without the others."""
    parts = {name: getattr(config, name).target for name in PARTS}
    if (parts, config.model_type, config.num_directions) != (PARTS, "xlnet", 1):
        raise ValueError(
            "SegmentedDistances, SegmentedPostNorm and FullAttention go together, in one direction"
            " and with model_type xlnet: choose architecture=xlnet"
        )


class SegmentedDistances(Positions):
    """Sines and cosines of distances, and what a query starts from: a slot that only predicts.

    Of a causal encoder [CLS] stays first: behind the text it would tell how long that is.
    """

    has_layers_shape: ClassVar[bool] = True
    table: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        _check_parts(config)
        self.is_causal = config.is_causal
        # Trained where an objective says so: elsewhere DDP would wait for its gradient.
        self.query = Embedding(1, config.hidden_size)
        freeze(self.query.parameters())
        self.dropout = Dropout(config.hidden_dropout_prob)
        # A distance is the query's position less the key's; the most negative one stands first.
        reach = config.max_position_embeddings - 1
        distances = torch.arange(-reach, reach + 1, dtype=torch.float64)
        exponents = torch.arange(0, config.hidden_size, 2) / config.hidden_size
        angles = distances[:, None] * 10_000.0**-exponents
        table = torch.cat([angles.sin(), angles.cos()], dim=1).float()
        self.register_buffer("table", table, persistent=False)

    def tells_length(self, is_causal: bool) -> bool:
        return not is_causal

    def forward(self, position_ids: Tensor) -> None:
        """Nothing is added."""

    def with_queries(self, hidden: Tensor, layout: Layout) -> Tensor:
        if layout.visibility is None:
            return hidden
        sees_itself = layout.visibility.diagonal(dim1=1, dim2=2).reshape(-1, 1)
        queries = self.dropout(self.query.weight.expand_as(hidden))
        return torch.where(sees_itself, hidden, queries)

    def places(self, position_ids: Tensor, token_type_ids: Tensor, layout: Layout) -> Tensor:
        """int64 [T] each -> [T, 2]: where each token stands in XLNet's order, and its segment."""
        if layout.row_slots is not None:
            position_ids = position_ids.masked_fill(layout.key_padding().flatten(), 0)
        is_cls = position_ids == 0
        segments = token_type_ids.masked_fill(is_cls, CLS_SEGMENT)
        if self.tells_length(self.is_causal):
            # [CLS] a b [SEP] have positions 0 1 2 3 here, and 3 0 1 2 there.
            owner = is_cls.cumsum(0) - 1
            last = torch.zeros_like(position_ids).scatter_reduce(0, owner, position_ids, "amax")
            position_ids = torch.where(is_cls, last[owner], position_ids - 1)
        return torch.stack([position_ids, segments], dim=1)

    def score_flops(self, seq_length: int) -> float:
        """With distances, of which S belong to a key, two segments, and a bias with the key."""
        return 2.0 * (seq_length + 3) * self.query.embedding_dim

    def score_bias(self, position_ids: Tensor) -> ScoreBias:
        """Here `position_ids` are what `places` has made of them."""
        # The table's dropout is drawn once for all layers. Each makes scores of its own from it.
        bind: Any = partial(_bind, self.dropout(self.table))
        return ScoreBias(bind, position_ids, bind=bind)


def _bind(table: Tensor, bias: ScoreBias, layer: SegmentedAttention, widest: int) -> ScoreBias:
    """What a layer adds to the scores of rows up to `widest` slots."""
    middle = len(table) // 2
    reach = min(widest - 1, middle)
    keys = layer.distance(table[middle - reach : middle + reach + 1])
    return bias._replace(compute=partial(layer.added_scores, keys))


class SegmentedAttention(SelfAttention):
    """Attention with three biases on the query: by content, by distance and by segment.

    Weight decay leaves them alone. The matrices of query, key and value have no bias.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(replace(config, use_bias=False), norm_last=True)
        self.distance = Linear(config.hidden_size, config.hidden_size, bias=False)
        self.segments = Embedding(2, config.hidden_size)  # of the same one, and of others
        # By content, distance and segment; the names are those of transformers.
        self.r_w_bias = nn.Parameter(torch.zeros(config.hidden_size))
        self.r_r_bias = nn.Parameter(torch.zeros(config.hidden_size))
        self.r_s_bias = nn.Parameter(torch.zeros(config.hidden_size))

    def added_scores(self, keys: Tensor, q: Tensor, k: Tensor, places: Tensor) -> Tensor:
        """q, k [B, N, S, D], keys of distances [W, H] and places [B, S, 2] -> [B, N, S, S]."""
        shape = (self.num_heads, 1, self.head_dim)
        keys = keys.to(q.dtype).view(-1, *shape[::2]).permute(1, 2, 0)  # [N, D, W]
        segments = self.segments.weight.view(-1, *shape[::2]).permute(1, 2, 0)
        by_content = self.r_w_bias.view(shape) @ k.transpose(2, 3)  # [B, N, 1, S]
        by_segment = (q + self.r_s_bias.view(shape)) @ segments  # [B, N, S, 2]
        of_distance = q + self.r_r_bias.view(shape)
        by_distance = of_distance @ keys  # [B, N, S, W]
        position, segment = places.unbind(-1)
        # In the middle stands the distance of a token to itself.
        index = position[:, :, None] - position[:, None, :] + keys.shape[2] // 2
        by_distance = by_distance.gather(3, index[:, None].expand(-1, q.shape[1], -1, -1))
        is_other = (segment[:, :, None] != segment[:, None, :])[:, None]
        by_segment = torch.where(is_other, by_segment[..., 1:], by_segment[..., :1])
        return (by_content + by_distance + by_segment) * self.head_dim**-0.5


class SegmentedPostNorm(Block):
    """BERT's layer with XLNet's attention, and dropout between its two last matrices, too."""

    embedding_norm = False
    reads_some_slots = False  # the dropout behind its last layer draws for all

    def __init__(self, config: EncoderConfig, layer_index: int) -> None:  # noqa: ARG002
        super().__init__()
        _check_parts(config)
        self.attention = SegmentedAttention(config)
        self.intermediate = Intermediate(config, gated=False)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.output = ResidualOutput(
            config.intermediate_size, config, True, config.feed_forward_adapter
        )

    @classmethod
    def build_final_norm(cls, config: EncoderConfig) -> nn.Module:
        return Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, inputs: AttentionInputs) -> Tensor:
        """[T, H] -> [T, H]."""
        attended = self.attention(hidden, hidden, inputs)
        return self.output(self.dropout(self.intermediate(attended)), attended)
