"""An adapter is put on the encoder that it was trained on, or the run says that it cannot know."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runs.sentiment import TOKENIZER, write_sentiment


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, save_encoder: Callable[..., None]) -> Path:
    """Two encoders of one shape with other weights, and a sentiment task in SST-2's place."""
    root = tmp_path_factory.mktemp("world")
    write_sentiment(root / "data", train=16, dev=8)
    save_encoder(root / "encoder", TOKENIZER, max_position_embeddings=32)
    save_encoder(root / "other", TOKENIZER, seed=1, max_position_embeddings=32)
    return root


def test_an_adapter_is_put_on_the_encoder_it_was_trained_on(
    finetune: Any, world: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lora = ["task=sst2", "epochs=1", "adaptation=lora"]
    adapter = finetune(*lora, name="first") / "adapter"
    lora.append(f"adaptation.adapter={adapter}")
    caplog.clear()
    finetune(*lora, name="same")
    assert "does not say which weights" not in caplog.text
    with pytest.raises(ValueError, match=rf"was trained on {world / 'encoder'}.*export"):
        finetune(*lora, f"encoder={world / 'other'}", name="refused")
    assert not (adapter.parents[1] / "refused").exists()
    # Its base is known by content: the same encoder elsewhere is no other one.
    shutil.copytree(world / "encoder", world / "moved")
    finetune(*lora, f"encoder={world / 'moved'}", name="moved")
    # A folder from elsewhere has no such file.
    (adapter / "clozelab.json").unlink()
    with caplog.at_level(logging.WARNING):
        finetune(*lora, f"encoder={world / 'other'}", name="unknown")
    assert "does not say which weights it was trained on" in caplog.text
