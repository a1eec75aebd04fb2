"""Everything that only a GPU can show, in one command: `python benchmarks/gpu.py`. `--minutes`
bounds it.

1. kernels: variable-length attention equals one attention a sequence, forward and backward, beside
what bf16 costs the
   reference itself; dropout takes the padded groups.
2. speed: BERT-Base and -Large at 128 and 512 tokens, bf16, compiled: tokens/s, model-FLOPs
utilisation against the
   measured matmul ceiling, beside transformers with sdpa and torch.compile, taking turns; peak
   memory of both.
3. memory: what gradient checkpointing saves, and the micro-batch finder from far too large a batch.
4. data: how long the training loop waits for its next batch, with batches from a real corpus.
5. family, family_compiled: every pair of an architecture and an objective is right (gpu_family.py).

Each part stands alone: one that fails says so in the report and hides no other. `--smoke` runs all
of them on a CPU in tiny shapes, to show that the code works; its numbers mean nothing. Writes a
Markdown report and prints it.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clozelab.models.cost import training_flops_per_token
from clozelab.models.encoder import compile_encoder
from clozelab.training.runtime import largest_that_fits, matmul_ceiling, try_step
from encoders import VOCAB_SIZE, clozelab_optimizer, finish_step
from gpu_family import check_compiled, check_family
from gpu_kernels import check_kernels
from gpu_plan import Plan, moved
from gpu_runs import check_runs
from gpu_steps import check_graphs, corpus_stream, measure_steps
from gpu_whole import check_whole, measure_large, measure_whole
from interleaved import about, default_report, spread, write_report
from pretraining import (
    clozelab_batch,
    clozelab_model,
    make_rows,
    transformers_batch,
    transformers_model,
)

TARGET_MFU, TARGET_STALL = 0.50, 0.01


# 2. Speed


def build_ours(
    plan: Plan, size: str, length: int, count: int, *, compiled: bool = True
) -> tuple[Callable[[], Tensor], nn.Module]:
    """(one optimizer step, the model)."""
    model = clozelab_model(size).to(plan.device)
    if compiled:
        compile_encoder(model.encoder, dynamic=False, **plan.compile_options)
    optimizer = clozelab_optimizer(model.named_parameters())
    batch = moved(clozelab_batch(make_rows(count, length)), plan.device)

    def step() -> Tensor:
        with plan.autocast():
            loss = sum(term.loss_sum / term.count for term in model(batch))
        return finish_step(loss, model, optimizer)

    return step, model


def build_peer(plan: Plan, size: str, length: int, count: int) -> Callable[[], Tensor]:
    """BertForPreTraining with sdpa, compiled, the same optimizer kernel, the same rows."""
    model: Any = transformers_model(size).to(plan.device)
    model.compile(**plan.compile_options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    inputs = moved(transformers_batch(make_rows(count, length)), plan.device)

    def step() -> Tensor:
        with plan.autocast():
            loss = model(**inputs).loss
        return finish_step(loss, model, optimizer)

    return step


def measure_speed(plan: Plan) -> None:
    plan.say(
        "| model | S | side | tokens/s, median (min-max) | MFU | peak GiB | compile s | target |",
        "|---|---|---|---|---|---|---|---|",
    )
    for size, length, count in plan.speed_cases:
        if size not in plan.sizes:
            continue
        try:
            _measure_case(plan, size, length, count)
        except Exception as error:
            plan.say(
                f"| {size} | {length} | failed: {type(error).__name__}: {str(error)[:120]} | | |"
                " | | |"
            )
        plan.free()


def _measure_case(plan: Plan, size: str, length: int, count: int) -> None:
    sides: dict[str, Callable[[], Tensor]] = {}
    compile_seconds: dict[str, float] = {}
    peaks: dict[str, str] = {}
    builders: dict[str, Callable[[], Callable[[], Tensor]]] = {
        "clozelab": lambda: build_ours(plan, size, length, count)[0],
        "transformers": lambda: build_peer(plan, size, length, count),
    }
    for name, build in builders.items():
        # The side before it stays on the device.
        kept_before = plan.allocated_gib()
        if name == "transformers" and plan.seconds_left() < 90:
            plan.say(f"| {size} | {length} | transformers: left out, no time | | | | | |")
            continue
        start = time.perf_counter()
        try:
            step = build()
            step()
            step()
            plan.wait()
        except Exception as error:
            if name == "clozelab":
                raise
            plan.say(
                f"| {size} | {length} | {name} failed: {type(error).__name__}: {str(error)[:120]} |"
                " | | | | |"
            )
            continue
        compile_seconds[name] = time.perf_counter() - start
        peaks[name] = plan.peak_gib(beyond=kept_before)
        sides[name] = step

    rounds = 1 if plan.smoke else 3
    seconds = 0.1 if plan.smoke else 3
    rates = take_turns_here(plan, sides, count * length, rounds, seconds)
    config = clozelab_model("smoke" if plan.smoke else size).encoder.config
    per_token = training_flops_per_token(config, length, 0.15 * (length - 3) / length)
    for name, of_rounds in rates.items():
        mfu = statistics.median(of_rounds) * per_token / plan.ceiling
        compiled = f"{compile_seconds[name]:.0f}"
        cells = (size, length, name, spread(of_rounds), f"{mfu:.1%}", peaks[name], compiled)
        plan.say("| " + " | ".join(map(str, (*cells, target(name, mfu)))) + " |")


def target(name: str, mfu: float) -> str:
    """Whether clozelab's own side uses as much of the device as is promised."""
    if name != "clozelab":
        return ""
    return "met" if mfu >= TARGET_MFU else "missed"


