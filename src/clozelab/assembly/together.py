"""Several fine-tuned models of one shape scored as one: their weights, or their predictions.

The uniform average of weights is a model soup (Wortsman et al. 2022). An ensemble is the mean of
probabilities, or of predicted numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.models import folders
from clozelab.models.config_keys import OF_ONE_TASK, Provenance
from clozelab.modules.finetuning import FineTuning
from clozelab.modules.model_tasks import MULTI_LABEL, REGRESSION
from clozelab.modules.sentence_folders import activation_of_number
from clozelab.runs.inputs import require_encoder
from clozelab.schema import EvaluateConfig
from clozelab.tasks.batches import Batch
from clozelab.tasks.target import Target


def check_together(cfg: EvaluateConfig) -> None:
    """ValueError where `models` and `combine` do not go together, or with the measure."""
    if (cfg.models is None) != (cfg.combine == "none"):
        raise ValueError(
            "models=[...] names fine-tuned models and combine=weights|predictions says how they are"
            " scored as one: give both, or neither"
        )
    if cfg.models is not None and (cfg.measure.module or cfg.initialisation == "random"):
        raise ValueError(
            f"combine={cfg.combine} is of fine-tuned models with their own weights: take"
            " measure=labelled and initialisation=pretrained"
        )


def model_folders(models: object) -> list[Path]:
    """The folders that `models` names, a list of folders or patterns (`runs/*/model`), or one.

    ValueError for less than two, for one that holds no model, and for two that are not of one shape
    and task.
    """
    patterns = models if isinstance(models, list) else [models]
    named: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(str(pattern))
        base = Path(path.anchor)
        matches = sorted(base.glob(str(path.relative_to(base))))
        if not matches:
            matches = [path]  # which is refused as it was named
        for match in matches:
            named[require_encoder(match, "models")] = None
    first, *further = named
    if not further:
        raise ValueError(f"models={models} is one folder: name two or more, or say encoder={first}")
    for folder in further:
        if folders.read_config(folder) != folders.read_config(first) or _facts(folder) != _facts(
            first
        ):
            raise ValueError(
                f"{folder} and {first} are of other shapes, tasks or classes: only"
                " models of one row and task are scored together"
            )
    return list(named)


def _facts(folder: Path) -> list[object]:
    """What a folder says of its task and of how it predicts.

    But for what each model has of its own: a threshold, and the rows that it was not trained on.
    """
    config = folders.read_config_dict(folder)
    of_task = config.get("clozelab", {})
    facts = {key: of_task.get(key) for key in ("task", "head", *OF_ONE_TASK)}
    del facts["validation_fold"], facts["held_out"]
    answers = of_task.get("answers", {})
    facts["answers"] = answers | {"threshold": answers.get("threshold") is None}
    return [config.get("id2label"), activation_of_number(folder), facts]


def check_folds(models: Sequence[Path]) -> None:
    """ValueError for models that are to be scored on a fold that some of them were trained on."""
    held_out = {folders.read_provenance(folder).get("validation_fold") for folder in models}
    if len(held_out) > 1:
        raise ValueError(
            "combine= of models that were trained on other folds: each fold was in the training of"
            " some of them, so name a file that was in none, measure.task.data.validation_file=FILE"
        )


def mean_threshold(models: Sequence[Path]) -> Provenance:
    """What the first model's folder says; of several models, with the mean of their thresholds."""
    saved = [folders.read_provenance(folder) for folder in models]
    thresholds = []
    for one in saved:
        threshold = one.get("answers", {}).get("threshold")
        if threshold is not None:
            thresholds.append(threshold)
    first = saved[0]
    if len(models) > 1 and len(thresholds) == len(models):
        source = f"the mean of {len(models)} models' own"
        first["answers"] |= {"threshold": fmean(thresholds), "threshold_source": source}
    return first


def average_weights(modules: Sequence[FineTuning]) -> None:
    """Give the first module the mean of all weights, added up in fp64."""
    states = [module.state_dict() for module in modules]
    mean = {}
    for name, value in states[0].items():
        mean[name] = value
        if value.is_floating_point():
            total = torch.stack([state[name].double() for state in states])
            mean[name] = total.mean(0).to(value.dtype)
    modules[0].load_state_dict(mean)


def average_predictions(modules: Sequence[FineTuning]) -> None:
    """Let the first module give the mean of all predictions; it has the others as `members`.

    ValueError for a task of other outputs than classes, tags and numbers.
    """
    first, *further = modules
    target = first.target
    if target.problem_type is None and not target.classes:
        raise ValueError(
            "combine=predictions averages the probabilities of classes or tags, and numbers; this"
            " task has neither: combine=weights"
        )
    first.members = nn.ModuleList(further)
    own_logits = first.logits

    def logits(batch: Batch) -> Tensor:
        outputs = [own_logits(batch)]
        for module in further:
            outputs.append(module.logits(batch))
        return mean_of(target, first.output_head, torch.stack(outputs))

    first.logits = logits  # type: ignore[method-assign]


def mean_of(target: Target, head: nn.Module, outputs: Tensor) -> Tensor:
    """[M, ...] fp32 of M models -> [...]: outputs whose probabilities are the mean of theirs."""
    # A cross-encoder's number passes a sigmoid later.
    is_cross_encoder = hasattr(head, "output_activation")
    if is_cross_encoder or target.problem_type == MULTI_LABEL:
        # log p - log(1 - p), as torch.logit of a probability that is 1 in fp32 would be infinite
        return F.logsigmoid(outputs).logsumexp(0) - F.logsigmoid(-outputs).logsumexp(0)
    if target.problem_type == REGRESSION:
        return outputs.mean(0)
    return torch.logsumexp(outputs.log_softmax(-1), 0) - math.log(len(outputs))
