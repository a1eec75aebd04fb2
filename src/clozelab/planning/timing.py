"""Speeds: measured once a shape and machine and kept in the cache; `python -m clozelab.planning.timing` times them.

As many processes are timed side by side as jobs will run, because cores share their memory and caches. A process with
one thread is timed by processor time, which other work of the machine leaves as it is.

Pre-training goes through the modules, loaders and trainer of a run. Fine-tuning is forward, backward and update on
inputs of the task's length; on a frozen encoder's features the BiLSTM alone is trained.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas
import torch
from lightning.pytorch.loggers.logger import DummyLogger
from torch import nn

from clozelab.corpus.files import digest
from clozelab.datamodules.corpus import CorpusDataModule
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.models.heads import BiLSTM, SequenceClassificationHead
from clozelab.models.layout import Layout
from clozelab.objectives.objective import Objective
from clozelab.planning.jobs import Request, Speed, made_up_corpus
from clozelab.runs.record import write_json
from clozelab.targets import build
from clozelab.training.host import host_facts
from clozelab.training.measuring import TOKENS_KEY
from clozelab.training.runtime import matmul_ceiling
from clozelab.training.stopping import die_with_parent
from clozelab.training.trainer import Hardware, build_trainer, choose_hardware

HOST = ("cpu", "cores", "gpus")  # what a speed depends on of a machine
TIMING_VERSION = 1  # raised when what is timed changes
SECONDS = 1.5  # of each measurement
MAX_STEP_SECONDS = 30.0  # shapes whose steps take longer, by their FLOPs, are not timed
KEPT = ("tokens_per_second", "forward")  # of a speed, in the cache
WORKER = "clozelab.planning.timing"
ANSWER = "answer: "  # before each line of a process that is one; anything else is a library's talk
USUAL_SHARE = 0.4  # of the speed of a matrix product: what training a large model reaches
ceiling = cache(matmul_ceiling)
WARM_UP_STEPS = 3  # left out: the first steps allocate memory and compile kernels
MIN_TICKS, SLOW_TICKS = 4, 2  # steps timed at least; a large model's first step is hardly slower than its second
MAX_SECONDS = 180.0  # of one shape on a machine that is much slower than its matrix products, or busy
NUM_DOCUMENTS, NUM_SENTENCES = 400, 40  # of the made-up corpus; sentences a document


def measured_speeds(
    requests: Sequence[Request],
    cache_dir: Path,
    *,
    at_once: int,
    threads: int,
    measure: bool,
    say: Callable[[str], None] = lambda _: None,
) -> list[Speed | None]:
    """The speed of each request, kept as soon as it is there; None for one not in the cache where none is measured."""
    facts = host_facts()
    machine = {"version": TIMING_VERSION, **{key: facts["host"][key] for key in HOST}}
    machine |= {"torch": facts["versions"].get("torch"), "at_once": at_once, "threads": threads}
    keys = [digest({"machine": machine, "request": dict(one.question)})[:16] for one in requests]
    paths = [cache_dir / "speeds" / f"{key}.json" for key in keys]
    found: dict[Path, Speed | None] = dict.fromkeys(paths)
    for path in found:
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            found[path] = Speed(**{key: saved[key] for key in KEPT})
        except (OSError, ValueError, KeyError, TypeError):
            continue
    missing = {path: one for path, one in zip(paths, requests, strict=True) if found[path] is None}
    if missing and measure:
        answers = iter(_measure(list(missing.values()), at_once, threads))
        for number, (path, one) in enumerate(missing.items(), 1):
            say(f"timing {number} of {len(missing)}: {one.title}")
            speed = found[path] = next(answers)
            if not speed.problem and not speed.is_estimated:
                kept = {key: getattr(speed, key) for key in KEPT}
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, {**kept, "machine": machine, "request": dict(one.question)})
    return [found[path] for path in paths]


def _measure(requests: Sequence[Request], at_once: int, threads: int) -> Iterator[Speed]:
    """Time all requests in `at_once` processes side by side. A shape that ends its process (out of memory) is a problem
    of its own; the others are timed by new processes."""
    left = list(requests)
    while left:
        for speed in _until_one_dies(list(left), at_once, threads):
            left.pop(0)
            yield speed


def _until_one_dies(requests: Sequence[Request], at_once: int, threads: int) -> Iterator[Speed]:
    limits = {"seconds": SECONDS, "max_step_seconds": MAX_STEP_SECONDS}
    asked = json.dumps([{**limits, "step_flops": one.step_flops, **one.question} for one in requests])
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with ExitStack() as stack:
        workers = []
        for _ in range(at_once):
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))  # what two say at once would run together
            worker = subprocess.Popen([sys.executable, "-m", WORKER], stderr=errors, **pipes)
            stack.callback(worker.wait)
            stack.callback(worker.kill)
            worker.stdin.write(asked)  # type: ignore[union-attr]
            worker.stdin.close()  # type: ignore[union-attr]
            workers.append((worker, errors))
        for one in requests:
            answers = []
            for worker, errors in workers:
                line = next((line for line in worker.stdout or () if line.startswith(ANSWER)), None)
                if line is None:
                    errors.seek(0)
                    yield Speed(0.0, problem=(errors.read().strip().splitlines() or ["its process was killed"])[-1])
                    return
                answers.append(json.loads(line.removeprefix(ANSWER)))
            yield _speed(answers, one, threads)


def _speed(answers: Sequence[Mapping[str, Any]], request: Request, threads: int) -> Speed:
    """The mean of what the processes found."""
    if problems := [str(one["problem"]) for one in answers if "problem" in one]:
        return Speed(0.0, problem=problems[0])
    if estimates := [float(one["step_seconds"]) for one in answers if "step_seconds" in one]:
        return Speed(request.step_tokens / max(estimates), is_estimated=True)
    mean = pandas.DataFrame(answers).mean()
    if threads > 1:
        return Speed(mean["wall"], forward=mean.get("forward_wall"))
    forward = max(mean["forward_wall"], mean["forward_processor"]) if "forward_wall" in mean else None
    return Speed(max(mean["wall"], mean["processor"]), forward=forward)


def main() -> int:
    """Answer every request; returns the exit status."""
    die_with_parent()
    for request in json.load(sys.stdin):
        try:
            found = answer(request, choose_hardware(**request["hardware"]))
        except Exception as error:  # whatever it is: the other shapes can still be timed
            found = {"problem": " ".join(f"{type(error).__name__}: {error}".split())}
        print(f"{ANSWER}{json.dumps(found)}", flush=True)
    return 0


def answer(request: dict[str, Any], hardware: Hardware) -> dict[str, Any]:
    """The speed of one shape, or how long its step would take if that is too long."""
    step_seconds = request["step_flops"] / (USUAL_SHARE * ceiling(hardware.precision, hardware.device))
    if step_seconds > request["max_step_seconds"]:
        return {"step_seconds": step_seconds}
    is_slow = 2 * step_seconds > request["seconds"]
    request |= {"ticks": SLOW_TICKS, "seconds": (SLOW_TICKS + 0.2) * step_seconds} if is_slow else {"ticks": MIN_TICKS}
    if request["kind"] == "pretrain":
        return speeds(pretraining_ticks(request, hardware))
    found = speeds(finetuning_ticks(request, hardware))
    forward = speeds(finetuning_ticks(request, hardware, is_evaluation=True))
    return found | {f"forward_{clock}": value for clock, value in forward.items()}


class Tick(NamedTuple):
    """The end of a step: tokens so far, and both clocks in seconds."""

    tokens: int
    wall: float
    processor: float


class StepClock(DummyLogger):
    """Keeps a Tick of every log line; with a log interval of 1, of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks: list[Tick] = []

    def log_metrics(self, metrics: Mapping[str, Any], *_: Any, **__: Any) -> None:
        if TOKENS_KEY in metrics:
            self.ticks.append(Tick(int(metrics[TOKENS_KEY]), time.perf_counter(), time.process_time()))


