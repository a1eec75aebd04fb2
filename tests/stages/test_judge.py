"""`clozelab judge`: claims against a CSV of 30 scores, and what it refuses."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tests.screens import Screens, shows

from claims.analysis.schema import IN_PERCENT, Scale
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import judge
from claims.report.score_page import judge_files
from claims.tables.claim_file import read_claims
from claims.tables.score_file import make_score_table, read_scores
from clozelab.cli import main

CLAIMS = """
claims:
  - {text: masking helps QNLI, compare: [mlm, ltr, qnli], direction: higher, primary: true}
  - {text: ltr costs every task, compare: [ltr, mlm, all], direction: lower}
  - {text: level on SST-2, rows: [mlm, ltr], column: sst2, direction: within, points: 4.0}
  - {text: contrast, compare: [ltr, mlm, qnli], against: [ltr, mlm, sst2], direction: lower}
"""
MEANS = {("mlm", "qnli"): 80.0, ("ltr", "qnli"): 74.0, ("mlm", "mrpc"): 80.0}
MEANS |= {("ltr", "mrpc"): 74.0, ("mlm", "sst2"): 80.0, ("ltr", "sst2"): 80.0}


@pytest.fixture
def scores(tmp_path: Path) -> dict[tuple[str, str], list[float]]:
    """Five scores a cell, which are also written to scores.csv."""
    draw = np.random.default_rng(1)
    values: dict[tuple[str, str], list[float]] = {}
    lines = ["arm,seed,task,score"]
    for (arm, task), mean in MEANS.items():
        cell = [round(mean + 0.3 * seed + float(draw.normal()), 2) for seed in range(1, 6)]
        values[arm, task] = cell
        lines += [f"{arm},{seed},{task},{score}" for seed, score in enumerate(cell, 1)]
    (tmp_path / "scores.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "claims.yaml").write_text(CLAIMS)
    return values


def test_thirty_lines_are_judged(
    tmp_path: Path,
    scores: dict[tuple[str, str], list[float]],
    capsys: pytest.CaptureFixture[str],
    screen: Screens,
) -> None:
    """Differences and p-values against scipy's paired t test."""
    out = tmp_path / "report"
    files = [tmp_path / "scores.csv", tmp_path / "claims.yaml"]
    assert main(["judge", *map(str, files), f"out={out}"]) == 0
    shown = capsys.readouterr().out
    page = judge_files(*files, None)
    helps, everywhere, level, contrast = [claim.judgement for claim in page.judged.claims]
    paired = stats.ttest_rel(scores["mlm", "qnli"], scores["ltr", "qnli"])
    assert helps.verdict is Verdict.HOLDS and helps.difference is not None
    assert helps.p_value == pytest.approx(paired.pvalue)
    assert helps.corrected_p == pytest.approx(paired.pvalue / 0.8)
    interval = paired.confidence_interval()
    assert (helps.difference.low, helps.difference.high) == pytest.approx(tuple(interval))
    assert everywhere.verdict is Verdict.INCONCLUSIVE  # level on SST-2
    assert everywhere.judged_on == "3 of 3 columns"
    assert level.verdict is Verdict.HOLDS
    assert contrast.verdict is Verdict.HOLDS
    with (out / "claims.csv").open(encoding="utf-8") as file:
        verdicts = [line["verdict"] for line in csv.DictReader(file)]
    assert verdicts == [one.verdict for one in (helps, everywhere, level, contrast)]
    screen(shown)


UNITS = "columns: [{name: NAME, unit: points, higher_is_better: false}]\n"


