"""Texts whose tokens a frozen model is to predict, and what its log-probabilities say: minimal
pairs of sentences.

A text's score is the sum of its tokens' log-probabilities, without [CLS] and [SEP]. From left to
right that is the chain rule, in one pass. A masked model reads the text once for each token, with
that token hidden: the pseudo-log- likelihood of Salazar et al. (2020). With `masking: word` the
later pieces of the token's word are hidden as well (Kauf and Ivanova 2023), which no longer give a
rare word's first piece away.

A question is one reading of a text: some tokens are hidden, and some are asked for. Questions of
all texts are packed into streams without padding, longest first, so that neighbours are equally
long.

Letters: N questions, B questions of a batch, P tokens that are asked for.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
from lightning.pytorch import LightningDataModule
from numpy.typing import NDArray

from clozelab.corpus.encoding import refuse_unknown
from clozelab.corpus.files import file_sha256, matching_files
from clozelab.corpus.generated import generator_of
from clozelab.datamodules.baselines import Floats, Ints, words_of
from clozelab.datamodules.examples import (
    Sequences,
    TokenSequences,
    encode_examples,
    offsets_of,
    ragged_positions,
)
from clozelab.datamodules.files import fingerprint_of
from clozelab.datamodules.finetuning import FinetuningDataModule, TaskInputs
from clozelab.datamodules.labelled import TableFormat

log = logging.getLogger(__name__)
SHORTEST = 3  # [CLS], a token and [SEP]
Records = list[dict[str, Any]]
# the numbers of the sequences that some tokens are in, in order, and their positions there
Tokens = tuple[Ints, Ints]


@dataclass(frozen=True)
class Questions(Sequences):
    """Sequences with some tokens hidden, and what is asked of each: tokens, their places and the
    texts they are of.
    """

    sequences: TokenSequences  # [N]
    offsets: Ints  # [N + 1]: what number i is asked begins at offsets[i]
    positions: Ints  # [P] of the state that predicts
    ids: Ints  # [P]
    text: Ints  # [P]

    @property
    def lengths(self) -> Ints:
        return self.sequences.lengths

    def gather(self, index: Ints) -> dict[str, NDArray[Any]]:
        """Also `prediction_positions` (slots whose states predict), `prediction_labels` and
        `prediction_index` [P].
        """
        arrays, counts = self.sequences.gather(index), np.diff(self.offsets)[index]
        numbers = ragged_positions(self.offsets[index], counts)[1]
        slots = (
            np.repeat(np.cumsum(arrays["lengths"]) - arrays["lengths"], counts)
            + self.positions[numbers]
        )
        return arrays | {
            "prediction_positions": slots,
            "prediction_labels": self.ids[numbers],
            "prediction_index": numbers,
        }


def token_ranges(starts: Ints, lengths: Ints) -> Tokens:
    """A range of tokens of each sequence."""
    return np.repeat(np.arange(len(starts)), lengths), ragged_positions(starts, lengths)[1]


def inner_tokens(texts: TokenSequences) -> Tokens:
    """All tokens between [CLS] and [SEP]."""
    return token_ranges(np.ones_like(texts.lengths), texts.lengths - 2)


def ask(
    texts: TokenSequences,
    text: Ints,
    asked: Tokens,
    hidden: Tokens | None,
    *,
    mask_id: int,
    is_causal: bool,
) -> Questions:
    """Questions about texts[text[i]]: tokens that are asked for and, in a masked model, tokens that
    are hidden.
    """
    read = texts.gather(text)
    ids, offsets = read["input_ids"], offsets_of(read["lengths"])
    answers = ids[offsets[asked[0]] + asked[1]]
    if hidden is not None:
        ids[offsets[hidden[0]] + hidden[1]] = mask_id
    sequences = TokenSequences(ids.astype(np.int32), offsets, read["lengths"].astype(np.int32))
    counts = np.bincount(asked[0], minlength=len(text))
    return Questions(sequences, offsets_of(counts), asked[1] - is_causal, answers, text[asked[0]])


class MeasureDataModule(LightningDataModule):
    """Base of a data module that a measure has of its own."""

    content: Any  # names what is read: where it is equal, runs of different encoders are comparable
    synthetic: str | None  # name of the generator that wrote the texts; None for real ones
    evaluation_loader: Any = FinetuningDataModule.evaluation_loader

    def __init__(
        self, *, inputs: TaskInputs, is_causal: bool, evaluation_tokens: int, max_seq_length: int
    ) -> None:
        super().__init__()
        self.inputs, self.is_causal, self.evaluation_tokens = inputs, is_causal, evaluation_tokens
        self.max_seq_length = min(max_seq_length, inputs.max_positions)
        if self.max_seq_length < SHORTEST:
            least = f"a text has {SHORTEST} tokens or more"
            raise ValueError(f"measure.data.max_seq_length={max_seq_length}: {least}")
        self.facts = {"max_seq_length": self.max_seq_length}

    @property
    def source_fingerprint(self) -> str:
        return fingerprint_of({"content": self.content})

    @property
    def fingerprint(self) -> str:
        made_with = [self.inputs.tokenizer.fingerprint, self.max_seq_length, self.is_causal]
        return fingerprint_of({"content": self.content, "made_with": made_with})


class ScoringDataModule(MeasureDataModule):
    """Base of one data module a measure of tokens: it makes the questions, and turns the answers
    into scores.
    """

    questions: Questions

    @abstractmethod
    def make_questions(self) -> Questions:
        """Reads the texts; ValueError for wrong ones."""

    @abstractmethod
    def score(self, log_probs: Floats, credit: Floats) -> tuple[dict[str, float], Records]:
        """Scores (shares of one) and a record for each example, from what was said of each token
        that was asked for.

        `log_probs` [P]; `credit` [P]: 1 where the token is the most probable one, shared among
        equals."""

    def setup(self, stage: str | None = None) -> None:  # noqa: ARG002
        self.questions = self.make_questions()
        unknown = (self.questions.ids == self.inputs.tokenizer.unk_id).mean()
        refuse_unknown(f"measure {self.inputs.name}", float(unknown), self.inputs.max_unknown_share)

    def ask(
        self, texts: TokenSequences, text: Ints, asked: Tokens, hidden: Tokens | None = None
    ) -> Questions:
        """As below, of this encoder."""
        return ask(
            texts,
            text,
            asked,
            hidden,
            mask_id=self.inputs.tokenizer.mask_id,
            is_causal=self.is_causal,
        )


class MinimalPairs(ScoringDataModule):
    """Pairs of an acceptable and an unacceptable sentence: which of the two is more probable?
    BLiMP's format.

    A pair is won (1), lost (0) or tied (1/2). The score is the mean over the groups of pairs
    (paradigms), each of equal weight. Groups most of whose pairs have the same words in another
    order are scored apart as well: no count of words can tell their sentences apart. Args: as
    conf/measure/minimal_pairs.yaml says of each.
    """

    def __init__(
        self,
        *,
        files: str,
        columns: Mapping[str, str | None],
        masking: str,
        max_pairs: int | None,
        how_to_get: str,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if masking not in ("token", "word"):
            raise ValueError(f"measure.data.masking={masking!r} is unknown; known: token, word")
        self.masking, self.max_pairs = masking, max_pairs
        texts = [name for name in (columns["good"], columns["bad"], columns["field"]) if name]
        self.layout, self.has_groups = (
            TableFormat(texts, columns["group"] or ""),
            columns["group"] is not None,
        )
        found, _ = matching_files(files, self.inputs.data_dir)
        self.paths = [path for _, path in sorted(found.items())]
        if not self.paths:
            said = f"no files of minimal pairs at {(self.inputs.data_dir / files).absolute()}"
            how = f"how to get them: {' '.join(how_to_get.split())}"
            raise ValueError(f"{said} (data_dir, or measure.data.files, is wrong)\n  {how}")
        self.content = [file_sha256(path) for path in self.paths]
        self.synthetic = generator_of(self.inputs.data_dir, self.paths)

    def make_questions(self) -> Questions:
        try:
            read = [
                self.layout.read(path, self.has_groups).limited(self.max_pairs)
                for path in self.paths
            ]
        except ValueError as error:
            raise ValueError(
                f"{error}; measure.data.columns says which columns are read, null which are not"
            ) from error
        pairs = [pair for one in read for pair in one.texts]
        self.facts["bad_rows"] = sum(one.num_bad_rows for one in read)
        for path, one in zip(self.paths, read, strict=True):
            if one.num_bad_rows:  # a score is over the others
                log.warning(
                    "%s: %d damaged row(s) of %s left out", self.inputs.name, one.num_bad_rows, path
                )
        groups = [
            one.labels or [path.stem] * len(one.texts)
            for path, one in zip(self.paths, read, strict=True)
        ]
        self.pairs = pandas.DataFrame({"group": [group for one in groups for group in one]})
        # A field's name is part of a score's: BLiMP writes one as syntax/semantics.
        self.pairs["field"] = [
            field[0].replace("/", "_") if field else "" for _, _, *field in pairs
        ]
        if mixed := [
            group for group, fields in self.pairs.groupby("group").field if fields.nunique() > 1
        ]:
            raise ValueError(
                f"measure {self.inputs.name}: the pairs of {mixed[0]} are of two fields; a group"
                " has one"
            )
        self.pairs["permuted"] = [
            sorted(words_of(good)) == sorted(words_of(bad)) for good, bad, *_ in pairs
        ]
        # all good ones, then all bad ones
        written = [pair[side] for side in (0, 1) for pair in pairs]
        texts = encode_examples(self.inputs.tokenizer, written, max_seq_length=self.max_seq_length)
        if cut := texts.cut_counts()["truncated_sequences"]:
            said = (
                f"{cut} sentences are longer than the {self.max_seq_length} tokens that this"
                " encoder reads"
            )
            raise ValueError(
                f"{said}, and a part of one has no score: leave them out, or take a longer encoder"
            )
        if (texts.lengths == 2).any():
            raise ValueError(
                f"measure {self.inputs.name}: a sentence without a word has no score; leave its"
                " pair out"
            )
        good, bad = (
            (ids := np.split(texts.input_ids, texts.offsets[1:-1]))[: len(pairs)],
            ids[len(pairs) :],
        )
        # To an uncased encoder "Who" and "who" are one text; its two scores are rounded differently
        # in two batches.
        self.pairs["same"] = [np.array_equal(*pair) for pair in zip(good, bad, strict=True)]
        text, position = inner_tokens(texts)
        if self.is_causal:
            return self.ask(texts, np.arange(len(texts)), (text, position))
        hidden = np.ones_like(position)
        if self.masking == "word":  # all pieces from this one to the word's last
            words, place = (
                np.concatenate(self.inputs.tokenizer.word_numbers(written)),
                np.arange(len(text)),
            )
            last = np.flatnonzero(np.append((np.diff(words) != 0) | (np.diff(text) != 0), True))
            hidden = last[np.searchsorted(last, place)] - place + 1
        return self.ask(
            texts, text, (np.arange(len(text)), position), token_ranges(position, hidden)
        )

    def score(self, log_probs: Floats, credit: Floats) -> tuple[dict[str, float], Records]:  # noqa: ARG002
        good, bad = np.bincount(self.questions.text, log_probs, 2 * len(self.pairs)).reshape(2, -1)
        won = np.where(self.pairs.same | (good == bad), 0.5, good > bad)
        rows = self.pairs.assign(won=won, good=good.round(5), bad=bad.round(5))
        rows["id"] = rows.group + "/" + rows.groupby("group").cumcount().astype(str)
        groups = rows.groupby("group").agg({"won": "mean", "field": "first", "permuted": "mean"})
        found = {
            "accuracy/": groups.won,
            "accuracy_of_field/": groups[groups.field != ""].groupby("field").won.mean(),
            "accuracy_of_": (
                groups.won.groupby(np.where(groups.permuted > 0.5, "permutations", "others")).mean()
            ),
        }
        scores = {"accuracy": float(groups.won.mean())}
        scores |= {
            f"{prefix}{name}": float(share)
            for prefix, one in found.items()
            for name, share in one.items()
        }
        return scores, rows[["id", "won", "good", "bad"]].to_dict("records")
