"""What this room refuses, and the sentence that says so: a row a case."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.calling import call_with_fixtures
from tests.training import (
    test_checkpoint_io,
    test_guards,
    test_mlflow_tracker,
    test_position_growth,
    test_tracking,
    test_trainer,
)

from clozelab.schema import seconds_of
from clozelab.training import runtime
from clozelab.training import trainer as strategies
from clozelab.training.callbacks import check_position_growth
from clozelab.training.checkpoints import (
    CheckpointCorruptError,
    keep_best,
    load_file,
    newest_whole,
    save_file,
)
from clozelab.training.guards import MAX_SKIPPED, WINDOW, DivergedError
from clozelab.training.runtime import largest_that_fits
from clozelab.training.tracking import build_tensorboard_logger
from clozelab.training.trainer import choose_hardware, resolve_accelerator

embeddings = test_position_growth.embeddings


def one_flipped_byte_is_refused(tmp_path: Path, where: float) -> None:
    path = tmp_path / "last.ckpt"
    save_file(test_checkpoint_io.content(), path)
    data = bytearray(path.read_bytes())
    data[int(len(data) * where) if isinstance(where, float) else where] ^= 1
    path.write_bytes(data)
    load_file(path)


def truncated_and_foreign_files_are_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "last.ckpt"
    save_file(test_checkpoint_io.content(), path)
    path.write_bytes(path.read_bytes()[:size])
    load_file(path)


def failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.ckpt"
    save_file(test_checkpoint_io.content(), path)

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    save_file({"global_step": 4}, path)


def pickled_code_is_not_run(tmp_path: Path) -> None:
    save_file({"evil": Path("/")}, tmp_path / "last.ckpt")
    load_file(tmp_path / "last.ckpt")


def the_best_is_the_last_resort_and_without_it_nothing_begins_anew(tmp_path: Path) -> None:
    test_checkpoint_io.save_steps(tmp_path, 2)
    keep_best(tmp_path / "last.ckpt")
    test_checkpoint_io.save_steps(tmp_path, 4, 6)
    test_checkpoint_io.flip(tmp_path / "last.ckpt")
    test_checkpoint_io.flip(tmp_path / "previous.ckpt")
    test_checkpoint_io.flip(tmp_path / "best.ckpt")
    newest_whole(tmp_path)


def spikes_that_do_not_cease_end_the_run() -> None:
    """A run whose every gradient is no number would otherwise be complete, and have learnt nothing
    more.
    """
    rare = []
    for _ in range(MAX_SKIPPED + 5):
        rare.extend((*test_guards.usual(WINDOW // 5), float("nan")))
    test_guards.fed("skip", [*test_guards.usual(30), *[float("nan")] * 50])


def mlflow_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    test_mlflow_tracker.build(tmp_path)


GROWING = [test_position_growth.phase(32, 10), test_position_growth.phase(64, 10)]


def nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", int)  # looking through a test session takes a second

    def attempt(size: int) -> None:
        raise torch.OutOfMemoryError("no room")

    largest_that_fits(attempt, 4)


def another_error_than_of_memory() -> None:
    def broken(size: int) -> None:
        raise RuntimeError("something else")

    largest_that_fits(broken, 4)


def mode_needs_a_key_to_be_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "k")
    monkeypatch.setenv("WANDB_MODE", "offline")
    test_tracking.build(tmp_path, "on")


def tensorboard_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    build_tensorboard_logger(flush_seconds=1, job=test_tracking.job(tmp_path))


def ranks_that_nobody_starts_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], devices: int, num_nodes: int
) -> None:
    test_trainer.slurm(monkeypatch, variables)
    choose_hardware(
        **(test_trainer.CPU | {"strategy": "ddp", "devices": devices, "num_nodes": num_nodes})
    )


def what_cannot_run_is_said_early(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, object]
) -> None:
    monkeypatch.setattr(strategies.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(runtime, "has_cpp_compiler", lambda: False)
    choose_hardware(**(test_trainer.CPU | change))


def no_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    resolve_accelerator("gpu", 1)


def too_few_cuda_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    resolve_accelerator("gpu", 2)


def a_run_goes_on_from_its_own_checkpoint_alone(tmp_path: Path) -> None:
    checkpoint = tmp_path / "last.ckpt"
    test_trainer.fit(checkpoint, test_trainer.OURS, 2)
    test_trainer.fit(checkpoint, test_trainer.OTHERS, 4)


REFUSALS: list[tuple[str, Callable[..., Any], type[Exception], str]] = [
    (
        "one flipped byte is refused: last .ckpt",
        lambda tmp_path: one_flipped_byte_is_refused(tmp_path, 0),
        CheckpointCorruptError,
        r"last\.ckpt",
    ),
    (
        "one flipped byte is refused: last .ckpt 2",
        lambda tmp_path: one_flipped_byte_is_refused(tmp_path, 100),
        CheckpointCorruptError,
        r"last\.ckpt",
    ),
    (
        "one flipped byte is refused: last .ckpt 3",
        lambda tmp_path: one_flipped_byte_is_refused(tmp_path, 0.5),
        CheckpointCorruptError,
        r"last\.ckpt",
    ),
    (
        "one flipped byte is refused: last .ckpt 4",
        lambda tmp_path: one_flipped_byte_is_refused(tmp_path, -60),
        CheckpointCorruptError,
        r"last\.ckpt",
    ),
    (
        "one flipped byte is refused: last .ckpt 5",
        lambda tmp_path: one_flipped_byte_is_refused(tmp_path, -1),
        CheckpointCorruptError,
        r"last\.ckpt",
    ),
    (
        "truncated and foreign files are refused: truncated",
        lambda tmp_path: truncated_and_foreign_files_are_refused(tmp_path, 0),
        CheckpointCorruptError,
        "truncated",
    ),
    (
        "truncated and foreign files are refused: truncated 2",
        lambda tmp_path: truncated_and_foreign_files_are_refused(tmp_path, 10),
        CheckpointCorruptError,
        "truncated",
    ),
    (
        "truncated and foreign files are refused: truncated 3",
        lambda tmp_path: truncated_and_foreign_files_are_refused(tmp_path, 1000),
        CheckpointCorruptError,
        "truncated",
    ),
    (
        "failed save keeps the old file",
        failed_save_keeps_the_old_file,
        OSError,
        "No space",
    ),
    (
        "pickled code is not run",
        pickled_code_is_not_run,
        Exception,
        r"[Ww]eights",
    ),
    (
        "the best is the last resort and without it nothing begins anew",
        the_best_is_the_last_resort_and_without_it_nothing_begins_anew,
        CheckpointCorruptError,
        r"best\.ckpt.*no whole one is left.*begin anew",
    ),
    (
        "spikes that do not cease end the run",
        spikes_that_do_not_cease_end_the_run,
        DivergedError,
        f"step {30 + MAX_SKIPPED + 1}: gradient norm nan.*{MAX_SKIPPED} of the last {WINDOW}",
    ),
    (
        "mlflow is an extra",
        mlflow_is_an_extra,
        ValueError,
        r"logger=mlflow needs.*pip install 'clozelab\[mlflow\]'",
    ),
    (
        "growth that cannot be is refused",
        lambda: check_position_growth("tile", GROWING, "fsdp"),
        ValueError,
        "fsdp",
    ),
    (
        "growth beyond the model is refused",
        lambda embeddings: embeddings.tile_positions(4, 13),
        ValueError,
        "the model has 12",
    ),
    (
        "nothing fits",
        nothing_fits,
        ValueError,
        "gradient_checkpointing",
    ),
    (
        "another error than of memory",
        another_error_than_of_memory,
        RuntimeError,
        "something else",
    ),
    (
        "other time limits are refused: write it as 02:30:00",
        lambda: seconds_of(""),
        ValueError,
        "write it as '02:30:00'",
    ),
    (
        "other time limits are refused: write it as 02:30:00 2",
        lambda: seconds_of("9000"),
        ValueError,
        "write it as '02:30:00'",
    ),
    (
        "other time limits are refused: write it as 02:30:00 3",
        lambda: seconds_of("2h"),
        ValueError,
        "write it as '02:30:00'",
    ),
    (
        "other time limits are refused: write it as 02:30:00 4",
        lambda: seconds_of("02:30"),
        ValueError,
        "write it as '02:30:00'",
    ),
    (
        "other time limits are refused: write it as 02:30:00 5",
        lambda: seconds_of("02:75:00"),
        ValueError,
        "write it as '02:30:00'",
    ),
    (
        "other time limits are refused: write it as 02:30:00 6",
        lambda: seconds_of("x02:30:00"),
        ValueError,
        "write it as '02:30:00'",
    ),
    (
        "mode needs a key to be online",
        mode_needs_a_key_to_be_online,
        ValueError,
        r"logger\.wandb\.mode is 'on'",
    ),
    (
        "tensorboard is an extra",
        tensorboard_is_an_extra,
        ValueError,
        r"logger=tensorboard needs.*pip install 'clozelab\[tensorboard\]'",
    ),
    (
        "ranks that nobody starts are refused: one node",
        lambda monkeypatch: ranks_that_nobody_starts_are_refused(
            monkeypatch, test_trainer.STEP | {"SLURM_STEP_NUM_TASKS": "4"}, 2, 1
        ),
        ValueError,
        "srun --nodes=1 --ntasks-per-node=2",
    ),
    (
        "ranks that nobody starts are refused: two nodes, two tasks",
        lambda monkeypatch: ranks_that_nobody_starts_are_refused(
            monkeypatch, test_trainer.STEP | {"SLURM_STEP_NUM_TASKS": "2"}, 4, 2
        ),
        ValueError,
        "srun --nodes=2 --ntasks-per-node=4",
    ),
    (
        "ranks that nobody starts are refused: two nodes, tasks unsaid",
        lambda monkeypatch: ranks_that_nobody_starts_are_refused(
            monkeypatch, test_trainer.STEP, 4, 2
        ),
        ValueError,
        "srun --nodes=2 --ntasks-per-node=4",
    ),
    (
        "what cannot run is said early: need trainer=ddp",
        lambda monkeypatch: what_cannot_run_is_said_early(monkeypatch, {"devices": 2}),
        ValueError,
        "need trainer=ddp",
    ),
    (
        "what cannot run is said early: runs on tpus only",
        lambda monkeypatch: what_cannot_run_is_said_early(monkeypatch, {"strategy": "xla"}),
        ValueError,
        "runs on TPUs only",
    ),
    (
        "what cannot run is said early: torch_xla",
        lambda monkeypatch: what_cannot_run_is_said_early(
            monkeypatch, {"accelerator": "tpu", "strategy": "xla"}
        ),
        ValueError,
        "torch_xla",
    ),
    (
        "what cannot run is said early: needs a c compiler",
        lambda monkeypatch: what_cannot_run_is_said_early(monkeypatch, {"compile": True}),
        ValueError,
        "needs a C\\+\\+ compiler",
    ),
    (
        "no cuda device",
        no_cuda_device,
        ValueError,
        r"needs a CUDA device.*trainer=cpu",
    ),
    (
        "too few cuda devices",
        too_few_cuda_devices,
        ValueError,
        "sees 1 CUDA",
    ),
    (
        "a run goes on from its own checkpoint alone",
        a_run_goes_on_from_its_own_checkpoint_alone,
        ValueError,
        r"last.ckpt is the checkpoint of another configuration \(fingerprint aaaaaa",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "sentence"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS]
)
def test_refusal(
    request: pytest.FixtureRequest,
    call: Callable[..., Any],
    error: type[Exception],
    sentence: str,
) -> None:
    with pytest.raises(error, match=sentence):
        call_with_fixtures(call, request)
