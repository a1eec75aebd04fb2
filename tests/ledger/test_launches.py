"""What a launch leaves for `status`: its jobs are counted, other runs are not, and its command is said again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clozelab.config import EXPERIMENTS_DIR
from clozelab.launch.commands import LAUNCH_FILE, absolute, command, read_launch, remember_launch
from clozelab.runs.find import find
from clozelab.runs.gc import find_garbage
from clozelab.runs.progress import SweepState
from clozelab.stages import reproduce
from clozelab.stages.status import Standing, standings
from clozelab.stages.status import main as status_verb

EXPERIMENT = "table5_pretraining_tasks"
FOLDER = EXPERIMENTS_DIR / EXPERIMENT
SWEEPS = {
    "pretrain": ["scale=demo", "seed=1,2"],
    "finetune": ["scale=demo", "task=mrpc", "row=mlm,ltr", "pretrain_seed=1,2", "seed=1"],
}
WORDS = ["scale=demo", "data_dir=texts", "pretrain.seed=1,2", "finetune.task=mrpc", "finetune.row=mlm,ltr"]


@pytest.fixture
def root(make_runs: Callable[..., Path]) -> Path:
    return make_runs({("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0}, pretrain_seeds=(1, 2), finetune_seeds=(1,))


def standing(root: Path) -> Standing:
    (found,) = standings(find(root.parents[1]).records, str(root.parents[1]))
    return found


def test_the_jobs_are_those_of_the_launch(root: Path) -> None:
    remember_launch(root, FOLDER, WORDS, SWEEPS, Path("/somewhere"))
    pretrain, finetune = standing(root).sweeps
    assert (pretrain.planned, pretrain.not_begun, pretrain.others) == (6, 0, 0)
    assert (finetune.planned, finetune.not_begun, finetune.others) == (4, 0, 0)
    assert standing(root).is_done


def test_runs_of_another_row_do_not_make_up_the_number(root: Path, writers: Any) -> None:
    remember_launch(root, FOLDER, WORDS, {"finetune": SWEEPS["finetune"]}, Path("/somewhere"))
    for seed in (1, 2):
        folder = root / f"finetune/ltr/pretrain-seed-{seed}"
        folder.rename(root / f"finetune/given-{seed}")
        for path in (root / f"finetune/given-{seed}").rglob("run.json"):
            path.write_text(path.read_text().replace('"row": "ltr"', '"row": "given"'))
    pretrain, finetune = standing(root).sweeps
    assert (finetune.planned, finetune.counts["complete"], finetune.not_begun, finetune.others) == (4, 2, 2, 2)
    assert (pretrain.planned, pretrain.others) == (0, 6)  # this launch was not to pre-train
    assert not standing(root).is_done
    writers.finetune(root, "ltr", "mrpc", (1, 1), 60.0)
    writers.finetune(root, "ltr", "mrpc", (2, 1), 60.0)
    assert standing(root).is_done


def test_the_command_is_the_one_that_began_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, "prepare.corpus.token=0123456789abcdef", "encoder=models/mine", "--skip-doctor"]
    sweeps = SWEEPS | {"finetune": [*SWEEPS["finetune"], "seed=1,2"]}
    remember_launch(root, FOLDER, words, sweeps, Path("/somewhere"))
    assert "0123456789abcdef" not in (root / LAUNCH_FILE).read_text()
    line = f"clozelab reproduce {EXPERIMENT} scale=demo data_dir=/somewhere/texts pretrain.seed=1,2 "
    assert standing(root).command.startswith(line)
    assert f"encoder=/somewhere/models/mine --skip-doctor runs_dir={root.parents[1]}" in standing(root).command
    status_verb([f"runs_dir={root.parents[1]}"])
    out = " ".join(capsys.readouterr().out.split())
    assert f"to go on: {line}" in out and "as the runs tell" not in out


def test_usual_places_are_not_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    remember_launch(tmp_path, FOLDER, ["scale=demo"], SWEEPS)
    launch = read_launch(tmp_path)
    assert launch is not None
    assert command(launch, Path("runs")) == f"clozelab reproduce {EXPERIMENT} scale=demo"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert f"data_dir={tmp_path}/data" in command(launch, Path("runs"))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("finetune.encoder=../mine", "finetune.encoder=/mine"),
        ("+runs_dir=r", "+runs_dir=/here/r"),
        ("data_dir=/there", "data_dir=/there"),
        ("data_dir=${oc.env:DATA}", "data_dir=${oc.env:DATA}"),
        ("encoder=a,b", "encoder=a,b"),
        ("scale=data_dir", "scale=data_dir"),
        ("--skip-doctor", "--skip-doctor"),
    ],
)
def test_paths_count_from_the_root(word: str, expected: str) -> None:
    assert absolute(word, Path("/here")) == expected


def test_a_folder_without_the_record_tells_its_seeds(root: Path) -> None:
    for name in ("mlm", "ltr", "mlm_nsp"):  # a third seed: not the scale's two
        folder = root / "pretrain" / name
        folder.joinpath("seed-2").rename(folder / "seed-7")
        path = folder / "seed-7/run.json"
        path.write_text(path.read_text().replace('"seed": 2', '"seed": 7'))
    found = standing(root)
    assert found.is_guessed and "pretrain.seed=1,7 finetune.pretrain_seed=1,7" in found.command
    assert (found.sweeps[0].planned, found.sweeps[0].not_begun) == (6, 0)
    assert found.sweeps[1].planned == 120 and found.sweeps[1].others == 2  # fine-tuned from seed 2


def test_runs_of_no_experiment_are_not_left_open(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in root.rglob("run.json"):
        path.write_text(path.read_text().replace(f'"experiment": "{EXPERIMENT}"', '"experiment": "adhoc"'))
    root.parent.rename(root.parents[1] / "adhoc")
    found = standing(root)
    assert [one.planned for one in found.sweeps] == [None, None] and not found.is_done and found.is_all_there_is
    status_verb([f"runs_dir={root.parents[1]}"])
    out = " ".join(capsys.readouterr().out.split())
    assert "every run is complete" in out and "to go on" not in out
    path = next((root.parents[1] / "adhoc").rglob("run.json"))
    path.write_text(path.read_text().replace('"status": "complete"', '"status": "failed"'))
    assert not standing(root).is_all_there_is


@pytest.mark.parametrize(
    ("planned", "counts", "trouble", "expected"),
    [
        ((None, None), (2, 4), False, True),
        ((2, None), (2, 4), False, True),
        ((2, 4), (2, 4), False, False),  # that is done, and known to be
        ((2, None), (2, 0), False, False),  # fine-tuning has not begun and cannot be composed
        ((3, None), (2, 4), False, False),
        ((None, None), (2, 4), True, False),
        ((2, 4), (2, 4), True, False),  # a failed run that is no job of the sweep
    ],
)
def test_all_there_is(
    planned: tuple[int | None, ...], counts: tuple[int, ...], trouble: bool, expected: bool, root: Path
) -> None:
    records = find(root).records[:1] if trouble else []
    sweeps = [
        SweepState(stage, jobs, Counter({"complete": done} if done else {}), 0, 0, 0.0)
        for stage, jobs, done in zip(("pretrain", "finetune"), planned, counts, strict=True)
    ]
    assert Standing(EXPERIMENT, "demo", sweeps, [], records, "", False).is_all_there_is == expected


def test_a_damaged_record_is_none_and_no_garbage(root: Path, tmp_path: Path) -> None:
    remember_launch(root, FOLDER, WORDS, SWEEPS)
    remember_launch(root, FOLDER, ["scale=demo"], SWEEPS)
    launch = read_launch(root)
    assert launch is not None and not any(word.startswith("finetune.") for word in launch.words)  # the latest one
    records = find(root.parents[1]).records
    assert not any("launcher" in str(one.path) for one in find_garbage(records, root.parents[1], tmp_path, 0.0))
    for text in ("", "[]", '{"sweeps": []}', json.dumps({"experiment": "x", "words": []})):
        (root / LAUNCH_FILE).write_text(text)
        assert read_launch(root) is None
    assert standing(root).sweeps[0].planned == 6


def test_reproduce_leaves_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "all_complete", lambda steps: False)
    monkeypatch.setattr(reproduce, "run_steps", lambda steps, console: (130, True))
    words = [EXPERIMENT, "scale=demo", f"runs_dir={tmp_path}", "pretrain.seed=5", "finetune.task=mrpc"]
    assert reproduce.main([*words, "--dry-run"]) == 0
    assert read_launch(tmp_path / EXPERIMENT / "demo") is None
    assert reproduce.main(words) == 130
    launch = read_launch(tmp_path / EXPERIMENT / "demo")
    assert launch is not None and launch.experiment == str(FOLDER.resolve())
    assert "seed=5" in launch.sweeps["pretrain"] and "task=mrpc" in launch.sweeps["finetune"]
    assert launch.words[-4:] == words[1:]
