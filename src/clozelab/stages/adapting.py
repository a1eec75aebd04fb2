"""What a pre-training run adapts to its machine before the first step, and remembers in run.json.

A resumed run reads it there, so that it goes on with the very same kernels and micro-batches, whatever the machine or
the cache would say today.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from clozelab.datamodules.corpus import CorpusDataModule
from clozelab.ledger.run import Run
from clozelab.models.compiling import compile_encoder
from clozelab.modules.pretraining import PretrainingModule
from clozelab.training.calibration import calibrate
from clozelab.training.fitting import largest_that_fits, try_step
from clozelab.training.trainer import Hardware

log = logging.getLogger(__name__)
MICRO_BATCH = ("as_configured", "auto")


def check_adapting(cfg: DictConfig, hardware: Hardware) -> None:
    """ValueError for settings that contradict each other or this hardware."""
    if cfg.trainer.micro_batch not in MICRO_BATCH:
        raise ValueError(f"trainer.micro_batch is {cfg.trainer.micro_batch!r}: choose one of {', '.join(MICRO_BATCH)}")
    if cfg.trainer.calibrate and hardware.deterministic:
        raise ValueError("trainer.calibrate=true chooses by timing, which trainer.deterministic=true rules out")
    if cfg.trainer.calibrate and (hardware.accelerator != "cpu" or hardware.world_size > 1):
        raise ValueError("trainer.calibrate=true is for one process on a CPU: leave it false here")
    if cfg.trainer.gradient_checkpointing and hardware.strategy == "fsdp":
        raise ValueError("trainer.gradient_checkpointing=true does not work with trainer=fsdp yet: choose one of them")


def adapt(cfg: DictConfig, run: Run, hardware: Hardware, module: PretrainingModule, data: CorpusDataModule) -> None:
    """Choose kernels and micro-batch sizes, or read what this run chose when it began; record them."""
    encoder, known = module.model.encoder, run.state["facts"]
    encoder.gradient_checkpointing = cfg.trainer.gradient_checkpointing
    sizes = known.get("micro_batch_sizes") or _micro_batch_sizes(cfg, hardware, module, data)
    data.micro_batch_sizes = sizes
    kernels = known.get("kernels") or _kernels(cfg, hardware, module, data)
    encoder.attention_kernels = {int(width): name for width, name in kernels["attention_kernels"].items()}
    for head in module.model.heads.values():
        if hasattr(head, "chunk_logits"):
            head.chunk_logits = kernels["chunk_logits"]
    if kernels["compile"]:
        compile_encoder(encoder, dynamic=False)
    run.record(kernels=kernels, micro_batch_sizes=sizes)


def _kernels(cfg: DictConfig, hardware: Hardware, module: PretrainingModule, data: CorpusDataModule) -> dict[str, Any]:
    if not cfg.trainer.calibrate:
        return {"attention_kernels": {}, "chunk_logits": None, "compile": hardware.compiles_pretraining}
    steps: Counter[int] = Counter()
    for phase in data.phases:
        steps[phase.seq_length] += phase.steps * -(-phase.global_batch_size // phase.micro_batch_size)
    return calibrate(
        module.model.encoder.config,
        precision=hardware.precision,
        rows={phase.seq_length: phase.micro_batch_size for phase in data.phases},
        steps_of_rows=steps,
        predicted_fraction=module.model.objective.predicted_fraction,
        compile=hardware.compile,
        folder=Path(cfg.cache_dir) / "calibration",
    )


def _micro_batch_sizes(
    cfg: DictConfig, hardware: Hardware, module: PretrainingModule, data: CorpusDataModule
) -> list[int]:
    """As configured, or the largest of its halves that fits; several devices would have to agree, and do not."""
    configured = data.micro_batch_sizes
    if cfg.trainer.micro_batch != "auto" or hardware.accelerator != "gpu":
        return configured
    if hardware.world_size > 1:
        log.warning("trainer.micro_batch=auto is for one device: micro-batches stay as configured")
        return configured
    found = []
    for number, size in enumerate(configured):
        step = sum(phase.steps for phase in data.phases[:number])
        wanted = min(size, data.phases[number].global_batch_size)

        def attempt(rows: int, number: int = number, step: int = step) -> None:
            data.phases[number] = replace(data.phases[number], micro_batch_size=rows)
            batch = data.train_stream(step, 0, 1).micro_batches(step)[0]
            try_step(module.model, batch, hardware.device, hardware.precision)

        found.append(largest_that_fits(attempt, wanted))
        data.phases[number] = replace(data.phases[number], micro_batch_size=size)
    if found != configured:
        log.info("micro-batches of %s rows fit, of the configured %s", found, configured)
    return found
