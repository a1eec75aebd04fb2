"""Which tensors of a file belong to nobody; no head of ours is among them."""

from __future__ import annotations

import pytest
import torch
from tests.numerics.members import MEMBERS, case_of
from tests.numerics.test_modern_relatives import NEOBERT
from torch import nn

from clozelab.models.encoder import Encoder
from clozelab.models.families.bert import COMMON_HEADS
from clozelab.models.leftovers import foreign_tensors, unread_tensors
from clozelab.models.registry import family_of

SETTINGS = {name: case_of(name).settings for name in MEMBERS} | {"neobert": NEOBERT}


@pytest.mark.parametrize("model_type", SETTINGS)
def test_every_head_of_every_family_is_known(model_type: str) -> None:
    family = family_of(model_type)
    encoder = Encoder(family.from_hf_config(SETTINGS[model_type]))
    for kind in COMMON_HEADS:
        head = family.head(kind, encoder)
        state = {f"{kind}.{name}": value for name, value in head.state_dict().items()}
        stored = {**family.to_hf(state), f"{family.prefix}embeddings.x": torch.zeros(1)}
        assert foreign_tensors(family, stored) == [], kind
        assert unread_tensors(family, stored, nn.ModuleDict({kind: head})) == [], kind
        strange = {**stored, f"{kind}_crf.transitions": torch.zeros(1)}
        assert foreign_tensors(family, strange) == [f"{kind}_crf.transitions"]


FOREIGN = ["crf.transitions", "lstm.weight_ih_l0", "projection.weight", "classifier.2.weight"]
FOREIGN += ["classifier.lora_A.weight", "classifier.original_module.weight"]
FOREIGN += ["classifier.modules_to_save.default.weight"]
BUFFERS = ["bert.embeddings.position_ids", "n_averaged"]
LOSSES = ["loss_fct.weight", "mask_predictions.dense.bias"]


@pytest.mark.parametrize("name", [*FOREIGN, *BUFFERS, *LOSSES])
def test_a_part_of_another_head_is_foreign_and_a_buffer_or_a_loss_is_not(name: str) -> None:
    stored = dict.fromkeys(["bert.embeddings.x", "classifier.weight", name], torch.zeros(1))
    assert (foreign_tensors(family_of("bert"), stored) == [name]) == (name in FOREIGN)


def test_a_head_of_another_task_is_unread() -> None:
    stored = dict.fromkeys(["bert.embeddings.x", "classifier.weight"], torch.zeros(1))
    assert unread_tensors(family_of("bert"), stored, nn.ModuleDict()) == ["classifier.weight"]
    assert foreign_tensors(family_of("bert"), stored) == []
