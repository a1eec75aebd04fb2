"""`quality`: a planted defect for every reason of datatrove's filters, and their limits."""

from __future__ import annotations

import importlib.util
import random
from itertools import product

import pytest
from tests.corpus.steps.sharded import Lines, run, run_any
from tests.screens import refuses

from clozelab.corpus.steps.quality import Quality

pytest.importorskip("datatrove")

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
    """A document for each reason that has no other defect before it."""
    letters = "a b c d e f g h i j the of "
    long_words = ["".join(words(3, seed)) for seed in range(60)]
    numbers = [str(number) for number in range(1000, 1030)]
    phrase = " ".join(words(32, seed=5)[2:])
    return {
        "empty": ["", " "],
        "gopher_short_doc": PROSE[:2],
        "gopher_below_avg_threshold": [letters * 6 + "."],
        "gopher_above_avg_threshold": [" ".join(long_words) + "."],
        "gopher_too_many_hashes": [*PROSE, "# " * 10 + "."],
        "gopher_too_many_ellipsis": [*PROSE, "… " * 10 + "."],
        "gopher_too_many_bullets": [f"- {line}" for line in PROSE],
        "gopher_too_many_end_ellipsis": [line[:-1] + "..." for line in PROSE],
        "gopher_below_alpha_threshold": [*PROSE, " ".join(numbers)],
        "gopher_enough_stop_words": [" ".join(words(80)[2:]) + "."],
        "dup_line_frac": [*PROSE, *["Read it."] * 4],
        "dup_line_char_frac": [*PROSE, *[" ".join(words(40)) + "."] * 2],
        "top_2_gram": [" ".join(two_by_two(["nonsense", "repetition"])) + "."],
        "duplicated_5_n_grams": [*PROSE, f"{phrase}, but {phrase}."],
        "line_punct_ratio": [line[:-1] for line in PROSE],
        "lorem_ipsum": [*PROSE, "Lorem ipsum dolor sit amet."],
    }


def two_by_two(pair: list[str]) -> list[str]:
    rest = words(60)
    result = []
    for number in range(0, 60, 4):
        result += [*rest[number : number + 4], *pair]
    return result


def test_a_planted_defect_is_dropped_for_its_reason_and_counted() -> None:
    documents = [PROSE]
    for lines in planted().values():
        documents += [lines, PROSE]
    kept, report = run_any(Quality(), documents)
    assert kept == [PROSE] * (len(planted()) + 1)
    assert report.documents == dict.fromkeys(planted(), 1)
    for reason, lines in planted().items():
        assert report.characters[reason] == sum(map(len, lines))
        # Of white space there is nothing to show.
        shown = filter(str.strip, [" ".join(lines)[:160]])
        assert report.examples.get(reason, []) == list(shown)


@pytest.mark.parametrize(
    ("reason", "limit", "value"),
    [
        ("gopher_short_doc", "min_doc_words", 20),
        ("gopher_too_many_bullets", "max_bullet_lines_ratio", 0),
        ("gopher_enough_stop_words", "min_stop_words", 0),
        ("dup_line_frac", "dup_line_frac", 0.5),
        ("top_2_gram", "top_n_grams", [[2, 0.9], [3, 0.9]]),
        ("duplicated_5_n_grams", "dup_n_grams", []),
        ("line_punct_ratio", "line_punct_thr", 0),
    ],
)
def test_a_limit_can_be_moved_or_taken_off(reason: str, limit: str, value: object) -> None:
    lines = planted()[reason]
    assert run(Quality({limit: value}), [lines])[0] == [lines]  # type: ignore[dict-item]


def test_the_other_rules_of_fineweb_can_be_set() -> None:
    assert run(Quality({"new_line_ratio": 0.01}), [PROSE])[1].documents == {"list_ratio": 1}


def test_wrong_settings_are_refused() -> None:
    with refuses("quality has no limit 'min_stopwords': did you mean 'min_stop_words'?"):
        Quality({"min_stopwords": 0})
    with refuses("quality: limits=['words'] must be {LIMIT: number}"):
        Quality(["words"])  # type: ignore[arg-type]
    for name, value in (
        ("min_doc_words", "few"),
        ("min_doc_words", [20, 50]),
        ("top_n_grams", 0.2),
        ("top_n_grams", [[2, 0.2, 3]]),
        ("dup_n_grams", [["five", 0.2]]),
    ):
        with refuses(f"quality: {name}={value} must be like "):
            Quality({name: value})  # type: ignore[dict-item]


def test_without_the_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refuses("the corpus step quality needs the package 'datatrove'"):
        Quality()
