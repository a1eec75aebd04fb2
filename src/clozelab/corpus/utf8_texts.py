"""Many texts as UTF-8, one after the other: most of what counts and encodes them needs no strings.

texts    "the cat", "", "é"
data     b"the cat\xc3\xa9"
ends     [0, 7, 7, 9]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow

ENCODING = ("utf-8", "surrogatepass")  # a text that was not cleaned may hold surrogates
LINE_END = ord("\n")


@dataclass(frozen=True)
class Utf8Texts:
    """N texts, which are not changed."""

    data: bytes
    ends: np.ndarray  # int64 [N + 1]: 0, and where each text ends

    @classmethod
    def of(cls, texts: Sequence[str]) -> Utf8Texts:
        return cls.of_bytes([text.encode(*ENCODING) for text in texts])

    @classmethod
    def of_bytes(cls, texts: Sequence[bytes]) -> Utf8Texts:
        return cls(b"".join(texts), np.cumsum([0, *map(len, texts)], dtype=np.int64))

    @classmethod
    def of_lines(cls, data: bytes) -> Utf8Texts:
        """The lines of `data`, whose last byte is a line end, without their line ends."""
        line_ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == LINE_END)
        # A line ends earlier by each line end that is taken out before it.
        ends = line_ends - np.arange(len(line_ends))
        return cls(data.replace(b"\n", b""), np.append(0, ends))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def strings(self) -> list[str]:
        return [text.decode(*ENCODING) for text in self.bytes_of_each()]

    def bytes_of_each(self) -> list[bytes]:
        return [self.data[start:end] for start, end in pairwise(self.ends.tolist())]

    def hold(self, pattern: re.Pattern[bytes]) -> np.ndarray:
        """Whether each text holds a match, bool [N].

        A match has to lie inside one character: a longer one could go over a text's end.
        """
        places = [match.start() for match in pattern.finditer(self.data)]
        return self.have_byte(np.array(places, dtype=np.int64))

    def have_byte(self, places: np.ndarray) -> np.ndarray:
        """Whether a place lies in each text, bool [N]; `places` are indices into `data`."""
        has_byte = np.zeros(len(self), dtype=bool)
        has_byte[np.searchsorted(self.ends, places, side="right") - 1] = True
        return has_byte

    def replaced(self, is_replaced: np.ndarray, texts: Sequence[str]) -> Utf8Texts:
        """With other texts in the place of some: one for each True of `is_replaced`, bool [N]."""
        pieces = self.bytes_of_each()
        for place, text in zip(np.flatnonzero(is_replaced).tolist(), texts, strict=True):
            pieces[place] = text.encode(*ENCODING)
        return Utf8Texts.of_bytes(pieces)

    def chosen(self, is_chosen: np.ndarray) -> Utf8Texts:
        """Some of the texts; `is_chosen` is bool [N]."""
        if is_chosen.all():
            return self
        lengths = np.diff(self.ends)
        data = np.frombuffer(self.data, dtype=np.uint8)[np.repeat(is_chosen, lengths)]
        return Utf8Texts(data.tobytes(), np.append(0, np.cumsum(lengths[is_chosen])))

    def batches(self, num_bytes: int) -> Iterator[Utf8Texts]:
        """The texts in order, in batches of about `num_bytes`.

        `data` is cut into stretches of that size, and the texts that begin in one are a batch.
        """
        number = self.ends[:-1] // num_bytes
        first = np.flatnonzero(np.diff(number, prepend=-1))
        for start, end in pairwise([*first.tolist(), len(self)]):
            ends = self.ends[start : end + 1]
            yield Utf8Texts(self.data[ends[0] : ends[-1]], ends - ends[0])

    def arrow(self) -> pyarrow.LargeStringArray:
        """The texts in Arrow's terms, which knows no surrogates; its memory is that of `data`."""
        import pyarrow  # takes a third of a second: only who encodes much text pays

        return pyarrow.LargeStringArray.from_buffers(
            len(self), pyarrow.py_buffer(self.ends), pyarrow.py_buffer(self.data)
        )
