"""`make bench`: every comparison of this folder in one run, interleaved, in about a quarter of an hour on two cores.

Prints each table as it grows and writes docs/results/bench-DATE-COMMIT.md. `--quick` halves the turns, `--smoke` only
shows that everything runs (its numbers mean nothing, and nothing is written unless --output says where), `--parts`
chooses. What needs a GPU is benchmarks/gpu.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import inference
import memory
import overhead
import pretraining
from interleaved import about, default_report


@dataclass(frozen=True)
class Effort:
    """How long each comparison takes turns."""

    threads: int
    rounds: int
    seconds: float
    smoke: bool


def bench_pretraining(effort: Effort) -> list[str]:
    lines = list(pretraining.TABLE)
    for size in ("smoke",) if effort.smoke else pretraining.SIZES:
        peers = ["trainer-fp32", "trainer-bf16"]
        lines += pretraining.compare(size, peers, effort.threads, effort.rounds, effort.seconds)
    return lines


def bench_memory(effort: Effort) -> list[str]:
    size, rows = ("smoke", 2) if effort.smoke else ("base", memory.ROWS)
    return [*memory.TABLE, *memory.compare(size, rows, effort.threads)]


def bench_overhead(effort: Effort) -> list[str]:
    size, rounds = ("smoke", 1) if effort.smoke else ("tiny", 3 * effort.rounds)
    return [*overhead.TABLE, *overhead.compare(size, effort.threads, rounds, effort.seconds / 2)]


def bench_inference(effort: Effort) -> list[str]:
    lines = list(inference.TABLE)
    for size in ("smoke",) if effort.smoke else inference.SIZES:
        lines += inference.compare(size, effort.threads, effort.rounds, effort.seconds / 2)
    return lines


PARTS: dict[str, tuple[str, Callable[[Effort], list[str]]]] = {
    "pretraining": ("Pre-training beside transformers' Trainer", bench_pretraining),
    "memory": ("Peak memory of a pre-training step", bench_memory),
    "overhead": ("What the training loop costs", bench_overhead),
    "inference": ("Encoding beside torch.nn.TransformerEncoder", bench_inference),
}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one turn")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args(words)
    rounds, seconds = arguments.rounds, arguments.seconds
    if arguments.quick:
        rounds, seconds = max(2, rounds // 2), seconds / 2
    if arguments.smoke:
        rounds, seconds = 1, 0.05
    effort = Effort(arguments.threads, rounds, seconds, arguments.smoke)
    lines = ["# Benchmarks", "", about(effort.threads), ""]
    lines += [f"{rounds} turns of {seconds:g} s a side, in turns; ratios are those of neighbouring turns.", ""]
    print("\n".join(lines), flush=True)
    for name in arguments.parts:
        title, part = PARTS[name]
        print(f"## {title}\n", flush=True)
        start = time.perf_counter()
        lines += [f"## {title}", "", *part(effort), "", f"({time.perf_counter() - start:.0f} s)", ""]
        print(flush=True)
    output = arguments.output or (None if arguments.smoke else default_report())
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
        print(f"written to {output}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    if importlib.util.find_spec("transformers") is None:
        sys.exit("the peer is missing: pip install 'clozelab[hf]'")
    sys.exit(main())
