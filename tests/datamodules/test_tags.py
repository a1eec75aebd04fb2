"""Tagged words: column files and conllu, rows with context, features of a frozen encoder."""

from __future__ import annotations

import string
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zstandard
from tests.parts import WORDS, feature_data, ready, tag_data

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.datamodules.finetuning import FinetuningDataModule, TrainingBatches
from clozelab.datamodules.labelled import TaskInputs, TrainingPlan
from clozelab.models.encoder import Encoder
from clozelab.models.heads import FEATURES, feature_layers
from clozelab.models.layout import Layout
from clozelab.readers.conll import ColumnFormat, TaggedSentences, predicted_lines, read_conll
from clozelab.tasks.labels import ANY, CLASSES
from clozelab.tasks.sequences import TokenSequences, token_budget_batches
from clozelab.tasks.unit import EncoderSource
from clozelab.tasks.words import TaggedSequences, build_sequences, read_tags

Make = Callable[..., FinetuningDataModule]

CONLL = ColumnFormat("columns", 0, -1)
UPOS = ColumnFormat("conllu", 1, 3)
NEWS = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter NNP B-NP B-PER

-DOCSTART- -X- O O

# NN B-NP O
1 CD I-NP O
"""
TREE = """# newdoc id = a
# text = can't go
1-2\tcan't\t_\t_\t_\t_\t_\t_\t_\t_
1\tca\tcan\tAUX\tMD\t_\t0\troot\t_\t_
2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_
2.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_

# newdoc
# sent_id = 2
1\t10 000\t10000\tNUM\tCD\t_\t0\troot\t_\t_

