"""What a further member of the family adds: each addition is written here, and nothing else is."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.models import config as model_config
from clozelab.models import registry
from clozelab.models.attention import Mask, Rotation, ScoreBias, masked_pairs
from clozelab.models.attention_maps import capture_attention
from clozelab.models.config import EncoderConfig, ModuleSpec
from clozelab.models.cost import parameter_count, training_flops_per_token
from clozelab.models.embeddings import Positions, RotaryPositions
from clozelab.models.encoder import Encoder, LayerNorm, PreNorm, RMSNorm
from clozelab.models.families.bert import Family
from clozelab.models.folders import load_encoder, save_encoder_folder
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for

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


class FirstWithoutNorm(PreNorm):
    """Pre-norm whose layer 0 reads the embeddings as they are."""

    def __init__(self, config: EncoderConfig, layer_index: int, gated: bool = False) -> None:
        super().__init__(config, layer_index, gated)
        if layer_index == 0:
            self.attention_norm = nn.Identity()


class Fused(Family):
    """Query, key and value are one tensor, and every matrix stands in a third dimension."""

    model_type = "fused"
    class_name = "Fused"
    prefix = "model."
    layer_names: ClassVar[dict[str, str]] = {"attention.qkv": "attn.Wqkv"}
    encoder_names: ClassVar[dict[str, str]] = {"embeddings.word_embeddings": "embeddings.tokens"}

    def to_hf(self, state: Any) -> dict[str, Tensor]:
        tensors = super().to_hf(state)
        return {name: x[..., None] if x.ndim == 2 else x for name, x in tensors.items()}

    def from_hf(self, tensors: Any, names: Any) -> dict[str, Tensor]:
        flat = {name: x.squeeze(-1) if x.ndim == 3 else x for name, x in tensors.items()}
        return super().from_hf(flat, names)


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


def test_a_score_bias_learns_and_its_attention_is_shown(tiny_config):
    torch.manual_seed(0)
    encoder = Encoder(tiny_config(positions=part(HeadBias), attention=local())).eval()
    for layout in LAYOUTS.values():
        encoder.zero_grad()
        run(encoder, layout)[-1].square().sum().backward()
        table: Any = encoder.embeddings.position_embeddings.table
        assert table.grad.abs().min() > 0
    maps: list[Tensor] = []
    with capture_attention(encoder, maps.append):
        run(encoder, Layout.ragged([6]))
    with torch.no_grad():
        encoder.embeddings.position_embeddings.table.zero_()
    plain: list[Tensor] = []
    with capture_attention(encoder, plain.append):
        run(encoder, Layout.ragged([6]))
    # layer 0 is global, and its numbers are those of the table
    assert not torch.allclose(maps[0], plain[0], atol=1e-3)


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


def test_a_block_that_knows_its_number(tiny_config):
    config = tiny_config(block=part(FirstWithoutNorm), num_hidden_layers=4)
    norms = [type(layer.attention_norm) for layer in Encoder(config).layers()]
    assert norms == [nn.Identity, LayerNorm, LayerNorm, LayerNorm]
    # Layers that share weights: the number is the first one's.
    shared = Encoder(
        tiny_config(block=part(FirstWithoutNorm), num_hidden_layers=4, num_hidden_groups=2)
    )
    assert [type(layer.attention_norm) for layer in shared.layer] == [nn.Identity, LayerNorm]


@pytest.mark.parametrize(
    ("norm", "norm_parameters"),
    [({"_target_": "clozelab.models.encoder.LayerNorm", "bias": False}, 1), (part(RMSNorm), 1)],
    ids=["LayerNorm", "RMSNorm"],
)
def test_norms_and_biases_by_choice(tiny_config, norm, norm_parameters):
    """No bias anywhere but of the vocabulary; the folder remembers it."""
    config = tiny_config(norm=norm, use_bias=False)
    encoder = Encoder(config)
    head = family_for(config).head("lm", encoder)
    names = [name for name, _ in [*encoder.named_parameters(), *head.named_parameters()]]
    assert [name for name in names if name.endswith("bias")] == ["bias"]
    full = Encoder(tiny_config())
    assert len(list(full.parameters())) > len(list(encoder.parameters()))
    assert parameter_count(config) == sum(x.numel() for x in encoder.parameters())
    assert training_flops_per_token(config, 16, 0.1) == training_flops_per_token(
        tiny_config(), 16, 0.1
    )
    norms = [module for module in encoder.modules() if isinstance(module, LayerNorm | RMSNorm)]
    assert norms and all(len(list(one.parameters())) == norm_parameters for one in norms)
    x = torch.randn(3, config.hidden_size)
    expected = F.layer_norm(x, x.shape[1:], eps=config.layer_norm_eps)
    if isinstance(norms[0], RMSNorm):
        expected = x / (x.square().mean(-1, keepdim=True) + config.layer_norm_eps).sqrt()
    torch.testing.assert_close(norms[0](x), expected)
    family = family_for(config)
    assert family.from_hf_config(family.to_hf_config(config)) == config


def test_a_norm_that_is_not_said_is_the_usual_one(tiny_config):
    assert tiny_config(norm=None) == tiny_config()
    assert tiny_config().norm == ModuleSpec("clozelab.models.encoder.LayerNorm")


def test_a_family_that_stores_tensors_in_its_own_way(tiny_config, tmp_path, monkeypatch):
    """One Wqkv and matrices in three dimensions: the family says so, folders.py does not know."""
    module = ModuleType("clozelab.models.families.fused")
    module.FAMILY = Fused()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names = [SimpleNamespace(name="fused")]
    monkeypatch.setattr(registry.pkgutil, "iter_modules", lambda _: names)
    torch.manual_seed(0)
    encoder = Encoder(tiny_config(model_type="fused"))
    head = family_for(encoder.config).head("lm", encoder)
    save_encoder_folder(
        tmp_path / "encoder", encoder, heads={"lm": head}, tokenizer_files={}, extra_config={}
    )
    stored = load_file(tmp_path / "encoder" / "model.safetensors")
    fused = stored["model.encoder.layer.1.attn.Wqkv.weight"]
    width = encoder.config.hidden_size
    assert fused.shape == (3 * width, width, 1)
    assert torch.equal(fused[..., 0], encoder.layer[1].attention.qkv.weight)
    assert not any(".query." in name for name in stored)
    assert stored["model.embeddings.tokens.weight"].ndim == 3
    loaded = load_encoder(tmp_path / "encoder").state_dict()
    # Behind a wrapper's prefix, too.
    wrapped = {f"module.{name}": value for name, value in stored.items()}
    save_file(wrapped, tmp_path / "encoder" / "model.safetensors")
    (tmp_path / "encoder" / "checksums.json").unlink()
    unwrapped = load_encoder(tmp_path / "encoder").state_dict()
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, loaded[name]) and torch.equal(value, unwrapped[name]), name


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
