"""Output layers on an encoder, and what can stand between it and a tagger: a mix of its layers, a bidirectional LSTM.

Which heads a family of models has, and under which names, is in families/. A head that is one matrix *is* a Linear; the
head that predicts tokens holds the encoder's word embeddings (tied), which its own weights leave out when saved. All
arguments named `generator` are the source of fresh weights; None means torch's global random state.

The mixes are the six choices of table 7 of the paper. Layer 0 is the embedding output (positions and LayerNorm
included), layer L the last. The paper does not say how its weighted sums are weighted; here as in ELMo (Peters et al.
2018, equation 1): a softmax over one learned number a layer, times one learned scale. "All 12 layers" leaves layer 0
out, as the name says. The LSTM is what table 5 puts on top of a left-to-right encoder.

Letters: T tokens in the stream, P predicted positions, B sequences, S steps, E embedding size, H hidden or input size,
V vocabulary, U tokens, L layers of the encoder, C chosen layers, G hidden size of one direction of an LSTM.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.models.config import EncoderConfig
from clozelab.models.kernels.linear_cross_entropy import PredictionLoss, linear_cross_entropy
from clozelab.models.layers import Dropout, Linear, activation, dropout, initialise_
from clozelab.models.layout import Layout, from_padded, to_padded


class PredictionTransform(nn.Module):
    """Dense, activation, LayerNorm before the vocabulary."""

    def __init__(self, config: EncoderConfig, hidden_act: str) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.embedding_size)
        self.activation = activation(hidden_act)
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor) -> Tensor:
        """[P, H] -> [P, E]."""
        return self.LayerNorm(self.activation(self.dense(hidden)))


class MaskedLMHead(nn.Module):
    """Prediction of tokens with tied embeddings; left-to-right prediction uses it too.

    Args:
        config: the encoder's.
        word_embedding_weight: the encoder's parameter [V, E] itself, not a copy.
        hidden_act: None: the encoder's. Some families always have "gelu" here.

    Attributes, set from outside: chunk_logits, the logits held at a time; None: the device's usual number.
    """

    tied_parameters: ClassVar[tuple[str, ...]] = ("word_embedding_weight",)

    def __init__(
        self,
        config: EncoderConfig,
        word_embedding_weight: nn.Parameter,
        generator: torch.Generator | None = None,
        hidden_act: str | None = None,
    ) -> None:
        super().__init__()
        self.chunk_logits: int | None = None
        self.transform = PredictionTransform(config, hidden_act or config.hidden_act)
        initialise_(self.transform, config.initializer_range, generator)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.word_embedding_weight = word_embedding_weight

    def forward(self, hidden: Tensor) -> Tensor:
        """[P, H] -> logits [P, V]."""
        return F.linear(self.transform(hidden), self.word_embedding_weight, self.bias)

    def loss(self, hidden: Tensor, labels: Tensor) -> PredictionLoss:
        """Sum of cross-entropies: hidden [P, H], labels int64 [P]; never holds all logits."""
        states = self.transform(hidden)
        return linear_cross_entropy(states, self.word_embedding_weight, self.bias, labels, self.chunk_logits)


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


class NextSentenceHead(Linear):
    """Two logits a pair from the pooled output; class 1 = B is a random segment."""

    def __init__(self, config: EncoderConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config.hidden_size, 2)
        initialise_(self, config.initializer_range, generator)


class SequenceClassificationHead(Linear):
    """Dropout and a matrix on the pooled output, on each token, or on what stands between encoder and head.

    Args:
        config: the encoder's.
        num_labels: classes; 1 for a regression.
        input_size: None means the hidden size.
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_labels: int,
        input_size: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(input_size or config.hidden_size, num_labels)
        self.dropout = Dropout(config.hidden_dropout_prob)
        initialise_(self, config.initializer_range, generator)

    def forward(self, pooled_output: Tensor) -> Tensor:
        """[B, H] -> [B, num_labels]."""
        return super().forward(self.dropout(pooled_output))


class SentenceOrderHead(SequenceClassificationHead):
    """Two logits a pair from the pooled output; class 1 = the segments are swapped. Dropout as ALBERT's."""

    def __init__(self, config: EncoderConfig, generator: torch.Generator | None = None) -> None:
        super().__init__(config, 2, generator=generator)


