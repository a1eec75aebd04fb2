"""UltraBERT equals transformers' classes, and NeoBERT a plain implementation of this file: 1e-5.

All parameters are random with a deviation of 0.2.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder, load_head, read_config, save_encoder_folder
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for, family_of

transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
VOCAB = 64
LENGTHS = [1, 2, 7, 4, 5, 9, 29, 3]
ULTRABERT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 6,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "sliding_window": 4,
    "num_labels": 3,
}
CLASSES = {
    "ForMaskedLM": "lm",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tags",
    "ForQuestionAnswering": "spans",
}


def randomise(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)


def padded_batch() -> tuple[Tensor, Tensor]:
    """Numbers of tokens, and bool [B, S] where they are."""
    generator = torch.Generator().manual_seed(1)
    is_real = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    ids = torch.randint(1, VOCAB, is_real.shape, generator=generator)
    return torch.where(is_real, ids, 0), is_real


def our_batch() -> dict[str, Any]:
    ids, is_real = padded_batch()
    positions = torch.arange(max(LENGTHS)).expand_as(ids)[is_real]
    stream = {"input_ids": ids[is_real], "token_type_ids": ids[is_real], "position_ids": positions}
    return {**stream, "layout": Layout.ragged(LENGTHS)}


def assert_equal(ours: Tensor, expected: Tensor, name: str) -> None:
    assert ours.shape == expected.shape, name
    distance = float((ours - expected).detach().abs().max())
    assert distance <= TOLERANCE, f"{name}: {distance:.2e}"


def ultrabert(suffix: str, folder: Path, **changes: Any) -> Any:
    if suffix == "ForQuestionAnswering":
        changes |= {"num_labels": 2}
    settings = ULTRABERT | {"attn_implementation": "eager"} | changes
    config = transformers.UltrabertConfig(**settings)
    model = getattr(transformers, f"Ultrabert{suffix}")(config).eval()
    randomise(model)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("suffix", ["Model", *CLASSES])
def test_ultrabert_there_and_back(
    suffix: str, pooling: str, tmp_path: Path, hf_gradients: Any
) -> None:
    """States, outputs and gradients; and what we write loads in its class with no other tensor."""
    model = ultrabert(suffix, tmp_path / "theirs", classifier_pooling=pooling)
    encoder = load_encoder(tmp_path / "theirs").eval()
    heads = {}
    if suffix != "Model":
        kind = CLASSES[suffix]
        heads[kind] = family_for(encoder.config).head(kind, encoder, num_labels=3).eval()
        load_head(tmp_path / "theirs", kind, heads[kind])
    ids, is_real = padded_batch()
    theirs = model(input_ids=ids, attention_mask=is_real.long(), output_hidden_states=True)
    batch = our_batch()
    output = encoder(**batch, output_hidden_states=True)
    states = output.hidden_states
    for number, (mine, other) in enumerate(zip(states, theirs.hidden_states, strict=True)):
        assert_equal(mine, other[is_real], f"hidden state {number}")
    mine = output.sequence_output
    other = theirs[0][is_real] if suffix in ("Model", "ForMaskedLM") else theirs[0]
    if suffix == "ForSequenceClassification":
        mine = heads["classification"](encoder.pool(mine, batch["layout"]))
    elif suffix != "Model":
        mine = heads[CLASSES[suffix]](mine)
        other = other if suffix == "ForMaskedLM" else other[is_real]
        if suffix == "ForQuestionAnswering":
            other = torch.stack([theirs.start_logits, theirs.end_logits], dim=-1)[is_real]
    assert_equal(mine, other, suffix)
    mine.square().mean().backward()
    other.square().mean().backward()
    gradients = hf_gradients(encoder, heads)
    own_names = {"model.": "ultrabert.", "head.decoder.": "cls."}
    for name, parameter in model.named_parameters():
        stored = name if suffix != "Model" else f"model.{name}"
        for prefix, own in own_names.items():
            if stored.startswith(prefix):
                stored = own + stored.removeprefix(prefix)
        assert_equal(gradients[stored], parameter.grad, f"gradient of {name}")
    extra = {"num_labels": model.config.num_labels}
    save_encoder_folder(
        tmp_path / "ours", encoder, heads=heads, tokenizer_files={}, extra_config=extra
    )
    loaded, info = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert read_config(tmp_path / "ours") == encoder.config


def test_an_ultrabert_file_with_a_window_a_layer() -> None:
    """As the released files say it; two windows are refused, and a head that is not there."""
    new = transformers.UltrabertConfig(**ULTRABERT).to_dict()
    old = {key: value for key, value in ULTRABERT.items() if key != "sliding_window"}
    old |= {"attention_windows": [4, 4, 0] * 2, "rope_theta": [1e4, 1e4, 2_560_000.0] * 2}
    family = family_of("ultrabert")
    assert family.from_hf_config(old) == family.from_hf_config(new)
    with pytest.raises(ValueError, match="several numbers"):
        family.from_hf_config(old | {"attention_windows": [4, 8, 0] * 2})
    with pytest.raises(ValueError, match="num_key_value_heads is 1, and only 2"):
        family.from_hf_config(new | {"num_key_value_heads": 1})


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


@pytest.fixture
def neobert(tmp_path: Path) -> tuple[dict[str, Tensor], Encoder, nn.Module]:
    """The tensors of a released file, and our encoder and head of it."""
    tensors = neobert_tensors()
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(NEOBERT))
    plain = {name: value.detach() for name, value in tensors.items()}
    safetensors.torch.save_file(plain, folder / "model.safetensors")
    encoder = load_encoder(folder).eval()
    head = family_for(encoder.config).head("lm", encoder)
    load_head(folder, "lm", head)
    return tensors, encoder, head


def test_neobert_equals_a_plain_one(neobert: Any, hf_gradients: Any) -> None:
    tensors, encoder, head = neobert
    batch = our_batch()
    output = encoder(**batch, output_hidden_states=True)
    logits = head(output.sequence_output)
    expected = []
    for ids, states in zip(
        batch["input_ids"].split(LENGTHS),
        zip(*(state.split(LENGTHS) for state in output.hidden_states), strict=True),
        strict=True,
    ):
        plain_states, plain_logits = plain_neobert(tensors, ids)
        for number, (mine, other) in enumerate(zip(states, plain_states, strict=True)):
            assert_equal(mine, other, f"hidden state {number}")
        expected.append(plain_logits)
    assert_equal(logits, torch.cat(expected), "logits")
    logits.square().mean().backward()
    torch.cat(expected).square().mean().backward()
    gradients = hf_gradients(encoder, {"lm": head})
    assert gradients.keys() == tensors.keys()
    for name, value in tensors.items():
        assert_equal(gradients[name], value.grad, f"gradient of {name}")


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
    states = encoder(**batch).sequence_output.split(LENGTHS)
    eps = change.get("norm_eps", 1e-5)
    for ids, mine in zip(batch["input_ids"].split(LENGTHS), states, strict=True):
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
