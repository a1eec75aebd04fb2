"""What is trained, and what becomes of weights that are computed of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from clozelab.models import folders
from clozelab.models.config import EncoderConfig
from clozelab.models.cost import frozen_flops_per_token, training_flops_per_token, weight_names
from clozelab.models.encoder import Encoder
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for
from clozelab.models.trained import freeze, frozen_weights, log_trained

Config = Callable[..., EncoderConfig]
FUSED = "layer.0.attention.qkv.weight"


class Product(nn.Module):
    """A weight plus a product of two narrow matrices (Hu et al. 2022)."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.left = nn.Parameter(torch.randn(rows, 2))
        self.right = nn.Parameter(torch.randn(2, columns))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.left @ self.right


def adapt(module: nn.Module) -> Product:
    product = Product(module.weight)  # type: ignore[arg-type]
    freeze(module.parameters())
    parametrize.register_parametrization(module, "weight", product)
    return product


def test_a_folder_holds_what_a_parametrized_head_computes(
    tiny_config: Config, tmp_path: Path
) -> None:
    """Such a head is not loaded into: a file's numbers would go into a copy, and be lost."""
    torch.manual_seed(0)
    encoder = Encoder(tiny_config())
    head = family_for(encoder.config).head("classification", encoder, num_labels=2)
    before = head.weight.detach().clone()  # type: ignore[operator, union-attr]
    product = adapt(head)
    heads = {"classification": head}
    folders.save_encoder_folder(tmp_path, encoder, heads=heads, tokenizer_files={}, extra_config={})
    stored = folders.read_tensors(tmp_path)
    assert torch.equal(stored["classifier.weight"], before + product.left @ product.right)
    assert not any("parametrizations" in name for name in stored)
    with pytest.raises(ValueError, match="parametrizations"):
        folders.load_head(tmp_path, "classification", head)


def test_an_adapted_weight_has_its_whole_gradient(tiny_config: Config) -> None:
    """The gradients of the narrow matrices come from that of the product."""
    encoder = Encoder(tiny_config())
    freeze(encoder.parameters())
    assert frozen_weights(encoder) == frozenset(weight_names(encoder.config))
    adapt(encoder.layer[0].attention.qkv)  # type: ignore[union-attr, arg-type]
    assert frozenset(weight_names(encoder.config)) - frozen_weights(encoder) == {FUSED}


def test_the_log_counts_what_is_trained(
    tiny_config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = Encoder(tiny_config())
    total = sum(value.numel() for value in encoder.parameters())
    with caplog.at_level("INFO"):
        freeze(encoder.embeddings.parameters())
        log_trained(encoder)
    trained = total - sum(value.numel() for value in encoder.embeddings.parameters())
    assert f"{trained:,} of {total:,} parameters are trained" in caplog.text


def test_frozen_weights_cost_no_backward(tiny_config: Config) -> None:
    """By torch's counter of operations, of a backward pass through what is trained."""
    from torch.utils.flop_counter import FlopCounterMode

    config = tiny_config(num_hidden_layers=3, hidden_dropout_prob=0.0)
    length = 16

    def counted(*patterns: str) -> float:
        encoder = Encoder(config)
        for name, value in encoder.named_parameters():
            if any(pattern in name for pattern in patterns):
                freeze([value])
        tokens = torch.arange(length) % 9
        zeros = torch.zeros_like(tokens)
        with FlopCounterMode(display=False) as counter:
            output = encoder(tokens, zeros, torch.arange(length), Layout.ragged([length]))
            if output.sequence_output.requires_grad:
                output.sequence_output.sum().backward()
        frozen = frozen_weights(encoder)
        whole = training_flops_per_token(config, length, 0.0)
        ours = whole - frozen_flops_per_token(config, length, frozen)
        return length * ours / counter.get_total_flops()

    everything = ("",)
    lower = ("embeddings", "layer.0.", "layer.1.")
    assert counted() == pytest.approx(1.0, rel=0.02)
    assert counted(*everything) == pytest.approx(1.0, rel=0.02)
    # Frozen in the middle, gradients pass to what is below.
    assert counted("layer.1.") == pytest.approx(1.0, rel=0.02)
    # Counted whole: the lowest layer that is trained needs no gradient of its input.
    assert 1.0 <= counted(*lower) < 1.15
