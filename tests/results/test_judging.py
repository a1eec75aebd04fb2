"""Runs runs, the table and the verdicts, on made-up run folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.results.words import forecast, judgement_note, missing_in, read_claim, role_of
from tests.screens import shows

from claims.analysis import contrasts
from claims.analysis.contrasts import Contrast
from claims.analysis.schema import Row
from claims.analysis.scores import Cell, Origin
from claims.analysis.statistics import FINETUNING_SEEDS
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Judgement, judge
from claims.report.wording import summarise
from claims.text.phrases import duration
from clozelab.report.problems import inconsistencies, problems
from clozelab.results.experiment import Experiment, find_experiment, load_experiment
from clozelab.results.table import build_table
from clozelab.runs.find import find


@pytest.fixture
def experiment() -> Experiment:
    return load_experiment(find_experiment("table5_pretraining_tasks"))


def judged(experiment: Experiment, root: Path) -> dict[str, list[Judgement]]:
    found: dict[str, list[Judgement]] = {}
    for one in judge(build_table(experiment, find(root))):
        found.setdefault(one.claim.id, []).append(one)
    return found


def contrast_of(judgement: Judgement) -> Contrast:
    """The only contrast of a claim on one data set."""
    (only,) = judgement.resolved.contrasts
    return only


def test_clear_differences(experiment: Experiment, make_runs: Callable[..., Path]) -> None:
    root = make_runs(
        {
            ("mlm_nsp", "qnli_derived"): 80.0,
            ("mlm", "qnli_derived"): 70.0,
            ("mlm", "mrpc"): 70.0,
            ("ltr", "mrpc"): 85.0,
        }
    )
    found = judged(experiment, root)
    (nsp,) = found["nsp_helps_qnli"]
    assert nsp.verdict == Verdict.HOLDS
    assert nsp.judged_on == "QNLI-derived"
    assert nsp.column is not None and nsp.column.origin is Origin.STAND_IN
    assert nsp.size_obstacle == "substitute: direction only"
    rows = [one.model_copy(update={"cells": []}) for one in experiment.rows]
    unpublished = experiment.model_copy(update={"source": "", "rows": rows})
    for one in judged(unpublished, root)["nsp_helps_qnli"]:
        assert one.size_obstacle == ""
    assert nsp.difference is not None and nsp.difference.mean == pytest.approx(-10.0, abs=1.0)
    (mrpc,) = found["ltr_hurts_mrpc"]
    assert (mrpc.verdict, mrpc.judged_on) == (Verdict.CONTRADICTED, "MRPC")
    (squad,) = found["ltr_hurts_squad"]
    assert squad.verdict == Verdict.NOT_COMPARABLE
    assert missing_in(squad) == "no run on SQuAD F1 or a substitute for it"


def test_row_without_runs_is_named(experiment: Experiment, make_runs: Callable[..., Path]) -> None:
    (one,) = judged(experiment, make_runs({("ltr", "mrpc"): 70.0}))["ltr_hurts_mrpc"]
    assert one.verdict == Verdict.NOT_COMPARABLE
    assert missing_in(one) == "no complete run of No NSP"


def test_one_pretraining_seed_shows_the_difference(
    experiment: Experiment, make_runs: Callable[..., Path]
) -> None:
    root = make_runs(
        {("ltr", "mrpc"): 60.0, ("mlm", "mrpc"): 70.0},
        pretrain_seeds=(1,),
        finetune_seeds=(1, 2, 3),
    )
    (one,) = judged(experiment, root)["ltr_hurts_mrpc"]
    assert one.verdict == Verdict.ONE_SEED
    assert one.difference is not None
    assert one.difference.basis == FINETUNING_SEEDS and one.difference.low is not None


EVERY = ("mrpc", "snli_95k", "qnli_derived", "squad_v1")


def test_claim_about_all_columns(
    experiment: Experiment, make_runs: Callable[..., Path], writers: Any
) -> None:
    means = {("ltr", task): 50.0 for task in EVERY} | {("mlm", task): 60.0 for task in EVERY}
    root = make_runs(means)
    (one,) = judged(experiment, root)["ltr_hurts_everywhere"]
    assert one.verdict == Verdict.INCONCLUSIVE  # SST-2 has no runs
    assert one.resolved.columns_without_data == ("SST-2",)
    assert one.judged_on == "4 of 5 columns"
    short = experiment.model_copy(
        update={
            "columns": tuple(column for column in experiment.columns if column.name != "SST-2"),
            "rows": tuple(
                row.model_copy(update={"cells": (*row.cells[:3], row.cells[4])})
                for row in experiment.rows
            ),
        }
    )
    (one,) = judged(short, root)["ltr_hurts_everywhere"]
    assert one.verdict == Verdict.HOLDS


def test_one_confident_opposite_is_enough_to_fail(
    experiment: Experiment, make_runs: Callable[..., Path]
) -> None:
    means = {("ltr", task): 50.0 for task in EVERY} | {("mlm", task): 60.0 for task in EVERY}
    root = make_runs(means | {("ltr", "squad_v1"): 75.0})
    (one,) = judged(experiment, root)["ltr_hurts_everywhere"]
    assert one.verdict == Verdict.CONTRADICTED
    verdicts = {
        contrast.label: verdict
        for contrast, verdict in zip(one.resolved.contrasts, one.verdicts, strict=True)
    }
    assert verdicts["SQuAD F1"] == Verdict.CONTRADICTED
    assert list(verdicts.values()).count(Verdict.CONTRADICTED) == 1


def test_units_and_stand_ins(experiment: Experiment, make_runs: Callable[..., Path]) -> None:
    root = make_runs({("mlm", "squad_v1"): 0.8, ("mlm", "snli_95k"): 62.0})
    table = build_table(experiment, find(root))
    squad = table.cells["mlm", "squad_v1"].estimate
    snli = table.cells["mlm", "snli_95k"].estimate
    assert squad is not None and squad.mean == pytest.approx(0.8, abs=0.6)  # percent already
    assert snli is not None and snli.mean == pytest.approx(62.0, abs=0.6)
    column = next(one for one in table.columns if one.key == "snli_95k")
    assert not column.is_paper and column.column is not None and column.column.name == "MNLI-m"
    assert [one.key for one in table.columns][:2] == ["paper:MNLI-m", "snli_95k"]


def test_unknown_task_is_a_column_of_its_own(
    experiment: Experiment, make_runs: Callable[..., Path], writers: Any
) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0})
    folder = root / "finetune" / "mlm" / "pretrain-seed-1" / "other" / "seed-1"
    source = root / "finetune" / "mlm" / "pretrain-seed-1" / "mrpc" / "seed-1"
    folder.mkdir(parents=True)
    state = json.loads((source / "run.json").read_text())
    state["config"]["task"] = {"name": "other", "title": "Other", "stand_in_for": None}
    (folder / "run.json").write_text(json.dumps(state))
    table = build_table(experiment, find(root))
    assert table.columns[-1].heading == "Other" and table.columns[-1].column is None


def test_collapsed_runs_are_flagged(
    experiment: Experiment, make_runs: Callable[..., Path], writers: Any
) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0}, finetune_seeds=(1,))
    for seed in (1, 2, 3):
        writers.finetune(root, "mlm", "mrpc", (seed, 2), 31.6, collapsed=True)
    cell = build_table(experiment, find(root)).cells["mlm", "mrpc"]
    assert cell.num_collapsed == 3
    assert cell.estimate is not None and cell.estimate.mean == pytest.approx(50.8, abs=0.7)
    assert cell.without_collapsed is not None and cell.without_collapsed.mean == pytest.approx(
        70.0, abs=0.7
    )


@pytest.mark.parametrize(
    ("collapsed", "verdict"), [((1,), Verdict.HOLDS), ((1, 2, 3), Verdict.INCONCLUSIVE)]
)
def test_a_row_that_only_collapsed_decides_nothing(
    experiment: Experiment,
    make_runs: Callable[..., Path],
    writers: Any,
    collapsed: tuple[int, ...],
    verdict: str,
) -> None:
    root = make_runs({("mlm", "mrpc"): 72.0}, finetune_seeds=(1,))
    for seed in (1, 2, 3):
        writers.finetune(
            root, "ltr", "mrpc", (seed, 1), 68.3 + 0.01 * seed, collapsed=seed in collapsed
        )
    (one,) = judged(experiment, root)["ltr_hurts_mrpc"]
    assert one.verdict == verdict
    cautions = [f"{len(collapsed)} collapsed run(s) of LTR & No NSP"]
    if verdict == Verdict.INCONCLUSIVE:
        cautions.append("every run of LTR & No NSP collapsed: it has measured nothing")
    assert list(contrast_of(one).context.cells) == cautions


def test_missing_and_unfinished(
    experiment: Experiment, make_runs: Callable[..., Path], writers: Any
) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0}, pretrain_seeds=(1, 2), finetune_seeds=(1,))
    writers.finetune(root, "ltr", "mrpc", (1, 1), 0.0, status="running")
    writers.finetune(root, "ltr", "mrpc", (2, 1), 0.0, status="failed")
    table = build_table(experiment, find(root))
    assert table.cells["ltr", "mrpc"].missing == ((1, 1), (2, 1))
    assert table.cells["ltr", "mrpc"].estimate is None
    assert table.cells["mlm", "mrpc"].missing == ()


BELOW = "No NSP has 12.9 on SQuAD F1, where the same head on random weights has 24.9"


def test_a_row_below_its_floor_decides_nothing(
    experiment: Experiment, make_runs: Callable[..., Path]
) -> None:
    """As on real runs: left to right is 36.3 points above an MLM arm that random weights beat."""
    means = {("mlm", "squad_v1"): 12.9, ("ltr", "squad_v1"): 49.2, ("random", "squad_v1"): 24.8}
    root = make_runs(means, finetune_seeds=(2,))
    table = build_table(experiment, find(root))
    (one,) = judged(experiment, root)["ltr_hurts_squad"]
    assert one.verdict == Verdict.BELOW_FLOOR and one.difference is not None and not forecast(one)
    assert one.difference.mean == pytest.approx(36.3, abs=0.3)
    assert one.corrected_p is not None and one.corrected_p < 0.05, "only the floor withholds it"
    below = contrast_of(one).context.below_baseline
    assert below.startswith("No NSP has 12.9 on SQuAD F1, where the same head on random weights")
    assert BELOW in problems(table)["Below the baseline"]
    # On real runs it failed before, as it does where the row has cleared its floor.
    root = make_runs(means | {("mlm", "squad_v1"): 25.9}, finetune_seeds=(2,), below="other")
    (one,) = judged(experiment, root)["ltr_hurts_squad"]
    assert one.verdict == Verdict.CONTRADICTED
    assert contrast_of(one).context.below_baseline == ""


def test_what_pretraining_gives_is_judged_against_the_floor(
    experiment: Experiment, make_runs: Callable[..., Path]
) -> None:
    """That a row lies below its own floor is a finding, too."""
    said = {
        "text": "pre-training helps",
        "compare": ["mlm", "random", "MRPC"],
        "direction": "higher",
    }
    against = experiment.model_copy(update={"claims": (read_claim(said),)})
    (one,) = judge(
        build_table(against, find(make_runs({("mlm", "mrpc"): 60.0, ("random", "mrpc"): 70.0})))
    )
    assert one.verdict == Verdict.CONTRADICTED
    assert contrast_of(one).context.below_baseline == ""


def test_without_a_floor_one_answer_is_the_floor(
    experiment: Experiment, make_runs: Callable[..., Path], writers: Any
) -> None:
    root = make_runs({("ltr", "mrpc"): 65.0})
    for seed in (1, 2, 3):
        for restart in (1, 2):
            writers.finetune(
                root, "mlm", "mrpc", (seed, restart), 75.0 + 0.1 * seed, majority_baseline=0.684
            )
    (one,) = judged(experiment, root)["ltr_hurts_mrpc"]
    assert one.verdict == Verdict.BELOW_FLOOR
    assert contrast_of(one).context.below_baseline == (
        "LTR & No NSP has 65.0 on MRPC, where one fixed answer has 68.4"
    )


def test_a_mean_that_equals_its_floor_is_not_below_it(
    experiment: Experiment, make_runs: Callable[..., Path], writers: Any
) -> None:
    """271 and 287 of 408 are 279 on average, but for the last bit of a sum."""
    root = make_runs({})
    shares = 100 * 271 / 408, 100 * 287 / 408
    for seed, score in enumerate(shares, start=1):
        writers.finetune(root, "mlm", "mrpc", (1, seed), score, majority_baseline=279 / 408)
    table = build_table(experiment, find(root))
    (column,) = table.with_results
    estimate = table.cells["mlm", column.key].estimate
    assert estimate is not None and column.majority is not None
    assert estimate.mean < column.majority, "else this test says nothing"
    assert table.below_baseline("mlm", column) == ""


def test_methods_that_beat_rows_are_named_and_withhold_nothing(
    experiment: Experiment, make_runs: Callable[..., Path], writers: Any
) -> None:
    root = make_runs({("ltr", "mrpc"): 65.0})
    for seed in (1, 2, 3):
        for restart in (1, 2):
            known = {"baselines": {"bag of words": {"accuracy": 0.7}}}
            writers.finetune(root, "mlm", "mrpc", (seed, restart), 75.0 + 0.1 * seed, **known)
    (one,) = judged(experiment, root)["ltr_hurts_mrpc"]
    assert one.verdict == Verdict.HOLDS
    (line,) = problems(build_table(experiment, find(root)))["Below the baseline"]
    assert line == "LTR & No NSP below the surface baseline of MRPC (bag of words: 70.0)"


def test_a_chain_over_a_row_below_its_floor(
    experiment: Experiment, make_runs: Callable[..., Path]
) -> None:
    said = {
        "text": "t",
        "rows": ["ltr", "mlm", "mlm_nsp"],
        "column": "MRPC",
        "direction": "increasing",
    }
    chain = experiment.model_copy(update={"claims": (read_claim(said),)})
    means = {
        ("ltr", "mrpc"): 60.0,
        ("mlm", "mrpc"): 70.0,
        ("mlm_nsp", "mrpc"): 80.0,
        ("random", "mrpc"): 65.0,
    }
    (one,) = judge(build_table(chain, find(make_runs(means))))
    assert one.verdict == Verdict.BELOW_FLOOR
    assert one.verdicts == (Verdict.BELOW_FLOOR, Verdict.HOLDS)
    # one step surely goes the other way, between two rows above their floor
    means[("mlm", "mrpc")] = 90.0
    (one,) = judge(build_table(chain, find(make_runs(means, below="other"))))
    assert one.verdict == Verdict.CONTRADICTED


def test_a_verdict_says_which_runs_it_lacks(
    experiment: Experiment, make_runs: Callable[..., Path], writers: Any
) -> None:
    root = make_runs({("mlm", "mrpc"): 85.0, ("ltr", "mrpc"): 60.0}, pretrain_seeds=(1, 2))
    for seed in (1, 2):
        writers.finetune(root, "mlm", "mrpc", (3, seed), 85.0)
        writers.finetune(root, "ltr", "mrpc", (3, seed), 0.0, status="failed")
    (one,) = judged(experiment, root)["ltr_hurts_mrpc"]
    assert one.difference is not None and one.difference.count == 2
    (caution,) = contrast_of(one).context.cells
    assert caution == "2 run(s) of LTR & No NSP missing"


def test_generated_tasks_are_synthetic_without_any_pretraining_run(
    experiment: Experiment, make_runs: Callable[..., Path], writers: Any
) -> None:
    """Files in the official format and place, made by a generator: never the paper's data set."""
    root = make_runs({}, pretrain_seeds=())
    writers.finetune(root, "mlm", "mrpc", (1, 1), 70.0, synthetic="microworld")
    table = build_table(experiment, find(root))
    (column,) = (one for one in table.columns if one.key == "mrpc")
    assert column.origin is Origin.SYNTHETIC
    assert role_of(column) == "synthetic, for MRPC"
    shows(column.heading, "microworld MRPC")


