"""The next batches, made and pinned by a thread while an accelerator works on this one; on a CPU nothing of it.

Unusual: one thread, not processes: batches come from memory maps and vectorised numpy, and a process would have to copy
them. The order is the loader's own, so prefetching changes no batch.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from lightning.pytorch import Trainer

DEPTH = 2
"""Batches that wait: one to hide the making of the next, one against jitter."""
_PATIENCE_SECONDS = 0.1


class Prefetched:
    """`loader` with up to DEPTH batches made ahead of its reader, each passed through `prepare`."""

    def __init__(self, loader: Iterable[Any], prepare: Callable[[Any], Any]) -> None:
        self.loader, self.prepare = loader, prepare

    def __iter__(self) -> Iterator[Any]:
        ready: queue.Queue[tuple[str, Any]] = queue.Queue(DEPTH)
        gone = threading.Event()
        thread = threading.Thread(target=self._fill, args=(ready, gone), name="prefetch", daemon=True)
        thread.start()
        try:
            while True:
                kind, value = ready.get()
                if kind == "batch":
                    yield value
                elif kind == "error":
                    raise value
                else:
                    return
        finally:
            gone.set()
            thread.join()

    def _fill(self, ready: queue.Queue[tuple[str, Any]], gone: threading.Event) -> None:
        try:
            for batch in self.loader:
                if not _put(ready, ("batch", self.prepare(batch)), gone):
                    return
            _put(ready, ("end", None), gone)
        except BaseException as error:  # whatever it is, the reader has to see it
            _put(ready, ("error", error), gone)


def _put(ready: queue.Queue[tuple[str, Any]], item: tuple[str, Any], gone: threading.Event) -> bool:
    """False when the reader has gone."""
    while not gone.is_set():
        try:
            ready.put(item, timeout=_PATIENCE_SECONDS)
            return True
        except queue.Full:
            continue
    return False


def pinned(batch: Any) -> Any:
    """The same batch in page-locked memory, from which a copy to the device runs beside the work there."""
    if isinstance(batch, list):
        return [pinned(part) for part in batch]
    if isinstance(batch, dict):
        return {key: pinned(value) for key, value in batch.items()}
    return batch.pin_memory() if hasattr(batch, "pin_memory") else batch


def for_device(loader: Iterable[Any], trainer: Trainer | None) -> Any:
    """`loader`, prefetched and pinned where the trainer's device is a GPU."""
    return Prefetched(loader, pinned) if device_type(trainer) == "cuda" else loader


def device_type(trainer: Trainer | None) -> str:
    """cpu, cuda or xla; cpu without a trainer."""
    device: torch.device | None = getattr(getattr(trainer, "strategy", None), "root_device", None)
    return device.type if device is not None else "cpu"
