"""Tests of clozelab.models.encoder: what a token may see, layouts that agree, fresh weights."""

from __future__ import annotations

import pickle

import pytest
import torch

from clozelab.models import encoder as encoder_module
from clozelab.models.encoder import Encoder, round_up_to_bucket

LENGTHS = [7, 12, 3, 12]


def _states(encoder, arguments):
    with torch.no_grad():
        return encoder.eval()(**arguments).sequence_output


@pytest.mark.parametrize("row_slots", [None, 14])
def test_causal_encoder_sees_no_right_context_and_the_other_does(tiny_config, stream, row_slots):
    changed_row = 4
    sequence_start = 0
    for is_causal in (True, False):
        encoder = Encoder(tiny_config(is_causal=is_causal), torch.Generator().manual_seed(0))
        arguments = stream(LENGTHS, row_slots)
        before = _states(encoder, arguments)
        arguments["input_ids"] = arguments["input_ids"].clone()
        arguments["input_ids"][changed_row] = 1 + arguments["input_ids"][changed_row] % 90
        moved = (_states(encoder, arguments) - before).abs().amax(dim=1)
        left = moved[sequence_start:changed_row]
        assert (left == 0).all() if is_causal else (left > 1e-4).all()
        assert (moved[changed_row : LENGTHS[0]] > 1e-4).all()
        assert (moved[arguments["layout"].first_rows[1] :][: LENGTHS[1]] == 0).all(), (
            "another sequence moved"
        )


def test_rounding_a_ragged_stream_up_changes_nothing(tiny_config, stream, monkeypatch):
    encoder = Encoder(tiny_config(), torch.Generator().manual_seed(0))
    arguments = stream(LENGTHS)
    results = []
    sizes = []
    encoder.layer[0].register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    for rounded in (lambda slots: slots, round_up_to_bucket, lambda slots: slots + 100):
        monkeypatch.setattr(encoder_module, "round_up_to_bucket", rounded)
        encoder.zero_grad()
        output = encoder(**arguments, output_hidden_states=True)
        (output.sequence_output.square().sum() + output.hidden_states[1].sum()).backward()
        grads = [
            parameter.grad.clone()
            for name, parameter in encoder.named_parameters()
            if "pooler" not in name
        ]
        results.append([*(hidden.detach() for hidden in output.hidden_states), *grads])
    assert sizes == [34, 40, 134]
    for plain, *others in zip(*results, strict=True):
        for other in others:
            torch.testing.assert_close(other, plain, atol=1e-6, rtol=1e-5)


def test_few_shapes_adds_little_and_leaves_few():
    sizes = range(64, 4096)
    assert max(round_up_to_bucket(size) / size for size in sizes) <= 1.125
    assert sum(round_up_to_bucket(size) / size - 1 for size in sizes) / len(sizes) < 0.03
    assert len({round_up_to_bucket(size) for size in sizes}) <= 6 * 16
    assert all(round_up_to_bucket(size) >= size for size in range(1, 64))


def test_fresh_weights_are_a_function_of_the_seed(tiny_config):
    config = tiny_config(hidden_size=96, initializer_range=0.02)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, two, other = (Encoder(config, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state), (
        "a generator was given, the global state must not move"
    )
    pairs = list(zip(one.parameters(), two.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)
    torch.manual_seed(5)
    first = Encoder(config)
    torch.manual_seed(5)
    assert all(
        torch.equal(a, b)
        for a, b in zip(first.parameters(), Encoder(config).parameters(), strict=True)
    )


def test_fresh_weights_have_the_released_distribution(tiny_config):
    encoder = Encoder(tiny_config(hidden_size=96, intermediate_size=384, initializer_range=0.02))
    for name, parameter in encoder.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "LayerNorm" in name:
            assert (parameter == 1).all(), name
        else:
            assert parameter.abs().max() <= 0.04, name
    matrix = encoder.layer[0].intermediate.dense.weight
    # A normal cut at two standard deviations keeps 0.8796 of its deviation.
    assert matrix.std().item() == pytest.approx(0.02 * 0.8796, rel=0.02)
    assert matrix.abs().max() > 0.039


def test_sinusoidal_start_has_the_same_scale_and_learns(tiny_config):
    encoder = Encoder(tiny_config(position_embedding_init="sinusoidal", initializer_range=0.05))
    table = encoder.embeddings.position_embeddings.weight
    assert table.requires_grad
    assert table.square().mean().sqrt().item() == pytest.approx(0.05, rel=1e-3)
    assert torch.equal(table[0, 0::2], torch.zeros(12))


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "relu"])
def test_pickles(tiny_config, stream, hidden_act):
    encoder = Encoder(tiny_config(hidden_act=hidden_act))
    twin = pickle.loads(pickle.dumps(encoder))
    assert torch.equal(_states(encoder, stream(LENGTHS)), _states(twin, stream(LENGTHS)))


def test_bf16_autocast_stays_close(tiny_config, stream):
    encoder = Encoder(tiny_config())
    arguments = stream(LENGTHS, row_slots=14)
    exact = _states(encoder, arguments)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (_states(encoder, arguments) - exact).abs().max() < 0.15


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor has no bf16 products"
)
def test_a_bias_added_in_the_product_gives_the_same_bits(tiny_config, stream, monkeypatch):
    encoder = Encoder(tiny_config()).eval()
    arguments = stream(LENGTHS)

    def states() -> torch.Tensor:
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            return encoder(**arguments).sequence_output

    with torch.profiler.profile() as profile:
        fused = states()
    assert any("_linear_pointwise" in event.name for event in profile.events())
    # a torch built without oneDNN has neither the product nor the question
    with monkeypatch.context() as changed:
        changed.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        changed.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
        assert torch.equal(fused, states())
