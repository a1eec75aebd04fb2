"""From the names in conf/trainer to a Lightning Trainer, with early errors.

What this machine lacks is said before anything heavy begins.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch.optim import Optimizer

from clozelab.training import runtime
from clozelab.training.callbacks import GracefulStop, LastCheckpoint, SameConfig, TrainingProgress
from clozelab.training.checkpoints import AtomicCheckpointIO, Checkpoint, verify_file

log = logging.getLogger(__name__)

SWITCHED_OFF = (
    "enable_checkpointing",
    "enable_progress_bar",
    "enable_model_summary",
    "use_distributed_sampler",
)
"""Of Lightning's Trainer: what our callbacks and data modules do."""


@dataclass(frozen=True)
class Hardware:
    """What a run trains on, with every `auto` resolved."""

    accelerator: str
    devices: int
    num_nodes: int
    strategy: str
    precision: str
    compile: str = "auto"  # auto | true | false | whole
    cuda_graphs: str = "off"  # auto | on | off, in pre-training
    deterministic: bool = False

    @property
    def world_size(self) -> int:
        return self.devices * self.num_nodes

    @property
    def device(self) -> torch.device:
        """This process's own device, for measurements before training.

        Without the local rank all ranks of a node would meet on the first GPU.
        """
        if self.accelerator == "mps":
            return torch.device("mps")
        if self.accelerator != "gpu":
            return torch.device("cpu")
        local_rank = int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)
        return torch.device("cuda", local_rank % self.devices)

    @property
    def compiles_pretraining(self) -> bool:
        """Whether the encoder is compiled in pre-training."""
        if self.compile == "auto":
            return self.accelerator == "gpu"
        return self.compile != "false"


def choose_hardware(*, threads: int | None, tf32: bool = False, **requested: Any) -> Hardware:
    """Resolves `auto`, checks the machine, sets threads and the fp32 library.

    `requested`: as Hardware has it. ValueError says what is missing, and what to choose instead.
    """
    request = Hardware(**requested)
    accelerator = resolve_accelerator(request.accelerator, request.devices)
    build_strategy(request.strategy, accelerator, request.devices, request.num_nodes)
    if accelerator != "tpu":
        cluster_environment(request.devices, request.num_nodes)
    compiles = runtime.check_compile(request.compile, accelerator)
    if compiles == "whole" and request.world_size > 1:
        raise ValueError("trainer.compile=whole is for one device: choose auto")
    graphs = request.cuda_graphs
    if (accelerator, request.world_size) != ("gpu", 1):
        if graphs == "on":
            raise ValueError("trainer.cuda_graphs=on is for one CUDA device: choose auto")
        graphs = "off"
    precision = runtime.choose_precision(request.precision, accelerator)
    if threads is not None:
        torch.set_num_threads(threads)
    if accelerator == "cpu" and precision == "32-true":
        runtime.use_onednn_fp32()
    if accelerator == "gpu":
        # "high" lets products of fp32 round their factors to TF32 (10 bits of mantissa).
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
    if request.deterministic:
        runtime.use_deterministic_algorithms()
    log.info(
        "on %s x %d, strategy %s, precision %s, %d threads",
        accelerator,
        request.devices,
        request.strategy,
        precision,
        torch.get_num_threads(),
    )
    return replace(
        request,
        accelerator=accelerator,
        precision=precision,
        compile=compiles,
        cuda_graphs=graphs,
    )


