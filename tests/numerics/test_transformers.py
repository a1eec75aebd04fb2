"""BERT under both masks equals transformers': fp32, CPU, 1e-5 at every layer; test_families.py has
every head.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch

from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder, load_head, read_config_dict, save_encoder_folder
from clozelab.models.heads import LinearHead, MaskedLMHead, SequenceClassificationHead
from clozelab.models.registry import family_of

transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
VOCAB = 113
SHAPES = {
    "head dim 64": {
        "hidden_size": 128,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 512,
    },
    "head dim 5": {
        "hidden_size": 20,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
        "intermediate_size": 33,
    },
    "one head of 48, relu": {
        "hidden_size": 48,
        "num_attention_heads": 1,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "hidden_act": "relu",
        "layer_norm_eps": 1e-5,
    },
    "head dim 16, tanh gelu": {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 4,
        "intermediate_size": 64,
        "hidden_act": "gelu_new",
        "type_vocab_size": 3,
    },
}
LENGTHS = {"unequal": [9, 17, 1, 17, 5, 12, 3, 8, 16, 2, 11], "equal": [12] * 4, "single": [7]}
EVERY_SHAPE = pytest.mark.parametrize("shape", list(SHAPES))
BOTH_MASKS = pytest.mark.parametrize("is_causal", [False, True], ids=["bidirectional", "causal"])
EVERY_LAYOUT = pytest.mark.parametrize(
    ("lengths", "kind"), [*product(LENGTHS, ("rectangle", "ragged"))]
)


def _hf_config(shape: str, is_causal: bool = False, **changes):
    return transformers.BertConfig(
        vocab_size=VOCAB,
        max_position_embeddings=40,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        is_decoder=is_causal,
        use_cache=False,
        initializer_range=0.08,
        attn_implementation="eager",
        **SHAPES[shape],
        **changes,
    )


def _build(model_class, config, folder):
    """A transformers model with random weights everywhere, biases and LayerNorms too, saved; and
    our encoder of it.
    """
    torch.manual_seed(0)
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return model, load_encoder(folder)


def _assert_equal(ours, theirs, what: str) -> None:
    assert ours.shape == theirs.shape, what
    assert (ours - theirs).abs().max() <= TOLERANCE, f"{what}: {(ours - theirs).abs().max():.2e}"


def _assert_gradients_equal(ours, model, tied: dict[str, str]) -> None:
    compared = 0
    for name, parameter in model.named_parameters():
        mine = ours[tied.get(name, name)]
        theirs = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        _assert_equal(mine, theirs, f"gradient of {name}")
        compared += 1
    assert compared == len(ours)


@EVERY_SHAPE
@BOTH_MASKS
@EVERY_LAYOUT
def test_encoder(shape, is_causal, lengths, kind, tmp_path, token_batch, hf_gradients):
    model, encoder = _build(transformers.BertModel, _hf_config(shape, is_causal), tmp_path)
    batch = token_batch(LENGTHS[lengths], kind, VOCAB)
    theirs = model(**batch.hf, output_hidden_states=True)
    ours = encoder(**batch.ours, output_hidden_states=True)
    rows = batch.stream_rows
    real = batch.real
    assert len(ours.hidden_states) == len(theirs.hidden_states)
    loss_ours = torch.zeros(())
    loss_theirs = torch.zeros(())
    for index, (mine, other) in enumerate(
        zip(ours.hidden_states, theirs.hidden_states, strict=True)
    ):
        _assert_equal(mine[rows], other[real], f"hidden state {index}")
        weight = torch.randn(mine[rows].shape, generator=torch.Generator().manual_seed(index))
        loss_ours = loss_ours + (mine[rows] * weight).mean()
        loss_theirs = loss_theirs + (other[real] * weight).mean()
    last = theirs.last_hidden_state
    pooled_theirs = theirs.pooler_output
    if is_causal:
        pooled_theirs = model.pooler(last[torch.arange(len(last)), real.sum(1) - 1][:, None])
    pooled_ours = encoder.pool(ours.sequence_output, batch.layout)
    _assert_equal(pooled_ours, pooled_theirs, "pooled output")
    (loss_ours + pooled_ours.square().mean()).backward()
    (loss_theirs + pooled_theirs.square().mean()).backward()
    grads = {name.removeprefix("bert."): value for name, value in hf_gradients(encoder, {}).items()}
    _assert_gradients_equal(grads, model, tied={})


@EVERY_SHAPE
@BOTH_MASKS
def test_span_head(shape, is_causal, tmp_path, token_batch, hf_gradients):
    model, encoder = _build(
        transformers.BertForQuestionAnswering, _hf_config(shape, is_causal), tmp_path
    )
    head = LinearHead(encoder.config)
    load_head(tmp_path, "spans", head)
    batch = token_batch(LENGTHS["unequal"], "ragged", VOCAB)
    theirs = model(**batch.hf)
    spans = head(encoder(**batch.ours).sequence_output)
    expected = torch.stack([theirs.start_logits[batch.real], theirs.end_logits[batch.real]], dim=-1)
    _assert_equal(spans, expected, "start and end logits")
    spans.square().mean().backward()
    expected.square().mean().backward()
    grads = {
        name: g
        for name, g in hf_gradients(encoder, {"spans": head}).items()
        if "bert.pooler" not in name
    }
    _assert_gradients_equal(grads, model, tied={})


@BOTH_MASKS
def test_transformers_loads_what_we_save(is_causal, tmp_path, tiny, token_batch):
    """AutoModel and the task classes: every tensor found, none left over, the same numbers."""
    encoder = Encoder(tiny(is_causal)).eval()
    heads = {
        "lm": MaskedLMHead(encoder.config, encoder.embeddings.word_embeddings.weight),
        "nsp": LinearHead(encoder.config),
        "classification": SequenceClassificationHead(encoder.config, num_labels=2).eval(),
        "spans": LinearHead(encoder.config),
    }
    batch = token_batch(LENGTHS["unequal"], "ragged", VOCAB)
    states = encoder(**batch.ours).sequence_output
    saved = {
        "BertModel": ([], lambda out: (out.last_hidden_state[batch.real], states)),
        "BertForPreTraining": (
            ["lm", "nsp"],
            lambda out: (out.prediction_logits[batch.real], heads["lm"](states)),
        ),
        "BertForSequenceClassification": (
            ["classification"],
            lambda out: (
                out.logits,
                heads["classification"](encoder.pooler(states[batch.layout.first_rows])),
            ),
        ),
        "BertForQuestionAnswering": (
            ["spans"],
            lambda out: (out.start_logits[batch.real], heads["spans"](states)[:, 0]),
        ),
    }
    for architecture, (names, compare) in saved.items():
        folder = tmp_path / architecture
        save_encoder_folder(
            folder,
            encoder,
            heads={name: heads[name] for name in names},
            tokenizer_files={},
            extra_config={},
        )
        loader = (
            transformers.AutoModel
            if architecture == "BertModel"
            else getattr(transformers, architecture)
        )
        model, info = loader.from_pretrained(folder, output_loading_info=True)
        # Their classes would pool the first token of a causal encoder: its folder is of a type that
        # they do not know.
        is_hidden = is_causal and bool({"nsp", "classification"} & set(names))
        assert (
            type(model).__name__
            == architecture
            == model.config.architectures[0].removeprefix("Clozelab")
        )
        assert is_hidden == model.config.architectures[0].startswith("Clozelab")
        assert read_config_dict(folder)["model_type"] == ("clozelab_bert" if is_hidden else "bert")
        if is_hidden:
            with pytest.raises(ValueError, match="clozelab_bert"):
                transformers.AutoConfig.from_pretrained(folder)
        assert not info["missing_keys"] and not info["mismatched_keys"]
        assert all("pooler" in name for name in info["unexpected_keys"])
        with torch.no_grad():
            _assert_equal(*compare(model.eval()(**batch.hf)), architecture)


@pytest.fixture
def tiny():
    """tiny(is_causal) -> our configuration of one of the shapes."""
    return lambda is_causal: family_of("bert").from_hf_config(
        _hf_config("head dim 5", is_causal).to_dict()
    )
