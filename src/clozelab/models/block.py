"""One layer of an encoder: attention and a feed-forward half, each with its residual and LayerNorm.

Letters: T tokens in the stream, H hidden size, N heads, D head dimension.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from clozelab.models.attention import Context, attention_of
from clozelab.models.config import EncoderConfig
from clozelab.models.kernels.cpu import Dropout
from clozelab.models.layers import Linear, activation


class ResidualOutput(nn.Module):
    """Dense, dropout, add the residual, and a LayerNorm where that comes last: how both halves of a layer end."""

    def __init__(self, input_size: int, config: EncoderConfig, norm_last: bool) -> None:
        super().__init__()
        self.dense = Linear(input_size, config.hidden_size)
        self.LayerNorm = layer_norm(config) if norm_last else nn.Identity()
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """[T, input size], [T, H] -> [T, H]."""
        return self.LayerNorm(self.dropout(self.dense(x)) + residual)


class SelfAttention(nn.Module):
    def __init__(self, config: EncoderConfig, norm_last: bool) -> None:
        super().__init__()
        self.num_heads, self.head_dim = config.num_attention_heads, config.head_dim
        self.dropout_prob = config.attention_probs_dropout_prob
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = ResidualOutput(config.hidden_size, config, norm_last)

    def forward(self, hidden: Tensor, residual: Tensor, context: Context) -> Tensor:
        """[T, H] twice -> [T, H]."""
        qkv = self.qkv(hidden).view(-1, 3, self.num_heads, self.head_dim)  # [T, 3, N, D]
        attended = attention_of(qkv, context, dropout_prob=self.dropout_prob, training=self.training)
        return self.output(attended.flatten(1), residual)


class Intermediate(nn.Module):
    """Dense and activation; gated (Shazeer 2020, GeGLU): times a second dense, from one matrix of both."""

    def __init__(self, config: EncoderConfig, gated: bool) -> None:
        super().__init__()
        self.gated = gated
        self.dense = Linear(config.hidden_size, config.intermediate_size * (2 if gated else 1))
        self.activation = activation(config.hidden_act)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, H] -> [T, intermediate size]."""
        if not self.gated:
            return self.activation(self.dense(hidden))
        inner, gate = self.dense(hidden).chunk(2, dim=-1)
        return self.activation(inner) * gate


class PostNorm(nn.Module):
    """BERT's layer: each half ends with a LayerNorm.

    Args:
        config: the sizes.
        gated: see Intermediate.
    """

    needs_final_norm: ClassVar[bool] = False

    def __init__(self, config: EncoderConfig, gated: bool = False) -> None:
        super().__init__()
        self.attention = SelfAttention(config, norm_last=True)
        self.intermediate = Intermediate(config, gated)
        self.output = ResidualOutput(config.intermediate_size, config, norm_last=True)

    def forward(self, hidden: Tensor, context: Context) -> Tensor:
        """[T, H] -> [T, H]."""
        attended = self.attention(hidden, hidden, context)
        return self.output(self.intermediate(attended), attended)


class PreNorm(nn.Module):
    """Each half begins with a LayerNorm (Xiong et al. 2020); the encoder adds one after its last layer."""

    needs_final_norm: ClassVar[bool] = True

    def __init__(self, config: EncoderConfig, gated: bool = False) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = layer_norm(config), layer_norm(config)
        self.attention = SelfAttention(config, norm_last=False)
        self.intermediate = Intermediate(config, gated)
        self.output = ResidualOutput(config.intermediate_size, config, norm_last=False)

    def forward(self, hidden: Tensor, context: Context) -> Tensor:
        """[T, H] -> [T, H]."""
        attended = self.attention(self.attention_norm(hidden), hidden, context)
        return self.output(self.intermediate(self.feed_forward_norm(attended)), attended)


def layer_norm(config: EncoderConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
