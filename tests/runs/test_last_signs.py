"""Where a run is between two log points, for whoever looks from outside: its note of the step."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conftest import write_run

from clozelab.launch.processes import Job, JobState
from clozelab.launch.progress import NO_ESTIMATE, progress_line
from clozelab.runs.progress import Progress, progress_in
from clozelab.runs.record import STEP_FILE
from clozelab.runs.status import running_cells
from clozelab.training import callbacks
from clozelab.training.callbacks import NOTE_SECONDS, TrainingProgress

HEADER = "step,tokens,seconds,key,value\n"
LINES = "50,5000,10.0,train/tokens_per_second,500.0\n50,5000,10.0,train/loss,7.25\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    write_run(folder, "finetune", {"seed": 1}, status="running", total_steps=100)
    (folder / "metrics.csv").write_text(HEADER + LINES)
    return folder


def test_the_step_moves_between_two_log_points(folder: Path) -> None:
    logged = progress_in(folder)
    (folder / STEP_FILE).write_text("60")
    now = progress_in(folder)
    assert (logged.step, now.step, now.loss) == (50, 60, 7.25)
    assert logged.seconds_left == 10.0 and now.seconds_left == 8.0
    (folder / STEP_FILE).write_text("")  # it is being written
    assert progress_in(folder).step == 50
    (folder / "metrics.csv").unlink()
    (folder / STEP_FILE).write_text("7")
    assert progress_in(folder).step == 7, "before the first log point"


def test_the_last_sign_is_a_line_or_a_note(folder: Path) -> None:
    long_ago = time.time() - 300
    os.utime(folder / "metrics.csv", (long_ago, long_ago))
    assert progress_in(folder).silence == "silent for 5.0 min"
    (folder / STEP_FILE).write_text("60")
    assert progress_in(folder).silence == ""


def test_a_sweep_and_status_say_the_step_and_a_long_silence() -> None:
    progress = Progress(step=60, total_steps=100, seconds_since_sign=45.0)
    job = Job("mlm/seed-1", [], Path(), state=JobState.RUNNING, progress=progress)
    assert "(mlm/seed-1 step 60 of 100, silent for 45 s)" in progress_line([job], 1, NO_ESTIMATE)
    record: Any = SimpleNamespace(name="mlm", task="", seeds="1", holder=None)
    cells = running_cells(record, progress)
    assert (cells[1], cells[-1]) == ("60 of 100", "silent for 45 s")


def test_a_training_notes_its_step_and_leaves_no_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: now)
    trainer: Any = SimpleNamespace(is_global_zero=True, max_steps=90, global_step=0)
    note = tmp_path / STEP_FILE
    progress = TrainingProgress(enabled=False, note=note)
    noted = []
    for step in range(1, 7):
        now += NOTE_SECONDS / 2
        trainer.global_step = step
        progress.on_train_batch_end(trainer, SimpleNamespace())  # type: ignore[arg-type]
        noted.append(note.read_text())
    assert noted == ["1", "1", "3", "3", "5", "5"]
    now += NOTE_SECONDS
    progress.on_validation_batch_end(trainer)
    assert note.read_text() == "6"
    progress.on_train_end(trainer, SimpleNamespace())  # type: ignore[arg-type]
    assert not note.exists()
