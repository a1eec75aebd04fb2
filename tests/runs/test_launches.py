"""What a launch leaves for `status`: its jobs, which other runs are not, and its command."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.runs.records import edit
from tests.screens import shows

from clozelab.cli import main as clozelab
from clozelab.launch.pool import ProcessPool
from clozelab.launch.processes import Job, JobState
from clozelab.planning import reproduction
from clozelab.report import tracked
from clozelab.runs.cleanup import find_garbage
from clozelab.runs.find import find
from clozelab.runs.progress import LAUNCH_FILE, note_refused, read_launches, write_launch
from clozelab.runs.record import JobName
from clozelab.runs.status import ExperimentStatus, experiment_statuses
from clozelab.stages import reproduce
from clozelab.stages.status import main as status_verb

EXPERIMENT = "table5_pretraining_tasks"
PRETRAIN = [JobName(arm, "", seed) for arm, seed in product(("mlm", "ltr", "mlm_nsp"), "12")]
FINETUNE = [JobName(row, "mrpc", f"{seed}/1") for row, seed in product(("mlm", "ltr"), "12")]
RANDOM = JobName("random", "mrpc", "1/1")
WORDS = ["reproduce", EXPERIMENT, "scale=demo", "data_dir=texts"]


@pytest.fixture
def root(make_runs: Callable[..., Path]) -> Path:
    return make_runs(
        {("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0}, pretrain_seeds=(1, 2), finetune_seeds=(1,)
    )


def standing(root: Path) -> ExperimentStatus:
    (found,) = experiment_statuses(find(root.parents[1]).records)
    return found


def test_the_jobs_are_those_of_the_launch(root: Path) -> None:
    write_launch(root, WORDS, {"pretrain": PRETRAIN, "finetune": FINETUNE, "evaluate": []})
    pretrain, finetune = standing(root).sweeps  # a stage without jobs and runs is none
    assert (pretrain.planned, pretrain.not_begun, pretrain.others) == (6, 0, 0)
    assert (finetune.planned, finetune.not_begun, finetune.others) == (4, 0, 0)
    assert standing(root).is_done


def test_runs_of_another_row_do_not_make_up_the_number(root: Path, writers: Any) -> None:
    write_launch(root, WORDS, {"pretrain": [], "finetune": FINETUNE})
    for seed in (1, 2):
        folder = root / f"finetune/ltr/pretrain-seed-{seed}"
        folder.rename(root / f"finetune/given-{seed}")
        for path in (root / f"finetune/given-{seed}").rglob("run.json"):
            path.write_text(path.read_text().replace('"row": "ltr"', '"row": "given"'))
    pretrain, finetune = standing(root).sweeps
    assert (finetune.planned, finetune.counts["complete"]) == (4, 2)
    assert (finetune.not_begun, finetune.others) == (2, 2)
    assert (pretrain.planned, pretrain.others) == (0, 6)  # this launch was not to pre-train
    assert not standing(root).is_done
    writers.finetune(root, "ltr", "mrpc", (1, 1), 60.0)
    writers.finetune(root, "ltr", "mrpc", (2, 1), 60.0)
    assert standing(root).is_done


def test_the_command_is_the_one_that_began_it(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "somewhere").mkdir()
    monkeypatch.chdir(tmp_path / "somewhere")
    words = [*WORDS, "prepare.corpus.token=0123456789abcdef", "--skip-doctor"]
    write_launch(root, words, {"pretrain": PRETRAIN, "finetune": [*FINETUNE, RANDOM]})
    assert "0123456789abcdef" not in (root / LAUNCH_FILE).read_text()
    line = f"clozelab {' '.join(WORDS)} 'prepare.corpus.token=***' --skip-doctor"
    assert standing(root).commands == [line]
    monkeypatch.chdir(tmp_path)
    assert standing(root).commands == [f"cd {tmp_path / 'somewhere'} && {line}"]
    status_verb([f"runs_dir={root.parents[1]}"])
    shows(capsys.readouterr().out, f"to go on: cd {tmp_path / 'somewhere'} && {line}")
    root.parents[1].rename(tmp_path / "moved")
    moved = tmp_path / "moved" / EXPERIMENT / "demo"
    assert standing(moved).commands[0].endswith(f"--skip-doctor runs_dir={tmp_path / 'moved'}")


def test_a_renamed_experiment_has_no_jobs_of_the_old_name(root: Path) -> None:
    """Its damaged runs are called by their place: all jobs of the launch were none of them."""
    write_launch(root, WORDS, {"pretrain": PRETRAIN, "finetune": FINETUNE})
    for seed in (1, 2):
        (root / f"pretrain/mlm/seed-{seed}/run.json").write_text("{")
    root.parent.rename(root.parents[1] / "copied")
    by_name = {}
    for status in experiment_statuses(find(root.parents[1]).records):
        by_name[status.experiment] = status
    assert by_name.keys() == {EXPERIMENT, "copied"}
    (sweep,) = by_name["copied"].sweeps
    assert (sweep.planned, sweep.not_begun, sweep.counts) == (None, 0, {"damaged": 2})
    assert not by_name["copied"].commands


def test_sweeps_by_themselves_are_noted_stage_by_stage(root: Path) -> None:
    jobs = [*PRETRAIN, JobName("mlm", "", "3")]
    write_launch(root, ["pretrain", "-m", "seed=1,2,3"], {"pretrain": jobs})
    write_launch(root, ["finetune", "-m"], {"finetune": FINETUNE})
    pretrain, finetune = standing(root).sweeps
    assert (pretrain.planned, pretrain.not_begun, finetune.is_done) == (7, 1, True)
    assert standing(root).commands == ["clozelab pretrain -m seed=1,2,3"]  # the other one is done


def test_a_stopped_run_beside_a_sweep_has_its_own_command(root: Path, writers: Any) -> None:
    """Whether the sweep is complete or not: it would never reach that run."""
    own = "scale=demo seed=1 hydra.mode=RUN"
    sweep = ["finetune", "-m", "row=mlm,ltr"]
    writers.finetune(root, "killed", "mrpc", (1, 1), 60.0)
    edit(root / "finetune/killed/pretrain-seed-1/mrpc/seed-1/run.json", status="interrupted")
    write_launch(root, sweep, {"finetune": FINETUNE})
    assert not standing(root).is_done
    (command,) = standing(root).commands
    assert command.startswith("cd /there && clozelab finetune") and command.endswith(own)
    write_launch(root, sweep, {"finetune": [*FINETUNE, RANDOM]})
    assert standing(root).commands == ["clozelab finetune -m row=mlm,ltr", command]
    # As one of the sweep's jobs it needs no command beside the sweep's.
    write_launch(root, sweep, {"finetune": [*FINETUNE, JobName("killed", "mrpc", "1/1")]})
    assert standing(root).commands == ["clozelab finetune -m row=mlm,ltr"]


def test_what_goes_on_neither_stops_nor_is_removed_again(root: Path, writers: Any) -> None:
    """Neither of a sweep nor of a single run."""
    bad = ["stop_after_step=7", "reuse=never"]
    write_launch(root, ["pretrain", "-m", "seed=1,2,3", *bad], {"pretrain": [*PRETRAIN, RANDOM]})
    assert standing(root).commands == ["clozelab pretrain -m seed=1,2,3"]
    writers.finetune(root, "killed", "mrpc", (1, 1), 60.0)
    record = root / "finetune/killed/pretrain-seed-1/mrpc/seed-1/run.json"
    edit(record, status="interrupted", overrides=["scale=demo", *bad, "seed=1"])
    *_, command = standing(root).commands
    assert command.endswith("scale=demo seed=1 hydra.mode=RUN")


def test_a_sweep_notes_its_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line to the note."""
    monkeypatch.setattr(ProcessPool, "run", lambda pool: None)
    monkeypatch.setenv("CLOZELAB_SKIP_DOCTOR", "1")
    words = ["pretrain", "-m", "scale=demo", f"runs_dir={tmp_path}/runs", "arm=a", "seed=1,2"]
    assert clozelab(words) == 0
    launches = read_launches(tmp_path / "runs/adhoc/demo")
    assert launches["pretrain"].jobs == [JobName("a", "", "1"), JobName("a", "", "2")]
    assert launches["pretrain"].words == words
    assert launches["pretrain"].started_in == str(Path.cwd())


