"""`evaluate` and `predict` read a folder by the same rules: what one refuses, the other does."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import clozelab
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.models.encoder import Encoder
from clozelab.models.registry import family_for, family_of
from clozelab.modules.model import write_model

TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_lowercase], lowercase=True)
LONG = {"_target_": "clozelab.models.attention.LongAttention", "window": 8}
LETTERS = string.ascii_lowercase
ROWS = [f"{LETTERS[n]} {LETTERS[-n]} {LETTERS[n // 2]}" for n in range(24)]
LABELLED = (
    "measure=labelled",
    "measure.task.data.validation_file=rows.tsv",
    "measure.task.data.train_file=rows.tsv",
)


@pytest.fixture
def save(tiny_config: Callable[..., Any], tmp_path: Path) -> Callable[..., Path]:
    """save(kind, **changes of the encoder) -> a folder of random weights, and rows.tsv beside."""
    labels = [("0", "1")[n % 2] for n in range(len(ROWS))]
    rows = [f"{text}\t{label}" for text, label in zip(ROWS, labels, strict=True)]
    (tmp_path / "rows.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")

    def write(kind: str, **changes: Any) -> Path:
        torch.manual_seed(1)
        config = tiny_config(vocab_size=TOKENIZER.vocab_size, initializer_range=0.3, **changes)
        encoder = Encoder(config)
        head = family_for(config).head(kind, encoder, num_labels=2)
        folder = tmp_path / "encoder"
        write_model(folder, encoder, {kind: head}, TOKENIZER, labels=("0", "1"))
        return folder

    return write


def change(folder: Path, **changes: Any) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    (folder / "checksums.json").unlink(missing_ok=True)


def test_a_head_on_a_pooler_without_weights_is_refused_by_both(
    save: Callable[..., Path], evaluate: Callable[..., Path]
) -> None:
    folder = save("classification")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    kept = {name: value for name, value in tensors.items() if "pooler" not in name}
    assert len(kept) == len(tensors) - 2
    save_file(kept, file, metadata={"format": "pt"})
    change(folder)
    loaded = clozelab.load(folder, device="cpu")
    assert loaded.model.untrained == ("pooler", "classification")
    assert loaded.embed("a b").shape == (24,)
    with pytest.raises(
        ValueError, match="has no trained pooler, which its classification head reads"
    ):
        loaded.classify("a b")
    with pytest.raises(ValueError, match="has no trained pooler, which its classification head"):
        evaluate(*LABELLED)


def test_a_foreign_causal_classifier_is_pooled_alike_by_both(
    save: Callable[..., Path], evaluate: Callable[..., Path]
) -> None:
    """transformers' class pools the first token, which a decoder's attention does not move."""
    folder = save("classification", is_causal=True, pools_first_token=True)
    run = evaluate(*LABELLED)
    lines = (run / "predictions.jsonl").read_text().splitlines()
    scored = [json.loads(line)["prediction"] for line in lines]
    # Every text begins with [CLS], and a causal model sees nothing else there.
    answers = clozelab.load(folder, device="cpu", precision="32-true").classify(ROWS)
    assert scored == [answer.label for answer in answers] and len(set(scored)) == 1


def test_answers_that_are_no_numbers_are_refused_by_both(
    save: Callable[..., Path], evaluate: Callable[..., Path]
) -> None:
    """Weights that overflow are numbers themselves; NaN scored as the first class."""
    folder = save("classification")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["bert.encoder.layer.0.output.LayerNorm.weight"].fill_(3e38)
    save_file(tensors, file, metadata={"format": "pt"})
    change(folder)
    with pytest.raises(ValueError, match="gives no finite numbers"):
        clozelab.load(folder, device="cpu").classify("a b")
    with pytest.raises(ValueError, match="answers numbers that are not finite"):
        evaluate(*LABELLED)


def test_another_separator_than_the_tokenizers_is_refused_by_both(
    save: Callable[..., Path], evaluate: Callable[..., Path], tmp_path: Path
) -> None:
    """A Longformer finds a question by it."""
    parts = family_of("longformer").parts | {"attention": LONG, "pad_token_id": 0}
    folder = save("spans", model_type="longformer", max_position_embeddings=100, **parts)
    asked = {"id": "1", "question": "a b", "answers": [{"text": "d", "answer_start": 2}]}
    paragraphs = [{"context": "c d e", "qas": [asked]}]
    data = {"version": "1.1", "data": [{"title": "", "paragraphs": paragraphs}]}
    (tmp_path / "dev.json").write_text(json.dumps(data))
    change(folder, sep_token_id=7)
    with pytest.raises(ValueError, match="sep_token_id is 7"):
        clozelab.load(folder, device="cpu")
    file = "measure.task.data.validation_file=dev.json"
    with pytest.raises(ValueError, match="sep_token_id is 7"):
        evaluate("measure=labelled", "task@measure.task=squad_v1", file)


def test_rows_that_a_model_was_trained_on_are_not_held_out(
    save: Callable[..., Path], evaluate: Callable[..., Path]
) -> None:
    """A run of validation_file=null trains on all rows but those of its own draw."""
    folder = save("classification")
    draw = {"validation_fraction": 0.25, "validation_seed": 3}
    words = [*LABELLED, "measure.task.data.validation_file=null"]
    # Without a draw it had a validation file, and was trained on all rows of the other.
    change(folder, clozelab={"task": "mine"})
    with pytest.raises(ValueError, match="on all rows of its training file: name the file"):
        evaluate(*words)
    change(folder, clozelab={"task": "mine", "held_out": draw})
    same = [f"measure.task.data.{key}={value}" for key, value in draw.items()]
    refused = re.escape(" ".join(same)) + ", or name a file"
    for other in ("validation_seed=4", "validation_fraction=0.3", "validation_folds=4"):
        with pytest.raises(ValueError, match=refused):
            evaluate(*words, *same, f"measure.task.data.{other}")
    assert (evaluate(*words, *same) / "scores.json").is_file()
    with pytest.raises(ValueError, match=r"group_column=null measure\.task\.data\.validation_fr"):
        evaluate(*words, *same, "measure.task.data.group_column=sentence")
