"""The task cache: stored once, checked when read, never half there."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clozelab.datamodules.cache import cached_arrays, cached_folder, content_key, one_at_a_time


class Builder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.calls += 1
        return {"numbers": np.arange(5), "names": np.array(["a", "bé"])}, {"count": 5}


def test_second_time_comes_from_the_folder(tmp_path: Path) -> None:
    build = Builder()
    first, second = (cached_arrays(tmp_path / "tasks/x-1", build) for _ in range(2))
    assert build.calls == 1
    assert second[1] == first[1] == {"count": 5}
    assert second[0]["names"].tolist() == ["a", "bé"]
    assert second[0]["numbers"].dtype == np.int64
    assert [path.name for path in (tmp_path / "tasks").iterdir()] == ["x-1"]  # nothing temporary stays


@pytest.mark.parametrize("damage", ["flip", "truncate", "missing", "meta"])
def test_damaged_folder_is_built_anew(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    build, folder = Builder(), tmp_path / "x-1"
    cached_arrays(folder, build)
    path = folder / ("meta.json" if damage == "meta" else "numbers.npy")
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(content[:-3])
    else:
        content[-2] ^= 1
        path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        arrays, _ = cached_arrays(folder, build)
    assert build.calls == 2
    assert arrays["numbers"].tolist() == [0, 1, 2, 3, 4]
    assert "is damaged" in caplog.text


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def build() -> Any:
        raise ValueError("bad label")

    with pytest.raises(ValueError, match="bad label"):
        cached_arrays(tmp_path / "x-1", build)
    assert list(tmp_path.iterdir()) == []


def test_key_depends_on_every_part() -> None:
    base = {"file": "abc", "length": 128}
    assert content_key(base) == content_key(dict(reversed(base.items())))
    assert content_key(base) != content_key(base | {"length": 64})


def test_large_content_is_written_into_the_folder_itself(tmp_path: Path) -> None:
    calls: list[Path] = []

    def write(target: Path) -> dict[str, Any]:
        calls.append(target)
        np.save(target / "layer.npy", np.arange(7))
        return {"words": 7}

    folder = tmp_path / "features/x-1"
    assert [cached_folder(folder, write) for _ in range(2)] == [{"words": 7}] * 2
    assert len(calls) == 1
    assert calls[0].parent == folder.parent  # the same file system: renamed, not copied
    assert np.load(folder / "layer.npy", mmap_mode="r").tolist() == list(range(7))
    content = bytearray((folder / "layer.npy").read_bytes())
    content[-1] ^= 1
    (folder / "layer.npy").write_bytes(content)
    cached_folder(folder, write)
    assert len(calls) == 2


def test_who_comes_later_waits(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with one_at_a_time(tmp_path):
            order.append("second")

    thread = threading.Thread(target=second)
    with one_at_a_time(tmp_path):
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert list(tmp_path.iterdir()) == []
