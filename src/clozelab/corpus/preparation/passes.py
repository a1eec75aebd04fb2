"""The passes over a corpus's shards: functions of the work and of a shard, for any process.

The first pass takes texts, every later one what the pass before it has written. A step that has to
know all documents begins a pass: the pass before it writes what the step's table is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clozelab.corpus.documents import sentences_of
from clozelab.corpus.fertility import count_words
from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.preparation.settled import Settled
from clozelab.corpus.preparation.shard_files import (
    DOCUMENT_ARRAYS,
    SURVEY,
    TEXT,
    pack_documents,
    read_arrays,
    read_facts,
    unpack_documents,
    unpack_lines,
    write_file,
)
from clozelab.corpus.preparation.survey import blocks_of, frequent_lines, survey_documents
from clozelab.corpus.preparation.tallies import DocumentFacts, Tally, TokenFacts
from clozelab.corpus.preparation.texts import TextShard
from clozelab.corpus.shards import SPLITS, token_dtype
from clozelab.corpus.steps.step import Arrays, CorpusStep, Document, SurveyStep, TableStep
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.corpus.utf8_texts import Utf8Texts
from clozelab.text.plain import PlainDict

TOKENS = "tokens"  # the pass of `tokenise`


@dataclass(frozen=True)
class Work:
    """What all processes of a preparation know: its folder, and what to do."""

    folder: Path
    steps: Sequence[CorpusStep]
    learns: bool  # whether a vocabulary is learnt

    @property
    def passes(self) -> list[list[int]]:
        """The numbers of each pass's steps: a step that surveys the documents begins a pass."""
        passes: list[list[int]] = [[]]
        for number, step in enumerate(self.steps):
            if isinstance(step, SurveyStep):
                passes.append([])
            passes[-1].append(number)
        return passes

    @property
    def last_pass(self) -> str:
        """The pass that leaves sentences."""
        return pass_name(len(self.passes) - 1)

    def shard_file(self, name: str, shard: int) -> Path:
        """What the pass of this name made of a shard."""
        return self.folder / name / f"{shard:06d}.npz"

    def table_file(self, number: int) -> Path:
        """The table of step `number`."""
        return self.folder / f"table-{number}.npz"

    @property
    def settled_file(self) -> Path:
        return self.folder / "settled.npz"

    @property
    def tokenizer_folder(self) -> Path:
        return self.folder / "tokenizer"

    # These two are read once a process, when all is settled.

    def __getstate__(self) -> PlainDict:
        """Without the two: each process reads its own."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return read_tokenizer(self.tokenizer_folder)

    @cached_property
    def settled(self) -> Settled:
        return Settled.read(self.settled_file)


def pass_name(number: int) -> str:
    """The name of a pass that takes steps."""
    return f"documents-{number}"


class PassTask(NamedTuple):
    """A shard to take through a later pass."""

    number: int  # of the pass, from 1 on
    shard: int


def first_pass(work: Work, shard: TextShard) -> int:
    """Take a shard's texts through the steps before any table; returns its bytes on disk."""
    texts = Tally("read")
    documents = texts.counted(shard.documents())
    facts: DocumentFacts = {"digest": shard.digest(), "bytes": shard.num_bytes, "tallies": []}
    _take_steps(work, PassTask(0, shard.number), documents, [texts], facts)
    return shard.num_bytes


def later_pass(work: Work, task: PassTask) -> int:
    """Take a shard through the next steps, and delete what it came from; returns its bytes."""
    before = work.shard_file(pass_name(task.number - 1), task.shard)
    facts: DocumentFacts = read_facts(before)
    documents = unpack_documents(task.shard, read_arrays(before, [TEXT, *DOCUMENT_ARRAYS]))
    _take_steps(work, task, documents, [], facts)
    before.unlink(missing_ok=True)
    return facts["bytes"]


def _take_steps(
    work: Work,
    task: PassTask,
    documents: Iterable[Document],
    tallies: list[Tally],
    facts: DocumentFacts,
) -> None:
    """Apply the steps of a pass, and write the file of its shard."""
    for number in work.passes[task.number]:
        step = work.steps[number]
        table: Arrays = {}
        if isinstance(step, TableStep):
            table = read_arrays(work.table_file(number))
        tally = Tally(step.name)
        documents = tally.counted(step.apply(documents, table, tally.report))
        tallies.append(tally)
    is_last = task.number == len(work.passes) - 1
    if is_last:
        tally = Tally("sentences")
        documents = tally.counted(sentences_of(documents, tally.report))
        tallies.append(tally)
    documents = list(documents)
    if is_last:
        arrays = dict(survey_documents(documents, learns=work.learns))
        facts["lines"] = frequent_lines(documents)
    else:
        next_step = work.steps[work.passes[task.number + 1][0]]
        survey: Arrays = {}
        if isinstance(next_step, SurveyStep):  # as the first step of every later pass
            survey = next_step.survey(documents)
        arrays = {f"{SURVEY}{name}": array for name, array in survey.items()}
    arrays |= pack_documents(documents)
    facts["tallies"] += [tally.facts() for tally in tallies]
    write_file(work.shard_file(pass_name(task.number), task.shard), arrays, facts)


