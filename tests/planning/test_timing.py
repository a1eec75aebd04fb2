"""The timing processes as `plan` uses them: what is known is kept, one impossible shape costs no
other its speed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from tests import forked

from clozelab.planning import timing
from clozelab.planning.shapes import Request, Speed
from clozelab.planning.speeds import measured_speeds
from clozelab.planning.timing import Tick
from clozelab.text.plain import PlainDict
from clozelab.training.trainer import Hardware

HARDWARE = {
    "accelerator": "cpu",
    "devices": 1,
    "num_nodes": 1,
    "strategy": "auto",
    "precision": "32-true",
    "threads": 1,
}
GOOD = Speed(1000.0)
Replies = Callable[..., list[Request]]


def reply(request: Request, _: bool = False) -> Speed:
    """Instead of timing, each request is answered with what it says of itself."""
    if request.question["a"] == "dies":
        raise BrokenProcessPool
    speed: Speed = reply.speeds[request.title]  # type: ignore[attr-defined]
    return speed


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> Replies:
    """Answers to requests of these names."""

    def set_replies(**speeds: Speed) -> list[Request]:
        reply.speeds = speeds  # type: ignore[attr-defined]
        return [Request({"a": name}, name, step_tokens=600.0, step_flops=1e12) for name in speeds]

    monkeypatch.setattr(timing, "time_shape", reply)
    monkeypatch.setattr(timing, "start_workers", lambda at_once, _: ThreadPoolExecutor(at_once))
    return set_replies


def ask(requests: list[Request], cache: Path, **more: Any) -> list[Speed | None]:
    options: dict[str, Any] = {"at_once": 2, "threads": 2, "measure": True} | more
    return measured_speeds(requests, cache, **options)


def test_a_shape_that_ends_its_process_leaves_the_others_their_speeds(
    tmp_path: Path, replies: Replies
) -> None:
    asked = replies(fine=GOOD, dies=GOOD, too=GOOD)
    first, dead, third = ask(asked, tmp_path)
    assert first == third == GOOD
    assert dead == Speed(0.0, problem="its process was killed")
    kept = ask(asked, tmp_path, measure=False)
    assert kept == [first, None, third], "failures are tried again, speeds are kept"


def test_a_problem_and_an_estimate_are_said_and_not_kept(tmp_path: Path, replies: Replies) -> None:
    wrong = Speed(0.0, problem="ValueError: no")
    large = Speed(10.0, is_estimated=True)
    asked = replies(wrong=wrong, large=large, ok=GOOD)
    assert ask(asked, tmp_path)[:2] == [wrong, large]
    assert ask(asked, tmp_path, measure=False) == [None, None, GOOD]


def test_each_speed_is_kept_as_it_comes(tmp_path: Path, replies: Replies) -> None:
    def stop(line: str) -> None:
        if line.startswith("timing 2"):
            raise KeyboardInterrupt

    asked = replies(one=GOOD, two=GOOD)
    with pytest.raises(KeyboardInterrupt):
        ask(asked, tmp_path, say=stop)
    assert ask(asked, tmp_path, measure=False) == [GOOD, None]


def test_what_is_kept_can_be_measured_again(tmp_path: Path, replies: Replies) -> None:
    asked = replies(shape=GOOD)
    ask(asked, tmp_path)
    kept = next((tmp_path / "speeds").glob("*.json"))
    kept.write_text(kept.read_text().replace("1000.0", "5.0"))
    assert ask(asked, tmp_path) == [Speed(5.0)]
    assert ask(asked, tmp_path, measures_again=True) == [GOOD]
    assert ask(asked, tmp_path) == [GOOD]


def test_the_mean_of_processes_side_by_side() -> None:
    assert timing._mean([GOOD, Speed(3000.0, is_busy=True)]) == Speed(2000.0, is_busy=True)


def test_what_takes_too_long_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "ceiling", lambda precision, device: 1e10)
    asked = Request({"kind": "pretrain", "hardware": HARDWARE}, "", 600.0, 2e11)
    assert timing.time_shape(asked) == Speed(pytest.approx(12.0), is_estimated=True)


def test_a_shape_that_takes_too_long_leaves_the_others_their_speeds(
    tmp_path: Path, replies: Replies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compilation that never ends, say."""
    asked = replies(fine=GOOD, slow=GOOD, too=GOOD)

    def slow_reply(request: Request, _: bool) -> Speed:
        if request.title == "slow":
            time.sleep(1.0)
        return reply(request)

    monkeypatch.setattr(timing, "time_shape", slow_reply)
    monkeypatch.setattr(timing, "MAX_ANSWER_SECONDS", 0.3)
    assert ask(asked, tmp_path) == [GOOD, Speed(0.0, problem="not timed within 0 s"), GOOD]


