"""Held-out text, cloze by side, and pairs of sentences: what is hidden, asked and scored."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.screens import shows

from clozelab.corpus.files import CorpusSource
from clozelab.corpus.prepare import plan_corpus, prepare_corpus
from clozelab.corpus.tokenizer_settings import TokenizerSettings
from clozelab.corpus.tokenizers import ByteBpeTokenizer, WordPieceTokenizer
from clozelab.datamodules.heldout import (
    ClozeBySide,
    HeldOutText,
    SentencePairs,
    piece_lengths,
    windows,
)
from clozelab.datamodules.labelled import TaskInputs
from clozelab.files.digests import file_sha256

TEXT_OF_WORDS = "the red green blue cat dog sat ran on mat hill who where what is was did fast"
WORDS = TEXT_OF_WORDS.split()
TOGETHER = {"max_sentences": 600, "evaluation_tokens": 512, "max_seq_length": 32}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources of 12 documents each, 8 sentences of 9 words."""
    place, rng = tmp_path_factory.mktemp("text"), np.random.default_rng(0)
    for name in ("one", "two"):
        documents = []
        for _ in range(12):
            documents.append([" ".join(rng.choice(WORDS, 9)) for _ in range(8)])
        (place / f"{name}.txt").write_text(
            "\n\n".join("\n".join(lines) for lines in documents) + "\n"
        )
    return place


SOURCES = [{"name": name, "path": f"{name}.txt"} for name in ("one", "two")]


def made(kind: Any, folder: Path, tokenizer: Any, *, is_causal: bool = False, **how: Any) -> Any:
    inputs = TaskInputs("text", folder, folder / "cache", tokenizer, 64)
    said = TOGETHER | {"sources": SOURCES} | how
    data = kind(inputs=inputs, is_causal=is_causal, **said)
    data.setup()
    return data


TEXT = {"mask_parts": 4, "frequency_ranks": [5]}


@pytest.mark.parametrize("is_causal", [False, True])
def test_what_is_asked_for_is_hidden(
    folder: Path, tokenizer: WordPieceTokenizer, is_causal: bool
) -> None:
    questions = made(HeldOutText, folder, tokenizer, is_causal=is_causal, **TEXT).questions
    batch = questions.gather(np.arange(min(5, len(questions))))
    labels = batch["prediction_labels"].tolist()
    assert labels == questions.ids[: len(labels)].tolist()
    is_hidden = batch["input_ids"] == tokenizer.mask_id
    assert is_hidden.sum() == (0 if is_causal else len(labels))
    if not is_causal:  # a masked token's own slot predicts it
        assert is_hidden[batch["prediction_positions"]].all()
        assert len(questions) > 3 * len(np.unique(questions.text))


def test_scores_of_held_out_text(folder: Path, tokenizer: WordPieceTokenizer) -> None:
    data = made(HeldOutText, folder, tokenizer, is_causal=True, **TEXT)
    ids, source = data.questions.ids, data.source[data.questions.text]
    log_probs = np.where(source == 0, -1.0, -3.0)
    scores, records = data.score(log_probs, np.ones(len(ids)))
    assert set(scores) == {"loss", "accuracy", "bits_per_character"} | {
        f"loss/{name}" for name in ("one", "two", "rank_1-5", "rank_6-end")
    }
    assert (scores["loss/one"], scores["loss/two"], scores["accuracy"]) == (1.0, 3.0, 1.0)
    written = " ".join(tokenizer.vocabulary[i] for i in ids)
    assert math.isclose(
        scores["bits_per_character"], -log_probs.sum() / math.log(2) / (len(written) + 1)
    )
    frequent = np.argsort(-np.bincount(ids), kind="stable")[:5]
    assert math.isclose(scores["loss/rank_1-5"], -log_probs[np.isin(ids, frequent)].mean())
    assert len(records) == len(data.source)
    assert math.isclose(sum(one["log_prob"] for one in records), log_probs.sum())


def test_pieces_are_as_long_as_they_are_written(tokenizer: WordPieceTokenizer) -> None:
    lengths = dict(zip(tokenizer.vocabulary, piece_lengths(tokenizer), strict=True))
    assert (lengths["the"], lengths["##x"], lengths["."]) == (4, 1, 1)


