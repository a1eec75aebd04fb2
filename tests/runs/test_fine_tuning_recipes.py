"""ULMFiT's parts in a run: what waits is left alone, and a stopped run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from safetensors.torch import load_file
from tests.runs.sentiment import TOKENIZER, write_sentiment
from tests.test_trainers import BARE

import clozelab
from clozelab.optim.layers import levels_of
from clozelab.training.callbacks import TrainingInterruptedError
from clozelab.training.unfreezing import GradualUnfreezing

EPOCH = 8  # steps
ULMFIT = ("task=sst2", "fine_tuning=ulmfit", "epochs=4", "optimizer.weight_decay=0.1")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, save_encoder: Callable[..., None]) -> Path:
    """An encoder of two layers with dropout, and a sentiment task in SST-2's place."""
    root = tmp_path_factory.mktemp("recipes")
    write_sentiment(root / "data", train=8 * EPOCH, dev=16)
    shape = {"max_position_embeddings": 32, "hidden_dropout_prob": 0.1, "initializer_range": 0.1}
    save_encoder(root / "encoder", TOKENIZER, **shape)
    return root


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model/model.safetensors")


def moved_levels(before: dict[str, Any], module: LightningModule) -> set[int]:
    """The levels of what an optimizer step has changed: 0 embeddings, 1 and 2 layers, 3 and 4."""
    levels = levels_of(before)
    moved = set()
    for name, value in module.named_parameters():
        if not torch.equal(before[name], value):
            moved.add(levels[name].number)
    return moved


def test_one_group_more_each_epoch_and_a_stopped_run_goes_on(
    finetune: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moved weights and the optimizer's state are of the groups that an epoch trains."""
    seen: dict[int, tuple[set[int], int]] = {}
    before: dict[str, torch.Tensor] = {}

    class Watched(GradualUnfreezing):
        def on_train_batch_start(
            self, trainer: Trainer, pl_module: LightningModule, *_: object, **__: object
        ) -> None:
            super().on_train_batch_start(trainer, pl_module)
            for name, value in pl_module.named_parameters():
                before[name] = value.detach().clone()

        def on_train_batch_end(
            self, trainer: Trainer, pl_module: LightningModule, *_: object, **__: object
        ) -> None:
            step = trainer.global_step - 1
            with_state = len(trainer.optimizers[0].state)
            seen[step] = (moved_levels(before, pl_module), with_state)

    monkeypatch.setattr("clozelab.training.unfreezing.GradualUnfreezing", Watched)
    whole = finetune(*ULMFIT, name="whole")
    assert len(seen) == 4 * EPOCH
    counts = []
    for step, (moved, with_state) in seen.items():
        # The head and the pooler, then one layer below the other, the embeddings last.
        lowest = max(0, 3 - step // EPOCH)
        assert moved == set(range(lowest, 5)), step
        counts.append(with_state)
    assert counts == sorted(counts)
    assert len(set(counts)) == 4

    # Stopped inside the third epoch, and gone on with: the same bits.
    with pytest.raises(TrainingInterruptedError):
        finetune(*ULMFIT, f"stop_after_step={2 * EPOCH + 3}", name="cut")
    cut = weights_of(finetune(*ULMFIT, name="cut"))
    for name, value in weights_of(whole).items():
        assert torch.equal(value, cut[name]), name


def test_a_training_that_ends_too_early_warns(
    finetune: Callable[..., Path], world: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = finetune("task=sst2", "fine_tuning=ulmfit", "epochs=2")
    assert "16 steps train the upper 2 of 4 groups of layers alone; interval_steps=2" in caplog.text
    given, trained = load_file(world / "encoder/model.safetensors"), weights_of(run)
    waited = [name for name in given if "embeddings." in name or ".layer.0." in name]
    assert waited
    for name in waited:
        assert torch.equal(given[name], trained[name]), name


def test_fresh_layers_that_are_frozen_are_refused(finetune: Callable[..., Path]) -> None:
    frozen = 'optimizer.groups=[{pattern: "encoder.layer.*", frozen: true}]'
    with pytest.raises(ValueError, match="reinitialise_layers=1: these layers are frozen"):
        finetune("task=sst2", "reinitialise_layers=1", frozen)


@pytest.mark.slow
def test_what_waits_is_left_alone_by_two_processes(world: Path, tmp_path: Path) -> None:
    """The embeddings would be trained from step 18 of 16 on."""
    words = ["task=sst2", "optimizer.layer_decay=0.8", "optimizer.weight_decay=0.1"]
    places = {f"{name}_dir": str(world / name) for name in ("data", "cache")}
    places |= {"runs_dir": str(tmp_path), "encoder": str(world / "encoder")}
    settings: dict[str, Any] = {"row": "mine", "global_batch_size": 8, "epochs": 2}
    settings |= {"allow_validation_in_training": True}
    module, data, _ = clozelab.compose("finetune", words, **places, **settings)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    trainer = Trainer(
        **BARE,
        max_epochs=2,
        default_root_dir=tmp_path,
        callbacks=[GradualUnfreezing(interval_steps=6)],
        strategy="ddp_fork",
        devices=2,
    )
    trainer.fit(module, datamodule=data)
    (path,) = tmp_path.rglob("*.ckpt")
    after = torch.load(path, weights_only=True)["state_dict"]
    levels = levels_of(before)
    for name, value in before.items():
        assert torch.equal(value, after[name]) == (levels[name].number == 0), name
