"""Sentence order: both orders have the same tokens, and only their text tells them apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from clozelab.corpus.instances import FullSentences, SegmentPairs
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards, TokenStream
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.objective import Objective, build_models, to_torch
from clozelab.objectives.sop import SentenceOrderPrediction, SentencePairs

SOP = SentenceOrderPrediction(weight=1.0)


@pytest.mark.parametrize("separators", [1, 2])
def test_pairs_are_whole_sentences_in_either_order(
    shards: TokenShards, ids: SpecialIds, separators: int
) -> None:
    """Against a plain second implementation, instance by instance."""
    ids = SpecialIds(
        2, 3, 0, 4, ids.vocab_size, pair_separators=separators, has_token_types=separators == 1
    )
    instances = SentencePairs().bind(shards, ids, 40)
    index = np.arange(len(instances))
    text = instances.pack(1, 2, index)
    packed, label = SOP.arrange(text)
    tokens = shards.tokens[:].tolist()
    starts = set(shards.sentence_offsets.tolist())
    documents = shards.sentence_offsets[shards.document_offsets]
    seen = packed.input_ids.reshape(-1, 40)
    a_length = text.a_length
    b_length = text.b_length
    for number in index:
        length = packed.lengths[number]
        a = a_length[number]
        b = b_length[number]
        row = text.input_ids.reshape(-1, 40)[number, :length].tolist()
        first = row[1 : a + 1]
        second = row[a + 1 + separators : length - 1]
        assert (len(first), len(second)) == (a, b) and length == 2 + separators + a + b <= 40
        (place,) = [at for at in range(len(tokens)) if tokens[at : at + a + b] == first + second]
        assert {place, place + a, place + a + b} <= starts
        assert len(set(np.searchsorted(documents, [place, place + a + b - 1], side="right"))) == 1
        first, second = (second, first) if label[number] else (first, second)
        wanted = [ids.cls, *first, *[ids.sep] * separators, *second, ids.sep]
        assert seen[number].tolist() == wanted + [ids.pad] * (40 - length)
        types = [0] * (1 + len(first) + separators) + [int(separators == 1)] * (len(second) + 1)
        assert packed.token_type_ids.reshape(-1, 40)[number].tolist() == types + [0] * (40 - length)
        special = packed.special.reshape(-1, 40)[number]
        assert np.flatnonzero(~special).tolist() == [
            *range(1, 1 + len(first)),
            *range(1 + len(first) + separators, length - 1),
        ]
        assert (packed.a_length[number], packed.b_length[number]) == (len(first), len(second))


def test_labels_are_balanced_and_drawn_anew_in_every_epoch(
    shards: TokenShards, ids: SpecialIds
) -> None:
    instances = SentencePairs().bind(shards, ids, 40)
    index = np.arange(len(instances))
    labels = np.array([SOP.arrange(instances.pack(1, epoch, index))[1] for epoch in range(40)])
    assert abs(labels.mean() - 0.5) < 4.5 * 0.5 / labels.size**0.5
    assert (labels.min(0) == 0).all() and (labels.max(0) == 1).all()
    again = SOP.arrange(instances.pack(1, np.full(len(index), 7), index[::-1]))[1]
    assert (again[::-1] == labels[7]).all()


def test_neither_segment_is_the_longer_one(ids: SpecialIds) -> None:
    """Of sentences of very different lengths, on average."""
    rng = np.random.default_rng(0)
    sizes = np.full(3000, 9)
    lengths = rng.geometric(0.12, 27_000)
    shards = TokenShards(
        tokens=TokenStream([np.ones(lengths.sum(), dtype=np.uint16)]),
        sentence_offsets=np.append(0, np.cumsum(lengths)),
        document_offsets=np.append(0, np.cumsum(sizes)),
        document_source=np.zeros(3000, dtype=np.uint8),
        source_names=("one",),
        vocab_size=60,
        unigram_entropy=0.0,
        fingerprint="",
    )
    instances = SentencePairs().bind(shards, ids, 32)
    packed = instances.pack(1, 0, np.arange(len(instances)))
    more = packed.a_length - packed.b_length
    by_walk = np.flatnonzero(np.diff(instances._first) < 0)[0] + 1
    # Each walk alone puts the longer sentences at its beginning.
    assert more[:by_walk].mean() > 1 and more[by_walk:].mean() < -1
    assert abs(more.mean()) < 4.5 * more.std() / len(more) ** 0.5


def test_loss_and_masks_are_those_of_the_swapped_text(
    shards: TokenShards, ids: SpecialIds, make_mlm: object, make_encoder: object
) -> None:
    token = MaskedLanguageModel(
        predict_prob=0.15, mask_fraction=1.0, random_fraction=0.0, same_fraction=0.0, weight=1.0
    )
    objective = Objective(input=SentencePairs(), token=token, pair=SOP)
    instances = objective.input.bind(shards, ids, 40)
    arrays = objective.arrays(instances, 1, 0, np.arange(9))
    packed, label = SOP.arrange(instances.pack(1, 0, np.arange(9)))
    text = arrays["input_ids"].copy()
    text[arrays["prediction_positions"]] = arrays["prediction_labels"]
    assert (text == packed.input_ids).all() and (arrays["sentence_order_label"] == label).all()
    models = build_models(make_encoder(False), [objective])  # type: ignore[operator]
    terms = objective.terms(models, to_torch(arrays))
    assert [term.name for term in terms] == ["mlm", "sop"]
    assert list(models["encoder"].heads) == ["lm", "sop"]
    sum(term.loss_sum for term in terms).backward()  # type: ignore[union-attr]
    assert all(
        p.grad is not None and torch.isfinite(p.grad).all() for p in models["encoder"].parameters()
    )


def test_instances_without_two_sentences_are_refused(
    shards: TokenShards, ids: SpecialIds, make_mlm: Any
) -> None:
    for instances in (SegmentPairs(0.0, "corpus"), FullSentences()):
        with pytest.raises(ValueError, match="choose objective/input=sentence_pairs"):
            Objective(input=instances, token=make_mlm(), pair=SOP)
    with pytest.raises(ValueError, match="no two sentences of a document fit into 8 tokens"):
        SentencePairs().bind(shards, ids, 8)
