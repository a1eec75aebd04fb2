"""Trackers in a thread: no training waits for one, and what is missing is said."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import Logger

from clozelab.training import background
from clozelab.training.background import BackgroundLogger
from clozelab.training.catching_up import UNSENT_FILE, note_unsent, unsent
from clozelab.training.tracking import MetricsCsv


class Tracker(Logger):
    """Notes what it is told; `act` runs before, and may fail or wait."""

    name = "mine"
    version = ""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.act = act
        self.steps, self.ends, self.parameters = [], [], {}

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.act()
        self.steps.append((step, dict(metrics)))

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.act()
        self.parameters |= params

    def finalize(self, status: str) -> None:
        self.ends.append(status)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY_SECONDS", "FIRST_RETRY_SECONDS"):
        monkeypatch.setattr(background, name, 0.02)
    monkeypatch.setattr(background, "CLOSE_SECONDS", 0.3)


def log_steps(logger: Logger, steps: range) -> None:
    for step in steps:
        logger.log_metrics({"loss": 1.0 / step, "accuracy": 0.5}, step)


def test_a_tracker_that_works_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does one that is slower than the training, as long as it takes something."""
    tracker = Tracker(act=lambda: time.sleep(0.002))
    logger = BackgroundLogger(tracker, "mine", tmp_path)
    logger.log_hyperparams({"seed": 1})
    log_steps(logger, range(1, 301))
    logger.finalize("success")
    assert tracker.ends == [], "scores follow"
    logger.summarise({"accuracy": 0.9, "note": "no number"})
    logger.close(0)
    steps = [(step, {"loss": 1.0 / step, "accuracy": 0.5}) for step in range(1, 301)]
    assert tracker.steps == [*steps, (0, {"final/accuracy": 0.9})]
    assert tracker.parameters == {"seed": 1} and tracker.ends == ["success"]
    assert not caplog.text and not (tmp_path / UNSENT_FILE).exists()


def test_several_numbers_go_at_once_where_a_tracker_takes_them(tmp_path: Path) -> None:
    class Bundled(Tracker):
        def log_many(self, calls: Any) -> None:
            self.act()
            self.steps.append([call.step for call in calls])

    entered, go_on = threading.Event(), threading.Event()
    tracker = Bundled(act=lambda: (entered.set(), go_on.wait(20)))
    logger = BackgroundLogger(tracker, "mine", tmp_path)
    logger.log_metrics({"loss": 1.0}, 0)
    assert entered.wait(20)
    log_steps(logger, range(1, 251))
    go_on.set()
    logger.close(1)
    assert tracker.steps == [[0], list(range(1, 201)), list(range(201, 251))]
    assert tracker.ends == ["failed"]


def test_a_call_that_never_returns_holds_up_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "SILENT_SECONDS", 0.05)
    entered, never = threading.Event(), threading.Event()
    logger = BackgroundLogger(Tracker(act=lambda: (entered.set(), never.wait())), "mine", tmp_path)
    log_steps(logger, range(1, 3))
    assert entered.wait(20)
    time.sleep(0.1)
    began = time.monotonic()
    log_steps(logger, range(3, 1001))
    assert time.monotonic() - began < 1.0
    assert caplog.text.count("no answer for") == 1, "said once, while the run goes on"
    logger.close(0)
    assert time.monotonic() - began < 3.0
    assert "mine is missing 2000 of 2000 values (no answer for 0 s)" in caplog.text
    assert f"clozelab track {tmp_path} logger=mine" in caplog.text
    assert unsent(tmp_path) == {"mine": 2000}
    assert logger._thread is not None and logger._thread.daemon, "else the process could not end"
    never.set()


def test_an_outage_is_said_once_and_made_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    is_away = threading.Event()
    is_away.set()

    def act() -> None:
        if is_away.is_set():
            raise ConnectionRefusedError(111, "Connection refused")

    tracker = Tracker(act)
    logger = BackgroundLogger(tracker, "mine", tmp_path)
    log_steps(logger, range(1, 20))
    deadline = time.monotonic() + 20
    while "tried again until the end" not in caplog.text:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)  # several tries
    is_away.clear()
    logger.close(0)
    assert [step for step, _ in tracker.steps] == list(range(1, 20)) and tracker.ends == ["success"]
    assert caplog.text.count("Connection refused") == 1 and "missing" not in caplog.text


def test_a_connection_that_breaks_once_is_not_worth_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([ConnectionResetError(104, "reset")])

    def act() -> None:
        for error in failures:
            raise error

    tracker = Tracker(act)
    logger = BackgroundLogger(tracker, "mine", tmp_path)
    log_steps(logger, range(1, 4))
    logger.close(0)
    assert [step for step, _ in tracker.steps] == [1, 2, 3] and not caplog.text


