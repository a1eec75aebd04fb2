"""WordPiece and byte-level BPE: equal to the released ones, deterministic, for transformers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.packing import Masking, PackedInstances, SegmentSpans, SpecialIds, pack_pairs
from clozelab.corpus.random import Draws
from clozelab.corpus.shards import TokenStream
from clozelab.corpus.tokenizer_settings import TokenizerSettings
from clozelab.corpus.tokenizers import (
    SPECIAL_TOKENS,
    ByteBpeTokenizer,
    MpnetTokenizer,
    WordPieceTokenizer,
)

WORDS = ["the", "cat", "sat", "on", "a", "mat", "unaffable", "naïve", "Σίσυφος", "日本語"]
WORDS += ["running", "runner", "it's", "3.5"]
AWKWARD = [
    "",
    " \t\n",
    "a\x85b\x1cc\x0bd",
    "zero\u200bwidth \ufeffbom",
    "\u2028line\u2029separators",
    "ΟΔΟΣ Σ ΑΣ. ΣΑΣ İΣ",
    "x" * 200 + " " + "x" * 201,
    "lone \ud800 surrogate",
    "é e\u0301 ﬁ ß ẞ",
    "日本語とkana",
    "nbsp\u00a0and\u3000wide",
    "\x01 control",
]


def make_texts(num_texts: int = 400) -> list[str]:
    rng = random.Random(0)
    return [" ".join(rng.choices(WORDS, k=12)) + "." for _ in range(num_texts)]


@pytest.fixture(scope="module")
def wordpiece() -> WordPieceTokenizer:
    return WordPieceTokenizer.train(make_texts(), vocab_size=200, lowercase=True)


@pytest.mark.shared
@pytest.mark.parametrize(("kind", "lowercase"), [("cased", False), ("uncased", True)])
def test_equals_the_released_tokenizer(shared_dir: Path, kind: str, lowercase: bool) -> None:
    data = shared_dir / "data"
    tokenizer = WordPieceTokenizer.from_vocab(
        data / "vocab" / f"bert-base-{kind}-vocab.txt", lowercase
    )
    lines = (
        (data / "oracles" / f"google_tokenization_{kind}.jsonl")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 612
    texts = [row["text"] for row in rows]
    encoded = tokenizer.encode_batch(texts)
    with_offsets = tokenizer.encode_with_offsets(texts)
    for row, ids, (offset_ids, _) in zip(rows, encoded, with_offsets, strict=True):
        assert ids.tolist() == row["ids"]
        assert offset_ids.tolist() == row["ids"]
        assert [tokenizer.vocabulary[index] for index in ids] == row["tokens"]


def test_final_sigma_as_python_lowers_it() -> None:
    tokenizer = WordPieceTokenizer(
        [*SPECIAL_TOKENS, "ο", "##δ", "##ο", "##ς", "##σ", "σ", "."], lowercase=True
    )
    ids = tokenizer.encode_batch(["ΟΔΟΣ. Σ ΟΣΟ"])[0]
    pieces = [tokenizer.vocabulary[index] for index in ids]
    assert pieces == ["ο", "##δ", "##ο", "##ς", ".", "σ", "ο", "##σ", "##ο"]


transformers = pytest.importorskip("transformers")

TEXTS = [
    "The cat's hat doesn't fit; don't buy 123 of them, they'll say.",
    "Naïve café, Σίσυφος and 日本語とkana: 3.5 %!",
    "A tab\tand  two spaces and a smile \U0001f600\u200d\U0001f525.",
]
ODD_TEXTS = [
    *TEXTS,
    "",
    " ",
    "  ",
    "x",
    " leading",
    "trailing ",
    "double  space   triple",
    "\ttab\tstart",
    "line\nbreak\r\n two",
    "nbsp\u00a0and\u3000wide \u2003em\u2028sep",
    "\u180e old\u180e space",
    "control \x00\x01\x1c\x85 bytes",
    "emoji \U0001f468\u200d\U0001f469\u200d\U0001f467 family\U0001f44d\U0001f3fd",
    "e\u0301 combining ﬁ ß ẞ İ",
    "'s 's ' t 're''ve",
    "a" * 300 + " " + "日" * 50,
    "!?...--- #hash @at http://x.y/z?q=1&b=2",
    "١٢٣ २३ ½ ²",
    "mixed\u200bzero\ufeffwidth",
]


def train_bpe(
    add_prefix_space: bool = True, vocab_size: int = 400, lowercase: bool = False
) -> ByteBpeTokenizer:
    return ByteBpeTokenizer.train(TEXTS * 5, vocab_size, lowercase, add_prefix_space)


def write(folder: Path, tokenizer: Any, *names: str) -> Path:
    """All of its files, or some."""
    folder.mkdir(exist_ok=True)
    for name, content in tokenizer.files().items():
        if not names or name in names:
            (folder / name).write_bytes(content)
    return folder


@pytest.fixture(params=[False, True], ids=["as released", "prefixed"])
def ours(request: pytest.FixtureRequest) -> ByteBpeTokenizer:
    return train_bpe(request.param)


@pytest.fixture
def theirs(tmp_path: Path, ours: ByteBpeTokenizer) -> Any:
    """Made from vocab.json and merges.txt alone."""
    folder = write(tmp_path / "theirs", ours, "vocab.json", "merges.txt")
    return transformers.RobertaTokenizerFast.from_pretrained(
        str(folder), add_prefix_space=ours.add_prefix_space
    )


def test_ids_and_offsets_are_robertas(ours: ByteBpeTokenizer, theirs: Any) -> None:
    """By the cached way and by the one with offsets; the cache is asked twice."""
    for text, ids, again, (aligned, offsets) in zip(
        ODD_TEXTS,
        ours.encode_batch(ODD_TEXTS),
        ours.encode_batch(ODD_TEXTS),
        ours.encode_with_offsets(ODD_TEXTS),
        strict=True,
    ):
        expected = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        assert ids.tolist() == again.tolist() == aligned.tolist() == expected["input_ids"], repr(
            text
        )
        assert offsets.tolist() == [list(pair) for pair in expected["offset_mapping"]], repr(text)
        assert ours.decode(ids) == theirs.decode(expected["input_ids"])


def test_special_tokens_have_robertas_ids_and_are_never_drawn() -> None:
    ours = train_bpe()
    assert (ours.cls_id, ours.pad_id, ours.sep_id, ours.unk_id) == (0, 1, 2, 3)
    assert ours.mask_id == ours.vocab_size - 1 and ours.vocab_size <= 400
    assert ours.undrawn_ids == (0, 1, 2, 3, ours.mask_id)
    assert WordPieceTokenizer.train(["a text"], 50, True).undrawn_ids == ()
    assert MpnetTokenizer.train(["a text"], 50, True).undrawn_ids == (0, 1, 2, 3, 4)
    assert not set(ours.undrawn_ids) & set(
        ours.encode_flat(["<s> <mask> </s> <pad> <unk>"])[0].tolist()
    )


def test_training_is_the_same_in_every_process_and_order(wordpiece: WordPieceTokenizer) -> None:
    code = (
        "import sys, json; from clozelab.corpus.tokenizers import *; texts = json.load(sys.stdin); "
        "print(WordPieceTokenizer.train(texts[0], 200, True).fingerprint, "
        "ByteBpeTokenizer.train(texts[1], 400, False, True).fingerprint)"
    )
    texts = [make_texts(), TEXTS * 5]
    orders = [texts, [list(reversed(some)) for some in texts]]
    for seed, ordered in enumerate(orders):
        result = subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps(ordered),
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
        )
        assert result.stdout.split() == [wordpiece.fingerprint, train_bpe().fingerprint]
    assert (
        train_bpe(lowercase=True).fingerprint
        != train_bpe(False).fingerprint
        != train_bpe().fingerprint
    )


def test_folders_round_trip(tmp_path: Path, ours: ByteBpeTokenizer) -> None:
    names = ("vocab.json", "merges.txt", "tokenizer_config.json")
    found = read_tokenizer(write(tmp_path / "one", ours, *names))
    # Without tokenizer.json it is as RobertaTokenizer makes it, for which <mask> is no text.
    assert not isinstance(found, ByteBpeTokenizer)
    assert ours.fingerprint == found.released
    given = TokenizerSettings("byte_bpe", 400, False, "two", ours.add_prefix_space)
    write(tmp_path / "two", ours)
    assert (tokenizer := given.given(tmp_path)) is not None
    assert tokenizer.fingerprint == ours.fingerprint


def test_an_older_tokenizer_json_writes_merges_as_texts(tmp_path: Path) -> None:
    said = json.loads(train_bpe().files()["tokenizer.json"])
    said["model"]["merges"] = [" ".join(pair) for pair in said["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(said))
    assert read_tokenizer(tmp_path).fingerprint == train_bpe().fingerprint


def test_pairs_of_pre_training_have_two_separators_and_no_token_types() -> None:
    ids = SpecialIds.from_tokenizer(train_bpe())
    texts = np.arange(10, 40)
    spans = SegmentSpans(*(np.array(values) for values in ([0, 4], [3, 2], [20, 9], [4, 1])))
    packed = pack_pairs(TokenStream([texts]), spans, ids, 12, Draws(0, 0, np.arange(2)))
    expected = [
        [0, 10, 11, 12, 2, 2, 30, 31, 32, 33, 2, 1],
        [0, 14, 15, 2, 2, 19, 2, 1, 1, 1, 1, 1],
    ]
    assert packed.input_ids.reshape(2, 12).tolist() == expected
    assert packed.special.tolist() == [index < 10 for index in chain.from_iterable(expected)]
    assert packed.lengths.tolist() == [11, 7] and not packed.token_type_ids.any()


def test_masking_draws_every_token_but_the_special_ones() -> None:
    ids = replace(SpecialIds.from_tokenizer(train_bpe()), vocab_size=12, undrawn=(0, 1, 2, 3, 11))
    tokens, zeros = np.full(500, 6), np.zeros(500, dtype=np.int64)
    packed = PackedInstances(
        tokens,
        zeros,
        np.array([500]),
        500,
        ids,
        Draws(1, 0, np.array([1])),
        zeros.astype(bool),
    )
    seen, _, _ = Masking(1.0, 0.0, 1.0, 0.0).apply(packed)
    assert set(seen.tolist()) == set(range(4, 11))
    seen, _, _ = Masking(1.0, 0.0, 1.0, 0.0).apply(replace(packed, ids=replace(ids, undrawn=())))
    assert set(seen.tolist()) == set(range(12))


@pytest.mark.parametrize("vocab_size", [400, 1000])
def test_characters_that_are_words_take_one_entry_each(vocab_size: int) -> None:
    # A Chinese character has no `##` form, and no pair of them is learnt: all entries are theirs.
    generator = random.Random(1)
    characters = [chr(0x4E00 + number) for number in range(800)]
    texts = ["".join(generator.choices(characters, k=30)) for _ in range(800)]
    tokenizer = WordPieceTokenizer.train(texts, vocab_size, True)
    assert tokenizer.vocab_size == min(vocab_size, len(SPECIAL_TOKENS) + len(characters))
    ids, _ = tokenizer.encode_flat(texts)
    known = tokenizer.vocab_size - len(SPECIAL_TOKENS)
    assert np.mean(ids == tokenizer.unk_id) <= 1 - known / len(characters)


def test_half_of_the_entries_are_left_to_words() -> None:
    # Of so many letters each needs two entries, so a quarter of the vocabulary is their number.
    letters = [chr(0x430 + number) for number in range(32)]
    texts = ["".join(letters[number : number + 4]) * 3 for number in range(28)] * 5
    vocabulary = WordPieceTokenizer.train(texts, 80, True).vocabulary
    assert len(vocabulary) == 80
    assert sum(len(entry) == 1 for entry in vocabulary) == 20


# What is refused


def test_a_vocabulary_smaller_than_the_alphabet() -> None:
    with pytest.raises(ValueError, match="vocab_size 20 is below"):
        WordPieceTokenizer.train(["the quick brown fox jumps over a lazy dog"], 20, True)


BAD_VOCABULARIES = {
    r"lacks \[CLS\]": b"[PAD]\n[UNK]\n",
    "stands twice": "\n".join([*SPECIAL_TOKENS, "a", "a"]).encode(),
    "is empty": "\n".join([*SPECIAL_TOKENS, "", "a"]).encode(),
    "not UTF-8": b"\xff\xfe",
}


@pytest.mark.parametrize(("sentence", "content"), BAD_VOCABULARIES.items())
def test_a_bad_vocabulary_file(tmp_path: Path, sentence: str, content: bytes) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        WordPieceTokenizer.from_vocab(tmp_path / "vocab.txt", True)


def test_a_missing_vocabulary_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent.txt does not exist"):
        WordPieceTokenizer.from_vocab(tmp_path / "absent.txt", True)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no tokenizer"):
        read_tokenizer(tmp_path)
