"""What the machine offers a run: precision, exact fp32 through oneDNN, the matmul ceiling, memory, and the faster of
equally right kernels.

The ceiling (FLOP/s of one large matrix product in the chosen precision) is measured, not looked up. Model-FLOPs
utilisation is then a share of what this machine can do today, whatever else runs on it.

Kernels are timed once a machine and shape, and only where the configuration asks for it (docs/decisions/0008). What is
chosen decides the last bits of a run, so a choice never flips: the first one that was written to the cache stands for
every later run of that machine and shape, and a run keeps its own in run.json.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clozelab.models.attention import KERNELS, Context, DenseRows, attention, dense_rows
from clozelab.models.config import EncoderConfig
from clozelab.models.kernels.linear_cross_entropy import CHUNK_LOGITS, linear_cross_entropy
from clozelab.models.layout import Layout
from clozelab.training.host import cpu_flags, cpu_model

log = logging.getLogger(__name__)

MAX_FP32_ERROR = 2e-6  # a matrix product that errs by more has rounded its inputs
CPU_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
CHUNKS = (CHUNK_LOGITS // 2, CHUNK_LOGITS, 8 * CHUNK_LOGITS)
CLEARLY_FASTER = 0.95  # a challenger has to take less than this share of the usual kernel's time: noise must not choose
COMPILE_PAYBACK = 2.0  # compiling has to save this many times its own cost over the run
SECONDS_A_CANDIDATE = 0.25
MAX_TRIED = 16  # instances of a trial: what decides is the shape of one


def choose_precision(requested: str, accelerator: str) -> str:
    """The precision a run trains in: `auto` is bf16-mixed where a cpu or gpu multiplies bf16 natively, else 32-true."""
    if requested != "auto":
        return requested
    if accelerator == "tpu":
        return "bf16-true"
    is_gpu = accelerator == "gpu"
    native = torch.cuda.is_bf16_supported(including_emulation=False) if is_gpu else cpu_flags() & CPU_BF16_FLAGS
    return "bf16-mixed" if native else "32-true"


@contextmanager
def onednn_fp32() -> Iterator[bool]:
    """Send fp32 matrix products on the CPU through oneDNN inside; False where this torch cannot."""
    backend: Any = getattr(torch.backends.mkldnn, "matmul", None)
    if not torch.backends.mkldnn.is_available() or not hasattr(backend, "fp32_precision"):
        yield False
        return
    before, backend.fp32_precision = backend.fp32_precision, "bf16"
    try:
        yield True
    finally:
        backend.fp32_precision = before


def onednn_fp32_error() -> float | None:
    """Relative error of an fp32 product through oneDNN on this processor; None where there is no such way."""
    with onednn_fp32() as there:
        if not there:
            return None
        generator = torch.Generator().manual_seed(0)
        a, b = (torch.randn(256, 256, generator=generator) for _ in range(2))
        exact = a.double() @ b.double()
        return float(((a @ b).double() - exact).abs().max() / exact.abs().max())


def use_onednn_fp32() -> bool:
    """Send fp32 matrix products on the CPU through oneDNN if they stay fp32-accurate here; says which it is.

    The switch allows oneDNN to use bf16 parts. A processor with AVX-512 alone keeps fp32 accuracy, at 1.4 to 1.8 times
    the default library's speed on an AMD Zen 5. Where it really rounds, as it may on AMX, it stays off.
    """
    error = onednn_fp32_error()
    if error is None:
        return False
    if error > MAX_FP32_ERROR:
        log.info("fp32 products stay with the default library: through oneDNN they err by %.1e here", error)
        return False
    backend: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    backend.fp32_precision = "bf16"
    log.info("fp32 products go through oneDNN (relative error %.1e)", error)
    return True


def check_compile(requested: str | bool, accelerator: str) -> str:
    """trainer.compile as auto, true or false; ValueError where compiling cannot work."""
    wanted = str(requested).lower()
    if wanted == "true" and accelerator == "tpu":
        raise ValueError("trainer.compile=true is not for TPUs, where XLA compiles everything: choose auto")
    if wanted == "true" and accelerator == "cpu" and not has_cpp_compiler():
        raise ValueError(
            "trainer.compile=true needs a C++ compiler on the CPU, and there is none (g++, clang++ or $CXX):"
            " install one, or choose trainer.compile=false"
        )
    return wanted


def has_cpp_compiler() -> bool:
    """Whether torch.compile can build kernels for the CPU here."""
    names = (os.environ.get("CXX"), "g++", "clang++")
    return any(name and shutil.which(name) for name in names)


def use_deterministic_algorithms() -> None:
    """The same bits whatever the timing: torch then refuses what has no such algorithm."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    torch.use_deterministic_algorithms(True)
    settings: Any = torch.utils.deterministic
    settings.fill_uninitialized_memory = False  # a net for programs that read what nobody wrote
    torch.backends.cudnn.benchmark = False


