"""Segment pairs and full-sentence windows: where rows are cut, and that the cuts do not tell the
label.

Token ids are 10 + token position (see conftest), so a row says where it was cut.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest

from clozelab.corpus import instances as segments
from clozelab.corpus.instances import FullSentences, PairInstances, SegmentPairs, source_rule
from clozelab.corpus.packing import PackedInstances, SpecialIds
from clozelab.corpus.shards import TokenShards

FIRST_ID = 10
MakeShards = Callable[..., TokenShards]
MakeDocuments = Callable[..., list[list[int]]]


@dataclass
class Cut:
    """Token positions of the two segments of each row; all [B]."""

    a_start: np.ndarray
    a_length: np.ndarray
    b_start: np.ndarray
    b_length: np.ndarray


def rectangle(rows: PackedInstances, values: np.ndarray) -> np.ndarray:
    return values.reshape(rows.num_instances, -1)


def cuts(rows: PackedInstances) -> Cut:
    text = rectangle(rows, ~rows.special)
    types = rectangle(rows, rows.token_type_ids)
    position = rectangle(rows, rows.input_ids) - FIRST_ID
    found = []
    for segment in (0, 1):
        inside = text & (types == segment)
        first = inside.argmax(1)
        found += [position[np.arange(rows.num_instances), first], inside.sum(1)]
    return Cut(*found)


def document_of(shards: TokenShards, position: np.ndarray) -> np.ndarray:
    return (
        np.searchsorted(shards.sentence_offsets[shards.document_offsets], position, side="right")
        - 1
    )


def every_row(instances: Any, epochs: int = 1, seed: int = 1) -> list[PackedInstances]:
    return [instances.pack(seed, epoch, np.arange(len(instances))) for epoch in range(epochs)]


@pytest.fixture
def shards(make_shards: MakeShards, make_documents: MakeDocuments) -> TokenShards:
    return make_shards(
        make_documents(60, 2, 60, seed=1), sources=[number % 2 for number in range(60)]
    )


@pytest.mark.parametrize("seq_length", [8, 16, 33, 64, 128])
def test_rows_are_cls_a_sep_b_sep_pad(
    shards: TokenShards, ids: SpecialIds, seq_length: int
) -> None:
    instances = SegmentPairs(0.5, "corpus").bind(shards, ids, seq_length)
    rows = every_row(instances)[0]
    input_ids, types, special = (
        rectangle(rows, v) for v in (rows.input_ids, rows.token_type_ids, rows.special)
    )
    for row, length in enumerate(rows.lengths):
        a = int((~special[row] & (types[row] == 0)).sum())
        b = int((~special[row] & (types[row] == 1)).sum())
        assert a >= 1 and b >= 1 and a + b + 3 == length <= seq_length
        expected = [True] + [False] * a + [True] + [False] * b + [True] * (seq_length - a - b - 2)
        assert special[row].tolist() == expected
        assert types[row].tolist() == [0] * (a + 2) + [1] * (b + 1) + [0] * (seq_length - length)
        assert input_ids[row, [0, a + 1, a + b + 2]].tolist() == [ids.cls, ids.sep, ids.sep]
        assert (input_ids[row, length:] == ids.pad).all()
    assert (rectangle(rows, rows.position_ids) == np.arange(seq_length)).all()
    assert rows.width == seq_length
    assert all(
        values.dtype == np.int64
        for values in (rows.input_ids, rows.token_type_ids, rows.position_ids)
    )


@pytest.mark.parametrize("seq_length", [16, 64])
def test_segments_are_runs_of_text_and_b_begins_a_sentence(
    shards: TokenShards, ids: SpecialIds, seq_length: int
) -> None:
    instances = SegmentPairs(0.5, "corpus").bind(shards, ids, seq_length)
    for rows in every_row(instances, epochs=3):
        cut = cuts(rows)
        text = ~rows.special
        steps = np.diff(rows.input_ids)[text[1:] & text[:-1]]
        assert (steps == 1).all()
        assert np.isin(cut.b_start, shards.sentence_offsets).all()
        assert np.isin(cut.a_start + cut.a_length, shards.sentence_offsets).all()
        for start, length in ((cut.a_start, cut.a_length), (cut.b_start, cut.b_length)):
            assert (document_of(shards, start) == document_of(shards, start + length - 1)).all()
        is_next = rows.next_sentence_label == 0
        assert (cut.b_start == cut.a_start + cut.a_length)[is_next].all()
        other = document_of(shards, cut.b_start) != document_of(shards, cut.a_start)
        assert (other == ~is_next).all()
        assert (rows.source == shards.document_source[document_of(shards, cut.a_start)]).all()


def test_half_of_the_next_segments_are_random(shards: TokenShards, ids: SpecialIds) -> None:
    instances = SegmentPairs(0.5, "corpus").bind(shards, ids, 32)
    labels = np.concatenate([rows.next_sentence_label for rows in every_row(instances, epochs=20)])
    assert abs(labels.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(labels))
    for prob in (0.0, 1.0):
        rows = every_row(SegmentPairs(prob, "corpus").bind(shards, ids, 32))[0]
        assert rows.next_sentence_label.mean() == pytest.approx(prob, abs=0.02)
        assert rows.num_fallbacks == int(prob * len(rows.lengths)) - rows.next_sentence_label.sum()


def test_negative_scope(shards: TokenShards, ids: SpecialIds) -> None:
    for scope, crosses in (("source", False), ("corpus", True)):
        rows = every_row(SegmentPairs(1.0, scope).bind(shards, ids, 32))[0]
        other = shards.document_source[document_of(shards, cuts(rows).b_start)]
        assert (other != rows.source).any() == crosses
        assert (other == rows.b_source).all()
        assert rows.next_sentence_label.mean() > 0.97


@pytest.mark.parametrize(("scope", "expected"), [("corpus", 0.75), ("source", 0.5)])
def test_what_the_sources_alone_tell(
    make_shards: MakeShards, ids: SpecialIds, scope: str, expected: float
) -> None:
    """Over the corpus, half of the random segments are of the other of two equal sources."""
    shards = make_shards([[9] * 20] * 100, sources=[number % 2 for number in range(100)])
    rows = every_row(SegmentPairs(0.5, scope).bind(shards, ids, 32), epochs=5)
    label = np.concatenate([one.next_sentence_label for one in rows])
    one_source = np.concatenate([one.source == one.b_source for one in rows])
    assert source_rule(label, one_source) == pytest.approx(
        max((one_source == (label == 0)).mean(), 0.5), abs=0.02
    )
    assert source_rule(label, one_source) == pytest.approx(expected, abs=0.02)


def test_a_source_of_one_document_draws_from_the_others(
    make_shards: MakeShards, ids: SpecialIds
) -> None:
    shards = make_shards([[5] * 40, [6] * 40, [7] * 40, [8] * 40, [9]], sources=[0, 0, 0, 1, 1])
    instances = SegmentPairs(1.0, "source").bind(shards, ids, 32)
    assert instances.single_document_sources == [shards.source_names[1]]
    assert instances.num_skipped_documents == 1
    whole = SegmentPairs(1.0, "corpus").bind(shards, ids, 32)
    assert whole.single_document_sources == []
    drawn: set[int] = set()
    for rows in every_row(instances, epochs=9):
        other, is_random = document_of(shards, cuts(rows).b_start), rows.next_sentence_label == 1
        assert is_random.mean() > 0.8
        drawn |= set(other[is_random & (rows.source == 1)].tolist())
        assert (rows.b_source[is_random & (rows.source == 0)] == 0).all()
    assert drawn == {0, 1, 2}


@pytest.mark.parametrize("scope", ["corpus", "source"])
def test_parts_of_one_document_are_no_random_next_segments(
    make_shards: MakeShards, ids: SpecialIds, scope: str
) -> None:
    """A stretch was held out of documents 0 and 1, which leaves two parts of each."""
    shards = replace(make_shards([[5] * 40] * 5), document_origin=np.array([7, 7, 8, 8, 9]))
    for rows in every_row(SegmentPairs(1.0, scope).bind(shards, ids, 32), epochs=5):
        origins = [
            shards.document_origin[document_of(shards, at)]
            for at in (cuts(rows).a_start, cuts(rows).b_start)
        ]
        assert rows.next_sentence_label.mean() > 0.8
        assert (origins[0] != origins[1])[rows.next_sentence_label == 1].all()
    with pytest.raises(ValueError, match="single document"):
        SegmentPairs(0.5, scope).bind(replace(shards, document_origin=np.zeros(5)), ids, 32)


def test_the_other_document_is_drawn_in_proportion_to_length(
    make_shards: MakeShards, ids: SpecialIds
) -> None:
    shards = make_shards([[8] * 300, [8] * 600, [8] * 100])
    instances = SegmentPairs(1.0, "corpus").bind(shards, ids, 35)
    cut = [cuts(rows) for rows in every_row(instances, epochs=30)]
    a = np.concatenate([document_of(shards, c.a_start) for c in cut])
    b = np.concatenate([document_of(shards, c.b_start) for c in cut])
    assert (b[a == 2] == 1).mean() == pytest.approx(600 / 900, abs=0.04)


@pytest.mark.parametrize("seq_length", [16, 64, 256])
def test_each_document_is_used_in_each_epoch(
    shards: TokenShards, ids: SpecialIds, seq_length: int
) -> None:
    rows = every_row(SegmentPairs(0.5, "corpus").bind(shards, ids, seq_length))[0]
    assert set(document_of(shards, cuts(rows).a_start)) == set(range(shards.num_documents))


def test_nearly_every_token_is_seen_over_epochs(shards: TokenShards, ids: SpecialIds) -> None:
    instances = SegmentPairs(0.5, "corpus").bind(shards, ids, 64)
    seen = np.zeros(shards.num_tokens, dtype=bool)
    for rows in every_row(instances, epochs=20):
        seen[rows.input_ids[~rows.special] - FIRST_ID] = True
    assert seen.mean() > 0.99


def test_rows_fill_the_budget_where_the_document_allows(
    make_shards: MakeShards, ids: SpecialIds
) -> None:
    shards = make_shards([[7] * 50, [5] * 41, [3, 4]])
    rows = every_row(SegmentPairs(0.5, "corpus").bind(shards, ids, 35), epochs=10)
    long = np.concatenate([r.lengths[document_of(shards, cuts(r).a_start) < 2] for r in rows])
    assert (long == 35).mean() > 0.9


def test_single_sentences_are_counted_and_odd_documents_work(
    make_shards: MakeShards, ids: SpecialIds
) -> None:
    shards = make_shards(
        [[9], [500], [500, 1], [1, 500], [3, 500, 500, 2], [1, 1], [1] * 400, [20, 20, 5]]
    )
    instances = SegmentPairs(0.5, "corpus").bind(shards, ids, 32)
    for rows in every_row(instances, epochs=30):
        cut = cuts(rows)
        assert {0, 1}.isdisjoint(document_of(shards, cut.a_start))
        assert {0, 1}.isdisjoint(document_of(shards, cut.b_start))
        assert set(document_of(shards, cut.a_start)) == {2, 3, 4, 5, 6, 7}
        assert cut.a_length.min() >= 1 and cut.b_length.min() >= 1


def test_rows_are_a_pure_function_of_seed_epoch_and_index(
    shards: TokenShards, ids: SpecialIds
) -> None:
    instances = SegmentPairs(0.5, "corpus").bind(shards, ids, 32)
    index = np.array([5, 0, 17, 3, 99, 5])
    whole = instances.pack(3, np.array([0, 1, 0, 2, 1, 1]), index)
    for row, (epoch, number) in enumerate(zip([0, 1, 0, 2, 1, 1], index, strict=True)):
        alone = instances.pack(3, epoch, np.array([number]))
        assert (rectangle(whole, whole.input_ids)[row] == alone.input_ids).all()
        assert whole.next_sentence_label[row] == alone.next_sentence_label[0]
        assert whole.draws.names[row] == number
    again = SegmentPairs(0.5, "corpus").bind(shards, ids, 32).pack(3, 0, index)
    assert (again.input_ids == instances.pack(3, 0, index).input_ids).all()
    for other in (instances.pack(4, 0, index), instances.pack(3, 1, index)):
        assert (other.input_ids != again.input_ids).any()
    copy = pickle.loads(pickle.dumps(instances))
    assert (copy.pack(3, 0, index).input_ids == again.input_ids).all()


@pytest.mark.parametrize(
    ("steps", "value"), [("_BLOCK_SENTENCES", 7), ("_STEPS", 0), ("_STEPS", 1)]
)
def test_steps_of_a_walk_do_not_matter(
    steps: str, value: int, shards: TokenShards, ids: SpecialIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    formats = (SegmentPairs(0.5, "corpus"), FullSentences())
    whole = [every_row(f.bind(shards, ids, 32))[0].input_ids for f in formats]
    monkeypatch.setattr(segments, steps, value)
    for f, expected in zip(formats, whole, strict=True):
        assert (every_row(f.bind(shards, ids, 32))[0].input_ids == expected).all()


def test_a_single_document_needs_no_other_where_none_is_drawn(
    make_shards: MakeShards, ids: SpecialIds
) -> None:
    assert len(SegmentPairs(0.0, "corpus").bind(make_shards([[3, 3, 3]]), ids, 32)) == 1


# Lengths and cut positions do not tell the label.


def length_features(shards: TokenShards, cut: Cut) -> np.ndarray:
    """[B, 6]: len A, B, both, B ends a sentence, len of B's first sentence, sentence ends in B."""
    offsets = shards.sentence_offsets
    end = cut.b_start + cut.b_length
    first_end = offsets[np.searchsorted(offsets, cut.b_start, side="right")]
    ends = np.searchsorted(offsets, end, side="right") - np.searchsorted(
        offsets, cut.b_start, side="right"
    )
    first = np.minimum(first_end - cut.b_start, cut.b_length)
    features = [
        cut.a_length,
        cut.b_length,
        cut.a_length + cut.b_length,
        np.isin(end, offsets),
        first,
        ends,
    ]
    return np.stack(features, axis=1).astype(np.int64)


