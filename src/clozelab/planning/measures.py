"""How long an evaluation takes: what a measure reads, in tokens that pass forward, and the fits of
a probe.

A measure's data class decides how much that is. Texts are counted in its files, or in the held-out
part of the corpus."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from clozelab.corpus.files import matching_files
from clozelab.datamodules.heldout import ClozeBySide, HeldOutText, SentencePairs
from clozelab.datamodules.labelled import TableFormat
from clozelab.datamodules.scoring import MinimalPairs
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import training_flops_per_token
from clozelab.planning.jobs import CHARACTERS_A_TOKEN, RECORD_BYTES, Corpus, Request, Sample, Shape
from clozelab.planning.starts import constants
from clozelab.targets import locate

MOST_READ = 2000  # texts of a file whose lengths are looked at
# tokens of a request; lengths are rounded up to powers of two, so that like measures share one
SHORTEST = 4


class Reading(NamedTuple):
    """What a measure passes through an encoder: inputs, and tokens of one on average."""

    inputs: float
    tokens_each: float


class Fit(NamedTuple):
    """The classifiers of a probe: training examples, width of a state, classes, and how many are
    fitted."""

    examples: int
    width: int
    classes: int
    fits: int


@dataclass(frozen=True)
class MeasureJob(Shape):
    """One measure on encoders of one size."""

    measure: str
    encoder: EncoderConfig
    reading: Reading | None  # None: the plan does not know how much it reads
    fit: Fit | None = None
    is_guess: bool = False  # its texts are not there yet, and others were counted

    @property
    def is_timed(self) -> bool:
        return self.reading is None or super().is_timed

    @property
    def seconds(self) -> float | None:
        """Of one evaluation; where the plan cannot count its work, what finished ones took."""
        if self.reading is None and self.took:
            return fmean(self.took)
        return super().seconds

    @property
    def flops(self) -> float | None:
        """Of all forward passes; a fit is next to nothing."""
        if self.reading is None:
            return None
        return self.reading.inputs * self.reading.tokens_each * self._flops_a_token

    @property
    def _flops_a_token(self) -> float:
        if self.reading is None:
            length = 1
        else:
            length = round(self.reading.tokens_each)
        return training_flops_per_token(self.encoder, length, 0.0) / 3

    @property
    def result_bytes(self) -> int:
        return RECORD_BYTES

    def parts(self) -> dict[str, float] | None:
        starts = {"start": self.starts.evaluate}
        if self.reading is None:
            return starts | {"forward": float(constants()["unknown_evaluation_seconds"])}
        speeds = [one.tokens_per_second for one in self.speeds if one]
        seconds = {"forward": self.reading.inputs * self.reading.tokens_each / speeds[0]}
        if self.fit is not None:
            seconds["fit"] = self.fit.fits / speeds[1]
        return starts | seconds

    def requests(self) -> Iterator[Request]:
        """The forward passes, and a probe's fit."""
        if self.reading is None:
            return
        length = max(SHORTEST, 2 ** math.ceil(math.log2(self.reading.tokens_each)))
        data = self.settings["measure"]["data"] or self.settings["measure"]["task"]["data"]
        tokens = int(data["evaluation_tokens"])
        question = {
            "kind": "forward",
            "head": "linear",
            "tokens_each": length,
            # a mask of attention costs nothing
            "model": self.encoder.to_dict() | {"is_causal": False},
            "max_tokens": self.encoder.max_position_embeddings,
            "evaluation_tokens": tokens,
            "hardware": self.hardware(),
        }
        size = f"{self.encoder.num_hidden_layers} layers of {self.encoder.hidden_size}"
        yield Request(
            question,
            f"evaluating {size}, inputs of {length} tokens",
            tokens,
            tokens * self._flops_a_token,
        )
        if self.fit is not None:
            iterations = int(self.settings["measure"]["module"]["max_iterations"])
            asked = {key: value for key, value in self.fit._asdict().items() if key != "fits"}
            asked["max_iterations"] = iterations
            # A product with the states forward and one backward, an iteration.
            flops = 4.0 * self.fit.examples * self.fit.width * self.fit.classes * iterations
            yield Request(
                {"kind": "fit", "hardware": self.hardware()} | asked,
                "a probe's classifier",
                1.0,
                flops,
            )


