"""Tests of clozelab.models.dropout."""

from __future__ import annotations

import pytest
import torch

from clozelab.models.dropout import Dropout, dropout


@pytest.mark.parametrize("prob", [0.1, 0.5, 0.003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_share_scale_and_gradient(prob, dtype):
    torch.manual_seed(0)
    x = torch.ones(999_999, dtype=dtype, requires_grad=True)
    y = dropout(x, prob, training=True)
    assert abs((y == 0).float().mean().item() - prob) < 4 * (prob / 999_999) ** 0.5 + 1e-5
    assert torch.allclose(
        y[y != 0].float(), torch.tensor(1 / (1 - prob)), rtol=1e-2 if dtype is torch.bfloat16 else 1e-4
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
