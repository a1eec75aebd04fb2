"""Span extraction: the loss window by window, learning a tiny set by heart, predictions by question."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.datamodules.finetuning import make_batch
from clozelab.datamodules.squad_reading import SquadExamples, SquadQuestion, SquadSplit, WindowSettings, build_features
from clozelab.modules.spans import SpanExtraction, pad_tokens

COLOURS = ["red", "green", "blue", "white"]
FILLER = ["the", "cat", "and", "a", "dog", "sat", "on", "my", "old", "mat", "by", "one", "door"]


@pytest.fixture(scope="module")
def tokenizer() -> WordPieceTokenizer:
    words = sorted({"what", "colour", *COLOURS, *FILLER} - set(string.ascii_lowercase))
    return WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_lowercase, *words], lowercase=True)


@pytest.fixture(scope="module")
def split(tokenizer: WordPieceTokenizer) -> SquadSplit:
    """24 passages of 8 to 24 words, each with one colour and the word after it as the answer, in one or two windows."""
    rng = np.random.default_rng(0)
    examples = SquadExamples()
    for number in range(24):
        words = list(rng.choice(FILLER, int(rng.integers(8, 25))))
        place = int(rng.integers(0, len(words) - 1))
        words[place] = str(rng.choice(COLOURS))
        answer = " ".join(words[place : place + 2])
        examples.passages.append(" ".join(words).capitalize())
        start = len(" ".join(words[:place])) + (place > 0)
        text = examples.passages[-1][start : start + len(answer)]
        examples.questions.append(SquadQuestion(f"q{number}", "what colour", number, (text,), start))
    features, counts = build_features(examples, tokenizer, WindowSettings(20, 8, 4))
    return SquadSplit(features, examples, 24, 24, dict(counts))


@pytest.fixture
def make(split: SquadSplit, tokenizer: WordPieceTokenizer, tiny_module: Callable[..., Any]) -> Callable[..., Any]:
    def build(is_causal: bool = False, head: str = "linear", **changes: Any) -> SpanExtraction:
        settings = {"metric": "validation/f1", "bilstm_hidden_size": 24, "with_unanswerable": False} | changes
        return tiny_module(
            SpanExtraction,
            {"vocab_size": tokenizer.vocab_size, "is_causal": is_causal},
            head=head,
            validation=split,
            n_best_size=20,
            max_answer_length=30,
            **settings,
        )

    return build


def targets(split: SquadSplit) -> dict[str, Any]:
    features = split.features
    return {
        "start_positions": features.start_positions.astype(np.int64),
        "end_positions": features.end_positions.astype(np.int64),
    }


@pytest.mark.parametrize(("is_causal", "head"), [(False, "linear"), (False, "bilstm"), (True, "bilstm")])
def test_overfits(make: Any, split: SquadSplit, is_causal: bool, head: str) -> None:
    module = make(is_causal, head)
    optimizer = torch.optim.Adam(module.parameters(), 2e-3)
    rows, every = split.features.rows, np.arange(len(split.features.question))
    for _ in range(100):
        batch = make_batch(rows, every, targets(split))
        loss = module.loss(module.logits(batch), batch) / len(every)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    module.eval()
    with torch.no_grad():
        for index in np.array_split(np.random.default_rng(2).permutation(every), 4):
            module.validation_step(make_batch(rows, index, {}), 0)
    module.on_validation_epoch_end()
    best = module.require_best()
    assert best.scores["validation/exact_match"] > 90
    assert best.scores["validation/f1"] >= best.scores["validation/exact_match"]
    assert [row["id"] for row in best.predictions] == [f"q{i}" for i in range(24)]
    assert len(best.predictions[0]["nbest"]) > 1
    assert not best.is_collapsed


def test_loss_is_each_windows_own_softmax(make: Any, split: SquadSplit) -> None:
    module = make()
    batch = make_batch(split.features.rows, np.array([3, 0, 7]), targets(split))
    logits = torch.randn(batch["layout"].num_tokens, 2)
    expected, start = 0.0, 0
    for row, length in enumerate(batch["layout"].lengths_list):
        own = logits[start : start + length]
        for side, name in enumerate(("start_positions", "end_positions")):
            expected += F.cross_entropy(own[:, side], batch[name][row]) / 2
        start += length
    torch.testing.assert_close(module.loss(logits, batch), torch.as_tensor(expected))


def test_pad_tokens(split: SquadSplit) -> None:
    batch = make_batch(split.features.rows, np.array([0, 5]), {})
    values = torch.arange(2.0 * batch["layout"].num_tokens).view(-1, 2)
    padded = pad_tokens(values, batch)
    assert torch.equal(torch.cat([padded[i, :n] for i, n in enumerate(batch["layout"].lengths_list)]), values)
    assert torch.isinf(padded).sum() == padded.numel() - values.numel()


def test_metric_is_one_of_its_own(make: Any) -> None:
    with pytest.raises(ValueError, match="it has validation/exact_match, validation/f1"):
        make(metric="validation/accuracy")
