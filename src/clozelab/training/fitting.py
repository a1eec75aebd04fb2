"""The largest micro-batch that a device can hold, found by trying before training starts.

Unusual: the trial holds what a real step holds (weights, gradients, and a stand-in for the optimizer's moments), but
changes nothing: no update is made, and the loss of a step is normalised by the whole global batch, so cutting it into
smaller pieces changes no result beyond the draws of dropout.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from clozelab.models.compiling import uncompiled

log = logging.getLogger(__name__)

MOMENTS = 2
"""Tensors of a parameter's size that Adam keeps."""


def largest_that_fits(attempt: Callable[[int], None], wanted: int) -> int:
    """`wanted`, or its first half, quarter... for which `attempt` does not run out of device memory.

    Raises:
        ValueError: not even one row fits.
    """
    size = wanted
    while True:
        try:
            attempt(size)
            return size
        except torch.OutOfMemoryError:
            pass
        # Outside the except block: the exception holds the failed attempt's tensors.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if size == 1:
            raise ValueError(
                "one row does not fit into the device's memory: try trainer.gradient_checkpointing=true,"
                " trainer.precision=bf16-mixed, trainer=fsdp over several devices, or shorter rows"
            )
        log.info("a micro-batch of %d rows does not fit into the device's memory; trying %d", size, size // 2)
        size //= 2


def try_step(model: nn.Module, batch: dict[str, Any], device: torch.device, precision: str) -> None:
    """Forward and backward of one micro-batch with everything in memory that an optimizer step keeps there."""
    model.to(device).train()
    moments = [torch.empty_like(p) for p in model.parameters() if p.requires_grad for _ in range(MOMENTS)]
    moved = {key: value.to(device) if hasattr(value, "to") else value for key, value in batch.items()}
    with uncompiled(), torch.autocast(device.type, torch.bfloat16, enabled=precision.startswith("bf16")):
        loss = sum(term.loss_sum for term in model(moved))
    assert isinstance(loss, torch.Tensor)
    try:
        loss.backward()
    finally:
        model.zero_grad(set_to_none=True)
        del moments, loss
