"""Instances as the released builder makes them: equal to a plain builder fed with the same draws,
and, drawing by itself, of the same distribution as that builder with a generator and as the
released code's own instances."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from clozelab.corpus.instances import PairInstances, ReleasedInstances, SegmentPairs
from clozelab.corpus.packing import (
    Masking,
    PackedInstances,
    SpecialIds,
    begin_words,
    choose_positions,
    choose_spans,
)
from clozelab.corpus.random import Draws
from clozelab.corpus.shards import TokenShards, TokenStream
from clozelab.corpus.tokenizers import ByteBpeTokenizer, WordPieceTokenizer
from clozelab.objectives.mlm import MaskedLanguageModel
from clozelab.objectives.rtd import ReplacedTokenDetection

MakeShards = Callable[..., TokenShards]
MakeDocuments = Callable[..., list[list[int]]]
RELEASED = SegmentPairs(
    0.5,
    "corpus",
    cuts="released",
    short_seq_prob=0.1,
    put_back_unused=True,
    lone_sentences="random",
    copies=2,
)


# The plain builder: lists of lists, one draw after the other.


class Named:
    """The draws of ReleasedInstances, asked for by what they decide."""

    def __init__(self, seed: int, copy: int) -> None:
        self.seed, self.copy = seed, copy

    def unit(self, what: str, name: int, number: int = 0) -> float:
        return float(Draws(self.seed, self.copy, np.array([name])).uniform(what, number)[0])

    def coin(self, what: str, name: int, number: int) -> bool:
        return self.unit(what, name, number) < 0.5


class Generator:
    """The same questions, answered by a generator: whoever asks twice gets two answers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def unit(self, *_: object) -> float:
        return self.random.random()

    def coin(self, *_: object) -> bool:
        return self.random.random() < 0.5


def plain_pairs(
    documents: list[list[list[int]]], budget: int, draws: Named | Generator, layout: SegmentPairs
) -> Iterator[tuple[list[int], list[int], bool]]:
    """(A, B, whether B is random) of all documents in their order."""
    name = 0  # of a sentence in the corpus
    for number, document in enumerate(documents):
        target = budget
        if draws.unit("short", number, 0) < layout.short_seq_prob:
            target = 2 + int(draws.unit("short", number, 1) * (budget - 1))
        begin = 0
        while begin < len(document):
            end = begin + 1
            while end < len(document) and sum(map(len, document[begin:end])) < target:
                end += 1
            chunk, named = document[begin:end], name + begin
            cut = 1 + int(draws.unit("chunk", named, 0) * (len(chunk) - 1))
            a, b = [*chain(*chunk[:cut])], [*chain(*chunk[cut:])]
            is_random = draws.unit("chunk", named, 1) < layout.random_next_prob or len(chunk) == 1
            begin = begin + cut if is_random and layout.put_back_unused else end
            if len(chunk) == 1 and layout.lone_sentences == "left_out":
                continue
            if is_random:
                for attempt in range(10):
                    other = int(draws.unit("other document", named, attempt) * len(documents))
                    if other != number:
                        break
                at, b, wanted = (
                    int(draws.unit("other sentence", named) * len(documents[other])),
                    [],
                    target - len(a),
                )
                while at < len(documents[other]) and (not b or len(b) < wanted):
                    b, at = b + documents[other][at], at + 1
            removed = {"trim A": 0, "trim B": 0}
            while len(a) + len(b) > budget:
                which, side = ("trim A", a) if len(a) > len(b) else ("trim B", b)
                del side[0 if draws.coin(which, named, removed[which]) else -1]
                removed[which] += 1
            yield a, b, is_random
        name += len(document)


def sentences_of(shards: TokenShards) -> list[list[list[int]]]:
    tokens, offsets, bounds = (
        shards.tokens[:].tolist(),
        shards.sentence_offsets,
        shards.document_offsets,
    )
    sentences = [tokens[low:high] for low, high in pairwise(offsets)]
    return [sentences[low:high] for low, high in pairwise(bounds)]


def pairs_of(packed: PackedInstances) -> list[tuple[list[int], list[int], bool]]:
    ids, types = (
        packed.input_ids.reshape(-1, packed.width),
        packed.token_type_ids.reshape(-1, packed.width),
    )
    text = ~packed.special.reshape(ids.shape)
    segments = []
    for kind in (0, 1):
        segments.append(
            [row[keep].tolist() for row, keep in zip(ids, text & (types == kind), strict=True)]
        )
    assert packed.next_sentence_label is not None
    return list(zip(*segments, (packed.next_sentence_label == 1).tolist(), strict=True))


