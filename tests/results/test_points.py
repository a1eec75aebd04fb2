"""Scores along pre-training: which rows belong together, how far each is, and what the report shows
of them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.records import change
from tests.report import writing
from tests.screens import shows

from claims.analysis.schema import Scale
from claims.report.pictures import use_style
from clozelab.report import plots
from clozelab.report.render import DRAWINGS, Report, write_latex
from clozelab.report.screen import print_page
from clozelab.report.summaries import arm_labels
from clozelab.results.experiment import find_experiment, load_experiment
from clozelab.results.table import build_table, find_series
from clozelab.runs.find import find
from clozelab.runs.identity import RESULTS_VERSIONS

FIGURE_5 = "figure5_training_steps"
PERCENTS = (5, 10, 25, 50, 75, 100)
WOBBLE = (0.0, 0.3, -0.3)
"""Of the difference, from seed to seed."""


@pytest.fixture
def only_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares a test about the picture of lines the other ones."""
    monkeypatch.setitem(DRAWINGS, "curves", lambda _: None)


def make_figure(
    root: Path,
    writers: Any,
    leads: Sequence[float | None],
    seeds: Sequence[int] = (1, 2, 3),
    task: str = "mnli",
) -> Path:
    """Runs in which MLM leads LTR by so many points after each of PERCENTS; None: LTR has no run
    there.
    """
    for arm in ("mlm", "ltr"):
        for seed in seeds:
            writers.pretrain(root, arm, seed)
    for number, (percent, lead) in enumerate(zip(PERCENTS, leads, strict=True)):
        for seed in seeds:
            both = {"mlm": None if lead is None else lead + WOBBLE[seed % 3], "ltr": 0.0}
            for arm, ahead in both.items():
                if ahead is not None:
                    score = 60.0 + 2.0 * number + seed + ahead
                    config = {"encoder_arm": arm, "encoder_fraction": percent / 100}
                    writers.finetune(
                        root, f"{arm}_{percent:02d}", task, (seed, 1), score, config=config
                    )
    return root


def written(root: Path) -> Report:
    return writing.written(root, FIGURE_5)


def test_lines_are_rows_that_differ_in_the_fraction_alone(tmp_path: Path, writers: Any) -> None:
    runs = find(make_figure(tmp_path, writers, [1.0] * 6))
    lines = find_series(load_experiment(find_experiment(FIGURE_5)), runs)
    assert [line.name for line in lines] == ["mlm", "ltr"]
    assert list(lines[0].rows) == [0.05, 0.1, 0.25, 0.5, 0.75, 1.0]
    assert lines[1].rows[0.05] == "ltr_05" and lines[1].rows[1.0] == "ltr_100"
    assert [line.floor for line in lines] == ["random", "random_ltr"]
    # A run that failed by other lines of its row says nothing of the row.
    failed = next(run for run in runs.finetune if run.name == "mlm_05")
    failed.status = "failed"
    failed.config["encoder_fraction"] = 0.07
    again = find_series(load_experiment(find_experiment(FIGURE_5)), runs)
    assert again[0].rows == lines[0].rows
    for one in runs.finetune:  # rows that say something else differently are no line
        one.row_delta = {"head": one.name}
    assert find_series(load_experiment(find_experiment(FIGURE_5)), runs) == []


def test_tokens_are_those_of_the_step(tmp_path: Path, writers: Any) -> None:
    """Steps of a later phase are longer: tokens are read from the curves and not shared out
    evenly.
    """
    root = make_figure(tmp_path, writers, [None] * 6, seeds=(1,))
    for arm in ("mlm", "ltr"):
        lines = [
            f"{step},{1000 * step if step <= 50 else 50_000 + 19_000 * (step - 50)}"
            for step in (20, 40, 50, 90)
        ]
        text = "step,tokens,seconds,key,value\n" + "".join(
            f"{line},1.0,train/loss,2.0\n" for line in lines
        )
        (root / "pretrain" / arm / "seed-1" / "metrics.csv").write_text(text + "95,1")
    found = find_series(load_experiment(find_experiment(FIGURE_5)), find(root))[0]
    assert found.reached(found.rows) == {
        0.05: 5_000,
        0.1: 10_000,
        0.25: 25_000,
        0.5: 50_000,
        0.75: 525_000,
        1.0: 1_000_000,
    }


