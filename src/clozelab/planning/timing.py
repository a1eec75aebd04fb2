"""How speeds are measured: steps of a shape, timed in processes of their own.

There are as many processes side by side as jobs will run, because cores share their memory and
caches. A process with one thread is timed by processor time, which other work of the machine hardly
changes.

Pre-training and fine-tuning go through the modules, loaders and trainer of a run, on made-up inputs
of the right lengths. On a frozen encoder's features the BiLSTM alone is trained.

On a GPU a run compiles its pre-training, which takes longer than a plan should. So its steps are
timed as written, which is slower, unless all is to be measured anew.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import pairwise
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.loggers.logger import DummyLogger
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from clozelab.addresses import build
from clozelab.datamodules.corpus import CorpusDataModule
from clozelab.datamodules.finetuning import TrainingBatches
from clozelab.datamodules.labelled import TrainingPlan
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.models.heads import BiLSTM
from clozelab.models.layout import Layout
from clozelab.objectives.objective import Objective
from clozelab.planning.arms import synthetic_corpus
from clozelab.planning.shapes import (
    MAX_STEP_SECONDS,
    Question,
    Request,
    Speed,
    adapt_encoder,
)
from clozelab.tasks.batches import Batch
from clozelab.tasks.classes import ClassTarget
from clozelab.tasks.sequences import TokenSequences, offsets_of
from clozelab.tasks.texts import TextSplit, TextUnit
from clozelab.text.plain import JsonObject
from clozelab.training.measuring import TOKENS_KEY
from clozelab.training.runtime import matmul_ceiling
from clozelab.training.stopping import die_with_parent
from clozelab.training.trainer import Hardware, build_trainer, choose_hardware

SECONDS = 0.8  # of each measurement; passes without an update get half of it
BUSY_SHARE = 0.1  # of its wall time that a measurement may have waited for a core
TYPICAL_SHARE = 0.4  # of the speed of a matrix product: what training a large model reaches
ceiling = cache(matmul_ceiling)
WARM_UP_TICKS = 3  # left out: the first steps allocate memory and compile kernels
# so short a step takes notably longer where each one is logged
QUICK_STEP_SECONDS = 0.02
STEPS_A_TICK = 10
# steps timed at least; a large model's first step is hardly slower than its second
MIN_TICKS = 4
SLOW_TICKS = 2
GPU_TICKS = 6  # more of them: one may compile kernels for a shape that was not there before
MAX_ANSWER_SECONDS = 600.0  # for one shape, compilation included
# of the made-up corpus; sentences a document
NUM_DOCUMENTS = 400
NUM_SENTENCES = 40
# of the made-up task: batches an epoch, steps at most
MADE_UP_BATCHES = 200
MADE_UP_STEPS = 100_000


def measure(
    requests: Sequence[Request], at_once: int, threads: int, *, compiles: bool
) -> Iterator[Speed]:
    """Time each request in `at_once` processes side by side; the mean of what they measure.

    A shape that ends its process (out of memory) is a problem of its own; the others are timed by
    new processes.
    """
    workers = start_workers(at_once, threads)
    try:
        for request in requests:
            futures = [workers.submit(time_shape, request, compiles) for _ in range(at_once)]
            deadline = time.monotonic() + MAX_ANSWER_SECONDS
            try:
                yield _mean([future.result(deadline - time.monotonic()) for future in futures])
            except BrokenProcessPool:
                yield Speed(0.0, problem="its process was killed")
                workers = start_workers(at_once, threads)
            except TimeoutError:
                yield Speed(0.0, problem=f"not timed within {MAX_ANSWER_SECONDS:.0f} s")
                for process in multiprocessing.active_children():
                    process.kill()
                workers = start_workers(at_once, threads)
    finally:
        for process in multiprocessing.active_children():
            process.kill()
        workers.shutdown()


def start_workers(at_once: int, threads: int) -> Executor:
    """Processes that time shapes; none begins before all have imported what they need."""
    # torch reads it when it is imported
    os.environ["OMP_NUM_THREADS"] = str(threads)
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(at_once, context, _begin_worker, (context.Barrier(at_once),))


def _begin_worker(barrier: Barrier) -> None:
    die_with_parent()
    # What libraries say there is not for the terminal.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    barrier.wait()


def _mean(speeds: Sequence[Speed]) -> Speed:
    """Of what several processes measured; a problem of one is a problem of all."""
    for speed in speeds:
        if speed.problem:
            return speed
    return Speed(
        fmean(speed.tokens_per_second for speed in speeds),
        is_estimated=any(speed.is_estimated for speed in speeds),
        is_busy=any(speed.is_busy for speed in speeds),
        is_uncompiled=any(speed.is_uncompiled for speed in speeds),
    )


def time_shape(request: Request, compiles: bool = False) -> Speed:
    """In a timing process: the speed of one shape, or what is the matter with it.

    `compiles`: pre-training on a GPU is compiled where a run compiles it.
    """
    try:
        return _timed(request, choose_hardware(**request.question["hardware"]), compiles)
    except Exception as error:  # whatever it is: the other shapes can still be timed
        return Speed(0.0, problem=" ".join(f"{type(error).__name__}: {error}".split()))


def _timed(request: Request, hardware: Hardware, compiles: bool) -> Speed:
    ceiling_seconds = request.step_flops / ceiling(hardware.precision, hardware.device)
    step_seconds = ceiling_seconds / TYPICAL_SHARE
    if step_seconds > MAX_STEP_SECONDS:
        return Speed(request.step_tokens / step_seconds, is_estimated=True)
    question: Question = {
        **request.question,
        "seconds": SECONDS,
        "ticks": MIN_TICKS,
        "steps_a_tick": 1,
    }
    # Two steps do not fit into SECONDS: a few ticks, however long they take.
    if 2 * step_seconds > SECONDS:
        question |= {"ticks": SLOW_TICKS, "seconds": (SLOW_TICKS + 0.2) * step_seconds}
    elif step_seconds < QUICK_STEP_SECONDS:
        question |= {"steps_a_tick": STEPS_A_TICK}
    is_gpu = hardware.accelerator == "gpu"
    is_uncompiled = False
    if is_gpu:
        question["ticks"] += GPU_TICKS
        if question["kind"] == "pretrain" and hardware.compiles_pretraining and not compiles:
            hardware = replace(hardware, compile="false")
            is_uncompiled = True

    started = time.perf_counter()
    waited = waited_seconds()
    ticks = TICKS_OF[question["kind"]](question, hardware)
    rate = _rate(ticks, is_gpu=is_gpu)
    busy_seconds = (time.perf_counter() - started) * torch.get_num_threads()
    is_busy = waited_seconds() - waited > BUSY_SHARE * busy_seconds
    return Speed(rate, is_busy=is_busy, is_uncompiled=is_uncompiled)


def waited_seconds() -> float:
    """What all threads of this process have waited for a core so far.

    It is 0 where the system does not say.
    """
    # schedstat: nanoseconds on a core, nanoseconds waited for one, time slices
    total = 0
    try:
        for task in Path("/proc/self/task").iterdir():
            total += int((task / "schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return total / 1e9


class Tick(NamedTuple):
    """The end of a step: tokens so far, and both clocks in seconds."""

    tokens: int
    wall: float
    processor: float

    @classmethod
    def now(cls, tokens: int) -> Tick:
        return cls(tokens, time.perf_counter(), time.process_time())


class StepClock(DummyLogger):
    """Keeps a Tick of every log line."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks: list[Tick] = []

    def log_metrics(self, metrics: Mapping[str, float], *_: object, **__: object) -> None:
        if TOKENS_KEY in metrics:
            self.ticks.append(Tick.now(int(metrics[TOKENS_KEY])))


