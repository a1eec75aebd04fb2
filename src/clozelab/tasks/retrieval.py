"""Queries and the passages that answer them: in training negatives are given, mined, or a batch's.

Mined negatives are the passages that the encoder, as it is before training, finds for a query and
that are not known to answer it (Karpukhin et al. 2020, Xiong et al. 2021). A second round is
another fine-tuning, which begins with the first one's model.

A batch may be larger than memory allows: `micro_batch_size` texts of it are encoded at a time, and
again in the backward pass (gradient caching, Gao et al. 2021). The gradient is the same. With
several devices the negatives are those of all of them.

Letters: N examples, B of a batch, K texts of each (query, passage, negatives), S sequences, H
hidden size, Q queries, P passages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from clozelab.metrics.ranking import mean_scores, metrics_of_names, random_score, ranks_of
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.readers.cells import cell_text
from clozelab.tasks.baselines import BM25, RANDOM, Scores, bm25, words_of
from clozelab.tasks.batches import Batch, in_order, make_batch, split_batch
from clozelab.tasks.cache import Arrays, Facts, cached_folder, content_key
from clozelab.tasks.classes import SHOWN_LABELS
from clozelab.tasks.contrast import (
    TextStates,
    batch_logits,
    check_temperature,
    loss_of_positives,
    texts_of_all_ranks,
)
from clozelab.tasks.sequences import (
    Ints,
    Sequences,
    TokenSequences,
    join_sequences,
    token_budget_batches,
)
from clozelab.tasks.tables import TextExamples
from clozelab.tasks.target import Files, Outcome, Target, json_lines
from clozelab.tasks.texts import TextSplit, VectorUnit, vector_states
from clozelab.tasks.unit import BatchContext, TaskModel
from clozelab.text.did_you_mean import check_count
from clozelab.text.plain import PlainDict

log = logging.getLogger(__name__)
PROMPTS = ("query", "document")
QUERIES_AT_ONCE = 256


@dataclass(frozen=True)
class TextGroups(Sequences):
    """Examples of several sequences each, which examples may share."""

    sequences: TokenSequences  # [S]
    members: Ints  # [N, K]
    numbers: Ints  # [S]; the same number is the same text

    @property
    def lengths(self) -> Ints:
        return self.sequences.lengths[self.members].sum(axis=1)

    def gather(self, index: Ints) -> dict[str, np.ndarray]:
        """The sequences' arrays, and `text_numbers` [B, K]."""
        members = self.members[index]
        return self.sequences.gather(members.ravel()) | {"text_numbers": self.numbers[members]}