@pytest.fixture
def shards(make_shards: MakeShards, make_documents: MakeDocuments) -> TokenShards:
    """Documents of one sentence and of many, and sentences longer than any instance."""
    documents = make_documents(30, 1, 25, seed=1)
    documents[7] = [150, 4, 300, 2]
    return make_shards(documents, sources=[number % 2 for number in range(30)])


@pytest.mark.parametrize("seq_length", [8, 64])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"put_back_unused": False, "builder_seed": 1},
        {"lone_sentences": "left_out"},
        {"short_seq_prob": 0.0, "random_next_prob": 0.0},
        {"short_seq_prob": 1.0, "random_next_prob": 1.0, "copies": 1},
    ],
)
def test_equals_a_plain_builder_fed_with_the_same_draws(
    shards: TokenShards, ids: SpecialIds, seq_length: int, changes: dict[str, Any]
) -> None:
    layout = replace(RELEASED, **changes)
    instances = layout.bind(shards, ids, seq_length)
    documents, expected = sentences_of(shards), []
    for copy in range(layout.copies):
        expected += plain_pairs(documents, seq_length - 3, Named(layout.builder_seed, copy), layout)
    packed = instances.pack(9, 4, np.arange(len(instances)))
    assert pairs_of(packed) == expected
    first = np.searchsorted(
        shards.sentence_offsets, packed.input_ids.reshape(-1, seq_length)[:, 1] - 10, side="right"
    )
    document = np.searchsorted(shards.document_offsets, first - 1, side="right") - 1
    assert (packed.source == shards.document_source[document]).all()


def test_a_pure_function_of_settings_and_index(shards: TokenShards, ids: SpecialIds) -> None:
    """Neither seed nor epoch nor batch matters, nor a worker that finds the instances again."""
    instances = RELEASED.bind(shards, ids, 64)
    assert isinstance(instances, ReleasedInstances) and not isinstance(instances, PairInstances)
    whole = instances.pack(1, 0, np.arange(len(instances)))
    index = np.random.default_rng(0).permutation(len(instances))
    again = pickle.loads(pickle.dumps(instances))
    for part in np.array_split(index, 7):
        found = again.pack(2, np.arange(len(part)), part)
        assert (found.input_ids.reshape(-1, 64) == whole.input_ids.reshape(-1, 64)[part]).all()
        assert (found.next_sentence_label == whole.next_sentence_label[part]).all()
    other = replace(RELEASED, builder_seed=1).bind(shards, ids, 64)
    assert (
        len(other) != len(instances) or (other.pack(1, 0, index).input_ids != whole.input_ids).any()
    )


def test_another_document_of_the_source_or_of_the_corpus(
    shards: TokenShards, ids: SpecialIds
) -> None:
    for scope in ("corpus", "source"):
        instances = replace(RELEASED, negative_scope=scope).bind(shards, ids, 64)
        packed = instances.pack(1, 0, np.arange(len(instances)))
        assert packed.next_sentence_label is not None and packed.a_length is not None
        rows = packed.input_ids.reshape(-1, 64)
        begins = [rows[:, 1] - 10, rows[np.arange(len(rows)), packed.a_length + 2] - 10]
        a, b = (
            np.searchsorted(shards.sentence_offsets[shards.document_offsets], begin, side="right")
            - 1
            for begin in begins
        )
        is_random = packed.next_sentence_label == 1
        assert (a == b)[~is_random].all() and (a != b)[is_random].mean() > 0.99
        one_source = (shards.document_source[a] == shards.document_source[b])[is_random]
        assert (packed.source == shards.document_source[a]).all()
        assert (packed.b_source == shards.document_source[b]).all()
        assert one_source.all() if scope == "source" else 0.3 < one_source.mean() < 0.7


def test_short_instances_of_our_cuts(shards: TokenShards, ids: SpecialIds) -> None:
    """A setting of the released builder: some documents are in short instances as a whole."""
    ours = SegmentPairs(0.5, "corpus")
    found = [
        len(replace(ours, short_seq_prob=share).bind(shards, ids, 64)) for share in (0.0, 0.3, 1.0)
    ]
    assert found[0] < found[1] < found[2]
    instances = replace(ours, short_seq_prob=1.0).bind(shards, ids, 64)
    packed = instances.pack(1, 0, np.arange(len(instances)))
    assert packed.a_length is not None and packed.b_length is not None
    assert (
        (packed.a_length >= 1).all() and (packed.b_length >= 1).all() and packed.lengths.mean() < 50
    )


