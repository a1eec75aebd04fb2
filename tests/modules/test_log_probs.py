"""Log-probabilities of labels by a frozen head, whose vocabulary goes through in blocks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from clozelab.modules.log_probs import log_probs

NUM_TOKENS, VOCABULARY, SIZE = 300, 5_000, 16  # more than 256 rows; more than 2 x 2,048 entries


def head_of(weight: Tensor, bias: Tensor) -> SimpleNamespace:
    return SimpleNamespace(word_embedding_weight=weight, bias=bias, vector=lambda hidden: hidden)


def random_head(seed: int = 0) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(VOCABULARY, SIZE, generator=generator)
    return head_of(weight, torch.randn(VOCABULARY, generator=generator))


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_as_the_softmax_of_all_logits(temperature: float) -> None:
    head = random_head()
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(NUM_TOKENS, SIZE, generator=generator)
    logits = (hidden.double() @ head.word_embedding_weight.double().T + head.bias) / temperature
    labels = torch.randint(VOCABULARY, (NUM_TOKENS,), generator=generator)
    labels[::2] = logits.argmax(1)[::2]
    values = log_probs(head, hidden, labels, temperature)
    expected = logits.log_softmax(1).gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(values[:, 0].double(), expected, rtol=1e-5, atol=1e-5)
    assert values[:, 1].tolist() == (labels == logits.argmax(1)).float().tolist()


def test_labels_that_are_equally_probable_share_the_credit() -> None:
    """Two of one block, and one of another; then all entries alike."""
    head = head_of(torch.zeros(VOCABULARY, SIZE), torch.zeros(VOCABULARY))
    head.bias[[3, 7, 4_000]] = 1.0
    hidden = torch.ones(5, SIZE)
    credit = log_probs(head, hidden, torch.tensor([3, 7, 4_000, 4, 4_001]))[:, 1]
    assert credit.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0, 0])
    head.bias[:] = -5.0
    values = log_probs(head, hidden, torch.arange(5))
    assert values[:, 1].tolist() == pytest.approx([1 / VOCABULARY] * 5)
    assert values[:, 0].tolist() == pytest.approx([-8.517193] * 5)  # log(1 / 5000)


def test_logits_whose_exponentials_fp32_cannot_hold() -> None:
    head = head_of(torch.zeros(VOCABULARY, SIZE), torch.zeros(VOCABULARY))
    head.bias[0] = 300.0
    values = log_probs(head, torch.zeros(2, SIZE), torch.tensor([0, 4_999]))
    assert values.tolist() == [[0.0, 1.0], [-300.0, 0.0]]


def test_a_damaged_weight_is_seen() -> None:
    head = random_head()
    head.word_embedding_weight[4_000] = torch.nan
    assert log_probs(head, torch.ones(1, SIZE), torch.tensor([1]))[:, 0].isnan().all()


def test_no_tokens() -> None:
    assert log_probs(random_head(), torch.zeros(0, SIZE), torch.zeros(0).long()).shape == (0, 2)
