"""What stands in a folder beside an encoder and heads of ours, held against transformers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.screens import refuses, shows

import clozelab
from clozelab.models.folders import load_encoder, read_tensors
from clozelab.modules.model import read_model
from clozelab.stages.export import main as export

transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "old", "a", "cat", "dog", "."]
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
CRF = {"crf.transitions": torch.ones(5, 5)}


def write(folder: Path, head: str, tensors: Mapping[str, torch.Tensor], **config: Any) -> Path:
    """A tiny model of transformers with further tensors in its file."""
    torch.manual_seed(0)
    model = getattr(transformers, f"Bert{head}")(transformers.BertConfig(**SIZES, **config))
    model.save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    transformers.BertTokenizerFast(vocab=vocabulary).save_pretrained(folder)
    stored = load_file(folder / "model.safetensors") | dict(tensors)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    return folder


def load(folder: Path) -> Any:
    return clozelab.load(folder, precision="32-true", device="cpu")


@torch.no_grad()
def states(folder: Path, text: str) -> torch.Tensor:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]


def test_a_taggers_crf_is_named_and_its_tags_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", "ForTokenClassification", CRF, num_labels=5)
    model = read_model(folder)
    assert model.foreign == ("crf.transitions",) and not model.heads and model.task == "tags"
    with refuses("no head here has the tensor crf.transitions, so answers without"):
        load(folder).tag("the old cat")
    with refuses("no head here has the tensor crf.transitions, so answers without"):
        export([str(folder), f"to={tmp_path / 'out'}"])
    assert not (tmp_path / "out").exists()


def test_its_encoder_is_as_good_as_any(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write(tmp_path / "m", "ForTokenClassification", CRF, num_labels=5)
    expected = states(folder, "the old cat")
    with caplog.at_level(logging.WARNING):
        vectors = load(folder).embed("the old cat")
    own = [one.getMessage() for one in caplog.records if one.name.startswith("clozelab")]
    assert [message for message in own if "crf.transitions" in message] == own
    assert len(own) == 1
    assert torch.allclose(torch.from_numpy(vectors), expected.mean(0), atol=1e-5)
    assert export([str(folder), f"to={tmp_path / 'out'}", "head=false"]) == 0
    assert torch.allclose(states(tmp_path / "out", "the old cat"), expected, atol=1e-6)


def test_a_fine_tuning_from_it_names_the_tensor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes the encoder, and no head."""
    folder = write(tmp_path / "m", "ForSequenceClassification", CRF, num_labels=3)
    with caplog.at_level(logging.WARNING):
        load_encoder(folder)
    shows(caplog.text, "no head here has the tensor crf.transitions: left out")


def test_a_second_head_is_refused_by_name(tmp_path: Path) -> None:
    second = {"classifier.modules_to_save.default.weight": torch.ones(3, 32)}
    folder = write(tmp_path / "m", "ForSequenceClassification", second, num_labels=3)
    with refuses("no head here has the tensor"):
        load(folder).classify("the old cat")
    # Negative control: without it the same folder is read.
    first = {name: x for name, x in read_tensors(folder).items() if name not in second}
    save_file(first, folder / "model.safetensors", {"format": "pt"})
    assert load(folder).classify("the old cat").probability > 0


def test_a_head_of_another_task_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = {"classifier.weight": torch.ones(3, 32), "classifier.bias": torch.ones(3)}
    folder = write(tmp_path / "m", "ForMaskedLM", other)
    with caplog.at_level(logging.WARNING):
        model = read_model(folder)
    shows(caplog.text, "tensor classifier.bias (and 1 more) is read by nothing here: left out")
    assert model.foreign == () and set(model.heads) == {"lm"}


@pytest.mark.parametrize("family", ["Roberta", "MPNet"])
def test_a_padding_id_that_is_not_the_tokenizers_is_refused(tmp_path: Path, family: str) -> None:
    """transformers counts the id of config.json as padding, wherever it stands in a text."""
    torch.manual_seed(0)
    sizes = SIZES | {"max_position_embeddings": 66}
    config = getattr(transformers, f"{family}Config")(**sizes)
    getattr(transformers, f"{family}Model")(config).save_pretrained(tmp_path)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    transformers.BertTokenizerFast(vocab=vocabulary).save_pretrained(tmp_path)
    with refuses("positions begin behind the padding, which is the id 1 for this"):
        read_model(tmp_path)