def test_a_step_that_compiles_is_no_part_of_a_gpus_speed() -> None:
    seconds = [50.0, 51.0, 52.0, 53.0, 54.0, 74.0, 75.0, 76.0]
    ticks = [Tick(100 * number, at, at) for number, at in enumerate(seconds)]
    assert timing._rate(ticks, is_gpu=True) == 100.0
    assert timing._rate(ticks, is_gpu=False) < 20.0


def test_a_gpus_pretraining_is_timed_as_written_unless_asked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the device notes what it is asked to compile."""
    compiled: list[bool] = []

    def ticks(_: PlainDict, hardware: Hardware) -> list[Tick]:
        compiled.append(hardware.compiles_pretraining)
        seconds = 0.1 if hardware.compiles_pretraining else 0.2
        return [Tick(100 * number, number * seconds, 0.0) for number in range(10)]

    monkeypatch.setattr(timing, "choose_hardware", lambda threads, **asked: Hardware(**asked))
    monkeypatch.setattr(timing, "ceiling", lambda precision, device: 1e10)
    monkeypatch.setattr(timing, "waited_seconds", lambda: 0.0)  # the machine may be busy
    monkeypatch.setattr(timing, "TICKS_OF", {"pretrain": ticks, "finetune": ticks})
    monkeypatch.setattr(timing, "start_workers", lambda at_once, _: ThreadPoolExecutor(at_once))
    on_gpu = {**HARDWARE, "accelerator": "gpu", "compile": "auto", "cuda_graphs": "off"}
    asked = [Request({"kind": "pretrain", "hardware": on_gpu}, "", 600.0, 1.0)]
    as_written = Speed(pytest.approx(500.0), is_uncompiled=True)
    assert ask(asked, tmp_path, at_once=1) == [as_written]
    assert ask(asked, tmp_path, measure=False, at_once=1) == [as_written], "kept, with its mark"
    assert ask(asked, tmp_path, measures_again=True, at_once=1) == [Speed(pytest.approx(1000.0))]
    assert ask(asked, tmp_path, at_once=1) == [Speed(pytest.approx(1000.0))]
    assert compiled == [False, True]
    # What a run does not compile is no different.
    plain = {**on_gpu, "compile": "false"}
    asked = [Request({"kind": "pretrain", "hardware": plain}, "", 600.0, 1.0)]
    asked.append(Request({"kind": "finetune", "hardware": on_gpu}, "", 600.0, 1.0))
    assert [speed.is_uncompiled for speed in ask(asked, tmp_path, at_once=1) if speed] == [
        False,
        False,
    ]


def test_a_shape_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Speed:
        raise RuntimeError("no\nroom")

    monkeypatch.setattr(timing, "_timed", fail)
    asked = Request({"kind": "pretrain", "hardware": HARDWARE}, "", 600.0, 1.0)
    assert timing.time_shape(asked) == Speed(0.0, problem="RuntimeError: no room")


def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    """Real processes, with what they are asked to do instead of timing.

    A server does their imports once, for the killed and the new ones.
    """
    code = f"from {__name__} import measure_with_killers; measure_with_killers({str(tmp_path)!r})"
    # `-m` of a sweep: its fork server is a fork, too.
    done = forked.run(
        [sys.executable, "-c", code, "-m"],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def measure_with_killers(folder: str) -> None:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    multiprocessing.get_context = lambda _: server  # type: ignore[assignment]
    timing.time_shape = kill_or_reply
    asked = [Request({"a": name}, name, 1.0, 1.0) for name in ("fine", "dies", "too")]
    speeds = measured_speeds(asked, Path(folder), at_once=2, threads=1, measure=True)
    assert speeds == [GOOD, Speed(0.0, problem="its process was killed"), GOOD], speeds


def kill_or_reply(request: Request, _: bool) -> Speed:
    if request.title == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    return GOOD
