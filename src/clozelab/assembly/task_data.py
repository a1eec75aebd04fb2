"""A task's data module, from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from clozelab.addresses import PARTS_OF_TASK, SETTINGS_OF_TASK, is_permitted, parameters_of
from clozelab.assembly.labelled import READ_ONCE, labelled_data
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.labelled import TaskInputs, TrainingPlan
from clozelab.files.digests import digest
from clozelab.models.encoder import Encoder
from clozelab.modules.finetuning import FineTuning
from clozelab.modules.model import max_positions, open_tokenizer
from clozelab.runs.code import code_version
from clozelab.schema import EncoderStageConfig
from clozelab.text.plain import JsonObject, PlainMapping, ReadOnlyJson

TRAINING_ARGUMENTS = (
    "optimizer_factory",
    "schedule_factory",
    "total_steps",
    "gradient_clip_norm",
    "seed",
    "log_interval_steps",
    "keep_best_weights",
)
"""Arguments of a task's module that only a training needs."""


def build_task_data(
    task: ReadOnlyJson,
    inputs: TaskInputs,
    plan: TrainingPlan = READ_ONCE,
    *,
    hub: bool | None = None,
) -> FinetuningDataModule:
    """Build the data module of a task, as `labelled_data` says."""
    return labelled_data(FinetuningDataModule, task, inputs, plan, hub=hub)


def task_module_arguments(task: ReadOnlyJson, data: FinetuningDataModule) -> JsonObject:
    """The arguments of a FineTuning that its task decides: data, metric and settings.

    `data` is set up: its target knows its classes. Settings of the unit and the target are theirs.
    """
    arguments = {
        "unit": data.unit,
        "target": data.target,
        "validation": data.validation,
        "metric": task["metric"],
    }
    own = parameters_of(FineTuning)
    for key, value in task["module"].items():
        if key in own:
            arguments[key] = value
    return arguments


def untrained_module(
    task: PlainMapping,
    data: FinetuningDataModule,
    encoder: Encoder,
    head: str,
    given_heads: Mapping[str, nn.Module],
) -> FineTuning:
    """A task's module that only scores or predicts: what it would train with is 0.

    The encoder is taken as it is: what adapted it in its training is in its weights.
    """
    of_training = dict[str, Any](dict.fromkeys(TRAINING_ARGUMENTS, 0))
    return FineTuning(
        encoder=encoder,
        head=head,
        given_heads=given_heads,
        **task_module_arguments(task, data),
        **of_training,
    )


def task_inputs(
    cfg: EncoderStageConfig, name: str, task: ReadOnlyJson | None, folder: Path
) -> TaskInputs:
    """What a run on an encoder's folder makes data from; `task`: None of a measure without one."""
    return TaskInputs(
        name,
        Path(cfg.data_dir),
        Path(cfg.cache_dir),
        open_tokenizer(folder, cfg.token_types),
        max_positions(folder),
        max_unknown_share=cfg.max_unknown_share,
        code=task_code(task) if task else "",
        seed=cfg.seed,
    )


def task_code(task: ReadOnlyJson) -> str:
    """Hash of the code that reads a task's files: examples that other code cached are not used.

    With a part of the user's all settings count, too: its `reading` may lack one that it uses.
    """
    parts = [task[part]["_target_"] for part in PARTS_OF_TASK]
    code = code_version([*parts, "datamodules.labelled"])
    if any(map(is_permitted, parts)):
        settings = {name: task.get(name) for name in (*PARTS_OF_TASK, *SETTINGS_OF_TASK)}
        code["settings"] = digest(settings)
    return digest(code)