def test_a_killed_evaluation_of_a_sweep_goes_on_with_the_sweep(
    tmp_path: Path, writers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessPool, "run", lambda pool: None)
    words = ["evaluate", "-m", "scale=demo", f"runs_dir={tmp_path}/runs", "experiment=mine"]
    words += ["measure=held_out_text", "row=a,b", "encoder_arm=mlm", "pretrain_seed=1"]
    assert clozelab(words) == 0
    root = tmp_path / "runs/mine/demo"
    jobs = [JobName(row, "held_out_text", "1/1") for row in "ab"]
    assert read_launches(root)["evaluate"].jobs == jobs
    writers.evaluation(root, "a", "held_out_text", 1, {"validation/loss": 2.0}, experiment="mine")
    edit(next(root.rglob("run.json")), status="interrupted")
    assert standing(root).commands == [f"clozelab {' '.join(words)}"]
    (evaluate,) = standing(root).sweeps
    assert (evaluate.planned, evaluate.not_begun) == (2, 1)


def test_a_sweep_over_scales_notes_each_ones_jobs_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where hydra.sweep.dir puts the sweep's own files elsewhere."""
    monkeypatch.setattr(ProcessPool, "run", lambda pool: None)
    monkeypatch.setenv("CLOZELAB_SKIP_DOCTOR", "1")
    words = ["pretrain", "-m", "scale=demo,own", f"runs_dir={tmp_path}/runs", "arm=a", "seed=1"]
    words.append(f"hydra.sweep.dir={tmp_path}/mine")
    assert clozelab(words) == 0
    for scale in ("demo", "own"):
        launches = read_launches(tmp_path / "runs/adhoc" / scale)
        assert launches["pretrain"].jobs == [JobName("a", "", "1")]
        assert launches["pretrain"].words == words
    assert not (tmp_path / LAUNCH_FILE).exists()


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs of a sweep, which none of them runs."""
    launched: list[Job] = []
    monkeypatch.setattr(ProcessPool, "run", lambda pool: launched.extend(pool.jobs))
    monkeypatch.setenv("CLOZELAB_SKIP_DOCTOR", "1")
    return launched


def test_jobs_hear_what_is_said_of_hydras_own_job(
    tmp_path: Path, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was said: a value of the environment is for the job to look up."""
    monkeypatch.setenv("MINE", "s3cret")
    words = ["+hydra.job.env_set.WANDB_ENTITY='${oc.env:MINE}'", "hydra.job.name=mine"]
    words += ["hydra.verbose=mine", "hydra/job_logging=stdout", f"hydra.sweep.dir={tmp_path}/mine"]
    place = ["scale=demo", f"runs_dir={tmp_path}/runs"]
    of_launcher = ["hydra.launcher.jobs_at_once=1"]
    assert clozelab(["pretrain", "-m", *place, "seed=1,2", *words, *of_launcher]) == 0
    first, second = (job.argv for job in jobs)
    name = ["pretrain", "--config-name", "pretrain"]
    said = [*words, "hydra.mode=RUN"]
    assert first == [*name, *place, "seed=1", *said]
    assert second == [*name, *place, "seed=2", *said]


