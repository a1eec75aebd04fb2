"""Where a step of BERT-Base goes on a GPU, and what may make it shorter: parts of gpu.py.

A lever is one thing that is changed, in a process of its own: several compile side by side, and one
at a time measures. Some change what is computed; they are marked, and only say what a part costs.

`python benchmarks/gpu_levers.py NAME LENGTH` measures one and prints it as JSON.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config as inductor
from torch.nn import functional as F

from clozelab.models.cost import training_flops_per_token
from clozelab.models.encoder import Encoder, compile_encoder
from clozelab.models.kernels import linear_cross_entropy as fused_loss
from clozelab.modules.graphs import StepGraphs
from clozelab.modules.pretraining import PretrainingModel
from encoders import clozelab_config, clozelab_optimizer
from gpu_busy import busy_milliseconds, group_of, milliseconds_by
from gpu_plan import Plan, moved, require, table
from gpu_steps import make_objective
from pretraining import clozelab_batch, make_rows, transformers_batch, transformers_model

LOCK = Path(tempfile.gettempdir()) / "clozelab-gpu.lock"
MOST_AT_ONCE = 6  # processes that compile
GIB_EACH = 17  # a model and its activations
BLOCKS = 5
STEPS = 8  # of a block, between two events


@dataclass(frozen=True)
class Lever:
    """One way to take the step."""

    about: str
    is_right: bool = True  # computes what the ordinary step does
    compiled: str = "layers"  # layers | encoder
    mode: str | None = None
    inductor: Mapping[str, Any] = field(default_factory=dict)
    dropout: float = 0.1
    attention_dropout: float = 0.1
    vocab_size: int = 30_522
    autocast: bool = True
    attention: str = ""  # flash | cudnn | efficient
    clips: bool = True
    loss: str = "chunks"  # chunks | one chunk | compiled
    graphs: bool = False
    is_peer: bool = False


LEVERS: dict[str, Lever] = {
    "now": Lever("as `pretrain` does it"),
    "graphs": Lever("the whole step as CUDA graphs", graphs=True),
    "encoder": Lever("the encoder compiled as a whole", compiled="encoder"),
    "flash": Lever("flash attention", attention="flash"),
    "cudnn": Lever("cuDNN's attention", attention="cudnn"),
    "one_chunk": Lever("all logits at once", loss="one chunk"),
    "compiled_loss": Lever("projection and cross-entropy by the compiler", loss="compiled"),
    "vocabulary": Lever("vocabulary of 30,592, a multiple of 128", vocab_size=30_592),
    "no_dropout": Lever("no dropout", is_right=False, dropout=0.0, attention_dropout=0.0),
    "no_attention_dropout": Lever("no dropout in attention", is_right=False, attention_dropout=0.0),
    "bf16": Lever("weights in bf16, no autocast", is_right=False, autocast=False),
    "no_clip": Lever("the norm is neither measured nor cut", is_right=False, clips=False),
    "transformers": Lever("transformers, compiled", is_peer=True),
    "descent": Lever("coordinate descent tuning", inductor={"coordinate_descent_tuning": True}),
    "autotune": Lever("max-autotune-no-cudagraphs", mode="max-autotune-no-cudagraphs"),
    "now_again": Lever("as `pretrain` does it"),
    "encoder_autotune": Lever(
        "the encoder as a whole, max-autotune-no-cudagraphs",
        compiled="encoder",
        mode="max-autotune-no-cudagraphs",
    ),
    "encoder_loss": Lever(
        "encoder, and the loss with a vocabulary of 30,592, by the compiler",
        compiled="encoder",
        loss="compiled",
        vocab_size=30_592,
    ),
    "encoder_bf16": Lever(
        "the encoder as a whole, weights in bf16, no autocast",
        is_right=False,
        compiled="encoder",
        autocast=False,
    ),
}


class Step:
    """A training step of BERT-Base by a lever, in its parts."""

    def __init__(self, plan: Plan, lever: Lever, length: int, rows: int) -> None:
        self.plan = plan
        self.lever = lever
        self.batch = moved(clozelab_batch(make_rows(rows, length)), plan.device)
        torch.manual_seed(0)
        for name, value in lever.inductor.items():
            setattr(inductor, name, value)
        _choose_attention(lever.attention)
        config = replace(
            clozelab_config("smoke" if plan.smoke else "base"),
            vocab_size=lever.vocab_size,
            hidden_dropout_prob=lever.dropout,
            attention_probs_dropout_prob=lever.attention_dropout,
        )
        self.config = config
        self.model: Any = PretrainingModel(Encoder(config), [make_objective()]).to(plan.device)
        if not lever.autocast:
            self.model.bfloat16()
        self._compile()
        self.optimizer = clozelab_optimizer(self.model.named_parameters())
        if lever.graphs:
            captures = plan.device.type == "cuda"
            self.graphs = StepGraphs(
                self._forward_backward, self.clip, self.optimizer, plan.device, captures=captures
            )

    def _compile(self) -> None:
        lever = self.lever
        options: dict[str, Any] = {"mode": lever.mode} if lever.mode else {}
        if self.plan.smoke:
            options = {"backend": "eager"}
        encoder = self.model.encoder
        if lever.compiled == "layers":
            compile_encoder(encoder, dynamic=False, **options)
        else:
            encoder.compile(dynamic=False, **options)
        if lever.loss == "one chunk":
            fused_loss.ACCELERATOR_CHUNK_LOGITS = 1 << 40
        if lever.loss == "compiled":
            head = self.model.named_models["encoder"].heads["lm"]
            head.loss = _compiled_loss(head, options)

    def loss(self) -> Tensor:
        with self.plan.autocast(self.lever.autocast):
            return sum(term.loss_sum / term.count for term in self.model(self.batch))

    def _forward_backward(self, batch: Any, counts: Tensor, _: Tensor) -> Tensor:
        with self.plan.autocast(self.lever.autocast):
            terms = self.model(batch)
        loss = sum(term.loss_sum / count for term, count in zip(terms, counts, strict=True))
        loss.backward()
        return loss.detach()

    def clip(self) -> Tensor:
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        return torch.nn.utils.clip_grad_norm_(parameters, 1.0)

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def __call__(self) -> Tensor:
        if self.lever.graphs:
            counts = self.model.objective_of(self.batch).counts(self.batch)
            numbers = torch.tensor([float(count) for count in counts.values()])
            loss = self.graphs.add_gradient(self.batch, numbers, numbers)
            self.graphs.clip()
            self.graphs.finish(updates=True)
            return loss
        loss = self.loss()
        loss.backward()
        if self.lever.clips:
            self.clip()
        self.update()
        return loss.detach()


def _choose_attention(name: str) -> None:
    """One of scaled_dot_product_attention's ways alone, or those that torch takes by itself."""
    if not name or not torch.cuda.is_available():
        return
    cuda = torch.backends.cuda
    cuda.enable_flash_sdp(name == "flash")
    cuda.enable_cudnn_sdp(name == "cudnn")
    cuda.enable_mem_efficient_sdp(name == "efficient")
    cuda.enable_math_sdp(False)


