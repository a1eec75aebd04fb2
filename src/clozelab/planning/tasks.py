"""Shapes of runs, each timed once and counted as often as there are jobs, and those of fine-tuning.

A task with a head on an encoder of one size, over rows and seeds. Examples and lengths come from the tasks' own
readers, without a tokenizer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from clozelab.datamodules.files import Preview, TaskPreview
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import parameter_count, training_flops_per_token
from clozelab.models.heads import BiLSTM, FeatureMix
from clozelab.terminal import key_of

if TYPE_CHECKING:
    from clozelab.planning.jobs import Arm

Words = tuple[str, ...]
"""Of one job of a sweep, as the sweeper gives them."""
Kind = tuple[Mapping[str, Any], Sequence[Words]]
"""A composed configuration, and the jobs that repeat it over seeds."""
START_SECONDS = {"pretrain": 2.5, "finetune": 0.9}
"""Between the launcher's decision and the first step, and after the last one: imports, reading the corpus, writing."""
FORWARD_SHARE = 1 / 3
"""Of a training step's work: what a validation pass costs per token."""
FLOAT_BYTES = 4
CHARACTERS_A_TOKEN = 4.2
"""Of English prose in a vocabulary of thousands of word pieces, special tokens included."""
SENTENCE_WORDS = 15.0
"""Of a tagged sentence whose file is not there."""
ANSWER = "answer: "
"""Before each line of the worker that is one; anything else is a library's talk."""
USUAL_SHARE = 0.4
"""Of the speed of a matrix product: what training a large model reaches."""
PREDICTION_BYTES, NBEST_BYTES, RECORD_BYTES = 105, 3700, 25_000
"""Of one example in predictions.jsonl, of one question in nbest_predictions.json, of what every run folder records."""


@dataclass(frozen=True)
class Speed:
    """Tokens a second of one of the jobs that run side by side; 0 where `problem` says why there is none.

    `forward`: tokens a second of an evaluation pass (fine-tuning). `is_estimated`: reckoned from FLOPs and the speed of
    a matrix product, nothing was timed.
    """

    tokens_per_second: float
    forward: float | None = None
    is_estimated: bool = False
    problem: str = ""


@dataclass(frozen=True)
class Request:
    """Something to time: `question` is what timing_worker is asked, and what a speed is kept by.

    `step_tokens` (words, for a BiLSTM on features) and `step_flops` are of one optimizer step.
    """

    question: Mapping[str, Any]
    title: str
    step_tokens: float
    step_flops: float


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Runs that cost the same.

    Attributes:
        settings: the whole composed configuration of the first job.
        done: how many of the jobs are complete, or will be taken from another experiment.
        took: seconds of finished runs like these on this machine.
        speeds: the answers to `requests`, once those were asked.
    """

    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    jobs: Sequence[Words] = ((),)
    done: int = 0
    took: Sequence[float] = ()
    speeds: Sequence[Speed | None] = ()

    @property
    def count(self) -> int:
        return len(self.jobs)

    @property
    def left(self) -> int:
        return self.count - self.done

    @property
    def is_timed(self) -> bool:
        return bool(self.speeds) and all(one and one.tokens_per_second for one in self.speeds)

    @property
    def is_estimated(self) -> bool:
        """Whether a speed is not measured but reckoned from FLOPs."""
        return any(one.is_estimated for one in self.speeds if one)

    @property
    def seconds(self) -> float | None:
        """Of one run, with its validations and its start; without speeds what finished runs took."""
        if self.is_timed:
            return self.timed_seconds()
        return fmean(self.took) if self.took else None

    def timed_seconds(self) -> float | None:
        """Of one run by its speeds; None where its length is not known either."""
        raise NotImplementedError

    def hardware(self) -> dict[str, Any]:
        """The part of the trainer's settings that decides a speed; a measurement has one process."""
        chosen = {key: self.settings["trainer"][key] for key in ("accelerator", "precision", "threads")}
        return chosen | {"devices": 1, "num_nodes": 1, "strategy": "auto"}


class Sample(NamedTuple):
    """What a split holds: examples, the model inputs that each makes, and the mean text of one such input."""

    examples: int
    inputs: float
    characters: float
    words: float

    @classmethod
    def of(cls, split: Preview) -> Sample:
        number, parts = max(1, split.num_examples), [texts for texts in split.texts.values() if len(texts)]
        inputs = max([1.0, *(len(texts) / number for texts in parts)])  # each ending of a choice is one
        characters = sum(sum(map(len, texts)) / len(texts) for texts in parts)
        words = sum(sum(text.count(" ") + 1 for text in texts) / len(texts) for texts in parts)
        return cls(split.num_examples, inputs, characters, words)


