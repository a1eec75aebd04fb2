"""Sweeps through Ray: what a job asks for, the missing package, and a real sweep where Ray is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from clozelab.ledger.ray_launcher import RayLauncher, gpus_of


@pytest.mark.parametrize(
    ("trainer", "asked", "gpus"),
    [
        ({"accelerator": "cpu", "devices": 2}, "auto", 0.0),
        ({"accelerator": "gpu", "devices": 1}, "auto", 1.0),
        ({"accelerator": "auto", "devices": 4}, "auto", 4.0),
        ({"accelerator": "gpu", "devices": 1}, 0.25, 0.25),
    ],
)
def test_gpus_of_a_job(trainer: dict[str, object], asked: float | str, gpus: float) -> None:
    assert gpus_of(OmegaConf.create({"trainer": trainer}), asked) == gpus


def test_what_ray_cannot_do_is_said_early(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"num_nodes is 2.*hydra/launcher=slurm"):
        gpus_of(OmegaConf.create({"trainer": {"num_nodes": 2, "devices": 1}}), "auto")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'clozelab\[ray\]'"):
        RayLauncher(address=None, num_cpus=1, num_gpus="auto", grace_seconds=1)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra ray is missing")
def test_a_sweep_on_ray(tmp_path: Path) -> None:
    """One job fails and the other is whole; the complete one is skipped the next time, the failed one tried again."""
    text = "\n\n".join("\n".join("ba be bi bo bu ca ce" for _ in range(6)) for _ in range(60))
    (tmp_path / "text.txt").write_text(text)
    words = [
        "hydra/launcher=ray", "corpus=text", "corpus.sources.0.path=text.txt", "corpus.vocab_size=40",
        "corpus.validation_fraction=0.2", f"data_dir={tmp_path}", f"cache_dir={tmp_path / 'cache'}",
        f"runs_dir={tmp_path / 'runs'}", "model.hidden_size=16", "model.num_hidden_layers=1",
        "model.num_attention_heads=2", "model.intermediate_size=32", "model.max_position_embeddings=64",
        "phases=[{seq_length: 16, steps: 4, global_batch_size: 8, micro_batch_size: 4}]",
        "validation.interval_steps=99999", "validation.instances=20", "validation.seq_length=16",
        "trainer.precision=32-true", "trainer.progress_bar=false", "schedule.warmup_fraction=0.1,7",
        "arm=warmup-${schedule.warmup_fraction}",
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "COLUMNS": "200"}
    command = [sys.executable, "-m", "clozelab", "pretrain", "-m", *words]
    for expected in ("1 complete, 1 failed", "1 skipped, 1 failed"):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 1 and expected in done.stderr, done.stderr
        assert "schedule.warmup_fraction is 7" in done.stderr
    record = json.loads((tmp_path / "runs/adhoc/demo/pretrain/warmup-0.1/seed-1/run.json").read_text())
    assert (record["status"], record["sessions"]) == ("complete", 1)
