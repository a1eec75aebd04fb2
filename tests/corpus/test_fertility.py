"""Tokens a word and unknown words, against a loop over words that are encoded one by one."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from tests.corpus.test_prepare import data as data
from tests.corpus.test_prepare import opened
from tests.corpus.test_tokenizer_kinds import KINDS, TRAINING, learnt
from tests.corpus.test_tokenizers import AWKWARD, ODD_TEXTS

from clozelab.corpus.encoding import Tokenizer
from clozelab.corpus.fertility import WORD, count_words, total_words
from clozelab.corpus.tokenizers import WordPieceTokenizer


def expected(tokenizer: Tokenizer, sentences: list[str]) -> list[int]:
    words = tokens = unknown = 0
    for sentence in sentences:
        tokens += len(tokenizer.encode_batch([sentence])[0])
        for word in WORD.findall(sentence):
            words += 1
            unknown += int(tokenizer.unk_id in tokenizer.encode_words([word])[0])
    return [words, tokens, unknown]


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
    counts = count_words(tokenizer, sentences, ids, lengths, sources)
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
