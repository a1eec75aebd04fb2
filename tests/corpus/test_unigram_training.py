"""Unigram's learning: sums over all ways to cut a word, listed one by one here."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers
from tokenizers.trainers import UnigramTrainer

from clozelab.corpus.unigram import UnigramTokenizer
from clozelab.corpus.unigram_training import (
    MAX_PIECE_CHARACTERS,
    MAX_WORD_CHARACTERS,
    DistinctWords,
    expected_counts,
    learn_pieces,
    log_ratios,
)

PIECES = ["a", "b", "c", "ab", "bc", "abc", "ca", "aa"]
SYLLABLES = ["ka", "lo", "mi", "nu", "pra", "ste", "vir", "zon"]


def made_words(number: int = 400) -> Counter[str]:
    rng = random.Random(3)
    words: Counter[str] = Counter()
    for _ in range(number):
        word = "".join(rng.choices(SYLLABLES, weights=range(8, 0, -1), k=rng.randint(1, 4)))
        words[f"▁{word}"] += rng.randint(1, 20)
    return words


def cuts(word: str, pieces: set[str]) -> Iterator[list[str]]:
    """All ways to cut a word into pieces."""
    if not word:
        yield []
    for end in range(1, len(word) + 1):
        if word[:end] in pieces:
            for rest in cuts(word[end:], pieces):
                yield [word[:end], *rest]


def test_expected_counts_are_those_of_all_ways() -> None:
    words = {"abc": 3, "ca": 1, "aabca": 2, "b": 5, "abcabc": 1}
    weights = np.arange(1.0, 9.0)
    probabilities = weights / weights.sum()
    by_piece = dict(zip(PIECES, probabilities.tolist(), strict=True))
    expected = dict.fromkeys(PIECES, 0.0)
    for word, count in words.items():
        ways = list(cuts(word, set(PIECES)))
        products = [math.prod(map(by_piece.__getitem__, way)) for way in ways]
        for way, product in zip(ways, products, strict=True):
            for piece in way:
                expected[piece] += count * product / sum(products)
    lattices = DistinctWords.of(words).lattices(np.array(PIECES))
    assert expected_counts(lattices, probabilities) == pytest.approx(list(expected.values()))


def test_a_piece_is_worth_what_the_best_other_way_is_less_probable() -> None:
    probabilities = np.array([0.2, 0.1, 0.1, 0.1, 0.05, 0.25, 0.15, 0.05])
    by_piece = dict(zip(PIECES, probabilities.tolist(), strict=True))
    for piece, ratio in zip(PIECES, log_ratios(np.array(PIECES), probabilities), strict=True):
        others = cuts(piece, set(PIECES) - {piece})
        products = [math.prod(map(by_piece.__getitem__, way)) for way in others]
        best = math.log(max(products)) if products else -math.inf
        assert ratio == pytest.approx(math.log(by_piece[piece]) - best)


def test_all_stretches_that_occur_twice_are_candidates() -> None:
    words = {"abab": 1, "bab": 3, "x": 9}
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for start in range(len(word)):
            for end in range(start + 2, len(word) + 1):
                counts[word[start:end]] += count
    covered = {piece: len(piece) * count for piece, count in counts.items() if count >= 2}
    candidates = DistinctWords.of(words).candidates(99)
    assert {piece: covered[piece] for piece in candidates} == covered
    assert len(candidates) == len(covered)
    sizes = [covered[piece] for piece in candidates]
    assert sizes == sorted(sizes, reverse=True)
    assert DistinctWords.of(words).candidates(2) == candidates[:2]


def test_learns_as_good_a_vocabulary_as_the_library() -> None:
    """As few pieces a word as of SentencePiece's own rules, for the same number of entries."""
    words = made_words()
    characters = sorted(set("".join(words)))
    ours = learn_pieces(words, characters, 60)
    assert len(ours) == 60
    assert set(characters) <= set(ours)
    assert math.isclose(sum(map(math.exp, ours.values())), 1.0)
    library = Library(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = UnigramTrainer(
        vocab_size=61, show_progress=False, special_tokens=["<unk>"], unk_token="<unk>"
    )
    library.train_from_iterator(Counter(words).elements(), trainer)
    theirs = json.loads(library.to_str())["model"]["vocab"]
    assert len(theirs) == 61

    def pieces_per_word(vocabulary: list[tuple[str, float]]) -> float:
        model = Library(models.Unigram([("<unk>", -99.0), *vocabulary], unk_id=0))
        lengths = [len(model.encode(word).ids) * count for word, count in words.items()]
        return sum(lengths) / words.total()

    of_library = pieces_per_word([(piece, score) for piece, score in theirs if piece != "<unk>"])
    assert pieces_per_word(list(ours.items())) < 1.02 * of_library
    # A control: characters alone are far worse.
    assert pieces_per_word([(character, -3.0) for character in characters]) > 2 * of_library


def test_the_same_in_every_process_thread_count_and_order() -> None:
    """Vocabulary and scores, to the bit; the library's own trainer gives others each time."""
    program = (
        "import json, sys; from clozelab.corpus.unigram import UnigramTokenizer as U;"
        "print(U.train(json.load(sys.stdin), 180, True).fingerprint)"
    )
    texts = [" ".join(word.removeprefix("▁") for word in made_words().elements())] * 2
    fingerprints = set()
    for seed in (1, 2):
        threads = {"RAYON_NUM_THREADS": str(seed), "OMP_NUM_THREADS": str(seed)}
        result = subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps(texts),
            env=os.environ | threads | {"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        )
        fingerprints.add(result.stdout.strip())
    backwards = [" ".join(reversed(text.split())) for text in texts]
    assert fingerprints == {UnigramTokenizer.train(backwards, 180, True).fingerprint}


def test_text_without_spaces_is_learnt_from_in_parts() -> None:
    rng = random.Random(5)
    text = "".join(rng.choices("ACGT", k=50 * MAX_WORD_CHARACTERS))
    pieces = learn_pieces({text: 1}, sorted("ACGT"), 40)
    assert len(pieces) == 40
    assert max(map(len, pieces)) <= MAX_PIECE_CHARACTERS


def test_the_most_frequent_words_are_learnt_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is above the limit changes nothing, whatever the order."""
    frequent = {word: count + 100 for word, count in made_words(40).items()}
    size = sum(map(len, frequent))
    monkeypatch.setattr("clozelab.corpus.unigram_training.MAX_CHARACTERS", size)
    characters = sorted(set("".join(frequent)) | set("▁xyz"))
    rare = {"▁xyxyxy": 2, "▁zzz": 3}
    expected = learn_pieces(frequent, characters, 40)
    assert learn_pieces(rare | frequent, characters, 40) == expected
    monkeypatch.setattr("clozelab.corpus.unigram_training.MAX_CHARACTERS", size + 100)
    assert learn_pieces(rare | frequent, characters, 40) != expected
