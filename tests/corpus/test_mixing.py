"""Mixing weights: each source's share of the tokens, in an order without state."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tests.datamodules.test_corpus import make_shards

from clozelab.assembly.passes import passes_by_source, passes_over_text, source_passes
from clozelab.corpus.instances import FullSentences, InputFormat, SegmentPairs
from clozelab.corpus.mixing import PERIOD, Mixture, PhaseReading, check_weights
from clozelab.corpus.packing import SpecialIds
from clozelab.corpus.shards import TokenShards, TokenStream
from clozelab.objectives.sop import SentencePairs

IDS = SpecialIds(2, 3, 0, 4, 90)
SOURCES = np.array([0] * 700 + [1] * 50 + [2] * 250, dtype=np.uint8)
SIZES = {"wiki": 7000, "books": 500, "news": 2500}


def mixture(weights: dict[str, float], seed: int = 1, sizes: dict[str, int] = SIZES) -> Mixture:
    counts = np.bincount(SOURCES).tolist()
    lengths = {name: sizes[name] / count for name, count in zip(sizes, counts, strict=True)}
    return Mixture(SOURCES, weights, lengths, seed)


@pytest.mark.parametrize(
    "weights",
    [
        {"wiki": 1, "books": 2, "news": 0},
        {"wiki": 1, "books": 1, "news": 1},
        {"wiki": 0.0, "books": 0.123, "news": 0.877},
    ],
)
@pytest.mark.parametrize("count", [10, 333, 4096, PERIOD + 77])
def test_every_beginning_has_the_shares_to_an_instance_a_source(
    weights: dict[str, float], count: int
) -> None:
    _, index = mixture(weights).places(np.arange(count))
    seen = Counter(SOURCES[index].tolist())
    for number, weight in enumerate(weights.values()):
        exact = count * weight / sum(weights.values())
        assert abs(seen[number] - exact) <= len(weights), (number, seen, exact)


def test_shares_are_of_tokens_where_instances_differ_in_length() -> None:
    # An instance of books has a tenth of the tokens of one of wiki.
    sizes = {"wiki": 70_000, "books": 500, "news": 1}
    _, index = mixture({"wiki": 1, "books": 1, "news": 0}, sizes=sizes).places(np.arange(11_000))
    seen = Counter(SOURCES[index].tolist())
    assert seen[1] == pytest.approx(10_000, abs=3)
    assert seen[0] == pytest.approx(1_000, abs=3)


def unlike_shards(kind: str) -> TokenShards:
    """Two sources that pairs read differently, of about 250 thousand tokens each."""
    random = np.random.default_rng(0)
    lengths: list[int] = []
    sizes = []
    sources = []
    for source in (0, 1):
        for _ in range(1200):
            is_lone = kind == "lone sentences" and source == 1 and random.random() < 0.8
            sizes.append(1 if is_lone else int(random.integers(5, 20)))
            sources.append(source)
            longest = 80 if kind == "long sentences" and source == 0 else 20
            lengths += random.integers(longest // 2, longest, sizes[-1]).tolist()
    return TokenShards(
        tokens=TokenStream([random.integers(5, 90, sum(lengths))]),
        sentence_offsets=np.append(0, np.cumsum(lengths)),
        document_offsets=np.append(0, np.cumsum(sizes)),
        document_source=np.array(sources, dtype=np.uint8),
        source_names=("wiki", "books"),
        vocab_size=90,
        unigram_entropy=4.0,
        fingerprint="",
    )


@pytest.mark.parametrize("kind", ["lone sentences", "long sentences"])
@pytest.mark.parametrize(
    "layout",
    [
        SegmentPairs(0.5, "source"),
        SegmentPairs(0.5, "corpus"),
        SegmentPairs(0.5, "source", cuts="released", copies=2, put_back_unused=True),
        SentencePairs(),
        FullSentences(),
    ],
    ids=["ours", "corpus", "released", "sentences", "windows"],
)
def test_weights_are_shares_of_the_tokens_that_are_read(kind: str, layout: InputFormat) -> None:
    """Pairs leave lone sentences out and cut long ones off, so a source's size tells nothing."""
    weights = {"wiki": 1.0, "books": 3.0}
    instances = layout.bind(unlike_shards(kind), IDS, 110, weights)
    lengths = dict(zip(weights, instances.mean_tokens, strict=True))
    order = Mixture(instances.sources(), weights, lengths, 5)
    epoch, index = order.places(np.arange(12_000))
    packed = instances.pack(5, epoch, index)
    tokens = (~packed.special).reshape(-1, packed.width).sum(axis=1)
    share = np.bincount(packed.source, tokens) / tokens.sum()
    assert share[1] == pytest.approx(0.75, abs=0.01)


