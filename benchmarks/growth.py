"""How the cost of pre-training grows: with the text's length, the rows of a step, the vocabulary
and the threads, and a left-to-right loss beside the compiled causal peer.

`python benchmarks/growth.py` trains BERT of L4 H256 on masked tokens. A step has 8,192 tokens, but
in the table of rows. Beside the tokens/s stands what theory says: the counted FLOPs of a token
(models/cost.py), and the rate that follows if each FLOP took as long as in the first line.
Where the measured rate is lower, something grows that is no matrix product: memory that is read,
dropout, softmax. Each line takes turns with the first one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from encoders import VOCAB_SIZE, shape, size_name, training_step
from interleaved import (
    Side,
    parser,
    rate_rows,
    rate_table,
    ratios,
    repeated,
    report,
    say,
    serve,
    spread,
    start_worker,
    take_turns,
)

TOKENS = 8192  # of a step
LENGTH, ROWS = 128, 64
SIZE = "mini"
CAUSAL_SIZES = ("tiny", SIZE)


class Point(NamedTuple):
    """A line of a table."""

    length: int = LENGTH
    rows: int = ROWS
    vocabulary: int = VOCAB_SIZE
    threads: int = 1


def series() -> Mapping[str, Mapping[str, Point]]:
    """Table -> name of each line -> its point; the first line is what the others stand beside."""
    lengths = (128, 256, 512, 1024, 2048, 4096)
    threads = range(1, (os.cpu_count() or 1) + 1)
    return {
        "Length": {f"{n:,}": Point(length=n, rows=TOKENS // n) for n in lengths},
        "Rows of 128": {f"{n:,}": Point(rows=n) for n in (64, 4, 8, 16, 32, 128, 256)},
        "Vocabulary": {
            f"{n:,}": Point(vocabulary=n) for n in (8_192, 16_384, 32_768, 65_536, 131_072)
        },
        "Threads": {f"{n}": Point(threads=n) for n in threads},
    }


def serve_point(point: Point) -> None:
    """The process of one line: its FLOPs a token, then its tokens/s."""
    start_worker(is_clozelab=True, threads=point.threads)
    from families import FULL_ROWS, Member, random_words

    always = (
        *(f"model={SIZE}", FULL_ROWS, "recipe=bert", "objective=mlm"),
        f"model.max_position_embeddings={max(512, point.length)}",
    )
    tokens = point.rows * point.length
    shards = random_words(tokens // LENGTH, point.vocabulary)
    member = Member((), point.rows, always, shards=shards, seq_length=point.length)
    serve(repeated(member.step, tokens), hello=member.flops / tokens)


def grow(points: Mapping[str, Point], heading: str, rounds: int, seconds: float) -> list[str]:
    """One table."""
    lines = say(
        f"{size_name(SIZE)}, masked tokens; {rounds} x {seconds:g} s a line, in turns with the"
        " first one.",
        "",
        f"| {heading.lower()} | MFLOPs a token | tokens/s, median (min-max) | beside the first"
        " line | as FLOPs alone would have it |",
        "|--:|--:|---|---|--:|",
    )
    first = next(iter(points.values()))
    for name, point in points.items():
        # Two processes at a time: long texts take gigabytes.
        base = start(first)
        side = start(point)
        take_turns({"base": base, name: side}, rounds, seconds)
        expected = base.hello / side.hello * point.threads / first.threads
        lines += say(
            f"| {name} | {side.hello / 1e6:,.1f} | {spread(side.rates)} |"
            f" {ratios(side.rates, base.rates)} | {expected:.2f} |"
        )
    return lines


def start(point: Point) -> Side:
    worker = ",".join(map(str, point))
    return Side([__file__, "--worker", worker], point.threads)


# Left to right


def serve_causal(size: str, is_clozelab: bool) -> None:
    """Steps with a loss at every position, of ours or of the compiled peer."""
    start_worker(is_clozelab, threads=1)
    from families import FULL_ROWS, Member

    if is_clozelab:
        always = (f"model={size}", FULL_ROWS, "recipe=bert", "objective=ltr")
        step: Any = Member((), ROWS, always).step
    else:
        step = compiled_causal_step(size)
    serve(repeated(step, ROWS * LENGTH))


def compiled_causal_step(size: str) -> Any:
    """A step of `BertLMHeadModel` as a decoder, compiled, in the precision that ours takes."""
    import torch
    from transformers import BertConfig, BertLMHeadModel

    from encoders import clozelab_precision
    from pretraining import make_rows

    torch.manual_seed(0)
    config = BertConfig(vocab_size=VOCAB_SIZE, is_decoder=True, use_cache=False, **shape(size))
    model = BertLMHeadModel(config).train()
    run = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    ids = torch.from_numpy(make_rows(ROWS)["ids"])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    is_bf16 = clozelab_precision()
    return lambda: training_step(lambda: run(**inputs).loss, model, optimizer, is_bf16)


def compare_causal(rounds: int, seconds: float) -> list[str]:
    lines = rate_table("tokens/s", rounds, seconds)
    for size in CAUSAL_SIZES:
        sides = {}
        for name in ("clozelab", "transformers, compiled"):
            worker = f"causal {size} {name == 'clozelab'}"
            sides[name] = Side([__file__, "--worker", worker], 1)
        take_turns(sides, rounds, seconds)
        lines += rate_rows(f"{size_name(size)}, {ROWS} rows", sides)
    return lines


def main(words: Sequence[str] | None = None) -> None:
    options = parser(__doc__, rounds=3, seconds=3.0)
    tables = series()
    causal = "Left to right"
    names = [*tables, causal]
    options.add_argument("--tables", nargs="+", default=names, choices=names)
    arguments = options.parse_args(words)
    if arguments.worker:
        kind, *rest = arguments.worker.split()
        if kind == "causal":
            return serve_causal(rest[0], rest[1] == "True")
        return serve_point(Point(*map(int, kind.split(","))))
    effort = (arguments.rounds, arguments.seconds)
    parts = {}
    for name in arguments.tables:
        if name == causal:
            parts[name] = partial(compare_causal, *effort)
        else:
            parts[name] = partial(grow, tables[name], name, *effort)
    report("How the cost of pre-training grows", 1, parts, arguments.output)
    return None


if __name__ == "__main__":
    main()
