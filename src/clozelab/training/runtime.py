"""What the machine offers a run: precision, exact fp32 through oneDNN, matmul ceiling, memory."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from clozelab.processor import multiplies_bf16
from clozelab.training.stopping import begin_data_worker

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

log = logging.getLogger(__name__)

DEPTH = 2  # batches that wait: one to hide the making of the next, one against jitter
CEILING_SECONDS = 0.3  # what a training spends on measuring its machine
CPU_PRODUCT_SIZE = 1024  # rows and columns of the product that is timed on a CPU; a GPU repeats it
MAX_FP32_ERROR = 2e-6  # a matrix product that errs by more has rounded its inputs


def choose_precision(requested: str, accelerator: str) -> str:
    """The precision a run trains in.

    `auto` is bf16-mixed where a cpu or gpu multiplies bf16 natively, else 32-true.
    """
    device_type = {"cpu": "cpu", "gpu": "cuda"}.get(accelerator, "")
    if requested == "bf16-mixed" and device_type == "cpu" and not multiplies_bf16("cpu"):
        log.warning(
            "precision bf16-mixed is emulated on this CPU, many times slower than precision=32-true"
        )
    if requested != "auto":
        return requested
    if accelerator == "tpu":
        return "bf16-true"
    if device_type and multiplies_bf16(device_type):
        return "bf16-mixed"
    return "32-true"


def widest_float(device: torch.device) -> torch.dtype:
    """The dtype of a sum over many batches: Apple's GPUs have no 64 bits."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def onednn_fp32() -> Iterator[bool]:
    """Sends fp32 matrix products on the CPU through oneDNN inside.

    Yields False where this torch cannot.
    """
    backend: object = getattr(torch.backends.mkldnn, "matmul", None)
    if not torch.backends.mkldnn.is_available() or not hasattr(backend, "fp32_precision"):
        yield False
        return
    # "bf16" allows oneDNN to split fp32 into bf16 parts; what it does is measured below.
    before = backend.fp32_precision
    backend.fp32_precision = "bf16"
    try:
        yield True
    finally:
        backend.fp32_precision = before


def onednn_fp32_error() -> float | None:
    """Relative error of an fp32 product through oneDNN here; None where there is no such way."""
    with onednn_fp32() as is_available:
        if not is_available:
            return None
        generator = torch.Generator().manual_seed(0)
        a, b = (torch.randn(256, 256, generator=generator) for _ in range(2))
        exact = a.double() @ b.double()
        return float(((a @ b).double() - exact).abs().max() / exact.abs().max())


def use_onednn_fp32() -> None:
    """Sends fp32 matrix products on the CPU through oneDNN if they stay fp32-accurate here.

    The switch allows oneDNN to use bf16 parts. A processor with AVX-512 alone keeps fp32 accuracy,
    at 1.4 to 1.8 times the default library's speed on an AMD Zen 5. Where it really rounds, as it
    may on AMX, it stays off.
    """
    error = onednn_fp32_error()
    if error is not None and error <= MAX_FP32_ERROR:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]
        log.info("fp32 products go through oneDNN (relative error %.1e)", error)


def check_compile(requested: str | bool, accelerator: str) -> str:
    """trainer.compile as auto, true, whole or false; ValueError where compiling cannot work."""
    choice = str(requested).lower()
    is_asked = choice in ("true", "whole")
    if is_asked and accelerator == "tpu":
        raise ValueError(
            f"trainer.compile={choice} is not for TPUs, where XLA compiles everything: choose auto"
        )
    if is_asked and accelerator == "cpu" and not has_cpp_compiler():
        raise ValueError(
            f"trainer.compile={choice} needs a C++ compiler on the CPU, and there is none (g++,"
            " clang++ or $CXX): install one, or choose trainer.compile=false"
        )
    return choice


