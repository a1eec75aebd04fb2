"""What a stage refuses before anything slow, and before it claims a run folder for a wrong value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import nn

from clozelab.ledger.targets import locate
from clozelab.models.config import BertConfig
from clozelab.models.weights import read_config_dict
from clozelab.modules.encoder_folder import check_initialisation
from clozelab.modules.finetuning import check_metric
from clozelab.modules.pretraining import check_phases, check_validation
from clozelab.resolvers import kept_step, total_steps
from clozelab.training.position_growth import check_position_growth
from clozelab.training.trainer import Hardware

LEAST = {"seed": 0, "gradient_clip_norm": 0, "trainer.log_interval_steps": 1, "trainer.num_workers": 0}
"""Of every run that trains. A gradient cut to a negative norm would be turned round, without a word."""


def check_pretraining(cfg: DictConfig, plain: dict[str, Any], hardware: Hardware) -> None:
    """Everything about a pre-training run that can be wrong without looking at the corpus.

    ValueError names the key; `plain` is the resolved configuration.
    """
    check_phases(plain["phases"], cfg.model.max_position_embeddings, hardware.world_size)
    check_validation(plain["validation"], plain["phases"], cfg.model.max_position_embeddings)
    check_position_growth(cfg.position_growth, plain["phases"], hardware.strategy)
    _check_least(cfg, LEAST | {"checkpoint_interval_steps": 1})
    BertConfig(**plain["model"], vocab_size=1)
    _check_optimizer(cfg, sum(phase["steps"] for phase in plain["phases"]))


def check_finetuning(cfg: DictConfig) -> None:
    """Everything about a fine-tuning that can be wrong without looking at encoder or data.

    ValueError names the key.
    """
    if cfg.trainer.strategy == "fsdp":
        raise ValueError("fine-tuning runs on one device or with trainer=ddp; trainer=fsdp is for pre-training")
    if cfg.trainer.precision == "bf16-true":
        raise ValueError(
            "trainer.precision=bf16-true is for pre-training: fine-tuning's steps are too small for weights of 8 bits,"
            " and its losses are fp32; choose bf16-mixed, or 32-true (on TPUs the only one)"
        )
    _check_least(cfg, LEAST | {"pretrain_seed": 0})
    module = locate(cfg.task.module["_target_"], "task.module")
    module.check_head(cfg.head)
    module.check_settings(cfg.task.module)
    check_initialisation(cfg.initialisation)
    check_metric(cfg.task.metric, module.score_keys(cfg.task.module, cfg.task.data))
    _check_optimizer(cfg, 1)


def _check_least(cfg: DictConfig, least: dict[str, int]) -> None:
    for key, value in least.items():
        if not OmegaConf.select(cfg, key) >= value:
            raise ValueError(f"{key} is {OmegaConf.select(cfg, key)}: it must be at least {value}")


def _check_optimizer(cfg: DictConfig, steps: int) -> None:
    """Built once on a parameter of no use: their constructors know what they can do."""
    optimizer = instantiate(cfg.optimizer, _convert_="all")([("weight", nn.Parameter(torch.zeros(1, 1)))])
    instantiate(cfg.schedule, _convert_="all")(optimizer, total_steps=steps)


def check_fraction(folder: Path, fraction: float) -> None:
    """ValueError for an encoder that was not kept after this fraction of its own run, by what its folder says."""
    if fraction == 1.0:
        return
    made = read_config_dict(folder).get("clozelab", {})
    step, phases = made.get("step"), made.get("phases")
    if step is None or not phases:
        raise ValueError(
            f"encoder_fraction={fraction:g}: {folder} is no encoder that a run has kept on its way (its config.json "
            "names no step); take one that keep_encoders has written, or encoder_fraction=1"
        )
    steps = total_steps(phases)
    if step != kept_step(fraction, steps):
        raise ValueError(
            f"encoder_fraction={fraction:g}: {folder} was kept after step {step} of {steps}, which is "
            f"{step / steps:.3g} of its run; {fraction:g} would be step {kept_step(fraction, steps)}, "
            "which keep_encoders has to name"
        )
