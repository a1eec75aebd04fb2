"""Token stream -> vectors: word + token type + position, LayerNorm, dropout; and position schemes.

A position scheme adds a vector to the embedding, or turns query and key inside attention
(`rotation`), or adds to the scores there (`score_bias`: relative, disentangled). What it tells
attention may differ by the layers' mask, for example in layers that see a window.

Letters: T tokens in the stream, E embedding size, N heads, D head dimension.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.models.attention import Mask, Rotation, ScoreBias
from clozelab.models.config import EncoderConfig
from clozelab.models.layers import Dropout, Embedding
from clozelab.models.layout import Layout

# of distances between tokens, as MPNet's class has them whatever config.json says
NUM_BUCKETS = 32
MAX_DISTANCE = 128


def sinusoids(num_positions: int, size: int) -> Tensor:
    """fp64 [positions, size]: sines in even columns, cosines in odd ones (Vaswani et al. 2017).

    As a start of learned positions they take small models off the plateau of the masked-LM loss.
    """
    position = torch.arange(num_positions, dtype=torch.float64)[:, None]
    frequency = torch.exp(
        torch.arange(0, size, 2, dtype=torch.float64) * (-math.log(10_000.0) / size)
    )
    table = torch.empty(num_positions, size, dtype=torch.float64)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency[: size // 2])
    return table


class Positions(nn.Module):
    """A scheme that learns nothing of a position, and tells attention nothing.

    `counts_slots`: distances are of slots, whatever the positions say. `has_layers_shape`: its
    weights are as wide as the layers, or one a head: what is added to the scores. `is_causal`: of
    the encoder as it reads now, which phases may change.
    """

    counts_slots: ClassVar[bool] = False
    is_causal: bool = False
    has_layers_shape: ClassVar[bool] = False

    def start(self, initializer_range: float) -> None:
        """Called after everything is initialised."""

    def tells_length(self, is_causal: bool) -> bool:  # noqa: ARG002
        """Whether every token is told how long its text is, where the encoder reads so."""
        return False

    def with_queries(self, hidden: Tensor, layout: Layout) -> Tensor:  # noqa: ARG002
        """[T, H] with what slots that do not see themselves, which only predict, start from."""
        return hidden

    def places(
        self,
        position_ids: Tensor,
        token_type_ids: Tensor,  # noqa: ARG002
        layout: Layout,  # noqa: ARG002
    ) -> Tensor:
        """int64 [T] each -> [T, ...]: what attention is told instead of `position_ids`."""
        return position_ids

    def rotation(self, position_ids: Tensor, mask: Mask) -> Rotation | None:  # noqa: ARG002
        """What query and key pass through in layers of this mask; `position_ids` int64 [T]."""
        return None

    def score_bias(self, position_ids: Tensor) -> ScoreBias | None:  # noqa: ARG002
        """What is added to the scores of every layer."""
        return None

    def score_flops(self, seq_length: int) -> float:  # noqa: ARG002
        """Of the products that it adds to one token's scores in a layer, forward alone."""
        return 0.0


class LearnedPositions(Positions, Embedding):
    """One learned vector a position, as BERT, from a normal or sinusoidal start.

    `after_padding`: the first is pad_token_id + 1, as in RoBERTa; the entries before it are never
    used.
    """

    def __init__(self, config: EncoderConfig, after_padding: bool = False) -> None:
        offset = config.pad_token_id + 1 if after_padding else 0
        super().__init__(config.max_position_embeddings + offset, config.embedding_size)
        self.offset = offset
        self.starts_sinusoidal = config.position_embedding_init == "sinusoidal"

    def start(self, initializer_range: float) -> None:
        """A sinusoidal start has the size of the other embeddings."""
        # On the meta device there are no values, and `arange` would import torch's compiler.
        if self.starts_sinusoidal and not self.weight.is_meta:
            with torch.no_grad():
                self.weight.copy_(sinusoids(*self.weight.shape) * (initializer_range * 2.0**0.5))

    def forward(self, position_ids: Tensor) -> Tensor:
        """int64 [T] -> [T, E]."""
        if self.offset:
            position_ids = position_ids + self.offset
        return super().forward(position_ids)


class BucketedPositions(LearnedPositions):
    """Learned positions, and a learned number a head and a bucket of distances in the scores.

    All layers share the numbers (Song et al. 2020; the buckets are those of Raffel et al. 2020).
    Half of the buckets are for keys before the query. Of these, half hold one distance each; the
    others grow with the distance, and the last one has no end. It begins below MAX_DISTANCE.
    """

    has_layers_shape: ClassVar[bool] = True
    buckets: Tensor

    def __init__(self, config: EncoderConfig, after_padding: bool = False) -> None:
        super().__init__(config, after_padding)
        self.relative_attention_bias = Embedding(NUM_BUCKETS, config.num_attention_heads)
        # From minus the longest distance to the longest one.
        longest = config.max_position_embeddings - 1
        ahead = torch.arange(-longest, longest + 1)
        self.register_buffer("buckets", distance_buckets(ahead), persistent=False)

    def score_bias(self, position_ids: Tensor) -> ScoreBias:
        return ScoreBias(self._bias, position_ids, reads_states=False)

    def _bias(self, q: None, k: None, positions: Tensor) -> Tensor:  # noqa: ARG002
        """int64 [B, S] -> [B or 1, N, S, S]."""
        # Rows of the same positions share one. A device would have to be waited for, and an export
        # cannot be asked.
        can_ask = positions.device.type == "cpu" and not torch.compiler.is_compiling()
        if can_ask and bool((positions == positions[:1]).all()):
            positions = positions[:1]
        # Buckets of all distances first, so that a pair needs one look-up instead of two.
        by_distance = self.relative_attention_bias(self.buckets)  # [distances, N]
        ahead = positions[:, None, :] - positions[:, :, None] + len(self.buckets) // 2
        return F.embedding(ahead, by_distance).permute(0, 3, 1, 2)


