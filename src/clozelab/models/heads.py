"""Output layers on an encoder, and what can stand before them: a mix of its layers, a BiLSTM.

Which heads a family of models has, and under which names, is in families/. A head that is one
matrix *is* a Linear; the head that predicts tokens holds the encoder's word embeddings (tied),
which its own weights leave out when saved. All arguments named `generator` are the source of fresh
weights; None means torch's global random state.

The mixes are the six choices of table 7 of the paper. Layer 0 is the embedding output (positions
and LayerNorm included), layer L the last; "all 12 layers" leaves layer 0 out. Weighted sums are
ELMo's (Peters et al. 2018, equation 1): a softmax over one learned number a layer, times one
learned scale. The LSTM is table 5's, on a causal encoder.

Letters: T tokens in the stream, P predicted positions, B sequences, S steps, E embedding size, H
hidden or input size, V vocabulary, U tokens, L layers of the encoder, C chosen layers, G hidden
size of one direction of an LSTM.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.models.config import EncoderConfig
from clozelab.models.kernels.linear_cross_entropy import (
    PredictionLoss,
    all_at_once,
    linear_cross_entropy,
)
from clozelab.models.layers import Dropout, Embedding, Linear, activation, dropout, initialise_
from clozelab.models.layout import Layout, from_padded, to_padded
from clozelab.text.did_you_mean import check_choice

if TYPE_CHECKING:
    from clozelab.models.encoder import Encoder, EncoderOutput


SPAN_PLACES = 64  # places in a span that have an embedding of their own


class PredictionTransform(nn.Module):
    """Dense, activation, LayerNorm before the vocabulary."""

    def __init__(self, config: EncoderConfig, hidden_act: str) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.embedding_size, config.use_bias)
        self.activation = activation(hidden_act)
        self.LayerNorm = config.norm.build(config, config.embedding_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """[P, H] -> [P, E]."""
        return self.LayerNorm(self.activation(self.dense(hidden)))


class VocabularyHead(nn.Module):
    """What predicts a token: `vector`, then a row for each entry of the vocabulary."""

    # Empty for a projection apart (folders.load_head).
    tied_parameters: tuple[str, ...] = ("word_embedding_weight",)
    word_embedding_weight: nn.Parameter  # [V, E]
    bias: Tensor  # [V]
    # Whether it reads `hidden_states` of the encoder's output, which are kept only then.
    reads_hidden_states = False
    is_stock = True  # whether classes of transformers have it
    compiled_loss: Any = None  # by `compile_loss`

    @abstractmethod
    def vector(self, hidden: Tensor) -> Tensor:
        """[P, inputs] -> [P, E]: what the rows of the vocabulary are multiplied by."""

    def forward(self, hidden: Tensor) -> Tensor:
        """[P, inputs] -> logits [P, V]."""
        return F.linear(self.vector(hidden), self.word_embedding_weight, self.bias)

    def loss(self, hidden: Tensor, labels: Tensor) -> PredictionLoss:
        """Sum of cross-entropies: hidden [P, inputs], labels int64 [P].

        It never holds all logits, unless it was compiled.
        """
        if self.compiled_loss is not None:
            loss: PredictionLoss = self.compiled_loss(self, hidden, labels)
            return loss
        return linear_cross_entropy(
            self.vector(hidden), self.word_embedding_weight, self.bias, labels
        )

    def compile_loss(self, **options: Any) -> None:
        """Lets torch.compile, with these options, make `loss` of all logits at once."""
        self.compiled_loss = torch.compile(_loss_at_once, **options)


def _loss_at_once(head: VocabularyHead, hidden: Tensor, labels: Tensor) -> PredictionLoss:
    return all_at_once(head.vector(hidden), head.word_embedding_weight, head.bias, labels)


class MaskedLMHead(VocabularyHead):
    """Prediction of tokens with tied embeddings, also left to right.

    `word_embedding_weight` is the encoder's parameter [V, E] itself. Some families have a
    `hidden_act` of their own.
    """

    transform: nn.Module

    def __init__(
        self,
        config: EncoderConfig,
        word_embedding_weight: nn.Parameter,
        generator: torch.Generator | None = None,
        hidden_act: str | None = None,
    ) -> None:
        super().__init__()
        self.transform = PredictionTransform(config, hidden_act or config.hidden_act)
        initialise_(self.transform, config.initializer_range, generator)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.word_embedding_weight = word_embedding_weight

    def states(
        self,
        encoder: Encoder,  # noqa: ARG002
        output: EncoderOutput,
        batch: Mapping[str, Any],
    ) -> Tensor:
        """[P, H]: what a batch's `prediction_positions` are predicted from.

        `output` has the states of all layers where the head reads them.
        """
        return output.sequence_output.index_select(0, batch["prediction_positions"])

    def vector(self, hidden: Tensor) -> Tensor:
        """[P, H] -> [P, E]."""
        return self.transform(hidden)


class OneDirectionLMHead(MaskedLMHead):
    """One head for both directions of an encoder, which reads the states of one, [P, H].

    Of the states of both, [P, 2 H], it takes the left-to-right half.
    """

    def vector(self, hidden: Tensor) -> Tensor:
        dense: Any = self.transform.dense
        return super().vector(hidden[:, : dense.in_features])


class SpanBoundaryHead(VocabularyHead):
    """A hidden token, from the two tokens around its span and its place in it (Joshi et al. 2020).

    Two dense layers with GELU and a norm each, then the word embeddings (tied). Places beyond the
    last embedding share it.
    """

    def __init__(
        self,
        config: EncoderConfig,
        word_embedding_weight: nn.Parameter,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        size = config.embedding_size
        self.input_size = 2 * config.hidden_size + size
        self.position_embeddings = Embedding(SPAN_PLACES, size)
        self.dense_in = Linear(self.input_size, config.hidden_size)
        self.norm_in = config.norm.build(config, config.hidden_size)
        self.dense_out = Linear(config.hidden_size, size)
        self.norm_out = config.norm.build(config, size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        initialise_(self, config.initializer_range, generator)
        self.word_embedding_weight = word_embedding_weight

    def states(self, sequence_output: Tensor, left: Tensor, right: Tensor, place: Tensor) -> Tensor:
        """[T, H] and int64 [P] each -> what `vector` reads, [P, 2 H + E].

        `left` and `right` are the slots outside the span, `place` counts from its first token.
        """
        # x0 [x1 x2 x3] x4: token x2 is asked of the states of x0 and x4, and of place 1.
        ends = [sequence_output.index_select(0, slots) for slots in (left, right)]
        places = self.position_embeddings(place.clamp(max=SPAN_PLACES - 1))
        return torch.cat([*ends, places], dim=1)

    def vector(self, hidden: Tensor) -> Tensor:
        """[P, 2 H + E] -> [P, E]."""
        inner = self.norm_in(F.gelu(self.dense_in(hidden)))
        return self.norm_out(F.gelu(self.dense_out(inner)))


class UntiedLMHead(MaskedLMHead):
    """Prediction of tokens by a matrix of its own, behind `transform` [P, H] -> [P, H]."""

    tied_parameters: tuple[str, ...] = ()

    def __init__(
        self,
        config: EncoderConfig,
        transform: nn.Module,
        has_bias: bool,
        generator: torch.Generator | None = None,
    ) -> None:
        # Without the parent's, which would tie the word embeddings.
        nn.Module.__init__(self)
        self.transform = transform
        projection = Linear(config.hidden_size, config.vocab_size, bias=False)
        initialise_(nn.ModuleList([transform, projection]), config.initializer_range, generator)
        weight: Any = projection.weight
        self.word_embedding_weight = weight
        zeros = torch.zeros(config.vocab_size)
        if has_bias:
            self.bias = nn.Parameter(zeros)
        else:
            # The loss adds one in any case.
            self.register_buffer("bias", zeros, persistent=False)


class ReplacedTokenHead(nn.Module):
    """One logit a token: above 0, the token is not the text's own but a generator's."""

    def __init__(self, config: EncoderConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(config.hidden_act)
        self.dense_prediction = Linear(config.hidden_size, 1)
        initialise_(self, config.initializer_range, generator)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, H] -> [T]."""
        return self.dense_prediction(self.activation(self.dense(hidden))).squeeze(-1)


