"""What a frozen encoder's layers give a tagger: which of them, and how they become one vector a token.

The six choices of table 7 of the paper. Layer 0 is the embedding output (positions and LayerNorm included), layer L the
last. The paper does not say how its weighted sums are weighted; here as in ELMo (Peters et al. 2018, equation 1): a
softmax over one learned number a layer, times one learned scale. "All 12 layers" leaves layer 0 out, as the name says.

Letters: U tokens, L layers of the encoder, C chosen layers, H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
