"""Which scores of a file become percent, which are lower-is-better, and what margins may be."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.screens import refuses

from claims.report.score_page import judge_files
from claims.tables.score_file import read_scores


def write_scores(path: Path, column: str, scores: dict[str, float]) -> Path:
    """Two seeds of each arm, the second a little higher."""
    lines = [f"arm,seed,{column}"]
    for arm, score in scores.items():
        lines += [f"{arm},1,{score}", f"{arm},2,{score * 1.01}"]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("column", "unit"),
    [
        ("bits_per_character", "bits_per_character"),
        ("valLoss", "loss"),
        ("mnli_loss", "loss"),
        ("multi_logloss", "logloss"),
        ("eval/cross_entropy", "cross_entropy"),
        ("error_rate", "error_rate"),
        ("word_perplexity", "word_perplexity"),
        ("WER", "wer"),
    ],
)
def test_losses_stay_as_they_are(tmp_path: Path, column: str, unit: str) -> None:
    scores = read_scores(write_scores(tmp_path / "scores.csv", column, {"a": 0.9, "b": 0.8}))
    assert scores.fractions == []
    (of_loss,) = scores.columns
    assert (of_loss.unit, of_loss.higher_is_better) == (unit, False)
    assert scores.cells["a", column][1, 0] == 0.9


@pytest.mark.parametrize("column", ["gloss", "twitter"])
def test_a_word_that_ends_like_a_loss_is_none(tmp_path: Path, column: str) -> None:
    scores = read_scores(write_scores(tmp_path / "scores.csv", column, {"a": 0.9, "b": 0.8}))
    assert scores.fractions == [column] and scores.columns == []


def test_a_negated_loss_is_better_where_it_is_larger(tmp_path: Path) -> None:
    path = write_scores(tmp_path / "scores.csv", "neg_log_loss", {"a": -0.4, "b": -0.5})
    scores = read_scores(path)
    assert scores.columns[0].higher_is_better and scores.fractions == []


def test_a_column_says_what_is_better(tmp_path: Path) -> None:
    """It goes before the name of the score, and a report's table of scores says it again."""
    lines = ["arm,seed,task,unit,higher_is_better,score"]
    for task, rises in (("distance", False), ("loss_avoided", True), ("recovered_loss", True)):
        lines += [f"{arm},1,{task},points,{rises},{score}" for arm, score in (("a", 2), ("b", 3))]
    path = tmp_path / "scores.csv"
    path.write_text("\n".join(lines))
    judge_files(path, None, tmp_path / "report")
    for table in (path, tmp_path / "report/results.csv"):
        columns = {column.name: column for column in read_scores(table).columns}
        directions = [column.higher_is_better for column in columns.values()]
        assert directions == [False, True, True] and columns["distance"].unit == "points"
    path.write_text("arm,seed,task,higher_is_better,score\na,1,t,less,1\n")
    with refuses("line 2: higher_is_better is 'less'; it is True or False"):
        read_scores(path)


CLAIM = "{{text: a is ahead, compare: [a, b, {column}], direction: higher, points: {points}}}"


@pytest.mark.parametrize(
    ("column", "points", "unit", "refused"),
    [
        ("acc", 0.01, "", True),
        ("acc", 1.0, "", False),
        ("acc", 0.5, "percent", False),
        ("acc", 0.01, "fractions", False),
        ("loss", 0.01, "", False),
    ],
)
def test_a_margin_that_may_be_a_fraction_is_refused(
    tmp_path: Path, column: str, points: float, unit: str, refused: bool
) -> None:
    scores = write_scores(tmp_path / "scores.csv", column, {"a": 0.9, "b": 0.8})
    declared = ""
    if unit:
        declared = f"columns: [{{name: {column}, unit: {unit}, higher_is_better: true}}]\n"
    claims = tmp_path / "claims.yaml"
    claims.write_text(f"{declared}claims: [{CLAIM.format(column=column, points=points)}]\n")
    if refused:
        with pytest.raises(ValueError, match=r"points: 0.01 of acc, whose fractions become"):
            judge_files(scores, claims, None)
        return
    (judged,) = judge_files(scores, claims, None).judged.claims
    assert judged.judgement.difference is not None
    is_percent = column == "acc" and unit != "fractions"
    assert judged.judgement.difference.mean == pytest.approx(10.05 if is_percent else 0.1005)


