"""Batches are pure, terms add up over micro-batches and sources, misfits are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from clozelab.corpus.instances import FullSentences, SegmentPairs
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards
from clozelab.models.encoder import Encoder
from clozelab.objectives.ltr import LeftToRight
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.nsp import NextSentencePrediction
from clozelab.objectives.objective import Objective, build_models, to_torch

MakeMlm = Callable[..., MaskedLanguageModel]


def test_arms_see_the_same_pairs(
    shards: TokenShards, ids: SpecialIds, mlm_nsp: Objective, make_mlm: MakeMlm
) -> None:
    ltr = Objective(input=SegmentPairs(0.5, "corpus"), token=LeftToRight(weight=1.0), pair=None)
    instances = ltr.input.bind(shards, ids, 32)
    one, two = (objective.arrays(instances, 1, 0, np.arange(9)) for objective in (ltr, mlm_nsp))
    originals = two["input_ids"].copy()
    originals[two["prediction_positions"]] = two["prediction_labels"]
    assert (originals == one["input_ids"]).all()


def test_terms_add_up_over_micro_batches(
    shards: TokenShards, ids: SpecialIds, mlm_nsp: Objective, make_encoder: Callable[..., Encoder]
) -> None:
    encoder = make_encoder(False)
    models = build_models(encoder, [mlm_nsp])
    instances = mlm_nsp.input.bind(shards, ids, 32)

    def sums(*parts: np.ndarray) -> dict[str, tuple[float, int, int]]:
        total: dict[str, Any] = {}
        for part in parts:
            batch = to_torch(mlm_nsp.arrays(instances, 1, 0, part))
            for term in mlm_nsp.terms(models, batch):
                old = total.get(term.name, (0.0, 0, 0))
                new = (term.loss_sum.item(), term.count, int(term.num_correct))
                total[term.name] = tuple(a + b for a, b in zip(old, new, strict=True))
        return total

    whole = sums(np.arange(12))
    cut = sums(np.arange(5), np.arange(5, 12))
    for name in ("mlm", "nsp"):
        assert whole[name][0] == pytest.approx(cut[name][0], rel=1e-5)
        assert whole[name][1:] == cut[name][1:]


def test_pair_terms_by_source(
    shards: TokenShards, ids: SpecialIds, mlm_nsp: Objective, make_encoder: Callable[..., Encoder]
) -> None:
    encoder = make_encoder(False)
    batch = to_torch(mlm_nsp.arrays(mlm_nsp.input.bind(shards, ids, 32), 1, 0, np.arange(12)))
    models = build_models(encoder, [mlm_nsp])
    terms = mlm_nsp.terms(
        models, {**batch, "source_names": ("wiki", "books", "empty"), "sep_id": ids.sep}
    )
    assert [term.name for term in terms] == ["mlm", "nsp"]
    parts = [terms[1].figures[f"nsp_accuracy/{name}"] for name in ("wiki", "books", "empty")]
    assert [int(count) for _, count in parts] == [*np.bincount(batch["source"].numpy()).tolist(), 0]
    assert sum(int(correct) for correct, _ in parts) == int(terms[1].num_correct)
    # Inside one source: counted again from each pair's own answer, one pair a batch.
    expected = dict.fromkeys((0, 1), (0, 0))
    for number in range(12):
        alone = to_torch(
            mlm_nsp.arrays(mlm_nsp.input.bind(shards, ids, 32), 1, 0, np.array([number]))
        )
        label = int(alone["next_sentence_label"])
        is_right = int(mlm_nsp.terms(models, alone)[1].num_correct)
        if alone["source"] == alone["b_source"]:
            expected[label] = (expected[label][0] + is_right, expected[label][1] + 1)
    found = [terms[1].figures[f"nsp_one_source/{kind}"] for kind in ("next", "random")]
    assert [tuple(map(int, one)) for one in found] == list(expected.values())
    assert 0 < expected[1][1] < int(batch["next_sentence_label"].sum()), (
        "some random segments are of the other source"
    )


@pytest.mark.parametrize("has_token_types", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
def test_held_out_losses_by_source_and_separators_apart(
    shards: TokenShards,
    ids: SpecialIds,
    make_mlm: MakeMlm,
    make_encoder: Callable[..., Encoder],
    is_causal: bool,
    has_token_types: bool,
) -> None:
    """Against each prediction's own cross-entropy; its source is that of its own document."""
    ids = replace(ids, has_token_types=has_token_types)
    token = LeftToRight(weight=1.0) if is_causal else make_mlm()
    objective = Objective(input=SegmentPairs(0.5, "corpus"), token=token, pair=None)
    models = build_models(make_encoder(is_causal), [objective])
    instances = objective.input.bind(shards, ids, 32)
    batch = to_torch(objective.arrays(instances, 1, 0, np.arange(12)))
    (plain,) = objective.terms(models, batch)
    validation = {**batch, "source_names": ("wiki", "books"), "sep_id": ids.sep}
    (term,) = objective.terms(models, validation)
    logits = token.predictions(models, batch)["encoder"]
    labels = batch["prediction_labels"]
    each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    is_sep = labels == ids.sep
    assert bool(is_sep.any()) == is_causal
    assert float(term.loss_sum) == pytest.approx(float(each[~is_sep].sum()), rel=1e-5)
    assert term.count == int((~is_sep).sum())
    assert int(term.num_correct) == int((logits.argmax(-1) == labels)[~is_sep].sum())
    sep = f"{token.name}_sep_loss"
    assert float(term.figures[sep][0]) == pytest.approx(float(each[is_sep].sum()), rel=1e-5)
    assert float(term.loss_sum + term.figures[sep][0]) == pytest.approx(
        float(plain.loss_sum), rel=1e-5
    )
    packed = instances.pack(1, 0, np.arange(12))
    # Left to right, a state predicts the token behind it.
    slot = batch["prediction_positions"].numpy() % 32 + is_causal
    instance = batch["prediction_positions"].numpy() // 32
    assert packed.a_length is not None and packed.source is not None and packed.b_source is not None
    source = np.where(
        slot >= packed.a_length[instance] + 2, packed.b_source[instance], packed.source[instance]
    )
    for number, name in enumerate(("wiki", "books")):
        mine = torch.from_numpy(source == number) & ~is_sep
        total, count = term.figures[f"{token.name}_loss/{name}"]
        assert int(count) == int(mine.sum()) > 0
        assert float(total) == pytest.approx(float(each[mine].sum()), rel=1e-5)
    for names in (("wiki",), tuple(map(str, range(21)))):
        (alone,) = objective.terms(models, validation | {"source_names": names})
        assert not any("/" in name for name in alone.figures)
        assert float(alone.loss_sum) == pytest.approx(float(term.loss_sum), rel=1e-5)


