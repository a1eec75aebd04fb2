"""Whether an encoder's file has a head that predicts words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from clozelab.models.locate import may_have_head


@pytest.mark.parametrize(
    ("name", "has_head"),
    [
        ("cls.predictions.transform.dense.weight", True),
        ("lm_head.dense.weight", True),
        ("generator_predictions.dense.weight", True),
        ("vocab_projector.bias", True),
        ("lm_loss.bias", True),
        ("head.linear1.weight", True),
        ("cls.seq_relationship.weight", False),
        ("discriminator_predictions.dense.weight", False),
        ("mask_predictions.dense.weight", False),
        ("pooler.dense.weight", False),
    ],
)
def test_heads_are_known_by_their_tensors(tmp_path: Path, name: str, has_head: bool) -> None:
    tensors = {"embeddings.word_embeddings.weight": torch.ones(2), name: torch.ones(2)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert may_have_head(tmp_path) == has_head
    (tmp_path / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    assert may_have_head(tmp_path) == has_head


def test_weights_without_an_archive_of_names_may_have_one(tmp_path: Path) -> None:
    tensors = {"pooler.dense.weight": torch.ones(2)}
    torch.save(tensors, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert may_have_head(tmp_path)


def test_a_folder_without_that_file_may_have_one(tmp_path: Path) -> None:
    assert may_have_head(tmp_path)
