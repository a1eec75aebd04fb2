"""What a fine-tuned model may predict, and what each such task means for its users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clozelab.models.config_keys import ConfigJson

MULTI_LABEL = "multi_label_classification"
REGRESSION = "regression"


@dataclass(frozen=True)
class ModelTask:
    """What follows for its users from what a model was fine-tuned for."""

    pipeline: str | None  # Hugging Face's name of it, for a model's card; None: it has none
    act: str = "fill"  # what `predict` does where nobody names an act
    problem_type: str | None = None  # of config.json, as transformers reads it


MODEL_TASKS: dict[str, ModelTask] = {}  # by the names that `Model.task` has
MODEL_TASKS["classification"] = ModelTask("text-classification", "classify")
MODEL_TASKS["multi_label"] = ModelTask("text-classification", "classify", MULTI_LABEL)
# Each output is a label of its own: "more than this class".
MODEL_TASKS["ordinal"] = ModelTask("text-classification", "classify", MULTI_LABEL)
MODEL_TASKS["regression"] = ModelTask("text-classification", "classify", REGRESSION)
MODEL_TASKS["tags"] = ModelTask("token-classification", "tag")
# Their pipeline takes a softmax over the one output of a word, which is 1.0 whatever it says.
MODEL_TASKS["word_regression"] = ModelTask(None, "tag", REGRESSION)
# `predict` has no act for choices: it says that there is no head to fill a mask with.
MODEL_TASKS["choices"] = ModelTask("multiple-choice")
MODEL_TASKS["spans"] = ModelTask("question-answering", "answer")
MODEL_TASKS["embedding"] = ModelTask("feature-extraction", "embed")
NO_TASK = ModelTask("feature-extraction")


def meaning_of(task: str | None) -> ModelTask:
    """What a model's task means; None is an encoder by itself."""
    if task is None:
        return NO_TASK
    return MODEL_TASKS[task]


def classes_of(config: ConfigJson, outputs: Sequence[str]) -> Sequence[str]:
    """What outputs of these names tell apart: classes with an order, else the outputs themselves.

    The order of another head, which a library left that trained these outputs since, is none.
    """
    ranks = config.get("clozelab", {}).get("answers", {}).get("ranks", [])
    if [f"above {name}" for name in ranks[:-1]] == [*outputs]:
        return ranks
    return outputs


def task_of(kind: str | None, config: ConfigJson, outputs: Sequence[str]) -> str | None:
    """The task of a folder with a head of this kind; None: it is not fine-tuned.

    Args:
        kind: of the head, one of TASK_KINDS (models/leftovers.py); None: there is no such head.
        config: its config.json.
        outputs: names of the head's outputs.
    """
    if kind is None and "pooling" in config.get("clozelab", {}):
        return "embedding"
    problem_type = config.get("problem_type")
    if kind == "tags" and problem_type == REGRESSION:
        return "word_regression"
    if kind != "classification":
        return kind
    # K classes with an order have K - 1 outputs.
    if len(classes_of(config, outputs)) > len(outputs):
        return "ordinal"
    # Labels that do not exclude each other have a probability each.
    if problem_type == MULTI_LABEL:
        return "multi_label"
    if problem_type == REGRESSION or len(outputs) == 1:
        return "regression"
    return kind
