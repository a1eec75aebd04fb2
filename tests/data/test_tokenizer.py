"""WordPiece: equal to the released tokenizer, deterministic when trained, loadable by transformers."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "unaffable",
    "naïve",
    "Σίσυφος",
    "日本語",
    "running",
    "runner",
    "it's",
    "3.5",
]
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
def trained() -> WordPieceTokenizer:
    return WordPieceTokenizer.train(make_texts(), vocab_size=200, lowercase=True)


@pytest.mark.shared
@pytest.mark.parametrize(("kind", "lowercase"), [("cased", False), ("uncased", True)])
def test_equals_the_released_tokenizer(shared_dir: Path, kind: str, lowercase: bool) -> None:
    data = shared_dir / "data"
    tokenizer = WordPieceTokenizer.from_vocab(data / "vocab" / f"bert-base-{kind}-vocab.txt", lowercase)
    lines = (data / "oracles" / f"google_tokenization_{kind}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 612
    texts = [row["text"] for row in rows]
    encoded = tokenizer.encode_batch(texts)
    with_offsets = tokenizer.encode_with_offsets(texts)
    for row, ids, (offset_ids, _) in zip(rows, encoded, with_offsets, strict=True):
        assert ids.tolist() == row["ids"]
        assert offset_ids.tolist() == row["ids"]
        assert [tokenizer.vocabulary[index] for index in ids] == row["tokens"]


def test_special_tokens_come_first(trained: WordPieceTokenizer) -> None:
    assert trained.vocabulary[:5] == SPECIAL_TOKENS
    assert (trained.pad_id, trained.unk_id, trained.cls_id, trained.sep_id, trained.mask_id) == (0, 1, 2, 3, 4)
    assert trained.vocab_size <= 200
    assert {"the", "##s"} <= set(trained.vocabulary)


def test_training_is_the_same_in_every_process(trained: WordPieceTokenizer) -> None:
    program = (
        "import sys, json; from clozelab.corpus.tokenizers import WordPieceTokenizer as W; "
        "print(W.train(json.load(sys.stdin), 200, True).fingerprint)"
    )
    options: dict = {"capture_output": True, "text": True, "check": True, "input": json.dumps(make_texts())}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    runs = [subprocess.run([sys.executable, "-c", program], env=environment, **options) for _ in range(3)]
    found = {run.stdout.strip() for run in runs}
    assert found == {trained.fingerprint}


def test_training_does_not_depend_on_the_order_of_texts(trained: WordPieceTokenizer) -> None:
    shuffled = make_texts()
    random.Random(1).shuffle(shuffled)
    assert WordPieceTokenizer.train(shuffled, 200, True).vocabulary == trained.vocabulary


def test_a_vocabulary_smaller_than_the_alphabet_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size 20 is below"):
        WordPieceTokenizer.train(make_texts(), 20, True)


def test_rare_characters_do_not_fill_the_vocabulary() -> None:
    texts = ["plain english text and no more of it"] * 5000 + ["".join(map(chr, range(0x1200, 0x1240)))[:10]]
    tokenizer = WordPieceTokenizer.train(texts, 200, True)
    assert not any("\u1200" <= char <= "\u1240" for token in tokenizer.vocabulary for char in token)


def test_text_never_becomes_a_special_token(trained: WordPieceTokenizer) -> None:
    ids = trained.encode_batch(["[MASK] [CLS][SEP] [PAD]"])[0]
    assert not set(ids.tolist()) & {trained.pad_id, trained.cls_id, trained.sep_id, trained.mask_id}


def test_cache_offsets_and_batches_agree(trained: WordPieceTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cached route, the library's own route, one text at a time and a cache that is always full: equal ids."""
    rng = random.Random(2)
    alphabet = "abcde ΣσAÉé.,!?-'日 \u200b\u0301\x85\x0c\u2028\u00a0\tİ"
    texts = AWKWARD + ["".join(rng.choices(alphabet, k=40)) for _ in range(300)]
    batch = trained.encode_batch(texts)
    with_offsets = [ids for ids, _ in trained.encode_with_offsets(texts)]
    monkeypatch.setattr("clozelab.corpus.encoding.CACHED_CHARACTERS", 10)
    one_by_one = [trained.encode_batch([text])[0] for text in texts]
    for expected, *others in zip(with_offsets, batch, one_by_one, strict=True):
        for ids in others:
            assert ids.dtype == np.int32
            assert ids.tolist() == expected.tolist()


