"""Every look at other seeds is noted beside the runs, and what is decided after seeds were added is
exploratory.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from tests.report.writing import written
from tests.results.words import judgement_note, verdict_label
from tests.simulation import benchmark

from claims.analysis.history import ANALYSIS_LOG, Breach, BreachKind
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Judgement
from clozelab.report.render import Report, write_latex
from clozelab.report.screen import print_page
from clozelab.results.experiment import find_experiment

simulation = benchmark("looks")
pytestmark = pytest.mark.usefixtures("no_pictures")
MEANS = {("mlm", "mrpc"): 80.0, ("ltr", "mrpc"): 70.0, ("mlm_nsp", "mrpc"): 80.0}


def claim(report: Report) -> Judgement:
    return next(one for one in report.judgements if one.claim.id == "ltr_hurts_mrpc")


def test_a_claim_that_is_worded_after_a_look_is_exploratory(
    make_runs: Callable[..., Path], tmp_path: Path
) -> None:
    """Other rows, another direction, another margin or another place in the order; another sentence
    is none.
    """
    root, folder = make_runs(MEANS), tmp_path / "table5_pretraining_tasks"
    shutil.copytree(find_experiment("table5_pretraining_tasks"), folder)
    path, seen = folder / "paper.yaml", {}
    text = path.read_text()
    within = (
        "  - {id: near, text: NSP leaves MRPC, rows: [mlm_nsp, mlm], column: MRPC, direction:"
        " within, points: 9}"
    )
    mine = (
        "text: left-to-right costs MRPC, paper_delta: -9.0, compare: [ltr, mlm, MRPC], direction:"
        " lower"
    )
    path.write_text(f"{text.rstrip()}\n{within}\n")
    for change in (
        ("", ""),
        (mine, mine.replace("left-to-right", "LTR")),
        (mine, mine.replace("lower", "higher").replace("paper_delta: -9.0, ", "")),
        ("ltr_hurts_mrpc, text", "ltr_hurts_mrpc, primary: true, text"),
        ("points: 9", "points: 5"),
    ):
        path.write_text(f"{text.rstrip()}\n{within}\n".replace(*change))
        found = written(root, str(folder)).judgements
        seen[change[1]] = {one.claim.id: one.breaches for one in found if one.is_exploratory}
    page = (root / "report" / "report.md").read_text()
    assert "that rows differ by less than a margin gets “holds” only if" in page
    first, sentence, direction, place, margin = seen.values()
    assert first == sentence == {}
    assert [*direction] == [*place] == ["ltr_hurts_mrpc"] and [*margin] == ["near"]
    look, *_ = noted(root)
    for breaches in (*direction.values(), *margin.values()):
        assert breaches == (Breach(BreachKind.CLAIMED_LATE, look["time"][:10]),)
    # a name is no claim
    nameless = re.sub(r"\{id: \w+, text: ", "{text: now ", f"{text.rstrip()}\n{within}\n")
    path.write_text(nameless)
    found = written(root, str(folder)).judgements
    assert not any(one.is_exploratory for one in found)
    look, *_ = noted(root)
    # of a look that did not note them
    (root / ANALYSIS_LOG).write_text(json.dumps(look | {"claims": {}}) + "\n")
    found = written(root, str(folder)).judgements
    assert not any(one.is_exploratory for one in found)


def add_seed(root: Path, writers: Any, seed: int) -> None:
    for arm in ("mlm_nsp", "mlm", "ltr"):
        if not (root / "pretrain" / arm / f"seed-{seed}").exists():
            writers.pretrain(root, arm, seed)
    for (row, task), mean in MEANS.items():
        for restart in (1, 2):
            writers.finetune(
                root,
                row,
                task,
                (seed, restart),
                mean + 0.3 * (seed % 3) * (row == "ltr") + 0.1 * restart,
            )


def noted(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / ANALYSIS_LOG).read_text().splitlines()]


def test_a_verdict_after_seeds_were_added_is_exploratory(
    make_runs: Callable[..., Path], writers: Any
) -> None:
    root = make_runs(MEANS)
    first = written(root)
    assert claim(first).verdict == Verdict.HOLDS and not claim(first).is_exploratory
    (look,) = noted(root)
    assert look["verdicts"]["left-to-right costs MRPC (MRPC)"] == Verdict.HOLDS
    assert set(look["seeds"].values()) == {"1 2 3/1 2"} and first.page.judged.analyses.startswith(
        "1 ("
    )
    add_seed(root, writers, 4)
    second = written(root)
    assert claim(second).verdict == Verdict.HOLDS and claim(second).is_exploratory
    assert verdict_label(claim(second)) == "holds (exploratory)"
    day = look["time"][:10]
    assert claim(second).breaches == (
        Breach(BreachKind.SEEDS_ADDED, day, "1 2 3/1 2", Verdict.HOLDS),
    )
    note = judgement_note(claim(second))
    assert f"seeds were added after an interim analysis of 1 2 3/1 2 ({day}: holds)" in note
    assert second.page.judged.analyses.startswith("2 (")
    console = Console(width=160, file=io.StringIO())
    print_page(second.page, console)
    shown = " ".join(console.file.getvalue().split())
    assert "nothing: –" not in shown, "why nothing is judged"
    pages = {
        "md": (second.folder / "report.md").read_text(),
        "html": (second.folder / "report.html").read_text(),
        "tex": write_latex(second.page, second.folder / "report.tex").read_text(),
        "summary": second.page.judged.summary,
        "screen": shown,
    }
    said = {
        "md": (
            "| **holds (exploratory)** | left-to-right costs MRPC",
            "- **Interim analyses:** 2 (",
        ),
        "html": (
            '<span class="badge holds exploratory">holds (exploratory)</span>',
            "Interim analyses:</strong> 2 (",
        ),
        "tex": ("holds (exploratory)", "Interim analyses: 2 ("),
        "summary": ("1 holds (exploratory)",),
        "screen": (
            "(exploratory)",
            "interim analyses: 2 (",
            "no run on MNLI-m or a substitute for it",
        ),
    }
    for page, texts in said.items():
        for text in texts:
            assert text in pages[page], page


def test_the_same_data_again_is_no_new_look(make_runs: Callable[..., Path], writers: Any) -> None:
    root = make_runs(MEANS)
    for _ in range(3):
        assert not claim(written(root)).is_exploratory
    assert len(noted(root)) == 1
    add_seed(root, writers, 4)
    # The note lies beside the runs: another report folder, or none, does not begin the count anew.
    shutil.rmtree(root / "report")
    assert all(
        claim(written(root, target=target)).is_exploratory
        for target in ("report", "elsewhere", "report")
    )
    assert len(noted(root)) == 2
    # The data of the first look are what they were then.
    for path in root.glob("*/*/*seed-4"):
        shutil.rmtree(path)
    assert not claim(written(root)).is_exploratory and len(noted(root)) == 2


def test_a_gap_that_is_filled_is_no_new_look(make_runs: Callable[..., Path], writers: Any) -> None:
    """A job that failed and ran later adds no seed."""
    root = make_runs(MEANS)
    gap = root / "finetune/mlm/pretrain-seed-2/mrpc/seed-1"
    shutil.move(gap, root.parent / "aside")
    assert len(written(root).table.cells["mlm", "mrpc"].scores) == 5
    shutil.move(root.parent / "aside", gap)
    assert not claim(written(root)).is_exploratory and len(noted(root)) == 1


def test_one_seed_is_no_look(make_runs: Callable[..., Path], writers: Any) -> None:
    """It decides nothing whatever it shows, so a test that follows is the first."""
    root = make_runs(MEANS, pretrain_seeds=(1,))
    report = written(root)
    assert (
        claim(report).verdict == Verdict.ONE_SEED
        and not report.page.judged.analyses
        and not (root / ANALYSIS_LOG).exists()
    )
    for seed in (2, 3, 4):
        add_seed(root, writers, seed)
    assert verdict_label(claim(written(root))) == Verdict.HOLDS


def test_other_claims_are_not_touched(make_runs: Callable[..., Path], writers: Any) -> None:
    """Seeds of one column alone: the claims about another were looked at once."""
    root = make_runs(MEANS | {("ltr_bilstm", "squad_v1"): 80.0, ("ltr", "squad_v1"): 70.0})
    written(root)
    add_seed(root, writers, 4)
    found = {one.claim.id: verdict_label(one) for one in written(root).judgements}
    assert (
        found["bilstm_helps_squad"] == Verdict.HOLDS
        and found["ltr_hurts_mrpc"] == "holds (exploratory)"
    )


def test_a_damaged_line_counts_as_a_look(make_runs: Callable[..., Path], writers: Any) -> None:
    root = make_runs(MEANS)
    written(root)
    text = (root / ANALYSIS_LOG).read_text()
    (root / ANALYSIS_LOG).write_text(text + text[: len(text) // 2])
    add_seed(root, writers, 4)
    report = written(root)
    assert claim(report).is_exploratory
    assert re.fullmatch(r"3 \([-\d]+, unreadable, [-\d]+\)", report.page.judged.analyses)
    assert written(root).page.judged.analyses == report.page.judged.analyses, (
        "the look was noted on a line of its own"
    )


def test_a_look_that_cannot_be_noted_is_said(make_runs: Callable[..., Path]) -> None:
    root = make_runs(MEANS)
    (root / ANALYSIS_LOG).mkdir()
    (line,) = written(root).page.problems["Interim analyses"]
    assert line.startswith("this interim analysis could not be noted (")


# Simulated, through the real judge. benchmarks/looks.py has the longer run that docs/results
# publishes.


@pytest.mark.slow
def test_seeds_that_are_added_after_a_look_bring_false_verdicts(tmp_path: Path) -> None:
    """Why such verdicts are called exploratory: one look keeps to 5 %, looking at every seed does
    not.
    """
    experiment, draw, tables = (
        simulation.make_experiment(tmp_path / "null", 1),
        np.random.default_rng(1),
        100,
    )
    seen = [
        list(simulation.looks(experiment, draw.normal(size=(1, 10)), simulation.one_more, 9))
        for _ in range(tables)
    ]
    first, ever = (
        sum(simulation.is_false(one[0]) for one in seen),
        sum(any(map(simulation.is_false, one)) for one in seen),
    )
    assert first <= stats.binom.ppf(0.995, tables, 0.05) < ever


@pytest.mark.slow
@pytest.mark.parametrize(("claims", "mean", "sd"), [(1, 1.0, 1.0), (4, 1.5, 1.2)])
def test_four_of_five_repetitions_decide_at_the_forecast(
    tmp_path: Path, claims: int, mean: float, sd: float
) -> None:
    """Half of them did at the former forecast."""
    experiment, draw, cases = (
        simulation.make_experiment(tmp_path / "power", claims),
        np.random.default_rng(2),
        120,
    )
    shape = np.array([-1.0, 0.0, 1.0])
    seen = np.tile(mean + sd * shape, (claims, 1)) + 1e-6 * draw.normal(size=(claims, 3))
    found = simulation.judged(experiment, seen, 3)
    assert {one.verdict for one in found} == {Verdict.INCONCLUSIVE}

    def decided(count: int) -> float:
        are_decided: list[bool] = []
        for _ in range(cases):
            drawn = draw.normal(mean, sd, (claims, count))
            table = simulation.judged(experiment, drawn, count)
            are_decided += [one.verdict.is_decided for one in table]
        return float(np.mean(are_decided))

    (count,) = {one.decisive_seeds for one in found}
    assert count is not None
    assert decided(count) >= 0.75 and decided(min(simulation.former(found))) < 0.7
