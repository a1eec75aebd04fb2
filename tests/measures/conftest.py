"""An encoder folder with its head, and the evaluation stage from overrides to run folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.composing import composed, run_stage

from clozelab.models.encoder import Encoder
from clozelab.models.folders import save_encoder_folder
from clozelab.models.registry import family_for


@pytest.fixture(scope="session")
def save_encoder(tiny_config: Callable[..., Any], tokenizer: Any) -> Callable[..., Path]:
    """save_encoder(folder, is_causal=False, words=tokenizer, seed=0, **changes): random weights,
    with the lm head.
    """

    def save(
        folder: Path, is_causal: bool = False, words: Any = tokenizer, seed: int = 0, **changes: Any
    ) -> Path:
        torch.manual_seed(seed)
        encoder = Encoder(tiny_config(vocab_size=words.vocab_size, is_causal=is_causal, **changes))
        head = family_for(encoder.config).head("lm", encoder)
        save_encoder_folder(
            folder, encoder, heads={"lm": head}, tokenizer_files=words.files(), extra_config={}
        )
        return folder

    return save


@pytest.fixture
def evaluate(tmp_path: Path) -> Callable[..., Path]:
    """evaluate(*overrides, name="run") runs the stage and returns its run folder."""
    from clozelab.stages.evaluate import main

    def run(*overrides: str, name: str = "run") -> Path:
        settings = {
            "data_dir": tmp_path,
            "cache_dir": tmp_path / "cache",
            "run_dir": tmp_path / name,
        }
        settings |= {
            "encoder": tmp_path / "encoder",
            "trainer.precision": "32-true",
            "trainer.progress_bar": "false",
        }
        words = [f"{key}={value}" for key, value in settings.items()]
        run_stage(main, composed("evaluate", [*words, *overrides]))
        return tmp_path / name

    return run
