"""What DistilBERT alone has: test_families.py has its layers and heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.numerics import members
from tests.numerics.members import Pair, case_of
from torch import Tensor
from torch.nn import functional as F

from clozelab.models.embeddings import sinusoids
from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder
from clozelab.models.registry import family_for, family_of

transformers = pytest.importorskip("transformers")


def test_a_tied_projection_may_stand_in_the_file(tmp_path: Path) -> None:
    pair = members.build_pair(case_of("distilbert"), "ForMaskedLM", tmp_path)
    path = tmp_path / "theirs" / "model.safetensors"
    tensors = load_file(path)
    assert "vocab_projector.weight" not in tensors
    embeddings = tensors["distilbert.embeddings.word_embeddings.weight"]
    tensors["vocab_projector.weight"] = embeddings.clone()
    save_file(tensors, path)
    encoder = load_encoder(path.parent).eval()
    heads: Any = members.read_heads(encoder, path.parent, ["lm"])
    assert heads["lm"].word_embedding_weight is encoder.embeddings.word_embeddings.weight
    batch = members.make_batch(pair.case)
    again = members.our_outputs(Pair(pair.case, None, encoder, heads), batch)
    assert torch.equal(again[0], members.our_outputs(pair, batch)[0])


def test_relu_and_no_dropout_before_the_dense_layer(tmp_path: Path) -> None:
    """RoBERTa's head would say something else, with and without training."""
    pair = members.build_pair(case_of("distilbert"), "ForSequenceClassification", tmp_path)
    head: Any = pair.heads["classification"]
    states = torch.randn(6, 32)
    dense = head.dense(states)
    assert (dense < 0).any()
    expected = F.linear(dense.relu(), head.out_proj.weight, head.out_proj.bias)
    members.assert_equal(head(states), expected, "logits")
    # In training, too, the dense layer reads the states as they are.
    inputs: list[Tensor] = []
    head.dense.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    head.train()
    head.dropout.prob = 0.5
    assert not torch.equal(head(states), expected)
    assert torch.equal(inputs[0], states)


def test_a_sinusoidal_start_is_learned() -> None:
    """transformers' own: sines in even columns, cosines in odd ones; ours is of the same table."""
    config = members.their_config(case_of("distilbert").having(sinusoidal_pos_embds=True))
    theirs = transformers.DistilBertModel(config)
    table = theirs.embeddings.position_embeddings.weight
    encoder = Encoder(family_of("distilbert").from_hf_config(config.to_dict()))
    ours = encoder.embeddings.position_embeddings.weight
    expected = sinusoids(64, 32).float()
    torch.testing.assert_close(table.detach(), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours.detach(), expected * 0.02 * 2**0.5)
    assert ours.requires_grad
    assert family_for(encoder.config).to_hf_config(encoder.config)["sinusoidal_pos_embds"] is True


def test_what_its_files_cannot_say_is_ours() -> None:
    """Another epsilon, token types or a causal mask: no library takes it for DistilBERT."""
    config = family_of("distilbert").from_hf_config(case_of("distilbert").settings)
    for change in ({"layer_norm_eps": 1e-5}, {"type_vocab_size": 2}, {"is_causal": True}):
        changed = replace(config, **change)
        values = family_for(changed).to_hf_config(changed)
        assert values["model_type"] == "clozelab_distilbert"
        assert family_for(changed).from_hf_config(values) == changed
    assert family_for(config).to_hf_config(config)["model_type"] == "distilbert"
