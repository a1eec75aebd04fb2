"""Real runs that are killed, hang, or run out of time.

The slow tests send signals at many moments of a start, and stop a data worker and a rank.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from tests import forked
from tests.forked import gone, is_running
from tests.runs.test_pretrain_run import (
    LONG,
    command,
    environment,
    ranks,
    rows,
    second_rank,
    state,
)

from clozelab.runs.record import LOCK_FILE
from clozelab.training.checkpoints import load_file

HANGING = """
import sys, time
from clozelab.modules.pretraining import PretrainingModule

def sleeps_at_four(self, batch, index, step=PretrainingModule.training_step):
    if self.trainer.global_step == 3:
        time.sleep(600)
    return step(self, batch, index)

PretrainingModule.training_step = sleeps_at_four
from clozelab.cli import main
sys.exit(main(sys.argv[1:]))
"""


ENDLESS = LONG.replace("steps: 250", "steps: 100000")


def start(
    words: list[str], kind: type[subprocess.Popen[str]] = forked.Popen
) -> subprocess.Popen[str]:
    return kind(words, env=environment(), stderr=subprocess.PIPE, text=True)


def wait_until(
    done: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 240
) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := done()):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere a worker looks for its parent every 5 s"
)
def test_data_workers_end_with_a_killed_run_and_hold_nothing(
    workplace: Path, tmp_path: Path
) -> None:
    """The next start gets the folder at once, and the memory of the workers is free."""
    run_dir = tmp_path / "run"
    process = start(command(workplace, run_dir, phases=ENDLESS, **{"trainer.num_workers": 2}))
    wait_until((run_dir / "metrics.csv").exists, process)
    workers = children(process.pid)
    assert len(workers) >= 2
    process.kill()
    process.wait()
    try:
        with FileLock(run_dir / LOCK_FILE, timeout=0):
            pass
        assert gone(workers, 2.0)
    finally:
        for pid in filter(is_running, workers):
            os.kill(pid, signal.SIGKILL)


def test_a_step_that_hangs_is_ended_and_the_run_goes_on(workplace: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    words = command(workplace, run_dir, checkpoint_interval_steps=1)
    process = start([sys.executable, "-c", HANGING, *words[3:], "trainer.hang_seconds=3"])
    said = process.communicate(timeout=240)[1]
    assert process.returncode == 124, said
    assert "error: nothing has moved for 3 s (trainer.hang_seconds)" in said
    record = state(run_dir)
    assert record["status"] == "failed" and record["error"].startswith("nothing has moved for 3 s")
    assert "in sleeps_at_four" in (run_dir / "log.txt").read_text()
    assert start(words).wait(timeout=240) == 0  # the setting is no part of what a run is
    record = state(run_dir)
    assert (record["status"], record["sessions"], record["error"]) == ("complete", 2, None)
    assert [step for step, key, _ in rows(run_dir) if key == "train/loss"] == list(range(1, 11))


def test_a_sweep_out_of_time_has_a_status_of_its_own_and_goes_on(
    workplace: Path, tmp_path: Path
) -> None:
    """The same exit status of the job, of the sweep, and (tests/launch) of a reproduction."""
    words = command(workplace, tmp_path, phases=LONG)
    words = [word for word in words if not word.startswith("run_dir=")]
    words += ["-m", "seed=1,2", f"runs_dir={tmp_path}", "trainer.max_time=00:00:00"]
    process = start(words)
    said = process.communicate(timeout=240)[1]
    assert process.returncode == 85 and "2 stopped" in said and "out of trainer.max_time" in said
    runs = [path.parent for path in tmp_path.glob("*/*/pretrain/test/*/run.json")]
    assert [state(run)["status"] for run in runs] == ["interrupted"] * 2
    assert all(list(run.glob("checkpoints/*.ckpt")) for run in runs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT"])
def test_a_signal_at_any_moment_of_a_start(workplace: Path, tmp_path: Path, name: str) -> None:
    """From the first import to the first steps: 128 + n, and every file that is there is whole."""
    draw, run_dir, number = random.Random(name), tmp_path / "run", signal.Signals[name]
    changes = {"phases": LONG, "checkpoint_interval_steps": 1}
    for _ in range(int(os.environ.get("CLOZELAB_STOPS", "5"))):
        process = start(command(workplace, run_dir, **changes), subprocess.Popen)
        time.sleep(draw.uniform(0.3, 9.0))
        process.send_signal(number)
        said = process.communicate(timeout=240)[1]
        assert process.returncode in (128 + number, 0), said  # 0: it was through
        assert "Traceback" not in said
        for path in run_dir.glob("checkpoints/*.ckpt"):
            load_file(path)
        if (run_dir / "run.json").exists():
            assert state(run_dir)["status"] in ("interrupted", "complete")
    assert start(command(workplace, run_dir, **changes)).wait(timeout=300) == 0
    assert state(run_dir)["status"] == "complete"
    assert [step for step, key, _ in rows(run_dir) if key == "train/loss"] == list(range(1, 251))


@pytest.mark.slow
def test_a_data_worker_that_is_stuck_is_a_hang(workplace: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    changes = {"phases": ENDLESS, "trainer.num_workers": 1, "trainer.hang_seconds": 3}
    process = start(command(workplace, run_dir, **changes))
    wait_until((run_dir / "metrics.csv").exists, process)
    workers = children(process.pid)
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 124 and "nothing has moved for 3 s" in said
    assert gone(workers, 5.0), "SIGKILL reaches a stopped process too"
    assert "_get_data" in (run_dir / "log.txt").read_text()


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named(workplace: Path, tmp_path: Path) -> None:
    """By whichever is first: Lightning, which looks every five seconds, or a broken connection."""
    run_dir = tmp_path / "run"
    changes = {"phases": ENDLESS, "position_growth": "none"}
    process = start(command(workplace, run_dir, **ranks("ddp") | changes), kind=subprocess.Popen)
    wait_until((run_dir / "metrics.csv").exists, process)
    second = wait_until(lambda: second_rank(process), process)
    os.kill(second, signal.SIGKILL)
    said = process.communicate(timeout=120)[1]
    assert re.search(rf"(PID|process) {second}\b.* with code -9", said)


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["first", "second"])
def test_a_rank_that_is_stopped_is_a_hang(workplace: Path, tmp_path: Path, stopped: str) -> None:
    """The other one notices; of a first rank, which cannot end itself, nothing is left."""
    run_dir = tmp_path / "run"
    changes = {"phases": ENDLESS, "position_growth": "none", "trainer.hang_seconds": 4}
    # A forked process has the environment of its server, which names no rank.
    words = command(workplace, run_dir, **ranks("ddp") | changes)
    process = start(words, kind=subprocess.Popen)
    wait_until((run_dir / "metrics.csv").exists, process)
    second = wait_until(lambda: second_rank(process), process)
    os.kill(process.pid if stopped == "first" else second, signal.SIGSTOP)
    try:
        said = process.communicate(timeout=120)[1]
    finally:
        process.kill()
    assert "nothing has moved for 4 s (trainer.hang_seconds)" in said
    assert process.returncode == (-signal.SIGKILL if stopped == "first" else 124)
    assert gone([second], 10.0)
    with FileLock(run_dir / LOCK_FILE, timeout=0):
        pass
    assert state(run_dir)["status"] == ("running" if stopped == "first" else "failed")
