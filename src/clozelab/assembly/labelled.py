"""A task's labelled data, from its settings."""

from __future__ import annotations

from typing import TypeVar

from clozelab.addresses import build_parts, parameters_of
from clozelab.datamodules.labelled import LabelledData, TaskInputs, TrainingPlan
from clozelab.text.plain import ReadOnlyJson

D = TypeVar("D", bound=LabelledData)
READ_ONCE = TrainingPlan(
    global_batch_size=1,
    epochs=1,
    evaluations_per_epoch=1,
    max_train_examples=None,
    seed=0,
    num_workers=0,
)
"""The plan of an evaluation, which trains on nothing."""


def labelled_data(
    data_class: type[D],
    task: ReadOnlyJson,
    inputs: TaskInputs,
    plan: TrainingPlan = READ_ONCE,
    *,
    hub: bool | None,
) -> D:
    """Build the data of a task. Its files are there; nothing has been read yet.

    Args:
        data_class: FinetuningDataModule, or LabelledData where nothing is trained or scored.
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
    own = parameters_of(data_class)
    settings = {key: value for key, value in task["data"].items() if key in own}
    return data_class(inputs=inputs, plan=plan, unit=unit, target=target, **(settings | further))
