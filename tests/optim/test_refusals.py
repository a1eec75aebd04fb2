"""What this room refuses, and the sentence that says so: a row a case."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.calling import call_with_fixtures
from tests.optim import test_optim

from clozelab.optim.adamw import build_adamw, build_torch
from clozelab.optim.schedule import CosineDecay, WarmupStableDecay


def an_unknown_library() -> None:
    options: dict[str, Any] = {"name": "Lamb", "learning_rate": 0.1, "weight_decay": 0.0}
    build_torch(test_optim.model().named_parameters(), library="os", **options)


def a_library_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"name": "Lamb", "learning_rate": 0.1, "weight_decay": 0.0}
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    build_torch(test_optim.model().named_parameters(), library="pytorch_optimizer", **options)


REFUSALS: list[tuple[str, Callable[..., Any], type[Exception], str]] = [
    (
        "out of range: learning_rate",
        lambda: build_adamw(
            test_optim.model().named_parameters(), **(test_optim.SETTINGS | {"learning_rate": -1.0})
        ),
        ValueError,
        "learning_rate",
    ),
    (
        "out of range: betas",
        lambda: build_adamw(
            test_optim.model().named_parameters(), **(test_optim.SETTINGS | {"betas": (1.0, 0.9)})
        ),
        ValueError,
        "betas",
    ),
    (
        "out of range: betas 2",
        lambda: build_adamw(
            test_optim.model().named_parameters(), **(test_optim.SETTINGS | {"betas": (0.9, -0.1)})
        ),
        ValueError,
        "betas",
    ),
    (
        "out of range: eps",
        lambda: build_adamw(
            test_optim.model().named_parameters(), **(test_optim.SETTINGS | {"eps": 0.0})
        ),
        ValueError,
        "eps",
    ),
    (
        "out of range: weight_decay",
        lambda: build_adamw(
            test_optim.model().named_parameters(), **(test_optim.SETTINGS | {"weight_decay": -0.1})
        ),
        ValueError,
        "weight_decay",
    ),
    (
        "out of range: learning_rate 2",
        lambda: build_adamw(
            test_optim.model().named_parameters(),
            **(test_optim.SETTINGS | {"learning_rate": "fast"}),
        ),
        ValueError,
        "learning_rate",
    ),
    (
        "out of range: weight_decay 2",
        lambda: build_adamw(
            test_optim.model().named_parameters(), **(test_optim.SETTINGS | {"weight_decay": None})
        ),
        ValueError,
        "weight_decay",
    ),
    (
        "an unknown library",
        an_unknown_library,
        ValueError,
        r"choose one of torch\.optim, pytorch_optimizer",
    ),
    (
        "a library that is not installed",
        a_library_that_is_not_installed,
        ValueError,
        r"pip install 'clozelab\[optimizers\]'",
    ),
    (
        "a library's: torch.optim has nadam",
        lambda: build_torch(
            test_optim.model().named_parameters(),
            name="Nadam",
            settings={},
            learning_rate=0.1,
            weight_decay=0.0,
        ),
        ValueError,
        "torch.optim has .*NAdam",
    ),
    (
        "a library's: sgd does not take this",
        lambda: build_torch(
            test_optim.model().named_parameters(),
            name="SGD",
            settings={"speed": 1},
            learning_rate=0.1,
            weight_decay=0.0,
        ),
        ValueError,
        "SGD does not take this: .*speed",
    ),
    (
        "a library's: optimizer.name is load",
        lambda: build_torch(
            test_optim.model().named_parameters(),
            name="load",
            settings={},
            learning_rate=0.1,
            weight_decay=0.0,
        ),
        ValueError,
        "optimizer.name is 'load'",
    ),
    (
        "other schedules: final_fraction",
        lambda: test_optim.rates(100, 0.1, CosineDecay, final_fraction=1.1),
        ValueError,
        r"schedule\.final_fraction is .*: it must be in",
    ),
    (
        "other schedules: decay_fraction",
        lambda: test_optim.rates(100, 0.1, WarmupStableDecay, decay_fraction=-0.1),
        ValueError,
        r"schedule\.decay_fraction is .*: it must be in",
    ),
    (
        "bad settings: total_steps",
        lambda: test_optim.rates(0, 0.1),
        ValueError,
        "total_steps",
    ),
    (
        "bad settings: warmup_fraction",
        lambda: test_optim.rates(10, 1.0),
        ValueError,
        "warmup_fraction",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "sentence"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_refusal(
    request: pytest.FixtureRequest,
    call: Callable[..., Any],
    error: type[Exception],
    sentence: str,
) -> None:
    with pytest.raises(error, match=sentence):
        call_with_fixtures(call, request)
