"""`quality`: a planted defect for every measure, and its measures against plain loops."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest
from tests.corpus.steps.sharded import Lines, run, run_any
from tests.screens import refuses

from clozelab.corpus.steps.quality import LIMITS, Quality, measures_of

PROSE = [
    "The river rises in the hills to the north and flows past three small towns.",
    "Its water turned the wheels of mills that have long been closed.",
    "People who live there remember the floods, and they built their houses on higher ground.",
    "A railway followed the valley until the bridge was lost in a storm.",
    "Walkers use the old track today, with signs that tell its story.",
]
SYLLABLES = ["".join(letters) for letters in product("bdfgk", "aeiou")]


def words(num_words: int, seed: int = 1) -> list[str]:
    generator = random.Random(seed)
    result = ["the", "of"]
    while len(result) < num_words:
        result.append("".join(generator.choices(SYLLABLES, k=3)))
    return result


def planted() -> dict[str, Lines]:
    """A document for each reason that has no other defect before it in LIMITS."""
    letters = "a b c d e f g h i j the of "
    long_words = ["".join(words(3, seed)) for seed in range(60)]
    numbers = [str(number) for number in range(1000, 1030)]
    phrase = " ".join(words(22, seed=5)[2:])
    return {
        "words below 50": PROSE[:2],
        "mean_word_length below 3": [letters * 6 + "."],
        "mean_word_length above 10": [" ".join(long_words) + "."],
        "symbols_per_word above 0.1": [*PROSE, "# " * 10 + "."],
        "bullet_lines above 0.9": [f"- {line}" for line in PROSE],
        "ellipsis_lines above 0.3": [line[:-1] + "..." for line in PROSE],
        "punctuated_lines below 0.12": [line[:-1] for line in PROSE],
        "repeated_lines above 0.3": [*PROSE, *["Read it."] * 4],
        "repeated_line_characters above 0.2": [*PROSE, *[" ".join(words(40)) + "."] * 2],
        "alphabetic_words below 0.8": [*PROSE, " ".join(numbers)],
        "stop_words below 2": [" ".join(words(80)[2:]) + "."],
        "lorem_ipsum above 0": [*PROSE, "Lorem ipsum dolor sit amet."],
        "most_frequent_2gram above 0.2": [" ".join(two_by_two(["nonsense", "repetition"])) + "."],
        "repeated_5grams above 0.15": [*PROSE, f"{phrase}, but {phrase}."],
    }


def two_by_two(pair: list[str]) -> list[str]:
    rest = words(60)
    result = []
    for number in range(0, 60, 4):
        result += [*rest[number : number + 4], *pair]
    return result


@pytest.mark.parametrize("reason", planted())
def test_a_planted_defect_is_dropped_for_its_reason(reason: str) -> None:
    kept, report = run_any(Quality(), [PROSE, planted()[reason], PROSE])
    assert kept == [PROSE, PROSE]
    assert report.documents == {reason: 1}
    assert report.examples[reason] == [" ".join(planted()[reason])[:160]]


@pytest.mark.parametrize("reason", planted())
def test_without_its_measure_the_document_stays_or_goes_for_a_later_one(reason: str) -> None:
    measure = reason.split()[0]
    _, report = run(Quality({measure: None}), [planted()[reason]])
    assert measure not in " ".join(report.documents)


def test_every_measure_has_a_limit_and_every_limit_a_measure() -> None:
    measures = measures_of(PROSE)
    assert set(LIMITS) == {name for name in measures if name in LIMITS}
    unlimited = set(measures) - set(LIMITS)
    assert unlimited == {f"most_frequent_{n}gram" for n in range(5, 11)} | {
        f"repeated_{n}grams" for n in range(2, 5)
    }


@pytest.mark.parametrize("seed", range(20))
def test_shares_of_ngrams_are_those_of_plain_loops(seed: int) -> None:
    generator = random.Random(seed)
    text = generator.choices(["a", "bb", "ccc", "dddd"], k=generator.randrange(1, 60))
    measures = measures_of([" ".join(text)])
    total = sum(map(len, text))
    for size in range(2, 11):
        runs = [tuple(text[start : start + size]) for start in range(len(text) - size + 1)]
        counts = Counter(runs)
        most = max(counts.values(), default=0)
        top = max((most * len("".join(run)) for run in counts if counts[run] == most), default=0)
        covered = set()
        for start, words_of_run in enumerate(runs):
            if words_of_run in runs[:start]:
                covered |= set(range(start, start + size))
        repeated = sum(len(text[place]) for place in covered) / total
        expected = top / total if most > 1 else 0
        assert measures[f"most_frequent_{size}gram"] == pytest.approx(expected)
        assert measures[f"repeated_{size}grams"] == pytest.approx(repeated)


def test_limits_can_be_moved_and_taken_off() -> None:
    assert run_any(Quality({"words": [10, 1000]}), [PROSE[:2]])[0] == [PROSE[:2]]
    assert run_any(Quality({"words": None}), [PROSE[:2]])[0] == [PROSE[:2]]
    assert run_any(Quality({"words": [10, 40]}), [PROSE])[1].documents == {"words above 40": 1}


def test_a_document_without_text_is_dropped() -> None:
    assert run(Quality(), [[]])[1].documents == {"words below 50": 1}


def test_wrong_settings_are_refused() -> None:
    with refuses("quality has no measure 'stopwords': did you mean 'stop_words'?"):
        Quality({"stopwords": None})
    with refuses("quality: words=[100, 50] must be [least, greatest]"):
        Quality({"words": [100, 50]})
    with refuses("quality: limits=['words'] must be {MEASURE: [least, greatest]}"):
        Quality(["words"])  # type: ignore[arg-type]
    with refuses("quality: words=['few', 'many'] must be [least, greatest]"):
        Quality({"words": ["few", "many"]})  # type: ignore[dict-item]
    with refuses("quality: words=50 must be [least, greatest]"):
        Quality({"words": 50})  # type: ignore[arg-type]
