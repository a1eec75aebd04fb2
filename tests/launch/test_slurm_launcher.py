"""Sweeps through Slurm: what a job asks for, and real ones through submitit, locally and with a
stand-in for Slurm.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.engines import (
    RUN,
    Engine,
    Place,
    launcher_words,
    outcome,
    pretraining,
    wait_until,
    write_data,
)
from tests.screens import refuses

from clozelab.launch import sweep
from clozelab.launch.clusters import RemoteJob
from clozelab.launch.processes import Job
from clozelab.launch.slurm_launcher import SlurmLauncher, job_resources
from clozelab.runs.find import find

needs_submitit = pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason="the extra slurm is missing"
)
SRC = Path(__file__).parents[2] / "src"
FAKE = Path(__file__).with_name("fake_slurm.py")
OWN = ("_target_", "cluster", "jobs_at_once", "poll_seconds", "grace_seconds", "max_num_timeout")
"""Parameters of the launcher that are none of a job's."""
COMMANDS = ("sbatch", "srun", "squeue", "sacct", "scontrol", "scancel")


def settings(launcher: str, *overrides: str) -> tuple[dict[str, Any], Any]:
    """(the launcher's parameters, the job's configuration)."""
    composed = sweep.compose("pretrain", [f"hydra/launcher={launcher}", *overrides], sweep=True)
    plain = composed.hydra_value("launcher")
    return {str(key): value for key, value in plain.items() if key not in OWN}, composed


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {"nodes": 1, "ntasks_per_node": 1}),
        (["trainer=gpu"], {"nodes": 1, "ntasks_per_node": 1, "gpus_per_node": 1}),
        (
            ["trainer=ddp", "trainer.devices=4"],
            {"nodes": 1, "ntasks_per_node": 4, "gpus_per_node": 4},
        ),
        (["trainer=ddp", "trainer.accelerator=cpu"], {"nodes": 1, "ntasks_per_node": 2}),
        (
            [
                "trainer=fsdp",
                "trainer.devices=8",
                "trainer.num_nodes=2",
                "hydra.launcher.mem_gb=64",
            ],
            {"nodes": 2, "ntasks_per_node": 8, "gpus_per_node": 8, "mem": "65536MB"},
        ),
        (["trainer=gpu", "hydra.launcher.gpus_per_node=null"], {"nodes": 1, "ntasks_per_node": 1}),
    ],
)
def test_a_job_asks_for_what_it_trains_on(overrides: list[str], expected: dict[str, Any]) -> None:
    parameters, config = settings("slurm", *overrides)
    asked = job_resources(parameters, config, "slurm")
    always = {"time": 1440, "cpus_per_task": 8, "signal_delay_s": 180}
    always |= {"srun_args": ["--cpus-per-task=8"]}
    assert asked == always | expected


@needs_submitit
def test_submitit_takes_every_resource_that_can_be_asked_for() -> None:
    from submitit.slurm.slurm import _get_default_parameters

    every = [
        "partition=p",
        "account=a",
        "qos=q",
        "constraint=c",
        "setup=[module load x]",
        "mem_gb=3",
    ]
    words = [f"hydra.launcher.{word}" for word in every]
    parameters, config = settings("slurm", "trainer=ddp", *words)
    asked = job_resources(parameters, config, "slurm")
    assert {"partition", "account", "qos", "constraint", "setup", "mem"} <= asked.keys()
    assert asked.keys() <= _get_default_parameters().keys()


@needs_submitit
def test_options_of_a_cluster_are_said_as_the_page_says_them() -> None:
    """`additional_parameters={...}` was no key, and a single line of setup ended each job."""
    from submitit.slurm.slurm import _make_sbatch_string

    words = ['additional_parameters={gres: "gpu:4"}', "gpus_per_node=null"]
    words += ["setup=module load cuda", "mem_gb=1.5"]
    overrides = [f"hydra.launcher.{word}" for word in words]
    parameters, config = settings("slurm", "trainer=ddp", *overrides)
    asked: dict[str, Any] = job_resources(parameters, config, "slurm")
    lines = _make_sbatch_string("work", "folder", **asked).splitlines()
    assert {"#SBATCH --gres=gpu:4", "module load cuda", "#SBATCH --mem=1536MB"} <= set(lines)
    assert not [line for line in lines if "gpus-per-node" in line]