def resolve_accelerator(requested: str, devices: int) -> str:
    """cpu, gpu, mps or tpu; `auto` is gpu where CUDA is there.

    ValueError for what this machine cannot give.
    """
    num_gpus = 0
    if torch.cuda.is_available():
        num_gpus = torch.cuda.device_count()
    if requested == "auto" and num_gpus:
        requested = "gpu"
    elif requested == "auto":
        requested = "cpu"
    if requested == "gpu" and devices > num_gpus:
        raise ValueError(
            f"this trainer needs a CUDA device for each of trainer.devices={devices}, and torch"
            f" {torch.__version__} (CUDA {torch.version.cuda}) sees {num_gpus} CUDA devices: choose"
            " trainer=cpu, or install a CUDA build of torch on a machine with GPUs"
        )
    if requested == "mps" and not torch.backends.mps.is_available():
        raise ValueError(
            f"trainer=mps needs Apple's GPU, and torch {torch.__version__} sees none: choose"
            " trainer=cpu"
        )
    if requested == "tpu" and importlib.util.find_spec("torch_xla") is None:
        raise ValueError(
            "trainer=tpu needs torch_xla, which is not installed: on a TPU host install with -c"
            " constraints-tpu.txt (torch and torch_xla 2.9, the last release). This trainer is"
            " untested on hardware"
        )
    return requested


def build_strategy(name: str, accelerator: str, devices: int, num_nodes: int) -> Strategy | str:
    """Lightning's strategy for a resolved accelerator.

    ValueError for a combination that cannot run.
    """
    world_size = devices * num_nodes
    is_tpu = accelerator == "tpu"
    # On TPUs it is xla or auto.
    if (name == "xla" and not is_tpu) or (name in ("ddp", "fsdp") and is_tpu):
        raise ValueError(
            f"trainer.strategy={name} does not run on accelerator {accelerator}: xla runs on TPUs"
            " only (trainer=tpu), and nothing else does there"
        )
    if name == "auto" and world_size > 1 and not is_tpu:
        raise ValueError(
            f"{world_size} devices need trainer=ddp or trainer=fsdp, but the strategy is auto"
        )
    if name == "fsdp":
        return ShardedStrategy(
            world_size, tensor_parallel_size=1, save_distributed_checkpoint=False
        )
    if name != "ddp":
        return name
    backend = "nccl" if accelerator == "gpu" else "gloo"
    # Every parameter gets a gradient each step (the pooler is frozen without a pair objective).
    return DDPStrategy(
        process_group_backend=backend, find_unused_parameters=False, gradient_as_bucket_view=True
    )


class ShardedStrategy(ModelParallelStrategy):
    """Fully sharded data parallel; it checks a checkpoint's checksum.

    It reads a checkpoint past our CheckpointIO. An optimizer's state keeps its parameters' names:
    Lightning numbers them in the module's order, and an optimizer with several groups counts in
    another.
    """

    def optimizer_state(self, optimizer: Optimizer) -> Checkpoint:
        # Slow to import.
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            get_optimizer_state_dict,
        )

        assert self.model is not None
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_optimizer_state_dict(
            self.model, getattr(optimizer, "optimizer", optimizer), options=options
        )

    def load_checkpoint(
        self, checkpoint_path: str | Path, weights_only: bool | None = True
    ) -> Checkpoint:
        verify_file(Path(checkpoint_path))
        return super().load_checkpoint(checkpoint_path, weights_only is not False)


def cluster_environment(devices: int, num_nodes: int) -> ClusterEnvironment | None:
    """Who has started this job's processes, where Slurm is around.

    None outside it: Lightning looks for itself. Lightning alone takes every process in a Slurm
    allocation for a rank of srun's, and waits for others that nobody starts; and its requeueing
    would come on top of the launcher's. ValueError where srun or torchrun has started another
    number of processes than there are devices.
    """
    if TorchElasticEnvironment.detect():
        tasks = int(os.environ["WORLD_SIZE"])
        # Without a strategy for several, each of them would train by itself, in one folder.
        if tasks != devices * num_nodes:
            raise ValueError(
                f"torchrun has started {tasks} processes, and trainer.num_nodes={num_nodes} with"
                f" trainer.devices={devices} needs {devices * num_nodes}: say trainer=ddp (or fsdp)"
                " with trainer.devices of torchrun's --nproc-per-node and trainer.num_nodes of its"
                " --nnodes"
            )
        return None
    if "SLURM_JOB_ID" not in os.environ:
        return None
    # Of srun's step; a batch script is in none.
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1)
    if tasks == devices * num_nodes and tasks > 1 and "SLURM_NTASKS_PER_NODE" in os.environ:
        # Our launcher puts a job in line again, so Lightning must not.
        return SLURMEnvironment(auto_requeue=False)
    if tasks == 1 and num_nodes == 1:
        return LightningEnvironment()
    raise ValueError(
        f"trainer.num_nodes={num_nodes} and trainer.devices={devices} need {devices * num_nodes}"
        f" processes, but Slurm has started {tasks}: srun --nodes={num_nodes}"
        f" --ntasks-per-node={devices} (hydra/launcher=slurm does that)"
    )


