"""What an experiment fine-tunes: each task with a head on an encoder of one size, over rows and seeds.

Examples and lengths come from the tasks' own readers, without a tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from hydra.utils import instantiate

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.datamodules.examples import Preview, TaskPreview
from clozelab.datamodules.finetuning import TaskInputs, TrainingPlan
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import parameter_count, training_flops_per_token
from clozelab.models.folders import read_config
from clozelab.models.heads import FeatureMix
from clozelab.planning.jobs import FLOAT_BYTES, NO_PAST, Arm, Past, Words
from clozelab.terminal import key_of

CHARACTERS_A_TOKEN = 4.2
"""Of English prose in a vocabulary of thousands of word pieces, special tokens included."""
SENTENCE_WORDS = 15.0
"""Of a tagged sentence whose file is not there."""
PREDICTION_BYTES, NBEST_BYTES, RECORD_BYTES = 105, 3700, 25_000
"""Of one example in predictions.jsonl, of one question in nbest_predictions.json, of what every run folder records."""


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


def read_preview(settings: Mapping[str, Any], tokenizer: Tokenizer | None = None, longest: int = 512) -> Any:
    """Texts and labels of a task's files as a TaskPreview; None where its reader has no such look.

    Raises:
        ValueError: a file is not there, or is not what the task's settings say.
    """
    task = settings["task"]
    places = Path(settings["data_dir"]), Path(settings["cache_dir"])
    inputs = TaskInputs(task["name"], *places, tokenizer, longest)  # type: ignore[arg-type]  # nothing is tokenised
    said = {
        key: settings[key] for key in ("global_batch_size", "epochs", "evaluations_per_epoch", "max_train_examples")
    }
    data = instantiate(task["data"], _convert_="all")(inputs=inputs, plan=TrainingPlan(**said, seed=0, num_workers=0))
    return data.preview()


class TaskFiles:
    """What the files of each task hold, read once; None where they are not there, or lie on the hub."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Sample, Sample] | None] = {}

    def of(self, settings: Mapping[str, Any], preview: TaskPreview | None = None) -> tuple[Sample, Sample] | None:
        """(training, validation); by the preview where the caller has read it."""
        key = json.dumps([settings["data_dir"], settings["task"]["data"]], default=str)
        if key not in self._found or preview is not None:
            try:
                preview = preview or (None if settings["hub"] else read_preview(settings))
            except (OSError, ValueError):
                preview = None
            self._found[key] = (Sample.of(preview.train), Sample.of(preview.validation)) if preview else None
        return self._found[key]


@dataclass(frozen=True)
class Features:
    """A tagging task on a frozen encoder: a BiLSTM over the words of a sentence (models/features.py).

    Attributes:
        input_size, hidden_size, num_layers: of the BiLSTM; the hidden size of one direction.
        words_per_example: of a sentence.
        pass_share: encoders over runs: the features of a text are kept, and read by every other run on that encoder.
    """

    input_size: int
    hidden_size: int
    num_layers: int
    words_per_example: float
    pass_share: float = 1.0

    @classmethod
    def of(cls, settings: Mapping[str, Any], encoder: EncoderConfig, words_per_example: float) -> Features | None:
        """None for a task that trains its encoder."""
        module = settings["task"]["module"]
        if "features" not in settings["task"]["data"]:
            return None
        size = FeatureMix(module["features"], encoder.num_hidden_layers, encoder.hidden_size).output_size
        hidden = int(module["bilstm_hidden_size"] or encoder.hidden_size)
        return cls(size, hidden, int(module["bilstm_num_layers"]), words_per_example)

    @property
    def flops_per_word(self) -> float:
        """Of training: four gates, two directions, forward once and backward twice, matrix products only."""
        inputs = [self.input_size, *[2 * self.hidden_size] * (self.num_layers - 1)]
        return 3.0 * sum(16.0 * self.hidden_size * (self.hidden_size + size) for size in inputs)


