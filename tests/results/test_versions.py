"""A column compares runs of one results version, the newest that it has; older runs are named and
in no cell.
"""

from __future__ import annotations

import csv
import json
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.results.made_runs import MadeRuns
from tests.results.words import judgement_note, why_not
from tests.screens import shows

from claims.analysis.verdict_codes import Verdict
from clozelab.report.problems import problems
from clozelab.report.render import write_results
from clozelab.results.evidence import find_outdated
from clozelab.results.table import ResultTable
from clozelab.runs.find import find
from clozelab.runs.identity import RESULTS_VERSIONS, results_version_of
from clozelab.runs.inputs import encoder_fingerprint
from clozelab.text.plain import with_changes

MEANS = {("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0}
OLD = RESULTS_VERSIONS["finetune"] - 1
HEADING = "Another results version"


@pytest.fixture
def runs(runs: MadeRuns) -> MadeRuns:
    runs.make(MEANS, pretrain_seeds=(1, 2, 3, 4))
    return runs


def make_older(runs: MadeRuns, pattern: str) -> int:
    """Lower the results version of all runs that match; how many they are."""
    files = list(runs.root.glob(f"{pattern}/run.json"))
    assert files
    for path in files:
        state = json.loads(path.read_text())
        path.write_text(json.dumps(state | {"results_version": state["results_version"] - 1}))
    return len(files)


def seeds_in(table: ResultTable, row: str) -> set[int]:
    return {first for first, _ in table.cells[row, "mrpc"].scores}


def test_runs_of_one_older_version_are_compared(runs: MadeRuns) -> None:
    make_older(runs, "**")
    table = runs.table()
    assert not table.outdated and HEADING not in problems(table)
    assert seeds_in(table, "mlm") == {1, 2, 3, 4}
    assert runs.judge().verdict == Verdict.HOLDS


def test_older_runs_of_a_column_are_in_no_cell_and_named(runs: MadeRuns, tmp_path: Path) -> None:
    count = make_older(runs, "finetune/*/pretrain-seed-[12]/*/*")
    table = runs.table()
    assert seeds_in(table, "mlm") == seeds_in(table, "ltr") == {3, 4}
    (note,) = table.cells["mlm", "mrpc"].notes
    assert note == "4 run(s) of an older results version left out"
    (line,) = problems(table)[HEADING]
    assert line.startswith(
        f"finetune mrpc: {count} run(s) of ltr, mlm are of results version {OLD}, and beside the"
        f" others take {OLD + 1}"
    )
    # The judge sees the same runs as the cells, and results.csv says which count.
    difference = runs.judge().difference
    assert difference is not None and difference.count == 2
    write_results(tmp_path / "results.csv", table, "demo")
    with (tmp_path / "results.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["stage"] == "finetune"]
    assert {line["pretrain_seed"] for line in lines if line["counts"] == "True"} == {"3", "4"}
    assert {line["pretrain_seed"] for line in lines} == {"1", "2", "3", "4"}


def test_a_row_of_an_older_version_alone_is_not_compared_with_a_newer_one(runs: MadeRuns) -> None:
    make_older(runs, "finetune/ltr/*/*/*")
    table = runs.table()
    assert seeds_in(table, "mlm") == {1, 2, 3, 4} and not seeds_in(table, "ltr")
    found = runs.judge()
    assert found.verdict == Verdict.NOT_COMPARABLE
    assert (
        f"of ltr are of results version {OLD}, and beside the others take {OLD + 1}, and no"
        " comparison" in judgement_note(found)
    )
    assert why_not(table, "mlm", "ltr", ["mrpc"]) == why_not(table, "ltr", "mlm", ["mrpc"])


NEGATIVES = {"data": {"negative_columns": ["worse"]}}
WEIGHTED = {"sources": [{"name": "web", "weight": 3.0}, {"name": "books"}]}
FROM_CORPUS = {"input": {"negative_scope": "corpus"}}


@pytest.mark.parametrize(
    ("stage", "place", "own", "of_all"),
    [
        ("finetune", "finetune/ltr/*/*/*", {"task": NEGATIVES}, {}),
        ("pretrain", "pretrain/ltr/*", {"corpus": WEIGHTED}, {"objective": FROM_CORPUS}),
    ],
)
@pytest.mark.parametrize("is_old", [False, True])
def test_keys_with_a_version_of_their_own_are_compared_with_rows_that_lack_them(
    runs: MadeRuns,
    stage: str,
    place: str,
    own: dict[str, Any],
    of_all: dict[str, Any],
    is_old: bool,
) -> None:
    has_key = set(runs.root.glob(f"{place}/run.json"))
    assert has_key
    for path in runs.root.glob(f"{stage}/**/run.json"):
        state = json.loads(path.read_text())
        added = with_changes(of_all, own) if path in has_key else of_all
        state["config"] = with_changes(state["config"], added)
        if not (is_old and path in has_key):
            state["results_version"] = results_version_of(stage, state["config"])
        path.write_text(json.dumps(state))
    outdated = find_outdated(getattr(find(runs.root), stage), ())
    # Old ones were made before the key had a version of its own.
    assert {path / "run.json" for path in outdated} == (has_key if is_old else set())
    for folder, reason in outdated.items():
        state = json.loads((folder / "run.json").read_text())
        needed = results_version_of(stage, state["config"])
        assert f"version {state['results_version']}, " in reason and f"take {needed}" in reason


def test_runs_on_encoders_of_an_older_version_are_left_out_with_them(runs: MadeRuns) -> None:
    runs.change("finetune/*/*/*/*", config__initialisation="pretrained")
    for row in ("mlm", "ltr"):
        runs.change(f"finetune/{row}/*/*/*", config__encoder_arm=row)
    make_older(runs, "pretrain/*/seed-1")
    table = runs.table()
    assert seeds_in(table, "mlm") == seeds_in(table, "ltr") == {2, 3, 4}
    shows(
        "\n".join(problems(table)[HEADING]),
        "pretrain: 3 run(s) of ltr, mlm, mlm_nsp are of results version 5",
        "finetune mrpc: 4 run(s) of ltr, mlm are on encoders of an older results",
    )


def test_runs_on_an_encoder_that_was_trained_anew_stay(runs: MadeRuns) -> None:
    """Both pre-trainings of mlm's first seed are there; its fine-tunings began with the new one."""
    make_older(runs, "pretrain/*/seed-1")
    old = runs.root / "pretrain/mlm/seed-1"
    new = runs.root / "pretrain/mlm/new/seed-1"
    shutil.copytree(old, new)
    # With another learning rate it is no copy of a run of the same name.
    version = RESULTS_VERSIONS["pretrain"]
    runs.change("pretrain/mlm/new/*", results_version=version, config__learning_rate=2e-4)
    encoders = {}
    for folder in (old, new):
        (folder / "encoder").mkdir()
        (folder / "encoder/config.json").write_text("{}")
        (folder / "encoder/checksums.json").write_text(json.dumps({"of": str(folder)}))
        encoders[folder] = encoder_fingerprint(folder / "encoder")
    for row in ("mlm", "ltr"):
        runs.change(f"finetune/{row}/*/*/*", config__encoder_arm=row)
    runs.change(
        "finetune/*/*/*/*", config__initialisation="pretrained", inputs__encoder=encoders[old]
    )
    runs.change("finetune/mlm/*/*/seed-2", inputs__encoder=encoders[new])
    table = runs.table()
    assert (1, 2) in table.cells["mlm", "mrpc"].scores
    assert (1, 1) not in table.cells["mlm", "mrpc"].scores, "it began with the old one"
    assert seeds_in(table, "ltr") == {2, 3, 4}, "no encoder of its own is of the new version"


def test_other_columns_keep_their_own_version(runs: MadeRuns) -> None:
    for row, seed in product(("mlm", "ltr"), (1, 2, 3, 4)):
        runs.finetune(row, "sst2", (seed, 1), 80.0)
        runs.finetune(row, "sst2", (seed, 2), 80.0)
    make_older(runs, "finetune/*/*/sst2/*")
    table = runs.table()
    assert not table.outdated
    assert len(table.cells["ltr", "sst2"].scores) == len(table.cells["ltr", "mrpc"].scores) > 0


def test_versions_may_be_what_rows_differ_in(runs: MadeRuns) -> None:
    make_older(runs, "finetune/ltr/*/*/*")
    differ_in = ("results_version",)
    assert not runs.table(differ_in=differ_in).outdated
    assert runs.judge(differ_in=differ_in).verdict == Verdict.HOLDS


def test_a_newer_run_that_failed_leaves_nothing_out(runs: MadeRuns) -> None:
    make_older(runs, "**")
    folder = "finetune/mlm/pretrain-seed-1/mrpc/seed-1"
    runs.change(folder, results_version=OLD + 1, status="failed")
    assert not runs.table().outdated
