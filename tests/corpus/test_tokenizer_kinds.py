"""Unigram, characters, bytes and words between spaces: what holds for each of them."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.corpus.test_tokenizers import AWKWARD, ODD_TEXTS, TEXTS, make_texts, write
from tokenizers import Tokenizer as Library

from clozelab.corpus import vocabulary
from clozelab.corpus.encoding import Tokenizer
from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.simple_tokenizers import WhitespaceTokenizer
from clozelab.corpus.tokenizer_settings import TokenizerSettings
from clozelab.corpus.tokenizers import SPECIAL_TOKENS

transformers = pytest.importorskip("transformers")

KINDS = ["unigram", "characters", "bytes", "whitespace"]
EVERY_KIND = [*KINDS, "wordpiece", "wordpiece_roberta", "byte_bpe"]
NASTY = [text for text in [*ODD_TEXTS, *AWKWARD, "▁ a▁b", "[MASK", "MASK]"] if "\ud800" not in text]
TRAINING = [*TEXTS * 5, *make_texts(100)]


def settings(kind: str, *, lowercase: bool = False, **changes: Any) -> TokenizerSettings:
    if kind in ("bytes", "byte_bpe"):
        vocab_size = 261 if kind == "bytes" else 400
        changes = {"vocab_size": vocab_size, "add_prefix_space": True} | changes
    return TokenizerSettings(
        **({"kind": kind, "vocab_size": 300, "lowercase": lowercase} | changes)
    )


def learnt(kind: str, *, lowercase: bool = False) -> Tokenizer:
    return settings(kind, lowercase=lowercase).learn(TRAINING)


def names_of(tokenizer: Tokenizer, ids: np.ndarray) -> list[str]:
    return [tokenizer.vocabulary[index] for index in ids]


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("lowercase", [False, True])
def test_transformers_gives_the_same_ids(tmp_path: Path, kind: str, lowercase: bool) -> None:
    ours = learnt(kind, lowercase=lowercase)
    theirs = transformers.AutoTokenizer.from_pretrained(str(write(tmp_path, ours)))
    # Their WordPiece does not know the sigma that ends a word.
    for text in [text for text in NASTY if "Σ" not in text or "wordpiece" not in kind]:
        ids = ours.encode_batch([text])[0].tolist()
        expected = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        assert ids == expected["input_ids"], repr(text)
        assert ours.encode_with_offsets([text])[0][0].tolist() == ids
        assert ours.decode(ids) == theirs.decode(ids)
    a, b = (ids.tolist() for ids in ours.encode_batch(TEXTS[:2]))
    separators = [ours.sep_id] * ours.pair_separators
    pair = theirs(*TEXTS[:2])
    assert pair["input_ids"] == [ours.cls_id, *a, *separators, *b, ours.sep_id]
    if ours.has_token_types:
        first = len(a) + 1 + len(separators)
        assert pair["token_type_ids"] == [0] * first + [1] * (len(b) + 1)
    else:
        assert not any(pair.get("token_type_ids", ()))
    masked = f"The {ours.mask_token} sat on a{ours.mask_token}b mat"
    assert ours.has_mask(masked)
    expected = theirs(masked, add_special_tokens=False)["input_ids"]
    assert ours.encode_masked([masked])[0].tolist() == expected
    roles = ("pad", "unk", "cls", "sep", "mask")
    for role, token in zip(roles, ours.special_tokens, strict=True):
        assert getattr(theirs, f"{role}_token") == token
        assert getattr(theirs, f"{role}_token_id") == getattr(ours, f"{role}_id")


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("lowercase", [False, True])
def test_a_folder_is_read_again(tmp_path: Path, kind: str, lowercase: bool) -> None:
    ours = learnt(kind, lowercase=lowercase)
    again = read_tokenizer(write(tmp_path, ours))
    assert again.fingerprint == ours.fingerprint
    assert type(again) is type(ours)
    assert again.lowercase is lowercase
    assert again.files() == ours.files()
    # As vocab_file=, whatever kind the configuration names.
    file = str(tmp_path / "tokenizer.json")
    given = settings(kind, lowercase=lowercase, vocab_file=file).given(tmp_path)
    assert given is not None
    assert given.fingerprint == ours.fingerprint
    other = learnt(kind, lowercase=not lowercase)
    assert other.fingerprint != ours.fingerprint
    for name in ours.files().keys() - {"tokenizer.json"}:
        (tmp_path / name).unlink()
    alone = read_tokenizer(tmp_path)
    assert (alone.fingerprint, alone.lowercase) == (ours.fingerprint, lowercase)


@pytest.mark.parametrize("kind", ["unigram", "whitespace", "wordpiece"])
def test_one_token_type_is_kept_in_the_files(tmp_path: Path, kind: str) -> None:
    """Here and in transformers, whose models then take type 0 throughout; the ids are the same."""
    usual = learnt(kind)
    for number in ("one", "two"):
        ours = usual.with_token_types(number)
        again = read_tokenizer(write(tmp_path / number, ours))
        assert again.has_token_types == (number == "two")
        assert again.fingerprint == usual.fingerprint
        assert again.files() == ours.files()
        theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / number))
        assert ("token_type_ids" in theirs("the", "cat")) == (number == "two")
        assert again.with_token_types("two").has_token_types
    assert usual.has_token_types, "a copy has changed"
    assert usual.with_token_types("auto").has_token_types


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_rule_is_another_tokenizer(tmp_path: Path, kind: str) -> None:
    """A file that differs from ours in one rule runs as it is, under its own fingerprint."""
    ours = learnt(kind)
    content = json.loads(ours.files()["tokenizer.json"])
    content["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    again = read_tokenizer(tmp_path)
    assert ours.fingerprint not in (again.fingerprint, again.released)


@pytest.mark.parametrize("kind", EVERY_KIND)
@pytest.mark.parametrize("lowercase", [False, True])
def test_text_never_becomes_a_special_token(kind: str, lowercase: bool) -> None:
    """Nor where it stands in the text that was learnt from."""
    text = "[MASK] a[MASK]b [CLS][SEP] [PAD] [UNK] <mask> <s> </s>"
    tokenizer = settings(kind, lowercase=lowercase, vocab_size=400).learn([text] * 9 + TRAINING)
    special = {tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id}
    ids = tokenizer.encode_batch([text, "\u2603[MASK]\u2603"])
    assert not special & set(np.concatenate(ids).tolist())
    if kind != "whitespace":
        assert tokenizer.unk_id not in ids[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        # many words end so: a piece that text would be worth learning
        (" ".join(f"{letter}[UNK]" for letter in string.ascii_lowercase), False),
        ("a\0 b\0b \0", True),
        ("cat\ud83d sat\udfff", False),
    ],
)
def test_any_text_can_be_learnt_from(kind: str, text: str, unknown: bool) -> None:
    """A special token's name is no piece, a NUL no character, half of one U+FFFD."""
    tokenizer = settings(kind, vocab_size=400).learn([text])
    assert sorted(set(tokenizer.vocabulary)) == sorted(tokenizer.vocabulary)
    assert all(tokenizer.vocabulary)
    ids = tokenizer.encode_batch([text])[0]
    if kind in ("unigram", "characters"):
        assert (tokenizer.unk_id in ids) == unknown
    again = tokenizer.encode_batch([text.replace("\ud83d", "\ufffd").replace("\udfff", "\ufffd")])
    assert again[0].tolist() == ids.tolist()


