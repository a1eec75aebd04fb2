"""What a stage refuses before anything slow, and before it claims a run folder for a wrong value."""

from __future__ import annotations

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import nn

from clozelab.ledger.targets import locate
from clozelab.modules.encoder_folder import check_initialisation
from clozelab.modules.finetuning import check_metric


def check_finetuning(cfg: DictConfig) -> None:
    """ValueError naming a wrong strategy, head, initialisation, metric, or value of optimizer or schedule."""
    if cfg.trainer.strategy == "fsdp":
        raise ValueError("fine-tuning runs on one device or with trainer=ddp; trainer=fsdp is for pre-training")
    module = locate(cfg.task.module["_target_"], "task.module")
    module.check_head(cfg.head)
    check_initialisation(cfg.initialisation)
    check_metric(cfg.task.metric, module.score_keys(cfg.task.module, cfg.task.data))
    optimizer = instantiate(cfg.optimizer, _convert_="all")([("probe", nn.Parameter(torch.zeros(1)))])
    instantiate(cfg.schedule, _convert_="all")(optimizer, total_steps=1)
