"""A Longformer or a BigBird that begins with a short encoder, up to a whole pre-training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.screens import refuses
from torch import Tensor, nn

import clozelab
from clozelab.corpus.tokenizers import ByteBpeTokenizer, Tokenizer, WordPieceTokenizer
from clozelab.models.config import ModuleSpec
from clozelab.models.encoder import Encoder
from clozelab.models.folders import save_encoder_folder
from clozelab.models.layout import Layout
from clozelab.models.longer import load_encoder_as, longer_config

transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
OLD, NEW = 24, 100
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 4,
    "intermediate_size": 24,
}
# How many rows stand before the first position: in the short encoder and in the long one.
OFFSETS = {"Roberta": 2, "Bert": 0}
LONG_OFFSETS = {("longformer", "Roberta"): 2, ("longformer", "Bert"): 1, ("big_bird", "Bert"): 0}
LONG_OFFSETS["big_bird", "Roberta"] = 0
WHOLE: dict[str, dict[str, Any]] = {
    "longformer": {"_target_": "clozelab.models.attention.LongAttention", "window": OLD},
    "big_bird": {
        "_target_": "clozelab.models.attention.BlockAttention",
        "block_size": 4,
        "num_random_blocks": 1,
    },
}
NARROW: dict[str, dict[str, Any]] = {
    "longformer": WHOLE["longformer"] | {"window": 1},
    "big_bird": WHOLE["big_bird"] | {"block_size": 1},
}


def random_(model: nn.Module) -> None:
    """Norms near one: then what a token sees matters to its state."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
            if name.endswith("LayerNorm.weight"):
                parameter += 1.0


def short_model(folder: Path, title: str) -> Any:
    config = getattr(transformers, f"{title}Config")(
        **SIZES, max_position_embeddings=OLD + OFFSETS[title], pad_token_id=OFFSETS[title] // 2
    )
    model = getattr(transformers, f"{title}Model")(config).eval()
    random_(model)
    model.save_pretrained(folder)
    return model


def long_encoder(folder: Path, model_type: str, attention: dict[str, Any]) -> Encoder:
    spec = ModuleSpec.from_node(attention, "attention")
    return load_encoder_as(longer_config(folder, model_type, spec, NEW), folder, seed=0).eval()


@torch.no_grad()
def states(encoder: Encoder, ids: Tensor) -> Tensor:
    layout = Layout.rectangle([len(ids)], len(ids))
    return encoder(ids, ids * 0, torch.arange(len(ids)), layout).sequence_output


@pytest.mark.parametrize("title", ["Roberta", "Bert"])
@pytest.mark.parametrize("model_type", ["longformer", "big_bird"])
def test_short_texts_have_the_short_encoders_states(
    tmp_path: Path, model_type: str, title: str
) -> None:
    model = short_model(tmp_path, title)
    encoder = long_encoder(tmp_path, model_type, WHOLE[model_type])
    for length in (1, 7, OLD):
        ids = 5 + torch.arange(length) * 7 % 59
        with torch.no_grad():
            expected = model(ids[None], token_type_ids=ids[None] * 0).last_hidden_state[0]
        torch.testing.assert_close(
            states(encoder, ids), expected, atol=TOLERANCE, rtol=0, msg=str(length)
        )
    # The control: what a window or the blocks do not cover is another model.
    narrow = states(long_encoder(tmp_path, model_type, NARROW[model_type]), ids)
    assert float((narrow - expected).abs().max()) > 0.1


