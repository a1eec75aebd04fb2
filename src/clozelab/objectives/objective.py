"""What an objective is: an input format, what is predicted at tokens and, if any, of the segments.

Three functions. `arrays` makes numpy batches in the loader, a pure function of (seed, epoch,
index). `terms` takes a batch to losses on the device; the models are named, and a later forward may
depend on what an earlier one gave. `visibility` tells the pre-flight what each prediction may see.

A new objective is one file with one class; nobody lists it, a YAML names it. Losses come as sums
with their counts, never as means: only the training loop, which knows all devices and micro-batches
of a step, can divide.

Letters: T slots in the stream, B instances, P predicted positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.corpus.instances import DrawnInstances, InputFormat, Instances
from clozelab.corpus.packing import I64, Epoch, PackedInstances
from clozelab.metrics.metric import Metric
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import frozen_flops_per_token, training_flops_per_token
from clozelab.models.encoder import Encoder, EncoderOutput
from clozelab.models.heads import MaskedLMHead
from clozelab.models.kernels.linear_cross_entropy import IGNORED_LABEL
from clozelab.models.layers import DeltaEmbedding
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for
from clozelab.models.trained import freeze

Arrays = dict[str, Any]
TorchBatch = dict[str, Any]


def real_tokens(batch: TorchBatch) -> Tensor:
    """bool [T] of a rectangle: False on padding slots."""
    layout = batch["layout"]
    if layout.full:
        return torch.ones(layout.num_slots, dtype=torch.bool, device=batch["input_ids"].device)
    return ~layout.key_padding().reshape(-1)


def overrides(own: object, base: type, *methods: str) -> bool:
    """Whether the class of `own` has not `base`'s own methods of these names."""
    return any(getattr(type(own), name, None) is not getattr(base, name, None) for name in methods)


class EncoderWithHeads(nn.Module):
    """One of the models of an objective; its heads are under their kinds (families/bert.py)."""

    is_trained: bool = True

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict()
        self.aids = nn.ModuleDict()  # trained along with it, and in no folder
        self.keeps_hidden_states = False
        self.reads_all_slots = False  # where a head or a loss on pairs reads in a way of its own
        self._given: set[str] = set()  # kinds of heads that are not the family's

    def set_reading(self, is_causal: bool, predicts_next: bool) -> None:
        """Lets the encoder see the past only, or both sides; and says what a state predicts.

        Objectives that take turns may want another each.
        """
        config = self.encoder.config
        if (config.is_causal, config.predicts_next) == (is_causal, predicts_next):
            return
        config = replace(config, is_causal=is_causal, predicts_next=predicts_next)
        pattern = config.attention.build(config)
        self.encoder.config = config
        self.encoder.embeddings.position_embeddings.is_causal = is_causal
        self.encoder.masks = [pattern.mask(number) for number in range(config.num_hidden_layers)]

    def states(
        self, input_ids: Tensor, batch: TorchBatch, read_slots: Tensor | None = None
    ) -> EncoderOutput:
        """The encoder on `input_ids` [T], with everything else as the batch says.

        `read_slots`: see `Encoder.forward`; those that a head on pairs pools are added.
        """
        if self.reads_all_slots:
            read_slots = None
        elif read_slots is not None and len(self.heads) > 1:
            pooled = self.encoder.pooled_slots(batch["layout"])
            read_slots = None if pooled is None else torch.cat([read_slots, pooled])
        own = batch | {"input_ids": input_ids}
        return self.encoder.read(own, self.keeps_hidden_states, read_slots)

    def predicted_states(self, output: EncoderOutput, batch: TorchBatch) -> Tensor:
        """[P, H]: what the `lm` head predicts from, by what it wants to see of the forward."""
        head: Any = self.heads["lm"]
        return head.states(self.encoder, output, batch)

    def add_head(self, kind: str, head: nn.Module | None = None) -> None:
        """A head of this kind, by default the family's; objectives that take turns share it.

        ValueError where one of them wants the family's, and another one its own.
        """
        is_given = head is not None
        if kind in self.heads and is_given != (kind in self._given):
            raise ValueError(
                f"phases predict by two kinds of {kind} heads, and an encoder has one: give all"
                " phases the same objective.token, such as mlm_emd"
            )
        if kind not in self.heads:
            if is_given:
                self._given.add(kind)
            if head is None:
                head = family_for(self.encoder.config).head(kind, self.encoder)
            self.heads[kind] = head
            self.keeps_hidden_states |= getattr(head, "reads_hidden_states", False)
            if kind == "lm":
                self.reads_all_slots |= overrides(head, MaskedLMHead, "states")


