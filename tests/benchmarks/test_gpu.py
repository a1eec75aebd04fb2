"""The GPU checks in tiny shapes on the CPU: every part runs, and one that fails hides no other."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/gpu.py as a module."""
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module("gpu")
    names = "gpu gpu_family gpu_kernels gpu_long gpu_plan interleaved encoders families pretraining"
    for name in names.split():
        if name not in before:
            sys.modules.pop(name, None)
    torch._dynamo.reset()


@pytest.mark.slow
def test_every_part_runs(gpu: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.md"
    assert gpu.main(["--smoke", "--output", str(report)]) == 0
    text = report.read_text()
    assert "All parts ran." in text and "failed" not in text and "WRONG" not in text
    for title, _ in gpu.PARTS.values():
        assert f"## {title}" in text
    assert "| smoke | 16 | clozelab |" in text and "| smoke | 16 | transformers |" in text
    assert "meant" not in text and "mean nothing" in text
    assert capsys.readouterr().out.strip().endswith("All parts ran.")


@pytest.mark.slow
def test_a_part_that_fails_hides_no_other(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(plan: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setitem(gpu.PARTS, "kernels", ("Kernels", broken))
    report = tmp_path / "report.md"
    assert (
        gpu.main(["--smoke", "--parts", "memory", "kernels", "data", "--output", str(report)]) == 1
    )
    text = report.read_text()
    assert "FAILED: RuntimeError: no such kernel" in text and "Failed: kernels." in text
    assert "the loop waited" in text, "the part behind the broken one ran"
    assert "Micro-batch finder, smoke at 16: 4 rows fit" in text and text.count("FAILED") == 1


def test_a_wrong_kernel_is_noticed(
    gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = sys.modules["gpu_kernels"]
    right = kernels.attention
    monkeypatch.setattr(
        kernels,
        "attention",
        lambda q, k, v, layout, **options: 1.3 * right(q, k, v, layout, **options),
    )
    report = tmp_path / "report.md"
    assert gpu.main(["--smoke", "--parts", "kernels", "--output", str(report)]) == 1
    assert "WRONG" in report.read_text()


def test_a_wrong_pair_is_noticed(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two members one has other angles on the device."""
    family = sys.modules["gpu_family"]
    names = ("BERT", "ModernBERT")
    monkeypatch.setattr(family, "PAIRS", {name: family.PAIRS[name] for name in names})
    monkeypatch.setattr(family, "check_long_rows", lambda plan: [])
    right = family.Pair.on_device

    def broken(pair: Any) -> Any:
        model = right(pair)
        positions = model.encoder.embeddings.position_embeddings
        if isinstance(getattr(positions, "table", None), torch.Tensor):
            positions.table.mul_(1.5)
        return model

    monkeypatch.setattr(family.Pair, "on_device", broken)
    report = tmp_path / "report.md"
    assert gpu.main(["--smoke", "--parts", "family", "--output", str(report)]) == 1
    text = report.read_text()
    assert "1 of 3 lines are wrong: ModernBERT" in text
    assert "| BERT, one weight changed on purpose | noticed: gradient differs" in text


def test_without_a_gpu_it_says_what_to_do(gpu: Any, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one here")
    with pytest.raises(SystemExit):
        gpu.main([])
    assert "--smoke" in capsys.readouterr().err
