"""Heads without another library; numerics/ compares them with transformers."""

from __future__ import annotations

import torch

from clozelab.models.encoder import Encoder
from clozelab.models.heads import LinearHead, MaskedLMHead, SequenceClassificationHead


def test_a_compiled_loss_is_the_same(tiny_config):
    encoder = Encoder(tiny_config())
    head = MaskedLMHead(encoder.config, encoder.embeddings.word_embeddings.weight)
    hidden = torch.randn(17, 24, requires_grad=True)
    labels = torch.randint(0, 97, (17,))
    labels[3:5] = -100
    leaves = [hidden, *head.parameters()]
    usual = head.loss(hidden, labels)
    gradients = torch.autograd.grad(usual.loss_sum, leaves)
    head.compile_loss(dynamic=False, backend="aot_eager")
    compiled = head.loss(hidden, labels)
    assert compiled.count == usual.count == 15 and compiled.num_correct == usual.num_correct
    torch.testing.assert_close(compiled.loss_sum, usual.loss_sum, rtol=1e-6, atol=1e-5)
    of_compiled = torch.autograd.grad(compiled.loss_sum, leaves)
    torch.testing.assert_close(of_compiled, gradients, rtol=1e-5, atol=1e-6)
    torch._dynamo.reset()


def test_fresh_weights_come_from_the_seed(tiny_config):
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    one, two = (LinearHead(tiny_config(), generator=generator) for generator in generators)
    assert torch.equal(one.weight, two.weight) and (one.bias == 0).all()


def test_classification_head_drops_in_training_only(tiny_config):
    head = SequenceClassificationHead(tiny_config(hidden_dropout_prob=0.5), num_labels=2)
    pooled = torch.randn(5, 24)
    assert not torch.equal(head(pooled), head(pooled))
    head.eval()
    assert torch.equal(head(pooled), head(pooled))
