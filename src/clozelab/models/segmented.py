"""XLNet's layers (Yang et al. 2019): scores of distances (Dai et al. 2019), and of segments.

To the score of two tokens are added the query's product with the distance's key, and with a vector
that says whether both are of one segment. Each of the three products has a bias on the query.

Unusual: XLNet's texts end with [CLS], as in "A [SEP] B [SEP] [CLS]"; here it stands first, as in
every other model. Only distances and segments tell where a token stands, so [CLS] gets the last
position and a segment of its own, and the states are those of XLNet's order.

Letters: T tokens in the stream, B sequences, S slots a row, N heads, D head dimension, H hidden
size, W distances.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from clozelab.models.attention import AttentionInputs, Mask, ScoreBias
from clozelab.models.config import EncoderConfig
from clozelab.models.embeddings import Positions, sinusoids
from clozelab.models.encoder import Block, Intermediate, ResidualOutput, SelfAttention
from clozelab.models.layers import Dropout, Embedding, Linear
from clozelab.models.layout import Layout

CLS_SEGMENT = 2  # of a pair's texts the segments are 0 and 1


# Parts that go together.
PARTS = {
    "positions": f"{__name__}.SegmentedDistances",
    "block": f"{__name__}.SegmentedPostNorm",
    "attention": "clozelab.models.attention.FullAttention",
}


def _check_parts(config: EncoderConfig) -> None:
    """ValueError where one of XLNet's parts would stand without the others."""
    own = {name: getattr(config, name).target for name in PARTS}
    if own != PARTS or config.model_type != "xlnet":
        raise ValueError(
            "SegmentedDistances, SegmentedPostNorm and FullAttention go together, and with"
            " architecture.model_type xlnet: choose architecture=xlnet"
        )
    if config.num_directions == 2:
        raise ValueError("an XLNet has one direction: choose architecture.num_directions 1")


class SegmentedDistances(Positions):
    """Sines and cosines of distances, and what a query starts from.

    Of a causal encoder [CLS] stays first: behind the text it would tell how long that is.
    """

    has_layers_shape: ClassVar[bool] = True
    table: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        _check_parts(config)
        self.tells_length = not config.is_causal
        self.query = Embedding(1, config.embedding_size)
        self.dropout = Dropout(config.hidden_dropout_prob)
        # Distances 0, 1, ... have sines, then cosines; of negative ones the sines are negative.
        ahead = sinusoids(config.max_position_embeddings, config.hidden_size)
        sines = ahead[:, 0::2]
        cosines = ahead[:, 1::2]
        before = torch.cat([-sines, cosines], dim=1).flip(0)
        table = torch.cat([before[:-1], torch.cat([sines, cosines], dim=1)])
        self.register_buffer("table", table.float(), persistent=False)

    def forward(self, position_ids: Tensor) -> None:  # noqa: ARG002
        """Nothing is added."""
        return

    def with_queries(self, embedded: Tensor, is_query: Tensor) -> Tensor:
        return torch.where(is_query[:, None], self.query.weight.to(embedded.dtype), embedded)

    def places(self, position_ids: Tensor, token_type_ids: Tensor, layout: Layout) -> Tensor:
        """int64 [T] each -> [T, 2]: where each token stands in XLNet's order, and its segment."""
        # [CLS] a b [SEP] have positions 0 1 2 3 here, and 3 0 1 2 there.
        is_cls = position_ids == 0
        if self.tells_length and position_ids.device.type != "meta":
            last = layout.last_positions(position_ids)
            position_ids = torch.where(is_cls, last, position_ids - 1)
        segments = token_type_ids.masked_fill(is_cls, CLS_SEGMENT)
        return torch.stack([position_ids, segments], dim=1)

    def score_bias(self, position_ids: Tensor, mask: Mask) -> ScoreBias:  # noqa: ARG002
        """`position_ids` are `places`."""
        # All layers drop the same of the table.
        bind: Any = partial(self.bind, self.dropout(self.table))
        # The scores are a layer's: `bind` gives them.
        return ScoreBias(bind, position_ids, bind=bind)

    def bind(
        self, table: Tensor, bias: ScoreBias, layer: SegmentedAttention, widest: int
    ) -> ScoreBias:
        """What a layer adds to the scores of rows up to `widest` slots."""
        middle = len(table) // 2
        reach = min(widest - 1, middle)
        rows = table[middle - reach : middle + reach + 1]
        if rows.device.type == "meta":
            # Once a batch, which cost.py does not count; nor the distances that no key has.
            keys = rows.new_empty(layer.num_heads, layer.head_dim, widest)
        else:
            keys = layer.distance(rows).view(len(rows), layer.num_heads, -1).permute(1, 2, 0)
        return bias._replace(compute=partial(layer.added_scores, keys))


class SegmentedAttention(SelfAttention):
    """Without biases of query, key and value; `biases` are of content, distance and segment."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(replace(config, use_bias=False), norm_last=True)
        self.distance = Linear(config.hidden_size, config.hidden_size, bias=False)
        self.biases = Embedding(3, config.hidden_size)
        self.segments = Embedding(2, config.hidden_size)  # of the same one, and of others

    def added_scores(self, keys: Tensor, q: Tensor, k: Tensor, places: Tensor) -> Tensor:
        """q, k [B, N, S, D], keys of distances [N, D, W] and places [B, S, 2] -> [B, N, S, S]."""
        scale = self.head_dim**-0.5
        shape = (self.num_heads, -1, self.head_dim)
        biases = (self.biases.weight * scale).to(q.dtype).view(3, *shape)
        segments = self.segments.weight.to(q.dtype).view(2, *shape[::2]).permute(1, 2, 0)
        q = q * scale
        slots = q.shape[2]
        by_content = biases[0] @ k.transpose(2, 3)  # [B, N, 1, S]
        by_segment = (q + biases[2]) @ segments  # [B, N, S, 2]
        if q.device.type == "meta":
            return (q + biases[1]) @ keys[..., :slots]
        by_distance = (q + biases[1]) @ keys.to(q.dtype)  # [B, N, S, W]
        position, segment = places.unbind(-1)
        # In the middle stands the distance of a token to itself.
        index = position[:, :, None] - position[:, None, :] + keys.shape[2] // 2
        by_distance = by_distance.gather(3, index[:, None].expand(-1, self.num_heads, -1, -1))
        is_other = (segment[:, :, None] != segment[:, None, :])[:, None]
        of_segments = torch.where(is_other, by_segment[..., 1:], by_segment[..., :1])
        return by_distance + of_segments + by_content


class SegmentedPostNorm(Block):
    """BERT's layer with XLNet's attention, and dropout between its two last matrices, too."""

    embedding_norm = False

    def __init__(self, config: EncoderConfig, layer_index: int) -> None:  # noqa: ARG002
        super().__init__()
        _check_parts(config)
        self.attention = SegmentedAttention(config)
        self.intermediate = Intermediate(config, gated=False)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.output = ResidualOutput(config.intermediate_size, config, norm_last=True)

    @classmethod
    def behind_last(cls, config: EncoderConfig) -> Any:
        return Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, inputs: AttentionInputs) -> Tensor:
        """[T, H] -> [T, H]."""
        attended = self.attention(hidden, hidden, inputs)
        return self.output(self.dropout(self.intermediate(attended)), attended)
