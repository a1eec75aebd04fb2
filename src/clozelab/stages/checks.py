"""What a stage refuses before anything slow, and before it claims a run folder for a wrong value."""

from __future__ import annotations

from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import nn

from clozelab.ledger.targets import locate
from clozelab.models.weights import read_config_dict
from clozelab.modules.encoder_folder import check_initialisation
from clozelab.modules.finetuning import check_metric
from clozelab.resolvers import kept_step, total_steps


def check_finetuning(cfg: DictConfig) -> None:
    """ValueError naming a wrong strategy, seed, precision, head, initialisation, metric, optimizer or schedule."""
    if cfg.trainer.strategy == "fsdp":
        raise ValueError("fine-tuning runs on one device or with trainer=ddp; trainer=fsdp is for pre-training")
    if cfg.trainer.precision == "bf16-true":
        raise ValueError(
            "trainer.precision=bf16-true is for pre-training: fine-tuning's steps are too small for weights of 8 bits,"
            " and its losses are fp32; choose bf16-mixed, or 32-true (on TPUs the only one)"
        )
    for key in ("seed", "pretrain_seed"):
        if cfg[key] < 0:
            raise ValueError(f"{key} is {cfg[key]}: it must be at least 0")
    module = locate(cfg.task.module["_target_"], "task.module")
    module.check_head(cfg.head)
    check_initialisation(cfg.initialisation)
    check_metric(cfg.task.metric, module.score_keys(cfg.task.module, cfg.task.data))
    optimizer = instantiate(cfg.optimizer, _convert_="all")([("probe", nn.Parameter(torch.zeros(1)))])
    instantiate(cfg.schedule, _convert_="all")(optimizer, total_steps=1)


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
