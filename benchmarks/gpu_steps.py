"""Training steps through the loop of `pretrain`, as written and as CUDA graphs: right, and fast.

The loop is Lightning's with clozelab's module, batches and optimizer; nothing is left out but the
checkpoints. A part of benchmarks/gpu.py.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from clozelab.corpus.packing import SpecialIds
from clozelab.datamodules.corpus import (
    ACCELERATOR_PREDICTIONS_MULTIPLE,
    BoundPhase,
    Phase,
    StepStream,
)
from clozelab.models.cost import training_flops_per_token
from clozelab.models.encoder import Encoder
from clozelab.modules import graphs
from clozelab.modules.pretraining import PretrainingModule
from clozelab.objectives.objective import Objective
from clozelab.optim.adamw import build_adamw
from clozelab.optim.schedule import LinearWarmupDecay
from clozelab.training.runtime import ReiterableLoader, batch_loader
from clozelab.training.trainer import build_trainer, choose_hardware
from encoders import clozelab_config, pairs_objective, random_shards
from gpu_busy import busy_milliseconds
from gpu_plan import Plan, require, table
from interleaved import spread

WARM_UP = 20  # steps that are not timed: they compile, and are captured
BLOCK = 20  # steps between two waits for the device
LEAST_SECONDS = 20.0  # what the shortest case takes
PREDICTED_SHARE = 0.15


@dataclass(frozen=True)
class Case:
    """One way to train."""

    size: str
    rows: int
    length: int
    graphs: bool = False
    spike: str = "stop"
    compiled: str = "layers"  # layers | whole | "": as written
    bf16: bool = True
    dropout: float = 0.0
    vocab_size: int = 8192
    muon: bool = True
    seed: int = 1
    deterministic: bool = False
    captured: bool = True  # False: all that graphs need, and each step as written
    rate_factor: float = 1.0  # of both learning rates
    spikes: tuple[int, ...] = ()  # steps whose gradient is huge

    @property
    def name(self) -> str:
        words = [f"{self.size} {self.rows} x {self.length}"]
        words.append(f"compiled {self.compiled}" if self.compiled else "as written")
        if not self.bf16:
            words.append("fp32")
        if self.dropout:
            words.append("dropout")
        return ", ".join(words)


def corpus_stream(
    objective: Objective, vocab_size: int, length: int, rows: int, steps: int, first_step: int = 0
) -> StepStream:
    """Optimizer steps of a corpus of random words in memory, made by the code of every run."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(4, 40, 2_000)
    lengths = rng.integers(8, 40, sizes.sum())
    shards = random_shards(rng, sizes, lengths, vocab_size)
    ids = SpecialIds(cls=101, sep=102, pad=0, mask=103, vocab_size=vocab_size)
    instances = objective.input.bind(shards, ids, length)
    phase = BoundPhase(0, Phase(length, steps, rows, rows), objective, 0, instances, 1)
    return StepStream([phase], first_step, 0, 1, ACCELERATOR_PREDICTIONS_MULTIPLE)


