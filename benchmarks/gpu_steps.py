"""Training steps through the loop of `pretrain`, as written and as CUDA graphs: right, and fast.

The loop is Lightning's with clozelab's module, batches and optimizer; nothing is left out but the
checkpoints. A part of benchmarks/gpu.py.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import statistics
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from clozelab.corpus.instances import SegmentPairs
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards, TokenStream
from clozelab.datamodules.corpus import (
    ACCELERATOR_PREDICTIONS_MULTIPLE,
    BoundPhase,
    Phase,
    StepStream,
)
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder, compile_encoder
from clozelab.modules.pretraining import PretrainingModule
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.nsp import NextSentencePrediction
from clozelab.objectives.objective import Objective
from clozelab.optim.adamw import build_adamw
from clozelab.optim.schedule import LinearWarmupDecay
from clozelab.training.runtime import ReiterableLoader, batch_loader
from clozelab.training.trainer import build_trainer, choose_hardware
from encoders import shape
from gpu_busy import busy_milliseconds
from gpu_plan import Plan, require, table

WARM_UP = 20  # steps that are not timed: they compile, and are captured
BLOCK = 20  # steps between two waits for the device


@dataclass(frozen=True)
class Case:
    """One way to train."""

    size: str
    rows: int
    length: int
    graphs: bool = False
    spike: str = "stop"
    compiled: bool = True
    bf16: bool = True
    dropout: float = 0.0
    vocab_size: int = 8192
    muon: bool = True
    seed: int = 1
    deterministic: bool = False

    @property
    def name(self) -> str:
        words = [f"{self.size} {self.rows} x {self.length}"]
        words.append("compiled" if self.compiled else "as written")
        if not self.bf16:
            words.append("fp32")
        if self.dropout:
            words.append("dropout")
        return ", ".join(words)


def make_objective() -> Objective:
    return Objective(
        input=SegmentPairs(random_next_prob=0.5, negative_scope="corpus"),
        token=MaskedLanguageModel(
            predict_prob=0.15, mask_fraction=0.8, random_fraction=0.1, same_fraction=0.1, weight=1.0
        ),
        pair=NextSentencePrediction(weight=1.0),
    )


def corpus_stream(
    objective: Objective, vocab_size: int, length: int, rows: int, steps: int, first_step: int = 0
) -> StepStream:
    """Optimizer steps of a corpus of random words in memory, made by the code of every run."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(4, 40, 2_000)
    lengths = rng.integers(8, 40, sizes.sum())
    shards = TokenShards(
        tokens=TokenStream([rng.integers(1000, vocab_size, lengths.sum()).astype(np.uint16)]),
        sentence_offsets=np.append(0, np.cumsum(lengths)),
        document_offsets=np.append(0, np.cumsum(sizes)),
        document_source=np.zeros(len(sizes), dtype=np.uint8),
        source_names=("random",),
        vocab_size=vocab_size,
        unigram_entropy=1.0,
        fingerprint="",
    )
    ids = SpecialIds(cls=101, sep=102, pad=0, mask=103, vocab_size=vocab_size)
    instances = objective.bind(shards, ids, length)
    phase = BoundPhase(0, Phase(length, steps, rows, rows), objective, 0, instances, 1)
    return StepStream([phase], first_step, 0, 1, ACCELERATOR_PREDICTIONS_MULTIPLE)


