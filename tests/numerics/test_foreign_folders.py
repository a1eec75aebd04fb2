"""Folders as transformers and people leave them: read as transformers does, or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import clozelab
from clozelab.assembly.pretraining import require_same_vocabulary
from clozelab.cli import main
from clozelab.corpus.tokenizers import Tokenizer, WordPieceTokenizer
from clozelab.models.folders import load_encoder
from clozelab.models.layout import Layout
from clozelab.modules.model import read_model

transformers = pytest.importorskip("transformers")

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
KNOWN = "the a cat dog sat on mat ran fast cafe café naive good bad ##s ##ed . , !"
WORDS = [*SPECIAL, *KNOWN.split()]
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 48,
    "initializer_range": 0.3,
}
MARKED = ["[E1]", "covid", transformers.AddedToken("[E2]", lstrip=True, rstrip=True, special=True)]
TEXTS = [
    "the covid [MASK] [E1] sat",
    "a Café [E2] dog ran [MASK] .",
    "covids [MASK]",
    "the cat sat on the [MASK] !",
]


def write(
    where: Path,
    name: str = "BertForMaskedLM",
    *,
    resize: bool = True,
    strips_accents: bool = False,
    **config: Any,
) -> Path:
    """A random model of transformers with added tokens, which keeps accents or strips them."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = transformers.BertTokenizer(vocab=vocabulary, strip_accents=strips_accents)
    tokenizer.add_tokens(MARKED)
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**SIZES, **{"vocab_size": len(WORDS), **config}))
    if resize:
        model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(where)
    tokenizer.save_pretrained(where)
    return where


# Added tokens


def test_masks_are_filled_as_transformers_fills_them(tmp_path: Path) -> None:
    folder = write(tmp_path / "m")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    ours = clozelab.load(folder, precision="32-true")
    for text, filled in zip(TEXTS, ours.fill_mask(TEXTS, top_k=len(tokenizer)), strict=True):
        batch = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            logits = model(**batch).logits[0][batch["input_ids"][0] == tokenizer.mask_token_id]
        shares = dict(enumerate(logits.softmax(-1)[0].tolist()))
        assert {token.id: token.probability for token in filled.masks[0]} == pytest.approx(
            shares, abs=1e-5
        )
    first = ours.fill_mask("the [MASK]", top_k=len(tokenizer)).masks[0]
    shown = {token.id: token.token for token in first}
    assert (shown[len(WORDS)], shown[len(WORDS) + 1]) == (
        "[E1]",
        "covid",
    ), "added tokens are candidates"


@pytest.mark.parametrize(
    "form", ["transformers", "sentence_transformers", pytest.param("onnx", marks=pytest.mark.slow)]
)
def test_an_export_keeps_the_tokenizer(tmp_path: Path, form: str) -> None:
    folder = write(tmp_path / "m")
    out = tmp_path / "out"
    assert main(["export", str(folder), f"to={out}", f"format={form}"]) == 0
    theirs, before = (transformers.AutoTokenizer.from_pretrained(one) for one in (out, folder))
    assert theirs(TEXTS)["input_ids"] == before(TEXTS)["input_ids"]
    assert (
        theirs(TEXTS[0], TEXTS[1])["token_type_ids"] == before(TEXTS[0], TEXTS[1])["token_type_ids"]
    )
    assert theirs.model_max_length == 48 and theirs.mask_token == "[MASK]"
    assert json.loads((out / "tokenizer.json").read_text()) == json.loads(
        (folder / "tokenizer.json").read_text()
    )
    again = read_model(out).tokenizer
    assert type(again) is Tokenizer
    assert again.fingerprint == read_model(folder).tokenizer.fingerprint
    if form == "sentence_transformers":
        vectors, expected = (
            clozelab.load(one, precision="32-true").embed(TEXTS) for one in (out, folder)
        )
        assert np.abs(vectors - expected).max() <= 1e-5