def test_offsets_point_into_the_text_as_given(trained: WordPieceTokenizer) -> None:
    text = "The  naïve\u200b cat (Σίσυφος)"
    ids, offsets = trained.encode_with_offsets([text])[0]
    assert offsets.shape == (len(ids), 2)
    words = [text[start:end] for start, end in offsets]
    assert words[0] == "The"
    assert "".join(words).replace("\u200b", "") == text.replace(" ", "").replace("\u200b", "")


def test_encode_flat_counts_every_text(trained: WordPieceTokenizer) -> None:
    ids, lengths = trained.encode_flat(["the cat", "", "sat on a mat", "   "])
    assert lengths.tolist()[1::2] == [0, 0]
    assert lengths.sum() == len(ids)
    assert trained.encode_flat([])[1].tolist() == []
    assert trained.encode_batch([]) == []


def test_too_long_words_are_unknown() -> None:
    tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, "x", "##x"], lowercase=True)
    ids, lengths = tokenizer.encode_flat(["x" * 200, "x" * 201])
    assert lengths.tolist() == [200, 1]
    assert ids[-1] == tokenizer.unk_id


def test_final_sigma_as_python_lowers_it() -> None:
    tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, "ο", "##δ", "##ο", "##ς", "##σ", "σ", "."], lowercase=True)
    assert tokenizer.tokenize("ΟΔΟΣ. Σ ΟΣΟ") == ["ο", "##δ", "##ο", "##ς", ".", "σ", "ο", "##σ", "##ο"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[PAD]\n[UNK]\n", r"lacks \[CLS\]"),
        ("\n".join([*SPECIAL_TOKENS, "a", "a"]).encode(), "stands twice"),
        ("\n".join([*SPECIAL_TOKENS, "", "a"]).encode(), "is empty"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_bad_vocabulary_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        WordPieceTokenizer.from_vocab(tmp_path / "vocab.txt", True)


def test_a_missing_vocabulary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent.txt does not exist"):
        WordPieceTokenizer.from_vocab(tmp_path / "absent.txt", True)


@pytest.mark.parametrize("lowercase", [True, False])
def test_files_round_trip(tmp_path: Path, lowercase: bool) -> None:
    tokenizer = WordPieceTokenizer.train(make_texts(), 200, lowercase)
    for name, content in tokenizer.files().items():
        (tmp_path / name).write_bytes(content)
    assert WordPieceTokenizer.from_folder(tmp_path).fingerprint == tokenizer.fingerprint
    (tmp_path / "tokenizer_config.json").unlink()
    assert WordPieceTokenizer.from_folder(tmp_path).lowercase is lowercase
    (tmp_path / "vocab.txt").unlink()
    assert WordPieceTokenizer.from_folder(tmp_path).fingerprint == tokenizer.fingerprint
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="no WordPiece tokenizer"):
        WordPieceTokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize(
    ("rule", "words"),
    [({"strip_accents": False}, "strip_accents=false and lower case true"), ("chinese", "_chinese_chars=false")],
)
def test_rules_that_are_not_berts_are_refused(
    tmp_path: Path, trained: WordPieceTokenizer, name: str, rule: Any, words: str
) -> None:
    """A model that was trained on other ids must not be read with these."""
    for file, content in trained.files().items():
        (tmp_path / file).write_bytes(content)
    assert WordPieceTokenizer.from_folder(tmp_path).fingerprint == trained.fingerprint
    said = json.loads((tmp_path / name).read_text())
    part = said if name == "tokenizer_config.json" else said["normalizer"]
    chinese = "tokenize_chinese_chars" if part is said else "handle_chinese_chars"
    part |= {chinese: False} if rule == "chinese" else rule
    (tmp_path / name).write_text(json.dumps(said))
    with pytest.raises(ValueError, match=f"{re.escape(name)} says .*{words}"):
        WordPieceTokenizer.from_folder(tmp_path)
    part |= {"strip_accents": True, chinese: True}
    (tmp_path / name).write_text(json.dumps(said))
    assert WordPieceTokenizer.from_folder(tmp_path).lowercase  # what BERT does, said outright


def test_transformers_loads_the_files(tmp_path: Path, trained: WordPieceTokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    for name, content in trained.files().items():
        (tmp_path / name).write_bytes(content)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    for text in ["The runner's naïve cat sat.", "日本語 3.5"]:
        ids = trained.encode_batch([text])[0].tolist()
        assert theirs(text)["input_ids"] == [trained.cls_id, *ids, trained.sep_id]
    assert theirs.mask_token_id == trained.mask_id
    assert theirs("the", "cat")["token_type_ids"] == [0, 0, 0, 1, 1]