class AuxiliaryModel(EncoderWithHeads):
    """A model beside the one that is kept: a generator, a teacher.

    One that is `trained` gets a folder of its own beside the encoder's. Any other is frozen and
    has no dropout. It is part of no checkpoint and no sharding, and counts nowhere: the files that
    it is read from are inputs of the run (`TokenObjective.inputs`).
    """

    def __init__(self, encoder: Encoder, *, trained: bool) -> None:
        super().__init__(encoder)
        self.is_trained = trained
        self._settle()

    def add_head(self, kind: str, head: nn.Module | None = None) -> None:
        super().add_head(kind, head)
        self._settle()

    def _settle(self) -> None:
        if not self.is_trained:
            freeze(self.parameters())
            self.eval()

    def train(self, mode: bool = True) -> AuxiliaryModel:
        return super().train(mode and self.is_trained)


MOST_SOURCES = 20  # with more, a held-out loss of each would say little and cost a call each
# What the figures of pairs inside one source are called behind the objective's name, in the order
# of the labels.
ONE_SOURCE = ("_one_source/next", "_one_source/random")
# "encoder" is the one that is kept; "generator" and the like help to train it.
Models = Mapping[str, EncoderWithHeads]


@dataclass
class LossTerm:
    """One loss on one micro-batch."""

    name: str
    loss_sum: Tensor  # fp32 scalar, summed over `count` predictions, not weighted
    count: int | Tensor
    num_correct: Tensor | None  # int scalar; None: nothing is right or wrong
    # further means: name -> (sum, count)
    figures: dict[str, tuple[Tensor, Tensor | int]] = field(default_factory=dict)

    def means(self) -> dict[str, tuple[Tensor, Tensor | int]]:
        """Everything that is reported of this term: name -> (sum, number it is a mean over)."""
        means: dict[str, tuple[Tensor, Tensor | int]] = {
            f"{self.name}_loss": (self.loss_sum.detach(), self.count)
        }
        if self.num_correct is not None:
            means[f"{self.name}_accuracy"] = (self.num_correct, self.count)
        return means | self.figures


def term_metrics(name: str) -> tuple[Metric, ...]:
    """What a LossTerm of this name reports: a cross-entropy, and the share that is right."""
    loss = Metric(f"{name}_loss", "nats", higher_is_better=False)
    return loss, Metric.share(f"{name}_accuracy")


# Slots of the stream that look, and those that they look at -> bool, as numpy broadcasts the two.
Sees = Callable[[I64, I64], NDArray[np.bool_]]


def sees_all(query: I64, key: I64) -> NDArray[np.bool_]:
    return np.ones(np.broadcast_shapes(query.shape, key.shape), dtype=bool)


def sees_past(query: I64, key: I64) -> NDArray[np.bool_]:
    return key <= query


@dataclass(frozen=True)
class VisibilitySpec:
    """What the predictions of one term may see of the text."""

    term: str
    model: str
    positions: I64  # [P] stream slots whose states predict
    about: I64  # [P] the slot of the packed text that each is to find out about
    # whether what stands at a slot of the stream reaches the states at another one of its instance
    sees: Sees
    own_share: float  # share of the predictions that see the text's own token at `about` on purpose
    numbers: I64 | None = None  # [P] of these among the batch's predictions; None: all of them
    # Of an encoder of two directions, which half of the states it is about; None: all of them.
    direction: int | None = None


