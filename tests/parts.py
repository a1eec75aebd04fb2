"""Data and modules of tasks as a stage builds them: each setting goes to the part that takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from clozelab.addresses import parameters_of
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.labelled import TrainingPlan
from clozelab.modules.finetuning import FineTuning
from clozelab.tasks.choices import ChoiceUnit
from clozelab.tasks.classes import ClassTarget, class_or_number
from clozelab.tasks.contrast import ContrastTarget
from clozelab.tasks.features import FeatureUnit
from clozelab.tasks.numbers import NumberTarget
from clozelab.tasks.passages import PassageUnit
from clozelab.tasks.right_choice import ChoiceTarget
from clozelab.tasks.similarity import CosineTarget, VectorClassTarget, similarity
from clozelab.tasks.spans import SpanTarget
from clozelab.tasks.tags import TagTarget
from clozelab.tasks.texts import TextUnit, VectorUnit
from clozelab.tasks.words import WordUnit

TEXTS = {"text_columns": ["text"], "label_column": "label"}
PAIRS = {"text_columns": ["first", "second"], "label_column": "label", "pairs": "apart"}
WORDS = {"file_format": "columns", "word_column": 0, "tag_column": -1, "document_context": True}
ENDINGS = [f"ending{number}" for number in range(4)]
FILES = {
    "validation_fraction": 0.1,
    "validation_seed": 1,
    "test_files": None,
    "how_to_get": "make it",
    "evaluation_tokens": 64,
    "plan": TrainingPlan(4, 1.0, 1, None, 1, 0),
}
"""What a test leaves out that is about something else."""
LABELS = {"labels": None, "positive_label": None, "number_range": None}


def of(part: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    """The part, with those of the settings that it takes."""
    names = parameters_of(part)
    return part(**{name: value for name, value in settings.items() if name in names})


def data_of(unit: Any, target: Any, settings: Mapping[str, Any]) -> FinetuningDataModule:
    settings = {**FILES, **settings}
    parts = {"unit": of(unit, settings), "target": of(target, settings)}
    data: FinetuningDataModule = of(FinetuningDataModule, {**settings, **parts})
    taken = {**parameters_of(unit), **parameters_of(target), **parameters_of(FinetuningDataModule)}
    assert settings.keys() <= taken.keys() | {"metrics", "number_range"}
    return data


def ready(data: FinetuningDataModule) -> FinetuningDataModule:
    """With its splits read."""
    data.setup()
    return data


def labelled_data(**settings: Any) -> FinetuningDataModule:
    metrics = ["spearman" if settings.get("numeric_labels") else "accuracy"]
    defaults = {"metrics": metrics, "numeric_labels": False, "class_weights": None}
    settings = {**LABELS, **defaults, "pooling": "mean", **settings}
    if settings.get("pairs") == "apart":
        return data_of(VectorUnit, similarity, settings)
    del settings["pooling"]
    return data_of(TextUnit, class_or_number, settings)


def contrastive_data(**settings: Any) -> FinetuningDataModule:
    defaults = {"metrics": ["spearman"], "pooling": "mean", "temperature": 0.05, "dropout": None}
    given = {**LABELS, **defaults, "number_range": [0, 5], **settings}
    return data_of(VectorUnit, ContrastTarget, given)


def choice_data(**settings: Any) -> FinetuningDataModule:
    return data_of(ChoiceUnit, ChoiceTarget, {"metrics": ["accuracy"], **settings})


def squad_data(**settings: Any) -> FinetuningDataModule:
    return data_of(
        PassageUnit, SpanTarget, {"n_best_size": 20, "max_answer_length": 30, **settings}
    )


def tag_data(**settings: Any) -> FinetuningDataModule:
    return data_of(WordUnit, TagTarget, settings)


def feature_data(**settings: Any) -> FinetuningDataModule:
    return data_of(FeatureUnit, TagTarget, settings)


def module_of(unit: Any, target: Any, **training: Any) -> FineTuning:
    return FineTuning(unit=unit, target=target, **training)


def classification(
    *, names: Any = (), metrics: Any, number_range: Any = None, **training: Any
) -> FineTuning:
    """Of texts; of numbers where there are no names."""
    target: Any
    if names:
        target = ClassTarget(labels=names, metrics=metrics)
    else:
        target = NumberTarget(metrics=metrics, number_range=number_range)
    return module_of(TextUnit(**TEXTS), target, **training)


def siamese(
    *, names: Any = (), metrics: Any, pooling: str, number_range: Any = None, **training: Any
) -> FineTuning:
    target: Any
    if names:
        target = VectorClassTarget(labels=names, metrics=metrics)
    else:
        target = CosineTarget(metrics=metrics, number_range=number_range)
    return module_of(VectorUnit(pooling=pooling, **PAIRS), target, **training)


def contrastive(
    *,
    metrics: Any,
    pooling: str,
    temperature: float,
    dropout: float | None,
    number_range: Any = None,
    **training: Any,
) -> FineTuning:
    target = ContrastTarget(
        temperature=temperature,
        dropout=dropout,
        numeric_labels=True,
        metrics=metrics,
        number_range=number_range,
        labels=None,
        positive_label=None,
    )
    unit = VectorUnit(pooling=pooling, train_columns=["first", "second"], **PAIRS)
    return module_of(unit, target, **training)


def span_extraction(
    *, n_best_size: int, max_answer_length: int, with_unanswerable: bool, **training: Any
) -> FineTuning:
    unit = PassageUnit(with_unanswerable=with_unanswerable, doc_stride=8, max_query_length=8)
    target = SpanTarget(
        n_best_size=n_best_size,
        max_answer_length=max_answer_length,
        with_unanswerable=with_unanswerable,
    )
    return module_of(unit, target, **training)


def feature_tagging(
    *, names: Any, features: str, entity_tags: bool = False, **training: Any
) -> FineTuning:
    unit = FeatureUnit(features=features, **WORDS)
    return module_of(unit, TagTarget(entity_tags=entity_tags).with_classes(names), **training)
