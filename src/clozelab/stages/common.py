"""What the training stages build from the same parts of the configuration."""

from __future__ import annotations

from typing import Any

from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf

from clozelab.ledger.run import Run
from clozelab.training.metrics_csv import MetricsCsv

HARDWARE_KEYS = ("accelerator", "devices", "num_nodes", "strategy", "precision", "threads")


def build_loggers(cfg: DictConfig, run: Run, *, arm: str, name: str) -> list[Logger]:
    """metrics.csv always, and the tracker where one is chosen; `name` is the run's inside the experiment."""
    loggers: list[Logger] = [MetricsCsv(run.dir)]
    if cfg.logger and "_target_" in cfg.logger:
        config: Any = OmegaConf.to_container(cfg, resolve=False)  # interpolations may hide secrets
        tracker = instantiate(cfg.logger)
        loggers.append(tracker(folder=run.dir, experiment=cfg.experiment, arm=arm, name=name, config=config))
    return loggers