def measure_reading(
    settings: Mapping[str, Any],
    encoder: EncoderConfig,
    corpus: Corpus | None,
) -> Reading | None:
    """What one evaluation by a measure of its own data reads; None where that is not known."""
    data = settings["measure"]["data"]
    kind = locate(data["_target_"])
    if issubclass(kind, MinimalPairs):
        return _of_pairs(settings, encoder.is_causal)
    if data.get("sources") or corpus is None:
        return None
    sentences = min(corpus.held_out_sentences, int(data["max_sentences"]))
    words = corpus.validation.num_tokens / max(1, corpus.validation.num_sentences)
    if issubclass(kind, HeldOutText):
        room = int(data["max_seq_length"])
        if encoder.is_causal:
            copies = 1
        else:
            copies = int(data["mask_parts"])
        inputs = max(1.0, sentences * words / (room - 2))
        return Reading(copies * inputs, min(room, sentences * words / inputs + 2))
    if issubclass(kind, ClozeBySide):
        sides = len(data["sides"] or (["left"] if encoder.is_causal else ClozeBySide.SIDES))
        return Reading(
            sides * min(sentences, int(data["max_words"])),
            max(words, float(data["min_tokens"])) + 2,
        )
    if issubclass(kind, SentencePairs):
        # A document's sentences make half as many first ones, each with a right and a wrong second
        # one.
        texts = sentences / int(data["sentences"])
        pairs = [
            min(float(data["max_train_pairs"]), texts * 2 / 3),
            min(float(data["max_validation_pairs"]), texts / 3),
        ]
        length = 2 * words * int(data["sentences"]) + 3
        return Reading(max(1.0, sum(pairs)), min(float(data["max_seq_length"]), length))
    return None


def _of_pairs(settings: Mapping[str, Any], is_causal: bool) -> Reading | None:
    """Of minimal pairs: a masked model reads each sentence once for each of its tokens."""
    data = settings["measure"]["data"]
    files, _ = matching_files(data["files"], Path(settings["data_dir"]))
    columns = data["columns"]
    layout = TableFormat([columns["good"], columns["bad"]], columns["group"] or "")
    number, lengths = 0, list[int]()
    for path in files.values():
        try:
            texts = layout.read(path, columns["group"] is not None).limited(data["max_pairs"]).texts
        except (OSError, ValueError):
            continue
        number += len(texts)
        lengths += [len(text) for pair in texts[:MOST_READ] for text in pair]
    if not lengths:
        return None
    tokens = sum(lengths) / len(lengths) / CHARACTERS_A_TOKEN
    if is_causal:
        times = 1.0
    else:
        times = tokens
    return Reading(2 * number * times, tokens + 2)


def measure_job(
    settings: Mapping[str, Any],
    jobs: Sequence[Any],
    encoder: EncoderConfig,
    corpus: Corpus | None,
    samples: tuple[Sample | None, Sample | None],
    **more: Any,
) -> MeasureJob:
    """The evaluations by one measure of encoders of one size.

    Args:
        settings: of the first of them.
        jobs: the words of all.
        corpus: what the encoder was trained on; None for a given encoder.
        samples: of the task's splits, for a measure that takes a task.
    """
    measure = settings["measure"]
    layers, width = encoder.num_hidden_layers, encoder.hidden_size
    is_probe = measure["module"] is not None and "max_iterations" in measure["module"]
    fit = None
    if measure["task"] is None:
        reading = measure_reading(settings, encoder, corpus)
        if is_probe and reading is not None:
            fit = Fit(round(reading.inputs * 2 / 3), width, 2, layers + 2)
    else:
        reading = _of_task(measure, samples, is_probe=is_probe)
        if is_probe and samples[0] is not None and reading is not None:
            fit = _fit_of_task(measure, samples[0], layers, width)
    is_guess = corpus is not None and corpus.folder is None and corpus.sampled is None
    shape = str(measure["name"]), encoder, reading, fit, is_guess
    return MeasureJob(*shape, settings=settings, jobs=jobs, **more)


def _of_task(
    measure: Mapping[str, Any], samples: tuple[Sample | None, Sample | None], *, is_probe: bool
) -> Reading | None:
    """Of a task's files: a probe reads both splits, other measures the validation split."""
    train, validation = samples
    if validation is None or train is None:
        return None
    number = float(validation.examples)
    if is_probe:
        number += min(train.examples, measure["max_train_examples"] or train.examples)
    length = validation.characters / CHARACTERS_A_TOKEN + 2
    return Reading(
        number * validation.inputs,
        min(float(measure["task"]["data"]["max_seq_length"]), length),
    )


def _fit_of_task(measure: Mapping[str, Any], train: Sample, layers: int, width: int) -> Fit:
    """Of words there are as many examples as words, and control labels beside the real ones; of
    texts the pooled state is one more."""
    examples = min(train.examples, measure["max_train_examples"] or train.examples)
    classes = max(2, len(measure["task"]["data"].get("labels") or ()))
    if "tags" in str(measure["task"]["data"]["_target_"]):
        return Fit(round(examples * train.words), width, max(classes, 9), 2 * (layers + 1))
    return Fit(examples, width, classes, layers + 2)
