"""Checkpoints: whole or absent, and never loaded with a flipped bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from clozelab.training.checkpoints import AtomicCheckpointIO, CheckpointCorruptError, load_file, save_file


def content() -> dict[str, object]:
    torch.manual_seed(0)
    return {"state_dict": {"w": torch.randn(50, 7), "b": torch.randn(7).bfloat16()}, "global_step": 3, "note": "x"}


def test_round_trip_and_plain_torch_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(content(), path)
    for loaded in (AtomicCheckpointIO().load_checkpoint(path), torch.load(path, weights_only=True)):
        assert loaded["global_step"] == 3
        assert torch.equal(loaded["state_dict"]["w"], content()["state_dict"]["w"])  # type: ignore[index]
    assert [entry.name for entry in path.parent.iterdir()] == ["last.ckpt"]


@pytest.mark.parametrize("where", [0, 100, 0.5, -60, -1])
def test_one_flipped_byte_is_refused(tmp_path: Path, where: float) -> None:
    path = tmp_path / "last.ckpt"
    save_file(content(), path)
    data = bytearray(path.read_bytes())
    data[int(len(data) * where) if isinstance(where, float) else where] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointCorruptError, match=r"last\.ckpt"):
        load_file(path)


@pytest.mark.parametrize("size", [0, 10, 1000])
def test_truncated_and_foreign_files_are_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "last.ckpt"
    save_file(content(), path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointCorruptError, match="truncated"):
        load_file(path)
    with pytest.raises(FileNotFoundError):
        load_file(tmp_path / "none.ckpt")


def test_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.ckpt"
    save_file(content(), path)

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        save_file({"global_step": 4}, path)
    monkeypatch.undo()
    assert load_file(path)["global_step"] == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.ckpt"]


def test_pickled_code_is_not_run(tmp_path: Path) -> None:
    save_file({"evil": Path("/")}, tmp_path / "last.ckpt")
    with pytest.raises(Exception, match=r"[Ww]eights"):
        load_file(tmp_path / "last.ckpt")


def test_kill_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    script = f"""
        import torch
        from pathlib import Path
        from clozelab.training.checkpoints import save_file
        step = 0
        while True:
            save_file({{"w": torch.full((500_000,), float(step)), "global_step": step}}, Path({str(path)!r}))
            step += 1
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    deadline = time.monotonic() + 120  # of a starved machine
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.317)
    process.send_signal(signal.SIGKILL)
    process.wait()
    loaded = load_file(path)
    assert torch.equal(loaded["w"], torch.full((500_000,), float(loaded["global_step"])))
    save_file(loaded, path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.ckpt"], "leftovers of the killed process are removed"
