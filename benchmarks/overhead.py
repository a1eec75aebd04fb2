"""What Lightning, our callbacks and logging cost a step: the real training loop beside the bare
loop on one batch.

The real loop is what `clozelab pretrain` runs: Trainer, all callbacks of the stage, metrics.csv, a
log point every 50 steps; checkpoints and validation are left out, their cost is their own. The bare
loop is forward, backward, clip and update.
"""

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from encoders import SHAPES, size_name
from interleaved import Answers, parser, race, report, say, spread, start_worker
from pretraining import BATCH, SEQ_LENGTH, clozelab_batch, clozelab_model, make_rows, work

TITLE = "What the training loop costs"
TARGET = 0.03
TOTAL_STEPS, LOG_INTERVAL_STEPS = 10**6, 50
TABLE = [
    "| size | loop | tokens/s, median (min-max) | cost of the loop, median (min-max) |",
    "|---|---|---|---|",
]


def serve_real_loop(size: str) -> None:
    """`clozelab pretrain`'s loop, answering between two steps."""
    from lightning.pytorch import Callback
    from torch.utils.data import DataLoader, IterableDataset

    batch = clozelab_batch(make_rows(BATCH[size]))
    answers = Answers(BATCH[size] * SEQ_LENGTH)

    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            while True:
                yield [batch]

    class Answer(Callback):
        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if not answers.after_step():
                # Without the summary and the last log point that an orderly end would print.
                os._exit(0)

    with tempfile.TemporaryDirectory() as folder:
        trainer = real_trainer(Path(folder), Answer())
        trainer.fit(pretraining_module(size), DataLoader(Endless(), batch_size=None))


def pretraining_module(size: str) -> Any:
    from clozelab.modules.pretraining import PretrainingModule
    from clozelab.optim.adamw import build_adamw
    from clozelab.optim.schedule import LinearWarmupDecay

    model = clozelab_model(size)
    settings: dict[str, Any] = {
        "betas": (0.9, 0.999),
        "eps": 1e-6,
        "weight_decay": 0.01,
        "bias_correction": True,
    }
    return PretrainingModule(
        model.encoder,
        model.objectives,
        optimizer_factory=partial(build_adamw, learning_rate=1e-4, **settings),
        schedule_factory=partial(LinearWarmupDecay, warmup_fraction=0.01),
        total_steps=TOTAL_STEPS,
        gradient_clip_norm=1.0,
        seed=1,
        log_interval_steps=LOG_INTERVAL_STEPS,
        matmul_ceiling=1e12,
    )


def real_trainer(folder: Path, answer: Any) -> Any:
    """With all callbacks of the stage, and `answer`."""
    from clozelab.training.callbacks import GracefulStop
    from clozelab.training.stopping import Watch
    from clozelab.training.tracking import MetricsCsv
    from clozelab.training.trainer import build_trainer, choose_hardware, stage_callbacks

    hardware = choose_hardware(
        accelerator="cpu", devices=1, num_nodes=1, strategy="auto", precision="auto", threads=None
    )
    callbacks = stage_callbacks(
        folder / "last.ckpt",
        TOTAL_STEPS,
        fingerprint="0" * 64,
        progress_bar=True,
        stop=GracefulStop(Watch()),
    )
    return build_trainer(
        hardware,
        max_steps=TOTAL_STEPS,
        validation_interval_steps=None,
        callbacks=[*callbacks, answer],
        loggers=[MetricsCsv(folder)],
        folder=folder,
        log_interval_steps=LOG_INTERVAL_STEPS,
    )


def compare(
    size: str = "tiny", threads: int = 1, rounds: int = 15, seconds: float = 2.0
) -> list[str]:
    """The table; many short turns, because what is looked for is small."""
    loops = {"bare": "bare", "real": "real"}
    sides = race(__file__, loops, ["--size", size], threads, rounds, seconds)
    costs = [a / b - 1.0 for a, b in zip(sides["bare"].rates, sides["real"].rates, strict=True)]
    verdict = "met" if statistics.median(costs) < TARGET else "missed"
    cost = (
        f"**{statistics.median(costs):.1%}** ({min(costs):.1%} to {max(costs):.1%}), target <"
        f" {TARGET:.0%}: {verdict}"
    )
    return say(
        f"{rounds} x {seconds:g} s a loop, in turns; costs are those of neighbouring turns.",
        "",
        *TABLE,
        f"| {size_name(size)} | bare | {spread(sides['bare'].rates)} | |",
        f"| {size_name(size)} | Lightning, callbacks, logging | {spread(sides['real'].rates)} |"
        f" {cost} |",
    )


def run_worker(side: str, size: str, threads: int) -> None:
    if side == "bare":
        return work("clozelab", size, threads)
    start_worker(True, threads)
    return serve_real_loop(size)


def main() -> None:
    options = parser(__doc__, rounds=15, seconds=2.0)
    options.add_argument("--size", default="tiny", choices=list(SHAPES))
    arguments = options.parse_args()
    if arguments.worker:
        return run_worker(arguments.worker, arguments.size, arguments.threads)
    part = partial(compare, arguments.size, arguments.threads, arguments.rounds, arguments.seconds)
    report("Benchmarks", arguments.threads, {TITLE: part}, arguments.output)
    return None


if __name__ == "__main__":
    main()
