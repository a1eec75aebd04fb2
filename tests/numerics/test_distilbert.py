"""DistilBERT equals transformers' with every parameter random at 0.2: biases and norms, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.models.config import family_of
from clozelab.models.embeddings import sinusoids
from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder, load_head, read_config, save_encoder_folder
from clozelab.models.layout import Layout

transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
VOCAB = 64
LENGTHS = [1, 2, 13, 24, 7]
CLASSES = {
    "ForMaskedLM": "lm",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tags",
    "ForQuestionAnswering": "spans",
}
EVERY_CLASS = pytest.mark.parametrize("suffix", list(CLASSES))


class Models(NamedTuple):
    theirs: Any
    encoder: Encoder
    head: Any


@pytest.fixture
def models(tmp_path: Path) -> Any:
    """models(class suffix): theirs with random weights, and ours read from its folder."""

    def make(suffix: str) -> Models:
        sizes = {"dim": 24, "n_heads": 3, "n_layers": 4, "hidden_dim": 40, "vocab_size": VOCAB}
        sizes["max_position_embeddings"] = 32
        sizes["num_labels"] = 2 if suffix == "ForQuestionAnswering" else 3
        config = transformers.DistilBertConfig(**sizes, attn_implementation="eager")
        theirs = getattr(transformers, f"DistilBert{suffix}")(config).eval()
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in theirs.parameters():
                parameter.normal_(std=0.2)
        theirs.save_pretrained(tmp_path / "theirs")
        return Models(theirs, *read(tmp_path / "theirs", CLASSES[suffix]))

    return make


def read(folder: Path, kind: str) -> tuple[Encoder, nn.Module]:
    encoder = load_encoder(folder).eval()
    head = encoder.config.family.head(kind, encoder, num_labels=3).eval()
    load_head(folder, kind, head)
    return encoder, head


def batch(
    side: str = "right", first_id: int = 0
) -> tuple[dict[str, Tensor], dict[str, Any], Tensor]:
    """Their padded batch, our stream of the same texts, and bool [B, S]: where theirs has text.

    The padding id, 0, may stand inside a text: it is a word like any other.
    """
    width = max(LENGTHS)
    lengths = torch.tensor(LENGTHS)[:, None]
    slots = torch.arange(width)
    real = slots < lengths if side == "right" else slots >= width - lengths
    generator = torch.Generator().manual_seed(1)
    text = torch.randint(first_id, VOCAB, (sum(LENGTHS),), generator=generator)
    ids = torch.zeros(real.shape, dtype=torch.long).masked_scatter(real, text)
    positions = torch.cat([torch.arange(n) for n in LENGTHS])
    padded = torch.zeros(real.shape, dtype=torch.long).masked_scatter(real, positions)
    theirs = {"input_ids": ids, "attention_mask": real.long(), "position_ids": padded}
    ours = {"input_ids": text, "token_type_ids": torch.ones_like(text), "position_ids": positions}
    return theirs, ours | {"layout": Layout.ragged(LENGTHS)}, real


def assert_close(ours: Tensor, theirs: Tensor, name: str) -> None:
    assert ours.shape == theirs.shape, name
    difference = float((ours - theirs).detach().abs().max())
    assert difference <= TOLERANCE, f"{name}: {difference:.1e}"


def our_logits(models: Models, stream: dict[str, Any], kind: str) -> Tensor:
    states = models.encoder.read(stream).sequence_output
    if kind == "classification":
        states = models.encoder.pool(states, stream["layout"], models.head)
    return models.head(states)


def their_logits(output: Any, kind: str, real: Tensor) -> Tensor:
    if kind == "spans":
        return torch.stack([output.start_logits, output.end_logits], dim=-1)[real]
    if kind == "classification":
        return output.logits
    return output.logits[real]


@pytest.mark.parametrize("side", ["right", "left"])
def test_every_layer(models, side):
    both = models("ForMaskedLM")
    theirs, ours, real = batch(side)
    expected = both.theirs(**theirs, output_hidden_states=True).hidden_states
    states = both.encoder.read(ours, output_hidden_states=True).hidden_states
    assert states is not None and len(states) == len(expected) == 5
    for number, (mine, other) in enumerate(zip(states, expected, strict=True)):
        assert_close(mine, other[real], f"hidden state {number}")
    # Positions have to be passed where padding stands on the left.
    del theirs["position_ids"]
    other = both.theirs(**theirs, output_hidden_states=True).hidden_states[-1][real]
    assert ((other - states[-1]).abs().max() > 0.01) == (side == "left")


@EVERY_CLASS
def test_heads_losses_and_gradients(models, suffix, hf_gradients):
    kind = CLASSES[suffix]
    both = models(suffix)
    # Theirs gives the padding id's embedding no gradient.
    theirs, ours, real = batch(first_id=1)
    expected = their_logits(both.theirs(**theirs), kind, real)
    logits = our_logits(both, ours, kind)
    assert_close(logits, expected, "logits")
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(0, logits.shape[-1], (len(logits),), generator=generator)
    labels[::3] = -100
    loss = F.cross_entropy(logits, labels)
    if kind == "lm":
        padded = torch.full(real.shape, -100).masked_scatter(real, labels)
        their_loss = both.theirs(**theirs, labels=padded).loss
    else:
        their_loss = F.cross_entropy(expected, labels)
    assert_close(loss, their_loss, "loss")
    loss.backward()
    their_loss.backward()
    gradients = hf_gradients(both.encoder, {kind: both.head})
    for name, parameter in both.theirs.named_parameters():
        assert_close(gradients[name], parameter.grad, f"gradient of {name}")


@EVERY_CLASS
def test_there_and_back(models, suffix, tmp_path):
    """What we write has their very tensors, and no other."""
    kind = CLASSES[suffix]
    both = models(suffix)
    save_encoder_folder(
        tmp_path / "ours",
        both.encoder,
        heads={kind: both.head},
        tokenizer_files={},
        extra_config={"num_labels": both.theirs.config.num_labels},
    )
    written = load_file(tmp_path / "ours" / "model.safetensors")
    stored = load_file(tmp_path / "theirs" / "model.safetensors")
    assert written.keys() == stored.keys()
    for name, value in stored.items():
        assert torch.equal(written[name], value), name
    loaded, info = getattr(transformers, f"DistilBert{suffix}").from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    if kind == "lm":
        embeddings = loaded.distilbert.embeddings.word_embeddings.weight
        assert loaded.vocab_projector.weight is embeddings
    assert read_config(tmp_path / "ours") == both.encoder.config


def test_a_tied_projection_may_stand_in_the_file(models, tmp_path):
    both = models("ForMaskedLM")
    path = tmp_path / "theirs" / "model.safetensors"
    tensors = load_file(path)
    assert "vocab_projector.weight" not in tensors
    embeddings = tensors["distilbert.embeddings.word_embeddings.weight"]
    tensors["vocab_projector.weight"] = embeddings.clone()
    save_file(tensors, path)
    encoder, head = read(tmp_path / "theirs", "lm")
    assert head.word_embedding_weight is encoder.embeddings.word_embeddings.weight
    stream = batch()[1]
    again = Models(both.theirs, encoder, head)
    assert torch.equal(our_logits(again, stream, "lm"), our_logits(both, stream, "lm"))


def test_relu_and_no_dropout_before_the_dense_layer(models):
    """RoBERTa's head would say something else, with and without training."""
    both = models("ForSequenceClassification")
    head = both.head
    states = torch.randn(6, 24)
    dense = head.dense(states)
    assert (dense < 0).any()
    expected = F.linear(dense.relu(), head.out_proj.weight, head.out_proj.bias)
    assert_close(head(states), expected, "logits")
    # In training, too, the dense layer reads the states as they are.
    inputs: list[Tensor] = []
    head.dense.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    head.train()
    head.dropout.prob = 0.5
    assert not torch.equal(head(states), expected)
    assert torch.equal(inputs[0], states)


