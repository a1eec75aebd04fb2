"""Which size a budget favours: curves whose best size is known, and others that favour none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.screens import shows

from clozelab.launch.sweep import compose
from clozelab.planning import sizes
from clozelab.planning.plan_screen import _print_sizes
from clozelab.planning.sizes import forecasts
from clozelab.runs.loss_bands import Band

SIZES = {"tiny": 1e6, "small": 3e6, "middle": 9e6, "large": 27e6}
TOKENS = (2e6, 6e6, 18e6, 54e6, 162e6)


def loss_of(size: float, tokens: float) -> float:
    """A law of the form of Hoffmann et al. (2022): each budget has a best size of its own."""
    return 1.5 + 40.0 / size**0.25 + 300.0 / tokens**0.35


def made_bands(law: Callable[..., float] = loss_of, noise: float = 0.0) -> list[Band]:
    rng = np.random.default_rng(1)
    bands = []
    for (name, size), tokens in product(SIZES.items(), TOKENS):
        losses = [law(size, tokens) + noise * rng.normal() for _ in range(3)]
        settings = {"planned tokens": tokens}
        bands.append(
            Band(name, ["made"], settings, 6.0, size, [tokens / 2, tokens], [[9.0], losses])
        )
    return bands


@pytest.mark.parametrize("flops", [2e13, 6e13, 1.5e14])
def test_the_best_size_of_a_known_law_is_favoured(flops: float) -> None:
    """Of the sizes that the budget is inside the runs of."""
    expected = forecasts(made_bands(noise=0.01), flops)
    true = {}
    for forecast in expected:
        size = SIZES[forecast.name]
        assert forecast.tokens == pytest.approx(flops / size)
        true[forecast.name] = loss_of(size, flops / size)
        assert abs(forecast.loss - true[forecast.name]) <= forecast.error
    assert len(expected) >= 3
    assert true[expected[0].name] <= min(true.values()) + expected[0].error


def test_a_larger_budget_favours_a_larger_size() -> None:
    best = [forecasts(made_bands(), flops)[0].name for flops in (1e13, 2e14, 1.4e15)]
    order = list(SIZES)
    assert [order.index(name) for name in best] == sorted(order.index(name) for name in best)
    assert best[0] != best[-1]


def test_where_size_changes_nothing_no_size_stands_out() -> None:
    """The negative control: the loss follows FLOPs alone, so at one budget all sizes are equal."""

    def law(size: float, tokens: float) -> float:
        return 2.0 + 60.0 / (size * tokens) ** 0.12

    expected = forecasts(made_bands(law, noise=0.02), 1e14)
    assert len(expected) >= 3
    assert expected[-1].loss - expected[0].loss < expected[0].error


def test_measured_flops_of_one_size_may_differ_a_little() -> None:
    bands = made_bands()
    measured = []
    for number, band in enumerate(bands):
        measured.append(replace(band, flops_per_token=band.flops_per_token * (1 + 1e-6 * number)))
    names = [forecast.name for forecast in forecasts(bands, 1e14)]
    assert [forecast.name for forecast in forecasts(measured, 1e14)] == names


def test_leaving_a_band_out_misses_it_by_what_the_error_says() -> None:
    """The shortcut by the hat matrix against fits without each band."""
    bands = made_bands(noise=0.05)
    terms = sizes._terms(
        np.array([band.flops_per_token for band in bands]),
        np.array([band.tokens[-1] for band in bands]),
    )
    losses = np.array([np.mean(band.losses[-1]) for band in bands])
    missed = []
    for index in range(len(bands)):
        kept = np.arange(len(bands)) != index
        weights, *_ = np.linalg.lstsq(terms[kept], losses[kept], rcond=None)
        missed.append(losses[index] - terms[index] @ weights)
    error = forecasts(bands, 1e14)[0].error
    assert error == pytest.approx(2.0 * np.sqrt(np.mean(np.square(missed))))


def test_nothing_is_said_outside_of_what_was_run() -> None:
    bands = made_bands()
    assert forecasts(bands, 1e12) == forecasts(bands, 1e18) == []
    # `large` was run with 2 M tokens at least, so this budget is not enough for it
    assert {forecast.name for forecast in forecasts(bands, 2e13)} == {"tiny", "small", "middle"}


@pytest.mark.parametrize("kept", [slice(0, 7), slice(0, 5)])
def test_too_few_bands_or_one_size_make_no_surface(kept: slice) -> None:
    assert forecasts(made_bands()[kept], 2e13) == []
    one_size = [band for band in made_bands() if band.name == "tiny"] * 2
    assert forecasts(one_size, 2e13) == []


@pytest.fixture
def plan() -> Any:
    """A plan of one pre-training whose corpus is not prepared."""
    sweep = SimpleNamespace(
        jobs=[()], composer=SimpleNamespace(compose=lambda _: compose("pretrain"))
    )
    arm = SimpleNamespace(corpus=SimpleNamespace(folder=None))
    return SimpleNamespace(costing=SimpleNamespace(arms=[arm]), sweeps={"pretrain": sweep})


def test_a_plan_marks_the_sizes_that_the_budget_favours(
    plan: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sizes, "bands_of_sizes", lambda _: made_bands())
    _print_sizes(plan, 1.5e14)
    out = capsys.readouterr().out
    best, *_, worst = forecasts(made_bands(), 1.5e14)
    shows(
        out,
        "sizes at 1.5e+14 FLOPs, by 20 published sizes and lengths:",
        f"favoured: {best.name}, ",
        f"tokens: {best.loss:.2f} \u00b1 {best.error:.2f} nats",
    )
    assert f"favoured: {worst.name}" not in out and worst.name in out


def test_a_plan_of_an_unknown_text_names_no_sizes(
    plan: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    _print_sizes(plan, 1e13)
    assert capsys.readouterr().out == ""