def test_summary_is_in_words(experiment: Experiment, make_runs: Callable[..., Path]) -> None:
    one, *_ = judge(build_table(experiment, find(make_runs({("mlm", "mrpc"): 70.0}))))
    kinds = [
        replace(one, verdict=verdict)
        for verdict in (Verdict.HOLDS, Verdict.CONTRADICTED, Verdict.INCONCLUSIVE)
    ]
    assert summarise(kinds) == "1 holds, 1 contradicted, 1 inconclusive"
    assert summarise(kinds * 2) == "2 hold, 2 contradicted, 2 inconclusive"
    assert summarise([]) == "no claims"


def test_a_difference_with_and_without_collapsed_runs(
    experiment: Experiment, make_runs: Callable[..., Path], writers: Any
) -> None:
    root = make_runs({("mlm", "mrpc"): 72.0, ("ltr", "mrpc"): 70.0}, finetune_seeds=(1,))
    for seed in (1, 2, 3):
        writers.finetune(root, "mlm", "mrpc", (seed, 2), 72.0)
        writers.finetune(root, "ltr", "mrpc", (seed, 2), 31.6 + 0.1 * seed, collapsed=True)
    (one,) = judged(experiment, root)["ltr_hurts_mrpc"]
    assert one.difference is not None and one.difference.mean == pytest.approx(-21, abs=1)
    contrast = contrast_of(one)
    assert contrast.context.cells == ("3 collapsed run(s) of LTR & No NSP",)
    assert contrast.without_collapsed is not None
    assert -3.0 < contrast.without_collapsed.mean < -1.0


