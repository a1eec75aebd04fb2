"""`make bench`: every comparison of this folder in one run, interleaved; an hour or more on two
slow cores.

Prints each table as it grows and writes docs/results/bench-DATE-COMMIT.md. `--quick` halves the
turns, `--smoke` only shows that everything runs (its numbers mean nothing, and nothing is written
unless --output says where), `--parts` chooses. What needs a GPU is benchmarks/gpu.py.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import families
import inference
import memory
import overhead
import pretraining
from interleaved import default_report, parser, report


@dataclass(frozen=True)
class Effort:
    """How long each comparison takes turns."""

    threads: int
    rounds: int
    seconds: float
    smoke: bool


def bench_pretraining(effort: Effort) -> list[str]:
    sizes: Sequence[str] = pretraining.SIZES
    peers = pretraining.usual_peers(pretraining.is_bf16_faster())
    if effort.smoke:  # half a minute of compiling shows nothing
        sizes = ("smoke",)
        peers = tuple(peer for peer in peers if "compiled" not in peer)
    return pretraining.compare(sizes, peers, effort.threads, effort.rounds, effort.seconds)


def bench_families(effort: Effort) -> list[str]:
    sizes: Sequence[str] = families.SIZES
    peers: Sequence[str] = families.usual_peers()
    if effort.smoke:
        sizes, peers = ("smoke",), peers[1:]  # the first one is compiled
    turns = effort.threads, effort.rounds, effort.seconds
    return families.compare(sizes, families.FAMILIES, peers, *turns)


def bench_memory(effort: Effort) -> list[str]:
    size, rows = ("smoke", 2) if effort.smoke else ("base", memory.ROWS)
    return memory.compare(size, rows, effort.threads)


def bench_overhead(effort: Effort) -> list[str]:
    size, rounds = ("smoke", 1) if effort.smoke else ("tiny", 3 * effort.rounds)
    return overhead.compare(size, effort.threads, rounds, effort.seconds / 2)


def bench_inference(effort: Effort) -> list[str]:
    sizes = ("smoke",) if effort.smoke else inference.SIZES
    return inference.compare(sizes, effort.threads, effort.rounds, effort.seconds / 2)


PARTS: dict[str, tuple[str, Callable[[Effort], list[str]]]] = {
    "pretraining": (pretraining.TITLE, bench_pretraining),
    "families": (families.PEERS_TITLE, bench_families),
    "memory": (memory.TITLE, bench_memory),
    "overhead": (overhead.TITLE, bench_overhead),
    "inference": (inference.TITLE, bench_inference),
}


def main(words: Sequence[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    options.add_argument("--quick", action="store_true")
    options.add_argument("--smoke", action="store_true")
    arguments = options.parse_args(words)
    rounds, seconds = arguments.rounds, arguments.seconds
    if arguments.quick:
        rounds, seconds = max(2, rounds // 2), seconds / 2
    if arguments.smoke:
        rounds, seconds = 1, 0.05
    effort = Effort(arguments.threads, rounds, seconds, arguments.smoke)
    parts = {PARTS[name][0]: partial(PARTS[name][1], effort) for name in arguments.parts}
    output = arguments.output or (None if arguments.smoke else default_report())
    report("Benchmarks", effort.threads, parts, output)
    return 0


if __name__ == "__main__":
    if importlib.util.find_spec("transformers") is None:
        sys.exit("the peer is missing: pip install 'clozelab[hf]'")
    sys.exit(main())
