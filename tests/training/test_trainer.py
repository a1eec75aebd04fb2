"""Every trainer of conf/ is built or refused early; a run goes on from its own checkpoint alone."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel
from lightning.pytorch.trainer.connectors.data_connector import warning_cache
from rich.text import Text
from tests.composing import composed

from clozelab.assembly.encoders import build_objectives
from clozelab.assembly.factory import configured_callbacks
from clozelab.assembly.pretraining import check_inputs, check_pretraining
from clozelab.launch.sweep import phase_objectives
from clozelab.objectives.objective import TokenObjective
from clozelab.training import callbacks, runtime
from clozelab.training.callbacks import GracefulStop, SameConfig, TrainingProgress
from clozelab.training.checkpoints import load_file
from clozelab.training.stopping import Watch
from clozelab.training.trainer import (
    Hardware,
    _silence_lightning,
    build_trainer,
    choose_hardware,
    cluster_environment,
    resolve_accelerator,
    stage_callbacks,
)

CPU = {
    "accelerator": "cpu",
    "devices": 1,
    "num_nodes": 1,
    "strategy": "auto",
    "precision": "32-true",
    "threads": None,
}


def test_the_steps_and_the_time_left_stay_on_a_terminal_of_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "80"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    trainer: Any = SimpleNamespace(is_global_zero=True, max_steps=540, global_step=0)
    module: Any = SimpleNamespace(
        latest_metrics={"train/loss": 6.66, "train/mlm_accuracy": 0.256, "train/lr": 0.001},
        latest_metrics_step=50,
    )
    progress = TrainingProgress(enabled=True)
    progress.on_train_start(trainer, module)
    trainer.global_step = 50
    progress.on_train_batch_end(trainer, module)
    progress.on_train_end(trainer, module)
    *_, line = Text.from_ansi(capsys.readouterr().err).plain.rstrip().splitlines()
    assert re.search(r"50/540 \d:\d\d:\d\d \S+ +loss 6.66  mlm_accuracy 25.6%.*…$", line)
    assert len(line) <= 80


def test_a_log_is_not_quiet_for_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    trainer: Any = SimpleNamespace(is_global_zero=True, max_steps=90, global_step=0)
    module: Any = SimpleNamespace(latest_metrics={"train/loss": 6.66}, latest_metrics_step=3)
    now = 100.0
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: now)
    progress = TrainingProgress(enabled=False)
    for step in range(1, 7):
        now += 12
        trainer.global_step = step
        progress.on_train_batch_end(trainer, module)
    lines = [" ".join(record.getMessage().split()) for record in caplog.records]
    assert lines == ["step 3/90 loss 6.66", "step 6/90"]


STEP = {
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NAME": "x",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "4",
}


@pytest.mark.parametrize(
    ("variables", "devices", "expected"),
    [
        ({}, 4, "NoneType"),
        (STEP | {"SLURM_STEP_NUM_TASKS": "4"}, 4, "SLURMEnvironment"),
        (STEP, 4, "LightningEnvironment"),  # a batch script: nobody has started ranks
        (STEP | {"SLURM_STEP_NUM_TASKS": "1"}, 1, "LightningEnvironment"),
        # a rank that Lightning has started there
        (STEP | {"LOCAL_RANK": "1"}, 4, "LightningEnvironment"),
    ],
)
def test_who_starts_the_ranks_under_slurm(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], devices: int, expected: str
) -> None:
    slurm(monkeypatch, variables)
    environment = cluster_environment(devices, 1)
    assert type(environment).__name__ == expected
    assert getattr(environment, "auto_requeue", False) is False


def test_torchrun_has_to_start_as_many_processes_as_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One device a process, and each would train by itself in the one folder."""
    slurm(monkeypatch, {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2"})
    assert cluster_environment(2, 1) is None and cluster_environment(1, 2) is None
    with pytest.raises(ValueError, match=r"torchrun has started 2 processes.*devices=1 needs 1"):
        choose_hardware(**CPU)


def test_ranks_of_two_nodes_meet_at_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the third of four tasks reads: two nodes, in Slurm's short form of names."""
    place = {
        "SLURM_JOB_ID": "1234567",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_NNODES": "2",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_PROCID": "2",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "1",
        "SLURM_NODELIST": "gpu-[07-08]",
    }
    slurm(monkeypatch, STEP | place)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # so that what Lightning writes there is taken back
        monkeypatch.delenv(name)
    environment = cluster_environment(2, 2)
    assert environment is not None
    environment.validate_settings(num_devices=2, num_nodes=2)
    assert (environment.main_address, environment.main_port) == ("gpu-07", 15000 + 4567)
    assert (environment.global_rank(), environment.world_size()) == (2, 4)
    assert (environment.node_rank(), environment.local_rank()) == (1, 0)


def slurm(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name in list(os.environ):
        if name.startswith("SLURM_") or name in ("LOCAL_RANK", "TORCHELASTIC_RUN_ID"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_missing_cuda_names_the_build_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"needs a CUDA device.*trainer=cpu"):
        resolve_accelerator("gpu", 1)
    assert resolve_accelerator("auto", 1) == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolve_accelerator("auto", 1) == "gpu"
    with pytest.raises(ValueError, match="sees 1 CUDA"):
        resolve_accelerator("gpu", 2)


def test_compiling_is_for_gpus_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "has_cpp_compiler", lambda: True)
    for word, cpu, gpu in (
        ("auto", False, True),
        ("true", True, True),
        ("false", False, False),
        ("whole", True, True),
    ):
        assert choose_hardware(**CPU, compile=word).compiles_pretraining == cpu
        device = Hardware("gpu", 1, 1, "auto", "bf16-mixed", word)
        assert device.compiles_pretraining == gpu
    with pytest.raises(ValueError, match="whole is for one device"):
        choose_hardware(**CPU | {"devices": 2, "strategy": "ddp"}, compile="whole")


@pytest.mark.parametrize(
    ("variables", "devices", "number"),
    [
        ({}, 2, 0),
        ({"LOCAL_RANK": "1"}, 2, 1),
        ({"SLURM_LOCALID": "3"}, 4, 3),
        ({"SLURM_LOCALID": "3"}, 1, 0),  # a task of its own, with one GPU
    ],
)
def test_ranks_measure_on_their_own_gpus(
    variables: dict[str, str], devices: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Hardware("gpu", devices, 1, "ddp", "bf16-mixed").device == torch.device("cuda", number)
    assert Hardware("cpu", devices, 1, "ddp", "32-true").device == torch.device("cpu")


OURS = "a" * 64
OTHERS = "b" * 64


def fit(checkpoint: Path, fingerprint: str, steps: int) -> int:
    """Train up to `steps`, from the checkpoint if it is there; the step that was reached."""
    stop = GracefulStop(Watch())
    callbacks = stage_callbacks(
        checkpoint, 2, fingerprint=fingerprint, progress_bar=False, stop=stop
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
    assert load_file(checkpoint)[SameConfig.KEY] == OURS
    reason = r"last.ckpt is the checkpoint of another configuration \(fingerprint aaaaaa"
    with pytest.raises(ValueError, match=reason):
        fit(checkpoint, OTHERS, 4)
    assert load_file(checkpoint)["global_step"] == 2
    assert fit(checkpoint, OURS, 4) == 4


def test_a_machine_with_srun_is_not_told_to_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    slurm(monkeypatch, {})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        SLURMEnvironment.detect()
        assert "srun" in str(told[-1].message), "Lightning's hint has another wording"
        told.clear()
        _silence_lightning()
        SLURMEnvironment.detect()
    assert not told


def test_a_module_that_moves_its_batches_is_not_warned_of(tmp_path: Path) -> None:
    """As that of pre-training does, for graphs."""

    class Moving(BoringModel):
        def transfer_batch_to_device(self, batch: Any, device: torch.device, index: int) -> Any:
            return super().transfer_batch_to_device(batch, device, index)

    def hints() -> list[str]:
        warning_cache.clear()  # else Lightning says it once in a process
        with warnings.catch_warnings(record=True) as told:
            options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
            options |= {"max_steps": 1, "enable_progress_bar": False, "limit_val_batches": 0}
            trainer = Trainer(default_root_dir=tmp_path, **options)
            trainer.fit(Moving(), datamodule=BoringDataModule())
        return [str(one.message) for one in told if "transfer_batch" in str(one.message)]

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert hints(), "Lightning's hint has another wording"
        _silence_lightning()
        assert not hints()


@pytest.mark.parametrize(
    ("tasks", "devices", "num_nodes"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4"}, 2, 1),
        ({"SLURM_STEP_NUM_TASKS": "2"}, 4, 2),
        ({}, 4, 2),
    ],
)
def test_ranks_that_nobody_starts_are_refused(
    monkeypatch: pytest.MonkeyPatch, tasks: dict[str, str], devices: int, num_nodes: int
) -> None:
    slurm(monkeypatch, STEP | tasks)
    ranks = {"strategy": "ddp", "devices": devices, "num_nodes": num_nodes}
    with pytest.raises(ValueError, match=f"srun --nodes={num_nodes} --ntasks-per-node={devices}"):
        choose_hardware(**CPU | ranks)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"devices": 2}, "need trainer=ddp"),
        ({"strategy": "xla"}, "runs on TPUs only"),
        ({"accelerator": "tpu", "strategy": "xla"}, "torch_xla"),
        ({"compile": True}, r"needs a C\+\+ compiler"),
    ],
)
def test_what_cannot_run_is_refused_before_anything(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(runtime, "has_cpp_compiler", lambda: False)
    with pytest.raises(ValueError, match=reason):
        choose_hardware(**CPU | change)


def test_averages_take_buffers_as_they_are() -> None:
    """An average of whole numbers, such as MPNet's buckets, may be cut to another one."""
    (average,) = configured_callbacks(composed("pretrain", ["callbacks=ema"]).config)
    assert isinstance(average, WeightAveraging) and not average._use_buffers


@pytest.mark.parametrize(
    ("words", "machine", "reason"),
    [
        (["callbacks=ema"], {"precision": "bf16-true", "strategy": "auto"}, "bf16-true"),
        (["callbacks=ema"], {"precision": "bf16-mixed", "strategy": "fsdp"}, "callbacks=ema.*fsdp"),
        ([], {"precision": "bf16-mixed", "strategy": "fsdp"}, "score_layers.*fsdp"),
        (["optimizer=muon"], {"precision": "bf16-mixed", "strategy": "fsdp"}, "Muon.*fsdp"),
        (["optimizer=lamb"], {"precision": "bf16-mixed", "strategy": "fsdp"}, "Lamb.*fsdp"),
        (["optimizer=adafactor"], {"precision": "32-true", "strategy": "fsdp"}, "Adafactor.*fsdp"),
    ],
)
def test_what_a_precision_or_a_strategy_cannot_do(
    words: list[str], machine: dict[str, Any], reason: str
) -> None:
    cfg: Any = composed("pretrain", words).config
    hardware: Any = SimpleNamespace(**machine)
    objective: Any = SimpleNamespace(token=SimpleNamespace(score_layers=[(2, 4)]))
    with pytest.raises(ValueError, match=reason):
        check_pretraining(cfg, hardware, [objective])


def test_a_teacher_has_to_read_held_out_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be longer than those of all phases."""
    words = ["scale=demo", "objective=mlm", "validation.seq_length=500"]
    cfg: Any = composed("pretrain", words).config
    checked: list[int] = []
    monkeypatch.setattr(TokenObjective, "check", lambda *given: checked.append(given[-1]))
    check_inputs(cfg, build_objectives(phase_objectives(cfg)))
    assert checked == [500]
