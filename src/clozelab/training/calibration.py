"""Which of two equally right kernels is faster here: timed once a machine and shape, then looked up.

Unusual: what is chosen decides the last bits of a run, so a choice never flips: the first one that was written to the
cache stands for every later run of that machine and shape, and a run keeps its own in run.json. Nothing is timed unless
the configuration asks for it (docs/decisions/0008).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clozelab.models.attention import KERNELS, Context, DenseRows, attention, dense_rows
from clozelab.models.config import EncoderConfig
from clozelab.models.kernels.linear_cross_entropy import CHUNK_LOGITS, linear_cross_entropy
from clozelab.models.layout import Layout
from clozelab.training.host import cpu_model
from clozelab.training.runtime import has_cpp_compiler

log = logging.getLogger(__name__)

CHUNKS = (CHUNK_LOGITS // 2, CHUNK_LOGITS, 8 * CHUNK_LOGITS)
CLEARLY_FASTER = 0.95
"""A challenger has to take less than this share of the usual kernel's time: noise must not choose."""
COMPILE_PAYBACK = 2.0
"""Compiling has to save this many times its own cost over the run."""
SECONDS_A_CANDIDATE = 0.25
MAX_ROWS = 16
"""Instances of a trial: what decides is the shape of one."""


def calibrate(
    config: EncoderConfig,
    *,
    precision: str,
    rows: Mapping[int, int],
    steps_of_rows: Mapping[int, int],
    predicted_fraction: float,
    compile: str,
    folder: Path,
) -> dict[str, Any]:
    """The choices for a pre-training run on one CPU process.

    Args:
        config: the encoder's shape.
        precision: of the run, resolved.
        rows: instances of a micro-batch by their length S.
        steps_of_rows: micro-batches of that length in the whole run.
        predicted_fraction: share of slots with a vocabulary projection.
        compile: trainer.compile; "auto" lets the timing decide.
        folder: the cache's; one file a machine and shape.

    Returns: attention_kernels {S: kernel}, chunk_logits, compile (bool).
    """
    dtype = torch.bfloat16 if precision.startswith("bf16") else torch.float32
    with_compile = compile == "auto" and has_cpp_compiler()
    machine = {"cpu": cpu_model(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    shape = {"config": vars(config), "precision": precision, "rows": dict(rows), "fraction": predicted_fraction}
    key = {"machine": machine | {"python": platform.python_version()}, "shape": shape, "compile": with_compile}

    def measure() -> dict[str, Any]:
        generator = torch.random.get_rng_state()
        try:
            return _measure(config, dtype, dict(rows), predicted_fraction, with_compile)
        finally:
            torch.random.set_rng_state(generator)

    times = once(folder, key, measure)
    return choose(times, steps_of_rows, config.num_hidden_layers, compile)


def choose(times: Mapping[str, Any], steps_of_rows: Mapping[int, int], num_layers: int, compile: str) -> dict[str, Any]:
    """From measured seconds to choices; a pure function, so equal measurements choose equally."""
    kernels = {int(width): fastest(found, KERNELS[0]) for width, found in times["attention"].items()}
    chunk = int(fastest(times["chunk_logits"], str(CHUNK_LOGITS)))
    wanted = compile == "true"
    if compile == "auto" and times.get("compile"):
        found = times["compile"]
        saved = sum(
            (seconds["plain"] - seconds["compiled"]) * num_layers * steps_of_rows[int(width)]
            for width, seconds in found["layer"].items()
        )
        wanted = saved > COMPILE_PAYBACK * found["seconds"] * len(found["layer"])
    return {"attention_kernels": kernels, "chunk_logits": chunk, "compile": wanted}


def fastest(seconds: Mapping[str, float], usual: str) -> str:
    """The quickest, if it is clearly quicker than the usual one."""
    best = min(seconds, key=lambda name: seconds[name])
    return best if seconds[best] < CLEARLY_FASTER * seconds[usual] else usual


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


def _measure(
    config: EncoderConfig, dtype: torch.dtype, rows: dict[int, int], fraction: float, with_compile: bool
) -> dict[str, Any]:
    """Seconds by question and candidate."""
    widest = max(rows)
    predictions = max(1, round(fraction * rows[widest] * widest))
    attention_times = {str(width): _time_attention(config, dtype, count, width) for width, count in rows.items()}
    found: dict[str, Any] = {"attention": attention_times, "chunk_logits": _time_chunks(config, dtype, predictions)}
    if with_compile:
        found["compile"] = _time_compile(config, dtype, rows)
    log.info("calibration took these seconds a call: %s", found)
    return found


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
    count = min(count, MAX_ROWS)
    shape = (count * width, config.num_attention_heads, config.head_dim)
    q, k, v = (torch.randn(shape).to(dtype).requires_grad_() for _ in range(3))
    dropout = config.attention_probs_dropout_prob
    calls = {}
    for kernel in KERNELS:
        where = _padded(config, dtype, count, width, kernel)
        forward = partial(attention, q, k, v, where, dropout_prob=dropout, mask=where.mask, training=True)
        calls[kernel] = _step(forward)
    return time_in_turns(calls, SECONDS_A_CANDIDATE)


def _time_chunks(config: EncoderConfig, dtype: torch.dtype, count: int) -> dict[str, float]:
    """For at most 2,048 predictions: more only repeat the chunks."""
    count = min(count, 2048)
    hidden = torch.randn(count, config.embedding_size).to(dtype).requires_grad_()
    weight = torch.randn(config.vocab_size, config.embedding_size).mul_(0.02).requires_grad_()
    bias, labels = torch.zeros(config.vocab_size, requires_grad=True), torch.randint(config.vocab_size, (count,))

    def loss(chunk: int) -> torch.Tensor:
        return linear_cross_entropy(hidden, weight, bias, labels, chunk).loss_sum

    calls = {str(chunk): _step(partial(loss, chunk), dtype) for chunk in CHUNKS}
    return time_in_turns(calls, SECONDS_A_CANDIDATE)


def _time_compile(config: EncoderConfig, dtype: torch.dtype, rows: dict[int, int]) -> dict[str, Any]:
    """Seconds of compiling one layer, and of one layer's step plain and compiled, by length."""
    import torch._dynamo  # a second of start-up that only a calibration pays

    layers: dict[str, nn.Module] = {name: config.block.build(config) for name in ("plain", "compiled")}
    for layer in layers.values():
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.02)
    layers["compiled"].compile(dynamic=False)
    taken, found = 0.0, {}
    for width, count in rows.items():
        tried = min(count, MAX_ROWS)
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
    return {"seconds": taken / len(rows), "layer": found}