@pytest.mark.parametrize(
    ("healthy", "verdict", "depends_on_collapsed_runs"),
    [(72.0, Verdict.INCONCLUSIVE, True), (60.0, Verdict.HOLDS, False)],
)
def test_no_verdict_rests_on_collapsed_runs(
    experiment: Experiment,
    make_runs: Callable[..., Path],
    writers: Any,
    healthy: float,
    verdict: str,
    depends_on_collapsed_runs: bool,
) -> None:
    """One fine-tuning seed of every encoder of one row collapses: alone it would make a sure
    difference.
    """
    root = make_runs({}, pretrain_seeds=(1, 2, 3))
    for seed in (1, 2, 3):
        for tuning in (1, 2):
            writers.finetune(root, "mlm", "mrpc", (seed, tuning), 72.0 + 0.1 * seed)
            writers.finetune(
                root, "ltr", "mrpc", (seed, tuning + 1), healthy + 0.2 * (seed % 2) + 0.05 * tuning
            )
        writers.finetune(root, "mlm", "mrpc", (seed, 3), 72.1)
        writers.finetune(root, "ltr", "mrpc", (seed, 1), 40.0 + 0.1 * seed, collapsed=True)
    (one,) = judged(experiment, root)["ltr_hurts_mrpc"]
    assert (
        one.difference is not None
        and one.difference.high is not None
        and one.difference.high < -8.0
    )
    assert one.verdict == verdict
    assert one.weakest is not None and one.weakest.is_tested
    assert one.weakest.depends_on_collapsed_runs is depends_on_collapsed_runs
    assert (one.p_value == 1.0) is depends_on_collapsed_runs