def _compiled_loss(head: Any, options: Mapping[str, Any]) -> Callable[..., Any]:
    def loss_of(hidden: Tensor, labels: Tensor) -> Tensor:
        logits = F.linear(head.vector(hidden), head.word_embedding_weight, head.bias)
        return F.cross_entropy(logits.float(), labels, ignore_index=-100, reduction="sum")

    compiled = torch.compile(loss_of, dynamic=False, **options)

    def loss(hidden: Tensor, labels: Tensor) -> Any:
        total = compiled(hidden, labels)
        return fused_loss.PredictionLoss(total, total.new_zeros(()), (labels >= 0).sum())

    return loss


def peer_step(plan: Plan, length: int, rows: int) -> Callable[[], Tensor]:
    """BertForPreTraining with sdpa, compiled, with the same optimizer kernel on the same rows."""
    model: Any = transformers_model("smoke" if plan.smoke else "base").to(plan.device)
    model.compile(**({"backend": "eager"} if plan.smoke else {}))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    inputs = moved(transformers_batch(make_rows(rows, length)), plan.device)

    def step() -> Tensor:
        with plan.autocast():
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


# One lever, in a process of its own


@contextmanager
def alone() -> Iterator[None]:
    """Inside, no other process of this benchmark measures."""
    with LOCK.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def measure_lever(plan: Plan, lever: Lever, length: int, rows: int) -> dict[str, float]:
    """Milliseconds a step, the seconds until it was ready, peak memory and the loss."""
    start = time.perf_counter()
    step: Callable[[], Tensor]
    if lever.is_peer:
        step = peer_step(plan, length, rows)
    else:
        step = Step(plan, lever, length, rows)
    for _ in range(5):  # a graph is captured by the fourth
        loss = step()
    plan.wait()
    ready = time.perf_counter() - start
    with alone():
        for _ in range(3):
            step()
        plan.wait()
        times = []
        for _ in range(BLOCKS):
            begin = time.perf_counter()
            for _ in range(STEPS):
                loss = step()
            plan.wait()
            times.append(1000 * (time.perf_counter() - begin) / STEPS)
    peak = 0.0
    if plan.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**30
    return {
        "milliseconds": statistics.median(times),
        "least": min(times),
        "most": max(times),
        "ready_seconds": ready,
        "peak_gib": peak,
        "loss": float(loss),
    }