class RetrievalUnit(VectorUnit):
    """A query and a passage that answers it, each a sequence by itself.

    Args: as conf/task/format/retrieval.yaml says of each.
    """

    kind = "RetrievalUnit"
    grouping = "rows with the same query stay together"

    def __init__(
        self,
        *,
        negative_columns: Sequence[str],
        prompts: Mapping[str, str],
        mined_negatives: int,
        skipped_negatives: int,
        micro_batch_size: int | None,
        groups_by_length: bool = False,
        right_label: str | None,
        **texts: Any,
    ) -> None:
        super().__init__(**texts)
        if len(self.layout.text_columns) != 2:
            raise ValueError(
                f"text_columns={list(self.layout.text_columns)}: name two columns, of the query and"
                " of a passage that answers it"
            )
        if set(prompts) != set(PROMPTS):
            raise ValueError(f"prompts={dict(prompts)}: give a text for each of {PROMPTS}")
        numbers = {"mined_negatives": mined_negatives, "skipped_negatives": skipped_negatives}
        for key, number in numbers.items():
            if not isinstance(number, int) or number < 0:
                raise ValueError(f"task.data.{key}={number}: give a whole number from 0 on")
        if micro_batch_size is not None:
            check_count("task.module.micro_batch_size", micro_batch_size)
        self.right_label = right_label
        if right_label is not None:
            self.right_label = cell_text(right_label)
        self.columns = [*self.layout.text_columns, *negative_columns]
        self.train_layout = replace(self.layout, text_columns=self.columns, id_column=None)
        self.prompts = dict(prompts)
        self.mined_negatives = mined_negatives
        self.skipped_negatives = skipped_negatives
        self.micro_batch_size = micro_batch_size
        self.groups_by_length = groups_by_length
        self.aligned = False
        self.training_differs = True
        self.has_training_labels = False

    # Fingerprints, and what a model's folder remembers

    def reading(self, target: Target) -> PlainDict:
        return super().reading(target) | {"right_label": self.right_label}

    def tokenization(self) -> PlainDict:
        return super().tokenization() | {"prompts": self.prompts}

    def config_to_save(self) -> PlainDict:
        return super().config_to_save() | {"prompts": self.prompts}

    # Files

    def read(self, path: Path, role: str, target: Target, *, strict: bool = True) -> TextExamples:
        examples = self.layout_of(role).read(
            path,
            has_labels=self.right_label is not None,
            advice=" (it tells the right pairs, also in a file to predict)",
        )
        if examples.labels is None:
            return examples
        labels = [str(label) for label in examples.labels]
        examples.labels = None
        pairs = [row for row, label in enumerate(labels) if label == self.right_label]
        if not pairs:
            raise ValueError(
                f"{path}: no row has task.data.right_label={self.right_label}; its labels are"
                f" {', '.join(sorted(set(labels))[:SHOWN_LABELS])}"
            )
        return examples.select(pairs)

    def row_arrays(self, examples: TextExamples) -> Arrays:
        """Of the query and its passage alone, so that files with and without negatives compare."""
        pairs = [texts[:2] for texts in examples.texts]
        return super().row_arrays(replace(examples, texts=pairs))

    def preview_texts(self, examples: TextExamples) -> Mapping[str, Sequence[str]]:
        columns = zip(*examples.texts, strict=True)
        return dict(zip(self.columns, columns, strict=False))

    # Sequences

    def columns_of(self, examples: TextExamples) -> list[list[str]]:
        """[(a, b), (c, d)]: the sequences "a", "b", "c" and "d", each behind its prompt."""
        query, passage = (self.prompts[name] for name in PROMPTS)
        texts = []
        for first, *others in examples.texts:
            texts.append(query + first)
            texts += [passage + other for other in others]
        return [texts]

    def batched(
        self, splits: Sequence[TextSplit], role: str, batch_context: BatchContext
    ) -> TextGroups:
        sequences = join_sequences([split.sequences for split in splits])
        group_size = len(self.layout_of(role).text_columns)
        members = np.arange(len(sequences)).reshape(-1, group_size)
        groups = TextGroups(sequences, members, sequences.content_numbers())
        # An evaluation, which trains on nothing, has no encoder to mine with.
        if role != "training" or not self.mined_negatives or batch_context.encoder is None:
            return groups
        mined = self._mined(groups, [split.key for split in splits], batch_context)
        return replace(groups, members=np.concatenate([members, mined], axis=1))

    def targets(self, splits: Sequence[TextSplit]) -> dict[str, np.ndarray]:
        return {}

    def _mined(self, groups: TextGroups, keys: Sequence[str], batch_context: BatchContext) -> Ints:
        """[N, mined_negatives] numbers of sequences, computed once for an encoder and a file."""
        source = batch_context.encoder
        assert source is not None
        settings = [self.pooling, self.mined_negatives, self.skipped_negatives]
        key = content_key({"texts": keys, "encoder": source.fingerprint, "settings": settings})
        folder = batch_context.cache_dir / "tasks" / f"{batch_context.name}-{key}"

        def write(target: Path) -> Facts:
            encode = partial(
                encode_texts,
                encoder=source.load().to(source.device).eval(),
                device=source.device,
                pooling=self.pooling,
                max_tokens=batch_context.evaluation_tokens,
            )
            mined = mine(groups, encode, self.mined_negatives, self.skipped_negatives)
            np.save(target / "members.npy", mined)
            return {}

        cached_folder(folder, write)
        return np.load(folder / "members.npy")

    # The model

    def states(self, model: TaskModel, batch: Batch) -> Tensor:
        """[B, K, H]: the vectors of the texts of each example."""
        if self.micro_batch_size is None or not torch.is_grad_enabled():
            return super().states(model, batch)
        num_examples = len(batch["example_index"])

        def vectors(part: Batch) -> Tensor:
            return vector_states(model, part, self.pooling)

        # Only vectors are kept. The backward pass encodes a part again, with the same dropout.
        states = []
        for part in split_batch(batch, self.micro_batch_size):
            states.append(checkpoint(vectors, part, use_reentrant=False))
        return torch.cat(states).view(num_examples, -1, states[0].shape[1])


# Mined negatives


