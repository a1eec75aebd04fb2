"""What this machine can do and which way the project takes on it: measured ceilings, precision, kernels.

Every number is measured on the spot, in a second or two; parts that need a GPU are asked of torch's answers, so that
they can be tried without one.

Disk, time, and whether the budget can teach anything.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from clozelab.checks.subject import ERROR, OK, WARNING, Arm, Finding, Subject
from clozelab.models.attention import FULL, attention, has_varlen_kernel, reference_attention
from clozelab.models.cost import parameter_count
from clozelab.models.layout import Layout
from clozelab.objectives.plateau import plateau_tokens
from clozelab.training.runtime import (
    MAX_FP32_ERROR,
    choose_precision,
    matmul_ceiling,
    onednn_fp32,
    onednn_fp32_error,
)

COPY_BYTES = 1 << 28
"""Larger than any cache."""
MAX_BF16_ERROR = 0.02
MEASURE_SECONDS = 0.5


@dataclass(frozen=True)
class Fact:
    group: str
    name: str
    value: str
    note: str = ""


def look_at_machine(*, cores: int, allocator_tuned: bool, threads: int | None = None) -> Iterator[Fact]:
    """Facts in the order in which they are shown; `threads` as trainer.threads."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield from ceilings()
        yield from chosen_path(cores, allocator_tuned)
        yield from gpu_facts()
    finally:
        torch.set_num_threads(before)


def ceilings() -> Iterator[Fact]:
    """Matrix products and memory on the CPU."""
    cpu = torch.device("cpu")
    yield Fact("ceilings", "matmul fp32", flops(matmul_ceiling("32-true", cpu, MEASURE_SECONDS)), "default library")
    with onednn_fp32() as there:
        if there:
            rate = flops(matmul_ceiling("32-true", cpu, MEASURE_SECONDS))
            yield Fact("ceilings", "matmul fp32, oneDNN", rate, "fp32_precision = 'bf16'")
    yield Fact("ceilings", "matmul bf16", flops(matmul_ceiling("bf16-mixed", cpu, MEASURE_SECONDS)))
    yield Fact("ceilings", "memory copy", f"{copy_rate(cpu) / 1e9:.1f} GB/s", "bytes read, as many written")


def chosen_path(cores: int, allocator_tuned: bool) -> Iterator[Fact]:
    """What `auto` means here."""
    kind = "gpu" if torch.cuda.is_available() else "cpu"
    yield Fact("path", "precision", choose_precision("auto", "cpu"), "trainer=cpu with precision auto")
    if kind == "gpu":
        yield Fact("path", "precision on the GPU", choose_precision("auto", "gpu"), "trainer=gpu with precision auto")
    yield Fact("path", "fp32 through oneDNN", *onednn_answer(onednn_fp32_error()))
    yield Fact("path", "threads", str(torch.get_num_threads()), f"{cores} usable cores; trainer.threads sets them")
    note = "glibc keeps freed memory" if allocator_tuned else "no glibc here: freed memory goes back to the system"
    yield Fact("path", "allocator", "tuned" if allocator_tuned else "the system's", note)
    yield Fact("path", "attention on the CPU", "matmul and softmax", "ragged batches: sorted groups, padded inside")
    if kind == "gpu":
        ragged = "variable-length kernel" if varlen_error() is not None else "sorted groups"
        yield Fact("path", "attention on the GPU", "scaled_dot_product_attention", f"ragged batches: {ragged}")


def onednn_answer(error: float | None) -> tuple[str, str]:
    """(which it is, the error behind it)."""
    if error is None:
        return "not available", "fp32 products stay with the default library"
    if error > MAX_FP32_ERROR:
        return "off: it really rounds to bf16 here", f"relative error {error:.1e}, above {MAX_FP32_ERROR:.0e}"
    return "on: 'bf16' stays fp32-accurate here", f"relative error {error:.1e}"


def gpu_facts() -> Iterator[Fact]:
    """Name, ceiling and kernels of each GPU; one line where there is none."""
    if not torch.cuda.is_available():
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU-only build"
        yield Fact("GPU", "none", f"torch {torch.__version__} sees none", build)
        return
    for number in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(number).total_memory
        yield Fact("GPU", f"cuda:{number}", torch.cuda.get_device_name(number), f"{memory / 2**30:.0f} GiB")
    device = torch.device("cuda")
    yield Fact("GPU", "matmul bf16", flops(matmul_ceiling("bf16-mixed", device, MEASURE_SECONDS)))
    yield Fact("GPU", "memory copy", f"{copy_rate(device) / 1e9:,.0f} GB/s")
    error = varlen_error()
    yield Fact("GPU", "variable-length attention", *varlen_answer(error))


def varlen_answer(error: float | None) -> tuple[str, str]:
    """(whether it is usable, why)."""
    if error is None:
        return "not available", "torch has it from 2.10 on, for Ampere or newer; ragged batches go in sorted groups"
    if not error <= MAX_BF16_ERROR:
        return "wrong", f"differs from one sequence at a time by {error:.1e}: do not fine-tune on this GPU in bf16"
    return "works", f"differs from one sequence at a time by {error:.1e}"


@torch.no_grad()
def varlen_error() -> float | None:
    """Largest difference of the ragged CUDA kernel from one call a sequence; None where there is no such kernel."""
    if not torch.cuda.is_available():
        return None
    layout = Layout.ragged([5, 64, 33]).to("cuda")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(102, 2, 64, generator=generator).to("cuda", torch.bfloat16) for _ in range(3))
    if not has_varlen_kernel(q, FULL):
        return None
    try:
        got = attention(q, k, v, layout, dropout_prob=0.0, training=False, mask=FULL)
    except (RuntimeError, NotImplementedError):
        return None
    expected = reference_attention(q.float(), k.float(), v.float(), layout, mask=FULL)
    return float((got.float() - expected).abs().max())


