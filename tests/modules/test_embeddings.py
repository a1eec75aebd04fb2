"""Siamese training: losses and gradients of sentence-transformers, and what is learnt."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import parts
from tests.modules.training import evaluate, train
from tests.parts import siamese

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.modules.exporting import model_to_export, write
from clozelab.modules.finetuning import FineTuning
from clozelab.modules.model import read_model, sentence_vectors, write_model
from clozelab.tasks.batches import make_batch
from clozelab.tasks.sequences import GroupedSequences, encode_examples
from clozelab.tasks.texts import TextSplit, VectorUnit

TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_lowercase], lowercase=True)
PAIRS = [("a b c d", "a b"), ("q", "r s t u v"), ("x y", "x z y"), ("m n o", "m n o")]
NAMES = ["contradiction", "entailment", "neutral"]
SETTINGS: dict[str, Any] = {
    "metrics": ["accuracy"],
    "metric": "validation/accuracy",
    "number_range": None,
}
COSINE = {"metrics": ["spearman"], "metric": "validation/spearman", "number_range": [0, 5]}


def split_of(labels: list[float], *, has_classes: bool) -> TextSplit:
    flat = []
    for pair in PAIRS:
        flat.extend(pair)
    sequences = encode_examples(TOKENIZER, flat, max_seq_length=16)
    kind = np.int64 if has_classes else np.float32
    ids = np.array(["0", "1", "2", "3"])
    return TextSplit(sequences=sequences, ids=ids, labels=np.array(labels, kind))


@pytest.fixture
def make(tiny_module: Callable[..., Any]) -> Callable[..., Any]:
    """make(has classes, pooling) -> a module without dropout, and a batch of all pairs."""

    def build(has_classes: bool, pooling: str = "mean", **changes: Any) -> tuple[FineTuning, Any]:
        labels = [0.0, 1, 2, 1] if has_classes else [4.5, 0.0, 3.2, 5.0]
        split = split_of(labels, has_classes=has_classes)
        settings = (
            (SETTINGS | {"names": NAMES} if has_classes else SETTINGS | COSINE)
            | {"validation": split, "pooling": pooling}
            | changes
        )
        shape = {
            "vocab_size": TOKENIZER.vocab_size,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        }
        module = tiny_module(siamese, shape, **settings)
        batch = make_batch(
            GroupedSequences(split.sequences, 2), np.arange(4), {"labels": split.labels}
        )
        return module, batch

    return build


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("has_classes", [True, False])
def test_loss_and_gradients_are_sentence_transformers(
    make: Any, tmp_path: Path, has_classes: bool, pooling: str
) -> None:
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import losses

    module, batch = make(has_classes, pooling)
    extra = {"clozelab": module.config_to_save()}
    write_model(
        tmp_path / "m", module.encoder, module.heads(), TOKENIZER, labels=NAMES, extra_config=extra
    )
    model = read_model(tmp_path / "m")
    assert model.task == "embedding"
    assert sentence_vectors(model.folder).pooling == pooling
    assert model.architecture == "BertModel"
    words = {"form": "sentence_transformers", "pooling": "auto", "dtype": "float32"}
    exported = model_to_export(model, has_head=False, form=words["form"])
    write(tmp_path / "st", exported, "", has_head=False, **words)
    theirs = library.SentenceTransformer(str(tmp_path / "st"), device="cpu").train()
    features = []
    for side in (0, 1):
        features.append(theirs.tokenize([pair[side] for pair in PAIRS]))
    if has_classes:
        loss = losses.SoftmaxLoss(theirs, 32, num_labels=3)
        loss.classifier.load_state_dict(module.classifier.state_dict())
        expected = loss(features, torch.tensor([0, 1, 2, 1]))
    else:
        expected = losses.CosineSimilarityLoss(theirs)(
            features, torch.tensor([4.5, 0.0, 3.2, 5.0]) / 5
        )
    expected.backward()
    ours = module.loss(module.train().logits(batch), batch) / 4
    ours.backward()
    assert abs(float(ours.detach() - expected.detach())) <= 1e-5
    gradients = dict(theirs[0].auto_model.named_parameters())
    layer = module.encoder.layer[1].attention.qkv.weight.grad
    parts = [
        gradients[f"encoder.layer.1.attention.self.{one}.weight"].grad
        for one in ("query", "key", "value")
    ]
    words = gradients["embeddings.word_embeddings.weight"].grad
    assert (layer - torch.cat(parts)).abs().max() <= 1e-5 and layer.abs().max() > 1e-4
    assert (module.encoder.embeddings.word_embeddings.weight.grad - words).abs().max() <= 1e-5
    if has_classes:
        assert (module.classifier.weight.grad - loss.classifier.weight.grad).abs().max() <= 1e-5


def test_cosines_are_learnt_and_said_in_the_unit_of_the_labels(make: Any) -> None:
    module, batch = make(False)
    train(module, [batch] * 60)
    best = evaluate(module, [batch])
    assert best.scores["validation/spearman"] == 1.0
    said = {one["id"]: one["prediction"] for one in best.predictions}
    assert said["3"] == pytest.approx(5.0, abs=1e-3), (
        "the same text twice: a cosine of 1 is the largest label"
    )
    assert abs(said["1"]) < 0.5


def test_what_would_be_another_number_is_refused(make: Any) -> None:
    reason = r"labels run from 0 to 5, .* say task.module.number_range=\[0,5\]"
    with pytest.raises(ValueError, match=reason):
        make(False, number_range=[0, 1])
    with pytest.raises(ValueError, match="head=bilstm: sentence embeddings are the encoder's own"):
        make(True, head="bilstm")
    with pytest.raises(ValueError, match="pooling=max: choose one of auto, mean, cls"):
        VectorUnit(pooling="max", **parts.PAIRS)
