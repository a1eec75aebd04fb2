"""Checkpoints: whole or absent, and never loaded with a flipped bit."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import forked

from clozelab.training.checkpoints import (
    AtomicCheckpointIO,
    CheckpointCorruptError,
    CheckpointNotSavedError,
    keep_best,
    load_file,
    newest_intact,
    save_file,
    size_of,
)


def content() -> dict[str, object]:
    torch.manual_seed(0)
    return {
        "state_dict": {"w": torch.randn(50, 7), "b": torch.randn(7).bfloat16()},
        "global_step": 3,
        "note": "x",
    }


def test_round_trip_and_plain_torch_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(content(), path)
    for loaded in (AtomicCheckpointIO().load_checkpoint(path), torch.load(path, weights_only=True)):
        assert loaded["global_step"] == 3
        assert torch.equal(loaded["state_dict"]["w"], content()["state_dict"]["w"])
    assert [entry.name for entry in path.parent.iterdir()] == ["last.ckpt"]


def test_a_file_that_is_not_there_is_no_damaged_one(tmp_path: Path) -> None:
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
    assert_alone(tmp_path, 3)


def test_kill_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    script = f"""
        import torch
        from pathlib import Path
        from clozelab.training.checkpoints import save_file
        step = 0
        while True:
            content = {{"w": torch.full((500_000,), float(step)), "global_step": step}}
            save_file(content, Path({str(path)!r}))
            step += 1
    """
    process = forked.Popen([sys.executable, "-c", textwrap.dedent(script)])
    deadline = time.monotonic() + 120  # of a starved machine
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.317)
    process.send_signal(signal.SIGKILL)
    process.wait()
    loaded = load_file(path)
    assert torch.equal(loaded["w"], torch.full((500_000,), float(loaded["global_step"])))
    save_file(loaded, path)  # which removes what the killed process has left
    assert_alone(tmp_path, loaded["global_step"])


def steps(folder: Path, *names: str) -> list[int]:
    return [load_file(folder / f"{name}.ckpt")["global_step"] for name in names]


def assert_alone(folder: Path, step: int) -> None:
    """The last checkpoint is of this step, and nothing half-written lies beside it."""
    assert steps(folder, "last") == [step]
    assert [entry.name for entry in folder.iterdir()] == ["last.ckpt"]


def save_steps(folder: Path, *numbers: int) -> None:
    for number in numbers:
        AtomicCheckpointIO().save_checkpoint(
            content() | {"global_step": number}, folder / "last.ckpt"
        )


def flip(path: Path, where: float = 0.5) -> None:
    """Change one byte: the one at a place, or at a share of the file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * where) if isinstance(where, float) else where] ^= 1
    path.write_bytes(data)


