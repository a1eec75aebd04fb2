"""What every fine-tuning shares: loss sums, and that a loss that is no number ends it."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.parts import TEXTS
from torch import Tensor

from clozelab.metrics.metric import Metric
from clozelab.modules.finetuning import Evaluation, FineTuning
from clozelab.tasks.numbers import NumberTarget
from clozelab.tasks.texts import TextUnit
from clozelab.training.guards import DivergedError


class Score(NumberTarget):
    """A target that has one score."""

    metrics = (Metric.share("score"),)

    def __init__(self) -> None:
        self.number_range = None


class Constant(FineTuning):
    """A task whose loss is given by the test."""

    value = 3.0

    def logits(self, batch: Any) -> Tensor:
        return torch.zeros(())

    def loss(self, logits: Tensor, batch: Any) -> Tensor:
        return torch.tensor(self.value * batch["local_examples"], requires_grad=True)

    def evaluate(self, parts: Any) -> Evaluation:
        return Evaluation(1, {"score": 1.0}, [], False)

    def baseline(self) -> None: ...


@pytest.fixture
def module(tiny_module: Callable[..., Any]) -> Constant:
    nothing = SimpleNamespace(extra={}, validation_sets={})
    module = tiny_module(
        Constant,
        unit=TextUnit(**TEXTS),
        target=Score(),
        validation=nothing,
        metric="validation/score",
        log_interval_steps=1,
    )
    module.trainer.optimizers = [SimpleNamespace(param_groups=[{"lr": 0.1}])]
    return module


def batch(local: int, total: int, weight: float = 1.0) -> dict[str, Any]:
    sizes = {"global_examples": total, "global_targets": total, "global_tokens": 9}
    return {"local_examples": local, "local_weight": weight, **sizes}


def test_loss_is_the_mean_over_the_global_batch(module: Constant) -> None:
    assert module.training_step(batch(8, 8), 0).item() == 3.0


def test_ranks_average_to_the_global_mean(module: Constant) -> None:
    """Two ranks with 5 and 3 of 8 examples: Lightning's mean of their losses is the mean of all."""
    module.trainer.world_size = 2
    parts = [module.training_step(batch(local, 8), 0).item() for local in (5, 3)]
    assert sum(parts) / 2 == pytest.approx(3.0)
    parts = [module.training_step(batch(1, 1, weight), 0).item() for weight in (1.0, 0.0)]
    assert sum(parts) / 2 == pytest.approx(3.0)


def test_published_loss_is_the_mean_since_the_last_time(module: Constant) -> None:
    module.training_step(batch(8, 8), 0)
    module.value = 5.0
    module.training_step(batch(8, 8), 0)
    module.on_train_batch_end(None, batch(8, 8), 0)
    assert module.latest_metrics["train/loss"] == 4.0
    module.training_step(batch(8, 8), 0)
    module.on_validation_epoch_start()
    assert module.latest_metrics["train/loss"] == 5.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_loss_that_is_no_number_ends_the_run(module: Constant, bad: float) -> None:
    module.value = bad
    module.training_step(batch(8, 8), 0)
    with pytest.raises(DivergedError, match=r"step 7: the loss is (nan|inf) at learning rate 0\.1"):
        module.on_train_batch_end(None, batch(8, 8), 0)
