"""Runs runs, the table and the verdicts, on made-up run folders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.records import change
from tests.results.made_runs import MadeRuns
from tests.results.words import forecast, judgement_note, read_claim

from claims.analysis import contrasts
from claims.analysis.contrasts import Contrast
from claims.analysis.schema import BaseClaim, Row
from claims.analysis.scores import Cell, Origin
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Judgement, judge
from claims.text.phrases import duration
from clozelab.report.problems import problems


def contrast_of(judgement: Judgement) -> Contrast:
    """The only contrast of a claim on one data set."""
    (only,) = judgement.resolved.contrasts
    return only


def test_a_substitute_is_judged_in_direction_only(runs: MadeRuns) -> None:
    runs.make({("mlm_nsp", "qnli_derived"): 80.0, ("mlm", "qnli_derived"): 70.0})
    nsp = runs.judge("nsp_helps_qnli")
    assert nsp.verdict == Verdict.HOLDS
    assert nsp.judged_on == "QNLI-derived"
    assert nsp.column is not None and nsp.column.origin is Origin.STAND_IN
    assert nsp.size_obstacle == "substitute: direction only"
    rows = [one.model_copy(update={"cells": []}) for one in runs.experiment.rows]
    assert runs.judge("nsp_helps_qnli", source="", rows=rows).size_obstacle == ""
    assert nsp.difference is not None and nsp.difference.mean == pytest.approx(-10.0, abs=1.0)


def test_a_claim_about_all_columns_lacks_one(runs: MadeRuns) -> None:
    tasks = ("mrpc", "snli_95k", "qnli_derived", "squad_v1")
    means = {("ltr", task): 50.0 for task in tasks} | {("mlm", task): 60.0 for task in tasks}
    runs.make(means)
    one = runs.judge("ltr_hurts_everywhere")
    assert one.verdict == Verdict.INCONCLUSIVE
    assert one.resolved.columns_without_data == ("SST-2",)
    assert one.judged_on == "4 of 5 columns"


def test_units_and_stand_ins(runs: MadeRuns) -> None:
    runs.make({("mlm", "squad_v1"): 0.8, ("mlm", "snli_95k"): 62.0})
    table = runs.table()
    squad = table.cells["mlm", "squad_v1"].estimate
    snli = table.cells["mlm", "snli_95k"].estimate
    assert squad is not None and squad.mean == pytest.approx(0.8, abs=0.6)  # percent already
    assert snli is not None and snli.mean == pytest.approx(62.0, abs=0.6)
    column = next(one for one in table.columns if one.key == "snli_95k")
    assert not column.is_paper and column.column is not None and column.column.name == "MNLI-m"
    assert [one.key for one in table.columns][:2] == ["paper:MNLI-m", "snli_95k"]


def test_unknown_task_is_a_column_of_its_own(runs: MadeRuns) -> None:
    runs.make({("mlm", "mrpc"): 70.0})
    folder = "finetune/mlm/pretrain-seed-1/mrpc/seed-1"
    runs.change(folder, config__task={"name": "other", "title": "Other", "stand_in_for": None})
    table = runs.table()
    assert table.columns[-1].heading == "Other" and table.columns[-1].column is None


@pytest.mark.parametrize(
    ("collapsed", "verdict"), [((1,), Verdict.HOLDS), ((1, 2, 3), Verdict.INCONCLUSIVE)]
)
def test_a_row_that_only_collapsed_decides_nothing(
    runs: MadeRuns,
    collapsed: tuple[int, ...],
    verdict: str,
) -> None:
    runs.make({("mlm", "mrpc"): 72.0}, finetune_seeds=(1,))
    for seed in (1, 2, 3):
        runs.finetune("ltr", "mrpc", (seed, 1), 68.3 + 0.01 * seed, collapsed=seed in collapsed)
    one = runs.judge()
    assert one.verdict == verdict
    cautions = [f"{len(collapsed)} collapsed run(s) of LTR & No NSP"]
    if verdict == Verdict.INCONCLUSIVE:
        cautions.append("every run of LTR & No NSP collapsed: it has measured nothing")
    assert list(contrast_of(one).context.cells) == cautions


BELOW = "No NSP has 12.9 on SQuAD F1, where the same head on random weights has 24.9"


def test_a_row_below_its_floor_decides_nothing(runs: MadeRuns) -> None:
    """As on real runs: left to right is 36.3 points above an MLM arm that random weights beat."""
    means = {("mlm", "squad_v1"): 12.9, ("ltr", "squad_v1"): 49.2, ("random", "squad_v1"): 24.8}
    runs.make(means, finetune_seeds=(2,))
    table = runs.table()
    one = runs.judge("ltr_hurts_squad")
    assert one.verdict == Verdict.BELOW_FLOOR and one.difference is not None and not forecast(one)
    assert one.difference.mean == pytest.approx(36.3, abs=0.3)
    assert one.corrected_p is not None and one.corrected_p < 0.05, "only the floor withholds it"
    below = contrast_of(one).context.below_baseline
    assert below.startswith("No NSP has 12.9 on SQuAD F1, where the same head on random weights")
    assert BELOW in problems(table)["Below the baseline"]
    # On real runs it failed before, as it does where the row has cleared its floor.
    runs.make(means | {("mlm", "squad_v1"): 25.9}, finetune_seeds=(2,), below="other")
    one = runs.judge("ltr_hurts_squad")
    assert one.verdict == Verdict.CONTRADICTED
    assert contrast_of(one).context.below_baseline == ""


def test_what_pretraining_gives_is_judged_against_the_floor(runs: MadeRuns) -> None:
    """That a row lies below its own floor is a finding, too."""
    said = {
        "text": "pre-training helps",
        "compare": ["mlm", "random", "MRPC"],
        "direction": "higher",
    }
    runs.make({("mlm", "mrpc"): 60.0, ("random", "mrpc"): 70.0})
    (one,) = judge(runs.table(claims=(read_claim(said),)))
    assert one.verdict == Verdict.CONTRADICTED
    assert contrast_of(one).context.below_baseline == ""


def test_without_a_floor_one_answer_is_the_floor(runs: MadeRuns) -> None:
    runs.make({("ltr", "mrpc"): 65.0})
    for seed in (1, 2, 3):
        for restart in (1, 2):
            runs.finetune(
                "mlm", "mrpc", (seed, restart), 75.0 + 0.1 * seed, majority_baseline=0.684
            )
    one = runs.judge()
    assert one.verdict == Verdict.BELOW_FLOOR
    assert contrast_of(one).context.below_baseline == (
        "LTR & No NSP has 65.0 on MRPC, where one fixed answer has 68.4"
    )


def test_a_mean_that_equals_its_floor_is_not_below_it(runs: MadeRuns) -> None:
    """271 and 287 of 408 are 279 on average, but for the last bit of a sum."""
    runs.make({})
    shares = 100 * 271 / 408, 100 * 287 / 408
    for seed, score in enumerate(shares, start=1):
        runs.finetune("mlm", "mrpc", (1, seed), score, majority_baseline=279 / 408)
    table = runs.table()
    (column,) = table.with_results
    estimate = table.cells["mlm", column.key].estimate
    assert estimate is not None and column.majority is not None
    assert estimate.mean < column.majority, "else this test says nothing"
    assert table.below_baseline("mlm", column) == ""


def test_methods_that_beat_rows_are_named_and_withhold_nothing(runs: MadeRuns) -> None:
    runs.make({("ltr", "mrpc"): 65.0})
    for seed in (1, 2, 3):
        for restart in (1, 2):
            known = {"baselines": {"bag of words": {"accuracy": 0.7}}}
            runs.finetune("mlm", "mrpc", (seed, restart), 75.0 + 0.1 * seed, **known)
    one = runs.judge()
    assert one.verdict == Verdict.HOLDS
    (line,) = problems(runs.table())["Below the baseline"]
    assert line == "LTR & No NSP below the surface baseline of MRPC (bag of words: 70.0)"


def test_a_chain_over_a_row_below_its_floor(runs: MadeRuns) -> None:
    said = {
        "text": "t",
        "rows": ["ltr", "mlm", "mlm_nsp"],
        "column": "MRPC",
        "direction": "increasing",
    }
    chain = read_claim(said)
    means = {
        ("ltr", "mrpc"): 60.0,
        ("mlm", "mrpc"): 70.0,
        ("mlm_nsp", "mrpc"): 80.0,
        ("random", "mrpc"): 65.0,
    }
    runs.make(means)
    (one,) = judge(runs.table(claims=(chain,)))
    assert one.verdict == Verdict.BELOW_FLOOR
    assert one.verdicts == (Verdict.BELOW_FLOOR, Verdict.HOLDS)
    # one step surely goes the other way, between two rows above their floor
    means[("mlm", "mrpc")] = 90.0
    runs.make(means, below="other")
    (one,) = judge(runs.table(claims=(chain,)))
    assert one.verdict == Verdict.CONTRADICTED


def test_a_verdict_says_which_runs_it_lacks(runs: MadeRuns) -> None:
    runs.make({("mlm", "mrpc"): 85.0, ("ltr", "mrpc"): 60.0}, pretrain_seeds=(1, 2))
    for seed in (1, 2):
        runs.finetune("mlm", "mrpc", (3, seed), 85.0)
        runs.finetune("ltr", "mrpc", (3, seed), 0.0, status="failed")
    one = runs.judge()
    assert one.difference is not None and one.difference.count == 2
    (caution,) = contrast_of(one).context.cells
    assert caution == "2 run(s) of LTR & No NSP missing"


@pytest.mark.parametrize(
    ("healthy", "verdict", "depends_on_collapsed_runs"),
    [(72.0, Verdict.INCONCLUSIVE, True), (60.0, Verdict.HOLDS, False)],
)
def test_no_verdict_rests_on_collapsed_runs(
    runs: MadeRuns,
    healthy: float,
    verdict: str,
    depends_on_collapsed_runs: bool,
) -> None:
    """One fine-tuning seed of every encoder of one row collapses: alone it would make a sure
    difference.
    """
    runs.make({}, pretrain_seeds=(1, 2, 3))
    for seed in (1, 2, 3):
        for tuning in (1, 2):
            runs.finetune("mlm", "mrpc", (seed, tuning), 72.0 + 0.1 * seed)
            runs.finetune(
                "ltr", "mrpc", (seed, tuning + 1), healthy + 0.2 * (seed % 2) + 0.05 * tuning
            )
        runs.finetune("mlm", "mrpc", (seed, 3), 72.1)
        runs.finetune("ltr", "mrpc", (seed, 1), 40.0 + 0.1 * seed, collapsed=True)
    one = runs.judge()
    assert (
        one.difference is not None
        and one.difference.high is not None
        and one.difference.high < -8.0
    )
    assert one.verdict == verdict
    assert one.weakest is not None and one.weakest.is_tested
    assert one.weakest.depends_on_collapsed_runs is depends_on_collapsed_runs
    assert (one.p_value == 1.0) is depends_on_collapsed_runs


def test_collapsed_runs_lend_no_spread(runs: MadeRuns) -> None:
    """Without them the difference is the same for every seed, which decides nothing."""
    runs.make({}, pretrain_seeds=(1, 2, 3))
    for seed in (1, 2, 3):
        for tuning in (1, 2):
            runs.finetune("mlm", "mrpc", (seed, tuning), 72.0)
        runs.finetune("ltr", "mrpc", (seed, 1), 60.0)
        runs.finetune("ltr", "mrpc", (seed, 2), 50.0 + 0.1 * seed, collapsed=True)
    one = runs.judge()
    assert one.difference is not None and not one.difference.has_no_spread
    assert one.verdict == Verdict.INCONCLUSIVE and not forecast(one)
    assert one.weakest is not None and one.weakest.depends_on_collapsed_runs


def test_seeds_with_one_encoder_are_copies(runs: MadeRuns) -> None:
    runs.make({("mlm", "mrpc"): 72.0, ("ltr", "mrpc"): 60.0})
    assert runs.judge().verdict == Verdict.HOLDS
    runs.change("finetune/*/*/*/*", config__initialisation="pretrained")
    for seed, encoder in ((1, "e"), (2, "e"), (3, "f")):
        runs.change(f"finetune/ltr/pretrain-seed-{seed}/*/*", inputs__encoder=encoder)
    one = runs.judge()
    assert one.verdict == Verdict.INCONCLUSIVE and not forecast(one)
    copies = "LTR & No NSP: pre-training seeds 1 and 2 are one and the same encoder"
    assert contrast_of(one).exclusions.duplicates == copies


def test_a_given_encoder_is_one_and_its_seeds_are_of_fine_tuning(runs: MadeRuns) -> None:
    """A claim about it is judged by how the other row's seeds and its fine-tunings vary."""
    runs.make({("mlm", "mrpc"): 72.0})
    for number, seed in enumerate((1, 2, 3)):
        for tuning in (1, 2):
            runs.finetune("given", "mrpc", (seed, tuning), 80.0 + 0.2 * number)
    runs.change("finetune/*/*/*/*", config__initialisation="pretrained", inputs__encoder="given")
    for seed in (1, 2, 3):
        mine = f"finetune/mlm/pretrain-seed-{seed}/*/*"
        runs.change(mine, inputs__encoder=f"of seed {seed}")
    line = {"row": "given", "label": "Given", "arm": None, "cells": [None] * 4}
    claim = read_claim(
        {"text": "t", "direction": "higher", "compare": ["given", "mlm", "MRPC"], "id": "ahead"}
    )

    def judge_given(**row: Any) -> Judgement:
        rows = (*runs.experiment.rows, Row(**(line | row)))
        return runs.judge("ahead", rows=rows, claims=(claim,))

    copies = judge_given()
    assert copies.verdict == Verdict.INCONCLUSIVE
    assert "one and the same encoder" in contrast_of(copies).exclusions.duplicates
    fixed = judge_given(fixed_encoder=True)
    assert fixed.verdict == Verdict.HOLDS and not contrast_of(fixed).exclusions.duplicates
    note = "Given is one encoder: its seeds are of fine-tuning alone"
    assert contrast_of(fixed).context.encoders == (note,)
    # One of its seeds fine-tuned another encoder.
    third = "finetune/given/pretrain-seed-3/*/seed-1"
    runs.change(third, inputs__encoder="another")
    mixed = judge_given(fixed_encoder=True)
    assert mixed.verdict == Verdict.NOT_COMPARABLE
    reason = contrast_of(mixed).exclusions.incomparability
    assert reason is not None
    assert reason.text == "Given says fixed_encoder, and its runs began with 2 encoders"
    runs.change(third, inputs__encoder="given")

    rows = (*runs.experiment.rows, Row(**(line | {"fixed_encoder": True})))
    assert not any("one and the same encoder" in line for line in runs.unequal(rows=rows))
    assert any("one and the same" in line for line in runs.unequal())
    with pytest.raises(ValueError, match="fixed_encoder is of a row whose encoder is given"):
        Row(**(line | {"fixed_encoder": True, "arm": "ltr"}))


