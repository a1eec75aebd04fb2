"""Fresh weights for the top of a pre-trained encoder, before it is fine-tuned."""

from __future__ import annotations

from typing import Any

import torch

from clozelab.models.encoder import Encoder


def reinitialise_top(encoder: Encoder, num_layers: int, seed: int) -> None:
    """Give the top layers, the norm behind them and the pooler fresh weights, drawn by the seed.

    Zhang et al. 2021, "Revisiting Few-sample BERT Fine-tuning". ValueError for more layers than
    there are, and for layers that share their weights with one below.
    """
    depth = encoder.config.num_hidden_layers
    if num_layers > depth:
        raise ValueError(f"reinitialise_layers={num_layers}: the encoder has {depth} layers")
    layers = encoder.layers()
    lowest = depth - num_layers
    if 0 < lowest < depth and layers[lowest] is layers[lowest - 1]:
        raise ValueError(
            f"reinitialise_layers={num_layers}: the lowest of these layers shares its weights with"
            f" one below ({encoder.config.num_hidden_groups} sets of weights for {depth} layers)"
        )
    drawn = Encoder(encoder.config, torch.Generator().manual_seed(seed))
    # As many sets of weights of each direction.
    num_sets = len(dict.fromkeys(layers[lowest:]))
    stacks: list[tuple[Any, Any]] = [(encoder, drawn)]
    if encoder.backward_stack is not None:
        stacks.append((encoder.backward_stack, drawn.backward_stack))
    for stack, fresh in stacks:
        stack.layer[-num_sets:].load_state_dict(fresh.layer[-num_sets:].state_dict())
        stack.final_norm.load_state_dict(fresh.final_norm.state_dict())
    encoder.pooler.load_state_dict(drawn.pooler.state_dict())
    encoder.has_trained_pooler = False
