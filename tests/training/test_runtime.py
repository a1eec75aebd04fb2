"""Precision, ceiling, seeds, allocator, and the micro-batch that a device holds."""

from __future__ import annotations

import gc
import subprocess
import sys
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from clozelab import processor
from clozelab.training import runtime
from clozelab.training.checkpoints import hash_combine, seed_forward
from clozelab.training.host import import_torchmetrics_quickly
from clozelab.training.runtime import largest_that_fits, try_step


@pytest.fixture
def no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*processor.ONEDNN_LIMITS, processor.ATEN_LIMIT):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("flag", "expected"),
    [("avx512_bf16", "bf16-mixed"), ("amx_bf16", "bf16-mixed"), ("avx2", "32-true")],
)
def test_auto_precision_follows_the_processor(
    monkeypatch: pytest.MonkeyPatch, no_limits: None, flag: str, expected: str
) -> None:
    monkeypatch.setattr(processor, "cpuinfo", lambda *names: flag)
    assert runtime.choose_precision("auto", "cpu") == expected
    assert runtime.choose_precision("32-true", "cpu") == "32-true"


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("ONEDNN_MAX_CPU_ISA", "AVX2", torch.float32),
        ("DNNL_MAX_CPU_ISA", "avx512_core", torch.float32),
        ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX", torch.bfloat16),
        ("ATEN_CPU_CAPABILITY", "avx2", torch.float32),
        ("ATEN_CPU_CAPABILITY", "avx512", torch.bfloat16),
    ],
)
def test_products_follow_what_the_libraries_may_use(
    monkeypatch: Any, no_limits: None, variable: str, value: str, expected: torch.dtype
) -> None:
    monkeypatch.setattr(processor, "cpuinfo", lambda *names: "avx2 avx512_bf16")
    monkeypatch.setenv(variable, value)
    assert processor.product_dtype(torch.device("cpu")) == expected


def test_ceiling_is_a_rate() -> None:
    assert 1e8 < runtime.matmul_ceiling("32-true", torch.device("cpu"), seconds=0.05) < 1e15


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_ceiling_draws_as_many_numbers_on_every_device(device: str) -> None:
    """Fresh heads are drawn after it: on a GPU, which draws by itself, they had other weights."""
    torch.manual_seed(0)
    ceiling = runtime.matmul_ceiling("bf16-mixed", torch.device(device), seconds=0.0)
    # Where nobody waits for the product, no rate is told.
    assert (ceiling > 0.0) is (device == "cpu")
    state_after = torch.get_rng_state()
    torch.manual_seed(0)
    for _ in range(2):
        torch.randn(1024, 1024)
    assert torch.equal(state_after, torch.get_rng_state())


def test_onednn_stays_accurate_or_off() -> None:
    backend = torch.backends.mkldnn.matmul
    before = backend.fp32_precision
    try:
        runtime.use_onednn_fp32()
        torch.manual_seed(0)
        a, b = torch.randn(2, 300, 300)
        exact = a.double() @ b.double()
        assert float(((a @ b) - exact).abs().max() / exact.abs().max()) < 3e-6
    finally:
        backend.fp32_precision = before


def test_seeds_are_a_function_of_the_place() -> None:
    def draw(*place: int) -> torch.Tensor:
        seed_forward(*place)
        return torch.rand(4)

    assert torch.equal(draw(1, 2, 3, 4), draw(1, 2, 3, 4))
    places = [(1, 2, 3, 4), (2, 2, 3, 4), (1, 3, 3, 4), (1, 2, 4, 4), (1, 2, 3, 5), (2, 1, 3, 4)]
    assert len({tuple(draw(*place).tolist()) for place in places}) == len(places)
    combined = {hash_combine(1, step, 0, micro) for step, micro in product(range(500), range(4))}
    assert len(combined) == 2000


def test_allocator_is_tuned_without_torch() -> None:
    code = "import sys; from clozelab.training.host import tune_allocator; tune_allocator();"
    code += "print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_memory_of_a_large_step_stays_with_the_process() -> None:
    """A step of more than 2 GiB is freed and asked for again without new pages."""
    code = """if True:
        import resource
        from clozelab.training.host import tune_allocator

        tune_allocator()
        for _ in range(2):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            blocks = [b"x" * 2**26 for _ in range(36)]
            del blocks
            print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    first, second = map(int, printed.split())
    assert first > 1000 and second < first / 100


def test_halves_until_it_fits(monkeypatch):
    monkeypatch.setattr(gc, "collect", int)  # looking through a test session takes a second
    tried = []

    def attempt(size: int) -> None:
        tried.append(size)
        if size > 9:
            raise torch.OutOfMemoryError("no room")

    assert largest_that_fits(attempt, 64) == 8 and tried == [64, 32, 16, 8]
    assert largest_that_fits(attempt, 7) == 7


def test_a_trial_changes_nothing():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.seen = 0

        def forward(self, batch):
            self.seen += len(batch["x"])
            assert self.linear.weight.grad is None
            return [
                SimpleNamespace(loss_sum=self.linear(batch["x"]).sum()),
                SimpleNamespace(loss_sum=torch.zeros(())),
            ]

    model = Model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try_step(model, {"x": torch.ones(5, 3), "name": "plain"}, torch.device("cpu"), "32-true")
    assert model.seen == 5
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (torch.OutOfMemoryError("no room"), ValueError, "gradient_checkpointing"),
        (RuntimeError("something else"), RuntimeError, "something else"),
    ],
)
def test_where_nothing_fits_or_another_error_comes(monkeypatch, error, kind, reason):
    monkeypatch.setattr(gc, "collect", int)  # looking through a test session takes a second

    def attempt(size: int) -> None:
        raise error

    with pytest.raises(kind, match=reason):
        largest_that_fits(attempt, 4)


# What is imported in a process of its own, and what still works there

QUICK_METRICS = """
import sys
from clozelab.training.host import import_torchmetrics_quickly
import_torchmetrics_quickly()
loaded = [name for name in ("transformers", "matplotlib", "scipy.signal") if name in sys.modules]
assert not loaded, loaded
import torch, torchmetrics
from lightning.pytorch.core.module import Metric
assert Metric is torchmetrics.Metric
accuracy = torchmetrics.classification.BinaryAccuracy()
accuracy.update(torch.tensor([1, 0, 1]), torch.tensor([1, 1, 1]))
assert abs(float(accuracy.compute()) - 2 / 3) < 1e-6
import scipy.signal
assert scipy.signal.convolve([1.0], [2.0]) == [2.0], "the real one, afterwards"
import matplotlib.pyplot
print("fine")
"""


def test_metrics_work_and_nothing_optional_is_imported() -> None:
    command = [sys.executable, "-c", QUICK_METRICS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.strip() == "fine", done.stderr[-2000:]


def test_who_imported_torchmetrics_first_keeps_all_of_it() -> None:
    import torchmetrics

    before = dict(sys.modules)
    import_torchmetrics_quickly()
    assert sys.modules == before and sys.modules["torchmetrics"] is torchmetrics
