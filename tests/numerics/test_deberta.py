"""What DeBERTa alone has: its terms, options, and its decoder of masked tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.numerics import members
from tests.numerics.members import MEMBERS, Batch, Pair, assert_equal, case_of
from torch import Tensor

from clozelab.models import disentangled
from clozelab.models.attention_maps import capture_attention
from clozelab.models.disentangled import EnhancedMaskDecoder
from clozelab.models.encoder import Encoder
from clozelab.models.families.deberta_v2 import FAMILY
from clozelab.models.folders import load_encoder, read_config_dict, save_encoder_folder
from clozelab.modules.model import read_model, write_model

transformers = pytest.importorskip("transformers")

CASE = case_of("deberta-v2", lengths=[9, 17, 2])
KEYS = CASE.settings
OPTIONS = MEMBERS["deberta-v2"].variants
POSITIONS = "deberta.embeddings.position_embeddings.weight"


def test_exchanged_terms_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = members.build_pair(CASE, "Model", tmp_path)
    batch = members.make_batch(CASE)
    (expected,) = members.their_outputs(pair, batch)
    attend = disentangled._disentangled_attention

    def exchanged(projected: dict[str, Tensor], *arguments: Any) -> Tensor:
        values = list(projected.values())
        return attend(dict(zip(projected, values[::-1], strict=True)), *arguments)

    monkeypatch.setattr(disentangled, "_disentangled_attention", exchanged)
    (wrong,) = members.our_outputs(pair, batch)
    assert (wrong - expected).abs().max() > 1000 * members.TOLERANCE


@pytest.mark.parametrize("variant", list(OPTIONS))
def test_undeclared_keys_come_back(variant: str, tmp_path: Path) -> None:
    """Their class drops no key either, so the three configurations are one."""
    case = case_of("deberta-v2", variant).having(cls_dropout=0.3)
    pair = members.build_pair(case, "ForSequenceClassification", tmp_path)
    head: Any = pair.heads["classification"]
    assert head.dropout_prob == 0.3
    save_encoder_folder(
        tmp_path / "ours",
        pair.encoder,
        heads=pair.heads,
        tokenizer_files={},
        extra_config={"num_labels": 3},
    )
    assert load_encoder(tmp_path / "ours").config == pair.encoder.config
    before = read_config_dict(tmp_path / "theirs")
    after = read_config_dict(tmp_path / "ours")
    for values in (before, after):
        values["pos_att_type"].sort()
    declared = set(case.settings) - {"num_labels", "attn_implementation"}
    for key in (*declared, "pooler_dropout", "pooler_hidden_act"):
        assert after[key] == before[key], key
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours")
    for name, value in pair.theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("relative_attention", False),
        ("share_att_key", False),
        ("conv_groups", 2),
        ("embedding_size", 12),
        ("attention_head_size", 8),
        ("pooler_hidden_size", 12),
        ("pos_att_type", []),
        ("pos_att_type", ["p2p"]),
        ("norm_rel_ebd", "batch_norm"),
        ("conv_act", "swish"),
        ("conv_kernel_size", 4),
        ("position_buckets", 128),
    ],
)
def test_a_part_that_we_do_not_have_is_refused_by_its_key(key: str, value: Any) -> None:
    values = {**KEYS, "layer_norm_eps": 1e-7, "conv_kernel_size": 3}
    Encoder(FAMILY.from_hf_config(values))
    with pytest.raises(ValueError, match=key):
        Encoder(FAMILY.from_hf_config({**values, key: value}))


@pytest.fixture
def masked(tmp_path: Path) -> Callable[..., tuple[Any, Path]]:
    """masked(legacy, positions): theirs, and a folder with the head under its names."""

    def make(legacy: bool, positions: bool = False, **changes: Any) -> tuple[Any, Path]:
        case = CASE.having(legacy=legacy, **changes)
        model = members.build_theirs(case, "ForMaskedLM", tmp_path / "theirs")
        if positions:
            tensors = load_file(tmp_path / "theirs" / "model.safetensors")
            tensors[POSITIONS] = torch.randn(KEYS["max_position_embeddings"], KEYS["hidden_size"])
            save_file(tensors, tmp_path / "theirs" / "model.safetensors")
        for name, content in members.tokenizer_of(case).files().items():
            (tmp_path / "theirs" / name).write_bytes(content)
        return model, tmp_path / "theirs"

    return make


@pytest.mark.parametrize("adds_positions", [False, True])
@pytest.mark.parametrize("legacy", [True, False], ids=["cls.predictions", "lm_predictions"])
def test_both_kinds_of_masked_lm_head_are_read(
    legacy: bool, adds_positions: bool, masked: Any, tmp_path: Path
) -> None:
    theirs, folder = masked(legacy, position_biased_input=adds_positions)
    names = load_file(folder / "model.safetensors")
    assert any(name.startswith("lm_predictions.lm_head.") for name in names) is not legacy
    model = read_model(folder)
    assert set(model.heads) == {"lm"}
    write_model(tmp_path / "ours", model.encoder, model.heads, model.tokenizer)
    again, info = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    batch = members.make_batch(CASE)
    for read in (model, read_model(tmp_path / "ours")):
        for hf in (theirs, again.eval()):
            pair = Pair(CASE, hf, read.encoder, dict(read.heads))
            for head, mine, other in members.both_outputs(pair, batch):
                assert_equal(mine, other, head)


def plain_decoder(theirs: Any, batch: dict[str, Tensor], positions: Tensor) -> Tensor:
    """The states that tokens are predicted from [B, S, H], by transformers' own layer."""
    deberta = theirs.deberta
    states = deberta(**batch, output_hidden_states=True).hidden_states
    mask = deberta.encoder.get_attention_mask(batch["attention_mask"])
    queries = states[-2] + positions[: batch["input_ids"].shape[1]]
    for _ in range(2):
        queries = deberta.encoder.layer[-1](
            states[-2],
            mask,
            query_states=queries,
            relative_pos=deberta.encoder.get_rel_pos(states[-2]),
            rel_embeddings=deberta.encoder.get_rel_embedding(),
        )[0]
    return queries


