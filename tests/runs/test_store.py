"""Claiming run folders: skip, resume, refuse, lock, follow, and how a run's end is recorded."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from tests.composing import Given, given
from tests.runs.records import edit, record_of
from tests.screens import refuses, shows

from clozelab.runs import store
from clozelab.runs.early_log import EarlyLog, early_log_kept
from clozelab.runs.identity import RESULTS_VERSIONS
from clozelab.runs.inputs import encoder_fingerprint
from clozelab.runs.record import read_record, write_record
from clozelab.runs.reuse import is_done
from clozelab.runs.store import Run, RunBusyError, RunConflictError
from clozelab.training import host
from clozelab.training.host import process_rank
from clozelab.training.stopping import Interrupted


def config(**changes: Any) -> Given:
    base = {
        "arm": "mlm",
        "seed": 1,
        "learning_rate": "${scale.learning_rate}",
        "scale": {"learning_rate": 0.1},
        "data_dir": "data",
        "runs_dir": "runs",
        "trainer": {"num_workers": 0, "devices": 1},
    }
    return given("pretrain", OmegaConf.merge(base, changes))  # type: ignore[arg-type]


def claim(folder: Path, cfg: Given | None = None, **inputs: str) -> Run:
    return Run.claim(folder, stage="pretrain", config=cfg or config(), inputs=inputs)


def finish(folder: Path, cfg: Given | None = None, **inputs: str) -> None:
    with claim(folder, cfg, **inputs) as run:
        run.complete(tokens=5)


def test_fresh_then_complete(tmp_path: Path) -> None:
    with claim(tmp_path / "a" / "b") as run:
        assert not run.is_complete and run.content.sessions == 1 and run.is_leader
        record = record_of(run.dir)
        assert record.status == "running" and record.host["cores"] >= 1
        run.record(parameters=3)
        run.complete(tokens=5)
    record = record_of(run.dir)
    assert (record.status, record.facts) == ("complete", {"parameters": 3, "tokens": 5})
    assert "${scale.learning_rate}" in (run.dir / "config.yaml").read_text()
    with claim(run.dir) as again:
        assert again.is_complete
    assert record_of(run.dir) == record


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "failed"),  # left without `complete`
        (RuntimeError("out of luck"), "failed"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(143), "interrupted"),
    ],
    ids=repr,
)
def test_a_run_that_was_left_says_how_and_goes_on(
    tmp_path: Path, error: BaseException | None, status: str
) -> None:
    with nullcontext() if error is None else pytest.raises(type(error)), claim(tmp_path) as run:
        run.record(precision="bf16")
        if error is not None:
            raise error
    record = record_of(tmp_path)
    assert record.status == status
    if isinstance(error, RuntimeError):
        assert record.error == "RuntimeError: out of luck"
        assert "Traceback" in (tmp_path / "log.txt").read_text()
    with claim(tmp_path) as again:
        assert not again.is_complete and again.facts == {"precision": "bf16"}
        again.complete()
    record = record_of(tmp_path)
    assert (record.sessions, record.error) == (2, None)


def test_the_log_has_what_was_logged_before_the_claim(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each line once, in order, and nothing of another job of the same process."""
    job = logging.getLogger("clozelab.stages.finetune")
    caplog.set_level(logging.INFO)
    with early_log_kept():
        job.info("of another job")
    for number in (1, 2):
        with early_log_kept():
            job.warning("labels of %d classes", number)
            with pytest.raises(SystemExit), claim(tmp_path):
                job.info("step 5")
                raise SystemExit(143)
    text = (tmp_path / "log.txt").read_text()
    messages = [line.partition(": ")[2] for line in text.splitlines()]
    assert messages == [
        "labels of 1 classes",
        "step 5",
        "labels of 2 classes",
        f"{tmp_path} begins anew: its last start left no checkpoint",
        "step 5",
    ]
    assert not any(isinstance(one, EarlyLog) for one in logging.getLogger().handlers)


def test_a_run_with_a_checkpoint_does_not_begin_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        with pytest.raises(SystemExit), claim(tmp_path):
            (tmp_path / "checkpoints").mkdir(exist_ok=True)
            (tmp_path / "checkpoints" / "last.ckpt").touch()
            raise SystemExit(143)
    assert "begins anew" not in caplog.text