# All of them


def try_levers(plan: Plan) -> None:
    """Each lever's step beside the ordinary one."""
    waiting = list(plan.levers)
    if plan.smoke:
        waiting = [(name, 16) for name in ("now", "graphs", "encoder_loss", "encoder_bf16")]
    table(
        plan,
        "BERT-Base",
        "length",
        "ms a step (min-max)",
        "share of the ceiling",
        "loss after 50 steps",
        "peak GiB",
        "ready after, s",
    )
    at_once = 2
    if plan.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info()
        at_once = min(MOST_AT_ONCE, int(free / 2**30 / GIB_EACH))
    running: dict[tuple[str, int], subprocess.Popen[str]] = {}
    results: dict[tuple[str, int], dict[str, float]] = {}
    while waiting or running:
        while waiting and len(running) < at_once and plan.seconds_left() > 30:
            name, length = waiting.pop(0)
            running[name, length] = _start(plan, name, length)
        if plan.seconds_left() <= 30:
            for name, length in waiting:
                plan.say(f"| {name} | {length} | left out, no time |")
            waiting = []
        for (name, length), process in list(running.items()):
            if process.poll() is None and plan.seconds_left() > 2:
                continue
            del running[name, length]
            figures = _answer(plan, name, length, process)
            if figures is not None:
                results[name, length] = figures
        time.sleep(0.1)
    require(any(name == "now" for name, _ in results), "the ordinary step was not measured")


def _start(plan: Plan, name: str, length: int) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, name, str(length)]
    if plan.smoke:
        words.append("--smoke")
    variables = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "4"}
    return subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=variables
    )


def _answer(
    plan: Plan, name: str, length: int, process: subprocess.Popen[str]
) -> dict[str, float] | None:
    """Writes the line of one lever; its figures, or None."""
    if process.poll() is None:
        process.kill()
        process.communicate()
        plan.say(f"| {name} | {length} | ended, no time |")
        return None
    output, _ = process.communicate()
    lines = output.strip().splitlines()
    try:
        figures: dict[str, float] = json.loads(lines[-1])
    except (IndexError, ValueError):
        text = " / ".join(lines[-6:])[-600:].replace("|", "/")
        plan.say(f"| {name} | {length} | FAILED: {text} |")
        return None
    plan.record(f"lever {name} {length}", **figures)
    lever = LEVERS[name]
    about = lever.about if lever.is_right else f"{lever.about} (not the same)"
    milliseconds = figures["milliseconds"]
    share = figures["flops"] / (milliseconds / 1000) / plan.ceiling
    plan.say(
        f"| {name}: {about} | {length} |"
        f" {milliseconds:.2f} ({figures['least']:.2f}-{figures['most']:.2f}) |"
        f" {share:.1%} | {figures['loss']:.4f} | {figures['peak_gib']:.1f} |"
        f" {figures['ready_seconds']:.0f} |"
    )
    return figures


# Where the time goes


