"""Permuted language models equal two streams written out, one instance after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.objectives import test_hybrid
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from clozelab.corpus.instances import SegmentPairs
from clozelab.corpus.packing import PackedInstances
from clozelab.models.cost import weight_names
from clozelab.models.encoder import Encoder
from clozelab.models.families.mpnet import POSITIONS
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.objective import Objective, build_models, to_torch
from clozelab.objectives.permuted import PermutedLanguageModel

MASKING = test_hybrid.MASKING | {"weight": 1.0}
WIDTH = 48
BOTH_KINDS = pytest.mark.parametrize("sees_every_position", [True, False])


def objective_of(sees_every_position: bool = True, **changes: Any) -> Objective:
    token = PermutedLanguageModel(**MASKING | changes, sees_every_position=sees_every_position)
    return Objective(input=SegmentPairs(0.5, "corpus"), token=token, pair=None)


@pytest.fixture
def make_mpnet(make_encoder: Callable[..., Encoder]) -> Callable[..., Encoder]:
    """make_mpnet(positions) -> an encoder with large weights everywhere."""

    def make(positions: Any) -> Encoder:
        encoder = make_encoder(False, positions=positions)
        for parameter in encoder.parameters():
            parameter.data.normal_(0.0, 0.2)
        return encoder

    return make


def bucket(ahead: int) -> int:
    """T5's, of one distance: 16 for each direction, of which 8 are exact and 128 is the longest."""
    side = 16 if ahead > 0 else 0
    distance = abs(ahead)
    if distance < 8:
        return side + distance
    return side + min(15, 8 + int(math.log(distance / 8) / math.log(128 / 8) * 8))


def attend(layer: Any, states: Tensor, content: Tensor, seen: Tensor, bias: Tensor) -> Tensor:
    """A whole layer on `states`, whose keys and values are the content's."""
    heads = layer.attention.num_heads
    q = layer.attention.qkv(states).view(len(states), 3, heads, -1)[:, 0]
    _, k, v = layer.attention.qkv(content).view(len(content), 3, heads, -1).unbind(1)
    scores = torch.einsum("qnd,knd->nqk", q, k) / layer.attention.head_dim**0.5 + bias
    probs = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    mixed = torch.einsum("nqk,knd->qnd", probs, v).flatten(1)
    middle = layer.attention.output(mixed, states)
    return layer.output(layer.intermediate(middle), middle)


def two_streams(
    encoder: Encoder, text: Any, seen: Any, types: Any, order: list[int], has_masks: bool
) -> Tensor:
    """States [predictions, H] of one instance, whose content is permuted as in MPNet's code.

    `text` are its tokens, `seen` those with masks among them, `order` the predicted slots.
    """
    others = [slot for slot in range(len(text)) if slot not in order]
    a, b = len(others), len(order)
    content = [*others, *order, *(order if has_masks else [])]
    ids = [*text[others], *text[order], *(seen[order] if has_masks else [])]

    def embedded(ids: Any, slots: list[int]) -> Tensor:
        return encoder.embed(*(torch.tensor(np.array(x)) for x in (ids, types[slots], slots)))

    c = embedded(ids, content)
    q = embedded(seen[order], order)
    # Rows of predicted content (itself included) and of queries, against visible text, predicted
    # content and masks: what is not seen of the content is seen of the masks.
    earlier = torch.ones(b, b).tril(-1)
    own = torch.ones(b, b).tril()
    none = torch.zeros(a, b)
    blocks = [
        torch.cat([torch.ones(a, a), none, 1 - none], 1),
        torch.cat([torch.ones(b, a), own, 1 - own], 1),
        torch.cat([torch.ones(b, a), torch.zeros(b, b), torch.ones(b, b)], 1),
    ]
    content_mask = torch.cat(blocks)[: len(content), : len(content)].bool()
    query_mask = torch.cat([torch.ones(b, a), earlier, 1 - earlier], 1)[:, : len(content)].bool()

    def bias(rows: list[int]) -> Tensor:
        scheme: Any = encoder.embeddings.position_embeddings
        if not hasattr(scheme, "relative_attention_bias"):
            return torch.zeros(())
        numbers = torch.empty(len(rows), len(content), dtype=torch.int64)
        for row, query in enumerate(rows):
            numbers[row] = torch.tensor([bucket(key - query) for key in content])
        return scheme.relative_attention_bias.weight[numbers].permute(2, 0, 1)

    for layer in encoder.layers():
        queries = attend(layer, q, c, query_mask, bias(order))
        c = attend(layer, c, c, content_mask, bias(content))
        q = queries
    return q