def test_a_line_leaves_out_runs_of_an_older_version(tmp_path: Path, writers: Any) -> None:
    root = make_figure(tmp_path, writers, [1.0] * 6)
    old = root / "pretrain/mlm/seed-1"
    version = RESULTS_VERSIONS["pretrain"] - 1
    change(old, facts__tokens=10_000_000, results_version=version)
    table = build_table(load_experiment(find_experiment(FIGURE_5)), find(root))
    assert old in table.outdated
    assert table.checkpoint_series[0].amounts["tokens"][1.0] == 1_000_000


@pytest.mark.usefixtures("only_points")
def test_unknown_tokens_are_not_made_up(tmp_path: Path, writers: Any) -> None:
    root = make_figure(tmp_path, writers, [1.0] * 6)
    for path in root.glob("pretrain/mlm/*/metrics.csv"):
        path.unlink()
    lines = find_series(load_experiment(find_experiment(FIGURE_5)), find(root))
    assert lines[0].reached(lines[0].rows) == {}
    assert len(lines[1].reached(lines[1].rows)) == 6
    assert (written(root).folder / "points.png").is_file()


@pytest.mark.usefixtures("no_pictures")
def test_points_cut_to_other_lengths_are_said(tmp_path: Path, writers: Any) -> None:
    root = make_figure(tmp_path, writers, [1.0] * 6)
    for percent in PERCENTS:
        length = 64 if percent == 50 else 128
        change(
            root,
            f"finetune/*_{percent:02d}/*/*/*",
            facts__data={"max_seq_length": length},
            row_delta={"encoder_fraction": percent / 100},
        )
    claims = (written(root).folder / "report.md").read_text().split("## The claims")[1]
    for claim, reason in (
        ("500k to 1M", "**inconclusive** | the second half of the steps still helps MLM"),
        ("MLM ends above LTR", "**inconclusive** | MLM ends above LTR | MLM after 100 % against"),
    ):  # of points of two lengths, and of one
        shows(next(line for line in claims.split("\n") if claim in line), reason)


@pytest.mark.usefixtures("no_pictures")
def test_a_table_of_dashes_is_left_out(tmp_path: Path, writers: Any) -> None:
    """The figure has no printed numbers: beside a stand-in's column the paper's would hold
    nothing.
    """
    stood_in = written(make_figure(tmp_path / "stand-in", writers, [1.0] * 6, task="snli_95k"))
    empty = written(make_figure(tmp_path / "empty", writers, [None] * 6))
    for report, reason in (
        (stood_in, "## The table ### Substitutes and other data sets | | SNLI-95k"),
        (empty, "## The table ### The paper's data sets | | MNLI-m, ours | ##"),
    ):  # the second has nothing else to show
        text = (report.folder / "report.md").read_text()
        shows("\n".join(re.findall(r"(?m)^(?:###? .*|\| \|.*)$", text)), reason)


@pytest.mark.usefixtures("only_points")
def test_lines_begin_at_their_floors(tmp_path: Path, writers: Any) -> None:
    root = make_figure(tmp_path, writers, [1.0] * 6)
    without = (written(root).folder / "points.svg").read_text()
    for seed in (1, 2, 3):
        writers.finetune(root, "random", "mnli", (seed, 1), 40.0)
    drawn = (written(root).folder / "points.svg").read_text()
    floors = [text.count("before any step") for text in (without, drawn)]
    assert floors[0] == 0 < floors[1]


def headings(report: Report) -> list[str]:
    """Of the page, which are those of the file in Markdown, too."""
    page = re.findall("<h2>(.*?)</h2>", (report.folder / "report.html").read_text())
    assert page == re.findall("(?m)^## (.*)$", (report.folder / "report.md").read_text())
    return page


