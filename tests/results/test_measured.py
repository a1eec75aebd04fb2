"""Measured columns in a table: units, floors, scores that some encoders lack, and a sweep without
an experiment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.results.words import forecast, missing_in, why_barred, why_not

from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import judge
from claims.report.claims import claim_views
from claims.text.phrases import duration
from clozelab.report.problems import problems
from clozelab.results.adhoc import infer_table
from clozelab.results.experiment import Experiment, load_experiment
from clozelab.results.table import ResultTable, build_table
from clozelab.runs.find import find

PAPER = """
columns:
  - {name: MNLI, task: mnli}
  - {name: Left, from: evaluate, task: cloze, metric: validation/accuracy/left}
  - {name: Both, from: evaluate, task: cloze, metric: validation/accuracy/both}
  - {name: Bits, from: evaluate, task: text, metric: validation/bits_per_character}
rows:
  - {row: mlm, arm: mlm, floor: random}
  - {row: ltr, arm: ltr, floor: random}
  - {row: random, arm: null}
matched_by: none
"""
LEFT, BOTH, BITS = (
    "validation/accuracy/left",
    "validation/accuracy/both",
    "validation/bits_per_character",
)


def declare(folder: Path, text: str = PAPER) -> Experiment:
    """The experiment of this paper.yaml."""
    (folder / "mine").mkdir(exist_ok=True)
    (folder / "mine/paper.yaml").write_text(text)
    return load_experiment(folder / "mine")


@pytest.fixture
def table(tmp_path: Path, writers: Any) -> ResultTable:
    # The row that is read last has no score from both sides: it must not speak for the column.
    for row, left, both, bits in (
        ("mlm", 0.1, 0.4, 1.5),
        ("random", 0.0, 0.0, 2.2),
        ("ltr", 0.3, None, 2.5),
    ):
        for seed in (1, 2):
            scores = {LEFT: left} | ({} if both is None else {BOTH: both})
            writers.evaluation(
                tmp_path / "runs",
                row,
                "cloze",
                seed,
                scores,
                majorities={LEFT: 0.085, BOTH: 0.085},
                experiment="mine",
            )
            writers.evaluation(
                tmp_path / "runs", row, "text", seed, {BITS: bits + seed / 100}, experiment="mine"
            )
    return build_table(declare(tmp_path), find(tmp_path / "runs"))


def cells(table: ResultTable, heading: str) -> dict[str, float | None]:
    column = next(one for one in table.columns if one.heading == heading)
    found = {row: table.cells[row, column.key].estimate for row in table.rows}
    return {row: one and round(one.mean, 3) for row, one in found.items()}


def test_each_column_has_its_own_score_and_unit(table: ResultTable) -> None:
    assert [one.heading for one in table.columns] == ["MNLI", "Left", "Both", "Bits"]
    assert [one.unit for one in table.columns] == [
        "percent",
        "percent",
        "percent",
        "bits",
    ]
    assert cells(table, "Left") == {"mlm": 10.0, "ltr": 30.0, "random": 0.0}
    assert cells(table, "Both") == {"mlm": 40.0, "ltr": None, "random": 0.0}
    assert cells(table, "Bits") == {"mlm": 1.515, "ltr": 2.515, "random": 2.215}
    assert not table.cells["mlm", "text"].missing and not table.excluded
    assert [one.majority for one in table.columns] == [None, 8.5, 8.5, None], "of each figure"


def test_a_mean_of_measures_stands_in_for_nothing(table: ResultTable, tmp_path: Path) -> None:
    mean = "  - {name: Mean, mean_of: [Left, Both]}\nrows:"
    experiment = declare(tmp_path, PAPER.replace("rows:", mean))
    with_mean = build_table(experiment, find(tmp_path / "runs"))
    headings = [column.heading for column in with_mean.columns]
    assert headings == [column.heading for column in table.columns] + ["Mean"]
    column = with_mean.columns[-1]
    assert column.is_measured and "substitute" not in column.role
    assert cells(with_mean, "Mean") == {"mlm": 25.0, "ltr": None, "random": 0.0}


def test_evaluations_of_unknown_rows_are_left_out_and_named(
    table: ResultTable, writers: Any, tmp_path: Path
) -> None:
    assert "Left out" not in problems(table)
    for seed in (1, 2):
        writers.evaluation(tmp_path / "runs", "other", "text", seed, {BITS: 1.0}, experiment="mine")
    found = problems(build_table(table.experiment, find(tmp_path / "runs")))
    assert found["Left out"] == ["2 runs of row other, which paper.yaml does not have"]


def test_a_loss_is_below_its_floor_where_it_is_larger(table: ResultTable) -> None:
    column = next(one for one in table.columns if one.heading == "Bits")
    assert table.below_baseline("mlm", column) == ""
    below = table.below_baseline("ltr", column)
    assert below.endswith("has 2.515 on Bits, where the same head on random weights has 2.215")


def test_evaluations_with_another_arms_encoder_are_named(
    table: ResultTable, writers: Any, tmp_path: Path
) -> None:
    """As after `evaluate row=ltr encoder_arm=mlm`."""
    for place, arms in (("misfiled", ("mlm", "mlm")), ("right", ("mlm", "ltr"))):
        for row, arm in zip(("mlm", "ltr"), arms, strict=True):
            for seed in (1, 2):
                writers.evaluation(
                    tmp_path / place,
                    row,
                    "text",
                    seed,
                    {BITS: 2.0},
                    experiment="mine",
                    encoder_arm=arm,
                )
        other = why_not(
            build_table(table.experiment, find(tmp_path / place)), "mlm", "ltr", ["text"]
        )
        why = (
            "not what it is called: paper.yaml says arm ltr of the row ltr, and 2 of 2 runs have"
            " the encoder of mlm"
        )
        assert other.startswith(why) if place == "misfiled" else not other


def test_rows_of_another_protocol_are_not_comparable(
    table: ResultTable, writers: Any, tmp_path: Path
) -> None:
    assert why_not(table, "mlm", "ltr", ["text"]) == ""
    for row, tokens in (("mlm", 100), ("ltr", 200)):
        writers.evaluation(
            tmp_path / "other",
            row,
            "text",
            1,
            {BITS: 2.0},
            experiment="mine",
            max_unknown_tokens=tokens,
        )
    other = build_table(table.experiment, find(tmp_path / "other"))
    reason = why_barred(other, "mlm", "ltr", ["text"])
    assert reason.code == "other protocol"
    assert "fine-tuned with max_unknown_tokens 100 against 200," in reason.text


def test_a_folder_of_evaluations_has_a_table_of_its_own(table: ResultTable) -> None:
    found = infer_table(table.runs)
    assert sorted(one.heading for one in found.columns) == ["The cloze", "The text"]
    bits = next(one for one in found.columns if one.heading == "The text")
    assert bits.unit == "bits" and found.cells["mlm", bits.key].estimate.mean == pytest.approx(
        1.515
    )
    assert bits.decimals == 3, "models differ by hundredths of a bit"


def test_what_one_more_seed_of_a_measure_takes(tmp_path: Path, writers: Any) -> None:
    """As these runs took: two pre-trainings and two evaluations of six minutes each."""
    claim = "  - {text: left, compare: [ltr, mlm, Left], direction: higher}"
    arms = "arms: {mlm: {}, ltr: {}}"
    experiment = declare(tmp_path, f"{PAPER}{arms}\nclaims:\n{claim}\n")
    root = tmp_path / "runs" / "mine" / "demo"
    for row, left in (("mlm", 0.1), ("ltr", 0.12)):
        for seed in (1, 2, 3):
            writers.pretrain(root, row, seed)
            writers.evaluation(
                root, row, "cloze", seed, {LEFT: left + 0.01 * seed**2 * (row == "ltr")}
            )
    table = build_table(experiment, find(root))
    (one,) = judge(table)
    assert one.verdict == Verdict.INCONCLUSIVE and one.decisive_seeds
    more = one.decisive_seeds - 3
    assert forecast(one, table).endswith(
        f"; {more} more take about {duration(more * 4 * 360.0)}, as these runs took"
    )


def test_a_claim_about_a_measure_is_never_the_papers(tmp_path: Path, writers: Any) -> None:
    """The table has numbers of a paper, which has no such column."""
    claims = "".join(
        f"  - {{text: {text}, compare: [ltr, mlm, {column}], direction: higher}}\n"
        for text, column in (
            ("left", "Left"),
            ("tuned", "MRPC"),
            ("text of which there is none", "Bits"),
        )
    )
    arms = "arms: {mlm: {}, ltr: {}}\nsource: a paper\nsplit: dev\n"
    paper = PAPER.replace("MNLI, task: mnli", "MRPC, task: mrpc").replace(
        "arm: mlm, floor", "arm: mlm, cells: [83.0, null, null, null], floor"
    )
    experiment = declare(tmp_path, f"{paper}{arms}claims:\n{claims}")
    root = tmp_path / "runs" / "mine" / "demo"
    for row, left in (("mlm", 0.1), ("ltr", 0.5)):
        for seed in (1, 2, 3):
            writers.evaluation(
                root, row, "cloze", seed, {LEFT: left + 0.01 * seed**2 * (row == "ltr")}
            )
            writers.finetune(root, row, "mrpc", (seed, 1), 60.0 + seed)
    table = build_table(experiment, find(root))
    left, tuned, none = claim_views(judge(table), table)
    assert none.claimed == "claimed: higher"
    assert missing_in(judge(table)[2]) == "no run on Bits or a substitute for it"
    assert left.sentence.endswith("claimed: higher") and left.figures.paper == "higher (ours)"
    assert tuned.sentence.endswith("the paper: higher") and tuned.figures.paper == "higher"
