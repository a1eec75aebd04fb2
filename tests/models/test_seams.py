"""What a further member of the family adds: each addition is written here, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clozelab.models import config as model_config
from clozelab.models.attention import Mask, Rotation, ScoreBias, masked_pairs
from clozelab.models.config import EncoderConfig
from clozelab.models.embeddings import Positions, RotaryPositions
from clozelab.models.encoder import Encoder
from clozelab.models.layout import Layout

LENGTHS = [5, 11, 2, 7]
LAYOUTS = {
    "padded": Layout.rectangle(LENGTHS, 11),
    "ragged": Layout.ragged(LENGTHS),
    "equal": Layout.ragged([6, 6]),
}


class RotaryByKind(RotaryPositions):
    """Layers that see a window turn faster."""

    def __init__(self, config: EncoderConfig, base: float, window_base: float) -> None:
        super().__init__(config, base)
        self.window = RotaryPositions(config, window_base)

    def rotation(self, position_ids: Tensor, mask: Mask) -> Rotation | None:
        if mask.window is None:
            return super().rotation(position_ids, mask)
        return self.window.rotation(position_ids, mask)


class HeadBias(Positions):
    """A learned number a head and a distance up to `reach`, added to scores of global layers."""

    def __init__(self, config: EncoderConfig, reach: int = 3) -> None:
        super().__init__()
        self.reach = reach
        self.table = nn.Parameter(torch.randn(2 * reach + 1, config.num_attention_heads))

    def forward(self, position_ids: Tensor) -> None:
        """Nothing is added to the embeddings."""

    def score_bias(self, position_ids: Tensor, mask: Mask) -> ScoreBias | None:
        return ScoreBias(self.bias, position_ids) if mask.window is None else None

    def bias(self, q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
        """[B, N, S, S]."""
        distance = positions[:, None, :] - positions[:, :, None]
        rows = self.table[distance.clamp(-self.reach, self.reach) + self.reach]
        return rows.permute(0, 3, 1, 2)


@pytest.fixture(autouse=True)
def parts_of_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is a class below clozelab.models: here this file is, too."""
    monkeypatch.setattr(model_config, "PART_PACKAGE", "")


def part(part_class: type, **options: Any) -> dict[str, Any]:
    return {"_target_": f"{part_class.__module__}.{part_class.__name__}", **options}


def local(global_every: int = 2) -> dict[str, Any]:
    return {
        "_target_": "clozelab.models.attention.LocalAttention",
        "window": 2,
        "global_every": global_every,
    }


def run(encoder: Encoder, layout: Layout) -> list[Tensor]:
    """The states of all layers at real tokens."""
    generator = torch.Generator().manual_seed(1)
    slots = layout.num_slots
    ids = torch.randint(0, encoder.config.vocab_size, (slots,), generator=generator)
    width = layout.dense_width
    if width is None:
        positions = torch.cat([torch.arange(length) for length in layout.lengths_list])
    else:
        positions = torch.arange(width).repeat(layout.batch_size)
    output = encoder(ids, torch.zeros_like(ids), positions, layout, output_hidden_states=True)
    rows = []
    for start, length in zip(layout.first_rows.tolist(), layout.lengths_list, strict=True):
        rows.append(torch.arange(start, start + length))
    return [states[torch.cat(rows)] for states in output.hidden_states]


