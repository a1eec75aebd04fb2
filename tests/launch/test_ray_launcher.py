"""Sweeps through Ray: what a job asks for, the missing package, and a real sweep where Ray is
installed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.cluster.engines import Engine, Place, pretraining
from tests.composing import given
from tests.launch import test_slurm_launcher as tiny
from tests.screens import refuses

from clozelab.launch.ray_launcher import RayLauncher, gpus_of

data = tiny.data


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
    assert gpus_of(given("pretrain", {"trainer": trainer}), asked) == gpus


def test_what_ray_cannot_do_is_said_early(monkeypatch: pytest.MonkeyPatch) -> None:
    with refuses("trainer.num_nodes is 2: hydra/launcher=ray runs each job on one"):
        gpus_of(given("pretrain", {"trainer": {"num_nodes": 2, "devices": 1}}), "auto")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'clozelab\[ray\]'"):
        RayLauncher(address=None, num_cpus=1, num_gpus="auto", grace_seconds=1)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="the extra ray is missing")
def test_a_sweep_on_ray(data: Path, tmp_path: Path) -> None:
    """One job fails and the other is whole; the complete one is skipped the next time, the failed
    one tried again.
    """
    arms = ("schedule.warmup_fraction=0.1,7", "arm=warmup-${schedule.warmup_fraction}")
    place = Place(data, tmp_path, Engine("ray", ("hydra/launcher=ray",), {}))
    for expected in ({"complete": 1, "failed": 1}, {"skipped": 1, "failed": 1}):
        text = place.run(*pretraining(*arms, steps=6), status=1)
        assert tiny.counts(text) == expected
        assert "schedule.warmup_fraction is 7" in text
    assert {name: one["sessions"] for name, one in tiny.states(tmp_path).items()} == {
        "warmup-0.1/seed-1": 1
    }
