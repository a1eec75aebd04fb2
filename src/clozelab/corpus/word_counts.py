"""A vocabulary is learnt from the words of its texts and how often each occurs.

Each different word is normalised and split once. The trainers of the library take texts, not
counts, but words are all that they look at: so they are given a text of the counted words, each as
often as it occurs, in which spaces part the words and nothing is left to normalise. The entries are
the same, in a third of the time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, trainers

from clozelab.corpus.tokenizer_files import with_prefix_space
from clozelab.corpus.utf8_texts import Utf8Texts
from clozelab.corpus.words import (
    WordRules,
    arrow_numbers,
    batches,
    with_space_before,
    without_space_behind,
    word_rules,
)
from clozelab.readers.lines import without_surrogates

WORDS_PER_TEXT = 2000


def count_words(
    texts: Iterable[str], library: Library, cuts: WordRules | None = None
) -> Counter[str]:
    """How often each word occurs, as the library's normaliser and pre-tokeniser leave it.

    `cuts` says how texts can be cut (None: these are BERT's, or those of byte-level BPE). The
    library takes no half of a character, so that one counts as U+FFFD, as in `Tokenizer.encode`.
    """
    rules = json.loads(library.to_str())
    if cuts is None:
        cuts = word_rules(rules)
    assert cuts is not None
    # What is cut out of a text brings its own space.
    inner_rules = with_prefix_space(rules, False)
    inner = Library.from_str(json.dumps(inner_rules))
    pieces: Counter[str] = Counter()
    whole_texts: Counter[str] = Counter()
    for batch in map(without_surrogates, batches(texts)):
        array = Utf8Texts.of(batch).arrow()
        can_cut = cuts.can_cut(array)
        whole_texts.update(batch[index] for index in np.flatnonzero(~can_cut))
        array = array.take(arrow_numbers(np.flatnonzero(can_cut)))
        if inner_rules != rules:
            array = with_space_before(array)
        words, _ = cuts.cut(array)
        different, numbers = words.value_counts().flatten()
        different = without_space_behind(different)
        for piece, number in zip(different.to_pylist(), numbers.to_pylist(), strict=True):
            pieces[piece] += number
    counts = _words_of(whole_texts, library)
    if cuts.bare is not None:
        for piece in list(filter(cuts.bare.fullmatch, pieces)):
            # Nothing is to be normalised or split; byte-level BPE writes a space in its own way.
            counts[piece.replace(" ", "Ġ")] += pieces.pop(piece)
    return counts + _words_of(pieces, inner)


def lines_of(texts: Iterable[str]) -> Iterator[str]:
    """The lines of all texts: where one of them cannot be cut, the others can."""
    for text in texts:
        yield from text.split("\n")


def _words_of(pieces: Mapping[str, int], library: Library) -> Counter[str]:
    counts: Counter[str] = Counter()
    for piece, number in pieces.items():
        normalized = piece
        if library.normalizer is not None:
            normalized = library.normalizer.normalize_str(piece)
        for word, _ in library.pre_tokenizer.pre_tokenize_str(normalized):
            counts[word] += number
    return counts


def count_characters(words: Mapping[str, int]) -> Counter[str]:
    """How often each character occurs in words that occur so often."""
    counts: Counter[str] = Counter()
    for word, number in words.items():
        for character in word:
            counts[character] += number
    return counts


def train_on_words(
    model: models.Model, trainer: trainers.Trainer, words: Mapping[str, int]
) -> Library:
    """The library with a model that was trained on words which occur so often."""
    library = Library(model)
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.train_from_iterator(_texts_of(words), trainer)
    return library


def _texts_of(words: Mapping[str, int]) -> Iterator[str]:
    for word, number in words.items():
        for start in range(0, number, WORDS_PER_TEXT):
            yield f"{word} " * min(WORDS_PER_TEXT, number - start)
