"""Texts that stand in memory as UTF-8 are the strings that they were made of."""

from __future__ import annotations

import re

import numpy as np
import pytest

from clozelab.corpus.utf8_texts import Utf8Texts

TEXTS = ["the cat", "", "\u00e9\U0001f431", "", "half \ud800", "a\rb ", ""]


def test_strings_are_kept() -> None:
    texts = Utf8Texts.of(TEXTS)
    assert len(texts) == len(TEXTS)
    assert texts.strings() == TEXTS
    assert texts.ends.dtype == np.int64
    assert Utf8Texts.of([]).strings() == []


@pytest.mark.parametrize("texts", [TEXTS, [""], [], ["", ""]])
def test_lines_have_a_line_end_each(texts: list[str]) -> None:
    data = "".join(f"{text}\n" for text in texts).encode("utf-8", "surrogatepass")
    assert Utf8Texts.of_lines(data).strings() == texts


@pytest.mark.parametrize("is_chosen", [[1, 0, 1, 1, 0, 0, 1], [0] * 7, [1] * 7])
def test_some_are_chosen(is_chosen: list[int]) -> None:
    expected = [text for text, chosen in zip(TEXTS, is_chosen, strict=True) if chosen]
    assert Utf8Texts.of(TEXTS).chosen(np.array(is_chosen, dtype=bool)).strings() == expected


@pytest.mark.parametrize("num_bytes", [1, 3, 5, 1000])
def test_batches_are_all_texts_in_order(num_bytes: int) -> None:
    batches = list(Utf8Texts.of(TEXTS).batches(num_bytes))
    strings = []
    for batch in batches:
        strings += batch.strings()
        assert len(batch)
        # All but the last text end within the run.
        assert batch.ends[-2] <= num_bytes
    assert strings == TEXTS
    assert list(Utf8Texts.of([]).batches(num_bytes)) == []


def test_a_pattern_is_found_in_the_texts_that_hold_it() -> None:
    texts = Utf8Texts.of(TEXTS)
    found = texts.hold(re.compile(rb"\xed[\xa0-\xbf]"))
    assert found.tolist() == ["\ud800" in text for text in TEXTS]
    replaced = texts.replaced(found, ["longer than it was"])
    assert replaced.strings() == [*TEXTS[:4], "longer than it was", *TEXTS[5:]]
    # The first and the last byte of a text are its own, also beside empty texts.
    for character, place in {"t": 0, "\u00e9": 2, "b": 5}.items():
        is_there = texts.hold(re.compile(character.encode())).tolist()
        assert is_there == [number == place for number in range(len(TEXTS))]
