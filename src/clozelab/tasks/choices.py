"""A context and a few endings as a unit, of which one is right.

The files are SWAG's CSV files and others of that kind. SWAG is true CSV: fields with commas stand
in quotes. Other sets (CODAH) are tab-separated without quoting, like GLUE.

Each choice becomes a sequence `[CLS] context [SEP] start ending [SEP]`, where the start is the
beginning of the second sentence that all endings share (SWAG's `sent2`), if there is one. An
example is as many sequences as it has endings. They are neighbours in the token stream, each as
long as it is; none is padded.

Letters: B examples of a batch, K choices of each, H hidden size.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.readers.benchmarks import FOLDERS
from clozelab.tasks.batches import Batch
from clozelab.tasks.cache import Arrays, Facts
from clozelab.tasks.sequences import GroupedSequences, Sequences, encode_examples, join_sequences
from clozelab.tasks.tables import TableFormat, TextExamples
from clozelab.tasks.target import Target
from clozelab.tasks.texts import TextSplit, pooled_states, text_split
from clozelab.tasks.unit import BatchContext, SplitSource, TaskModel, Unit
from clozelab.text.plain import PlainDict

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChoiceFormat:
    """Where the parts of an example are; `columns` and `file_format` as TableFormat's."""

    context_column: str
    start_column: str | None  # the beginning that all endings share; None: they stand alone
    ending_columns: Sequence[str]
    label_column: str
    columns: Sequence[str] | None = None
    file_format: str = "auto"

    def __post_init__(self) -> None:
        if len(self.ending_columns) < 2:
            raise ValueError(
                f"ending_columns must name at least two columns, not {list(self.ending_columns)}"
            )

    @property
    def label_names(self) -> list[str]:
        """The endings' numbers."""
        return [str(number) for number in range(len(self.ending_columns))]

    def read(self, path: Path, has_labels: bool = True) -> TextExamples:
        """Read one file as TableFormat.read does.

        The texts of an example are the context and its endings, each with the start before it.
        """
        start_columns = [self.start_column] if self.start_column else []
        columns = [self.context_column, *start_columns, *self.ending_columns]
        table = TableFormat(columns, self.label_column, None, self.columns, self.file_format)
        examples = table.read(path, has_labels, names=self.label_names)
        # cells: context, [start], ending, ending, ... -> context, start + ending, ...
        first_ending = 1 + len(start_columns)
        texts = []
        for cells in examples.texts:
            choices = []
            for ending in cells[first_ending:]:
                choices.append(" ".join([*cells[1:first_ending], ending]).strip())
            texts.append((cells[0], *choices))
        examples.texts = texts
        return examples


def fold_of(context: str, num_folds: int) -> int:
    """Into which of `num_folds` folds a context falls.

    Its text decides: equal contexts are always on the same side.
    """
    # not `hash`, which is another one in every process
    digest = hashlib.sha256(context.encode()).digest()
    return int.from_bytes(digest[:8]) % num_folds


class ChoiceUnit(Unit[TextExamples]):
    """A context and its endings; the batch size counts examples.

    Args: as conf/task/format/swag.yaml says of each.
    """

    kind = "ChoiceUnit"
    grouping = "rows with the same context stay together"
    pairs_read = "choices"

    def __init__(
        self,
        *,
        published_train_examples: int | None,
        folds: int | None,
        held_out_fold: int | None,
        file_format: str,
        columns: Sequence[str] | None,
        context_column: str,
        start_column: str | None,
        ending_columns: Sequence[str],
        label_column: str,
    ) -> None:
        if columns:
            columns = list(columns)
        self.layout = ChoiceFormat(
            context_column, start_column, list(ending_columns), label_column, columns, file_format
        )
        self.reads_folders = file_format in FOLDERS
        self.published_train_examples = published_train_examples
        self.folds = folds
        self.held_out_fold = held_out_fold
        # One of the two settings alone is a mistake, too.
        self.has_folds = folds is not None or held_out_fold is not None
        if self.has_folds and held_out_fold not in range(folds or 0):
            raise ValueError(
                f"held_out_fold={held_out_fold} is not one of folds={folds} (counted from 0)"
            )

    def reading(self, target: Target) -> PlainDict:
        return {"layout": asdict(self.layout), "folds": [self.folds, self.held_out_fold]}

    # Files

    def read(
        self,
        path: Path,
        role: str,
        target: Target,
        *,
        strict: bool = True,
    ) -> TextExamples:
        """The examples of a file; with folds one file is for training and for validation.

        Then a context's fold says for which it is. A test file is never divided.
        """
        examples = self.layout.read(path, has_labels=role != "test")
        if self.folds is None or role == "test":
            return examples
        selection = []
        for number, (context, *_) in enumerate(examples.texts):
            is_held_out = fold_of(context, self.folds) == self.held_out_fold
            if is_held_out == (role == "validation"):
                selection.append(number)
        if not selection:
            raise ValueError(
                f"{path}: no example is for {role} of folds={self.folds}; take fewer, or a larger"
                " file"
            )
        return examples.select(selection)

    def groups(self, examples: TextExamples) -> Sequence[str]:
        return [context for context, *_ in examples.texts]

    def joined(self, parts: Sequence[TextExamples]) -> TextExamples:
        return TextExamples.joined(parts)

    def preview_texts(self, examples: TextExamples) -> Mapping[str, Sequence[str]]:
        _, endings = _sequences_of(examples)
        return {"context": [context for context, *_ in examples.texts], "ending": endings}

    def check_splits(self, splits: Sequence[tuple[Path, TextSplit]], name: str) -> None:
        """Sets with these columns are many: a warning where the size tells them apart."""
        path, train = splits[0]
        published = self.published_train_examples
        if published is not None and train.num_available != published:
            log.warning(
                "%s has %d examples, %s's own has %d: another set in the same columns? Give it a"
                " task of its own name",
                path,
                train.num_available,
                name,
                published,
            )

    # Sequences

    def encode(self, examples: TextExamples, tokenizer: Tokenizer) -> tuple[Arrays, PlainDict]:
        contexts, endings = _sequences_of(examples)
        sequences = encode_examples(
            tokenizer, contexts, endings, max_seq_length=self.max_seq_length
        )
        counts = sequences.cut_counts()
        return sequences.arrays(), {**counts, "empty_texts": examples.num_empty}

    def split(self, arrays: Arrays, facts: Facts, source: SplitSource) -> TextSplit:
        return text_split(arrays, facts, source)

    def batched(
        self, splits: Sequence[TextSplit], role: str, batch_context: BatchContext
    ) -> Sequences:
        sequences = join_sequences([split.sequences for split in splits])
        return GroupedSequences(sequences, len(self.layout.ending_columns))

    # The model

    def states(self, model: TaskModel, batch: Batch) -> Tensor:
        """[B * K, H]."""
        return pooled_states(model, batch)


def _sequences_of(examples: TextExamples) -> tuple[list[str], list[str]]:
    """(context, a, b), (other, c, d): context context other other | a b c d."""
    contexts = []
    endings = []
    for context, *choices in examples.texts:
        contexts += [context] * len(choices)
        endings += choices
    return contexts, endings
