"""The forest plot: where marks lie, what is cut, and that page, picture and terminal agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from tests.report.writing import written

from claims.report.claims import ClaimView
from claims.report.forest import Axis, Forest, ForestLine
from claims.report.forest_picture import draw_forest
from claims.report.pictures import use_style
from claims.report.screen import interval_line, verdict_table
from clozelab.report.render import Report

ROW_MEANS = {"mlm": 70.0, "mlm_nsp": 71.0, "ltr": 60.0, "random": 50.0}
MEANS = {(row, "mrpc"): mean for row, mean in ROW_MEANS.items()}
MEANS |= {(row, "snli_95k"): mean + 2.0 for row, mean in ROW_MEANS.items()}


@pytest.fixture
def report(make_runs: Callable[..., Path], no_pictures: None) -> Report:
    return written(make_runs(MEANS, pretrain_seeds=(1, 2, 3)))


def line_of(forest: Forest, judged_on: str) -> tuple[ForestLine, Axis]:
    for group in forest.groups:
        for line in group.lines:
            if line.claim.judged_on == judged_on:
                return line, group.axis
    raise AssertionError(f"no claim on {judged_on}")


def test_every_claim_is_a_line_once(report: Report) -> None:
    judged = report.page.judged
    forest = judged.forest
    drawn = [line.claim.number for line in forest.lines]
    undrawn = [claim.number for claim in forest.undrawn]
    assert drawn and sorted(drawn + undrawn) == [claim.number for claim in judged.claims]
    for group in forest.groups:
        for line in group.lines:
            assert group.axis.shows(0.0) and group.axis.shows(line.mean)
            assert line.low is None or line.low <= line.mean
            assert len(line.cells) == 2 and line.num_seeds == 3


def test_the_papers_value_stands_beside_ours_on_the_same_data_alone(report: Report) -> None:
    forest = report.page.judged.forest
    assert line_of(forest, "MRPC")[0].paper is not None
    assert line_of(forest, "SNLI-95k")[0].paper is None


def test_the_page_names_every_mark(report: Report) -> None:
    html = (report.folder / "report.html").read_text()
    forest = report.page.judged.forest
    assert html.count('class="drawing') == len(forest.lines)
    for line in forest.lines:
        assert f'id="drawing-{line.claim.number}"' in html
    # The estimate, the interval and its ends, zero: each with a title for a screen reader.
    marks = html.split("<section")[1].split("</section>")[0].count("<title")
    assert marks >= 6 * len(forest.lines)


def test_a_line_of_the_terminal_keeps_the_order_of_the_marks(report: Report) -> None:
    line, axis = line_of(report.page.judged.forest, "MRPC")
    text = interval_line(line, axis, 60)
    assert len(text) == 60
    assert text.index("\u251c") < text.index("\u2524")


def test_an_interval_beyond_the_axis_ends_in_an_arrow(report: Report) -> None:
    line, _ = line_of(report.page.judged.forest, "MRPC")
    axis = Axis("points", line.mean - 0.001, line.mean + 0.001, ())
    text = interval_line(replace(line, paper=None), axis, 40)
    assert "\u25c4" in text and "\u25ba" in text
    assert axis.place(line.mean + 1.0) == 100.0 and axis.place(line.mean - 1.0) == 0.0


@pytest.mark.parametrize("width", [30, 40])
def test_verdicts_stand_where_no_line_has_room(report: Report, width: int) -> None:
    judged = report.page.judged
    console = Console(width=width, file=StringIO(), record=True)
    console.print(verdict_table(judged.claims, judged.forest, width))
    text = console.export_text()
    assert judged.forest.lines and "\u251c" not in text
    assert text.count("inconclusive") + text.count("holds") >= len(judged.forest.lines)


def test_a_dollar_sign_in_a_claim_is_no_formula(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClaimView, "text", "costs $5 {a and $6 more")
    with use_style("light"):
        assert draw_forest(report.page.judged.forest) is not None


def test_the_picture_is_the_same_for_the_same_claims(report: Report) -> None:
    forest = report.page.judged.forest
    with use_style("light"):
        first, second = draw_forest(forest), draw_forest(forest)
    assert first is not None and first == second
    assert ElementTree.fromstring(first.svg).tag.endswith("svg")
    assert draw_forest(Forest([], list(report.page.judged.claims))) is None
