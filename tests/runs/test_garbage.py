"""What gc lists and deletes: never a result, never what somebody holds or has just written."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from tests.runs.records import edit
from tests.screens import shows

from clozelab.runs.find import find
from clozelab.stages.gc import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists who holds a lock")
CORPUS = "c" * 64


def age(path: Path, seconds: float = 30 * 86_400) -> None:
    """Make everything at and below a path look old."""
    then = time.time() - seconds
    for one in [*path.rglob("*"), path]:
        os.utime(one, (then, then))


@pytest.fixture
def world(make_runs: Callable[..., Path], writers: Any, tmp_path: Path) -> tuple[Path, Path]:
    """(runs_dir, cache_dir): runs of all states, leftovers, used and unused entries, all old."""
    scale = make_runs({("mlm", "mrpc"): 70.0}, pretrain_seeds=(1, 2))
    writers.finetune(scale, "ltr", "qnli", (1, 1), 0.0, status="failed")
    writers.pretrain(scale, "mlm", 9, status="interrupted")
    for run in (scale / "pretrain").glob("*/*"):
        (run / ".lock").touch()
        (run / "checkpoints").mkdir()
        (run / "checkpoints/last.ckpt").write_bytes(b"x" * 1000)
        (run / "encoder").mkdir()
        (run / "encoder/config.json").write_text("{}")
        (run / "encoder/model.safetensors").touch()
        edit(run / "run.json", inputs={"corpus": CORPUS})
    for record in (scale / "finetune").rglob("run.json"):
        edit(record, facts={"cache": ["tasks/mrpc-used", "baselines/mrpc-used"]})
    (scale / "pretrain/ltr/seed-1/.run.json.77.tmp").write_text("{")
    (scale / "pretrain/ltr/seed-2/.encoder.abcd").mkdir()
    cache = tmp_path / "cache"
    for name, fingerprint in (("used", CORPUS), ("unused", "d" * 64)):
        (cache / "corpora" / f"text-{name}").mkdir(parents=True)
        manifest = cache / "corpora" / f"text-{name}/manifest.json"
        manifest.write_text(json.dumps({"fingerprint": fingerprint}))
        (cache / "corpora" / f".text-{name}.lock").touch()
    entries = ["tasks/mrpc-used", "tasks/mrpc-unused", "tasks/.mrpc-half-x1"]
    entries += ["corpora/.text-half.tmp", "baselines/mrpc-used", "baselines/mrpc-unused"]
    for name in entries:
        (cache / name).mkdir(parents=True)
        (cache / name / "meta.json").write_text("{}")
    age(tmp_path)
    return scale.parents[1], cache


def listed(
    world: tuple[Path, Path], capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[set[str], str]:
    """(places that gc lists, all it says)."""
    runs_dir, cache_dir = world
    assert main([f"runs_dir={runs_dir}", f"cache_dir={cache_dir}", *words]) == 0
    out = capsys.readouterr().out
    lines = [line.split()[-1] for line in out.splitlines() if str(runs_dir.parent) in line]
    return {Path(line).relative_to(runs_dir.parent).as_posix() for line in lines}, out


DEMO = "runs/table5_pretraining_tasks/demo"
CHECKPOINTS = set()
for arm, seed in product(("mlm", "mlm_nsp", "ltr"), (1, 2)):
    CHECKPOINTS.add(f"{DEMO}/pretrain/{arm}/seed-{seed}/checkpoints")
LEFTOVERS = {
    f"{DEMO}/pretrain/ltr/seed-1/.run.json.77.tmp",
    f"{DEMO}/pretrain/ltr/seed-2/.encoder.abcd",
    "cache/corpora/.text-half.tmp",
    "cache/tasks/.mrpc-half-x1",
}
UNUSED = {"cache/corpora/text-unused", "cache/tasks/mrpc-unused", "cache/baselines/mrpc-unused"}
EXPECTED = CHECKPOINTS | LEFTOVERS | UNUSED


def test_deletes_what_it_has_listed_and_no_result(
    world: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(world[0].parent.rglob("*"))
    found, out = listed(world, capsys)
    assert found == EXPECTED
    shows(
        out,
        "checkpoints 1.0 kB the run is complete",
        "6.0 kB 6 checkpoints: checkpoints of complete runs (their encoders stay)",
        "87 bytes 3 cache: prepared corpora and tokenised tasks that none of",
    )
    assert sorted(world[0].parent.rglob("*")) == files, "nothing is deleted unasked"

    results = {(one.place, one.status, one.score) for one in find(world[0]).records}
    _, out = listed(world, capsys, "--delete")
    shows(out, "deleted 13, 6.1 kB")
    assert not [name for name in EXPECTED if (world[0].parent / name).exists()]
    assert {(one.place, one.status, one.score) for one in find(world[0]).records} == results
    assert (world[0].parent / DEMO / "pretrain/mlm/seed-1/encoder/config.json").is_file()
    assert (world[1] / "corpora/text-used/manifest.json").is_file()
    assert (world[1] / "tasks/mrpc-used").is_dir()
    nothing = "nothing to delete; what changed within the last hour is left alone\n"
    assert listed(world, capsys) == (set(), nothing)


def test_one_kind_alone_is_listed_where_it_is_asked_for(
    world: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found, _ = listed(world, capsys, "what=leftovers")
    assert found == LEFTOVERS


def test_what_is_held_or_fresh_stays(
    world: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Fresh is what has changed within the hour."""
    runs = world[0].parent / DEMO / "pretrain/mlm"
    (world[1] / "tasks/mrpc-unused/new.npy").touch()
    (runs / "seed-2/metrics.csv").touch()
    with (runs / "seed-1/.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found, _ = listed(world, capsys)
    assert found == EXPECTED - {
        f"{DEMO}/pretrain/mlm/seed-1/checkpoints",
        f"{DEMO}/pretrain/mlm/seed-2/checkpoints",
        "cache/tasks/mrpc-unused",
    }


@pytest.mark.parametrize(
    ("lock", "filled"),
    [
        ("corpora/.text-half.lock", ["corpora/.text-half.tmp", "corpora/.text-half.work"]),
        (".tasks.lock", ["tasks/.mrpc-half-x1"]),
    ],
)
def test_what_a_preparation_fills_stays_with_its_lock(
    world: tuple[Path, Path], capsys: pytest.CaptureFixture[str], lock: str, filled: list[str]
) -> None:
    work = world[1] / "corpora/.text-half.work"
    work.mkdir()
    age(work)
    leftovers = {f"cache/{name}" for name in filled}
    with (world[1] / lock).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert listed(world, capsys, "what=leftovers")[0].isdisjoint(leftovers)
    assert listed(world, capsys, "what=leftovers")[0] >= leftovers


def test_a_lock_taken_after_listing_is_respected(
    world: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking and deleting, a run begins."""
    monkeypatch.setattr("clozelab.runs.find.holders", dict)
    folder = world[0].parent / DEMO / "pretrain/mlm/seed-1"
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main([f"runs_dir={world[0]}", f"cache_dir={world[1]}", "--delete"]) == 1
    shows(capsys.readouterr().out, "deleted 12, 5.1 kB")
    assert (folder / "checkpoints/last.ckpt").is_file()


def test_runs_that_do_not_say_what_they_used_keep_their_task(
    world: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    edit(next((world[0].parent / DEMO / "finetune/mlm").rglob("run.json")), facts={})
    assert listed(world, capsys)[0] == EXPECTED - {
        "cache/tasks/mrpc-unused",
        "cache/baselines/mrpc-unused",
    }


def test_the_only_weights_of_a_run_stay(
    world: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its encoder has lost its own: the checkpoint has them alone."""
    run = world[0].parent / DEMO / "pretrain/mlm/seed-1"
    (run / "encoder/model.safetensors").unlink()
    age(run)
    assert listed(world, capsys)[0] == EXPECTED - {f"{DEMO}/pretrain/mlm/seed-1/checkpoints"}


def test_beside_a_record_that_cannot_be_read_the_cache_stays(
    world: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be of newer code, and need any of it."""
    run = world[0].parent / DEMO / "pretrain/mlm/seed-1"
    edit(run / "run.json", a_newer_key=1)
    age(run)
    found, out = listed(world, capsys)
    assert found.isdisjoint({*UNUSED, f"{DEMO}/pretrain/mlm/seed-1/checkpoints"})
    assert found >= LEFTOVERS
    shows(out, f"the cache is left alone, because this record cannot be read: {run}/run.json")


def test_what_may_not_be_locked_is_left_and_the_rest_goes(
    world: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that several people share."""
    acquire = FileLock.acquire

    def refuse(lock: FileLock) -> Any:
        if ".text-" in lock.lock_file:
            raise PermissionError(13, "Permission denied", lock.lock_file)
        return acquire(lock)

    (world[1] / "corpora/.text-half.lock").touch()
    age(world[1])
    monkeypatch.setattr(FileLock, "acquire", refuse)
    found, _ = listed(world, capsys)
    assert found == EXPECTED - {"cache/corpora/.text-half.tmp"}
    assert main([f"runs_dir={world[0]}", f"cache_dir={world[1]}", "--delete"]) == 1
    shows(capsys.readouterr().out, "text-unused: [Errno 13] Permission denied", "deleted 11")


def test_it_says_what_a_stopped_preparation_would_go_on_from(
    world: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (world[1] / "corpora/.text-half.work").mkdir()
    age(world[1])
    _, out = listed(world, capsys)
    assert "a stopped preparation would go on from it" in out
