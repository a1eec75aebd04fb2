"""In-batch negatives, SimCSE, and copies: losses and gradients of plain loops."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.modules.test_embeddings import COSINE, SETTINGS, TOKENIZER, split_of
from tests.modules.training import train
from tests.parts import contrastive
from torch import Tensor

from clozelab.modules.model import write_model
from clozelab.modules.sentence_folders import SentenceVectors, sentence_files
from clozelab.tasks.batches import make_batch
from clozelab.tasks.sequences import GroupedSequences, encode_examples

PAIRS = [("a b c d", "a b"), ("q", "r s t u v"), ("x y", "x z y"), ("m n o", "p n o")]
TRIPLES = [
    (*pair, text) for pair, text in zip(PAIRS, ("d e", "f", "z z y x", "k l m"), strict=True)
]
THEMSELVES = [(text, text) for text, _ in PAIRS]
KINDS = {"pairs": PAIRS, "triples": TRIPLES, "themselves": THEMSELVES}
TEMPERATURE = 0.05
COPIES = {
    # the first positive again, the first anchor again, and the first anchor as a positive
    "pairs": [("a b", "c d e"), ("q", "c d e"), ("a b", "r s"), ("c d e", "x"), ("y z", "a b")],
    # negatives of one's own that are a positive or an anchor of the batch, or stand twice
    "triples": [
        ("a b", "c d e", "x"),
        ("q r", "s", "c d e"),
        ("t", "u v", "a b"),
        ("a b", "w", "x"),
        ("y z", "z y", "z y"),
    ],
    "themselves": [("a b", "a b"), ("q r s", "q r s"), ("a b", "a b"), ("A  B", "a b"), ("x", "x")],
}
"""Examples with texts that stand there twice."""


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
        settings = {
            "validation": split_of([4.5, 0.0, 3.2, 5.0], has_classes=False),
            "pooling": pooling,
        }
        settings |= SETTINGS | COSINE | {"temperature": TEMPERATURE, "dropout": of_training}
        module = tiny_module(contrastive, shape, **settings)
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


def as_read(texts: tuple[str, ...]) -> list[str]:
    """The tokenizer reads no case and no second blank."""
    return [" ".join(text.lower().split()) for text in texts]


def stands_for(candidate: tuple[int, int], own: int, texts: list[list[str]]) -> bool:
    """Whether a text (column, example) says what an example's anchor or positive says."""
    column, example = candidate
    anchor, positive = texts[own][:2]
    is_of_the_same_anchor = column == 1 and texts[example][0] == anchor
    return texts[example][column] in (anchor, positive) or is_of_the_same_anchor


def numpy_loss(
    vectors: np.ndarray, texts: list[list[str]], *, masks: bool = True
) -> tuple[float, np.ndarray]:
    """vectors [B, columns, H] -> the mean loss and its gradient, without what stands for a text."""
    lengths = np.linalg.norm(vectors, axis=2, keepdims=True)
    units = vectors / lengths
    of_units = np.zeros_like(units)
    num_examples, num_columns, _ = vectors.shape
    losses = []
    for own in range(num_examples):
        candidates = [(1, own)]
        for column in range(1, num_columns):
            for example in range(num_examples):
                is_other = (column, example) != (1, own)
                if is_other and not (masks and stands_for((column, example), own, texts)):
                    candidates.append((column, example))
        chosen = np.stack([units[example, column] for column, example in candidates])
        scores = chosen @ units[own, 0] / TEMPERATURE
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        losses.append(-np.log(shares[0]))
        slopes = (shares - np.eye(len(shares))[0]) / (TEMPERATURE * num_examples)
        of_units[own, 0] += slopes @ chosen
        for slope, (column, example) in zip(slopes, candidates, strict=True):
            of_units[example, column] += slope * units[own, 0]
    along = (of_units * units).sum(2, keepdims=True) * units
    return float(np.mean(losses)), (of_units - along) / lengths


