"""What the benchmarks share: the sizes, processes that take turns, and the table of medians and ratios.

Each side is a process of its own (their allocator settings differ). All stay alive and take turns, A B A B, so a
machine that slows down slows both; a ratio is that of neighbours in time. Nothing here imports torch before a worker
has set its allocator.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

VOCAB_SIZE = 30_522
SHAPES = {"tiny": (2, 128), "mini": (4, 256), "small": (4, 512), "medium": (8, 512), "base": (12, 768)}


def shape(size: str) -> dict[str, int]:
    """Keywords of a model configuration, the same in clozelab and transformers."""
    layers, hidden = SHAPES[size]
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
    }


def clozelab_encoder(size: str, *, is_causal: bool = False) -> Any:
    """A fresh encoder with BERT's own dropout and vocabulary."""
    from clozelab.models.config import BertConfig
    from clozelab.models.encoder import Encoder

    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_act="gelu",
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        max_position_embeddings=512,
        type_vocab_size=2,
        initializer_range=0.02,
        layer_norm_eps=1e-12,
        position_embedding_init="normal",
        is_causal=is_causal,
        **shape(size),
    )
    return Encoder(config)


def clozelab_optimizer(named_parameters: Any, learning_rate: float) -> Any:
    from clozelab.optim.adamw import build_adamw

    return build_adamw(
        named_parameters,
        learning_rate=learning_rate,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0.01,
        bias_correction=True,
    )


def clozelab_precision() -> bool:
    """Whether `precision=auto` takes bf16 on this CPU; else fp32 is set up as clozelab does."""
    from clozelab.training.runtime import choose_precision, use_onednn_fp32

    is_bf16 = choose_precision("auto", "cpu") == "bf16-mixed"
    if not is_bf16:
        use_onednn_fp32()
    return is_bf16


def training_step(loss: Callable[[], Any], model: Any, optimizer: Any, is_bf16: bool) -> float:
    """Forward, backward, clip, update."""
    import torch

    with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
        value = loss()
    value.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(value.detach())


def serve(is_clozelab: bool, threads: int, build: Callable[[], tuple[Callable[[float], float], Any]]) -> None:
    """The process of one side. `build` gives (measure, greeting): each line `SECONDS` is answered with a rate."""
    if is_clozelab:
        from clozelab.training.allocator import tune_allocator

        tune_allocator()
    import torch

    torch.set_num_threads(threads)
    measure, greeting = build()
    print(json.dumps(greeting), flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(float(line))), flush=True)


class Side:
    """One side's living process: `SCRIPT --worker NAME *words`."""

    def __init__(self, script: str, name: str, words: list[str], threads: int) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
        command = [sys.executable, script, "--worker", name, "--threads", str(threads), *words]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.greeting = json.loads(self._line())
        self.rates: list[float] = []

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a benchmark process ended early; its error is above")
        return line

    def run(self, seconds: float) -> None:
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)
        self.rates.append(json.loads(self._line()))

    def close(self) -> None:
        self.process.communicate("")


def compare(what: str, sides: Mapping[str, Side], rounds: int, seconds: float) -> list[str]:
    """Let all sides take turns; Markdown table rows, clozelab's first."""
    for _ in range(rounds):
        for side in sides.values():
            side.run(seconds)
    for side in sides.values():
        side.close()
    ours = next(iter(sides.values())).rates
    rows = []
    for name, side in sides.items():
        ratios = [a / b for a, b in zip(ours, side.rates, strict=True)]
        faster = f"**{statistics.median(ratios):.1f}** ({min(ratios):.1f}-{max(ratios):.1f})" if rows else "1"
        speed = f"{statistics.median(side.rates):,.0f} ({min(side.rates):,.0f}-{max(side.rates):,.0f})"
        rows.append(f"| {what} | {name} | {speed} | {faster} |")
        print(rows[-1], flush=True)
    return rows


def header(threads: int, unit: str) -> list[str]:
    """Where and with what this was measured, and the table's head; printed as well."""
    from importlib.metadata import version

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "lightning"))
    lines = [
        f"{date.today()} · commit {commit} · {cpu}, {threads} thread{'s' if threads > 1 else ''} · {versions}",
        "",
        f"| what | side | {unit}, median (min-max) | clozelab is faster by, median (min-max) |",
        "|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    return lines
