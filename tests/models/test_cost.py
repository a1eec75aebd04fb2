"""Tests of clozelab.models.cost: published sizes, and the formula at published points."""

from __future__ import annotations

import pytest
import torch

from clozelab.models.config import EncoderConfig
from clozelab.models.cost import electra_flops_per_token, parameter_count, training_flops_per_token
from clozelab.models.encoder import Encoder


def _shape(layers: int, hidden: int, heads: int | None = None, vocab: int = 30522) -> dict:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads or hidden // 64,
        "intermediate_size": 4 * hidden,
        "vocab_size": vocab,
        "max_position_embeddings": 512,
    }


def _built(config) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Encoder(config).parameters())


def test_released_sizes(tiny_config):
    for shape, count in (
        (_shape(12, 768), 109_482_240),
        (_shape(24, 1024), 335_141_888),
        (_shape(12, 768, vocab=28996), 108_310_272),
        (_shape(24, 1024, vocab=28996), 333_579_264),
    ):
        config = tiny_config(**shape)
        assert parameter_count(config) == _built(config) == count


@pytest.mark.shared
def test_every_size_of_the_paper_and_of_the_compact_models(tiny_config, shared_dir):
    yaml = pytest.importorskip("yaml")
    tables = yaml.safe_load((shared_dir / "paper" / "tables.yaml").read_text())
    compact = tables["compact_models"]
    for row, millions in compact["parameters_millions"].items():
        for hidden, expected in zip(compact["sizes"]["H"], millions, strict=True):
            config = tiny_config(**_shape(int(row[1:]), hidden))
            assert parameter_count(config) == _built(config)
            assert round(parameter_count(config) / 1e6, 2) == expected
    table6 = tables["table6_model_size"]
    for (layers, hidden, heads, *_), expected in zip(table6["rows"], table6["parameters_millions"], strict=True):
        assert round(parameter_count(tiny_config(**_shape(layers, hidden, heads))) / 1e6, 2) == expected


def test_training_flops(tiny_config):
    base, large = tiny_config(**_shape(12, 768)), tiny_config(**_shape(24, 1024))
    assert training_flops_per_token(base, 128, 0.15) == pytest.approx(0.545e9, rel=1e-3)
    assert training_flops_per_token(base, 512, 0.15) == pytest.approx(0.588e9, rel=1e-3)
    assert training_flops_per_token(large, 128, 0.15) == pytest.approx(1.88e9, rel=3e-3)
    assert training_flops_per_token(large, 512, 0.15) == pytest.approx(1.99e9, rel=3e-3)
    tokens = 256 * (900_000 * 128 + 100_000 * 512)
    share = 900_000 * 128 * 256 / tokens
    mean = share * training_flops_per_token(base, 128, 0.15) + (1 - share) * training_flops_per_token(base, 512, 0.15)
    assert tokens * mean == pytest.approx(2.38e19, rel=3e-3)


def test_published_totals_of_bert_base() -> None:
    """A million steps of 256 rows: 900,000 of 128 tokens and 100,000 of 512; ELECTRA counts 512 throughout."""
    base = EncoderConfig(30522, 768, 12, 12, 3072, "gelu", 0.1, 0.1, 512, 2, 0.02, 1e-12, "normal")
    tokens = {128: 900_000 * 256 * 128, 512: 100_000 * 256 * 512}
    ours = sum(count * training_flops_per_token(base, length, 0.15) for length, count in tokens.items())
    assert ours == pytest.approx(2.38e19, rel=0.002)
    theirs = 1_000_000 * 256 * 512 * electra_flops_per_token(base, 512, 0.15625)
    assert theirs == pytest.approx(6.43e19, rel=0.002)
    # Their own figure for BERT-Large's shape, trained alike: 1.9e20 in their table 1.
    large = EncoderConfig(30522, 1024, 24, 16, 4096, "gelu", 0.1, 0.1, 512, 2, 0.02, 1e-12, "normal")
    assert 1_000_000 * 256 * 512 * electra_flops_per_token(large, 512, 0.15625) == pytest.approx(1.9e20, rel=0.03)
