"""The left-to-right model predicts each successor and sees nothing beyond it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from clozelab.corpus.instances import FullSentences, SegmentPairs
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards
from clozelab.models.encoder import Encoder
from clozelab.objectives.ltr import LeftToRight
from clozelab.objectives.objective import Objective, build_models, to_torch

LTR = LeftToRight(weight=1.0)


@pytest.mark.parametrize("input_format", [SegmentPairs(0.5, "corpus"), FullSentences()])
def test_each_real_token_but_the_last_predicts_its_successor(
    shards: TokenShards, ids: SpecialIds, input_format: SegmentPairs | FullSentences
) -> None:
    rows = input_format.bind(shards, ids, 48).pack(1, 0, np.arange(20))
    assert (rows.lengths < 48).any()  # short rows with padding are in the test
    batch = LTR.arrays(rows)
    expected_rows = []
    expected_labels = []
    for number, length in enumerate(rows.lengths):
        for slot in range(48 * number, 48 * number + length - 1):
            expected_rows.append(slot)
            expected_labels.append(rows.input_ids[slot + 1])
        assert expected_labels[-1] == ids.sep
    assert batch["prediction_positions"].tolist() == expected_rows
    assert batch["prediction_labels"].tolist() == expected_labels
    assert (batch["input_ids"] == rows.input_ids).all()
    assert ids.pad not in batch["prediction_labels"]


def losses(encoder: Encoder, shards: TokenShards, ids: SpecialIds) -> torch.Tensor:
    """Loss at each position of window 2."""
    objective = Objective(input=FullSentences(), token=LTR, pair=None)
    batch = to_torch(objective.arrays(objective.input.bind(shards, ids, 48), 1, 0, np.array([2])))
    torch.manual_seed(1)
    head = build_models(encoder, [objective])["encoder"].heads["lm"]
    with torch.no_grad():
        output = encoder(
            batch["input_ids"], batch["token_type_ids"], batch["position_ids"], batch["layout"]
        )
        logits = head(output.sequence_output[batch["prediction_positions"]])
        return F.cross_entropy(logits, batch["prediction_labels"], reduction="none")


@pytest.mark.parametrize("is_causal", [True, False])
def test_loss_does_not_see_beyond_the_next_token(
    shards: TokenShards,
    ids: SpecialIds,
    make_encoder: Callable[..., Encoder],
    change_token: Callable[[int], TokenShards],
    is_causal: bool,
) -> None:
    """A changed token at slot q leaves losses below q - 1 alone, if the mask is causal."""
    encoder = make_encoder(is_causal)
    instances = FullSentences().bind(shards, ids, 48)
    rows = instances.pack(1, 0, np.array([2]))
    separators = np.flatnonzero(rows.input_ids == ids.sep)
    first_token = 0
    for number in (0, 1):
        row = instances.pack(1, 0, np.array([number]))
        first_token += int((row.lengths - 1 - (row.input_ids == ids.sep).sum()).sum())
    before = losses(encoder, shards, ids)
    for slot in (5, 9, 20):
        position = first_token + slot - 1 - int((separators < slot).sum())
        changed = change_token(position)
        assert instances_token(changed, ids, slot) != rows.input_ids[slot]
        after = losses(encoder, changed, ids)
        earlier_is_equal = torch.allclose(before[: slot - 1], after[: slot - 1], atol=1e-6)
        assert earlier_is_equal == is_causal
        assert not torch.allclose(
            before[slot - 1 : slot + 1], after[slot - 1 : slot + 1], atol=1e-4
        )


def instances_token(shards: TokenShards, ids: SpecialIds, slot: int) -> int:
    return int(FullSentences().bind(shards, ids, 48).pack(1, 0, np.array([2])).input_ids[slot])
