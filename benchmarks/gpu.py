"""Everything that only a GPU can show, in one command: `python benchmarks/gpu.py` (under nine minutes on an H200).

1. kernels: variable-length attention equals one attention a sequence, forward and backward, beside what bf16 costs the
   reference itself; dropout takes the padded groups.
2. losses: the same 30 steps in fp32, bf16 and bf16 compiled end with the same loss.
3. speed: BERT-Base and -Large at 128 and 512 tokens, bf16, compiled: tokens/s, model-FLOPs utilisation against the
   measured matmul ceiling, beside transformers with sdpa and torch.compile, taking turns; peak memory of both.
4. memory: what gradient checkpointing saves, and the micro-batch finder from far too large a batch.
5. data: how long the training loop waits for its next batch, with batches from a real corpus.

Each part stands alone: one that fails says so in the report and hides no other. `--smoke` runs all of them on a CPU in
tiny shapes, to show that the code works; its numbers mean nothing. Writes a Markdown report and prints it.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clozelab.models.attention import Layout, attention, reference_attention
from clozelab.models.compiling import compile_encoder
from clozelab.models.flops import training_flops_per_token
from clozelab.training.fitting import largest_that_fits, try_step
from clozelab.training.runtime import matmul_ceiling
from interleaved import about, default_report
from pretraining import (
    VOCAB_SIZE,
    clozelab_batch,
    clozelab_model,
    clozelab_optimizer,
    make_rows,
    transformers_batch,
    transformers_model,
)

TARGET_MFU, TARGET_STALL = 0.50, 0.01


@dataclass
class Plan:
    """What is run; `smoke` shrinks it to seconds of one CPU core."""

    device: torch.device
    smoke: bool
    deadline: float
    lines: list[str] = field(default_factory=list)
    ceiling: float = 0.0

    @property
    def speed_cases(self) -> list[tuple[str, int, int]]:
        """(size, S, rows of a micro-batch)."""
        if self.smoke:
            return [("smoke", 16, 2)]
        return [("base", 128, 256), ("base", 512, 64), ("large", 128, 256), ("large", 512, 64)]

    def say(self, *lines: str) -> None:
        self.lines.extend(lines)
        print("\n".join(lines), flush=True)

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic()

    def autocast(self, enabled: bool = True) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def peak_gib(self) -> str:
        if self.device.type != "cuda":
            return "-"
        peak = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
        return f"{peak:.1f}"

    def free(self) -> None:
        gc.collect()
        torch._dynamo.reset()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def moved(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {key: value.to(device) if hasattr(value, "to") else value for key, value in batch.items()}


# 1. Kernels


def check_kernels(plan: Plan) -> None:
    """The error of `attention` against fp32, beside that of the reference in the same precision."""
    generator = torch.Generator().manual_seed(0)
    longest, count = (16, 5) if plan.smoke else (512, 64)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    plan.say(
        "| layout | causal | error forward | error with backward | the reference's own | verdict |",
        "|---|---|---|---|---|---|",
    )
    for name, layout in (("ragged", Layout.ragged(lengths)), ("padded", Layout.rectangle(lengths, longest))):
        for is_causal in (False, True):
            _check_kernel(plan, name, layout.to(plan.device), is_causal, generator)
    _check_dropout(plan, Layout.ragged(lengths).to(plan.device))


def _check_kernel(plan: Plan, name: str, layout: Layout, is_causal: bool, generator: torch.Generator) -> None:
    shape_ = (layout.num_slots, 4, 64)
    exact = [torch.randn(shape_, generator=generator).to(plan.device).bfloat16().float() for _ in range(3)]
    bounds = zip(layout.first_rows.tolist(), layout.lengths_list, strict=True)
    rows = torch.cat([torch.arange(start, start + length) for start, length in bounds]).to(plan.device)
    weights = torch.randn((len(rows), 4, 64), generator=generator).to(plan.device)

    def run(inputs: Sequence[Tensor], kernel: Callable[..., Tensor]) -> list[Tensor]:
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        out = kernel(*leaves)[rows]
        (out.float() * weights).sum().backward()
        return [out.detach().float(), *(leaf.grad[rows].float() for leaf in leaves if leaf.grad is not None)]

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, layout, dropout_prob=0.0, is_causal=is_causal, training=True)

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return reference_attention(q, k, v, layout, is_causal=is_causal)

    low = [x.bfloat16() for x in exact]
    wanted, found, usual = run(exact, reference), run(low, ours), run(low, reference)
    errors = [max(float((a - b).abs().max()) for a, b in zip(x, wanted, strict=True)) for x in (found, usual)]
    forward = float((found[0] - wanted[0]).abs().max())
    verdict = "ok" if errors[0] <= 2 * errors[1] + 1e-2 else "WRONG"
    plan.say(f"| {name} | {is_causal} | {forward:.1e} | {errors[0]:.1e} | {errors[1]:.1e} | {verdict} |")
    if verdict != "ok":
        raise AssertionError(f"attention of a {name} stream errs by {errors[0]:.2e}, the reference by {errors[1]:.2e}")


def _check_dropout(plan: Plan, layout: Layout) -> None:
    """Dropout in force is dropout: about that share of a probe's weight is gone, in another place each time."""
    torch.manual_seed(0)
    q = torch.zeros(layout.num_slots, 4, 64, device=plan.device, dtype=torch.bfloat16)
    v = torch.ones_like(q)
    outs = [attention(q, q, v, layout, dropout_prob=0.5, is_causal=False, training=True).float() for _ in range(2)]
    mean = float(outs[0].mean())
    different = not torch.equal(outs[0], outs[1])
    plan.say("", f"Attention dropout of a ragged stream: mean {mean:.3f} (1 expected), anew each time: {different}.")
    if not different or abs(mean - 1.0) > 0.25:
        raise AssertionError("attention dropout is not in force")


