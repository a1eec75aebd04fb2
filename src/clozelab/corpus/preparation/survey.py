"""What a shard tells of its sentences: hashes and sizes, from which all else is settled.

Three units are hashed: documents (to find copies), stretches (to hold some out) and blocks (to
learn a vocabulary from a sample). Memory does not grow with the corpus but for these numbers.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np

from clozelab.corpus.documents import hash_of
from clozelab.corpus.steps.step import Arrays, Document

# what the split takes to one side: some 4,000 tokens, seven of the longest instances
STRETCH_CHARACTERS = 16_000
BLOCK_SENTENCES = 32
# a short document is one block: by its plain hash it would be held-out text, see `stretches`
BLOCK_SALT = "vocabulary\n"
# Of a shard's characters: a line that has more of them may be one that the whole corpus repeats. A
# hundredth of all tokens may be few characters: one of Chinese is a token, or three of bytes.
CANDIDATE_SHARE = 0.0002
CANDIDATE_COUNT = 3
# Array -> its type: uint64 hashes, int64 numbers, uint8 sources. `stretch_counts` and
# `block_counts` say how many of the stretches' and the blocks' entries are a document's.
COLUMNS = {
    "document_hash": "Q",
    "document_source": "B",
    "document_characters": "q",
    "document_sentences": "q",
    "stretch_counts": "q",
    "block_counts": "q",
    "stretch_hash": "Q",
    "stretch_characters": "q",
    "stretch_sentences": "q",
    "block_hash": "Q",
    "block_characters": "q",
}


def stretches(sentences: Sequence[str]) -> list[tuple[int, int, int]]:
    """(end, characters, hash) of a document's stretches.

    They are as few and as even ones as STRETCH_CHARACTERS allow; `end` numbers sentences.
    """
    ends = np.cumsum(list(map(len, sentences)))
    num_characters = ends[-1]
    num_stretches = -(-num_characters // STRETCH_CHARACTERS)
    # A sentence belongs to the stretch that its last character lies in: lengths [6, 4, 9, 1] and
    # two stretches have the numbers [0, 0, 1, 1].
    number = (ends - 1) * num_stretches // num_characters
    cuts = (np.flatnonzero(np.diff(number)) + 1).tolist()
    result = []
    characters_before = 0
    for first, end in pairwise([0, *cuts, len(sentences)]):
        characters = int(ends[end - 1]) - characters_before
        result.append((end, characters, hash_of("\n".join(sentences[first:end]))))
        characters_before += characters
    return result


def survey_documents(documents: Sequence[Document], *, learns: bool) -> Arrays:
    """The COLUMNS of a shard's documents, their stretches and (with `learns`) their blocks."""
    columns = {name: array(kind) for name, kind in COLUMNS.items()}
    for document in documents:
        columns["document_source"].append(document.source)
        columns["document_characters"].append(document.num_characters)
        columns["document_sentences"].append(len(document.lines))
        _add_stretches(columns, document.lines)
        blocks: Sequence[str] = ()
        if learns:
            blocks = blocks_of(document.lines)
        for block in blocks:
            columns["block_hash"].append(hash_of(f"{BLOCK_SALT}{block}"))
            columns["block_characters"].append(len(block))
        columns["block_counts"].append(len(blocks))
    return {name: np.array(column) for name, column in columns.items()}


def _add_stretches(columns: dict[str, array[int]], sentences: Sequence[str]) -> None:
    """Add a document's hash and its stretches."""
    of_document = stretches(sentences)
    # Documents are the same if all their stretches are.
    columns["document_hash"].append(hash_of(str([name for _, _, name in of_document])))
    columns["stretch_counts"].append(len(of_document))
    start = 0
    for end, characters, stretch_hash in of_document:
        columns["stretch_hash"].append(stretch_hash)
        columns["stretch_characters"].append(characters)
        columns["stretch_sentences"].append(end - start)
        start = end


def blocks_of(sentences: Sequence[str]) -> list[str]:
    """A document's blocks of BLOCK_SENTENCES, by which a sample is drawn."""
    starts = range(0, len(sentences), BLOCK_SENTENCES)
    return ["\n".join(sentences[start : start + BLOCK_SENTENCES]) for start in starts]


def frequent_lines(documents: Sequence[Document]) -> dict[str, int]:
    """Line -> characters of all its copies, of the lines that have much of a shard's text."""
    copies = Counter(chain.from_iterable(document.lines for document in documents))
    least = CANDIDATE_SHARE * sum(document.num_characters for document in documents)
    frequent = {}
    for line in [line for line, number in copies.items() if number >= CANDIDATE_COUNT]:
        characters = copies[line] * len(line)
        if characters > least:
            frequent[line] = characters
    return frequent