def _rate(ticks: Sequence[Tick], *, is_gpu: bool) -> float:
    """Tokens a second between the end of the warm-up and the last step.

    On a GPU it is the median: what a tick compiles is no part of it.
    """
    # Of very slow steps there may be two ticks in all.
    ticks = ticks[min(WARM_UP_TICKS, len(ticks) - 2) :]
    if is_gpu:
        rates = [
            (later.tokens - tick.tokens) / (later.wall - tick.wall)
            for tick, later in pairwise(ticks)
        ]
        return median(rates)
    first = ticks[0]
    last = ticks[-1]
    seconds = last.wall - first.wall
    processor = last.processor - first.processor
    # Of one thread the clock that saw more speed counts.
    if torch.get_num_threads() == 1 and processor > 0.0:
        seconds = min(seconds, processor)
    return (last.tokens - first.tokens) / seconds


def pretraining_ticks(request: Question, hardware: Hardware) -> list[Tick]:
    """Train one phase's steps on the made-up corpus for as long as the request says."""
    # here: who asks for speeds trains nothing
    from clozelab.modules.pretraining import PretrainingModule

    objective = Objective(**build("objective", request["objective"]))
    config = EncoderConfig(**request["model"])
    phase = {**request["phase"], "steps": 1_000_000}
    text = synthetic_corpus(config.vocab_size, NUM_DOCUMENTS, NUM_SENTENCES)
    # what the data module asks of a tokenizer: no text is read
    special_ids = {"pad_id": 0, "unk_id": 1, "cls_id": 2, "sep_id": 3, "mask_id": 4}
    tokenizer = SimpleNamespace(
        **special_ids,
        vocab_size=config.vocab_size,
        pair_separators=1,
        no_pairs="",
        has_token_types=True,
        undrawn_ids=(),
        encode_batch=None,
        continues=lambda: np.zeros(config.vocab_size, dtype=np.bool_),
    )
    prepared: Any = SimpleNamespace(
        tokenizer=tokenizer, train=text.train, validation=text.validation
    )
    data = CorpusDataModule(
        prepared,
        [objective],
        phases=[phase],
        seed=1,
        validation_instances=1,
        validation_seq_length=phase["seq_length"],
        num_workers=0,
    )
    data.setup("fit")
    module = PretrainingModule(
        Encoder(config),
        [objective],
        matmul_ceiling=0.0,
        **_training_options(request, phase["steps"]),
    )
    adapt_encoder(module.model.encoder, request)
    module.choose_graphs(hardware.cuda_graphs)
    if hardware.compiles_pretraining:
        module.model.compile_parts(whole=hardware.compile == "whole")
    return _fit(module, data, hardware, request)


