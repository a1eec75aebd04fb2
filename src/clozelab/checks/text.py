"""The corpus: token ids, unknown tokens, duplicates, held-out text that is also trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from clozelab.checks.ngrams import NgramIndex
from clozelab.checks.subject import ERROR, OK, WARNING, Finding, share
from clozelab.corpus.shards import TokenShards

if TYPE_CHECKING:
    from clozelab.planning.jobs import Corpus

MAX_UNKNOWN, MANY_UNKNOWN = 0.01, 0.2
"""Shares of [UNK] that are a warning and an error; a vocabulary made for a text leaves far less unknown."""
MAX_DUPLICATE_DOCUMENTS, MANY_DUPLICATE_DOCUMENTS = 0.01, 0.2
MAX_DUPLICATE_SENTENCES = 0.3
MAX_OVERLAP, MANY_OVERLAP = 0.05, 0.5
"""Shares of held-out sentences that are trained on word for word: a warning and an error."""
LONG_SENTENCE_TOKENS = 12
"""Shorter sentences repeat in any text."""
MAX_HASHED_TOKENS = 200_000_000
_BLOCK_SENTENCES = 1 << 17
_PLACES = 4096


def check_vocabulary(corpus: Corpus, index: NgramIndex) -> Iterator[Finding]:
    """Every id in the shards belongs to the vocabulary, and few tokens are unknown."""
    size, name = corpus.ids.vocab_size, corpus.name
    figure = f"largest id {index.largest_id:,}, {size:,} entries"
    again = f"delete the prepared corpus {name} and prepare it again with its own vocabulary"
    if index.largest_id >= size:
        yield Finding("vocabulary", ERROR, f"{name}: the shards hold ids beyond the vocabulary", figure, again)
    elif corpus.train.vocab_size != size or corpus.validation.vocab_size != size:
        what = f"{name}: shards were made with another vocabulary than the tokenizer's"
        sizes = f"{corpus.train.vocab_size:,} and {corpus.validation.vocab_size:,} against {size:,}"
        yield Finding("vocabulary", ERROR, what, sizes, again)
    else:
        yield Finding("vocabulary", OK, f"{name}: all ids are the vocabulary's", figure)
    yield unknown_tokens(name, index.num_unknown, index.num_searched)


def unknown_tokens(name: str, unknown: int, tokens: int) -> Finding:
    """Of a corpus, or of a task's text."""
    part = unknown / max(1, tokens)
    level = ERROR if part > MANY_UNKNOWN else WARNING if part > MAX_UNKNOWN else OK
    what = f"{name}: " + ("many tokens are [UNK]" if level != OK else "the vocabulary knows the text")
    remedy = (
        "does the vocabulary fit language and case? See tokenizer.lowercase and tokenizer.vocab_file"
        if level != OK
        else ""
    )
    return Finding("unknown tokens", level, what, share(unknown, tokens) + " [UNK]", remedy)


def check_duplicates(corpus: Corpus) -> Iterator[Finding]:
    """Documents and sentences that stand twice in training; held-out sentences that are trained on."""
    train, held_out = hash_split(corpus.train), hash_split(corpus.validation)
    documents, sentences = _repeated(train.documents), _repeated(train.sentences[train.is_long])
    num_long = int(train.is_long.sum())
    figure = f"documents {share(documents, len(train.documents))}, sentences {share(sentences, num_long)}"
    part = documents / max(1, len(train.documents))
    name = corpus.name
    if part > MAX_DUPLICATE_DOCUMENTS:
        level = ERROR if part > MANY_DUPLICATE_DOCUMENTS else WARNING
        remedy = (
            "remove the copies (prepare drops exact ones): they weigh double, and an epoch is shorter than it seems"
        )
        yield Finding("duplicates", level, f"{name}: whole documents are repeated", figure, remedy)
    elif sentences > MAX_DUPLICATE_SENTENCES * num_long:
        remedy = "boilerplate? Remove it, or documents that differ in little"
        yield Finding("duplicates", WARNING, f"{name}: sentences are repeated", figure, remedy)
    else:
        yield Finding("duplicates", OK, f"{name}: few repetitions", figure)
    known = np.isin(held_out.sentences[held_out.is_long], train.sentences)
    figure = share(known.sum(), len(known)) + " held-out sentences"
    part = float(known.mean()) if len(known) else 0.0
    if part > MAX_OVERLAP:
        level = ERROR if part > MANY_OVERLAP else WARNING
        what = f"{name}: held-out text is trained on, word for word"
        remedy = "the held-out loss flatters the model: remove near-copies of documents, or hold out another source"
        yield Finding("held out", level, what, figure, remedy)
    else:
        yield Finding("held out", OK, f"{name}: held-out text is not trained on", figure)


class SplitHashes:
    """64 bits of every sentence and document of a split, and which sentences are long."""

    def __init__(self, sentences: np.ndarray, documents: np.ndarray, lengths: np.ndarray) -> None:
        self.sentences, self.documents = sentences, documents
        self.is_long = lengths >= LONG_SENTENCE_TOKENS


def hash_split(shards: TokenShards) -> SplitHashes:
    """Of a corpus larger than MAX_HASHED_TOKENS, its first documents."""
    offsets, bounds = np.asarray(shards.sentence_offsets), np.asarray(shards.document_offsets)
    num_documents = max(1, int(np.searchsorted(offsets[bounds], MAX_HASHED_TOKENS, side="right")) - 1)
    bounds = bounds[: num_documents + 1]
    offsets = offsets[: bounds[-1] + 1]
    odd = np.random.default_rng(0).integers(0, 1 << 63, _PLACES, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    parts = []
    for low in range(0, len(offsets) - 1, _BLOCK_SENTENCES):
        cut = offsets[low : low + _BLOCK_SENTENCES + 1]
        ids = shards.tokens[int(cut[0]) : int(cut[-1])].astype(np.uint64)
        parts.append(_sums(ids + np.uint64(1), cut - cut[0], odd))
    sentences = np.concatenate(parts)
    return SplitHashes(sentences, _sums(sentences, bounds, odd), np.diff(offsets))


def _sums(values: np.ndarray, offsets: np.ndarray, odd: np.ndarray) -> np.ndarray:
    """uint64 [len(offsets) - 1]: of each range, the sum of value times a multiplier for its place in the range."""
    lengths = np.diff(offsets)
    place = np.arange(len(values)) - np.repeat(offsets[:-1], lengths)
    with np.errstate(over="ignore"):
        mixed = (values ^ (values >> np.uint64(29))) * odd[place % _PLACES]
        sums = np.add.reduceat(mixed, offsets[:-1])
        return (sums ^ (sums >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93) + lengths.astype(np.uint64)


def _repeated(hashes: np.ndarray) -> int:
    """How many equal an earlier one. Sorted, since numpy's hash table misses the cache at every entry."""
    ordered = np.sort(hashes)
    return int(np.count_nonzero(ordered[1:] == ordered[:-1]))
