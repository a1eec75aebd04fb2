"""Texts whose tokens a frozen model is to predict, and what its log-probabilities say.

Here are the questions, and minimal pairs of sentences. A text's score is the sum of its tokens'
log-probabilities, without [CLS] and [SEP]. From left to right that is the chain rule, in one pass.
A masked model reads the text once for each token, with that token hidden: the pseudo-log-likelihood
of Salazar et al. (2020). With `masking: word` the later pieces of the token's word are hidden as
well (Kauf and Ivanova 2023), which no longer give a rare word's first piece away.

Letters: P tokens that are asked for.
"""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypedDict, Unpack

import numpy as np
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from clozelab.corpus.encoding import refuse_unknown
from clozelab.corpus.generated import generator_of
from clozelab.corpus.paths import matching_files
from clozelab.datamodules.finetuning import FinetuningDataModule
from clozelab.datamodules.labelled import TaskInputs
from clozelab.files.digests import file_sha256
from clozelab.metrics.metric import Metric
from clozelab.tasks.baselines import Floats, Ints, words_of
from clozelab.tasks.batches import Batch
from clozelab.tasks.cache import fingerprint_of
from clozelab.tasks.questions import (
    Questions,
    Tokens,
    build_questions,
    inner_tokens,
    token_ranges,
)
from clozelab.tasks.sequences import TokenSequences, encode_examples
from clozelab.tasks.tables import TableFormat
from clozelab.text.did_you_mean import check_choice, check_count
from clozelab.text.plain import PlainDict

if TYPE_CHECKING:
    import pandas

log = logging.getLogger(__name__)
SHORTEST = 3  # [CLS], a token and [SEP]
Records = list[PlainDict]


def _names_of(paths: Sequence[Path]) -> list[str]:
    """The files' names without their suffixes; where two are the same, with their folders."""
    stems = _stems_of(paths)
    if len(set(stems)) == len(stems):
        return stems
    common = os.path.commonpath([path.parent for path in paths])
    return ["_".join(path.relative_to(common).parts) for path in paths]


def _stems_of(paths: Sequence[Path]) -> list[str]:
    return [path.stem for path in paths]


class MeasureArguments(TypedDict):
    """What every measure's data module takes."""

    inputs: TaskInputs
    is_causal: bool
    evaluation_tokens: int
    max_seq_length: int