def speeds(ticks: Sequence[Tick]) -> dict[str, float]:
    """Tokens a second between the end of the warm-up and the last step."""
    first, last = ticks[min(WARM_UP_STEPS, len(ticks) - 2)], ticks[-1]
    tokens, wall, processor = (after - before for before, after in zip(first, last, strict=True))
    return {"wall": tokens / wall, "processor": tokens / (processor if processor > 0 else wall)}


def pretraining_ticks(request: dict[str, Any], hardware: Hardware) -> list[Tick]:
    """Train one phase's steps on the made-up corpus for as long as the request says."""
    from clozelab.modules.pretraining import PretrainingModule  # here: who asks for speeds trains nothing

    objective = Objective(**build("objective", request["objective"]))
    config = EncoderConfig(**request["model"])
    phase = request["phase"] | {"steps": 1_000_000}
    text = made_up_corpus(config.vocab_size, NUM_DOCUMENTS, NUM_SENTENCES)
    ids = SimpleNamespace(pad_id=0, unk_id=1, cls_id=2, sep_id=3, mask_id=4, vocab_size=config.vocab_size)
    ids.pair_separators, ids.has_token_types, ids.undrawn_ids = 1, True, ()
    ids.continues = lambda: np.zeros(config.vocab_size, dtype=np.bool_)
    prepared: Any = SimpleNamespace(tokenizer=ids, train=text.train, validation=text.validation)
    data = CorpusDataModule(
        prepared, [objective], phases=[phase], seed=1, validation_instances=1,
        validation_seq_length=phase["seq_length"], num_workers=0,
    )  # fmt: skip
    data.setup("fit")
    module = PretrainingModule(
        Encoder(config), [objective],
        optimizer_factory=build("optimizer", request["optimizer"]),
        schedule_factory=build("schedule", request["schedule"]),
        total_steps=phase["steps"], gradient_clip_norm=1.0, seed=1, log_interval_steps=1, matmul_ceiling=0.0,
    )  # fmt: skip
    clock = StepClock()
    started = time.perf_counter()
    limit: timedelta = timedelta(seconds=request["seconds"])
    options: dict[str, Any] = {"max_time": limit, "accelerator": hardware.accelerator}
    while len(clock.ticks) < request["ticks"]:
        trainer = build_trainer(
            hardware, max_steps=phase["steps"], validation_interval_steps=None, callbacks=[], loggers=[clock],
            folder=Path(), log_interval_steps=1, **options,
        )  # fmt: skip
        trainer.fit(module, datamodule=data)
        options["max_time"] = limit = 4 * limit  # a large model: some steps at least
        if len(clock.ticks) < request["ticks"] and time.perf_counter() - started > MAX_SECONDS:
            raise ValueError(f"not even {request['ticks']} steps in {MAX_SECONDS:.0f} s")
    return clock.ticks


