"""Overrides of a fine-tuning that are possible and cannot be meant: refused as soon as a job is composed."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

SCALE_OWNED = ("learning_rate", "epochs", "global_batch_size")
"""Keys of a task that a scale may replace."""
ARM = "${encoder_arm}"
GIVEN_ROW = "given"
"""The row of a table for an encoder from elsewhere (encoder=FOLDER): no pre-training then."""


def check_overrides(config: DictConfig) -> None:
    """Refuse a task's value that changes nothing, and an encoder whose scores would be filed as another's.

    Args:
        config: of a fine-tuning, while Hydra's own configuration says how it was composed.

    Raises:
        ValueError: says what to write instead.
    """
    if not HydraConfig.initialized():
        return
    given = {word.lstrip("+").partition("=")[0] for word in HydraConfig.get().overrides.task}
    _refuse_idle(config, given)
    _refuse_misfiled_encoder(config, given)


def _refuse_idle(config: DictConfig, given: Collection[str]) -> None:
    for key in SCALE_OWNED:
        if f"task.{key}" in given and config[key] != config.task[key]:
            raise ValueError(
                f"task.{key}={config.task[key]} would change nothing: {key} is {config[key]} here, which scale="
                f"{config.scale.name} or another override sets. Say {key}={config.task[key]} instead"
            )


def _refuse_misfiled_encoder(config: DictConfig, given: Collection[str]) -> None:
    raw: Any = OmegaConf.to_container(OmegaConf.masked_copy(config, ["row", "encoder"]), resolve=False)
    if config.encoder_arm is None or ARM in str(raw["encoder"]):
        return
    if raw["row"] == ARM and "encoder_arm" not in given:
        raise ValueError(
            f"encoder={config.encoder} has no name yet, and its scores would be filed as the row {config.row}: say "
            "row=NAME too"
        )
    runtime = HydraConfig.get().runtime
    if "row" not in runtime.choices:
        return
    takes_any = any(Path(source.path, "row", f"{GIVEN_ROW}.yaml").is_file() for source in runtime.config_sources)
    if config.row == config.encoder_arm or not takes_any:
        instead = f"take row={GIVEN_ROW}" if takes_any else "`clozelab finetune encoder=FOLDER row=NAME` scores another"
        raise ValueError(
            f"encoder={config.encoder}: the row {config.row} stands for the encoder that the arm {config.encoder_arm} "
            f"has trained; {instead}"
        )