class MeasureDataModule(LightningDataModule):
    """Base of a data module that a measure has of its own."""

    # names what is read: where it is equal, runs of different encoders are comparable
    content: object
    synthetic: str | None  # name of the generator that wrote the texts; None for real ones
    evaluation_loader: Callable[..., DataLoader[Batch]] = FinetuningDataModule.evaluation_loader

    def __init__(
        self, *, inputs: TaskInputs, is_causal: bool, evaluation_tokens: int, max_seq_length: int
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.is_causal = is_causal
        self.evaluation_tokens = evaluation_tokens
        self.max_seq_length = min(max_seq_length, inputs.max_positions)
        if self.max_seq_length < SHORTEST:
            raise ValueError(
                f"measure.data.max_seq_length={max_seq_length}: a text has {SHORTEST} tokens or"
                " more"
            )
        self.facts: PlainDict = {"max_seq_length": self.max_seq_length}

    @property
    def source_fingerprint(self) -> str:
        return fingerprint_of({"content": self.content})

    @property
    def fingerprint(self) -> str:
        made_with = [self.inputs.tokenizer.fingerprint, self.max_seq_length, self.is_causal]
        if self.inputs.predicts_next:
            made_with.append("predicts_next")
        return fingerprint_of({"content": self.content, "made_with": made_with})

    def refuse_unknown(self, ids: np.ndarray, texts: str = "") -> None:
        """ValueError where too many of these tokens are [UNK].

        `texts` goes before the measure in the message.
        """
        share = float((ids == self.inputs.tokenizer.unk_id).mean())
        refuse_unknown(f"{texts}measure {self.inputs.name}", share, self.inputs.max_unknown_share)


class ScoringDataModule(MeasureDataModule):
    """Base of one data module a measure of tokens.

    It makes the questions, and turns the answers into scores.
    """

    metrics: ClassVar[tuple[Metric, ...]]  # what `score` computes
    questions: Questions

    @abstractmethod
    def make_questions(self) -> Questions:
        """Reads the texts; ValueError for wrong ones."""

    @abstractmethod
    def score(self, log_probs: Floats, credit: Floats) -> tuple[dict[str, float], Records]:
        """Scores, each a raw number of its metric, and a record for each example.

        They come from the answer to each token that was asked for: its `log_probs` [P], and its
        `credit` [P], 1 where the token is the most probable one, shared among equals.
        """

    def constant_answer_scores(self) -> PlainDict:
        """What the same answer to every question scores: figure -> share of one.

        It has no figure where that means nothing.
        """
        return {}

    def setup(self, stage: str | None = None) -> None:  # noqa: ARG002
        self.questions = self.make_questions()
        self.refuse_unknown(self.questions.ids)

    def build_questions(
        self, texts: TokenSequences, text: Ints, targets: Tokens, hidden: Tokens | None = None
    ) -> Questions:
        """As the function `build_questions`, of this encoder."""
        return build_questions(
            texts,
            text,
            targets,
            hidden,
            mask_id=self.inputs.tokenizer.mask_id,
            shift=int(self.is_causal or self.inputs.predicts_next),
        )


class MinimalPairs(ScoringDataModule):
    """Pairs of an acceptable and an unacceptable sentence: which of the two is more probable?

    A pair is won (1), lost (0) or tied (1/2). The score is the mean over the groups of pairs
    (BLiMP's paradigms), each of equal weight. Groups most of whose pairs have the same words in
    another order are scored apart as well: no count of words can tell their sentences apart. Args:
    as conf/measure/minimal_pairs.yaml says of each.
    """

    metrics = tuple(
        map(
            Metric.share,
            ("accuracy", "accuracy_of_field", "accuracy_of_permutations", "accuracy_of_others"),
        )
    )

    def __init__(
        self,
        *,
        files: str,
        columns: Mapping[str, str | None],
        masking: str,
        max_pairs: int | None,
        how_to_get: str,
        **common: Unpack[MeasureArguments],
    ) -> None:
        super().__init__(**common)
        check_choice("measure.data.masking", masking, ("token", "word"))
        if max_pairs is not None:
            check_count("measure.data.max_pairs", max_pairs)
        self.masking = masking
        self.max_pairs = max_pairs
        self.has_groups = columns["group"] is not None
        texts = []
        for name in (columns["good"], columns["bad"], columns["field"]):
            if name:
                texts.append(name)
        self.layout = TableFormat(texts, columns["group"] or "")
        by_name, _ = matching_files(files, self.inputs.data_dir)
        self.paths = [path for _, path in sorted(by_name.items())]
        if not self.paths:
            raise ValueError(
                f"no files of minimal pairs at {(self.inputs.data_dir / files).absolute()}"
                " (data_dir, or measure.data.files, is wrong)\n  how to get them:"
                f" {' '.join(how_to_get.split())}"
            )
        self.group_names = _names_of(self.paths)
        content = [file_sha256(path) for path in self.paths]
        # Older runs took files of one name for one group.
        if not self.has_groups and self.group_names != _stems_of(self.paths):
            content += self.group_names
        self.content = content
        self.synthetic = generator_of(self.inputs.data_dir, self.paths)

    def make_questions(self) -> Questions:
        rows, groups = self._read_pairs()
        self.pairs = self._pair_table(rows, groups)
        # All good sentences, then all bad ones.
        sentences = [row[0] for row in rows] + [row[1] for row in rows]
        texts = self._encode(sentences)
        # To an uncased encoder "Who" and "who" are one text; its two scores are rounded differently
        # in two batches.
        ids = np.split(texts.input_ids, texts.offsets[1:-1])
        both = zip(ids[: len(rows)], ids[len(rows) :], strict=True)
        self.pairs["same"] = [np.array_equal(good, bad) for good, bad in both]
        text, position = inner_tokens(texts)
        if self.is_causal:
            return self.build_questions(texts, np.arange(len(texts)), (text, position))
        # A masked model reads a text once for each of its tokens.
        num_hidden = np.ones_like(position)
        if self.masking == "word":
            num_hidden = self._pieces_to_word_end(sentences, text)
        targets = (np.arange(len(text)), position)
        return self.build_questions(texts, text, targets, token_ranges(position, num_hidden))

    def _read_pairs(self) -> tuple[list[tuple[str, ...]], list[str]]:
        """(good, bad) or (good, bad, field) of each pair, and the name of each one's group."""
        rows = []
        groups = []
        try:
            tables = [
                self.layout.read(path, self.has_groups).limited(self.max_pairs)
                for path in self.paths
            ]
        except ValueError as error:
            raise ValueError(
                f"{error}; measure.data.columns names the columns to read, null the others"
            ) from error
        self.facts["bad_rows"] = sum(table.num_bad_rows for table in tables)
        for path, name, table in zip(self.paths, self.group_names, tables, strict=True):
            if table.num_bad_rows:  # a score is over the others
                log.warning(
                    "%s: %d damaged row(s) of %s left out",
                    self.inputs.name,
                    table.num_bad_rows,
                    path,
                )
            rows += table.texts
            groups += table.labels or [name] * len(table)
        return rows, groups

    def _pair_table(
        self, rows: Sequence[tuple[str, ...]], groups: Sequence[str]
    ) -> pandas.DataFrame:
        """The group and the field of each pair, and whether both sentences have the same words."""
        import pandas

        table = pandas.DataFrame({"group": groups})
        field_names = []
        is_permuted = []
        for good, bad, *field in rows:
            # A field's name is part of a score's: BLiMP writes one as syntax/semantics.
            field_names.append(field[0].replace("/", "_") if field else "")
            is_permuted.append(sorted(words_of(good)) == sorted(words_of(bad)))
        table["field"] = field_names
        table["permuted"] = is_permuted
        for group, fields in table.groupby("group").field:
            if fields.nunique() > 1:
                raise ValueError(
                    f"measure {self.inputs.name}: the pairs of {group} are of two fields; a group"
                    " has one"
                )
        return table

    def _encode(self, sentences: Sequence[str]) -> TokenSequences:
        """The sentences' tokens; ValueError for one that is too long or empty."""
        texts = encode_examples(
            self.inputs.tokenizer, sentences, max_seq_length=self.max_seq_length
        )
        num_cut = texts.cut_counts()["truncated_sequences"]
        if num_cut:
            raise ValueError(
                f"{num_cut} sentences are longer than the {self.max_seq_length} tokens that this"
                " encoder reads, and a part of one has no score: leave them out, or take a longer"
                " encoder"
            )
        if (texts.lengths == 2).any():
            raise ValueError(
                f"measure {self.inputs.name}: a sentence without a word has no score; leave its"
                " pair out"
            )
        return texts

    def _pieces_to_word_end(self, sentences: Sequence[str], text: Ints) -> Ints:
        """How many pieces of its word each token and those behind it are; `text` numbers its text.

        token    un ##want ##ed cats
        word     0  0      0    1
        pieces   3  2      1    1
        """
        word = np.concatenate(self.inputs.tokenizer.word_numbers(sentences))
        is_last = np.append((np.diff(word) != 0) | (np.diff(text) != 0), True)
        last = np.flatnonzero(is_last)
        place = np.arange(len(text))
        return last[np.searchsorted(last, place)] - place + 1

    def score(
        self,
        log_probs: Floats,
        credit: Floats,  # noqa: ARG002
    ) -> tuple[dict[str, float], Records]:
        sums = np.bincount(self.questions.text, log_probs, 2 * len(self.pairs))
        # All good sentences came first, then all bad ones.
        good, bad = sums.reshape(2, -1)
        # A tie is half a win, which is what guessing gets.
        won = np.where(self.pairs.same | (good == bad), 0.5, good > bad)
        rows = self.pairs.assign(won=won, good=good.round(5), bad=bad.round(5))
        # PARADIGM/0, PARADIGM/1, ...
        rows["id"] = rows.group + "/" + rows.groupby("group").cumcount().astype(str)
        groups = rows.groupby("group").agg({"won": "mean", "field": "first", "permuted": "mean"})
        scores = {"accuracy": float(groups.won.mean())}
        for group, share in groups.won.items():
            scores[f"accuracy/{group}"] = float(share)
        for field, share in groups[groups.field != ""].groupby("field").won.mean().items():
            scores[f"accuracy_of_field/{field}"] = float(share)
        # Permutations: most pairs of such a group have the same words in another order.
        names = np.where(groups.permuted > 0.5, "permutations", "others")
        for name, share in groups.won.groupby(names).mean().items():
            scores[f"accuracy_of_{name}"] = float(share)
        return scores, rows[["id", "won", "good", "bad"]].to_dict("records")
