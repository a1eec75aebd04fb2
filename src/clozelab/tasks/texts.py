"""Texts and pairs as units: one sequence each, windows of a long text, or each text by itself.

Of a text in several windows the outputs are pooled, so that it has one prediction. In training
each window is an example with its text's label.

Unusual: a causal encoder pools its last real token (its first has seen nothing else); the encoder's
configuration decides. With `head: bilstm` the pooler is not used: the forward direction's state at
the last token and the backward direction's at the first have both read the whole sequence.

Letters: N examples, W windows of them, T tokens and B sequences of a batch, H hidden size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.models.encoder import SENTENCE_POOLINGS, Encoder, last_of_directions
from clozelab.models.layout import Layout
from clozelab.readers.benchmarks import FOLDERS
from clozelab.tasks.batches import Batch
from clozelab.tasks.cache import Arrays, Facts
from clozelab.tasks.labels import ANY, CLASSES
from clozelab.tasks.sequences import (
    GroupedSequences,
    Ints,
    Sequences,
    TokenSequences,
    encode_examples,
    encode_windows,
    join_sequences,
    pool_windows,
)
from clozelab.tasks.splitting import pair_groups, text_hashes
from clozelab.tasks.tables import TableFormat, TextExamples
from clozelab.tasks.target import Target
from clozelab.tasks.unit import BatchContext, Split, SplitSource, TaskModel, Unit
from clozelab.text.did_you_mean import check_choice
from clozelab.text.plain import PlainDict


@dataclass(frozen=True, kw_only=True)
class TextSplit(Split):
    """Examples of one split; `labels` [N], -1 for a file without labels."""

    sequences: TokenSequences
    # [N + 1] where each example's windows begin; None: an example is one input
    window_offsets: Ints | None = None
    pooling: str = "mean"  # mean | max: of each output over a text's windows
    key: str = ""  # names what the sequences are made from, for what is computed with them
    # reads the texts of each example anew
    read_texts: Callable[[], list[tuple[str, ...]]] | None = None

    @property
    def num_outputs(self) -> int:
        return len(self) if self.window_offsets is None else len(self.sequences)

    @property
    def input_labels(self) -> np.ndarray:
        """[num_outputs]: a window has the label of its text."""
        if self.window_offsets is None:
            return self.labels
        return np.repeat(self.labels, np.diff(self.window_offsets), axis=0)

    @property
    def targets(self) -> dict[str, np.ndarray]:
        return {"labels": self.input_labels}

    def pool(self, outputs: np.ndarray) -> np.ndarray:
        if self.window_offsets is None:
            return outputs
        return pool_windows(outputs, self.window_offsets, self.pooling)


def text_split(
    arrays: Arrays, facts: Facts, source: SplitSource, pooling: str = "mean"
) -> TextSplit:
    """A split of what `encode` and `labels` gave."""
    read = source.read  # the source holds the examples themselves, too
    return TextSplit(
        sequences=TokenSequences.from_arrays(arrays),
        ids=arrays["ids"],
        labels=arrays["labels"],
        window_offsets=arrays.get("window_offsets"),
        pooling=pooling,
        key=source.key,
        read_texts=lambda: read().texts,
        **facts,
    )


class TextUnit(Unit[TextExamples]):
    """Single texts, or pairs in one sequence.

    Args: as conf/task/format/labelled.yaml says of each.
    """

    kind = "TextUnit"
    aligned = True
    compares_swapped = True
    pairs_read = "joint"

    def __init__(
        self,
        *,
        text_columns: Sequence[str],
        label_column: str,
        file_format: str = "auto",
        columns: Sequence[str] | None = None,
        id_column: str | None = None,
        group_column: str | None = None,
        test_id_column: str | None = None,
        pairs: str = "joint",
        long_documents: str = "truncate",
        window_stride: int = 64,
        window_pooling: str = "mean",
    ) -> None:
        text_columns = list(text_columns)
        if columns:
            columns = list(columns)
        self.layout = TableFormat(
            text_columns, label_column, id_column, columns, file_format, group_column
        )
        self.reads_folders = file_format in FOLDERS
        self.test_layout = replace(self.layout, id_column=test_id_column, group_column=None)
        self.pairs = pairs
        self._check_columns(text_columns)
        if len(text_columns) == 2:
            self.grouping = "rows with the same first text, and a pair and its swap, stay together"
        if group_column is not None:
            self.group_column = self.layout.group_column
            self.grouping = f"rows with the same {group_column} stay together"
            self.divides_equal_rows = True
        self.window_stride: int | None = None
        if _reads_windows(long_documents, window_pooling, text_columns):
            self.window_stride = window_stride
        self.long_documents = long_documents
        self.window_pooling = window_pooling

    def _check_columns(self, text_columns: Sequence[str]) -> None:
        if len(text_columns) not in (1, 2):
            raise ValueError(f"text_columns must name one or two columns, not {text_columns}")
        is_known = self.pairs in ("joint", "apart")
        if not is_known or (self.pairs == "apart" and len(text_columns) != 2):
            raise ValueError(
                f"pairs={self.pairs!r} of the columns {text_columns}: joint, or of two columns"
                " apart"
            )
        if self.pairs != self.pairs_read:
            raise ValueError(
                f"task.data.pairs={self.pairs}: this task reads pairs {self.pairs_read}; sentence"
                " embeddings (format/siamese, format/contrastive) read them apart, all others joint"
            )

    # Fingerprints, and what a model's folder remembers

    def reading(self, target: Target) -> PlainDict:
        table_format = asdict(self.layout)
        # Fingerprints are older than the setting.
        if self.layout.group_column is None:
            del table_format["group_column"]
        layout = [table_format, target.configured_classes, target.predicts_numbers]
        windows = None
        if self.window_stride is not None:
            windows = (self.window_stride, self.window_pooling)
        return {"layout": layout, "windows": windows}

    def role_reading(self, role: str) -> PlainDict:
        return {"id_column": self.layout_of(role).id_column}

    def config_to_save(self) -> PlainDict:
        return super().config_to_save() | {
            "long_documents": self.long_documents,
            "window_stride": self.window_stride,
            "window_pooling": self.window_pooling,
            "texts_per_example": len(self.layout.text_columns),
        }

    # Files

    def layout_of(self, role: str) -> TableFormat:
        """How a file for this role is read."""
        if role == "test":
            return self.test_layout
        return self.layout

    def read(self, path: Path, role: str, target: Target, *, strict: bool = True) -> TextExamples:
        """The examples of a file; without `strict` a label may be none of the target's.

        Which of them belong there is for a preview's reader to say.
        """
        names = None
        if strict and target.classes:
            names = target.classes
        expected = target.expects
        # the classes are named: the file's own set is not what is trained on
        if expected == CLASSES and names is None and target.listed:
            expected = ANY
        examples = self.layout_of(role).read(
            path,
            role != "test",
            names=names,
            expected=expected,
            listed=target.listed,
            read_cell=target.read_cell,
        )
        if strict and examples.labels is not None:
            labels, _ = target.convert(examples.labels, path)
            examples.labels = list(labels)
        return examples

    def groups(self, examples: TextExamples) -> Sequence[str]:
        if examples.groups is not None:
            return examples.groups
        return pair_groups(examples.texts)

    def row_arrays(self, examples: TextExamples) -> Arrays:
        arrays = super().row_arrays(examples)
        if examples.groups is not None:
            arrays["group_hashes"] = text_hashes((group,) for group in examples.groups)
        return arrays

    def label_pool(self, examples: TextExamples) -> Sequence[Any]:
        return examples.all_labels or ()

    def strata(self, examples: TextExamples, target: Target) -> NDArray[np.int64] | None:
        if examples.labels is None:
            return None
        return target.strata(examples.labels)

    def joined(self, parts: Sequence[TextExamples]) -> TextExamples:
        return TextExamples.joined(parts)

    def preview_texts(self, examples: TextExamples) -> Mapping[str, Sequence[str]]:
        columns = zip(*examples.texts, strict=True)
        return dict(zip(self.layout.text_columns, columns, strict=False))

    # Sequences

    def encode(self, examples: TextExamples, tokenizer: Tokenizer) -> tuple[Arrays, PlainDict]:
        arrays: Arrays = {}
        texts = list(itertools.chain.from_iterable(examples.texts))
        counts = {"empty_texts": examples.num_empty}
        if self.window_stride is not None:
            sequences, offsets = encode_windows(
                tokenizer, texts, max_seq_length=self.max_seq_length, stride=self.window_stride
            )
            counts["windows"] = len(sequences)
            arrays["window_offsets"] = offsets
        else:
            columns = self.columns_of(examples)
            sequences = encode_examples(tokenizer, *columns, max_seq_length=self.max_seq_length)
        return arrays | sequences.arrays(), {**sequences.cut_counts(), **counts}

    def columns_of(self, examples: TextExamples) -> list[list[str]]:
        """The texts of all sequences: [(a, b), (c, d)] are the sequences "a [SEP] b", ..."""
        return [list(column) for column in zip(*examples.texts, strict=True)]

    def split(self, arrays: Arrays, facts: Facts, source: SplitSource) -> TextSplit:
        # An oversampled training file has rows twice, and no prediction carries their names.
        if source.role != "training":
            _refuse_ids_twice(source.path, arrays["ids"], self.layout_of(source.role).id_column)
        return text_split(arrays, facts, source, pooling=self.window_pooling)

    # The model

    def states(self, model: TaskModel, batch: Batch) -> Tensor:
        """[B, H]."""
        return pooled_states(model, batch)


class VectorUnit(TextUnit):
    """Pairs of which each text is a sequence by itself, for sentence embeddings.

    Args:
        pooling: what a text's vector is, of models/encoder.py; auto: as the encoder's folder says.
        train_columns: the two or three columns of a training file without labels: a text, one that
            belongs to it, and perhaps one that does not. The same one twice is a text that belongs
            to itself. None: training has the pairs and labels that validation has.
        groups_by_length: with `train_columns`: a batch holds texts of similar length.
    """

    kind = "VectorUnit"
    pairs_read = "apart"

    def __init__(
        self,
        *,
        pooling: str,
        train_columns: Sequence[str] | None = None,
        groups_by_length: bool = False,
        **texts: Any,
    ) -> None:
        super().__init__(**texts)
        check_choice("pooling", pooling, ("auto", *SENTENCE_POOLINGS))
        self.pooling = pooling
        self.train_layout: TableFormat | None = None
        if train_columns is not None:
            if len(train_columns) not in (2, 3):
                raise ValueError(
                    f"train_columns={list(train_columns)}: name two columns (text, and what belongs"
                    " to it) or three (and what does not)"
                )
            self.train_layout = replace(
                self.layout, text_columns=list(train_columns), id_column=None
            )
            self.aligned = False
            self.training_differs = True
            self.has_training_labels = False
            self.trains_text_with_itself = train_columns[0] == train_columns[1]
            # The texts of a batch are each other's negatives. So it is a uniform draw of the
            # examples, unless one of similar lengths is asked for.
            self.groups_by_length = groups_by_length

    def check_head(self, head: str) -> None:
        if head != "linear":
            raise ValueError(
                f"head={head}: sentence embeddings are the encoder's own; take head=linear"
            )

    def reading(self, target: Target) -> PlainDict:
        reading = super().reading(target)
        if self.train_layout is not None:
            reading["train_columns"] = self.train_layout.text_columns
        return reading

    def tokenization(self) -> PlainDict:
        # Joint pairs have no key: older fingerprints knew nothing else.
        return {"pairs": self.pairs}

    def config_to_save(self) -> PlainDict:
        config_to_save = super().config_to_save()
        del config_to_save["texts_per_example"]
        return config_to_save

    def model_config_to_save(self) -> PlainDict:
        return {"pooling": self.pooling}

    def layout_of(self, role: str) -> TableFormat:
        if role == "training" and self.train_layout is not None:
            return self.train_layout
        return super().layout_of(role)

    def read(self, path: Path, role: str, target: Target, *, strict: bool = True) -> TextExamples:
        if role == "training" and self.train_layout is not None:
            return self.train_layout.read(path, has_labels=False)
        return super().read(path, role, target, strict=strict)

    def preview_texts(self, examples: TextExamples) -> Mapping[str, Sequence[str]]:
        layout = self.layout
        if examples.labels is None and self.train_layout is not None:
            layout = self.train_layout
        return dict(zip(layout.text_columns, zip(*examples.texts, strict=True), strict=True))

    def columns_of(self, examples: TextExamples) -> list[list[str]]:
        """[(a, b), (c, d)]: the sequences "a", "b", "c" and "d"."""
        return [list(itertools.chain.from_iterable(examples.texts))]

    def batched(
        self, splits: Sequence[TextSplit], role: str, batch_context: BatchContext
    ) -> Sequences:
        group_size = 2
        if role == "training" and self.train_layout is not None:
            group_size = len(self.train_layout.text_columns)
        sequences = super().batched(splits, role, batch_context)
        assert isinstance(sequences, TokenSequences)
        return GroupedSequences(sequences, group_size)

    def targets(self, splits: Sequence[TextSplit]) -> dict[str, np.ndarray]:
        """With texts that belong together `text_numbers` [N, 2 or 3]: which texts are the same."""
        targets = super().targets(splits)
        if self.train_layout is not None:
            sequences = join_sequences([split.sequences for split in splits])
            group_size = len(self.train_layout.text_columns)
            targets["text_numbers"] = sequences.content_numbers().reshape(-1, group_size)
        return targets

    def states(self, model: TaskModel, batch: Batch) -> Tensor:
        """[B, G, H]: the vectors of the G texts of each example."""
        vectors = vector_states(model, batch, self.pooling)
        # The texts of an example are neighbours in the batch.
        return vectors.view(len(batch["example_index"]), -1, vectors.shape[1])


def vector_states(model: TaskModel, batch: Batch, pooling: str) -> Tensor:
    """The vector of each sequence of a batch [B, H]."""
    layout = batch["layout"]
    hidden = model.encode(batch, model.encoder.sentence_slots(layout, pooling))
    return model.encoder.sentence_states(hidden, layout, pooling)


def pooled_states(model: TaskModel, batch: Batch) -> Tensor:
    """What a task's head reads of each sequence of a batch [B, H]."""
    hidden = model.encode(batch, model.encoder.pooled_slots(batch["layout"]))
    has_bilstm = model.bilstm is not None
    return sequence_states(model.encoder, model.output_head, hidden, batch["layout"], has_bilstm)