def keep_states(module: Any, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The vectors of all texts of each batch, with their gradients."""
    kept: list[Tensor] = []
    sentence_states = module.encoder.sentence_states

    def keep(*arguments: Any) -> Tensor:
        kept.append(sentence_states(*arguments))
        kept[-1].retain_grad()
        return kept[-1]

    monkeypatch.setattr(module.encoder, "sentence_states", keep)
    return kept


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_is_no_negative(
    make: Any, monkeypatch: pytest.MonkeyPatch, kind: str, masks: bool
) -> None:
    """Loss and gradient equal numpy's, and are not those of a loss that masks nothing."""
    module, batch = make(COPIES[kind], "mean", dropout=0.1)
    kept = keep_states(module, monkeypatch)
    loss = module.loss(module.logits(batch), batch) / len(COPIES[kind])
    loss.backward()
    (states,) = kept
    shape = (len(COPIES[kind]), -1, states.shape[1])
    texts = [as_read(example) for example in COPIES[kind]]
    vectors = states.detach().double().numpy().reshape(shape)
    expected, gradient = numpy_loss(vectors, texts, masks=masks)
    difference = np.abs(states.grad.numpy().reshape(shape) - gradient).max()
    if masks:
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-6)
        assert difference <= 1e-5 * np.abs(gradient).max()
    else:
        assert float(loss.detach()) < expected - 0.01
        assert difference > 0.01 * np.abs(gradient).max()


def test_a_batch_of_one_text_has_nothing_to_learn(make: Any) -> None:
    module, batch = make([("a b", "a b")] * 4, "mean", dropout=0.1)
    loss = module.loss(module.logits(batch), batch)
    loss.backward()
    assert float(loss.detach()) == 0.0
    gradients = [weight.grad for weight in module.parameters() if weight.grad is not None]
    assert gradients and all(bool((gradient == 0).all()) for gradient in gradients)


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


@pytest.mark.slow  # the library takes 15 seconds to import; the plain loop above is the guard
@pytest.mark.parametrize("has_copies", [False, True])
@pytest.mark.parametrize("kind", ["pairs", "triples"])
def test_loss_is_sentence_transformers(
    make: Any, tmp_path: Path, kind: str, has_copies: bool
) -> None:
    """Of texts that stand there once; theirs takes copies for negatives."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import losses

    texts = COPIES[kind] if has_copies else KINDS[kind]
    module, batch = make(texts, "mean")
    files = sentence_files(SentenceVectors("mean"), module.encoder.config, 16)
    write_model(tmp_path / "m", module.encoder, {}, TOKENIZER, extra_files=files)
    theirs = library.SentenceTransformer(str(tmp_path / "m"), device="cpu")
    loss = losses.MultipleNegativesRankingLoss(theirs, scale=1 / TEMPERATURE)
    features = [theirs.tokenize(list(column)) for column in zip(*texts, strict=True)]
    expected = float(loss(features, None).detach())
    ours = float(module.loss(module.logits(batch), batch).detach()) / len(texts)
    if has_copies:
        assert ours < expected - 0.01
    else:
        assert ours == pytest.approx(expected, abs=1e-6)


def test_simcse_has_two_dropouts_of_each_text(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, batch = make(THEMSELVES, "mean", dropout=0.1)
    kept = keep_states(module, monkeypatch)
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
    train(module, [batch] * 60)
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
        contrastive(metrics=["spearman"], pooling="mean", temperature=temperature, dropout=None)


def test_a_dropout_of_the_training_is_that_of_an_encoder_made_with_it(make: Any) -> None:
    """Bit for bit, and the folder keeps the encoder's own."""
    losses = []
    for own, of_training in ((0.0, 0.2), (0.2, None), (0.2, 0.0), (0.0, None)):
        module, batch = make(THEMSELVES, "mean", dropout=own, of_training=of_training)
        torch.manual_seed(5)
        losses.append(float(module.loss(module.logits(batch), batch).detach()))
        assert module.encoder.config.hidden_dropout_prob == own
    assert losses[0] == losses[1] != losses[2] == losses[3]
