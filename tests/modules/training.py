"""Some steps of a module by hand, and its evaluation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def train(module: Any, batches: Iterable[Any], rate: float | None = None) -> list[float]:
    """The mean loss of each step; `rate`: of Adam in place of the module's own optimizer."""
    trained = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
    if rate is None:
        optimizer = module.optimizer_factory(trained)
    else:
        optimizer = torch.optim.Adam([value for _, value in trained], rate)
    module.train()
    losses = []
    for batch in batches:
        logits = module.logits(batch)
        loss = module.loss(logits, batch) / len(logits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def evaluate(module: Any, batches: Iterable[Any]) -> Any:
    """The best evaluation, of which this is one."""
    module.eval()
    with torch.no_grad():
        for batch in batches:
            module.validation_step(batch, 0)
    module.on_validation_epoch_end()
    return module.require_best()
