"""What the property tests share: how many examples they try, and files in random layouts.

Examples are the same in every run (`derandomize`), and nothing is kept between runs. The suite
tries a few; `pytest -m odd tests/fuzz` tries many.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from tests.fuzz.making import WORDS

Property = Callable[..., None]


def tried(property_: Property, number: int) -> Property:
    """A copy of a property that is tried with so many examples."""
    settings = hypothesis.settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=[*hypothesis.HealthCheck],
    )
    return settings(property_)


def few_and_many(few: int, many: int) -> Callable[[Property], Any]:
    """A decorator: the property as a test of a few examples, and of many on request."""

    def decorate(property_: Property) -> Any:
        sizes = [pytest.param(few, id="few"), pytest.param(many, id="many", marks=pytest.mark.odd)]

        @pytest.mark.parametrize("number", sizes)
        def test(number: int) -> None:
            tried(property_, number)()

        test.__name__, test.__doc__ = property_.__name__, property_.__doc__
        return test

    return decorate


@dataclass(frozen=True)
class Layout:
    """How a text lies in a file: none of it changes a row."""

    has_mark: bool
    line_end: str
    has_last_end: bool
    is_packed: bool

    def write(self, content: str) -> bytes:
        """The file of a text whose lines end with a line feed, and whose cells have none."""
        text = content if self.has_last_end else content.removesuffix("\n")
        data = text.replace("\n", self.line_end).encode()
        if self.has_mark:
            data = b"\xef\xbb\xbf" + data
        return gzip.compress(data) if self.is_packed else data

    @property
    def suffix(self) -> str:
        return ".gz" if self.is_packed else ""


def layouts() -> st.SearchStrategy[Layout]:
    return st.builds(
        Layout, st.booleans(), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans()
    )


# Characters that have a meaning in some file, or end a line in some library.
PUNCTUATION = ["'", "#", ":", "(", "é", "😀", "中"]
PUNCTUATION += ["\u2028", "\x85", "\x0c", "\x0b", "\u00a0", "NA"]
SEPARATORS = ['"', ",", ";", "|", "{", "[", "\\"]


def texts(more: Sequence[str] = ()) -> st.SearchStrategy[str]:
    """Texts of a few words and odd characters; the first word is one of the vocabulary."""
    words = st.sampled_from([*WORDS[:19], *PUNCTUATION, *more])
    parts = st.lists(words, min_size=1, max_size=6)
    return st.builds(
        lambda first, rest: " ".join([first, *rest]), st.sampled_from(WORDS[:19]), parts
    )
