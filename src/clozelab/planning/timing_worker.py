"""`python -m clozelab.planning.timing_worker`: times a few training steps on made-up text.

Reads requests as JSON from standard input and writes as many answers, each as soon as it is known: {"wall": tokens/s,
"processor": tokens a second of processor time}, {"step_seconds": ...} where a step would take too long to be timed, or
{"problem": ...}. Pre-training goes through the same modules, loaders and trainer as a run. Fine-tuning is timed as
forward, backward and update of encoder and head on inputs of the length that the task has; on a frozen encoder's
features it is the BiLSTM that is trained, and the encoder only passes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from hydra.utils import instantiate
from lightning.pytorch.loggers.logger import DummyLogger
from torch import nn

from clozelab.datamodules.corpus import CorpusDataModule
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.models.heads import BiLSTM, SequenceClassificationHead
from clozelab.models.layout import Layout
from clozelab.modules.pretraining import PretrainingModule
from clozelab.objectives.objective import Objective
from clozelab.planning.jobs import made_up_corpus
from clozelab.planning.tasks import ANSWER, USUAL_SHARE
from clozelab.training.measuring import TOKENS_KEY
from clozelab.training.runtime import matmul_ceiling
from clozelab.training.trainer import Hardware, build_trainer, choose_hardware

WARM_UP_STEPS = 3
"""Left out: the first steps allocate memory and compile kernels."""
MIN_TICKS, SLOW_TICKS = 4, 2
"""Steps that are timed at least; the first step of a large model is hardly slower than its second."""
MAX_SECONDS = 180.0
"""Of one shape on a machine that is much slower than its matrix products, or busy."""
NUM_DOCUMENTS, NUM_SENTENCES = 400, 40
"""Of the made-up corpus; sentences a document."""


def main() -> int:
    """Answer every request; returns the exit status."""
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

    @classmethod
    def now(cls, tokens: int) -> Tick:
        return cls(tokens, time.perf_counter(), time.process_time())


class StepClock(DummyLogger):
    """Keeps a Tick of every log line; with a log interval of 1, of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.ticks: list[Tick] = []

    def log_metrics(self, metrics: Mapping[str, Any], *_: Any, **__: Any) -> None:
        if TOKENS_KEY in metrics:
            self.ticks.append(Tick.now(int(metrics[TOKENS_KEY])))


@cache
def ceiling(precision: str, device: torch.device) -> float:
    """FLOP/s of a matrix product, measured once."""
    return matmul_ceiling(precision, device)


def speeds(ticks: Sequence[Tick]) -> dict[str, float]:
    """Tokens a second between the end of the warm-up and the last step."""
    first, last = ticks[min(WARM_UP_STEPS, len(ticks) - 2)], ticks[-1]
    tokens, wall, processor = (after - before for before, after in zip(first, last, strict=True))
    return {"wall": tokens / wall, "processor": tokens / (processor if processor > 0 else wall)}


def pretraining_ticks(request: dict[str, Any], hardware: Hardware) -> list[Tick]:
    """Train one phase's steps on the made-up corpus for as long as the request says."""
    objective = Objective(**instantiate(request["objective"], _convert_="all"))
    config = EncoderConfig(**request["model"])
    phase = request["phase"] | {"steps": 1_000_000}
    text = made_up_corpus(config.vocab_size, NUM_DOCUMENTS, NUM_SENTENCES)
    ids = SimpleNamespace(pad_id=0, unk_id=1, cls_id=2, sep_id=3, mask_id=4, vocab_size=config.vocab_size)
    ids.pair_separators, ids.has_token_types, ids.undrawn_ids = 1, True, ()
    prepared: Any = SimpleNamespace(tokenizer=ids, train=text.train, validation=text.validation)
    data = CorpusDataModule(
        prepared, [objective], phases=[phase], seed=1, validation_instances=1,
        validation_seq_length=phase["seq_length"], num_workers=0,
    )  # fmt: skip
    data.setup("fit")
    module = PretrainingModule(
        Encoder(config), [objective],
        optimizer_factory=instantiate(request["optimizer"], _convert_="all"),
        schedule_factory=instantiate(request["schedule"], _convert_="all"),
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

    On a frozen encoder's features (in fp32 on every device) the BiLSTM is trained on words; the encoder only passes.
    """
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
    optimizer = instantiate(request["optimizer"], _convert_="all")(list(trained.named_parameters()))
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
        ticks.append(Tick.now((len(ticks) + 1) * int(lengths.sum())))
    return ticks


if __name__ == "__main__":
    sys.exit(main())