1\t#\t#\tSYM\t#\t_\t0\troot\t_\t_
"""


def read(
    tmp_path: Path, text: str | bytes, layout: ColumnFormat = CONLL, tags: bool = True
) -> TaggedSentences:
    path = tmp_path / "x.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_tags(path, layout) if tags else read_conll(path, layout)


@pytest.mark.parametrize("change", ["plain", "crlf_bom", "no_end", "tabs"])
def test_conll_2003(tmp_path: Path, change: str) -> None:
    text = {
        "plain": NEWS,
        "crlf_bom": "\ufeff" + NEWS.replace("\n", "\r\n"),
        "no_end": NEWS.rstrip("\n"),
        # WNUT-17 ends sentences with a lone tab
        "tabs": NEWS.replace(" ", "\t").replace("\n\n", "\n\t\n"),
    }[change]
    sentences = read(tmp_path, text)
    assert sentences.words == [["EU", "rejects"], ["Peter"], ["#", "1"]]
    assert sentences.tags == [["B-ORG", "O"], ["B-PER"], ["O", "O"]]
    assert sentences.lines == [3, 6, 10]
    assert sentences.has_documents
    assert sentences.documents[0] == sentences.documents[1] != sentences.documents[2]


def test_conllu(tmp_path: Path) -> None:
    sentences = read(tmp_path, TREE, UPOS)
    assert sentences.words == [["ca", "n't"], ["10 000"], ["#"]]
    assert sentences.tags == [["AUX", "PART"], ["NUM"], ["SYM"]]
    assert sentences.documents[0] != sentences.documents[1] == sentences.documents[2]
    packed = tmp_path / "x.conllu.zst"
    packed.write_bytes(zstandard.compress(TREE.encode()))
    assert read_tags(packed, UPOS) == sentences
    objects = tmp_path / "train.jsonl"
    objects.write_text('{"tokens": ["a", "b"], "tags": ["O", "O"]}\n')
    with pytest.raises(ValueError, match=r"train\.jsonl holds JSON objects: .* a word a line"):
        read_tags(objects, UPOS)


def test_without_document_marks_every_sentence_is_alone(tmp_path: Path) -> None:
    sentences = read(tmp_path, "a O\n\nb O\nc O\n")
    assert not sentences.has_documents
    assert len(set(sentences.documents)) == 2


def test_only_tabs_and_blanks_separate(tmp_path: Path) -> None:
    sentences = read(tmp_path, "a\u00a0b\tO\n\u2028\tB-X\n\tO\n")
    assert sentences.words == [["a\u00a0b", "\u2028", ""]]


def test_damaged_sentences_are_left_out_and_counted(tmp_path: Path) -> None:
    good = "a O\n\n" * 199
    sentences = read(tmp_path, good + "b O\nc\nd O\n")
    assert (len(sentences), sentences.counts["damaged_sentences"]) == (199, 1)
    sentences = read(tmp_path, good.encode() + b"\xff\xfe O\n")
    assert sentences.counts["damaged_sentences"] == 1


def test_files_without_tags_can_be_read(tmp_path: Path) -> None:
    sentences = read(tmp_path, "a\nb\n\nc\n", tags=False)
    assert (sentences.words, sentences.tags) == ([["a", "b"], ["c"]], None)


@pytest.mark.shared
def test_shared_files(shared_dir: Path) -> None:
    names = {"wnut17train.conll": 3394, "emerging.dev.conll": 1009, "emerging.test.annotated": 1287}
    for name, count in names.items():
        sentences = read_tags(shared_dir / "data/ner" / name, CONLL)
        assert (len(sentences), sentences.counts["damaged_sentences"]) == (count, 0)
    sentences = read_tags(shared_dir / "data/pos/en_ewt-ud-dev.conllu.zst", UPOS)
    assert (len(sentences), sum(map(len, sentences.words)), sentences.has_documents) == (
        2001,
        25147,
        True,
    )


def predicted(tmp_path: Path, text: str, layout: ColumnFormat) -> tuple[list[str], list[str]]:
    """The lines of a file, and those of the file with a tag predicted for each word."""
    sentences = read(tmp_path, text, layout)
    tags = [f"T{number}" for number in range(sum(map(len, sentences.words)))]
    lines = list(predicted_lines(tmp_path / "x.txt", layout, tags))
    (tmp_path / "new.txt").write_text("\n".join(lines) + "\n")
    again = read_tags(tmp_path / "new.txt", layout)
    assert again.words == sentences.words and again.documents == sentences.documents
    assert [*chain.from_iterable(again.tags or [])] == tags
    return text.rstrip("\n").split("\n"), "\n".join(lines).rstrip("\n").split("\n")


@pytest.mark.parametrize("blank", [" ", "\t"])
def test_predictions_are_a_last_column(tmp_path: Path, blank: str) -> None:
    """Everything else stays as it was, so that conlleval finds the gold tags beside them."""
    before, after = predicted(tmp_path, NEWS.replace(" ", blank), CONLL)
    assert [line.rpartition(blank)[0] if line else "" for line in after] == before


def test_predictions_of_words_alone(tmp_path: Path) -> None:
    read(tmp_path, "a\n\nb\n", tags=False)
    assert list(predicted_lines(tmp_path / "x.txt", CONLL, ["O", "B-X"])) == ["a O", "", "b B-X"]


def test_predictions_take_the_tags_place_in_conllu(tmp_path: Path) -> None:
    before, after = predicted(tmp_path, TREE, UPOS)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 4


def make(
    tokenizer: WordPieceTokenizer,
    texts: list[list[str]],
    length: int,
    context: bool,
    chosen: list[int] | None = None,
) -> tuple[TaggedSequences, list[list[str]], list[list[str]], dict[str, int]]:
    """Documents of sentences -> rows, each row's tokens, each row's scored tokens, counts."""
    words = []
    documents = []
    for number, document in enumerate(texts):
        for text in document:
            words.append(text.split(" "))
            documents.append(number)
    sentences = TaggedSentences(words, None, documents, list(range(len(words))), True)
    chosen = list(range(len(words))) if chosen is None else chosen
    arrays, counts = build_sequences(sentences, chosen, tokenizer, length, context)
    token_sequences = TokenSequences(
        arrays["input_ids"], arrays["offsets"], np.diff(arrays["offsets"]).astype(np.int32)
    )
    labels = np.arange(len(arrays["word_positions"]))
    rows_of_texts = TaggedSequences(
        token_sequences, arrays["word_offsets"], arrays["word_positions"], labels
    )
    names = np.array(tokenizer.vocabulary)[arrays["input_ids"]]
    tokens = [row.tolist() for row in np.split(names, arrays["offsets"][1:-1])]
    places = np.split(arrays["word_positions"], arrays["word_offsets"][1:-1])
    scored = []
    for row, place in zip(tokens, places, strict=True):
        scored.append([row[p] for p in place])
    return rows_of_texts, tokens, scored, counts


STORY = [["the cat sat", "a dog ran fast", "who did"], ["what is", "the red hill"]]


def test_without_context_a_row_is_a_sentence(tokenizer: WordPieceTokenizer) -> None:
    _, tokens, scored, counts = make(tokenizer, STORY, 20, False)
    assert tokens[1] == ["[CLS]", "a", "dog", "ran", "fast", "[SEP]"]
    assert scored == [text.split() for text in chain.from_iterable(STORY)]
    assert counts["context_tokens"] == 0


def test_context_fills_the_window_inside_the_document(tokenizer: WordPieceTokenizer) -> None:
    _, tokens, scored, _ = make(tokenizer, STORY, 20, True)
    whole = ["[CLS]", "the", "cat", "sat", "a", "dog", "ran", "fast", "who", "did", "[SEP]"]
    assert tokens[:3] == [whole] * 3
    assert tokens[3] == ["[CLS]", "what", "is", "the", "red", "hill", "[SEP]"]
    assert scored == [text.split() for text in chain.from_iterable(STORY)]


def test_a_small_window_takes_from_both_sides_and_whole_words(
    tokenizer: WordPieceTokenizer,
) -> None:
    _, tokens, scored, _ = make(tokenizer, STORY, 9, True)  # 7 words
    # nothing before: all behind
    assert tokens[0] == ["[CLS]", "the", "cat", "sat", "a", "dog", "ran", "fast", "[SEP]"]
    assert tokens[1] == ["[CLS]", "sat", "a", "dog", "ran", "fast", "who", "did", "[SEP]"]
    assert tokens[2] == ["[CLS]", "sat", "a", "dog", "ran", "fast", "who", "did", "[SEP]"]
    assert scored[1] == ["a", "dog", "ran", "fast"]
    _, tokens, _, _ = make(tokenizer, [["the zzz sat", "a dog"]], 7, True)
    # z ##z ##z does not fit and is not cut
    assert tokens[1] == ["[CLS]", "sat", "a", "dog", "[SEP]"]


@pytest.mark.parametrize("length", [6, 9, 12, 120])
@pytest.mark.parametrize("context", [True, False])
def test_every_word_is_scored_once(
    tokenizer: WordPieceTokenizer, length: int, context: bool
) -> None:
    rng = np.random.default_rng(length)
    words = np.array(["the", "cat", "zzz", "aaaaaaa", "sat"])
    texts = []
    for _ in range(3):
        texts.append([" ".join(rng.choice(words, rng.integers(1, 15))) for _ in range(4)])
    rows_of_texts, tokens, scored, counts = make(tokenizer, texts, length, context)
    expected = []
    for word in " ".join(chain.from_iterable(texts)).split():
        expected.append(tokenizer.vocabulary[tokenizer.encode_batch([word])[0][0]])
    assert [*chain.from_iterable(scored)] == expected
    assert rows_of_texts.sequences.lengths.max() <= length
    assert (counts["split_sentences"] > 0) == (length < 120)
    assert all(
        row[0] == "[CLS]" and row[-1] == "[SEP]" and "[SEP]" not in row[1:-1] for row in tokens
    )


def test_words_without_tokens_and_endless_words(tokenizer: WordPieceTokenizer) -> None:
    _, tokens, scored, counts = make(tokenizer, [["the \u200b cat", "zzzzzzzzz a"]], 6, False)
    assert scored[0] == ["the", "[UNK]", "cat"]
    assert tokens[1] == ["[CLS]", "z", "##z", "##z", "##z", "[SEP]"]
    assert scored[1:] == [["z"], ["a"]]
    for name in ("words_without_tokens", "cut_words", "split_sentences"):
        assert counts[name] == 1


def test_a_part_of_the_sentences_keeps_its_context(tokenizer: WordPieceTokenizer) -> None:
    _, tokens, scored, _ = make(tokenizer, STORY, 20, True, chosen=[1, 4])
    assert scored == [["a", "dog", "ran", "fast"], ["the", "red", "hill"]]
    assert " ".join(tokens[0]) == "[CLS] the cat sat a dog ran fast who did [SEP]"


def test_gather_finds_the_words_in_the_stream(tokenizer: WordPieceTokenizer) -> None:
    rows_of_texts, _, scored, _ = make(tokenizer, STORY, 9, True)
    batch = rows_of_texts.gather(np.array([3, 1]))
    found = np.array(tokenizer.vocabulary)[batch["input_ids"][batch["word_slots"]]].tolist()
    assert found == scored[3] + scored[1]
    assert batch["word_index"].tolist() == batch["labels"].tolist() == [9, 10, 3, 4, 5, 6]
    assert rows_of_texts.num_targets.tolist() == [3, 4, 2, 2, 3]
    assert batch["lengths"].tolist() == [7, 9]


LETTERS = WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_lowercase, "##b"], lowercase=True)
TRAIN = "-DOCSTART- O\n\na I-PER\nbb I-PER\nc B-PER\n\nd O\n\na I-LOC\n\n-DOCSTART- O\n\nab O\n"
VALIDATION = "-DOCSTART- O\n\na B-PER\nb E-PER\n\nc S-LOC\n"
TASK: dict[str, Any] = WORDS | {
    "train_file": "train.txt",
    "validation_file": "dev.txt",
    "test_files": {"test": "test.txt"},
    "entity_tags": True,
    "max_seq_length": 16,
    "evaluation_tokens": 32,
}
CHANGES = [{"document_context": False}, {"tag_column": 1}, {"validation": VALIDATION + "\nd O\n"}]


@pytest.fixture
def make_tags(tmp_path: Path) -> Make:
    """make_tags(train text, validation text, data changes)."""

    def build(
        train: str = TRAIN, validation: str = VALIDATION, **data: Any
    ) -> FinetuningDataModule:
        (tmp_path / "train.txt").write_text(train)
        (tmp_path / "dev.txt").write_text(validation)
        plan = TrainingPlan(2, 1.0, 1, None, 1, 0)
        inputs = TaskInputs("toy", tmp_path, tmp_path / "cache", LETTERS, 16)
        return tag_data(inputs=inputs, plan=plan, **(TASK | data))

    return build


def tags(data: FinetuningDataModule, split: Any) -> list[list[str]]:
    return split.by_sentence([data.target.classes[label] for label in split.labels])


def test_types_without_prefixes_are_entities_and_that_is_said(
    make_tags: Make, caplog: pytest.LogCaptureFixture
) -> None:
    files = ("a PER\nbb PER\nc LOC\nd O\n\na O\n", "b LOC\na O\n")
    for _ in range(2):  # the second time from the cache
        caplog.clear()
        data = ready(make_tags(*files, document_context=False))
        assert "its tags are types without B- and I-" in caplog.text
    assert data.target.classes == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert tags(data, data.train) == [["B-PER", "I-PER", "B-LOC", "O"], ["O"]]
    with pytest.raises(ValueError, match=r"'NOUN' is not an entity tag.*entity_tags=false"):
        make_tags("a NOUN\nb VERB\n", files[1]).setup()


@pytest.mark.parametrize("plain", ["train", "dev"])
def test_two_files_of_two_schemes(
    make_tags: Make, caplog: pytest.LogCaptureFixture, plain: str
) -> None:
    """In the plain one `a bb` is one entity, in the other there are two."""
    files = {"train": "a B-PER\nbb B-PER\nc O\n", "dev": "bb B-PER\na B-PER\nd O\n"}
    data = ready(make_tags(files["train"], files["dev"], document_context=False))
    assert "in one scheme" not in caplog.text
    files[plain] = files[plain].replace("B-", "")
    (other,) = files.keys() - {plain}
    for _ in range(2):  # the second time from the cache
        caplog.clear()
        data = ready(make_tags(files["train"], files["dev"], document_context=False))
        folder = data.train_path.parent
        assert (
            f"{folder / plain}.txt has types without B- and I-, and"
            f" {folder / other}.txt has IOB2 tags" in caplog.text
        )
        assert "also in scores" not in caplog.text
    # A model of plain labels is scored by types, whatever the files have.
    caplog.clear()
    data = make_tags(files["train"], files["dev"], document_context=False)
    data.target = data.target.of_model(["O", "PER"])
    data.setup()
    assert "in one scheme" not in caplog.text


def test_documents_are_held_out_whole(make_tags: Make) -> None:
    documents = "".join(f"-DOCSTART- O\n\na B-PER\n{letter} O\n\nb O\n\n" for letter in "abcdefgh")
    data = ready(make_tags(documents, validation_file=None, validation_fraction=0.4))
    held_out = data.validation.by_sentence(data.validation.words)
    trained = data.train.by_sentence(data.train.words)
    assert len(held_out) + len(trained) == 16 and held_out and trained
    # of each document its first sentence, which names it, and its second
    assert held_out.count(["b"]) == len(held_out) / 2 and trained.count(["b"]) == len(trained) / 2
    assert data.overlap.num_rows == len(held_out)


def test_schemes_are_converted_and_reported(make_tags: Make) -> None:
    data = ready(make_tags())
    data.setup()  # the second time does nothing
    assert data.target.classes == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert tags(data, data.train) == [["B-PER", "I-PER", "B-PER"], ["O"], ["B-LOC"], ["O"]]
    assert tags(data, data.validation) == [["B-PER", "I-PER"], ["B-LOC"]]
    schemes = [data.facts[f"{name}_counts"]["tag_scheme"] for name in ("train", "validation")]
    assert schemes == ["IOB1", "BIOES"]
    assert data.validation.by_sentence(data.validation.words) == [["a", "b"], ["c"]]
    assert data.facts["train_counts"]["context_tokens"] > 0


def test_batches_count_words_as_targets(make_tags: Make) -> None:
    data = ready(make_tags())
    batches = list(TrainingBatches(data, range(2), 0, 1))
    assert sum(batch["global_examples"] for batch in batches) == 4
    assert sum(batch["global_targets"] for batch in batches) == 6
    assert sum(len(batch["labels"]) for batch in batches) == 6
    for batch in batches:
        assert (data.train.labels[batch["word_index"]] == batch["labels"].numpy()).all()


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (
            ("a" + "b" * 40 + " B-PER\nc O\n", "a O\n"),
            "toy, training: 1 words are longer than a sequence and were cut",
        ),
        (("a B-PER\n", "a B-PER\n"), "vocabulary is lower-cased"),
        (("a B-PER\n", "a B-PER\n"), "marks no documents"),
    ],
)
def test_what_is_odd_in_tags_is_warned_of(
    make_tags: Make, caplog: pytest.LogCaptureFixture, files: tuple[str, str], sentence: str
) -> None:
    make_tags(*files).setup()
    assert sentence in caplog.text


def test_other_tags_are_classes_as_they_are(make_tags: Make) -> None:
    data = ready(make_tags("a NOUN\nb VERB\n\nc X\n", "a X\n", entity_tags=False))
    assert data.target.classes == ["NOUN", "VERB", "X"]
    assert tags(data, data.validation) == [["X"]]


def test_test_file_needs_no_tags(make_tags: Make, tmp_path: Path) -> None:
    """Words alone, and tags of types that training has not."""
    for text in ("a\nb\n\nc\n", "a B-NEW\nb O\n\nc O\n"):
        (tmp_path / "test.txt").write_text(text)
        data = ready(make_tags())
        sequences, split = data.load_test()["test"]
        assert split.words == ["a", "b", "c"] and len(sequences) == 2


def test_fingerprint_follows_content_and_settings(make_tags: Make) -> None:
    first = make_tags().fingerprint
    assert make_tags().fingerprint == first
    others = [make_tags(**change).fingerprint for change in CHANGES]
    assert len({first, *others}) == 1 + len(CHANGES)


def test_preview_has_types_of_entities_whatever_the_scheme(make_tags: Make) -> None:
    found = make_tags().preview()
    assert found.label_names == ["LOC", "O", "PER"]
    assert found.train.labels == ["PER", "PER", "PER", "O", "LOC", "O"]
    assert found.validation.labels == ["PER", "PER", "LOC"]
    assert found.train.texts == {"sentence": ["a bb c", "d", "a", "ab"]}
    assert found.train.num_examples == 4
    assert make_tags(entity_tags=False).preview().label_names == ["B-PER", "I-LOC", "I-PER", "O"]


class CountedEncoder(Encoder):
    calls = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        CountedEncoder.calls += 1
        return super().forward(*args, **kwargs)


@pytest.fixture
def make_features(tmp_path: Path, tiny_config: Callable[..., Any]) -> Make:
    """make_features(features, fingerprint, seed) with a fresh count of encoder calls."""
    CountedEncoder.calls = 0
    config = tiny_config(
        vocab_size=LETTERS.vocab_size,
        num_hidden_layers=5,
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=0.5,
        attention_probs_dropout_prob=0.5,
        initializer_range=0.3,
    )

    def encoder() -> Encoder:
        torch.manual_seed(0)
        return CountedEncoder(config)

    for name in ("train", "dev"):
        text = TRAIN if name == "train" else TRAIN.replace("d O", "d O\ne O")
        (tmp_path / f"{name}.txt").write_text(text)

    def build(
        features: str = "last", fingerprint: str = "weights", seed: int = 1
    ) -> FinetuningDataModule:
        source = EncoderSource(fingerprint, encoder, torch.device("cpu"))
        inputs = TaskInputs("toy", tmp_path, tmp_path / "cache", LETTERS, 16, source)
        data = feature_data(
            inputs=inputs,
            plan=TrainingPlan(2, 1.0, 1, None, seed, 0),
            features=features,
            **(TASK | {"test_files": {"test": "dev.txt"}}),
        )
        data.setup()
        return data

    return build


@torch.no_grad()
def live_features(data: FinetuningDataModule, sentence: int, layers: list[int]) -> np.ndarray:
    """[words, layers, H] of one sentence, its row encoded alone."""
    model, rows = data.inputs.encoder.load().eval(), data.train.sequences
    arrays = rows.gather(np.array([sentence]))
    ids = (
        torch.from_numpy(arrays[name]) for name in ("input_ids", "token_type_ids", "position_ids")
    )
    states = model(*ids, Layout.ragged(arrays["lengths"]), output_hidden_states=True).hidden_states
    return np.stack([states[layer].numpy()[arrays["word_slots"]] for layer in layers], axis=1)


@pytest.mark.parametrize("features", FEATURES)
def test_cache_equals_live_features(make_features: Make, features: str) -> None:
    data = make_features(features)
    layers = feature_layers(features, 5)
    for sentence in range(len(data.train_sequences)):
        cached = data.train_sequences.gather(np.array([sentence]))
        live = live_features(data, sentence, layers)
        assert cached["features"].shape == live.shape
        # To 1e-6 of the largest feature: a sentence alone and one of a batch take other matrix
        # kernels.
        np.testing.assert_allclose(cached["features"], live, rtol=0, atol=1e-6 * np.abs(live).max())
        assert cached["lengths"].tolist() == [len(live)]


def test_the_encoder_runs_once_for_all_choices_and_seeds(make_features: Make) -> None:
    first = make_features(next(iter(FEATURES)))
    calls = CountedEncoder.calls
    splits = [split.sequences.lengths for split in (first.train, first.validation)]
    assert (
        calls
        == sum(len(token_budget_batches(lengths, first.evaluation_tokens)) for lengths in splits)
        > 0
    )
    for features in FEATURES:
        for seed in (1, 2):
            make_features(features, seed=seed)
    assert CountedEncoder.calls == calls
    make_features(fingerprint="other weights")
    assert CountedEncoder.calls == 2 * calls


def test_test_file_is_encoded_too(make_features: Make) -> None:
    data = make_features()
    calls = CountedEncoder.calls
    sequences, split = data.load_test()["test"]
    assert CountedEncoder.calls > calls
    assert len(sequences) == len(split) == len(data.validation)
    expected = data.validation_sequences.gather(np.arange(4))["features"]
    np.testing.assert_array_equal(sequences.gather(np.arange(4))["features"], expected)


def test_batches_bring_sentences(make_features: Make) -> None:
    data = make_features("concat_last_four")
    seen = []
    for batch in data.val_dataloader():
        assert batch["features"].shape == (batch["layout"].num_tokens, 4, 16)
        assert batch["features"].dtype == torch.float32
        assert (data.validation.labels[batch["word_index"]] == batch["labels"].numpy()).all()
        seen += batch["word_index"].tolist()
    assert sorted(seen) == list(range(len(data.validation.words)))
    assert isinstance(data.train_sequences.layers[0], np.memmap)


def test_a_part_of_speech_that_nobody_gave(tmp_path: Path) -> None:
    """conllu writes `_`, which is an answer of features; of a file to predict nobody asks."""
    path = tmp_path / "x.conllu"
    path.write_text(
        "".join(f"{n}\tw\t_\t{tag}" + "\t_" * 6 + "\n" for n, tag in enumerate(("NN", "_"), 1))
    )
    with pytest.raises(ValueError, match=r"x\.conllu:2: tag is empty"):
        read_tags(path, ColumnFormat("conllu", 1, 3))
    assert read_tags(path, ColumnFormat("conllu", 1, 5)).tags == [["_", "_"]]
    assert len(read_conll(path, ColumnFormat("conllu", 1, 3))) == 1


# What is refused

BAD_FILES: list[tuple[str, ColumnFormat, str]] = [
    ("", CONLL, "has no examples"),
    ("a\nb\n", CONLL, "x.txt:1: 1 columns.*can only be predicted"),
    ("a O\n", ColumnFormat("columns", 0, 3), "x.txt:1: 2 columns, but the tag.*tag_column=3"),
    ("a O\n", ColumnFormat("columns", 2, 1), "x.txt:1: 2 columns, but the word.*word_column=2"),
    ("a O\n", ColumnFormat("columns", -3, 1), "x.txt:1: 2 columns, but the word.*word_column=-3"),
    ("a O\nb X O\n", CONLL, r"(?s)x.txt:2: 3 columns, expected 2.*1 of 1 rows"),
    ("a O\n", UPOS, "x.txt:1: 2 columns, expected 10"),
]


@pytest.mark.parametrize(("content", "layout", "sentence"), BAD_FILES)
def test_a_bad_file_is_refused(
    tmp_path: Path, content: str, layout: ColumnFormat, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path, content, layout)


BAD_TAGS = [
    ("a\tNN\nb\t\nc\tVB\n", CLASSES, r"x\.conll:2: tag is empty: give each row one tag"),
    ("a\tB-PER\nb\tB-PER \n", ANY, r"'B-PER ' \(line 2\) differ by spaces alone"),
    (
        "\n".join(f"w x{n}" for n in range(30)),
        CLASSES,
        r"30 different ones, .*\.tag_column the right",
    ),
]


@pytest.mark.parametrize(("content", "expected", "sentence"), BAD_TAGS)
def test_what_is_no_tag(tmp_path: Path, content: str, expected: str, sentence: str) -> None:
    (tmp_path / "x.conll").write_text(content)
    with pytest.raises(ValueError, match=sentence):
        read_tags(tmp_path / "x.conll", CONLL, expected)


def test_an_unknown_format() -> None:
    with pytest.raises(ValueError, match="file_format=xml: choose one of columns, conllu"):
        ColumnFormat("xml", 0, 1)


def test_fewer_predictions_than_words(tmp_path: Path) -> None:
    read(tmp_path, "a\n\nb\n", tags=False)
    with pytest.raises(AssertionError, match="one tag a word"):
        list(predicted_lines(tmp_path / "x.txt", CONLL, ["O"] * 3))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"validation": "a I-ORG\n"}, "dev.txt:1: tag 'B-ORG' does not occur in the training file"),
        ({"train": "a NOUN\n"}, "train.txt: 'NOUN' is not an entity tag.*tag_column the right one"),
        ({"train_file": "nowhere"}, "(?s)nowhere.*how to get it: make it"),
    ],
)
def test_splits_that_do_not_fit(make_tags: Make, settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make_tags(**settings).setup()
