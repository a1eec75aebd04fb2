"""A training is killed twice and goes on: each tracker holds what metrics.csv holds."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests import forked
from tests.report.test_tracked import keep_offline, records
from tests.runs.test_pretrain_run import command, environment

from clozelab.runs.record import read_record
from clozelab.stages import track
from clozelab.training.catching_up import unsent

Values = dict[tuple[str, int], list[float]]
SETTINGS = {
    "phases": "[{seq_length: 16, steps: 30, global_batch_size: 8, micro_batch_size: 4}]",
    "checkpoint_interval_steps": 10,
    "validation.interval_steps": 10,
    "logger": "[wandb,tensorboard,csv]",
    "logger.wandb.mode": "offline",
}
STEP_LINES = 9  # of metrics.csv a step, at most


def figures(run_dir: Path) -> Values:
    """What metrics.csv holds."""
    values: Values = defaultdict(list)
    with (run_dir / "metrics.csv").open() as stream:
        for row in csv.DictReader(stream):
            values[row["key"], int(row["step"])].append(float(row["value"]))
    return values


def in_wandb(run_dir: Path) -> Values:
    values: Values = defaultdict(list)
    for record in records(run_dir):
        point = {}
        for item in record.history.item:
            point[item.key or item.nested_key[0]] = float(json.loads(item.value_json))
        for key, value in point.items():
            values[key, int(point["step"])].append(value)
    return values


def in_tensorboard(run_dir: Path) -> Values:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = accumulators.EventAccumulator(
        str(run_dir / "tensorboard"), size_guidance={"scalars": 0}
    )
    reader.Reload()
    values: Values = defaultdict(list)
    for key in reader.Tags()["scalars"]:
        for event in reader.Scalars(key):
            values[key, event.step].append(event.value)
    return values


def in_table(run_dir: Path) -> Values:
    values: Values = defaultdict(list)
    with (run_dir / "csv" / "metrics.csv").open() as stream:
        for row in csv.DictReader(stream):
            for key, value in row.items():
                if value and key != "step":
                    values[key, int(row["step"])].append(float(value))
    return values


def kill_after(command: list[str], run_dir: Path, lines: int) -> None:
    """Start a training and kill it once its metrics.csv has so many lines."""
    path = run_dir / "metrics.csv"
    process = forked.Popen(command, env=environment())
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


@pytest.fixture(scope="module")
def killed(
    workplace: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[list[str], Path, Path]]:
    """A run killed before its first save and behind its second: command, folder, a copy of it."""
    place = tmp_path_factory.mktemp("killed")
    run_dir = place / "run"
    words = command(workplace, run_dir, **SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        keep_offline(patch, place)
        kill_after(words, run_dir, 4 * STEP_LINES)
        assert not list(run_dir.glob("checkpoints/*"))
        kill_after(words, run_dir, 24 * STEP_LINES)
        assert list(run_dir.glob("checkpoints/*"))
        wait_for_wandb(run_dir)
        # W&B may have linked a log that it had not begun to write when it was killed.
        copied = shutil.copytree(run_dir, place / "copies" / "run", symlinks=True)
        yield words, run_dir, Path(copied)


def wait_for_wandb(run_dir: Path) -> None:
    """W&B's own process outlives a killed run for a moment, and writes what it was given."""
    sizes: list[int] = [-1]
    now: list[int] = []
    while sizes != now:
        sizes = now
        time.sleep(1)
        now = [path.stat().st_size for path in sorted(run_dir.rglob("*.wandb"))]


def assert_holds(values: Values, expected: Values) -> None:
    missing = [place for place in expected if place not in values]
    assert not missing, f"{len(missing)} of {len(expected)} are missing: {missing[:5]}"
    twice = [place for place in expected if len(values[place]) > 1]
    assert not twice, f"{len(twice)} stand there more than once: {twice[:5]}"
    for place, (value,) in expected.items():
        assert np.isclose(values[place], value, rtol=1e-6).any(), place


def test_trackers_hold_what_metrics_csv_holds(killed: tuple[list[str], Path, Path]) -> None:
    words, run_dir, _ = killed
    assert unsent(run_dir) == {"wandb": None, "tensorboard": None, "csv": None}
    lost = [place for place in figures(run_dir) if place not in in_wandb(run_dir)]
    assert lost, "the control: W&B takes nothing along, and this test shows nothing"
    assert forked.run(words, env=environment()).returncode == 0
    expected = figures(run_dir)
    assert {step for _, step in expected} == set(range(1, 31))
    assert_holds(in_wandb(run_dir), expected)
    shown = in_tensorboard(run_dir)
    assert_holds(shown, expected)
    steps = [step for key, step in shown if key == "train/loss"]
    assert steps == sorted(steps), "TensorBoard's line would run backwards"
    assert_holds(in_table(run_dir), expected)
    assert unsent(run_dir) == {}


def test_a_killed_run_that_does_not_go_on_is_sent_by_track(
    killed: tuple[list[str], Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, run_dir = killed
    expected = figures(run_dir)
    for words in ([run_dir.parent], [run_dir], [run_dir, "logger=[wandb,tensorboard,csv]"]):
        capsys.readouterr()
        assert track.main(list(map(str, words))) == 0
        is_whole_before = words == [run_dir]
        assert ("wandb has all values of" in capsys.readouterr().out) is is_whole_before
        for read in (in_wandb, in_tensorboard, in_table):
            assert_holds(read(run_dir), expected)
    record = read_record(run_dir)
    assert record is not None and not record.is_complete and unsent(run_dir) == {}