@needs_submitit
def test_what_is_handed_to_slurm_for_two_nodes(
    tmp_path: Path, slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch script, line by line. srun of Slurm 22.05 and later gives a task one core unless it
    is told more.
    """
    for name, value in (slurm | {"FAKE_SLURM_ONLY": "sbatch"}).items():
        monkeypatch.setenv(name, value)
    words = ("trainer=ddp", "trainer.devices=4", "trainer.num_nodes=2")
    parameters, config = settings("slurm", *words)
    launcher = SlurmLauncher("slurm", 1, 1.0, 60.0, max_num_timeout=3, **parameters)
    launcher.folder = tmp_path / "handed"
    job = Job("one", [], tmp_path / "one.log", argv=["pretrain", "seed=1"], folder="runs/one")
    remote = RemoteJob(job, 8, 60.0, is_alone=False)
    launcher._hand_over(job, remote, job_resources(parameters, config, "slurm"))
    assert not find(tmp_path).records, "what is noted of jobs is no run"
    (script,) = Path(slurm["FAKE_SLURM"]).glob("*.sh")
    lines = script.read_text().splitlines()
    said = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    expected = {"nodes": "2", "ntasks-per-node": "4", "gpus-per-node": "4", "cpus-per-task": "8"}
    expected |= {"time": "1440", "signal": "USR2@180", "open-mode": "append"}
    assert expected.items() <= dict(line.split("=", 1) for line in said).items()
    (srun,) = [line for line in lines if line.startswith("srun")]
    for part in (" --cpus-per-task=8 ", f"{launcher.folder}/%j", "submitit.core._submit"):
        assert part in srun
    note = json.loads((launcher.folder / "handed_over.json").read_text())["runs/one"]
    expected = {"job_id": script.stem, "tasks": 8, "words": ["pretrain", "seed=1"]}
    assert note | expected == note


def test_one_machine_is_one_machine() -> None:
    parameters, config = settings("slurm_local", "trainer=ddp", "trainer.accelerator=cpu")
    assert job_resources(parameters, config, "local")["tasks_per_node"] == 1
    parameters, config = settings("slurm_local", "trainer=ddp", "trainer.num_nodes=2")
    with refuses("trainer.num_nodes is 2: hydra/launcher=slurm_local has this"):
        job_resources(parameters, config, "local")


def test_wrong_settings_and_missing_packages_are_said_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")  # Slurm may be installed here
    for submitit, cluster, grace_seconds, sentence in (
        (None, "local", 10, r"'submitit', which is not installed: pip install 'clozelab\[slurm\]'"),
        (object(), "slurm", 10, "no sbatch here"),
        (object(), "local", 20, "grace_seconds is 20"),
    ):
        with monkeypatch.context() as patch, pytest.raises(ValueError, match=sentence):
            patch.setattr(importlib.util, "find_spec", lambda name, spec=submitit: spec)
            SlurmLauncher(cluster, 1, 1.0, grace_seconds, signal_delay_s=20)


@needs_submitit
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"timeout_min": "04:00:00"}, "timeout_min is '04:00:00': give a positive number of min"),
        ({"timeout_min": 3}, "timeout_min is 3, and Slurm warns signal_delay_s = 180 before"),
        ({"mem_gb": "64GB"}, "mem_gb is '64GB': give a number of gigabytes"),
        # Slurm's --mem=0MB is all the memory of a machine
        ({"mem_gb": 0.0004}, "mem_gb is 0.0004: give a number of gigabytes"),
        ({"mem_gb": 0}, "mem_gb is 0: give a number of gigabytes"),
        ({"mem_gb": -1}, "mem_gb is -1: give a number of gigabytes"),
    ],
)
def test_settings_that_end_a_job_hours_later_are_said_at_once(
    wrong: dict[str, Any], sentence: str
) -> None:
    """Where Slurm warns a job of its end, submitit computes with the limit."""
    parameters, _ = settings("slurm_local")
    with refuses(sentence):
        SlurmLauncher("local", 1, 1.0, 120.0, **(parameters | wrong))


# Real sweeps


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


def counts(text: str) -> dict[str, int]:
    """State -> how many jobs ended in it, from the sweep's summary: "1 complete, 1 failed"."""
    (summary,) = re.findall(r"(?m)^\d+ [a-z ]+(?:, \d+ [a-z ]+)*$", text)
    return {state: int(count) for count, state in re.findall(r"(\d+) ([a-z ]+)", summary)}


def states(runs: Path) -> dict[str, dict[str, Any]]:
    """Arm and seed -> run.json."""
    found = sorted(runs.glob("*/*/pretrain/*/*/run.json"))
    return {f"{path.parts[-3]}/{path.parts[-2]}": json.loads(path.read_text()) for path in found}


def losses(folder: Path) -> dict[int, float]:
    with (folder / "metrics.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["key"] == "train/loss"]
    values = {int(row["step"]): float(row["value"]) for row in rows}
    assert len(values) == len(rows), "each step once"
    return values


def is_whole(runs: Path, sessions: int = 2) -> None:
    """The one run is complete, after so many sessions, and has each of 250 steps once."""
    record = states(runs)["mlm_nsp/seed-1"]
    assert (record["status"], record["sessions"]) == ("complete", sessions)
    assert list(losses(runs / RUN)) == list(range(1, 251))


def send(slurm: dict[str, str], name: str) -> str:
    """Signal the one job, as Slurm does it; its number."""
    number = next(Path(slurm["FAKE_SLURM"]).glob("*.pids")).stem
    subprocess.run(["scancel", number, "--signal", name], env=os.environ | slurm, check=True)
    return number


def wait_for(path: Path, launcher: subprocess.Popen[str]) -> None:
    wait_until(lambda: path.exists() or launcher.poll() is not None, str(path))
    assert path.exists(), launcher.communicate()[1]


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment of a machine with the stand-in's commands; what still runs at the end is
    killed.
    """
    commands, state = tmp_path / "bin", tmp_path / "slurm"
    commands.mkdir()
    state.mkdir()
    for name in COMMANDS:
        script = commands / name
        script.write_text(f"#!{sys.executable}\n" + FAKE.read_text())
        script.chmod(script.stat().st_mode | stat.S_IEXEC)
    yield {"PATH": f"{commands}:{os.environ['PATH']}", "FAKE_SLURM": str(state)}
    for pids in state.glob("*.pids"):
        if pids.with_suffix(".state").read_text() == "RUNNING":
            for pid in pids.read_text().split():
                os.killpg(int(pid), signal.SIGKILL)


NODES = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=1", "trainer.num_nodes=2")
DDP = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")
SLURM = launcher_words(("hydra/launcher=slurm", "poll_seconds=1", "cpus_per_task=1"))


@pytest.fixture
def place(data: Path, tmp_path: Path, slurm: dict[str, str]) -> Place:
    """A folder of runs, whose sweeps are handed to the stand-in."""
    return Place(data, tmp_path / "runs", Engine("slurm", SLURM, slurm))


@needs_submitit
@pytest.mark.slow
def test_two_jobs_through_submitit_on_this_machine(data: Path, tmp_path: Path) -> None:
    """One cannot run (its batch does not fit); the other is whole, and is left alone the next
    time.
    """
    arms = ("schedule.warmup_fraction=0.1,7", "arm=warmup-${schedule.warmup_fraction}")
    place = Place(data, tmp_path, Engine("local", ("hydra/launcher=slurm_local",), {}))
    text = place.run(*pretraining(*arms, steps=6), status=1)
    assert counts(text) == {"complete": 1, "failed": 1}
    assert "schedule.warmup_fraction is 7" in text
    before = states(tmp_path)
    assert {name: state["status"] for name, state in before.items()} == {
        "warmup-0.1/seed-1": "complete"
    }
    again = place.run(*pretraining(*arms, steps=6), status=1)
    assert counts(again) == {"skipped": 1, "failed": 1}
    assert states(tmp_path) == before


@needs_submitit
@pytest.mark.slow
def test_a_job_of_two_ranks_out_of_time_goes_on(place: Place, slurm: dict[str, str]) -> None:
    """Ranks are srun's tasks; the warning before the time limit reaches all processes; the same job
    comes back.
    """
    state = Path(slurm["FAKE_SLURM"])
    launcher = place.start(*pretraining(*DDP, "seed=1", steps=250))
    wait_for(place.runs / RUN / "metrics.csv", launcher)
    number = send(slurm, "USR2")
    assert counts(outcome(launcher, 0)) == {"complete": 1}
    is_whole(place.runs)
    asked = json.loads((state / f"{number}.json").read_text())
    assert (asked["nodes"], asked["ntasks-per-node"], asked["cpus-per-task"]) == ("1", "2", "1")
    assert asked["signal"] == "USR2@180" and "gpus-per-node" not in asked
    assert len(list(state.glob("*.json"))) == 1


@needs_submitit
@pytest.mark.slow
def test_two_nodes_are_one_training_and_come_back_after_sigusr1(
    place: Place, slurm: dict[str, str], tmp_path: Path
) -> None:
    """Two "nodes" of this machine, one task each: the losses are those of one process, also over
    the requeue.
    """
    still = ("model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0")
    state = Path(slurm["FAKE_SLURM"])
    slurm["SUBMITIT_PREEMPT_SIGNAL"] = "USR1"
    launcher = place.start(*pretraining(*NODES, *still, steps=250))
    wait_for(place.runs / RUN / "metrics.csv", launcher)
    number = next(state.glob("*.pids")).stem
    with socket.create_connection(("127.0.0.1", 15000 + int(number[-4:])), timeout=10):
        pass  # the first node's name, and the job's port: rank 0 listens there
    send(slurm, "USR1")
    assert counts(outcome(launcher, 0)) == {"complete": 1}
    is_whole(place.runs)
    asked = json.loads((state / f"{number}.json").read_text())
    assert (asked["nodes"], asked["ntasks-per-node"], asked["signal"]) == ("2", "1", "USR1@180")
    places = [json.loads((state / f"{number}.{rank}.place").read_text()) for rank in (0, 1)]
    ranks = [(one["SLURM_NODEID"], one["SLURM_LOCALID"]) for one in places]
    assert ranks == [("0", "0"), ("1", "0")]
    alone = Place(place.data, tmp_path / "alone", None)
    assert counts(alone.run(*pretraining(*still, steps=250))) == {"complete": 1}
    ours, theirs = losses(place.runs / RUN), losses(alone.runs / RUN)
    assert list(ours) == list(theirs)
    assert list(ours.values()) == pytest.approx(list(theirs.values()), abs=1e-5, rel=1e-5)


BATCH_SCRIPT = """#!/bin/bash
#SBATCH --job-name=plain
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
srun --output {output} {python} -m clozelab {words}
status=$?
echo "status $status"
if [ $status -eq 85 -o $status -eq 138 ]; then scontrol requeue $SLURM_JOB_ID; fi
"""
"""As docs/clusters.md shows it."""


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["SIGUSR1", "max_time"])
def test_a_batch_script_of_ones_own_is_put_in_line_again(
    place: Place, tmp_path: Path, slurm: dict[str, str], stop: str
) -> None:
    """srun alone on two "nodes", without our launcher: a warning, or trainer.max_time, and the
    script requeues.
    """
    state, run_dir = Path(slurm["FAKE_SLURM"]), tmp_path / "run"
    by_hand = Place(place.data, tmp_path, None)
    words = pretraining(*NODES, "checkpoint_interval_steps=1", f"run_dir={run_dir}", steps=250)
    words.remove("-m")
    words = by_hand.command(*words)[3:]
    # by the clock only the first time: nobody but the test changes a job between two starts
    if stop == "max_time":
        words += [
            "trainer.max_time=$(test -e stopped && echo null || echo 00:00:00; touch stopped)"
        ]
    script = tmp_path / "script.sh"
    places = {"output": tmp_path / "%j.%t.out", "python": sys.executable}
    script.write_text(BATCH_SCRIPT.format(words=quoted(words), **places))
    command = ["sbatch", str(script)]
    done = subprocess.check_output(command, env=place.environment(), cwd=tmp_path, text=True)
    number = done.split()[-1]
    if stop == "SIGUSR1":
        wait_until((run_dir / "metrics.csv").exists, f"{run_dir}/metrics.csv")
        send(slurm, "USR1")
    ended = ("FAILED", "COMPLETED")
    wait_until(lambda: (state / f"{number}.state").read_text() in ended, f"the end of {number}")
    output = (state / f"{number}.out").read_text()
    assert [line for line in output.splitlines() if line.startswith("status")] == [
        "status 138" if stop == "SIGUSR1" else "status 85",
        "status 0",
    ], output + (tmp_path / f"{number}.0.out").read_text()
    assert json.loads((run_dir / "run.json").read_text())["sessions"] == 2
    assert list(losses(run_dir)) == list(range(1, 251))


def quoted(words: list[str]) -> str:
    """For a shell, with its $(...) left in."""
    return " ".join(f'"{word}"' for word in words)


@needs_submitit
@pytest.mark.slow
def test_a_killed_launcher_finds_its_jobs_again(place: Place, slurm: dict[str, str]) -> None:
    """Two launchers, one job: the second waits for what the first has handed over, and never hands
    it over again.
    """
    state, words = Path(slurm["FAKE_SLURM"]), pretraining("seed=1", steps=6)
    first = place.start(*words)
    wait_for(place.runs / RUN / "run.json", first)
    tasks = int(next(state.glob("*.pids")).read_text())
    os.killpg(tasks, signal.SIGSTOP)  # so that it is still there, however fast the machine is
    first.kill()
    first.communicate()
    other = place.run(*words, "trainer.log_interval_steps=2", status=1)
    assert "is in line for the same folder with other settings" in other
    second = place.start(*words)
    assert second.stderr is not None
    while " waiting" not in (line := second.stderr.readline()):
        assert line, "the second launcher ended"
    os.killpg(tasks, signal.SIGCONT)
    assert counts(outcome(second, 0)) == {"complete": 1}
    assert states(place.runs)["mlm_nsp/seed-1"]["sessions"] == 1
    assert len(list(state.glob("*.json"))) == 1


@needs_submitit
@pytest.mark.slow
def test_a_job_that_was_killed_is_named_and_taken_up_without_accounting(
    place: Place, slurm: dict[str, str]
) -> None:
    """All its processes get -9 and Slurm forgets it: the launcher ends, and the same command trains
    the rest.
    """
    state = Path(slurm["FAKE_SLURM"])
    words = pretraining("seed=1", "checkpoint_interval_steps=1", steps=250)
    launcher = place.start(*words)
    wait_for(place.runs / RUN / "checkpoints" / "last.ckpt", launcher)
    number = next(state.glob("*.pids")).stem
    (state / f"{number}.forgotten").touch()
    os.killpg(int((state / f"{number}.pids").read_text()), signal.SIGKILL)
    killed = time.monotonic()
    text = outcome(launcher, 1)
    assert time.monotonic() - killed < 60
    assert f"job {number} is lost" in text and "the same command takes it up" in text
    assert not re.findall("sacct|accounting", text)
    assert counts(place.run(*words)) == {"complete": 1}
    is_whole(place.runs)