def test_a_source_is_read_whole_before_it_is_read_again() -> None:
    weights = {"wiki": 1, "books": 2, "news": 0}
    epoch, index = mixture(weights).places(np.arange(900))
    of_books = SOURCES[index] == 1
    assert of_books.sum() in (599, 600, 601)
    for number in range(11):
        instances = index[of_books & (epoch == number)]
        assert sorted(instances.tolist()) == list(range(700, 750))
    orders = [index[of_books & (epoch == number)].tolist() for number in (0, 1)]
    assert orders[0] != orders[1], "every pass has an order of its own"
    assert set(epoch[~of_books].tolist()) == {0}


def test_a_place_is_found_without_those_before_it() -> None:
    order = mixture({"wiki": 1, "books": 3, "news": 0.5})
    whole = order.places(np.arange(PERIOD - 50, PERIOD + 200))
    later = order.places(np.arange(PERIOD + 100, PERIOD + 200))
    np.testing.assert_array_equal(np.stack(whole)[:, 150:], np.stack(later))
    other = mixture({"wiki": 1, "books": 3, "news": 0.5}, seed=2).places(np.arange(200))
    assert (np.stack(other) != np.stack(order.places(np.arange(200)))).any()


def test_no_source_stands_at_every_second_place() -> None:
    # The hybrid objective reads every second instance from left to right.
    _, index = mixture({"wiki": 1, "books": 1, "news": 0}).places(np.arange(20_000))
    is_book = SOURCES[index] == 1
    assert is_book[::2].mean() == pytest.approx(0.5, abs=0.02)


def test_the_layout_of_a_period_is_a_sorted_merge() -> None:
    """A second, plain implementation: draw a place for each, sort, count."""
    order = mixture({"wiki": 1, "books": 2, "news": 0})
    seen: Counter[int] = Counter()
    for source, number in zip(order._source.tolist(), order._number.tolist(), strict=True):
        assert number == seen[source]
        seen[source] += 1
    assert sum(seen.values()) == PERIOD


@pytest.mark.parametrize(
    "layout",
    [
        FullSentences(),
        SegmentPairs(0.5, "corpus"),
        SegmentPairs(0.5, "corpus", cuts="released", copies=3, put_back_unused=True),
        SentencePairs(),
    ],
)
def test_the_source_of_an_instance_is_that_of_its_packed_form(layout: InputFormat) -> None:
    instances = layout.bind(make_shards(30, 3), IDS, 24)
    packed = instances.pack(1, 0, np.arange(len(instances)))
    np.testing.assert_array_equal(instances.sources(), packed.source)


PAIRS = [SegmentPairs(0.5, "corpus"), SegmentPairs(0.5, "corpus", cuts="released")]


@pytest.mark.parametrize("layout", PAIRS)
def test_random_next_segments_are_of_the_sources_that_are_read(layout: SegmentPairs) -> None:
    shards = make_shards(300, 0)
    for weights, share in (({"wiki": 1, "books": 0}, 0.0), ({"wiki": 1, "books": 3}, 0.75)):
        instances = layout.bind(shards, IDS, 32, weights)
        index = np.arange(len(instances))
        packed = instances.pack(1, 0, index)
        assert packed.b_source is not None
        drawn = packed.b_source[packed.next_sentence_label == 1]
        assert len(drawn) > 100
        assert drawn.mean() == pytest.approx(share, abs=0.08 * share)
        copy = pickle.loads(pickle.dumps(instances)).pack(1, 0, index)
        np.testing.assert_array_equal(copy.input_ids, packed.input_ids)