def test_positions_that_no_text_of_its_training_had_are_not_copied(tmp_path: Path) -> None:
    model = short_model(tmp_path, "Bert")
    config = json.loads((tmp_path / "config.json").read_text())
    config["clozelab"] = {"trained_seq_lengths": [4, 8]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    encoder = long_encoder(tmp_path, "big_bird", WHOLE["big_bird"])
    table: Any = encoder.embeddings.position_embeddings
    given = model.embeddings.position_embeddings.weight
    assert torch.equal(table.weight[:8], given[:8])
    assert torch.equal(table.weight[8:22], given[1:8].repeat(2, 1))


@pytest.mark.parametrize("title", ["Roberta", "Bert"])
@pytest.mark.parametrize("model_type", ["longformer", "big_bird"])
def test_new_positions_and_global_matrices_are_copies(
    tmp_path: Path, model_type: str, title: str
) -> None:
    model = short_model(tmp_path, title)
    encoder = long_encoder(tmp_path, model_type, WHOLE[model_type])
    given = model.embeddings.position_embeddings.weight
    table: Any = encoder.embeddings.position_embeddings
    assert table.offset == LONG_OFFSETS[model_type, title]
    assert len(table.weight) == table.offset + NEW
    source = 0
    for position in range(NEW):
        # 0 1 2 ... 23, then 1 2 ... 23 over and over: the first is of [CLS] alone.
        expected = given[OFFSETS[title] + source]
        assert torch.equal(table.weight[table.offset + position], expected), position
        source = source + 1 if source + 1 < OLD else 1
    for block in encoder.blocks:
        qkv_global: Any = block.attention.qkv_global
        if model_type == "longformer":
            assert torch.equal(qkv_global.weight, block.attention.qkv.weight)
            assert torch.equal(qkv_global.bias, block.attention.qkv.bias)


def text_and_folder(root: Path, title: str) -> tuple[dict[str, Any], Any]:
    """A short model with its tokenizer, and the words of a step of nearly no rate from it."""
    lines = [f"the {a} cat saw a {b} dog near the {c} house ." for a, b, c in zip(*WORDS, strict=1)]
    (root / "text.txt").write_text("\n\n".join(" ".join(lines[n:] + lines[:n]) for n in range(12)))
    tokenizer: Tokenizer = WordPieceTokenizer.train(lines, 90, True)
    if title == "Roberta":
        tokenizer = ByteBpeTokenizer.train(lines, 300, False, False)
    config = getattr(transformers, f"{title}Config")(
        **SIZES | {"vocab_size": tokenizer.vocab_size},
        max_position_embeddings=OLD + OFFSETS[title],
        pad_token_id=tokenizer.pad_id,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = getattr(transformers, f"{title}ForMaskedLM")(config).eval()
    random_(model)
    model.tie_weights()
    model.save_pretrained(root / "short")
    for name, content in tokenizer.files().items():
        (root / "short" / name).write_bytes(content)
    file = {"vocab_file": str(root / "short/tokenizer.json"), "lowercase": title == "Bert"}
    options: dict[str, Any] = {
        "scale": "own",
        "corpus": {"sources": [{"name": "text", "path": str(root / "text.txt")}]},
        "tokenizer": file,
        "encoder": str(root / "short"),
        "model": {"max_position_embeddings": NEW},
        "phases": [{"seq_length": 64, "steps": 1, "global_batch_size": 2, "micro_batch_size": 2}],
        "validation": {"seq_length": 64},
        "optimizer": {"learning_rate": 1e-12, "matrix_learning_rate": 1e-12},
        "trainer": {"precision": "32-true", "threads": 1, "progress_bar": False},
        "cache_dir": str(root / "cache"),
        "runs_dir": str(root / "runs"),
    }
    return options, model


WORDS = (
    ["old", "small", "red", "quick"] * 3,
    ["young", "large", "blue"] * 4,
    ["green", "white"] * 6,
)


@pytest.mark.parametrize(
    ("recipe", "title", "words"),
    [
        ("longformer", "Roberta", {"attention": {"window": 32}}),
        ("bigbird", "Bert", {"attention": {"block_size": 4, "num_random_blocks": 1}}),
    ],
)
def test_a_pre_training_begins_with_it_in_one_word(
    tmp_path: Path, recipe: str, title: str, words: dict[str, Any]
) -> None:
    options, model = text_and_folder(tmp_path, title)
    run = clozelab.pretrain(recipe=recipe, architecture=words, **options)
    long = transformers.AutoModelForMaskedLM.from_pretrained(run.folder / "encoder").eval()
    assert long.config.model_type == recipe.replace("bigbird", "big_bird")
    ids = 5 + torch.arange(OLD - 1)[None] * 7 % 59
    with torch.no_grad():
        expected = model(ids).logits
        torch.testing.assert_close(long(ids).logits, expected, atol=TOLERANCE, rtol=0)
    table = long.base_model.embeddings.position_embeddings.weight[-NEW:]
    assert torch.equal(table[OLD : 2 * OLD - 1], table[1:OLD]), "the folder has the copies"


@pytest.mark.parametrize(
    ("reason", "parts"),
    [
        ("of type albert, with Learned", {"model_type": "albert"}),
        (
            "of type bert, with Rotary",
            {"positions": {"_target_": "clozelab.models.embeddings.RotaryPositions"}},
        ),
    ],
)
def test_weights_that_no_long_encoder_begins_with_are_refused(
    tiny_config: Any, tmp_path: Path, reason: str, parts: dict[str, Any]
) -> None:
    encoder = Encoder(tiny_config(**parts))
    save_encoder_folder(tmp_path, encoder, heads={}, tokenizer_files={}, extra_config={})
    with refuses("longformer begins with a BERT or a RoBERTa") as refusal:
        long_encoder(tmp_path, "longformer", WHOLE["longformer"])
    assert reason in str(refusal.value)
