"""What a preparation would take, measured on the beginnings of files; nothing is written."""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import PurePath

import numpy as np

from clozelab.corpus.documents import NO_TABLE, prepared_documents
from clozelab.corpus.files import CorpusCounts, Shard
from clozelab.corpus.preparation.texts import SHARD_CHARACTERS, TextShard, cut_shards
from clozelab.corpus.shards import token_dtype
from clozelab.corpus.simple_tokenizers import BytesTokenizer, WhitespaceTokenizer
from clozelab.corpus.sizes import in_even_steps
from clozelab.corpus.steps.step import Arrays, CorpusStep, StepReport, SurveyStep, TableStep
from clozelab.corpus.tokenizers import Tokenizer, WordPieceTokenizer
from clozelab.corpus.unigram import CharacterTokenizer
from clozelab.readers.lines import COMPRESSIONS
from clozelab.text.words import SINGLE

SAMPLE_CHARACTERS = 100_000  # that are read at a time
SECONDS = 2.0  # for all sources together
MEASURED_FILES = 4  # of a kind of a source's files
# of English, by the entries of a WordPiece vocabulary; smaller ones are for smaller languages
CHARACTERS_PER_TOKEN = {2048: 3.1, 8192: 4.0, 30522: 4.4}
USUAL_ENTRIES = 8192
SINGLE_CHARACTER = re.compile(f"[{SINGLE}]")  # a token each
OFFSET_BYTES = 8  # of each sentence and, four times, of each document
# a step with its table, which is empty for one without
SettledStep = tuple[CorpusStep, Arrays]


