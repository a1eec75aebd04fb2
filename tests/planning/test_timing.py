"""The timing processes as `plan` uses them: what is known is kept, one impossible shape costs no
other its speed.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from clozelab.planning import timing
from clozelab.planning.jobs import Request, Speed
from clozelab.planning.timing import ANSWER, measured_speeds
from clozelab.training.trainer import choose_hardware

WORKER = """
import json, os, sys
for request in json.load(sys.stdin):
    print("a library talks")
    if request["a"] == "dies":
        print("MemoryError: no room", file=sys.stderr, flush=True)
        os._exit(1)
    print({answer!r} + json.dumps(request["answer"]), flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of timing, each request is answered with what it says of itself."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "pretend_worker.py").write_text(WORKER.format(answer=ANSWER))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(timing, "WORKER", "pretend_worker")


def request(a: str, **answer: Any) -> Request:
    return Request({"a": a, "answer": answer}, a, step_tokens=600.0, step_flops=1e12)


def ask(requests: list[Request], cache: Path, measure: bool = True) -> list[Speed | None]:
    return measured_speeds(requests, cache, at_once=2, threads=2, measure=measure)


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine that runs these tests is busy with them."""
    monkeypatch.setattr(timing, "is_busy_for", lambda threads: False)


GOOD = {"wall": 1000.0, "processor": 900.0}


@pytest.mark.usefixtures("worker")
def test_a_shape_that_ends_its_process_leaves_the_others_their_speeds(tmp_path: Path) -> None:
    asked = [request("fine", **GOOD), request("dies"), request("fine too", **GOOD)]
    first, dead, third = ask(asked, tmp_path)
    assert first == third == Speed(1000.0)
    assert (
        dead is not None and not dead.tokens_per_second and dead.problem == "MemoryError: no room"
    )
    assert ask(asked, tmp_path, measure=False) == [
        first,
        None,
        third,
    ], "failures are tried again, speeds are kept"


@pytest.mark.usefixtures("worker")
def test_a_problem_and_an_estimate_are_said_and_not_kept(tmp_path: Path) -> None:
    asked = [
        request("wrong", problem="ValueError: no"),
        request("large", step_seconds=60.0),
        request("ok", **GOOD),
    ]
    wrong, large, fine = ask(asked, tmp_path)
    assert wrong == Speed(0.0, problem="ValueError: no")
    assert large == Speed(600.0 / 60.0, is_estimated=True)
    assert fine is not None and ask(asked, tmp_path, measure=False) == [None, None, fine]


@pytest.mark.usefixtures("worker")
def test_each_speed_is_kept_as_it_comes(tmp_path: Path) -> None:
    def stop(line: str) -> None:
        if line.startswith("timing 2"):
            raise KeyboardInterrupt

    asked = [request("one", **GOOD), request("two", **GOOD)]
    with pytest.raises(KeyboardInterrupt):
        measured_speeds(asked, tmp_path, at_once=1, threads=2, measure=True, say=stop)
    kept, missing = measured_speeds(asked, tmp_path, at_once=1, threads=2, measure=False)
    assert kept == Speed(1000.0) and missing is None


@pytest.mark.usefixtures("worker")
def test_a_speed_of_a_busy_machine_is_used_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [request("waited", **GOOD, waited=0.3), request("idle", **GOOD, waited=0.02)]
    waited, idle = ask(asked, tmp_path)
    assert waited == Speed(1000.0, is_busy=True) and idle == Speed(1000.0)
    assert ask(asked, tmp_path, measure=False) == [None, idle]
    monkeypatch.setattr(timing, "is_busy_for", lambda threads: threads > 3)
    (others,) = ask([request("others run", **GOOD)], tmp_path)
    assert others == Speed(1000.0, is_busy=True), (
        "two processes of two threads, and others want the cores"
    )


@pytest.mark.usefixtures("worker")
def test_what_is_kept_can_be_measured_again(tmp_path: Path) -> None:
    ask([request("shape", **GOOD)], tmp_path)
    kept = next((tmp_path / "speeds").glob("*.json"))
    kept.write_text(kept.read_text().replace("1000.0", "5.0"))
    asked: dict[str, Any] = {"at_once": 2, "threads": 2, "measure": True}
    assert measured_speeds([request("shape", **GOOD)], tmp_path, **asked) == [Speed(5.0)]
    assert measured_speeds([request("shape", **GOOD)], tmp_path, **asked, anew=True) == [
        Speed(1000.0)
    ]
    assert measured_speeds([request("shape", **GOOD)], tmp_path, **asked) == [Speed(1000.0)]


def test_the_worker_does_not_begin_what_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "ceiling", lambda precision, device: 1e10)
    hardware = choose_hardware(
        accelerator="cpu", devices=1, num_nodes=1, strategy="auto", precision="32-true", threads=1
    )
    asked: dict[str, Any] = {
        "kind": "pretrain",
        "step_flops": 2e11,
        "max_step_seconds": 30.0,
        "seconds": 1.5,
    }
    assert timing.answer(asked, hardware) == {"step_seconds": pytest.approx(50.0)}


def test_the_worker_goes_on_after_a_shape_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hardware = {
        "accelerator": "cpu",
        "devices": 1,
        "num_nodes": 1,
        "strategy": "auto",
        "precision": "32-true",
        "threads": 1,
    }
    asked = [{"hardware": hardware, "kind": kind} for kind in ("first", "second")]
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(asked)))
    monkeypatch.setattr(timing, "answer", fails_at_first)
    assert timing.main() == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(ANSWER)]
    assert [json.loads(line.removeprefix(ANSWER)) for line in lines] == [
        {"problem": "RuntimeError: no room"},
        GOOD,
    ]


def fails_at_first(request: dict[str, Any], hardware: Any) -> dict[str, float]:
    if request["kind"] == "first":
        raise RuntimeError("no\nroom")
    return GOOD
