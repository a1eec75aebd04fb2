"""`make bench` in tiny shapes: every comparison runs and its table is whole."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.simulation import ROOT, run_benchmark


def test_the_peer_to_quote_is_the_strongest_of_those_that_fit_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    pretraining, interleaved = (
        importlib.import_module(name) for name in ("pretraining", "interleaved")
    )
    without, with_bf16 = pretraining.usual_peers(False), pretraining.usual_peers(True)
    assert "fp32-compiled" in without and not [peer for peer in without if "bf16" in peer]
    assert "bf16-compiled" in with_bf16 and {*without, *with_bf16} <= {*pretraining.PEERS}
    rates = {"one": [1.0, 9.0, 1.0], "two": [2.0, 2.0, 2.0]}
    sides = {name: SimpleNamespace(rates=values) for name, values in rates.items()}
    assert interleaved.fastest(sides) == "two"


@pytest.mark.slow
def test_all_parts(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    report = tmp_path / "report.md"
    done = run_benchmark("bench", "--smoke", "--threads", 1, "--output", report)
    assert done.returncode == 0, done.stderr[-3000:]
    text = report.read_text()
    for words in (
        "roberta L1 H128",
        "albert L1 H128",
        "electra L1 H128",
        "transformers trainer-fp32",
        "## The family beside transformers",
        "nested tensors, fp32",
        "share of",
    ):
        assert words in text