@dataclass
class CorpusForecast:
    """How large a source is, and what preparing it takes; of several sources the sums.

    All is NaN for one that does not say how large it is, and was not read to its end.
    """

    files: int = 0
    disk_bytes: float = 0
    documents: float = 0
    characters: float = 0  # that are left by the steps
    tokens: float = 0
    seconds: float = 0  # of one process
    result_bytes: float = 0  # on disk

    def add(self, other: CorpusForecast) -> None:
        """Add another source."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def duration(self, workers: int) -> float:
        """Seconds that so many processes take, of which each works at a shard at a time."""
        num_shards = 1 + self.characters // SHARD_CHARACTERS
        return self.seconds / min(workers, num_shards)


def settled_steps(steps: Sequence[CorpusStep]) -> list[SettledStep]:
    """The steps that need not know all documents, which a forecast leaves out."""
    settled: list[SettledStep] = []
    for step in steps:
        if isinstance(step, SurveyStep):
            continue
        table = NO_TABLE
        if isinstance(step, TableStep):
            table = step.settle([])
        settled.append((step, table))
    return settled


def forecast_source(
    files: Sequence[Shard],
    steps: Sequence[SettledStep],
    tokenizer: Tokenizer | None,
    seconds: float,
    kind: str = WordPieceTokenizer.kind,
    num_entries: int = USUAL_ENTRIES,
) -> CorpusForecast:
    """Measure for so many seconds what beginnings of files take, and multiply it.

    Files that are read or packed in different ways are measured apart. `tokenizer` is None where
    one of this `kind`, with so many entries, is to be learnt; then tokens are guessed, and the time
    of encoding them is taken for that of the rest.
    """
    characters = characters_per_token(num_entries)
    guess = partial(guess_tokens, kind=kind, characters_of_token=characters)
    alike = defaultdict[tuple[str, str], list[Shard]](list)
    for file in files:
        packing = PurePath(file.name).suffix
        alike[file.format, packing if packing in COMPRESSIONS else ""].append(file)
    total = CorpusForecast()
    for of_kind in alike.values():
        are_all = len(files) == 1
        share = seconds / len(alike)
        total.add(_forecast_alike(of_kind, steps, tokenizer, share, guess, are_all=are_all))
    return total


def _forecast_alike(
    files: Sequence[Shard],
    steps: Sequence[SettledStep],
    tokenizer: Tokenizer | None,
    seconds: float,
    guess: Callable[[str], float],
    *,
    are_all: bool,
) -> CorpusForecast:
    measured = CorpusForecast()
    sample = in_even_steps(files, MEASURED_FILES)
    is_whole = len(sample) == len(files)
    measure = partial(_measure, measured, steps=steps, tokenizer=tokenizer, guess=guess)
    for file in sample:
        shards = cut_shards(
            [file],
            CorpusCounts(),
            max_characters=SAMPLE_CHARACTERS,
            are_all=are_all,
        )
        limits = (seconds / len(sample), seconds)
        is_whole &= _measure_file(measured, shards, limits, measure)
    if tokenizer is None:
        measured.result_bytes += 2 * measured.tokens
        measured.seconds *= 2
    num_bytes = sum(file.num_bytes for file in files)
    factor = num_bytes / max(1, measured.disk_bytes)
    if not num_bytes:
        factor = 1.0 if is_whole else math.nan
    total = CorpusForecast()
    for name, value in vars(measured).items():
        setattr(total, name, factor * value)
    total.files = len(files)
    return total


def _measure_file(
    measured: CorpusForecast,
    shards: Iterator[TextShard],
    limits: tuple[float, float],
    measure: Callable[[TextShard], None],
) -> bool:
    """Measure a file for some seconds, its first shard in any case; returns whether it was all.

    Behind the first limit bytes that have been read are used up, as long as that takes no longer
    than the second one. To open a file may take long, as to read a large row group does: the clock
    begins behind that.
    """
    first = list(islice(shards, 1))
    start = time.perf_counter()
    seconds = 0.0
    # Of the last bytes that were read: characters that were measured, and the others.
    num_bytes = 0
    used = 0
    unused = 0
    is_whole = True
    for shard in chain(first, shards):
        seconds_over = time.perf_counter() - start - limits[0]
        if shard.number and shard.num_bytes and seconds_over > 0:
            is_whole = False
            break
        if shard.num_bytes:
            num_bytes = shard.num_bytes
            used = 0
            unused = 0
            measured.disk_bytes += num_bytes
        if shard.number and seconds_over > limits[1]:
            is_whole = False
            unused += shard.num_characters
            continue
        used += shard.num_characters
        measure(shard)
        seconds = time.perf_counter() - start
    measured.disk_bytes -= num_bytes * unused / max(1, used + unused)
    measured.seconds += seconds
    return is_whole


def _measure(
    measured: CorpusForecast,
    shard: TextShard,
    steps: Sequence[SettledStep],
    tokenizer: Tokenizer | None,
    guess: Callable[[str], float],
) -> None:
    """Do with a shard what a preparation would, and add what it takes."""
    sentences: list[str] = []
    for document in prepared_documents(shard, steps, StepReport()):
        sentences += document.lines
        measured.documents += 1
        measured.characters += document.num_characters
        measured.result_bytes += OFFSET_BYTES * (len(document.lines) + 4)
    if tokenizer is None:
        measured.tokens += sum(map(guess, sentences))
    else:
        ids, _ = tokenizer.encode_flat(sentences)
        measured.tokens += len(ids)
        measured.result_bytes += len(ids) * token_dtype(tokenizer.vocab_size).itemsize


def characters_per_token(num_entries: int) -> float:
    """About how long a token is in a text that a vocabulary of this size is learnt from."""
    # Each doubling of the entries makes tokens longer by about as much.
    sizes = np.log2(list(CHARACTERS_PER_TOKEN))
    return float(
        np.interp(math.log2(max(1, num_entries)), sizes, list(CHARACTERS_PER_TOKEN.values()))
    )


def guess_tokens(sentence: str, kind: str, characters_of_token: float) -> float:
    """About how many tokens a tokenizer of a kind makes of a sentence, before it is learnt.

    Those of bytes, characters and whole words are counted.
    """
    if kind == BytesTokenizer.kind:
        return len(sentence.encode("utf-8", "surrogatepass")) + 1  # a space before the first word
    if kind == CharacterTokenizer.kind:
        return len(sentence) + 1
    if kind == WhitespaceTokenizer.kind:
        return len(sentence.split())
    num_single = 0
    if not sentence.isascii():
        num_single = len(SINGLE_CHARACTER.findall(sentence))
    return num_single + (len(sentence) - num_single) / characters_of_token