def test_truth_values_in_columns_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    rows = ["a,1,x,True", "a,1,y,False", "b,1,x,True", "b,1,y,True"]
    path.write_text("\n".join(["arm,seed,example,qnli", *rows]))
    assert read_scores(path).cells["a", "qnli"] == {(1, 0): 50.0}


LONG = """arm,seed,task,score,unit
a,1,lm,1.1,bits
a,2,lm,1.2,bits
b,1,lm,1.4,bits
b,2,lm,1.6,UNIT
a,1,err,12.0,%
b,1,err,14.0,percent
"""


def test_a_column_of_units_says_what_its_scores_are_in(tmp_path: Path) -> None:
    scores = tmp_path / "scores.csv"
    claims = tmp_path / "claims.yaml"
    claims.write_text("claims: [{text: a codes shorter, compare: [a, b, lm], direction: lower}]")
    scores.write_text(LONG.replace("UNIT", "bits"))
    page = judge_files(scores, claims, tmp_path / "report")
    assert "−0.350 bits [" in page.judged.claims[0].sentence
    assumed = ["percent, where higher is better: err", "higher is better: lm"]
    assert page.problems["Assumed"] == assumed
    assert "a,1,0,lm,bits,True,1.1" in (tmp_path / "report/results.csv").read_text()
    scores.write_text(LONG.replace("UNIT", "nats"))
    with pytest.raises(
        ValueError, match="line 5: the unit of lm is 'nats', and 'bits' before: give"
    ):
        judge_files(scores, claims, None)


REPORT = "stage,row,task,pretrain_seed,seed,metric,unit,score,is_headline,column,counts,collapsed"


def test_small_percents_of_a_report_are_no_fractions(tmp_path: Path) -> None:
    """A correlation of 0.2 % stays one, and in the file that is written of it, too."""
    lines = [REPORT]
    for arm, scores in {"-nsp": (0.1, 0.2, 0.3), "=b": (0.15, 0.25, 0.35)}.items():
        for seed, score in enumerate(scores, 1):
            run = f"cola,{seed},1,validation/matthews,percent,{score}"
            lines.append(f"finetune,'{arm},{run},True,CoLA,True,False")
    (tmp_path / "results.csv").write_text("\n".join(lines))
    claims = tmp_path / "claims.yaml"
    claims.write_text(
        "claims: [{text: t, compare: ['-nsp', '=b', CoLA], direction: not_lower, points: 0.5}]"
    )
    page = judge_files(tmp_path / "results.csv", claims, tmp_path / "first")
    assert "fractions" not in str(page.problems)
    difference = page.judged.claims[0].judgement.difference
    assert difference is not None and difference.mean == pytest.approx(-0.05)

    judge_files(tmp_path / "first/results.csv", claims, tmp_path / "second")
    first, second = (tmp_path / name / "results.csv" for name in ("first", "second"))
    assert first.read_text() == second.read_text()
    assert first.read_text().splitlines()[1] == "'-nsp,1,1,CoLA,percent,True,0.1"


def test_a_claim_about_all_columns_is_in_the_unit_of_the_weakest(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("arm,seed,x_mae,y_mae\na,1,.51,.41\na,2,.52,.42\nb,1,.55,.55\nb,2,.58,.58\n")
    claims = tmp_path / "claims.yaml"
    claims.write_text("claims: [{text: a errs less, compare: [a, b, all], direction: lower}]")
    (claim,) = judge_files(path, claims, None).judged.claims
    assert "weakest: x_mae, −0.05 mae [" in claim.sentence


@pytest.mark.parametrize(
    ("said", "is_refused"),
    [("direction: increasing", True), ("direction: within, points: 99", False)],
)
def test_no_direction_is_claimed_of_losses_and_scores_at_once(
    tmp_path: Path, said: str, is_refused: bool
) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("arm,seed,mae,f1\na,1,.51,71\na,2,.52,72\nb,1,.95,95\nb,2,.98,98\n")
    claims = tmp_path / "claims.yaml"
    claims.write_text(f"claims: [{{text: t, rows: [a, b], column: all, {said}}}]")
    (claim,) = judge_files(path, claims, None).judged.claims
    reason = "lower is better in mae, higher in f1: claim a direction of each column by itself"
    assert (claim.verdict == "not_comparable") == (claim.note == reason) == is_refused