@pytest.mark.parametrize(
    ("kind", "word", "pieces"),
    [
        ("characters", "cat", ["▁", "c", "a", "t"]),
        ("bytes", "cat", ["Ġ", "c", "a", "t"]),
        ("bytes", "é", ["Ġ", "Ã", "©"]),
        ("whitespace", "cat", ["cat"]),
        ("whitespace", "cat,", ["[UNK]"]),
        ("unigram", "cat", ["▁cat"]),
    ],
)
def test_what_a_word_becomes(kind: str, word: str, pieces: list[str]) -> None:
    tokenizer = learnt(kind)
    assert names_of(tokenizer, tokenizer.encode_batch([word])[0]) == pieces
    ids, lengths = tokenizer.encode_words([word, word])
    assert names_of(tokenizer, ids) == pieces * 2
    assert lengths.tolist() == [len(pieces)] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_words_begin_where_the_text_has_a_space(kind: str) -> None:
    """What whole-word masking goes by, also between two sentences."""
    tokenizer = learnt(kind)
    continues = SpecialIds.from_tokenizer(tokenizer).continues
    assert continues is not None
    ids, _ = tokenizer.encode_flat(["the unaffable cat", "sat on"])
    assert int((~continues[ids]).sum()) == 5
    assert not continues[ids[0]]


