"""From the names in conf/trainer to what Lightning wants, with early and honest errors for what is missing."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy

from clozelab.training.checkpoint_io import verify_file

ACCELERATORS = ("auto", "cpu", "gpu", "tpu")
STRATEGIES = ("auto", "ddp", "fsdp", "xla")


def resolve_accelerator(requested: str, devices: int) -> str:
    """cpu, gpu or tpu; `auto` is gpu where CUDA is there. Raises ValueError for what this machine cannot give."""
    if requested not in ACCELERATORS:
        raise ValueError(f"trainer.accelerator is {requested!r}: choose one of {', '.join(ACCELERATORS)}")
    if devices < 1:
        raise ValueError(f"trainer.devices is {devices}: give the number of devices of one node, at least 1")
    if requested == "auto":
        requested = "gpu" if torch.cuda.is_available() else "cpu"
    if requested == "gpu":
        _require_cuda(devices)
    if requested == "tpu":
        _require_xla()
    return requested


def _require_cuda(devices: int) -> None:
    if not torch.cuda.is_available():
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU-only build"
        raise ValueError(
            f"this trainer needs a CUDA device, and torch {torch.__version__} ({build}) sees none:"
            " choose trainer=cpu, or install a CUDA build of torch on a machine with a GPU"
        )
    if devices > torch.cuda.device_count():
        raise ValueError(f"trainer.devices is {devices}, but torch sees {torch.cuda.device_count()} CUDA device(s)")


def _require_xla() -> None:
    if importlib.util.find_spec("torch_xla") is None:
        raise ValueError(
            "trainer=tpu needs torch_xla, which is not installed: on a TPU host install with -c constraints-tpu.txt"
            " (torch and torch_xla 2.9, the last release). This trainer is untested on hardware"
        )


def build_strategy(name: str, accelerator: str, devices: int, num_nodes: int) -> Strategy | str:
    """Lightning's strategy for a resolved accelerator. Raises ValueError for a combination that cannot run."""
    if name not in STRATEGIES:
        raise ValueError(f"trainer.strategy is {name!r}: choose one of {', '.join(STRATEGIES)}")
    if name == "xla" and accelerator != "tpu":
        raise ValueError(f"trainer.strategy=xla runs on TPUs only, but trainer.accelerator is {accelerator}")
    if name == "auto":
        if devices * num_nodes > 1 and accelerator != "tpu":
            raise ValueError(
                f"{devices * num_nodes} devices need trainer=ddp or trainer=fsdp, but the strategy is auto"
            )
        return "auto"
    if name == "ddp":
        return _build_ddp(accelerator)
    if name == "fsdp":
        return _build_fsdp(accelerator, devices, num_nodes)
    return "xla"


def cluster_environment(devices: int, num_nodes: int) -> ClusterEnvironment | None:
    """Who has started this job's processes, where Slurm is around; None outside it: Lightning looks for itself.

    Lightning alone takes every process in a Slurm allocation for a rank of srun's, and waits for others that nobody
    starts; and its requeueing would come on top of the launcher's.

    Raises:
        ValueError: srun has started another number of processes than there are devices.
    """
    if "SLURM_JOB_ID" not in os.environ or TorchElasticEnvironment.detect():
        return None
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS") or 1)  # of srun's step; a batch script is in none
    if tasks == devices * num_nodes and tasks > 1 and "SLURM_NTASKS_PER_NODE" in os.environ:
        return SLURMEnvironment(auto_requeue=False)
    if tasks == 1 and num_nodes == 1:
        return LightningEnvironment()
    raise ValueError(
        f"trainer.num_nodes={num_nodes} and trainer.devices={devices} need {devices * num_nodes} processes, but Slurm"
        f" has started {tasks}: srun --nodes={num_nodes} --ntasks-per-node={devices} (hydra/launcher=slurm does that)"
    )


def _build_ddp(accelerator: str) -> Strategy:
    if not torch.distributed.is_available():
        raise ValueError("trainer=ddp needs a torch build with torch.distributed; this one has none")
    if accelerator == "tpu":
        raise ValueError("trainer.strategy=ddp does not run on TPUs: choose trainer=tpu, whose strategy is xla")
    backend = "nccl" if accelerator == "gpu" else "gloo"
    # Every parameter gets a gradient each step (the pooler is frozen without a pair objective).
    return DDPStrategy(process_group_backend=backend, find_unused_parameters=False, gradient_as_bucket_view=True)


def _build_fsdp(accelerator: str, devices: int, num_nodes: int) -> Strategy:
    if accelerator == "tpu":
        raise ValueError("trainer.strategy=fsdp does not run on TPUs: choose trainer=tpu, whose strategy is xla")
    return ShardedStrategy(data_parallel_size=devices * num_nodes)


class ShardedStrategy(ModelParallelStrategy):
    """Fully sharded data parallel (torch's `fully_shard`), with one whole, checked checkpoint file as everywhere."""

    def __init__(self, data_parallel_size: int) -> None:
        super().__init__(data_parallel_size, tensor_parallel_size=1, save_distributed_checkpoint=False)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = True) -> dict[str, Any]:
        # Reads the file past the checkpoint writer, so the checksum is checked here.
        verify_file(Path(checkpoint_path))
        return super().load_checkpoint(checkpoint_path, weights_only is not False)
