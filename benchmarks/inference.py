"""Encoding texts of unequal length beside torch.nn.TransformerEncoder with its nested-tensor path.

Rows of 5 to 128 tokens, 32 on average, in batches of 64 as they come. The peer gets padded rows and a padding mask, and
its own fast path turns them into nested tensors (inference mode, evaluation, no autocast: it refuses that); bf16 means
weights in bf16. clozelab gets the packed stream. Both count real tokens. Neither sorts the rows.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interleaved import Side, about, ratios, serve, spread, take_turns
from pretraining import SHAPES, VOCAB_SIZE, clozelab_model, shape

ROWS, BATCHES, LONGEST = 64, 4, 128
SIDES = ("clozelab", "fp32", "bf16")
SIZES = ("tiny", "mini", "medium")
TABLE = [
    "| size | side | real tokens/s, median (min-max) | clozelab is faster by, median (min-max) |",
    "|---|---|---|---|",
]


def make_lengths() -> list[list[int]]:
    """Of each batch's rows: short ones are many, 32 on average."""
    import numpy as np

    rng = np.random.default_rng(0)
    lengths = np.clip(rng.exponential(29.0, (BATCHES, ROWS)) + 5, 5, LONGEST).astype(int)
    return [[int(n) for n in row] for row in lengths]


def clozelab_step(size: str) -> Callable[[], float]:
    """All batches once through the encoder."""
    import torch

    from clozelab.models.attention import Layout
    from clozelab.training.runtime import choose_precision, use_onednn_fp32

    encoder = clozelab_model(size).encoder.eval()
    bf16 = choose_precision("auto", "cpu") == "bf16-mixed"
    if not bf16:
        use_onednn_fp32()
    batches = []
    for lengths in make_lengths():
        ids = torch.randint(1000, VOCAB_SIZE, (sum(lengths),))
        positions = torch.cat([torch.arange(n) for n in lengths])
        batches.append((ids, torch.zeros_like(ids), positions, lengths))

    def step() -> float:
        total = 0.0
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            for ids, types, positions, lengths in batches:
                total += float(encoder(ids, types, positions, Layout.ragged(lengths)).sequence_output[0, 0])
        return total

    return step


def nested_step(size: str, bf16: bool) -> Callable[[], float]:
    """The same through torch.nn.TransformerEncoder; embeddings as BERT's."""
    import torch
    from torch import nn

    sizes = shape(size)
    hidden, dtype = sizes["hidden_size"], torch.bfloat16 if bf16 else torch.float32
    layer = nn.TransformerEncoderLayer(
        hidden, sizes["num_attention_heads"], sizes["intermediate_size"], activation="gelu", batch_first=True
    )
    encoder = nn.TransformerEncoder(layer, sizes["num_hidden_layers"], enable_nested_tensor=True).eval().to(dtype)
    words, places, norm = nn.Embedding(VOCAB_SIZE, hidden), nn.Embedding(LONGEST, hidden), nn.LayerNorm(hidden)
    batches: list[Any] = []
    for lengths in make_lengths():
        width = max(lengths)
        padding = torch.arange(width) >= torch.tensor(lengths)[:, None]
        batches.append((torch.randint(1000, VOCAB_SIZE, (len(lengths), width)), padding))

    def step() -> float:
        total = 0.0
        with torch.inference_mode():
            for ids, padding in batches:
                embedded = norm(words(ids) + places(torch.arange(ids.shape[1]))).to(dtype)
                total += float(encoder(embedded, src_key_padding_mask=padding)[0, 0, 0])
        return total

    return step


def run_worker(side: str, size: str, threads: int) -> None:
    if side == "clozelab":
        from clozelab.training.allocator import tune_allocator

        tune_allocator()
    import torch

    torch.set_num_threads(threads)
    step = clozelab_step(size) if side == "clozelab" else nested_step(size, side == "bf16")
    serve(step, sum(map(sum, make_lengths())))


def compare(size: str, threads: int, rounds: int = 5, seconds: float = 2.0) -> list[str]:
    options = ["--size", size, "--threads", str(threads)]
    sides = {name: Side([__file__, "--worker", name, *options], threads) for name in SIDES}
    take_turns(sides, rounds, seconds)
    layers, hidden = SHAPES[size]
    lines = []
    for name, side in sides.items():
        what = name if name == "clozelab" else f"nn.TransformerEncoder, nested tensors, {name}"
        faster = "1" if name == "clozelab" else ratios(sides["clozelab"].rates, side.rates)
        lines.append(f"| L{layers} H{hidden} | {what} | {spread(side.rates)} | {faster} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="mini", choices=list(SHAPES))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return run_worker(arguments.worker, arguments.size, arguments.threads)
    lines = [about(arguments.threads), "", *TABLE]
    print("\n".join(lines), flush=True)
    lines += compare(arguments.size, arguments.threads, arguments.rounds, arguments.seconds)
    if arguments.output:
        arguments.output.write_text("# Encoding beside torch.nn.TransformerEncoder\n\n" + "\n".join(lines) + "\n")
    return None


if __name__ == "__main__":
    main()