@dataclass(frozen=True)
class TaskJob:
    """One shape of a fine-tuning run: a task with a head, on an encoder of one size."""

    task: str
    head: str
    settings: Mapping[str, Any] = field(repr=False)
    jobs: Sequence[Words]
    encoder: EncoderConfig
    train: Sample | None
    validation: Sample | None
    tokens_per_example: float
    inputs_per_example: float
    """Windows of a question's passage, choices; 1 for other tasks."""
    longest: int
    """Tokens of the longest input: the task's, cut to what the encoder was trained on."""
    features: Features | None = None
    """Where the encoder is frozen and passes once."""
    encoders: frozenset[Words] = frozenset()
    """The different ones that its jobs stand on."""
    past: Past = NO_PAST
    speed: float | None = None
    """Tokens a second in training; `forward_speed` in evaluation. On a frozen encoder's features: words a second of
    the BiLSTM, and the encoder's tokens a second."""
    forward_speed: float | None = None
    is_estimated: bool = False
    """The speed is not measured but reckoned from FLOPs."""

    @property
    def count(self) -> int:
        return len(self.jobs)

    @property
    def is_timed(self) -> bool:
        return bool(self.speed)

    @property
    def is_counted(self) -> bool:
        """False where the files are not there and the length is a guess."""
        return self.train is not None

    @property
    def train_examples(self) -> int | None:
        limit = self.settings["max_train_examples"]
        return limit if self.train is None else min(self.train.examples, limit or self.train.examples)

    @property
    def validation_examples(self) -> int:
        return self.validation.examples if self.validation else 0

    @property
    def epochs(self) -> float:
        return float(self.settings["epochs"])

    @property
    def train_tokens(self) -> float | None:
        return None if self.train_examples is None else self.train_examples * self.epochs * self.tokens_per_example

    @property
    def passes(self) -> float:
        """Over the validation split."""
        return max(1.0, round(self.epochs * float(self.settings["evaluations_per_epoch"])))

    @property
    def pass_tokens(self) -> float:
        """What a frozen encoder reads for one run: both splits once, shared by all runs on the same encoder."""
        examples = (self.train_examples or 0) + self.validation_examples
        return examples * self.tokens_per_example * (self.features.pass_share if self.features else 0.0)

    @property
    def flops_per_token(self) -> float:
        """Of training the encoder; a third of it passes forward."""
        return training_flops_per_token(self.encoder, round(self.tokens_per_example), 0.0)

    @property
    def flops(self) -> float | None:
        """Of training, without the head; on features: its share of the encoder's pass, and the BiLSTM's training."""
        if self.train_tokens is None or self.train_examples is None:
            return None
        if self.features is None:
            return self.train_tokens * self.flops_per_token
        words = self.train_examples * self.epochs * self.features.words_per_example
        return self.pass_tokens * self.flops_per_token / 3 + words * self.features.flops_per_word

    @property
    def result_bytes(self) -> int:
        """Of a run folder: records, predictions, and the model where it is saved."""
        is_span = "span_extraction" in str(self.settings["task"]["module"]["_target_"])
        model = FLOAT_BYTES * parameter_count(self.encoder) if self.settings["save_model"] else 0
        return RECORD_BYTES + self.validation_examples * (NBEST_BYTES if is_span else PREDICTION_BYTES) + model


Kind = tuple[Mapping[str, Any], Sequence[Words]]
"""A composed configuration and its jobs."""


def task_jobs(
    found: Iterable[Kind], arms: Sequence[Arm], files: TaskFiles, past_of: Callable[..., Past] = lambda *_: NO_PAST
) -> list[TaskJob]:
    """Every task, head and size of encoder, over rows and seeds; `past_of` says what runs so far tell of a kind."""
    by_name = {arm.name: arm for arm in arms}
    groups: dict[Any, list[tuple[EncoderConfig, int, Kind]]] = {}
    for settings, jobs in found:
        if arms:
            arm = by_name.get(str(settings["encoder_arm"]), arms[0])
            encoder, trained = arm.config, arm.longest
        else:
            from clozelab.modules.results import max_positions

            encoder, trained = read_config(settings["encoder"]), max_positions(Path(settings["encoder"]))
        size = Features.of(settings, encoder, 0.0)
        key = settings["task"]["name"], settings["head"], parameter_count(encoder), size
        groups.setdefault(key, []).append((encoder, trained, (settings, jobs)))
    made = []
    for group in groups.values():
        encoder, trained, (settings, _) = group[0]
        members = [kind for _, _, kind in group]
        pasts = [past_of(*kind) for kind in members]
        seconds = [one.seconds for one in pasts if one.seconds is not None]
        past = Past(sum(one.done for one in pasts), sum(seconds) / len(seconds) if seconds else None)
        job = _task_job(settings, [words for _, jobs in members for words in jobs], encoder, trained, files)
        made.append(replace(job, encoders=frozenset(one for kind in members for one in _encoders(*kind)), past=past))
    return _with_pass_shares(made)


def _task_job(
    settings: Mapping[str, Any], jobs: Sequence[Words], encoder: EncoderConfig, trained: int, files: TaskFiles
) -> TaskJob:
    data = settings["task"]["data"]
    train, validation = files.of(settings) or (None, None)
    longest = min(int(data["max_seq_length"]), trained)
    length = train.characters / CHARACTERS_A_TOKEN + 2 if train else longest / 2
    if data.get("document_context"):
        length = longest  # neighbouring sentences fill the input
    inputs = train.inputs if train else 1.0
    if length > longest and "doc_stride" in data:
        inputs = 1.0 + -(-(length - longest) // min(int(data["doc_stride"]), longest // 2))
    else:
        length *= inputs
    words = train.words if train else SENTENCE_WORDS
    tokens = max(4.0, min(length, inputs * longest))
    features = Features.of(settings, encoder, words)
    task = settings["task"]["name"], settings["head"], settings, jobs, encoder
    return TaskJob(*task, train, validation, tokens, inputs, longest, features)


def _encoders(settings: Mapping[str, Any], jobs: Sequence[Words]) -> Iterator[Words]:
    """What tells apart the encoders that some jobs of one configuration stand on."""
    which = [str(settings[key]) for key in ("encoder_arm", "encoder_fraction", "initialisation")]
    for words in jobs:
        seeds = [word.partition("=")[2] for word in words if key_of(word) == "pretrain_seed"]
        yield (*which, *(seeds or [str(settings["pretrain_seed"])]))


def _with_pass_shares(made: Sequence[TaskJob]) -> list[TaskJob]:
    """An encoder passes over a task's text once, for all rows and seeds that stand on it."""
    shared: dict[tuple[str, EncoderConfig], list[TaskJob]] = {}
    for one in made:
        shared.setdefault((one.task, one.encoder), []).append(one)
    found = []
    for one in made:
        if one.features:
            group = [other for other in shared[one.task, one.encoder] if other.features]
            share = len(frozenset().union(*(other.encoders for other in group))) / sum(other.count for other in group)
            one = replace(one, features=replace(one.features, pass_share=share))
        found.append(one)
    return found
