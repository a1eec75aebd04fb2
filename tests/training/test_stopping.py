"""How a process ends: signals, the end of whoever started it, hangs. Real runs: tests/runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests import forked
from tests.forked import gone

from clozelab.schema import seconds_of
from clozelab.training import stopping
from clozelab.training.stopping import SIGNALS, Watch, taken_signals

SRC = str(Path(__file__).parents[2] / "src")
QUICK = ("SIGINT", "SIGUSR2")
NAMES = []
"""Of all signals; one is taken as another is, so that those beside QUICK are slow."""
for number in SIGNALS:
    slow = [] if number.name in QUICK else [pytest.mark.slow]
    NAMES.append(pytest.param(number.name, marks=slow))


def start(code: str, folder: Path, *paths: str, **options: object) -> subprocess.Popen[bytes]:
    """Python with this code, in `folder`."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, SRC])}
    return subprocess.Popen([sys.executable, "-c", code], cwd=folder, env=environment, **options)


def wait_for(path: Path, *processes: subprocess.Popen[bytes]) -> Path:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert all(process.poll() is None for process in processes), path
        assert time.monotonic() < deadline, path
        time.sleep(0.01)
    return path


# Signals

START_UP = """
import sys, time
from pathlib import Path
from clozelab import cli

def importing(words):  # stands for what happens before a run has its folder
    try:
        Path("half-written").touch()
        Path("up").touch()
        time.sleep(60)
    finally:
        Path("half-written").unlink()

cli._run = importing
sys.exit(cli.main(["pretrain"]))
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_verb_that_starts_up_ends_with_128_and_the_number(tmp_path: Path, name: str) -> None:
    process = start(START_UP, tmp_path, stderr=subprocess.PIPE)
    wait_for(tmp_path / "up", process)
    process.send_signal(signal.Signals[name])
    said = process.communicate(timeout=30)[1].decode()
    assert process.returncode == 128 + signal.Signals[name]
    assert "the same command goes on" in said and "Traceback" not in said
    assert not (tmp_path / "half-written").exists()


def test_what_nohup_ignores_stays_ignored(tmp_path: Path) -> None:
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    process = start(START_UP, tmp_path, stderr=subprocess.DEVNULL, preexec_fn=ignore)
    wait_for(tmp_path / "up", process)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 143


def test_a_signal_counts_once_a_second_and_the_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    acted: list[int] = []
    with taken_signals(acted.append) as came:
        for number in (signal.SIGUSR1, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert came == acted == [signal.SIGUSR1]
        time.sleep(1.05)
        os.kill(os.getpid(), signal.SIGHUP)
        assert came == acted == [signal.SIGUSR1, signal.SIGHUP]
    assert [signal.getsignal(number) for number in SIGNALS] == before


# The end of whoever started it

STEP = """
import time
from pathlib import Path
from clozelab import cli

def training(words):
    Path("pid.tmp").write_text(str(__import__("os").getpid()))
    Path("pid.tmp").rename("pid")
    try:
        time.sleep(60)
    except BaseException as error:
        time.sleep(0.2)
        Path("saved").write_text(f"{error.code}")
        raise

cli._run = training
"""
"""As sitecustomize.py: what `clozelab VERB` does in the step of a reproduction."""
REPRODUCTION = """
import sys
from rich.console import Console
from clozelab import cli
from clozelab.planning.steps import Step
from clozelab.planning import reproduction

steps = [Step("show", "", None, ()), Step("list", "", None, ())]
cli._run = lambda words: reproduction.run_steps(steps, Console(stderr=True))[0]
sys.exit(cli.main(["reproduce"]))
"""


@pytest.mark.parametrize(
    ("name", "saved"),
    [
        ("SIGKILL", 143),
        ("SIGINT", 130),
        pytest.param("SIGHUP", 129, marks=pytest.mark.slow),
    ],
)
def test_the_steps_of_a_reproduction_end_with_it(tmp_path: Path, name: str, saved: int) -> None:
    """A signal to it alone, its step left to itself: that one stops, saves, and no other begins."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(
        f"import sys\nif '-c' not in sys.orig_argv:\n    exec({STEP!r})\n"
    )
    parent = start(
        REPRODUCTION, tmp_path, str(hooks), stderr=subprocess.DEVNULL, start_new_session=True
    )
    step = int(wait_for(tmp_path / "pid", parent).read_text())
    number = signal.Signals[name]
    parent.send_signal(number)
    assert parent.wait(timeout=30) == (-number if number == signal.SIGKILL else 128 + number)
    wait_for(tmp_path / "saved")
    assert gone([step], 10.0)
    assert (tmp_path / "saved").read_text() == str(saved)


ORPHAN = """
import os, sys
read, write = os.pipe()
os.close(write)
os.environ["CLOZELAB_LIFELINE"] = str(read)
from clozelab import cli
sys.exit(cli.main(["--version"]))
"""