LINES = {
    "de": "Die Straße war naß, und Jürgen fröhlich: er aß Äpfel.",
    "ru": "В лесу родилась ёлочка, в лесу она росла.",
    "zh": "今天天气很好，我们去公园散步。",
    "ko": (
        "오늘은 날씨가 아주 좋아서 친구와 함께 공원을 산책했습니다"
    ),  # without case it comes in parts of syllables
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_characters_are_those_of_the_text(line: str) -> None:
    pieces = [WordPieceTokenizer.train([line] * 9, 400, lowercase) for lowercase in (False, True)]
    for words in (ByteBpeTokenizer.train([line] * 9, 400, False, False), *pieces):
        found = piece_lengths(words)[words.encode_batch([line])[0]].sum()
        assert words.kind != "wordpiece" or words.unk_id not in words.encode_batch([line])[0]
        assert abs(found - len(line)) <= 1, words.kind


def test_every_vocabulary_reads_the_same_sentences(
    folder: Path, tokenizer: WordPieceTokenizer
) -> None:
    letters = WordPieceTokenizer.train(
        ["".join(sorted(set("".join(WORDS))))] * 9, 60, lowercase=True
    )
    found = [
        made(HeldOutText, folder, words, max_sentences=40, **TEXT) for words in (tokenizer, letters)
    ]
    counts = []
    for data in found:
        counts.append([(source, len(sentences)) for source, sentences in data.documents])
    assert counts[0] == counts[1] == [(0, 2)] * 10 + [(1, 2)] * 10, (
        "an equal share, and a tenth from one document"
    )
    assert found[0].source_fingerprint == found[1].source_fingerprint


def test_a_share_of_pairs_does_not_depend_on_how_they_are_cut(
    folder: Path, tokenizer: WordPieceTokenizer
) -> None:
    """Only scores over tokens name the tokenizer, and are not compared with another one's."""
    pairs = made(SentencePairs, folder, tokenizer, question="follows", **PAIRED)
    text = made(HeldOutText, folder, tokenizer, **TEXT)
    words = made(ClozeBySide, folder, tokenizer, sides=None, max_words=4, min_tokens=5)
    assert "tokenizer" not in pairs.facts
    assert text.facts["tokenizer"] == words.facts["tokenizer"] == tokenizer.fingerprint


def test_windows_are_whole_sentences_or_parts_of_a_long_one() -> None:
    sentences = [np.arange(4), np.arange(5), np.arange(33), np.arange(2)]
    found = [*windows(sentences, 10)]
    assert [len(one) for one in found] == [9, 10, 10, 10, 5]
    assert np.concatenate(found).tolist() == np.concatenate(sentences).tolist()


@pytest.mark.parametrize("is_causal", [False, True])
def test_no_token_of_a_long_sentence_is_lost(
    folder: Path, tokenizer: WordPieceTokenizer, is_causal: bool
) -> None:
    """A line of a text file is one sentence: of 40 words an encoder of 32 slots reads 30 and 10."""
    (folder / "long.txt").write_text("\n\n".join(" ".join([word] * 40) for word in WORDS[:11]))
    sources = {"sources": [{"name": "long", "path": "long.txt"}]}
    data = made(HeldOutText, folder, tokenizer, is_causal=is_causal, **(TEXT | sources))
    written = np.concatenate([*chain.from_iterable(sentences for _, sentences in data.documents)])
    places = (data.questions.positions + is_causal).tolist()
    asked = sorted(zip(data.questions.text.tolist(), places, strict=True))
    expected = []
    for text, length in enumerate(np.unique(data.questions.text, return_counts=True)[1]):
        expected += [(text, place) for place in range(1, length + 1)]
    assert asked == expected and len(asked) == 11 * 40 == len(written)
    assert sorted(data.questions.ids.tolist()) == sorted(written.tolist())

    # The negative control: an encoder that is long enough reads each line as one text, and the same
    # tokens.
    longer = made(
        HeldOutText,
        folder,
        tokenizer,
        is_causal=is_causal,
        **(TEXT | sources | {"max_seq_length": 64}),
    )
    assert sorted(longer.questions.ids.tolist()) == sorted(written.tolist())
    assert (len(data.source), len(longer.source)) == (22, 11)


def test_sentences_of_a_long_document_that_are_passed_over_are_named(
    folder: Path, tokenizer: WordPieceTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    made(HeldOutText, folder, tokenizer, **TEXT)
    assert not caplog.text
    (folder / "novel.txt").write_text("\n".join(" ".join(WORDS) for _ in range(50)) + "\n")
    sources = {"sources": [{"name": "novel", "path": "novel.txt"}], "max_sentences": 40}
    data = made(HeldOutText, folder, tokenizer, **(TEXT | sources))
    assert data.facts["sentences"] == 4
    said = "novel: 36 sentences fewer than its share are read, since one document gives 4 at most"
    assert f"{said}; 46 more stand in its long documents" in caplog.text


def test_the_encoders_own_corpus_gives_its_held_out_documents(folder: Path, tmp_path: Path) -> None:
    settings = TokenizerSettings("wordpiece", 300, True)
    common = {
        "name": "mine",
        "data_dir": folder,
        "cache_dir": tmp_path,
        "tokenizer": settings,
        "validation_fraction": 0.3,
    }
    plan = plan_corpus(sources=[CorpusSource(**one) for one in SOURCES], **common)
    corpus = prepare_corpus(plan, 0.5)

    def read(words: Any) -> Any:
        inputs = TaskInputs("text", folder, tmp_path, words, 64, corpus=corpus.fingerprint)
        how = TOGETHER | TEXT | {"sources": None, "max_sentences": 10**6}
        return HeldOutText(inputs=inputs, is_causal=True, **how)

    # A damaged corpus of somebody else's, a folder that is deleted, and a twin prepared later.
    others = [tmp_path / "corpora/other-0", tmp_path / "corpora/.mine-0.deleted.tmp"]
    for folder_beside in others:
        folder_beside.mkdir()
    (others[0] / "manifest.json").write_text("")
    manifest = (corpus.folder / "manifest.json").read_text()
    (others[1] / "manifest.json").write_text(manifest)
    first = read(corpus.tokenizer)
    (tmp_path / "corpora/a-twin").mkdir()
    (tmp_path / "corpora/a-twin/manifest.json").write_text(manifest)
    found = read(corpus.tokenizer)
    assert found.content == first.content
    assert len(found.documents) == corpus.validation.num_documents
    assert found.source_names == ["one", "two"]
    sentences = chain.from_iterable(ids for _, ids in found.documents)
    assert sum(map(len, sentences)) == corpus.validation.num_tokens
    assert found.synthetic is None
    checksums = {"corpus/one.txt": file_sha256(folder / "one.txt")}
    (folder / "generated.json").write_text(
        json.dumps({"generator": "toys", "sha256": checksums, "known_loss": []})
    )
    assert read(corpus.tokenizer).synthetic == "toys"
    other = WordPieceTokenizer(corpus.tokenizer.vocabulary[:-1], lowercase=True)
    with pytest.raises(ValueError, match="prepared with another tokenizer; name text of your own"):
        read(other)


CLOZE = {"sides": None, "max_words": 50, "min_tokens": 6}


def test_what_each_side_sees(folder: Path, tokenizer: WordPieceTokenizer) -> None:
    data = made(ClozeBySide, folder, tokenizer, **CLOZE)
    number, mask = len(data.questions) // 3, tokenizer.mask_id
    assert number == 50 and data.sides == ("left", "right", "both")
    sources = {}
    for source, document in data.documents:
        sources |= {ids.tobytes(): source for ids in document}
    given = [0, 0]
    for example in range(number):
        place, word = int(data.questions.positions[example]), data.questions.ids[example]
        left, right, both = (
            data.questions.gather(np.array([example + i * number]))["input_ids"] for i in range(3)
        )
        whole = np.where(np.arange(len(both)) == place, word, both)
        assert 3 <= place < len(whole) - 3
        assert tokenizer.vocabulary[word] in WORDS
        assert mask not in whole
        assert (left[:place] == whole[:place]).all()
        assert (left[place:-1] == mask).all()
        assert left[-1] == whole[-1]
        assert (right[1 : place + 1] == mask).all()
        assert (right[place + 1 :] == whole[place + 1 :]).all()
        assert (both == mask).sum() == 1 and both[place] == mask
        given[sources[whole[1:-1].astype(np.int32).tobytes()]] += 1
    assert given == [25, 25], "each source gives its share"
    scores, records = data.score(
        np.repeat([-1.0, -2.0, -0.5], number), np.repeat([0.0, 0.0, 1.0], number)
    )
    assert len(scores) == 6 and scores["accuracy/both"] == 1.0 and scores["loss/right"] == 2.0
    assert records[0].keys() == {"word", "left", "right", "both"}
    # The most frequent of the words is right as often from every side.
    _, counts = np.unique(data.questions.ids[:number], return_counts=True)
    figures = ["validation/accuracy/left", "validation/accuracy/right", "validation/accuracy/both"]
    assert data.constant_answer_scores() == dict.fromkeys(figures, counts.max() / number)


def test_a_causal_encoder_has_the_left_alone(folder: Path, tokenizer: WordPieceTokenizer) -> None:
    assert made(ClozeBySide, folder, tokenizer, is_causal=True, **CLOZE).sides == ("left",)


PAIRED = {"sentences": 1, "max_train_pairs": 61, "max_validation_pairs": 40}


@pytest.mark.parametrize("key", ["max_train_pairs", "max_validation_pairs"])
def test_no_pairs_are_refused(folder: Path, tokenizer: WordPieceTokenizer, key: str) -> None:
    """A negative number trained on two pairs of each source, without a word."""
    wrong = PAIRED | {key: -4}
    with pytest.raises(ValueError, match=f"measure.data.{key}=-4: give a whole number above 0"):
        made(SentencePairs, folder, tokenizer, question="next", **wrong)


@pytest.mark.parametrize(
    ("question", "sentences"),
    [("next", 1), ("document", 1), ("order", 1), ("follows", 1), ("follows", 3), ("next", 2)],
)
def test_pairs_are_what_their_labels_say(
    folder: Path, tokenizer: WordPieceTokenizer, question: str, sentences: int
) -> None:
    alone = made(SentencePairs, folder, tokenizer, question=question, **PAIRED)
    data = made(
        SentencePairs, folder, tokenizer, question=question, **(PAIRED | {"sentences": sentences})
    )
    for (_, texts), (_, whole) in zip(data.documents, alone.documents, strict=True):
        assert len(texts) == len(whole) // sentences, (
            "a shorter text at the end would give away that it follows"
        )
        assert (
            np.concatenate(texts).tobytes()
            == np.concatenate(whole[: len(texts) * sentences]).tobytes()
        )
    half = (data.max_seq_length - 2 - tokenizer.pair_separators) // 2
    places = {}
    for d, (_, document) in enumerate(data.documents):
        for s, ids in enumerate(document):
            places[ids[:half].tobytes()] = (d, s)
    seen = {}
    for name in ("train", "validation"):
        split = getattr(data, name)
        assert split.labels.mean() == 0.5
        assert 0 < len(split.labels) <= {"train": 60, "validation": 40}[name]
        given = [0, 0]
        for number, is_right in enumerate(split.labels):
            ids = split.sequences.input_ids[
                split.sequences.offsets[number] : split.sequences.offsets[number + 1]
            ]
            first, second = np.split(ids, np.flatnonzero(ids == tokenizer.sep_id))[:2]
            a, b = places[first[1:].tobytes()], places[second[1:].tobytes()]
            given[data.documents[a[0]][0]] += 1
            seen.setdefault(name, set()).update(
                {a[0]} | ({b[0]} if question in ("next", "order") else set())
            )
            apart = b[1] - a[1] if a[0] == b[0] else None
            wanted = {
                "next": apart == 1 if is_right else apart is not None and abs(apart) > 1,
                "document": apart is not None if is_right else apart is None,
                "follows": apart == (1 if is_right else None),
                "order": apart == (1 if is_right else -1),
            }
            assert wanted[question], (a, b, is_right)
        assert max(given) <= (30 if name == "train" else 20), "each source gives its share"
        assert min(given) > 0 or name == "validation"
    assert not seen["train"] & seen["validation"]


def test_what_pairs_and_cloze_leave_out_is_said(
    folder: Path, tokenizer: WordPieceTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    """Two texts of nine words fit in 32 slots; of 36 words each text loses some."""
    whole = made(SentencePairs, folder, tokenizer, question="follows", **PAIRED)
    made(ClozeBySide, folder, tokenizer, **CLOZE)
    assert whole.facts["cut_pairs"] == whole.facts["cut_tokens"] == 0
    # No document of the first source falls into the third that is asked.
    assert [one.message for one in caplog.records] == [
        "one gives the validation split no pair: too few, or too short, documents"
    ]
    data = made(SentencePairs, folder, tokenizer, question="follows", **(PAIRED | {"sentences": 4}))
    half = (32 - 2 - tokenizer.pair_separators) // 2
    count = data.facts["pairs"]
    assert data.facts["cut_pairs"] == count and data.facts["cut_tokens"] == count * 2 * (36 - half)
    assert f"{count} of {count} pairs are cut" in caplog.text
    (folder / "lines.txt").write_text(" ".join(WORDS[:12]) + "\n" + " ".join(WORDS * 2) + "\n")
    made(
        ClozeBySide,
        folder,
        tokenizer,
        **(CLOZE | {"sources": [{"name": "lines", "path": "lines.txt"}]}),
    )
    shows(caplog.text, "46 of 46 pairs are cut, by 2,024 tokens in all: of each text the first")


NAMED_TWICE = [SOURCES[0], SOURCES[1] | {"name": "one"}]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sources": [{"name": "a", "path": "gone.txt"}]}, "source a: no text files at"),
        ({"sources": NAMED_TWICE}, "two sources have one name"),
        ({"sources": "a.txt"}, r"say each file's name, too: \[\{name: mine, path: mine.txt\}\]"),
        ({"sources": ["a.txt"]}, "measure.data.sources: say each file's name, too"),
        ({"sources": [{"path": "a.txt"}]}, "measure.data.sources: say each file's name, too"),
        ({"sources": [SOURCES[0] | {"weight": 1}]}, "measure.data.sources: key=weight: choose one"),
        ({"sources": [{"name": "a", "path": 3}]}, "measure.data.sources: path is 3: write a text"),
        ({"max_sentences": 1}, "max_sentences=1: 2 or more, one of each source"),
        ({"mask_parts": 0}, "mask_parts=0: a text is read once or more"),
        ({"max_seq_length": 2}, "max_seq_length=2: a text has 3 tokens or more"),
    ],
)
def test_settings_of_held_out_text_that_are_refused(
    folder: Path, tokenizer: WordPieceTokenizer, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        made(HeldOutText, folder, tokenizer, **TEXT | changes)


def test_pairs_of_no_sentence_or_of_unknown_words_are_refused(
    folder: Path, tokenizer: WordPieceTokenizer
) -> None:
    """Else the answers are told by lengths alone, and filed as what an encoder knows."""
    asked = PAIRED | {"question": "next"}
    with pytest.raises(ValueError, match=r"measure\.data\.sentences=0: a text has at least one"):
        made(SentencePairs, folder, tokenizer, **asked | {"sentences": 0})
    sentences = [" ".join(["λόγος"] * (3 + i % 5)) for i in range(96)]
    documents = ["\n".join(sentences[start : start + 8]) for start in range(0, 96, 8)]
    (folder / "greek.txt").write_text("\n\n".join(documents))
    greek = [{"name": "greek", "path": "greek.txt"}]
    with pytest.raises(ValueError, match=r"of the tokens of measure text .*\[UNK\]"):
        made(SentencePairs, folder, tokenizer, **asked | {"sources": greek})


@pytest.mark.parametrize("measure", ["pairs_document", "pairs_next"])
def test_pairs_of_sentences_are_probed_by_their_two_answers(
    folder: Path,
    tmp_path: Path,
    save_encoder: Callable[..., Path],
    evaluate: Callable[..., Path],
    measure: str,
) -> None:
    """They have no task, and so no target that names the classes."""
    save_encoder(tmp_path / "encoder")
    files = [f"{{name: {name}, path: {folder}/{name}.txt}}" for name in ("one", "two")]
    settings = ["max_train_pairs=61", "max_validation_pairs=40", "sentences=1", "max_seq_length=32"]
    run = evaluate(
        f"measure={measure}",
        f"measure.data.sources=[{', '.join(files)}]",
        *(f"measure.data.{setting}" for setting in settings),
    )
    scores = json.loads((run / "scores.json").read_text())["scores"]
    states = ["layer_0", "layer_1", "layer_2", "pooled"]
    assert {f"validation/accuracy/{state}" for state in states} <= scores.keys(), scores
    answers = [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]
    assert {answer["label"] for answer in answers} == {"no", "yes"}, answers[0]