@pytest.mark.parametrize("kind", ["unigram", "characters", "bytes"])
def test_what_goes_on_with_a_word_has_no_space_before_it(kind: str) -> None:
    tokenizer = learnt(kind)
    ids, _ = tokenizer.encode_words(["sat"], inside=True)
    assert tokenizer.decode(ids) == "sat"
    assert names_of(tokenizer, ids)[0][0] == "s"


@pytest.mark.parametrize("kind", ["unigram", "characters", "bytes", "byte_bpe"])
def test_a_text_comes_back(kind: str) -> None:
    tokenizer = learnt(kind)
    text = "The cat's hat: 3.5 of 日本語!"
    assert tokenizer.decode(tokenizer.encode_batch([text])[0]).lstrip() == text


@pytest.mark.parametrize("kind", ["unigram", "characters", "bytes"])
def test_text_without_spaces_is_read(kind: str) -> None:
    dna = "ACGTTGCA" * 300
    tokenizer = settings(kind).learn([dna])
    ids = tokenizer.encode_batch([dna])[0]
    assert tokenizer.unk_id not in ids
    assert tokenizer.decode(ids).lstrip() == dna


def test_words_are_counted() -> None:
    """The most frequent words, of equal ones the first by the alphabet; one alone is no entry."""
    texts = ["b a b, c", "a b c\td\u00a0e", "[MASK] [MASK]", "e"]
    tokenizer = settings("whitespace").learn(texts)
    assert tokenizer.vocabulary == (*SPECIAL_TOKENS, "MASK]", "[", "a", "b", "c", "e")
    tokenizer = settings("whitespace", vocab_size=7).learn(texts)
    assert tokenizer.vocabulary == (*SPECIAL_TOKENS, "MASK]", "[")


def test_a_list_of_words_is_taken(tmp_path: Path) -> None:
    words = "\n".join([*SPECIAL_TOKENS, "AAA", "AAC"]) + "\n"
    (tmp_path / "kmers.txt").write_text(words)
    tokenizer = settings("whitespace", vocab_file="kmers.txt").given(tmp_path)
    assert tokenizer is not None
    assert tokenizer.encode_batch(["AAC AAA GGG"])[0].tolist() == [6, 5, tokenizer.unk_id]


def test_rare_characters_have_no_entries() -> None:
    texts = ["plain english text and no more of it"] * 5000 + ["\u1200\u1201"]
    for kind in ("unigram", "characters", "wordpiece"):
        tokenizer = settings(kind, lowercase=True).learn(texts)
        assert "\u1200" not in tokenizer.vocabulary
        assert names_of(tokenizer, tokenizer.encode_batch(["\u1200"])[0])[-1] == "[UNK]"


def test_few_characters_are_the_most_frequent() -> None:
    texts = ["\u1200\u1200\u1201 \u1202"] * 9
    tokenizer = settings("characters", vocab_size=103).learn(texts)
    assert tokenizer.vocab_size <= 103
    kept = [entry for entry in tokenizer.vocabulary if "\u1200" <= entry <= "\u1210"]
    assert kept == ["\u1200", "\u1201"]