def test_two_sweeps_of_prepare_have_logs_of_their_own(tmp_path: Path, jobs: list[Job]) -> None:
    """Their jobs have no run folder to be named by; on Slurm both may run at one time."""
    place = [f"{key}={tmp_path / key}" for key in ("runs_dir", "cache_dir", "data_dir")]
    for sizes in ("1000,2000", "3000,4000", "1000,2000"):
        assert clozelab(["prepare", "-m", f"tokenizer.vocab_size={sizes}", *place]) == 0
    logs = [job.log for job in jobs]
    assert len(set(logs)) == 4
    assert logs[:2] == logs[4:], "of the same command they are the same"


@pytest.mark.usefixtures("jobs")
def test_a_sweeps_own_table_hears_of_the_jobs_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WANDB_MODE=offline for the jobs let the table go online."""
    heard: list[str | None] = []
    monkeypatch.setattr(tracked, "track_sweep", lambda *_: heard.append(os.environ.get("MINE")))
    words = ["scale=demo", f"runs_dir={tmp_path}/runs", "seed=1,2", "+hydra.job.env_set.MINE=said"]
    assert clozelab(["pretrain", "-m", *words]) == 0
    assert heard == ["said"] and "MINE" not in os.environ


def test_a_sweep_has_one_time_and_the_command_that_was_said(
    tmp_path: Path, jobs: list[Job]
) -> None:
    """Each job's process would have a time of its own, and another folder than was planned."""
    file = tmp_path / "rates.yaml"
    file.write_text("arms: {a: {objective: mlm}, b: {objective: ltr}}\n")
    words = ["pretrain", "-m", "--config-dir", str(file), "--config-name", "sweep_pretrain"]
    words += ["scale=demo", f"runs_dir={tmp_path}/runs", "seed=1"]
    assert clozelab([*words, "experiment=at-${now:%Y}"]) == 0
    year = time.strftime("%Y")
    assert {Path(job.folder).parents[3].name for job in jobs} == {f"at-{year}"}
    assert [f"experiment=at-{year}" in job.overrides for job in jobs] == [True, True]
    launch = read_launches(tmp_path / f"runs/at-{year}/demo")["pretrain"]
    assert launch.words == [*words, f"experiment=at-{year}"]


