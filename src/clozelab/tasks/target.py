"""What a task predicts of its examples, or of their words.

A target says how labels become numbers, what a model's outputs are trained on, what they predict,
how that is scored and written down, and what simple rules reach. It knows nothing of how texts
become sequences (unit.py), and nobody else knows a single target. A new one is a file here.

A target is made of settings before any file is read. `with_classes` gives the one that knows the
classes of the training file.

Letters: N examples (or words), B of a batch, K classes or labels.
"""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.metrics.metric import Metric
from clozelab.models.config import EncoderConfig
from clozelab.models.config_keys import Provenance
from clozelab.models.encoder import Encoder
from clozelab.tasks.baselines import Scores
from clozelab.tasks.batches import Batch, logits_fp32
from clozelab.tasks.class_report import ClassReport
from clozelab.tasks.labels import CLASSES, LabelColumn
from clozelab.text.plain import PlainDict

Files = dict[str, Iterable[str]]  # name -> lines


@dataclass(frozen=True)
class Outcome:
    """What a model's outputs for one split are worth.

    `records`: one an example, JSON values.
    """

    scores: dict[str, float]
    records: list[PlainDict]
    is_collapsed: bool = False  # the same answer for (nearly) every example
    num_entities: int | None = None  # in the labels, where the score is of entities


class Target(ABC):
    """Base of all targets; `classes` are named in the order of their indices."""

    # kinds of units whose states it predicts from; none: any
    units: ClassVar[tuple[str, ...]] = ()
    learns_from_labels: ClassVar[bool] = True  # of the training file
    # of a batch with each other, as negatives: lengths of its own would tell an example apart
    compares_examples: ClassVar[bool] = False
    # kinds of the output layer (models/families/bert.py), of which the last stays; none: no layer
    head_kinds: ClassVar[tuple[str, ...]] = ("classification",)
    head_name: ClassVar[str] = "classifier"  # of the output layer among the module's parts
    problem_type: ClassVar[str | None] = None  # in a model's config.json
    predicts_numbers: ClassVar[bool] = False
    one_label_each: ClassVar[bool] = True  # an example has one label, neither none nor several
    # what the end of a training names; RUN stands for its folder
    next_command: ClassVar[str] = "predict RUN text=..."
    expects: str = CLASSES  # what a column of labels holds (labels.py)
    configured_classes: Sequence[str] | None = None  # classes that a configuration lists
    listed: Sequence[str] = ()  # texts that are labels whatever they look like
    classes: Sequence[str] = ()
    positive_label: str | None = None  # the class that an F1 is of, where it is known
    metrics: Sequence[Metric]  # what `evaluate` computes

    def __init_subclass__(cls) -> None:
        """TypeError for numbers that a model's folder would call probabilities of a label."""
        if cls.predicts_numbers and cls.problem_type is None:
            raise TypeError(f"{cls.__name__} predicts numbers: its problem_type is `regression`")

    # Settings, before a file is read

    def check_encoder(self, config: EncoderConfig, unit: Any) -> None:
        """ValueError for an encoder that would learn nothing from this target."""

    def reading(self) -> PlainDict:
        """What it adds to how files are read, for fingerprints and the key of the data cache.

        Every setting that `encode` uses: else the labels of another value come from the cache (of a
        target of the user's, all its settings are in that key), and pass for the same data.
        """
        return {}

    def config_to_save(self) -> PlainDict:
        """How labels were read, for a model's config.json: names of settings -> values."""
        return {}

    def fitted(self, tokenizer: Tokenizer) -> Self:
        """A copy for an encoder's vocabulary; ValueError where it cannot say what is predicted."""
        return copy.copy(self)

    # Labels

    def of_model(self, classes: Sequence[str]) -> Self:
        """The target of a fine-tuned model with these classes, whatever the files have."""
        return self

    def with_classes(self, classes: Sequence[str]) -> Self:
        """A copy with these classes."""
        return self.renamed(classes)

    def renamed(self, names: Sequence[str]) -> Self:
        """A copy whose predictions call the classes so."""
        renamed = copy.copy(self)
        renamed.classes = list(names)
        return renamed

    def writes_names(self) -> bool:
        """Whether the predictions of a test file have the names of the classes."""
        return True

    def preview_classes(self, labels: Sequence[str]) -> Sequence[str] | None:
        """The classes of a training file with these labels; None where there are none."""
        return None

    def read_cell(self, column: LabelColumn, line: int, cell: object) -> Any:
        """The label of a table's row as text, whatever the cell holds; `column` refuses wrong ones.

        A target whose examples have several labels gives all of them.
        """
        return column.add(line, cell)

    def classes_of(self, labels: Sequence[Any]) -> Sequence[str]:
        """The classes of a training file with these labels; none of what has no classes."""
        return self.classes

    def convert(self, labels: Sequence[Any], path: Path) -> tuple[Sequence[Any], PlainDict]:
        """The labels of a whole file as they are predicted, and counts worth keeping."""
        return labels, {}

    def unknown(self, labels: Sequence[Any]) -> int | None:
        """The place of the first label that is none of the classes."""
        return None

    def encode(self, labels: Sequence[Any]) -> np.ndarray:
        """Labels as files spell them [N] as numbers."""
        raise NotImplementedError(f"{type(self).__name__} has no labels: {labels[:1]}")

    def strata(self, labels: Sequence[Any]) -> NDArray[np.int64] | None:
        """[N]: of what a held-out part has the same shares; None: of nothing."""
        return None

    def shown_labels(self, labels: Sequence[Any]) -> Sequence[str]:
        """Labels as written [N], for a preview."""
        return labels

    def check_training(self, path: Path, split: Any, column_key: str) -> None:
        """ValueError for a training split from which nothing can be learnt; warns of odd ones."""

    def learn_shares(self, labels: np.ndarray) -> None:
        """Take the encoded labels of all training files, where the loss depends on their shares."""

    def check_splits(self, splits: Sequence[tuple[Path, Any]], tokenizer: Tokenizer) -> None:
        """Warn of what makes training and validation, or the vocabulary, fit badly."""

    def outside(self, labels: np.ndarray) -> np.ndarray | None:
        """[N]: labels that cannot be; None: all may be."""
        return None

    def refuse_outside(self, label: str) -> str:
        """What is wrong with a label that is `outside`, and what to do."""
        raise NotImplementedError(label)

    def check_scores(self) -> None:
        """ValueError for a score that means nothing with these classes."""

    def check_validation(self, split: Any) -> None:
        """ValueError for validation labels that the outputs could never be."""

    # The model

    @property
    def num_outputs(self) -> int:
        """Of the output layer."""
        return max(1, len(self.classes))

    @property
    def output_names(self) -> Sequence[str]:
        """What a model's folder calls the outputs: the classes, where each has one."""
        return self.classes

    def prepare_encoder(self, encoder: Encoder) -> None:
        """Set the encoder up for this training."""

    def logits(self, head: nn.Module, states: Tensor, batch: Batch, *, training: bool) -> Tensor:
        """The outputs, in fp32, from what the unit gives for a batch."""
        return logits_fp32(head, states)

    @abstractmethod
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Sum of the losses of all predictions of a batch, a scalar in fp32."""

    def kept(self, logits: Tensor) -> Tensor:
        """What is kept of the outputs of an evaluation batch."""
        return logits

    # Scores, and what is written down

    @abstractmethod
    def evaluate(self, outputs: np.ndarray, split: Any) -> Outcome:
        """Scores and records of a split's outputs."""

    def majority_score(self, name: str, split: Any) -> float | None:
        """What the most frequent answer alone scores; None where that means nothing."""
        return None

    @abstractmethod
    def baselines(self, train: Any, validation: Mapping[str, Any]) -> Scores:
        """What simple rules reach, learnt from `train`.

        `validation` has the main split as "", a further one by its name.
        """

    @abstractmethod
    def prediction_files(
        self, name: str, split: Any, outputs: np.ndarray, scores: Mapping[str, float]
    ) -> Files:
        """Predictions for the test set `name`, in the benchmark's format.

        `scores` are the model's on the validation split.
        """

    def result_files(self, records: Sequence[PlainDict], split: Any, suffix: str) -> Files:
        """What is kept of a split's records; the `suffix` is of a further split."""
        return {f"predictions{suffix}.jsonl": json_lines(records)}

    def class_report(self, records: Sequence[PlainDict]) -> ClassReport | None:
        """Where it fails, class by class; None where there are no classes."""
        return None

    def model_config_to_save(self, scores: Mapping[str, float]) -> PlainDict:
        """What a model's folder has to say to predict as here; `scores` are its best.

        It stands under `answers`, which another fine-tuning on top replaces.
        """
        return {}

    def restore_config(self, saved_config: Provenance) -> PlainDict:
        """Use the settings of a model's folder, so that nothing is chosen on the scored file.

        `saved_config` is what fine-tuning saved there. Returns what the run's record keeps of it.
        """
        return {}


