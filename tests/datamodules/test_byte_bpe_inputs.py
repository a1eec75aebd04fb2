"""Model inputs made with byte-level BPE are those of transformers' RobertaTokenizerFast from the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clozelab.corpus.tokenizers import ByteBpeTokenizer
from clozelab.datamodules.examples import TokenRows, encode_examples
from clozelab.datamodules.squad_reading import SquadExamples, SquadQuestion, WindowSettings, build_features
from clozelab.datamodules.tagged import TaggedSentences, build_rows

transformers = pytest.importorskip("transformers")

FIRST = ["The cat sat on the  mat.", "Naïve café \U0001f600", "", "a b c d e f g h i j k l m"]
SECOND = ["A dog?", "It's a dog's life, isn't it, all of it and more?", "x", "one two three four five"]
PASSAGE = "The café's cat \U0001f600  sat on 3.5 mats. A dog, naïve as it was, ran. The end of it all came soon after."


@pytest.fixture(params=[False, True], ids=["as released", "prefixed"])
def ours(request: pytest.FixtureRequest) -> ByteBpeTokenizer:
    return ByteBpeTokenizer.train([*FIRST, *SECOND, PASSAGE] * 4, 380, False, request.param)


@pytest.fixture
def theirs(tmp_path: Path, ours: ByteBpeTokenizer) -> Any:
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes(ours.files()[name])
    return transformers.RobertaTokenizerFast.from_pretrained(str(tmp_path), add_prefix_space=ours.add_prefix_space)


def rows_of(rows: TokenRows) -> list[list[int]]:
    return [part.tolist() for part in np.split(rows.input_ids, rows.offsets[1:-1])]


@pytest.mark.parametrize("length", [12, 64])
def test_pairs(ours: ByteBpeTokenizer, theirs: Any, length: int) -> None:
    """The longer text is cut first; token types are all 0."""
    rows = encode_examples(ours, FIRST, SECOND, max_seq_length=length)
    for found, *pair in zip(rows_of(rows), FIRST, SECOND, strict=True):
        assert found == theirs(*pair, truncation="longest_first", max_length=length)["input_ids"]
    assert not rows.gather(np.arange(len(rows)))["token_type_ids"].any()


def test_single_texts(ours: ByteBpeTokenizer, theirs: Any) -> None:
    rows = encode_examples(ours, FIRST, None, max_seq_length=16)
    assert rows_of(rows) == [theirs(text, truncation=True, max_length=16)["input_ids"] for text in FIRST]


@pytest.mark.parametrize("answer", ["café", "\U0001f600", "cat \U0001f600  sat", "3.5 mats", "naïve as it was"])
def test_windows_of_a_passage_and_its_answer(ours: ByteBpeTokenizer, theirs: Any, answer: str) -> None:
    query, settings = "Who sat?", WindowSettings(max_seq_length=40, doc_stride=9, max_query_length=20)
    start = PASSAGE.index(answer)
    question = SquadQuestion("q", query, 0, (answer,), start)
    features, _ = build_features(SquadExamples([PASSAGE], [question]), ours, settings)
    room = 40 - len(ours.encode_batch([query])[0]) - 4
    expected = theirs(
        query, PASSAGE, truncation="only_second", max_length=40, stride=room - 9,
        return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    assert rows_of(features.rows) == expected["input_ids"]
    assert not features.rows.gather(np.arange(len(features.rows)))["token_type_ids"].any()
    spans, shift = features.passage_spans, features.window_starts - features.passage_starts
    seen = 0
    for window, pairs in enumerate(expected["offset_mapping"]):
        first, last = features.start_positions[window], features.end_positions[window]
        begin, end = features.passage_starts[window], len(pairs) - 1
        here = [list(pair) for pair in pairs[begin:end]]
        assert spans[begin + shift[window] : end + shift[window]].tolist() == here
        if first:
            seen += 1
            assert PASSAGE[pairs[first][0] : pairs[last][1]] == answer
    assert seen


def test_tags_stand_on_the_first_piece_of_a_word(ours: ByteBpeTokenizer, theirs: Any) -> None:
    words = [["The", "naïve", "dog", "'s", "café", ",", "\U0001f600"], ["It", "ran"]]
    sentences = TaggedSentences(words, [["O"] * len(line) for line in words], [0, 1], [1, 9])
    arrays, _ = build_rows(sentences, [0, 1], ours, max_seq_length=64, document_context=False)
    rows = [part.tolist() for part in np.split(arrays["input_ids"], arrays["offsets"][1:-1])]
    places = [part.tolist() for part in np.split(arrays["word_positions"], arrays["word_offsets"][1:-1])]
    assert [ours.decode(row[1:-1]) for row in rows] == ["".join(f" {word}" for word in line) for line in words]
    if ours.add_prefix_space:  # transformers refuses words otherwise
        for line, row, place in zip(words, rows, places, strict=True):
            expected = theirs(line, is_split_into_words=True)
            assert row == expected["input_ids"]
            assert place == [expected.word_ids().index(word) for word in range(len(line))]
