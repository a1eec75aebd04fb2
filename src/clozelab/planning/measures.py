"""How long an evaluation takes: the tokens that pass forward, and a probe's classifiers.

A measure's data class decides how much it reads. Texts are counted in its files, or in the held-out
part of the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from clozelab.addresses import locate
from clozelab.corpus.paths import matching_files
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import training_flops_per_token
from clozelab.planning.arms import Corpus
from clozelab.planning.shapes import (
    FORWARD_SHARE,
    RECORD_BYTES,
    Request,
    Shape,
    Words,
    forward_request,
)
from clozelab.planning.starts import constants
from clozelab.planning.tasks import CHARACTERS_A_TOKEN, Sample, Samples
from clozelab.schema import Component, EvaluateConfig, MeasureConfig
from clozelab.tasks.tables import TableFormat
from clozelab.training.host import import_torchmetrics_quickly

MOST_READ = 2000  # texts of a file whose lengths are looked at


class Reading(NamedTuple):
    """What a measure passes through an encoder: inputs, and tokens of one on average."""

    inputs: float
    tokens_each: float


@dataclass(frozen=True)
class MeasureJob(Shape):
    """One measure on encoders of one size."""

    settings: EvaluateConfig = field(repr=False, kw_only=True)
    measure: str
    encoder: EncoderConfig
    reading: Reading | None  # None: the plan does not know how much it reads
    fitted_values: float  # of a probe: numbers in the states of all its classifiers

    @property
    def is_timed(self) -> bool:
        return self.reading is None or super().is_timed

    @property
    def flops(self) -> float | None:
        """Of all forward passes; a fit is next to nothing."""
        if self.reading is None:
            return None
        tokens_each = self.reading.tokens_each
        flops_per_token = training_flops_per_token(self.encoder, round(tokens_each), 0.0)
        return FORWARD_SHARE * self.reading.inputs * tokens_each * flops_per_token

    @property
    def result_bytes(self) -> int:
        return RECORD_BYTES

    def timed_seconds(self) -> float:
        if self.reading is None:
            return self.start + constants().unknown_evaluation_seconds
        passes = self.reading.inputs * self.reading.tokens_each / self.rates[0]
        fits = self.fitted_values / constants().fitted_values_per_second
        return self.start + passes + fits

    def requests(self) -> Iterator[Request]:
        """The forward passes."""
        if self.reading is not None:
            data = data_of(self.settings.measure)
            yield forward_request(self.encoder, self.reading.tokens_each, data, self.hardware())


def data_of(measure: MeasureConfig) -> Component:
    """The settings of its own data, or of its task's."""
    if measure.task is not None:
        return dict(measure.data or measure.task["data"])
    return measure.data or {}


def measure_reading(
    settings: EvaluateConfig, encoder: EncoderConfig, corpus: Corpus | None
) -> Reading | None:
    """What one evaluation by a measure of its own data reads; None where that is not known."""
    import_torchmetrics_quickly()
    # lazy: they import Lightning
    from clozelab.datamodules.heldout import ClozeBySide, HeldOutText, SentencePairs
    from clozelab.datamodules.scoring import MinimalPairs

    data = data_of(settings.measure)
    data_class = locate(data["_target_"])
    if issubclass(data_class, MinimalPairs):
        return _of_pairs(data, Path(settings.data_dir), encoder.is_causal)
    if data.get("sources") or corpus is None:
        return None
    # Held-out text of the corpus: so many sentences of so many tokens.
    sentences = min(corpus.held_out_sentences, int(data["max_sentences"]))
    tokens_each = corpus.validation.num_tokens / max(1, corpus.validation.num_sentences)
    if issubclass(data_class, HeldOutText):
        return _of_held_out_text(data, encoder.is_causal, sentences, tokens_each)
    if issubclass(data_class, ClozeBySide):
        all_sides: Sequence[str] = ClozeBySide.SIDES
        if encoder.is_causal:
            all_sides = ["left"]
        return _of_cloze(data, all_sides, sentences, tokens_each)
    if issubclass(data_class, SentencePairs):
        return _of_sentence_pairs(data, sentences, tokens_each)
    return None


def _of_held_out_text(
    data: Component, is_causal: bool, sentences: int, tokens_each: float
) -> Reading:
    """Instances filled with sentences; a masked model reads each once for each part of its mask."""
    copies = 1
    if not is_causal:
        copies = int(data["mask_parts"])
    max_length = int(data["max_seq_length"])
    tokens = sentences * tokens_each
    # [CLS] and [SEP] take two places of each input.
    inputs = max(1.0, tokens / (max_length - 2))
    return Reading(copies * inputs, min(max_length, tokens / inputs + 2))