def test_what_trained_a_run_before_is_kept(tmp_path: Path) -> None:
    """Each different commit and machine once, and not where all sessions are alike."""
    for commits in (("first", "first", "second"), (None,)):
        folder = tmp_path / str(len(commits))
        for commit in commits:
            with pytest.raises(SystemExit), claim(folder):
                (folder / "checkpoints").mkdir(exist_ok=True)
                (folder / "checkpoints" / "last.ckpt").touch()
                raise SystemExit(143)
            if commit is not None:
                edit(folder / "run.json", git={"commit": commit, "dirty": False})
        finish(folder)
        record = record_of(folder)
        assert record.sessions == len(commits) + 1
        earlier = [one["git"]["commit"] for one in record.earlier_sessions]
        assert earlier == (["first", "second"] if commits[0] else [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_marks_and_restores(tmp_path: Path, number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as caught, claim(tmp_path):
        os.kill(os.getpid(), number)
        signal.pause()
    assert signal.getsignal(number) is before and caught.value.code == 128 + number
    assert record_of(tmp_path).status == "interrupted"


def test_other_configuration_is_refused_with_the_difference(tmp_path: Path) -> None:
    finish(tmp_path, corpus="abc")
    for changes, corpus, difference in (
        ({"scale": {"learning_rate": 0.2}}, "abc", "learning_rate"),
        ({}, "xyz", "input corpus"),
        ({"extra": 1}, "abc", "extra: there"),
        ({"task": {"name": "x"}}, "abc", "task.name"),
    ):
        reason = f"holds a run (complete) of another configuration: {difference}"
        with refuses(reason, RunConflictError):
            claim(tmp_path, config(**changes), corpus=corpus)


def test_a_floor_is_told_how_it_keeps_the_runs_of_its_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"row": "random", "initialisation": "random"}
    monkeypatch.setattr(store, "provenance_of", lambda _: {"row_delta": row})
    finish(tmp_path, config(encoder_arm="a"))
    reason = (
        "encoder_arm: there 'a', now 'z' Give this run another folder (run_dir=..., row=... for one"
        " fine-tuning, experiment=... for a whole experiment), or remove the folder to run it"
        " again. A row without an arm takes the shape of the first row's arm: say `set:"
        " {encoder_arm: a}` of it in paper.yaml to keep its runs."
    )
    with refuses(reason, RunConflictError):
        claim(tmp_path, config(encoder_arm="z"))
    row["initialisation"] = "pretrained"
    with pytest.raises(RunConflictError, match=r"to run it again\.$"):
        claim(tmp_path, config(encoder_arm="z"))


def test_neutral_keys_change_nothing(tmp_path: Path) -> None:
    finish(tmp_path)
    finish(tmp_path / "task", config(task={"title": "A", "data": {"how_to_get": "here"}}))
    with claim(
        tmp_path / "task", config(task={"title": "B", "data": {"how_to_get": "there"}})
    ) as run:
        assert run.is_complete
    other = config(
        data_dir="/elsewhere", runs_dir="r", trainer={"num_workers": 2}, logger={"project": "x"}
    )
    with claim(tmp_path, other) as run:
        assert run.is_complete


def test_an_unfinished_run_goes_on_in_another_layout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Devices and micro-batches are how the work is laid out; the global batch is what is done."""
    phases = [{"steps": 3, "global_batch_size": 8, "micro_batch_size": 8}]
    with pytest.raises(KeyError), claim(tmp_path, config(phases=phases)) as run:
        run.record(compiled=True, micro_batch_sizes=[8], precision="32-true")
        raise KeyError
    fewer = config(
        trainer={"num_workers": 0, "devices": 2}, phases=[phases[0] | {"micro_batch_size": 2}]
    )
    with pytest.raises(KeyError), claim(tmp_path, fewer) as run:
        assert run.content.sessions > 1
        shows(caplog.text, "goes on in another layout, with other rounding")
        earlier = [{"phases.0.micro_batch_size": 8, "trainer.devices": 1}]
        assert run.facts == {"precision": "32-true", "earlier_layouts": earlier}
        raise KeyError
    with claim(tmp_path, fewer) as run:
        assert run.facts == {
            "precision": "32-true",
            "earlier_layouts": earlier,
        }, "nothing has changed this time"
        run.complete()
    with claim(tmp_path, config(phases=phases)) as run:
        assert run.is_complete
    assert is_done(tmp_path, stage="pretrain", config=config(phases=phases))
    with refuses("holds a run (complete) of another configuration", RunConflictError):
        claim(
            tmp_path, config(phases=[phases[0] | {"global_batch_size": 16, "micro_batch_size": 4}])
        )


def test_a_run_from_before_there_were_cuda_graphs_goes_on_as_it_began(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`off` is no other layout for it, and what it chose stays; `on` is one."""
    with pytest.raises(KeyError), claim(tmp_path, config()) as run:
        run.record(compiled=True, micro_batch_sizes=[8])
        raise KeyError
    off = config(trainer={"cuda_graphs": "off"})
    with pytest.raises(KeyError), claim(tmp_path, off) as run:
        assert run.facts == {"compiled": True, "micro_batch_sizes": [8]}
        assert "layout" not in caplog.text
        raise KeyError
    with claim(tmp_path, config(trainer={"cuda_graphs": "on"})) as run:
        assert set(run.facts) == {"earlier_layouts"}
        assert "trainer.cuda_graphs was off and is on" in caplog.text


def test_what_killed_processes_were_writing_is_swept(tmp_path: Path) -> None:
    finish(tmp_path)
    left = [".run.json.1.tmp", "checkpoints/.last.ckpt.12.tmp"]
    left += [".encoder.x1/weights", "encoders/.step-4.ab/weights"]
    stays = ["checkpoints/last.ckpt", "encoder/config.json"]
    stays += ["encoders/step-4/config.json", "tensorboard/events"]
    for name in left + stays:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with claim(tmp_path):
        assert all((tmp_path / name).exists() for name in stays)
        assert not any((tmp_path / name).exists() for name in left)


def test_a_full_disk_at_the_end_does_not_hide_what_it_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_record: object) -> None:
        raise OSError(28, "No space left on device")

    class NotSavedError(Exception):
        """The error of the run, which the full disk must not stand in for."""

    with pytest.raises(NotSavedError), claim(tmp_path):
        monkeypatch.setattr("clozelab.runs.store.write_record", full)
        raise NotSavedError


def test_results_version_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(tmp_path)
    monkeypatch.setitem(RESULTS_VERSIONS, "pretrain", 999)
    with refuses("holds a run (complete) of another configuration", RunConflictError):
        claim(tmp_path)
    assert not is_done(tmp_path, stage="pretrain", config=config())


@pytest.mark.parametrize(
    "left", ["checkpoints", "encoder", "encoders", "metrics.csv", "scores.json"]
)
def test_leftovers_without_a_record_are_refused(tmp_path: Path, left: str) -> None:
    """A checkpoint of another configuration would be trained on, and taken for this one's."""
    finish(tmp_path)
    (tmp_path / left).touch()
    with claim(tmp_path) as run:
        assert run.is_complete  # with its record it is a run like any other
    (tmp_path / "run.json").unlink()
    with refuses(f"holds {left} and no run.json that names its run"):
        claim(tmp_path)
    (tmp_path / left).unlink()
    with claim(tmp_path) as run:
        assert not run.is_complete


def test_links_to_a_shared_run_are_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "theirs.csv").write_text("theirs")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.csv").symlink_to(tmp_path / "theirs.csv")
    with claim(tmp_path / "run"):
        assert not (tmp_path / "run" / "metrics.csv").exists()
    assert (tmp_path / "theirs.csv").read_text() == "theirs"


