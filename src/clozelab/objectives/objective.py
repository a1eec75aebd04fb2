"""What an objective is: the contracts that weighted_sum.py composes.

A new objective is one file with one class; nobody lists it, a YAML names it. Losses come as sums with their counts,
never as means: only the module, which knows all devices and micro-batches of a step, can divide.

Letters: T slots in the stream, B rows, P predicted positions, H hidden size.

A pre-training objective as a composition: how rows are laid out, what is predicted per token, what per pair.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from clozelab.corpus.instances import InputFormat, Instances
from clozelab.corpus.packing import I64, PackedRows, SpecialIds
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder, EncoderOutput
from clozelab.models.heads import MaskedLMHead
from clozelab.models.kernels.linear_cross_entropy import IGNORED_LABEL
from clozelab.models.layout import Layout

Epoch = int | NDArray[np.int64]
Arrays = dict[str, Any]


@dataclass
class RowResults:
    """An objective with one prediction a row keeps them apart, so that they can be reported by source."""

    loss: Tensor
    """fp32 [B]."""
    correct: Tensor
    """bool [B]."""


@dataclass
class LossTerm:
    """One objective's loss on one micro-batch."""

    name: str
    loss_sum: Tensor
    """fp32 scalar, summed over `count` predictions, not weighted."""
    count: int
    num_correct: Tensor
    """int scalar."""
    rows: RowResults | None = None


class TokenObjective(ABC):
    """Predicts tokens of the vocabulary at some positions."""

    name: ClassVar[str]
    hf_prefix: ClassVar[str] = "lm"
    """Its kind of head (models/families/bert.py)."""
    is_causal: ClassVar[bool]
    """The encoder's attention mask, remembered with its weights."""
    predicted_fraction: float
    """Share of slots that are predicted, for counting FLOPs."""
    weight: float

    @abstractmethod
    def instance(self, rows: PackedRows, ids: SpecialIds, seed: int, epoch: Epoch) -> Arrays:
        """Returns `input_ids` [T] as the encoder sees them, `prediction_rows` [P] and `prediction_labels` [P], int64.

        The hidden state of stream slot `prediction_rows[p]` predicts `prediction_labels[p]`.
        """

    def build_head(self, config: EncoderConfig, encoder: Encoder) -> nn.Module:
        """The masked-LM head, tied to the encoder's word embeddings."""
        weight = encoder.embeddings.word_embeddings.weight
        assert isinstance(weight, nn.Parameter)
        return MaskedLMHead(config, weight)

    def count(self, batch: dict[str, Any]) -> int:
        """Predictions in a batch, known before the forward; padding of their number is none."""
        return int(batch.get("num_predictions", len(batch["prediction_labels"])))

    def loss(self, head: nn.Module, output: EncoderOutput, batch: dict[str, Any]) -> LossTerm:
        """Cross-entropy summed over the predicted positions only."""
        assert isinstance(head, MaskedLMHead)
        hidden = output.sequence_output.index_select(0, batch["prediction_rows"])  # [P, H]
        result = head.loss(hidden, batch["prediction_labels"])
        return LossTerm(self.name, result.loss_sum, self.count(batch), result.num_correct)


class PairObjective(ABC):
    """Predicts something about a row's two segments from the pooled state."""

    name: ClassVar[str]
    hf_prefix: ClassVar[str]
    weight: float

    @abstractmethod
    def instance(self, rows: PackedRows, ids: SpecialIds, seed: int, epoch: Epoch) -> Arrays:
        """The labels this objective needs, [B] each."""

    @abstractmethod
    def build_head(self, config: EncoderConfig) -> nn.Module:
        """The head on the pooled state."""

    @abstractmethod
    def count(self, batch: dict[str, Any]) -> int:
        """Predictions in a batch, known before the forward."""

    @abstractmethod
    def loss(self, head: nn.Module, pooled: Tensor, batch: dict[str, Any]) -> LossTerm:
        """`pooled` [B, H] -> loss summed over the rows."""