def build_trainer(
    hardware: Hardware,
    *,
    max_steps: int,
    validation_interval_steps: int | None,
    callbacks: Sequence[Callback],
    loggers: Sequence[Logger],
    folder: Path,
    log_interval_steps: int,
    **overrides: object,
) -> Trainer:
    """A Trainer that counts optimizer steps and validates by steps.

    Checkpoints and progress are our callbacks'. `validation_interval_steps` None: no validation
    during training. `overrides` go to Lightning as they are.
    """
    _silence_lightning()
    plugins: list[object] = [AtomicCheckpointIO()]
    # XLA has an environment of its own.
    if hardware.accelerator != "tpu":
        environment = cluster_environment(hardware.devices, hardware.num_nodes)
        if environment is not None:
            plugins.append(environment)
    # Validation is by steps, whatever an epoch of the data is.
    validation: dict[str, object] = {"check_val_every_n_epoch": 1, "limit_val_batches": 0}
    if validation_interval_steps:
        validation = {
            "check_val_every_n_epoch": None,
            "val_check_interval": validation_interval_steps,
        }
    strategy = build_strategy(
        hardware.strategy, hardware.accelerator, hardware.devices, hardware.num_nodes
    )
    options: dict[str, Any] = {
        "accelerator": hardware.accelerator,
        "devices": hardware.devices,
        "num_nodes": hardware.num_nodes,
        "strategy": strategy,
        "precision": hardware.precision,
        "plugins": plugins,
    }
    options |= {
        "max_steps": max_steps,
        # no limit: steps are what ends a training
        "max_epochs": -1,
        "num_sanity_val_steps": 0,
        "callbacks": list(callbacks),
        "logger": list(loggers) or False,
        "log_every_n_steps": log_interval_steps,
        "default_root_dir": folder,
    }
    return Trainer(**(options | dict.fromkeys(SWITCHED_OFF, False) | validation | overrides))


def _silence_lightning() -> None:
    """Drops advice of Lightning's that does not apply.

    Our loaders need no workers, our loops no length, and one process needs no srun. A module that
    moves batches itself is meant to, whatever the data module does.
    """
    for pattern in (
        ".*does not have many workers.*",
        ".*IterableDataset.*has `__len__`.*",
        ".*LeafSpec.*",
        ".*`srun` command is available.*",
        ".*You have overridden `transfer_batch_to_device` in `LightningModule`.*",
    ):
        warnings.filterwarnings("ignore", pattern)
    for name in (
        "lightning.pytorch.utilities.rank_zero",
        "lightning.pytorch.accelerators.cuda",
        "lightning.fabric",
    ):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It ends this process as soon as another rank has ended, and names that one.
    logging.getLogger("lightning.fabric.strategies.launchers").setLevel(logging.INFO)


def stage_callbacks(
    checkpoint: Path,
    interval_steps: int,
    least_seconds: float = 0.0,
    *,
    fingerprint: str,
    progress_bar: bool,
    stop: GracefulStop,
    note: Path | None = None,
) -> list[Callback]:
    """The callbacks of every stage, in the order they need."""
    return [
        SameConfig(fingerprint),
        TrainingProgress(progress_bar, note),
        LastCheckpoint(checkpoint, interval_steps, least_seconds),
        stop,
    ]
