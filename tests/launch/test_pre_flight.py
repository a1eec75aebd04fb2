"""Which sweeps are looked at before they start, with which words, and what a finding does to
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from tests.composing import given
from tests.screens import refuses

from clozelab.config import Composed
from clozelab.launch import launcher
from clozelab.launch.launcher import REPRODUCING, SKIP_DOCTOR, run_preflight
from clozelab.launch.process_launcher import ProcessLauncher
from clozelab.launch.progress import plan_file
from clozelab.launch.sweep import compose
from clozelab.planning import reproduction
from clozelab.planning.steps import Step
from clozelab.runs.progress import read_launches
from clozelab.text.paths import EXPERIMENTS_DIR


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The doctor's words, each time that it is asked; it finds nothing."""
    monkeypatch.delenv(SKIP_DOCTOR)
    return answer(monkeypatch, 0)


def answer(monkeypatch: pytest.MonkeyPatch, status: int) -> list[list[str]]:
    asked: list[list[str]] = []

    def run(words: Sequence[str], **_: object) -> int:
        assert words[0] == "doctor"
        asked.append([*words[1:]])
        return status

    monkeypatch.setattr(launcher, "run_verb", run)
    return asked


def sweep(*words: str, folder: Path | None = None) -> Composed:
    return compose("sweep_pretrain" if folder else "pretrain", words, folder=folder, sweep=True)


def test_a_long_sweep_is_looked_at_with_its_own_words(
    asked: list[list[str]], tmp_path: Path
) -> None:
    run_preflight(
        "pretrain", sweep("objective=mlm,ltr", "seed=1,2", f"hydra.searchpath=[{tmp_path}]"), 4
    )
    place = f"hydra.searchpath=[{tmp_path}]"
    assert asked == [
        ["pretrain", "--config-name", "pretrain", "objective=mlm,ltr", "seed=1,2", place]
    ]


def test_what_hydra_is_told_of_jobs_and_launcher_counts(asked: list[list[str]]) -> None:
    folder = EXPERIMENTS_DIR / "table5_pretraining_tasks"
    words = ["hydra/launcher=slurm", "hydra.sweeper.params.seed='1,2,3,4'"]
    run_preflight(
        "pretrain", sweep("scale=laptop", *words, "hydra.verbose=true", folder=folder), 12
    )
    assert asked == [
        [
            "pretrain",
            "--config-dir",
            str(folder),
            "--config-name",
            "sweep_pretrain",
            "scale=laptop",
            *words,
        ]
    ]


def test_only_trainings_are_looked_at(asked: list[list[str]]) -> None:
    run_preflight(
        "prepare",
        compose("prepare", ["tokenizer.vocab_size=1000,2000,3000,4000"], sweep=True),
        4,
    )
    assert not asked


def test_few_jobs_are_sooner_run(asked: list[list[str]]) -> None:
    run_preflight("pretrain", sweep("seed=1,2,3"), 3)
    assert not asked


@pytest.mark.parametrize(("said", "times"), [("1", 0), ("0", 1), ("", 1)])
def test_who_wants_none_gets_none(
    asked: list[list[str]], monkeypatch: pytest.MonkeyPatch, said: str, times: int
) -> None:
    monkeypatch.setenv(SKIP_DOCTOR, said)
    run_preflight("pretrain", sweep("seed=1,2,3,4"), 4)
    assert len(asked) == times


def test_an_error_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SKIP_DOCTOR)
    answer(monkeypatch, 1)
    with refuses("the pre-flight has found an error, nothing was started; mend"):
        run_preflight("pretrain", sweep("seed=1,2,3,4"), 4)


@pytest.mark.parametrize("status", [129, 130, 138, 140, 143])
def test_stopped_meanwhile(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.delenv(SKIP_DOCTOR)
    answer(monkeypatch, status)
    with pytest.raises(SystemExit) as caught:
        run_preflight("pretrain", sweep("seed=1,2,3,4"), 4)
    assert caught.value.code == status


def test_a_killed_pre_flight_is_no_wish_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SKIP_DOCTOR)
    answer(monkeypatch, 137)
    with refuses("the pre-flight was killed by signal 9 (9: out of memory, as a"):
        run_preflight("pretrain", sweep("seed=1,2,3,4"), 4)


def test_reproduce_says_that_it_has_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    environments: list[dict[str, str]] = []
    monkeypatch.delenv(SKIP_DOCTOR)
    monkeypatch.setattr(
        reproduction,
        "run_verb",
        lambda words, **said: environments.append(said["environment"]) or 0,
    )
    assert reproduction.run_steps([Step("prepare", "prepare", None, ())], Console(quiet=True)) == (
        0,
        False,
    )
    assert environments == [{SKIP_DOCTOR: REPRODUCING}]


@pytest.mark.parametrize(
    ("status", "goes_on"), [(0, True), (1, True), (85, False), (137, False), (138, False)]
)
def test_which_ends_of_a_sweep_end_the_reproduction(
    monkeypatch: pytest.MonkeyPatch, status: int, goes_on: bool
) -> None:
    """A job that failed does not; a stop does, also one by trainer.max_time, and a sweep that was
    killed.
    """
    monkeypatch.setattr(reproduction, "run_verb", lambda words, **_: status)
    steps = [
        Step("pretrain", "sweep_pretrain", None, ()),
        Step("finetune", "sweep_finetune", None, ()),
    ]
    assert reproduction.run_steps(steps, Console(quiet=True)) == (status, not goes_on)


def test_the_first_batch_alone_removes_an_older_plan(tmp_path: Path) -> None:
    """With hydra.sweeper.max_batch_size a sweep is launched in several."""
    pool = ProcessLauncher(jobs_at_once=1, grace_seconds=1.0, fork=False)
    pool.sweep_dir = tmp_path
    pool.verb = "pretrain"
    plan = tmp_path / plan_file("pretrain")
    plan.write_text("{}")
    pool._preflight([], is_first=False)
    assert plan.exists()
    pool._preflight([], is_first=True)
    assert not plan.exists()


def test_the_jobs_of_every_batch_are_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(SKIP_DOCTOR, raising=False)
    pool = ProcessLauncher(jobs_at_once=1, grace_seconds=1.0, fork=False)
    pool.sweep_dir = tmp_path / "launcher"
    pool.verb = "pretrain"
    pool.names = []
    for seeds in ((1, 2), (3,)):
        pool._note_jobs([given("pretrain", {"arm": "mlm", "seed": seed}) for seed in seeds])
    jobs = read_launches(tmp_path)["pretrain"].jobs
    assert [job.seeds for job in jobs] == ["1", "2", "3"]