def test_a_verb_whose_starter_has_gone_does_not_begin(tmp_path: Path) -> None:
    process = start(ORPHAN, tmp_path, stdout=subprocess.PIPE)
    assert process.communicate(timeout=30)[0] == b"" and process.returncode == 143


# Hangs

WATCHED = """
import ctypes, sys, time
from pathlib import Path
from clozelab.schema import seconds_of
from clozelab.training.stopping import Watch, taken_signals

def leave(status, said):
    Path("left").write_text(status + ": " + said)

def sleeping_step():
    time.sleep(60)

def deaf_step():  # in a library: Python's handlers never run
    mutex = ctypes.create_string_buffer(64)
    lock = ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex), lock(mutex)

watch = Watch(**LIMITS)
with watch.on(Path("log"), leave), taken_signals():
    watch.is_training = True
    Path("up").touch()
    for _ in range(12 * ("beating" in sys.argv)):
        watch.beats += 1
        time.sleep(0.25)
    {"sleeping": sleeping_step, "deaf": deaf_step}.get(sys.argv[1], lambda: None)()
"""


def watched(folder: Path, what: str, **limits: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", f"LIMITS = {limits!r}\n{WATCHED}", what]
    process = forked.Popen(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": SRC}, stderr=subprocess.PIPE
    )
    wait_for(folder / "up", process)
    return process


def test_a_step_that_sleeps_is_ended_with_its_stack(tmp_path: Path) -> None:
    process = watched(tmp_path, "sleeping", hang_seconds=1.0)
    said = process.communicate(timeout=30)[1].decode()
    assert process.returncode == 124
    sentence = "nothing has moved for 1 s (trainer.hang_seconds): ended without a save"
    assert said.startswith(f"error: {sentence}")
    log = (tmp_path / "log").read_text()
    assert "in sleeping_step" in log and "in _watch_signals" in log, "the stacks of all threads"
    assert (tmp_path / "left").read_text() == f"failed: {said.removeprefix('error: ').strip()}"


@pytest.mark.parametrize("what", ["sleeping", "deaf"])
def test_a_signal_that_nothing_follows_ends_the_process(tmp_path: Path, what: str) -> None:
    process = watched(tmp_path, what, grace_seconds=1.0)
    process.send_signal(signal.SIGUSR2)
    said = process.communicate(timeout=30)[1].decode()
    assert process.returncode == 140
    sentence = "SIGUSR2 came, and nothing has moved for 1 s (trainer.grace_seconds)"
    assert said.startswith(f"error: {sentence}")
    assert f"in {what}_step" in (tmp_path / "log").read_text()
    assert (tmp_path / "left").read_text().startswith("interrupted: SIGUSR2 came")


def test_what_moves_is_left_alone(tmp_path: Path) -> None:
    """A beat each quarter of a second, though a signal has come: its save is on its way."""
    process = watched(tmp_path, "beating", hang_seconds=1.0, grace_seconds=1.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    assert not (tmp_path / "left").exists()


def test_time_in_which_all_was_suspended_is_no_hang(tmp_path: Path) -> None:
    """Ctrl-Z and fg. By the clock it would be 3 s between two beats."""
    process = watched(tmp_path, "beating", hang_seconds=1.5)
    process.send_signal(signal.SIGSTOP)
    time.sleep(3.0)
    process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=30) == 0


def test_without_limits_nothing_ends(tmp_path: Path) -> None:
    process = watched(tmp_path, "sleeping")
    process.send_signal(signal.SIGTERM)
    time.sleep(1.5)
    assert process.poll() is None
    process.kill()
    process.communicate()


def test_a_watch_gives_back_what_it_took() -> None:
    number = signal.set_wakeup_fd(-1)
    with Watch(hang_seconds=9.0).on(None, lambda *_: None):
        assert signal.set_wakeup_fd(-1) > 0
    assert signal.set_wakeup_fd(number) == -1


LIMITS = {"00:00:01": 1, "02:30:00": 9000, "36:00:00": 129600, "1-12:00:00": 129600}


def test_time_limits_are_written_as_slurms() -> None:
    assert {text: seconds_of(text) for text in LIMITS} == LIMITS
    assert seconds_of(None) == float("inf")
    for text in ("", "9000", "2h", "02:30", "02:75:00", "x02:30:00"):
        with pytest.raises(ValueError, match="write it as '02:30:00'"):
            seconds_of(text)


def test_a_training_in_which_nothing_moves_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Long before it is ended; between trainings nothing has to move."""
    monkeypatch.setattr(stopping, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(stopping, "NOTICE_SECONDS", 0.05)
    watch = Watch(hang_seconds=900.0)
    log = tmp_path / "log.txt"
    with watch.on(log, lambda *_: None):
        time.sleep(0.2)
        assert not log.exists()
        watch.is_training = True
        watch.beats += 1
        deadline = time.monotonic() + 20
        while not log.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.2)
    said = log.read_text()
    assert said.count("\n") == 1 and capsys.readouterr().err == said
    assert said.startswith("warning: nothing has moved for 0 s in this training; it ends after 900")
