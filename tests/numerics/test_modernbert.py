"""ModernBERT equals transformers' classes: fp32, eager, 1e-5 at every layer and head, and back.

All parameters are random with a deviation of 0.2, so that no identity hides a mistake.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.models.config import EncoderConfig, ModuleSpec
from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder, load_head, save_encoder_folder
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for, family_of
from clozelab.modules.model import read_model, write_model

transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
VOCAB = 64
WINDOW = 8
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 5,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "local_attention": WINDOW,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "num_labels": 3,
}
# One, two, odd, a window's radius and one more, a window and one more, and far beyond.
LENGTHS = [1, 2, 7, 4, 5, 8, 9, 29, 3]
CLASSES = {
    "ForMaskedLM": "lm",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tags",
    "ForQuestionAnswering": "spans",
    "ForMultipleChoice": "choices",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "as released": {},
    "mean": {"classifier_pooling": "mean"},
    "biases": {
        "norm_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "classifier_bias": True,
    },
    "other pattern": {"global_attn_every_n_layers": 2, "hidden_activation": "gelu_new"},
}
TOKENIZER = WordPieceTokenizer(
    [*SPECIAL_TOKENS, *(f"word{number}" for number in range(VOCAB - 5))], lowercase=True
)
EVERY_VARIANT = pytest.mark.parametrize("variant", list(VARIANTS))
BOTH_LAYOUTS = pytest.mark.parametrize("kind", ["ragged", "rectangle"])


@pytest.fixture
def theirs(tmp_path: Path) -> Callable[..., Any]:
    """theirs(class suffix, **configuration): random everywhere, saved in "theirs"."""

    def make(suffix: str = "Model", **changes: Any) -> Any:
        if suffix == "ForQuestionAnswering":
            changes |= {"num_labels": 2}
        settings = SIZES | {"attn_implementation": "eager"} | changes
        config = transformers.ModernBertConfig(**settings)
        model = getattr(transformers, f"ModernBert{suffix}")(config).eval()
        randomise(model)
        model.save_pretrained(tmp_path / "theirs")
        return model

    return make


def randomise(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)


def their_batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    is_real = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    ids = torch.randint(3, VOCAB, is_real.shape, generator=generator)
    return {"input_ids": torch.where(is_real, ids, 0), "attention_mask": is_real.long()}


def our_batch(kind: str) -> tuple[dict[str, Any], Tensor]:
    """The encoder's arguments, and the rows of the stream that hold tokens."""
    batch = their_batch()
    is_real = batch["attention_mask"].bool()
    positions = torch.arange(max(LENGTHS)).expand_as(is_real)
    padded = {
        "input_ids": batch["input_ids"],
        "token_type_ids": torch.zeros_like(batch["input_ids"]),
        "position_ids": positions,
    }
    if kind == "ragged":
        stream = {name: value[is_real] for name, value in padded.items()}
        return {**stream, "layout": Layout.ragged(LENGTHS)}, torch.arange(sum(LENGTHS))
    stream = {name: value.flatten() for name, value in padded.items()}
    layout = Layout.rectangle(LENGTHS, max(LENGTHS))
    return {**stream, "layout": layout}, is_real.flatten().nonzero().squeeze(1)


def assert_equal(ours: Tensor, expected: Tensor, name: str) -> None:
    assert ours.shape == expected.shape, name
    distance = float((ours - expected).detach().abs().max())
    assert distance <= TOLERANCE, f"{name}: {distance:.2e}"


def assert_gradients_equal(model: nn.Module, gradients: dict[str, Tensor], prefix: str) -> None:
    for name, parameter in model.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert_equal(gradients[prefix + name], expected, f"gradient of {name}")


def our_outputs(encoder: Encoder, kind: str, head: nn.Module, batch: Any, rows: Tensor) -> Tensor:
    states = encoder(**batch).sequence_output
    if kind in ("classification", "choices"):
        return head(encoder.pool(states, batch["layout"], head))
    return head(states[rows])