def test_collapsed_runs_lend_no_spread(
    experiment: Experiment, make_runs: Callable[..., Path], writers: Any
) -> None:
    """Without them the difference is the same for every seed, which decides nothing."""
    root = make_runs({}, pretrain_seeds=(1, 2, 3))
    for seed in (1, 2, 3):
        for tuning in (1, 2):
            writers.finetune(root, "mlm", "mrpc", (seed, tuning), 72.0)
        writers.finetune(root, "ltr", "mrpc", (seed, 1), 60.0)
        writers.finetune(root, "ltr", "mrpc", (seed, 2), 50.0 + 0.1 * seed, collapsed=True)
    (one,) = judged(experiment, root)["ltr_hurts_mrpc"]
    assert one.difference is not None and not one.difference.has_no_spread
    assert one.verdict == Verdict.INCONCLUSIVE and not forecast(one)
    assert one.weakest is not None and one.weakest.depends_on_collapsed_runs


def test_seeds_with_one_encoder_are_copies(
    experiment: Experiment, make_runs: Callable[..., Path], writers: Any
) -> None:
    root = make_runs({("mlm", "mrpc"): 72.0, ("ltr", "mrpc"): 60.0})
    assert judged(experiment, root)["ltr_hurts_mrpc"][0].verdict == Verdict.HOLDS
    for path in root.glob("finetune/ltr/*/*/*/run.json"):
        state = json.loads(path.read_text())
        state["config"] |= {"initialisation": "pretrained"}
        state["inputs"] = {"encoder": "e" if state["config"]["pretrain_seed"] < 3 else "f"}
        path.write_text(json.dumps(state))
    for path in root.glob("finetune/mlm/*/*/*/run.json"):
        path.write_text(path.read_text().replace('"row"', '"initialisation": "pretrained", "row"'))
    (one,) = judged(experiment, root)["ltr_hurts_mrpc"]
    assert one.verdict == Verdict.INCONCLUSIVE and not forecast(one)
    copies = "LTR & No NSP: pre-training seeds 1 and 2 are one and the same encoder"
    assert contrast_of(one).exclusions.duplicates == copies


