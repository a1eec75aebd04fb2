"""What every paper.yaml says of the paper: its cells, its seeds, and the sizes that follow from its
cells.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from claims.analysis.schema import FALLING, ContrastClaim, OrderClaim
from clozelab.results.experiment import (
    Experiment,
    find_experiment,
    list_experiments,
    load_experiment,
)

TABLES = {"roberta_nsp_x_format": "roberta_table2_medians_of_5_seeds"}
"""Experiment -> its table in the list of facts, where that has another name."""
ROWS = {
    "MLM & NSP": "BERT-Base",
    "segment pairs with NSP": "segment-pair with NSP",
    "full sentences, no NSP": "full-sentences no NSP",
}
"""Label -> the paper's, where ours is another one."""
OF_A_PAPER = (
    "roberta_nsp_x_format",
    "table1_glue",
    "table2_squad_v1",
    "table3_squad_v2",
    "table4_swag",
    "table5_pretraining_tasks",
    "table6_model_size",
    "table7_feature_based_ner",
    "table8_masking",
)
"""Experiments with printed numbers beside ours; no other one may have any."""
STATISTIC = re.compile(r"(mean|median)s?[ _]of[ _](\d+)")


@cache
def load(name: str) -> Experiment:
    return load_experiment(find_experiment(name))


def facts(shared: Path, name: str) -> tuple[dict[str, Any], str]:
    """(the table as it was written down, all its words)."""
    key = TABLES.get(name, name)
    table = yaml.safe_load((shared / "paper" / "tables.yaml").read_text())[key]
    return table, f"{key} {yaml.safe_dump(table)}"


def rows_of(table: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Label -> column -> number."""
    columns = table["columns"]
    rows = table.get("rows", {key: value for key, value in table.items() if key != "columns"})
    if isinstance(rows, dict):
        return {label: dict(zip(columns, cells, strict=True)) for label, cells in rows.items()}
    if columns[0] == "L":
        return {
            f"L={one[0]}, H={one[1]}, A={one[2]}": dict(zip(columns, one, strict=True))
            for one in rows
        }
    return {
        f"MASK {one[0]}, SAME {one[1]}, RND {one[2]}": dict(zip(columns, one, strict=True))
        for one in rows
    }


@pytest.mark.parametrize("name", OF_A_PAPER)
def test_every_cell_is_the_papers(name: str, shared_dir: Path) -> None:
    table, words = facts(shared_dir, name)
    known = rows_of(table)
    experiment = load(name)
    seen = printed = 0
    for row in experiment.rows:
        paper = known.get(ROWS.get(row.label, row.label), {})
        cells = dict(zip((column.name for column in experiment.columns), row.cells, strict=True))
        assert cells == {column: paper.get(column) for column in cells}, row.name
        seen += bool(paper)
        # not so in ours: a given encoder, floors
        printed += any(cell is not None for cell in row.cells)
    assert seen == printed >= 1
    found = STATISTIC.search(words)
    assert (experiment.averaging, experiment.seeds) == (
        (found[1], int(found[2])) if found else ("", None)
    )


@pytest.mark.parametrize("name", list_experiments())
def test_sizes_follow_from_the_cells(name: str) -> None:
    """`paper_delta` of one difference between two printed cells, or of two such differences."""
    experiment = load(name)
    cells: dict[tuple[str, str], float | None] = {}
    for row in experiment.rows:
        for column, cell in zip(experiment.columns, row.cells, strict=True):
            cells[row.name, column.name] = cell
    for claim in experiment.claims:
        if not isinstance(claim, OrderClaim | ContrastClaim) or len(claim.pairs) > 1:
            assert claim.paper_delta is None, claim.id
            continue
        terms = [(claim.rows[0], claim.column), (claim.rows[1], claim.column)]
        terms += (
            [(claim.against[1], claim.against[2]), (claim.against[0], claim.against[2])]
            if claim.against
            else []
        )
        numbers = [cells.get(term) for term in terms]
        if claim.paper_delta is not None and name in OF_A_PAPER:
            assert None not in numbers, claim.id
            size = sum(
                sign * (number or 0.0) for sign, number in zip((1, -1) * 2, numbers, strict=False)
            )
            assert claim.paper_delta == pytest.approx(size, abs=1e-6), claim.id
            assert (claim.paper_delta < 0) == (claim.direction in FALLING), claim.id


@pytest.mark.parametrize("name", sorted(set(list_experiments()) - set(OF_A_PAPER)))
def test_a_figure_has_no_numbers(name: str) -> None:
    for row in load(name).rows:
        assert set(row.cells) == {None}