def has_cpp_compiler() -> bool:
    """Whether torch.compile can build kernels for the CPU here."""
    return any(name and shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++"))


def use_deterministic_algorithms() -> None:
    """The same bits whatever the timing: torch then refuses what has no such algorithm."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    torch.use_deterministic_algorithms(True)
    settings: Any = torch.utils.deterministic
    # A net for programs that read what nobody wrote.
    settings.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False


@contextmanager
def torch_settings_kept() -> Iterator[None]:
    """What a run inside sets of this process's torch is as it was afterwards, also on an error.

    That is threads, deterministic algorithms and how fp32 is multiplied: a notebook goes on.
    """
    attributes: Any = (
        (torch.utils.deterministic, "fill_uninitialized_memory"),
        (torch.backends.cudnn, "benchmark"),
        (torch.backends.cuda.matmul, "fp32_precision"),
        (getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision"),
    )
    settings = []
    for owner, name in attributes:
        if hasattr(owner, name):
            settings.append((owner, name, getattr(owner, name)))
    threads = torch.get_num_threads()
    mode = torch.get_deterministic_debug_mode()
    # It is of all backends, and torch does not tell it where these differ.
    precision = None
    with suppress(RuntimeError):
        precision = torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if torch.get_deterministic_debug_mode() != mode:
            torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)
        if precision is not None:
            torch.set_float32_matmul_precision(precision)
        for owner, name, value in settings:
            setattr(owner, name, value)


@torch.no_grad()
def matmul_ceiling(precision: str, device: torch.device, seconds: float | None = None) -> float:
    """FLOP/s of a large matrix product on `device`: the best of those that fit in `seconds`.

    0 for a device that answers before it has multiplied, and is not waited for here (mps, TPU).
    """
    if seconds is None:
        seconds = CEILING_SECONDS
    dtype = torch.bfloat16 if precision.startswith("bf16") else torch.float32
    # So large that starting the kernel costs nothing beside it.
    size = 8192 if device.type == "cuda" else CPU_PRODUCT_SIZE
    # The heads of a fresh model are drawn after this, by the same generator. It is asked for as
    # many numbers whatever the device, so that a seed means the same weights on all of them.
    drawn = [torch.randn(CPU_PRODUCT_SIZE, CPU_PRODUCT_SIZE) for _ in range(2)]
    if device.type not in ("cpu", "cuda"):
        return 0.0
    copies = size // CPU_PRODUCT_SIZE
    a, b = (matrix.to(device, dtype).repeat(copies, copies) for matrix in drawn)
    return 2.0 * size**3 / shortest_seconds(lambda: a @ b, device, seconds)


def shortest_seconds(act: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Of one call on a device, the best of those that fit in `seconds`."""
    end = time.perf_counter() + seconds
    best = float("inf")
    calls = 0
    while time.perf_counter() < end or calls < 2:
        start = time.perf_counter()
        act()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if calls:  # the first call pays for the start-up
            best = min(best, time.perf_counter() - start)
        calls += 1
    return best


def largest_that_fits(attempt: Callable[[int], None], requested: int) -> int:
    """The first of `requested`, its half, its quarter... that does not run out of memory.

    ValueError where none fits. A step's loss is normalised by the whole global batch: smaller
    pieces change no result beyond the draws of dropout.
    """
    size = requested
    while size:
        try:
            attempt(size)
            return size
        except torch.OutOfMemoryError:
            pass
        # Outside the except block: the exception holds the failed attempt's tensors.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        log.info("a micro-batch of %d instances does not fit into the device's memory", size)
        size //= 2
    raise ValueError(
        "one instance does not fit into the device's memory: try"
        " trainer.gradient_checkpointing=true, trainer.precision=bf16-mixed, trainer=fsdp over"
        " several devices, or shorter instances"
    )


def try_step(
    model: nn.Module, batch: Mapping[str, object], device: torch.device, precision: str
) -> None:
    """Forward and backward of one micro-batch, without an update.

    Empty tensors take the room of Adam's moments of each parameter.
    """
    model.to(device).train()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    moments = []
    for p in trainable:
        moments.append((torch.empty_like(p), torch.empty_like(p)))
    moved = dict(batch)
    for key, value in batch.items():
        if hasattr(value, "to"):
            moved[key] = value.to(device)
    is_bf16 = precision.startswith("bf16")
    with uncompiled(), torch.autocast(device.type, torch.bfloat16, enabled=is_bf16):
        loss = sum(term.loss_sum for term in model(moved))
    assert isinstance(loss, torch.Tensor)
    try:
        loss.backward()
    finally:
        model.zero_grad(set_to_none=True)
        del moments, loss


@contextmanager
def uncompiled() -> Iterator[None]:
    """Inside, compiled modules run as written.

    For a few evaluations a compilation of their own costs more.
    """
    # Its submodule is there if anything was compiled; importing it would cost what an uncompiled
    # run saves.
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def batch_loader(
    batches: IterableDataset[object], num_workers: int = 0, trainer: Trainer | None = None
) -> Any:
    """A loader of what are batches already, prefetched.

    They are pinned where the trainer's device is a GPU.
    """
    # Forked workers share the memory maps and what was found in them; elsewhere they open and find
    # it again.
    method = None
    if num_workers and "fork" in multiprocessing.get_all_start_methods():
        method = "fork"
    loader: DataLoader[object] = DataLoader(
        batches,
        batch_size=None,
        collate_fn=_same,
        num_workers=num_workers,
        multiprocessing_context=method,
        worker_init_fn=begin_data_worker,
    )
    if device_type(trainer) == "cuda":
        return Prefetched(loader, pinned)
    return loader


def _same(batch: object) -> object:
    return batch


class ReiterableLoader:
    """A loader that `make` makes at each pass, from where the trainer is.

    Lightning may ask for one once a training. It is no DataLoader, so that no Trainer cuts it up:
    it is this rank's share already.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())

    def __len__(self) -> int:
        return len(self.make())  # TypeError where it depends on the trainer's step


def loader_position(trainer: Trainer | None) -> tuple[int, int, int]:
    """(step that comes next, rank, world size).

    Under overfit_batches every epoch begins with the first step.
    """
    if trainer is None:
        return 0, 0, 1
    step = 0 if getattr(trainer, "overfit_batches", 0) else trainer.global_step
    return step, trainer.global_rank, trainer.world_size


def device_type(trainer: Trainer | None) -> str:
    """cpu, cuda or xla; cpu without a trainer."""
    device: torch.device | None = getattr(getattr(trainer, "strategy", None), "root_device", None)
    return device.type if device is not None else "cpu"


def pinned(batch: object) -> object:
    """The same batch in page-locked memory.

    From there a copy to the device runs beside the work on it.
    """
    if isinstance(batch, list):
        return [pinned(part) for part in batch]
    if isinstance(batch, dict):
        return {key: pinned(value) for key, value in batch.items()}
    return batch.pin_memory() if hasattr(batch, "pin_memory") else batch


class Prefetched:
    """`loader` with up to DEPTH batches made ahead of its reader, each passed through `prepare`."""

    def __init__(self, loader: Iterable[object], prepare: Callable[[object], object]) -> None:
        self.loader = loader
        self.prepare = prepare

    def __iter__(self) -> Iterator[object]:
        batches = iter(self.loader)
        end = object()

        def make() -> object:
            batch = next(batches, end)
            if batch is end:
                return end
            return self.prepare(batch)

        # One thread, so that batches come in their order.
        pool = ThreadPoolExecutor(1, "prefetch")
        try:
            waiting = deque(pool.submit(make) for _ in range(DEPTH))
            batch = waiting.popleft().result()  # an error comes in its place
            while batch is not end:
                waiting.append(pool.submit(make))
                yield batch
                batch = waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