# 2. Losses


def check_losses(plan: Plan) -> None:
    size, length, count, steps = ("smoke", 16, 2, 4) if plan.smoke else ("mini", 128, 64, 30)
    losses = {}
    for name, bf16, compiled in (("fp32", False, False), ("bf16", True, False), ("bf16 compiled", True, True)):
        step, _ = build_ours(plan, size, length, count, bf16=bf16, compiled=compiled)
        losses[name] = [float(step()) for _ in range(steps)][-1]
        plan.free()
    text = ", ".join(f"{name} {value:.4f}" for name, value in losses.items())
    plan.say(f"Loss after {steps} steps: {text}.")
    if max(losses.values()) - min(losses.values()) > 0.1:
        raise AssertionError("the precisions disagree by more than 0.1")


# 3. Speed


def build_ours(
    plan: Plan, size: str, length: int, count: int, *, bf16: bool = True, compiled: bool = True
) -> tuple[Callable[[], Tensor], nn.Module]:
    """(one optimizer step, the model)."""
    model = clozelab_model(size).to(plan.device)
    if compiled:
        compile_encoder(model.encoder, dynamic=False, **({"backend": "eager"} if plan.smoke else {}))
    optimizer = clozelab_optimizer(model.named_parameters())
    batch = moved(clozelab_batch(make_rows(count, length)), plan.device)

    def step() -> Tensor:
        with plan.autocast(bf16):
            loss = sum(term.loss_sum / term.count for term in model(batch))
        return finish_step(loss, model, optimizer)

    return step, model


def build_peer(plan: Plan, size: str, length: int, count: int) -> Callable[[], Tensor]:
    """BertForPreTraining with sdpa, compiled, the same optimizer kernel, the same rows."""
    model: Any = transformers_model(size).to(plan.device)
    model.compile(**({"backend": "eager"} if plan.smoke else {}))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    inputs = moved(transformers_batch(make_rows(count, length)), plan.device)

    def step() -> Tensor:
        with plan.autocast():
            loss = model(**inputs).loss
        return finish_step(loss, model, optimizer)

    return step


