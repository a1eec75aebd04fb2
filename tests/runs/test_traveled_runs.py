"""Complete runs without the weights that they read, or without those that others take from them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.composing import composed, given, run_stage
from tests.runs.sentiment import TOKENIZER, write_sentiment

from clozelab.assembly import finetuning
from clozelab.config import Composed
from clozelab.runs.record import read_record
from clozelab.runs.reuse import is_done, require_kept
from clozelab.runs.store import Run, RunConflictError
from clozelab.stages.finetune import main

SETTINGS = {
    "data_dir": "data",
    "cache_dir": "cache",
    "encoder": "encoder",
    "task": "sst2",
    "epochs": 1,
    "learning_rate": 1e-2,
    "global_batch_size": 8,
    "trainer.precision": "32-true",
    "trainer.progress_bar": "false",
    "allow_validation_in_training": "true",
}


def job(run_dir: str = "run") -> Composed:
    words = [f"{key}={value}" for key, value in SETTINGS.items()]
    return composed("finetune", [*words, f"run_dir={run_dir}"])


def test_a_run_without_its_encoders_weights_is_complete_only_on_its_own_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_encoder: Callable[..., None]
) -> None:
    """A pack leaves weights out; the files that a run read are compared all the same."""
    monkeypatch.chdir(tmp_path)
    write_sentiment(Path("data"), train=16, dev=8)
    save_encoder(Path("encoder"), TOKENIZER, max_position_embeddings=32)
    run_stage(main, job())
    Path("encoder/model.safetensors").unlink()
    monkeypatch.setattr(finetuning, "train", None)  # would fail

    # A copied file is another one for a quick look, and equal for the run.
    shutil.copy("data/glue/SST-2/train.tsv", "copied")
    file = Path("copied").rename("data/glue/SST-2/train.tsv")
    assert not is_done("run", stage="finetune", config=job())
    run_stage(main, job())
    assert is_done("run", stage="finetune", config=job()), "it has looked"

    content = file.read_text()
    file.write_text(content.replace("\t1", "\t0", 1))
    assert len(file.read_text()) == len(content)
    assert not is_done("run", stage="finetune", config=job())
    with pytest.raises(RunConflictError, match="task_files"):
        run_stage(main, job())
    # What is not complete needs the weights.
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        run_stage(main, job("fresh"))


def test_a_pretraining_that_has_lost_its_encoder_is_not_complete(tmp_path: Path) -> None:
    config = given("pretrain", {"arm": "mlm", "seed": 1, "keep_encoders": [], "phases": []})
    with Run.claim(tmp_path, stage="pretrain", config=config, inputs={}) as run:
        encoder = tmp_path / "encoder"
        encoder.mkdir()
        (encoder / "config.json").touch()
        run.complete(kept=[])
    assert is_done(tmp_path, stage="pretrain", config=config)
    shutil.rmtree(encoder)
    assert not is_done(tmp_path, stage="pretrain", config=config)
    record = read_record(tmp_path)
    assert record is not None
    with pytest.raises(ValueError, match=r"has no encoder: .* lost it since"):
        require_kept(config, record)
