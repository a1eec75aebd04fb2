"""A task of one's own is one YAML: jsonl files, in a folder of --config-dir."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.runs.records import predictions, read_json
from tests.runs.sentiment import BAD, GOOD

from clozelab.cli import main
from clozelab.corpus.tokenizers import ByteBpeTokenizer, Tokenizer, WordPieceTokenizer
from clozelab.models.registry import family_of

transformers = pytest.importorskip("transformers")

TASK = """\
# Is a film review friendly?
defaults:
  - format/labelled@_here_
  - _self_
name: reviews
title: Film reviews
data:
  train_file: reviews/train.jsonl.gz
  validation_file: reviews/validation.jsonl
  text_columns: [review]
  label_column: friendly
"""


def lines(number: int) -> str:
    found = []
    for i in range(number):
        review = f'the "film"\twas {(GOOD if i % 2 else BAD)[i % 3]}'
        found.append({"friendly": bool(i % 2), "stars": i % 5, "review": review})
    return "".join(json.dumps(line) + "\n" for line in found)


def learn(kind: str) -> Tokenizer:
    texts = [json.loads(line)["review"] for line in lines(60).splitlines()]
    if kind == "wordpiece":
        return WordPieceTokenizer.train(texts, 120, True)
    return ByteBpeTokenizer.train(texts, 300, False, True)


FAMILIES = {
    "bert": {},
    "roberta": {"type_vocab_size": 1, "pad_token_id": 1},
    "albert": {"embedding_size": 8},
    "electra": {"embedding_size": 8},
    "modernbert": {},
    "xlnet": {},
}


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("bert", "wordpiece"),
        ("modernbert", "byte_bpe"),
        pytest.param("xlnet", "byte_bpe", marks=pytest.mark.slow),
        pytest.param("roberta", "byte_bpe", marks=pytest.mark.slow),
        pytest.param("albert", "wordpiece", marks=pytest.mark.slow),
        pytest.param("electra", "byte_bpe", marks=pytest.mark.slow),
    ],
)
def test_a_jsonl_task_in_one_yaml(
    tmp_path: Path, save_encoder: Callable[..., None], family: str, kind: str
) -> None:
    """The model learns, and transformers reads the saved one to the same logits."""
    (tmp_path / "conf/task").mkdir(parents=True)
    (tmp_path / "conf/task/reviews.yaml").write_text(TASK)
    (tmp_path / "data/reviews").mkdir(parents=True)
    (tmp_path / "data/reviews/train.jsonl.gz").write_bytes(gzip.compress(lines(120).encode()))
    (tmp_path / "data/reviews/validation.jsonl").write_text(lines(30))
    tokenizer = learn(kind)
    if family == "xlnet":
        tokenizer = tokenizer.ending_with_cls()
    shape = {"model_type": family, "num_hidden_layers": 2, "initializer_range": 0.1}
    shape |= family_of(family).parts | FAMILIES[family]
    save_encoder(tmp_path / "encoder", tokenizer, **shape)
    settings = {
        "data_dir": tmp_path / "data",
        "cache_dir": tmp_path / "cache",
        "encoder": tmp_path / "encoder",
        "row": "mine",
        "run_dir": tmp_path / "run",
        "learning_rate": 3e-3,
        "epochs": 8,
        "global_batch_size": 8,
        "evaluations_per_epoch": 1,
        "allow_validation_in_training": "true",
        "trainer.precision": "32-true",
        "trainer.progress_bar": "false",
    }
    words = [f"{key}={value}" for key, value in settings.items()]
    folder = str(tmp_path / "conf")
    assert not main(["finetune", "--config-dir", folder, "task=reviews", *words])
    assert "learning rate 0.003, 120 steps" in (tmp_path / "run/log.txt").read_text()
    scores = read_json(tmp_path / "run", "scores.json")
    assert scores["title"] == "Film reviews" and scores["num_examples"] == 30
    assert scores["scores"]["validation/accuracy"] > 0.9
    records = predictions(tmp_path / "run")
    assert records[0]["label"] == "false"
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "run/model"))
    text = 'the "film"\twas great, naïve '
    ids = tokenizer.encode_batch([text])[0].tolist()
    first, last = ([], [tokenizer.cls_id]) if family == "xlnet" else ([tokenizer.cls_id], [])
    assert theirs(text)["input_ids"] == [*first, *ids, tokenizer.sep_id, *last]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "run/model"
    ).eval()
    for record, line in zip(records[:6], lines(30).splitlines(), strict=False):
        with torch.no_grad():
            found = model(**theirs(json.loads(line)["review"], return_tensors="pt")).logits[0]
        assert found.tolist() == pytest.approx(record["logits"], abs=2e-5)