class TaskFiles:
    """What the files of each task hold, each read once by `read`, which takes a fine-tuning's settings."""

    def __init__(self, read: Callable[[Mapping[str, Any]], TaskPreview | None]) -> None:
        self.read = read
        self._found: dict[str, tuple[Sample | None, Sample | None]] = {}

    def of(
        self, settings: Mapping[str, Any], preview: TaskPreview | None = None
    ) -> tuple[Sample | None, Sample | None]:
        """(training, validation), by the caller's preview if it has one; Nones for files not there, or on the hub."""
        key = json.dumps([settings["data_dir"], settings["task"]["data"]], default=str)
        if key not in self._found or preview is not None:
            try:
                preview = preview or (None if settings["hub"] else self.read(settings))
            except (OSError, ValueError):
                preview = None
            self._found[key] = (Sample.of(preview.train), Sample.of(preview.validation)) if preview else (None, None)
        return self._found[key]


class Features(NamedTuple):
    """The BiLSTM that a tagging task trains over words, on a frozen encoder; hidden size of one direction."""

    input_size: int
    hidden_size: int
    num_layers: int

    @classmethod
    def of(cls, settings: Mapping[str, Any], encoder: EncoderConfig) -> Features | None:
        """None for a task that trains its encoder."""
        module = settings["task"]["module"]
        if "features" not in settings["task"]["data"]:
            return None
        size = FeatureMix(module["features"], encoder.num_hidden_layers, encoder.hidden_size).output_size
        return cls(size, int(module["bilstm_hidden_size"] or encoder.hidden_size), int(module["bilstm_num_layers"]))

    @property
    def flops_per_word(self) -> float:
        """Of training: a product with every matrix, forward once and backward twice."""
        with torch.device("meta"):
            return 6.0 * sum(value.numel() for value in BiLSTM(*self, 0.0).parameters() if value.ndim == 2)


@dataclass(frozen=True)
class TaskJob(Shape):
    """One shape of a fine-tuning run: a task with a head, on an encoder of one size.

    Attributes:
        train, validation: what the files hold; None where they are not there, and lengths are guesses.
        tokens_per_example, inputs_per_example: inputs are windows of a passage, or choices; 1 for other tasks.
        longest: tokens of the longest input: the task's, cut to what the encoder was trained on.
        features: where the encoder is frozen. Then a speed is in words of the BiLSTM, `forward` the encoder's.
        pass_share: encoders over runs: features are kept, and read by every other run on that encoder.
    """

    task: str
    head: str
    encoder: EncoderConfig
    train: Sample | None
    validation: Sample | None
    tokens_per_example: float
    inputs_per_example: float
    longest: int
    features: Features | None = None
    pass_share: float = 0.0

    @property
    def words_per_example(self) -> float:
        return self.train.words if self.train else SENTENCE_WORDS

    @property
    def train_examples(self) -> int | None:
        limit: int | None = self.settings["max_train_examples"]
        return min(self.train.examples, limit or self.train.examples) if self.train else limit

    @property
    def validation_examples(self) -> int:
        return self.validation.examples if self.validation else 0

    @property
    def trained_examples(self) -> float:
        """Of all epochs."""
        return (self.train_examples or 0) * float(self.settings["epochs"])

    @property
    def passes(self) -> float:
        """Over the validation split."""
        return max(1.0, round(float(self.settings["epochs"]) * float(self.settings["evaluations_per_epoch"])))

    @property
    def pass_tokens(self) -> float:
        """What a frozen encoder reads for one run: its share of both splits once."""
        examples = (self.train_examples or 0) + self.validation_examples
        return examples * self.tokens_per_example * self.pass_share

    @property
    def flops_per_token(self) -> float:
        """Of training the encoder; a third of it passes forward."""
        return training_flops_per_token(self.encoder, round(self.tokens_per_example), 0.0)

    @property
    def flops(self) -> float | None:
        """Of training, without the head; on features: its share of the encoder's pass, and the BiLSTM's training."""
        if self.train_examples is None:
            return None
        if self.features is None:
            return self.trained_examples * self.tokens_per_example * self.flops_per_token
        words = self.trained_examples * self.words_per_example
        return self.pass_tokens * self.flops_per_token / 3 + words * self.features.flops_per_word

    @property
    def result_bytes(self) -> int:
        """Of a run folder: records, predictions, and the model where it is saved."""
        is_span = "span_extraction" in str(self.settings["task"]["module"]["_target_"])
        model = FLOAT_BYTES * parameter_count(self.encoder) if self.settings["save_model"] else 0
        return RECORD_BYTES + self.validation_examples * (NBEST_BYTES if is_span else PREDICTION_BYTES) + model

    def timed_seconds(self) -> float | None:
        (speed,) = self.speeds
        if speed is None or self.train_examples is None:
            return None
        rate, evaluated = speed.tokens_per_second, self.passes * self.validation_examples
        if self.features is None:
            work = self.trained_examples * self.tokens_per_example / rate
            forward = evaluated * self.tokens_per_example / (speed.forward or rate / FORWARD_SHARE)
        else:
            work = (self.trained_examples + evaluated * FORWARD_SHARE) * self.words_per_example / rate
            # Where nothing was timed, the encoder's products are taken to be as fast as the BiLSTM's.
            alike = rate * self.features.flops_per_word / (self.flops_per_token / 3)
            forward = self.pass_tokens / (speed.forward or alike)
        return START_SECONDS["finetune"] + work + forward

    def requests(self) -> Iterator[Request]:
        """One; lengths are rounded, so that like tasks share a measurement."""
        length, batch = self.tokens_per_example / self.inputs_per_example, int(self.settings["global_batch_size"])
        tokens, flops = batch * length, self.flops_per_token
        question = {
            "kind": "finetune", "model": self.encoder.to_dict(), "head": self.head, "batch_size": batch,
            "tokens_each": round(length / 4) * 4 or 4, "max_tokens": self.longest,
            "evaluation_tokens": int(self.settings["task"]["data"].get("evaluation_tokens", 8192)),
            "optimizer": self.settings["optimizer"], "hardware": self.hardware(),
        }  # fmt: skip
        if self.features:
            words = max(1, round(self.words_per_example))
            question |= {"kind": "features", "bilstm": self.features._asdict(), "words_each": words}
            tokens, flops = float(batch * words), self.features.flops_per_word
        size = f"{self.encoder.num_hidden_layers} layers of {self.encoder.hidden_size}"
        yield Request(question, f"fine-tuning {size} on {self.task} ({self.head})", tokens, tokens * flops)


