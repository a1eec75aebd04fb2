"""Parts that no family here uses, alone and together, against a plain encoder."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.objectives.test_permuted import bucket
from torch import Tensor
from torch.nn import functional as F

from clozelab.models.config import EncoderConfig, ModuleSpec
from clozelab.models.encoder import Encoder, compile_encoder
from clozelab.models.folders import load_encoder, read_config_dict, save_encoder_folder
from clozelab.models.registry import family_of

LENGTHS = [7, 12, 3, 12]
E = "clozelab.models.embeddings"
B = "clozelab.models.encoder"
A = "clozelab.models.attention"
PARTS: dict[str, dict[str, Any]] = {
    "rotary": {"positions": {"_target_": f"{E}.RotaryPositions", "base": 100.0}},
    "sinusoidal": {"positions": {"_target_": f"{E}.SinusoidalPositions"}},
    "pre-norm": {"block": {"_target_": f"{B}.PreNorm"}},
    "GeGLU": {"block": {"_target_": f"{B}.PostNorm", "gated": True}},
    "window": {"attention": {"_target_": f"{A}.LocalAttention", "window": 2}},
    "causal window": {
        "attention": {"_target_": f"{A}.LocalAttention", "window": 2},
        "is_causal": True,
    },
    "global every second": {
        "attention": {"_target_": f"{A}.LocalAttention", "window": 1, "global_every": 2}
    },
    "distances, causal, global every second": {
        "positions": {"_target_": f"{E}.BucketedPositions"},
        "attention": {"_target_": f"{A}.LocalAttention", "window": 2, "global_every": 2},
        "is_causal": True,
    },
    "factorised": {"embedding_size": 10},
    "shared in two groups": {"num_hidden_layers": 4, "num_hidden_groups": 2},
    "no token types": {"type_vocab_size": 0},
    "one token type, no pooler": {"type_vocab_size": 1, "pooler": None},
}
PARTS["all at once"] = {
    **PARTS["rotary"],
    **PARTS["global every second"],
    **PARTS["factorised"],
    **PARTS["shared in two groups"],
    "block": {"_target_": f"{B}.PreNorm", "gated": True},
    "type_vocab_size": 0,
}
EVERY_PART = pytest.mark.parametrize("name", list(PARTS))


def plain(encoder: Encoder, ids: Tensor, types: Tensor) -> list[Tensor]:
    """Hidden states [S, H] of one sequence by loops, and angles from complex numbers."""
    config = encoder.config
    weights = dict(encoder.named_parameters())
    size = len(ids)
    heads = config.num_attention_heads
    dim = config.head_dim
    kind = config.positions.target.rpartition(".")[2]

    def dense(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + config.layer_norm_eps).sqrt()
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    x = weights["embeddings.word_embeddings.weight"][ids]
    if config.type_vocab_size:
        x = (
            x
            + weights["embeddings.token_type_embeddings.weight"][
                types.clamp(max=config.type_vocab_size - 1)
            ]
        )
    if kind in ("LearnedPositions", "BucketedPositions"):
        x = x + weights["embeddings.position_embeddings.weight"][:size]
    if kind == "SinusoidalPositions":
        width = config.embedding_size
        wave = torch.zeros(size, width)
        for position in range(size):
            for number in range(width):
                angle = torch.tensor(position / 10_000 ** (2 * (number // 2) / width))
                wave[position, number] = angle.cos() if number % 2 else angle.sin()
        x = x + wave * config.initializer_range * 2**0.5
    x = norm(x, "embeddings.LayerNorm")
    if config.has_projection:
        x = dense(x, "embeddings_project")
    states = [x]
    for number in range(config.num_hidden_layers):
        layer = f"layer.{number * config.num_hidden_groups // config.num_hidden_layers}"
        is_pre = "PreNorm" in config.block.target
        gated = ("gated", True) in config.block.options
        start = norm(x, f"{layer}.attention_norm") if is_pre else x
        q, k, v = (
            dense(start, f"{layer}.attention.qkv").view(size, 3, heads, dim).permute(1, 2, 0, 3)
        )
        if kind == "RotaryPositions":
            speeds = dict(config.positions.options)["base"] ** (-2 * torch.arange(dim // 2) / dim)
            turn = torch.polar(torch.ones(size, dim // 2), torch.arange(size)[:, None] * speeds)
            pairs = [torch.complex(y[..., : dim // 2], y[..., dim // 2 :]) * turn for y in (q, k)]
            q, k = (torch.cat([pair.real, pair.imag], -1) for pair in pairs)
        options = dict(config.attention.options)
        sees_all = "window" not in options or (
            options.get("global_every") and number % options["global_every"] == 0
        )
        scores = q @ k.transpose(1, 2) / dim**0.5
        if kind == "BucketedPositions":
            table = weights["embeddings.position_embeddings.relative_attention_bias.weight"]
            for i in range(size):
                buckets = [bucket(j - i) for j in range(size)]
                scores[:, i] = scores[:, i] + table[buckets].T
        for i in range(size):
            for j in range(size):
                if (not sees_all and abs(i - j) > options["window"]) or (
                    config.is_causal and j > i
                ):
                    scores[:, i, j] = -torch.inf
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(size, -1)
        x = dense(mixed, f"{layer}.attention.output.dense") + x
        x = x if is_pre else norm(x, f"{layer}.attention.output.LayerNorm")
        inner = dense(
            norm(x, f"{layer}.feed_forward_norm") if is_pre else x, f"{layer}.intermediate.dense"
        )
        inner, gate = inner.chunk(2, -1) if gated else (inner, torch.ones(()))
        x = dense(F.gelu(inner) * gate, f"{layer}.output.dense") + x
        x = x if is_pre else norm(x, f"{layer}.output.LayerNorm")
        states.append(x)
    return [*states[:-1], norm(x, "final_norm") if is_pre else x]


@EVERY_PART
@pytest.mark.parametrize("row_slots", [None, 14], ids=["ragged", "rectangle"])
def test_equals_the_plain_encoder(name, row_slots, tiny_config, stream, real_rows):
    encoder = Encoder(tiny_config(**PARTS[name]), torch.Generator().manual_seed(0))
    arguments = stream(LENGTHS, row_slots)
    rows = real_rows(arguments["layout"])
    ids, types = (arguments[key][rows].split(LENGTHS) for key in ("input_ids", "token_type_ids"))
    each = [plain(encoder, *one) for one in zip(ids, types, strict=True)]
    expected = [torch.cat(parts) for parts in zip(*each, strict=True)]
    output = encoder(**arguments, output_hidden_states=True)
    found = [*(hidden[rows] for hidden in output.hidden_states[:-1]), output.sequence_output[rows]]
    weights = [
        torch.randn(hidden.shape, generator=torch.Generator().manual_seed(3)) for hidden in expected
    ]
    gradients = []
    for states in (found, expected):
        encoder.zero_grad()
        sum(
            (hidden * weight).mean() for hidden, weight in zip(states, weights, strict=True)
        ).backward()
        gradients.append([p.grad.clone() for p in encoder.parameters() if p.grad is not None])
    for mine, other in zip([*found, *gradients[0]], [*expected, *gradients[1]], strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=0)
    assert output.sequence_output.isfinite().all(), "padding too"


def test_a_window_and_a_turn_that_are_not_there_are_seen(tiny_config, stream):
    """The comparison above notices what it is for."""
    for name, slot in (("window", "attention"), ("rotary", "positions")):
        config = tiny_config(**PARTS[name])
        encoder = Encoder(config, torch.Generator().manual_seed(0))
        changed = {"window": 3} if name == "window" else {"base": 10.0}
        other = Encoder(replace(config, **{slot: {**getattr(config, slot).node(), **changed}}))
        other.load_state_dict(encoder.state_dict())
        outputs = [model(**stream(LENGTHS)).sequence_output for model in (encoder, other)]
        assert (outputs[0] - outputs[1]).abs().max() > 1e-2


@EVERY_PART
def test_every_part_survives_a_folder(name, tiny_config, tmp_path):
    """Other libraries are told that they cannot read it; here nothing is lost."""
    encoder = Encoder(tiny_config(**PARTS[name]))
    save_encoder_folder(tmp_path / "e", encoder, heads={}, tokenizer_files={}, extra_config={})
    assert read_config_dict(tmp_path / "e")["model_type"] == "clozelab_bert"
    again = load_encoder(tmp_path / "e")
    assert again.config == encoder.config
    assert all(
        torch.equal(a, b) for a, b in zip(again.parameters(), encoder.parameters(), strict=True)
    )
    assert EncoderConfig(**encoder.config.to_dict()) == encoder.config


def test_a_causal_bias_of_distances_on_another_kernel(tiny_config, stream, real_rows, monkeypatch):
    encoder = Encoder(tiny_config(**PARTS["distances, causal, global every second"]))
    results = []
    for kernel in ("bmm", "sdpa"):
        monkeypatch.setattr("clozelab.models.attention._default_kernel", lambda _, k=kernel: k)
        arguments = stream(LENGTHS, 14)
        rows = real_rows(arguments["layout"])
        results.append(encoder(**arguments).sequence_output[rows])
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=0)


def test_compiled_windows_give_the_same_numbers(tiny_config, stream):
    encoder = Encoder(tiny_config(**PARTS["all at once"]), torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():
        expected = encoder(**stream(LENGTHS, 14)).sequence_output
        compile_encoder(encoder, dynamic=False, backend="aot_eager")
        found = encoder(**stream(LENGTHS, 14)).sequence_output
    torch._dynamo.reset()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_an_unknown_family_lists_the_known():
    with pytest.raises(ValueError):
        family_of("gpt2")
    assert ModuleSpec.from_node({"_target_": f"{B}.PostNorm"}, "x") == ModuleSpec(f"{B}.PostNorm")
