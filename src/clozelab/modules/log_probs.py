"""Log-probabilities of tokens, from the states that predict them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clozelab.models.kernels.linear_cross_entropy import CACHED_LOGITS, CHUNK_LOGITS
from clozelab.training.runtime import onednn_fp32

# Rows of a block of logits on a CPU, which is 2,048 entries of the vocabulary wide.
BLOCK_ROWS = 256


def log_probs(head: Any, hidden: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
    """fp32 [P, 2] of states [P, H]: each label's log-probability, and whether it is the best.

    Logits are divided by the temperature first.

    Labels that are equally probable share the credit of being the best.
    """
    vocab_size = len(head.bias)
    if hidden.device.type == "cpu":
        rows = BLOCK_ROWS
        entries = CACHED_LOGITS // BLOCK_ROWS
    else:
        rows = max(1, CHUNK_LOGITS // vocab_size)
        entries = vocab_size
    # Where the forward is in bf16, so are the products' factors; sums and logits are fp32 all the
    # same.
    device_type = hidden.device.type
    product_library = onednn_fp32 if torch.is_autocast_enabled(device_type) else nullcontext
    chunks = []
    with torch.autocast(device_type, enabled=False), product_library():
        for chunk_hidden, chunk_labels in zip(hidden.split(rows), labels.split(rows), strict=True):
            softmax = _Softmax(chunk_labels[:, None])
            vector = head.vector(chunk_hidden.float())
            for start in range(0, vocab_size, entries):
                block = slice(start, start + entries)
                logits = F.linear(vector, head.word_embedding_weight[block], head.bias[block])
                if temperature != 1.0:
                    logits /= temperature
                softmax.add(logits, start)
            chunks.append(softmax.label_scores())
    return torch.cat(chunks)


class _Softmax:
    """The softmax over a vocabulary whose logits come in blocks, of labels [P, 1].

    So logits are read while they are in the cache, and are not kept.
    """

    def __init__(self, labels: Tensor) -> None:
        self.labels = labels
        self.label_logits = torch.zeros_like(labels, dtype=torch.float32)
        self.best = torch.full_like(self.label_logits, -torch.inf)
        self.num_best = torch.zeros_like(self.label_logits)
        self.log_sums: list[Tensor] = []  # of each block, log(sum(exp(logits)))

    def add(self, logits: Tensor, start: int) -> None:
        """Logits [P, B] of the entries from `start` on, which are overwritten."""
        place = self.labels - start
        labelled = ((place >= 0) & (place < logits.shape[1])).nonzero()[:, 0]
        self.label_logits[labelled] = logits[labelled].gather(1, place[labelled])

        best = logits.amax(1, keepdim=True)
        ratios = logits.sub_(best).exp_()  # to the probability of the block's best
        self.log_sums.append(best + ratios.sum(1, keepdim=True).log())

        self.num_best[best > self.best] = 0.0
        self.best = torch.maximum(self.best, best)
        at_best = (best == self.best).nonzero()[:, 0]
        # Ratios of 1 stay, and all others become 0. Comparing numbers would take three times as
        # long.
        self.num_best[at_best] += ratios[at_best].floor_().sum(1, keepdim=True)

    def label_scores(self) -> Tensor:
        """fp32 [P, 2]: each label's log-probability, and its share of the credit for the best."""
        log_probs = self.label_logits - torch.cat(self.log_sums, dim=1).logsumexp(1, keepdim=True)
        # Shared among equals: a model that says the same of all tokens knows none.
        credit = (self.label_logits == self.best) / self.num_best
        return torch.cat([log_probs, credit], dim=1)