def metrics_of(target: Target, extra_splits: Iterable[str]) -> list[Metric]:
    """The scores of a task; the names are of further validation splits.

    ValueError for a name with which a score would be called as another one is.
    """
    own = {metric.name: metric for metric in target.metrics}
    metrics = dict(own)
    for split in extra_splits:
        for metric in own.values():
            name = f"{split}_{metric.name}"
            if name in metrics:
                raise ValueError(
                    f"task.data.extra_validation_files.{split}: its {metric.name} would be called"
                    f" {name}, as another score of this task is; give the file another name"
                )
            metrics[name] = replace(metric, name=name)
    return list(metrics.values())


class Threshold(TypedDict):
    """From which probability or odds on an answer is given, and where that comes from."""

    value: float
    source: str


def saved_threshold(saved_config: Provenance, default: float) -> Threshold:
    """The threshold that a model's folder says, or the default, and where it comes from."""
    answers = saved_config.get("answers", {})
    value = answers.get("threshold")
    if value is None:
        return {"value": default, "source": "the default: the model records none"}
    source = answers.get("threshold_source", "the model's own, from its fine-tuning")
    return {"value": float(value), "source": source}


def json_lines(records: Iterable[object]) -> Iterator[str]:
    for record in records:
        yield json.dumps(record, ensure_ascii=False)