@torch.inference_mode()
def encode_texts(
    sequences: Sequences,
    *,
    encoder: Encoder,
    device: torch.device,
    pooling: str,
    max_tokens: int,
) -> Tensor:
    """fp32 [S, H]: vectors of length 1, in fp32 whatever precision training has."""
    outputs = []
    with torch.autocast(device.type, enabled=False):
        for index in token_budget_batches(sequences.lengths, max_tokens):
            batch = make_batch(sequences, index, {})
            batch = {name: value.to(device) for name, value in batch.items()}
            slots = encoder.sentence_slots(batch["layout"], pooling)
            hidden = encoder.read(batch, read_slots=slots).sequence_output
            states = encoder.sentence_states(hidden, batch["layout"], pooling)
            outputs.append((batch["example_index"].cpu(), states.cpu()))
    vectors = torch.from_numpy(in_order(outputs, len(sequences)))
    return F.normalize(vectors.to(device), dim=1)


def mine(
    groups: TextGroups, encode: Callable[[Sequences], Tensor], num_negatives: int, num_skipped: int
) -> Ints:
    """[N, num_negatives]: sequences of the passages that are most like each example's query.

    A passage that belongs to the query in any example, and the query's own text, are none. Of what
    is left the first `num_skipped` are left out, too: they may be right and not known to be.
    ValueError for too few passages.
    """
    # Each text is encoded once. [K N] texts, by the first sequence that has them.
    numbers = groups.numbers[groups.members]
    _, first, text = np.unique(numbers, return_index=True, return_inverse=True)
    text = text.reshape(numbers.shape)
    sequence_of_text = groups.members.ravel()[first]
    single = TextGroups(groups.sequences, sequence_of_text[:, None], groups.numbers)
    vectors = encode(single)
    passages = np.unique(text[:, 1:])
    # Query -> what is no negative of it.
    related: dict[int, set[int]] = {}
    for query, passage in text[:, :2].tolist():
        related.setdefault(query, set()).update((query, passage))
    num_found = num_negatives + num_skipped
    if num_found + max(map(len, related.values())) > len(passages):
        raise ValueError(
            f"mined_negatives={num_negatives} and skipped_negatives={num_skipped}: the training"
            f" file has only {len(passages)} different passages; mine fewer, or give more"
        )
    is_no_passage = torch.ones(len(first), dtype=torch.bool, device=vectors.device)
    is_no_passage[passages] = False
    mined = np.zeros((len(first), num_negatives), dtype=np.int64)
    for queries in torch.tensor(list(related)).split(QUERIES_AT_ONCE):
        similarities = vectors[queries] @ vectors.T
        similarities[:, is_no_passage] = -torch.inf
        for row, query in enumerate(queries.tolist()):
            similarities[row, list(related[query])] = -torch.inf
        best = similarities.topk(num_found).indices[:, num_skipped:]
        mined[queries] = sequence_of_text[best.cpu().numpy()]
    log.info("mined %d negatives for each of %d queries", num_negatives, len(related))
    return mined[text[:, 0]]


# What is predicted


@dataclass(frozen=True)
class Relevance:
    """Which of the different passages answer each of the different queries of some pairs."""

    query_rows: Ints  # [Q] the pair that each query stands in first
    passage_rows: Ints  # [P] the same of passages
    relevant: list[list[int]]  # of each query: places among the passages

    @classmethod
    def of(cls, queries: ArrayLike, passages: ArrayLike) -> Relevance:
        """Of pairs whose queries [N], and passages [N], are the same where they are equal."""
        _, query_rows, query = np.unique(queries, return_index=True, return_inverse=True)
        _, passage_rows, passage = np.unique(passages, return_index=True, return_inverse=True)
        relevant: list[set[int]] = [set() for _ in query_rows]
        for of_query, of_passage in zip(query.tolist(), passage.tolist(), strict=True):
            relevant[of_query].add(of_passage)
        return cls(query_rows, passage_rows, [sorted(places) for places in relevant])


