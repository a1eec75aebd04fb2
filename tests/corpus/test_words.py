"""Words that are cut out of texts and encoded once each give the ids of the whole texts."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as tries
from hypothesis import strategies as st
from tests.corpus.test_folder_tokenizers import EVERY_FLAG, KINDS, MARKED, folder_of
from tests.corpus.test_tokenizers import make_texts, train_bpe
from tokenizers import Tokenizer as Library
from tokenizers import models
from tokenizers.trainers import BpeTrainer

from clozelab.corpus import words
from clozelab.corpus.encoding import Tokenizer
from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.tokenizer_settings import TokenizerSettings
from clozelab.corpus.tokenizers import byte_bpe_rules, wordpiece_rules
from clozelab.corpus.utf8_texts import Utf8Texts
from clozelab.corpus.word_counts import count_words, train_on_words
from clozelab.corpus.words import ODD_SPACES, WordRules

__all__ = ["folder_of"]  # a fixture

SPECIAL = ("[MASK]", "[UNK]", "[CLS", "<mask>", "<s>", "</s>", "<hole>")
PIECES = [
    *("the", "The", "CAT", "cats", "it", "un", "12", "3", "x1y", "w", "ab" * 60),
    *("'", "'s", "n't", "'LL", "''", '"', ".", ",", "...", "-", "_", "(", "),", "$", "=", "@#"),
    *(" ", " ", " ", "  ", "\t", "\n", "\r", "\x0b", "\x0c", "\x1c", "\x1f", "\x85", "\xa0"),
    *("\u1680", "\u180e", "\u2003", "\u2028", "\u202f", "\u3000", "\u200b", "\ufeff", "\u00ad"),
    *("\0", "\x01", "\x7f", "\x9f", "\ufffd", "\ud800", "\ue000", "é", "É", "e\u0301", "\u0301"),
    *("\u0338", "≠", "\u037e", "İ", "ı", "Σ", "σ", "ς", "ß", "ẞ", "ﬁ", "K", "ⅷ", "²", "٣", "½"),
    *("日", "本", "한", "\u1100\u1161", "가", "\u0e33", "\u0627\u0651", "👩\u200d🔬"),
    *("—", "“", "¿"),
    *SPECIAL,
    *MARKED,
    *(token.content for token in EVERY_FLAG[:8]),
]
TEXTS = st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), max_size=6)
# The first call opens a tokenizer, and may be slow.
many = tries(
    max_examples=20,
    deadline=None,
    derandomize=True,
    # A busy machine draws texts slowly; the number of examples stays the same.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def check(tokenizer: Tokenizer, texts: list[str]) -> None:
    """By words, from strings and from UTF-8, and by the library alone."""
    expected = [row for row, _ in tokenizer.encode_with_offsets(texts)]
    encoded = (tokenizer.encode_flat(texts), tokenizer.encode_utf8(Utf8Texts.of(texts)))
    for ids, lengths in encoded:
        assert ids.dtype == np.int32
        assert lengths.tolist() == [len(row) for row in expected]
        assert ids.tolist() == list(chain.from_iterable(row.tolist() for row in expected))


EACH_WAY = [
    *("bert", "bert cased", "bert keeps accents", "bert with every flag"),
    *("bert with a special word", "config adds tokens", "merges.txt and added tokens"),
    *("roberta", "roberta prefixed with every flag", "whole texts"),
]
"""One folder of each way to cut, and one that is not cut; the others are longer evidence."""
FOLDERS = []
for folder_kind in KINDS:
    marks = [] if folder_kind in EACH_WAY else [pytest.mark.slow]
    FOLDERS.append(pytest.param(folder_kind, marks=marks))


@pytest.mark.parametrize("kind", FOLDERS)
def test_ids_of_a_folders_tokenizer(folder_of: Callable[[str], Path], kind: str) -> None:
    check_many(read_tokenizer(folder_of(kind)))


def check_many(tokenizer: Tokenizer) -> None:
    # Whatever hypothesis draws, each piece meets the next one.
    check(tokenizer, [*map("".join, pairwise(PIECES))])

    @many
    @given(TEXTS)
    def check_texts(texts: list[str]) -> None:
        check(tokenizer, texts)

    check_texts()


def test_where_which_tokenizer_cuts(folder_of: Callable[[str], Path]) -> None:
    places = {
        "bert": words.BERT,
        "bert with every flag": words.AT_SPACES,  # some added tokens are normalised
        "bert with spaces in tokens": None,
        "roberta with every flag": words.BYTE_LEVEL,
        "albert": None,
    }
    for kind, expected in places.items():
        rules = words.word_rules(read_tokenizer(folder_of(kind))._rules)
        assert (rules.places if rules else None) == expected


def learnt(kind: str, lowercase: bool) -> Tokenizer:
    # A corpus has no NULs and no halved characters.
    whole = [piece for piece in PIECES if piece not in ("\0", "\ud800", *SPECIAL)]
    texts = [*make_texts(), *map("".join, pairwise(whole))]
    name, _, prefixed = kind.partition(" ")
    spaces = {"add_prefix_space": bool(prefixed)} if name == "byte_bpe" else {}
    return TokenizerSettings(kind=name, vocab_size=800, lowercase=lowercase, **spaces).learn(texts)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize(
    "kind",
    # test_tokenizer_kinds.py has the others, of every character
    ["wordpiece", "byte_bpe", "byte_bpe prefixed"],
)
def test_ids_of_a_vocabularys_tokenizer(kind: str, lowercase: bool) -> None:
    check_many(learnt(kind, lowercase))


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        # "it's" is "it", "'s": no word begins behind its apostrophe
        ("byte_bpe", words.APOSTROPHE, words.ALNUM),
        # "x1y" is one word of BERT's
        ("wordpiece", words.ALNUM, words.ALNUM),
    ],
)
def test_a_wrong_place_to_cut_would_be_seen(kind: str, before: int, after: int) -> None:
    tokenizer = learnt(kind, True)
    rules = tokenizer._word_rules
    assert rules is not None
    places = bytearray(rules.places)
    places[words.NUM_KINDS * before + after] = words.BEGIN
    tokenizer._word_rules = replace(rules, places=bytes(places))
    with pytest.raises(AssertionError):
        check_many(tokenizer)


def test_texts_with_other_spaces_than_single_ones_are_not_cut() -> None:
    """Python knows the same white space as the pattern of Arrow does."""
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    rules = WordRules(words.BYTE_LEVEL, lowers=False, uncut=ODD_SPACES, bare=None)
    can_cut = rules.can_cut(Utf8Texts.of([f"a{character}b" for character in characters]).arrow())
    refused = [characters[index] for index in np.flatnonzero(~can_cut)]
    spaces = [character for character in characters if character.isspace()]
    assert refused == sorted({*spaces, "\u180e"} - {" "})
    assert rules.can_cut(Utf8Texts.of(["a  b", "a ", "a b", " a", ""]).arrow()).tolist() == [
        *(False, False),
        *(True, True, True),
    ]


def test_batches_and_a_full_cache_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = train_bpe(False)
    texts = [*PIECES, *make_texts()]
    together = tokenizer.encode_flat(texts)
    monkeypatch.setattr("clozelab.corpus.words.BATCH_CHARACTERS", 50)
    monkeypatch.setattr("clozelab.corpus.words.CACHED_CHARACTERS", 10)
    utf8_texts = Utf8Texts.of(texts)
    assert len(list(utf8_texts.batches(100))) > 3
    for in_parts in (tokenizer.encode_flat(texts), tokenizer.encode_utf8(utf8_texts)):
        for whole, parts in zip(together, in_parts, strict=True):
            assert whole.tolist() == parts.tolist()


def test_pandas_is_not_imported_to_encode() -> None:
    """Arrow's usual ways from and to NumPy would; it takes longer than to encode some MB."""
    program = """
import sys
from clozelab.corpus import encoding
from clozelab.corpus.tokenizers import WordPieceTokenizer
encoding.MIN_CUT_CHARACTERS = 0
tokenizer = WordPieceTokenizer.train(["the cat [MASK]"] * 9, 60, True)
tokenizer._word_rules = encoding.WordRules(tokenizer._word_rules.places, True, "k", None)
assert len(tokenizer.encode_flat(["the cat", "the kat"])[0]) > 4
assert "pyarrow" in sys.modules
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("lowercase", [True, False])
def test_words_are_counted_as_the_library_counts_them(lowercase: bool) -> None:
    """Entries that are learnt from words are those that the library learns from the texts."""
    rng = random.Random(4)
    texts = ["".join(rng.choices(PIECES, k=30)).replace("\ud800", "") for _ in range(400)]
    for prefixed in (True, False):
        rules = byte_bpe_rules(models.BPE(), lowercase, prefixed)
        expected = library_counts(texts, rules)
        assert count_words(texts, rules) == expected
        trainer = BpeTrainer(vocab_size=900, show_progress=False)
        rules.train_from_iterator(texts, trainer)
        trainer = BpeTrainer(vocab_size=900, show_progress=False)
        trained = train_on_words(models.BPE(), trainer, expected)
        assert trained.get_vocab() == rules.get_vocab()
    rules = wordpiece_rules({"[UNK]": 0}, lowercase)
    assert count_words(texts, rules) == library_counts(texts, rules)


def library_counts(texts: list[str], rules: Library) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        if rules.normalizer:
            text = rules.normalizer.normalize_str(text)
        counts.update(word for word, _ in rules.pre_tokenizer.pre_tokenize_str(text))
    return counts
