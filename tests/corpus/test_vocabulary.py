"""More entries, and another tokenizer: which tokens change, and which old pieces an entry has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.corpus.test_folder_tokenizers import (
    TRAINING,
    added,
    albert,
    bert,
    roberta,
    xlm_roberta,
)

from clozelab.corpus.folder_tokenizers import read_tokenizer
from clozelab.corpus.steps.step import Document
from clozelab.corpus.tokenizers import ByteBpeTokenizer, MpnetTokenizer, Tokenizer
from clozelab.corpus.unigram import UnigramTokenizer
from clozelab.corpus.vocabulary import (
    count_words,
    entries_of,
    old_pieces,
    pieces_per_word,
    useful_words,
    with_entries,
)

transformers = pytest.importorskip("transformers")

NEW = ["carcinoma", "metastasis", "cytokine"]
LINES = [
    "the carcinoma had no metastasis, said the doctor.",
    "Carcinoma (cytokine) and cytokine-like things; a doctor",
    "cytokine",
    *TRAINING[:400],
]


def write(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, content in tokenizer.files().items():
        (folder / name).write_bytes(content)


KINDS: dict[str, Callable[[Path], None]] = {
    "BERT's": partial(bert, do_lower_case=True),
    "BERT's cased, with added tokens": partial(
        bert, tokens=added("[E1]", "covid"), do_lower_case=False
    ),
    "RoBERTa's": roberta,
    "RoBERTa's, a space before each text": partial(roberta, prefix=True),
    "ALBERT's": albert,
    "XLM-R's, with added tokens": partial(xlm_roberta, tokens=added("[E1]", "covid")),
    "MPNet's, learnt here": lambda folder: write(MpnetTokenizer.train(TRAINING, 300, True), folder),
    "byte-level BPE, learnt here": lambda folder: write(
        ByteBpeTokenizer.train(TRAINING, 400, True, True), folder
    ),
    "Unigram, learnt here": lambda folder: write(
        UnigramTokenizer.train(TRAINING, 200, True), folder
    ),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def old(kind: str, tmp_path: Path) -> Tokenizer:
    KINDS[kind](tmp_path / "old")
    return read_tokenizer(tmp_path / "old")


@EVERY_KIND
def test_new_words_are_one_token_and_all_other_words_keep_theirs(
    old: Tokenizer, tmp_path: Path
) -> None:
    entries = entries_of(old, NEW)
    new = with_entries(old, entries)
    assert new.vocabulary == (*old.vocabulary, *entries)
    assert new.special_tokens == old.special_tokens
    for word in NEW:
        assert len(old.encode_words([word])[0]) > 1
        assert new.encode_batch([f"a {word} a"])[0].tolist() == [
            *old.encode_batch(["a"])[0],
            new.vocabulary.index(old.split(word)[0]),
            *old.encode_words(["a"])[0],
        ]
    # Every other word of real text, also one that a new word ends.
    words = {*" ".join(TRAINING).split(), "precytokine", "carcin"}
    words = sorted(word for word in words if not word.lower().startswith(tuple(NEW)))
    assert len(words) > 50
    for before, after in zip(old.encode_batch(words), new.encode_batch(words), strict=True):
        assert before.tolist() == after.tolist()
    # A word that begins with a new one: BPE cuts it as before, WordPiece behind the new one.
    before, after = (tokenizer.encode_words(["cytokines"])[0] for tokenizer in (old, new))
    if old.kind == "byte_bpe":
        assert before.tolist() == after.tolist()
    if old.kind == "wordpiece":
        assert [new.vocabulary[index] for index in after] == ["cytokine", "##s"]


def test_each_new_word_of_unigram_is_taken() -> None:
    """Its score is that of the pieces that the word had, which begin it."""
    old = UnigramTokenizer.train(TRAINING, 200, True)
    words = useful_words(old, Counter(10 * " ".join(TRAINING).split()), 100)
    assert len(words) > 5 and "marker," in words
    new = with_entries(old, entries_of(old, words))
    assert new.encode_words(words)[1].tolist() == [1] * len(words)


@EVERY_KIND
def test_transformers_gives_the_same_ids(old: Tokenizer, tmp_path: Path) -> None:
    new = with_entries(old, entries_of(old, NEW))
    write(new, tmp_path / "new")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    ours = read_tokenizer(tmp_path / "new")
    assert ours.fingerprint == new.fingerprint
    assert type(ours) is type(new)
    for line, ids in zip(LINES, ours.encode_batch(LINES), strict=True):
        assert theirs(line, add_special_tokens=False)["input_ids"] == ids.tolist(), line


def test_the_words_that_save_most_tokens_come_first(tmp_path: Path) -> None:
    bert(tmp_path / "old", do_lower_case=True)
    old = read_tokenizer(tmp_path / "old")
    text = ["zqzq"] * 5 + ["qzqzqzqz"] * 3 + ["Zqzq qz12qz the the the", "vkvkvkvk once"]
    counts = count_words([Document(0, 0, 0, [line]) for line in text])
    assert counts == {"zqzq": 5, "qzqzqzqz": 3, "Zqzq": 1, "qz": 2, "the": 3} | Counter(
        ["vkvkvkvk", "once"]
    )
    pieces = {word: len(old.encode_words([word])[0]) for word in counts}
    saved = {"zqzq": 6 * (pieces["zqzq"] - 1), "qzqzqzqz": 3 * (pieces["qzqzqzqz"] - 1)}
    expected = sorted(saved, key=saved.__getitem__, reverse=True)
    assert useful_words(old, counts, 2) == expected
    assert "vkvkvkvk" not in useful_words(old, counts, 99), "it stands there once"
    new = with_entries(old, entries_of(old, expected))
    total = sum(counts.values())
    expected_before = sum(pieces[word] * count for word, count in counts.items()) / total
    assert pieces_per_word(old, counts) == pytest.approx(expected_before)
    expected_after = expected_before - sum(saved.values()) / total
    assert pieces_per_word(new, counts) == pytest.approx(expected_after)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("हिन्दी में किताबें।", ["हिन्दी", "में", "किताबें"]),
        (
            "cafe\u0301s d'e\u0301te\u0301, naïve_x2",
            ["cafe\u0301s", "d", "e\u0301te\u0301", "naïve", "x"],
        ),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
    ],
)
def test_a_mark_is_a_part_of_its_word(line: str, words: list[str]) -> None:
    assert count_words([Document(0, 0, 0, [line])]) == Counter(words)


def test_words_with_marks_become_entries(tmp_path: Path) -> None:
    bert(tmp_path / "old", do_lower_case=False)
    old = read_tokenizer(tmp_path / "old")
    # The tokenizer has them as one piece of unknown letters; each is worth a token.
    counts = count_words([Document(0, 0, 0, ["हिन्दी किताबें हिन्दी किताबें हिन्दी"])])
    words = useful_words(old, counts, 9)
    assert words == ["हिन्दी", "किताबें"]
    new = with_entries(old, entries_of(old, words))
    assert new.encode_words(words)[1].tolist() == [1, 1]
    assert new.unk_id not in new.encode_words(words)[0]


@EVERY_KIND
def test_pieces_of_a_longer_vocabulary(old: Tokenizer) -> None:
    new = with_entries(old, entries_of(old, NEW))
    pieces = old_pieces(new, old)
    assert pieces[: old.vocab_size] == [[index] for index in range(old.vocab_size)]
    by_entry = dict(zip(new.vocabulary, pieces, strict=True))
    for word in NEW:
        assert by_entry[old.split(word)[0]] == old.encode_words([word])[0].tolist()
    if old.kind == "byte_bpe" and old.encode_batch(["x"])[0][0] not in old.encode_words(["x"])[0]:
        assert by_entry["cytokine"] == old.encode_batch(["cytokine"])[0].tolist()


@pytest.mark.parametrize("kind", ["BERT's", "RoBERTa's", "ALBERT's"])
@pytest.mark.parametrize("other", ["BERT's", "RoBERTa's", "ALBERT's"])
def test_pieces_of_another_tokenizer(old: Tokenizer, other: str, kind: str, tmp_path: Path) -> None:
    new = old
    if other != kind:
        KINDS[other](tmp_path / "other")
        new = read_tokenizer(tmp_path / "other")
    pieces = old_pieces(new, old)
    by_entry = dict(zip(new.vocabulary, pieces, strict=True))
    for name, old_name in zip(new.special_tokens, old.special_tokens, strict=True):
        assert by_entry[name] == [old.vocabulary.index(old_name)]
    specials = {old.vocabulary.index(name) for name in old.special_tokens}
    ordinary = [entry for entry in new.vocabulary if entry not in new.special_tokens]
    assert not any(specials & set(by_entry[entry]) for entry in ordinary)
    if kind == other:
        assert pieces == [[index] for index in range(new.vocab_size)]
        return
    # A whole word is the word's tokens, wherever the mark of a word stands.
    words = [word for word in ("the", "and", "said") if new.split(word)[0] in by_entry]
    assert words
    for word in words:
        expected = old.encode_words([word])[0].tolist()
        assert by_entry[new.split(word)[0]] == expected
    # "ing" inside of a word is no word.
    inner = {"wordpiece": "##s", "byte_bpe": "s", "metaspace": "s"}
    assert by_entry[inner[new.kind]] == [old.vocabulary.index(inner[old.kind])]
    comma = {"wordpiece": ",", "byte_bpe": ",", "metaspace": ","}
    assert by_entry[comma[new.kind]] == [old.vocabulary.index(comma[old.kind])]


def test_what_cannot_be_an_entry_is_refused(tmp_path: Path) -> None:
    bert(tmp_path / "old", do_lower_case=True)
    old = read_tokenizer(tmp_path / "old")
    with pytest.raises(ValueError, match=r"'covid-19' can be no entry: .*'covid', '-', '19'"):
        entries_of(old, ["covid-19"])
    assert entries_of(old, ["the", "The", "Carcinoma", "carcinoma"]) == ["carcinoma"]