class Objective:
    """Input format, token objective and, if any, pair objective; the total is the weighted sum of their mean losses.

    Args:
        input: SegmentPairs or FullSentences.
        token: what is predicted at tokens.
        pair: what is predicted of the two segments; ValueError if the input format makes no pairs.
        dupe_factor: static masking: each instance repeats after this many epochs (the released code made 10 copies,
            each masked apart). None: every epoch is new.
    """

    def __init__(
        self,
        *,
        input: InputFormat,
        token: TokenObjective,
        pair: PairObjective | None,
        dupe_factor: int | None = None,
    ) -> None:
        if pair is not None and not input.has_pairs:
            raise ValueError(
                f"Objective {pair.name} needs segment pairs, but {type(input).__name__} makes none: "
                "choose objective/input=segment_pairs, or an objective without a pair part, such as objective=mlm."
            )
        if dupe_factor is not None and dupe_factor < 1:
            raise ValueError(f"dupe_factor is {dupe_factor}; use null (a new mask every epoch) or at least 1.")
        self.input = input
        self.token = token
        self.pair = pair
        self.dupe_factor = dupe_factor

    @property
    def is_causal(self) -> bool:
        return self.token.is_causal

    @property
    def predicted_fraction(self) -> float:
        return self.token.predicted_fraction

    @property
    def weights(self) -> dict[str, float]:
        """Term name -> weight of its mean in the total loss."""
        return {part.name: part.weight for part in self._parts}

    def counts(self, batch: dict[str, Any]) -> dict[str, int]:
        """Term name -> number of predictions in a batch, without a forward."""
        return {part.name: part.count(batch) for part in self._parts}

    @property
    def _parts(self) -> list[TokenObjective | PairObjective]:
        return [self.token] if self.pair is None else [self.token, self.pair]

    def bind(self, shards: Any, ids: SpecialIds, seq_length: int) -> Instances:
        """The input format's instances of one split at one sequence length."""
        return self.input.bind(shards, ids, seq_length)

    def make_batch(self, instances: Instances, seed: int, epoch: Epoch, index: I64) -> Arrays:
        """The rows named by `index` [B], ready but for torch: a pure function of its arguments.

        Keys: input_ids, token_type_ids, position_ids [T]; lengths [B] and row_slots; prediction_rows,
            prediction_labels [P]; source [B]; next_sentence_label [B] with a pair objective.
        """
        if self.dupe_factor is not None:
            epoch = epoch % self.dupe_factor
        rows = instances.rows(seed, epoch, index)
        batch: Arrays = {
            "token_type_ids": rows.token_type_ids,
            "position_ids": rows.position_ids,
            "lengths": rows.lengths,
            "row_slots": rows.row_slots,
            "source": rows.source,
        }
        batch.update(self.token.instance(rows, instances.ids, seed, epoch))
        if self.pair is not None:
            batch.update(self.pair.instance(rows, instances.ids, seed, epoch))
        return batch

    def heads(self, config: EncoderConfig, encoder: Encoder) -> nn.ModuleDict:
        """One head an objective, under the objective's name."""
        heads = {self.token.name: self.token.build_head(config, encoder)}
        if self.pair is not None:
            heads[self.pair.name] = self.pair.build_head(config)
        return nn.ModuleDict(heads)

    def heads_by_prefix(self, heads: nn.ModuleDict) -> dict[str, nn.Module]:
        """The same heads by kind."""
        return {part.hf_prefix: heads[part.name] for part in self._parts}

    def losses(self, heads: nn.ModuleDict, encoder: Encoder, batch: dict[str, Any]) -> list[LossTerm]:
        """One forward of the encoder and one LossTerm an objective; `batch` as `to_torch` makes it.

        A batch with `source_names` (validation) adds the pair term by source, as "nsp/wiki"; also for sources without
        a row in this batch, so that all devices report the same names.
        """
        layout = batch["layout"]
        output = encoder(batch["input_ids"], batch["token_type_ids"], batch["position_ids"], layout)
        terms = [self.token.loss(heads[self.token.name], output, batch)]
        if self.pair is not None:
            pooled = encoder.pool(output.sequence_output, layout)
            terms.append(self.pair.loss(heads[self.pair.name], pooled, batch))
            terms.extend(_by_source(terms[-1], batch["source"], batch.get("source_names", ())))
        return terms


def _by_source(term: LossTerm, source: Tensor, source_names: Sequence[str]) -> list[LossTerm]:
    """`term` split over the sources; `source` [B]."""
    rows = term.rows
    if rows is None:
        return []
    parts = []
    for number, name in enumerate(source_names):
        inside = source == number
        loss_sum, num_correct = rows.loss[inside].sum(), rows.correct[inside].sum()
        parts.append(LossTerm(f"{term.name}/{name}", loss_sum, int(inside.sum()), num_correct))
    return parts


def pad_predictions(batch: Arrays, multiple: int) -> Arrays:
    """`make_batch`'s arrays with P raised to a multiple: slot 0 with no label, which counts nowhere.

    So an accelerator sees few shapes. `num_predictions` remembers the real P.
    """
    count = len(batch["prediction_labels"])
    padding = (0, -count % multiple)
    return batch | {
        "num_predictions": count,
        "prediction_rows": np.pad(batch["prediction_rows"], padding),
        "prediction_labels": np.pad(batch["prediction_labels"], padding, constant_values=IGNORED_LABEL),
    }


def to_torch(batch: Arrays) -> dict[str, Any]:
    """`Objective.make_batch`'s arrays as int64 tensors, lengths and row_slots as a Layout; other values stay."""
    lengths, row_slots = batch["lengths"], batch["row_slots"]
    layout = Layout.ragged(lengths) if row_slots is None else Layout.rectangle(lengths, row_slots)
    tensors = {
        key: torch.from_numpy(np.ascontiguousarray(value, dtype=np.int64))
        for key, value in batch.items()
        if isinstance(value, np.ndarray) and key != "lengths"
    }
    counted = {key: batch[key] for key in ("num_predictions",) if key in batch}
    return {**tensors, **counted, "layout": layout}
