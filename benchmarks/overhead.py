"""What Lightning, our callbacks and logging cost a step: the real training loop beside the bare loop on one batch.

The real loop is what `clozelab pretrain` runs: Trainer, all callbacks of the stage, metrics.csv, a log point every 50
steps; checkpoints and validation are left out, their cost is their own. The bare loop is forward, backward, clip and
update.
"""

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from interleaved import Side, about, spread, take_turns
from pretraining import BATCH, SEQ_LENGTH, SHAPES, clozelab_batch, clozelab_model, make_rows, work

TARGET = 0.03
TABLE = [
    "| size | loop | tokens/s, median (min-max) | cost of the loop, median (min-max) |",
    "|---|---|---|---|",
]


def serve_real_loop(size: str) -> None:
    """`clozelab pretrain`'s loop, answering between two steps."""
    from lightning.pytorch import Callback
    from torch.utils.data import DataLoader, IterableDataset

    from clozelab.modules.pretraining import PretrainingModule
    from clozelab.optim.adamw import build_adamw
    from clozelab.optim.schedule import LinearWarmupDecay
    from clozelab.training.metrics_csv import MetricsCsv
    from clozelab.training.trainer import build_trainer, choose_hardware, stage_callbacks

    batch = clozelab_batch(make_rows(BATCH[size]))

    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            while True:
                yield [batch]

    class Answer(Callback):
        def __init__(self) -> None:
            self.steps, self.start, self.seconds = -2, 0.0, 0.0

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.steps += 1
            taken = time.perf_counter() - self.start
            if self.steps < 0 or (self.steps > 0 and taken < self.seconds):
                return
            answer = {"loss": None} if self.steps == 0 else self.steps * BATCH[size] * SEQ_LENGTH / taken
            print(json.dumps(answer), flush=True)
            line = sys.stdin.readline()
            if not line:
                # Without the summary and the last log point that an orderly end would print.
                os._exit(0)
            self.steps, self.seconds, self.start = 0, float(line), time.perf_counter()

    hardware = choose_hardware(
        accelerator="cpu", devices=1, num_nodes=1, strategy="auto", precision="auto", threads=None
    )
    model = clozelab_model(size)
    settings = {"betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01, "bias_correction": True}
    total = 10**6
    module = PretrainingModule(
        model.encoder,
        model.objective,
        optimizer_factory=partial(build_adamw, learning_rate=1e-4, **settings),
        schedule_factory=partial(LinearWarmupDecay, warmup_fraction=0.01),
        total_steps=total,
        gradient_clip_norm=1.0,
        seed=1,
        log_interval_steps=50,
        matmul_ceiling=1e12,
    )
    with tempfile.TemporaryDirectory() as folder:
        callbacks = stage_callbacks(
            checkpoint=Path(folder) / "last.ckpt",
            checkpoint_interval_steps=total,
            fingerprint="0" * 64,
            progress_bar=True,
        )
        trainer = build_trainer(
            hardware,
            max_steps=total,
            validation_interval_steps=None,
            callbacks=[*callbacks, Answer()],
            loggers=[MetricsCsv(Path(folder))],
            folder=Path(folder),
            log_interval_steps=50,
        )
        trainer.fit(module, DataLoader(Endless(), batch_size=None))


def compare(size: str = "tiny", threads: int = 1, rounds: int = 15, seconds: float = 2.0) -> list[str]:
    """Table rows; many short turns, because what is looked for is small."""
    options = ["--size", size, "--threads", str(threads)]
    sides = {name: Side([__file__, "--worker", name, *options], threads) for name in ("bare", "real")}
    take_turns(sides, rounds, seconds)
    costs = [a / b - 1.0 for a, b in zip(sides["bare"].rates, sides["real"].rates, strict=True)]
    verdict = "met" if statistics.median(costs) < TARGET else "missed"
    cost = (
        f"**{statistics.median(costs):.1%}** ({min(costs):.1%} to {max(costs):.1%}), target < {TARGET:.0%}: {verdict}"
    )
    layers, hidden = SHAPES[size]
    lines = [
        f"| L{layers} H{hidden} | bare | {spread(sides['bare'].rates)} | |",
        f"| L{layers} H{hidden} | Lightning, callbacks, logging | {spread(sides['real'].rates)} | {cost} |",
    ]
    print("\n".join(lines), flush=True)
    return lines


def run_worker(side: str, size: str, threads: int) -> None:
    if side == "bare":
        return work("clozelab", size, threads)
    from clozelab.training.allocator import tune_allocator

    tune_allocator()
    import torch

    torch.set_num_threads(threads)
    return serve_real_loop(size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="tiny", choices=list(SHAPES))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", choices=("bare", "real"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return run_worker(arguments.worker, arguments.size, arguments.threads)
    lines = [about(arguments.threads), "", *TABLE]
    print("\n".join(lines), flush=True)
    lines += compare(arguments.size, arguments.threads, arguments.rounds, arguments.seconds)
    if arguments.output:
        arguments.output.write_text("# What the training loop costs\n\n" + "\n".join(lines) + "\n")
    return None


if __name__ == "__main__":
    main()
