"""Calibration of kernels: a choice is made once, never flips, and noise does not make it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.conftest import TINY

from clozelab.models.config import EncoderConfig
from clozelab.training import runtime
from clozelab.training.runtime import CHUNKS, calibrate, choose, once, time_in_turns

CONFIG = EncoderConfig(**{**TINY, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1})
CHUNK = {str(CHUNKS[1]): 1.0}


def run(folder: Path, **changes):
    settings = {
        "precision": "32-true",
        "instances": {8: 4, 16: 2},
        "steps": {8: 10, 16: 10},
        "predicted_fraction": 0.15,
        "compile": "false",
        "folder": folder,
    }
    return calibrate(CONFIG, **(settings | changes))


def test_a_choice_stands_even_when_the_clock_would_say_otherwise(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "SECONDS_A_CANDIDATE", 0.01)
    torch.manual_seed(4)
    before = torch.random.get_rng_state()
    first = run(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first["compile"] is False and first["chunk_logits"] in CHUNKS
    assert set(first["attention_kernels"]) == {8, 16}
    (file,) = tmp_path.glob("*.json")
    record = json.loads(file.read_text())
    slow, fast = ("bmm", "sdpa") if first["attention_kernels"][8] == "bmm" else ("sdpa", "bmm")
    monkeypatch.setattr(runtime, "time_in_turns", lambda calls, seconds: pytest.fail("measured again"))
    assert run(tmp_path) == first
    # What is in the file decides: turned over there, the choice turns over.
    record["seconds"]["attention"]["8"] = {slow: 2.0, fast: 1.0}
    file.write_text(json.dumps(record))
    assert run(tmp_path)["attention_kernels"][8] == fast


def test_another_shape_is_another_question(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "time_in_turns", lambda calls, seconds: dict.fromkeys(calls, 1.0))
    run(tmp_path)
    run(tmp_path, instances={8: 4, 16: 4})
    run(tmp_path, precision="bf16-mixed")
    assert len(list(tmp_path.iterdir())) == 3


def test_the_first_of_two_at_once_wins(tmp_path):
    def measure():
        once(tmp_path, {"shape": 1}, lambda: {"who": "the other"})
        return {"who": "this"}

    assert once(tmp_path, {"shape": 1}, measure) == {"who": "the other"}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_hair_is_no_reason():
    times = {"attention": {"8": {"bmm": 1.0, "sdpa": 0.97}, "16": {"bmm": 1.0, "sdpa": 0.90}}, "chunk_logits": CHUNK}
    assert choose(times, {}, 2, "false")["attention_kernels"] == {8: "bmm", 16: "sdpa"}


def test_compiling_has_to_pay_over_the_run():
    times = {
        "attention": {},
        "chunk_logits": CHUNK,
        "compile": {"seconds": 10.0, "layer": {"8": {"plain": 0.02, "compiled": 0.01}}},
    }
    assert choose(times, {8: 10_000}, 2, "auto")["compile"] is True
    assert choose(times, {8: 500}, 2, "auto")["compile"] is False
    assert choose(times, {8: 10_000}, 2, "false")["compile"] is False
    assert choose(times | {"compile": None}, {8: 1}, 2, "true")["compile"] is True


def test_candidates_take_turns():
    order = []
    best = time_in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 0.001)
    assert order[:6] == ["a", "b"] * 3 and set(best) == {"a", "b"}