def test_second_process_is_kept_out(tmp_path: Path) -> None:
    with claim(tmp_path) as run:
        with refuses("is in use by another process; wait", RunBusyError):
            claim(tmp_path)
        run.complete()


def test_other_ranks_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with claim(tmp_path) as run:
        monkeypatch.setenv("LOCAL_RANK", "1")
        with claim(tmp_path) as follower:
            assert not follower.is_leader and not follower.is_complete
            follower.record(x=1)
        with refuses("rank 1 has another configuration than rank 0: seed", RunConflictError):
            claim(tmp_path, config(seed=2))
        monkeypatch.delenv("LOCAL_RANK")
        assert record_of(tmp_path).facts == {}
        run.complete()


@pytest.mark.skipif(not host.PROC_LOCKS.is_file(), reason="the system names no holder of a lock")
def test_other_ranks_wait_where_a_run_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record still says that it runs; rank 0 has yet to go on with it."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    run = claim(tmp_path)
    assert run._lock is not None and run.content.process is not None
    run._lock.release()  # as the kernel does where a process is killed
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("clozelab.runs.store.FOLLOWER_WAIT_SECONDS", 0.1)
    # The process is there, and a file system may name no holder of a lock.
    assert claim(tmp_path).content.status == "running"
    run.content.process.pid = gone.pid
    write_record(run.content)
    with refuses("rank 1: rank 0 has not claimed"):
        claim(tmp_path)


