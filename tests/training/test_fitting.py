"""Tests of clozelab.training.runtime: halving, giving up, and a trial that leaves no trace."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from clozelab.training.runtime import largest_that_fits, try_step


def test_halves_until_it_fits():
    tried = []

    def attempt(size: int) -> None:
        tried.append(size)
        if size > 9:
            raise torch.OutOfMemoryError("no room")

    assert largest_that_fits(attempt, 64) == 8 and tried == [64, 32, 16, 8]
    assert largest_that_fits(attempt, 7) == 7


def test_says_what_helps_when_nothing_fits_and_passes_other_errors():
    def attempt(size: int) -> None:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(ValueError, match="gradient_checkpointing"):
        largest_that_fits(attempt, 4)

    def broken(size: int) -> None:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        largest_that_fits(broken, 4)


def test_a_trial_changes_nothing():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.seen = nn.Linear(3, 2), 0

        def forward(self, batch):
            self.seen += len(batch["x"])
            assert self.linear.weight.grad is None
            return [SimpleNamespace(loss_sum=self.linear(batch["x"]).sum()), SimpleNamespace(loss_sum=torch.zeros(()))]

    model = Model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try_step(model, {"x": torch.ones(5, 3), "name": "plain"}, torch.device("cpu"), "32-true")
    assert model.seen == 5
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
