"""What paper.yaml may say: four kinds of claims, three kinds of columns, and an error for everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from clozelab.config import EXPERIMENTS_DIR
from clozelab.verdicts.experiment import Part, load_experiment
from clozelab.verdicts.paper import CONTRAST, MONOTONE, ORDER, SPREAD, Claim

HEAD = """
title: T
source: S
split: dev
columns:
  - {name: MNLI, metric: validation/accuracy, task: mnli, stand_ins: [], benchmarks: []}
  - {name: MRPC, metric: validation/accuracy, task: mrpc, stand_ins: [], benchmarks: []}
  - {name: perplexity, from: pretrain, metric: validation/perplexity}
  - {name: Average, mean_of: [MNLI, MRPC]}
rows:
  - {row: small, label: Small, arm: small, cells: [80.0, 70.0, 5.84, 75.0]}
  - {row: base, label: Base, arm: base, cells: [82.0, 75.0, 3.99, 78.5]}
  - {row: large, label: Large, arm: large, cells: [83.0, null, 3.23, null]}
"""
MONOTONE_ENTRY = (
    "{id: a, text: t, paper_delta: null, rows: [small, base, large], column: perplexity, direction: decreasing}"
)
SPREAD_ENTRY = "{id: b, text: t, paper_delta: null, rows: [small, base], column: MNLI, direction: within, points: 1.0}"
CONTRAST_ENTRY = (
    "{id: c, text: t, paper_delta: -3, compare: [base, small, MNLI], against: [base, small, MRPC], direction: lower}"
)
EACH_ENTRY = "{id: e, text: t, paper_delta: null, compare: [large, [small, base], MNLI], direction: higher}"
UNPRINTED = "large, small, MRPC"
"""A difference of which one cell is empty: any size may be said of it."""
ORDER_ENTRY = "{id: d, text: t, paper_delta: 2.0, compare: [base, small, MNLI], direction: higher}"


def claims_of(folder: Path, *entries: str, head: str = HEAD) -> tuple[Claim, ...]:
    (folder / "paper.yaml").write_text(head + f"claims: [{', '.join(entries)}]\n")
    return load_experiment(folder).claims


def test_four_kinds(tmp_path: Path) -> None:
    found = claims_of(tmp_path, MONOTONE_ENTRY, SPREAD_ENTRY, CONTRAST_ENTRY, ORDER_ENTRY)
    assert [one.kind for one in found] == [MONOTONE, SPREAD, CONTRAST, ORDER]
    assert found[0].pairs == [("base", "small"), ("large", "base")] and found[0].is_lower
    assert found[1].points == 1.0 and found[1].in_words() == "within 1"
    assert found[2].against == ("base", "small", "MRPC")
    assert found[3].pairs == [("base", "small")] and not found[3].is_lower


def test_three_kinds_of_columns(tmp_path: Path) -> None:
    claims_of(tmp_path)
    columns = {one.name: one for one in load_experiment(tmp_path).columns}
    assert columns["perplexity"].unit == "perplexity" and columns["MNLI"].unit == "percent"
    assert columns["Average"].parts == ((Part("MNLI"),), (Part("MRPC"),))
    assert [one.is_task for one in columns.values()] == [True, True, False, False]
    assert not columns["Average"].accepts("", None)


@pytest.mark.parametrize("delta", ["null", "0", "0.0"])
def test_a_size_of_none_contradicts_no_direction(tmp_path: Path, delta: str) -> None:
    entry = ORDER_ENTRY.replace("paper_delta: 2.0", f"paper_delta: {delta}").replace("base, small, MNLI", UNPRINTED)
    for direction in ("lower", "higher"):
        (found,) = claims_of(tmp_path, entry.replace("direction: higher", f"direction: {direction}"))
        assert found.direction == direction and not found.paper_delta


def test_a_row_against_each_of_several(tmp_path: Path) -> None:
    (found,) = claims_of(tmp_path, EACH_ENTRY)
    assert (found.kind, found.rows) == (ORDER, ("large", "small", "base"))
    assert found.pairs == [("large", "small"), ("large", "base")] and not found.is_lower


@pytest.mark.parametrize(
    ("entry", "old", "new", "message"),
    [
        (MONOTONE_ENTRY, "decreasing", "down", "direction is 'down'; it is one of increasing, decreasing, within"),
        (MONOTONE_ENTRY, "small, base, large", "small", "rows needs two or more different rows"),
        (MONOTONE_ENTRY, "small, base, large", "small, base, small", "rows needs two or more different rows"),
        (MONOTONE_ENTRY, "small, base", "smal, base", "'smal' is none of the rows; did you mean 'small'"),
        (MONOTONE_ENTRY, "perplexity", "perplexit", "'perplexit' is none of the columns; did you mean 'perplexity'"),
        (MONOTONE_ENTRY, ", column: perplexity", "", "needs exactly the keys"),
        (SPREAD_ENTRY, ", points: 1.0", "", r"needs exactly the keys .*'points'"),
        (SPREAD_ENTRY, "points: 1.0", "points: 0", "points is 0; it is a number above 0"),
        (SPREAD_ENTRY, "points: 1.0", "points: true", "points is True"),
        (MONOTONE_ENTRY, "direction: decreasing", "direction: decreasing, points: 1.0", "needs exactly the keys"),
        (CONTRAST_ENTRY, "small, MRPC]", "small, perplexity]", "compare is in percent .* and against in perplexity"),
        (CONTRAST_ENTRY, "small, MRPC]", "small, all]", "against is .*'all' is none of the columns"),
        (CONTRAST_ENTRY, "small, MRPC]", "small, MNLI]", "against is the same difference as compare"),
        (CONTRAST_ENTRY, "against: [base, small, MRPC]", "against: [base, MRPC]", r"against is \[row, row, column\]"),
        (CONTRAST_ENTRY, "direction: lower", "direction: within", "direction is 'within'; it is one of lower, higher"),
        (EACH_ENTRY, "null", "1.0", "paper_delta is 1.0; of several differences it is null"),
        (EACH_ENTRY, "[small, base]", "[small]", "with different rows in the list"),
        (EACH_ENTRY, "[small, base]", "[small, small]", "with different rows in the list"),
        (EACH_ENTRY, "[small, base]", "[small, large]", "compares 'large' with itself"),
        (EACH_ENTRY, "[small, base]", "[small, bas]", "'bas' is none of the rows; did you mean 'base'"),
        (EACH_ENTRY, "MNLI]", "MNL]", "'MNL' is none of the columns; did you mean 'MNLI'"),
        (CONTRAST_ENTRY, "[base, small, MRPC]", "[base, [small, large], MRPC]", "is none of the rows"),
        (ORDER_ENTRY, "base, small", "base, base", "compares 'base' with itself"),
        (ORDER_ENTRY, "paper_delta: 2.0", "paper_delta: lots", "paper_delta is 'lots'; it is a number"),
        (ORDER_ENTRY, "direction: higher", "direction: lower", r"paper_delta is 2\.0, and direction is lower: .*wrong"),
        (ORDER_ENTRY, "paper_delta: 2.0", "paper_delta: -2.0", r"paper_delta is -2\.0, and direction is higher"),
        (MONOTONE_ENTRY, "paper_delta: null", "paper_delta: 1.5", r"paper_delta is 1\.5, and direction is decreasing"),
        (MONOTONE_ENTRY, "paper_delta: null", "paper_delta: -1.5", r"is -1\.5; of several differences it is null"),
        (ORDER_ENTRY, "2.0", "20.0", r"paper_delta is 20, and its cells say 2$"),
        (CONTRAST_ENTRY, "-3", "-7", r"paper_delta is -7, and its cells say -3$"),
        (ORDER_ENTRY, "small, MNLI", "small, all", r"paper_delta is 2\.0; of several differences it is null"),
        (CONTRAST_ENTRY, "paper_delta: -3", "paper_delta: 3", "paper_delta is 3, and direction is lower"),
    ],
)
def test_bad_claims(tmp_path: Path, entry: str, old: str, new: str, message: str) -> None:
    assert old in entry
    with pytest.raises(ValueError, match=rf"paper\.yaml: claims\.1: .*{message}"):
        claims_of(tmp_path, ORDER_ENTRY.replace("id: d", "id: z"), entry.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("from: pretrain", "from: pretraining", r"columns\.2: from is 'pretraining'; it is pretrain"),
        ("mean_of: [MNLI, MRPC]", "mean_of: [MNLI, MRPCC]", r"columns\.3: mean_of: 'MRPCC' .*; did you mean 'MRPC'"),
        ("mean_of: [MNLI, MRPC]", "mean_of: [MNLI, perplexity]", r"columns\.3: mean_of: 'perplexity' is none of"),
        ("mean_of: [MNLI, MRPC]", "mean_of: [MNLI, [MRPC, MRPC]]", r"columns\.3: mean_of is .*two or more different"),
        ("mean_of: [MNLI, MRPC]", "mean_of: [[MNLI, MRPC]]", r"columns\.3: mean_of is .*two or more different"),
        ("mean_of: [MNLI, MRPC]", "mean_of: [MNLI, {MRP: f1}]", r"columns\.3: mean_of: 'MRP' .*did you mean 'MRPC'"),
        ("mean_of: [MNLI, MRPC]", "mean_of: MNLI", r"columns\.3: mean_of is 'MNLI'; it is a list of two or more"),
        ("mean_of: [MNLI, MRPC]", "mean_of: [MNLI], task: x", r"columns\.3: needs exactly the keys"),
        ("3.99, 78.5]", "3.99, 79.0]", r"rows\.1: Average is 79\.0, and the mean of its 2 columns is 78\.50"),
        ("name: MRPC", "name: MNLI", r"columns: name 'MNLI' is there twice"),
        ("split: dev", "split: dev\nmatched_by: luck", r"matched_by is 'luck'; it is one of steps, tokens"),
        ("split: dev", "split: dev\nseeds: many", r"seeds is 'many'; it is the number of runs"),
        ("split: dev", "split: dev\nseeds: 0", r"seeds is 0; it is the number of runs"),
        ("split: dev", "split: dev\naveraging: average", r"averaging is 'average'; it is one of mean, median, best"),
        ("split: dev", "split: dev\ndiffer_in: epochs", r"differ_in is 'epochs'; it is a list"),
    ],
)
def test_bad_tables(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in HEAD
    with pytest.raises(ValueError, match=rf"paper\.yaml: .*{message}|paper\.yaml: {message}"):
        claims_of(tmp_path, head=HEAD.replace(old, new))


def test_no_list_of_claims(tmp_path: Path) -> None:
    (tmp_path / "paper.yaml").write_text(HEAD + "claims:\n")
    with pytest.raises(ValueError, match=r"paper\.yaml: claims is None; it is a list"):
        load_experiment(tmp_path)


def test_a_claim_twice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="claims: id 'd' is there twice"):
        claims_of(tmp_path, ORDER_ENTRY, ORDER_ENTRY)


def test_what_arms_are_matched_by(tmp_path: Path) -> None:
    def matched(line: str) -> tuple[str, ...]:
        claims_of(tmp_path, head=HEAD.replace("split: dev", f"split: dev\n{line}"))
        return load_experiment(tmp_path).matched_by

    assert matched("") == ("steps", "tokens")
    assert matched("matched_by: tokens") == ("tokens",)
    assert matched("matched_by: none\nmatched_by_reason: it is about steps") == ()
    assert load_experiment(tmp_path).matched_reason == "it is about steps"


@pytest.mark.parametrize(
    ("lines", "words", "is_mean"),
    [
        ("", "", True),
        ("seeds: 5\naveraging: mean", "means of 5 runs a cell", True),
        ("seeds: 5\naveraging: median", "medians of 5 runs a cell", False),
        ("averaging: best", "the best of several runs a cell", False),
        ("seeds: 1", "over 1 run a cell", True),
    ],
)
def test_what_the_papers_cells_are_of_its_runs(tmp_path: Path, lines: str, words: str, is_mean: bool) -> None:
    claims_of(tmp_path, head=HEAD.replace("split: dev", f"split: dev\n{lines}"))
    found = load_experiment(tmp_path)
    assert (found.statistic, found.is_mean) == (words, is_mean)


def test_table_1s_averages_follow_from_its_cells() -> None:
    experiment = load_experiment(EXPERIMENTS_DIR / "table1_glue")
    names = [one.name for one in experiment.columns]
    assert names[9:] == ["Average", "GLUE score without WNLI"]
    assert experiment.columns[9].parts == tuple((Part(name),) for name in names[:9])
    rows = {row.label: dict(zip(names, row.cells, strict=True)) for row in experiment.rows}
    for label, printed in (("BERT-Base", 79.6), ("BERT-Large", 82.1)):
        cells = rows[label]
        columns = {name: cells[name] for name in names[:9]}
        mean = sum(columns.values()) / 9
        assert round(mean, 1) == printed == cells["Average"]
