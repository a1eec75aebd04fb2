"""Tests of clozelab.models.cost: published sizes, a closed form, and torch's own counter."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from tests.composing import composed
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from clozelab.models.config import EncoderConfig
from clozelab.models.cost import parameter_count, trained_parameters, training_flops_per_token
from clozelab.models.encoder import Encoder
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for, family_of
from clozelab.text.paths import CONF_DIR

BASE = EncoderConfig(30522, 768, 12, 12, 3072, "gelu", 0.1, 0.1, 512, 2, 0.02, 1e-12, "normal")
ROBERTA = {"model_type": "roberta", "type_vocab_size": 1, "vocab_size": 50265, "pad_token_id": 1}
ROBERTA["positions"] = {
    "_target_": "clozelab.models.embeddings.LearnedPositions",
    "after_padding": True,
}
ALBERT = {
    "model_type": "albert",
    "vocab_size": 30000,
    "embedding_size": 128,
    "num_hidden_groups": 1,
}
ALBERT["projects_embeddings"] = True
ELECTRA = {"model_type": "electra", "pooler": None}
WINDOW = {
    "attention": {
        "_target_": "clozelab.models.attention.LocalAttention",
        "window": 16,
        "global_every": 3,
    }
}
ODD_PARTS = {
    "positions": {"_target_": "clozelab.models.embeddings.RotaryPositions"},
    "block": {"_target_": "clozelab.models.encoder.PreNorm", "gated": True},
    "embedding_size": 16,
    "num_hidden_groups": 2,
}
MODERNBERT = {"model_type": "modernbert", **family_of("modernbert").parts}
NEOBERT = {"model_type": "neobert", **family_of("neobert").parts}
ULTRABERT = {"model_type": "ultrabert", **family_of("ultrabert").parts}
ERNIE = {"model_type": "ernie", "hidden_act": "relu"}
DEBERTA = {
    "model_type": "deberta-v2",
    "positions": {"_target_": "clozelab.models.disentangled.DisentangledPositions"},
}


def _shape(layers: int, hidden: int, heads: int | None = None, vocab: int = 30522) -> dict:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads or hidden // 64,
        "intermediate_size": 4 * hidden,
        "vocab_size": vocab,
        "max_position_embeddings": 512,
    }


def sized(**changes: Any) -> EncoderConfig:
    return EncoderConfig(
        **{**BASE.to_dict(), "embedding_size": 0, "num_hidden_groups": 0, **changes}
    )


def closed_form(config: EncoderConfig, seq_length: int, predicted_fraction: float) -> float:
    """BERT's, for layers of any width: 3 (L (8 H^2 + 4 H I + 4 S H) + f (2 H^2 + 2 H V))."""
    hidden = config.hidden_size
    vocab = config.vocab_size
    layer = 8 * hidden**2 + 4 * hidden * config.intermediate_size + 4 * seq_length * hidden
    return 3.0 * (
        config.num_hidden_layers * layer + predicted_fraction * (2 * hidden**2 + 2 * hidden * vocab)
    )


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (sized(**_shape(12, 768)), 109_482_240),
        (sized(**_shape(24, 1024)), 335_141_888),
        (sized(**_shape(12, 768, vocab=28996)), 108_310_272),
        (sized(**_shape(24, 1024, vocab=28996)), 333_579_264),
        (sized(**ROBERTA), 124_645_632),
        (sized(**{**_shape(24, 1024), **ROBERTA}), 355_359_744),
        (sized(**ALBERT), 11_683_584),
        (sized(**{**_shape(24, 1024), **ALBERT}), 17_683_968),
        (sized(**{**_shape(24, 2048), **ALBERT}), 58_724_864),
        (sized(**{**_shape(12, 4096), **ALBERT}), 222_595_584),
        (sized(**ELECTRA), 108_891_648),
        (sized(**{**_shape(24, 1024), **ELECTRA}), 334_092_288),
        (sized(**{**_shape(12, 256), **ELECTRA, "embedding_size": 128}), 13_483_008),
    ],
    ids=lambda value: (
        f"{value.model_type} H{value.hidden_size}" if isinstance(value, EncoderConfig) else ""
    ),
)
def test_released_sizes(config, count):
    """As transformers' classes without heads count them."""
    assert parameter_count(config) == count


@pytest.mark.shared
def test_every_size_of_the_paper_and_of_the_compact_models(shared_dir):
    yaml = pytest.importorskip("yaml")
    tables = yaml.safe_load((shared_dir / "paper" / "tables.yaml").read_text())
    compact = tables["compact_models"]
    for row, millions in compact["parameters_millions"].items():
        for hidden, expected in zip(compact["sizes"]["H"], millions, strict=True):
            assert (
                round(parameter_count(sized(**_shape(int(row[1:]), hidden))) / 1e6, 2) == expected
            )
    table6 = tables["table6_model_size"]
    for (layers, hidden, heads, *_), expected in zip(
        table6["rows"], table6["parameters_millions"], strict=True
    ):
        assert round(parameter_count(sized(**_shape(layers, hidden, heads))) / 1e6, 2) == expected


@pytest.mark.parametrize("seq_length", [64, 127, 512])
@pytest.mark.parametrize("fraction", [0.0, 0.15, 1.0])
def test_bert_equals_its_closed_form_to_the_digit(seq_length, fraction):
    for config in (
        BASE,
        sized(**_shape(24, 1024)),
        sized(**{**_shape(2, 96, 3), "intermediate_size": 100}),
    ):
        assert training_flops_per_token(config, seq_length, fraction) == closed_form(
            config, seq_length, fraction
        )


