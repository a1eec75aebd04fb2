"""A task's data module, from its settings."""

from __future__ import annotations

from clozelab.datamodules.finetuning import FinetuningDataModule, TaskInputs, TrainingPlan
from clozelab.targets import build
from clozelab.text.plain import ReadOnlyJson

READ_ONCE = TrainingPlan(
    global_batch_size=1,
    epochs=1,
    evaluations_per_epoch=1,
    max_train_examples=None,
    seed=0,
    num_workers=0,
)
"""Of a task that nothing is trained on: one epoch is read, in any order."""


def build_task_data(
    task: ReadOnlyJson,
    inputs: TaskInputs,
    plan: TrainingPlan = READ_ONCE,
    *,
    hub: bool | None = None,
) -> FinetuningDataModule:
    """Build the task's data module; it has looked for its files, and read nothing yet.

    Args:
        task: its settings.
        inputs: that all formats take.
        plan: of training.
        hub: a fine-tuning's; an evaluation has none, so it is not advised there.
    """
    further = {}
    if hub is False and task["hub"]:
        further["how_to_get"] = f"{task['data']['how_to_get']}; or say hub=true"
    return build("task.data", task["data"])(inputs=inputs, plan=plan, **further)
