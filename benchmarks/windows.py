"""Encoders that read windows of a long text, beside transformers' own classes.

`python benchmarks/windows.py` trains ModernBERT and Longformer of L4 H256 on masked tokens, in rows
of 2,048 random words: 15 % are predicted, and each has its own dropout. A token sees 64 tokens on
each side in two of ModernBERT's three layers, and 256 in all of Longformer's. The peers are
`ModernBertForMaskedLM`, whose head reads the predicted states alone, and `LongformerForMaskedLM`,
in the precision that is faster on this machine. ModernBERT is also measured with torch.compile
around it; Longformer is not, since its compilation broke its graph and took over five minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from encoders import VOCAB_SIZE, peer_step, random_shards, shape, size_name
from families import Member
from interleaved import parser, race, rate_rows, rate_table, repeated, report, serve, start_worker
from pretraining import is_bf16_faster, make_rows, sides_of

TITLE = "Windows beside transformers"
SIZE = "mini"
FAMILIES = ("modernbert", "longformer")
SPECIAL_IDS = {
    "pad_token_id": 0,
    "cls_token_id": 101,
    "bos_token_id": 101,
    "sep_token_id": 102,
    "eos_token_id": 102,
}
COMPILED = ("modernbert",)
DROPOUT = {"modernbert": 0.0, "longformer": 0.1}


def clozelab_step(family: str, length: int, num_rows: int) -> Callable[[], None]:
    """One optimizer step of the recipe, of the peer's sizes."""
    import numpy as np

    words = [f"model.{key}={value}" for key, value in shape(SIZE).items()]
    words += [f"recipe={family}", f"model.max_position_embeddings={length}"]
    words.append("objective.token.predict_prob=0.15")
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        words.append(f"model.{name}={DROPOUT[family]}")
    # One document of sentences of one word each, so that they fill every row.
    num_words = (num_rows + 1) * length
    sentences = np.ones(num_words, dtype=int)
    generator = np.random.default_rng(0)
    shards = random_shards(generator, np.array([num_words]), sentences, VOCAB_SIZE)
    return Member(words, num_rows, always=(), shards=shards, seq_length=length).step


def transformers_model(family: str, length: int) -> Any:
    """The peer with fresh weights."""
    import transformers

    sizes = shape(SIZE) | {"vocab_size": VOCAB_SIZE}
    if family == "modernbert":
        modernbert = transformers.ModernBertConfig(
            max_position_embeddings=length,
            local_attention=128,
            global_attn_every_n_layers=3,
            sparse_prediction=True,
            **SPECIAL_IDS,
            **sizes,
        )
        return transformers.ModernBertForMaskedLM(modernbert)
    longformer = transformers.LongformerConfig(
        # two positions are of padding
        max_position_embeddings=length + 2,
        attention_window=512,
        type_vocab_size=1,
        **sizes,
    )
    return transformers.LongformerForMaskedLM(longformer)


def transformers_step(
    family: str, length: int, num_rows: int, is_bf16: bool, compiles: bool
) -> Callable[[], float]:
    """One step of the peer, as `peer_step` has it."""
    import torch

    torch.manual_seed(0)
    rows = {}
    for name, values in make_rows(num_rows, length).items():
        rows[name] = torch.from_numpy(values)
    inputs = {
        "input_ids": rows["masked"],
        "attention_mask": torch.ones_like(rows["ids"]),
        "labels": rows["ids"].masked_fill(~rows["predicted"], -100),
    }
    model = transformers_model(family, length).train()
    run = torch.compile(model) if compiles else model
    return peer_step(lambda: run(**inputs).loss, model, is_bf16, compiles)


def work(arguments: argparse.Namespace) -> None:
    """The process of one side."""
    side = arguments.worker
    (family,) = arguments.families
    start_worker(side == "clozelab", arguments.threads)
    sizes = (family, arguments.length, arguments.rows)
    step: Callable[[], Any]
    if side == "clozelab":
        step = clozelab_step(*sizes)
    else:
        step = transformers_step(*sizes, side.startswith("bf16"), side.endswith("-compiled"))
    serve(repeated(step, arguments.rows * arguments.length))


def compare(arguments: argparse.Namespace) -> list[str]:
    """The table of these families."""
    lines = rate_table("tokens/s", arguments.rounds, arguments.seconds)
    precision = "bf16" if is_bf16_faster() else "fp32"
    for family in arguments.families:
        peers: tuple[str, ...] = (precision,)
        if family in COMPILED:
            peers = (f"{precision}-compiled", precision)
        options = ["--families", family, "--rows", arguments.rows, "--length", arguments.length]
        effort = (arguments.threads, arguments.rounds, arguments.seconds)
        sides = race(__file__, sides_of(peers), options, *effort)
        name = f"{family} {size_name(SIZE)}, {arguments.rows} rows of {arguments.length:,}"
        lines += rate_rows(name, sides)
    return lines


def main(words: Sequence[str] | None = None) -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    options.add_argument("--length", type=int, default=2048, help="of a row; a multiple of 512")
    options.add_argument("--rows", type=int, default=4, help="of a step")
    arguments = options.parse_args(words)
    if arguments.worker:
        return work(arguments)
    parts = {TITLE: partial(compare, arguments)}
    report("Benchmarks", arguments.threads, parts, arguments.output)
    return None


if __name__ == "__main__":
    main()