@BOTH_KINDS
@pytest.mark.parametrize(
    "positions", [POSITIONS, {"_target_": "clozelab.models.embeddings.LearnedPositions"}], ids=str
)
@pytest.mark.parametrize("kernel", ["bmm", "sdpa"])
def test_two_streams_are_one(
    shards: Any, ids: Any, make_mpnet: Any, monkeypatch: Any, sees_every_position, positions, kernel
) -> None:
    """States, loss and gradients, with instances that are padded among others."""
    monkeypatch.setattr("clozelab.models.attention._default_kernel", lambda _: kernel)
    objective = objective_of(sees_every_position)
    instances = objective.input.bind(shards, ids, WIDTH)
    index = np.arange(8)
    packed = instances.pack(1, 0, index)
    assert min(packed.lengths) < WIDTH == max(packed.lengths)
    batch = to_torch(objective.arrays(instances, 1, 0, index))
    encoder = make_mpnet(positions)
    models = build_models(encoder, [objective])
    (term,) = objective.terms(models, batch)
    term.loss_sum.backward()
    gradients = [parameter.grad for parameter in encoder.parameters()]
    encoder.zero_grad()

    # The order is read off the batch; everything else is made anew from the packed text.
    output = models["encoder"].states(batch["input_ids"], batch).sequence_output
    states = output[batch["prediction_positions"]]
    owner = batch["prediction_positions"] // batch["layout"].row_slots
    slots = batch["position_ids"][batch["prediction_positions"]]
    hidden = batch["input_ids"][batch["prediction_positions"]].numpy()
    expected = []
    for number, length in enumerate(packed.lengths):
        start = number * WIDTH
        text = packed.input_ids[start : start + length]
        order = slots[owner == number].tolist()
        seen = text.copy()
        seen[order] = hidden[(owner == number).numpy()]
        assert torch.equal(batch["prediction_labels"][owner == number], torch.tensor(text[order]))
        types = packed.token_type_ids[start : start + length]
        expected.append(two_streams(encoder, text, seen, types, order, sees_every_position))
    plain = torch.cat(expected)
    torch.testing.assert_close(states, plain, atol=1e-5, rtol=0)
    logits = models["encoder"].heads["lm"](plain)
    loss = F.cross_entropy(logits, batch["prediction_labels"], reduction="sum")
    torch.testing.assert_close(term.loss_sum, loss, atol=1e-4, rtol=1e-5)
    loss.backward()
    for parameter, gradient in zip(encoder.parameters(), gradients, strict=True):
        if parameter.grad is not None:
            torch.testing.assert_close(gradient, parameter.grad, atol=2e-5, rtol=1e-5)


