"""Seeds and tokens for a budget: the power that a plan says is the share of tables that the judge
decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.results.words import read_claim
from tests.screens import refuses, shows
from tests.simulation import benchmark

from claims.analysis.power import simulate_decided
from claims.analysis.schema import Column
from claims.analysis.verdict_codes import Verdict
from clozelab.planning.choice import (
    Allocation,
    Effect,
    PowerQuestion,
    StdDevs,
    _effect_of,
    _planned_task,
    allocations,
    power_study,
    std_devs_of,
)
from clozelab.planning.shapes import Speed
from clozelab.results.experiment import find_experiment, load_experiment, read_yaml
from clozelab.results.table import build_table
from clozelab.runs.find import find
from clozelab.stages.plan import main
from clozelab.text.paths import CONF_DIR

simulation = benchmark("looks")
TABLE_5 = load_experiment(find_experiment("table5_pretraining_tasks"))


@pytest.mark.parametrize("tables", [40, pytest.param(4000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("claims", "primary", "seeds", "rule"),
    [
        pytest.param(4, 2, 4, None, id="primary"),
        pytest.param(4, 0, 6, None, id="holm", marks=pytest.mark.slow),
        pytest.param(1, 0, 5, {"first": 3, "most": 8}, id="looks", marks=pytest.mark.slow),
    ],
)
def test_power_is_as_planned(
    tmp_path: Path, tables: int, claims: int, primary: int, seeds: int, rule: dict[str, int] | None
) -> None:
    """Through the real judge, where differences vary as the plan was told: two cells of two
    fine-tuning seeds.
    """
    spread, difference = StdDevs(1.2, 0.9, "told"), 3.0
    experiment = simulation.make_experiment(
        tmp_path / "mine", claims, primary, **({"stopping": rule} if rule else {})
    )
    analyses = (rule["first"], rule["most"]) if rule else None
    planned = power_study(experiment, {"task": {"": "percent"}}, difference).power(
        {"task": spread}, seeds, 2, analyses
    )
    draw, found = np.random.default_rng(7), list[float]()
    for _ in range(tables):
        noise = (
            1.2 * draw.normal(size=(claims, seeds))
            + 0.9 * draw.normal(size=(claims, seeds, 4)).sum(axis=2) / 2.0
        )
        decided = [
            one.verdict in (Verdict.HOLDS, Verdict.CONTRADICTED)
            for one in simulation.judged(experiment, difference + noise, seeds)
        ]
        found.append(float(all(decided[:primary])) if primary else float(np.mean(decided)))
    simulated = float(np.mean(found))
    print(f"planned {planned:.3f}, {simulated:.3f} of {tables} tables")
    assert 0.3 < planned < 0.97
    most = 0.05 if tables >= 4000 else 3.5 * float(np.std(found)) / tables**0.5
    assert abs(simulated - planned) <= most


def test_differences_are_counted_as_the_judge_counts_them() -> None:
    in_percent = {"": "percent"}
    found = power_study(TABLE_5, {"snli_95k": in_percent, "squad_v1": in_percent}, 2.0)
    assert len(found.claims) + len(found.unknown) == len(TABLE_5.claims) and found.num_primary == 2
    assert {task for *_, task in found.effects} == {"snli_95k", "squad_v1"}
    assert found.families == [
        [0],
        [1],
        [2, 3, 4, 5],
    ], "each difference once: primary claims alone, the rest together"
    figure5 = load_experiment(find_experiment("figure5_training_steps"))
    crossing = power_study(figure5, {"snli_95k": in_percent}, 2.0)
    assert sorted(map(len, crossing.claims)) == [1, 1, 1, 1, 2, 5]


@pytest.mark.parametrize(
    ("metric", "task"),
    [("", "mrpc"), ("validation/new_f1", "mrpc"), ("validation/mae", None), ("validation/x", None)],
)
def test_a_task_of_the_plan_knows_the_units_of_its_scores(metric: str, task: str | None) -> None:
    column = Column(name="MRPC", task="mrpc", metric=metric)
    units = {"": "percent", "new_f1": "percent", "mae": "points"}
    assert _planned_task(column, {"mrpc": units}) == task


def machine(minutes: float = 10.0, plateau: float = 0.0) -> Any:
    """Two arms, two pre-training and three fine-tuning seeds, one job at a time."""
    arms = [
        SimpleNamespace(
            count=2,
            seconds=60.0 * minutes + 2.5,
            tokens=1e6,
            tokens_to_plateau=plateau,
            start=2.5,
        )
        for _ in range(2)
    ]
    tasks = [SimpleNamespace(count=12, seconds=60.0, task="task")]
    pools = {verb: SimpleNamespace(at_once=1) for verb in ("pretrain", "finetune")}
    shapes = [*arms, *tasks]
    return SimpleNamespace(
        arms=arms, tasks=tasks, measures=[], pools=pools, num_seeds=2, shapes=shapes
    )


def chosen(
    hours: float, spread: StdDevs, difference: float = 3.0, **more: Any
) -> tuple[Allocation, list[Allocation]]:
    question = PowerQuestion([Effect(difference, (0.0,), 2, "task")], [[0]], 1, False, [])
    options: dict[str, Any] = {"tuned_seeds": 3, "analyses": None, "may_shorten": True} | more
    found = allocations(
        options.pop("costing", machine()), question, {"task": spread}, 3600.0 * hours, **options
    )
    return max(found, key=lambda one: one.utility), found


def test_seeds_come_before_tokens_and_tokens_before_more_seeds() -> None:
    one, found = chosen(1.5, StdDevs(1.0, 0.5, ""))
    assert all(
        choice.seconds <= 1.5 * 3600 + 1e-6 and 0.05 <= choice.factor <= 1.0 for choice in found
    )
    assert (
        one.power >= 0.8
        and max(choice.factor for choice in found if choice.power >= 0.8) == one.factor
    )
    rich, _ = chosen(24.0, StdDevs(1.0, 0.5, ""))
    assert rich.factor == 1.0 and rich.power > one.power
    assert [choice.power for choice in found] == sorted(choice.power for choice in found)
    noisy, _ = chosen(3.0, StdDevs(0.2, 3.0, ""))
    steady, _ = chosen(3.0, StdDevs(3.0, 0.2, ""))
    assert noisy.finetune_seeds > steady.finetune_seeds and noisy.seeds < steady.seeds


def test_primary_claims_together_are_one_family() -> None:
    """A sure one does not wait for the hard one in front of it."""
    effects = [Effect(difference, (0.0,), 2, "task") for difference in (0.0, 9.0, 9.0)]
    in_order = PowerQuestion(effects, [[0], [1], [2]], 2, False, [])
    together = replace(in_order, is_together=True)
    assert (in_order.families, together.families) == ([[0], [1], [2]], [[0, 1], [2]])
    found = [
        simulate_decided([(0.0, (0.0,)), (9.0, (0.0,)), (9.0, (0.0,))], one.families, 3, None)
        for one in (in_order, together)
    ]
    assert found[0][:, 1].mean() < 0.1 and found[1][:, 1].mean() > 0.8


@pytest.mark.parametrize("side", ["higher", "lower"])
def test_a_margin_lies_on_the_side_that_is_claimed(side: str) -> None:
    """A true difference of 3 is 2 points beyond a margin of 1, upwards and downwards."""
    entry = {"text": "t", "compare": ["a", "b", "MRPC"], "direction": side, "points": 1}
    effect = _effect_of(read_claim(entry), "task", 3.0)
    (boundary,) = effect.boundaries
    assert abs(effect.difference - boundary) == 2.0


def test_limits() -> None:
    """Arms with lengths of their own keep them; a masked model gets past its plateau; a rule begins
    at its first.
    """
    _, whole = chosen(1.5, StdDevs(1.0, 0.5, ""), may_shorten=False)
    assert {one.factor for one in whole} == {1.0}
    _, past = chosen(1.5, StdDevs(1.0, 0.5, ""), costing=machine(plateau=2e5))
    assert min(one.factor for one in past) >= 0.4
    _, ruled = chosen(9.0, StdDevs(1.0, 0.5, ""), analyses=(3, 5))
    assert [one.seeds for one in ruled] == [3, 4, 5]
    with refuses("2 pre-training seeds with one fine-tuning seed take about 6.2"):
        chosen(0.05, StdDevs(1.0, 0.5, ""))
    with refuses("no speed is known yet: leave --no-measure out (and the tasks'"):
        chosen(1.0, StdDevs(1.0, 0.5, ""), costing=SimpleNamespace(arms=[], shapes=[]))


def test_measures_are_planned_as_tasks_are(
    folders: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Nothing is fine-tuned in this experiment: its measures alone speak for its claims, and take
    the time.
    """
    speed = Speed(50_000.0)
    monkeypatch.setattr(
        "clozelab.planning.cost.measured_speeds", lambda requests, *_, **__: [speed] * len(requests)
    )
    words = ["scale=laptop", *folders]
    assert main(["zero_shot", *words, "budget=6h"]) == 0
    out = capsys.readouterr().out
    shows(
        out,
        "pre-training: 15 jobs, 2 at a time with 1 thread: about 1.1 h",
        "evaluation: 210 jobs, 2 at a time with 1 thread: about 41.1 min",
        "mlm_nsp 5 1,527,680 1,552,898 3,000 24.6 M 3.62e+06 8.88e+13 50 k 8.3 min",
        "mlm 5 1,527,680 1,552,640 3,000 24.6 M 3.62e+06 8.88e+13 50 k 8.3 min",
        "ltr 5 1,527,680 1,552,640 3,000 24.6 M 9.11e+06 2.24e+14 50 k 8.3 min",
    )
    told = re.search(r"evaluation: 210 jobs, .* about ([\d.]+) (h|min)\n", out)
    assert told is not None
    lines = [line.split() for line in out.splitlines() if re.match(r"\s+\d+ +– +24.6 M", line)]
    hours = {int(seeds): float(time) for seeds, _, _, _, time, *_ in lines}
    evaluated = float(told[1]) / {"h": 1, "min": 60}[told[2]] / 5  # hours of a seed
    trained = (hours[6] - hours[4]) / 2 - evaluated
    assert trained == pytest.approx(3 * 3000 * 8192 / 50_000 / 2 / 3600, rel=0.3), (
        "three arms, two at a time"
    )
    # A measure without a line of its own has one number a seed, too: fine-tuning seeds must buy it
    # no power.
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["sentence_embeddings", *words, "budget=60h"]) == 0
    shows(
        capsys.readouterr().out,
        "pre-training: 10 jobs, 2 at a time with 1 thread: about 41.5 min",
        "fine-tuning: 50 jobs, 2 at a time with 1 thread: about 21.6 min",
        "evaluation: 25 jobs, 2 at a time with 1 thread: about 13.1 min",
        "mlm_nsp 5 3,000 24.6 M 8.88e+13 50 k 8.3 min",
        "mlm 5 3,000 24.6 M 8.88e+13 50 k 8.3 min",
    )  # the table is whole