def test_a_source_of_one_document_draws_by_weight_from_the_others() -> None:
    weights = {"wiki": 1, "books": 1, "news": 0}
    source = np.array([0] + [1] * 20 + [2] * 20, dtype=np.uint8)
    shards = replace(make_shards(41, 0), document_source=source, source_names=tuple(weights))
    instances = SegmentPairs(1.0, "source").bind(shards, IDS, 32, weights)
    packed = instances.pack(1, 0, np.zeros(1, dtype=np.int64))
    rows = [instances.pack(seed, 0, np.zeros(1, dtype=np.int64)) for seed in range(60)]
    drawn = {int(row.b_source[0]) for row in rows if row.next_sentence_label[0]}
    assert packed.source[0] == 0 and drawn == {1}


def test_weights_that_leave_a_single_document_to_draw_from_are_refused() -> None:
    shards = replace(make_shards(20, 0), document_source=np.uint8([0] + [1] * 19))
    with pytest.raises(ValueError, match="no other one to draw a random next segment from"):
        SegmentPairs(0.5, "corpus").bind(shards, IDS, 32, {"wiki": 1, "books": 0})


def test_tokens_of_each_source() -> None:
    shards = make_shards(30, 3)
    by_source = shards.tokens_by_source
    assert sum(by_source.values()) == shards.num_tokens
    first = shards.sentence_offsets[shards.document_offsets[1]]
    second = shards.sentence_offsets[shards.document_offsets[2]]
    one = make_shards(30, 3)
    one.document_source[:] = 1
    one.document_source[1] = 0
    assert one.tokens_by_source["wiki"] == second - first


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"wiki": 1, "boks": 1}, "there is no source 'boks'; did you mean 'books'?"),
        ({"wiki": 1}, "the weight of books is missing: give a number, 0 to leave it out"),
        ({"wiki": 1, "books": -1}, "the weight of books is -1: give a number"),
        ({"wiki": 1, "books": "a"}, "the weight of books is a: give a number"),
        ([1, 2], "=[1, 2]: give a number for each source"),
        ({"wiki": float("nan"), "books": 1}, "the weight of wiki is nan"),
        ({"wiki": float("inf"), "books": 1}, "the weight of wiki is inf"),
        ({"wiki": 0, "books": 0.0}, "all weights are 0"),
    ],
)
def test_weights_that_say_no_shares_are_refused(weights: object, message: str) -> None:
    with pytest.raises(ValueError, match=r"phases\.0\.source_weights") as caught:
        check_weights("phases.0.source_weights", weights, ["wiki", "books"])
    assert message in str(caught.value)


def test_a_source_that_has_nothing_to_read_is_refused() -> None:
    with pytest.raises(ValueError, match="source b with weight 1 has no instance"):
        Mixture(np.zeros(5, np.uint8), {"a": 1, "b": 1}, {"a": 10.0, "b": 0.0}, 1)
    with pytest.raises(ValueError, match=r"books with weight 1e-06 .* less than one of 65,536"):
        mixture({"wiki": 1, "books": 1e-6, "news": 0})


def test_passes_of_each_source() -> None:
    sizes = {"wiki": 1000, "books": 100}
    weights = {"wiki": 1.0, "books": 3.0}
    readings = [PhaseReading(550, {}, sizes), PhaseReading(400, weights, sizes)]
    times = passes_by_source(readings)
    assert times == pytest.approx({"wiki": 0.6, "books": 3.5})
    # Of 1,100 tokens of text 950 are read.
    assert passes_over_text(readings) == (pytest.approx(950 / 1100), 1100)
    assert source_passes(times) == ("wiki is read 0.6 times, books is read 3.5 times", False)
    with pytest.raises(ValueError, match="source books with weight 3 has no text to train on"):
        passes_by_source([PhaseReading(400, weights, {"wiki": 1000, "books": 0})])
    # Pairs find a half of the text: each phase reads what it can.
    pairs = PhaseReading(50, {}, {"wiki": 500, "books": 50})
    assert passes_over_text([readings[0], pairs]) == (pytest.approx(0.5 + 1 / 11), 1100)
    sentence, is_much = source_passes({"wiki": 0.1, "books": 41.0})
    assert is_much and "learns the text by heart" in sentence
