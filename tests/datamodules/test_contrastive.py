"""Texts that belong together: which sequences an example has, and what a simple rule scores."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests.parts import PAIRS, contrastive_data, ready
from tests.screens import refuses

from clozelab.checks.subject import ERROR, OK, Finding
from clozelab.checks.tasks import check_canary, check_labels
from clozelab.corpus.tokenizers import WordPieceTokenizer
from clozelab.datamodules.finetuning import FinetuningDataModule, TrainingBatches
from clozelab.datamodules.labelled import TaskInputs
from clozelab.tasks.contrast import COMMON

ROWS = [
    {"text": f"the cat {number}", "same": f"a cat {number}", "other": f"the mat {number}"}
    for number in range(12)
]
SCORED = [("the cat sat", "the cat sat", 5), ("the cat", "a cat", 3), ("a mat", "the cat", 0)]


@pytest.fixture
def make(tmp_path: Path, tokenizer: WordPieceTokenizer) -> Any:
    """make(columns of the training file) -> a data module; the scored pairs are in another file."""
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    lines = ["first\tsecond\tscore", *("\t".join(map(str, row)) for row in SCORED)]
    (tmp_path / "dev.tsv").write_text("\n".join(lines) + "\n")

    def build(*columns: str, **changes: Any) -> FinetuningDataModule:
        inputs = TaskInputs("x", tmp_path, tmp_path / "cache", tokenizer, 64)
        settings = PAIRS | {
            "train_file": "train.jsonl",
            "validation_file": "dev.tsv",
            "label_column": "score",
            "numeric_labels": True,
            "train_columns": columns,
            "max_seq_length": 16,
        }
        return contrastive_data(inputs=inputs, **(settings | changes))

    return build


@pytest.mark.parametrize("columns", [("text", "same"), ("text", "same", "other"), ("text", "text")])
def test_an_examples_texts_are_neighbours_in_the_batch(
    make: Any, tokenizer: WordPieceTokenizer, columns: tuple[str, ...]
) -> None:
    data = ready(make(*columns))
    assert (len(data.train), len(data.validation), data.total_steps) == (12, 3, 3)
    assert data.validation.labels.tolist() == [5, 3, 0]
    seen = []
    for batch in TrainingBatches(data, range(3), 0, 1):
        index = batch["example_index"].tolist()
        seen += index
        expected: list[int] = []
        for number in index:
            for column in columns:
                ids = tokenizer.encode_batch([ROWS[number][column]])[0].tolist()
                expected += [tokenizer.cls_id, *ids, tokenizer.sep_id]
        assert batch["input_ids"].tolist() == expected
        assert batch["layout"].batch_size == len(columns) * len(index)
    assert sorted(seen) == list(range(12))
    preview = data.preview()
    assert preview.train.labels is None and preview.validation.labels == ["5", "3", "0"]
    assert preview.train.texts["text"][1] == "the cat 1"


def test_texts_are_the_same_where_their_tokens_are(make: Any, tmp_path: Path) -> None:
    data = make("text", "same")
    rows = [("the cat", "The  Cat"), ("a mat", "the cat"), ("the mat", "a mat")]
    lines = [json.dumps({"text": text, "same": same}) for text, same in rows]
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")
    data.setup()
    assert data.train_targets["text_numbers"].tolist() == [[0, 0], [1, 0], [2, 1]]
    (batch,) = TrainingBatches(data, range(1), 0, 1)
    expected = data.train_targets["text_numbers"][batch["example_index"]]
    assert batch["text_numbers"].tolist() == expected.tolist()


def test_batches_are_drawn_without_regard_to_length(make: Any, tmp_path: Path) -> None:
    """Lengths vary within a batch as they do in the file; grouped by length they do not."""
    draw = np.random.default_rng(0)
    texts = [" ".join(["cat"] * number) for number in draw.integers(1, 40, 600)]
    rows = [json.dumps({"text": text, "same": text}) for text in texts]
    (tmp_path / "train.jsonl").write_text("\n".join(rows) + "\n")
    data = ready(make("text", "same"))
    lengths = data.train_sequences.lengths

    def epoch(number: int, rank: int = 0, world_size: int = 1) -> list[list[int]]:
        steps = range(150 * number, 150 * (number + 1))
        batches = TrainingBatches(data, steps, rank, world_size)
        return [batch["example_index"].tolist() for batch in batches]

    def share_within(batches: list[list[int]]) -> float:
        """Variance of lengths within batches, of four examples each, beside that of all."""
        return float(np.mean([lengths[batch].var(ddof=1) for batch in batches]) / lengths.var())

    first, second = epoch(0), epoch(1)
    for batches in (first, second):
        assert sorted(chain.from_iterable(batches)) == list(range(600))
        assert 0.85 < share_within(batches) < 1.15
    # a pure function of seed, step, rank and number of ranks
    assert first == epoch(0) != second
    parts = zip(epoch(0, 0, 2), epoch(0, 1, 2), strict=True)
    assert [sorted(a + b) for a, b in parts] == [sorted(batch) for batch in first]
    grouped = ready(make("text", "same", groups_by_length=True))
    assert grouped.fingerprint == data.fingerprint, "the same sequences, in other batches"
    data = grouped
    assert share_within(epoch(0)) < 0.1


def test_the_baseline_is_the_share_of_common_words(make: Any) -> None:
    data = ready(make("text", "same"))
    shares = [1.0, 1 / 3, 0.0]
    expected = stats.spearmanr(shares, [5, 3, 0]).statistic
    assert data.baselines[COMMON]["spearman"] == pytest.approx(expected)
    expected = stats.pearsonr(shares, [5, 3, 0]).statistic
    assert data.baselines[COMMON]["pearson"] == pytest.approx(expected)


def test_other_columns_are_other_sequences(make: Any) -> None:
    assert make("text", "same").fingerprint != make("text", "text").fingerprint
    assert make("text", "same").fingerprint == make("text", "same").fingerprint


@pytest.mark.parametrize(
    ("columns", "changes", "reason"),
    [
        (("text",), {}, "train_columns=['text']: name two columns"),
        (("text", "same", "other", "text"), {}, "'same', 'other', 'text']: name two columns"),
        (("text", "same"), {"pairs": "joint"}, "pairs=joint: this task reads pairs apart"),
        (("text", "same"), {"numeric_labels": False}, "are validated by numbers"),
    ],
    ids=str,
)
def test_what_is_no_such_task_is_refused(
    make: Any, columns: Any, changes: Any, reason: str
) -> None:
    with refuses(reason):
        make(*columns, **changes)


def test_a_text_beside_itself_needs_dropout(make: Any, tiny_config: Any) -> None:
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

    def check(*columns: str, dropout: float | None, **shape: float) -> None:
        data = make(*columns, dropout=dropout)
        data.target.check_encoder(tiny_config(**none | shape), data.unit)

    for some in ({"hidden_dropout_prob": 0.1}, {"attention_probs_dropout_prob": 0.1}):
        check("text", "text", dropout=None, **some)
        with refuses("the encoder trains without dropout"):
            check("text", "text", dropout=0.0, **some)
    check("text", "text", dropout=0.1)
    check("text", "same", dropout=None)
    with refuses("the encoder trains without dropout"):
        check("text", "text", dropout=None)


def test_the_pre_flight_looks_at_the_numbers_that_there_are(make: Any) -> None:
    def finding(most: float) -> Finding:
        preview = make("text", "text").preview()
        task: Any = SimpleNamespace(preview=preview, name="x", number_range=(0, most))
        assert list(check_canary(task)) == []
        (only,) = check_labels(task)
        return only

    assert finding(5).level == OK and finding(5).figure == "validation 0 to 5"
    assert finding(4).level == ERROR