def test_a_given_encoder_is_one_and_its_seeds_are_of_fine_tuning(
    experiment: Experiment, make_runs: Callable[..., Path], writers: Any
) -> None:
    """A claim about it is judged by how the other row's seeds and its fine-tunings vary."""
    root = make_runs({("mlm", "mrpc"): 72.0})
    for number, seed in enumerate((1, 2, 3)):
        for tuning in (1, 2):
            writers.finetune(root, "given", "mrpc", (seed, tuning), 80.0 + 0.2 * number)
    for path in root.glob("finetune/*/*/*/*/run.json"):
        state = json.loads(path.read_text())
        state["config"] |= {"initialisation": "pretrained"}
        seed = state["config"]["pretrain_seed"]
        encoder = f"of seed {seed}"
        if state["config"]["row"] == "given":
            encoder = "given"
        path.write_text(json.dumps(state | {"inputs": {"encoder": encoder}}))
    line = {"row": "given", "label": "Given", "arm": None, "cells": [None] * 4}
    claim = read_claim(
        {"text": "t", "direction": "higher", "compare": ["given", "mlm", "MRPC"], "id": "ahead"}
    )

    def judge_given(**row: Any) -> Judgement:
        rows = (*experiment.rows, Row(**(line | row)))
        changed = experiment.model_copy(update={"rows": rows, "claims": (claim,)})
        (judgement,) = judged(changed, root)["ahead"]
        return judgement

    copies = judge_given()
    assert copies.verdict == Verdict.INCONCLUSIVE
    assert "one and the same encoder" in contrast_of(copies).exclusions.duplicates
    fixed = judge_given(fixed_encoder=True)
    assert fixed.verdict == Verdict.HOLDS and not contrast_of(fixed).exclusions.duplicates
    note = "Given is one encoder: its seeds are of fine-tuning alone"
    assert contrast_of(fixed).context.encoders == (note,)
    # One of its seeds fine-tuned another encoder.
    (other, *_) = root.glob("finetune/given/pretrain-seed-3/*/*/run.json")
    state = json.loads(other.read_text())
    other.write_text(json.dumps(state | {"inputs": {"encoder": "another"}}))
    mixed = judge_given(fixed_encoder=True)
    assert mixed.verdict == Verdict.NOT_COMPARABLE
    reason = contrast_of(mixed).exclusions.incomparability
    assert reason is not None
    assert reason.text == "Given says fixed_encoder, and its runs began with 2 encoders"
    other.write_text(json.dumps(state))

    rows = (*experiment.rows, Row(**(line | {"fixed_encoder": True})))
    lines = inconsistencies(experiment.model_copy(update={"rows": rows}), find(root))
    assert not any("one and the same encoder" in line for line in lines)
    assert any("one and the same" in line for line in inconsistencies(experiment, find(root)))
    with pytest.raises(ValueError, match="fixed_encoder is of a row whose encoder is given"):
        Row(**(line | {"fixed_encoder": True, "arm": "ltr"}))