class _Weighted(ABC):
    name: str  # of the term; of a token objective that for which `validation/loss` stands

    def __init__(self, *, weight: float) -> None:
        self.weight = weight

    @property
    def weights(self) -> dict[str, float]:
        """Term name -> weight of its mean in the total loss."""
        return {self.name: self.weight}

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What its terms report, some of it in validation alone; a key NAME/PART is of NAME."""
        return tuple(chain.from_iterable(map(term_metrics, self.weights)))


class TokenObjective(_Weighted):
    """Predicts tokens, or something about them."""

    is_causal: bool  # the encoder's attention mask, remembered with its weights
    # whether predicted tokens may see others that are predicted
    predictions_help = False
    label_offset: int = 0  # slots from a state to the token that it predicts
    # Whether a state predicts the token behind it, though it sees both sides.
    predicts_next: bool = False
    # Whether the encoder that is kept has an LM head: a discriminator has none.
    predicts_tokens: bool = True
    num_directions = 1  # of the encoder that it trains
    # Models that get folders of these names beside the encoder's.
    trains_beside: tuple[str, ...] = ()
    # Whether a row is the text's slots and others behind them, which positions alone tell apart.
    moves_slots = False

    @property
    def metrics(self) -> tuple[Metric, ...]:
        # In validation [SEP] stands apart from all other tokens (`_held_out_term`).
        names = [f"{name}_sep" for name in self.weights]
        return (*super().metrics, *chain.from_iterable(map(term_metrics, names)))

    @property
    def hides_neighbours(self) -> bool:
        """Whether a slot may not see each of those beside it."""
        return self.is_causal

    @property
    def own_share(self) -> float:
        """Of the predictions, those that see the text's own token on purpose."""
        return 0.0

    @abstractmethod
    def arrays(self, packed: PackedInstances) -> Arrays:
        """Returns `input_ids` [T], `prediction_positions` [P], `prediction_labels` [P], all int64.

        `input_ids` are as the encoder sees them. The state of stream slot `prediction_positions[p]`
        predicts `prediction_labels[p]`. Optional: `visibility`, bool [B, S, S], which slots of an
        instance each of its slots may see, where the layers' masks alone do not say it. Rows may be
        longer than their text, with `width`, `lengths`, `token_type_ids` and `position_ids` of
        their own; a slot whose position is its place in the row is then one of the text, and
        `text_lengths` lists how many these are.
        """

    def visibility(
        self,
        packed: PackedInstances,  # noqa: ARG002
        arrays: Arrays,
    ) -> list[VisibilitySpec]:
        """What the predictions of `arrays`, which were made from `packed`, may see.

        By default a token is predicted from both sides; under a causal mask from what stands before
        it.
        """
        positions = arrays["prediction_positions"]
        about = positions + self.label_offset
        sees = sees_past if self.is_causal else sees_all
        return [VisibilitySpec(self.name, "encoder", positions, about, sees, self.own_share)]

    def inputs(self) -> dict[str, Path]:
        """Folders of encoders that it reads, by the names under which a run records them."""
        return {}

    def files(self) -> dict[str, Path]:
        """Files that it reads, by the names under which a run records them."""
        return {}

    def check_pair(self, pair: PairObjective) -> None:
        """ValueError for a pair objective that cannot stand beside this one."""

    def check_batch(self, global_batch_size: int) -> None:
        """ValueError for a step of too few instances."""

    def check(self, student: EncoderConfig, longest: int) -> None:
        """ValueError where what it reads does not fit the encoder that is kept.

        `longest`: tokens of the longest instance.
        """

    def predicted_share(self, seq_length: int) -> float:  # noqa: ARG002
        """Of the slots of a full instance, those with a vocabulary projection."""
        return 1.0

    def build(self, models: dict[str, EncoderWithHeads]) -> None:
        """Puts the heads on models["encoder"], and adds further models."""
        models["encoder"].add_head("lm")

    def start(self, models: Models) -> None:
        """Reads the weights of what `inputs` names, once, before a training."""

    def counts(self, batch: TorchBatch) -> dict[str, int]:
        """Term name -> predictions in a batch, known before the forward.

        Padding of their number is none.
        """
        return {self.name: int(batch.get("num_predictions", len(batch["prediction_labels"])))}

    def num_predictions(self, batch: TorchBatch) -> int:
        """Positions of a batch with a vocabulary projection."""
        return self.counts(batch)[self.name]

    def read_slots(self, batch: TorchBatch) -> Tensor | None:  # noqa: ARG002
        """int64 [R], some perhaps twice: the only slots whose last states `terms` reads.

        None: all of them. A state that is not listed may be NaN.
        """
        return None

    def slots_to_read(self, batch: TorchBatch) -> Tensor | None:
        """The same; None also where a subclass reads in its own way and lists nothing."""
        lists = next(base for base in type(self).__mro__ if "read_slots" in vars(base))
        if overrides(self, lists, "terms", "part_states"):  # the latter of objectives/parts.py
            return None
        return self.read_slots(batch)

    def terms(self, models: Models, batch: TorchBatch) -> tuple[EncoderOutput, list[LossTerm]]:
        """The encoder's output, for a pair objective to go on with, and the losses."""
        model = models["encoder"]
        output = model.states(batch["input_ids"], batch, self.slots_to_read(batch))
        hidden = model.predicted_states(output, batch)
        return output, [self.prediction_term(model, hidden, batch)]

    def prediction_term(
        self, model: EncoderWithHeads, hidden: Tensor, batch: TorchBatch
    ) -> LossTerm:
        """Cross-entropy of the vocabulary at the predicted positions, summed.

        `hidden` [P, H] are the states there.
        """
        head: Any = model.heads["lm"]
        labels = batch["prediction_labels"]
        if "source_names" in batch:
            return self._held_out_term(head, hidden, labels, batch)
        result = head.loss(hidden, labels)
        count = int(batch.get("num_predictions", len(labels)))
        return LossTerm(self.name, result.loss_sum, count, result.num_correct)

    def _held_out_term(
        self, head: Any, hidden: Tensor, labels: Tensor, batch: TorchBatch
    ) -> LossTerm:
        """The term in validation, where [SEP] stands apart, and so does each of several sources.

        A model can count out where a [SEP] is.
        """
        is_sep = labels == batch["sep_id"]
        names = batch["source_names"]
        # Name of a source ("": all of them) -> its predictions, bool [P].
        members = {"": ~is_sep}
        if 2 <= len(names) <= MOST_SOURCES:
            source = self._source_of_predictions(batch)
            members = {}
            for number, name in enumerate(names):
                members[name] = (source == number) & ~is_sep
        losses = {name: head.loss(hidden[own], labels[own]) for name, own in members.items()}
        total = sum(loss.loss_sum for loss in losses.values())
        correct = sum(loss.num_correct for loss in losses.values())
        sep = head.loss(hidden[is_sep], labels[is_sep])
        figures = {}
        for name, loss in losses.items():
            if name:
                figures[f"{self.name}_loss/{name}"] = (loss.loss_sum, loss.count)
        figures[f"{self.name}_sep_loss"] = (sep.loss_sum, sep.count)
        figures[f"{self.name}_sep_accuracy"] = (sep.num_correct, sep.count)
        return LossTerm(self.name, total, len(labels) - int(sep.count), correct, figures)

    def _source_of_predictions(self, batch: TorchBatch) -> Tensor:
        """[P]: the source that each predicted token is of."""
        position = batch["prediction_positions"]
        instance = position // batch["layout"].row_slots
        source = batch["source"][instance]
        if "b_source" not in batch:
            return source
        # Of B's source are those behind A and its [SEP]; token types are all 0 with byte-level BPE.
        slot = batch["position_ids"][position] + self.label_offset
        is_first = slot <= batch["a_length"][instance] + 1
        return torch.where(is_first, source, batch["b_source"][instance])

    def flops_per_token(
        self, config: EncoderConfig, seq_length: int, predicted_fraction: float
    ) -> float:
        """Useful operations of a training step, of all models.

        `config` is that of the encoder that is kept.
        """
        return training_flops_per_token(config, seq_length, predicted_fraction)

    def stream_length(self, seq_length: int, predicted_fraction: float) -> int:  # noqa: ARG002
        """Slots that the encoder reads of a text of `seq_length` tokens."""
        return seq_length

    def frozen_flops_per_token(
        self,
        config: EncoderConfig,
        seq_length: int,
        predicted_fraction: float,
        frozen: frozenset[str],
        has_pair: bool = False,  # noqa: ARG002
    ) -> float:
        """What of them is left out where the encoder's weights of these names are frozen.

        `has_pair`: a loss on pairs is added.
        """
        stream = self.stream_length(seq_length, predicted_fraction)
        return stream / seq_length * frozen_flops_per_token(config, stream, frozen)

    def pair_flops_per_token(self, config: EncoderConfig, seq_length: int) -> float:  # noqa: ARG002
        """What a loss on pairs adds to them, where it is not below a thousandth."""
        return 0.0

    def predictions(self, models: Models, batch: TorchBatch) -> dict[str, Tensor]:
        """Model -> its outputs at the positions of its VisibilitySpec [P, ...].

        For the pre-flight.
        """
        model = models["encoder"]
        output = model.states(batch["input_ids"], batch)
        return {"encoder": model.heads["lm"](model.predicted_states(output, batch))}