def _training_options(request: Question, total_steps: int) -> JsonObject:
    """The settings of training that a module of any stage gets."""
    return {
        "total_steps": total_steps,
        "optimizer_factory": build("optimizer", request["optimizer"]),
        "schedule_factory": build("schedule", request["schedule"]),
        "gradient_clip_norm": 1.0,
        "seed": 1,
        "log_interval_steps": request["steps_a_tick"],
    }


def _fit(
    module: LightningModule, data: LightningDataModule, hardware: Hardware, request: Question
) -> list[Tick]:
    """The ticks of a training that goes on for `seconds`, and for `ticks` at least."""
    clock = StepClock()
    steps_a_tick = request["steps_a_tick"]
    options: dict[str, object] = {
        "max_time": timedelta(seconds=request["seconds"]),
        "min_steps": request["ticks"] * steps_a_tick,
        "min_epochs": 0,  # with least steps Lightning would want a whole epoch, too
        "accelerator": hardware.accelerator,
    }
    trainer = build_trainer(
        hardware,
        max_steps=1_000_000,
        validation_interval_steps=None,
        callbacks=[],
        loggers=[clock],
        folder=Path(),
        log_interval_steps=steps_a_tick,
        **options,
    )
    trainer.fit(module, datamodule=data)
    return clock.ticks


class SyntheticTask(LightningDataModule):
    """Training batches of random sequences as a task has them.

    They are of unequal lengths, similar ones in a batch.
    """

    def __init__(self, request: Question, vocab_size: int, unit: TextUnit) -> None:
        super().__init__()
        batch_size = request["batch_size"]
        rng = np.random.default_rng(0)
        lengths = _lengths(
            rng, request["tokens_each"], batch_size * MADE_UP_BATCHES, request["max_tokens"]
        )
        ids = rng.integers(min(5, vocab_size - 1), vocab_size, lengths.sum()).astype(np.int32)
        all_sequences = slice(0, len(lengths))
        sequences = TokenSequences(ids, offsets_of(lengths), lengths.astype(np.int32))
        labels = np.zeros(len(lengths), dtype=np.int64)
        plan = TrainingPlan(batch_size, 1.0, 1, None, seed=1, num_workers=0)

        def loader_position(step: int) -> tuple[int, int, slice]:
            epoch, batch = divmod(step, MADE_UP_BATCHES)
            return epoch, batch, all_sequences

        # What TrainingBatches reads of a task's data module.
        self.data: Any = SimpleNamespace(
            train_sequences=sequences,
            train_targets={"labels": labels},
            unit=unit,
            plan=plan,
            loader_position=loader_position,
        )

    def train_dataloader(self) -> DataLoader[Batch]:
        return DataLoader(TrainingBatches(self.data, range(MADE_UP_STEPS), 0, 1), batch_size=None)


