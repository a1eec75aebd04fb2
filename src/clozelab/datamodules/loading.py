"""Which examples meet in a batch, and batches made ahead for an accelerator.

Unusual: training batches hold examples of similar length, which on a CPU is worth a factor of two to three; the price
is that they are not uniform draws. Examples are shuffled and sorted inside pools of `POOL_BATCHES` batches, which are
shuffled again. On a GPU one thread makes and pins the next batches while the device works on this one: a thread,
not processes, which would have to copy what comes from memory maps.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset

from clozelab.corpus.random import uniform_u64

Ints = NDArray[np.int64]
POOL_BATCHES = 50
DEPTH = 2  # batches that wait: one to hide the making of the next, one against jitter


def bucketed_batches(lengths: Ints, *, batch_size: int, seed: int, epoch: int) -> list[Ints]:
    """All N examples once, in batches of `batch_size` (one is smaller where it does not divide N), shuffled."""
    number, pool = len(lengths), POOL_BATCHES * batch_size
    order = np.argsort(uniform_u64(seed, epoch, "finetune-examples", np.arange(number)), kind="stable")
    batches: list[Ints] = []
    for chunk in (order[i : i + pool] for i in range(0, number, pool)):
        by_length = chunk[np.argsort(lengths[chunk], kind="stable")]
        batches += [by_length[i : i + batch_size] for i in range(0, len(chunk), batch_size)]
    shuffled = np.argsort(uniform_u64(seed, epoch, "finetune-batches", np.arange(len(batches))), kind="stable")
    return [batches[i] for i in shuffled]


def token_budget_batches(lengths: Ints, max_tokens: int) -> list[Ints]:
    """All examples once, longest first, in batches of at most `max_tokens` tokens (a longer example has its own)."""
    order = np.argsort(-lengths, kind="stable")
    batches: list[Ints] = []
    start, total = 0, 0
    for position, length in enumerate(lengths[order].tolist()):
        if position > start and total + length > max_tokens:
            batches.append(order[start:position])
            start, total = position, 0
        total += length
    return [*batches, order[start:]] if len(order) else batches


def batch_loader(batches: IterableDataset[Any], num_workers: int = 0, trainer: Trainer | None = None) -> Any:
    """A loader of what are batches already, prefetched and pinned where the trainer's device is a GPU."""
    # Forked workers share the memory maps and what was found in them; elsewhere they open and find it again.
    method = "fork" if num_workers and "fork" in multiprocessing.get_all_start_methods() else None
    workers: Any = {"num_workers": num_workers, "multiprocessing_context": method}
    loader = DataLoader(batches, batch_size=None, collate_fn=_same, **workers)
    return Prefetched(loader, pinned) if device_type(trainer) == "cuda" else loader


def _same(batch: Any) -> Any:
    return batch


def device_type(trainer: Trainer | None) -> str:
    """cpu, cuda or xla; cpu without a trainer."""
    device: torch.device | None = getattr(getattr(trainer, "strategy", None), "root_device", None)
    return device.type if device is not None else "cpu"


def pinned(batch: Any) -> Any:
    """The same batch in page-locked memory, from which a copy to the device runs beside the work there."""
    if isinstance(batch, list):
        return [pinned(part) for part in batch]
    if isinstance(batch, dict):
        return {key: pinned(value) for key, value in batch.items()}
    return batch.pin_memory() if hasattr(batch, "pin_memory") else batch


class Prefetched:
    """`loader` with up to DEPTH batches made ahead of its reader, each passed through `prepare`."""

    def __init__(self, loader: Iterable[Any], prepare: Callable[[Any], Any]) -> None:
        self.loader, self.prepare = loader, prepare

    def __iter__(self) -> Iterator[Any]:
        batches, end = iter(self.loader), object()

        def make() -> Any:
            batch = next(batches, end)
            return batch if batch is end else self.prepare(batch)

        pool = ThreadPoolExecutor(1, "prefetch")
        try:
            waiting = deque(pool.submit(make) for _ in range(DEPTH))
            while (batch := waiting.popleft().result()) is not end:  # an error comes in its place
                waiting.append(pool.submit(make))
                yield batch
        finally:
            pool.shutdown(cancel_futures=True)