def take_turns_here(
    plan: Plan, sides: dict[str, Callable[[], Tensor]], tokens: int, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Tokens/s of each side by round; the sides are in this process, and wait for the device once a
    turn.
    """
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, step in sides.items():
            rates[name].append(tokens * steps_per_second(plan, step, seconds))
    return rates


def steps_per_second(plan: Plan, step: Callable[[], Tensor], seconds: float) -> float:
    steps_between = 1 if plan.smoke else 5
    steps = 0
    start = time.perf_counter()
    while steps == 0 or time.perf_counter() - start < seconds:
        for _ in range(steps_between):
            step()
        steps += steps_between
        plan.wait()
    return steps / (time.perf_counter() - start)


# 3. Memory


def measure_memory(plan: Plan) -> None:
    size, length, count = ("smoke", 16, 2) if plan.smoke else ("large", 512, 64)
    found: dict[bool, str] = {}
    for checkpointing in (False, True):
        step, model = build_ours(plan, size, length, count, compiled=False)
        model.encoder.gradient_checkpointing = checkpointing  # type: ignore[union-attr]
        step()
        plan.wait()
        found[checkpointing] = plan.peak_gib()
        del step, model
        plan.free()
    plan.say(
        f"Peak of a step, {size}, {count} x {length}, GiB: {found[False]}; with checkpointing"
        f" {found[True]}."
    )
    model = clozelab_model(size)
    wanted = 4 if plan.smoke else 4096

    def attempt(rows: int) -> None:
        batch = clozelab_batch(make_rows(rows, length))
        try_step(model, batch, plan.device, "bf16-mixed")

    fitting = largest_that_fits(attempt, wanted)
    plan.say(f"Micro-batch finder, {size} at {length}: {fitting} rows fit, tried from {wanted}.")


# 4. Data


def measure_data(plan: Plan) -> None:
    """The loop's wait for its next batch, with a real corpus, one prefetching thread and the
    fastest model.
    """
    from clozelab.training.runtime import Prefetched, pinned

    size, length, count, steps = ("smoke", 16, 2, 3) if plan.smoke else ("base", 128, 256, 60)
    objective = clozelab_model("smoke").objectives[0]
    stream = corpus_stream(objective, VOCAB_SIZE, length, count, steps + 20)
    start = time.perf_counter()
    for step in range(min(10, steps)):
        stream.micro_batches(step)
    alone = min(10, steps) * count / (time.perf_counter() - start)
    model = clozelab_model(size).to(plan.device)
    compile_encoder(model.encoder, dynamic=False, **plan.compile_options)
    optimizer = clozelab_optimizer(model.named_parameters())
    prepare = pinned if plan.device.type == "cuda" else lambda batch: batch
    waited, begun, rows = 0.0, 0.0, 0
    reader = iter(Prefetched(stream, prepare))
    for number in range(steps + 2):
        if number == 2:  # the first two compile
            plan.wait()
            begun, waited, rows = time.perf_counter(), 0.0, 0
        before = time.perf_counter()
        micros: Any = next(reader)
        waited += time.perf_counter() - before
        batch = moved(micros[0], plan.device, non_blocking=True)
        with plan.autocast():
            loss = sum(term.loss_sum / term.count for term in model(batch))
        finish_step(loss, model, optimizer)
        rows += batch["layout"].batch_size
    plan.wait()
    seconds = time.perf_counter() - begun
    del reader
    share = waited / seconds
    verdict = "met" if share < TARGET_STALL else "missed"
    plan.say(
        f"{rows / seconds:,.0f} rows/s of {length} trained; the loop waited {share:.2%} of the time"
        f" for its next batch (target < {TARGET_STALL:.0%}: {verdict}). One thread alone makes"
        f" {alone:,.0f} rows/s."
    )


PARTS: dict[str, tuple[str, Callable[[Plan], None]]] = {
    "kernels": ("Kernels", check_kernels),
    "speed": ("Speed and utilisation", measure_speed),
    "memory": ("Memory", measure_memory),
    "data": ("Data", measure_data),
    "graphs": ("Steps as CUDA graphs are right", check_graphs),
    "steps": ("Small steps", measure_steps),
    "runs": ("Whole runs", check_runs),
    "whole": ("The encoder compiled as a whole is right", check_whole),
    "base": ("BERT-Base by layers and as a whole", measure_whole),
    "large": ("BERT-Large", measure_large),
    "family": ("The family", check_family),
    "family_compiled": ("The family, compiled", check_compiled),
}


def run_parts(plan: Plan, names: Sequence[str]) -> list[str]:
    """Names of the parts that failed."""
    failed = []
    for name in names:
        title, part = PARTS[name]
        plan.say("", f"## {title}", "")
        start = time.perf_counter()
        try:
            part(plan)
        except Exception as error:
            failed.append(name)
            plan.say("", f"FAILED: {type(error).__name__}: {error}", "")
            plan.say("```", traceback.format_exc(limit=-6), "```")
        plan.say("", f"({time.perf_counter() - start:.0f} s)")
        plan.free()
    return failed


def run_apart(arguments: argparse.Namespace) -> int:
    """Each part by itself, so that one that hangs or crashes hides no other; those that failed."""
    limits = arguments.apart
    if len(limits) == 1:
        limits = limits * len(arguments.parts)
    failed = 0
    for name, seconds in zip(arguments.parts, limits, strict=True):
        # It takes a while to import what it needs.
        minutes = max(5.0, seconds - 15.0) / 60
        command = [sys.executable, __file__, "--parts", name, "--minutes", f"{minutes:.4f}"]
        command += ["--sizes", *arguments.sizes]
        if arguments.smoke:
            command.append("--smoke")
        if arguments.output is not None:
            arguments.output.mkdir(parents=True, exist_ok=True)
            command += ["--output", str(arguments.output / f"{name}.md")]
        begin = time.perf_counter()
        # A group of its own, so that what it has started ends with it.
        process = subprocess.Popen(command, process_group=0)
        try:
            status = process.wait(seconds + 5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
        took = time.perf_counter() - begin
        print(f"== {name}: status {status}, {took:.0f} s ==", flush=True)
        failed += status != 0
    return int(failed > 0)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--smoke", action="store_true", help="tiny shapes on the CPU: shows that the code works"
    )
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=["base", "large"],
        choices=["base", "large"],
        help="the encoders whose speed is measured",
    )
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="peers are left out when time runs short"
    )
    parser.add_argument(
        "--apart",
        nargs="+",
        type=float,
        metavar="SECONDS",
        help="each part in a process of its own that is ended after so long (one number for all, or"
        " one each); reports go to the folder --output",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="default: docs/results/gpu-DATE-COMMIT.md; with --smoke: nowhere",
    )
    arguments = parser.parse_args(words)
    if not arguments.smoke and not torch.cuda.is_available():
        parser.error("no CUDA device here; --smoke runs the same code on the CPU in tiny shapes")
    if arguments.apart:
        return run_apart(arguments)
    device = torch.device("cpu" if arguments.smoke else "cuda")
    plan = Plan(device, arguments.smoke, time.monotonic() + 60 * arguments.minutes)
    plan.output = arguments.output
    if not arguments.smoke:
        plan.sizes = tuple(arguments.sizes)
    name = (
        "CPU, smoke test: the numbers mean nothing"
        if arguments.smoke
        else torch.cuda.get_device_name()
    )
    plan.ceiling = matmul_ceiling("bf16-mixed", device, 0.05 if arguments.smoke else 0.7)
    plan.say("# GPU checks", "", about(torch.get_num_threads()), "")
    plan.say(
        f"{name} · CUDA {torch.version.cuda} · bf16 matmul ceiling {plan.ceiling / 1e12:,.1f}"
        " TFLOP/s"
    )
    failed = run_parts(plan, arguments.parts)
    plan.say("", f"Failed: {', '.join(failed)}." if failed else "All parts ran.")
    output = arguments.output or (None if arguments.smoke else default_report("gpu"))
    write_report(output, plan.lines)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