def sequence_states(
    encoder: Encoder, head: nn.Module, hidden: Tensor, layout: Layout, has_bilstm: bool
) -> Tensor:
    """What `head` reads of each sequence: [B, H] pooled from the encoder's states [T, H].

    Where a BiLSTM has made the states [T, 2 G], [B, 2 G]: the last state of each direction.
    """
    if has_bilstm:
        return last_of_directions(hidden, layout)
    return encoder.pool(hidden, layout, head)


def _reads_windows(long_documents: str, window_pooling: str, text_columns: Sequence[str]) -> bool:
    """Whether long texts are read in windows; ValueError for settings that do not exist."""
    check_choice("long_documents", long_documents, ("truncate", "windows"))
    check_choice("window_pooling", window_pooling, ("mean", "max"))
    if long_documents == "windows" and len(text_columns) != 1:
        raise ValueError(
            f"long_documents=windows is for single texts; this task has pairs, {list(text_columns)}"
        )
    return long_documents == "windows"


def _refuse_ids_twice(path: Path, ids: NDArray[np.str_], column: str | None) -> None:
    """ValueError where two rows have one id, so that nobody could tell whose a prediction is."""
    distinct, first_rows, counts = np.unique(ids, return_index=True, return_counts=True)
    repeated = np.flatnonzero(counts > 1)
    if not len(repeated):
        return
    # `distinct` is sorted; the example is the one that comes first in the file
    example = distinct[repeated[first_rows[repeated].argmin()]]
    raise ValueError(
        f"{path}: {len(repeated)} ids of the column {column!r} stand there twice, the first"
        f" {str(example)!r}, so that predictions would share them; make them unique, or number the"
        " rows (task.data.id_column=null)"
    )
