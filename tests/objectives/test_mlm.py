"""The masked language model cannot see what it predicts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from clozelab.corpus.instances import SegmentPairs
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards
from clozelab.models.encoder import Encoder
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.objective import Objective, to_torch

PAIRS = SegmentPairs(0.5, "corpus")


def hidden_and_labels(
    objective: Objective, encoder: Encoder, shards: TokenShards, ids: SpecialIds
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states [P, H] and labels [P] of the predicted positions of instance 3."""
    instances = objective.input.bind(shards, ids, 48)
    batch = to_torch(objective.arrays(instances, 1, 0, np.array([3])))
    with torch.no_grad():
        output = encoder(
            batch["input_ids"], batch["token_type_ids"], batch["position_ids"], batch["layout"]
        )
    return output.sequence_output[batch["prediction_positions"]], batch["prediction_labels"]


@pytest.mark.parametrize(
    ("fractions", "leaks"), [((1, 0, 0), False), ((0, 1, 0), False), ((0, 0, 1), True)]
)
def test_a_prediction_does_not_see_its_own_token(
    shards: TokenShards,
    ids: SpecialIds,
    make_mlm: Callable[..., MaskedLanguageModel],
    make_encoder: Callable[..., Encoder],
    change_token: Callable[[int], TokenShards],
    fractions: tuple[float, float, float],
    leaks: bool,
) -> None:
    """Another original token at a predicted position changes the label and nothing else.

    The negative control leaves the original in place: then the hidden state must change.
    """
    objective = Objective(input=PAIRS, token=make_mlm(*fractions), pair=None)
    encoder = make_encoder(False)
    instances = objective.input.bind(shards, ids, 48)
    rows = instances.pack(1, 0, np.array([3]))
    batch = objective.arrays(instances, 1, 0, np.array([3]))
    before, labels = hidden_and_labels(objective, encoder, shards, ids)
    for number, slot in enumerate(batch["prediction_positions"]):
        position = find(shards, rows.input_ids, int(slot), ids)
        after, changed = hidden_and_labels(objective, encoder, change_token(position), ids)
        others = np.arange(len(labels)) != number
        assert changed[number] != labels[number] and (changed[others] == labels[others]).all()
        assert torch.equal(before[number], after[number]) != leaks


def find(shards: TokenShards, input_ids: np.ndarray, slot: int, ids: SpecialIds) -> int:
    """Token position in the corpus of a row's slot, by its whole segment."""
    special = np.isin(input_ids, [ids.cls, ids.sep, ids.pad])
    start = slot - int(special[:slot][::-1].argmax())
    stop = slot + int(special[slot:].argmax())
    windows = np.lib.stride_tricks.sliding_window_view(shards.tokens[:], stop - start)
    matches = np.flatnonzero((windows == input_ids[start:stop]).all(1))
    assert len(matches) == 1
    return int(matches[0]) + slot - start
