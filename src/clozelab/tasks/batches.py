"""Batches of a task, and what a model says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clozelab.models.layout import Layout
from clozelab.tasks.sequences import Ints, Sequences

Batch = dict[str, Any]
# (numbers, values) of one batch, on the host: which examples (or words) they are, and what the
# model says of each.
BatchValues = tuple[Tensor, Tensor]


def make_batch(sequences: Sequences, index: Ints, targets: Mapping[str, Ints]) -> Batch:
    """The sequences at `index` as a torch batch, with their part of each target [N]."""
    arrays = sequences.gather(index)
    # The lengths become the layout, for attention; all else is a tensor.
    layout = Layout.ragged(arrays.pop("lengths"))
    arrays |= {name: values[index] for name, values in targets.items()}
    arrays["example_index"] = index
    batch: Batch = {}
    for name, array in arrays.items():
        batch[name] = torch.from_numpy(np.ascontiguousarray(array))
    batch["layout"] = layout
    return batch


def split_batch(batch: Batch, num_sequences: int) -> list[Batch]:
    """The tokens of a ragged batch in parts of so many sequences; the last may be smaller."""
    lengths = batch["layout"].lengths_list
    smaller = []
    end = 0
    for first in range(0, len(lengths), num_sequences):
        of_part = lengths[first : first + num_sequences]
        start = end
        end = start + sum(of_part)
        batch_part: Batch = {}
        for name in ("input_ids", "token_type_ids", "position_ids"):
            batch_part[name] = batch[name][start:end]
        batch_part["layout"] = Layout.ragged(of_part).to(batch_part["input_ids"].device)
        smaller.append(batch_part)
    return smaller


def apply_head_fp32(head: nn.Module, hidden: Tensor) -> Tensor:
    """The logits of an output layer, and a cross-encoder's activation."""
    return activate(head, logits_fp32(head, hidden))


def logits_fp32(head: nn.Module, hidden: Tensor) -> Tensor:
    """The output layer outside autocast.

    In bf16 neighbouring tokens would often have the very same logit.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        logits: Tensor = head(hidden.float())
        return logits


def activate(head: nn.Module, logits: Tensor) -> Tensor:
    """What a cross-encoder makes of its logits; those of other heads as they are."""
    activation = getattr(head, "output_activation", nn.Identity())
    activated: Tensor = activation(logits)
    return activated


def in_order(outputs: Sequence[BatchValues], number: int) -> np.ndarray:
    """[number, ...]: the values of all batches by their numbers, each of which occurs once."""
    if not number:
        return np.zeros(0, dtype=np.float32)
    index = torch.cat([numbers for numbers, _ in outputs]).numpy()
    values = torch.cat([values for _, values in outputs]).detach().numpy()
    assert len(np.unique(index)) == len(index) == number, "each one is scored exactly once"
    # values[i] is of example index[i].
    ordered = np.empty_like(values)
    ordered[index] = values
    return ordered