class LinearHead(Linear):
    """A matrix on a pair's pooled output (two logits), on tokens (ends of a span), or wider.

    One label: a regression.
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_labels: int = 2,
        input_size: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(input_size or config.output_size, num_labels)
        self.dropout_prob = config.hidden_dropout_prob
        initialise_(self, config.initializer_range, generator)


class SequenceClassificationHead(LinearHead):
    """A LinearHead behind dropout."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, H] -> [B, num_labels], or of tokens."""
        return super().forward(dropout(x, self.dropout_prob, self.training))


class DenseClassificationHead(nn.Module):
    """A dense layer of its own instead of the pooler, then a matrix; dropout before both.

    `hidden_act`: the dense layer's own activation.
    """

    reads_token_states = True

    def __init__(
        self,
        config: EncoderConfig,
        num_labels: int,
        hidden_act: str,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.dense = Linear(config.output_size, config.output_size)
        self.activation = activation(hidden_act)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.out_proj = Linear(config.output_size, num_labels)
        initialise_(self, config.initializer_range, generator)

    def forward(self, token_states: Tensor) -> Tensor:
        """[B, H] -> [B, num_labels]."""
        hidden = self.activation(self.dense(self.dropout(token_states)))
        return self.out_proj(self.dropout(hidden))


class TransformedHead(nn.Module):
    """What stands before the vocabulary, then dropout and a matrix: ModernBERT's for all tasks.

    It begins as the release: the dense matrix is `dense_range` large, the last one width^-1/2.
    """

    reads_token_states = True

    def __init__(
        self,
        config: EncoderConfig,
        num_labels: int,
        hidden_act: str,
        dense_range: float,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.transform = PredictionTransform(config, hidden_act)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.out_proj = Linear(config.embedding_size, num_labels)
        initialise_(self.transform, dense_range, generator)
        initialise_(self.out_proj, config.hidden_size**-0.5, generator)

    def forward(self, states: Tensor) -> Tensor:
        """[B, H] -> [B, num_labels], or of tokens."""
        return self.out_proj(self.dropout(self.transform(states)))


LAST_FOUR = slice(-4, None)
# Choices -> which of the embedding output and the layers behind it they read.
FEATURES: Mapping[str, slice] = {
    "embeddings": slice(0, 1),
    "second_to_last": slice(-2, -1),
    "last": slice(-1, None),
    "weighted_sum_last_four": LAST_FOUR,
    "concat_last_four": LAST_FOUR,
    "weighted_sum_all": slice(1, None),
}


def feature_layers(features: str, num_hidden_layers: int) -> list[int]:
    """Numbers of the layers that a choice reads.

    ValueError for an unknown choice, or an encoder with too few layers.
    """
    check_choice("features", features, FEATURES)
    layers = list(range(num_hidden_layers + 1))[FEATURES[features]]
    if features != "embeddings" and layers[0] < 1:
        raise ValueError(
            f"features={features} needs more layers than this encoder's {num_hidden_layers}"
        )
    return layers


class FeatureMix(nn.Module):
    """[U, C, H] -> [U, output_size], by one of FEATURES."""

    def __init__(self, features: str, num_hidden_layers: int, hidden_size: int) -> None:
        super().__init__()
        num_layers = len(feature_layers(features, num_hidden_layers))
        self.output_size = hidden_size * (num_layers if features == "concat_last_four" else 1)
        self.layer_weights: nn.Parameter | None = None
        self.scale: nn.Parameter | None = None
        if features.startswith("weighted_sum"):
            self.layer_weights = nn.Parameter(torch.zeros(num_layers))
            self.scale = nn.Parameter(torch.ones(1))

    def forward(self, layers: Tensor) -> Tensor:
        if self.layer_weights is None or self.scale is None:
            return layers.flatten(1)
        return torch.einsum("uch,c->uh", layers, self.scale * self.layer_weights.softmax(0))


class BiLSTM(nn.Module):
    """[T, H] -> [T, 2 G]: forward direction first, as torch.nn.LSTM.

    It has torch's own fresh weights. Unusual: it packs nothing. Sequences are padded behind their
    end, and the backward direction is an ordinary LSTM over each sequence reversed within its own
    length, so neither direction sees padding before it has seen all tokens. torch's packed LSTM
    gives the same numbers 6 times as slowly on the CPU (16 x 150-256 tokens, 128 wide). Dropout is
    between stacked layers.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int, dropout_prob: float
    ) -> None:
        super().__init__()
        self.dropout_prob = dropout_prob
        self.layers = nn.ModuleList()
        for _ in range(num_layers):
            directions = nn.ModuleDict()
            for name in ("forward_direction", "backward_direction"):
                directions[name] = nn.LSTM(input_size, hidden_size, batch_first=True)
            self.layers.append(directions)
            input_size = 2 * hidden_size  # of the layer above

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """[T, H] -> fp32 [T, 2 G]; zero in padding slots."""
        groups = layout.padded_groups(layout.batch_size)
        rows = groups.groups[0][1]
        x = to_padded(x, groups).view(rows.batch_size, rows.max_seqlen, -1)  # [B, S, H]
        for number, layer in enumerate(self.layers):
            if number:
                x = dropout(x, self.dropout_prob, self.training)
            forwards, backwards = layer.children()
            # fp32 whatever autocast says: states are summed over hundreds of steps.
            with torch.autocast(x.device.type, enabled=False):
                x = x.float()
                left = forwards(x)[0]
                right = _reversed(backwards(_reversed(x, rows))[0], rows)
                x = torch.cat([left, right], dim=-1)
        return from_padded(x.flatten(0, 1), groups)


def _reversed(x: Tensor, rows: Layout) -> Tensor:
    """[B, S, ...]: each row read backwards within its length."""
    return x.flatten(0, 1).index_select(0, rows.reversal).view_as(x)