def test_xlnets_scores_are_one_product_more_and_two_vectors():
    """Of a query with distances, with two segments, and of a bias with keys."""
    parts = family_of("xlnet").parts
    config = sized(model_type="xlnet", **parts)
    hidden = config.hidden_size
    head = 3 * 0.15 * 2 * hidden**2  # no dense layer before the vocabulary
    for length in (2, 128, 512):
        scores = 2 * length * hidden + 2 * 2 * hidden + 2 * hidden
        added = 3 * config.num_hidden_layers * scores - head
        counted = training_flops_per_token(config, length, 0.15)
        assert counted == pytest.approx(closed_form(config, length, 0.15) + added, rel=1e-12)


@pytest.mark.parametrize(
    "parts",
    [{}, ROBERTA, ALBERT, ELECTRA, ODD_PARTS, MODERNBERT, NEOBERT, ULTRABERT, ERNIE, DEBERTA],
    ids=lambda parts: parts.get("model_type", "odd" if parts else "bert"),
)
@pytest.mark.usefixtures("counted_attention")
def test_equals_torchs_counter_of_a_real_forward(parts):
    """With kernels of the CPU, which compute the model's own products alone, and DeBERTa's."""
    config = sized(
        **{**_shape(4, 48, 3), **parts, "vocab_size": 101, "embedding_size": 20 if parts else 0}
    )
    encoder = Encoder(config).eval().requires_grad_(False)  # else torch's counter hooks gradients
    seq_length = 30
    predicted = 6
    family = family_for(config)
    heads = {kind: family.head(kind, encoder).eval() for kind in ("lm", "rtd")}
    ids = torch.arange(seq_length)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        states = encoder(
            ids, ids % 2, ids, Layout.rectangle([seq_length], seq_length)
        ).sequence_output
        heads["rtd"](states)
        heads["lm"](states[:predicted])
    counted = training_flops_per_token(
        config, seq_length, predicted / seq_length, ("lm", "rtd", "nsp")
    )
    forward = counter.get_total_flops()
    if parts is DEBERTA:
        # In each layer, for either term: a key or a query of each distance in rows of up to 32
        # slots, and products with distances that a slot of this row has no other slot at.
        hidden = config.hidden_size
        made = 2 * 63 * hidden**2 + 2 * seq_length * (seq_length - 1) * hidden
        forward -= config.num_hidden_layers * 2 * made
    assert counted == pytest.approx(3 * forward / seq_length, rel=1e-12)


LONG = {"_target_": "clozelab.models.attention.LongAttention", "window": [16, *[300] * 11]}
BLOCKS = {"_target_": "clozelab.models.attention.BlockAttention", "block_size": 16}
BLOCKS["num_random_blocks"] = 2
GATED = {"_target_": "clozelab.models.encoder.PostNorm", "gated": True}
OF_A_KEY = 3 * 4 * BASE.hidden_size  # in a layer, of a token that sees it


@pytest.mark.parametrize(
    ("parts", "length", "saved"),
    [
        ({"num_hidden_groups": 1}, 128, 0),
        # Layers 0, 3, 6 and 9 see all 512 tokens, the other eight 33 of them.
        (WINDOW, 512, OF_A_KEY * 8 * (512 - 33)),
        (WINDOW, 20, 0),
        # Of twelve windows one is narrower than the text.
        ({"attention": LONG}, 512, OF_A_KEY * (512 - 33)),
        # Nine blocks of keys are multiplied, and all of a text of nine.
        ({"attention": BLOCKS}, 512, OF_A_KEY * 12 * (512 - 9 * 16)),
        ({"attention": BLOCKS}, 144, 0),
        ({"block": GATED}, 128, -3 * 12 * 2 * BASE.hidden_size * 3072),
    ],
)
def test_shared_layers_work_as_often_and_windows_less(
    parts: dict[str, Any], length: int, saved: int
) -> None:
    counted = training_flops_per_token(sized(**parts), length, 0.15)
    assert counted == closed_form(BASE, length, 0.15) - saved


def _forget() -> None:
    """What modules of encoders remember is made anew, as in another process."""
    for name, module in list(sys.modules.items()):
        if name.startswith("clozelab.models"):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (CONF_DIR / "architecture").glob("*"))
)
def test_what_ran_before_changes_no_training_step(name: str) -> None:
    """Neither counting nor inference in bf16 leaves anything behind that a step in fp32 reads."""
    cfg: Any = composed("pretrain", [f"architecture={name}", "model=tiny"]).config
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(**vars(cfg.model), **vars(cfg.architecture), vocab_size=101))

    def states(layout: Layout) -> Tensor:
        ids = torch.cat([torch.arange(30), torch.arange(17)])
        output = encoder(ids, ids % 2, ids, layout).sequence_output
        return torch.cat([output, encoder.token_states(output, layout)])

    def step(layout: Layout) -> list[Tensor]:
        torch.manual_seed(1)
        output = states(layout)
        loss = output[:, :20].square().sum()
        trained = [weight for weight in encoder.parameters() if weight.requires_grad]
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        return [output.detach(), *(gradient for gradient in gradients if gradient is not None)]

    _forget()
    expected = step(Layout.ragged([30, 17]))
    _forget()
    layout = Layout.ragged([30, 17])
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        training_flops_per_token(encoder.config, 30, 0.15)
        states(layout)
    torch.testing.assert_close(step(layout), expected, atol=0.0, rtol=0.0)


def test_trained_parameters_of_bert_base_without_its_memory():
    with torch.device("meta"):
        encoder = Encoder(BASE)
        model = nn.Module()
        model.encoder = encoder
        heads = {kind: family_of("bert").head(kind, encoder) for kind in ("lm", "nsp")}
        model.heads = nn.ModuleDict(heads)
    assert trained_parameters({"encoder": model}) == 110_106_428  # transformers' BertForPreTraining
