"""A corpus's beginning: whether its text is one for this tokenizer, before anything slow."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Sequence
from itertools import chain

import numpy as np
from tokenizers import normalizers, pre_tokenizers

from clozelab.corpus.documents import read_documents
from clozelab.corpus.encoding import refuse_unknown
from clozelab.corpus.files import CorpusCounts, Shard
from clozelab.corpus.steps.step import CorpusStep
from clozelab.corpus.tokenizer_settings import TokenizerSettings
from clozelab.corpus.tokenizers import (
    MAX_WORD_CHARACTERS,
    MpnetTokenizer,
    Tokenizer,
    WordPieceTokenizer,
)
from clozelab.corpus.unigram import CharacterTokenizer, UnigramTokenizer

log = logging.getLogger(__name__)

MAX_CHANGED_WORDS = 0.01  # of all: names and foreign words are in any text
# of which lower-casing strips accents, too
STRIPPING_KINDS = (
    WordPieceTokenizer.kind,
    MpnetTokenizer.kind,
    UnigramTokenizer.kind,
    CharacterTokenizer.kind,
)
FIT_CHARACTERS = 200_000  # on which a given vocabulary is tried: some pages are enough
MAX_MEAN_WORD_CHARACTERS = 30  # of the word that a character is in; English has 6, German 10


def check_beginning(
    files: Sequence[Shard],
    steps: Sequence[CorpusStep],
    settings: TokenizerSettings,
    given: Tokenizer | None,
    max_unknown_share: float,
) -> None:
    """ValueError where the text's beginning is not for this tokenizer.

    It cannot be read in words, or a given vocabulary does not know most of it.
    """
    sentences = beginning_of(files, steps)
    if given is None and settings.kind == WordPieceTokenizer.kind:
        check_spaces(sentences, settings.lowercase, max_unknown_share)
    if _strips_accents(settings, given):
        warn_of_lost_accents(sentences)
    if given is None:
        return
    ids, _ = given.encode_flat(sentences)
    if len(ids):
        where = (
            "the corpus's beginning, by tokenizer.vocab_file and"
            f" tokenizer.lowercase={given.lowercase},"
        )
        refuse_unknown(where, float((ids == given.unk_id).mean()), max_unknown_share)


def beginning_of(files: Sequence[Shard], steps: Sequence[CorpusStep]) -> list[str]:
    """The first sentences of a corpus; steps that have to know all documents are left out."""
    sentences: list[str] = []
    size = 0
    for document in read_documents(files, CorpusCounts(), steps):
        sentences += document.lines
        size += document.num_characters
        if size >= FIT_CHARACTERS:
            break
    return sentences


def _strips_accents(settings: TokenizerSettings, given: Tokenizer | None) -> bool:
    """Whether the tokenizer does; a given one is tried, since its rules may be of any kind."""
    if given is None:
        return settings.lowercase and settings.kind in STRIPPING_KINDS
    with_accent, _ = given.encode_flat(["é"])
    without, _ = given.encode_flat(["e"])
    return given.lowercase and np.array_equal(with_accent, without)


def warn_of_lost_accents(sentences: Sequence[str]) -> None:
    """Say which share of the words a tokenizer changes that strips accents."""
    strip = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]).normalize_str
    num_words = 0
    changed: list[str] = []
    for word in chain.from_iterable(map(str.split, sentences)):
        num_words += 1
        if not word.isascii() and strip(word) != unicodedata.normalize("NFD", word):
            changed.append(word)
    if len(changed) > MAX_CHANGED_WORDS * num_words:
        log.warning(
            "tokenizer.lowercase=true strips accents and umlauts, and changes %.0f%% of the words"
            " (%r to %r): tokenizer.lowercase=false keeps them, with a vocabulary that has them",
            100 * len(changed) / num_words,
            changed[0],
            strip(changed[0]),
        )


def check_spaces(
    sentences: Sequence[str],
    lowercase: bool,
    max_unknown_share: float,
) -> None:
    """ValueError where most of a text stands in words that are longer than WordPiece reads.

    Long words get a warning. Words are WordPiece's own: Chinese characters and punctuation stand
    alone, so such text needs no spaces.
    """
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    splitter = pre_tokenizers.BertPreTokenizer()
    lengths = list[int]()
    for sentence in sentences:
        words = splitter.pre_tokenize_str(normalizer.normalize_str(sentence))
        lengths.extend(end - start for _, (start, end) in words)
    if not lengths:
        return
    characters = np.array(lengths)
    share = float(characters[characters > MAX_WORD_CHARACTERS].sum() / characters.sum())
    # The word that a character is in, on average: a few long numbers or addresses leave it small.
    mean = float((characters**2).sum() / characters.sum())
    instead = "tokenizer=byte_bpe needs none"
    if share > max_unknown_share:
        raise ValueError(
            f"{share:.0%} of the text's beginning are words of more than {MAX_WORD_CHARACTERS}"
            " characters, which WordPiece takes for unknown: there are no spaces between the"
            f" words; {instead} (more than max_unknown_share={max_unknown_share:g} is refused)"
        )
    if mean > MAX_MEAN_WORD_CHARACTERS:
        log.warning(
            "words have some %.0f characters: are there no spaces between the words? %s",
            mean,
            instead,
        )
