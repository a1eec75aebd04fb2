"""What stands between an encoder and a tagger: a mix of its layers, and a bidirectional LSTM.

The mixes are the six choices of table 7 of the paper. Layer 0 is the embedding output (positions and LayerNorm
included), layer L the last. The paper does not say how its weighted sums are weighted; here as in ELMo (Peters et al.
2018, equation 1): a softmax over one learned number a layer, times one learned scale. "All 12 layers" leaves layer 0
out, as the name says. The LSTM is what table 5 puts on top of a left-to-right encoder.

Unusual: the LSTM packs nothing. Sequences are padded behind their end, and the backward direction is an ordinary LSTM
over each sequence reversed within its own length, so neither direction sees padding before it has seen all tokens.
torch's packed LSTM gives the same numbers and takes 6 times as long on the CPU (16 sequences of 150-256 tokens, 128
wide).

Letters: U tokens, L layers of the encoder, C chosen layers, H hidden or input size, T tokens in the stream, B
sequences, S steps, G hidden size of one direction.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clozelab.models.kernels.cpu import dropout
from clozelab.models.layout import Layout, PaddedGroup, from_padded, to_padded

FEATURES = (
    "embeddings",
    "second_to_last",
    "last",
    "weighted_sum_last_four",
    "concat_last_four",
    "weighted_sum_all",
)


def check_features(features: str) -> None:
    """ValueError for an unknown choice."""
    if features not in FEATURES:
        raise ValueError(f"features={features!r} is unknown; known: {', '.join(FEATURES)}")


def feature_layers(features: str, num_hidden_layers: int) -> list[int]:
    """Numbers of the layers that a choice reads; ValueError for an unknown choice or an encoder with too few layers."""
    last = num_hidden_layers
    layers = {
        "embeddings": [0],
        "second_to_last": [last - 1],
        "last": [last],
        "weighted_sum_last_four": list(range(last - 3, last + 1)),
        "concat_last_four": list(range(last - 3, last + 1)),
        "weighted_sum_all": list(range(1, last + 1)),
    }
    check_features(features)
    if features != "embeddings" and layers[features][0] < 1:
        raise ValueError(f"features={features} needs more layers than this encoder's {num_hidden_layers}")
    return layers[features]


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
    """[T, H] -> [T, 2 G]: forward direction first, as torch.nn.LSTM.

    Fresh weights are torch's own, from the global random state.

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
        reversal = layout.remember("reversal", lambda: _reversal(group).to(x.device))
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


def _reversal(group: PaddedGroup) -> Tensor:
    """int64 [B, S, 1]: the slots of each row in reverse order within its length; padding stays where it is."""
    slots = torch.arange(group.width)
    last = torch.tensor(group.lengths)[:, None] - 1
    return torch.where(slots <= last, last - slots, slots)[:, :, None]


def _reverse(x: Tensor, reversal: Tensor) -> Tensor:
    """[B, S, K] -> [B, S, K]; its own inverse."""
    return x.gather(1, reversal.expand_as(x))
