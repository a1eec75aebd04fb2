"""NeoBERT equals a plain implementation of this file: 1e-5; and an UltraBERT's old file is read.

test_families.py has UltraBERT's layers and heads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.numerics import members
from tests.numerics.members import (
    LENGTHS,
    TOLERANCE,
    VOCAB,
    assert_equal,
    build_pair,
    case_of,
    read_heads,
)
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.models.encoder import Encoder
from clozelab.models.folders import (
    load_encoder,
    load_head,
    read_config,
    save_encoder_folder,
    to_hf_tensors,
)
from clozelab.models.registry import family_for, family_of

transformers = pytest.importorskip("transformers")

ULTRABERT = case_of("ultrabert").settings


def our_batch() -> dict[str, Any]:
    return members.make_batch(case_of("ultrabert")).ours


def test_an_ultrabert_file_with_a_window_a_layer() -> None:
    """As the released files say it; two windows are refused, and a head that is not there."""
    new = transformers.UltrabertConfig(**ULTRABERT).to_dict()
    old = {key: value for key, value in ULTRABERT.items() if key != "sliding_window"}
    old |= {"attention_windows": [4, 4, 0] * 2, "rope_theta": [1e4, 1e4, 2_560_000.0] * 2}
    family = family_of("ultrabert")
    assert family.from_hf_config(old) == family.from_hf_config(new)
    with pytest.raises(ValueError, match="several numbers"):
        family.from_hf_config(old | {"attention_windows": [4, 8, 0] * 2})
    # The bases alone, in the usual pattern of layers.
    bare = {
        key: value for key, value in ULTRABERT.items() if not key.startswith(("rope", "layer_t"))
    }
    bare |= {"num_hidden_layers": 6, "rope_theta": [5e4, 5e4, 9e5] * 2}
    theirs = transformers.UltrabertConfig(**bare).to_dict()
    assert family.from_hf_config(bare) == family.from_hf_config(theirs)
    assert dict(family.from_hf_config(bare).positions.options)["base"] == 9e5
    for windows in ({}, {"attention_windows": [4, 4, 0] * 2}):
        with pytest.raises(ValueError, match=r"rope_theta is 10000\.0"):
            family.from_hf_config(bare | windows | {"rope_theta": 1e4})
    with pytest.raises(ValueError, match="num_key_value_heads is 1, and only 2"):
        family.from_hf_config(new | {"num_key_value_heads": 1})


@pytest.mark.parametrize("wrapper", ["", "module.", "model.", "module._orig_mod."])
def test_an_ultrabert_under_the_names_of_its_class(tmp_path: Path, wrapper: str) -> None:
    """save_pretrained writes other names than state_dict() has."""
    pair = build_pair(case_of("ultrabert"), "ForMaskedLM", tmp_path)
    folder = tmp_path / "theirs"
    (folder / "model.safetensors").unlink()
    state = {wrapper + name: value for name, value in pair.theirs.state_dict().items()}
    torch.save(state, folder / "pytorch_model.bin")
    encoder = load_encoder(folder)
    heads = read_heads(encoder, folder, ("lm",))
    for read, expected in ((encoder, pair.encoder), (heads["lm"], pair.heads["lm"])):
        values = read.state_dict()
        assert all(torch.equal(values[name], x) for name, x in expected.state_dict().items())


def test_a_tied_vocabulary_of_an_ultrabert_is_refused_by_its_key(tmp_path: Path) -> None:
    config = transformers.UltrabertConfig(**ULTRABERT, tie_word_embeddings=True)
    transformers.UltrabertForMaskedLM(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"cls.weight of this .* is missing; tied to .*tie_word_"):
        read_heads(load_encoder(tmp_path), tmp_path, ("lm",))


# NeoBERT

NEOBERT: dict[str, Any] = {
    "model_type": "neobert",
    "architectures": ["NeoBERTLMHead"],
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 4,
    "intermediate_size": 36,
    "max_length": 64,
    "hidden_act": "SwiGLU",
    "rope": True,
    "rms_norm": True,
    "norm_eps": 1e-5,
}


def neobert_tensors() -> dict[str, Tensor]:
    shapes = {"model.encoder.weight": (VOCAB, 32), "model.layer_norm.weight": (32,)}
    shapes |= {"decoder.weight": (VOCAB, 32), "decoder.bias": (VOCAB,)}
    for number in range(4):
        layer = f"model.transformer_encoder.{number}."
        shapes |= {f"{layer}qkv.weight": (96, 32), f"{layer}wo.weight": (32, 32)}
        shapes |= {f"{layer}ffn.w12.weight": (48, 32), f"{layer}ffn.w3.weight": (32, 24)}
        shapes |= {f"{layer}attention_norm.weight": (32,), f"{layer}ffn_norm.weight": (32,)}
    generator = torch.Generator().manual_seed(0)
    return {
        name: (torch.randn(shape, generator=generator) * 0.2).requires_grad_()
        for name, shape in shapes.items()
    }


def plain_neobert(
    tensors: dict[str, Tensor], ids: Tensor, eps: float = 1e-5
) -> tuple[list[Tensor], Tensor]:
    """Hidden states and logits of one sequence, with complex numbers as the release turns."""

    def norm(x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * tensors[name]

    length = len(ids)
    angles = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(0, 16, 2) / 16)
    turns = torch.polar(torch.ones_like(angles), angles)[:, None]  # [S, 1, D / 2]

    def turned(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(length, 2, 8, 2).contiguous())
        return torch.view_as_real(pairs * turns).flatten(2)

    x = tensors["model.encoder.weight"][ids]
    states = [x]
    for number in range(4):
        layer = f"model.transformer_encoder.{number}."
        qkv = norm(x, f"{layer}attention_norm.weight") @ tensors[f"{layer}qkv.weight"].T
        q, k, v = qkv.view(length, 2, 48).chunk(3, dim=-1)
        scores = torch.einsum("qnd,knd->nqk", turned(q), turned(k)) / 4.0
        attended = torch.einsum("nqk,knd->qnd", scores.softmax(-1), v).reshape(length, 32)
        x = x + attended @ tensors[f"{layer}wo.weight"].T
        both = norm(x, f"{layer}ffn_norm.weight") @ tensors[f"{layer}ffn.w12.weight"].T
        inner, gate = both.chunk(2, dim=-1)
        x = x + (F.silu(inner) * gate) @ tensors[f"{layer}ffn.w3.weight"].T
        states.append(x)
    last = norm(x, "model.layer_norm.weight")
    states[-1] = last
    return states, last @ tensors["decoder.weight"].T + tensors["decoder.bias"]


def write_neobert(folder: Path, tensors: dict[str, Tensor]) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(NEOBERT))
    plain = {name: value.detach() for name, value in tensors.items()}
    safetensors.torch.save_file(plain, folder / "model.safetensors")


@pytest.fixture
def neobert(tmp_path: Path) -> tuple[dict[str, Tensor], Encoder, nn.Module]:
    """The tensors of a released file, and our encoder and head of it."""
    tensors = neobert_tensors()
    folder = tmp_path / "theirs"
    write_neobert(folder, tensors)
    encoder = load_encoder(folder).eval()
    head = family_for(encoder.config).head("lm", encoder)
    load_head(folder, "lm", head)
    return tensors, encoder, head


def test_neobert_equals_a_plain_one(neobert: Any) -> None:
    tensors, encoder, head = neobert
    batch = our_batch()
    output = encoder(**batch, output_hidden_states=True)
    logits = head(output.sequence_output)
    expected = []
    for ids, states in zip(
        batch["input_ids"].split([*LENGTHS]),
        zip(*(state.split([*LENGTHS]) for state in output.hidden_states), strict=True),
        strict=True,
    ):
        plain_states, plain_logits = plain_neobert(tensors, ids)
        for number, (mine, other) in enumerate(zip(states, plain_states, strict=True)):
            assert_equal(mine, other, f"hidden state {number}")
        expected.append(plain_logits)
    assert_equal(logits, torch.cat(expected), "logits")
    logits.square().mean().backward()
    torch.cat(expected).square().mean().backward()
    members.become_gradients(nn.ModuleList([encoder, head]))
    gradients = to_hf_tensors(encoder, {"lm": head})
    assert gradients.keys() == tensors.keys()
    for name, value in tensors.items():
        assert_equal(gradients[name], value.grad, f"gradient of {name}")


def test_a_neobert_classifies_by_its_first_state(neobert: Any, tmp_path: Path) -> None:
    """A dense layer with tanh and a matrix, whose names stand beside the encoder's."""
    tensors = neobert[0]
    generator = torch.Generator().manual_seed(1)
    for name, size in (("dense", 32), ("classifier", 3)):
        tensors[f"{name}.weight"] = torch.randn(size, 32, generator=generator) * 0.2
        tensors[f"{name}.bias"] = torch.randn(size, generator=generator) * 0.2
    write_neobert(tmp_path / "classes", tensors)
    encoder = load_encoder(tmp_path / "classes").eval()
    (head,) = read_heads(encoder, tmp_path / "classes", ("classification",)).values()
    batch = our_batch()
    states = encoder(**batch).sequence_output
    logits = head(encoder.pool(states, batch["layout"], head))
    for ids, mine in zip(batch["input_ids"].split([*LENGTHS]), logits, strict=True):
        first = plain_neobert(tensors, ids)[0][-1][0]
        inner = torch.tanh(tensors["dense.weight"] @ first + tensors["dense.bias"])
        assert_equal(mine, tensors["classifier.weight"] @ inner + tensors["classifier.bias"], "")


