"""What a preparation would take, measured on the beginnings of files; nothing is written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from clozelab.corpus.documents import sentences_of
from clozelab.corpus.files import CorpusCounts, Shard
from clozelab.corpus.preparation.shard_files import TEXT, pack_documents
from clozelab.corpus.preparation.survey import survey_documents
from clozelab.corpus.preparation.texts import SHARD_CHARACTERS, TextShard, cut_shards
from clozelab.corpus.shards import token_dtype
from clozelab.corpus.steps.step import CorpusStep, StepReport
from clozelab.corpus.tokenizers import Tokenizer

SAMPLE_CHARACTERS = 100_000  # that are read at a time
SECONDS = 2.0  # for all sources together
MEASURED_FILES = 4  # of a source
CHARACTERS_PER_TOKEN = 4.5  # of English and a vocabulary that is not learnt yet
OFFSET_BYTES = 8  # of each sentence and, four times, of each document


@dataclass
class CorpusForecast:
    """How large a source is, and what preparing it takes; of several sources the sums."""

    files: int = 0
    disk_bytes: float = 0
    documents: float = 0
    characters: float = 0  # that are left by the steps
    tokens: float = 0
    seconds: float = 0  # of one process
    work_bytes: float = 0  # on disk while it is made
    result_bytes: float = 0

    def add(self, other: CorpusForecast) -> None:
        """Add another source."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def duration(self, workers: int) -> float:
        """Seconds that so many processes take, of which each works at a shard at a time."""
        num_shards = 1 + self.characters // SHARD_CHARACTERS
        return self.seconds / min(workers, num_shards)


def forecast_source(
    files: Sequence[Shard], steps: Sequence[CorpusStep], tokenizer: Tokenizer | None, seconds: float
) -> CorpusForecast:
    """Measure for so many seconds what beginnings of files take, and multiply it.

    Steps that have to know all documents are left out. `tokenizer` is None where it is to be
    learnt; then tokens are guessed, and the time of encoding them is taken for that of the rest.
    """
    measured = CorpusForecast()
    # Files in even steps, since those of one kind often have names that follow one another.
    num_files = min(len(files), MEASURED_FILES)
    start = time.perf_counter()
    for number in range(num_files):
        file = files[(2 * number + 1) * len(files) // (2 * num_files)]
        limit = start + seconds * (number + 1) / num_files
        for shard in cut_shards([file], CorpusCounts(), max_characters=SAMPLE_CHARACTERS):
            # Bytes that have been read are used up when more are read, unless that takes long.
            seconds_over = time.perf_counter() - limit
            if (seconds_over > 0 and shard.num_bytes) or seconds_over > seconds:
                break
            _measure(measured, shard, steps, tokenizer)
            measured.disk_bytes += shard.num_bytes
    measured.seconds = time.perf_counter() - start
    if tokenizer is None:
        measured.tokens = measured.characters / CHARACTERS_PER_TOKEN
        measured.result_bytes += 2 * measured.tokens
        measured.seconds *= 2
    num_bytes = sum(file.num_bytes for file in files)
    factor = num_bytes / max(1, measured.disk_bytes)
    total = CorpusForecast(files=len(files), disk_bytes=num_bytes)
    for name in ("documents", "characters", "tokens", "seconds", "work_bytes", "result_bytes"):
        setattr(total, name, factor * getattr(measured, name))
    # The tokens of shards are there until they are put together.
    total.work_bytes = max(total.work_bytes + total.result_bytes, 2 * total.result_bytes)
    return total


def _measure(
    measured: CorpusForecast,
    shard: TextShard,
    steps: Sequence[CorpusStep],
    tokenizer: Tokenizer | None,
) -> None:
    """Do with a shard what a preparation would, and add what it takes."""
    report = StepReport()
    documents = shard.documents()
    for step in steps:
        if not step.has_table:
            documents = step.apply(documents, {}, report)
    whole = list(sentences_of(documents, report))
    survey = survey_documents(whole, learns=tokenizer is None)
    measured.work_bytes += len(pack_documents(whole)[TEXT])
    measured.work_bytes += sum(array.nbytes for array in survey.values())
    measured.documents += len(whole)
    measured.characters += int(survey["document_characters"].sum())
    num_sentences = int(survey["document_sentences"].sum())
    measured.result_bytes += OFFSET_BYTES * (num_sentences + 4 * len(whole))
    if tokenizer is not None:
        sentences: list[str] = []
        for document in whole:
            sentences += document.lines
        ids, _ = tokenizer.encode_flat(sentences)
        measured.tokens += len(ids)
        measured.result_bytes += len(ids) * token_dtype(tokenizer.vocab_size).itemsize