def plain_layer(encoder: Encoder, number: int, hidden: Tensor, lengths: list[int]) -> Tensor:
    """A post-norm layer written out, one sequence after the other."""
    layer: Any = encoder.layers()[number]
    mask = encoder.masks[number]
    scheme = encoder.embeddings.position_embeddings
    outputs = []
    for x in hidden.split(lengths):
        length = len(x)
        positions = torch.arange(length)
        shape = (length, 3, layer.attention.num_heads, layer.attention.head_dim)
        q, k, v = layer.attention.qkv(x).view(shape).unbind(1)
        rotation = scheme.rotation(positions, mask)
        if rotation is not None:
            q, k = rotation(q), rotation(k)
        scores = torch.einsum("qnd,knd->nqk", q, k) / layer.attention.head_dim**0.5
        if isinstance(scheme, HeadBias) and mask.window is None:
            for query in range(length):
                for key in range(length):
                    distance = min(max(key - query, -scheme.reach), scheme.reach)
                    scores[:, query, key] += scheme.table[distance + scheme.reach]
        scores = scores.masked_fill(masked_pairs(length, mask, x.device), -torch.inf)
        attended = torch.einsum("nqk,knd->qnd", scores.softmax(-1), v).flatten(1)
        attended = layer.attention.output(attended, x)
        outputs.append(layer.output(layer.intermediate(attended), attended))
    return torch.cat(outputs)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(
    "positions", [part(RotaryByKind, base=10_000.0, window_base=20.0), part(HeadBias)], ids=str
)
def test_positions_by_kind_of_layer(tiny_config, positions, layout):
    """A window layer's own rotation, a bias a head in global layers; by a plain implementation."""
    torch.manual_seed(0)
    encoder = Encoder(tiny_config(positions=positions, attention=local())).eval()
    states = run(encoder, layout)
    for number in range(encoder.config.num_hidden_layers):
        expected = plain_layer(encoder, number, states[number], layout.lengths_list)
        torch.testing.assert_close(states[number + 1], expected, atol=1e-5, rtol=0)


def test_a_causal_score_bias_sees_the_past_only(tiny_config):
    torch.manual_seed(0)
    encoder = Encoder(tiny_config(positions=part(HeadBias), is_causal=True)).eval()
    expected = run(encoder, Layout.ragged([9]))[-1]
    for kernel in ("bmm", "sdpa"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("clozelab.models.attention._default_kernel", lambda _, k=kernel: k)
            states = run(encoder, Layout.ragged([9]))
        torch.testing.assert_close(states[-1], expected, atol=1e-6, rtol=0)
    for number in range(encoder.config.num_hidden_layers):
        of_layer = plain_layer(encoder, number, states[number], [9])
        torch.testing.assert_close(states[number + 1], of_layer, atol=1e-5, rtol=0)


def test_what_a_batch_lets_tokens_see(tiny_config):
    """Visibility as data: a prefix and a permutation, in one batch, by a plain implementation."""
    torch.manual_seed(0)
    encoder = Encoder(tiny_config()).eval()
    width = 8
    order = torch.randperm(width)
    visibility = torch.stack(
        [
            (torch.arange(width)[None, :] < 3).expand(width, width),  # a prefix of three
            order[None, :] <= order[:, None],
        ]
    )
    # All but the last slot of the prefix see themselves, and one slot sees nothing.
    visibility[0] |= torch.diag(torch.arange(width) < 7)
    visibility[1, 2] = False
    layout = Layout.rectangle([width, 6], width, visibility=visibility)
    states = run(encoder, layout)
    layer: Any = encoder.layers()[0]
    seen = visibility.clone()
    seen[1, 2, 2] = True  # where else would it look
    for row, length in enumerate([width, 6]):
        x = states[0][:width] if row == 0 else states[0][width:]
        q, k, v = layer.attention.qkv(x).view(length, 3, -1, layer.attention.head_dim).unbind(1)
        scores = torch.einsum("qnd,knd->nqk", q, k) / layer.attention.head_dim**0.5
        scores = scores.masked_fill(~seen[row, :length, :length], -torch.inf)
        attended = torch.einsum("nqk,knd->qnd", scores.softmax(-1), v).flatten(1)
        attended = layer.attention.output(attended, x)
        expected = layer.output(layer.intermediate(attended), attended)
        actual = states[1][:width] if row == 0 else states[1][width:]
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    # It travels with the layout, and changes what is remembered.
    assert torch.equal(layout.to("cpu").visibility, visibility)
    free = run(encoder, Layout.rectangle([width, 6], width))
    assert not torch.allclose(free[1], states[1], atol=1e-4)
