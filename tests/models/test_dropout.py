"""Tests of dropout in clozelab.models.layers."""

from __future__ import annotations

import pytest
import torch

from clozelab.models.layers import Dropout, dropout


@pytest.mark.parametrize("prob", [0.1, 0.5, 0.003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_share_scale_and_gradient(prob, dtype):
    torch.manual_seed(0)
    x = torch.ones(999_999, dtype=dtype, requires_grad=True)
    y = dropout(x, prob, training=True)
    assert abs((y == 0).float().mean().item() - prob) < 4 * (prob / 999_999) ** 0.5 + 1e-5
    assert torch.allclose(
        y[y != 0].float(),
        torch.tensor(1 / (1 - prob)),
        rtol=1e-2 if dtype is torch.bfloat16 else 1e-4,
    )
    y.backward(torch.ones_like(y))
    assert torch.equal(x.grad, y.detach())


def test_neighbours_are_independent():
    torch.manual_seed(0)
    kept = (dropout(torch.ones(400_000), 0.5, training=True) != 0).float()
    for lag in (1, 2, 3, 4):
        assert abs((kept[lag:] * kept[:-lag]).mean().item() - 0.25) < 0.004


def test_seeded_and_off_when_not_training():
    x = torch.randn(1000)
    torch.manual_seed(3)
    first = dropout(x, 0.3, training=True)
    torch.manual_seed(3)
    assert torch.equal(first, dropout(x, 0.3, training=True))
    assert not torch.equal(first, dropout(x, 0.3, training=True))
    assert dropout(x, 0.3, training=False) is x
    assert Dropout(0.3).eval()(x) is x
    assert dropout(x, 0.0, training=True) is x


def test_what_is_dropped_does_not_depend_on_the_type():
    """One draw of 16 bits an element, whatever the width of the numbers that it blanks."""
    kept = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        torch.manual_seed(5)
        kept.append(dropout(torch.ones(257, 3, dtype=dtype), 0.3, training=True) != 0)
    assert torch.equal(kept[0], kept[1]) and torch.equal(kept[0], kept[2])
    assert 0.6 < kept[0].float().mean() < 0.8


def test_signs_zeros_and_strides_survive():
    x = torch.tensor([[-1.5, 0.0, 2.0], [4.0, -0.25, 8.0]]).t().requires_grad_()
    torch.manual_seed(2)
    y = dropout(x, 0.5, training=True)
    assert y.shape == x.shape and bool(((y == 0) | (y == 2 * x)).all())
    y.backward(torch.full((3, 2), -3.0))
    assert torch.equal(x.grad, torch.where((y != 0) | (x == 0), x.grad, 0.0))
    assert bool(((x.grad == -6.0) | (x.grad == 0.0)).all())
