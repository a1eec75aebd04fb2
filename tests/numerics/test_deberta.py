"""DeBERTa's parts one by one against transformers' classes, all parameters random: fp32, 1e-5."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.models import disentangled
from clozelab.models.attention_maps import noted_attention
from clozelab.models.config import EncoderConfig
from clozelab.models.disentangled import EnhancedMaskDecoder
from clozelab.models.encoder import Encoder
from clozelab.models.families.deberta_v2 import FAMILY
from clozelab.models.folders import load_encoder, load_head, read_config_dict, save_encoder_folder
from clozelab.models.layout import Layout
from clozelab.modules.model import read_model, write_model

transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
VOCAB = 113
WORDS = [f"Word{number}" for number in range(VOCAB - len(SPECIAL_TOKENS))]
TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *WORDS], lowercase=False)
KEYS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "num_hidden_layers": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 48,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "relative_attention": True,
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "v3": {},
    "convolution": {"conv_kernel_size": 3, "conv_act": "gelu"},
    "wide convolution, positions, types": {
        "conv_kernel_size": 5,
        "position_biased_input": True,
        "type_vocab_size": 2,
    },
    "c2p": {"pos_att_type": ["c2p"]},
    "p2c": {"pos_att_type": ["p2c"]},
    "no buckets": {"position_buckets": -1, "max_relative_positions": 5, "norm_rel_ebd": "none"},
    "odd buckets": {"position_buckets": 7, "max_relative_positions": 20},
}
# Distances reach far beyond the last bucket.
LENGTHS: dict[str, list[int]] = {
    "unequal": [9, 17, 1, 2, 48],
    "one": [1, 1],
    "two": [2, 2, 3],
    "long": [47, 48],
}


def random_model(suffix: str = "Model", **changes: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.DebertaV2Config(**KEYS | changes)
    model = getattr(transformers, f"DebertaV2{suffix}")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def random_batch(lengths: list[int]) -> tuple[dict[str, Tensor], Tensor]:
    """Their padded batch, and where it has tokens; the padding id stands in the text, too."""
    generator = torch.Generator().manual_seed(1)
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(0, VOCAB, real.shape, generator=generator) * real
    types = torch.randint(0, 2, real.shape, generator=generator) * real
    return {"input_ids": ids, "attention_mask": real.long(), "token_type_ids": types}, real


def stream(batch: dict[str, Tensor], real: Tensor, kind: str) -> tuple[dict[str, Any], Tensor]:
    """Our arguments, and the slots of the stream that hold tokens."""
    lengths = real.sum(1).tolist()
    slots = torch.arange(real.shape[1]).expand_as(real)
    tensors = {
        "input_ids": batch["input_ids"],
        "token_type_ids": batch["token_type_ids"],
        "position_ids": slots,
    }
    if kind == "ragged":
        packed = {name: tensor[real] for name, tensor in tensors.items()}
        return packed | {"layout": Layout.ragged(lengths)}, torch.arange(sum(lengths))
    packed = {name: tensor.flatten() for name, tensor in tensors.items()}
    layout = Layout.rectangle(lengths, real.shape[1])
    return packed | {"layout": layout}, real.flatten().nonzero().squeeze(1)


def assert_equal(ours: Tensor, theirs: Tensor, name: str) -> None:
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=TOLERANCE, msg=name)


@pytest.mark.parametrize("kind", ["ragged", "padded"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_state_loss_and_gradient(options, lengths, kind, tmp_path, hf_gradients):
    theirs = random_model("ForMaskedLM", **options)
    theirs.save_pretrained(tmp_path)
    encoder = load_encoder(tmp_path).eval()
    head: Any = FAMILY.head("lm", encoder)
    load_head(tmp_path, "lm", head)
    batch, real = random_batch(lengths)
    # Every third token is asked for, of each sequence at least the first.
    asked = real & (torch.arange(real.shape[1]) % 3 == 0)
    labels = batch["input_ids"].masked_fill(~asked, -100)
    expected = theirs(**batch, labels=labels, output_hidden_states=True)
    arguments, rows = stream(batch, real, kind)
    output = encoder(**arguments, output_hidden_states=True)
    for number, (mine, other) in enumerate(
        zip(output.hidden_states, expected.hidden_states, strict=True)
    ):
        assert_equal(mine[rows], other[real], f"hidden state {number}")
    states = output.sequence_output[rows]
    assert_equal(head(states), expected.logits[real], "logits")
    result = head.loss(states[asked[real]], batch["input_ids"][asked])
    loss = result.loss_sum / asked.sum()
    assert_equal(loss, expected.loss, "loss")
    loss.backward()
    expected.loss.backward()
    gradients = hf_gradients(encoder, {"lm": head})
    gradients["cls.predictions.decoder.bias"] = gradients["cls.predictions.bias"]
    for name, parameter in theirs.named_parameters():
        gradient = parameter.grad
        if gradient is None:
            gradient = torch.zeros_like(parameter)
        # Theirs trains no padding id, which stands in the text here.
        first = int(name.endswith("word_embeddings.weight"))
        assert_equal(gradients[name][first:], gradient[first:], f"gradient of {name}")


def test_exchanged_terms_are_seen(tmp_path, monkeypatch):
    theirs = random_model()
    theirs.save_pretrained(tmp_path)
    batch, real = random_batch([9, 17])
    scores = disentangled.distance_scores

    def exchanged(projected: dict[str, Tensor], *arguments: Tensor) -> Tensor:
        values = list(projected.values())
        return scores(dict(zip(projected, values[::-1], strict=True)), *arguments)

    monkeypatch.setattr(disentangled, "distance_scores", exchanged)
    arguments, rows = stream(batch, real, "ragged")
    wrong = load_encoder(tmp_path).eval()(**arguments).sequence_output[rows]
    assert (wrong - theirs(**batch).last_hidden_state[real]).abs().max() > 1000 * TOLERANCE


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_undeclared_keys_come_back(options, tmp_path):
    """Their class drops no key either, so the three configurations are one."""
    theirs = random_model("ForSequenceClassification", cls_dropout=0.3, **options)
    theirs.save_pretrained(tmp_path / "theirs")
    encoder = load_encoder(tmp_path / "theirs")
    head: Any = FAMILY.head("classification", encoder)
    assert head.dropout_prob == 0.3
    load_head(tmp_path / "theirs", "classification", head)
    save_encoder_folder(
        tmp_path / "ours",
        encoder,
        heads={"classification": head},
        tokenizer_files={},
        extra_config={},
    )
    assert load_encoder(tmp_path / "ours").config == encoder.config
    before = read_config_dict(tmp_path / "theirs")
    after = read_config_dict(tmp_path / "ours")
    for key in (*KEYS, *options, "cls_dropout", "pooler_dropout", "pooler_hidden_act"):
        if key == "pos_att_type":
            assert sorted(after[key]) == sorted(before[key])
        else:
            assert after[key] == before[key], key
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours")
    assert again.state_dict().keys() == theirs.state_dict().keys()
    for name, value in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("relative_attention", False),
        ("share_att_key", False),
        ("conv_groups", 2),
        ("embedding_size", 12),
        ("attention_head_size", 16),
        ("pooler_hidden_size", 12),
        ("pos_att_type", []),
        ("pos_att_type", ["p2p"]),
        ("norm_rel_ebd", "batch_norm"),
        ("conv_act", "swish"),
        ("conv_kernel_size", 4),
        ("position_buckets", 96),
    ],
)
def test_a_part_that_we_do_not_have_is_refused_by_its_key(key, value):
    values = {**KEYS, "type_vocab_size": 0, "layer_norm_eps": 1e-7, "conv_kernel_size": 3}
    Encoder(FAMILY.from_hf_config(values))
    with pytest.raises(ValueError, match=key):
        Encoder(FAMILY.from_hf_config({**values, key: value}))


@pytest.fixture
def fill_folder(tmp_path: Path) -> Callable[..., tuple[Any, Path]]:
    """fill_folder(legacy, positions): theirs, and a folder with the head under its names."""

    def make(legacy: bool, positions: bool = False) -> tuple[Any, Path]:
        folder = tmp_path / f"{legacy}-{positions}"
        model = random_model("ForMaskedLM", legacy=legacy)
        model.save_pretrained(folder)
        if positions:
            tensors = load_file(folder / "model.safetensors")
            table = torch.randn(KEYS["max_position_embeddings"], KEYS["hidden_size"])
            tensors["deberta.embeddings.position_embeddings.weight"] = table
            save_file(tensors, folder / "model.safetensors")
        for name, content in TOKENIZER.files().items():
            (folder / name).write_bytes(content)
        return model, folder

    return make


@pytest.mark.parametrize("legacy", [True, False], ids=["cls.predictions", "lm_predictions"])
def test_both_kinds_of_masked_lm_head_are_read(legacy, fill_folder, tmp_path):
    theirs, folder = fill_folder(legacy)
    names = load_file(folder / "model.safetensors")
    assert any(name.startswith("lm_predictions.lm_head.") for name in names) is not legacy
    batch, real = random_batch([9, 17, 2])
    expected = theirs(**batch).logits[real]
    arguments, rows = stream(batch, real, "ragged")
    model = read_model(folder)
    assert set(model.heads) == {"lm"}
    write_model(tmp_path / "ours", model.encoder, model.heads, model.tokenizer)
    for read in (model, read_model(tmp_path / "ours")):
        head: Any = read.heads["lm"]
        assert_equal(head(read.encoder(**arguments).sequence_output[rows]), expected, "logits")
    again, info = transformers.AutoModelForMaskedLM.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert_equal(again.eval()(**batch).logits[real], expected, "their logits")


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


@pytest.mark.parametrize("kind", ["ragged", "padded"])
def test_the_enhanced_mask_decoder_of_a_published_folder(kind, fill_folder, tmp_path):
    """Its positions stand below an encoder that does not add them."""
    theirs, folder = fill_folder(legacy=False, positions=True)
    name = "deberta.embeddings.position_embeddings.weight"
    positions = load_file(folder / "model.safetensors")[name].requires_grad_()
    batch, real = random_batch([9, 17, 2])
    decoded = plain_decoder(theirs, batch, positions)
    expected = theirs.lm_predictions(decoded, theirs.deberta.embeddings.word_embeddings)[real]
    arguments, rows = stream(batch, real, kind)
    model = read_model(folder)
    write_model(tmp_path / "ours", model.encoder, model.heads, model.tokenizer)
    assert (
        load_file(tmp_path / "ours/model.safetensors").keys()
        == load_file(folder / "model.safetensors").keys()
    )
    for read in (model, read_model(tmp_path / "ours")):
        head: Any = read.heads["lm"]
        assert isinstance(head, EnhancedMaskDecoder)
        output = read.encoder(**arguments, output_hidden_states=True)
        states = head.states(read.encoder, output, arguments | {"prediction_positions": rows})
        logits = head(states)
        assert_equal(logits, expected, "logits")
        # Without the decoder they are others.
        assert (head(output.sequence_output[rows]) - expected).abs().max() > 1000 * TOLERANCE
        head.zero_grad()
        read.encoder.zero_grad()
        logits.square().mean().backward()
    expected.square().mean().backward()
    assert_equal(head.position_embeddings.weight.grad, positions.grad, "gradient of positions")
    last = theirs.deberta.encoder.layer[-1].attention.self
    of_last = read.encoder.layer[-1].attention.qkv.weight.grad.chunk(3)
    for mine, other in zip(of_last, (last.query_proj, last.key_proj, last.value_proj), strict=True):
        assert_equal(mine, other.weight.grad, "gradient of the last layer")
    # Their class of masked language models has no decoder, so the folder does not name it.
    assert read_config_dict(tmp_path / "ours")["architectures"] == ["DebertaV2Model"]
    again = transformers.AutoModel.from_pretrained(tmp_path / "ours").eval()
    assert_equal(
        again(**batch).last_hidden_state[real],
        theirs.deberta(**batch).last_hidden_state[real],
        "AutoModel's states",
    )


def test_a_convolution_and_a_causal_mask_do_not_go_together():
    config: EncoderConfig = FAMILY.from_hf_config({**KEYS, "conv_kernel_size": 3})
    encoder = Encoder(config)
    encoder.masks = [mask._replace(is_causal=True) for mask in encoder.masks]
    batch, real = random_batch([4, 4])
    with pytest.raises(ValueError, match="convolution"):
        encoder(**stream(batch, real, "ragged")[0])


def test_attention_maps_in_bf16_are_about_those_in_fp32(tmp_path: Path) -> None:
    random_model().save_pretrained(tmp_path)
    encoder = load_encoder(tmp_path).eval()
    maps: list[list[Tensor]] = []
    for is_bf16 in (False, True):
        layers: list[Tensor] = []
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=is_bf16)
        with torch.no_grad(), autocast, noted_attention(encoder, layers.append):
            encoder.read(stream(*random_batch([17]), "ragged")[0])
        maps.append(layers)
    torch.testing.assert_close(maps[1], maps[0], atol=0.05, rtol=0)