def test_runs_of_no_launch_are_not_left_open(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = standing(root)
    assert [one.planned for one in found.sweeps] == [None, None] and found.is_done
    status_verb([f"runs_dir={root.parents[1]}"])
    out = capsys.readouterr().out
    shows(out, "table5_pretraining_tasks demo stage complete not begun jobs time left")
    path = root / "pretrain/mlm/seed-1/run.json"
    edit(path, status="running", process={"pid": 1, "host": "elsewhere"})
    assert not standing(root).trouble and not standing(root).is_done
    edit(path, status="failed")
    assert not standing(root).is_done
    (command,) = standing(root).commands
    assert command.startswith("cd /there && clozelab pretrain --config-dir 'an experiment' ")
    assert command.endswith(" scale=demo seed=1 hydra.mode=RUN")


def test_jobs_that_ended_before_their_run_began_say_why(root: Path, capsys: Any) -> None:
    """Such a job has claimed no folder: its log alone knows of it."""
    logs = root / "launcher" / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for seed in (7, 8):
        words = "reading\nerror: predict_prob is 1.5\nit must lie in (0, 1]\n"
        (logs / f"pretrain-pretrain--half--seed-{seed}.log").write_text(words)
    # an earlier launch's, which had another arm
    (logs / "pretrain-pretrain--hlaf--seed-7.log").write_text(words)
    # this one has a run, which says itself how it ended
    (logs / "pretrain-pretrain--mlm--seed-1.log").write_text("reading\nerror: of an earlier try\n")
    jobs = [*PRETRAIN, JobName("half", "", "7"), JobName("half", "", "8")]
    write_launch(root, WORDS, {"pretrain": jobs})
    assert status_verb([f"runs_dir={root.parents[1]}"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    sentence = "failed before its run began: pretrain/half/seed-7 and 1 more: predict_prob is 1.5"
    assert shown.count(sentence) == shown.count("failed before") == 1, shown
    assert "an earlier try" not in shown
    # where nothing but these has begun, there are no runs, and yet something to say
    for folder in (root / "pretrain", root / "finetune"):
        folder.rename(root.parents[2] / folder.name)
    assert status_verb([f"runs_dir={root.parents[1]}"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no runs in" in shown and sentence in shown


def test_a_refused_job_is_not_done_though_a_run_of_its_name_is_complete(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until its folder holds another run: the note is of the one that was in the way."""
    path = root / "pretrain/mlm/seed-1/run.json"
    edit(path, fingerprint="older")
    write_launch(root, WORDS, {"pretrain": PRETRAIN, "finetune": FINETUNE})
    assert standing(root).is_done
    note_refused(root, "pretrain", ["older"])
    pretrain, finetune = standing(root).sweeps
    assert (pretrain.counts["complete"], pretrain.counts["refused"]) == (5, 1)
    assert (pretrain.not_begun, pretrain.is_done, finetune.is_done) == (0, False, True)
    status_verb([f"runs_dir={root.parents[1]}"])
    out = " ".join(capsys.readouterr().out.split())
    assert "all done" not in out and f"to go on: clozelab {' '.join(WORDS)}" in out
    assert "complete refused not begun" in out
    place = f"{EXPERIMENT}/demo/pretrain/mlm/seed-1"
    shows(out, f"1 job refused: runs of other settings or files lie in {place}.")
    edit(path, fingerprint="as asked")
    assert standing(root).is_done
    edit(path, fingerprint="older")
    write_launch(root, WORDS, {"pretrain": PRETRAIN, "finetune": FINETUNE})
    assert standing(root).is_done


def test_a_sweep_notes_which_jobs_were_refused(
    tmp_path: Path, writers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that failed in a folder of another run; one that failed by itself is none."""

    def fail(pool: ProcessPool) -> None:
        for job in pool.jobs:
            job.state = JobState.FAILED

    monkeypatch.setattr(ProcessPool, "run", fail)
    monkeypatch.setenv("CLOZELAB_SKIP_DOCTOR", "1")
    root = tmp_path / "runs/adhoc/demo"
    writers.pretrain(root, "a", 2)
    edit(root / "pretrain/a/seed-2/run.json", fingerprint="older")
    words = ["pretrain", "-m", "scale=demo", f"runs_dir={tmp_path}/runs", "arm=a", "seed=1,2"]
    with pytest.raises(SystemExit):
        clozelab(words)
    assert read_launches(root)["pretrain"].refused == ["older"]


def test_a_damaged_note_is_none_and_no_garbage(root: Path, tmp_path: Path) -> None:
    write_launch(root, WORDS, {"pretrain": PRETRAIN})
    write_launch(root, ["other"], {"pretrain": PRETRAIN})
    assert read_launches(root)["pretrain"].words == ["other"]  # the latest one
    records = find(root.parents[1]).records
    assert not any(
        "launcher" in str(one.path) for one in find_garbage(records, root.parents[1], tmp_path)
    )
    for text in ("", "[]", '{"pretrain": []}', '{"pretrain": {"words": []}}'):
        (root / LAUNCH_FILE).write_text(text)
        assert read_launches(root) == {}


def test_reproduce_leaves_the_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduction, "all_complete", lambda steps: False)
    monkeypatch.setattr(reproduction, "run_steps", lambda steps, console: (130, True))
    words = [EXPERIMENT, "scale=demo", f"runs_dir={tmp_path}"]
    words += ["pretrain.arm=mlm", "pretrain.seed=5", "finetune.row=mlm", "finetune.task=mrpc"]
    words += ["finetune.pretrain_seed=5", "finetune.seed=1"]
    root = tmp_path / EXPERIMENT / "demo"
    assert reproduce.main([*words, "--dry-run"]) == 0
    assert read_launches(root) == {}
    assert reproduce.main(words) == 130
    launches = read_launches(root)
    assert launches["pretrain"].words == launches["finetune"].words == ["reproduce", *words]
    assert {job.seeds for job in launches["pretrain"].jobs} == {"5"}
    assert {job.task for job in launches["finetune"].jobs} == {"mrpc"}