class PairObjective(_Weighted):
    """Tells two classes of segment pairs apart by the pooled state.

    Class 0 are those that follow each other.
    """

    label: ClassVar[str]  # key of its labels [B] in the batch
    is_of_other_document: ClassVar[bool]  # where the second segment of class 1 comes from

    @abstractmethod
    def check_input(self, input: InputFormat) -> None:
        """ValueError for an input format that makes no pairs of this kind."""

    @abstractmethod
    def arrange(self, packed: PackedInstances) -> tuple[PackedInstances, I64]:
        """The instances as they are to be read, and the label of each [B]."""

    def build(self, models: dict[str, EncoderWithHeads]) -> None:
        """Puts a head with two classes on models["encoder"]; its kind is the objective's name."""
        models["encoder"].add_head(self.name)

    def counts(self, batch: TorchBatch) -> dict[str, int]:
        return {self.name: len(batch[self.label])}

    def term(self, model: EncoderWithHeads, output: EncoderOutput, batch: TorchBatch) -> LossTerm:
        """Cross-entropy summed over the pairs.

        A batch with `source_names` (validation) adds the accuracy by source, as
        "nsp_accuracy/wiki", and of both kinds of pairs inside one source; also of those without a
        pair in this batch, so that all devices report the same.
        """
        labels = batch[self.label]
        head = model.heads[self.name]
        pooled = model.encoder.pool(output.sequence_output, batch["layout"], head)
        logits = head(pooled).float()  # [B, 2]
        is_correct = logits.argmax(-1) == labels
        figures: dict[str, tuple[Tensor, Tensor | int]] = {}
        if "source_names" in batch:
            figures = self._source_figures(is_correct, labels, batch)
        loss = F.cross_entropy(logits, labels, reduction="none").sum()
        return LossTerm(self.name, loss, len(labels), is_correct.sum(), figures)

    def _source_figures(
        self, is_correct: Tensor, labels: Tensor, batch: TorchBatch
    ) -> dict[str, tuple[Tensor, Tensor | int]]:
        """Name -> (correct pairs, pairs), of each source and inside one source."""
        source = batch["source"]
        figures: dict[str, tuple[Tensor, Tensor | int]] = {}
        for number, name in enumerate(batch["source_names"]):
            inside = source == number
            figures[f"{self.name}_accuracy/{name}"] = (is_correct[inside].sum(), inside.sum())
        if "b_source" in batch:
            for label, suffix in enumerate(ONE_SOURCE):
                inside = (source == batch["b_source"]) & (labels == label)
                figures[self.name + suffix] = (is_correct[inside].sum(), inside.sum())
        return figures


