"""What this machine can do and which way the project takes on it: measured ceilings, precision, kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from rich.console import Console

from clozelab.models.attention import FULL, attention, has_varlen_kernel, reference_attention
from clozelab.models.layout import Layout
from clozelab.terminal import Heading, make_table
from clozelab.training.runtime import (
    MAX_FP32_ERROR,
    choose_precision,
    matmul_ceiling,
    onednn_fp32,
    onednn_fp32_error,
)

MAX_BF16_ERROR = 0.02
MEASURE_SECONDS = 0.5


@dataclass(frozen=True)
class Fact:
    group: str
    name: str
    value: str
    note: str = ""


def look_at_machine(*, cores: int, allocator_tuned: bool) -> Iterator[Fact]:
    """Facts in the order in which they are shown."""
    cpu = torch.device("cpu")
    yield Fact("ceilings", "matmul fp32", flops(matmul_ceiling("32-true", cpu, MEASURE_SECONDS)), "default library")
    with onednn_fp32() as there:
        if there:
            rate = flops(matmul_ceiling("32-true", cpu, MEASURE_SECONDS))
            yield Fact("ceilings", "matmul fp32, oneDNN", rate, "fp32_precision = 'bf16'")
    yield Fact("ceilings", "matmul bf16", flops(matmul_ceiling("bf16-mixed", cpu, MEASURE_SECONDS)))
    yield from chosen_path(cores, allocator_tuned)
    yield from gpu_facts()


def chosen_path(cores: int, allocator_tuned: bool) -> Iterator[Fact]:
    """What `auto` means here, on the CPU."""
    yield Fact("path", "precision", choose_precision("auto", "cpu"), "trainer=cpu with precision auto")
    error = onednn_fp32_error()
    if error is None:
        answer = ("not available", "fp32 products stay with the default library")
    elif error > MAX_FP32_ERROR:
        answer = ("off: it really rounds to bf16 here", f"relative error {error:.1e}, above {MAX_FP32_ERROR:.0e}")
    else:
        answer = ("on: 'bf16' stays fp32-accurate here", f"relative error {error:.1e}")
    yield Fact("path", "fp32 through oneDNN", *answer)
    yield Fact("path", "threads", str(torch.get_num_threads()), f"{cores} usable cores; trainer.threads sets them")
    note = "glibc keeps freed memory" if allocator_tuned else "no glibc here: freed memory goes back to the system"
    yield Fact("path", "allocator", "tuned" if allocator_tuned else "the system's", note)
    yield Fact("path", "attention on the CPU", "matmul and softmax", "ragged batches: sorted groups, padded inside")


def gpu_facts() -> Iterator[Fact]:
    """Name, ceiling, precision and kernels of each GPU; one line where there is none."""
    if not torch.cuda.is_available():
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU-only build"
        yield Fact("GPU", "none", f"torch {torch.__version__} sees none", build)
        return
    for number in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(number).total_memory
        yield Fact("GPU", f"cuda:{number}", torch.cuda.get_device_name(number), f"{memory / 2**30:.0f} GiB")
    device = torch.device("cuda")
    yield Fact("GPU", "matmul bf16", flops(matmul_ceiling("bf16-mixed", device, MEASURE_SECONDS)))
    yield Fact("GPU", "precision", choose_precision("auto", "gpu"), "trainer=gpu with precision auto")
    try:
        error = varlen_error()
    except (RuntimeError, NotImplementedError) as problem:
        answer = ("fails", f"{' '.join(str(problem).split())[:200]}: do not fine-tune on this GPU in bf16")
    else:
        off_by = f"differs from one sequence at a time by {error or 0.0:.1e}"
        if error is None:
            answer = ("not available", "torch has it from 2.10 on, for Ampere or newer; ragged batches: sorted groups")
        elif not error <= MAX_BF16_ERROR:
            answer = ("wrong", f"{off_by}: do not fine-tune on this GPU in bf16")
        else:
            answer = ("works", off_by)
    yield Fact("GPU", "variable-length attention", *answer)


@torch.no_grad()
def varlen_error() -> float | None:
    """Largest difference of the ragged CUDA kernel from one call a sequence; None where there is no such kernel."""
    layout = Layout.ragged([5, 64, 33]).to("cuda")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(102, 2, 64, generator=generator).to("cuda", torch.bfloat16) for _ in range(3))
    if not has_varlen_kernel(q, FULL):
        return None
    got = attention(q, k, v, layout, dropout_prob=0.0, training=False, mask=FULL)
    expected = reference_attention(q.float(), k.float(), v.float(), layout, mask=FULL)
    return float((got.float() - expected).abs().max())


def flops(rate: float) -> str:
    """FLOP/s in the unit that suits them."""
    return f"{rate / 1e12:,.1f} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:,.0f} GFLOP/s"


def print_facts(facts: Iterable[Fact], versions: Mapping[str, str], console: Console) -> None:
    """Groups of facts as they come, and the versions."""
    every = [*facts, *(Fact("versions", name, version) for name, version in versions.items())]
    first = {fact.group: fact for fact in reversed(every)}  # a group is named once
    lines = [[one.group if one is first[one.group] else "", one.name, one.value, one.note] for one in every]
    headings = [Heading("group"), Heading("what"), Heading("found", folds=True), Heading("note", folds=True)]
    console.print(make_table(headings, lines, console.width))