def _lengths(rng: np.random.Generator, mean: float, number: int, longest: int) -> NDArray[np.int64]:
    """Lengths in tokens that vary as those of sentences do."""
    lengths = rng.normal(mean, mean / 5, number).round().astype(np.int64)
    return np.clip(lengths, 4, max(4, longest))


def finetuning_ticks(request: Question, hardware: Hardware) -> list[Tick]:
    """Train a classifier on made-up sequences, through a run's module, loader and trainer."""
    # here: who asks for speeds trains nothing
    from clozelab.modules.finetuning import FineTuning

    config = EncoderConfig(**request["model"])
    no_ids = np.zeros(0, dtype=np.int32)
    no_sequences = TokenSequences(no_ids, np.zeros(1, np.int64), no_ids)
    nothing = TextSplit(sequences=no_sequences, ids=np.zeros(0, np.str_), labels=np.zeros(0))
    unit = TextUnit(text_columns=["text"], label_column="label")
    target = ClassTarget(labels=["no", "yes"])
    encoder = Encoder(config)
    module = FineTuning(
        encoder=encoder,
        unit=unit,
        target=target,
        head=request["head"],
        bilstm_num_layers=1,
        bilstm_hidden_size=None,
        bilstm_dropout_prob=0.0,
        validation=nothing,
        metric="validation/accuracy",
        keep_best_weights=False,
        **_training_options(request, MADE_UP_STEPS),
    )
    adapt_encoder(encoder, request)
    return _fit(module, SyntheticTask(request, config.vocab_size, unit), hardware, request)


def feature_ticks(request: Question, hardware: Hardware) -> list[Tick]:
    """Train a BiLSTM on the words of made-up features, without a trainer around it.

    Features are in fp32 on every device.
    """
    device = hardware.device
    sizes = request["bilstm"]
    # Letters: T words of a batch, F size of a feature, all sentences of equal length.
    lengths = np.full(request["batch_size"], request["words_each"], dtype=np.int64)
    num_words = int(lengths.sum())
    features = torch.randn(num_words, sizes["input_size"], device=device)  # [T, F]
    lstm = BiLSTM(sizes["input_size"], sizes["hidden_size"], sizes["num_layers"], 0.0).to(device)
    optimizer = build("optimizer", request["optimizer"])(list(lstm.named_parameters()))

    def train() -> None:
        lstm(features, Layout.ragged(lengths)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return _repeated(train, num_words, request, device)


def forward_ticks(request: Question, hardware: Hardware) -> list[Tick]:
    """The forward passes of an evaluation's batches, without a trainer around them.

    They get half of the time.
    """
    device = hardware.device
    config = EncoderConfig(**request["model"])
    encoder = Encoder(config).to(device)
    # A batch of made-up sequences as one stream of T tokens.
    rng = np.random.default_rng(0)
    mean = request["tokens_each"]
    number = max(1, round(request["evaluation_tokens"] / mean))
    lengths = _lengths(rng, mean, number, request["max_tokens"])
    num_tokens = int(lengths.sum())
    ids = torch.from_numpy(rng.integers(5, config.vocab_size, num_tokens)).to(device)
    each = [np.arange(length) for length in lengths]
    positions = torch.from_numpy(np.concatenate(each)).to(device)
    is_half = hardware.precision == "bf16-mixed"

    def forward() -> None:
        layout = Layout.ragged(lengths)
        with torch.autocast(device.type, torch.bfloat16, enabled=is_half), torch.no_grad():
            encoder(ids, torch.zeros_like(ids), positions, layout)

    half: Question = {**request, "seconds": request["seconds"] / 2}
    return _repeated(forward, num_tokens, half, device)


def _repeated(
    step: Callable[[], None], tokens: int, request: Question, device: torch.device
) -> list[Tick]:
    """The ticks of a step that is repeated as long as the request says."""
    ticks: list[Tick] = []
    end = time.process_time() + request["seconds"]
    while time.process_time() < end or len(ticks) < request["ticks"]:
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        ticks.append(Tick.now((len(ticks) + 1) * tokens))
    return ticks


TICKS_OF: Mapping[str, Callable[[Question, Hardware], list[Tick]]] = {
    "pretrain": pretraining_ticks,
    "finetune": finetuning_ticks,
    "features": feature_ticks,
    "forward": forward_ticks,
}
