"""Heads without another library; numerics/ compares them with transformers."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from clozelab.models.encoder import Encoder
from clozelab.models.heads import LinearHead, MaskedLMHead, SequenceClassificationHead


def test_masked_lm_loss_equals_cross_entropy_of_its_logits(tiny_config):
    encoder = Encoder(tiny_config())
    head = MaskedLMHead(encoder.config, encoder.embeddings.word_embeddings.weight)
    hidden = torch.randn(17, 24)
    labels = torch.randint(0, 97, (17,))
    loss = head.loss(hidden, labels)
    logits = head(hidden)
    torch.testing.assert_close(
        loss.loss_sum, F.cross_entropy(logits, labels, reduction="sum"), rtol=1e-6, atol=1e-5
    )
    assert loss.num_correct == (logits.argmax(-1) == labels).sum() and loss.count == 17


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


def test_masked_lm_head_is_tied(tiny_config):
    encoder = Encoder(tiny_config())
    weight = encoder.embeddings.word_embeddings.weight
    head = MaskedLMHead(encoder.config, weight)
    assert head.word_embedding_weight is weight
    both = torch.nn.ModuleDict({"encoder": encoder, "head": head})
    assert sum(parameter is weight for parameter in both.parameters()) == 1
    head.loss(torch.randn(5, 24), torch.randint(0, 97, (5,))).loss_sum.backward()
    assert weight.grad is not None and weight.grad.abs().sum() > 0


def test_shapes_names_and_seeds(tiny_config):
    config = tiny_config(hidden_dropout_prob=0.5)
    make = {
        (5, 2): lambda g: LinearHead(config, generator=g),
        (5, 3): lambda g: SequenceClassificationHead(config, num_labels=3, generator=g),
        (5, 2, 0): lambda g: LinearHead(config, generator=g),
    }
    for shape, build in make.items():
        one, two = (build(torch.Generator().manual_seed(1)) for _ in range(2))
        assert set(one.state_dict()) == {"weight", "bias"}
        assert torch.equal(one.weight, two.weight) and (one.bias == 0).all()
        assert one(torch.randn(5, 24)).shape == shape[:2]
    wide = LinearHead(config, input_size=48)
    assert wide(torch.randn(5, 48)).shape == (5, 2)


def test_classification_head_drops_in_training_only(tiny_config):
    head = SequenceClassificationHead(tiny_config(hidden_dropout_prob=0.5), num_labels=2)
    pooled = torch.randn(5, 24)
    assert not torch.equal(head(pooled), head(pooled))
    head.eval()
    assert torch.equal(head(pooled), head(pooled))