def their_outputs(model: Any, kind: str) -> Tensor:
    batch = their_batch()
    is_real = batch["attention_mask"].bool()
    if kind == "choices":
        batch = {name: value[None] for name, value in batch.items()}
    output = model(**batch)
    if kind == "choices":
        return output.logits.T
    if kind == "spans":
        return torch.stack([output.start_logits[is_real], output.end_logits[is_real]], dim=-1)
    return output.logits if kind == "classification" else output.logits[is_real]


@EVERY_VARIANT
@BOTH_LAYOUTS
def test_every_layer_and_its_gradient(variant, kind, theirs, tmp_path, hf_gradients):
    model = theirs(**VARIANTS[variant])
    encoder = load_encoder(tmp_path / "theirs").eval()
    batch, rows = our_batch(kind)
    is_real = their_batch()["attention_mask"].bool()
    expected = model(**their_batch(), output_hidden_states=True)
    output = encoder(**batch, output_hidden_states=True)
    states = output.hidden_states
    assert len(states) == len(expected.hidden_states) == SIZES["num_hidden_layers"] + 1
    losses = [torch.zeros(()), torch.zeros(())]
    pairs = zip(states, expected.hidden_states, strict=True)
    for number, (mine, other) in enumerate(pairs):
        assert_equal(mine[rows], other[is_real], f"hidden state {number}")
        weight = torch.randn(mine[rows].shape, generator=torch.Generator().manual_seed(number))
        losses[0] = losses[0] + (mine[rows] * weight).mean()
        losses[1] = losses[1] + (other[is_real] * weight).mean()
    for loss in losses:
        loss.backward()
    assert_gradients_equal(model, hf_gradients(encoder, {}), "model.")


@EVERY_VARIANT
@BOTH_LAYOUTS
@pytest.mark.parametrize("suffix", list(CLASSES))
def test_every_head_and_its_gradient(variant, kind, suffix, theirs, tmp_path, hf_gradients):
    model = theirs(suffix, **VARIANTS[variant])
    encoder = load_encoder(tmp_path / "theirs").eval()
    name = CLASSES[suffix]
    head = family_for(encoder.config).head(name, encoder, num_labels=3).eval()
    load_head(tmp_path / "theirs", name, head)
    batch, rows = our_batch(kind)
    mine = our_outputs(encoder, name, head, batch, rows)
    other = their_outputs(model, name)
    assert_equal(mine, other, suffix)
    mine.square().mean().backward()
    other.square().mean().backward()
    gradients = hf_gradients(encoder, {name: head})
    assert_gradients_equal(model, gradients, "")


@pytest.mark.parametrize("length", [1, 2, 7, WINDOW, WINDOW + 1, 3 * WINDOW + 5])
def test_the_masked_loss(length, theirs, tmp_path):
    model = theirs("ForMaskedLM")
    encoder = load_encoder(tmp_path / "theirs").eval()
    head: Any = family_for(encoder.config).head("lm", encoder).eval()
    load_head(tmp_path / "theirs", "lm", head)
    ids = torch.arange(length) % 50 + 3
    labels = torch.where(torch.arange(length) % 3 == 0, ids + 1, -100)
    expected = model(input_ids=ids[None], labels=labels[None]).loss
    batch = {"input_ids": ids, "token_type_ids": ids, "position_ids": torch.arange(length)}
    states = encoder(**batch, layout=Layout.ragged([length])).sequence_output
    is_predicted = labels >= 0
    loss = head.loss(states[is_predicted], labels[is_predicted]).loss_sum / is_predicted.sum()
    assert_equal(loss, expected, "loss")
    plain = F.cross_entropy(head(states), labels)
    assert_equal(loss, plain, "loss beside the plain one")


def changed_by(encoder: Encoder, **parts: Any) -> float:
    """How far the states go where a part is another one, with the same weights."""
    other = Encoder(replace(encoder.config, **parts)).eval()
    other.load_state_dict(encoder.state_dict())
    batch, rows = our_batch("ragged")
    with torch.no_grad():
        states = [one(**batch).sequence_output[rows] for one in (encoder, other)]
    return float((states[0] - states[1]).abs().max())