def distance_buckets(ahead: Tensor) -> Tensor:
    """The bucket of each distance from query to key, int64 of any shape."""
    # 0 to 7 are these distances, 8 to 15 grow by their logarithm, 16 and more are ahead.
    one_side = NUM_BUCKETS // 2
    num_exact = one_side // 2
    distance = ahead.abs()
    growth = torch.log(distance.float() / num_exact) / math.log(MAX_DISTANCE / num_exact)
    # A distance of 0 has no logarithm, and is exact.
    wide = num_exact + (growth.clamp(min=0.0) * (one_side - num_exact)).long()
    bucket = torch.where(distance < num_exact, distance, wide.clamp(max=one_side - 1))
    return bucket + one_side * (ahead > 0)


class SinusoidalPositions(Positions):
    """Fixed sines and cosines (Vaswani et al. 2017), added at the size of the other embeddings."""

    table: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        table = sinusoids(config.max_position_embeddings, config.embedding_size)
        table = table * (config.initializer_range * 2.0**0.5)
        self.register_buffer("table", table.float(), persistent=False)

    def forward(self, position_ids: Tensor) -> Tensor:
        """int64 [T] -> [T, E]."""
        return self.table.index_select(0, position_ids)


class RotaryPositions(Positions):
    """Su et al. 2021: query and key turn by an angle that grows with the position.

    `base` sets the wavelengths, `window_base` those of layers that see a window (None: the same).
    The head dimension must be even.
    """

    table: Tensor

    def __init__(
        self, config: EncoderConfig, base: float = 10_000.0, window_base: float | None = None
    ) -> None:
        super().__init__()
        if config.head_dim % 2:
            raise ValueError(
                f"rotary positions turn pairs of numbers, but heads have {config.head_dim} of them"
            )
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        positions = torch.arange(config.max_position_embeddings, dtype=torch.float64)
        angles = positions[:, None] * base**-exponents  # [positions, D / 2]
        table = torch.stack([angles.cos(), angles.sin()]).float()
        self.register_buffer("table", table, persistent=False)
        self.of_windows = None
        if window_base is not None:
            self.of_windows = RotaryPositions(config, window_base)

    def forward(self, position_ids: Tensor) -> None:  # noqa: ARG002
        """Nothing is added."""
        return

    def rotation(self, position_ids: Tensor, mask: Mask) -> Rotation | None:
        """int64 [T] -> cosines and sines [T, 1, D / 2]."""
        if self.of_windows is not None and mask.window is not None:
            return self.of_windows.rotation(position_ids, mask)
        cos, sin = self.table.index_select(1, position_ids).unsqueeze(2)
        return Rotation(cos, sin)


class Embeddings(nn.Module):
    """Word, token type and position, added up.

    Two encoders may share one, as ELECTRA's generator and discriminator do.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.word_embeddings = Embedding(config.vocab_size, config.embedding_size)
        self.position_embeddings = config.positions.build(config)
        self.token_type_embeddings = None
        if config.type_vocab_size:
            self.token_type_embeddings = Embedding(config.type_vocab_size, config.embedding_size)
        self.task_type_embeddings = None
        if config.task_type_vocab_size:
            self.task_type_embeddings = Embedding(
                config.task_type_vocab_size, config.embedding_size
            )
        self.LayerNorm = config.norm.build(config, config.embedding_size)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor) -> Tensor:
        """int64 [T] each -> [T, E]."""
        embedded = self.word_embeddings(input_ids)
        types = self.token_type_embeddings
        if types is not None:
            # With one type every token has it, whatever the batch says.
            has_one = types.num_embeddings == 1
            embedded = embedded + (types.weight[0] if has_one else types(token_type_ids))
        positions = self.position_embeddings(position_ids)
        if positions is not None:
            embedded = torch.add(embedded, positions)
        if self.task_type_embeddings is not None:
            embedded = embedded + self.task_type_embeddings.weight[0]
        return self.dropout(self.LayerNorm(embedded))

    @torch.no_grad()
    def tile_positions(self, trained: int, needed: int) -> None:
        """Starts positions trained to needed - 1 as copies of 1 to trained - 1, over and over.

        Position 0 is [CLS]'s own. For instances that become longer during training: positions that
        no gradient has reached are foreign to attention heads that have learnt to look at
        neighbours; copied ones work at once (Beltagy et al. 2020 extend 512 positions to 4,096 so).
        Schemes that learn nothing of a position need no copies.
        """
        table = self.position_embeddings
        if not isinstance(table, LearnedPositions):
            return
        usable = table.num_embeddings - table.offset
        if not 1 < trained < needed <= usable:
            raise ValueError(
                f"cannot extend {trained} trained positions to {needed}: the model has {usable}"
            )
        positions = torch.arange(trained, needed, device=table.weight.device)
        sources = 1 + (positions - 1) % (trained - 1)
        table.weight[table.offset + positions] = table.weight[table.offset + sources]
