"""What is done is not planned again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.records import change, finish_job
from tests.screens import refuses, shows

from clozelab.config import Composed
from clozelab.launch.jobs import planned_jobs
from clozelab.planning.cost import Costing
from clozelab.planning.finished import done_jobs
from clozelab.planning.steps import Step, make_steps
from clozelab.planning.sweeps import Corpora, analyse
from clozelab.planning.tables import arms_without_line, sums
from clozelab.results.experiment import find_experiment
from clozelab.runs.code import code_hash
from clozelab.runs.find import find
from clozelab.runs.record import read_record, write_record

FOLDER = find_experiment("table5_pretraining_tasks")
WORDS = ["scale=demo", "finetune.task=mrpc", "finetune.row=mlm,ltr", "finetune.seed=1"]


@pytest.fixture
def steps(folders: list[str]) -> dict[str, Step]:
    return {step.verb: step for step in make_steps(FOLDER, [*WORDS, *folders])}


def plan(steps: dict[str, Step], root: Path) -> Costing:
    place = root / FOLDER.name / "demo"
    return analyse(
        list(steps.values()), Corpora(strict=False), find(place) if place.is_dir() else None
    )


def jobs(step: Step, *said: str) -> list[tuple[str, ...]]:
    result = []
    for words in step.sweep.jobs:
        if all(word in words for word in said):
            result.append(words)
    return result


def test_done_jobs_are_not_left(steps: dict[str, Step], tmp_path: Path) -> None:
    before = plan(steps, tmp_path)
    shows(
        "\n".join(sums(before)),
        "pre-training: 6 jobs, 2 at a time with 1 thread: time unknown",
        "fine-tuning: 4 jobs, 2 at a time with 1 thread: time unknown",
    )
    assert before.wall("pretrain") is None
    for words in jobs(steps["pretrain"], "arm=mlm"):
        finish_job(steps["pretrain"], words)
    # another training
    finish_job(steps["pretrain"], jobs(steps["pretrain"], "arm=ltr")[0], phases=[{"steps": 1}])
    for words in jobs(steps["finetune"]):
        finish_job(steps["finetune"], words)
    after = plan(steps, tmp_path)
    arms = {arm.name: arm for arm in after.arms}
    assert (arms["mlm"].done, arms["ltr"].done) == (2, 0)
    assert (after.left("pretrain"), after.left("finetune")) == (4, 0)
    assert after.wall("finetune", only_left=True) == 0.0
    shows(
        "\n".join(sums(after)),
        "pre-training: 6 jobs, 2 at a time with 1 thread: time unknown; left: 4",
        "fine-tuning: 4 jobs, 2 at a time with 1 thread: time unknown; left",
    )


def test_an_arm_that_was_renamed_is_told(steps: dict[str, Step], tmp_path: Path) -> None:
    for words in jobs(steps["pretrain"], "arm=mlm"):
        finish_job(steps["pretrain"], words)
    runs = find(tmp_path / FOLDER.name / "demo")
    assert not list(arms_without_line({"mlm", "ltr"}, runs))
    assert not list(arms_without_line((), runs)), "its sweeps are files"
    (told,) = arms_without_line({"masked", "ltr"}, runs)
    shows(told, "2 pre-training runs of the arm mlm, which paper.yaml does not have: under another")


def test_a_run_that_kept_less_than_is_asked_is_not_done(
    steps: dict[str, Step], tmp_path: Path
) -> None:
    (words, *_) = jobs(steps["finetune"])
    folder = finish_job(steps["finetune"], words)
    for kept, done in (["model"], {words}), ([], set()):
        change(folder, facts__kept=kept)
        assert done_jobs(steps["finetune"], find(tmp_path / FOLDER.name / "demo")) == done


def test_jobs_that_differ_in_seeds_are_composed_once(
    steps: dict[str, Step], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = steps["pretrain"]
    for words in step.sweep.jobs:
        finish_job(step, words)
    finish_job(steps["finetune"], jobs(steps["finetune"], "row=mlm")[0], gradient_clip_norm=9.0)
    step = replace(step)  # which has composed nothing yet
    composed = []
    compose = step.sweep.composer.compose

    def counted(words: tuple[str, ...]) -> Composed:
        composed.append(words)
        return compose(words)

    monkeypatch.setattr(step.sweep.composer, "compose", counted)
    runs = find(tmp_path / FOLDER.name / "demo")
    assert done_jobs(step, runs) == set(step.sweep.jobs)
    assert len(step.sweep.jobs) == 6 and len(composed) == 3
    assert not done_jobs(steps["finetune"], runs)


def test_what_another_experiment_trained_is_shared(steps: dict[str, Step], tmp_path: Path) -> None:
    step = steps["pretrain"]
    words = jobs(step, "arm=mlm", "seed=1")[0]
    there = tmp_path / "another/demo/pretrain/mine/seed-1"
    finish_job(step, words, experiment="another", run_dir=str(there))
    runs = find(tmp_path / FOLDER.name / "demo")
    assert not done_jobs(step, runs)  # it has lost its encoder
    (there / "encoder").mkdir()
    (there / "encoder/model.safetensors").touch()
    record = read_record(there)
    assert record is not None
    record.code = code_hash("pretrain", record.config)
    write_record(record)
    assert done_jobs(step, runs) == {words}


def test_a_run_in_another_folder_is_no_job_of_a_sweep(
    steps: dict[str, Step], tmp_path: Path
) -> None:
    """Neither for the plan nor for the launch, which looks into the job's own folder alone."""
    step = steps["pretrain"]
    moved, kept = jobs(step, "arm=mlm")
    for words in (moved, kept):
        finish_job(step, words)
    folder = Path(step.sweep.settings(moved)["run_dir"])
    folder.rename(folder.with_name("copy"))
    runs = find(tmp_path / FOLDER.name / "demo")
    assert len(runs.pretrain) == 2
    assert done_jobs(step, runs) == {kept}
    status = {job.overrides: job.status for job in planned_jobs(step.sweep)}
    assert status[moved] == "new" and status[kept] == "check"


def test_a_plan_refuses_what_a_launch_refuses(steps: dict[str, Step]) -> None:
    step = replace(steps["pretrain"], overrides=(*steps["pretrain"].overrides, "objective=ltr"))
    with refuses("stands for"):
        next(planned_jobs(step.sweep))
    with refuses("stands for"):
        analyse([step], Corpora(strict=False))
