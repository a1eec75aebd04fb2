"""What a tracker gets to know, and what it must not; read back from W&B's own files, written
offline.
"""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import stats
from tests.composing import given

from clozelab.launch import sweep
from clozelab.launch.launcher import sync_command
from clozelab.report.tracked import (
    numbers_where_all_are,
    points_over_seeds,
    track_report,
    track_sweep,
)
from clozelab.results.experiment import open_experiment
from clozelab.results.table import build_table
from clozelab.runs.find import find
from clozelab.runs.store import Run
from clozelab.runs.tracked import tags_of, tracked_job
from clozelab.training.measuring import read_rows


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        (["1", "0.15", None], [1.0, 0.15, None]),
        (["mlm", "1"], ["mlm", "1"]),
        ([2.5, None], [2.5, None]),
    ],
)
def test_a_column_of_numbers_is_sent_as_numbers(column: list[Any], shown: list[Any]) -> None:
    assert numbers_where_all_are(column) == shown


def test_tags() -> None:
    composed = sweep.compose("finetune", ["task=mrpc", "seed=4", "pretrain_seed=2"])
    tags = tags_of(composed.config)
    assert tags == ("scale:demo", "task:mrpc", "pretrain_seed:2", "seed:4")


def test_the_environment_names_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in W&B itself; the command line goes before it."""
    words = ["logger=wandb"]
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    assert sweep.compose("pretrain", words).get("logger.wandb.project") == "clozelab"
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    assert sweep.compose("pretrain", words).get("logger.wandb.project") == "theirs"
    words.append("logger.wandb.project=mine")
    assert sweep.compose("pretrain", words).get("logger.wandb.project") == "mine"


def test_the_id_goes_with_the_folder_and_ends_with_it(tmp_path: Path) -> None:
    config = given("pretrain", {"experiment": "e", "scale": {"name": "demo"}, "seed": 1})
    cfg: Any = SimpleNamespace(experiment="e", scale=SimpleNamespace(name="demo"), seed=1)

    def identity(folder: Path) -> str:
        with Run.claim(folder, stage="pretrain", config=config) as run:
            return str(tracked_job(cfg, run, arm="a").run_id)

    first = identity(tmp_path / "run")
    assert identity(tmp_path / "run") == first, "a resumed run"
    (tmp_path / "run").rename(tmp_path / "moved")
    assert identity(tmp_path / "moved") == first
    assert identity(tmp_path / "run") != first, "another run at the same place"


def test_one_command_uploads_everything(tmp_path: Path) -> None:
    folders = [tmp_path / "my runs" / name for name in ("pretrain/a", "finetune/b", "finetune/c")]
    for folder in folders:
        folder.mkdir(parents=True)
    assert sync_command(folders, tmp_path) is None
    for folder in folders[:2]:
        (folder / "wandb/offline-run-1").mkdir(parents=True)
    command = sync_command(folders, tmp_path)
    for name in ("offline-run-3", "offline-run-2"):
        (folders[0] / "wandb" / name).mkdir()
    assert command is not None and command.endswith("| xargs -0 wandb sync")
    printed = subprocess.run(
        command.replace("wandb sync", "printf '%s\\n'"), shell=True, capture_output=True, text=True
    ).stdout.splitlines()
    names = [Path(line).relative_to(tmp_path / "my runs").as_posix() for line in printed]
    assert names == [
        "finetune/b/wandb/offline-run-1",
        "pretrain/a/wandb/offline-run-1",
        "pretrain/a/wandb/offline-run-2",
        "pretrain/a/wandb/offline-run-3",
    ]
    # Outside of the experiment's folder, nothing but the runs themselves is looked at.
    command = sync_command(folders, tmp_path / "another")
    assert command is not None and command.startswith(f"find '{folders[0]}' '{folders[1]}' -name")


# W&B's own files


def records(folder: Path) -> list[Any]:
    """The records of every offline run below a folder, in the order written.

    A .wandb file is a LevelDB log behind a header of 7 bytes: blocks of 32 KiB with chunks (crc,
    length, type).
    """
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        data, at, parts = path.read_bytes(), 7, b""
        while at + 7 <= len(data):
            left = 32768 - at % 32768
            if left < 7:
                at += left
                continue
            _, length, kind = struct.unpack("<IHB", data[at : at + 7])
            if kind == 0:
                break
            parts += data[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4):
                record = Record()
                record.ParseFromString(parts)
                found.append(record)
                parts = b""
    return found


def keep_offline(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(place / "wandb_own"))
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keep_offline(monkeypatch, tmp_path)


def test_a_sweep_and_a_report_in_wandb(
    tmp_path: Path, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["clozelab", "pretrain", "innocent=word", "+mine.api_key=hunter2"]
    )
    words = ["logger=wandb", "logger.wandb.mode=offline", "experiment=e"]
    rows = [
        {"name": "a", "state": "complete", "value": 0.5, "seed": "1"},
        {"name": "b", "state": "failed", "seed": "2", "+mine.api_key": "hunter2"},
    ]
    config = sweep.compose("pretrain", words)
    track_sweep(config, "pretrain", tmp_path / "sweep", rows)
    (tmp_path / "report").mkdir()
    for name in (
        "report.html",
        "report.md",
        "results.csv",
        "curves.png",
        "curves.svg",
        "other.txt",
    ):
        (tmp_path / "report" / name).write_text("x")
    Image.new("RGB", (2, 2)).save(tmp_path / "report" / "curves.png")
    claims = [
        ("a", "first", "holds"),
        ("b", "here", "contradicted"),
        ("b", "there", "holds"),
        ("", "x", "holds"),
    ]
    judged = [
        SimpleNamespace(
            claim=SimpleNamespace(id=id), judged_on=on, verdict=verdict, is_exploratory=False
        )
        for id, on, verdict in claims
    ]
    no_runs = SimpleNamespace(current=SimpleNamespace(pretrain=[]), rows=[])
    report: Any = SimpleNamespace(folder=tmp_path / "report", judgements=judged, table=no_runs)
    track_report(config, report, experiment="e", scale="demo")
    track_sweep(
        sweep.compose("pretrain", ["experiment=e"]), "pretrain", tmp_path / "untracked", rows
    )
    assert not (tmp_path / "untracked").exists()
    sent = [path.read_bytes() for path in (tmp_path / "sweep").rglob("*") if path.is_file()]
    assert any(b"innocent=word" in content for content in sent)
    assert not any(b"hunter2" in content for content in sent)
    swept, reported = records(tmp_path / "sweep"), records(tmp_path / "report")
    run = next(one.run for one in swept if one.HasField("run"))
    assert (run.run_group, run.job_type, run.display_name) == (
        "e/sweep",
        "sweep",
        "demo/sweep/pretrain",
    )
    tables = list((tmp_path / "sweep").glob("wandb/offline-run-*/files/media/table/jobs*.json"))
    assert len(tables) == 1 and '"failed"' in tables[0].read_text()
    run = next(one.run for one in reported if one.HasField("run"))
    assert (run.job_type, run.display_name) == ("report", "demo/report")
    updates = chain.from_iterable(one.summary.update for one in reported)
    summary = {item.key: item.value_json for item in updates}
    assert summary["a"] == summary["b on there"] == summary["claim 4"] == '"holds"'
    assert summary["b on here"] == '"contradicted"'
    items = chain.from_iterable(one.history.item for one in reported)
    shown = {item.key or ".".join(item.nested_key): item.value_json for item in items}
    assert "image-file" in str(shown) and "html-file" in str(shown), shown
    for told in (swept, reported):
        keys: set[str] = set()
        for one in told:
            keys |= {item.key for item in (*one.config.update, *one.run.config.update)}
        assert "scale.vocab_size" in keys, "the configuration stands beside both"
    kept = {one.artifact.type: one.artifact for one in reported if one.HasField("artifact")}
    assert kept["report"].name == "e-demo-report"
    names = {entry.path for entry in kept["report"].manifest.contents}
    assert names == {"curves.png", "curves.svg", "report.html", "report.md", "results.csv"}


def test_each_sweep_is_a_run_of_its_own(tmp_path: Path, offline: None) -> None:
    """All sweeps of an experiment and scale wrote into one run: each replaced the one before."""
    sweeps = [
        ("pretrain", "ab", 1),
        ("pretrain", "ba", 1),  # the same jobs again
        ("pretrain", "ac", 2),
        ("finetune", "ab", 3),
    ]
    for stage, names, num_runs in sweeps:
        config = sweep.compose(stage, ["logger=wandb", "logger.wandb.mode=offline"])
        track_sweep(config, stage, tmp_path, [{"name": name} for name in names])
        ids = {one.run.run_id for one in records(tmp_path) if one.HasField("run")}
        assert len(ids) == num_runs


def test_means_over_seeds_are_a_run_in_the_group_of_their_arm(
    make_runs: Any, tmp_path: Path, offline: None
) -> None:
    """Two seeds of an arm end at unlike steps: only those that both have reached have a mean."""
    root = make_runs({("mlm", "mrpc"): 70.0}, pretrain_seeds=(1, 2), finetune_seeds=(1,))
    path = root / "pretrain/mlm/seed-2/metrics.csv"
    *kept, last = path.read_text().splitlines()
    assert last.startswith("100,")
    path.write_text("\n".join(kept) + "\n")
    table = build_table(open_experiment("table5_pretraining_tasks"), find(root))
    (tmp_path / "report").mkdir()
    report: Any = SimpleNamespace(folder=tmp_path / "report", judgements=[], table=table)
    config = sweep.compose("pretrain", ["logger=wandb", "logger.wandb.mode=offline"])
    # The folder of a report that was killed early is no sign that its points were sent.
    for arm in ("mlm", "ltr"):
        points = repr(points_over_seeds(arm, table))
        version = hashlib.sha256(points.encode()).hexdigest()[:8]
        (tmp_path / f"report/seeds/{arm}-{version}").mkdir(parents=True)
    for _ in range(2):
        track_report(config, report, experiment="e", scale="demo")
    (folder,) = (tmp_path / "report/seeds").glob("mlm-*")
    assert len(list(folder.glob("wandb/offline-run-*"))) == 1, "what was sent is not sent again"
    told = records(folder)
    (run,) = [one.run for one in told if one.HasField("run")]
    assert (run.run_group, run.job_type, run.display_name) == ("e/mlm", "seeds", "demo/seeds/mlm")
    assert str(tmp_path) not in run.display_name
    points: dict[int, dict[str, str]] = {}
    for one in told:
        point = {item.key or item.nested_key[0]: item.value_json for item in one.history.item}
        if "step" in point:
            points.setdefault(int(point["step"]), {}).update(point)
    assert sorted(points) == list(range(0, 100, 10)), "none that a single seed has reached"
    losses = []
    for seed in (1, 2):
        curve = read_rows(root / f"pretrain/mlm/seed-{seed}/metrics.csv")
        losses.append(next(row.value for row in curve if row.step == 30))
    low, high = stats.t.interval(0.95, 1, np.mean(losses), stats.sem(losses))
    of_loss = [float(points[30][f"validation/loss/{end}"]) for end in ("low", "mean", "high")]
    assert of_loss == pytest.approx([low, np.mean(losses), high])
    cell = next(cell for (row, _), cell in table.cells.items() if row == "mlm" and cell.scores)
    scores = points.pop(0)
    (mean,) = [value for key, value in scores.items() if key.endswith("MRPC/mean")]
    assert cell.estimate is not None and float(mean) == pytest.approx(cell.estimate.mean)
    assert {key.rpartition("/")[2] for key in scores if "MRPC" in key} == {"mean", "low", "high"}
    # The report's own run has a panel of the curve, in which the arms are beside each other.
    tables = (tmp_path / "report/wandb").rglob("loss over seeds_table*.json")
    (panel,) = {path.read_text() for path in tables}
    lines: dict[str, dict[int, float]] = {}
    for step, label, value in json.loads(panel)["data"]:
        lines.setdefault(label, {})[step] = value
    arms = {label.rpartition(" ")[0] for label in lines}
    assert {"mlm", "ltr"} <= arms and len(lines) == 3 * len(arms)
    assert [lines[f"mlm {end}"][30] for end in ("low", "mean", "high")] == of_loss
    # Of more seeds it is another run; a tracker keeps the points of this one.
    path.write_text("\n".join([*kept, last]) + "\n")
    again = build_table(table.experiment, find(root))
    report.table = again
    track_report(config, report, experiment="e", scale="demo")
    assert len(list((tmp_path / "report/seeds").glob("mlm-*"))) == 2


def test_mlflow_has_the_same_means_over_seeds(make_runs: Any, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    root = make_runs({("mlm", "mrpc"): 70.0}, pretrain_seeds=(1, 2), finetune_seeds=(1,))
    table = build_table(open_experiment("table5_pretraining_tasks"), find(root))
    (tmp_path / "report").mkdir()
    report: Any = SimpleNamespace(folder=tmp_path / "report", judgements=[], table=table)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    words = ["logger=mlflow", "experiment=e", f"logger.mlflow.tracking_uri='{uri}'"]
    words.append(f"logger.mlflow.lock={tmp_path}/lock")
    for _ in range(2):
        track_report(sweep.compose("pretrain", words), report, experiment="e", scale="demo")

    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("e").experiment_id
    runs = client.search_runs([experiment], filter_string="tags.group = 'e/mlm'")
    (run,) = runs
    assert (run.info.run_name, run.data.tags["stage"]) == ("demo/seeds/mlm", "seeds")
    assert run.info.status == "FINISHED"
    points = points_over_seeds("mlm", table)
    losses = {step: found for (key, step), found in points.items() if key == "validation/loss"}
    for end in ("low", "mean", "high"):
        history = client.get_metric_history(run.info.run_id, f"validation/loss/{end}")
        sent = {metric.step: metric.value for metric in history}
        assert len(sent) == len(history) == len(losses) > 3
        for step, found in losses.items():
            assert sent[step] == pytest.approx(getattr(found, end))
    assert any("MRPC" in key for key in run.data.metrics)


def test_each_learning_rate_of_an_arm_has_its_means(make_runs: Any) -> None:
    """A second learning rate of one seed leaves the means of the first one as they are."""
    root = make_runs({}, pretrain_seeds=(1, 2))
    table = build_table(open_experiment("table5_pretraining_tasks"), find(root))
    before = points_over_seeds("mlm", table)
    runs = table.complete("pretrain", "mlm")
    config = {**runs[0].config, "learning_rate": 0.125}
    other = runs[0].model_copy(update={"config": config})
    both: Any = SimpleNamespace(complete=lambda *_: [*runs, other], columns=[], cells={})
    rate = runs[0].learning_rate
    after = points_over_seeds("mlm", both)
    assert before and {(key, step) for key, step in after} == {
        (f"{key} at learning rate {rate}", step) for key, step in before
    }