@torch.no_grad()
def copy_rate(device: torch.device, repeats: int = 4) -> float:
    """Bytes a second of copying a block that no cache holds; the best of some."""
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    best = float("inf")
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        for _ in range(repeats):
            start = time.perf_counter()
            target.copy_(source)
            if device.type == "cuda":
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
    return COPY_BYTES / best


def flops(rate: float) -> str:
    """FLOP/s in the unit that suits them."""
    return f"{rate / 1e12:,.1f} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:,.0f} GFLOP/s"


WEIGHT_BYTES, CHECKPOINT_BYTES = 4, 12
"""A parameter in an encoder folder, and in a checkpoint (with both moments of AdamW), fp32."""
FINETUNING_BYTES = 3_000_000
"""Predictions, scores and log of one fine-tuning, generously."""
DISK_MARGIN = 1.2
LONG_SECONDS = 86_400.0
"""Nobody starts a day by mistake without being told."""
MAX_WARMUP_FRACTION = 0.3


def check_disk(subject: Subject) -> Iterator[Finding]:
    """Free space against what all runs leave, and one checkpoint more while it is written."""
    room, arms = subject.room, subject.arms
    sizes = [parameter_count(arm.config) for arm in arms]
    kept = sum(
        (CHECKPOINT_BYTES + WEIGHT_BYTES * arm.num_encoders) * size * arm.num_runs
        for size, arm in zip(sizes, arms, strict=True)
    )
    largest = max(sizes, default=0)
    kept += room.num_finetunings * (FINETUNING_BYTES + room.model_bytes)
    wanted = DISK_MARGIN * (max(0, kept - room.used_bytes) + CHECKPOINT_BYTES * largest)
    figure = f"{_size(wanted)} wanted, {_size(room.free_bytes)} free in {room.folder}"
    if room.free_bytes < wanted:
        remedy = "free space, or set runs_dir to a larger disk"
        yield Finding("disk", ERROR, "the disk cannot hold the checkpoints of all runs", figure, remedy)
    else:
        yield Finding("disk", OK, "the disk holds all runs", figure)


def _size(number: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number / 1e3:.0f} kB"


def check_time(subject: Subject) -> Iterator[Finding]:
    """Hours of what is left, by measured speeds; where there is none, what the FLOPs alone say."""
    stages, by_flops = subject.time.stages, subject.time.by_flops
    if not subject.arms and not stages:
        return
    said = [f"{name} {_hours(seconds)}" for name, seconds in stages.items() if seconds is not None]
    seconds = sum(seconds or 0.0 for seconds in stages.values()) + (by_flops or 0.0)
    unknown = [name for name, seconds in stages.items() if seconds is None]
    if unknown or not stages:
        guess = "" if by_flops is None else f", roughly {_hours(by_flops)} by FLOPs"
        said.append(f"{' and '.join(unknown) or 'all'}: no speed is known here yet (clozelab plan measures it){guess}")
    tokens = sum(arm.num_runs * arm.tokens for arm in subject.arms)
    figure = f"{tokens / 1e6:,.1f} M tokens in {sum(arm.num_runs for arm in subject.arms)} pre-training runs"
    if seconds > LONG_SECONDS:
        name = subject.experiment
        remedy = f"clozelab plan {name} budget=TIME says what a budget affords" if name else "fewer seeds or tokens"
        yield Finding("time", WARNING, f"what is left takes days: {'; '.join(said)}", figure, remedy)
    else:
        yield Finding("time", OK, f"what is left takes: {'; '.join(said)}", figure)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h" if seconds < LONG_SECONDS else f"{seconds / 86_400:,.1f} days"


def check_schedule(arm: Arm) -> Iterator[Finding]:
    """Warm-up, rows against positions, and the plateau of masked models."""
    steps = sum(phase["steps"] for phase in arm.phases)
    figure = f"{steps:,} steps, {arm.tokens / 1e6:,.1f} M tokens"
    longest, positions = arm.longest, arm.config.max_position_embeddings
    if longest > positions:
        remedy = "shorten the phase or raise model.max_position_embeddings"
        what = f"{arm.name}: a phase has rows of {longest} tokens, the model {positions} positions"
        yield Finding("lengths", ERROR, what, figure, remedy)
    if arm.warmup_fraction >= 1:
        what = f"{arm.name}: the warm-up is as long as the training: its learning rate never reaches the peak"
        yield Finding("schedule", ERROR, what, f"warmup_fraction {arm.warmup_fraction:g}", "lower it below 0.1")
    elif arm.warmup_fraction > MAX_WARMUP_FRACTION:
        what = f"{arm.name}: the warm-up takes {100 * arm.warmup_fraction:.0f} % of the training"
        yield Finding("schedule", WARNING, what, figure, "0.01 to 0.1 is usual")
    elif (needed := _plateau(arm)) > arm.tokens:
        what = f"{arm.name}: the budget may end before the masked model leaves its plateau"
        remedy = "a rule of thumb: more steps, or short rows first (a phase of 32 or 64 tokens)"
        yield Finding("schedule", WARNING, what, f"{figure}, about {needed / 1e6:,.1f} M to leave it", remedy)
    else:
        yield Finding("schedule", OK, f"{arm.name}: warm-up and budget are usual", figure)


def _plateau(arm: Arm) -> float:
    first, is_causal = arm.phases[0]["seq_length"], arm.objective.is_causal
    return plateau_tokens(vocab_size=arm.config.vocab_size, first_seq_length=first, is_causal=is_causal)