def _of_cloze(
    data: Component, all_sides: Sequence[str], sentences: int, tokens_each: float
) -> Reading:
    """A sentence a word, once for each side that is shown."""
    sides = data["sides"]
    if not sides:
        sides = all_sides
    inputs = len(sides) * min(sentences, int(data["max_words"]))
    # Sentences of fewer tokens than `min_tokens` are passed over.
    return Reading(inputs, max(tokens_each, float(data["min_tokens"])) + 2)


def _of_sentence_pairs(data: Component, sentences: int, tokens_each: float) -> Reading:
    """Two thirds of the pairs are for training."""
    # A document's sentences make half as many first ones, each with a right and a wrong second one.
    texts = sentences / int(data["sentences"])
    train = min(float(data["max_train_pairs"]), texts * 2 / 3)
    validation = min(float(data["max_validation_pairs"]), texts / 3)
    # [CLS], two texts, and a [SEP] behind each
    length = 2 * tokens_each * int(data["sentences"]) + 3
    return Reading(max(1.0, train + validation), min(float(data["max_seq_length"]), length))


def _of_pairs(data: Component, data_dir: Path, is_causal: bool) -> Reading | None:
    """Of minimal pairs: a masked model reads each sentence once for each of its tokens."""
    files, _ = matching_files(data["files"], data_dir)
    columns = data["columns"]
    layout = TableFormat([columns["good"], columns["bad"]], columns["group"] or "")
    num_pairs = 0
    lengths: list[int] = []  # characters
    for path in files.values():
        try:
            table = layout.read(path, columns["group"] is not None)
            pairs = table.limited(data["max_pairs"]).texts
        except (OSError, ValueError):
            continue
        num_pairs += len(pairs)
        for pair in pairs[:MOST_READ]:
            lengths += map(len, pair)
    if not lengths:
        return None
    tokens = sum(lengths) / len(lengths) / CHARACTERS_A_TOKEN
    copies = 1.0
    if not is_causal:
        copies = tokens
    return Reading(2 * num_pairs * copies, tokens + 2)


def measure_job(
    settings: EvaluateConfig,
    jobs: Sequence[Words],
    encoder: EncoderConfig,
    corpus: Corpus | None,
    samples: Samples,
) -> MeasureJob:
    """The evaluations by one measure of encoders of one size.

    Args:
        settings: of the first of them.
        jobs: the words of all.
        corpus: what the encoder was trained on; None for a given encoder.
        samples: of the task's splits, for a measure that takes a task.
    """
    measure = settings.measure
    module = measure.module or {}
    is_probe = "max_iterations" in module
    states = 0.0  # that a probe's classifiers are fitted to
    if measure.task is None:
        reading = measure_reading(settings, encoder, corpus)
        if is_probe and reading is not None:
            # Two thirds are training pairs; a classifier a layer, and of the pooled state.
            states = reading.inputs * 2 / 3 * (encoder.num_hidden_layers + 2)
    else:
        reading = _of_task(measure, samples, is_probe=is_probe)
        if is_probe and samples.train is not None and reading is not None:
            states = _fitted_states(measure, samples.train, encoder.num_hidden_layers)
    # An online code has a probe for each block: together they read the examples once more.
    if is_probe and module.get("description_length"):
        states *= 2
    return MeasureJob(
        measure=measure.name,
        encoder=encoder,
        reading=reading,
        fitted_values=states * encoder.output_size,
        settings=settings,
        jobs=jobs,
    )


def _of_task(measure: MeasureConfig, samples: Samples, *, is_probe: bool) -> Reading | None:
    """Of a task's files: a probe reads both splits, other measures the validation split."""
    train = samples.train
    validation = samples.validation
    if validation is None or train is None:
        return None
    number = float(validation.examples)
    if is_probe:
        number += min(train.examples, measure.max_train_examples or train.examples)
    length = validation.characters / CHARACTERS_A_TOKEN + 2
    return Reading(
        number * validation.inputs,
        min(float(data_of(measure)["max_seq_length"]), length),
    )


def _fitted_states(measure: MeasureConfig, train: Sample, layers: int) -> float:
    """Of all classifiers of a probe of a task's labels.

    Of words there are as many states as words, and control labels beside the real ones; of texts
    the pooled state is one more.
    """
    examples = min(train.examples, measure.max_train_examples or train.examples)
    if "tag_column" in data_of(measure):
        return examples * train.words * 2 * (layers + 1)
    return float(examples * (layers + 2))