def test_a_window_or_a_base_that_is_a_little_off_is_seen(theirs, tmp_path):
    theirs()
    encoder = load_encoder(tmp_path / "theirs").eval()
    config = encoder.config
    attention = config.attention.node()
    for change in ({"window": 3}, {"window": 5}, {"global_every": 2}, {"first_global": 1}):
        assert changed_by(encoder, attention=ModuleSpec.of(attention | change, "")) > 1e-2
    positions = config.positions.node()
    for change in ({"base": 150_000.0}, {"window_base": 11_000.0}, {"window_base": None}):
        assert changed_by(encoder, positions=ModuleSpec.of(positions | change, "")) > 1e-4
    assert changed_by(encoder) == 0.0


@pytest.mark.parametrize("kernel", ["bmm", "sdpa"])
def test_padding_far_from_a_token_gives_no_nan(kernel, theirs, tmp_path, monkeypatch):
    """A slot that is further from all real tokens than a window sees itself alone."""
    monkeypatch.setattr("clozelab.models.attention._usual_kernel", lambda _: kernel)
    theirs()
    encoder = load_encoder(tmp_path / "theirs").train()
    batch, rows = our_batch("rectangle")
    states = encoder(**batch).sequence_output
    states[rows].square().mean().backward()
    assert states.isfinite().all()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    # What stands on the padding changes nothing.
    batch["input_ids"] = torch.where(batch["input_ids"] == 0, 9, batch["input_ids"])
    with torch.no_grad():
        assert_equal(encoder(**batch).sequence_output[rows], states[rows], "other padding")


@pytest.mark.parametrize("suffix", ["Model", *CLASSES])
@EVERY_VARIANT
def test_there_and_back(suffix, variant, theirs, tmp_path):
    """What we write of a model that we have read has its tensors alone, and loads in its class."""
    model = theirs(suffix, **VARIANTS[variant])
    for file, content in TOKENIZER.files().items():
        (tmp_path / "theirs" / file).write_bytes(content)
    read = read_model(tmp_path / "theirs")
    kind = CLASSES.get(suffix)
    assert list(read.heads) == ([kind] if kind else []) and not read.untrained
    assert read.architecture == f"ModernBert{suffix}"
    write_model(tmp_path / "ours", read.encoder, read.heads, read.tokenizer, labels=read.labels)
    automatic = getattr(transformers, "AutoModel" + suffix.removeprefix("Model"))
    loaded, info = automatic.from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert type(loaded) is type(model)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    state = loaded.state_dict()
    assert state.keys() == model.state_dict().keys()
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    if suffix == "ForMaskedLM":
        words = loaded.model.embeddings.tok_embeddings.weight
        assert loaded.decoder.weight.data_ptr() == words.data_ptr()
    with torch.no_grad():
        is_real = their_batch()["attention_mask"].bool()
        loaded.eval()
        if not kind:
            states = [one(**their_batch()).last_hidden_state for one in (loaded, model)]
            assert_equal(states[0][is_real], states[1][is_real], "AutoModel's states")
        else:
            assert_equal(their_outputs(loaded, kind), their_outputs(model, kind), suffix)
    # And back.
    again = read_model(tmp_path / "ours")
    assert again.encoder.config == read.encoder.config
    assert again.architecture == read.architecture and again.labels == read.labels
    for name, value in read.encoder.state_dict().items():
        assert torch.equal(again.encoder.state_dict()[name], value), name


