"""One layer of an encoder: attention and feed-forward, each followed by its residual and LayerNorm.

Letters: T tokens in the stream, H hidden size, N heads, D head dimension.
"""

from __future__ import annotations

from torch import Tensor, nn

from clozelab.models.attention import DenseRows, Layout, attention_of
from clozelab.models.config import EncoderConfig
from clozelab.models.kernels.cpu import Dropout
from clozelab.models.layers import Linear, activation


class ResidualOutput(nn.Module):
    """Dense, dropout, add the residual, LayerNorm: how both halves of a layer end."""

    def __init__(self, input_size: int, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = Linear(input_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """[T, input size], [T, H] -> [T, H]."""
        return self.LayerNorm(self.dropout(self.dense(x)) + residual)


class SelfAttention(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.num_attention_heads, config.head_dim
        self.dropout_prob, self.is_causal = config.attention_probs_dropout_prob, config.is_causal
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = ResidualOutput(config.hidden_size, config)

    def forward(self, hidden: Tensor, layout: Layout | DenseRows) -> Tensor:
        """[T, H] -> [T, H]."""
        qkv = self.qkv(hidden).view(-1, 3, self.num_heads, self.head_dim)  # [T, 3, N, D]
        attended = attention_of(
            qkv, layout, dropout_prob=self.dropout_prob, is_causal=self.is_causal, training=self.training
        )
        return self.output(attended.flatten(1), hidden)


class Intermediate(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.intermediate_size)
        self.activation = activation(config.hidden_act)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, H] -> [T, intermediate size]."""
        return self.activation(self.dense(hidden))


class Layer(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.intermediate = Intermediate(config)
        self.output = ResidualOutput(config.intermediate_size, config)

    def forward(self, hidden: Tensor, layout: Layout | DenseRows) -> Tensor:
        """[T, H] -> [T, H]."""
        attended = self.attention(hidden, layout)
        return self.output(self.intermediate(attended), attended)
