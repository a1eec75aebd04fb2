"""`clozelab track`: a tracker that lacks something is sent all that metrics.csv has."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, Logger
from tests.screens import shows

from clozelab.assembly import factory, sending
from clozelab.runs.record import Record
from clozelab.stages import track
from clozelab.text.plain import hydra_text
from clozelab.training.catching_up import MetricCall, note_unsent, unsent
from clozelab.training.tracking import MetricsCsv


class Tracker(Logger):
    """Notes what it is sent."""

    name, version = "mine", ""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[MetricCall] = []
        self.parameters: dict[str, Any] = {}
        self.ends: list[int] = []

    def begin_anew(self) -> None:
        assert not self.calls

    def log_many(self, calls: Sequence[MetricCall]) -> None:
        self.calls += calls

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        raise AssertionError("one by one")

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.parameters |= params

    def close(self, exit_code: int = 0) -> None:
        self.ends.append(exit_code)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """A run of two steps, whose tracker is missing something."""
    written = MetricsCsv(tmp_path)
    for step in (1, 2):
        sizes = {"train/tokens": 100 * step, "train/seconds": 2.0 * step, "epoch": 0}
        written.log_metrics({"train/loss": 1.0 / step, **sizes}, step)
    written.log_metrics({"validation/loss": 0.25}, 2)
    note_unsent(tmp_path, "mine", 4)
    facts = {"validation/loss": 0.25, "mfu": None, "threads": 1}
    return record_of(tmp_path, "complete", facts)


def record_of(folder: Path, status: str, facts: dict[str, Any], **more: Any) -> Record:
    return Record.model_construct(
        status=status,
        stage="pretrain",
        fingerprint="f",
        started="2026-01-01T00:00:00+00:00",
        facts=facts,
        folder=folder,
        config={"seed": 1, "arm": "a", "experiment": "e"},
        **more,
    )


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tracker:
    @contextmanager
    def recompose_config(record: Record, more: Sequence[str]) -> Any:
        assert more == [f"run_dir={tmp_path.resolve()}", "logger=mine"]
        yield SimpleNamespace(config=None)

    made = Tracker()
    monkeypatch.setattr(factory, "recompose_config", recompose_config)
    monkeypatch.setattr(factory, "build_trackers", lambda cfg, job: {"mine": made})
    job = SimpleNamespace(config={"seed": 1})
    monkeypatch.setattr("clozelab.runs.tracked.job_of_record", lambda cfg, record: job)
    return made


def test_all_is_sent_with_its_time(record: Record, tracker: Tracker) -> None:
    sending.send(record, "mine")
    began = 1767225600.0  # 2026-01-01
    second = {"train/loss": 0.5, "train/tokens": 200.0, "train/seconds": 4.0}
    assert [(call.step, call.time - began, call.metrics) for call in tracker.calls] == [
        (1, 2.0, {"train/loss": 1.0, "train/tokens": 100.0, "train/seconds": 2.0}),
        (2, 4.0, second | {"validation/loss": 0.25}),
        (0, 4.0, {"final/validation/loss": 0.25}),
    ]
    assert tracker.parameters == {"seed": 1} and tracker.ends == [0]
    assert unsent(record.folder) == {}


def test_a_tracker_that_is_still_away_is_one_sentence(
    record: Record, tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(calls: Any) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(tracker, "log_many", fail)
    with pytest.raises(
        ValueError,
        match=r"mine did not take the numbers of .*Connection refused\); try again later",
    ):
        sending.send(record, "mine")
    assert unsent(record.folder) == {"mine": 4}


VALIDATED = (2, 4, 6)


def values_of(path: Path) -> dict[tuple[str, int], float]:
    """Key and step -> value of Lightning's wide table."""
    values = {}
    with path.open() as stream:
        for row in csv.DictReader(stream):
            for key, value in row.items():
                if value and key != "step":
                    values[key, int(row["step"])] = float(value)
    return values


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("killed_in", VALIDATED)
def test_a_table_killed_behind_any_validation_is_filled(
    tmp_path: Path, killed_in: int, is_moved: bool
) -> None:
    """Its training row was saved, the figures of the validation of that step were not.

    In a copy of the run, whose command line names the first place, the copy's table is filled, and
    the first one stays as it was.
    """
    old = tmp_path / "it's, a=run"
    written, table = MetricsCsv(old), CSVLogger(old, name="csv", version="")
    expected = {}
    for step in range(1, killed_in + 1):
        training = {"train/loss": 1.0 / step, "train/learning_rate": 1e-3}
        written.log_metrics(training, step)
        table.log_metrics(training, step)
        table.save()
        held_out = {f"validation/figure_{number}": number + step / 10 for number in range(8)}
        if step in VALIDATED:
            written.log_metrics(held_out, step)
            training |= held_out
            if step < killed_in:
                table.log_metrics(held_out, step)
        expected |= {(key, step): value for key, value in training.items()}
    folder = old
    before = (old / "csv/metrics.csv").read_bytes()
    if is_moved:
        folder = shutil.copytree(old, tmp_path / "moved")
    record = record_of(
        folder,
        "killed",
        {},
        config_name="pretrain",
        config_dir="",
        started_in=str(tmp_path),
        overrides=[f"run_dir={hydra_text(str(old))}", "logger=csv"],
    )
    note_unsent(folder, "csv", None)  # as the kill leaves it
    lacking = expected.keys() - values_of(folder / "csv/metrics.csv").keys()
    assert len(lacking) == 8, "the control: the figures of the last validation"
    sending.send(record, "")
    held = values_of(folder / "csv/metrics.csv")
    assert {place: held[place] for place in expected} == expected
    if is_moved:
        assert (old / "csv/metrics.csv").read_bytes() == before


def test_folders_above_runs_give_those_that_lack_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[Path] = []
    monkeypatch.setattr(track, "read_record", lambda folder: folder)
    monkeypatch.setattr(sending, "send", lambda folder, wanted: sent.append(folder))
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    note_unsent(tmp_path / "b", "mine", 1)
    assert track.main([str(tmp_path)]) == 0 and sent == [tmp_path / "b"]
    assert track.main([str(tmp_path / "a"), str(tmp_path)]) == 0
    assert sent[1:] == [tmp_path / "a", tmp_path / "b"]
    note_unsent(tmp_path / "b", "mine", 0)
    assert track.main([str(tmp_path)]) == 0
    shows("".join(capsys.readouterr()), "nothing is missing of the runs below")
    assert sent[3:] == []