def contrast(first: str, second: str) -> BaseClaim:
    """Left-to-right costs `first` more than `second`."""
    against = ("ltr", "mlm", second)
    return read_claim(
        {"text": "t", "compare": ["ltr", "mlm", first], "direction": "lower", "against": against}
    )


@pytest.mark.parametrize(
    ("columns", "tasks", "expected"),
    [
        # The paper's data with the paper's, a stand-in with the one at its place.
        (("MNLI-m", "QNLI"), ("mnli", "qnli"), {"MNLI-m against QNLI": ""}),
        (("MNLI-m", "QNLI"), ("snli_95k", "qnli_derived"), {"SNLI-95k against QNLI-derived": ""}),
        (
            ("MNLI-m", "QNLI"),
            ("mnli", "snli_95k", "qnli"),
            {
                "MNLI-m against QNLI": "",
                "SNLI-95k": "no run on qnli_derived, the counterpart of SNLI-95k in QNLI",
            },
        ),
        (
            ("MNLI-m", "QNLI"),
            ("mnli", "qnli_derived"),
            {
                "MNLI-m": "no run on qnli, the counterpart of MNLI-m in QNLI",
                "QNLI-derived": "no run on snli_95k, the counterpart of QNLI-derived in MNLI-m",
            },
        ),
        # A column with one data set by nature: nothing else could stand there.
        (("MRPC", "QNLI"), ("mrpc", "qnli_derived"), {"MRPC against QNLI-derived": ""}),
        (
            ("QNLI", "MRPC"),
            ("mrpc", "qnli", "qnli_derived"),
            {"QNLI against MRPC": "", "QNLI-derived against MRPC": ""},
        ),
    ],
)
def test_which_data_sets_a_difference_of_differences_pairs(
    runs: MadeRuns,
    columns: tuple[str, str],
    tasks: tuple[str, ...],
    expected: dict[str, str],
) -> None:
    means = {("ltr", task): 60.0 for task in tasks} | {("mlm", task): 70.0 for task in tasks}
    runs.make(means)
    found = judge(runs.table(claims=(contrast(*columns),)))
    assert {
        one.judged_on: judgement_note(one) for one in found if one.verdict == Verdict.NOT_COMPARABLE
    } == {name: reason for name, reason in expected.items() if reason}
    assert {one.judged_on for one in found} == set(expected)