def test_spreads_have_sources() -> None:
    for task, said in read_yaml(CONF_DIR / "spreads.yaml").items():
        assert task == "default" or any(
            (CONF_DIR / kind / f"{task}.yaml").is_file() for kind in ("task", "measure")
        )
        assert StdDevs(**said).pretraining > 0.0 and said["source"]
        assert (
            not said["source"].startswith("docs/") or (CONF_DIR.parent / said["source"]).is_file()
        )


def test_own_runs_replace_the_shipped_spreads(make_runs: Callable[..., Path]) -> None:
    """Rows that vary alike from seed to seed have no difference that varies."""
    means = {("mlm", "squad_v1"): 70.0, ("ltr", "squad_v1"): 72.0, ("mlm", "mrpc"): 60.0}
    table = build_table(TABLE_5, find(make_runs(means)))
    found = std_devs_of(["squad_v1", "mrpc", "sst2"], table)
    assert found["squad_v1"].source == "your own runs, 3 seeds" and found[
        "squad_v1"
    ].finetuning == pytest.approx(0.0707, abs=1e-3)
    cells = [table.cells[row, "squad_v1"].scores for row in ("mlm", "ltr")]
    gaps = []
    for seed in (1, 2, 3):
        gaps.append(sum(cells[0][seed, one] - cells[1][seed, one] for one in (1, 2)) / 2)
    expected = np.var(gaps, ddof=1) - 0.0707**2
    assert found["squad_v1"].pretraining == pytest.approx(expected**0.5, abs=1e-2)
    assert found["mrpc"].source.startswith("assumed") and found["sst2"].source.startswith(
        "docs/results"
    )
    two = build_table(TABLE_5, find(make_runs(means, pretrain_seeds=(1, 2), below="two")))
    assert std_devs_of(["squad_v1"], two)["squad_v1"].source.startswith("docs/results"), (
        "two seeds are too few"
    )


def test_a_spread_is_in_points(tmp_path: Path, writers: Any) -> None:
    """Of a measure with two columns, the one in bits says nothing about points, though it is the
    first.
    """
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/paper.yaml").write_text(
        "arms: {mlm: {objective: mlm}, ltr: {objective: ltr}}\ncolumns:\n"
        "  - {name: Bits, from: evaluate, task: text, metric: validation/bits_per_character}\n"
        "  - {name: Accuracy, from: evaluate, task: text, metric: validation/accuracy}\n"
    )
    for seed in (1, 2, 3):
        for row, gain in (("mlm", 0.0), ("ltr", 0.01 * seed**2)):
            scores = {
                "validation/accuracy": 0.3 + gain,
                "validation/bits_per_character": 2.0 + gain,
            }
            writers.evaluation(tmp_path / "runs", row, "text", seed, scores, experiment="mine")
    table = build_table(load_experiment(tmp_path / "mine"), find(tmp_path / "runs"))
    assert std_devs_of(["text"], table)["text"].pretraining == pytest.approx(
        np.std([1, 4, 9], ddof=1)
    )
