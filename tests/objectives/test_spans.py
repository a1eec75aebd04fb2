"""Span boundaries, against a plain loop over the spans of each instance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.nn import functional as F

from clozelab.corpus.instances import FullSentences
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards
from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder, load_head, save_encoder_folder
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for
from clozelab.objectives.objective import Objective, build_models, to_torch
from clozelab.objectives.spans import SpanBoundary, run_ends

SLOTS = 48
CONF = Path(__file__).resolve().parents[2] / "conf" / "objective" / "token" / "spans.yaml"
NODE = yaml.safe_load(CONF.read_text())
# Every token of the test's corpus is a word.
SETTINGS = {**NODE, "count_specials": False}
SETTINGS.pop("_target_")
OBJECTIVE = Objective(input=FullSentences(), token=SpanBoundary(**SETTINGS), pair=None)


def arrays_of(shards: TokenShards, ids: SpecialIds, number: int = 12) -> dict[str, Any]:
    return OBJECTIVE.arrays(OBJECTIVE.input.bind(shards, ids, SLOTS), 1, 0, np.arange(number))


def test_lengths_are_geometric() -> None:
    weights = np.array(NODE["span_weights"])
    expected = 0.2 * 0.8 ** np.arange(10)
    assert weights == pytest.approx(expected)
    mean = (weights * np.arange(1, 11)).sum() / weights.sum()
    assert mean == pytest.approx(3.8, abs=0.01)  # the paper's


def spans_of(positions: list[int]) -> list[list[int]]:
    """Neighbours in a row belong together."""
    spans: list[list[int]] = []
    for position in positions:
        if spans and spans[-1][-1] == position - 1:
            spans[-1].append(position)
        else:
            spans.append([position])
    return spans


def test_losses_are_those_of_a_plain_loop(
    shards: TokenShards, ids: SpecialIds, make_encoder: Callable[..., Encoder]
) -> None:
    arrays = arrays_of(shards, ids)
    encoder = make_encoder(False)
    torch.manual_seed(3)
    models = build_models(encoder, [OBJECTIVE])
    mlm, sbo = OBJECTIVE.terms(models, to_torch(arrays))
    assert OBJECTIVE.weights == {"mlm": 1.0, "sbo": 1.0} and mlm.count == sbo.count
    head: Any = models["encoder"].heads["sbo"]
    words = encoder.embeddings.word_embeddings.weight
    labels = dict(
        zip(arrays["prediction_positions"].tolist(), arrays["prediction_labels"], strict=True)
    )
    losses = []
    sizes = []
    for number, length in enumerate(arrays["lengths"].tolist()):
        begin = SLOTS * number
        slots = torch.arange(length)
        seen = torch.from_numpy(arrays["input_ids"][begin : begin + length])
        states = encoder(
            seen, torch.zeros_like(slots), slots, Layout.ragged([length])
        ).sequence_output
        own = [position for position in labels if begin <= position < begin + length]
        for span in spans_of(own):
            sizes.append(len(span))
            left, right = span[0] - begin - 1, span[-1] - begin + 1
            for place, position in enumerate(span):
                place_vector = head.position_embeddings.weight[place]
                x = torch.cat([states[left], states[right], place_vector])
                x = F.gelu(x @ head.dense_in.weight.T + head.dense_in.bias)
                x = F.layer_norm(x, x.shape, head.norm_in.weight, head.norm_in.bias, 1e-12)
                x = F.gelu(x @ head.dense_out.weight.T + head.dense_out.bias)
                x = F.layer_norm(x, x.shape, head.norm_out.weight, head.norm_out.bias, 1e-12)
                logits = words @ x + head.bias
                losses.append(-logits.log_softmax(0)[labels[position]])
    assert len(losses) == sbo.count and max(sizes) > 3 and len(sizes) > 12
    expected = torch.stack(losses).sum()
    torch.testing.assert_close(sbo.loss_sum, expected, atol=1e-4, rtol=1e-5)


def test_the_folder_is_a_stock_model_that_keeps_the_head(
    make_encoder: Callable[..., Encoder], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    encoder = make_encoder(False)
    heads = dict(build_models(encoder, [OBJECTIVE])["encoder"].heads.items())
    folder = tmp_path / "encoder"
    save_encoder_folder(folder, encoder, heads=heads, tokenizer_files={}, extra_config={})
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    assert type(theirs).__name__ == "BertForMaskedLM"
    again = load_encoder(folder)
    head: Any = family_for(again.config).head("sbo", again)
    load_head(folder, "sbo", head)
    states = torch.randn(3, head.input_size)
    assert torch.equal(head(states), heads["sbo"](states))


def test_both_projections_are_counted(make_encoder: Callable[..., Encoder]) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    encoder = make_encoder(False)
    heads: Any = build_models(encoder, [OBJECTIVE])["encoder"].heads
    stream = torch.zeros(SLOTS, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        layout = Layout.rectangle([SLOTS], SLOTS)
        states = encoder(stream, stream, torch.arange(SLOTS), layout).sequence_output
        heads["lm"](states[:6])
        heads["sbo"](torch.zeros(6, heads["sbo"].input_size))
    flops = OBJECTIVE.token.flops_per_token(encoder.config, SLOTS, 6 / SLOTS) * SLOTS
    assert flops == pytest.approx(3 * counter.get_total_flops())


def test_runs_end_where_the_next_slot_is_not_asked_for() -> None:
    """Also where nothing is predicted at all: whole words may be too long for short instances."""
    for positions in ([], [3], [3, 4, 7], [0, 1, 2], [2, 4, 5, 6, 9, 10]):
        first, last = run_ends(np.array(positions, dtype=np.int64))
        for number, position in enumerate(positions):
            low = high = position
            while low - 1 in positions:
                low -= 1
            while high + 1 in positions:
                high += 1
            assert (first[number], last[number]) == (low, high)
        assert len(first) == len(last) == len(positions)
