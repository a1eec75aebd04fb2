"""The pictures: the same data give the same bytes, and size is drawn where arms differ in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from clozelab.report import plots
from clozelab.report.plots import draw_table
from clozelab.report.point_plots import draw_sizes
from clozelab.report.render import write_report
from clozelab.runs.find import collect
from clozelab.verdicts.accounts import encoder_sizes, rows_by_size
from clozelab.verdicts.experiment import find_experiment, load_experiment
from clozelab.verdicts.table import build_table

TABLE_5 = "table5_pretraining_tasks"
MEANS = {("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0, ("ltr_bilstm", "mrpc"): 65.0, ("random", "mrpc"): 50.0}


def resize(root: Path, arm: str, parameters: int) -> None:
    for path in root.glob(f"pretrain/{arm}/*/run.json"):
        path.write_text(path.read_text().replace('"parameters": 1527680', f'"parameters": {parameters}'))


def test_same_data_same_bytes(make_runs: Callable[..., Path]) -> None:
    root = make_runs(MEANS, pretrain_seeds=(1, 2))
    table = build_table(load_experiment(find_experiment(TABLE_5)), collect(root))
    first, second = draw_table(table, "light"), draw_table(table, "light")
    assert first is not None and first == second
    assert first.png.startswith(b"\x89PNG") and ElementTree.fromstring(first.svg).tag.endswith("svg")
    assert b"<dc:date>" not in first.svg and first != draw_table(table, "dark")


@pytest.mark.parametrize(("ends", "expected"), [((-0.05, 0.05), (-1.0, 1.0)), ((40.0, 60.0), (40.0, 60.0))])
def test_an_axis_of_equal_scores_counts_in_points(
    make_runs: Callable[..., Path], ends: tuple[float, float], expected: tuple[float, float]
) -> None:
    table = build_table(load_experiment(find_experiment(TABLE_5)), collect(make_runs(MEANS)))
    axes = Figure().subplots()
    axes.set_xlim(*ends)
    plots._cut_at_percent(axes, table, table.with_results[0], "light")
    assert axes.get_xlim() == pytest.approx(expected)


def test_size_is_drawn_where_arms_differ_in_it(make_runs: Callable[..., Path]) -> None:
    root = make_runs(MEANS, pretrain_seeds=(1, 2))
    experiment = load_experiment(find_experiment(TABLE_5))
    resize(root, "ltr", 1_530_000)  # a head of its own is no other size
    assert rows_by_size(experiment, collect(root)) == []
    resize(root, "mlm", 5_000_000)
    collected = collect(root)
    rows = rows_by_size(experiment, collected)
    assert [row.name for row in rows] == ["mlm_nsp", "mlm", "ltr", "ltr_bilstm"]  # no floor: it has no pre-training
    assert encoder_sizes(collected) == {"mlm_nsp": 1_527_680, "mlm": 5_000_000, "ltr": 1_530_000}
    assert draw_sizes([], {}, build_table(experiment, collected), "light") is None
    report = write_report(experiment, root, root / "report", scale="demo")
    assert (report.folder / "sizes.svg").is_file() and (report.folder / "sizes-dark.png").is_file()
    assert 'src="sizes.png"' in (report.folder / "report.md").read_text()
    assert "against the parameters of the encoder" in report.html.read_text()


def test_of_points_of_one_run_the_last_has_its_size(make_runs: Callable[..., Path]) -> None:
    root = make_runs({})
    resize(root, "ltr", 3_000_000)
    rows = rows_by_size(load_experiment(find_experiment("figure5_training_steps")), collect(root))
    assert [row.name for row in rows] == ["mlm_100", "ltr_100"]


def test_unknown_sizes_are_left_out(make_runs: Callable[..., Path]) -> None:
    root = make_runs(MEANS)
    resize(root, "ltr", 3_000_000)
    for path in root.glob("pretrain/mlm/*/run.json"):
        state = json.loads(path.read_text())
        del state["facts"]["parameters"]
        path.write_text(json.dumps(state))
    rows = rows_by_size(load_experiment(find_experiment(TABLE_5)), collect(root))
    assert [row.name for row in rows] == ["mlm_nsp", "ltr", "ltr_bilstm"]