def test_what_is_refused_is_left_out_and_a_tracker_that_always_refuses_is_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def act() -> None:
        if len(tracker.steps) == 2:
            raise TypeError("no such key")

    tracker = Tracker(act)
    logger = BackgroundLogger(tracker, "mine", tmp_path)
    log_steps(logger, range(1, 11))
    logger.close(0)
    assert [step for step, _ in tracker.steps] == [1, 2] and tracker.ends == ["success"]
    assert caplog.text.count("did not take something: TypeError: no such key") == 1
    assert caplog.text.count("is off for the rest of this run") == 1
    assert "missing 16 of 20" in caplog.text


def test_no_more_is_kept_than_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "WAITING_CALLS", 10)
    never = threading.Event()
    logger = BackgroundLogger(Tracker(act=never.wait), "mine", tmp_path)
    log_steps(logger, range(1, 101))
    assert len(logger._calls) == 10 and logger.given == 200
    never.set()


def test_missing_values_add_up_over_the_sessions_of_a_run(tmp_path: Path) -> None:
    def act() -> None:
        raise TypeError("no such key")

    for steps in (range(1, 3), range(3, 4)):
        logger = BackgroundLogger(Tracker(act), "mine", tmp_path)
        log_steps(logger, steps)
        logger.close(0)
    note_unsent(tmp_path, "other", 1)
    assert unsent(tmp_path) == {"mine": 6, "other": 1}
    for label in ("mine", "other"):
        note_unsent(tmp_path, label, 0)
    assert unsent(tmp_path) == {} and not (tmp_path / UNSENT_FILE).exists()


@pytest.mark.parametrize("is_refused", [False, True])
def test_after_a_kill_all_is_sent_again_and_the_note_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_refused: bool
) -> None:
    """It stays where the tracker does not take it."""

    class Anew(Tracker):
        def begin_anew(self) -> None:
            if is_refused:
                raise TypeError("no such run")
            self.steps.append("anew")

    csv = MetricsCsv(tmp_path)
    clock = {"train/tokens": 64.0, "train/seconds": 0.12345}
    csv.log_metrics({"loss": 1.0, "accuracy": 0.5, **clock}, 1)
    csv.log_metrics({"loss": 0.5, **clock}, 2)
    csv.log_metrics({"validation/loss": 0.25, **clock, "train/seconds": 1.5}, 2)
    note_unsent(tmp_path, "mine", None)  # as a start that was killed leaves it
    tracker = Anew()
    logger = BackgroundLogger(tracker, "mine", tmp_path)
    logger.go_on_after(2)
    log_steps(logger, range(3, 4))
    logger.close(0)
    clock["train/seconds"] = 0.123
    *before, after = tracker.steps
    assert after == (3, {"loss": 1.0 / 3, "accuracy": 0.5})
    sent_again = [
        "anew",
        (1, {"loss": 1.0, "accuracy": 0.5, **clock}),
        (2, {"loss": 0.5, **clock}),
        (2, {"validation/loss": 0.25, **clock, "train/seconds": 1.5}),
    ]
    assert before == ([] if is_refused else sent_again)
    assert unsent(tmp_path) == ({"mine": None} if is_refused else {})
    assert (f"clozelab track {tmp_path} logger=mine" in caplog.text) is is_refused


def test_a_call_that_is_sent_again_is_the_same_to_the_millisecond(tmp_path: Path) -> None:
    """MLflow takes two points for one only where their times are equal, too."""

    class Timed(Tracker):
        def log_many(self, calls: Any) -> None:
            self.steps += calls

    began = 1767225600.25
    csv = MetricsCsv(tmp_path)
    first = Timed()
    logger = BackgroundLogger(first, "mine", tmp_path, began)
    for step in range(1, 201):
        metrics = {"loss": 1.0 / step, "train/tokens": 64.0 * step, "train/seconds": step / 7}
        csv.log_metrics(metrics, step)
        logger.log_metrics(metrics, step)
    logger.close(1)
    note_unsent(tmp_path, "mine", None)
    second = Timed()
    logger = BackgroundLogger(second, "mine", tmp_path, began)
    logger.go_on_after(200)
    logger.close(0)
    assert len(first.steps) == 200 and second.steps == first.steps


def test_lightning_is_not_led_to_the_server(tmp_path: Path) -> None:
    """It asks every logger for its experiment, where MLflow's waits for the server."""

    class Asking(Tracker):
        @property
        def experiment(self) -> Any:
            raise AssertionError("it was asked")

    logger = BackgroundLogger(Asking(), "mine", tmp_path)
    assert not hasattr(logger, "experiment") and logger.name == "mine"
