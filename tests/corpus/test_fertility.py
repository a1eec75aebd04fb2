"""Tokens a word and unknown words, against a loop over words that are encoded one by one."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
from tests.corpus.test_prepare import data as data
from tests.corpus.test_prepare import opened
from tests.corpus.test_tokenizer_kinds import KINDS, TRAINING, learnt
from tests.corpus.test_tokenizers import AWKWARD, ODD_TEXTS

from clozelab.corpus.encoding import Tokenizer
from clozelab.corpus.fertility import count_words, total_words
from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.corpus.utf8_texts import Utf8Texts
from clozelab.text.words import written_words


def expected(tokenizer: Tokenizer, sentences: list[str]) -> list[int]:
    words = tokens = unknown = 0
    for sentence in sentences:
        tokens += len(tokenizer.encode_batch([sentence])[0])
        for text in re.findall("[^ \t\n\r]+", sentence):
            parts = written_words().findall(text)
            assert "".join(parts) == text
            words += len(parts)
            if is_unknown(tokenizer, text):
                alone = sum(is_unknown(tokenizer, part) for part in parts)
                unknown += alone if alone else len(parts)
    return [words, tokens, unknown]


def is_unknown(tokenizer: Tokenizer, text: str) -> bool:
    return tokenizer.unk_id in tokenizer.encode_words([text])[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop: it's 3.5 e\u0301", "Don't stop: it's 3.5 e\u0301"),
        ("我们在2020年看「GPT」。", "我 们 在 2020 年 看「 GPT」。"),
        ("「你好」 — 好", "「你 好」 — 好"),
        ("สวัสดีครับ", "สวั สดี ครั บ"),
        ("नमस्ते दुनिया", "नमस्ते दुनिया"),
    ],
)
def test_a_script_without_blanks_has_words(text: str, words: str) -> None:
    """Clauses of Chinese were words of ten tokens, so its fertility said nothing of a tokenizer."""
    assert written_words().findall(text) == words.split()
    tokenizer = learnt("characters")
    ids, lengths = tokenizer.encode_flat([text])
    (counts,) = count_words(tokenizer, Utf8Texts.of([text]), ids, lengths, np.zeros(1, dtype=int))
    assert counts[1] == len(words.split())


@pytest.mark.parametrize("kind", [*KINDS, "wordpiece"])
def test_counts_are_those_of_a_plain_loop(kind: str) -> None:
    if kind == "wordpiece":
        tokenizer: Tokenizer = WordPieceTokenizer.train(TRAINING, 200, True)
    else:
        tokenizer = learnt(kind)
    sentences = [*ODD_TEXTS, *AWKWARD, "snow \u2603 man\u2603 the", "", "\t the  cat \n"]
    sentences += TRAINING[:20]
    random.Random(1).shuffle(sentences)
    sources = np.arange(len(sentences)) % 3
    ids, lengths = tokenizer.encode_flat(sentences)
    counts = count_words(tokenizer, Utf8Texts.of(sentences), ids, lengths, sources)
    for source in range(3):
        of_source = [
            text for text, number in zip(sentences, sources, strict=True) if number == source
        ]
        assert counts[source] == [source, *expected(tokenizer, of_source)]
    total_unknown = sum(figures[3] for figures in counts)
    assert (total_unknown > 0) == (kind != "bytes")


def test_shards_are_added_up_by_source() -> None:
    shards = [[[0, 5, 9, 1], [1, 2, 2, 0]], [], [[1, 3, 4, 2]]]
    assert total_words(shards, ["wiki", "books"]) == {
        "wiki": {"words": 5, "tokens": 9, "unknown_words": 1},
        "books": {"words": 5, "tokens": 6, "unknown_words": 2},
    }


def test_a_manifest_has_the_words_of_each_source(tmp_path: Path, data: Path) -> None:
    """Each number is that of the text itself."""
    corpus = opened(tmp_path, kind="whitespace", vocab_size=40, lowercase=False)
    vocabulary = set(corpus.tokenizer.vocabulary)
    for source in ("one", "two"):
        words = (data / f"{source}.txt").read_text().split()
        unknown = [word for word in words if word not in vocabulary]
        assert 0 < len(unknown) < len(words)
        assert corpus.manifest["words"][source] == {
            "words": len(words),
            "tokens": len(words),
            "unknown_words": len(unknown),
        }
