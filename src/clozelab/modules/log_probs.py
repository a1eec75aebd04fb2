"""Log-probabilities of tokens, from the states that predict them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from clozelab.models.kernels.linear_cross_entropy import CHUNK_LOGITS
from clozelab.training.runtime import onednn_fp32


def log_probs(head: Any, hidden: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
    """fp32 [P, 2] of states [P, H]: each label's log-probability, and whether it is the best.

    Logits are divided by the temperature first.

    Labels that are equally probable share the credit of being the best.
    """
    chunks = []
    rows = max(1, CHUNK_LOGITS // len(head.bias))
    # Where the forward is in bf16, so are the products' factors; sums and logits are fp32 all the
    # same.
    device_type = hidden.device.type
    product_library = onednn_fp32 if torch.is_autocast_enabled(device_type) else nullcontext
    with torch.autocast(device_type, enabled=False), product_library():
        states_and_labels = zip(hidden.float().split(rows), labels.split(rows), strict=True)
        for chunk_states, chunk_labels in states_and_labels:
            logits = head(chunk_states)  # [rows, V]
            if temperature != 1.0:
                logits = logits / temperature
            label_logits = logits.gather(1, chunk_labels[:, None])
            credit = (label_logits == logits.amax(1, keepdim=True)).float()
            # A model that says the same of all tokens knows none.
            best_rows = credit[:, 0].nonzero()[:, 0]
            if best_rows.numel():
                best = logits[best_rows]
                credit[best_rows] /= (best == best.amax(1, keepdim=True)).sum(1, keepdim=True)
            loss = nn.functional.cross_entropy(logits, chunk_labels, reduction="none")
            chunks.append(torch.cat([-loss[:, None], credit], dim=1))
    if not chunks:
        return torch.zeros(0, 2)
    return torch.cat(chunks)
