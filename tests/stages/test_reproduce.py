"""What `reproduce` does before it starts anything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from clozelab.launch.jobs import PlannedJob
from clozelab.planning.steps import Step
from clozelab.stages import reproduce
from clozelab.stages.plan import doctor

STEPS = [
    Step("prepare", "prepare", None, ()),
    Step("pretrain", "sweep_pretrain", Path("experiment"), ()),
    Step("finetune", "sweep_finetune", Path("experiment"), ()),
]


def plan(monkeypatch: pytest.MonkeyPatch, **statuses: list[str]) -> list[str]:
    """Let the sweeps have jobs in these states; the list fills with those that were looked at."""
    seen: list[str] = []

    def planned(name: str) -> Iterator[PlannedJob]:
        for status in statuses[name]:
            seen.append(status)
            yield PlannedJob((), name, status)

    monkeypatch.setattr(Step, "sweep", property(lambda step: step.config_name))
    monkeypatch.setattr(reproduce, "planned_jobs", planned)
    return seen


def test_complete_runs_leave_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    plan(monkeypatch, sweep_pretrain=["complete"] * 2, sweep_finetune=["complete"] * 3)
    assert reproduce.all_complete(STEPS)


@pytest.mark.parametrize("status", ["new", "failed", "interrupted", "running", "check", "shared"])
def test_the_first_open_job_is_enough(monkeypatch: pytest.MonkeyPatch, status: str) -> None:
    seen = plan(monkeypatch, sweep_pretrain=["complete", status, "complete"], sweep_finetune=["complete"] * 50)
    assert not reproduce.all_complete(STEPS)
    assert seen == ["complete", status]


def test_an_open_fine_tuning_job_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    plan(monkeypatch, sweep_pretrain=["complete"], sweep_finetune=["complete", "new"])
    assert not reproduce.all_complete(STEPS)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("-dry-run", "did you mean '--dry-run'?"),
        ("--dryrun", "did you mean '--dry-run'?"),
        ("--dry-run=yes", "did you mean '--dry-run'?"),
        ("-x", "there are --dry-run, --skip-doctor"),
    ],
)
def test_an_option_that_there_is_not_starts_nothing(word: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "make_steps", None)  # would fail
    with pytest.raises(ValueError, match=re.escape(f"reproduce has no option {word}; {message}")):
        reproduce.main(["table5_pretraining_tasks", word])
    with pytest.raises(ValueError, match="no option"):
        doctor(["table5_pretraining_tasks", word])
