"""A task's data module, from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from clozelab.addresses import build_parts, parameters_of
from clozelab.datamodules.finetuning import FinetuningDataModule, TaskInputs, TrainingPlan
from clozelab.files.digests import digest
from clozelab.models.encoder import Encoder
from clozelab.modules.finetuning import FineTuning
from clozelab.modules.model import max_positions, open_tokenizer
from clozelab.runs.code import code_version
from clozelab.schema import EncoderStageConfig
from clozelab.text.plain import JsonObject, PlainMapping, ReadOnlyJson

READ_ONCE = TrainingPlan(
    global_batch_size=1,
    epochs=1,
    evaluations_per_epoch=1,
    max_train_examples=None,
    seed=0,
    num_workers=0,
)
"""The plan of an evaluation, which trains on nothing."""
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
    """Build the data module of a task. Its files are there; nothing has been read yet.

    Args:
        task: the settings of the task: unit, target, data, how_to_get.
        inputs: what the data of every task is made from.
        plan: length and size of the training.
        hub: whether a fine-tuning takes the files from the hub. None for an evaluation, which
            cannot, so that a message about a missing file does not advise it.

    Raises:
        ValueError: a setting is wrong, or a file is missing.
    """
    further = {}
    if hub is False and task["hub"]:
        further["how_to_get"] = f"{task['data']['how_to_get']}; or say hub=true"
    unit, target = build_parts(task)
    # The other settings have gone to the unit and the target.
    own = parameters_of(FinetuningDataModule)
    settings = {key: value for key, value in task["data"].items() if key in own}
    return FinetuningDataModule(
        inputs=inputs, plan=plan, unit=unit, target=target, **(settings | further)
    )


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
    """Hash of the code that reads a task's files: examples that other code cached are not used."""
    parts = [task[part]["_target_"] for part in ("unit", "target")]
    return digest(code_version([*parts, "datamodules.finetuning"]))
