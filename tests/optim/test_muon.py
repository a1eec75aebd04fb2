"""Muon against a second implementation: singular values in float64, one matrix at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.optim import muon
from clozelab.optim.muon import FUSED, Muon, newton_schulz

RATE = 0.02
DECAY = 0.1
MOMENTUM = 0.95
SHAPES = {"square": (24, 24), "wide": (16, 64), "a little wide": (16, 24)}


def by_singular_values(matrix: np.ndarray) -> np.ndarray:
    """The iterations on singular values: the odd polynomial five times, on S by its norm."""
    a = 3.4445
    b = -4.7750
    c = 2.0315
    u, s, vt = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    s = s / np.sqrt((s**2).sum())
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    return (u * s) @ vt


def plain_step(
    weight: np.ndarray, gradient: np.ndarray, buffer: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One update of one matrix by the paper's formulas; returns weight and momentum."""
    buffer = MOMENTUM * buffer + (1 - MOMENTUM) * gradient
    ahead = MOMENTUM * buffer + (1 - MOMENTUM) * gradient
    rows, columns = weight.shape
    rate = RATE * max(1, rows / columns) ** 0.5
    return (1 - RATE * DECAY) * weight - rate * by_singular_values(ahead), buffer


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_a_batch_equals_one_matrix_after_the_other(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    matrices = (
        torch.randn(3, *shape, generator=generator)
        * torch.tensor([1e-3, 1.0, 100.0])[:, None, None]
    )
    ours = newton_schulz(matrices).numpy()
    expected = np.stack([by_singular_values(one.numpy()) for one in matrices])
    assert np.abs(ours - expected).max() < 2e-5
    # Nothing is near orthogonal by accident.
    assert (
        np.abs(
            matrices.numpy() / np.linalg.norm(matrices.numpy(), axis=(1, 2), keepdims=True)
            - expected
        ).max()
        > 0.1
    )


def test_a_matrix_of_low_rank_and_one_of_zeros_stay_finite() -> None:
    matrices = torch.zeros(3, 16, 64)
    matrices[0, :2] = torch.randn(2, 64, generator=torch.Generator().manual_seed(1))
    matrices[1] = 1e-3
    done = newton_schulz(matrices)
    assert torch.isfinite(done).all() and not done[2].any()
    assert np.abs(done[0].numpy() - by_singular_values(matrices[0].numpy())).max() < 1e-4


def named_gradients(encoder: nn.Module, step: int) -> Mapping[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {
        name: torch.randn(p.shape, generator=generator) for name, p in encoder.named_parameters()
    }


@pytest.mark.parametrize("elements", [1 << 24, 600], ids=["one batch", "many batches"])
def test_steps_equal_those_of_single_matrices(
    monkeypatch: pytest.MonkeyPatch, tiny_config: Callable[..., EncoderConfig], elements: int
) -> None:
    """Query, key and value are three matrices; tall and wide ones share a batch."""
    monkeypatch.setattr(muon, "product_dtype", lambda device: torch.float32)
    monkeypatch.setattr(muon, "BATCH_ELEMENTS", elements)
    config = tiny_config(
        num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=64
    )
    encoder = Encoder(config, torch.Generator().manual_seed(0))
    named = [
        (name, p)
        for name, p in encoder.named_parameters()
        if p.ndim == 2 and name.startswith("layer.")
    ]
    assert sum(name.endswith(tuple(FUSED)) for name, _ in named) == 2
    plain = {}
    for name, p in named:
        parts = 3 if name.endswith("qkv.weight") else 1
        plain[name] = [
            [part, np.zeros_like(part)] for part in np.split(p.detach().double().numpy(), parts)
        ]
    optimizer = Muon(named, learning_rate=RATE, weight_decay=DECAY, momentum=MOMENTUM)
    for step in range(3):
        gradients = named_gradients(encoder, step)
        for name, p in named:
            p.grad = gradients[name].clone()
            for pair, gradient in zip(
                plain[name], np.split(p.grad.double().numpy(), len(plain[name])), strict=True
            ):
                pair[0], pair[1] = plain_step(pair[0], gradient, pair[1])
        optimizer.step()
    for name, p in named:
        expected = np.concatenate([weight for weight, _ in plain[name]])
        assert np.abs(p.detach().numpy() - expected).max() < 1e-5, name


def test_fused_matrices_are_not_made_orthogonal_together() -> None:
    """Negative control: query, key and value as one matrix give another update."""
    stacked = nn.Parameter(torch.zeros(12, 4))
    whole = copy.deepcopy(stacked)
    gradient = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    for name, parameter in (
        ("layer.0.attention.qkv.weight", stacked),
        ("layer.0.other.weight", whole),
    ):
        parameter.grad = gradient.clone()
        Muon([(name, parameter)], learning_rate=RATE, weight_decay=0.0, momentum=MOMENTUM).step()
    assert (stacked - whole).abs().max() > 0.1 * RATE


def test_a_parameter_without_gradient_stays() -> None:
    parameter = nn.Parameter(torch.ones(4, 4))
    Muon(
        [("layer.0.weight", parameter)], learning_rate=RATE, weight_decay=DECAY, momentum=MOMENTUM
    ).step()
    assert torch.equal(parameter, torch.ones(4, 4))
