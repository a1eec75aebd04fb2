"""Claims in a file of their own, and whether a table of scores has what they name."""

from __future__ import annotations

from pathlib import Path

from clozelab.analysis.schema import ALL_COLUMNS, TableSpec
from clozelab.analysis.scores import ScoreTable
from clozelab.results.experiment import read_claims
from clozelab.text.did_you_mean import hint


def read_claim_file(path: Path) -> TableSpec:
    """The claims of a YAML file. ValueError: what it cannot mean, and where."""
    spec = read_claims(path)
    if not spec.claims:
        raise ValueError(f"{path}: no claims; `claims:` is a list, as in docs/claims.md")
    return spec


def check_names(table: ScoreTable, score_path: Path, claim_path: Path) -> None:
    """Every arm and task that a claim names has scores. ValueError: one that has none."""
    columns = [column.name for column in table.spec.columns]
    for index, claim in enumerate(table.spec.claims):
        where = f"{claim_path}: claims.{index}"
        for arm in claim.all_rows:
            if arm not in table.rows:
                raise ValueError(
                    f"{where}: {arm!r} is no arm of {score_path}; {hint(arm, table.rows)}"
                )
        claimed = [claim.column]
        # [row, row, column]: its rows are in `all_rows` already.
        if claim.against:
            claimed.append(claim.against[2])
        for column in claimed:
            if column not in (*columns, ALL_COLUMNS):
                raise ValueError(
                    f"{where}: {column!r} is no task of {score_path}; {hint(column, columns)}"
                )


def check_declared(table: ScoreTable, spec: TableSpec, claim_path: Path) -> None:
    """Every column with a unit has scores. ValueError: one that has none."""
    columns = [column.name for column in table.spec.columns]
    for column in spec.columns:
        if column.name not in columns:
            raise ValueError(
                f"{claim_path}: columns: {column.name!r} is no task of the scores;"
                f" {hint(column.name, columns)}"
            )
