"""A stopping rule that is fixed before the first look: one may stop at any look, and is wrong no
more often.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tests.records import table_of
from tests.simulation import benchmark

from claims.analysis.history import BreachKind
from claims.analysis.verdict_codes import Verdict
from claims.analysis.verdicts import Judgement, run_interim_analysis
from clozelab.planning.next_seed import nearest
from clozelab.results.experiment import Experiment, load_experiment
from clozelab.results.timing import seconds_of_work

simulation = benchmark("looks")
DIFFERENCES = np.array([[2.2, 1.0, 3.1, 1.8, 2.4, 1.5, 2.9, 2.0, 1.9]])


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return made(tmp_path / "ruled", first=3, most=8)


def made(folder: Path, **rule: int) -> Experiment:
    stopping = {"stopping": rule} if rule else {}
    experiment: Experiment = simulation.make_experiment(folder, 1, **stopping)
    return experiment


def looked(experiment: Experiment, root: Path, seeds: int, left_out: int = 0) -> Judgement:
    """Judged from the runs of so many seeds, and noted beside them."""
    records = [
        one for one in simulation.records(DIFFERENCES, seeds) if one.pretrain_seed > left_out
    ]
    table = table_of(experiment, records, root)
    (found,) = run_interim_analysis(table, root).judgements
    return found


@pytest.mark.parametrize("sessions", [1, 2])
def test_a_night_between_two_sessions_is_no_work(sessions: int) -> None:
    """Two runs of an hour, one after the other; one of them may have begun on the day before."""
    runs = []
    for hour, day in ((10, 2), (11, 3 - sessions)):
        (run, *_) = simulation.records(DIFFERENCES, 1)
        times = {
            "seconds": 3600.0,
            "sessions": sessions,
            "started": f"2026-01-0{day}T{hour}:00:00+00:00",
        }
        times["finished"] = f"2026-01-02T{hour + 1}:00:00+00:00"
        runs.append(run.model_copy(update=times))
    assert seconds_of_work([(runs, 2)]) == 7200.0


def test_a_look_speaks_for_the_side_that_it_was_on(tmp_path: Path) -> None:
    """Surely beyond the margin after three seeds; after six the mean lies inside, and nothing says
    that surely.
    """
    simulation.make_experiment(folder := tmp_path / "mine", 1, stopping={"first": 3, "most": 6})
    claim = {
        "text": "t",
        "rows": ["b0", "a0"],
        "column": "task",
        "direction": "within",
        "points": 1.0,
    }
    said = json.loads((folder / "paper.yaml").read_text()) | {"claims": [claim]}
    (folder / "paper.yaml").write_text(json.dumps(said))
    experiment = load_experiment(folder)
    differences = np.array([[2.0, 2.01, 1.99, -0.7, -1.0, 0.1]])
    verdicts = [simulation.judged(experiment, differences, count)[0].verdict for count in (3, 6)]
    assert verdicts == [Verdict.CONTRADICTED, Verdict.INCONCLUSIVE]


def test_other_looks_than_the_rule_s_count(experiment: Experiment, tmp_path: Path) -> None:
    """Of another rule, of none, and with seeds that come before those of an earlier look; and the
    rule's own, where it is dropped afterwards.
    """
    free = made(tmp_path / "free")
    other = made(tmp_path / "most", first=3, most=9)
    for name, before, left_out, after, seeds, kind in (
        ("none", free, 0, experiment, 8, BreachKind.SEEDS_ADDED),
        ("other", other, 0, experiment, 8, BreachKind.SEEDS_ADDED),
        ("seeds", experiment, 1, experiment, 8, BreachKind.SEEDS_ADDED),
        ("dropped", experiment, 0, free, 5, BreachKind.RULE_CHANGED),
    ):
        root = tmp_path / f"runs-{name}"
        root.mkdir()
        looked(before, root, 5, left_out)
        kinds = [breach.kind for breach in looked(after, root, seeds).breaches]
        assert kinds == [kind], name


@pytest.mark.slow
def test_looking_after_every_seed_is_wrong_once_in_twenty(tmp_path: Path) -> None:
    """Through the real judge; without a rule it is far more."""
    tables, draw = 4000, np.random.default_rng(4)
    drawn = [draw.normal(size=(1, 8)) for _ in range(tables)]

    def is_wrong(experiment: Experiment, table: np.ndarray) -> bool:
        return any(
            simulation.is_false(simulation.judged(experiment, table, count))
            for count in range(3, 9)
        )

    def wrong(experiment: Experiment) -> int:
        return sum(is_wrong(experiment, table) for table in drawn)

    most = stats.binom.ppf(0.99, tables, 0.05)
    assert wrong(made(tmp_path / "ruled", first=3, most=8)) <= most
    assert wrong(made(tmp_path / "free")) > most


@pytest.mark.parametrize("tables", [12, pytest.param(4000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("primary", [0, 1])
def test_until_decided_is_wrong_once_in_twenty(tmp_path: Path, tables: int, primary: int) -> None:
    """Three claims without a true difference; each next seed goes to the one that `until=decided`
    chooses.
    """
    experiment = simulation.make_experiment(
        tmp_path / "ruled", 3, primary, stopping={"first": 3, "most": 6}
    )
    claims, draw, wrong = [one.text for one in experiment.claims], np.random.default_rng(6), 0
    for _ in range(tables):
        differences, seeds, is_false = draw.normal(size=(3, 6)), [3, 3, 3], False
        while True:
            have = {}
            for claim, number in enumerate(seeds):
                have |= {f"a{claim}": number, f"b{claim}": number}
            records = simulation.records(differences, 6)
            found = simulation.judge_records(
                experiment, [one for one in records if one.pretrain_seed <= have[one.name]]
            )
            is_false |= simulation.is_false(found)
            if (chosen := nearest(found, experiment)) is None:
                break
            seeds[claims.index(chosen.claim.text)] += 1
        assert seeds[0] == 6 or is_false, "the seeds went somewhere"
        wrong += is_false
    assert wrong <= stats.binom.ppf(0.999, tables, 0.05)


def test_a_forecast_is_one_of_the_rule_s_looks(tmp_path: Path) -> None:
    """More seeds than one look alone would take, and none after the last look."""
    shape = np.array([[-1.0, 0.0, 1.0]])
    forecasts = {}
    for name, rule in (
        ("free", {}),
        ("eight", {"first": 3, "most": 8}),
        ("seven", {"first": 3, "most": 7}),
    ):
        (found,) = simulation.judged(made(tmp_path / name, **rule), shape + 1.6, 3)
        assert found.verdict == Verdict.INCONCLUSIVE
        assert found.forecast is not None
        forecasts[name] = (found.forecast.short, found.forecast.additional_seeds)
    assert forecasts == {
        "free": ("~6 seeds", 3),
        "eight": ("~8 seeds", 5),
        "seven": (">7 seeds", 4),
    }
