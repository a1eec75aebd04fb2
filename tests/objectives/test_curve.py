"""Beside BertForMaskedLM: equal instances, masks, weights and updates give equal curves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tests.objectives.conftest import VOCAB_SIZE

from clozelab.corpus.instances import SegmentPairs
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.random import instance_indices
from clozelab.corpus.shards import TokenShards
from clozelab.models.encoder import Encoder
from clozelab.models.folders import to_hf_tensors
from clozelab.models.registry import family_for
from clozelab.objectives.objective import Objective, build_models, to_torch
from clozelab.optim.adamw import build_adamw

SLOTS = 32
BATCH = 16
RATE = 2e-5  # Adam makes the rounding of a gradient near zero as large as the rate
ADAM = {"betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.01}


def curves(
    config: Any, objective: Objective, shards: TokenShards, ids: SpecialIds, steps: int
) -> np.ndarray:
    """Losses [steps, 2] of ours and theirs."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    models = build_models(Encoder(config), [objective])
    ours = models["encoder"]
    ours.encoder.pooler.requires_grad_(False)
    theirs = BertForMaskedLM(BertConfig(**family_for(config).to_hf_config(config)))
    tensors = to_hf_tensors(ours.encoder, dict(ours.heads.items()))
    left_over = theirs.load_state_dict(tensors, strict=False)
    assert set(left_over.missing_keys) <= {
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
    }
    assert all("pooler" in name for name in left_over.unexpected_keys)
    theirs.tie_weights()
    own = build_adamw(ours.named_parameters(), learning_rate=RATE, bias_correction=True, **ADAM)
    matrices = [p for p in theirs.parameters() if p.ndim > 1]
    vectors = [p for p in theirs.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": 0.01},
        {"params": vectors, "weight_decay": 0.0},
    ]
    betas, eps = ADAM["betas"], ADAM["eps"]
    other = torch.optim.AdamW(groups, lr=RATE, betas=betas, eps=eps)  # type: ignore[arg-type]
    instances = objective.input.bind(shards, ids, SLOTS)
    losses = []
    for step in range(steps):
        epoch, index = instance_indices(
            1, len(instances), np.arange(step * BATCH, (step + 1) * BATCH)
        )
        arrays = objective.arrays(instances, 1, epoch, index)
        (term,) = objective.terms(models, to_torch(arrays))
        mine = term.loss_sum / term.count
        labels = np.full(BATCH * SLOTS, -100)
        labels[arrays["prediction_positions"]] = arrays["prediction_labels"]
        shaped = {
            key: torch.from_numpy(arrays[key]).view(BATCH, SLOTS)
            for key in ("input_ids", "token_type_ids")
        }
        real = torch.arange(SLOTS) < torch.from_numpy(arrays["lengths"])[:, None]
        answer = theirs(
            **shaped, attention_mask=real.long(), labels=torch.from_numpy(labels).view(BATCH, SLOTS)
        )
        for loss, optimizer in ((mine, own), (answer.loss, other)):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append((float(mine.detach()), float(answer.loss.detach())))
    return np.array(losses)


def test_the_first_losses_are_theirs(
    tiny_config: Callable[..., Any], make_mlm: Any, shards: TokenShards, ids: SpecialIds
) -> None:
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 96}
    config = tiny_config(vocab_size=VOCAB_SIZE, initializer_range=0.05, **sizes)
    objective = Objective(input=SegmentPairs(0.5, "corpus"), token=make_mlm(), pair=None)
    found = curves(config, objective, shards, ids, steps=5)
    np.testing.assert_allclose(found[:, 0], found[:, 1], atol=1e-5, rtol=0)
    assert len(set(found[:, 0])) == 5