def test_words_can_be_added_between_spaces() -> None:
    """A new word is one token, and the others keep theirs; it had no pieces, and was unknown."""
    old = learnt("whitespace")
    new = vocabulary.with_entries(old, vocabulary.entries_of(old, ["cytokine"]))
    assert len(new.encode_batch(["cytokine"])[0]) == 1
    assert new.encode_batch(["the cat"])[0].tolist() == old.encode_batch(["the cat"])[0].tolist()
    pieces = vocabulary.old_pieces(new, old)
    assert pieces == [*([index] for index in range(old.vocab_size)), []]


@pytest.mark.parametrize(
    ("kind", "changes", "sentence"),
    [
        ("unigram", {"vocab_size": 50}, "unigram needs 100"),
        ("bytes", {"vocab_size": 260}, "bytes needs 261"),
        ("bytes", {"add_prefix_space": None}, "true or false for byte_bpe and bytes"),
        ("whitespace", {"add_prefix_space": True}, "true or false for byte_bpe and bytes"),
    ],
)
def test_wrong_settings(kind: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        settings(kind, **changes)


def test_too_few_entries_for_the_characters() -> None:
    texts = ["".join(map(chr, range(0x4E00, 0x4E40)))] * 9
    with pytest.raises(ValueError, match="vocab_size 110 is below the 154 entries"):
        settings("unigram", vocab_size=110).learn(texts)


@pytest.mark.parametrize("kind", ["unigram", "characters"])
def test_pieces_are_read_from_a_tokenizer_json_alone(tmp_path: Path, kind: str) -> None:
    (tmp_path / "spiece.model").write_bytes(b"")
    with pytest.raises(ValueError, match=f"{kind} is read from a tokenizer.json alone"):
        settings(kind, vocab_file="spiece.model").given(tmp_path)


def test_a_bad_list_of_words(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"words.txt: the vocabulary of 2 entries lacks \[PAD\]"):
        WhitespaceTokenizer.from_vocab(tmp_path / "words.txt", lowercase=False)


def test_the_sample_names_the_corpus_only_where_it_is_another() -> None:
    """Folders of older versions keep their names."""
    usual = settings("unigram").identity(None)
    assert "sample_characters" not in usual
    assert settings("unigram", sample_characters=None).identity(None) == usual | {
        "sample_characters": None
    }
    given = learnt("whitespace")
    assert settings("unigram", sample_characters=9).identity(given) == settings("unigram").identity(
        given
    )


@pytest.mark.parametrize("kind", ["unigram", "characters", "whitespace"])
@pytest.mark.parametrize("lowercase", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_word_by_word_as_the_library_reads_the_whole(kind: str, lowercase: bool) -> None:
    """Of every character that normalisation may change: inside a word, alone, and at either end."""
    tokenizer = learnt(kind, lowercase=lowercase)
    characters = [*range(0x3400), *range(0x3400, 0xD800, 29), *range(0xF900, 0x10000)]
    characters += range(0x10000, 0x20000, 61)
    texts = [f"a{chr(code)}b {chr(code)} c{chr(code)} {chr(code)}d" for code in characters]
    rng = random.Random(4)
    pool = [*"abc   ", *"éが\u3099\u0301\u00a0\u1100\u1161ﬁ½", "[MASK]", "▁", "\t"]
    texts += ["".join(rng.choices(pool, k=12)) for _ in range(3000)]
    library = Library.from_str(tokenizer.files()["tokenizer.json"].decode())
    library.encode_special_tokens = True
    whole = library.encode_batch_fast(texts, add_special_tokens=False)
    for text, ids, expected in zip(texts, tokenizer.encode_batch(texts), whole, strict=True):
        assert ids.tolist() == expected.ids, repr(text)