class DenseClassificationHead(nn.Module):
    """A dense layer of its own instead of the pooler, then a matrix; dropout before both.

    Arguments as SequenceClassificationHead's, and `hidden_act`: "tanh" or one of config.ACTIVATIONS.
    """

    reads_token_states: ClassVar[bool] = True

    def __init__(
        self, config: EncoderConfig, num_labels: int, hidden_act: str, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.activation = activation(hidden_act)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.out_proj = Linear(config.hidden_size, num_labels)
        initialise_(self, config.initializer_range, generator)

    def forward(self, token_states: Tensor) -> Tensor:
        """[B, H] -> [B, num_labels]."""
        return self.out_proj(self.dropout(self.activation(self.dense(self.dropout(token_states)))))


class SpanHead(Linear):
    """Start and end logit of every token: [T, H] -> [T, 2]. `input_size` as SequenceClassificationHead's."""

    def __init__(
        self, config: EncoderConfig, input_size: int | None = None, generator: torch.Generator | None = None
    ) -> None:
        super().__init__(input_size or config.hidden_size, 2)
        initialise_(self, config.initializer_range, generator)


FEATURES = (
    *("embeddings", "second_to_last", "last"),
    *("weighted_sum_last_four", "concat_last_four", "weighted_sum_all"),
)


def check_features(features: str) -> None:
    """ValueError for an unknown choice."""
    if features not in FEATURES:
        raise ValueError(f"features={features!r} is unknown; known: {', '.join(FEATURES)}")


def feature_layers(features: str, num_hidden_layers: int) -> list[int]:
    """Numbers of the layers that a choice reads; ValueError for an unknown choice or an encoder with too few layers."""
    check_features(features)
    last = num_hidden_layers
    layers = {
        "embeddings": [0],
        "second_to_last": [last - 1],
        "last": [last],
        "weighted_sum_all": list(range(1, last + 1)),
    }.get(features, list(range(last - 3, last + 1)))
    if features != "embeddings" and layers[0] < 1:
        raise ValueError(f"features={features} needs more layers than this encoder's {num_hidden_layers}")
    return layers


class FeatureMix(nn.Module):
    """[U, C, H] -> [U, output_size].

    Args:
        features: one of FEATURES.
        num_hidden_layers, hidden_size: the encoder's.
    """

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
    """[T, H] -> [T, 2 G]: forward direction first, as torch.nn.LSTM, with torch's own fresh weights.

    Unusual: it packs nothing. Sequences are padded behind their end, and the backward direction is an ordinary LSTM
    over each sequence reversed within its own length, so neither direction sees padding before it has seen all tokens.
    torch's packed LSTM gives the same numbers and takes 6 times as long on the CPU (16 sequences of 150-256 tokens, 128
    wide).

    Args:
        input_size: H.
        hidden_size: G, per direction.
        num_layers: stacked layers.
        dropout_prob: between layers.
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int, dropout_prob: float) -> None:
        super().__init__()
        self.dropout_prob = dropout_prob
        self.layers = nn.ModuleList(
            BiLSTMLayer(input_size if index == 0 else 2 * hidden_size, hidden_size) for index in range(num_layers)
        )

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """[T, H] -> fp32 [T, 2 G]; zero in padding slots."""
        groups = layout.padded_groups(layout.batch_size)
        group = groups.groups[0]

        def reversal_of() -> Tensor:
            """int64 [B, S, 1]: the slots of each row in reverse order within its length; padding stays where it is."""
            slots, last = torch.arange(group.width), torch.tensor(group.lengths)[:, None] - 1
            return torch.where(slots <= last, last - slots, slots)[:, :, None].to(x.device)

        reversal = layout.remember("reversal", reversal_of)
        x = to_padded(x, groups).view(group.batch_size, group.width, -1)  # [B, S, H]
        for index, layer in enumerate(self.layers):
            if index:
                x = dropout(x, self.dropout_prob, self.training)
            x = layer(x, reversal)
        return from_padded(x.flatten(0, 1), groups)


class BiLSTMLayer(nn.Module):
    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.forward_direction = nn.LSTM(input_size, hidden_size, batch_first=True)
        self.backward_direction = nn.LSTM(input_size, hidden_size, batch_first=True)

    def forward(self, x: Tensor, reversal: Tensor) -> Tensor:
        """[B, S, H], int64 [B, S, 1] -> [B, S, 2 G]."""
        # fp32 whatever autocast says: states are summed over hundreds of steps.
        with torch.autocast(x.device.type, enabled=False):
            x = x.float()
            left = self.forward_direction(x)[0]
            right = self.backward_direction(_reverse(x, reversal))[0]
            return torch.cat([left, _reverse(right, reversal)], dim=-1)


def _reverse(x: Tensor, reversal: Tensor) -> Tensor:
    """[B, S, K] -> [B, S, K]; its own inverse."""
    return x.gather(1, reversal.expand_as(x))
