"""An encoder folder, and the fine-tuning stage from overrides to run folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.composing import composed

from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.models.encoder import Encoder
from clozelab.models.folders import save_encoder_folder
from clozelab.stages.finetune import main


@pytest.fixture(scope="session")
def save_encoder(tiny_config: Callable[..., Any]) -> Callable[..., None]:
    """save_encoder(folder, tokenizer, trained_seq_lengths=None, seed=0, **changes): hidden size 16,
    fresh weights.
    """

    def save(
        folder: Path,
        tokenizer: WordPieceTokenizer,
        trained_seq_lengths: list[int] | None = None,
        seed: int = 0,
        **changes: Any,
    ) -> None:
        shape = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
        facts: dict[str, Any] = {"tokenizer_fingerprint": tokenizer.fingerprint}
        facts |= {"trained_seq_lengths": trained_seq_lengths} if trained_seq_lengths else {}
        torch.manual_seed(seed)
        encoder = Encoder(tiny_config(vocab_size=tokenizer.vocab_size, **(shape | changes)))
        files, extra = tokenizer.files(), {"clozelab": facts}
        save_encoder_folder(folder, encoder, heads={}, tokenizer_files=files, extra_config=extra)

    return save


@pytest.fixture
def finetune(world: Path, tmp_path: Path) -> Callable[..., Path]:
    """finetune(*overrides, name="run") runs the stage on the file's `world` and returns its run
    folder.
    """

    def run(*overrides: str, name: str = "run") -> Path:
        settings = {
            "data_dir": world / "data",
            "cache_dir": world / "cache",
            "encoder": world / "encoder",
            "run_dir": tmp_path / name,
            "learning_rate": 1e-2,
            "global_batch_size": 8,
            "trainer.precision": "32-true",
            "trainer.progress_bar": "false",
            "trainer.log_interval_steps": 4,
        }
        main(
            composed(
                "finetune", [f"{key}={value}" for key, value in settings.items()] + list(overrides)
            )
        )
        return tmp_path / name

    return run
