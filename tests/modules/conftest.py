"""A task module on a tiny encoder, with a stand-in trainer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clozelab.models.encoder import Encoder
from clozelab.optim.adamw import build_adamw
from clozelab.optim.schedule import LinearWarmupDecay
from clozelab.training import guards

ENCODER = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "initializer_range": 0.1,
}
SETTINGS: dict[str, Any] = {
    "head": "linear",
    "bilstm_num_layers": 1,
    "bilstm_hidden_size": None,
    "bilstm_dropout_prob": 0.0,
    "keep_best_weights": True,
    "optimizer_factory": partial(
        build_adamw,
        learning_rate=1e-3,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0.01,
        bias_correction=True,
    ),
    "schedule_factory": partial(LinearWarmupDecay, warmup_fraction=0.1),
    "total_steps": 100,
    "gradient_clip_norm": 1.0,
    "seed": 1,
    "log_interval_steps": 10,
}


@pytest.fixture
def tiny_module(tiny_config: Callable[..., Any]) -> Callable[..., Any]:
    """tiny_module(class, changes of the encoder, **settings) -> a module at step 7 of 100."""

    def build(kind: Any, encoder: dict[str, Any] | None = None, **settings: Any) -> Any:
        torch.manual_seed(1)
        module = kind(
            encoder=Encoder(tiny_config(**(ENCODER | (encoder or {})))), **(SETTINGS | settings)
        )
        module._trainer = SimpleNamespace(
            global_step=7,
            global_rank=0,
            is_global_zero=True,
            world_size=1,
            strategy=None,
            loggers=[],
            sanity_checking=False,
            should_stop=False,
            num_val_batches=[1],
            val_dataloaders=[None],
            state=SimpleNamespace(fn="fit"),
            barebones=True,  # which logs nothing
        )
        return module

    return build


@pytest.fixture
def knows_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps are enough to tell which gradient norms are usual."""
    monkeypatch.setattr(guards, "MIN_NORMS", 2)