def test_what_is_predicted_and_what_stands_there(shards: Any, ids: Any) -> None:
    """Choice and replacements are the masked model's; the order is drawn, anew in each epoch."""
    permuted = objective_of()
    masked = Objective(
        input=SegmentPairs(0.5, "corpus"), token=MaskedLanguageModel(**MASKING), pair=None
    )
    instances = permuted.input.bind(shards, ids, WIDTH)
    index = np.arange(len(instances))
    batch = permuted.arrays(instances, 1, 0, index)
    plain = masked.arrays(instances, 1, 0, index)
    positions = batch["prediction_positions"]
    slots = positions // batch["width"] * WIDTH + batch["position_ids"][positions]
    assert np.array_equal(np.sort(slots), plain["prediction_positions"])
    assert np.array_equal(plain["input_ids"][slots], batch["input_ids"][positions])
    again = permuted.arrays(instances, 1, 0, index)
    assert all(np.array_equal(batch[name], again[name]) for name in batch)
    # Each of the predicted tokens is as often the first as another one.
    _, first = np.unique(positions // batch["width"], return_index=True)
    place = []
    for number, begin in enumerate(first):
        own = np.sort(slots[slots // WIDTH == number])
        place.append(float(np.searchsorted(own, slots[begin])) / max(1, len(own) - 1))
    assert 0.4 < np.mean(place) < 0.6 and np.std(place) > 0.25
    other = permuted.arrays(instances, 1, np.full(len(index), 1), index)
    assert not np.array_equal(other["prediction_labels"], batch["prediction_labels"])


@BOTH_KINDS
def test_a_token_tells_those_behind_it_in_the_order(
    shards: Any, ids: Any, make_mpnet: Any, sees_every_position: bool
) -> None:
    """Another token at a predicted slot changes the predictions behind it, and no other."""
    always = {"mask_fraction": 1.0, "random_fraction": 0.0, "same_fraction": 0.0}
    objective = objective_of(sees_every_position, **always)
    instances = objective.input.bind(shards, ids, WIDTH)
    packed: PackedInstances = instances.pack(1, 0, np.array([3]))
    models = build_models(make_mpnet(POSITIONS), [objective])

    def predictions(text: np.ndarray) -> Tensor:
        changed = type(packed)(**{**vars(packed), "input_ids": text})
        batch = to_torch(objective.arrays_of(changed))
        with torch.no_grad():
            return objective.token.predictions(models, batch)["encoder"]

    arrays = objective.arrays_of(packed)
    slots = arrays["position_ids"][arrays["prediction_positions"]]
    before = predictions(packed.input_ids)
    for rank, slot in enumerate(slots):
        text = packed.input_ids.copy()
        text[slot] = 5 + (text[slot] + 2) % 55
        moved = (predictions(text) - before).abs().amax(1) > 1e-6
        assert moved.tolist() == [number > rank for number in range(len(slots))]


@BOTH_KINDS
@pytest.mark.usefixtures("counted_attention")
def test_its_work_is_counted(
    shards: Any, ids: Any, make_mpnet: Any, sees_every_position: bool
) -> None:
    """As torch counts a forward over rows that have no padding, three times."""
    objective = objective_of(sees_every_position)
    instances = objective.input.bind(shards, ids, WIDTH)
    packed = instances.pack(1, 0, np.arange(len(instances)))
    index = np.flatnonzero(packed.lengths == WIDTH)[:6]
    batch = to_torch(objective.arrays(instances, 1, 0, index))
    assert batch["layout"].full and sum(batch["text_lengths"]) == 6 * WIDTH
    encoder = make_mpnet(POSITIONS)
    models = build_models(encoder, [objective])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        objective.token.predictions(models, batch)
    share = len(batch["prediction_labels"]) / (6 * WIDTH)
    counted = objective.token.flops_per_token(encoder.config, WIDTH, share)
    assert counted * 6 * WIDTH == pytest.approx(3 * counter.get_total_flops(), rel=1e-9)
    masked = MaskedLanguageModel(**MASKING).flops_per_token(encoder.config, WIDTH, share)
    assert counted > masked
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        models["encoder"].states(batch["input_ids"], batch)
    frozen = frozenset(weight_names(encoder.config))
    left_out = objective.token.frozen_flops_per_token(encoder.config, WIDTH, share, frozen)
    assert left_out * 6 * WIDTH == pytest.approx(2 * counter.get_total_flops(), rel=1e-9)
