"""Next-sentence prediction: labels from the input format, loss on the pooled state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from clozelab.corpus.instances import SegmentPairs
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards
from clozelab.models.encoder import Encoder
from clozelab.objectives.ltr import LeftToRight
from clozelab.objectives.nsp import NextSentencePrediction
from clozelab.objectives.objective import Objective, build_models, to_torch


@pytest.mark.parametrize("is_causal", [False, True])
def test_loss_is_cross_entropy_of_the_pooled_state(
    shards: TokenShards,
    ids: SpecialIds,
    make_encoder: Callable[..., Encoder],
    make_mlm: Any,
    is_causal: bool,
) -> None:
    """A causal encoder pools the last real token, in padded rows too."""
    encoder = make_encoder(is_causal)
    token = LeftToRight(weight=1.0) if is_causal else make_mlm()
    objective = Objective(
        input=SegmentPairs(0.5, "corpus"), token=token, pair=NextSentencePrediction(weight=1.0)
    )
    instances = objective.input.bind(shards, ids, 48)
    batch = to_torch(objective.arrays(instances, 1, 0, np.arange(24)))
    models = build_models(encoder, [objective])
    term = objective.terms(models, batch)[1]
    output = encoder(
        batch["input_ids"], batch["token_type_ids"], batch["position_ids"], batch["layout"]
    )
    lengths = instances.pack(1, 0, np.arange(24)).lengths
    slots = torch.arange(24) * 48 + (torch.from_numpy(lengths) - 1 if is_causal else 0)
    logits = models["encoder"].heads["nsp"](encoder.pooler(output.sequence_output[slots]))
    labels = torch.from_numpy(instances.pack(1, 0, np.arange(24)).next_sentence_label)
    assert term.count == 24 and 0 < labels.sum() < 24
    assert torch.equal(batch["next_sentence_label"], labels)
    assert term.loss_sum.item() == pytest.approx(
        F.cross_entropy(logits, labels, reduction="sum").item(), rel=1e-5
    )
    assert term.num_correct.item() == (logits.argmax(-1) == labels).sum().item()
    term.loss_sum.backward()
    for parameter in (*encoder.pooler.parameters(), *models["encoder"].heads["nsp"].parameters()):
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0
