"""`repeated_lines` against plain counts of all lines."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.corpus.steps.sharded import Lines, run_any
from tests.screens import refuses

from clozelab.corpus.steps import repeated_lines
from clozelab.corpus.steps.repeated_lines import NOTHING_LEFT, REASON, RepeatedLines

COOKIES = "We use cookies to make this site better. Accept all or read more."
MENU = "Home | News | Contact"


def site(num_pages: int) -> list[Lines]:
    """Pages with a notice each, a menu on every second, and some without anything else."""
    pages: list[Lines] = []
    for number in range(num_pages):
        page = [f"Page {number} is about the number {number}.", COOKIES]
        if number % 2:
            page.insert(0, MENU)
        if number % 10 == 9:
            page = [COOKIES, MENU]
        pages.append(page)
    return pages


def test_a_notice_in_each_document_is_dropped_and_named() -> None:
    kept, report = run_any(RepeatedLines(max_document_share=0.6), site(40))
    for lines, page in zip(kept, site(40), strict=True):
        assert lines == [line for line in page if line != COOKIES]
    assert report.changed == {REASON: 40}
    assert report.characters == {REASON: 40 * len(COOKIES)}
    assert report.examples[REASON] == [COOKIES]


def test_documents_of_repeated_lines_alone_are_dropped() -> None:
    kept, report = run_any(RepeatedLines(max_count=5), site(40))
    assert kept == [[f"Page {n} is about the number {n}."] for n in range(40) if n % 10 != 9]
    assert report.documents == {NOTHING_LEFT: 4}
    assert report.characters[NOTHING_LEFT] == 4 * len(COOKIES + MENU)
    assert report.characters[REASON] == 36 * len(COOKIES) + 16 * len(MENU)


def test_a_line_that_stands_just_often_enough_stays() -> None:
    documents = [[COOKIES, f"Text {number}."] for number in range(5)]
    assert run_any(RepeatedLines(max_count=5), documents)[0] == documents
    assert run_any(RepeatedLines(max_count=4), documents)[0] == [[f"Text {n}."] for n in range(5)]


def test_a_share_counts_documents_and_not_lines() -> None:
    documents: list[Lines] = [["Yes."] * 9, ["No."], ["Yes.", "Maybe."]]
    assert run_any(RepeatedLines(max_document_share=0.7), documents)[0] == documents
    assert run_any(RepeatedLines(max_document_share=0.1), documents[:2])[0] == documents[:2]
    assert run_any(RepeatedLines(max_count=9), documents)[0] == [["No."], ["Maybe."]]


def test_lines_stay_that_are_listed_or_short() -> None:
    step = RepeatedLines(max_count=5, keep=[MENU])
    assert all(MENU in page for page in run_any(step, site(40))[0][1::2])
    step = RepeatedLines(max_count=5, min_characters=len(MENU) + 1)
    kept = run_any(step, site(40))[0]
    assert MENU in set(chain.from_iterable(kept))
    assert COOKIES not in set(chain.from_iterable(kept))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), max_size=20), st.integers(1, 5))
def test_any_documents_lose_what_plain_counts_say(documents: list[list[str]], limit: int) -> None:
    counts = Counter(chain.from_iterable(documents))
    expected = []
    for lines in documents:
        rest = [line for line in lines if counts[line] <= limit]
        if rest or not lines:
            expected.append(rest)
    assert run_any(RepeatedLines(max_count=limit), documents)[0] == expected


def test_counting_in_parts_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = site(60)
    expected = run_any(RepeatedLines(max_count=5), documents)
    monkeypatch.setattr(repeated_lines, "LINES_AT_ONCE", 3)
    assert run_any(RepeatedLines(max_count=5), documents) == expected


def test_wrong_settings_are_refused() -> None:
    with refuses("repeated_lines needs max_count"):
        RepeatedLines()
    with refuses("max_count=0 must be a whole number of at least 1"):
        RepeatedLines(max_count=0)
    with refuses("max_document_share=20 must be between 0 and 1"):
        RepeatedLines(max_document_share=20)
    with refuses("repeated_lines: keep=3 must be a list of texts"):
        RepeatedLines(max_count=5, keep=3)  # type: ignore[arg-type]
