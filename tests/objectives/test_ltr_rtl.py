"""An encoder of two directions against two separate causal ones, on the text and on its reverse."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clozelab.corpus.instances import FullSentences, SegmentPairs
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards
from clozelab.models.cost import training_flops_per_token
from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder, load_head, save_encoder_folder
from clozelab.models.layout import Layout
from clozelab.models.registry import family_for
from clozelab.objectives.ltr_rtl import BothDirections
from clozelab.objectives.objective import Objective, build_models, to_torch

SLOTS = 48
PAIRS = SegmentPairs(0.5, "corpus")
OBJECTIVE = Objective(input=PAIRS, token=BothDirections(weight=1.0), pair=None)


@pytest.fixture(params=["PostNorm", "PreNorm"])
def encoder(make_encoder: Callable[..., Encoder], request: Any) -> Encoder:
    block = {"_target_": f"clozelab.models.encoder.{request.param}"}
    return make_encoder(True, num_directions=2, block=block)


def separate(encoder: Encoder) -> list[Encoder]:
    """Two usual causal encoders with the weights of either direction."""
    config = replace(encoder.config, num_directions=1, pooler=None)
    state = encoder.state_dict()
    weights: list[dict[str, Tensor]] = [{}, {}]
    for name, value in state.items():
        if name.startswith("embeddings."):
            for one in weights:
                one[name] = value
        elif name.startswith("backward_stack."):
            weights[1][name.removeprefix("backward_stack.")] = value
        elif not name.startswith("pooler."):
            weights[0][name] = value
    encoders = []
    for one in weights:
        alone = Encoder(config).eval()
        alone.load_state_dict(one)
        encoders.append(alone)
    return encoders


def read(encoder: Encoder, ids: Tensor, types: Tensor) -> Tensor:
    """States [S, H] of one text alone."""
    slots = torch.arange(len(ids))
    return encoder(ids, types, slots, Layout.ragged([len(ids)])).sequence_output


def packed_of(shards: TokenShards, ids: SpecialIds) -> Any:
    packed = PAIRS.bind(shards, ids, SLOTS).pack(1, 0, np.arange(9))
    assert min(packed.lengths) < SLOTS  # padding is in the test
    return packed


@pytest.mark.parametrize("is_ragged", [False, True])
def test_states_are_those_of_two_encoders(
    encoder: Encoder, shards: TokenShards, ids: SpecialIds, is_ragged: bool
) -> None:
    packed = packed_of(shards, ids)
    kept = packed.is_real if is_ragged else np.ones(len(packed.input_ids), dtype=bool)
    layout = Layout.rectangle(packed.lengths, SLOTS)
    if is_ragged:
        layout = Layout.ragged(packed.lengths)
    stream = [
        torch.from_numpy(values[kept])
        for values in (packed.input_ids, packed.token_type_ids, packed.position_ids)
    ]
    output = encoder(*stream, layout, output_hidden_states=True)
    assert [states.shape[1] for states in output.hidden_states] == [32] * 3
    pooled = encoder.token_states(output.sequence_output, layout)
    forward, backward = separate(encoder)
    for number, length in enumerate(packed.lengths.tolist()):
        first = int(layout.first_rows[number])
        rows = slice(first, first + length)
        text, types = stream[0][rows], stream[1][rows]
        left = read(forward, text, types)
        right = read(backward, text.flip(0), types.flip(0))
        expected = torch.cat([left, right.flip(0)], dim=1)
        torch.testing.assert_close(output.sequence_output[rows], expected, atol=1e-5, rtol=1e-5)
        # Of a text what each has read last.
        ends = torch.cat([left[-1], right[-1]])
        torch.testing.assert_close(pooled[number], ends, atol=1e-5, rtol=1e-5)


def test_losses_and_gradients_are_those_of_two_encoders(
    encoder: Encoder, shards: TokenShards, ids: SpecialIds
) -> None:
    models = build_models(encoder, [OBJECTIVE])
    head: Any = models["encoder"].heads["lm"]
    instances = OBJECTIVE.input.bind(shards, ids, SLOTS)
    batch = to_torch(OBJECTIVE.arrays(instances, 1, 0, np.arange(9)))
    terms = OBJECTIVE.terms(models, batch)
    assert OBJECTIVE.weights == {"ltr": 1.0, "rtl": 1.0}
    sum(term.loss_sum for term in terms).backward()
    words = encoder.embeddings.word_embeddings.weight
    mine = words.grad.clone()
    head.zero_grad()
    packed = packed_of(shards, ids)
    halves = separate(encoder)
    sums: list[list[Tensor]] = [[], []]
    for number, length in enumerate(packed.lengths.tolist()):
        rows = slice(SLOTS * number, SLOTS * number + length)
        text = torch.from_numpy(packed.input_ids[rows])
        types = torch.from_numpy(packed.token_type_ids[rows])
        for way, half in enumerate(halves):
            # Each token predicts the next one of its reading; from the right not [CLS], the last.
            one = text.flip(0) if way else text
            states = read(half, one, types.flip(0) if way else types)
            asked = one[1 : length - way]
            logits = head(states[: len(asked)])
            sums[way].append(F.cross_entropy(logits, asked, reduction="none"))
    for term, losses in zip(terms, sums, strict=True):
        expected = torch.cat(losses)
        assert term.count == len(expected)
        torch.testing.assert_close(term.loss_sum, expected.sum(), atol=1e-4, rtol=1e-6)
    total = sum(torch.cat(losses).sum() for losses in sums)
    total.backward()
    # The embeddings are shared: their gradient is the sum of both, and of the head's.
    theirs = sum(half.embeddings.word_embeddings.weight.grad for half in halves) + words.grad
    torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-4)


def test_the_folder_comes_back_and_no_library_takes_it_for_another(
    encoder: Encoder, tmp_path: Path
) -> None:
    model = build_models(encoder, [OBJECTIVE])["encoder"]
    folder = tmp_path / "encoder"
    heads = dict(model.heads.items())
    save_encoder_folder(folder, encoder, heads=heads, tokenizer_files={}, extra_config={})
    values = json.loads((folder / "config.json").read_text())
    assert values["model_type"] == "clozelab_bert"
    assert values["architectures"] == ["ClozelabBertLMHeadModel"]
    again = load_encoder(folder)
    assert again.config == encoder.config
    for name, value in encoder.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    head: Any = family_for(again.config).head("lm", again)
    load_head(folder, "lm", head)
    states = torch.randn(3, 32)
    # Of both directions' states it reads those from the left.
    assert torch.equal(head(states), model.heads["lm"](states[:, :16]))


@pytest.mark.parametrize("kind", ["classification", "tags", "spans", "choices", "siamese"])
def test_heads_of_tasks_read_both_directions(encoder: Encoder, kind: str) -> None:
    for family in ("bert", "roberta"):
        encoder.config = replace(encoder.config, model_type=family)
        head = family_for(encoder.config).head(kind, encoder)
        width = 96 if kind == "siamese" else 32
        assert torch.isfinite(head(torch.randn(3, width))).all()


def test_both_stacks_and_both_projections_are_counted(encoder: Encoder) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = build_models(encoder, [OBJECTIVE])["encoder"]
    stream = torch.zeros(SLOTS, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        layout = Layout.rectangle([SLOTS], SLOTS)
        states = encoder(stream, stream, torch.arange(SLOTS), layout).sequence_output
        for half in states.chunk(2, dim=1):
            model.heads["lm"](half)
    expected = 3 * counter.get_total_flops() / SLOTS
    assert OBJECTIVE.token.flops_per_token(encoder.config, SLOTS, 2.0) == pytest.approx(expected)
    one = training_flops_per_token(replace(encoder.config, num_directions=1), SLOTS, 1.0)
    assert expected == pytest.approx(2 * one)


def test_a_model_of_the_other_kind_of_direction_is_refused(
    tiny_config: Any, make_encoder: Any, make_mlm: Any
) -> None:
    """A masked model of two directions would copy what it is asked for."""
    two = Encoder(tiny_config(num_directions=2, is_causal=True))
    masked = Objective(input=FullSentences(), token=make_mlm(), pair=None)
    with pytest.raises(ValueError, match="objective mlm would show each token to its own predict"):
        build_models(two, [masked])
    with pytest.raises(ValueError, match="say architecture=two_directions"):
        build_models(make_encoder(True), [OBJECTIVE])