def test_other_ranks_wait_for_the_run_that_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The complete one of before is no reason to leave: rank 0 is about to remove it."""
    finish(tmp_path)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("clozelab.runs.store.FOLLOWER_WAIT_SECONDS", 0.1)
    with refuses("rank 1: rank 0 has not claimed"):
        claim(tmp_path, config(reuse="never"))
    assert claim(tmp_path).is_complete


@pytest.mark.parametrize(
    ("inside", "removed"),
    [
        ("started_in", "/data"),
        ("data_dir", "/more"),
        ("run", "/more/nested"),
        ("nothing", ""),
    ],
)
def test_what_is_not_the_run_s_is_never_removed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str, removed: str
) -> None:
    folder = tmp_path / "run"
    finish(folder)
    (folder / "more").mkdir()
    (folder / "more/precious.txt").write_text("mine")
    (folder / "encoder").symlink_to(tmp_path / "elsewhere")
    if inside == "started_in":
        monkeypatch.chdir(folder)
    if inside == "run":
        finish(folder / "more/nested", config(seed=2))
    cfg = config(
        reuse="never", **({"data_dir": str(folder / "more")} if inside == "data_dir" else {})
    )
    if inside == "nothing":
        with claim(folder, cfg) as run:
            assert (
                not run.is_complete
                and not (folder / "more").exists()
                and not (folder / "encoder").is_symlink()
            )
            run.complete()
        return
    with refuses(f"{removed}, which reuse=never would remove"):
        claim(folder, cfg)
    assert (folder / "more/precious.txt").is_file() and claim(folder).is_complete


def test_missing_value_is_named(tmp_path: Path) -> None:
    with refuses("needed has no value; give one: needed=..."):
        claim(tmp_path, config(needed="???"))
    assert not (tmp_path / "run.json").exists()


def test_a_run_without_a_log_is_not_claimed_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "log.txt").mkdir()
    with refuses("cannot be written ([Errno 21] Is a directory"):
        claim(tmp_path)
    assert read_record(tmp_path) is None
    (tmp_path / "log.txt").rmdir()
    finish(tmp_path)  # nobody holds the folder
    assert (tmp_path / "log.txt").is_file()


def test_encoder_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "run/encoder").mkdir(parents=True)
    (tmp_path / "run/encoder/config.json").write_text("{}")
    with refuses("no encoder here (config.json is missing)"):
        encoder_fingerprint(tmp_path)
    with refuses("/run is a run's folder: say encoder="):
        encoder_fingerprint(tmp_path / "run")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"1")
    first = encoder_fingerprint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"2")
    assert encoder_fingerprint(tmp_path) != first
    for name in ("1_Pooling", "pooling", "1_Notes"):
        (tmp_path / name).mkdir()
    # The last one has no files, as of a module without settings.
    modules = [{"path": path} for path in ("", "1_Pooling", "pooling", "2_Normalize")]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    for name, counts in (("1_Pooling", True), ("pooling", True), ("1_Notes", False)):
        seen = set()
        for text in ("mean", "cls"):
            (tmp_path / name / "config.json").write_text(text)
            seen.add(encoder_fingerprint(tmp_path))
        assert (len(seen) == 2) is counts, "how its sentences are pooled is part of an encoder"
    (tmp_path / "modules.json").write_text("[")
    with refuses("modules.json is damaged: it lists no modules"):
        encoder_fingerprint(tmp_path)
    (tmp_path / "checksums.json").write_text(json.dumps({"model.safetensors": "x"}))
    second = encoder_fingerprint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"3")
    assert encoder_fingerprint(tmp_path) == second  # the list of checksums speaks for the files


@pytest.mark.parametrize(
    ("environment", "is_first"),
    [
        ({}, True),
        ({"LOCAL_RANK": "0", "NODE_RANK": "0"}, True),
        ({"LOCAL_RANK": "1"}, False),
        ({"LOCAL_RANK": "0", "NODE_RANK": "1"}, False),
        ({"RANK": "0", "LOCAL_RANK": "0", "NODE_RANK": "0"}, True),
        ({"RANK": "2", "LOCAL_RANK": "0", "NODE_RANK": "1"}, False),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, False),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}, True),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "LOCAL_RANK": "1"}, False),
        ({"SLURM_PROCID": "0", "LOCAL_RANK": "1"}, False),
    ],
)
def test_only_the_first_process_of_a_job_leads(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_first: bool
) -> None:
    for name in ("RANK", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "LOCAL_RANK", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (process_rank() == 0) == is_first


def test_test_files_count_only_where_they_are_predicted(tmp_path: Path) -> None:
    """With predict_test=true another test file makes another run, and without it the same."""
    (tmp_path / "test.tsv").write_text("a")
    data = {
        "data_dir": str(tmp_path),
        "task": {"data": {"test_files": {"X": "test.tsv"}, "test_id_column": "index"}},
    }
    without, plain = (
        config(**data, predict_test=False),
        config(data_dir=str(tmp_path), task={"data": {}}, predict_test=False),
    )
    predicting = config(**data, predict_test=True)
    assert without.recorded == plain.recorded
    assert predicting.recorded["task"] == {"data": data["task"]["data"]}  # type: ignore[index]
    for name, cfg in (("without", without), ("predicting", predicting)):
        finish(tmp_path / name, cfg)
        assert is_done(tmp_path / name, stage="pretrain", config=cfg)
    (tmp_path / "test.tsv").write_text("other")
    assert is_done(tmp_path / "without", stage="pretrain", config=without)
    assert not is_done(tmp_path / "predicting", stage="pretrain", config=predicting)
