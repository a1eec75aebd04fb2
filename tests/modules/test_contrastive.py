"""In-batch negatives, negatives of one's own, and SimCSE: losses and gradients of a plain loop and
of sentence-transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.modules.test_embeddings import COSINE, SETTINGS, TOKENIZER, split_of
from torch import Tensor

from clozelab.datamodules.examples import GroupedSequences, encode_examples
from clozelab.datamodules.finetuning import make_batch
from clozelab.modules.embeddings import ContrastiveEncoder
from clozelab.modules.model import write_model
from clozelab.modules.sentence_folders import SentenceVectors, sentence_files

PAIRS = [("a b c d", "a b"), ("q", "r s t u v"), ("x y", "x z y"), ("m n o", "p n o")]
TRIPLES = [
    (*pair, text) for pair, text in zip(PAIRS, ("d e", "f", "z z y x", "k l m"), strict=True)
]
THEMSELVES = [(text, text) for text, _ in PAIRS]
KINDS = {"pairs": PAIRS, "triples": TRIPLES, "themselves": THEMSELVES}
TEMPERATURE = 0.05


@pytest.fixture
def make(tiny_module: Callable[..., Any]) -> Callable[..., Any]:
    """make(texts of each example, pooling) -> a module in training, and a batch of them all."""

    def build(
        texts: list[tuple[str, ...]],
        pooling: str,
        dropout: float = 0.0,
        of_training: float | None = None,
    ) -> tuple[Any, Any]:
        shape = {
            "vocab_size": TOKENIZER.vocab_size,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
        }
        settings = {"validation": split_of([4.5, 0.0, 3.2, 5.0], []), "pooling": pooling}
        settings |= SETTINGS | COSINE | {"temperature": TEMPERATURE, "dropout": of_training}
        module = tiny_module(ContrastiveEncoder, shape, **settings)
        flat = list(chain.from_iterable(texts))
        sequences = encode_examples(TOKENIZER, flat, max_seq_length=16)
        groups = GroupedSequences(sequences, len(texts[0]))
        numbers = sequences.content_numbers().reshape(len(texts), -1)
        targets = {"labels": np.full(len(texts), -1), "text_numbers": numbers}
        batch = make_batch(groups, np.arange(len(texts)), targets)
        return module.train(), batch

    return build


def plain_loss(vectors: list[list[Tensor]]) -> Tensor:
    """vectors[column][example] -> the mean loss, one cosine after the other."""
    anchors, *others = vectors
    candidates = list(chain.from_iterable(others))
    losses = []
    for own, anchor in enumerate(anchors):
        scores = []
        for candidate in candidates:
            cosine = anchor @ candidate / (anchor.norm() * candidate.norm())
            scores.append(cosine / TEMPERATURE)
        losses.append(torch.stack(scores).exp().sum().log() - scores[own])
    return sum(losses, torch.zeros(())) / len(losses)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_loss_and_gradients_are_a_plain_loop_on_transformers_states(
    make: Any, tmp_path: Path, kind: str, pooling: str
) -> None:
    transformers = pytest.importorskip("transformers")
    texts = KINDS[kind]
    module, batch = make(texts, pooling)
    write_model(tmp_path / "m", module.encoder, {}, TOKENIZER)
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "m")
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    vectors = []
    for column in zip(*texts, strict=True):
        rows = []
        for text in column:
            states = theirs(**read(text, return_tensors="pt")).last_hidden_state[0]
            rows.append(states[0] if pooling == "cls" else states.mean(0))
        vectors.append(rows)
    expected = plain_loss(vectors)
    expected.backward()
    ours = module.loss(module.logits(batch), batch) / len(texts)
    ours.backward()
    assert float(ours.detach()) == pytest.approx(float(expected.detach()), abs=1e-5)
    assert float(ours.detach()) > 0.01
    gradient = theirs.get_input_embeddings().weight.grad
    difference = module.encoder.embeddings.word_embeddings.weight.grad - gradient
    assert difference.abs().max() <= 1e-5 * max(1.0, float(gradient.abs().max()))
    assert gradient.abs().max() > 1e-4


@pytest.mark.parametrize("kind", ["pairs", "triples"])
def test_loss_is_sentence_transformers(make: Any, tmp_path: Path, kind: str) -> None:
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import losses

    module, batch = make(KINDS[kind], "mean")
    files = sentence_files(SentenceVectors("mean"), module.encoder.config, 16)
    write_model(tmp_path / "m", module.encoder, {}, TOKENIZER, extra_files=files)
    theirs = library.SentenceTransformer(str(tmp_path / "m"), device="cpu")
    loss = losses.MultipleNegativesRankingLoss(theirs, scale=1 / TEMPERATURE)
    features = [theirs.tokenize(list(column)) for column in zip(*KINDS[kind], strict=True)]
    expected = float(loss(features, None).detach())
    ours = float(module.loss(module.logits(batch), batch).detach()) / len(PAIRS)
    assert ours == pytest.approx(expected, abs=1e-5)


def test_simcse_has_two_dropouts_of_each_text(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, batch = make(THEMSELVES, "mean", dropout=0.1)
    kept: list[Tensor] = []
    sentence_states = module.encoder.sentence_states

    def remember(*arguments: Any) -> Tensor:
        kept.append(sentence_states(*arguments))
        return kept[-1]

    monkeypatch.setattr(module.encoder, "sentence_states", remember)
    ours = module.loss(module.logits(batch), batch) / len(THEMSELVES)
    first, second = kept[0][0::2], kept[0][1::2]
    assert (first - second).abs().amax(1).min() > 1e-3
    expected = plain_loss([list(first), list(second)])
    assert float(ours.detach()) == pytest.approx(float(expected.detach()), abs=1e-5)
    # Without dropout both are one vector, and the loss another.
    still, batch = make(THEMSELVES, "mean")
    still.load_state_dict(module.state_dict())
    assert float(still.loss(still.logits(batch), batch).detach()) / 4 != pytest.approx(
        float(ours.detach()), abs=1e-3
    )


def test_pairs_are_found_again_after_training_and_validation_says_cosines(make: Any) -> None:
    module, batch = make(TRIPLES, "mean")
    optimizer = module.optimizer_factory(module.named_parameters())
    for _ in range(60):
        optimizer.zero_grad()
        module.loss(module.logits(batch), batch).backward()
        optimizer.step()
    logits = module.logits(batch)
    assert logits.shape == (4, 8)
    assert logits.argmax(1).tolist() == [0, 1, 2, 3]
    module.eval()
    flat = list(chain.from_iterable(PAIRS))
    groups = GroupedSequences(encode_examples(TOKENIZER, flat, max_seq_length=16), 2)
    cosines = module.logits(make_batch(groups, np.arange(4), {}))[:, 0]
    negatives = logits.detach()[range(4), range(4, 8)] * TEMPERATURE
    assert cosines.shape == (4,) and (cosines > negatives).all()


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_is_above_zero(temperature: float) -> None:
    with pytest.raises(ValueError, match="give a number above 0"):
        settings = {"pooling": "mean", "temperature": temperature, "dropout": None}
        ContrastiveEncoder.check_settings(settings)


def test_a_dropout_of_the_training_is_that_of_an_encoder_made_with_it(make: Any) -> None:
    """Bit for bit, and the folder keeps the encoder's own."""
    losses = []
    for own, of_training in ((0.0, 0.2), (0.2, None), (0.2, 0.0), (0.0, None)):
        module, batch = make(THEMSELVES, "mean", dropout=own, of_training=of_training)
        torch.manual_seed(5)
        losses.append(float(module.loss(module.logits(batch), batch).detach()))
        assert module.encoder.config.hidden_dropout_prob == own
    assert losses[0] == losses[1] != losses[2] == losses[3]