def task_jobs(
    found: Iterable[Kind], arms: Sequence[Arm], files: TaskFiles, past_of: Callable[..., tuple[int, list[float]]]
) -> list[TaskJob]:
    """Every task, head and size of encoder, over rows and seeds; `past_of` says what runs so far tell of a kind."""
    from clozelab.modules.results import max_positions  # it imports the modules, and only a given encoder needs it

    by_name = {arm.name: arm for arm in arms}
    groups: dict[tuple[Any, ...], list[tuple[EncoderConfig, int, Kind]]] = {}
    for settings, jobs in found:
        if arms:
            arm = by_name.get(str(settings["encoder_arm"]), arms[0])
            encoder, trained = arm.config, arm.longest
        else:
            from clozelab.models.folders import read_config  # lazy: only a given encoder is read

            encoder, trained = read_config(settings["encoder"]), max_positions(Path(settings["encoder"]))
        key = settings["task"]["name"], settings["head"], parameter_count(encoder), Features.of(settings, encoder)
        groups.setdefault(key, []).append((encoder, trained, (settings, jobs)))
    # A frozen encoder passes over a task's text once, for all jobs that stand on it.
    readers = Counter(
        one for (*_, features), group in groups.items() if features for *_, kind in group for one in _encoders(*kind)
    )
    made = []
    for (task, head, _, features), group in groups.items():
        encoder, trained, (settings, _) = group[0]
        kinds = [kind for *_, kind in group]
        jobs = [words for _, its_jobs in kinds for words in its_jobs]
        done, took = zip(*(past_of(*kind) for kind in kinds), strict=True)
        past: Any = {"done": sum(done), "took": [*chain.from_iterable(took)]}
        share = sum(1 / readers[one] for kind in kinds for one in _encoders(*kind)) / len(jobs) if features else 0.0
        train, validation = files.of(settings)
        sizes = _sizes(settings["task"]["data"], train, min(int(settings["task"]["data"]["max_seq_length"]), trained))
        shape = task, head, encoder, train, validation, *sizes, features, share
        made.append(TaskJob(*shape, settings=settings, jobs=jobs, **past))
    return made


def _sizes(data: Mapping[str, Any], train: Sample | None, longest: int) -> tuple[float, float, int]:
    """(tokens of an example, its inputs, tokens of the longest input)."""
    length = train.characters / CHARACTERS_A_TOKEN + 2 if train else longest / 2
    if data.get("document_context"):
        length = longest  # neighbouring sentences fill the input
    inputs = train.inputs if train else 1.0
    if length > longest and "doc_stride" in data:
        inputs = 1.0 + -(-(length - longest) // min(int(data["doc_stride"]), longest // 2))
    else:
        length *= inputs
    return max(4.0, min(length, inputs * longest)), inputs, longest


def _encoders(settings: Mapping[str, Any], jobs: Sequence[Words]) -> Iterator[Words]:
    """A task and the encoder that each of some jobs of one configuration stands on, in words that tell them apart."""
    which = (
        settings["task"]["name"],
        *(str(settings[key]) for key in ("encoder_arm", "encoder_fraction", "initialisation")),
    )
    for words in jobs:
        seeds = [word.partition("=")[2] for word in words if key_of(word) == "pretrain_seed"]
        yield (*which, *(seeds or [str(settings["pretrain_seed"])]))