def length_only_accuracy(
    features: np.ndarray, labels: np.ndarray, is_training: np.ndarray
) -> float:
    """Held-out accuracy of the best of many classifiers: binned likelihood over each pair of
    features, and their sum.

    Picking the best on the held-out rows favours finding a leak, never hides one.
    """
    binned = np.empty_like(features)
    for column, values in enumerate(features.T):
        binned[:, column] = np.searchsorted(
            np.unique(np.quantile(values, np.linspace(0, 1, 9)[1:-1])), values
        )
    total, best = np.zeros(len(labels)), 0.0
    for one in range(binned.shape[1]):
        for two in range(one):
            cell = binned[:, one] * 10 + binned[:, two]
            counts = [
                np.bincount(cell[is_training & (labels == k)], minlength=100) + 5.0 for k in (0, 1)
            ]
            score = (
                np.log(counts[1] / counts[1].sum())[cell]
                - np.log(counts[0] / counts[0].sum())[cell]
            )
            total += score
            best = max(best, ((score > 0) == labels)[~is_training].mean())
    return max(best, ((total > 0) == labels)[~is_training].mean())


def collect(
    shards: TokenShards, instances: PairInstances, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels, and which rows train: the others are of other instances."""
    parts = every_row(instances, epochs=-(-count // len(instances)))
    features = np.concatenate([length_features(shards, cuts(rows)) for rows in parts])
    labels = np.concatenate([rows.next_sentence_label for rows in parts])
    return features, labels, np.concatenate([rows.draws.names for rows in parts]) % 2 == 0


@pytest.mark.parametrize(
    ("low", "high", "count", "seq_length"),
    [
        (30, 200, 400, 32),
        (30, 200, 400, 128),
        (2, 40, 2000, 64),
        (2, 40, 2000, 256),
        (1, 8, 4000, 64),
        (2, 2, 4000, 64),
    ],
)
def test_lengths_do_not_tell_the_label(
    make_shards: MakeShards,
    make_documents: MakeDocuments,
    ids: SpecialIds,
    low: int,
    high: int,
    count: int,
    seq_length: int,
) -> None:
    shards = make_shards(make_documents(count, low, high, seed=3))
    features, labels, is_training = collect(
        shards, SegmentPairs(0.5, "corpus").bind(shards, ids, seq_length), 40_000
    )
    accuracy = length_only_accuracy(features, labels, is_training)
    majority = max(labels.mean(), 1 - labels.mean())
    assert majority < 0.515
    # Best of 16 classifiers on 20,000 held-out rows: 3 standard errors is 0.0106.
    assert 0.48 < accuracy < majority + 0.012


@pytest.mark.parametrize(
    ("tenths", "epochs", "least"), [(10, 1, 0.8), (2, 4, 0.53)], ids=["naive", "slight"]
)
def test_the_classifier_detects_a_leak(
    make_shards: MakeShards,
    make_documents: MakeDocuments,
    ids: SpecialIds,
    tenths: int,
    epochs: int,
    least: float,
) -> None:
    """Positive controls: of a naive builder all true Bs are whole sentences, random ones are cut at
    the budget; slight is a leak in one true B of ten.
    """
    shards = make_shards(make_documents(400, 30, 200, seed=3))
    instances = SegmentPairs(0.5, "corpus").bind(shards, ids, 64)
    parts = every_row(instances, epochs)
    features, labels = [], np.concatenate([rows.next_sentence_label for rows in parts])
    for rows in parts:
        cut, offsets = cuts(rows), shards.sentence_offsets
        whole = (
            offsets[np.searchsorted(offsets, cut.b_start + cut.b_length, side="right") - 1]
            - cut.b_start
        )
        changed = (rows.next_sentence_label == 0) & (whole > 0) & (rows.draws.names % 10 < tenths)
        cut.b_length = np.where(changed, whole, cut.b_length)
        features.append(length_features(shards, cut))
    is_training = np.concatenate([rows.draws.names for rows in parts]) % 2 == 0
    assert length_only_accuracy(np.concatenate(features), labels, is_training) > least


# Full sentences.


def windows(rows: PackedInstances) -> list[list[int]]:
    """Text positions of each window, None-free, with -1 for an inner separator."""
    found = []
    for row, length in zip(rectangle(rows, rows.input_ids), rows.lengths, strict=True):
        found.append(
            [
                token - FIRST_ID if token >= FIRST_ID else -1
                for token in row[1 : length - 1].tolist()
            ]
        )
    return found


@pytest.mark.parametrize("seq_length", [16, 40, 128])
def test_windows_hold_the_corpus_once_in_whole_sentences(
    shards: TokenShards, ids: SpecialIds, seq_length: int
) -> None:
    instances = FullSentences().bind(shards, ids, seq_length)
    rows = every_row(instances)[0]
    input_ids = rectangle(rows, rows.input_ids)
    assert (input_ids[:, 0] == ids.cls).all()
    assert (input_ids[np.arange(len(input_ids)), rows.lengths - 1] == ids.sep).all()
    assert not rows.token_type_ids.any() and rows.next_sentence_label is None
    found = windows(rows)
    assert [p for p in chain.from_iterable(found) if p >= 0] == list(range(shards.num_tokens))
    starts = set(shards.sentence_offsets.tolist())
    limit = seq_length - 2
    for window in found:
        assert len(window) <= limit and window[0] >= 0 and window[-1] >= 0
        sentence = int(
            shards.sentence_offsets[
                np.searchsorted(shards.sentence_offsets, window[0], side="right")
            ]
        )
        assert window[0] in starts or len(window) <= limit < sentence - window[0] + limit
        for before, after in pairwise(window):
            if before >= 0 and after >= 0:
                assert document_of(shards, np.array(before)) == document_of(shards, np.array(after))
    inner = []
    for places in found:
        inner += [k for k in range(1, len(places) - 1) if places[k] == -1]
    assert inner
    special = rectangle(rows, rows.special)
    assert (special == (input_ids < FIRST_ID)).all()


def test_windows_are_as_full_as_whole_sentences_allow(
    make_shards: MakeShards, ids: SpecialIds
) -> None:
    shards = make_shards([[4, 4, 3], [2, 1], [5], [25, 3]])
    rows = every_row(FullSentences().bind(shards, ids, 14))[0]
    assert windows(rows) == [
        list(range(11)),
        [11, 12, 13, -1, *range(14, 19)],
        list(range(19, 31)),
        list(range(31, 43)),
        [43, 44, 45, 46],
    ]
    assert rows.source.tolist() == [0] * 5
    # An exactly full one, with separators inside.
    shards = make_shards([[4], [3], [2], [6]], sources=[1, 0, 2, 0])
    rows = every_row(FullSentences().bind(shards, ids, 13))[0]
    assert windows(rows) == [[0, 1, 2, 3, -1, 4, 5, 6, -1, 7, 8], [9, 10, 11, 12, 13, 14]]
    assert rows.lengths.tolist() == [13, 8]
    assert rows.source.tolist() == [1, 0]


# What is refused


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [((1.5, "corpus"), "random_next_prob"), ((0.5, "genre"), "negative_scope")],
)
def test_settings_of_pairs_that_cannot_be(settings: tuple[float, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        SegmentPairs(*settings)


@pytest.mark.parametrize(
    ("documents", "length", "sentence"),
    [
        ([[3, 3], [3, 3]], 5, "too short"),
        ([[3], [4]], 32, "no document with two sentences"),
        ([], 32, "no document with two sentences"),
        ([[3, 3, 3], [4]], 32, "single document"),
    ],
)
def test_documents_without_pairs(
    make_shards: MakeShards,
    ids: SpecialIds,
    documents: list[list[int]],
    length: int,
    sentence: str,
) -> None:
    with pytest.raises(ValueError, match=sentence):
        SegmentPairs(0.5, "corpus").bind(make_shards(documents), ids, length)


def test_no_text(make_shards: MakeShards, ids: SpecialIds) -> None:
    with pytest.raises(ValueError, match="no text"):
        FullSentences().bind(make_shards([]), ids, 32)
