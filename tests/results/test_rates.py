"""How often whole tables are wrong: drawn scores through the real verdicts, collapsed and missing
runs included.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tests.records import made_up
from tests.results.every_kind import paper_of_every_kind

from claims.analysis import multiplicity
from claims.analysis.verdicts import Judgement, judge
from clozelab.results.experiment import Experiment, load_experiment
from clozelab.results.table import build_table
from clozelab.runs.find import Runs
from clozelab.runs.record import Score

Truth = Mapping[tuple[str, str], float]
"""(row, task) or (arm, PERPLEXITY) -> what is added to everybody's mean."""
Judged = Callable[..., Iterator[list[Judgement]]]

TASKS = {
    "mnli": "accuracy",
    "qnli": "accuracy",
    "mrpc": "accuracy",
    "sst2": "accuracy",
    "squad_v1": "f1",
    "rte": "accuracy",
}
ARMS = {"mlm_nsp": "mlm_nsp", "mlm": "mlm", "ltr": "ltr", "ltr_bilstm": "ltr"}
"""Row -> arm."""
PERPLEXITY = "validation/perplexity"
FINETUNING = 3
MARGIN = 1.0
RTE = "  - {name: RTE, metric: validation/accuracy, task: rte, stand_ins: [], benchmarks: []}\n"
FACTS = {"steps": 100, "tokens": 1000}
TABLES = 16
NO_DIFFERENCE: Truth = {("mlm_nsp", "rte"): MARGIN}
"""At the edge of a spread's margin neither verdict is right."""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Rows and arms set nothing, and so differ in nothing."""
    folder = tmp_path_factory.mktemp("rates") / "table"
    folder.mkdir()
    text = re.sub(
        r", set: \{.*?\}|(?<=: )\{objective: \w+\}",
        lambda found: "" if found[0][0] == "," else "{}",
        paper_of_every_kind("RTE", RTE),
    )
    (folder / "paper.yaml").write_text(text)
    return load_experiment(folder)


def drawn_runs(
    draw: np.random.Generator,
    pretraining: int,
    truth: Truth,
    spread: float,
    missing: float,
    collapses: bool,
) -> Runs:
    """The runs of one table: what an encoder's seed does to all tasks and to each outweighs a
    fine-tuning's seed.

    Args:
        draw: source of the scores.
        pretraining: seeds of it, of FINETUNING each.
        truth: what rows differ in.
        spread: points, of a single score.
        missing: share of the fine-tuning runs that are not there.
        collapses: of one row on one task, a run of every encoder answers the same whatever it
        reads: 20 points less.
    """
    arms, rows, tasks = sorted(set(ARMS.values())), list(ARMS), list(TASKS)
    encoders = draw.normal(0.0, 0.7, (len(arms), len(tasks), pretraining))
    encoders += draw.normal(0.0, 0.7, (len(arms), 1, pretraining))
    shape = (len(rows), len(tasks), pretraining, FINETUNING)
    noise = draw.normal(0.0, 0.3, shape)
    is_missing, has_collapsed = draw.random(shape) < missing, np.zeros(shape, dtype=bool)
    runs = (
        draw.integers(len(rows)),
        draw.integers(len(tasks)),
        range(pretraining),
        draw.integers(FINETUNING),
    )
    has_collapsed[runs] = collapses
    finetune = []
    for r, t, i, j in np.ndindex(shape):
        row, task, has_failed = rows[r], tasks[t], bool(has_collapsed[r, t, i, j])
        score = 75.0 + truth.get((row, task), 0.0)
        score += (
            spread * (encoders[arms.index(ARMS[row]), t, i] + noise[r, t, i, j]) - 20.0 * has_failed
        )
        metric = f"validation/{TASKS[task]}"
        if not is_missing[r, t, i, j]:
            config = {"row": row, "task": {"name": task}, "pretrain_seed": i + 1, "seed": j + 1}
            one = Score(unit="percent", higher_is_better=True, value=float(score))
            facts = {"collapsed": has_failed}
            finetune.append(
                made_up("finetune", config=config, facts=facts, metric=metric, scores={metric: one})
            )
    pretrain = []
    for a, i in np.ndindex(len(arms), pretraining):
        value = 20.0 + truth.get((arms[a], PERPLEXITY), 0.0) + spread * draw.normal()
        pretrain.append(
            made_up(
                "pretrain",
                config={"arm": arms[a], "seed": i + 1},
                facts=FACTS | {PERPLEXITY: float(value)},
            )
        )
    return Runs(Path("none"), [*pretrain, *finetune])


@pytest.fixture(scope="module")
def judged(experiment: Experiment) -> Judged:
    """judged(tables, pre-training seeds, truth, spread); of four tables one is whole, one lacks
    runs, one has collapsed ones, and one both."""

    def judge_all(
        tables: int, pretraining: int, truth: Truth = NO_DIFFERENCE, spread: float = 1.0
    ) -> Iterator[list[Judgement]]:
        draw = np.random.default_rng(pretraining)
        for number in range(tables):
            missing, collapses = 0.15 * (number % 2), number % 4 > 1
            runs = drawn_runs(draw, pretraining, truth, spread, missing, collapses)
            yield judge(build_table(experiment, runs))

    return judge_all


def wrong_tables(tables: Iterable[list[Judgement]]) -> list[list[str]]:
    """The claims that are decided, of each table with any."""
    found: list[list[str]] = []
    for table in tables:
        claims = [one.claim.id for one in table if one.verdict.is_decided]
        if claims:
            found.append(claims)
    return found


def most(tables: int) -> int:
    """If one table in twenty is wrong, more than these are in one simulation of a hundred."""
    return int(stats.binom.ppf(0.99, tables, 0.05))


@pytest.mark.parametrize(
    ("tables", "seeds"),
    [(TABLES, (3,)), pytest.param(40 * TABLES, (2, 3, 5), marks=pytest.mark.slow)],
)
def test_tables_without_a_true_difference_decide_nothing(
    judged: Judged, tables: int, seeds: tuple[int, ...]
) -> None:
    wrong = {number: wrong_tables(judged(tables, number)) for number in seeds}
    counts = {number: len(found) for number, found in wrong.items()}
    assert max(counts.values()) <= most(tables), f"{counts} of {tables}: {wrong}"
    assert sum(counts.values()) <= most(len(seeds) * tables), f"{counts} of {tables}: {wrong}"


def test_they_would_without_the_correction(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(multiplicity, "holm", np.copy)
    assert len(wrong_tables(judged(24, 3))) > 2 * most(24)