def test_a_neobert_folder_is_written_as_it_was_read(neobert: Any, tmp_path: Path) -> None:
    tensors, encoder, head = neobert
    save_encoder_folder(
        tmp_path / "ours", encoder, heads={"lm": head}, tokenizer_files={}, extra_config={}
    )
    written = safetensors.torch.load_file(tmp_path / "ours" / "model.safetensors")
    assert written.keys() == tensors.keys()
    assert all(torch.equal(written[name], value) for name, value in tensors.items())
    assert read_config(tmp_path / "ours") == encoder.config
    assert family_for(encoder.config).architecture({"lm"}) == "NeoBERTLMHead"
    # The order of the rows matters.
    ids = our_batch()["input_ids"][-3:]
    swapped = dict(tensors)
    name = "model.transformer_encoder.0.qkv.weight"
    swapped[name] = tensors[name].detach().roll(1, 0)
    distance = plain_neobert(swapped, ids)[1] - plain_neobert(tensors, ids)[1]
    assert distance.abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize(
    "change",
    [
        {"norm_eps": 1e-2},
        {"auto_map": {"AutoModel": "model.NeoBERT"}},
        {"dropout": 0.5, "flash_attention": True, "base_scale": 2.0},
        {"decoder_init_range": 1.0, "classifier_init_range": 1.0, "embedding_init_range": 1.0},
        {"kwargs": {"fa2": True}, "trust_remote_code": True, "dim_head": 16},
        {"max_length": 33},
    ],
)
def test_a_changed_key_of_a_neobert_is_read(
    neobert: Any, tmp_path: Path, change: dict[str, Any]
) -> None:
    tensors = neobert[0]
    folder = tmp_path / "theirs"
    (folder / "config.json").write_text(json.dumps({**NEOBERT, **change}))
    encoder = load_encoder(folder).eval()
    batch = our_batch()
    states = encoder(**batch).sequence_output.split([*LENGTHS])
    eps = change.get("norm_eps", 1e-5)
    for ids, mine in zip(batch["input_ids"].split([*LENGTHS]), states, strict=True):
        assert_equal(mine, plain_neobert(tensors, ids, eps)[0][-1], str(change))
    if eps != 1e-5:
        assert (states[-1] - plain_neobert(tensors, ids)[0][-1]).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_act": "gelu"},
        {"rope": False},
        {"rms_norm": False},
        {"ngpt": True},
        {"qk_norm": True},
        {"dim_head": 8},
        {"is_decoder": True},
    ],
)
def test_a_part_that_a_neobert_does_not_have_is_refused(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(ValueError, match=f"{name} is {next(iter(change.values()))!r}"):
        family_of("neobert").from_hf_config({**NEOBERT, **change})
