"""kill -9 during a sweep, again and again: no job is done twice, and the results are those of an
undisturbed sweep.

Both sweeps are killed outright at random moments (the launcher; its jobs die with it), restarted
until they are through, and compared with those that nobody disturbed: the same results.csv up to
its times, every encoder and prediction bit for bit. Moments are drawn from CLOZELAB_KILL_SEED
(default 1); there are CLOZELAB_KILLS of them (default 10), no fewer: sweeps that are through too
soon are made again in another place.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.runs.test_pretrain_run import environment, overrides, write_text

from claims.analysis.schema import Row
from clozelab.report.render import write_results
from clozelab.results.experiment import Experiment
from clozelab.results.table import build_table
from clozelab.runs.find import find
from clozelab.training.host import holder, holders

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(
        sys.platform != "linux", reason="jobs die with their launcher on Linux only"
    ),
]
KILLS = int(os.environ.get("CLOZELAB_KILLS", "10"))
WHOLE_SWEEP_SECONDS = 1800
"""At most, undisturbed, on a machine that does much else."""
OF_THE_MOMENT = ("tokens_per_second", "seconds", "commit", "local_changes")
"""Fields of results.csv that are no result: how busy the machine was, and what was edited
meanwhile.
"""
MAX_ROUNDS = 5
SCALE = {
    "phases": "[{seq_length: 16, steps: 300, global_batch_size: 8, micro_batch_size: 8}]",
    "validation.interval_steps": 100,
    "checkpoint_interval_steps": 5,
    "trainer.log_interval_steps": 5,
}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small text corpus and a sentiment task in SST-2's place."""
    folder, draw = tmp_path_factory.mktemp("workplace"), random.Random(0)
    write_text(folder, documents=80)
    words = sorted(set((folder / "text.txt").read_text().replace(".", "").split()))
    (folder / "glue/SST-2").mkdir(parents=True)
    for name, count in (("train", 200), ("dev", 60)):
        rows = [
            f"{' '.join(draw.choices(words, k=6))} {'good' if i % 2 else 'bad'}\t{i % 2}"
            for i in range(count)
        ]
        (folder / f"glue/SST-2/{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    return folder


def commands(workplace: Path, runs: Path) -> list[list[str]]:
    """Both sweeps: two arms of two seeds, and both fine-tuned with two seeds."""
    of_jobs = ("run_dir=", "arm=", "objective=")
    words = [f"runs_dir={runs}", "experiment=killed", *overrides(workplace, runs, **SCALE)]
    words = [word for word in words if not word.startswith(of_jobs)]
    common = ("runs_dir=", "experiment=", "data_dir=", "cache_dir=", "trainer.")
    finetune = ["task=sst2", "epochs=2", "encoder_arm=mlm,ltr", "pretrain_seed=1,2", "seed=1,2"]
    finetune += [word for word in words if word.startswith(common)]
    start = [sys.executable, "-m", "clozelab"]
    return [
        [*start, "pretrain", "-m", "objective=mlm,ltr", "seed=1,2", *words],
        [*start, "finetune", "-m", *finetune],
    ]


def start(words: list[str]) -> subprocess.Popen[bytes]:
    told = environment() | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(words, env=told, **quiet)


def wait_or_kill(
    process: subprocess.Popen[bytes], runs: Path, draw: random.Random, lines: float
) -> int | None:
    """Exit status of a sweep that was through before its moment came; None where it was killed.

    The moment is a random one: of the start (one in four), else of the work, counted in the lines
    that jobs write, at most `lines` of them. Clock times would nearly always hit the start, which
    takes longest.
    """
    before = written(runs)
    of_the_start = draw.random() < 0.25
    end = time.monotonic() + (draw.uniform(0.0, 8.0) if of_the_start else WHOLE_SWEEP_SECONDS)
    growth = 0.0 if of_the_start else draw.uniform(0.0, lines)
    while written(runs) == before and time.monotonic() < end and process.poll() is None:
        time.sleep(0.02)
    begun = written(runs)
    while written(runs) - begun < growth and process.poll() is None:
        time.sleep(0.02)
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    status = process.wait()
    return None if status == -signal.SIGKILL else status


def written(runs: Path) -> int:
    """Lines of all metrics.csv: how far the work is."""
    return sum(path.read_bytes().count(b"\n") for path in runs.rglob("metrics.csv"))


def wait_for_jobs_to_die(runs: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        held = holders()
        if not [path for path in runs.rglob(".lock") if holder(path.parent, held) is not None]:
            return
        time.sleep(0.1)
    raise AssertionError("jobs outlived their killed launcher by a minute")


def completions(runs: Path) -> dict[str, str]:
    """Run folder -> when it says that it was completed, of complete runs."""
    states = {path.parent: json.loads(path.read_text()) for path in runs.rglob("run.json")}
    return {
        str(folder.relative_to(runs)): f"{state['finished']} {state['sessions']}"
        for folder, state in states.items()
        if state["status"] == "complete"
    }


def results(runs: Path) -> list[dict[str, Any]]:
    """results.csv without what is OF_THE_MOMENT."""
    path, found = runs / "results.csv", find(runs / "killed/demo")
    rows = tuple(Row(name=arm, label=arm, arm=arm) for arm in ("mlm", "ltr"))
    experiment = Experiment(folder=runs, name="killed", columns=(), rows=rows)
    write_results(path, build_table(experiment, found), "demo")
    with path.open(newline="") as file:
        result = []
        for row in csv.DictReader(file):
            result.append({key: value for key, value in row.items() if key not in OF_THE_MOMENT})
        return result


def contents(runs: Path) -> dict[str, str]:
    """Checksum of everything that a run is for."""
    names = ("model.safetensors", "predictions.jsonl", "scores.json")
    found = {}
    for name in names:
        for path in runs.rglob(name):
            found[str(path.relative_to(runs))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def run_killed(
    workplace: Path, runs: Path, lengths: list[int], kills: int, draw: random.Random
) -> int:
    """Both sweeps to their ends, killed up to so many times, half of them each; returns how many
    times it was.

    `lengths`: lines that have been written at each one's end. What a sweep has still to write is
    divided among the kills that it is still to have, so that they come before its end.
    """
    done: dict[str, str] = {}
    happened = 0
    for words, length, left in zip(
        commands(workplace, runs), lengths, (kills - kills // 2, kills // 2), strict=True
    ):
        status = None
        while status is None:
            process = start(words)
            if left:
                status = wait_or_kill(
                    process, runs, draw, max(1.0, (length - written(runs)) / left)
                )
            else:
                status = process.wait(timeout=WHOLE_SWEEP_SECONDS)
            if status is None:
                wait_for_jobs_to_die(runs)
                left, happened = left - 1, happened + 1
            now = completions(runs)
            assert {key: now.get(key) for key in done} == done, "a complete run was touched again"
            done = now
        assert status == 0
    assert len(done) == 12
    return happened


def test_results_of_a_sweep_that_is_killed_at_random_moments(
    workplace: Path, tmp_path: Path
) -> None:
    calm, lengths = tmp_path / "calm", []
    for words in commands(workplace, calm):
        assert start(words).wait(timeout=WHOLE_SWEEP_SECONDS) == 0
        lengths.append(written(calm))
    found = results(calm)
    assert len({line["folder"] for line in found}) == 12 and len(contents(calm)) == 4 + 2 * 8
    draw = random.Random(int(os.environ.get("CLOZELAB_KILL_SEED", "1")))
    kills, sessions = 0, []
    for number in range(MAX_ROUNDS):
        killed = tmp_path / f"killed-{number}"
        kills += run_killed(workplace, killed, lengths, KILLS - kills, draw)
        assert results(killed) == found
        assert contents(killed) == contents(calm)
        sessions += [json.loads(path.read_text())["sessions"] for path in killed.rglob("run.json")]
        if kills == KILLS:
            break
    assert kills == KILLS, "too fast to have been killed so often: no evidence"
    assert max(sessions) > 1, "no run was hit in the middle"


def test_two_launches_at_once_never_write_one_folder(workplace: Path, tmp_path: Path) -> None:
    """What one works on the other holds, and counts once it is complete."""
    words = commands(workplace, tmp_path)[0]
    launches = [start(words), start(words)]
    assert [one.wait(timeout=WHOLE_SWEEP_SECONDS) for one in launches] == [0, 0]
    made = completions(tmp_path)
    assert len(made) == 4
    assert {json.loads(path.read_text())["sessions"] for path in tmp_path.rglob("run.json")} == {1}
    for path in tmp_path.rglob("metrics.csv"):
        with path.open(newline="") as file:
            rows = [(row["step"], row["key"]) for row in csv.DictReader(file)]
        assert len(rows) == len(set(rows)), "two processes wrote one metrics.csv"
    assert start(words).wait(timeout=WHOLE_SWEEP_SECONDS) == 0
    assert completions(tmp_path) == made


def test_a_failed_job_does_not_stop_the_others_and_is_tried_again(
    workplace: Path, tmp_path: Path
) -> None:
    words = [word.replace("seed=1,2", "seed=1") for word in commands(workplace, tmp_path)[0]]
    blocked = tmp_path / "killed/demo/pretrain/mlm/seed-1"
    sweep = start(words)
    # before that, a folder with something in it would not be claimed
    while not (blocked / "run.json").exists():
        assert sweep.poll() is None
        time.sleep(0.005)
    (blocked / "checkpoints").write_text("in the way of the folder of checkpoints")
    assert sweep.wait(timeout=WHOLE_SWEEP_SECONDS) == 1
    assert completions(tmp_path).keys() == {"killed/demo/pretrain/ltr/seed-1"}
    state = json.loads((blocked / "run.json").read_text())
    assert state["status"] == "failed" and state["error"]
    (blocked / "checkpoints").unlink()
    assert start(words).wait(timeout=WHOLE_SWEEP_SECONDS) == 0
    assert len(completions(tmp_path)) == 2
