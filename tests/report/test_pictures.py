"""The pictures: the same data give the same bytes, and axes show what a score can be."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from claims.analysis.schema import IN_PERCENT
from claims.analysis.scores import DataColumn, Origin
from claims.report.pictures import use_style
from clozelab.report import plots
from clozelab.report.plots import (
    _draw_losses,
    _finish_panel,
    draw_curves,
    plt,
    within_percent,
)
from clozelab.results.experiment import find_experiment, load_experiment
from clozelab.results.table import build_table
from clozelab.runs.find import find

TABLE_5 = "table5_pretraining_tasks"
MEANS = {
    ("mlm", "mrpc"): 70.0,
    ("ltr", "mrpc"): 60.0,
    ("ltr_bilstm", "mrpc"): 65.0,
    ("random", "mrpc"): 50.0,
}


def test_same_data_same_bytes(make_runs: Callable[..., Path]) -> None:
    root = make_runs(MEANS, pretrain_seeds=(1, 2))
    table = build_table(load_experiment(find_experiment(TABLE_5)), find(root))
    with use_style("light"):
        first, second = draw_curves(table), draw_curves(table)
    with use_style("dark"):
        dark = draw_curves(table)
    assert first is not None and first == second
    assert first.png.startswith(b"\x89PNG") and ElementTree.fromstring(first.svg).tag.endswith(
        "svg"
    )
    assert b"<dc:date>" not in first.svg and first != dark


def test_an_arm_keeps_its_colour_while_another_has_no_run_yet(
    make_runs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0})
    experiment = load_experiment(find_experiment(TABLE_5))
    colours: list[dict[str, str]] = []

    def note(_: object, runs: list[Any], colour: str) -> None:
        colours[-1][runs[0].name] = colour

    monkeypatch.setattr(plots, "_draw_losses", note)
    for _ in range(2):
        colours.append({})
        with use_style("light"):
            draw_curves(build_table(experiment, find(root)))
        shutil.rmtree(root / "pretrain" / "mlm_nsp", ignore_errors=True)
    of_all, of_the_others = colours
    assert of_all.keys() - of_the_others.keys() == {"mlm_nsp"}
    assert of_the_others.items() <= of_all.items()


def test_a_curve_of_one_point_has_a_mark() -> None:
    runs: Any = []
    for arm, tokens in (("short", [100]), ("long", [100, 200])):
        curve = [(count, 4.0) for count in tokens]
        runs.append(SimpleNamespace(name=arm, curves={"validation/loss": curve}))
    figure, axes = plt.subplots()
    for run, colour in zip(runs, ("red", "blue"), strict=True):
        _draw_losses(axes, [run], colour)
    marked = {line.get_color() for line in axes.lines if line.get_marker() == "o"}
    plt.close(figure)
    assert marked == {"red"}


@pytest.mark.parametrize(
    ("majority", "baseline", "expected"),
    [
        (None, None, None),
        (0.0, None, 0.0),
        (16.7, ("most frequent tag", 82.4), 82.4),
        (51.0, ("bag of words", 40.0), 51.0),
    ],
)
def test_the_line_is_that_of_the_best_trivial_rule(
    majority: Any, baseline: Any, expected: float | None
) -> None:
    column = DataColumn(
        "x",
        "x",
        "m",
        None,
        Origin.OTHER,
        scale=IN_PERCENT,
        majority=majority,
        baseline=baseline,
    )
    assert column.trivial == expected
    with use_style("light"):
        axes = (figure := plt.figure()).add_subplot()
        _finish_panel(axes, column)
        assert [line.get_ydata()[0] for line in axes.lines] == [
            one for one in [expected] if one is not None
        ]
        plt.close(figure)


@pytest.mark.parametrize(
    ("ends", "expected"),
    [((40.0, 60.0), (40.0, 60.0)), ((-50.0, 150.0), (-2.0, 102.0))],
)
def test_an_axis_of_percents_shows_what_a_percentage_can_be(
    ends: tuple[float, float], expected: tuple[float, float]
) -> None:
    assert within_percent(*ends) == expected
