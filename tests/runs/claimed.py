"""Pre-training runs that are claimed and completed without a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.composing import Given, given

from clozelab.runs.store import Run

INPUTS = {"corpus": "c" * 64}


def configuration(
    runs: Path, experiment: str = "first", arm: str = "mlm", seed: int = 1, **changes: Any
) -> Given:
    place = runs / experiment / "tiny" / "pretrain" / arm / f"seed-{seed}"
    settings = {
        "experiment": experiment,
        "arm": arm,
        "seed": seed,
        "scale": {"name": "tiny"},
        "runs_dir": str(runs),
        "run_dir": str(place),
        "data_dir": str(runs),
        "phases": [{"steps": 8}, {"steps": 2}],
        "objective": {"weight": 1.0},
        "keep_encoders": [],
        "needs_kept_encoders": False,
        "share_runs": True,
    }
    return given("pretrain", settings | changes)


def claim(config: Given, **more: Any) -> Run:
    return Run.claim(config.run_dir, stage="pretrain", config=config, inputs=INPUTS, **more)


def train(config: Given, steps: tuple[int, ...] = (), weights: str = "", **facts: object) -> Path:
    """A complete run, as the stage leaves it."""
    folder = Path(config.run_dir)
    with claim(config) as run:
        for place in ("encoder", *(f"encoders/step-{step}" for step in steps)):
            (folder / place).mkdir(parents=True)
            (folder / place / "config.json").write_text(place)
            (folder / place / "model.safetensors").write_text(weights)
        curve = "step,tokens,seconds,key,value\n5,100,1.0,validation/loss,4.5\n"
        (folder / "metrics.csv").write_text(curve)
        run.complete(tokens=1000, **facts)
    return folder