@pytest.mark.usefixtures("only_points")
def test_the_difference_of_two_lines_is_drawn_below_them(tmp_path: Path, writers: Any) -> None:
    """It needs comparable rows: without pre-training runs of one arm nothing says what that has
    seen.
    """
    root = make_figure(tmp_path, writers, (-5.0, None, None, 4.0, None, None), task="snli_95k")
    report = written(root)
    assert "mlm \u2212 ltr, points" in (report.folder / "points.svg").read_text()
    shows("\n".join(headings(report)), "The table", "Along pre-training")
    with_both = (report.folder / "points.svg").read_text()
    for path in root.glob("pretrain/ltr/*/run.json"):
        path.unlink()
    assert (written(root).folder / "points.svg").read_text() != with_both


@pytest.mark.usefixtures("no_pictures")
def test_the_report_says_where_one_arm_overtakes_another(tmp_path: Path, writers: Any) -> None:
    root = make_figure(tmp_path, writers, (-5.0, -3.0, 0.1, 4.0, 5.0, 6.0), task="snli_95k")
    report = written(root)
    text = (report.folder / "report.md").read_text()
    tex = write_latex(report.page, tmp_path / "report.tex").read_text()
    console = Console(width=400, file=io.StringIO())
    print_page(report.page, console)
    # MLM is 3 points behind at 100 k tokens and 0.1 ahead at 250 k; straight lines over the
    # logarithm.
    place = "at 243 k tokens"
    assert (
        f"mlm overtakes ltr {place}; 95 % interval: [" in text
        and f"mlm overtakes ltr {place}" in tex
    )
    assert f"mlm overtakes ltr {place}" in (report.folder / "report.html").read_text()
    assert place in console.file.getvalue() and place in (report.folder / "claims.csv").read_text()
    # A whole run is not "MLM after 5 %".
    assert [arm.label for arm in report.page.arms] == ["mlm", "ltr"]
    assert report.page.costs[0].label == "pre-training mlm"
    change(root, "pretrain/ltr/*", **{"facts__validation/loss": 6.1})
    assert written(root).page.problems["Not learnt"][0].startswith("ltr: a held-out loss of 6.10")


def test_other_arms_keep_the_label_of_their_first_row(tmp_path: Path, writers: Any) -> None:
    for arm in ("ltr", "mlm", "mine"):
        writers.pretrain(tmp_path, arm, 1)
    table = build_table(
        load_experiment(find_experiment("table5_pretraining_tasks")), find(tmp_path)
    )
    assert arm_labels(table) == {"mlm": "No NSP", "ltr": "LTR & No NSP", "mine": "mine"}


def test_no_points_no_section(tmp_path: Path, writers: Any) -> None:
    writers.pretrain(tmp_path, "mlm", 1)
    report = writing.written(tmp_path)
    shows("\n".join(headings(report)), "The table", "The claims")
    assert not (report.folder / "points.png").exists()


def test_each_panel_of_lines_has_the_unit_of_its_scores(
    tmp_path: Path, writers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_figure(tmp_path, writers, [1.0] * 6)
    table = build_table(load_experiment(find_experiment(FIGURE_5)), find(root))
    in_nats = Scale("nats", higher_is_better=False)
    columns = tuple(replace(column, scale=in_nats) for column in table.columns)
    monkeypatch.setattr(plots, "save_picture", lambda figure, *_: figure)
    for one_table, units in (
        (table, ["percent", ", points"]),
        (replace(table, columns=columns), ["nats, lower is better", ", nats"]),
    ):
        with use_style("light"):
            figure: Any = plots.draw_lines(one_table)
        scores, differences = [axes for axes in figure.axes if axes.lines][:2]
        assert scores.get_ylabel() == units[0]
        assert differences.get_title().endswith(units[1])
        plots.plt.close(figure)
