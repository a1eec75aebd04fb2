"""Tiny encoders and token streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from clozelab.models.layout import Layout


@pytest.fixture
def stream() -> Callable[..., dict[str, Any]]:
    """stream(lengths, row_slots=None) -> the encoder's arguments for random tokens."""
    return _stream


def _stream(lengths: Sequence[int], row_slots: int | None = None) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(7)
    ids = [torch.randint(1, 97, (length,), generator=generator) for length in lengths]
    types = [(torch.arange(length) > length // 2).long() for length in lengths]
    positions = [torch.arange(length) for length in lengths]
    layout = Layout.ragged(lengths) if row_slots is None else Layout.rectangle(lengths, row_slots)
    names = ("input_ids", "token_type_ids", "position_ids")
    return {
        name: _join(parts, row_slots)
        for name, parts in zip(names, (ids, types, positions), strict=True)
    } | {"layout": layout}


def _join(parts: list[Tensor], row_slots: int | None) -> Tensor:
    if row_slots is None:
        return torch.cat(parts)
    return torch.cat([torch.nn.functional.pad(part, (0, row_slots - len(part))) for part in parts])


@pytest.fixture
def real_rows() -> Callable[[Layout], Tensor]:
    """real_rows(layout) -> stream rows that hold tokens, in order of sequences."""
    return lambda layout: torch.cat(
        [
            torch.arange(s, s + n)
            for s, n in zip(layout.first_rows.tolist(), layout.lengths_list, strict=True)
        ]
    )
