"""A checkpoint says whose it is, and a resume looks."""

from __future__ import annotations

from pathlib import Path

import pytest
from lightning.pytorch.demos.boring_classes import BoringModel

from clozelab.training.callbacks import OwnCheckpoint
from clozelab.training.checkpoints import load_file, save_file
from clozelab.training.trainer import build_trainer, choose_hardware, stage_callbacks

CPU = {"accelerator": "cpu", "devices": 1, "num_nodes": 1, "strategy": "auto", "precision": "32-true", "threads": None}
OURS, OTHERS = "a" * 64, "b" * 64


def fit(checkpoint: Path, fingerprint: str, steps: int) -> int:
    """Train up to `steps`, from the checkpoint if it is there; the step that was reached."""
    callbacks = stage_callbacks(
        checkpoint=checkpoint, checkpoint_interval_steps=2, fingerprint=fingerprint, progress_bar=False
    )
    trainer = build_trainer(
        choose_hardware(**CPU),
        max_steps=steps,
        validation_interval_steps=None,
        callbacks=callbacks,
        loggers=[],
        folder=checkpoint.parent,
        log_interval_steps=1,
    )
    trainer.fit(BoringModel(), ckpt_path=str(checkpoint) if checkpoint.exists() else None)
    return int(trainer.global_step)


def test_a_run_goes_on_from_its_own_checkpoint_alone(tmp_path: Path) -> None:
    checkpoint = tmp_path / "last.ckpt"
    fit(checkpoint, OURS, 2)
    assert load_file(checkpoint)[OwnCheckpoint.KEY] == OURS
    with pytest.raises(ValueError, match=r"last.ckpt is the checkpoint of another configuration \(fingerprint aaaaaa"):
        fit(checkpoint, OTHERS, 4)
    assert load_file(checkpoint)["global_step"] == 2
    assert fit(checkpoint, OURS, 4) == 4


def test_a_checkpoint_of_before_is_taken(tmp_path: Path) -> None:
    checkpoint = tmp_path / "last.ckpt"
    fit(checkpoint, OURS, 2)
    content = load_file(checkpoint)
    del content[OwnCheckpoint.KEY]
    save_file(content, checkpoint)
    assert fit(checkpoint, OTHERS, 4) == 4
    assert load_file(checkpoint)[OwnCheckpoint.KEY] == OTHERS
