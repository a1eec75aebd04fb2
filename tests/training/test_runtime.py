"""Precision choice, threads, ceiling, seeds, allocator."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from clozelab.training import runtime
from clozelab.training.checkpoints import mix, seed_forward


@pytest.mark.parametrize(
    ("flags", "expected"), [({"avx512_bf16"}, "bf16-mixed"), ({"amx_bf16"}, "bf16-mixed"), ({"avx2"}, "32-true")]
)
def test_auto_precision_follows_the_processor(monkeypatch: pytest.MonkeyPatch, flags: set[str], expected: str) -> None:
    monkeypatch.setattr(runtime, "cpu_flags", lambda: frozenset(flags))
    assert runtime.choose_precision("auto", "cpu") == expected
    assert runtime.choose_precision("32-true", "cpu") == "32-true"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="precision is 'fp8'"):
        runtime.choose_precision("fp8", "cpu")
    with pytest.raises(ValueError, match=r"trainer\.threads"):
        runtime.set_threads(0)


def test_ceiling_is_a_rate() -> None:
    assert 1e8 < runtime.matmul_ceiling("32-true", torch.device("cpu"), seconds=0.05) < 1e15


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
    assert len({mix(1, step, 0, micro) for step in range(500) for micro in range(4)}) == 2000


def test_allocator_is_tuned_without_torch() -> None:
    code = (
        "import sys; from clozelab.training.host import tune_allocator; r = tune_allocator();"
        "assert 'torch' not in sys.modules; print(r)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in {"True", "False"}
