"""Equal to torch's bidirectional LSTM run on each sequence alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clozelab.models.heads import BiLSTM
from clozelab.models.layout import Layout

LENGTHS = [5, 1, 9, 3]


def _torch_twin(ours: BiLSTM) -> nn.LSTM:
    size = ours.layers[0].forward_direction
    twin = nn.LSTM(
        size.input_size, size.hidden_size, len(ours.layers), batch_first=True, bidirectional=True
    )
    for index, layer in enumerate(ours.layers):
        for suffix, direction in (
            ("", layer.forward_direction),
            ("_reverse", layer.backward_direction),
        ):
            for name, value in direction.named_parameters():
                getattr(twin, name.replace("_l0", f"_l{index}{suffix}")).data.copy_(value.data)
    return twin


@pytest.mark.parametrize(
    "layout", [Layout.ragged(LENGTHS), Layout.rectangle(LENGTHS, 10)], ids=["ragged", "rectangle"]
)
@pytest.mark.parametrize("num_layers", [1, 2])
def test_equals_torch_per_sequence(layout, num_layers):
    torch.manual_seed(0)
    ours = BiLSTM(6, 4, num_layers, dropout_prob=0.0)
    twin = _torch_twin(ours)
    x = torch.randn(layout.num_slots, 6, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    out = ours(x, layout)
    assert out.shape == (layout.num_slots, 8)
    weights = torch.randn_like(out)
    loss = 0.0
    for start, length in zip(layout.first_rows.tolist(), LENGTHS, strict=True):
        rows = slice(start, start + length)
        expected = twin(other[None, rows])[0][0]
        torch.testing.assert_close(out[rows], expected, atol=1e-6, rtol=0)
        loss = loss + (expected * weights[rows]).sum()
    (out * weights).sum().backward()
    loss.backward()
    torch.testing.assert_close(x.grad, other.grad, atol=1e-5, rtol=0)
    grad = ours.layers[0].backward_direction.weight_hh_l0.grad
    torch.testing.assert_close(grad, twin.weight_hh_l0_reverse.grad, atol=1e-5, rtol=0)


def test_under_autocast_it_stays_fp32():
    layout = Layout.ragged(LENGTHS)
    module = BiLSTM(6, 4, 1, dropout_prob=0.0)
    x = torch.randn(layout.num_slots, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = module(x.bfloat16(), layout)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, module(x.bfloat16().float(), layout))


def test_dropout_between_layers_only_in_training():
    layout = Layout.ragged(LENGTHS)
    module = BiLSTM(6, 4, 2, dropout_prob=0.5)
    x = torch.randn(layout.num_slots, 6)
    assert not torch.equal(module(x, layout), module(x, layout))
    module.eval()
    assert torch.equal(module(x, layout), module(x, layout))
