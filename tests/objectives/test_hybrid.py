"""Causal and masked examples in one batch, against both objectives alone and a plain loop."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from clozelab.corpus.instances import FullSentences, SegmentPairs
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards
from clozelab.models.encoder import Encoder
from clozelab.models.folders import load_encoder, save_encoder_folder
from clozelab.models.layout import Layout
from clozelab.objectives.hybrid import Hybrid
from clozelab.objectives.ltr import LeftToRight
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.nsp import NextSentencePrediction
from clozelab.objectives.objective import Objective, TokenObjective, build_models, to_torch

MASKING = {
    "predict_prob": 0.15,
    "mask_fraction": 0.8,
    "random_fraction": 0.1,
    "same_fraction": 0.1,
}
SLOTS = 48
MakeEncoder = Callable[..., Encoder]


def hybrid(causal_fraction: float, shift: int = 1, weight: float = 1.0) -> Hybrid:
    return Hybrid(causal_fraction=causal_fraction, shift=shift, weight=weight, **MASKING)


def objective_of(token: TokenObjective) -> Objective:
    return Objective(input=FullSentences(), token=token, pair=None)


def arrays_of(token: TokenObjective, shards: TokenShards, ids: SpecialIds) -> dict[str, Any]:
    objective = objective_of(token)
    instances = objective.input.bind(shards, ids, SLOTS)
    arrays = objective.arrays(instances, 1, 0, np.arange(16), np.arange(16))
    assert min(arrays["lengths"]) < SLOTS  # padding is in the test
    return arrays


def losses_of(token: TokenObjective, encoder: Encoder, arrays: dict[str, Any]) -> list[Any]:
    objective = objective_of(token)
    torch.manual_seed(3)
    return objective.terms(build_models(encoder, [objective]), to_torch(arrays))


@pytest.mark.parametrize(
    ("token", "alone"),
    [
        (hybrid(1.0), LeftToRight(weight=1.0)),
        (hybrid(0.0, shift=0), MaskedLanguageModel(**MASKING, weight=1.0)),
    ],
)
def test_one_kind_alone_is_its_objective_to_the_bit(
    shards: TokenShards, ids: SpecialIds, make_encoder: MakeEncoder, token: Hybrid, alone: Any
) -> None:
    mine, theirs = arrays_of(token, shards, ids), arrays_of(alone, shards, ids)
    for name, value in theirs.items():
        assert np.array_equal(mine[name], value), name
    assert mine.keys() - theirs.keys() == {f"{alone.name}_numbers"}
    (own,) = losses_of(token, make_encoder(alone.is_causal), mine)
    (other,) = losses_of(alone, make_encoder(alone.is_causal), theirs)
    assert token.weights == alone.weights and token.is_causal == alone.is_causal
    assert (own.name, own.count) == (other.name, other.count)
    assert torch.equal(own.loss_sum, other.loss_sum)


def test_masked_labels_one_slot_before(
    shards: TokenShards, ids: SpecialIds, make_encoder: MakeEncoder
) -> None:
    """The pure masked arm differs from masked language modelling in where it predicts alone."""
    mine = arrays_of(hybrid(0.0), shards, ids)
    theirs = arrays_of(MaskedLanguageModel(**MASKING, weight=1.0), shards, ids)
    shifted = theirs | {"prediction_positions": theirs["prediction_positions"] - 1}
    for name, value in shifted.items():
        assert np.array_equal(mine[name], value), name
    (own,) = losses_of(hybrid(0.0), make_encoder(False), mine)
    (other,) = losses_of(MaskedLanguageModel(**MASKING, weight=1.0), make_encoder(False), shifted)
    (unshifted,) = losses_of(
        MaskedLanguageModel(**MASKING, weight=1.0), make_encoder(False), theirs
    )
    assert torch.equal(own.loss_sum, other.loss_sum)
    assert not torch.equal(own.loss_sum, unshifted.loss_sum)


@pytest.mark.parametrize("shift", [0, 1])
def test_losses_and_gradients_are_those_of_a_plain_loop(
    shards: TokenShards, ids: SpecialIds, make_encoder: MakeEncoder, shift: int
) -> None:
    """Each instance alone, without padding, through a causal or a usual encoder."""
    token = hybrid(0.25, shift, weight=2.0)
    arrays = arrays_of(token, shards, ids)
    objective = objective_of(token)
    encoder = make_encoder(False)
    torch.manual_seed(3)
    models = build_models(encoder, [objective])
    terms = objective.terms(models, to_torch(arrays))
    assert objective.weights == {"mlm": 1.5, "ltr": 0.5}
    counts = {term.name: term.count for term in terms}
    assert objective.counts(to_torch(arrays)) == counts
    assert token.num_predictions(to_torch(arrays)) == sum(counts.values())
    total = sum(objective.weights[term.name] * term.loss_sum / term.count for term in terms)
    total.backward()
    mine = encoder.embeddings.word_embeddings.weight.grad.clone()
    encoder.zero_grad()
    head: Any = models["encoder"].heads["lm"]
    masked = arrays_of(MaskedLanguageModel(**MASKING, weight=1.0), shards, ids)
    packed = FullSentences().bind(shards, ids, SLOTS).pack(1, 0, np.arange(16))
    losses: dict[bool, list[Any]] = {True: [], False: []}
    for number, length in enumerate(packed.lengths.tolist()):
        is_causal = number % 4 == 3  # every fourth
        rows = slice(SLOTS * number, SLOTS * number + length)
        text = packed.input_ids[rows]
        seen = text
        asked = np.arange(1, length)
        if not is_causal:
            seen = masked["input_ids"][rows]
            places = masked["prediction_positions"]
            asked = places[places // SLOTS == number] - SLOTS * number
        models["encoder"].set_reading(is_causal, False)
        slots = torch.arange(length)
        stream = (torch.from_numpy(seen), torch.zeros_like(slots), slots)
        states = encoder(*stream, Layout.ragged([length])).sequence_output
        logits = head(states[asked - (1 if is_causal else shift)])
        losses[is_causal].append(
            F.cross_entropy(logits, torch.from_numpy(text[asked]), reduction="none")
        )
    # 2 is the weight of the whole.
    expected = 2 * (0.75 * torch.cat(losses[False]).mean() + 0.25 * torch.cat(losses[True]).mean())
    torch.testing.assert_close(total, expected, atol=1e-5, rtol=1e-6)
    expected.backward()
    theirs = encoder.embeddings.word_embeddings.weight.grad
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def test_each_step_has_its_share_however_it_is_cut(shards: TokenShards, ids: SpecialIds) -> None:
    token = hybrid(1 / 16)
    objective = objective_of(token)
    instances = objective.input.bind(shards, ids, SLOTS)
    for step in range(3):
        order = np.arange(16 * step, 16 * step + 16)
        whole = objective.arrays(instances, 1, 0, order % len(instances), order)
        halves = [
            objective.arrays(instances, 1, 0, part % len(instances), part)
            for part in np.split(order, 2)
        ]
        is_causal = ~whole["visibility"].all((1, 2))
        assert is_causal.sum() == 1
        for name in ("input_ids", "visibility", "prediction_labels"):
            assert np.array_equal(np.concatenate([half[name] for half in halves]), whole[name])


def test_the_folder_remembers_where_a_token_is_predicted(
    make_encoder: MakeEncoder, tmp_path: Path
) -> None:
    encoder = make_encoder(False)
    objective = objective_of(hybrid(0.5))
    model = build_models(encoder, [objective])["encoder"]
    model.set_reading(objective.is_causal, objective.predicts_next)
    assert encoder.config.prediction_shift == 1
    save_encoder_folder(
        tmp_path / "both",
        encoder,
        heads={"lm": model.heads["lm"]},
        tokenizer_files={},
        extra_config={},
    )
    values = json.loads((tmp_path / "both" / "config.json").read_text())
    # transformers would look for the token at its own place.
    assert values["model_type"] == "clozelab_bert"
    assert load_encoder(tmp_path / "both").config == encoder.config
    # Without the head nothing differs from a stock model.
    save_encoder_folder(tmp_path / "alone", encoder, heads={}, tokenizer_files={}, extra_config={})
    assert json.loads((tmp_path / "alone" / "config.json").read_text())["model_type"] == "bert"


def test_shares_of_predictions() -> None:
    masked = MaskedLanguageModel(**MASKING, weight=1.0).predicted_share(63)
    assert masked == 9 / 63 and LeftToRight(weight=1.0).predicted_share(63) == 1.0
    assert hybrid(0.25).predicted_share(63) == pytest.approx(0.25 + 0.75 * masked)


def beside_next_sentences() -> Objective:
    nsp = NextSentencePrediction(weight=1.0)
    return Objective(input=SegmentPairs(0.5, "corpus"), token=hybrid(0.25), pair=nsp)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: hybrid(1.5), r"causal_fraction is 1.5; it must lie in \[0, 1\]"),
        (lambda: hybrid(0.5, shift=2), "shift is 2"),
        (lambda: hybrid(1 / 16).check_batch(8), "a global_batch_size of 16 or more"),
        (beside_next_sentences, "nsp cannot be learnt there"),
    ],
)
def test_what_is_no_hybrid_is_refused(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make()
