"""The learning-rate schedule: the released code's closed form."""

from __future__ import annotations

import pytest
import torch

from clozelab.optim.schedule import LinearWarmupDecay, linear_warmup_decay


def rates(total_steps: int, warmup_fraction: float) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule = LinearWarmupDecay(optimizer, total_steps=total_steps, warmup_fraction=warmup_fraction)
    seen = []
    for _ in range(total_steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return [*seen, optimizer.param_groups[0]["lr"]]


def test_paper_settings() -> None:
    total, warmup = 1_000_000, 10_000
    for step, expected in [(0, 0.0), (5_000, 0.5), (9_999, 0.9999), (10_000, 0.99), (500_000, 0.5), (999_999, 1e-6)]:
        assert linear_warmup_decay(step, total_steps=total, warmup_steps=warmup) == pytest.approx(expected)


def test_rates_over_a_run() -> None:
    assert rates(10, 0.2) == pytest.approx([0.0, 1.0, 1.6, 1.4, 1.2, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0])
    assert rates(4, 0.0) == pytest.approx([2.0, 1.5, 1.0, 0.5, 0.0])


def test_state_restores_the_rate() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = LinearWarmupDecay(optimizer, total_steps=10, warmup_fraction=0.2)
    for _ in range(4):
        optimizer.step()
        schedule.step()
    state, state_of_optimizer = schedule.state_dict(), optimizer.state_dict()
    fresh = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    resumed = LinearWarmupDecay(fresh, total_steps=10, warmup_fraction=0.2)
    fresh.load_state_dict(state_of_optimizer)
    resumed.load_state_dict(state)
    for one, other in ((optimizer, schedule), (fresh, resumed)):
        one.step()
        other.step()
    assert optimizer.param_groups[0]["lr"] == fresh.param_groups[0]["lr"]


@pytest.mark.parametrize(("total", "warmup", "word"), [(0, 0.1, "total_steps"), (10, 1.0, "warmup_fraction")])
def test_bad_settings(total: int, warmup: float, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        rates(total, warmup)