def finetuning_ticks(request: dict[str, Any], hardware: Hardware, *, is_evaluation: bool = False) -> list[Tick]:
    """Forward, backward and update on one batch of inputs of the request's mean length; or a larger one's forward.

    On a frozen encoder's features (in fp32 on every device) the BiLSTM is trained on words; the encoder only passes."""
    config, device = EncoderConfig(**request["model"]), hardware.device
    is_frozen, rng = request["kind"] == "features", np.random.default_rng(0)
    encoder = None if is_frozen and not is_evaluation else Encoder(config).to(device)
    sizes = [config.hidden_size, config.hidden_size, 1] if request["head"] == "bilstm" and not is_frozen else []
    if encoder is None:
        sizes = [request["bilstm"][key] for key in ("input_size", "hidden_size", "num_layers")]
        lengths = np.full(request["batch_size"], request["words_each"], dtype=np.int64)
        features = torch.randn(int(lengths.sum()), sizes[0], device=device)
    else:
        mean = request["tokens_each"]
        number = max(1, round(request["evaluation_tokens"] / mean)) if is_evaluation else request["batch_size"]
        lengths = np.clip(rng.normal(mean, mean / 5, number).round().astype(np.int64), 4, request["max_tokens"])
        ids = torch.from_numpy(rng.integers(5, config.vocab_size, lengths.sum())).to(device)
        positions = torch.from_numpy(np.concatenate([np.arange(length) for length in lengths])).to(device)
    lstm = BiLSTM(sizes[0], sizes[1], sizes[2], 0.0).to(device) if sizes else None
    head = SequenceClassificationHead(config, 2, 2 * sizes[1] if sizes else None).to(device)
    trained = nn.ModuleList([part for part in (encoder, lstm, head) if part is not None])
    optimizer = build("optimizer", request["optimizer"])(list(trained.named_parameters()))
    half = torch.autocast(device.type, torch.bfloat16, enabled=hardware.precision == "bf16-mixed" and not is_frozen)
    ticks: list[Tick] = []
    end = time.process_time() + request["seconds"]
    while time.process_time() < end or len(ticks) < request["ticks"]:
        layout = Layout.ragged(lengths)
        with half, torch.set_grad_enabled(not is_evaluation):
            hidden = encoder(ids, torch.zeros_like(ids), positions, layout).sequence_output if encoder else features
            hidden = lstm(hidden, layout) if lstm else hidden
        if not is_evaluation:
            logits = head(hidden.float())
            nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64, device=device)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize()
        ticks.append(Tick((len(ticks) + 1) * int(lengths.sum()), time.perf_counter(), time.process_time()))
    return ticks


if __name__ == "__main__":
    sys.exit(main())
