"""The sentence of every typed reason, each built by hand: no run is needed to say it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from clozelab.analysis import history, reasons, verdicts
from clozelab.analysis.claims import read_claim
from clozelab.analysis.contrasts import Context, Contrast, ContrastTerm, Obstacles
from clozelab.analysis.crossover import Crossover
from clozelab.analysis.hypotheses import ClaimOnDataset
from clozelab.analysis.reasons import Age, SettingDifference, Stage
from clozelab.analysis.schema import Column, SequentialDesign
from clozelab.analysis.scores import Cell, DataColumn, Origin
from clozelab.analysis.statistics import PRETRAINING_SEEDS, Estimate
from clozelab.analysis.verdicts import Judgement, Verdict
from clozelab.report import wording

EPOCHS = SettingDifference("epochs", ("5.0",), ("none",))
LAYERS = SettingDifference("task.data.layers", ("1.0", "3.0"), ("3.0", "1.0"))

INCOMPARABILITY = [
    (
        reasons.DifferentSplits(("validation", "test")),
        "another split: cells of validation against cells of test",
    ),
    (
        reasons.DifferentMetric("validation/f1", "validation/accuracy"),
        "another metric: validation/f1, where the claim is about validation/accuracy",
    ),
    (
        reasons.DifferentTargets(),
        (
            "their objectives predict other tokens, so losses do not compare: measure=held_out_text"
            " asks alike"
        ),
    ),
    (reasons.DifferentContext(), "one is asked from the left, one from both sides"),
    (
        reasons.OutdatedRuns("ltr", 6, (reasons.Outdated(Age.OLDER_VERSION, 2, 3),)),
        (
            "all 6 run(s) of ltr are of results version 2, beside others of 3, and no comparison"
            " mixes them"
        ),
    ),
    (
        reasons.OutdatedRuns("ltr", 6, (reasons.Outdated(Age.OLDER_ENCODER),)),
        (
            "all 6 run(s) of ltr are on encoders of an older results version than others, and no"
            " comparison mixes them"
        ),
    ),
    (
        reasons.NoPretraining(("ltr", "mlm")),
        "no complete pre-training run of ltr and mlm",
    ),
    (
        reasons.UnknownAmount("flops", ("ltr",)),
        "flops of pre-training not known for ltr, so nobody can say the arms match",
    ),
    (
        reasons.UnknownAmount("training_seconds", ("ltr", "mlm")),
        (
            "training time (seconds x devices) of pre-training not known for ltr and mlm, so nobody"
            " can say the arms match"
        ),
    ),
    (
        reasons.UnmatchedAmount("tokens", 1_000_000, 2_000_000),
        (
            "arms not matched: 1 M against 2 M tokens of pre-training, and matched_by in paper.yaml"
            " does not say that this is meant"
        ),
    ),
    (
        reasons.SeveralVersions(is_arm=True, name="ltr", count=2),
        "the runs of ltr were made from 2 versions of its arm",
    ),
    (
        reasons.SeveralVersions(is_arm=False, name="ltr", count=3),
        "the runs of ltr were made from 3 versions of its row",
    ),
    (
        reasons.DifferentProtocol(Stage.FINETUNED, (EPOCHS, LAYERS)),
        (
            "another protocol: fine-tuned with epochs 5.0 against none; task.data.layers 1.0/3.0"
            " against 3.0/1.0, which differ_in in paper.yaml does not allow for"
        ),
    ),
    (
        reasons.DifferentProtocol(Stage.PRETRAINED, (EPOCHS,) * 5),
        (
            "another protocol: pre-trained with epochs 5.0 against none; epochs 5.0 against none;"
            " epochs 5.0 against none and 2 more, which differ_in in paper.yaml does not allow for"
        ),
    ),
    (
        reasons.DifferentCode(Stage.PRETRAINED, ("models.encoder", "objectives.mlm")),
        (
            "other code: pre-trained with two versions of models.encoder, objectives.mlm, and"
            " differ_in does not say code"
        ),
    ),
    (
        reasons.WrongEncoder("ltr", "ltr", 3, 6, "mlm_nsp", "finetune/ltr/1"),
        (
            "not what it is called: paper.yaml says arm ltr of the row ltr, and 3 of 6 runs have"
            " the encoder of mlm_nsp (e.g. finetune/ltr/1)"
        ),
    ),
    (
        reasons.SharedEncoder(should_share=True, pretrain_seed=1),
        "the rows stand for one encoder, and began from different ones (pre-training seed 1)",
    ),
    (
        reasons.SharedEncoder(should_share=False, pretrain_seed=2),
        "the rows stand for two encoders, and began from one and the same (pre-training seed 2)",
    ),
]

MISSING = [
    (
        reasons.NoScoresOfMetric(6, "validation/accuracy", "LTR & No NSP"),
        "another metric: 6 complete run(s) of LTR & No NSP have no validation/accuracy",
    ),
    (
        reasons.NoScoresOfMetric(6, "validation/accuracy"),
        "another metric: 6 complete run(s) have no validation/accuracy",
    ),
    (reasons.NoCompleteRun(("No NSP", "LTR")), "no complete run of No NSP and LTR"),
    (reasons.NoCommonSeed(), "the rows have no seed in common"),
    (reasons.NoRunInColumn("SQuAD F1"), "no run on SQuAD F1 or a stand-in for it"),
    (
        reasons.NoCounterpart("SNLI-95k", "QNLI", "qnli_derived"),
        "no run on qnli_derived, the counterpart of SNLI-95k in QNLI",
    ),
    (
        reasons.NoCounterpart("SNLI-95k", "QNLI", None),
        "QNLI has no counterpart of SNLI-95k in paper.yaml",
    ),
    (reasons.NoCheckpoints(), "no runs at two or more fractions of both arms' steps"),
    (reasons.TooFewPoints("new", "old"), "new and old have less than two points"),
    (reasons.NoCommonStretch("flops"), "the lines have no stretch of flops in common"),
]

CELL_NOTES = [
    (reasons.RunsLackMetric(1, "validation/f1"), "1 run(s) lack validation/f1"),
    (
        reasons.RunsLackMetric(2, "validation/los", "validation/loss"),
        "2 run(s) lack validation/los (did you mean 'validation/loss'?)",
    ),
    (
        reasons.LearningRateChosen(5e-5, 3, num_common=2, num_seeds=2, num_left_out=0),
        "learning rate 5e-05, best of 3 on dev",
    ),
    (
        reasons.LearningRateChosen(5e-5, 3, num_common=2, num_seeds=4, num_left_out=1),
        (
            "learning rate 5e-05, best of 3 on dev over 2 of 4 seeds (1 more with fewer seeds left"
            " out)"
        ),
    ),
    (
        reasons.LearningRateWithoutChoice(5e-5, 2),
        "learning rate 5e-05, of 2 without a seed in common",
    ),
    (
        reasons.OlderRunsLeftOut(4),
        "4 run(s) of an older results version left out",
    ),
]

BREACHES = [
    (
        history.SeedsAdded("2030-01-02T03:04:05", "1 2 3/1 2", "holds"),
        "seeds were added after a look at 1 2 3/1 2 (2030-01-02: holds)",
    ),
    (
        history.SeedsAdded(history.UNREADABLE, None, None),
        "seeds were added after a look at unknown seeds (unreadable: another claim)",
    ),
    (
        history.DesignChanged("2030-01-02T03:04:05", "1 2 3/1 2", "holds"),
        "the stopping rule was changed after a look at 1 2 3/1 2 (2030-01-02: holds)",
    ),
    (
        history.ClaimedLate("2030-01-02T03:04:05"),
        "claimed after a look at its numbers (2030-01-02)",
    ),
    (
        history.ClaimDropped("2030-01-02T03:04:05"),
        "a claim that its test allowed for was dropped or moved after a look (2030-01-02)",
    ),
]

# the forecast -> its sentence, and what more seeds take at 100 seconds each
FORECASTS = [
    (
        verdicts.NeedsTwoSeeds(),
        "needs 2 or more pre-training seeds",
        "; 1 more takes about 1.7 min, as these runs took",
    ),
    (
        verdicts.FirstAnalysisAhead(3, additional_seeds=2),
        "the first look is at 3 pre-training seeds",
        "; 2 more take about 3.3 min, as these runs took",
    ),
    (
        verdicts.GatedByPrimary("first things"),
        "first the primary claim 'first things' has to be decided",
        "",
    ),
    (
        verdicts.SeedsNeeded(6, additional_seeds=3),
        "with 6 pre-training seeds 4 of 5 repetitions decide, at this difference and spread",
        "; 3 more take about 5.0 min, as these runs took",
    ),
    (
        verdicts.SeedsNeeded(6, additional_seeds=0, fewer_after="q"),
        (
            "with 6 pre-training seeds 4 of 5 repetitions decide, at this difference and spread;"
            " with fewer once 'q' is decided"
        ),
        "",
    ),
    (
        verdicts.TooManySeedsNeeded(50, additional_seeds=0),
        "more than 50 pre-training seeds at this difference and spread",
        "",
    ),
]


def every_type_has_a_row(union: Any, rows: list[Any]) -> bool:
    return {type(row[0]) for row in rows} == set(get_args(union))


@pytest.mark.parametrize(("reason", "sentence"), INCOMPARABILITY)
def test_why_cells_may_not_be_compared(reason: reasons.Incomparability, sentence: str) -> None:
    assert wording.incomparability(reason) == sentence


@pytest.mark.parametrize(("reason", "sentence"), MISSING)
def test_what_is_missing(reason: reasons.Missing, sentence: str) -> None:
    assert wording.missing(reason) == sentence


@pytest.mark.parametrize(("note", "sentence"), CELL_NOTES)
def test_what_sets_a_cell_apart(note: reasons.CellNote, sentence: str) -> None:
    assert wording.cell_note(Cell(notes=(note,))) == sentence
    assert wording.cell_note(Cell(notes=(note, note))) == f"{sentence}; {sentence}"


# -- verdicts --------------------------------------------------------------------------------------

MRPC = Column(name="MRPC", metric="validation/accuracy", task="mrpc")
DATASET = DataColumn("MRPC", "mrpc", "validation/accuracy", MRPC, Origin.PAPER)
ESTIMATE = Estimate(-2.9, -4.0, -1.8, 3, PRETRAINING_SEEDS, sd=0.4)
CONTRAST = Contrast(
    label="",
    terms=(ContrastTerm(1.0, "ltr", DATASET), ContrastTerm(-1.0, "mlm", DATASET)),
    difference=ESTIMATE,
)


def judgement(*contrasts: Contrast, **changes: Any) -> Judgement:
    """A claim on one data set that stays open."""
    claim = read_claim({"text": "t", "compare": ["ltr", "mlm", "MRPC"], "direction": "lower"})
    judged = Judgement(
        placed=ClaimOnDataset(claim, DATASET, "MRPC", contrasts),
        verdict=Verdict.INCONCLUSIVE,
        verdicts=(Verdict.INCONCLUSIVE,) * len(contrasts),
        weakest=None,
        corrected_p=None,
        num_tests=0,
        gated_by="",
        forecast=None,
        size_obstacle=None,
    )
    return replace(judged, **changes)


@pytest.mark.parametrize(("breach", "sentence"), BREACHES)
def test_what_makes_a_verdict_exploratory(breach: history.Breach, sentence: str) -> None:
    assert wording.judgement_note(judgement(breaches=(breach,))) == sentence


@pytest.mark.parametrize(("reason", "sentence", "time"), FORECASTS)
def test_what_would_decide_an_open_claim(
    reason: verdicts.Forecast, sentence: str, time: str
) -> None:
    judged = judgement(forecast=reason)
    assert wording.forecast(judged, None) == sentence
    assert wording.forecast(judged, 100.0) == sentence + time


@pytest.mark.parametrize(
    ("union", "rows"),
    [
        (reasons.Incomparability, INCOMPARABILITY),
        (reasons.Missing, MISSING),
        (reasons.CellNote, CELL_NOTES),
        (history.Breach, BREACHES),
        (verdicts.Forecast, FORECASTS),
    ],
)
def test_every_reason_has_a_row_here(union: Any, rows: list[Any]) -> None:
    assert every_type_has_a_row(union, rows)


def of_origin(origin: Origin) -> DataColumn:
    return replace(DATASET, origin=origin)


SIZE_OBSTACLES = [
    (
        verdicts.OtherStatistic("median"),
        "the paper's numbers are medians of its runs, ours means: direction only",
    ),
    (
        verdicts.OtherStatistic("best"),
        "the paper's numbers are the best of its runs, ours means: direction only",
    ),
    (
        verdicts.OtherData(of_origin(Origin.STAND_IN), is_equivalence=False),
        "stand-in: direction only",
    ),
    (
        verdicts.OtherData(of_origin(Origin.SYNTHETIC), is_equivalence=False),
        "synthetic: direction only",
    ),
    (
        verdicts.OtherData(of_origin(Origin.STAND_IN), is_equivalence=True),
        "stand-in: says nothing of the sizes in the paper",
    ),
    (
        verdicts.OtherData(
            replace(
                DATASET, origin=Origin.OTHER_SPLIT, column=MRPC.model_copy(update={"split": "test"})
            ),
            is_equivalence=False,
        ),
        "dev; the paper's numbers are on test: direction only",
    ),
    (
        verdicts.OtherData(
            replace(
                DATASET,
                origin=Origin.HELD_OUT_TEXT,
                column=MRPC.model_copy(update={"source": "pretrain", "task": ""}),
            ),
            is_equivalence=False,
        ),
        "our own held-out text: direction only",
    ),
]


@pytest.mark.parametrize(("obstacle", "sentence"), SIZE_OBSTACLES)
def test_why_no_size_is_held_against_the_papers(
    obstacle: verdicts.SizeObstacle, sentence: str
) -> None:
    judged = judgement(CONTRAST, size_obstacle=obstacle)
    assert wording.judgement_note(judged) == sentence


CELLS = (
    reasons.CellCaution("LTR", num_missing=2, num_collapsed=0, every_run_collapsed=False),
    reasons.CellCaution("MLM", num_missing=0, num_collapsed=3, every_run_collapsed=True),
)
COPIES = (reasons.DuplicateSeeds("LTR", (1, 2)),)
ON_RANDOM = reasons.BelowFloor("LTR", 12.9, "SQuAD F1", 24.9, is_random_weights=True)
ON_ONE_ANSWER = reasons.BelowFloor("LTR", 65.0, "MRPC", 68.4, is_random_weights=False)
TORCH = SettingDifference("torch", ("2.11",), ("2.13",))

CAUTIONS = [
    (
        replace(CONTRAST, context=Context(cells=CELLS)),
        (
            "2 run(s) of LTR missing; 3 collapsed run(s) of MLM; every run of MLM collapsed: it has"
            " measured nothing"
        ),
    ),
    (
        replace(CONTRAST, design=SequentialDesign(first=2, most=2)),
        "seeds after the last look (2) decide nothing",
    ),
    (
        replace(CONTRAST, obstacles=Obstacles(duplicates=COPIES)),
        "LTR: pre-training seeds 1 and 2 are one and the same encoder: copies decide nothing",
    ),
    (
        replace(CONTRAST, difference=replace(ESTIMATE, low=-2.9, high=-2.9, sd=0.0)),
        (
            "the same difference for every seed: no spread to judge it by, as may happen on few"
            " examples"
        ),
    ),
    (
        replace(CONTRAST, difference=replace(ESTIMATE, is_balanced=False)),
        "pre-training seeds have unequally many runs and weigh the same",
    ),
    (
        replace(CONTRAST, context=Context(text_lengths=((128,), (64, 128)))),
        "texts cut to 128 against 64/128 tokens",
    ),
    (
        replace(
            CONTRAST,
            context=Context(
                provenance=(
                    reasons.ProvenanceDifference(Stage.PRETRAINED, (TORCH,)),
                    reasons.ProvenanceDifference(Stage.FINETUNED, (TORCH,)),
                )
            ),
        ),
        "pre-trained with torch 2.11 against 2.13; fine-tuned with torch 2.11 against 2.13",
    ),
    (
        replace(CONTRAST, context=Context(below_floor=(ON_RANDOM, ON_ONE_ANSWER))),
        (
            "below its floor: LTR has 12.9 on SQuAD F1, where the same head on random weights has"
            " 24.9; LTR has 65.0 on MRPC, where one fixed answer has 68.4; such a row decides"
            " nothing about what pre-training gives"
        ),
    ),
]


@pytest.mark.parametrize(("contrast", "sentence"), CAUTIONS)
def test_what_a_reader_must_know_beside_a_verdict(contrast: Contrast, sentence: str) -> None:
    assert wording.judgement_note(judgement(contrast)) == sentence


COLLAPSED = replace(CONTRAST, has_collapsed=True)
OTHER_SIDE = replace(ESTIMATE, mean=0.4, low=-0.1, high=0.9)

OF_COLLAPSED = [
    (
        replace(COLLAPSED, without_collapsed=ESTIMATE),
        "without collapsed runs −2.9 [−4.0, −1.8]; p is the larger one, with or without",
    ),
    (
        replace(COLLAPSED, without_collapsed=OTHER_SIDE),
        (
            "without collapsed runs +0.4 [−0.1, +0.9]: the difference rests on them and decides"
            " nothing"
        ),
    ),
    (
        COLLAPSED,
        (
            "without collapsed runs no pair of seeds is left: the difference rests on them and"
            " decides nothing"
        ),
    ),
]


@pytest.mark.parametrize(("contrast", "sentence"), OF_COLLAPSED)
def test_the_difference_without_collapsed_runs(contrast: Contrast, sentence: str) -> None:
    assert wording.judgement_note(judgement(contrast, weakest=contrast)) == sentence


@pytest.mark.parametrize(
    ("margin", "primary", "gated_by", "sentence"),
    [
        (
            0.0,
            False,
            "",
            "the plain interval excludes zero, the test corrected for 9 differences does not",
        ),
        (
            1.0,
            False,
            "",
            "the plain interval excludes the margin, the test corrected for 9 differences does not",
        ),
        (0.0, True, "", "the plain interval excludes zero, the test as a primary one does not"),
        (
            0.0,
            True,
            "q",
            "the plain interval excludes zero, the test waits for the primary claim 'q'",
        ),
        (
            0.0,
            False,
            "q",
            (
                "the plain interval excludes zero, the test at 1 % does not: it has 5 % once the"
                " primary claim 'q' is decided"
            ),
        ),
    ],
)
def test_why_a_plain_interval_is_not_the_verdict(
    margin: float, primary: bool, gated_by: str, sentence: str
) -> None:
    contrast = replace(CONTRAST, margin=margin)
    judged = judgement(contrast, weakest=contrast, corrected_p=0.2, num_tests=9, gated_by=gated_by)
    claim = judged.claim.model_copy(update={"primary": primary})
    judged = replace(judged, placed=replace(judged.placed, claim=claim))
    assert wording.judgement_note(judged) == sentence


def test_several_differences_are_counted() -> None:
    lacking = replace(
        CONTRAST,
        label="LTR − No NSP",
        difference=None,
        obstacles=Obstacles(missing=reasons.NoCompleteRun(("LTR",))),
    )
    judged = judgement(CONTRAST, lacking, verdicts=(Verdict.HOLDS, Verdict.INCONCLUSIVE))
    assert wording.judgement_note(judged) == (
        "of 2 differences 1 holds, 1 inconclusive; LTR − No NSP: no complete run of LTR"
    )
    below = (Verdict.BELOW_FLOOR, Verdict.HOLDS)
    judged = judgement(CONTRAST, CONTRAST, verdicts=below)
    assert wording.judgement_note(judged) == (
        "of 2 differences 1 inconclusive (below its floor), 1 holds"
    )


def test_a_claim_about_all_columns_names_each() -> None:
    claim = read_claim({"text": "t", "compare": ["ltr", "mlm", "all"], "direction": "lower"})
    lacking = Obstacles(missing=reasons.NoCompleteRun(("LTR",)))
    barred = Obstacles(incomparability=reasons.NoPretraining(("ltr",)))
    contrasts = (
        replace(CONTRAST, label="MRPC"),
        replace(CONTRAST, label="QNLI", obstacles=lacking, difference=None),
        replace(CONTRAST, label="SST-2", obstacles=barred),
    )
    judged = judgement(verdicts=(Verdict.HOLDS, Verdict.NOT_COMPARABLE, Verdict.NOT_COMPARABLE))
    placed = ClaimOnDataset(claim, None, "1 of 4 columns", contrasts, silent_columns=("SQuAD F1",))
    assert wording.judgement_note(replace(judged, placed=placed)) == (
        "MRPC: holds; no runs for QNLI, SQuAD F1; not comparable on SST-2 (no complete"
        " pre-training run of ltr)"
    )


# -- crossing lines --------------------------------------------------------------------------------

LINES = Crossover("new", "old", "", 0.05, 1.0, point=None, level_stretches=(), leader=None)
IN_TOKENS = replace(LINES, unit="tokens", start=5e4, end=1e6, point=2.5e5)


@pytest.mark.parametrize(
    ("crossover", "holds", "sentence"),
    [
        (
            replace(IN_TOKENS, level_stretches=((2.07e5, 2.88e5),)),
            True,
            "new overtakes old at 250 k tokens; 95 % interval: [207 k tokens, 288 k tokens]",
        ),
        (IN_TOKENS, False, "new goes past, in the mean, old at 250 k tokens"),
        (
            replace(IN_TOKENS, unit="flops", point=2.5e12, level_stretches=((5e4, 1e5),)),
            True,
            "new overtakes old at 2.5e+12 FLOPs; 95 % interval: up to 1e+05 FLOPs",
        ),
        (
            replace(IN_TOKENS, unit="seconds", point=600.0, level_stretches=((5e4, 1e6),)),
            True,
            "new overtakes old at 10.0 min; 95 % interval: anywhere",
        ),
        (
            LINES,
            False,
            "no crossing in the claimed direction between 5 % of the steps and 100 % of the steps",
        ),
        (
            replace(LINES, leader="old"),
            False,
            "no crossing: old leads at every point from 5 % of the steps to 100 % of the steps",
        ),
        (
            replace(LINES, leader="old", level_stretches=((0.05, 0.1), (0.5, 1.0))),
            False,
            (
                "no crossing: old leads at every point from 5 % of the steps to 100 % of the steps;"
                " that both are level is not excluded up to 10 % of the steps or from 50 % of the"
                " steps on"
            ),
        ),
    ],
)
def test_where_lines_cross(crossover: Crossover, holds: bool, sentence: str) -> None:
    assert (
        wording.judgement_note(
            judgement(crossover=crossover, verdict=Verdict.HOLDS if holds else Verdict.CONTRADICTED)
        )
        == sentence
    )


def test_the_place_of_a_crossing() -> None:
    assert wording.crossover_place(LINES) == "none seen"
    assert wording.crossover_interval(replace(LINES, level_stretches=((0.05, 0.1),))) == ""
    assert wording.crossover_place(IN_TOKENS) == "at 250 k tokens"
    in_flops = replace(IN_TOKENS, unit="flops", point=2.5e12)
    assert wording.crossover_place(in_flops) == "at 2.5e+12 FLOPs"
    in_seconds = replace(IN_TOKENS, unit="seconds", point=600.0)
    assert wording.crossover_place(in_seconds) == "at 10.0 min"