def test_a_difference_without_spread_waits_for_one_more_seed(
    experiment: Experiment, make_runs: Callable[..., Path], writers: Any
) -> None:
    """Two honest seeds may differ by the same number of examples."""
    root = make_runs({}, pretrain_seeds=(1, 2))
    for seed in (1, 2):
        writers.finetune(root, "mlm", "mrpc", (seed, 1), 72.0 + seed)
        writers.finetune(root, "ltr", "mrpc", (seed, 1), 60.0 + seed)
    (one,) = judged(experiment, root)["ltr_hurts_mrpc"]
    assert one.verdict == Verdict.INCONCLUSIVE and one.corrected_p is None
    assert one.forecast is not None and one.forecast.additional_seeds == 1
    assert one.decisive_seeds is None, "no number of seeds decides without a spread"
    assert one.difference is not None and one.difference.has_no_spread


def contrast(experiment: Experiment, first: str, second: str) -> Experiment:
    """The experiment with one claim: left-to-right costs `first` more than `second`."""
    against = ("ltr", "mlm", second)
    claim = read_claim(
        {"text": "t", "compare": ["ltr", "mlm", first], "direction": "lower", "against": against}
    )
    return experiment.model_copy(update={"claims": (claim,)})


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
    experiment: Experiment,
    make_runs: Callable[..., Path],
    columns: tuple[str, str],
    tasks: tuple[str, ...],
    expected: dict[str, str],
) -> None:
    means = {("ltr", task): 60.0 for task in tasks} | {("mlm", task): 70.0 for task in tasks}
    root = make_runs(means)
    found = judge(build_table(contrast(experiment, *columns), find(root)))
    assert {
        one.judged_on: judgement_note(one) for one in found if one.verdict == Verdict.NOT_COMPARABLE
    } == {name: reason for name, reason in expected.items() if reason}
    assert {one.judged_on for one in found} == set(expected)


