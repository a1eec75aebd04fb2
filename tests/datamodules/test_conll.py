"""The tagging data module: schemes meet in IOB2, labels come from training, what is unusual is said."""

from __future__ import annotations

import logging
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.datamodules.finetuning import TaskInputs, TrainingBatches, TrainingPlan
from clozelab.datamodules.tags import TagDataModule

TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_lowercase, "##b"], lowercase=True)
TRAIN = "-DOCSTART- O\n\na I-PER\nbb I-PER\nc B-PER\n\nd O\n\na I-LOC\n\n-DOCSTART- O\n\nab O\n"
VALIDATION = "-DOCSTART- O\n\na B-PER\nb E-PER\n\nc S-LOC\n"
CHANGES = [{"document_context": False}, {"tag_column": 1}, {"validation": VALIDATION + "\nd O\n"}]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., TagDataModule]:
    """make(train text, validation text, data changes)."""

    def build(train: str = TRAIN, validation: str = VALIDATION, **data: Any) -> TagDataModule:
        (tmp_path / "train.txt").write_text(train)
        (tmp_path / "dev.txt").write_text(validation)
        task = {
            "train_file": "train.txt",
            "validation_file": "dev.txt",
            "test_files": {"test": "test.txt"},
            "file_format": "columns",
            "word_column": 0,
            "tag_column": -1,
            "entity_tags": True,
            "document_context": True,
            "how_to_get": "make it",
            "max_seq_length": 16,
            "evaluation_tokens": 32,
        }
        plan = TrainingPlan(2, 1.0, 1, None, 1, 0)
        inputs = TaskInputs("toy", tmp_path, tmp_path / "cache", TOKENIZER, 16)
        return TagDataModule(inputs=inputs, plan=plan, **(task | data))

    return build


def tags(split: Any) -> list[list[str]]:
    return split.by_sentence([split.label_names[label] for label in split.labels])


def test_schemes_are_converted_and_reported(make: Callable[..., TagDataModule]) -> None:
    data = make()
    data.setup()
    data.setup()  # the second time does nothing
    assert data.train.label_names == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert tags(data.train) == [["B-PER", "I-PER", "B-PER"], ["O"], ["B-LOC"], ["O"]]
    assert tags(data.validation) == [["B-PER", "I-PER"], ["B-LOC"]]
    schemes = [data.facts[f"{name}_counts"]["tag_scheme"] for name in ("train", "validation")]
    assert schemes == ["IOB1", "BIOES"]
    assert data.validation.by_sentence(data.validation.words) == [["a", "b"], ["c"]]
    assert data.facts["train_counts"]["context_tokens"] > 0


def test_batches_count_words_as_targets(make: Callable[..., TagDataModule]) -> None:
    data = make()
    data.setup()
    batches = list(TrainingBatches(data, range(2), 0, 1))
    assert sum(batch["global_examples"] for batch in batches) == 4
    assert sum(batch["global_targets"] for batch in batches) == 6 == sum(len(batch["labels"]) for batch in batches)
    for batch in batches:
        assert (data.train.labels[batch["word_index"]] == batch["labels"].numpy()).all()


def test_other_tags_are_classes_as_they_are(make: Callable[..., TagDataModule]) -> None:
    data = make("a NOUN\nb VERB\n\nc X\n", "a X\n", entity_tags=False)
    data.setup()
    assert data.train.label_names == ["NOUN", "VERB", "X"]
    assert tags(data.validation) == [["X"]]


def test_test_file_needs_no_tags(make: Callable[..., TagDataModule], tmp_path: Path) -> None:
    """Words alone, and tags of types that training has not."""
    for text in ("a\nb\n\nc\n", "a B-NEW\nb O\n\nc O\n"):
        (tmp_path / "test.txt").write_text(text)
        data = make()
        data.setup()
        test = data.load_test()["test"]
        assert test.split.words == ["a", "b", "c"] and len(test.rows) == 2
    (tmp_path / "test.txt").write_text("a O\n\n" * 150 + "b\n")
    with pytest.raises(ValueError, match="1 damaged sentences; predictions must be made for every row"):
        data.load_test()


def test_cut_words_are_said_aloud(make: Callable[..., TagDataModule], caplog: pytest.LogCaptureFixture) -> None:
    make("a" + "b" * 40 + " B-PER\nc O\n", "a O\n").setup()
    assert "toy, training: 1 words are longer than a row and were cut" in caplog.text


def test_refusals(make: Callable[..., TagDataModule]) -> None:
    with pytest.raises(ValueError, match=r"dev.txt:1: tag 'B-ORG' does not occur in the training file; its tags are"):
        make(validation="a I-ORG\n").setup()
    with pytest.raises(ValueError, match=r"train.txt: 'NOUN' is not an entity tag.*tag_column=-1 the right one"):
        make("a NOUN\n").setup()
    with pytest.raises(ValueError, match=r"(?s)nowhere.*how to get it: make it"):
        make(train_file="nowhere")


def test_what_would_cost_points_is_said(make: Callable[..., TagDataModule], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        make("a B-PER\n", "a B-PER\n").setup()
    assert "vocabulary is lower-cased" in caplog.text
    assert "marks no documents" in caplog.text


def test_fingerprint_follows_content_and_settings(make: Callable[..., TagDataModule]) -> None:
    first = make().fingerprint
    assert make().fingerprint == first
    others = [make(**change).fingerprint for change in CHANGES]
    assert len({first, *others}) == 1 + len(CHANGES)


def test_preview_has_types_of_entities_whatever_the_scheme(make: Callable[..., TagDataModule]) -> None:
    found = make().preview()
    assert found.label_names == ["LOC", "O", "PER"]
    assert found.train.labels == ["PER", "PER", "PER", "O", "LOC", "O"]
    assert found.validation.labels == ["PER", "PER", "LOC"]
    assert found.train.texts == {"sentence": ["a bb c", "d", "a", "ab"]} and found.train.num_examples == 4
    assert make(entity_tags=False).preview().label_names == ["B-PER", "I-LOC", "I-PER", "O"]
