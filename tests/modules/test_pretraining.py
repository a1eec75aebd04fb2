"""The pre-training loop on a toy encoder: accumulation, resume, stop, guards."""

from __future__ import annotations

import csv
import math
import os
import re
import signal
from collections.abc import Container
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, Trainer
from tests.conftest import TINY
from tests.screens import refuses, shows
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.models.layout import Layout
from clozelab.modules.pretraining import (
    PretrainingModel,
    PretrainingModule,
    check_lengths,
    validation_metrics,
)
from clozelab.objectives.objective import LossTerm, build_models, term_metrics
from clozelab.optim.adamw import build_adamw
from clozelab.optim.schedule import LinearWarmupDecay
from clozelab.training.callbacks import GracefulStop, TrainingInterruptedError
from clozelab.training.checkpoints import load_file, newest_intact
from clozelab.training.guards import DivergedError
from clozelab.training.stopping import Watch
from clozelab.training.tracking import MetricsCsv
from clozelab.training.trainer import build_trainer, choose_hardware, stage_callbacks

VOCAB = 23
HIDDEN = 8
ROWS = 6
SLOTS = 7
TOTAL = 8
CONFIG = EncoderConfig(
    **{
        **TINY,
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
)


HARDWARE: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "num_nodes": 1,
    "strategy": "auto",
    "precision": "32-true",
    "threads": 1,
}


class ToyEncoder(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.config = CONFIG
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.dropout = nn.Dropout(dropout)
        self.pooler = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.embed(ids))


class ToyObjective:
    """A token term on unequally many rows and a pair term, like MLM + NSP."""

    pair: Any = SimpleNamespace(name="nsp", weight=0.5, build=lambda models: None)
    weights: ClassVar = {"mlm": 1.0, "nsp": 0.5}
    metrics: ClassVar = (*term_metrics("mlm"), *term_metrics("nsp"))
    factor = 1.0  # of the loss

    @property
    def token(self) -> Any:
        return SimpleNamespace(
            name="mlm",
            build=self.build,
            num_predictions=lambda batch: self.counts(batch)["mlm"],
            frozen_flops_per_token=lambda *_: 0.0,
            num_directions=1,
            moves_slots=False,
            hides_neighbours=False,
            start=lambda models: None,
        )

    def flops_per_token(self, *_: object) -> float:
        return 1.0

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        return {"mlm": len(batch["prediction_labels"]), "nsp": len(batch["next_sentence_label"])}

    def build(self, models: dict[str, Any]) -> None:
        models["encoder"].heads.update(
            {"mlm": nn.Linear(HIDDEN, VOCAB), "nsp": nn.Linear(HIDDEN, 2)}
        )

    def terms(self, models: Any, batch: dict[str, Any]) -> list[LossTerm]:
        encoder = models["encoder"].encoder
        heads = models["encoder"].heads
        hidden = encoder(batch["input_ids"])
        rows = batch["prediction_positions"]
        labels = batch["prediction_labels"]
        pooled = encoder.pooler(hidden[batch["layout"].first_rows])
        terms = []
        for part, logits, target in (
            (self.token, heads["mlm"](hidden[rows]), labels),
            (self.pair, heads["nsp"](pooled), batch["next_sentence_label"]),
        ):
            loss = self.factor * F.cross_entropy(logits.float(), target, reduction="sum")
            correct = logits.argmax(-1) == target
            terms.append(LossTerm(part.name, loss, len(target), correct.sum()))
        return terms


def global_batch(step: int) -> list[dict[str, torch.Tensor]]:
    """One row each; row r has 1 + r % 3 predictions."""
    generator = torch.Generator().manual_seed(step)
    rows = []
    for row in range(ROWS):
        predictions = torch.randperm(SLOTS, generator=generator)[: 1 + row % 3]
        ids = torch.randint(VOCAB, (SLOTS,), generator=generator)
        label = torch.randint(2, (1,), generator=generator)
        rows.append({"ids": ids, "rows": predictions, "labels": ids[predictions], "label": label})
    return rows