class RetrievalTarget(Target):
    """Cross-entropy of which passage of the batch belongs to each query; validation ranks them.

    Each validation query is scored against all different passages of the validation file. Where a
    query stands in several rows, the passages of all of them are right.

    Args:
        metrics: names of metrics/ranking.py.
        temperature: cosines are divided by it.
        sizes: how many leading numbers of a vector are a vector, too: the loss is the sum over
            them (Kusupati et al. 2022). The whole vector is one of them. None: it alone.
    """

    units = ("RetrievalUnit",)
    learns_from_labels = False
    compares_examples = True
    head_kinds = ()
    next_command = "search RUN query=... in=FILE"

    def __init__(
        self, *, metrics: Sequence[str], temperature: float, sizes: Sequence[int] | None
    ) -> None:
        self.metrics = metrics_of_names(metrics)
        self.names = [metric.name for metric in self.metrics]
        check_temperature(temperature)
        self.temperature = temperature
        self.sizes = sizes

    def check_encoder(self, config: EncoderConfig, unit: Any) -> None:
        width = config.output_size
        if self.sizes is None:
            return
        # The largest has the scores without a suffix, and a folder gives whole vectors.
        if min(self.sizes, default=0) < 1 or max(self.sizes) != width:
            raise ValueError(
                f"task.module.sizes={list(self.sizes)}: this encoder's vectors have {width}"
                f" numbers, so give {width} and sizes of 1 to {width}"
            )

    # The model

    def logits(self, head: nn.Module, states: Tensor, batch: Batch, *, training: bool) -> Tensor:
        """In training [sizes, B, candidates]; else the vectors themselves, [B, 2, H]."""
        states = states.float()
        if not training:
            return states
        local = TextStates(states, batch["text_numbers"])
        everyone = texts_of_all_ranks(local, batch)
        logits = []
        with torch.autocast(states.device.type, enabled=False):
            for size in self.sizes or [states.shape[2]]:
                logits.append(batch_logits(local.cut(size), self.temperature, everyone.cut(size)))
        return torch.stack(logits)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return loss_of_positives(logits, batch)

    # Scores, and what is written down

    def evaluate(self, outputs: np.ndarray, split: TextSplit) -> Outcome:
        numbers = split.sequences.content_numbers().reshape(-1, 2)
        pairs = Relevance.of(numbers[:, 0], numbers[:, 1])
        vectors = torch.from_numpy(outputs)
        sizes = sorted(self.sizes or [outputs.shape[2]])
        scores = {}
        for size in sizes:
            queries = vectors[pairs.query_rows, 0, :size]
            ranks, best = _rank(queries, vectors[pairs.passage_rows, 1, :size], pairs.relevant)
            suffix = "" if size == sizes[-1] else f"/{size}"
            for name, value in mean_scores(self.names, ranks).items():
                scores[name + suffix] = value
        # Of the largest size.
        records: list[PlainDict] = []
        for row, of_query, first in zip(pairs.query_rows, ranks, best, strict=True):
            passage = pairs.passage_rows[first]
            record = {"id": str(split.ids[row]), "prediction": of_query, "label": len(of_query)}
            records.append(record | {"found": str(split.ids[passage])})
        is_collapsed = len(set(best)) == 1 < min(len(pairs.query_rows), len(pairs.passage_rows))
        return Outcome(scores, records, is_collapsed)

    def baselines(self, train: Any, validation: Mapping[str, Any]) -> Scores:
        """A random order's expectation, and BM25, which learn nothing from training."""
        examples = validation[""]
        queries, passages = (list(column) for column in zip(*examples.texts, strict=True))
        # Texts of the same words are one text, as those of the same tokens are for the encoder.
        pairs = Relevance.of(_joined_words(queries), _joined_words(passages))
        documents = [passages[row] for row in pairs.passage_rows]
        asked = [queries[row] for row in pairs.query_rows]
        ranks = []
        for scores, relevant in zip(bm25(asked, documents), pairs.relevant, strict=True):
            ranks.append(ranks_of(scores, relevant))
        by_chance = {}
        for name in self.names:
            expected = [random_score(name, len(of), len(documents)) for of in pairs.relevant]
            by_chance[name] = float(np.mean(expected))
        return {RANDOM: by_chance, BM25: mean_scores(self.names, ranks)}

    def prediction_files(
        self, name: str, split: TextSplit, outputs: np.ndarray, scores: Mapping[str, float]
    ) -> Files:
        """The records of a file's queries."""
        return {f"{name}.jsonl": json_lines(self.evaluate(outputs, split).records)}


def _joined_words(texts: Sequence[str]) -> list[str]:
    return [" ".join(words_of(text)) for text in texts]


def _rank(
    queries: Tensor, passages: Tensor, relevant: Sequence[list[int]]
) -> tuple[list[list[int]], list[int]]:
    """Of each query [Q, H]: the ranks of its passages among all [P, H], and the first passage."""
    queries = F.normalize(queries, dim=1)
    passages = F.normalize(passages, dim=1)
    ranks: list[list[int]] = []
    best = []
    # One product for many queries.
    for part in queries.split(QUERIES_AT_ONCE):
        for scores in (part @ passages.T).numpy():
            ranks.append(ranks_of(scores, relevant[len(ranks)]))
            best.append(int(scores.argmax()))
    return ranks, best