def test_objectives_in_turn_share_their_heads(
    make_mlm: MakeMlm, make_encoder: Callable[..., Encoder]
) -> None:
    pairs = SegmentPairs(0.5, "corpus")
    ltr = Objective(input=pairs, token=LeftToRight(weight=1.0), pair=None)
    both = Objective(input=pairs, token=make_mlm(), pair=NextSentencePrediction(weight=1.0))
    assert list(build_models(make_encoder(False), [ltr, both, ltr])["encoder"].heads) == [
        "lm",
        "nsp",
    ]


def test_copies_are_all_in_one_epoch(
    shards: TokenShards, ids: SpecialIds, make_mlm: MakeMlm
) -> None:
    """Six ways to see the corpus: two copies of the released builder, each masked in three."""
    pairs = SegmentPairs(0.5, "corpus", cuts="released", copies=2)
    objective = Objective(input=pairs, token=make_mlm(), pair=None, dupe_factor=6)
    instances = objective.input.bind(shards, ids, 32)
    one_copy = len(replace(pairs, copies=1).bind(shards, ids, 32))
    index = np.array([0, 3, one_copy, one_copy + 3])
    seen = [
        objective.arrays(instances, 1, epoch, index)["input_ids"].reshape(4, -1)
        for epoch in range(7)
    ]
    assert (seen[0] == seen[3]).all() and (seen[1] == seen[4]).all() and (seen[0] != seen[1]).any()
    dynamic = Objective(input=pairs, token=make_mlm(), pair=None)
    assert (
        len(
            {
                dynamic.arrays(instances, 1, epoch, index)["input_ids"].tobytes()
                for epoch in range(7)
            }
        )
        == 7
    )


@pytest.mark.parametrize("number", [3, 0, -2])
def test_a_part_of_the_copies_is_refused(make_mlm: MakeMlm, number: int) -> None:
    pairs = SegmentPairs(0.5, "corpus", cuts="released", copies=2)
    with pytest.raises(ValueError, match=r"dupe_factor is .* multiple"):
        Objective(input=pairs, token=make_mlm(), pair=None, dupe_factor=number)


def test_parts_that_do_not_fit_are_refused(make_mlm: MakeMlm) -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        make_mlm(0.8, 0.1, 0.2)
    nsp = NextSentencePrediction(weight=1.0)
    with pytest.raises(ValueError, match="needs segment pairs"):
        Objective(input=FullSentences(), token=make_mlm(), pair=nsp)