# The draws are the released builder's, only asked for by name.


def kinds(
    pairs: list[tuple[list[int], list[int], bool]], budget: int
) -> Counter[tuple[int, int, bool]]:
    """Instances by shape: length in eighths of the budget, A's share in quarters, random."""
    return Counter(
        ((len(a) + len(b)) * 8 // budget, len(a) * 4 // (len(a) + len(b)), random)
        for a, b, random in pairs
    )


@pytest.mark.parametrize(("seed", "is_sound"), [(0, True), (2, False)])
def test_shapes_are_distributed_as_with_a_generator(
    make_shards: MakeShards,
    make_documents: MakeDocuments,
    ids: SpecialIds,
    seed: int,
    is_sound: bool,
) -> None:
    """How many instances of each shape a copy has, over 40 copies of each; the control puts nothing
    back.

    Copies are independent, the instances of one are not: a short document makes many of a kind.
    """
    shards = make_shards(make_documents(40, 1, 25, seed=3))
    documents, budget, ours, theirs = sentences_of(shards), 61, [], []
    for copy in range(1000 * seed, 1000 * seed + 40):
        theirs.append(
            kinds(list(plain_pairs(documents, budget, Generator(copy), RELEASED)), budget)
        )
        layout = replace(RELEASED, copies=1, builder_seed=copy, put_back_unused=is_sound)
        instances = layout.bind(shards, ids, budget + 3)
        ours.append(kinds(pairs_of(instances.pack(1, 0, np.arange(len(instances)))), budget))
    total = sum(ours + theirs, Counter())
    tests = []
    for kind in total:
        if total[kind] >= 80:
            tests.append(
                stats.ttest_ind([one[kind] for one in ours], [one[kind] for one in theirs]).pvalue
            )
    tests.append(
        stats.ttest_ind([one.total() for one in ours], [one.total() for one in theirs]).pvalue
    )
    assert len(tests) > 15 and (min(tests) * len(tests) > 1e-3) == is_sound
    assert is_sound or tests[-1] < 1e-12


# Masks.


def masked(packed: PackedInstances, masking: Masking) -> np.ndarray:
    """[B, S] which slots are predicted."""
    hits = np.zeros(packed.special.size, dtype=bool)
    hits[masking.apply(packed)[1]] = True
    return hits.reshape(-1, packed.width)


def plain_words(row: list[int], special: list[bool], continues: Any) -> list[list[int]]:
    """Slots of each word, as the released code puts them together: over a [SEP], too."""
    words: list[list[int]] = []
    for slot, token in enumerate(row):
        if not special[slot]:
            if words and continues[token]:
                words[-1].append(slot)
            else:
                words.append([slot])
    return words


def plain_spans(
    words: list[list[int]], number: int, order: list[int], reach: dict[int, int]
) -> set[int]:
    """Slots that are predicted: words by their first slots' place in `order`, and those behind."""
    covered: set[int] = set()
    for begin in sorted(range(len(words)), key=lambda word: order.index(words[word][0])):
        for step, word in enumerate(words[begin : begin + reach[words[begin][0]]]):
            is_apart = (
                step > 0 and words[begin + step - 1][0] + len(words[begin + step - 1]) != word[0]
            )
            if is_apart or covered & {*word} or len(covered) + len(word) > number:
                break
            covered |= {*word}
    return covered


@pytest.mark.parametrize("weights", [(1.0,), (6.0, 3.0, 2.0), (1.0,) * 10])
@pytest.mark.parametrize("whole_words", [False, True])
def test_spans_equal_a_plain_loop_fed_with_the_same_draws(
    shards: TokenShards, ids: SpecialIds, weights: tuple[float, ...], whole_words: bool
) -> None:
    continues = np.random.default_rng(5).random(shards.vocab_size) < (0.4 if whole_words else 0.0)
    continues[:10] = False
    packed = RELEASED.bind(shards, ids, 64).pack(3, 2, np.arange(60))
    rows, special = packed.input_ids.reshape(-1, 64), packed.special.reshape(-1, 64)
    number = np.minimum(np.random.default_rng(6).integers(1, 14, 60), (~special).sum(1))
    begins = begin_words(packed, continues if whole_words else None)
    position, first = choose_spans(packed, number, begins, weights)
    for row in range(60):
        words = plain_words(rows[row].tolist(), special[row].tolist(), continues)
        keys = [
            int(Draws(3, 2, np.array([row])).bits("mask position", slot)[0]) >> 16 << 16 | slot
            for slot in range(64)
        ]
        order = sorted(range(64), key=keys.__getitem__)
        drawn = [
            float(Draws(3, 2, np.array([row])).uniform("mask span", slot)[0]) * sum(weights)
            for slot in range(64)
        ]
        reach = {}
        for slot, u in enumerate(drawn):
            reach[slot] = 1 + sum(sum(weights[: n + 1]) <= u for n in range(len(weights) - 1))
        expected = plain_spans(words, int(number[row]), order, reach)
        own = position // 64 == row
        assert {*(position[own] % 64).tolist()} == expected
        assert (first[own] // 64 == row).all() and (first[own] <= position[own]).all()
    assert (np.diff(position) > 0).all()
    if weights == (1.0,) and not whole_words:
        assert (position == choose_positions(packed, number)).all()


@pytest.mark.parametrize(
    "make", [MaskedLanguageModel, partial(ReplacedTokenDetection, generator_width="1/2")]
)
def test_every_masked_objective_takes_whole_words(
    shards: TokenShards, ids: SpecialIds, make: Callable[..., MaskedLanguageModel]
) -> None:
    """The generator of replaced tokens, too; and its copies of the text are whole behind it."""
    pieces = replace(ids, continues=np.arange(shards.vocab_size) % 3 == 0)
    packed = RELEASED.bind(shards, pieces, 64).pack(1, 0, np.arange(60))
    weights = {"weight": 1.0} | ({} if make is MaskedLanguageModel else {"generator_weight": 1.0})
    for whole_words, torn in ((True, 0), (False, 50)):
        token = make(
            predict_prob=0.15,
            mask_fraction=0.85,
            random_fraction=0.0,
            same_fraction=0.15,
            whole_words=whole_words,
            span_weights=[6, 3, 2],
            **weights,
        )
        found = token.arrays(packed)
        position = found["prediction_positions"]
        assert (found["prediction_labels"] == packed.input_ids[position]).all()
        assert len(position) > 300
        word = np.cumsum(begin_words(packed, pieces.continues))
        size, hits = (
            np.bincount(word[~packed.special]),
            np.bincount(word[position], minlength=int(word.max()) + 1),
        )
        assert ((hits > 0) & (hits < size)).sum() <= torn * 10
        assert ((hits > 0) & (hits < size)).sum() >= torn


def test_words_of_a_byte_level_vocabulary() -> None:
    """A word has the space before it and the punctuation behind it, as RoBERTa's."""
    texts = ["the cat sat on a mat.", "'Tis naïve, she said!"]
    tokenizer = ByteBpeTokenizer.train(texts * 9, 300, lowercase=False, add_prefix_space=True)
    ids = SpecialIds.from_tokenizer(tokenizer)
    found = np.concatenate([np.asarray(one) for one in tokenizer.encode_batch(texts)])
    size = len(found) + 2
    packed = PackedInstances(
        np.concatenate([[ids.cls], found, [ids.sep]]),
        np.zeros(size, dtype=np.int64),
        np.array([size]),
        size,
        ids,
        Draws(0, 0, np.zeros(1, dtype=np.int64)),
        np.isin(np.arange(size), [0, size - 1]),
    )
    begins = np.flatnonzero(begin_words(packed, ids.continues))
    words = np.split(packed.input_ids[:-1], begins)[1:]
    assert [tokenizer.decode(one.tolist()).strip() for one in words] == " ".join(texts).split()
    assert max(map(len, words)) > 1


def test_one_action_a_span(shards: TokenShards, ids: SpecialIds) -> None:
    packed = RELEASED.bind(shards, ids, 64).pack(1, 0, np.arange(100))
    for one_action in (True, False):
        masking = Masking(
            0.3, 0.5, 0.0, 0.5, span_weights=(0.0, 0.0, 1.0), one_action_a_span=one_action
        )
        seen, position, _ = masking.apply(packed)
        number = masking.number(packed.lengths, (~packed.special).reshape(-1, 64).sum(1), 64)
        _, first = choose_spans(packed, number, begin_words(packed, None), masking.span_weights)
        is_masked = seen[position] == ids.mask
        mixed = [len({*is_masked[first == begin].tolist()}) > 1 for begin in np.unique(first)]
        assert any(mixed) != one_action


def test_the_share_counts_special_tokens_and_is_held_down(
    shards: TokenShards, ids: SpecialIds
) -> None:
    """15 % of all tokens, [CLS] and [SEP] too: 13.6 % of 32 slots become 15.6."""
    packed = RELEASED.bind(shards, ids, 32).pack(1, 0, np.arange(200))
    lengths = packed.lengths.tolist()
    for settings, expected in (
        ({"count_specials": True}, [min(n - 3, max(1, round(0.15 * n))) for n in lengths]),
        ({}, [max(1, round(0.15 * (n - 3))) for n in lengths]),
        (
            {"count_specials": True, "max_predictions_fraction": 3 / 32},
            [min(3, max(1, round(0.15 * n))) for n in lengths],
        ),
    ):
        found = masked(packed, Masking(0.15, 0.8, 0.1, 0.1, **settings)).sum(1)
        assert found.tolist() == expected


# The released code's own instances: real text, real vocabulary.


@pytest.fixture(scope="module")
def sample(shared_dir: Path) -> tuple[TokenShards, WordPieceTokenizer, dict[str, Any]]:
    data = shared_dir / "data"
    tokenizer = WordPieceTokenizer.from_vocab(
        data / "vocab" / "bert-base-uncased-vocab.txt", lowercase=True
    )
    text = (data / "oracles" / "google_bert_sample_text.txt").read_text(encoding="utf-8")
    documents = []
    for document in text.split("\n\n"):
        if document.strip():
            documents.append(
                [ids for ids in tokenizer.encode_batch(document.split("\n")) if len(ids)]
            )
    sentences = []
    for document in documents:
        sentences.extend(document)
    shards = TokenShards(
        tokens=TokenStream([np.concatenate(sentences)]),
        sentence_offsets=np.append(0, np.cumsum([*map(len, sentences)])),
        document_offsets=np.append(0, np.cumsum([*map(len, documents)])),
        document_source=np.zeros(len(documents), dtype=np.uint8),
        source_names=("sample",),
        vocab_size=tokenizer.vocab_size,
        unigram_entropy=0.0,
        fingerprint="",
    )
    oracle = json.loads(
        (
            data / "oracles" / "create_pretraining_readme_uncased_seed12345_dupe5_len128.json"
        ).read_text()
    )
    return shards, tokenizer, oracle


def figures(
    lengths: np.ndarray, is_random: np.ndarray, words: list[list[list[int]]], hits: list[set[int]]
) -> dict[str, float]:
    """What instances of 128 slots are like; words and predictions as slots of each instance."""
    pieces = []
    for row, found in zip(words, hits, strict=True):
        for word in row:
            pieces.append((len(word), len(found & {*word})))
    long = [(size, hit) for size, hit in pieces if size > 1]
    return {
        "instances": len(lengths),
        "full length": float((lengths == 128).mean()),
        "random next": float(is_random.mean()),
        "tokens": float(lengths.mean()),
        "predictions": float(np.mean([*map(len, hits)])),
        "whole words": sum(size == hit for size, hit in long),
        "partial words": sum(0 < hit < size for size, hit in long),
    }


def oracle_figures(
    sample: tuple[TokenShards, WordPieceTokenizer, dict[str, Any]],
) -> dict[str, float]:
    _, tokenizer, oracle = sample
    ids, words, hits = {token: number for number, token in enumerate(tokenizer.vocabulary)}, [], []
    for one in oracle["instances"]:
        tokens = list(one["tokens"])
        for position, label in zip(
            one["masked_lm_positions"], one["masked_lm_labels"], strict=True
        ):
            tokens[position] = label
        row = [ids[token] for token in tokens]
        special = [token in ("[CLS]", "[SEP]") for token in tokens]
        words.append(plain_words(row, special, SpecialIds.from_tokenizer(tokenizer).continues))
        hits.append({*one["masked_lm_positions"]})
    lengths = np.array([len(one["tokens"]) for one in oracle["instances"]])
    return figures(
        lengths, np.array([one["is_random_next"] for one in oracle["instances"]]), words, hits
    )


def our_figures(
    sample: tuple[TokenShards, WordPieceTokenizer, dict[str, Any]],
    seed: int,
    layout: SegmentPairs,
    masking: Masking,
) -> dict[str, float]:
    shards, tokenizer, _ = sample
    ids = SpecialIds.from_tokenizer(tokenizer)
    instances = replace(layout, builder_seed=seed).bind(shards, ids, 128)
    # Our cuts are one way in every epoch: the released builder's five copies are five epochs.
    packs = [
        instances.pack(seed, epoch, np.arange(len(instances)))
        for epoch in range(5 // layout.copies)
    ]
    rows, words, hits = [], [], []
    for packed in packs:
        position = masking.apply(packed)[1]
        special = packed.special.reshape(-1, 128).tolist()
        for number, row in enumerate(packed.input_ids.reshape(-1, 128).tolist()):
            words.append(plain_words(row, special[number], ids.continues))
            hits.append({*(position[position // 128 == number] % 128).tolist()})
        rows.append((packed.lengths, packed.next_sentence_label))
    lengths, label = (np.concatenate(part) for part in zip(*rows, strict=True))
    return figures(lengths, label == 1, words, hits)


RELEASED_MASKS = Masking(
    0.15, 0.8, 0.1, 0.1, count_specials=True, max_predictions_fraction=20 / 128
)


@pytest.mark.shared
def test_the_released_instances_lie_among_ours(
    sample: tuple[TokenShards, WordPieceTokenizer, dict[str, Any]],
) -> None:
    """Within three standard deviations of 50 seeds; our own cuts give too few."""
    oracle, layout = oracle_figures(sample), replace(RELEASED, copies=5)
    assert oracle["instances"] == 60 and oracle["partial words"] > 100
    found = [our_figures(sample, seed, layout, RELEASED_MASKS) for seed in range(50)]
    for name, value in oracle.items():
        ours = [one[name] for one in found]
        assert abs(value - np.mean(ours)) < 3 * np.std(ours), name
    before = [
        our_figures(sample, seed, SegmentPairs(0.5, "corpus"), Masking(0.15, 0.8, 0.1, 0.1))
        for seed in range(20)
    ]
    count = [one["instances"] for one in before]
    assert max(count) < 60


@pytest.mark.shared
def test_the_released_number_of_predictions(
    sample: tuple[TokenShards, WordPieceTokenizer, dict[str, Any]],
) -> None:
    """Row by row, with [MASK], random and same as often."""
    instances = sample[2]["instances"]
    lengths = np.array([len(one["tokens"]) for one in instances])
    number = RELEASED_MASKS.number(lengths, lengths - 3, 128)
    assert number.tolist() == [len(one["masked_lm_positions"]) for one in instances]
    ours = Masking(0.15, 0.8, 0.1, 0.1).number(lengths, lengths - 3, 128)
    assert (ours <= number).all() and ours.sum() < number.sum()
    seen: Counter[str] = Counter()
    for one in instances:
        for slot, label in zip(one["masked_lm_positions"], one["masked_lm_labels"], strict=True):
            token = one["tokens"][slot]
            if token == "[MASK]":
                seen["mask"] += 1
            elif token == label:
                seen["same"] += 1
            else:
                seen["random"] += 1
    counts = [seen["mask"], seen["random"], seen["same"]]
    assert stats.chisquare(counts, np.array([0.8, 0.1, 0.1]) * sum(counts)).pvalue > 1e-3


@pytest.mark.shared
def test_whole_words_are_whole(
    sample: tuple[TokenShards, WordPieceTokenizer, dict[str, Any]],
) -> None:
    masking = replace(RELEASED_MASKS, whole_words=True)
    found = [our_figures(sample, seed, replace(RELEASED, copies=5), masking) for seed in range(5)]
    assert all(one["partial words"] == 0 and one["whole words"] > 20 for one in found)


# What is refused


@pytest.mark.parametrize(
    "settings", [{"put_back_unused": True}, {"copies": 2}, {"lone_sentences": "random"}]
)
def test_settings_of_the_released_cuts_alone(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cuts=ours"):
        SegmentPairs(0.5, "corpus", **settings)


@pytest.mark.parametrize(
    ("key", "value"),
    [("short_seq_prob", 1.5), ("cuts", "google"), ("lone_sentences", "never"), ("copies", 0)],
)
def test_settings_that_cannot_be(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        replace(RELEASED, **{key: value})
