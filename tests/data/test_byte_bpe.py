"""Byte-level BPE: equal to transformers' RobertaTokenizerFast from the same files, deterministic, loadable again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clozelab.corpus.packing import Masking, Spans, SpecialIds, pack_pairs, pack_ragged
from clozelab.corpus.shards import TokenStream
from clozelab.corpus.tokenizers import ByteBpeTokenizer, TokenizerSettings, WordPieceTokenizer, read_tokenizer

transformers = pytest.importorskip("transformers")

TEXTS = [
    "The cat's hat doesn't fit; don't buy 123 of them, they'll say.",
    "Naïve café, Σίσυφος and 日本語とkana: 3.5 %!",
    "A tab\tand  two spaces and a smile \U0001f600\u200d\U0001f525.",
]
ODD = [
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


def train(add_prefix_space: bool = True, vocab_size: int = 400, lowercase: bool = False) -> ByteBpeTokenizer:
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
    return train(request.param)


@pytest.fixture
def theirs(tmp_path: Path, ours: ByteBpeTokenizer) -> Any:
    """Made from vocab.json and merges.txt alone."""
    folder = write(tmp_path / "theirs", ours, "vocab.json", "merges.txt")
    return transformers.RobertaTokenizerFast.from_pretrained(str(folder), add_prefix_space=ours.add_prefix_space)


def test_ids_and_offsets_are_robertas(ours: ByteBpeTokenizer, theirs: Any) -> None:
    """By the cached way and by the one with offsets; the cache is asked twice."""
    for text, ids, again, (aligned, offsets) in zip(
        ODD, ours.encode_batch(ODD), ours.encode_batch(ODD), ours.encode_with_offsets(ODD), strict=True
    ):
        expected = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        assert ids.tolist() == again.tolist() == aligned.tolist() == expected["input_ids"], repr(text)
        assert offsets.tolist() == [list(pair) for pair in expected["offset_mapping"]], repr(text)
        assert ours.decode(ids) == theirs.decode(expected["input_ids"])


def test_a_text_comes_back_from_its_ids(ours: ByteBpeTokenizer) -> None:
    for text in ODD:
        back = ours.decode(ours.encode_batch([text])[0])
        assert back == (f" {text}" if ours.add_prefix_space and text and text[0] != " " else text)
    assert not (ours.encode_flat(ODD)[0] == ours.unk_id).any()


def test_words_of_running_text_are_robertas(ours: ByteBpeTokenizer, theirs: Any) -> None:
    """Of words that are given one by one, every one has its space."""
    words = ["The", "cat", "'s", "naïve", ",", "日本語", "\U0001f600", "U.N."]
    ids, lengths = ours.encode_words(words)
    if ours.add_prefix_space:  # transformers refuses such input otherwise
        expected = theirs(words, is_split_into_words=True, add_special_tokens=False)
        assert ids.tolist() == expected["input_ids"]
        assert np.repeat(np.arange(len(words)), lengths).tolist() == expected.word_ids()
    assert ours.decode(ids) == "".join(f" {word}" for word in words)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("prefix", [False, True])
def test_auto_tokenizer_reads_the_files(tmp_path: Path, lowercase: bool, prefix: bool) -> None:
    ours = train(prefix, lowercase=lowercase)
    theirs = transformers.AutoTokenizer.from_pretrained(str(write(tmp_path, ours)))
    for first, second in zip(ODD, reversed(ODD), strict=True):
        a, b = (ids.tolist() for ids in ours.encode_batch([first, second]))
        if not second:
            continue  # no pair for transformers
        found = theirs(first, second)
        assert found["input_ids"] == [ours.cls_id, *a, ours.sep_id, ours.sep_id, *b, ours.sep_id], (first, second)
        assert not any(found.get("token_type_ids", ()))
    ids = [theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id]
    assert ids == [ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id]


def test_special_tokens_have_robertas_ids_and_are_never_drawn() -> None:
    ours = train()
    assert (ours.cls_id, ours.pad_id, ours.sep_id, ours.unk_id) == (0, 1, 2, 3)
    assert ours.mask_id == ours.vocab_size - 1 and ours.vocab_size <= 400
    assert ours.undrawn_ids == (0, 1, 2, 3, ours.mask_id)
    assert WordPieceTokenizer.train(["a text"], 50, True).undrawn_ids == ()
    assert not set(ours.undrawn_ids) & set(ours.encode_flat(["<s> <mask> </s> <pad> <unk>"])[0].tolist())


def test_training_is_the_same_in_every_process_and_order(tmp_path: Path) -> None:
    code = (
        "import sys, json; from clozelab.corpus.tokenizers import ByteBpeTokenizer as B; "
        "print(B.train(json.load(sys.stdin), 400, False, True).fingerprint)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], input=json.dumps(texts), capture_output=True, text=True, check=True,
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
        ).stdout.strip()
        for seed, texts in enumerate([TEXTS * 5, list(reversed(TEXTS * 5))])
    }  # fmt: skip
    assert found == {train().fingerprint}
    assert train(lowercase=True).fingerprint != train(False).fingerprint != train().fingerprint


@pytest.mark.parametrize("names", [(), ("vocab.json", "merges.txt", "tokenizer_config.json"), ("tokenizer.json",)])
def test_folders_round_trip(tmp_path: Path, ours: ByteBpeTokenizer, names: tuple[str, ...]) -> None:
    found = read_tokenizer(write(tmp_path / "one", ours, *names))
    assert isinstance(found, ByteBpeTokenizer) and found.fingerprint == ours.fingerprint
    given = TokenizerSettings("byte_bpe", 400, False, "two", ours.add_prefix_space)
    write(tmp_path / "two", ours)
    assert (tokenizer := given.given(tmp_path)) is not None and tokenizer.fingerprint == ours.fingerprint


def test_an_older_tokenizer_json_writes_merges_as_texts(tmp_path: Path) -> None:
    said = json.loads(train().files()["tokenizer.json"])
    said["model"]["merges"] = [" ".join(pair) for pair in said["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(said))
    assert read_tokenizer(tmp_path).fingerprint == train().fingerprint


def test_pairs_of_pre_training_have_two_separators_and_no_token_types() -> None:
    ids = SpecialIds.of(train())
    texts = np.arange(10, 40)
    spans = Spans(*(np.array(values) for values in ([0, 4], [3, 2], [20, 9], [4, 1])))
    packed = pack_pairs(TokenStream([texts]), spans, ids, 12, np.arange(2))
    expected = [[0, 10, 11, 12, 2, 2, 30, 31, 32, 33, 2, 1], [0, 14, 15, 2, 2, 19, 2, 1, 1, 1, 1, 1]]
    assert packed.input_ids.reshape(2, 12).tolist() == expected
    assert packed.special.tolist() == [index < 10 for row in expected for index in row]
    assert packed.lengths.tolist() == [11, 7] and not packed.token_type_ids.any()


def test_masking_draws_every_token_but_the_special_ones() -> None:
    ids = replace(SpecialIds.of(train()), vocab_size=12, undrawn=(0, 1, 2, 3, 11))
    rows = pack_ragged([np.full(500, 6)], instance=[1])
    seen, _, _ = Masking(1.0, 0.0, 1.0, 0.0).apply(rows, ids, seed=1, epoch=0)
    assert set(seen.tolist()) == set(range(4, 11))
    seen, _, _ = Masking(1.0, 0.0, 1.0, 0.0).apply(rows, replace(ids, undrawn=()), seed=1, epoch=0)
    assert set(seen.tolist()) == set(range(12))
