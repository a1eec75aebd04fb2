"""Where one arm overtakes another: the place with its interval, and what the claim that it does
needs to hold.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests.records import made_up, table_of
from tests.results.words import crossover_interval, crossover_place, judgement_note, missing_in

from claims.analysis.crossover import find_sign_changes
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Judgement, judge, run_interim_analysis
from clozelab.results.experiment import Experiment, load_experiment
from clozelab.runs.record import Record, Score

FRACTIONS = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
METRIC = "validation/accuracy"
TOKENS = 1_000_000
WOBBLE = np.array([[0.3], [-0.3], [0.1], [-0.1]])
"""Of four seeds, at all points alike."""


def make(folder: Path, columns: Sequence[Any] = (), **claim: Any) -> Experiment:
    rows = [
        {
            "row": f"{arm}_{100 * one:.0f}",
            "arm": arm,
            "set": {"encoder_fraction": one},
            "floor": None,
        }
        for arm, one in product(("new", "old"), FRACTIONS)
    ]
    said = {
        "columns": (
            columns
            or [
                {"name": "task", "task": "task", "metric": METRIC},
                {"name": "other", "task": "other"},
            ]
        ),
        "arms": {"new": {}, "old": {}},
        "rows": rows,
        "claims": [
            {
                "text": "t",
                "compare": ["new_100", "old_100", "task"],
                "direction": "crosses",
                **claim,
            }
        ],
        "matched_by": "none",
    }
    folder.mkdir(exist_ok=True)
    (folder / "paper.yaml").write_text(json.dumps(said))
    return load_experiment(folder)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return make(tmp_path_factory.mktemp("crossing"))


def record(stage: str, folder: Path = Path("none"), score: float = 0.0, **more: Any) -> Record:
    scores = {METRIC: Score(unit="percent", higher_is_better=True, value=score)}
    return made_up(stage, folder=folder, metric=METRIC, scores=scores, **more)


def finetuned(leads: Any) -> list[Record]:
    """[seeds, points] -> the runs in which `new` is so far ahead of `old`."""
    found = []
    for seed, mine in enumerate(np.atleast_2d(leads), 1):
        for fraction, lead in zip(FRACTIONS, mine, strict=True):
            for arm, ahead in (("new", lead), ("old", 0.0)):
                row, said = (
                    f"{arm}_{100 * fraction:.0f}",
                    {"encoder_arm": arm, "encoder_fraction": fraction},
                )
                config = {
                    "row": row,
                    "task": {"name": "task"},
                    "pretrain_seed": seed,
                    "seed": 1,
                    **said,
                }
                score = 60.0 + 3.0 * fraction + seed + float(ahead)
                delta = {"row": row, **said}
                found.append(record("finetune", score=score, config=config, row_delta=delta))
    return found


def pretrained(root: Path, arm: str, seeds: int, slower: float = 1.0) -> list[Record]:
    """Runs that count tokens evenly, the other clock `slower`."""
    found = []
    for seed in range(1, seeds + 1):
        folder = root / arm / str(seed)
        folder.mkdir(parents=True)
        lines = [
            f"{step},{step * TOKENS // 100},{slower * step},train/loss,2.0\n"
            for step in range(10, 100, 5)
        ]
        (folder / "metrics.csv").write_text("step,tokens,seconds,key,value\n" + "".join(lines))
        facts = {
            "steps": 100,
            "tokens": TOKENS,
            "training_seconds": 100.0 * slower,
            "flops": 1e12 * slower,
        }
        config = {"arm": arm, "seed": seed}
        found.append(record("pretrain", folder, config=config, facts=facts))
    return found


def judged(experiment: Experiment, leads: Any, others: Sequence[Record] = ()) -> Judgement:
    (found,) = judge(table_of(experiment, [*others, *finetuned(leads)]))
    return found


def test_it_holds_with_the_place_and_its_interval(experiment: Experiment, tmp_path: Path) -> None:
    """Level at 25 % and +-0.3 around it: the interval is that of a t test, in both directions along
    the lines.
    """
    both = [*pretrained(tmp_path, "new", 4), *pretrained(tmp_path, "old", 4)]
    leads = np.array([-4.0, -2.0, 0.0, 2.0, 4.0, 6.0]) + WOBBLE
    found = judged(experiment, leads, both)
    assert found.verdict == Verdict.HOLDS and found.crossover is not None
    assert found.crossover.point == pytest.approx(0.25 * TOKENS)
    half = stats.t.ppf(0.975, 3) * WOBBLE.std(ddof=1) / 2.0
    ((low, high),) = found.crossover.level_stretches
    assert low == pytest.approx(TOKENS * 0.25 * (0.1 / 0.25) ** (half / 2.0))
    assert high == pytest.approx(TOKENS * 0.25 * (0.5 / 0.25) ** (half / 2.0))
    assert judgement_note(found).startswith(
        "new overtakes old at 250 k tokens; 95 % interval: [207 k tokens, 288 k tokens]"
    )
    points = product(("new", "old"), FRACTIONS)
    assert set(found.rows) == {f"{arm}_{100 * fraction:.0f}" for arm, fraction in points}


def test_no_crossing_is_said_plainly(experiment: Experiment) -> None:
    behind = judged(experiment, np.array([-6.0, -5.0, -4.0, -3.0, -2.0, -1.0]) + WOBBLE)
    assert behind.verdict == Verdict.CONTRADICTED
    assert behind.crossover and behind.crossover.leader == "old"
    assert (behind.crossover.start, behind.crossover.end) == (0.05, 1.0)
    ahead = judged(experiment, np.full((4, 6), 5.0) + WOBBLE)
    assert ahead.verdict == Verdict.CONTRADICTED
    assert ahead.crossover and ahead.crossover.leader == "new"
    other_way = judged(experiment, np.array([4.0, 2.0, 0.0, -2.0, -4.0, -6.0]) + WOBBLE)
    assert other_way.verdict == Verdict.CONTRADICTED
    assert other_way.crossover and other_way.crossover.leader is None
    assert other_way.crossover.point is None
    level = judged(
        experiment, np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]) + WOBBLE * [0, 1, 1, 1, 1, 1]
    )
    assert (
        level.crossover and crossover_place(level.crossover) == "none seen"
    )  # it was never behind
    open_start = judged(experiment, np.array([-0.1, -2.0, -3.0, -3.0, -3.0, -3.0]) + WOBBLE)
    assert open_start.crossover and crossover_place(open_start.crossover) == "none seen"
    assert crossover_interval(open_start.crossover) == ""
    assert open_start.crossover.leader == "old"
    ((low, high),) = open_start.crossover.level_stretches
    assert low == 0.05 and 0.05 < high < 0.06


def test_both_ends_are_tested(experiment: Experiment) -> None:
    """A mean that changes its sign is no crossing while one end is open, and the interval then
    reaches that end.
    """
    found = judged(experiment, np.array([-0.2, 0.2, 2.0, 2.0, 2.0, 2.0]) + WOBBLE)
    assert found.verdict == Verdict.INCONCLUSIVE and found.crossover is not None
    assert found.crossover.point is not None
    ((low, _),) = found.crossover.level_stretches
    assert low == found.crossover.start
    assert found.decisive_seeds
    assert found.verdicts == (Verdict.INCONCLUSIVE, Verdict.HOLDS)
    alone = judged(experiment, [-4.0, -2.0, 0.0, 2.0, 4.0, 6.0])
    assert alone.verdict == Verdict.ONE_SEED and alone.crossover
    assert crossover_interval(alone.crossover) == ""


def test_flops_and_seconds_are_each_arm_s_own(tmp_path: Path) -> None:
    """`new` takes twice as long a step: where it is level by steps, it lies behind by time."""
    both = [*pretrained(tmp_path, "new", 4, slower=2.0), *pretrained(tmp_path, "old", 4)]
    grows = np.linspace(-4.0, 6.0, 6) + WOBBLE
    places = {}
    for unit in ("tokens", "flops", "seconds"):
        found = judged(make(tmp_path, measured_in=unit), grows, both)
        assert found.verdict == Verdict.HOLDS and found.crossover is not None
        places[unit] = found.crossover.point
        assert found.crossover.unit == unit
    assert places["flops"] / 1e12 == pytest.approx(places["seconds"] / 100.0)
    assert places["flops"] / 1e12 > 1.5 * places["tokens"] / TOKENS


def test_of_losses_the_smaller_one_is_ahead_also_where_nothing_is_fine_tuned(
    tmp_path: Path,
) -> None:
    """Measured bits a character: `new` begins with more of them and ends with fewer."""
    key = "validation/bits_per_character"
    held_out = {"name": "task", "from": "evaluate", "task": "task", "metric": key}
    experiment = make(tmp_path, columns=[held_out])
    for sign, verdict in ((-1.0, Verdict.HOLDS), (1.0, Verdict.CONTRADICTED)):
        found = finetuned(sign * np.array([-4.0, -2.0, 0.0, 2.0, 4.0, 6.0]) + WOBBLE)
        measured = []
        for one in found:
            config = {key: value for key, value in one.config.items() if key != "task"} | {
                "measure": {"name": "task"}
            }
            score = {
                key: Score(unit="bits", higher_is_better=False, value=one.scores[METRIC].value)
            }
            changes = {"stage": "evaluate", "config": config, "metric": key, "scores": score}
            measured.append(one.model_copy(update=changes))
        (one,) = judge(table_of(experiment, measured))
        assert one.verdict == verdict and one.crossover is not None
        assert (one.crossover.point is not None) == (verdict == Verdict.HOLDS)
        if one.crossover.point is not None:
            assert one.crossover.point == pytest.approx(0.25)
        assert one.crossover.leader is None


def test_an_earlier_look_is_found_again_whatever_the_clock_said(tmp_path: Path) -> None:
    """The weights between two points are means over seeds: with every seed they are other ones."""
    experiment, root = make(tmp_path / "mine", measured_in="seconds"), tmp_path / "runs"
    root.mkdir()
    clocks = [2.2, 2.21, 2.18, 2.25]
    both = pretrained(tmp_path, "old", 4)
    for seed, slower in enumerate(clocks, 1):
        runs_of_clock = pretrained(tmp_path / f"clock{seed}", "new", 4, slower)
        both += [one for one in runs_of_clock if one.seed == seed]
    for count, is_exploratory in ((3, False), (4, True)):
        leads = (np.linspace(-4.0, 26.0, 6) + WOBBLE)[:count]
        runs = [*(one for one in both if one.seed <= count), *finetuned(leads)]
        (found,) = run_interim_analysis(table_of(experiment, runs, root), root).judgements
        assert found.verdict == Verdict.HOLDS and found.is_exploratory == is_exploratory


def test_lines_that_are_not_there(experiment: Experiment, tmp_path: Path) -> None:
    found = finetuned(np.zeros((3, 6)))
    few = [one for one in found if one.name in ("new_100", "old_100", "old_50")]
    (one,) = judge(table_of(experiment, few))
    assert one.verdict == Verdict.NOT_COMPARABLE
    assert missing_in(one) == "no runs at two or more fractions of both arms' steps"


def test_the_set_is_that_of_t_tests_at_every_place() -> None:
    """Against a fine grid, on lines that cross more than once."""
    draw = np.random.default_rng(1)
    places = [0.0, 1.0, 2.5, 3.0, 5.0]
    grid = np.linspace(0.0, 5.0, 201)
    for _ in range(50):
        gaps = draw.normal(size=(4, 5)) + draw.normal(size=5)
        stretches = find_sign_changes(places, gaps).level_stretches
        values = np.array([np.interp(grid, places, one) for one in gaps])
        is_in = np.zeros(len(grid), dtype=bool)
        for low, high in stretches:
            is_in |= (low <= grid) & (grid <= high)
        assert list(is_in) == list(stats.ttest_1samp(values, 0.0).pvalue >= 0.05)


@pytest.mark.parametrize("tables", [40, pytest.param(4000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seeds", [3, 5])
def test_the_interval_has_the_true_place_in_95_of_100(
    experiment: Experiment, tables: int, seeds: int
) -> None:
    """Lines that are truly level at 20 % of the steps; seeds vary as a whole and at every point."""
    draw, hits, truth = np.random.default_rng(seeds), 0, 0.2
    means = np.interp(np.log(FRACTIONS), np.log([0.05, 0.1, truth, 1.0]), [-3.0, -2.0, 0.0, 4.0])
    # Straight between two points, as the lines are: 0 lies at the truth.
    slope = (means[2] - means[1]) / np.log(2.5)
    means += -(means[1] + slope * np.log(truth / 0.1))
    for _ in range(tables):
        leads = means + draw.normal(size=(seeds, 1)) + 0.7 * draw.normal(size=(seeds, 6))
        found = judged(experiment, leads)
        assert found.crossover is not None
        hits += any(low <= truth <= high for low, high in found.crossover.level_stretches)
    assert stats.binom.ppf(0.001, tables, 0.95) <= hits <= stats.binom.ppf(0.999, tables, 0.95)
    assert tables < 4000 or 0.93 * tables <= hits <= 0.97 * tables, hits
    print(f"{hits} of {tables} with {seeds} seeds")
