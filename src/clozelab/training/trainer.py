"""Build a Lightning Trainer from plain values; everything a stage's trainer has in common."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger

from clozelab.training.callbacks import (
    GracefulStop,
    LastCheckpoint,
    OwnCheckpoint,
    SameConfigOnEveryRank,
    TrainingProgress,
)
from clozelab.training.checkpoint_io import AtomicCheckpointIO
from clozelab.training.runtime import (
    check_compile,
    choose_precision,
    set_threads,
    use_deterministic_algorithms,
    use_onednn_fp32,
)
from clozelab.training.strategies import build_strategy, cluster_environment, resolve_accelerator

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hardware:
    """What a run trains on, with every `auto` resolved."""

    accelerator: str
    devices: int
    num_nodes: int
    strategy: str
    precision: str
    compile: str = "auto"
    """auto | true | false."""
    deterministic: bool = False

    @property
    def world_size(self) -> int:
        return self.devices * self.num_nodes

    @property
    def device(self) -> torch.device:
        """A device of the kind, for measurements before training."""
        return torch.device("cuda" if self.accelerator == "gpu" else "cpu")

    @property
    def compiles_pretraining(self) -> bool:
        """Whether the encoder is compiled in pre-training, unless a calibration on the CPU says otherwise."""
        return self.compile == "true" or (self.compile == "auto" and self.accelerator == "gpu")


def choose_hardware(
    *,
    accelerator: str,
    devices: int,
    num_nodes: int,
    strategy: str,
    precision: str,
    threads: int | None,
    compile: str = "auto",
    deterministic: bool = False,
    tf32: bool = False,
) -> Hardware:
    """Resolve `auto`, check that the machine has what is asked for, set threads and the fp32 library.

    Call before anything slow: raises ValueError that says what is missing and what to choose instead.
    """
    kind = resolve_accelerator(accelerator, devices)
    build_strategy(strategy, kind, devices, num_nodes)
    if kind != "tpu":
        cluster_environment(devices, num_nodes)
    wanted = check_compile(compile, kind)
    chosen = choose_precision(precision, kind)
    threads = set_threads(threads)
    if kind == "cpu" and chosen == "32-true":
        use_onednn_fp32()
    if kind == "gpu":
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
    if deterministic:
        use_deterministic_algorithms()
    log.info("training on %s x %d, strategy %s, precision %s, %d threads", kind, devices, strategy, chosen, threads)
    return Hardware(kind, devices, num_nodes, strategy, chosen, wanted, deterministic)


def build_trainer(
    hardware: Hardware,
    *,
    max_steps: int,
    validation_interval_steps: int | None,
    callbacks: Sequence[Callback],
    loggers: Sequence[Logger],
    folder: Path,
    log_interval_steps: int,
    **overrides: Any,
) -> Trainer:
    """A Trainer that counts optimizer steps, validates by steps, and leaves checkpoints and progress to our callbacks.

    `validation_interval_steps` None: no validation during training. `overrides` go to Lightning as they are
    (max_epochs...).
    """
    _quieten()
    environment = cluster_environment(hardware.devices, hardware.num_nodes) if hardware.accelerator != "tpu" else None
    options: dict[str, Any] = {
        "accelerator": hardware.accelerator,
        "devices": hardware.devices,
        "num_nodes": hardware.num_nodes,
        "strategy": build_strategy(hardware.strategy, hardware.accelerator, hardware.devices, hardware.num_nodes),
        "precision": hardware.precision,
        "max_steps": max_steps,
        "max_epochs": -1,
        "val_check_interval": validation_interval_steps or 1.0,
        "check_val_every_n_epoch": None if validation_interval_steps else 1,
        "limit_val_batches": None if validation_interval_steps else 0,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": log_interval_steps,
        "logger": list(loggers) or False,
        "callbacks": list(callbacks),
        "plugins": [AtomicCheckpointIO(), *([environment] if environment else [])],
        "default_root_dir": folder,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "use_distributed_sampler": False,
    }
    return Trainer(**(options | overrides))


def _quieten() -> None:
    """Drop Lightning's advice that does not apply: our loaders need no workers, our loops no length."""
    for pattern in (".*does not have many workers.*", ".*IterableDataset.*has `__len__`.*", ".*LeafSpec.*"):
        warnings.filterwarnings("ignore", pattern)
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.pytorch.accelerators.cuda", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)


def stage_callbacks(
    *,
    checkpoint: Path,
    checkpoint_interval_steps: int,
    checkpoint_least_seconds: float = 0.0,
    fingerprint: str,
    progress_bar: bool,
) -> list[Callback]:
    """The callbacks of every stage, in the order they need: progress, last checkpoint, graceful stop."""
    return [
        SameConfigOnEveryRank(fingerprint),
        TrainingProgress(progress_bar),
        OwnCheckpoint(fingerprint),
        LastCheckpoint(checkpoint, checkpoint_interval_steps, checkpoint_least_seconds),
        GracefulStop(),
    ]
