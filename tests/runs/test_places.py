"""Runs that lie elsewhere than where they were made: behind links, and in folders that moved."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.runs.records import edit

from clozelab.runs.find import find
from clozelab.runs.packing import select_runs
from clozelab.runs.progress import write_launch
from clozelab.runs.record import JobName
from clozelab.runs.status import experiment_statuses

NAME = "table5_pretraining_tasks"


@pytest.fixture
def scale(make_runs: Callable[..., Path]) -> Path:
    """RUNS_DIR/EXPERIMENT/SCALE with nine pre-trainings."""
    return make_runs({})


@pytest.mark.parametrize("moved", [NAME, f"{NAME}/demo", f"{NAME}/demo/pretrain/mlm"])
def test_runs_behind_a_link_are_found(scale: Path, tmp_path: Path, moved: str) -> None:
    """A folder on another disk, with a link where it was."""
    runs_dir = scale.parents[1]
    before = [(run.place, run.status, run.fingerprint) for run in find(runs_dir).records]
    (runs_dir / moved).rename(tmp_path / "disk")
    (runs_dir / moved).symlink_to(tmp_path / "disk")
    found = find(runs_dir)
    assert [(run.place, run.status, run.fingerprint) for run in found.records] == before
    assert not found.damaged


def test_no_run_is_found_twice(scale: Path, tmp_path: Path) -> None:
    """Links to places that are met anyway, and in a circle, add nothing."""
    runs_dir = scale.parents[1]
    before = [run.place for run in find(runs_dir).records]
    (runs_dir / "latest").symlink_to(scale / "pretrain/mlm/seed-1")
    (scale / "up").symlink_to(runs_dir)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/back").symlink_to(tmp_path)
    (runs_dir / "elsewhere").symlink_to(tmp_path / "elsewhere")
    assert [run.place for run in find(runs_dir).records] == before


def test_a_link_to_a_folder_above_finds_no_runs_of_others(scale: Path) -> None:
    """They would even count before one's own, where the link's name sorts before."""
    runs_dir = scale.parents[1]
    before = [run.place for run in find(runs_dir).records]
    shutil.copytree(runs_dir, runs_dir.with_name("other_runs"))
    (runs_dir / "above").symlink_to(runs_dir.parent)
    assert [run.place for run in find(runs_dir).records] == before


def test_a_folder_that_goes_meanwhile_is_passed_over(
    scale: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = os.walk

    def slow_walk(*words: Any, **options: Any) -> Any:
        for name, *more in walk(*words, **options):
            if name.endswith("mlm/seed-1"):
                shutil.rmtree(name)
            yield name, *more

    monkeypatch.setattr("clozelab.runs.find.os.walk", slow_walk)
    assert len(find(scale).records) == 8


def test_what_a_run_was_given_is_not_searched(scale: Path, tmp_path: Path) -> None:
    runs_dir = scale.parents[1]
    before = [run.place for run in find(runs_dir).records]
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/run.json").write_text("{}")
    for place in (scale / "given", scale / "pretrain/mlm/seed-1"):
        place.mkdir(exist_ok=True)
        (place / "text").symlink_to(tmp_path / "theirs")
    assert [run.place for run in find(runs_dir).records] == before


@pytest.fixture
def command_at(writers: Any, tmp_path: Path, monkeypatch: Any) -> Callable[..., str]:
    """command_at(folder, words) -> what goes on with a stopped run that was moved there.

    It was made in work/runs, with these words, by a command in work.
    """
    monkeypatch.chdir(tmp_path)

    def go_on(folder: str, *words: str) -> str:
        scale = tmp_path / "work/runs" / NAME / "demo"
        writers.pretrain(scale, "mlm", 1, status="interrupted")
        run = scale / "pretrain/mlm/seed-1"
        home = f"{NAME}/demo/pretrain/mlm/seed-1"
        place = {"started_in": str(tmp_path / "work"), "home": home, "config_name": "pretrain"}
        edit(run / "run.json", **place, config_dir="", overrides=["seed=1", *words])
        (tmp_path / folder).parent.mkdir(parents=True, exist_ok=True)
        run.rename(tmp_path / folder)
        (status,) = experiment_statuses(find(tmp_path).records)
        return status.commands[0].removeprefix(f"cd {tmp_path}/work && clozelab pretrain ")

    return go_on


HOME = f"{NAME}/demo/pretrain/mlm/seed-1"


def test_a_run_in_its_place_goes_on_by_its_own_command(command_at: Callable[..., str]) -> None:
    assert command_at(f"work/runs/{HOME}") == "seed=1"


def test_a_moved_run_goes_on_where_it_lies(command_at: Callable[..., str], tmp_path: Path) -> None:
    """Its old command would begin anew in the old place."""
    assert command_at(f"new/{HOME}", "runs_dir=runs") == f"seed=1 runs_dir={tmp_path}/new"


@pytest.mark.parametrize("words", [(), ("run_dir=out/${seed}",)])
def test_a_renamed_run_goes_on_where_it_lies(
    command_at: Callable[..., str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert command_at("kept/first", *words) == f"seed=1 run_dir={tmp_path}/kept/first"


@pytest.mark.parametrize("moved", [NAME, f"{NAME}/demo"])
def test_a_sweep_behind_a_link_keeps_its_command(scale: Path, tmp_path: Path, moved: str) -> None:
    runs_dir = scale.parents[1]
    jobs = [JobName(arm, "", seed) for arm, seed in product(("mlm", "ltr"), "1234")]
    words = ["pretrain", "-m", f"runs_dir={runs_dir}"]
    write_launch(scale, words, {"pretrain": jobs})
    (runs_dir / moved).rename(tmp_path / "disk")
    (runs_dir / moved).symlink_to(tmp_path / "disk")
    (status,) = experiment_statuses(find(runs_dir).records)
    assert status.commands == [f"clozelab {' '.join(words)}"]
    assert [sweep.not_begun for sweep in status.sweeps] == [2]


@pytest.mark.parametrize("moved", [NAME, "other"])
def test_a_pack_behind_a_link_has_the_runs_that_others_share(
    scale: Path, tmp_path: Path, moved: str
) -> None:
    """A shared run is named from where the folder really is, by where it is itself."""
    runs_dir = scale.parents[1]
    source = runs_dir / "other/demo/pretrain/mlm/seed-1"
    shutil.copytree(scale / "pretrain/mlm/seed-1", source)
    (runs_dir / moved).rename(tmp_path / "disk")
    (runs_dir / moved).symlink_to(tmp_path / "disk")
    sharing = scale / "pretrain/mlm/seed-1"
    way = os.path.relpath(source.resolve(), sharing.resolve())
    shared = {"run": way, "fingerprint": "", "weights": ""}
    edit(sharing / "run.json", shared=shared)
    records = select_runs(scale, scale, "demo", {}).records
    assert records[-1].place == "other/demo/pretrain/mlm/seed-1"
