"""Fine-tunings of an experiment, whatever the seeds: a task with a head, on a size of encoder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch

from clozelab.addresses import build_parts
from clozelab.metrics.metric import PERCENT, PREFIX, Metric, metric_of
from clozelab.models import cost
from clozelab.models.config import EncoderConfig
from clozelab.models.heads import BiLSTM, FeatureMix
from clozelab.planning.shapes import (
    FLOAT_BYTES,
    FORWARD_SHARE,
    RECORD_BYTES,
    Question,
    Request,
    Shape,
    adaptation_of,
    forward_request,
    frozen_weights,
    optimizer_kind,
    rounded_length,
)
from clozelab.schema import FinetuneConfig, TaskConfig
from clozelab.tasks.preview import Preview
from clozelab.tasks.target import metrics_of

# of English prose in a vocabulary of thousands of word pieces, special tokens included
CHARACTERS_A_TOKEN = 4.2
SENTENCE_WORDS = 15.0  # of a tagged sentence whose file is not there
PREDICTION_BYTES = 105  # of one example in predictions.jsonl
NBEST_BYTES = 3700  # of one question in nbest_predictions.json


class Sample(NamedTuple):
    """What a split holds.

    Attributes:
        examples: how many.
        inputs: of the model that each example makes.
        characters, words: of the text of one such input, on average.
    """

    examples: int
    inputs: float
    characters: float
    words: float

    @classmethod
    def from_preview(cls, split: Preview) -> Sample:
        num_examples = max(1, split.num_examples)
        inputs = 1.0
        characters = 0.0
        words_per_text = 0.0
        for texts in split.texts.values():
            if not len(texts):
                continue
            # Texts by part, such as a question and its endings: each ending is an input.
            inputs = max(inputs, len(texts) / num_examples)
            characters += sum(map(len, texts)) / len(texts)
            words_per_text += sum(text.count(" ") + 1 for text in texts) / len(texts)
        return cls(split.num_examples, inputs, characters, words_per_text)


class Samples(NamedTuple):
    """The splits of a task; None where a file is not there, or is refused."""

    train: Sample | None
    validation: Sample | None
    fault: str = ""  # why the files are refused


NO_SAMPLES = Samples(None, None)


class Features(NamedTuple):
    """The BiLSTM that a tagging task trains over words, on a frozen encoder."""

    input_size: int
    hidden_size: int  # of one direction
    num_layers: int

    @classmethod
    def from_task(cls, task: TaskConfig, encoder: EncoderConfig) -> Features | None:
        """None for a task that trains its encoder."""
        if "features" not in task.data:
            return None
        module = task.module
        mix = FeatureMix(module["features"], encoder.num_hidden_layers, encoder.output_size)
        return cls(
            mix.output_size,
            int(module["bilstm_hidden_size"] or encoder.hidden_size),
            int(module["bilstm_num_layers"]),
        )

    @property
    def flops_per_word(self) -> float:
        """Of training: a product with every matrix, forward once and backward twice."""
        with torch.device("meta"):
            parameters = list(BiLSTM(*self, 0.0).parameters())
        return 6.0 * sum(value.numel() for value in parameters if value.ndim == 2)


class ExampleLengths(NamedTuple):
    """Of an example of a task."""

    tokens: float
    inputs: float  # windows of a passage, or choices; 1 for other tasks


def _metrics(task: TaskConfig) -> list[Metric]:
    """The scores of a task, those of its further validation files among them."""
    _, target = build_parts(vars(task))
    return metrics_of(target, task.data.get("extra_validation_files") or ())


def require_percent(task: TaskConfig) -> None:
    """ValueError for a task that the claims of an experiment with inputs would judge wrongly.

    They say "higher by one point", whatever the task. Of an error lower is better, and a point of
    it may be much or little.
    """
    metrics = _metrics(task)
    metric = metric_of(task.metric, metrics)
    if metric.unit == PERCENT and metric.higher_is_better:
        return
    others = [m.name for m in metrics if m.unit == PERCENT and m.higher_is_better]
    advice = "take a task that has one"
    if others:
        advice = f"say metric: {PREFIX}{others[0]} in the task's YAML"
    raise ValueError(
        f"{task.title}: the claims are about percentages, of which a higher one is better, and"
        f" {task.metric} is none; {advice}"
    )


@dataclass(frozen=True)
class TaskJob(Shape):
    """One shape of a fine-tuning run: a task with a head, on an encoder of one size."""

    settings: FinetuneConfig = field(repr=False, kw_only=True)
    task: str
    head: str
    encoder: EncoderConfig
    samples: Samples
    lengths: ExampleLengths  # guesses where there is no sample of training examples
    longest: int  # tokens of the longest input: the task's, cut to what the encoder was trained on
    # of a frozen encoder: speeds are in words of the BiLSTM, `forward` the encoder's
    features: Features | None
    # encoders over runs: features are kept, and read by every other run on that encoder
    pass_share: float = 0.0
    rows: Sequence[str] = ()  # of the experiment's table, whose encoders it trains

    @cached_property
    def units(self) -> dict[str, str]:
        """Name of each of the task's scores -> its unit; of "" the main one's."""
        task = self.settings.task
        metrics = _metrics(task)
        units: dict[str, str] = {"": metric_of(task.metric, metrics).unit}
        for metric in metrics:
            units[metric.name] = metric.unit
        return units

    @property
    def words_per_example(self) -> float:
        train = self.samples.train
        if train is None:
            return SENTENCE_WORDS
        return train.words

    @property
    def train_examples(self) -> int | None:
        limit = self.settings.max_train_examples
        train = self.samples.train
        if train is None:
            return limit
        return min(train.examples, limit or train.examples)

    @property
    def validation_examples(self) -> int:
        validation = self.samples.validation
        if validation is None:
            return 0
        return validation.examples

    @property
    def trained_examples(self) -> float:
        """Of all epochs."""
        return (self.train_examples or 0) * self.settings.epochs

    @property
    def steps(self) -> int | None:
        """Of one run: the last batch of an epoch may be smaller."""
        if self.train_examples is None:
            return None
        sequences = self.train_examples * self.lengths.inputs
        if self.samples.train is not None:
            sequences /= self.samples.train.inputs  # a batch counts windows, and no choices
        per_epoch = math.ceil(sequences / self.settings.global_batch_size)
        return max(1, round(per_epoch * self.settings.epochs))

    @property
    def pass_tokens(self) -> float:
        """What a frozen encoder reads for one run: its share of both splits once."""
        examples = (self.train_examples or 0) + self.validation_examples
        return examples * self.lengths.tokens * self.pass_share

    @property
    def flops_per_token(self) -> float:
        """Of training the encoder, without what is frozen."""
        length = round(self.lengths.tokens)
        frozen = frozen_weights(self.encoder, self.settings, "encoder.")
        left_out = cost.frozen_flops_per_token(self.encoder, length, frozen)
        return cost.training_flops_per_token(self.encoder, length, 0.0) - left_out

    @property
    def flops(self) -> float | None:
        """Of training, without the head.

        On features it is the share of the encoder's pass, and the BiLSTM's training.
        """
        if self.train_examples is None:
            return None
        if self.features is None:
            return self.trained_examples * self.lengths.tokens * self.flops_per_token
        words = self.trained_examples * self.words_per_example
        length = round(self.lengths.tokens)
        pass_flops = cost.training_flops_per_token(self.encoder, length, 0.0) / 3
        return self.pass_tokens * pass_flops + words * self.features.flops_per_word

    @property
    def result_bytes(self) -> int:
        """Of a run folder: records, predictions, and the model where it is saved."""
        of_example = PREDICTION_BYTES
        if "n_best_size" in self.settings.task.module:
            of_example = NBEST_BYTES
        model_bytes = 0
        if self.settings.keep_model:
            model_bytes = FLOAT_BYTES * cost.parameter_count(self.encoder)
        return RECORD_BYTES + self.validation_examples * of_example + model_bytes

    @property
    def validations(self) -> int:
        """Of one run."""
        number = self.settings.epochs * self.settings.evaluations_per_epoch
        return max(1, round(number))

    def timed_seconds(self) -> float | None:
        if self.train_examples is None:
            return None
        train_rate, pass_rate = self.rates
        evaluated = self.validations * self.validation_examples
        if self.features is None:
            trained = self.trained_examples * self.lengths.tokens
            passed = evaluated * self.lengths.tokens
        else:
            # The BiLSTM reads words, in training and in validations.
            examples = self.trained_examples + FORWARD_SHARE * evaluated
            trained = examples * self.words_per_example
            passed = self.pass_tokens
        return self.start + trained / train_rate + passed / pass_rate

    def requests(self) -> Iterator[Request]:
        """Training, and the encoder's passes; of a frozen encoder the BiLSTM's training in words.

        Lengths are rounded, so that like tasks share a measurement.
        """
        length = self.lengths.tokens / self.lengths.inputs
        batch_size = self.settings.global_batch_size
        hardware = self.hardware()
        question: Question = {
            "model": self.encoder.to_dict(),
            "batch_size": batch_size,
            "hardware": hardware,
            "optimizer": optimizer_kind(self.settings.optimizer),
            "schedule": self.settings.schedule,
            **adaptation_of(self.settings),
        }
        if self.features is None:
            question |= {"kind": "finetune", "head": self.head}
            question |= {"tokens_each": rounded_length(length), "max_tokens": self.longest}
            tokens = batch_size * length
            flops = tokens * self.flops_per_token
        else:
            words = max(1, round(self.words_per_example))
            question |= {"kind": "features", "words_each": words}
            question["bilstm"] = self.features._asdict()
            tokens = float(batch_size * words)
            flops = tokens * self.features.flops_per_word
            hardware = hardware | {"precision": "32-true"}  # as a frozen encoder's features are
        size = f"{self.encoder.num_hidden_layers} layers of {self.encoder.hidden_size}"
        title = f"fine-tuning {size} on {self.task} ({self.head})"
        yield Request(question, title, tokens, flops)
        yield forward_request(self.encoder, length, self.settings.task.data, hardware)
