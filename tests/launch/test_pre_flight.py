"""Which sweeps are looked at before they start, with which words, and what a finding does to
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from tests.screens import refuses

from clozelab.launch import launcher
from clozelab.launch.launcher import REPRODUCING, SKIP_DOCTOR, run_preflight
from clozelab.launch.sweep import compose
from clozelab.planning import reproduction
from clozelab.planning.steps import Step
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


FOLDER = EXPERIMENTS_DIR / "table5_pretraining_tasks"
OF_SLURM = ["scale=laptop", "hydra/launcher=slurm", "hydra.sweeper.params.seed='1,2,3,4'"]
SWEPT = ["objective=mlm,ltr", "seed=1,2", "hydra.searchpath=[/tmp]"]


@pytest.mark.parametrize(
    ("verb", "folder", "words", "jobs", "expected"),
    [
        pytest.param(
            "pretrain", None, SWEPT, 4, ["--config-name", "pretrain", *SWEPT], id="its own words"
        ),
        pytest.param(
            "pretrain",
            FOLDER,
            [*OF_SLURM, "hydra.verbose=true"],
            12,
            ["--config-dir", str(FOLDER), "--config-name", "sweep_pretrain", *OF_SLURM],
            id="what Hydra is told of jobs and launcher counts",
        ),
        pytest.param(
            "prepare", None, ["tokenizer.vocab_size=1000,2000,3000,4000"], 4, None, id="no training"
        ),
        pytest.param("pretrain", None, ["seed=1,2,3"], 3, None, id="few jobs are sooner run"),
    ],
)
def test_which_sweeps_are_looked_at_and_with_which_words(
    asked: list[list[str]],
    verb: str,
    folder: Path | None,
    words: list[str],
    jobs: int,
    expected: list[str] | None,
) -> None:
    name = verb if folder is None else f"sweep_{verb}"
    run_preflight(verb, compose(name, words, folder=folder, sweep=True), jobs)
    assert asked == ([] if expected is None else [[verb, *expected]])


def look_at_four_jobs() -> None:
    run_preflight("pretrain", compose("pretrain", ["seed=1,2,3,4"], sweep=True), 4)


@pytest.mark.parametrize(("said", "times"), [("1", 0), ("0", 1), ("", 1)])
def test_who_wants_none_gets_none(
    asked: list[list[str]], monkeypatch: pytest.MonkeyPatch, said: str, times: int
) -> None:
    monkeypatch.setenv(SKIP_DOCTOR, said)
    look_at_four_jobs()
    assert len(asked) == times


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (1, "the pre-flight has found an error, nothing was started; mend"),
        # A killed pre-flight is no wish to stop.
        (137, "the pre-flight was killed by signal 9 (9: out of memory, as a"),
    ],
)
def test_an_error_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, status: int, sentence: str
) -> None:
    monkeypatch.delenv(SKIP_DOCTOR)
    answer(monkeypatch, status)
    with refuses(sentence):
        look_at_four_jobs()


@pytest.mark.parametrize("status", [129, 130, 138, 140, 143])
def test_stopped_meanwhile(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.delenv(SKIP_DOCTOR)
    answer(monkeypatch, status)
    with pytest.raises(SystemExit) as caught:
        look_at_four_jobs()
    assert caught.value.code == status


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
    monkeypatch.setattr(reproduction, "_stand_in_the_way", lambda step: False)
    steps = [
        Step("pretrain", "sweep_pretrain", None, ()),
        Step("finetune", "sweep_finetune", None, ()),
    ]
    assert reproduction.run_steps(steps, Console(quiet=True)) == (status, not goes_on)
