"""What the machine is said to do; the GPU's parts with torch's answers made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from clozelab.checks import doctor
from clozelab.training import runtime
from clozelab.training.runtime import onednn_fp32, onednn_fp32_error


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MEASURE_SECONDS", 0.01)


def test_every_ceiling_and_choice_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    facts = list(doctor.machine_facts(cores=2))
    names = [fact.name for fact in facts]
    for name in ("matmul fp32", "matmul bf16", "precision", "threads", "fp32 through oneDNN"):
        assert name in names
    assert next(fact.value for fact in facts if fact.name == "threads") == str(
        torch.get_num_threads()
    )
    doctor.print_facts(facts, {"torch": "9.9"})
    text = capsys.readouterr().out
    assert "FLOP/s" in text and "9.9" in text


@pytest.mark.parametrize(
    ("error", "value", "note"),
    [
        (None, "not available", "default library"),
        (1e-6, "on: 'bf16' stays fp32-accurate here", "relative error 1.0e-06"),
        (3e-3, "off: it really rounds to bf16 here", "relative error 3.0e-03, above 2e-06"),
    ],
)
def test_onednn_says_which_it_is(
    monkeypatch: pytest.MonkeyPatch, error: float | None, value: str, note: str
) -> None:
    monkeypatch.setattr(doctor, "onednn_fp32_error", lambda: error)
    (fact,) = [one for one in doctor.automatic_choices(2) if one.name == "fp32 through oneDNN"]
    assert fact.value == value and note in fact.note


def test_probing_leaves_the_switch_as_it_was() -> None:
    backend = getattr(torch.backends.mkldnn, "matmul", None)
    if not hasattr(backend, "fp32_precision"):
        pytest.skip("this torch has no such switch")
    before = backend.fp32_precision
    with onednn_fp32() as there:
        assert not there or backend.fp32_precision == "bf16"
    onednn_fp32_error()
    assert backend.fp32_precision == before


def test_a_rounding_processor_keeps_the_default_library(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = getattr(torch.backends.mkldnn, "matmul", None)
    before = getattr(backend, "fp32_precision", None)
    monkeypatch.setattr(runtime, "onednn_fp32_error", lambda: 1e-3)
    assert not runtime.use_onednn_fp32()
    assert getattr(backend, "fp32_precision", None) == before


def test_without_a_gpu_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (fact,) = doctor.gpu_facts()
    assert fact.value.endswith("sees none")


def test_gpu_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "Made up 9000")
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda number: SimpleNamespace(total_memory=8 << 30)
    )
    monkeypatch.setattr(doctor, "matmul_ceiling", lambda *rest: 7.9e14)
    facts = {fact.name: fact for fact in doctor.gpu_facts()}
    assert facts["cuda:0"].value == "Made up 9000" and facts["cuda:0"].note == "8 GiB"
    assert facts["matmul bf16"].value == "790.0 TFLOP/s"
    assert facts["precision"].value == "bf16-mixed"