def profile_step(plan: Plan) -> None:
    """The kernels of a step by group, forward, backward, norm and update apart, and gaps."""
    cases = [(16, 2)] if plan.smoke else [(128, 256), (512, 64)]
    for length, rows in cases:
        step = Step(plan, LEVERS["now"], length, rows)
        for _ in range(4):
            step()
        plan.wait()
        _say_parts(plan, step, length, rows)
        _say_kernels(plan, step, length)
        del step
        plan.free()


def _say_parts(plan: Plan, step: Step, length: int, rows: int) -> None:
    """Milliseconds of each part, with a wait behind each, beside the step that never waits."""
    parts: dict[str, list[float]] = {"forward": [], "backward": [], "norm": [], "update": []}
    for _ in range(3 if plan.smoke else 8):
        loss = _timed(plan, parts["forward"], step.loss)
        _timed(plan, parts["backward"], loss.backward)
        _timed(plan, parts["norm"], step.clip)
        _timed(plan, parts["update"], step.update)
    whole: list[float] = []
    launches: list[float] = []
    for _ in range(3 if plan.smoke else 8):
        plan.wait()
        begin = time.perf_counter()
        for _ in range(4):
            step()
        launches.append(1000 * (time.perf_counter() - begin) / 4)
        plan.wait()
        whole.append(1000 * (time.perf_counter() - begin) / 4)
    medians = {name: statistics.median(values) for name, values in parts.items()}
    medians["whole"] = statistics.median(whole)
    medians["host"] = statistics.median(launches)
    predicted = 0.15 * (length - 3) / length
    flops = rows * length * training_flops_per_token(step.config, length, predicted)
    share = flops / (medians["whole"] / 1000) / plan.ceiling
    text = ", ".join(f"{name} {value:.2f}" for name, value in medians.items())
    plan.say("", f"{rows} x {length}, ms: {text}; {share:.1%} of the ceiling.", "")
    plan.record(f"parts {length}", share=share, flops=flops, **medians)


def _timed(plan: Plan, times: list[float], act: Callable[[], Any]) -> Any:
    plan.wait()
    begin = time.perf_counter()
    result = act()
    plan.wait()
    times.append(1000 * (time.perf_counter() - begin))
    return result


def _say_kernels(plan: Plan, step: Step, length: int) -> None:
    steps = 3
    activities = [torch.profiler.ProfilerActivity.CPU]
    if plan.device.type == "cuda":
        activities = [torch.profiler.ProfilerActivity.CUDA]
    plan.wait()
    begin = time.perf_counter()
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(steps):
            step()
        plan.wait()
    wall = 1000 * (time.perf_counter() - begin) / steps
    busy, kernels = busy_milliseconds(profile)
    plan.say(f"Busy {busy / steps:.2f} of {wall:.2f} ms, {kernels / steps:.0f} kernels.", "")
    groups, names = milliseconds_by(profile)
    table(plan, "group", "ms a step", "kernels a step")
    for group, (milliseconds, count) in sorted(groups.items(), key=lambda pair: -pair[1][0]):
        plan.say(f"| {group} | {milliseconds / steps:.2f} | {count / steps:.0f} |")
        plan.record(f"group {length} {group}", milliseconds=milliseconds / steps)
    plan.say("")
    table(plan, "kernel", "group", "ms a step", "a step")
    longest = sorted(names.items(), key=lambda pair: -pair[1][0])[:45]
    for name, (milliseconds, count) in longest:
        plan.record(f"kernel {length} {name[:200]}", milliseconds=milliseconds / steps)
        words = f"{name[:110]} | {group_of(name)} | {milliseconds / steps:.3f}"
        plan.say(f"| {words} | {count / steps:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=list(LEVERS))
    parser.add_argument("length", type=int)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    device = torch.device("cpu" if arguments.smoke else "cuda")
    plan = Plan(device, arguments.smoke, time.monotonic() + 600)
    length = arguments.length
    rows = 2 if arguments.smoke else 32_768 // length
    lever = LEVERS[arguments.name]
    figures = measure_lever(plan, lever, length, rows)
    predicted = 0.15 * (length - 3) / length
    figures["flops"] = (
        rows * length * training_flops_per_token(clozelab_config("base"), length, predicted)
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
