"""Negatives for queries, found by an encoder that is not trained yet.

Letters: N examples, B of a batch, K texts of each (query, passage, negatives), S sequences, H
hidden size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from clozelab.models.encoder import Encoder
from clozelab.tasks.batches import in_order, make_batch
from clozelab.tasks.sequences import Ints, Sequences, TokenSequences, token_budget_batches

log = logging.getLogger(__name__)
QUERIES_AT_ONCE = 256


@dataclass(frozen=True)
class TextGroups(Sequences):
    """Examples of several sequences each, which examples may share."""

    sequences: TokenSequences  # [S]
    members: Ints  # [N, K]
    numbers: Ints  # [S]; the same number is the same text

    @property
    def lengths(self) -> Ints:
        return self.sequences.lengths[self.members].sum(axis=1)

    def gather(self, index: Ints) -> dict[str, np.ndarray]:
        """The sequences' arrays, and `text_numbers` [B, K]."""
        members = self.members[index]
        return self.sequences.gather(members.ravel()) | {"text_numbers": self.numbers[members]}


@torch.inference_mode()
def encode_texts(
    sequences: Sequences,
    *,
    encoder: Encoder,
    device: torch.device,
    pooling: str,
    max_tokens: int,
) -> Tensor:
    """fp32 [S, H]: vectors of length 1, in fp32 whatever precision training has."""
    outputs = []
    with torch.autocast(device.type, enabled=False):
        for index in token_budget_batches(sequences.lengths, max_tokens):
            batch = make_batch(sequences, index, {})
            batch = {name: value.to(device) for name, value in batch.items()}
            hidden = encoder.read(batch).sequence_output
            states = encoder.sentence_states(hidden, batch["layout"], pooling)
            outputs.append((batch["example_index"].cpu(), states.cpu()))
    vectors = torch.from_numpy(in_order(outputs, len(sequences)))
    return F.normalize(vectors.to(device), dim=1)


def mine(
    groups: TextGroups, encode: Callable[[Sequences], Tensor], num_negatives: int, num_skipped: int
) -> Ints:
    """[N, num_negatives]: sequences of the passages that are most like each example's query.

    A passage that belongs to the query in any example, and the query's own text, are none. Of what
    is left the first `num_skipped` are left out, too: they may be right and not known to be.
    ValueError for too few passages.
    """
    # Each text is encoded once. [K N] texts, by the first sequence that has them.
    numbers = groups.numbers[groups.members]
    _, first, text = np.unique(numbers, return_index=True, return_inverse=True)
    text = text.reshape(numbers.shape)
    sequence_of_text = groups.members.ravel()[first]
    single = TextGroups(groups.sequences, sequence_of_text[:, None], groups.numbers)
    vectors = encode(single)
    passages = np.unique(text[:, 1:])
    # Query -> what is no negative of it.
    related: dict[int, set[int]] = {}
    for query, passage in text[:, :2].tolist():
        related.setdefault(query, set()).update((query, passage))
    num_found = num_negatives + num_skipped
    if num_found + max(map(len, related.values())) > len(passages):
        raise ValueError(
            f"mined_negatives={num_negatives} and skipped_negatives={num_skipped}: the training"
            f" file has only {len(passages)} different passages; mine fewer, or give more"
        )
    is_no_passage = torch.ones(len(first), dtype=torch.bool, device=vectors.device)
    is_no_passage[passages] = False
    mined = np.zeros((len(first), num_negatives), dtype=np.int64)
    for queries in torch.tensor(list(related)).split(QUERIES_AT_ONCE):
        similarities = vectors[queries] @ vectors.T
        similarities[:, is_no_passage] = -torch.inf
        for row, query in enumerate(queries.tolist()):
            similarities[row, list(related[query])] = -torch.inf
        best = similarities.topk(num_found).indices[:, num_skipped:]
        mined[queries] = sequence_of_text[best.cpu().numpy()]
    log.info("mined %d negatives for each of %d queries", num_negatives, len(related))
    return mined[text[:, 0]]