def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, Any]:
    return {
        "input_ids": torch.cat([row["ids"] for row in rows]),
        "prediction_positions": torch.cat(
            [row["rows"] + SLOTS * index for index, row in enumerate(rows)]
        ),
        "prediction_labels": torch.cat([row["labels"] for row in rows]),
        "next_sentence_label": torch.cat([row["label"] for row in rows]),
        "layout": Layout.rectangle([SLOTS] * len(rows), SLOTS),
    }


class Steps(IterableDataset):
    def __init__(self, run: ToyRun) -> None:
        self.run = run

    def __iter__(self):
        for step in range(self.run.trainer.global_step, TOTAL):
            rows = global_batch(step)
            yield [collate(rows[i : i + self.run.micro]) for i in range(0, ROWS, self.run.micro)]


class ToyData(LightningDataModule):
    def __init__(self, train: DataLoader, validation: DataLoader, first_steps: list[int]) -> None:
        super().__init__()
        self.train = train
        self.validation = validation
        self.first_steps = first_steps

    def train_dataloader(self) -> DataLoader:
        return self.train

    def val_dataloader(self) -> DataLoader:
        return self.validation


class ToyRun:
    """One run folder; `fit` may be called again after an interruption."""

    def __init__(
        self,
        folder: Path,
        *,
        micro: int = 2,
        dropout: float = 0.3,
        seed: int = 1,
        bad_step: int = -1,
        **kwargs: Any,
    ):
        self.folder = folder
        self.micro = micro
        self.dropout = dropout
        self.seed = seed
        self.bad_step = bad_step
        self.options = {
            "interval": 100,
            "log": 1,
            "validation": None,
            "rate": 0.01,
            "warmup": 0.0,
            "clip": 1.0,
            "max_seconds": math.inf,
            "spike": "off",
            "stop_after": None,
            "graphs": False,
            "first_steps": [0],
        } | kwargs
        self.trainer: Trainer
        self.module: PretrainingModule

    def fit(self, *extra: Callback) -> PretrainingModule:
        hardware = choose_hardware(**HARDWARE)
        torch.manual_seed(0)
        settings = {
            "betas": (0.9, 0.98),
            "eps": 1e-6,
            "weight_decay": 0.01,
            "bias_correction": True,
        }
        self.module = PretrainingModule(
            ToyEncoder(self.dropout),
            [ToyObjective()],
            optimizer_factory=partial(build_adamw, learning_rate=self.options["rate"], **settings),
            schedule_factory=partial(LinearWarmupDecay, warmup_fraction=self.options["warmup"]),
            total_steps=TOTAL,
            gradient_clip_norm=self.options["clip"],
            seed=self.seed,
            log_interval_steps=self.options["log"],
            matmul_ceiling=1e9,
            spike=self.options["spike"],
            cuda_graphs=self.options["graphs"],
        )
        last = self.folder / "checkpoints" / "last.ckpt"
        self.watch = Watch(max_seconds=self.options["max_seconds"])
        self.trainer = build_trainer(
            hardware,
            max_steps=TOTAL,
            validation_interval_steps=self.options["validation"],
            callbacks=[
                *extra,
                *stage_callbacks(
                    last,
                    self.options["interval"],
                    fingerprint="0" * 64,
                    progress_bar=False,
                    stop=GracefulStop(self.watch, self.options["stop_after"]),
                ),
            ],
            loggers=[MetricsCsv(self.folder)],
            folder=self.folder,
            log_interval_steps=self.options["log"],
            reload_dataloaders_every_n_epochs=1,
        )
        loader = DataLoader(Steps(self), batch_size=None)
        validation = DataLoader(
            [collate(global_batch(1000)), collate(global_batch(1001))], batch_size=None
        )
        data = ToyData(loader, validation, self.options["first_steps"])
        self.trainer.fit(self.module, datamodule=data, ckpt_path=newest_intact(last.parent))
        return self.module

    def rows(self) -> list[tuple[int, str, str]]:
        """metrics.csv without what depends on the clock."""
        with (self.folder / "metrics.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        timed = ("train/tokens_per_second", "train/mfu")
        return [
            (int(row["step"]), row["key"], row["value"]) for row in rows if row["key"] not in timed
        ]


class StopAfter(Callback):
    """Sends a real signal to this process in the middle of a step."""

    def __init__(self, step: int, number: int = signal.SIGTERM) -> None:
        self.step = step
        self.number = number

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step + 1 == self.step:
            os.kill(os.getpid(), self.number)


def weights(module: PretrainingModule) -> list[torch.Tensor]:
    return list(module.state_dict().values())


def assert_same_bits(one: PretrainingModule, other: PretrainingModule) -> None:
    for a, b in zip(weights(one), weights(other), strict=True):
        assert torch.equal(a, b)


class PlainLoop:
    """The same training without Lightning, on the whole batch of a step at once."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        encoder = ToyEncoder(0.0)
        self.objective = ToyObjective()
        self.models = nn.ModuleDict(build_models(encoder, [self.objective]))
        self.norms: list[float] = []
        self.losses: list[float] = []
        matrices = [p for p in self.models.parameters() if p.ndim > 1]
        vectors = [p for p in self.models.parameters() if p.ndim <= 1]
        groups = [
            {"params": matrices, "weight_decay": 0.01},
            {"params": vectors, "weight_decay": 0.0},
        ]
        options = {"betas": (0.9, 0.98), "eps": 1e-6, "fused": False, "foreach": False}
        self.optimizer = torch.optim.AdamW(groups, **options)

    def step(self, number: int, rate: float, clip: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        token, pair = self.objective.terms(self.models, collate(global_batch(number)))
        loss = token.loss_sum / token.count + 0.5 * pair.loss_sum / pair.count
        self.optimizer.zero_grad()
        loss.backward()
        self.losses.append(float(loss.detach()))
        self.norms.append(float(nn.utils.clip_grad_norm_(self.models.parameters(), clip)))
        self.optimizer.step()

    def require_same(self, module: PretrainingModule) -> None:
        expected = dict(self.models.named_parameters())
        found = {name.removeprefix("model.models."): x for name, x in module.named_parameters()}
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, atol=2e-6, rtol=0)


@pytest.mark.parametrize("micro", [1, 2, 6])
def test_a_whole_run_equals_a_plain_loop(tmp_path: Path, micro: int) -> None:
    """However a batch is cut: loss, clipping, decay groups, schedule, one update a step."""
    run = ToyRun(tmp_path, micro=micro, dropout=0.0, warmup=0.25, clip=0.05)
    ours = run.fit()
    plain = PlainLoop()
    for step in range(TOTAL):
        plain.step(step, 0.01 * (step / 2 if step < 2 else 1 - step / TOTAL), clip=0.05)
    assert min(plain.norms) > 0.05, "clipping is in force"
    for name, expected in (("gradient_norm", plain.norms), ("loss", plain.losses)):
        logged = [float(value) for _, key, value in run.rows() if key == f"train/{name}"]
        assert logged == pytest.approx(expected, rel=1e-4)
    plain.require_same(ours)


def test_same_seed_gives_the_same_bits_and_another_seed_does_not(tmp_path: Path) -> None:
    runs = [ToyRun(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    first, second, third = (run.fit() for run in runs)
    assert_same_bits(first, second)
    assert runs[0].rows() == runs[1].rows() != runs[2].rows()
    assert not torch.equal(weights(first)[0], weights(third)[0])


@pytest.mark.parametrize(
    "stop", [3, 7, pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
def test_stopped_run_goes_on_with_the_same_bits(tmp_path: Path, stop: int) -> None:
    """The stop falls between log and validation steps, on them, and just before."""
    options = {"log": 3, "validation": 4}
    whole = ToyRun(tmp_path / "whole", **options)
    whole.fit()
    parts = ToyRun(tmp_path / "parts", **options)
    with pytest.raises(TrainingInterruptedError) as caught:
        parts.fit(StopAfter(stop))
    assert caught.value.code == 143 and caught.value.step == stop
    parts.fit()
    assert_same_bits(whole.module, parts.module)
    assert whole.rows() == parts.rows()
    assert [step for step, key, _ in whole.rows() if key == "validation/loss"] == [4, 8]


def test_no_logged_mean_is_over_steps_of_two_phases(tmp_path: Path) -> None:
    """Phases of three and five steps: a log point stands at the end of the first one, too."""
    run = ToyRun(tmp_path, log=5, first_steps=[0, 3])
    run.fit()
    every = ToyRun(tmp_path / "every")
    every.folder.mkdir()
    every.fit()
    by_step = [float(value) for _, key, value in every.rows() if key == "train/nsp_loss"]
    logged = {step: float(value) for step, key, value in run.rows() if key == "train/nsp_loss"}
    assert list(logged) == [3, 5, 8]
    means = [np.mean(by_step[first:end]) for first, end in ((0, 3), (3, 5), (5, 8))]
    assert list(logged.values()) == pytest.approx(means, rel=1e-4)


def test_sums_of_a_checkpoint_follow_the_module_to_its_device(tmp_path: Path) -> None:
    """Lightning reads a checkpoint before it moves the module; "meta" stands for a GPU here."""
    run = ToyRun(tmp_path, log=4)
    with pytest.raises(TrainingInterruptedError):
        run.fit(StopAfter(3))
    run.module.on_load_checkpoint(
        torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    )
    run.module.to("meta")
    run.module.on_fit_start()
    assert {sums.device.type for sums in run.module._train_sums.values()} == {"meta"}


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_ctrl_c_and_other_signals_save_and_stop_too(tmp_path: Path, name: str) -> None:
    number = signal.Signals[name]
    before = signal.getsignal(number)  # a shell's background jobs start with SIGINT ignored
    run = ToyRun(tmp_path)
    with pytest.raises(TrainingInterruptedError) as caught:
        run.fit(StopAfter(2, number))
    assert caught.value.code == 128 + number
    assert str(caught.value).startswith(f"stopped by {name} after step 2")
    assert (tmp_path / "checkpoints" / "last.ckpt").exists()
    assert signal.getsignal(number) is before


def test_a_run_whose_time_is_over_saves_and_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = ToyRun(tmp_path / "whole")
    parts = ToyRun(tmp_path / "parts", max_seconds=0.0)
    whole.fit()
    for step in range(1, TOTAL):
        with pytest.raises(
            TrainingInterruptedError, match=f"stopped by trainer.max_time after step {step};"
        ) as caught:
            parts.fit()
        assert caught.value.code == 85
    parts.fit()
    assert_same_bits(whole.module, parts.module)


def test_each_part_of_a_step_and_of_a_validation_is_a_beat(tmp_path: Path) -> None:
    """A step of three micro-batches may take nearly three times hang_seconds."""
    run = ToyRun(tmp_path, micro=2, validation=TOTAL)
    run.fit()
    assert run.watch.beats == 1 + TOTAL * (1 + 3) + 2 * 2
    assert not run.watch.is_training


class CrashAt(Callback):
    def __init__(self, step: int, in_validation: bool) -> None:
        self.step = step
        self.in_validation = in_validation

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if not self.in_validation and trainer.global_step == self.step:
            raise RuntimeError("crash")

    def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if self.in_validation and trainer.global_step == self.step:
            raise RuntimeError("crash")


@pytest.mark.parametrize(("step", "in_validation"), [(5, False), (4, True), (8, True)])
def test_crash_goes_back_to_the_last_checkpoint(
    tmp_path: Path, step: int, in_validation: bool
) -> None:
    """Rows of lost steps are dropped, a cut validation is done again, nothing is doubled."""
    options = {"log": 1, "validation": 4, "interval": 2}
    whole = ToyRun(tmp_path / "whole", **options)
    whole.fit()
    parts = ToyRun(tmp_path / "parts", **options)
    with pytest.raises(RuntimeError, match="crash"):
        parts.fit(CrashAt(step, in_validation))
    parts.fit()
    assert_same_bits(whole.module, parts.module)
    assert whole.rows() == parts.rows()


def test_finished_checkpoint_trains_no_further(tmp_path: Path) -> None:
    run = ToyRun(tmp_path, validation=4)
    first = run.fit()
    rows = run.rows()
    second = run.fit()
    assert_same_bits(first, second)
    assert run.rows() == rows and second.latest_validation == first.latest_validation


def test_averages_between_log_points(tmp_path: Path) -> None:
    each = ToyRun(tmp_path / "1", log=1)
    some = ToyRun(tmp_path / "4", log=4)
    each.fit()
    some.fit()
    every = {(step, key): float(value) for step, key, value in each.rows()}
    pooled = {(step, key): float(value) for step, key, value in some.rows()}
    mean = sum(every[step, "train/nsp_loss"] for step in (1, 2, 3, 4)) / 4  # six pairs in each step
    assert pooled[4, "train/nsp_loss"] == pytest.approx(mean, abs=1e-9)
    assert (
        pooled[8, "train/learning_rate"]
        == every[8, "train/learning_rate"]
        == pytest.approx(0.01 / 8)
    )
    assert {step for step, _ in pooled} == {4, 8}


@pytest.mark.parametrize(("interval", "expected"), [(100, [8]), (8, [8]), (3, [3, 6, 8])])
def test_validates_at_each_interval_and_once_at_the_end(
    tmp_path: Path, interval: int, expected: list[int]
) -> None:
    run = ToyRun(tmp_path, validation=interval)
    run.fit()
    assert [step for step, key, _ in run.rows() if key == "validation/loss"] == expected


def test_a_figure_that_nothing_declares_ends_the_run_at_the_first_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyObjective, "metrics", term_metrics("mlm"))
    run = ToyRun(tmp_path, validation=2)
    with refuses("validation/nsp_loss: no Metric declares the unit and the direction"):
        run.fit()
    assert run.trainer.global_step == 2


def test_validation_between_log_points_has_its_own_tokens_and_clock(tmp_path: Path) -> None:
    """They are those of the validated step, not of the last log point."""
    run = ToyRun(tmp_path, validation=4, log=3)
    run.fit()
    with (tmp_path / "metrics.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {int(row["step"]) for row in rows} == {3, 4, 6, 8}
    for row in rows:
        assert int(row["tokens"]) == int(row["step"]) * ROWS * SLOTS
    seconds = {int(row["step"]): float(row["seconds"]) for row in rows}
    assert 0.0 < seconds[3] < seconds[4] < seconds[6] < seconds[8]


def test_validation_runs_without_dropout_and_training_goes_on_with_it(tmp_path: Path) -> None:
    modes = []

    class Watch(Callback):
        def on_validation_batch_start(self, trainer: Trainer, module: Any, *_: Any) -> None:
            modes.append(("validation", module.model.encoder.dropout.training))

        def on_train_batch_start(self, trainer: Trainer, module: Any, *_: Any) -> None:
            modes.append(("train", module.model.encoder.dropout.training))

    run = ToyRun(tmp_path, validation=4, dropout=0.5)
    module = run.fit(Watch())
    assert modes == ([("train", True)] * 4 + [("validation", False)] * 2) * 2
    model = module.model.eval()
    with torch.no_grad():
        terms = [model(collate(global_batch(number)))[0] for number in (1000, 1001)]
    expected = sum(float(term.loss_sum) for term in terms) / sum(term.count for term in terms)
    assert module.latest_validation["validation/loss"] == pytest.approx(expected, abs=1e-6)


class PoisonMoments(Callback):
    def on_train_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
        if trainer.global_step == 4:
            next(iter(trainer.optimizers[0].state.values()))["exp_avg_sq"][0] = float("inf")


class PoisonWeights(Callback):
    """Behind the update of a step, where no loss tells it any more."""

    def __init__(self, step: int, value: float) -> None:
        self.step = step
        self.value = value

    def on_train_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            with torch.no_grad():
                module.model.encoder.embed.weight[0, 0] = self.value


@pytest.mark.parametrize("poison", [PoisonWeights(4, float("nan")), PoisonMoments()])
def test_what_is_no_number_is_not_saved(tmp_path: Path, poison: Callback) -> None:
    run = ToyRun(tmp_path, interval=2)
    with pytest.raises(
        DivergedError, match=r"step 4: weights or optimizer state are no numbers.*not saved"
    ):
        run.fit(poison)
    checkpoints = tmp_path / "checkpoints"
    assert [path.name for path in checkpoints.iterdir()] == ["last.ckpt"]
    assert load_file(checkpoints / "last.ckpt")["global_step"] == 2
    run.fit()
    whole = ToyRun(tmp_path / "whole", interval=2)
    whole.fit()
    assert_same_bits(run.module, whole.module)


def test_three_checkpoints_are_kept(tmp_path: Path) -> None:
    """The last, the one before, and that of the least held-out loss, over a stop as well."""
    run = ToyRun(tmp_path, interval=2, validation=3)
    with pytest.raises(TrainingInterruptedError):
        run.fit(StopAfter(4))
    run.fit(PoisonWeights(5, 1000.0))
    kept = {
        path.name: load_file(path)["global_step"] for path in (tmp_path / "checkpoints").iterdir()
    }
    losses = {step: float(value) for step, key, value in run.rows() if key == "validation/loss"}
    assert losses.keys() == {3, 6, 8} and kept.keys() == {"last.ckpt", "previous.ckpt", "best.ckpt"}
    assert (kept["last.ckpt"], kept["previous.ckpt"]) == (8, 6)
    assert kept["best.ckpt"] == min(losses, key=losses.__getitem__) == 3


def test_the_best_one_is_kept_though_a_kill_came_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the save of the least held-out loss, and before it got its second name."""
    run = ToyRun(tmp_path, interval=2, validation=3)
    with monkeypatch.context() as patch, pytest.raises(TypeError):
        patch.setattr("clozelab.training.callbacks.keep_best", None)
        run.fit()
    kept = tmp_path / "checkpoints" / "best.ckpt"
    assert not kept.exists()
    run.options["stop_after"] = 4
    with pytest.raises(TrainingInterruptedError):
        run.fit()
    assert load_file(kept)["global_step"] == 3


class Spikes(Callback):
    """A loss times `factor` in some steps' batches."""

    def __init__(self, steps: Container[int], factor: float = 1000.0) -> None:
        self.steps = steps
        self.factor = factor

    def on_train_batch_start(self, trainer: Trainer, module: Any, *_: Any) -> None:
        is_spike = trainer.global_step + 1 in self.steps
        module.model.objectives[0].factor = self.factor if is_spike else 1.0

    def on_train_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
        module.model.objectives[0].factor = 1.0


def test_a_spike_stops_the_run_and_is_not_saved(tmp_path: Path, knows_soon: None) -> None:
    """With the setting off it passes without a word, as it always did."""
    ToyRun(tmp_path / "off").fit(Spikes([6]))
    run = ToyRun(tmp_path / "stop", spike="stop", interval=5)
    with pytest.raises(DivergedError, match=r"step 6: gradient norm .*spike=skip leaves such"):
        run.fit(Spikes([6]))
    assert load_file(tmp_path / "stop" / "checkpoints" / "last.ckpt")["global_step"] == 5
    calm = ToyRun(tmp_path / "calm", spike="stop", interval=5)
    run.fit()  # without the spike it goes on as a run that never had one
    assert_same_bits(run.module, calm.fit())
    assert run.rows() == calm.rows()


@pytest.mark.parametrize("factor", [1000.0, float("nan")])
def test_a_skipped_spike_is_a_step_without_an_update(
    tmp_path: Path, knows_soon: None, caplog: pytest.LogCaptureFixture, factor: float
) -> None:
    """The schedule moves on, as in a plain loop that leaves the update out."""
    run = ToyRun(tmp_path, dropout=0.0, spike="skip")
    module = run.fit(Spikes([5], factor))
    assert module.facts()["steps_left_out"] == [5] and run.trainer.global_step == TOTAL
    assert re.search(r"step 5: gradient norm \S+, where \S+ is usual: its update is", caplog.text)
    plain = PlainLoop()
    for step in range(TOTAL):
        if step != 4:
            plain.step(step, 0.01 * (1 - step / TOTAL), clip=1.0)
    plain.require_same(module)


@pytest.mark.parametrize("graphs", [False, True])
def test_a_log_point_is_the_mean_of_the_losses_that_are_numbers(
    tmp_path: Path, knows_soon: None, graphs: bool
) -> None:
    """As the update of the other is left out; alone it is no number."""
    rows = []
    for interval in (1, 3):
        run = ToyRun(tmp_path / str(interval), log=interval, spike="skip", graphs=graphs)
        run.fit(Spikes([5], math.nan))
        rows.append({(step, key): float(value) for step, key, value in run.rows()})
    each, means = rows
    for key in ("train/loss", "train/mlm_loss", "train/nsp_accuracy"):
        assert math.isnan(each[5, key])
        assert means[6, key] == pytest.approx((each[4, key] + each[6, key]) / 2)


@pytest.mark.parametrize(
    ("stop", "graphs"), [(3, False), (6, False), (4, True), (5, True), (6, True)]
)
def test_a_stopped_run_meets_its_spike_like_an_undisturbed_one(
    tmp_path: Path, knows_soon: None, stop: int, graphs: bool
) -> None:
    """What was seen before the stop decides behind it, also on the device."""
    options = {"log": 3, "interval": 2, "spike": "skip", "graphs": graphs}
    whole = ToyRun(tmp_path / "whole", **options)
    parts = ToyRun(tmp_path / "parts", **options)
    whole.fit(Spikes([5]))
    with pytest.raises(TrainingInterruptedError):
        parts.fit(Spikes([5]), StopAfter(stop))
    parts.fit(Spikes([5]))
    assert_same_bits(whole.module, parts.module)
    assert whole.rows() == parts.rows()
    assert parts.module.facts()["steps_left_out"] == [5]


def test_a_run_can_stop_after_a_step(tmp_path: Path) -> None:
    run = ToyRun(tmp_path / "run", stop_after=3)
    whole = ToyRun(tmp_path / "whole")
    with pytest.raises(TrainingInterruptedError) as caught:
        run.fit()
    assert caught.value.step == 3
    with pytest.raises(TrainingInterruptedError) as again:
        run.fit()
    assert again.value.step == 3, "the same command again does not go one step further"
    run.options["stop_after"] = None
    run.fit()
    assert_same_bits(run.module, whole.fit())


def test_pooler_is_frozen_without_a_pair_objective() -> None:
    for pair in (ToyObjective.pair, None):
        objective: Any = ToyObjective()
        objective.pair = pair
        pooler = PretrainingModel(ToyEncoder(0.0), [objective]).encoder.pooler
        assert pooler.weight.requires_grad is (pair is not None)


def test_weights_gathered_from_ranks_keep_what_is_known_of_the_pooler() -> None:
    encoder = Encoder(CONFIG)
    encoder.has_trained_pooler = True
    objective: Any = ToyObjective()
    model = PretrainingModel(encoder, [objective])
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    sharded: Any = SimpleNamespace(_is_sharded=True, _whole_weights=weights, model=model)
    whole = PretrainingModule._whole_model(sharded)
    assert whole is not model and whole.encoder.has_trained_pooler


def test_names_of_validation_metrics() -> None:
    sums = {
        "mlm_loss": [20.0, 10.0],
        "mlm_accuracy": [3.0, 10.0],
        "nsp_loss": [2.0, 4.0],
        "nsp_accuracy": [3.0, 4.0],
    }
    sums |= {"nsp_accuracy/wiki": [1.0, 2.0], "nsp_accuracy/none": [0.0, 0.0]}
    sums |= {
        "mlm_loss/wiki": [6.0, 4.0],
        "mlm_sep_loss": [1.0, 2.0],
        "mlm_sep_accuracy": [0.0, 0.0],
    }
    metrics = validation_metrics(sums, "mlm")
    assert metrics == {
        "validation/loss": 2.0,
        "validation/perplexity": pytest.approx(7.389056),
        "validation/accuracy": 0.3,
        "validation/nsp_loss": 0.5,
        "validation/nsp_accuracy": 0.75,
        "validation/nsp_accuracy/wiki": 0.5,
        "validation/loss/wiki": 1.5,
        "validation/sep_loss": 0.5,
    }


def test_an_accuracy_below_what_the_sources_tell_is_shown_beside_it() -> None:
    """70 of 100 pairs right, 30 of them of two sources: inside one it is a guess."""
    sums = {
        "nsp_accuracy": [70.0, 100.0],
        "nsp_one_source/next": [30.0, 50.0],
        "nsp_one_source/random": [8.0, 20.0],
    }
    metrics = validation_metrics({"mlm_loss": [2.0, 1.0], **sums}, "mlm")
    assert metrics["validation/nsp_accuracy"] == 0.7
    assert metrics["validation/nsp_source_rule"] == pytest.approx(0.8)
    assert metrics["validation/nsp_accuracy_one_source"] == pytest.approx((30 / 50 + 8 / 20) / 2)
    assert not any("one_source/" in name for name in metrics)
    sums["nsp_one_source/random"] = [0.0, 0.0]
    assert "validation/nsp_accuracy_one_source" not in validation_metrics(
        {"mlm_loss": [2.0, 1.0], **sums}, "mlm"
    )


@pytest.mark.parametrize(
    ("change", "held_out", "reason"),
    [
        ({"seq_length": 513}, 128, "phases.0.seq_length is 513, but the model has 512 positions"),
        ({"steps": "???"}, 128, "phases.0.steps has no value: each phase needs seq_length"),
        ({"global_batch_size": 9}, 128, "phases.0.global_batch_size is 9: it must be a multiple"),
        ({}, 513, "validation.seq_length is 513, but the model has 512 positions"),
    ],
    ids=str,
)
def test_lengths_that_cannot_run(change: dict[str, Any], held_out: int, reason: str) -> None:
    phase = {"seq_length": 128, "steps": 10, "global_batch_size": 8, "micro_batch_size": 4}
    check_lengths([phase], {"seq_length": 128}, 512, 2)
    with refuses(reason):
        check_lengths([phase | change], {"seq_length": held_out}, 512, 2)
    with refuses("phases is empty: give at least one {seq_length, steps"):
        check_lengths([], {"seq_length": 128}, 512, 1)


def test_held_out_instances_longer_than_in_training_are_noticed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    phases = [
        {"seq_length": length, "steps": 1, "global_batch_size": 8, "micro_batch_size": 4}
        for length in (32, 64)
    ]
    check_lengths(phases, {"seq_length": 32}, 512, 1)
    assert not caplog.text
    check_lengths(phases, {"seq_length": 64}, 512, 1)
    shows(caplog.text, "validation.seq_length is 64, but the first phase has 32 and the longest")


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"step 3: the loss is nan .* learning rate 0\.00875"):
        ToyRun(tmp_path).fit(PoisonWeights(2, float("nan")))