def test_an_old_and_a_new_config_are_one(theirs):
    new = theirs().config.to_dict()
    assert "layer_types" in new and "global_rope_theta" not in new
    old = {key: new[key] for key in new if key not in ("layer_types", "rope_parameters")}
    old |= {"global_attn_every_n_layers": 3, "global_rope_theta": 160_000.0}
    old |= {"local_rope_theta": 10_000.0, "reference_compile": None}
    family = family_of("modernbert")
    config = family.from_hf_config(new)
    assert family.from_hf_config(old) == config
    assert dict(config.attention.options) == {"window": WINDOW // 2, "global_every": 3}
    # null in an old file: the global layers' base.
    null = family.from_hf_config({**old, "local_rope_theta": None})
    assert dict(null.positions.options)["window_base"] == 160_000.0


@pytest.mark.parametrize("num_layers", [1, 2, 3, 7])
@pytest.mark.parametrize("every", [0, 1, 2, 3, 5])
def test_a_pattern_is_read_as_it_was_written(num_layers, every):
    """Also where so few layers could be of another pattern: theirs names it, too."""
    plain = family_of("modernbert").from_hf_config(SIZES | {"num_hidden_layers": num_layers})
    attention = {"_target_": "clozelab.models.attention.FullAttention"}
    if every != 1:
        attention = plain.attention.node() | {"global_every": every}
    config = replace(plain, attention=ModuleSpec.of(attention, ""))
    written = family_for(config).to_hf_config(config)
    assert written["model_type"] == "modernbert"
    assert family_for(config).from_hf_config(json.loads(json.dumps(written))) == config
    hf = transformers.ModernBertConfig(**written)
    assert hf.layer_types == written["layer_types"]
    windows = [mask.window for mask in Encoder(config).masks]
    assert [window is None for window in windows] == [
        layer_type == "full_attention" for layer_type in hf.layer_types
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"layer_types": ["sliding_attention", *["full_attention"] * 4]},
            "only full_attention at every n-th layer",
        ),
        ({"attention_bias": True}, "attention_bias, mlp_bias, classifier_bias differ"),
        ({"decoder_bias": False}, "decoder_bias is False, and only True"),
        ({"classifier_activation": "relu"}, "only 'gelu' can be read"),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
                }
            },
            "positions of full_attention are stretched",
        ),
    ],
)
def test_what_has_no_part_here_is_refused(change, reason):
    with pytest.raises(ValueError, match=reason):
        family_of("modernbert").from_hf_config(SIZES | change)


def test_fresh_weights_are_the_release_s():
    """The deviation of every matrix beside theirs, each cut off at twice its scale."""
    sizes = SIZES | {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 8}
    sizes |= {"vocab_size": 2000, "initializer_range": 0.05}
    hf = transformers.ModernBertForSequenceClassification(transformers.ModernBertConfig(**sizes))
    config = family_of("modernbert").from_hf_config(sizes)
    encoder = Encoder(config)
    heads = {kind: family_for(config).head(kind, encoder) for kind in ("classification", "lm")}
    named = {}
    for module in (encoder, heads["classification"]):
        kind = "encoder" if module is encoder else "classification"
        for name, value in module.state_dict().items():
            named[family_for(config).file_names(f"{kind}.{name}")[0]] = value
    for name, expected in hf.state_dict().items():
        if expected.ndim == 2 and expected.numel() > 10_000:
            assert float(named[name].std()) == pytest.approx(float(expected.std()), rel=0.02), name
            largest = float(expected.abs().max())
            assert float(named[name].abs().max()) == pytest.approx(largest, rel=0.02), name
    dense = heads["lm"].transform.dense.weight
    assert float(dense.std()) == pytest.approx(float(hf.head.dense.weight.std()), rel=0.02)
    out_proj = heads["classification"].out_proj.weight
    assert float(out_proj.abs().max()) <= 2 * 256**-0.5 and float(out_proj.std()) > 0.04


def test_other_parts_are_written_as_no_modernbert(tmp_path):
    """With learned positions, types or a causal mask it is nothing that theirs would compute."""
    plain = family_of("modernbert").from_hf_config(SIZES)
    learned = ModuleSpec("clozelab.models.embeddings.LearnedPositions")
    for change in ({"positions": learned}, {"type_vocab_size": 2}, {"is_causal": True}):
        config: EncoderConfig = replace(plain, **change)
        save_encoder_folder(
            tmp_path / "ours", Encoder(config), heads={}, tokenizer_files={}, extra_config={}
        )
        with pytest.raises(ValueError, match="clozelab_modernbert"):
            transformers.AutoModel.from_pretrained(tmp_path / "ours")
        assert load_encoder(tmp_path / "ours").config == config