def decoded(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Our logits by the decoder, and by the head alone."""
    head = model.heads["lm"]
    assert isinstance(head, EnhancedMaskDecoder)
    output = model.encoder(**batch.ours, output_hidden_states=True)
    queries = batch.ours | {"prediction_positions": batch.rows}
    return (
        head(head.states(model.encoder, output, queries)),
        head(output.sequence_output[batch.rows]),
    )


@pytest.mark.parametrize("kind", ["ragged", "rectangle"])
def test_the_enhanced_mask_decoder_of_a_published_folder(
    kind: str, masked: Any, tmp_path: Path
) -> None:
    """Its positions stand below an encoder that does not add them."""
    theirs, folder = masked(legacy=False, positions=True)
    positions = load_file(folder / "model.safetensors")[POSITIONS].requires_grad_()
    batch = members.make_batch(CASE, kind)
    states = plain_decoder(theirs, batch.theirs, positions)
    words = theirs.deberta.embeddings.word_embeddings
    expected = batch.real(theirs.lm_predictions(states, words))
    model = read_model(folder)
    write_model(tmp_path / "ours", model.encoder, model.heads, model.tokenizer)
    written = load_file(tmp_path / "ours/model.safetensors")
    assert written.keys() == load_file(folder / "model.safetensors").keys()
    again = read_model(tmp_path / "ours")
    for read in (model, again):
        logits, alone = decoded(read, batch)
        assert_equal(logits, expected, "logits")
        assert (alone - expected).abs().max() > 1000 * members.TOLERANCE
    logits.square().mean().backward()
    expected.square().mean().backward()
    head: Any = again.heads["lm"]
    assert_equal(head.position_embeddings.weight.grad, positions.grad, "gradient of positions")
    last = theirs.deberta.encoder.layer[-1].attention.self
    of_last: Any = again.encoder.layer[-1]
    parts = of_last.attention.qkv.weight.grad.chunk(3)
    for mine, other in zip(parts, (last.query_proj, last.key_proj, last.value_proj), strict=True):
        assert_equal(mine, other.weight.grad, "gradient of the last layer")
    # Their class of masked language models has no decoder, so the folder does not name it.
    assert read_config_dict(tmp_path / "ours")["architectures"] == ["DebertaV2Model"]
    plain = transformers.AutoModel.from_pretrained(tmp_path / "ours").eval()
    values = [batch.real(model(**batch.theirs)[0]) for model in (plain, theirs.deberta)]
    assert_equal(*values, "AutoModel's states")


def test_a_convolution_and_a_causal_mask_do_not_go_together() -> None:
    encoder = Encoder(FAMILY.from_hf_config({**KEYS, "conv_kernel_size": 3}))
    encoder.masks = [mask._replace(is_causal=True) for mask in encoder.masks]
    with pytest.raises(ValueError, match="convolution"):
        encoder(**members.make_batch(CASE).ours)


def test_attention_maps_in_bf16_are_about_those_in_fp32(tmp_path: Path) -> None:
    encoder = members.build_pair(CASE, "Model", tmp_path).encoder
    batch = members.make_batch(case_of("deberta-v2", lengths=[17]))
    maps: list[list[Tensor]] = []
    for is_bf16 in (False, True):
        layers: list[Tensor] = []
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=is_bf16)
        with torch.no_grad(), autocast, capture_attention(encoder, layers.append):
            encoder.read(batch.ours)
        maps.append(layers)
    torch.testing.assert_close(maps[1], maps[0], atol=0.05, rtol=0)
