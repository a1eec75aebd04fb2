"""Tests of clozelab.datamodules.loading: same batches in the same order, ahead of the reader, and no thread left."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
import torch

from clozelab.datamodules.loading import DEPTH, Prefetched, for_device, pinned
from clozelab.models.layout import Layout


def test_order_and_preparation():
    assert list(Prefetched(range(20), lambda n: n * n)) == [n * n for n in range(20)]


def test_it_runs_ahead_but_not_away():
    made = []

    def batches():
        for number in range(100):
            made.append(number)
            yield number

    reader = iter(Prefetched(batches(), lambda n: n))
    assert next(reader) == 0
    deadline = time.monotonic() + 20
    while len(made) < 1 + DEPTH and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert 1 + DEPTH <= len(made) <= 2 + DEPTH
    reader.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_an_error_reaches_the_reader_after_the_batches_before_it():
    def batches():
        yield 1
        raise ValueError("row 2 is bad")

    seen = []
    with pytest.raises(ValueError, match="row 2 is bad"):
        seen.extend(iter(Prefetched(batches(), lambda n: n)))
        pytest.fail("the error was lost")
    reader = iter(Prefetched(batches(), lambda n: n))
    assert next(reader) == 1


class Pinnable:
    def pin_memory(self):
        return "pinned"


def test_every_tensor_of_a_step_is_pinned_and_plain_values_stay():
    step = [{"input_ids": Pinnable(), "num_predictions": 3, "source_names": ("a",)}, {"layout": Pinnable()}]
    assert pinned(step) == [
        {"input_ids": "pinned", "num_predictions": 3, "source_names": ("a",)},
        {"layout": "pinned"},
    ]
    assert hasattr(torch.zeros(1), "pin_memory") and hasattr(Layout.ragged([1]), "pin_memory")


def test_only_a_gpu_has_it():
    loader = [1, 2]
    for kind, prefetched in (("cpu", False), ("cuda", True), ("xla", False)):
        trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=SimpleNamespace(type=kind)))
        assert isinstance(for_device(loader, trainer), Prefetched) is prefetched
    assert for_device(loader, None) is loader