class Objective:
    """An input format, and what is predicted of its instances.

    The total loss is the weighted sum of the mean losses of the parts.

    Args:
        input: SegmentPairs, FullSentences or another format of instances.
        token: what is predicted at tokens.
        pair: what is predicted of the two segments; ValueError if the input format makes no such
            pairs.
        dupe_factor: static masking: the corpus is seen in so many ways, then all repeats (the
            released code made 10 copies, each masked apart); the input format's copies are all in
            one epoch. None: every epoch is new.
    """

    def __init__(
        self,
        *,
        input: InputFormat,
        token: TokenObjective,
        pair: PairObjective | None,
        dupe_factor: int | None = None,
    ) -> None:
        if pair is not None:
            pair.check_input(input)
            token.check_pair(pair)
        if dupe_factor is not None and (dupe_factor < 1 or dupe_factor % input.copies):
            raise ValueError(
                f"objective.dupe_factor is {dupe_factor}: give a multiple of"
                f" input.copies={input.copies}."
            )
        self.input = input
        self.token = token
        self.pair = pair
        self.dupe_factor = dupe_factor
        self.is_causal = token.is_causal
        self.predicts_next = token.predicts_next

    @property
    def weights(self) -> dict[str, float]:
        """Term name -> weight of its mean in the total loss."""
        if self.pair is None:
            return self.token.weights
        return self.token.weights | self.pair.weights

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What its terms report."""
        if self.pair is None:
            return self.token.metrics
        return self.token.metrics + self.pair.metrics

    def counts(self, batch: TorchBatch) -> dict[str, int]:
        """Term name -> number of predictions in a batch, without a forward."""
        if self.pair is None:
            return self.token.counts(batch)
        return self.token.counts(batch) | self.pair.counts(batch)

    def flops_per_token(
        self, config: EncoderConfig, seq_length: int, predicted_fraction: float
    ) -> float:
        """Useful operations of a training step, of all models; `config` is the encoder's."""
        flops = self.token.flops_per_token(config, seq_length, predicted_fraction)
        if self.pair is not None:
            flops += self.token.pair_flops_per_token(config, seq_length)
        return flops

    def arrays(
        self,
        instances: Instances,
        seed: int,
        epoch: Epoch,
        index: I64,
        order: I64 | None = None,
    ) -> Arrays:
        """The instances named by `index` [B], ready but for torch.

        A pure function of its arguments; `order` [B] is their place among all of the phase.

        Keys: input_ids, token_type_ids, position_ids [T]; lengths [B] and width (T = B * width);
        prediction_positions, prediction_labels [P]; source [B]; a pair objective's label [B];
        b_source, a_length [B] if B may be drawn.
        """
        packed, labels = self.arranged(self.draw(instances, seed, epoch, index), order)
        return self.arrays_of(packed) | labels

    def draw(self, instances: Instances, seed: int, epoch: Epoch, index: I64) -> DrawnInstances:
        """`Instances.draw` of some, or of many whose batches are made later."""
        # With static masking a later pass repeats an earlier one.
        if self.dupe_factor is not None:
            epoch = epoch % (self.dupe_factor // self.input.copies)
        return instances.draw(seed, epoch, index)

    def arranged(self, drawn: DrawnInstances, order: I64 | None) -> tuple[PackedInstances, Arrays]:
        """The text that `arrays` hides some of, and the pair objective's labels."""
        return self.arrange(replace(drawn.pack(), order=order))

    def arrange(self, packed: PackedInstances) -> tuple[PackedInstances, Arrays]:
        """The instances as the models read them, before anything is masked.

        Beside them the pair objective's labels.
        """
        if self.pair is None:
            return packed, {}
        packed, labels = self.pair.arrange(packed)
        return packed, {self.pair.label: labels}

    def arrays_of(self, packed: PackedInstances) -> Arrays:
        """`arrays` of arranged instances, without the pair labels."""
        # Masks first: the memory that they need for a while is then used again.
        token_arrays = self.token.arrays(packed)
        arrays = {
            "token_type_ids": packed.token_type_ids,
            "position_ids": packed.position_ids,
            "lengths": packed.lengths,
            "width": packed.width,
            "source": packed.source,
        }
        if packed.b_source is not None:
            arrays["b_source"] = packed.b_source
            arrays["a_length"] = packed.a_length
        return arrays | token_arrays

    def visibility(self, packed: PackedInstances) -> list[VisibilitySpec]:
        """What the predictions that `arrays_of` asks for may see.

        A pair prediction may see everything.
        """
        return self.token.visibility(packed, self.token.arrays(packed))

    def terms(self, models: Models, batch: TorchBatch) -> list[LossTerm]:
        """One LossTerm for each of `weights`, in their order; `batch` as `to_torch` makes it."""
        # The phase before may have read another way.
        for model in models.values():
            if model.is_trained:
                model.set_reading(self.is_causal, self.predicts_next)
        output, terms = self.token.terms(models, batch)
        if self.pair is None:
            return terms
        return [*terms, self.pair.term(models["encoder"], output, batch)]


def build_models(encoder: Encoder, objectives: Sequence[Objective]) -> dict[str, EncoderWithHeads]:
    """The models that some objectives train, from the encoder that is kept.

    Heads that they have in common are one.
    """
    models = {"encoder": EncoderWithHeads(encoder)}
    for objective in objectives:
        _check_directions(encoder.config, objective.token)
        _check_parts(encoder, objective.token)
        objective.token.build(models)
        if objective.pair is not None:
            objective.pair.build(models)
            # Another one than the pooled states, perhaps.
            own_term = overrides(objective.pair, PairObjective, "term")
            models["encoder"].reads_all_slots |= own_term
    model = models["encoder"]
    # A generator's embeddings are part of the encoder's.
    if "lm" in model.heads and isinstance(model.encoder.embeddings.word_embeddings, DeltaEmbedding):
        raise ValueError(
            "objective.token.embedding_sharing=gdes cannot take turns with an objective that"
            " predicts tokens by the encoder's own embeddings: choose all"
        )
    return models


def _check_directions(config: EncoderConfig, token: TokenObjective) -> None:
    """ValueError for an encoder of two directions under an objective of one, or the reverse.

    Also for a family whose heads read one.
    """
    if config.num_directions == 2 and not family_for(config).reads_two_directions:
        raise ValueError(
            f"architecture.num_directions is 2, and heads of {config.model_type} read states of one"
            " direction: choose architecture=two_directions"
        )
    if config.num_directions == token.num_directions:
        return
    if token.num_directions == 2:
        raise ValueError(
            f"objective {token.name} trains an encoder of two directions: say"
            " architecture=two_directions"
        )
    raise ValueError(
        f"objective {token.name} would show each token to its own prediction: an encoder of two"
        " directions is trained by objective=ltr_rtl"
    )


def _check_parts(encoder: Encoder, token: TokenObjective) -> None:
    """ValueError for parts that show, or miss, other tokens than the objective counts on."""
    if token.moves_slots:
        _refuse_counted_slots(encoder, token.name)
    elif token.hides_neighbours and _tells_length(encoder, token.is_causal):
        raise ValueError(
            f"objective {token.name} hides what follows, and these architecture.positions tell"
            " every token how far the end of the text is: choose others"
        )
    if token.hides_neighbours and encoder.first_block.reads_neighbours:
        raise ValueError(
            f"objective {token.name} hides tokens that a convolution would show: choose"
            " architecture.block PostNorm"
        )


def _tells_length(encoder: Encoder, is_causal: bool) -> bool:
    positions: Any = encoder.embeddings.position_embeddings
    return bool(positions.tells_length(is_causal))


def _refuse_counted_slots(encoder: Encoder, name: str) -> None:
    """ValueError for parts that go by slots where the objective has tokens stand elsewhere."""
    positions: Any = encoder.embeddings.position_embeddings
    if positions.counts_slots:
        raise ValueError(
            f"objective {name} puts predictions behind the text, and distances of"
            f" {type(positions).__name__} are of slots: choose other architecture.positions"
        )
    if any(mask.window is not None or mask.blocks for mask in encoder.masks):
        raise ValueError(
            f"objective {name} puts predictions behind the text, and windows are of slots:"
            " choose architecture.attention FullAttention"
        )


def pad_predictions(batch: Arrays, multiple: int) -> Arrays:
    """`Objective.arrays` with P raised to a multiple, so that an accelerator sees few shapes.

    What is added is slot 0 with no label, which counts nowhere. `num_predictions` remembers the
    real P.
    """
    # For example 13 predictions and a multiple of 8: three more.
    count = len(batch["prediction_labels"])
    padding = (0, -count % multiple)
    return batch | {
        "num_predictions": count,
        "prediction_positions": np.pad(batch["prediction_positions"], padding),
        "prediction_labels": np.pad(
            batch["prediction_labels"], padding, constant_values=IGNORED_LABEL
        ),
    }


def to_torch(batch: Arrays) -> TorchBatch:
    """`Objective.arrays` as int64 tensors, lengths and width as a Layout; other values stay."""
    tensors: TorchBatch = {}
    for key, value in batch.items():
        if key in ("lengths", "width", "visibility"):
            continue
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(np.ascontiguousarray(value, dtype=np.int64))
        tensors[key] = value
    visibility = None
    if "visibility" in batch:
        visibility = torch.from_numpy(batch["visibility"])
    tensors["layout"] = Layout.rectangle(batch["lengths"], batch["width"], visibility)
    return tensors


SHORT_INSTANCES = 64
# Tokens of training for each entry of the vocabulary before a model of BERT-Tiny's shape leaves its
# plateau: 5.4 M tokens at 8,192 entries when it begins with short ones; without them it was still
# there after 19 M.
TOKENS_PER_ENTRY = {"short": 660, "long": 2300}


def plateau_tokens(*, vocab_size: int, first_seq_length: int, is_causal: bool) -> float:
    """Tokens of training until a model knows more than frequencies, by a rule of thumb.

    Left-to-right never waits.
    """
    if is_causal:
        return 0.0
    length = "short" if first_seq_length <= SHORT_INSTANCES else "long"
    return float(TOKENS_PER_ENTRY[length] * vocab_size)
