"""An encoder folder, the fine-tuning stage from overrides to run folder, and packs of runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.composing import composed, run_stage
from tests.runs.archives import MEANS, NAME, on_machines, say
from tests.runs.test_pretrain_run import write_text

from clozelab.models.encoder import Encoder
from clozelab.models.folders import save_encoder_folder
from clozelab.stages import evaluate as evaluation
from clozelab.stages.finetune import main


@pytest.fixture(scope="session")
def save_encoder(tiny_config: Callable[..., Any]) -> Callable[..., None]:
    """save_encoder(folder, tokenizer, **changes of its shape): fresh weights, hidden size 16."""

    def save(
        folder: Path, tokenizer: Any, trained_seq_lengths: Any = None, seed: int = 0, **changes: Any
    ) -> None:
        shape = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
        facts = {"tokenizer_fingerprint": tokenizer.fingerprint}
        if trained_seq_lengths:
            facts["trained_seq_lengths"] = trained_seq_lengths
        torch.manual_seed(seed)
        encoder = Encoder(tiny_config(vocab_size=tokenizer.vocab_size, **(shape | changes)))
        files, extra = tokenizer.files(), {"clozelab": facts}
        save_encoder_folder(folder, encoder, heads={}, tokenizer_files=files, extra_config=extra)

    return save


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small text corpus; the cache in it is shared by the runs of this file."""
    folder = tmp_path_factory.mktemp("workplace")
    write_text(folder)
    return folder


@pytest.fixture
def finetune(world: Path, tmp_path: Path) -> Callable[..., Path]:
    """finetune(*overrides, name="run") -> the folder of a run on the file's `world`."""

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
            # these worlds learn by heart what they are scored on
            "allow_validation_in_training": "true",
        }
        words = [f"{key}={value}" for key, value in settings.items()]
        run_stage(main, composed("finetune", [*words, *overrides]))
        return tmp_path / name

    return run


@pytest.fixture
def evaluate(world: Path, tmp_path: Path) -> Callable[..., Path]:
    """evaluate(*overrides, name="scored") measures a folder of the file's `world`."""

    def run(*overrides: str, name: str = "scored") -> Path:
        settings = {
            "data_dir": world / "data",
            "cache_dir": world / "cache",
            "run_dir": tmp_path / name,
            "trainer.precision": "32-true",
            "trainer.progress_bar": "false",
        }
        words = [f"{key}={value}" for key, value in settings.items()]
        run_stage(evaluation.main, composed("evaluate", [*words, *overrides]))
        return tmp_path / name

    return run


@pytest.fixture
def packed(make_runs: Any, tmp_path: Path, capsys: Any) -> Callable[..., Path]:
    """packed(name, *seeds) -> a pack of the runs of these pre-training seeds."""

    def make(
        name: str, *seeds: int, change: Any = lambda _: None, words: tuple[str, ...] = ()
    ) -> Path:
        root = make_runs(MEANS, pretrain_seeds=seeds, finetune_seeds=(1,), below=name)
        on_machines(root)
        change(root)
        out = tmp_path / f"{name}.zip"
        places = [f"runs_dir={tmp_path / name}", f"out={out}"]
        assert say(["pack", NAME, "scale=demo", *places, *words], capsys)[0] == 0
        return out

    return make