class Clock(Callback):
    """Losses of all steps, seconds a step by blocks, and what the device does meanwhile."""

    def __init__(self, plan: Plan, *, keeps_losses: bool = False, profiles: str = "") -> None:
        self.plan = plan
        self.keeps_losses = keeps_losses
        self.profiles = profiles  # device | host
        self.losses: list[Tensor] = []
        self.seconds: list[float] = []
        self.busy = (0.0, 0)
        self.report = ""
        self._start = 0.0
        self._profiler: Any = None

    def on_train_batch_end(
        self,
        trainer: Trainer,
        module: Any,  # noqa: ARG002  (Lightning fixes the signature)
        outputs: Any,
        *_: object,
        **__: object,
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
        if self.profiles == "host":
            self._profiler = cProfile.Profile()
            self._profiler.enable()
        else:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if self.plan.device.type == "cuda":
                activities = [torch.profiler.ProfilerActivity.CUDA]
            self._profiler = torch.profiler.profile(activities=activities)
            self._profiler.__enter__()

    def _end_profile(self) -> None:
        if self.profiles == "host":
            self._profiler.disable()
            stream = io.StringIO()
            pstats.Stats(self._profiler, stream=stream).sort_stats("tottime").print_stats(22)
            lines = stream.getvalue().splitlines()
            self.report = "\n".join(line[:110] for line in lines if line.strip())
        else:
            self._profiler.__exit__(None, None, None)
            milliseconds, kernels = busy_milliseconds(self._profiler)
            self.busy = (milliseconds / BLOCK, kernels // BLOCK)
        self._profiler = None


@dataclass
class Fit:
    """A training of one case, which may be cut in two."""

    plan: Plan
    case: Case
    steps: int
    clock: Clock
    module: Any = field(init=False)
    trainer: Any = field(init=False)

    def run(self, last_step: int, checkpoint: Path | None = None) -> Fit:
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
        objective = make_objective()
        self.module = PretrainingModule(
            Encoder(self._config()),
            [objective],
            optimizer_factory=partial(
                build_adamw,
                learning_rate=1e-3,
                betas=(0.9, 0.98),
                eps=1e-6,
                weight_decay=0.01,
                bias_correction=True,
                matrix_learning_rate=0.02 if case.muon else None,
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
            backend = {"backend": "eager"} if self.plan.smoke else {}
            compile_encoder(self.module.model.encoder, dynamic=False, **backend)
        with tempfile.TemporaryDirectory() as folder:
            self.trainer = build_trainer(
                hardware,
                max_steps=last_step,
                validation_interval_steps=None,
                callbacks=[self.clock],
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
            self.trainer.fit(self.module, loader, ckpt_path=checkpoint)
        self.plan.wait()
        return self

    def _config(self) -> EncoderConfig:
        return EncoderConfig(
            vocab_size=self.case.vocab_size,
            hidden_act="gelu",
            hidden_dropout_prob=self.case.dropout,
            attention_probs_dropout_prob=self.case.dropout,
            max_position_embeddings=512,
            type_vocab_size=2,
            initializer_range=0.02,
            layer_norm_eps=1e-12,
            position_embedding_init="normal",
            **shape(self.case.size),
        )

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
    differ from the ordinary step by three times as much as that does from itself.
    """
    size, rows, length, steps = ("smoke", 4, 32, 8) if plan.smoke else ("mini", 64, 128, 30)
    exact = Case(size, rows, length, compiled=False, bf16=False, deterministic=True)
    table(plan, f"{steps} steps", "last loss", "loss differs by", "weights differ by", "wanted")
    compiled = not plan.smoke
    wrong = []
    for case, limit in (
        (replace(exact, muon=False), 1e-5),
        (replace(exact, muon=False, dropout=0.1, spike="skip"), 1e-5),
        (Case(size, rows, length, compiled=compiled, dropout=0.1), 1e-3),
        (exact, 1e-5),
        (replace(exact, muon=False, dropout=0.1, deterministic=False), 1e-5),
        (Case(size, rows, length, compiled=compiled, dropout=0.1, muon=False), 1e-3),
    ):
        if plan.seconds_left() < 12:
            plan.say(f"| {case.name} | left out, no time |")
            continue
        try:
            wrong += _compare(plan, case, steps, limit)
        except Exception as error:
            plan.say(f"| {case.name} | FAILED: {told(error)} |")
            wrong.append(case.name)
            plan.free()
    require(not wrong, "; ".join(wrong))


def _compare(plan: Plan, case: Case, steps: int, limit: float) -> list[str]:
    """Writes the lines of one case; names of those that are wrong."""
    torch.use_deterministic_algorithms(False)
    ordinary = trained(plan, case, steps)
    others = {"again": case, "graphs": replace(case, graphs=True)}
    if case.deterministic and not case.muon:
        others["graphs, resumed"] = replace(case, graphs=True)
    if case.spike == "skip":
        others["another seed"] = replace(case, seed=2)
    wrong = []
    for name, other in others.items():
        losses, weights = trained(plan, other, steps, resumes=name.endswith("resumed"))
        by = largest(losses, ordinary[0])
        of_weights = float((weights - ordinary[1]).norm() / ordinary[1].norm())
        if name == "again":
            limit = max(limit, 3 * by)
        words = (case.name, "muon" if case.muon else "adamw", "same" if case.deterministic else "")
        plan.say(
            f"| {' '.join(words)}: {name} | {losses[-1]:.5f} | {by:.1e} | {of_weights:.1e} |"
            f" {limit:.0e} |"
        )
        plan.record(f"{' '.join(words)}: {name}", loss=by, weights=of_weights)
        is_right = by > 1e-3 if name == "another seed" else by <= limit
        if not is_right:
            wrong.append(f"{case.name}: {name}")
    return wrong


def trained(
    plan: Plan, case: Case, steps: int, *, resumes: bool = False
) -> tuple[list[float], Tensor]:
    """The losses of all steps, and the weights; `resumes`: stopped in the middle, and gone on."""
    clock = Clock(plan, keeps_losses=True)
    fit = Fit(plan, case, steps, clock)
    if not resumes:
        fit.run(steps)
    else:
        fit.run(steps // 2)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = Path(folder) / "last.ckpt"
            fit.trainer.save_checkpoint(checkpoint)
            fit.run(steps, checkpoint)
    result = fit.losses, fit.weights()
    del fit
    plan.free()
    return result


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


def largest(left: Sequence[float], right: Sequence[float]) -> float:
    pairs = zip(left, right, strict=True)
    return max(abs(one - other) for one, other in pairs)


# Fast


def measure_steps(plan: Plan) -> None:
    """The smallest encoder whose speed was measured before: the host is the limit."""
    cases = list(small_cases(plan))
    _measure(plan, cases)
    if plan.smoke:
        return
    # Where the host's time goes behind the graphs.
    case = replace(cases[0], graphs=True, spike="stop")
    clock = Clock(plan, profiles="host")
    Fit(plan, case, 1000, clock).run(WARM_UP + 3 * BLOCK)
    plan.say("", f"The host, {BLOCK} steps with graphs:", "", "```", clock.report, "```", "")
    plan.free()
    # Rows of a corpus, of which some are padded.
    base = Case("base", 256, 128, dropout=0.1, vocab_size=30_522, muon=False)
    _measure(plan, [base, replace(base, graphs=True)])


def small_cases(plan: Plan) -> Iterator[Case]:
    if plan.smoke:
        yield Case("smoke", 4, 32)
        yield Case("smoke", 4, 32, graphs=True)
        return
    case = Case("mini", 64, 128)
    yield replace(case, graphs=True)
    yield case
    yield replace(case, graphs=True, spike="skip")
    yield replace(case, spike="skip")
    yield replace(case, graphs=True, compiled=False)
    yield replace(case, graphs=True, dropout=0.1)
    yield replace(case, graphs=True, muon=False)
    yield replace(case, graphs=True, rows=512, length=64)
    yield replace(case, graphs=True, rows=128, length=256)


def measure_norm(plan: Plan) -> None:
    """What it costs BERT-Base that the host waits for each step's norm, and what graphs bring."""
    if plan.smoke:
        _measure(plan, [Case("smoke", 4, 32, spike="skip")])
        return
    case = Case("base", 256, 128, dropout=0.1, vocab_size=30_522, muon=False)
    cases = [case, replace(case, spike="skip")]
    cases += [replace(case, graphs=True), replace(case, graphs=True, spike="skip")]
    _measure(plan, cases)


def _measure(plan: Plan, cases: Sequence[Case]) -> None:
    titles = ("case", "graphs", "spike", "optimizer", "ms a step, median (min-max)", "tokens/s")
    table(plan, *titles, "device busy, ms", "kernels", "peak GiB", "seconds in all")
    for case in cases:
        if plan.seconds_left() < 12:
            plan.say(f"| {case.name} | {case.graphs} | {case.spike} | left out, no time |")
            continue
        start = time.perf_counter()
        clock = Clock(plan, profiles="device")
        blocks = 2 if plan.smoke or case.size == "base" else 5
        try:
            Fit(plan, case, 1000, clock).run(WARM_UP + (blocks + 1) * BLOCK)
        except Exception as error:
            plan.say(f"| {case.name} | {case.graphs} | {case.spike} | FAILED: {told(error)} |")
            plan.free()
            continue
        times = [1000 * seconds for seconds in clock.seconds]
        median = statistics.median(times)
        tokens = 1000 * case.rows * case.length / median
        busy, kernels = clock.busy
        optimizer = "muon" if case.muon else "adamw"
        seconds = time.perf_counter() - start
        plan.say(
            f"| {case.name} | {case.graphs} | {case.spike} | {optimizer} |"
            f" {median:.2f} ({min(times):.2f}-{max(times):.2f}) | {tokens:,.0f} | {busy:.2f} |"
            f" {kernels} | {plan.peak_gib()} | {seconds:.0f} |"
        )
        words = (case.name, f"graphs {case.graphs}", case.spike, optimizer)
        plan.record(" | ".join(words), milliseconds=median, busy=busy, kernels=kernels)
        plan.free()