def test_embeddings_that_were_not_resized_are_told(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", resize=False)
    words = r"of the added tokens, \[E1\], covid, \[E2\] have none: model.resize_token_embeddings"
    with pytest.raises(ValueError, match=words):
        read_model(folder)
    folder = write(tmp_path / "n", resize=False, vocab_size=500)
    with pytest.raises(ValueError, match="for 500 ids and its tokenizer files hold 27: they do n"):
        read_model(folder)


def test_rows_that_only_pad_the_embeddings_are_no_candidates(tmp_path: Path) -> None:
    ours = clozelab.load(write(tmp_path / "m", resize=False, vocab_size=64))
    filled = ours.fill_mask("the [MASK]", top_k=64).masks[0]
    assert sorted(token.id for token in filled) == list(range(len(WORDS) + 3))


def test_a_corpus_of_the_folders_vocabulary_is_its_own(tmp_path: Path) -> None:
    """Prepared with the folder's tokenizer.json or, as earlier, with its vocab.txt."""
    folder = write(tmp_path / "m", strips_accents=True)
    vocabulary = [*WORDS, "[E1]", "covid", "[E2]"]
    for tokenizer in (read_model(folder).tokenizer, WordPieceTokenizer(WORDS, lowercase=True)):
        corpus: Any = SimpleNamespace(tokenizer=tokenizer)
        require_same_vocabulary("encoder", folder, corpus)
    for other in (
        WordPieceTokenizer(WORDS, lowercase=False),
        WordPieceTokenizer(vocabulary, lowercase=True),
    ):
        corpus = SimpleNamespace(tokenizer=other)
        with pytest.raises(ValueError, match=r"tokenizer\.vocab_file=FOLDER/tokenizer\.json"):
            require_same_vocabulary("encoder", folder, corpus)


# Names of tensors


def wrapped(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The same weights as a state dict that `change` makes anew."""
    weights = folder / "model.safetensors"
    state = change(safetensors.torch.load_file(weights))
    weights.unlink()
    torch.save(state, folder / "pytorch_model.bin")
    return folder


def under(prefix: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(state: dict[str, Any]) -> dict[str, Any]:
        named = {prefix + name: value for name, value in state.items()}
        return named | {f"{prefix}bert.embeddings.position_ids": torch.arange(48)[None]}

    return change


@pytest.mark.parametrize(
    "change",
    [
        under("module."),
        under("model."),
        under("_orig_mod."),
        under("module._orig_mod."),
        under("student.encoder."),
        lambda state: {"n_averaged": torch.tensor(3), **under("module.")(state)},
        lambda state: {"state_dict": under("model.")(state), "epoch": 3},
        lambda state: {
            f"model.{name.removeprefix('bert.')}": value for name, value in state.items()
        },
    ],
)
def test_names_behind_a_wrappers_prefix(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    folder = write(tmp_path / "m")
    expected = clozelab.load(folder).fill_mask(TEXTS)
    shutil.copytree(folder, tmp_path / "n")
    model = read_model(wrapped(tmp_path / "n", change))
    assert list(model.heads) == ["lm"]
    assert clozelab.load(tmp_path / "n").fill_mask(TEXTS) == expected


def two(state: dict[str, Any]) -> dict[str, Any]:
    teacher = {f"teacher.{key}": value for key, value in state.items()}
    return teacher | {f"student.{key}": value for key, value in state.items()}


def adapter(state: dict[str, Any]) -> dict[str, Any]:
    named = {f"base_model.model.{name}": value for name, value in state.items()}
    return named | {
        "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.default.weight": (
            torch.ones(2)
        )
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (two, "holds 2 models, their names begin with 'student.' and 'teacher.'"),
        (adapter, "an adapter was not merged"),
        (
            lambda x: {name.replace("bert.", "roberta."): value for name, value in x.items()},
            "begin with roberta. and",
        ),
        (
            lambda x: (
                {f"module.{name}": value for name, value in x.items()}
                | {"cls.predictions.bias": torch.ones(27)}
            ),
            "begin with module. and stand there without it",
        ),
    ],
)
def test_names_of_another_model_are_told(tmp_path: Path, change: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        read_model(wrapped(write(tmp_path / "m"), change))
    assert "\n" not in str(refused.value)


# is_decoder


POOLED = ("BertForSequenceClassification", "BertForMultipleChoice", "BertForNextSentencePrediction")
POOLED += ("BertForPreTraining", "RobertaForSequenceClassification", "RobertaForMultipleChoice")
POOLED += ("ElectraForSequenceClassification", "ElectraForMultipleChoice")


@pytest.mark.parametrize("name", POOLED)
def test_a_head_of_an_is_decoder_model_reads_the_token_that_transformers_pools(
    tmp_path: Path, name: str
) -> None:
    """The first, although it sees only itself. Written again it is still theirs."""
    folder = write(tmp_path / "m", name, is_decoder=True, pad_token_id=0)
    model = getattr(transformers, name).from_pretrained(folder).eval()
    ids = torch.randint(5, len(WORDS), (1, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        out = model(ids[None] if "Choice" in name else ids)
    theirs = out.seq_relationship_logits if "PreTraining" in name else out.logits

    def ours(folder: Path) -> torch.Tensor:
        found = read_model(folder)
        layout = Layout.ragged([9])
        kind = next(kind for kind in found.heads if kind != "lm")
        with torch.no_grad():
            states = found.encoder(
                ids[0], torch.zeros(9, dtype=torch.int64), torch.arange(9), layout
            ).sequence_output
            return found.heads[kind](found.encoder.pool(states, layout, found.heads[kind]))

    assert torch.allclose(ours(folder).flatten(), theirs.flatten(), atol=1e-5)
    assert main(["export", str(folder), f"to={tmp_path / 'out'}"]) == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == [name]
    assert torch.equal(ours(tmp_path / "out"), ours(folder))
    # A fresh head on the same encoder reads the last token, which has seen the text.
    assert load_encoder(folder).config.pools_last_token


@pytest.mark.slow
def test_onnx_pools_there_too(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", "BertForSequenceClassification", is_decoder=True)
    assert main(["export", str(folder), f"to={tmp_path / 'out'}", "format=onnx"]) == 0


# Token types


@pytest.mark.parametrize(
    "changes",
    [
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        {"tokenizer_class": "TokenizersBackend"},
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": ["input_ids", "token_type_ids"],
        },
        {"tokenizer_class": "BertTokenizer"},
        {"tokenizer_class": None},
    ],
)
def test_a_pairs_token_types_are_those_of_auto_tokenizer(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """A generic class gives none by itself, and the model was used so."""
    folder = write(tmp_path / "m", "BertForSequenceClassification")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config = {key: value for key, value in (config | changes).items() if value is not None}
    path.write_text(json.dumps(config))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
    theirs = pipeline({"text": "the cat sat", "text_pair": "a dog ran"}, top_k=None)
    ours = clozelab.load(folder, device="cpu", precision="32-true")
    assert ours.model.tokenizer.has_token_types == ("token_type_ids" in tokenizer("a", "the"))
    probabilities = ours.classify(("the cat sat", "a dog ran")).probabilities
    assert probabilities == pytest.approx({one["label"]: one["score"] for one in theirs}, abs=1e-5)
