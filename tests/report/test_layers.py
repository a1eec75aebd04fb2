"""The picture of a measure's score layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from scipy import stats
from tests.results.test_made_up import METRIC, run
from tests.results.test_made_up import declare as declare

from claims.report import pictures
from clozelab.report import plots
from clozelab.results.table import build_table
from clozelab.runs.find import Runs

COLUMN = {"name": "Tags", "from": "evaluate", "task": "probe_tags", "metric": METRIC}


def table_of(declare: Any, layers: dict[str, list[list[float]]]) -> Any:
    """Row -> a list of its layers' scores for each seed."""
    records = []
    for row, seeds in layers.items():
        for seed, values in enumerate(seeds, 1):
            scores = {METRIC: max([*values, 1.0])}
            scores |= {f"{METRIC}/layer_{layer}": value for layer, value in enumerate(values)}
            # another score of the layers, and of a mix of them, is not the column's
            scores |= {"validation/selectivity/layer_0": 3.0, f"{METRIC}/mix": 99.0}
            words = {"row": row, "measure": {"name": "probe_tags"}, "pretrain_seed": seed}
            records.append(run("evaluate", scores, seed=1, **words))
    experiment = declare(columns=[COLUMN], claims=[])
    return build_table(experiment, Runs(Path("none"), records))


def test_each_layer_has_its_mean_and_interval(
    declare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_a = [[50.0, 60.0, 70.0], [52.0, 66.0, 71.0], [51.0, 60.0, 75.0]]
    table = table_of(declare, {"a": of_a, "b": [[40.0, 41.0, 42.0]]})
    drawn = []
    draw = Axes.errorbar

    def note(axes: Axes, x: Any, y: Any, reaches: Any, **look: Any) -> Any:
        drawn.append((list(x), list(y), list(reaches)))
        return draw(axes, x, y, reaches, **look)

    monkeypatch.setattr(Axes, "errorbar", note)
    with pictures.use_style("light"):
        picture = plots.draw_layers(table)
    assert picture is not None and b"<svg" in picture.svg and picture.png.startswith(b"\x89PNG")
    values = np.array(of_a)
    half_widths = stats.t.ppf(0.975, 2) * stats.sem(values)
    (layers, means, reaches), (_, other_means, other_reaches) = drawn
    assert layers == [0, 1, 2] and other_means == [40.0, 41.0, 42.0]
    assert means == pytest.approx(values.mean(axis=0).tolist())
    assert reaches == pytest.approx(half_widths.tolist()) and not any(other_reaches)


def test_there_is_no_picture_without_layers(declare: Any) -> None:
    with pictures.use_style("light"):
        assert plots.draw_layers(table_of(declare, {"a": [[]], "b": [[]]})) is None