class Clock(Callback):
    """Losses of all steps, seconds a step by blocks, and what the device does meanwhile."""

    def __init__(self, plan: Plan, *, keeps_losses: bool = False, profiles: bool = False) -> None:
        self.plan = plan
        self.keeps_losses = keeps_losses
        self.profiles = profiles
        self.losses: list[Tensor] = []
        self.seconds: list[float] = []
        self.busy = (0.0, 0)
        self._start = 0.0
        self._profiler: Any = None

    def on_train_batch_end(
        self,
        trainer: Trainer,
        module: Any,  # noqa: ARG002  (Lightning fixes the signature)
        outputs: Any,
        *_: object,
    ) -> None:
        step = trainer.global_step
        if self.keeps_losses:
            self.losses.append(outputs["loss"].detach().clone())
            return
        if step < WARM_UP or (step - WARM_UP) % BLOCK:
            return
        self.plan.wait()
        now = time.perf_counter()
        if self._profiler is not None:
            self._end_profile()
        elif step > WARM_UP:
            self.seconds.append((now - self._start) / BLOCK)
        # The last block is looked at, and not timed.
        if self.profiles and step + BLOCK == trainer.max_steps:
            self._begin_profile()
        self._start = time.perf_counter()

    def _begin_profile(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.plan.device.type == "cuda":
            activities = [torch.profiler.ProfilerActivity.CUDA]
        self._profiler = torch.profiler.profile(activities=activities)
        self._profiler.__enter__()

    def _end_profile(self) -> None:
        self._profiler.__exit__(None, None, None)
        milliseconds, kernels = busy_milliseconds(self._profiler)
        self.busy = (milliseconds / BLOCK, kernels // BLOCK)
        self._profiler = None


class Spikes(Callback):
    """Makes the gradient of some steps huge, in the device's memory, where a graph reads it too."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = steps
        self._kept: Tensor | None = None

    def on_train_batch_start(self, trainer: Trainer, module: Any, *_: object) -> None:
        if trainer.global_step + 1 in self.steps:
            weight = _last_norm(module)
            self._kept = weight.detach().clone()
            weight.data.mul_(1024.0)

    def on_train_batch_end(self, _: Trainer, module: Any, *__: object) -> None:
        if self._kept is not None:
            _last_norm(module).data.copy_(self._kept)
            self._kept = None


def _last_norm(module: Any) -> Tensor:
    """The scale of what the logits are made of."""
    named = module.model.named_models["encoder"].heads["lm"].named_parameters()
    weight: Tensor = next(value for name, value in named if "norm" in name.lower())
    return weight


class SaveAt(Callback):
    """A checkpoint after a step, as a run's own is written, and the end of the training."""

    def __init__(self, step: int, path: Path) -> None:
        self.step = step
        self.path = path

    def on_train_batch_end(self, trainer: Trainer, *_: object, **__: object) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


@dataclass
class Fit:
    """A training of one case, which may be cut in two."""

    plan: Plan
    case: Case
    steps: int
    clock: Clock
    module: Any = field(init=False)
    trainer: Any = field(init=False)

    def run(self, last_step: int, checkpoint: Path | None = None, *extra: Callback) -> Fit:
        case = self.case
        is_cuda = self.plan.device.type == "cuda"
        hardware = choose_hardware(
            accelerator="gpu" if is_cuda else "cpu",
            devices=1,
            num_nodes=1,
            strategy="auto",
            precision="bf16-mixed" if case.bf16 else "32-true",
            threads=None if is_cuda else 1,
            deterministic=case.deterministic,
        )
        torch.manual_seed(case.seed)
        objective = pairs_objective()
        config = clozelab_config(case.size, dropout=case.dropout, vocab_size=case.vocab_size)
        self.module = PretrainingModule(
            Encoder(config),
            [objective],
            optimizer_factory=partial(
                build_adamw,
                learning_rate=1e-3 * case.rate_factor,
                betas=(0.9, 0.98),
                eps=1e-6,
                weight_decay=0.01,
                bias_correction=True,
                matrix_learning_rate=0.02 * case.rate_factor if case.muon else None,
            ),
            schedule_factory=partial(LinearWarmupDecay, warmup_fraction=0.1),
            total_steps=self.steps,
            gradient_clip_norm=1.0,
            seed=case.seed,
            log_interval_steps=50,
            matmul_ceiling=0.0,
            spike=case.spike,
            cuda_graphs=case.graphs,
        )
        if case.compiled:
            options = self.plan.compile_options
            self.module.model.compile_parts(whole=case.compiled == "whole", **options)
        with tempfile.TemporaryDirectory() as folder:
            self.trainer = build_trainer(
                hardware,
                max_steps=last_step,
                validation_interval_steps=None,
                callbacks=[self.clock, Spikes(case.spikes), *extra],
                loggers=[],
                folder=Path(folder),
                log_interval_steps=50,
            )
            stream = partial(
                corpus_stream, objective, case.vocab_size, case.length, case.rows, self.steps
            )
            loader = ReiterableLoader(
                lambda: batch_loader(stream(self.trainer.global_step), 0, self.trainer)
            )
            warm_up = graphs.WARM_UP if case.captured else 1 << 40
            with mock.patch.object(graphs, "WARM_UP", warm_up):
                self.trainer.fit(self.module, loader, ckpt_path=checkpoint)
        self.plan.wait()
        return self

    @property
    def losses(self) -> list[float]:
        return [float(loss) for loss in self.clock.losses]

    def weights(self) -> Tensor:
        parameters = self.module.state_dict().values()
        return torch.cat([value.detach().float().reshape(-1) for value in parameters])


# Right


def check_graphs(plan: Plan) -> None:
    """Graphs give the losses and the weights of the ordinary step, and a resumed run too.

    Sums on a GPU come in another order each time: where nothing makes them the same, graphs may
    differ from the ordinary step by three times as much as that does from itself. Muon rounds to
    bf16, which makes much of little: there the measure is a learning rate that is 1e-7 larger.
    """
    size, rows, length, steps = ("smoke", 4, 32, 30) if plan.smoke else ("mini", 64, 128, 30)
    kept = "" if plan.smoke else "layers"
    exact = Case(size, rows, length, compiled="", bf16=False, deterministic=True)
    compiled = Case(size, rows, length, compiled=kept, dropout=0.1, spike="skip")
    adamw = replace(exact, muon=False)
    skip = replace(adamw, dropout=0.1, spike="skip", spikes=(24, 28))
    titles = ("last loss", "loss differs by", "weights differ by", "wanted", "steps left out")
    table(plan, f"{steps} steps", *titles)
    wrong: list[str] = []
    for check in (
        partial(compare, plan, adamw, {"graphs": {}, "graphs, resumed": {}}, steps, 1e-5),
        partial(compare, plan, skip, {"graphs": {}, "graphs, another seed": {"seed": 2}}, steps),
        partial(compare, plan, replace(skip, spike="off"), {"another action": {}}, steps),
        partial(_explain_muon, plan, exact, steps),
        partial(compare, plan, compiled, {"again": {}, "graphs": {}}, steps, 1e-3),
        partial(
            compare, plan, replace(skip, deterministic=False), {"again": {}, "graphs": {}}, steps
        ),
        partial(compare, plan, replace(compiled, muon=False), {"again": {}, "graphs": {}}, steps),
    ):
        if plan.seconds_left() < 9:
            plan.say(f"| {check.args[1].name} | left out, no time |")
            continue
        try:
            wrong += check()
        except Exception as error:
            plan.say(f"| {check.args[1].name} | FAILED: {told(error)} |")
            wrong.append(check.args[1].name)
            plan.free()
    require(not wrong, "; ".join(wrong))


@dataclass(frozen=True)
class Outcome:
    """What a training came to."""

    losses: list[float]
    weights: Tensor
    left_out: list[int]

    def differs_by(self, other: Outcome) -> tuple[float, float]:
        """The largest difference of a loss; the relative one of the weights."""
        pairs = zip(self.losses, other.losses, strict=True)
        of_losses = max(abs(loss - expected) for loss, expected in pairs)
        distance = (self.weights - other.weights).norm() / other.weights.norm()
        return of_losses, float(distance)


def compare(
    plan: Plan, case: Case, others: dict[str, dict[str, Any]], steps: int, limit: float = 1e-5
) -> list[str]:
    """Writes a line for each way to take a case's steps; names of those that are wrong.

    "again" widens the limit; "another ..." has to differ.
    """
    torch.use_deterministic_algorithms(False)
    ordinary = trained(plan, case, steps)
    wrong = []
    for name, changes in others.items():
        other = replace(case, **changes)
        if name.startswith("graphs"):
            other = replace(other, graphs=True)
        if name == "another action":
            other = replace(other, spike="skip")
        outcome = trained(plan, other, steps, resumes=name.endswith("resumed"))
        if name == "again":
            limit = max(limit, 3 * outcome.differs_by(ordinary)[0])
        if not _say(plan, case, name, outcome, ordinary, limit):
            wrong.append(f"{case.name}: {name}")
    return wrong


def _say(
    plan: Plan, case: Case, name: str, outcome: Outcome, expected: Outcome, limit: float
) -> bool:
    """Writes a line; returns whether it is as it should be."""
    by, of_weights = outcome.differs_by(expected)
    words = [case.name, "muon" if case.muon else "adamw"]
    if case.deterministic:
        words.append("same")
    title = f"{' '.join(words)}: {name}"
    left_out = ", ".join(map(str, outcome.left_out))
    plan.say(
        f"| {title} | {outcome.losses[-1]:.5f} | {by:.1e} | {of_weights:.1e} | {limit:.0e} |"
        f" {left_out} |"
    )
    plan.record(title, loss=by, weights=of_weights)
    if "another" in name:
        return by > 1e-3
    return by <= limit and outcome.left_out == expected.left_out


def _explain_muon(plan: Plan, case: Case, steps: int) -> list[str]:
    """Beside the ordinary step: what graphs need without a graph, a little larger rate, graphs.

    With the same bits as without a graph, a capture is right; what then differs from the ordinary
    step is rounding, if it is no more than what the little larger rate brings.
    """
    torch.use_deterministic_algorithms(False)
    ordinary = trained(plan, case, steps)
    larger = trained(plan, replace(case, rate_factor=1 + 1e-7), steps)
    as_written = trained(plan, replace(case, graphs=True, captured=False), steps)
    replayed = trained(plan, replace(case, graphs=True), steps)
    limit = max(1e-5, 3 * larger.differs_by(ordinary)[0])
    wrong = []
    for name, outcome, expected, most in (
        ("learning rate + 1e-7", larger, ordinary, limit),
        ("as written, on the graphs' memory", as_written, ordinary, limit),
        ("graphs", replayed, ordinary, limit),
        ("graphs beside the same as written", replayed, as_written, 0.0),
    ):
        if not _say(plan, case, name, outcome, expected, most):
            wrong.append(f"{case.name}: {name}")
    return wrong


def trained(plan: Plan, case: Case, steps: int, *, resumes: bool = False) -> Outcome:
    """The losses of all steps, and the weights; `resumes`: stopped in the middle, and gone on."""
    clock = Clock(plan, keeps_losses=True)
    fit = Fit(plan, case, steps, clock)
    if not resumes:
        fit.run(steps)
    else:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = Path(folder) / "last.ckpt"
            fit.run(steps, None, SaveAt(steps // 2, checkpoint))
            fit.run(steps, checkpoint)
    outcome = Outcome(fit.losses, fit.weights(), list(fit.module.spikes.left_out))
    del fit
    plan.free()
    return outcome


def told(error: BaseException) -> str:
    """What went wrong, and what that came of: a capture that fails hides its cause."""
    texts = []
    cause: BaseException | None = error
    while cause is not None:
        frame = traceback.extract_tb(cause.__traceback__)[-1:]
        where = [f"{Path(place.filename).name}:{place.lineno}" for place in frame]
        text = " ".join(str(cause).split())[:400].replace("|", "/")
        texts.append(f"{type(cause).__name__} {' '.join(where)}: {text}")
        cause = cause.__context__
    return " <- ".join(texts)


# Fast


def measure_steps(plan: Plan) -> None:
    """The smallest encoder whose speed was measured before, where the host is the limit; BERT-Base.

    Rows are of a corpus, and some are padded.
    """
    if plan.smoke:
        small = Case("smoke", 4, 32)
        cases = [small, replace(small, graphs=True), replace(small, graphs=True, spike="skip")]
        measure_cases(plan, cases)
        return
    mini = Case("mini", 64, 128, spike="skip")
    base = Case("base", 256, 128, spike="skip", dropout=0.1, vocab_size=30_522, muon=False)
    cases = [
        replace(mini, graphs=True),
        replace(mini, graphs=True, spike="stop"),
        replace(mini, graphs=True, rows=512, length=64),
        replace(base, graphs=True),
        base,
        replace(mini, graphs=True, muon=False),
        replace(base, graphs=True, spike="stop"),
        replace(base, spike="stop"),
        mini,
    ]
    measure_cases(plan, cases)


def measure_cases(plan: Plan, cases: Sequence[Case], blocks: int = 3) -> None:
    """A line of the table each; in a smoke test of the first three, as small as they can be."""
    if plan.smoke:
        small: dict[str, Any] = {"size": "smoke", "rows": 4, "length": 32, "vocab_size": 8192}
        cases = [replace(case, **small) for case in cases[:3]]
    titles = ("case", "graphs", "spike", "optimizer", "ms a step, median (min-max)", "tokens/s")
    further = ("share of the ceiling", "device busy, ms", "kernels", "peak GiB")
    table(plan, *titles, *further, "seconds before the blocks", "seconds in all")
    wrong = []
    for case in cases:
        optimizer = "muon" if case.muon else "adamw"
        name = f"{case.name} | {case.graphs} | {case.spike} | {optimizer}"
        if plan.seconds_left() < LEAST_SECONDS:
            plan.say(f"| {name} | left out, no time |")
            continue
        try:
            _measure_case(plan, case, name, 1 if plan.smoke else blocks)
        except Exception as error:
            plan.say(f"| {name} | FAILED: {told(error)} |")
            wrong.append(name)
        plan.free()
    require(not wrong, "; ".join(wrong))


def _measure_case(plan: Plan, case: Case, name: str, blocks: int) -> None:
    start = time.perf_counter()
    clock = Clock(plan, profiles=True)
    # One block more is profiled.
    fit = Fit(plan, case, 1000, clock).run(WARM_UP + (blocks + 1) * BLOCK)
    seconds = time.perf_counter() - start
    milliseconds = [1000 * each for each in clock.seconds]
    median = statistics.median(milliseconds)
    tokens = 1000 * case.rows * case.length / median
    predicted = PREDICTED_SHARE * (case.length - 3) / case.length
    config = fit.module.model.encoder.config
    share = tokens * training_flops_per_token(config, case.length, predicted) / plan.ceiling
    before = seconds - BLOCK * sum(clock.seconds)
    busy, kernels = clock.busy
    plan.say(
        f"| {name} | {spread(milliseconds, 2)} | {tokens:,.0f} | {share:.1%} | {busy:.2f} |"
        f" {kernels} | {plan.peak_gib()} | {before:.0f} | {seconds:.0f} |"
    )
    figures = {"milliseconds": median, "share": share, "tokens": tokens, "before": before}
    plan.record(name, **figures, busy=busy, kernels=kernels)
