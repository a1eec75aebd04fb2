"""Rows of tagged sentences: first sub-tokens, document context, and that every word is scored exactly once."""

from __future__ import annotations

import numpy as np
import pytest

from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.datamodules.examples import TokenRows
from clozelab.datamodules.tagged import TaggedRows, TaggedSentences, build_rows


def make(
    tokenizer: WordPieceTokenizer, texts: list[list[str]], length: int, context: bool, chosen: list[int] | None = None
) -> tuple[TaggedRows, list[list[str]], list[list[str]], dict[str, int]]:
    """Documents of sentences of words -> rows, each row's tokens, each row's scored tokens, counts."""
    words = [text.split(" ") for document in texts for text in document]
    documents = [number for number, document in enumerate(texts) for _ in document]
    sentences = TaggedSentences(words, None, documents, list(range(len(words))), True)
    chosen = list(range(len(words))) if chosen is None else chosen
    arrays, counts = build_rows(sentences, chosen, tokenizer, max_seq_length=length, document_context=context)
    token_rows = TokenRows(arrays["input_ids"], arrays["offsets"], np.diff(arrays["offsets"]).astype(np.int32))
    labels = np.arange(len(arrays["word_positions"]))
    rows = TaggedRows(token_rows, arrays["word_offsets"], arrays["word_positions"], labels)
    names = np.array(tokenizer.vocabulary)[arrays["input_ids"]]
    tokens = [names[a:b].tolist() for a, b in zip(arrays["offsets"], arrays["offsets"][1:], strict=False)]
    places = [rows.word_positions[a:b] for a, b in zip(rows.word_offsets, rows.word_offsets[1:], strict=False)]
    scored = [[row[p] for p in place] for row, place in zip(tokens, places, strict=True)]
    return rows, tokens, scored, counts


STORY = [["the cat sat", "a dog ran fast", "who did"], ["what is", "the red hill"]]


def test_without_context_a_row_is_a_sentence(tokenizer: WordPieceTokenizer) -> None:
    _, tokens, scored, counts = make(tokenizer, STORY, 20, False)
    assert tokens[1] == ["[CLS]", "a", "dog", "ran", "fast", "[SEP]"]
    assert scored == [text.split() for document in STORY for text in document]
    assert counts["context_tokens"] == 0


def test_context_fills_the_window_inside_the_document(tokenizer: WordPieceTokenizer) -> None:
    _, tokens, scored, _ = make(tokenizer, STORY, 20, True)
    assert (
        tokens[0]
        == tokens[1]
        == tokens[2]
        == ["[CLS]", "the", "cat", "sat", "a", "dog", "ran", "fast", "who", "did", "[SEP]"]
    )
    assert tokens[3] == ["[CLS]", "what", "is", "the", "red", "hill", "[SEP]"]
    assert scored == [text.split() for document in STORY for text in document]


def test_a_small_window_takes_from_both_sides_and_whole_words(tokenizer: WordPieceTokenizer) -> None:
    _, tokens, scored, _ = make(tokenizer, STORY, 9, True)  # 7 words
    assert tokens[0] == ["[CLS]", "the", "cat", "sat", "a", "dog", "ran", "fast", "[SEP]"]  # nothing before: all behind
    assert tokens[1] == ["[CLS]", "sat", "a", "dog", "ran", "fast", "who", "did", "[SEP]"]
    assert tokens[2] == ["[CLS]", "sat", "a", "dog", "ran", "fast", "who", "did", "[SEP]"]
    assert scored[1] == ["a", "dog", "ran", "fast"]
    _, tokens, _, _ = make(tokenizer, [["the zzz sat", "a dog"]], 7, True)
    assert tokens[1] == ["[CLS]", "sat", "a", "dog", "[SEP]"]  # z ##z ##z does not fit and is not cut


@pytest.mark.parametrize("length", [6, 9, 12, 120])
@pytest.mark.parametrize("context", [True, False])
def test_every_word_is_scored_once(tokenizer: WordPieceTokenizer, length: int, context: bool) -> None:
    rng = np.random.default_rng(length)
    words = np.array(["the", "cat", "zzz", "aaaaaaa", "sat"])
    texts = [[" ".join(rng.choice(words, rng.integers(1, 15))) for _ in range(4)] for _ in range(3)]
    rows, tokens, scored, counts = make(tokenizer, texts, length, context)
    expected = [tokenizer.tokenize(w)[0] for document in texts for text in document for w in text.split()]
    assert [token for row in scored for token in row] == expected
    assert rows.rows.lengths.max() <= length
    assert (counts["split_sentences"] > 0) == (length < 120)
    assert all(row[0] == "[CLS]" and row[-1] == "[SEP]" and "[SEP]" not in row[1:-1] for row in tokens)


def test_words_without_tokens_and_endless_words(tokenizer: WordPieceTokenizer) -> None:
    _, tokens, scored, counts = make(tokenizer, [["the \u200b cat", "zzzzzzzzz a"]], 6, False)
    assert scored[0] == ["the", "[UNK]", "cat"]
    assert tokens[1] == ["[CLS]", "z", "##z", "##z", "##z", "[SEP]"]
    assert scored[1:] == [["z"], ["a"]]
    assert (counts["words_without_tokens"], counts["cut_words"], counts["split_sentences"]) == (1, 1, 1)


def test_a_part_of_the_sentences_keeps_its_context(tokenizer: WordPieceTokenizer) -> None:
    _, tokens, scored, _ = make(tokenizer, STORY, 20, True, chosen=[1, 4])
    assert scored == [["a", "dog", "ran", "fast"], ["the", "red", "hill"]]
    assert tokens[0] == ["[CLS]", "the", "cat", "sat", "a", "dog", "ran", "fast", "who", "did", "[SEP]"]


def test_gather_finds_the_words_in_the_stream(tokenizer: WordPieceTokenizer) -> None:
    rows, _, scored, _ = make(tokenizer, STORY, 9, True)
    batch = rows.gather(np.array([3, 1]))
    found = np.array(tokenizer.vocabulary)[batch["input_ids"][batch["word_rows"]]].tolist()
    assert found == scored[3] + scored[1]
    assert batch["word_index"].tolist() == batch["labels"].tolist() == [9, 10, 3, 4, 5, 6]
    assert rows.num_targets.tolist() == [3, 4, 2, 2, 3]
    assert batch["lengths"].tolist() == [7, 9]