def test_a_damaged_newest_one_is_named_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the next save does not keep it as the one before: then both might be lost."""
    save_steps(tmp_path, 2)
    assert newest_intact(tmp_path) == tmp_path / "last.ckpt"
    assert not (tmp_path / "previous.ckpt").exists()
    save_steps(tmp_path, 4)
    assert steps(tmp_path, "last", "previous") == [4, 2]
    flip(tmp_path / "last.ckpt")
    with caplog.at_level(logging.WARNING):
        assert newest_intact(tmp_path) == tmp_path / "previous.ckpt"
    assert f"{tmp_path / 'last.ckpt'}" in caplog.text and "passed over" in caplog.text
    assert (tmp_path / "last.ckpt.damaged").exists() and not (tmp_path / "last.ckpt").exists()
    save_steps(tmp_path, 5)
    assert steps(tmp_path, "last", "previous") == [5, 2]


def test_another_rank_takes_the_same_one_and_moves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_steps(tmp_path, 2, 4)
    flip(tmp_path / "last.ckpt")
    for rank, is_there in ((1, True), (0, False), (1, False)):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert newest_intact(tmp_path) == tmp_path / "previous.ckpt"
        assert (tmp_path / "last.ckpt").exists() == is_there


def test_the_best_is_the_last_resort_and_without_it_nothing_begins_anew(tmp_path: Path) -> None:
    save_steps(tmp_path, 2)
    keep_best(tmp_path / "last.ckpt")
    save_steps(tmp_path, 4, 6)
    assert steps(tmp_path, "last", "previous", "best") == [6, 4, 2]
    flip(tmp_path / "last.ckpt")
    flip(tmp_path / "previous.ckpt")
    assert newest_intact(tmp_path) == tmp_path / "best.ckpt"
    flip(tmp_path / "best.ckpt")
    reason = r"best\.ckpt.*no whole one is left.*begin anew"
    with pytest.raises(CheckpointCorruptError, match=reason):
        newest_intact(tmp_path)
    assert newest_intact(tmp_path / "nothing here") is None


def test_a_resumed_run_that_keeps_its_best_again_writes_into_no_checkpoint(tmp_path: Path) -> None:
    save_steps(tmp_path, 2)
    keep_best(tmp_path / "last.ckpt")
    keep_best(tmp_path / "last.ckpt")  # as a run does that was killed right behind its best
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.ckpt", "last.ckpt"]
    save_steps(tmp_path, 4)
    keep_best(tmp_path / "last.ckpt")
    assert steps(tmp_path, "last", "previous", "best") == [4, 2, 4]


def test_a_disk_without_links_keeps_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_steps(tmp_path, 2)

    def refuse(self: Path, target: Path) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    keep_best(tmp_path / "last.ckpt")
    assert steps(tmp_path, "best") == [2]


def test_the_size_is_known_before(tmp_path: Path) -> None:
    weight = torch.randn(300, 400)
    state = {
        "a": weight,
        "tied": weight,
        "part": weight[:2],
        "half": weight.bfloat16(),
        "text": "x" * 50_000,
        "n": [1],
    }
    save_file(state, tmp_path / "last.ckpt")
    real = (tmp_path / "last.ckpt").stat().st_size
    assert real <= size_of(state) <= 1.02 * real + 2**17


def test_a_full_disk_is_one_sentence_and_nothing_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_steps(tmp_path, 2)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    monkeypatch.setattr(torch, "save", None)  # would fail
    with pytest.raises(CheckpointNotSavedError) as caught:
        save_steps(tmp_path, 4)
    needed = f"it needs {size_of(content()):,} bytes, and 1,000 are free there"
    said = f"{tmp_path / 'last.ckpt'} is not saved (No space left on device): {needed}"
    assert str(caught.value).startswith(said)
    assert_alone(tmp_path, 2)


FILL = """
    import resource, sys, torch
    from pathlib import Path
    from clozelab.training.checkpoints import AtomicCheckpointIO
    path = Path(sys.argv[1])
    content = {"w": torch.full((100_000,), 1.0)}
    save = lambda step: AtomicCheckpointIO().save_checkpoint(content | {"global_step": step}, path)
    save(1)
    whole = path.stat().st_size
    for number in range(10):
        resource.setrlimit(resource.RLIMIT_FSIZE, (whole * number // 10, resource.RLIM_INFINITY))
        try:
            save(2)
        except OSError as error:
            print(type(error).__name__, error)
"""


def test_a_disk_that_fills_up_while_it_is_written_is_one_sentence(tmp_path: Path) -> None:
    """At ten sizes, from nothing to just too little."""
    path = tmp_path / "last.ckpt"
    words = [sys.executable, "-c", textwrap.dedent(FILL), str(path)]
    done = forked.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.count(f"CheckpointNotSavedError {path} is not saved (File ") == 10
    assert len(done.stdout.splitlines()) == 10
    assert_alone(tmp_path, 1)


FLIPS = [pytest.param(flip, where, id=f"flipped at {where}") for where in (0, 100, 0.5, -60, -1)]
CUTS = [pytest.param(os.truncate, size, id=f"cut to {size}") for size in (0, 10, 1000)]


@pytest.mark.parametrize(("damage", "where"), [*FLIPS, *CUTS])
def test_a_damaged_file_is_refused(
    tmp_path: Path, damage: Callable[[Path, Any], None], where: float
) -> None:
    path = tmp_path / "last.ckpt"
    save_file(content(), path)
    damage(path, where)
    reason = "truncated" if damage is os.truncate else r"last\.ckpt"
    with pytest.raises(CheckpointCorruptError, match=reason):
        load_file(path)


def test_pickled_code_is_not_run(tmp_path: Path) -> None:
    save_file({"evil": Path("/")}, tmp_path / "last.ckpt")
    with pytest.raises(Exception, match=r"[Ww]eights"):
        load_file(tmp_path / "last.ckpt")
