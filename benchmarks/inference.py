"""Encoding texts of unequal length beside torch.nn.TransformerEncoder with its nested-tensor path.

Rows of 5 to 128 tokens, 32 on average, in batches of 64 as they come. The peer gets padded rows and
a padding mask, and its own fast path turns them into nested tensors (inference mode, evaluation, no
autocast: it refuses that); bf16 means weights in bf16. clozelab gets the packed stream. Both count
real tokens. Neither sorts the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from encoders import SHAPES, VOCAB_SIZE, clozelab_encoder, clozelab_precision, shape, size_name
from interleaved import parser, race, rate_rows, rate_table, repeated, report, serve, start_worker

TITLE = "Encoding beside torch.nn.TransformerEncoder"
ROWS, BATCHES, LONGEST = 64, 4, 128
NESTED = "nn.TransformerEncoder, nested tensors"
SIDES = {"clozelab": "clozelab", f"{NESTED}, fp32": "fp32", f"{NESTED}, bf16": "bf16"}
"""Worker by the name that the table gives it."""
SIZES = ("tiny", "mini", "medium")


def make_lengths() -> list[list[int]]:
    """Of each batch's rows: short ones are many, 32 on average."""
    import numpy as np

    rng = np.random.default_rng(0)
    lengths = np.clip(rng.exponential(29.0, (BATCHES, ROWS)) + 5, 5, LONGEST).astype(int)
    return [[*map(int, row)] for row in lengths]


def clozelab_step(size: str) -> Callable[[], float]:
    """All batches once through the encoder."""
    import torch

    from clozelab.models.layout import Layout

    torch.manual_seed(0)
    encoder, is_bf16 = clozelab_encoder(size).eval(), clozelab_precision()
    batches = []
    for lengths in make_lengths():
        ids = torch.randint(1000, VOCAB_SIZE, (sum(lengths),))
        positions = torch.cat([torch.arange(n) for n in lengths])
        batches.append((ids, torch.zeros_like(ids), positions, lengths))

    def step() -> float:
        total = 0.0
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            for ids, types, positions, lengths in batches:
                output = encoder(ids, types, positions, Layout.ragged(lengths))
                total += float(output.sequence_output[0, 0])
        return total

    return step


def nested_step(size: str, is_bf16: bool) -> Callable[[], float]:
    """The same through torch.nn.TransformerEncoder; embeddings as BERT's."""
    import torch
    from torch import nn

    sizes = shape(size)
    hidden, dtype = sizes["hidden_size"], torch.bfloat16 if is_bf16 else torch.float32
    layer = nn.TransformerEncoderLayer(
        hidden,
        sizes["num_attention_heads"],
        sizes["intermediate_size"],
        activation="gelu",
        batch_first=True,
    )
    layers = sizes["num_hidden_layers"]
    encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=True).eval().to(dtype)
    words, places = nn.Embedding(VOCAB_SIZE, hidden), nn.Embedding(LONGEST, hidden)
    norm = nn.LayerNorm(hidden)
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


def work(side: str, size: str, threads: int) -> None:
    start_worker(side == "clozelab", threads)
    step = clozelab_step(size) if side == "clozelab" else nested_step(size, is_bf16=side == "bf16")
    serve(repeated(step, sum(map(sum, make_lengths()))))


def compare(sizes: Sequence[str], threads: int, rounds: int = 5, seconds: float = 2.0) -> list[str]:
    """The table of these sizes."""
    lines = rate_table("real tokens/s", rounds, seconds)
    for size in sizes:
        sides = race(__file__, SIDES, ["--sizes", size], threads, rounds, seconds)
        lines += rate_rows(size_name(size), sides)
    return lines


def main() -> None:
    options = parser(__doc__, seconds=2.0)
    options.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SHAPES))
    arguments = options.parse_args()
    if arguments.worker:
        return work(arguments.worker, arguments.sizes[0], arguments.threads)
    part = partial(compare, arguments.sizes, arguments.threads, arguments.rounds, arguments.seconds)
    report("Benchmarks", arguments.threads, {TITLE: part}, arguments.output)
    return None


if __name__ == "__main__":
    main()