@torch.no_grad()
def matmul_ceiling(precision: str, device: torch.device, seconds: float = 0.3) -> float:
    """FLOP/s of a large matrix product in `precision` on `device`: the best of those that fit in `seconds`."""
    dtype = torch.bfloat16 if precision.startswith("bf16") else torch.float32
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best, end, warm = float("inf"), time.perf_counter() + seconds, False
    while time.perf_counter() < end or best == float("inf"):
        start = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        # The first product pays for the library's start-up.
        best, warm = (min(best, time.perf_counter() - start), True) if warm else (best, True)
    return 2.0 * size**3 / best


def largest_that_fits(attempt: Callable[[int], None], wanted: int) -> int:
    """The micro-batch that a device holds: the first of `wanted`, its half, its quarter... for which `attempt` does not
    run out of memory; ValueError where not even one instance fits.

    A step's loss is normalised by the whole global batch: smaller pieces change no result beyond the draws of dropout.
    """
    size = wanted
    while True:
        try:
            attempt(size)
            return size
        except torch.OutOfMemoryError:
            pass
        # Outside the except block: the exception holds the failed attempt's tensors.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if size == 1:
            raise ValueError(
                "one instance does not fit into the device's memory: try trainer.gradient_checkpointing=true,"
                " trainer.precision=bf16-mixed, trainer=fsdp over several devices, or shorter instances"
            )
        log.info("a micro-batch of %d instances does not fit into the device's memory; trying %d", size, size // 2)
        size //= 2


def try_step(model: nn.Module, batch: dict[str, Any], device: torch.device, precision: str) -> None:
    """Forward and backward of one micro-batch with everything in memory that an optimizer step keeps there.

    It changes nothing: no update is made. Adam's two moments of each parameter are stood in for.
    """
    model.to(device).train()
    moments = [torch.empty_like(p) for p in model.parameters() if p.requires_grad for _ in range(2)]
    moved = {key: value.to(device) if hasattr(value, "to") else value for key, value in batch.items()}
    with uncompiled(), torch.autocast(device.type, torch.bfloat16, enabled=precision.startswith("bf16")):
        loss = sum(term.loss_sum for term in model(moved))
    assert isinstance(loss, torch.Tensor)
    try:
        loss.backward()
    finally:
        model.zero_grad(set_to_none=True)
        del moments, loss


@contextmanager
def uncompiled() -> Iterator[None]:
    """Inside, compiled modules run as written: for a few evaluations a compilation of their own costs more."""
    # Its submodule is there if anything was compiled; importing it would cost what an uncompiled run saves.
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def calibrate(
    config: EncoderConfig,
    *,
    precision: str,
    instances: Mapping[int, int],
    steps: Mapping[int, int],
    predicted_fraction: float,
    compile: str,
    folder: Path,
) -> dict[str, Any]:
    """The choices for a pre-training run on one CPU process: attention_kernels {S: kernel}, chunk_logits, compile.

    Args:
        instances, steps: instances of a micro-batch, and micro-batches in the whole run, by the length S.
        predicted_fraction: share of slots with a vocabulary projection.
        compile: trainer.compile; "auto" lets the timing decide.
        folder: the cache's; one file a machine and shape.
    """
    dtype = torch.bfloat16 if precision.startswith("bf16") else torch.float32
    with_compile = compile == "auto" and has_cpp_compiler()
    machine = {"cpu": cpu_model(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    shape = {"config": vars(config), "precision": precision, "rows": dict(instances), "fraction": predicted_fraction}
    key = {"machine": machine | {"python": platform.python_version()}, "shape": shape, "compile": with_compile}

    def measure() -> dict[str, Any]:
        with torch.random.fork_rng(devices=[]):
            widest = max(instances)
            predictions = max(1, round(predicted_fraction * instances[widest] * widest))
            found: dict[str, Any] = {
                "attention": {str(s): _time_attention(config, dtype, count, s) for s, count in instances.items()},
                "chunk_logits": _time_chunks(config, dtype, predictions),
            }
            if with_compile:
                found["compile"] = _time_compile(config, dtype, instances)
        log.info("calibration took these seconds a call: %s", found)
        return found

    return choose(once(folder, key, measure), steps, config.num_hidden_layers, compile)


def choose(times: Mapping[str, Any], steps: Mapping[int, int], num_layers: int, compile: str) -> dict[str, Any]:
    """From measured seconds to choices; a pure function, so equal measurements choose equally."""

    def fastest(seconds: Mapping[str, float], usual: str) -> str:
        best = min(seconds, key=lambda name: seconds[name])
        return best if seconds[best] < CLEARLY_FASTER * seconds[usual] else usual

    kernels = {int(width): fastest(found, KERNELS[0]) for width, found in times["attention"].items()}
    chunk = int(fastest(times["chunk_logits"], str(CHUNK_LOGITS)))
    compiles = compile == "true"
    if compile == "auto" and (found := times.get("compile")):
        saved = (num_layers * steps[int(s)] * (one["plain"] - one["compiled"]) for s, one in found["layer"].items())
        compiles = sum(saved) > COMPILE_PAYBACK * found["seconds"] * len(found["layer"])
    return {"attention_kernels": kernels, "chunk_logits": chunk, "compile": compiles}


def once(folder: Path, key: Mapping[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What the cache holds for `key`; measured where it holds nothing. Of several at once, the first to write wins."""
    text = json.dumps(key, sort_keys=True, default=str)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump({"of": json.loads(text), "seconds": measure()}, stream, indent=1)
        try:
            os.link(temporary, path)  # unlike a rename, it never replaces
        except FileExistsError:
            log.info("another process has calibrated meanwhile; its choice stands")
        finally:
            Path(temporary).unlink()
    return dict(json.loads(path.read_text(encoding="utf-8"))["seconds"])


def time_in_turns(candidates: Mapping[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """Least seconds of one call for each candidate, taking turns, so that a disturbance meets all of them."""
    for call in candidates.values():
        call()
    best = dict.fromkeys(candidates, float("inf"))
    end = time.perf_counter() + seconds * len(candidates)
    while time.perf_counter() < end or float("inf") in best.values():
        for name, call in candidates.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def _step(forward: Callable[[], torch.Tensor], dtype: torch.dtype = torch.float32) -> Callable[[], None]:
    """Forward and backward, with products in `dtype`."""

    def call() -> None:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            out = forward().sum()
        out.backward()

    return call


def _padded(config: EncoderConfig, dtype: torch.dtype, count: int, width: int, kernel: str | None) -> DenseRows:
    """`count` instances of which one is short, as nearly every batch has one; masked as in the first layer."""
    layout = Layout.rectangle([width] * (count - 1) + [max(1, width - 1)], width)
    where: dict[str, Any] = {"dtype": dtype, "device": torch.device("cpu"), "kernel": kernel}
    mask = config.attention.build(config).mask(0)
    found = dense_rows(layout, num_heads=config.num_attention_heads, mask=mask, **where)
    assert found is not None
    return found


def _time_attention(config: EncoderConfig, dtype: torch.dtype, count: int, width: int) -> dict[str, float]:
    count = min(count, MAX_TRIED)
    shape = (count * width, config.num_attention_heads, config.head_dim)
    q, k, v = (torch.randn(shape).to(dtype).requires_grad_() for _ in range(3))
    settings: dict[str, Any] = {"dropout_prob": config.attention_probs_dropout_prob, "training": True}
    rows = {kernel: _padded(config, dtype, count, width, kernel) for kernel in KERNELS}
    calls = {
        name: _step(partial(attention, q, k, v, where, mask=where.mask, **settings)) for name, where in rows.items()
    }
    return time_in_turns(calls, SECONDS_A_CANDIDATE)


def _time_chunks(config: EncoderConfig, dtype: torch.dtype, count: int) -> dict[str, float]:
    """For at most 2,048 predictions: more only repeat the chunks."""
    count = min(count, 2048)
    hidden = torch.randn(count, config.embedding_size).to(dtype).requires_grad_()
    weight = torch.randn(config.vocab_size, config.embedding_size).mul_(0.02).requires_grad_()
    bias, labels = torch.zeros(config.vocab_size, requires_grad=True), torch.randint(config.vocab_size, (count,))

    def loss(chunk: int) -> torch.Tensor:
        return linear_cross_entropy(hidden, weight, bias, labels, chunk).loss_sum

    return time_in_turns({str(chunk): _step(partial(loss, chunk), dtype) for chunk in CHUNKS}, SECONDS_A_CANDIDATE)


def _time_compile(config: EncoderConfig, dtype: torch.dtype, instances: Mapping[int, int]) -> dict[str, Any]:
    """Seconds of compiling one layer, and of one layer's step plain and compiled, by length."""
    import torch._dynamo  # a second of start-up that only a calibration pays

    layers: dict[str, nn.Module] = {name: config.block.build(config) for name in ("plain", "compiled")}
    for parameter in (parameter for layer in layers.values() for parameter in layer.parameters()):
        nn.init.normal_(parameter, std=0.02)
    layers["compiled"].compile(dynamic=False)
    taken, found = 0.0, {}
    for width, count in instances.items():
        tried = min(count, MAX_TRIED)
        hidden = torch.randn(tried * width, config.hidden_size).requires_grad_()
        where = _padded(config, dtype, tried, width, None)
        context = Context(where, where.mask, None)
        calls = {name: _step(partial(layer, hidden, context), dtype) for name, layer in layers.items()}
        start = time.perf_counter()
        calls["compiled"]()
        taken += time.perf_counter() - start
        seconds = time_in_turns(calls, SECONDS_A_CANDIDATE)
        found[str(width)] = {name: value * count / tried for name, value in seconds.items()}
    torch._dynamo.reset()
    return {"seconds": taken / len(instances), "layer": found}