def test_the_second_stand_in_never_stands_beside_the_first(
    experiment: Experiment, make_runs: Callable[..., Path]
) -> None:
    """Both columns have a stand-in with runs, and they are different ones."""
    more = {"MNLI-m": ("mrpc", "snli_95k"), "QNLI": ("sst2", "qnli_derived")}
    listed = tuple(
        one.model_copy(update={"stand_ins": more.get(one.name, one.stand_ins)})
        for one in experiment.columns
    )
    tasks = ("mrpc", "qnli_derived")
    means = {("ltr", task): 60.0 for task in tasks} | {("mlm", task): 70.0 for task in tasks}
    root = make_runs(means)
    short = experiment.model_copy(
        update={"columns": tuple(one for one in listed if one.name not in ("MRPC", "SST-2"))}
    )
    found = judge(build_table(contrast(short, "MNLI-m", "QNLI"), find(root)))
    assert [one.verdict for one in found] == [Verdict.NOT_COMPARABLE] * 2
    assert {judgement_note(one) for one in found} == {
        "no run on sst2, the counterpart of MRPC in QNLI",
        "no run on snli_95k, the counterpart of QNLI-derived in MNLI-m",
    }


@pytest.mark.parametrize("averaging", ["", "mean", "median", "best"])
def test_a_size_is_held_against_means_only(
    experiment: Experiment, make_runs: Callable[..., Path], averaging: str
) -> None:
    root = make_runs({("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0, ("mlm", "snli_95k"): 60.0})
    found = judged(experiment.model_copy(update={"averaging": averaging}), root)
    (mrpc,) = found["ltr_hurts_mrpc"]
    (mnli,) = found["nsp_helps_mnli"]
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


def _forecast(experiment: Experiment, root: Path) -> str:
    """What one claim still needs, by the runs below a folder."""
    table = build_table(experiment, find(root))
    (one,) = [one for one in judge(table) if one.claim.id == "ltr_hurts_mrpc"]
    return forecast(one, table)


def test_what_is_needed_is_said_in_hours(
    experiment: Experiment, make_runs: Callable[..., Path]
) -> None:
    """As these runs took: a seed is two pre-trainings and two times two fine-tunings of six minutes
    each.
    """
    means = {("ltr", "mrpc"): 70.4, ("mlm", "mrpc"): 70.0}
    root = make_runs(means)
    table = build_table(experiment, find(root))
    (one,) = [one for one in judge(table) if one.claim.id == "ltr_hurts_mrpc"]
    assert one.verdict == Verdict.INCONCLUSIVE and one.decisive_seeds is not None
    more = one.decisive_seeds - 3
    assert forecast(one, table).endswith(
        f"; {more} more take about {duration(more * 6 * 360.0)}, as these runs took"
    )
    for number, path in enumerate(sorted(root.glob("*/*/**/run.json"))):  # two at a time
        begin = f"2030-01-01T{number // 2:02d}:00:00+00:00"
        state = json.loads(path.read_text()) | {
            "started": begin,
            "finished": begin.replace("00:00+", "06:00+"),
        }
        path.write_text(json.dumps(state))
    assert _forecast(experiment, root).endswith(
        f"about {duration(more * 3 * 360.0)}, as these runs took"
    )
    assert (
        _forecast(experiment, make_runs(means, pretrain_seeds=(1,), below="one"))
        == "needs 2 or more pre-training seeds; 1 more takes about 36.0 min, as these runs took"
    )
    for path in (root / "pretrain").rglob("run.json"):  # no time that is known: seeds alone
        path.write_text(path.read_text().replace('"seconds": 360.0', '"seconds": 0.0'))
    assert _forecast(experiment, root).endswith("at this difference and spread")


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
    table: Any = SimpleNamespace(spec=SimpleNamespace(row=lambda _: row))
    term: Any = SimpleNamespace(row="given", column=SimpleNamespace(is_measured=is_measured))
    reason = contrasts._incomparability(table, [term], [Cell()])
    assert (reason is None) is is_measured