def test_a_file_of_claims_declares_a_unit_and_the_rest_is_said_to_be_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["arm,seed,task,score"]
    for seed in (1, 2, 3):
        lines += [f"a,{seed},mae,0.{seed}", f"b,{seed},mae,0.{seed + 2}", f"a,{seed},t,{seed}"]
    files = [tmp_path / "scores.csv", tmp_path / "claims.yaml"]
    files[0].write_text("\n".join(lines))
    claims = "claims:\n- {text: t, compare: [a, b, mae], direction: lower}\n"
    files[1].write_text(UNITS.replace("NAME", "mae") + claims)
    assert main(["judge", *map(str, files)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "assumed: percent, where higher is better: t" in printed

    spec = read_claims(files[1])
    table = make_score_table(read_scores(files[0]), spec.claims, None, spec.columns)
    scales = {column.heading: column.scale for column in table.columns}
    assert scales == {"mae": Scale("points", higher_is_better=False), "t": IN_PERCENT}

    for name, message in (("mea", "'mea' is no task of"), ("", "belong together")):
        entry = UNITS.replace("NAME", name or "mae")
        files[1].write_text((entry if name else entry.replace("unit: points, ", "")) + claims)
        assert main(["judge", *map(str, files)]) != 0
        assert message in " ".join(capsys.readouterr().err.split())


def test_finetuning_seeds_are_averaged_inside_a_pretraining_seed(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    lines = ["arm,seed,finetuning_seed,task,score"]
    for arm, gain in (("a", 2.0), ("b", 0.0)):
        for seed in (1, 2, 3):
            lines += [f"{arm},{seed},{tuned},t,{gain + seed + 0.1 * tuned}" for tuned in (1, 2)]
    path.write_text("\n".join(lines))
    (tmp_path / "claims.yaml").write_text("- {text: t, compare: [a, b, t], direction: higher}\n")
    spec = read_claims(tmp_path / "claims.yaml")
    (judgement,) = judge(make_score_table(read_scores(path), spec.claims, spec.stopping))
    assert judgement.difference is not None
    assert judgement.difference.count == 3 and judgement.difference.mean == pytest.approx(2.0)


def test_several_metrics_of_a_task_are_columns_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    rows = ["arm,seed,task,metric,score", "a,1,mrpc,f1,80", "a,1,mrpc,accuracy,70"]
    path.write_text("\n".join([*rows, "a,1,rte,accuracy,60"]))
    columns = {column for _, column in read_scores(path).cells}
    assert columns == {"mrpc f1", "mrpc accuracy", "rte"}


HEADING = "arm,seed,task,score\n"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("arm,seed,score\na,1,2\n", "no column 'task'; it has arm, seed, score"),
        (HEADING, "no line below the heading"),
        (HEADING + "a,1,t,good\n", "line 2: score is 'good'; it is a number"),
        (HEADING + "a,1,t,1\nb,1,t,nan\n", "line 3: score is 'nan'"),
        (HEADING + "a,one,t,1\n", "line 2: seed is 'one'; it is a whole number"),
        (HEADING + "a,1,,1\n", "line 2: lacks task, the name of a task"),
        (HEADING + "a,1,t,1,5\n", "line 2: it has more cells than the heading"),
        (HEADING + "a,1,t,1\na,1,t,2\n", "line 3: a second score of a on t, seed 1: keep one; if"),
        ("arm,seed,task,score,score\na,1,t,1,1\n", "two columns are called 'score'"),
    ],
)
def test_a_slip_in_the_scores_is_named_with_its_line(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        read_scores(path)
    assert part in str(error.value)


def test_a_task_called_all_is_not_taken_for_every_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores, claims = tmp_path / "scores.csv", tmp_path / "claims.yaml"
    scores.write_text(HEADING + "a,1,t,1\nb,1,t,2\na,1,all,3\nb,1,all,4\n")
    claims.write_text("claims: [{text: whole, compare: [a, b, all], direction: lower}]")
    assert main(["judge", str(scores), str(claims)]) != 0
    assert "'whole' is on 'all', which means every column, and one" in capsys.readouterr().err
    claims.write_text("claims: [{text: part, compare: [a, b, t], direction: lower}]")
    assert main(["judge", str(scores), str(claims)]) == 0


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("[mlm, ltr, qnli]", "[mlm, ltq, qnli]", "'ltq' is no arm of"),
        ("[mlm, ltr, qnli]", "[mlm, ltr, qnlj]", "'qnlj' is no task of"),
        ("text: contrast", "text: level on SST-2", "is there twice"),
        ("direction: higher", "direction: hihger", "claims.0.direction is 'hihger'"),
        ("points: 4.0", "pionts: 4.0", "did you mean 'points'?"),
        # A key that is called as a kind of claims is.
        ("points: 4.0", "points: 4.0, order: 1", "has no key 'order'"),
        ("points: 4.0", "points: .inf", "claims.2.points is inf; it is a number above 0"),
        ("[ltr, mlm, sst2]", "[ltr, ltr, sst2]", "against compares 'ltr' with itself"),
        (CLAIMS, "{}", "no claims"),
    ],
)
@pytest.mark.usefixtures("scores")
def test_a_slip_in_the_claims_is_named_before_anything_is_judged(
    tmp_path: Path, old: str, new: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(CLAIMS.replace(old, new))
    assert main(["judge", str(tmp_path / "scores.csv"), str(path)]) != 0
    shown = capsys.readouterr()
    assert part in shown.err and shown.out == ""


def test_a_folder_of_our_own_runs_is_told_what_judges_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "pretrain" / "mlm"
    run.mkdir(parents=True)
    command = ["judge", str(tmp_path / "runs"), "compare=all"]
    assert main(command) == 1
    assert "clozelab report" not in capsys.readouterr().err  # any folder without results
    (run / "run.json").write_text("{}")
    assert main(command) == 1
    shows(capsys.readouterr().err, f"which `clozelab report {tmp_path}/runs` compares")
    table = tmp_path / "runs" / "report" / "results.csv"
    table.parent.mkdir()
    table.write_text("")
    assert main(command) == 1
    shows(capsys.readouterr().err, f"compares, and `judge` takes {table}")
