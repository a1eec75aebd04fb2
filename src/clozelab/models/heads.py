"""Output layers on an encoder. Which of them a family of models has, and under which names, is in families/.

Unusual: a head that is one matrix *is* a Linear; the head that predicts tokens holds the encoder's word embeddings
(tied), which its own weights therefore leave out when saved.

Letters: T tokens in the stream, P predicted positions, B sequences, E embedding size, H hidden size, V vocabulary.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.models.config import EncoderConfig
from clozelab.models.kernels.cpu import Dropout
from clozelab.models.kernels.linear_cross_entropy import PredictionLoss, linear_cross_entropy
from clozelab.models.layers import Linear, activation, initialise_


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
        generator: source of the fresh weights; None means torch's global random state.
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

    def logits(self, hidden: Tensor) -> Tensor:
        """[P, H] -> [P, V]."""
        return F.linear(self.transform(hidden), self.word_embedding_weight, self.bias)

    def loss(self, hidden: Tensor, labels: Tensor) -> PredictionLoss:
        """Sum of cross-entropies: hidden [P, H], labels int64 [P]; never holds all logits."""
        states = self.transform(hidden)
        return linear_cross_entropy(states, self.word_embedding_weight, self.bias, labels, self.chunk_logits)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.logits(hidden)


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
        generator: source of the fresh weights; None means torch's global random state.
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
        self.activation = torch.tanh if hidden_act == "tanh" else activation(hidden_act)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.out_proj = Linear(config.hidden_size, num_labels)
        initialise_(self, config.initializer_range, generator)

    def forward(self, token_states: Tensor) -> Tensor:
        """[B, H] -> [B, num_labels]."""
        return self.out_proj(self.dropout(self.activation(self.dense(self.dropout(token_states)))))


class SpanHead(Linear):
    """Start and end logit of every token: [T, H] -> [T, 2].

    Args:
        config: the encoder's.
        input_size: None means the hidden size; another one when something stands between encoder and head.
        generator: source of the fresh weights; None means torch's global random state.
    """

    def __init__(
        self, config: EncoderConfig, input_size: int | None = None, generator: torch.Generator | None = None
    ) -> None:
        super().__init__(input_size or config.hidden_size, 2)
        initialise_(self, config.initializer_range, generator)