def finish_step(loss: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def measure_speed(plan: Plan) -> None:
    plan.say(
        "| model | S | side | tokens/s, median (min-max) | MFU | peak GiB | compile s | target |",
        "|---|---|---|---|---|---|---|---|",
    )
    for size, length, count in plan.speed_cases:
        try:
            _measure_case(plan, size, length, count)
        except Exception as error:
            plan.say(f"| {size} | {length} | failed: {type(error).__name__}: {str(error)[:120]} | | | | | |")
        plan.free()


def _measure_case(plan: Plan, size: str, length: int, count: int) -> None:
    sides: dict[str, Callable[[], Tensor]] = {}
    compile_seconds, peaks = {}, {}
    builders: dict[str, Callable[[], Callable[[], Tensor]]] = {
        "clozelab": lambda: build_ours(plan, size, length, count)[0],
        "transformers": lambda: build_peer(plan, size, length, count),
    }
    for name, build in builders.items():
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
            plan.say(f"| {size} | {length} | {name} failed: {type(error).__name__}: {str(error)[:120]} | | | | | |")
            continue
        compile_seconds[name], peaks[name], sides[name] = time.perf_counter() - start, plan.peak_gib(), step
    rates = take_turns_here(
        plan, sides, count * length, rounds=1 if plan.smoke else 3, seconds=0.1 if plan.smoke else 3
    )
    config = clozelab_model("smoke" if plan.smoke else size).encoder.config
    per_token = training_flops_per_token(config, length, 0.15 * (length - 3) / length)
    for name, found in rates.items():
        middle = statistics.median(found)
        mfu = middle * per_token / plan.ceiling
        target = ("met" if mfu >= TARGET_MFU else "missed") if name == "clozelab" else ""
        spread = f"{middle:,.0f} ({min(found):,.0f}-{max(found):,.0f})"
        cells = (size, length, name, spread, f"{mfu:.1%}", peaks[name], f"{compile_seconds[name]:.0f}", target)
        plan.say("| " + " | ".join(map(str, cells)) + " |")


def take_turns_here(
    plan: Plan, sides: dict[str, Callable[[], Tensor]], tokens: int, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Tokens/s of each side by round; the sides are in this process, and wait for the device once a turn."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, step in sides.items():
            steps, start = 0, time.perf_counter()
            while steps == 0 or time.perf_counter() - start < seconds:
                for _ in range(1 if plan.smoke else 5):
                    step()
                    steps += 1
                plan.wait()
            rates[name].append(steps * tokens / (time.perf_counter() - start))
    return rates


# 4. Memory


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
    plan.say(f"Peak of a step, {size}, {count} x {length}, GiB: {found[False]}; with checkpointing {found[True]}.")
    model = clozelab_model(size)
    wanted = 4 if plan.smoke else 4096

    def attempt(rows: int) -> None:
        batch = clozelab_batch(make_rows(rows, length))
        try_step(model, batch, plan.device, "bf16-mixed")

    fitting = largest_that_fits(attempt, wanted)
    plan.say(f"Micro-batch finder, {size} at {length}: {fitting} rows fit, tried from {wanted}.")


# 5. Data


def measure_data(plan: Plan) -> None:
    """The loop's wait for its next batch, with a real corpus, one prefetching thread and the fastest model."""
    from clozelab.datamodules.prefetch import Prefetched, pinned

    size, length, count, steps = ("smoke", 16, 2, 3) if plan.smoke else ("base", 128, 256, 60)
    stream = corpus_stream(length, count, steps + 20)
    start = time.perf_counter()
    for step in range(min(10, steps)):
        stream.micro_batches(step)
    alone = min(10, steps) * count / (time.perf_counter() - start)
    model = clozelab_model(size).to(plan.device)
    compile_encoder(model.encoder, dynamic=False, **({"backend": "eager"} if plan.smoke else {}))
    optimizer = clozelab_optimizer(model.named_parameters())
    prepare = pinned if plan.device.type == "cuda" else lambda batch: batch
    waited, begun, rows = 0.0, 0.0, 0
    reader = iter(Prefetched(stream, prepare))
    for number in range(steps + 2):
        if number == 2:  # the first two compile
            plan.wait()
            begun, waited, rows = time.perf_counter(), 0.0, 0
        before = time.perf_counter()
        micros = next(reader)
        waited += time.perf_counter() - before
        batch = {
            key: value.to(plan.device, non_blocking=True) if hasattr(value, "to") else value
            for key, value in micros[0].items()
        }
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
        f"{rows / seconds:,.0f} rows/s of {length} trained; the loop waited {share:.2%} of the time for its next batch"
        f" (target < {TARGET_STALL:.0%}: {verdict}). One thread alone makes {alone:,.0f} rows/s."
    )


def corpus_stream(length: int, count: int, steps: int) -> Any:
    """Optimizer steps of a corpus of random words in memory, made by the code of every run."""
    import numpy as np

    from clozelab.data.packing import SpecialIds
    from clozelab.data.shards import TokenShards, TokenStream
    from clozelab.datamodules.corpus import ACCELERATOR_PREDICTIONS_MULTIPLE, BoundPhase, Phase, StepStream

    rng = np.random.default_rng(0)
    sizes = rng.integers(4, 40, 2_000)
    lengths = rng.integers(8, 40, sizes.sum())
    shards = TokenShards(
        tokens=TokenStream([rng.integers(1000, VOCAB_SIZE, lengths.sum()).astype(np.uint16)]),
        sentence_offsets=np.append(0, np.cumsum(lengths)),
        document_offsets=np.append(0, np.cumsum(sizes)),
        document_source=np.zeros(len(sizes), dtype=np.uint8),
        source_names=("random",),
        vocab_size=VOCAB_SIZE,
        unigram_entropy=1.0,
        fingerprint="",
    )
    objective = clozelab_model("smoke").objective
    instances = objective.bind(shards, SpecialIds(cls=101, sep=102, pad=0, mask=103, vocab_size=VOCAB_SIZE), length)
    phase = BoundPhase(Phase(length, steps, count, count), 0, instances, 1)
    return StepStream(objective, [phase], 0, 0, 1, ACCELERATOR_PREDICTIONS_MULTIPLE)


PARTS: dict[str, tuple[str, Callable[[Plan], None]]] = {
    "kernels": ("Kernels", check_kernels),
    "losses": ("Losses", check_losses),
    "speed": ("Speed and utilisation", measure_speed),
    "memory": ("Memory", measure_memory),
    "data": ("Data", measure_data),
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
            plan.say("", f"FAILED: {type(error).__name__}: {error}", "", "```", traceback.format_exc(limit=-6), "```")
        plan.say("", f"({time.perf_counter() - start:.0f} s)")
        plan.free()
    return failed


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="tiny shapes on the CPU: shows that the code works")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--minutes", type=float, default=9.0, help="peers are left out when time runs short")
    parser.add_argument("--output", type=Path, help="default: docs/results/gpu-DATE-COMMIT.md; with --smoke: nowhere")
    arguments = parser.parse_args(words)
    if not arguments.smoke and not torch.cuda.is_available():
        parser.error("no CUDA device here; --smoke runs the same code on the CPU in tiny shapes")
    device = torch.device("cpu" if arguments.smoke else "cuda")
    plan = Plan(device, arguments.smoke, time.monotonic() + 60 * arguments.minutes)
    name = "CPU, smoke test: the numbers mean nothing" if arguments.smoke else torch.cuda.get_device_name()
    plan.ceiling = matmul_ceiling("bf16-mixed", device, 0.05 if arguments.smoke else 2.0)
    plan.say("# GPU checks", "", about(torch.get_num_threads()), "")
    plan.say(f"{name} · CUDA {torch.version.cuda} · bf16 matmul ceiling {plan.ceiling / 1e12:,.1f} TFLOP/s")
    failed = run_parts(plan, arguments.parts)
    plan.say("", f"Failed: {', '.join(failed)}." if failed else "All parts ran.")
    output = arguments.output or (None if arguments.smoke else default_report("gpu"))
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text("\n".join(plan.lines) + "\n", encoding="utf-8")
        print(f"written to {output}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