def test_a_sinusoidal_start_is_learned(models):
    """transformers' own: sines in even columns, cosines in odd ones; ours is of the same table."""
    config = transformers.DistilBertConfig(
        dim=24, n_heads=3, n_layers=1, hidden_dim=8, vocab_size=VOCAB, sinusoidal_pos_embds=True
    )
    theirs = transformers.DistilBertModel(config)
    table = theirs.embeddings.position_embeddings.weight
    encoder = Encoder(family_of("distilbert").from_hf_config(config.to_dict()))
    ours = encoder.embeddings.position_embeddings.weight
    expected = sinusoids(512, 24).float()
    torch.testing.assert_close(table.detach(), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours.detach(), expected * 0.02 * 2**0.5)
    assert ours.requires_grad
    assert encoder.config.family.to_hf_config(encoder.config)["sinusoidal_pos_embds"] is True


def test_what_its_files_cannot_say_is_ours(models):
    """Another epsilon, token types or a causal mask: no library takes it for DistilBERT."""
    config = models("ForMaskedLM").encoder.config
    for change in ({"layer_norm_eps": 1e-5}, {"type_vocab_size": 2}, {"is_causal": True}):
        changed = replace(config, **change)
        values = changed.family.to_hf_config(changed)
        assert values["model_type"] == "clozelab_distilbert"
        assert changed.family.from_hf_config(values) == changed
    assert config.family.to_hf_config(config)["model_type"] == "distilbert"