def sample_blocks(work: Work, shard: int) -> list[str]:
    """The blocks of a shard that a vocabulary is learnt from."""
    path = work.shard_file(work.last_pass, shard)
    arrays = read_arrays(path, ["block_hash", "block_counts"])
    is_chosen = arrays["block_hash"] < work.settled.sample_limit
    is_chosen &= np.repeat(work.settled.kept_of(shard), arrays["block_counts"])
    if not is_chosen.any():
        return []
    blocks = []
    for document in unpack_documents(shard, read_arrays(path, [TEXT, *DOCUMENT_ARRAYS])):
        blocks += blocks_of(document.lines)
    return [blocks[number] for number in np.flatnonzero(is_chosen).tolist()]


def tokenise(work: Work, shard: int) -> int:
    """Write the tokens of a shard's two sides, and delete its sentences; returns its bytes.

    What is held out of a document leaves several: the text before it, the stretch itself, the text
    behind it. A part is a run of sentences of one document and one side:

        document_of     0 0 0 0 1 1
        is_held_out     - - + - - -
        first           0   2 3 4      parts of 2, 1, 1 and 2 sentences
    """
    path = work.shard_file(work.last_pass, shard)
    facts: TokenFacts = read_facts(path)
    arrays = read_arrays(path)
    kept = work.settled.kept_of(shard)
    is_kept = np.repeat(kept, arrays["document_sentences"])
    sentences = unpack_lines(arrays).chosen(is_kept)
    ids, lengths = work.tokenizer.encode_utf8(sentences)
    facts["lines"] = _count_lines(sentences, lengths, work.settled.lines)
    num_sentences = arrays["document_sentences"][kept]
    source_of_sentence = np.repeat(arrays["document_source"][kept], num_sentences)
    facts["words"] = count_words(work.tokenizer, sentences, ids, lengths, source_of_sentence)

    # Of each sentence, its document (numbered over the whole corpus) and its side.
    first_document = work.settled.num_kept_before[shard]
    document_of = first_document + np.repeat(np.arange(kept.sum()), num_sentences)
    is_held_out = held_out_sentences(work.settled, arrays)[is_kept]
    has_tokens = lengths > 0
    facts["sentences_without_tokens"] = int((~has_tokens).sum())
    lengths = lengths[has_tokens]
    document_of = document_of[has_tokens]
    is_held_out = is_held_out[has_tokens]

    first = np.flatnonzero(np.diff(2 * document_of + is_held_out, prepend=-1))
    sentences_of_part = np.diff(np.append(first, len(document_of)))
    origins = document_of[first]
    sources = arrays["document_source"][kept][origins - first_document]
    tokens: dict[str, np.ndarray] = {"characters": arrays["document_characters"][kept]}
    for side in SPLITS:
        is_here = is_held_out == (side == "validation")
        in_side = is_here[first]
        # A sentence's mark, repeated, picks its tokens.
        side_ids = ids[np.repeat(is_here, lengths)]
        tokens[f"{side}.ids"] = side_ids.astype(token_dtype(work.tokenizer.vocab_size))
        tokens[f"{side}.sentences"] = lengths[is_here]
        tokens[f"{side}.documents"] = sentences_of_part[in_side]
        tokens[f"{side}.sources"] = sources[in_side]
        tokens[f"{side}.origins"] = origins[in_side]
    write_file(work.shard_file(TOKENS, shard), tokens, facts)
    path.unlink(missing_ok=True)
    return facts["bytes"]


def held_out_sentences(settled: Settled, arrays: Arrays) -> np.ndarray:
    """Whether each sentence of a shard is held out, bool [S]."""
    source_of_stretch = np.repeat(arrays["document_source"], arrays["stretch_counts"])
    is_held_out = settled.is_held_out(source_of_stretch, arrays["stretch_hash"])
    return np.repeat(is_held_out, arrays["stretch_sentences"])


def _count_lines(
    sentences: Utf8Texts, lengths: np.ndarray, lines: Sequence[str]
) -> dict[str, list[int]]:
    """Line -> [copies, tokens of all its copies], of the lines that may be frequent."""
    counts = {line: [0, 0] for line in lines}
    if not counts:
        return counts
    for sentence, length in zip(sentences.strings(), lengths.tolist(), strict=True):
        if sentence in counts:
            counts[sentence][0] += 1
            counts[sentence][1] += length
    return counts
