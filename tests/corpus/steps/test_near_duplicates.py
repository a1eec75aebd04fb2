"""`near_duplicates` against exact Jaccard similarities of all pairs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.corpus.steps.sharded import Lines, run, run_any
from tests.screens import refuses

from clozelab.corpus.documents import DUPLICATE
from clozelab.corpus.steps import near_duplicates
from clozelab.corpus.steps.near_duplicates import (
    NUM_ORDERS,
    REASON,
    SHOWN_CHARACTERS,
    NearDuplicates,
    similar_to_earlier,
    sketch_of,
)
from clozelab.corpus.steps.step import MAX_EXAMPLES

WORDS = [f"word{number}" for number in range(3000)]


def ngrams(lines: Lines, size: int = 5) -> set[tuple[str, ...]]:
    words = " ".join(lines).lower().replace(".", "").replace(",", "").split()
    return {tuple(words[start : start + size]) for start in range(len(words) - size + 1)}


def jaccard(first: Lines, second: Lines) -> float:
    union = ngrams(first) | ngrams(second)
    return len(ngrams(first) & ngrams(second)) / len(union) if union else 0.0


def num_characters(documents: Sequence[Lines]) -> int:
    return sum(len("".join(lines)) for lines in documents)


def plain(documents: Sequence[Lines], threshold: float) -> list[Lines]:
    """All pairs, exactly: a document stays that is not similar to an earlier one that stays."""
    kept: list[Lines] = []
    for document in documents:
        if all(jaccard(document, earlier) < threshold for earlier in kept):
            kept.append(document)
    return kept


def text(random_words: random.Random, num_words: int) -> list[str]:
    words = random_words.choices(WORDS, k=num_words)
    return [" ".join(words[start : start + 12]) + "." for start in range(0, num_words, 12)]


def edited(lines: Lines, random_words: random.Random, num_edits: int) -> list[str]:
    words = " ".join(lines).split()
    for place in random_words.sample(range(len(words)), num_edits):
        words[place] = random_words.choice(WORDS)
    return [" ".join(words)]


def corpus(seed: int, num_clusters: int = 40) -> list[Lines]:
    """Clusters of copies (no edit or one in 300 words), single texts, and texts half the same."""
    generator = random.Random(seed)
    documents: list[Lines] = []
    for _ in range(num_clusters):
        original = text(generator, 300)
        documents.append(original)
        for _ in range(generator.randrange(4)):
            documents.append(edited(original, generator, generator.randrange(2)))
        documents.append([*original[: len(original) // 2], *text(generator, 150)])
    generator.shuffle(documents)
    return documents


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_it_keeps_what_all_exact_similarities_keep(seed: int) -> None:
    documents = corpus(seed)
    expected = plain(documents, 0.8)
    kept, report = run_any(NearDuplicates(threshold=0.8), documents)
    assert kept == expected
    # Some were planted, and half of a text that is the same is not enough.
    assert 10 < report.documents.total() == len(documents) - len(expected)
    assert len(expected) == 80
    lost = num_characters(documents) - num_characters(expected)
    assert report.characters.total() == lost
    # Copies to the letter are counted apart from similar texts, of which the pairs are shown.
    texts = Counter("\n".join(lines) for lines in documents)
    assert 0 < report.documents[DUPLICATE] == (texts - Counter(set(texts))).total()
    assert len(report.examples[REASON]) == MAX_EXAMPLES
    stays = {" ".join(lines)[:SHOWN_CHARACTERS]: lines for lines in expected}
    for example in report.examples[REASON]:
        later, earlier = example.split(" | ")
        beginning_so = [lines for lines in documents if " ".join(lines).startswith(later)]
        assert max(jaccard(lines, stays[earlier]) for lines in beginning_so) > 0.8


def test_a_lower_threshold_drops_what_a_higher_one_leaves() -> None:
    generator = random.Random(7)
    original = text(generator, 600)
    documents = [original, edited(original, generator, 30)]
    similarity = jaccard(*documents)
    assert 0.55 < similarity < 0.68
    assert len(run_any(NearDuplicates(threshold=0.5), documents)[0]) == 1
    assert len(run_any(NearDuplicates(threshold=0.8), documents)[0]) == 2


def test_case_punctuation_and_line_ends_do_not_count() -> None:
    lines = ["One two three, four five six.", "Seven eight nine ten eleven twelve."]
    shouted = ["ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE TEN ELEVEN - TWELVE!"]
    assert run_any(NearDuplicates(), [lines, shouted])[0] == [lines]


def test_characters_of_a_script_without_spaces_are_words() -> None:
    text_of_one_line = "彼は手紙を開け返事をする前に二度読んだ"
    changed = f"{text_of_one_line}今日"
    assert run_any(NearDuplicates(), [[text_of_one_line], [changed]])[0] == [[text_of_one_line]]


def test_words_of_other_vowels_are_other_words() -> None:
    """In Hindi a vowel behind a consonant is a mark, which is no letter to Python."""
    documents = [["वह किताब पढ़ता है और मैं कहानी सुनता हूँ"]]
    documents.append(["वही किताबे पढ़ती हो और मेँ कहाने सूनती हूँ"])
    assert run_any(NearDuplicates(), documents)[0] == documents
    assert run_any(NearDuplicates(), [*documents, documents[0]])[0] == documents


def test_a_document_of_fewer_words_than_a_run_stays() -> None:
    documents = [["one two three four"], ["one two three four"], [], []]
    assert run_any(NearDuplicates(), documents)[0] == documents


def test_the_chain_is_broken_at_a_document_that_is_like_a_dropped_one_only() -> None:
    """A is like B, B like C, A not like C: C stays, for nothing that stays is like it."""
    words = [f"w{number}" for number in range(1000)]
    documents = [[" ".join(words[start : start + 600])] for start in (0, 60, 120)]
    assert jaccard(documents[0], documents[1]) > 0.8 > jaccard(documents[0], documents[2])
    assert run_any(NearDuplicates(threshold=0.75), documents)[0] == [documents[0], documents[2]]


def test_sketches_estimate_similarity_within_their_standard_error() -> None:
    generator = np.random.default_rng(3)
    for similarity in (0.2, 0.5, 0.8, 0.95):
        errors = []
        for _ in range(200):
            shared, left, right = np.split(
                generator.integers(2**64, size=2000, dtype=np.uint64),
                [round(1000 * similarity), round(1000 * similarity) + 500],
            )
            num_own = round(500 * (1 - similarity))
            first = sketch_of(np.concatenate([shared, left[:num_own]]))
            second = sketch_of(np.concatenate([right[:num_own], shared]))
            exact = len(shared) / (len(shared) + 2 * num_own)
            errors.append((first == second).mean() - exact)
        expected = (exact * (1 - exact) / NUM_ORDERS) ** 0.5
        assert abs(np.mean(errors)) < 4 * expected / 200**0.5 + 1 / 256
        assert 0.8 * expected < np.std(errors) < 1.2 * expected


def test_many_documents_that_share_a_part_are_each_compared_with_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All agree in the first band, and two in each other one as well."""
    generator = np.random.default_rng(4)
    originals = generator.integers(256, size=(50, NUM_ORDERS), dtype=np.uint8)
    originals[:, :4] = 7
    sketches = np.concatenate([originals, originals])
    expected = {row: row - 50 for row in range(50, 100)}
    assert similar_to_earlier(sketches, 0.8) == expected
    monkeypatch.setattr(near_duplicates, "MAX_COMPARED", 3)
    assert similar_to_earlier(sketches, 0.8) == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=NUM_ORDERS, max_size=NUM_ORDERS), max_size=12))
def test_of_any_sketches_each_dropped_one_is_like_an_earlier_one_that_stays(
    rows: list[list[int]],
) -> None:
    sketches = np.array(rows, dtype=np.uint8).reshape(-1, NUM_ORDERS)
    dropped = similar_to_earlier(sketches, 0.5)
    for row in dropped:
        earlier = dropped[row]
        assert earlier < row and earlier not in dropped
        assert (sketches[earlier] == sketches[row]).mean() >= 0.5


def test_wrong_settings_are_refused() -> None:
    with refuses("threshold=80 must be between 0.5 and 1"):
        NearDuplicates(threshold=80)
    with refuses("ngram=0 must be a whole number of at least 1"):
        NearDuplicates(ngram=0)
    with refuses("ngram=2.5 must be a whole number"):
        NearDuplicates(ngram=2.5)  # type: ignore[arg-type]


def test_a_corpus_without_documents_has_none() -> None:
    assert run(NearDuplicates(), [])[0] == []