def test_the_second_stand_in_never_stands_beside_the_first(runs: MadeRuns) -> None:
    """Both columns have a stand-in with runs, and they are different ones."""
    more = {"MNLI-m": ("mrpc", "snli_95k"), "QNLI": ("sst2", "qnli_derived")}
    listed = tuple(
        one.model_copy(update={"stand_ins": more.get(one.name, one.stand_ins)})
        for one in runs.experiment.columns
    )
    tasks = ("mrpc", "qnli_derived")
    means = {("ltr", task): 60.0 for task in tasks} | {("mlm", task): 70.0 for task in tasks}
    runs.make(means)
    short = tuple(one for one in listed if one.name not in ("MRPC", "SST-2"))
    found = judge(runs.table(columns=short, claims=(contrast("MNLI-m", "QNLI"),)))
    assert [one.verdict for one in found] == [Verdict.NOT_COMPARABLE] * 2
    assert {judgement_note(one) for one in found} == {
        "no run on sst2, the counterpart of MRPC in QNLI",
        "no run on snli_95k, the counterpart of QNLI-derived in MNLI-m",
    }


@pytest.mark.parametrize("averaging", ["", "mean", "median", "best"])
def test_a_size_is_held_against_means_only(runs: MadeRuns, averaging: str) -> None:
    runs.make({("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0, ("mlm", "snli_95k"): 60.0})
    mrpc = runs.judge(averaging=averaging)
    mnli = runs.judge("nsp_helps_mnli", averaging=averaging)
    assert mrpc.verdict == Verdict.HOLDS and mnli.paper_size is None  # a stand-in's never is
    if averaging in ("", "mean"):
        assert mrpc.paper_size == -9.0
        assert mrpc.size_obstacle == ""
    else:
        assert mrpc.paper_size is None
        averages = {"median": "medians", "best": "the best"}[averaging]
        assert mrpc.size_obstacle == (
            f"the paper's numbers are {averages} of its runs, ours means: direction only"
        )


def test_what_is_needed_is_said_in_hours(runs: MadeRuns) -> None:
    """As these runs took: a seed is two pre-trainings and two times two fine-tunings of six minutes
    each.
    """
    means = {("ltr", "mrpc"): 70.4, ("mlm", "mrpc"): 70.0}
    runs.make(means)
    one = runs.judge()
    assert one.verdict == Verdict.INCONCLUSIVE and one.decisive_seeds is not None
    more = one.decisive_seeds - 3

    def needed() -> str:
        return forecast(runs.judge(), runs.table())

    together = f"; {more} more take about {duration(more * 6 * 360.0)}, as these runs took"
    assert needed().endswith(together)
    for number, path in enumerate(sorted(runs.root.glob("*/*/**/run.json"))):  # two at a time
        begin = f"2030-01-01T{number // 2:02d}:00:00+00:00"
        change(path.parent, started=begin, finished=begin.replace("00:00+", "06:00+"))
    assert needed().endswith(f"about {duration(more * 3 * 360.0)}, as these runs took")
    runs.change("pretrain/*/*", seconds=0.0)  # no time that is known: seeds alone
    assert needed().endswith("at this difference and spread")
    runs.make(means, pretrain_seeds=(1,), below="one")
    one_more = "needs 2 or more pre-training seeds; 1 more takes about 36.0 min, as these runs took"
    assert needed() == one_more


UNEXAMINED = (
    ("_other_scores", None),
    ("_other_targets", None),
    ("_other_tokens", None),
    ("_other_text", None),
    ("_evidence", []),
)


@pytest.mark.parametrize("is_measured", [False, True])
def test_a_given_encoder_is_measured_with_heads_of_several_seeds(
    monkeypatch: pytest.MonkeyPatch, is_measured: bool
) -> None:
    """They are of the arm that trains a head beside it; fine-tunings began with one encoder."""
    for name, value in UNEXAMINED:
        monkeypatch.setattr(contrasts, name, lambda *_, value=value: value)
    row = SimpleNamespace(fixed_encoder=True, label="As it is")
    runs = {(seed, 1): SimpleNamespace(encoder=f"seed {seed}", is_causal=None) for seed in (1, 2)}
    monkeypatch.setattr(contrasts, "_contributing_runs", lambda _: list(runs.values()))
    table: Any = SimpleNamespace(row=lambda _: row)
    term: Any = SimpleNamespace(row="given", column=SimpleNamespace(is_measured=is_measured))
    reason = contrasts._incomparability(table, [term], [Cell()])
    assert (reason is None) is is_measured
