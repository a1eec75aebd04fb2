"""What a user reads: the ten screens that a person meets first are held whole, others by the rows
that must be there (`shows`), and a refusal by its reason (`refuses`).

`tests/ROOM/screens/test_x.txt` has the texts of `tests/ROOM/test_x.py`, one section a text. A
section's heading is the name of its test, with a number from the second text of a test on. After a
change of wording, `CLOZELAB_WRITE_SCREENS=1 pytest FILES` writes the sections anew; git shows what
has changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from difflib import unified_diff
from pathlib import Path

import pytest

MARK = "==== "
REPOSITORY = Path(__file__).resolve().parents[1]
WRITES = bool(os.environ.get("CLOZELAB_WRITE_SCREENS"))
HASH = re.compile(r"\b[0-9a-f]{10,64}\b")
"""A digest, whole or its first ten digits."""
CLOCK = re.compile(r"(?m)^\d\d:\d\d:\d\d\b")
"""The time at which a line was logged."""
RULE = re.compile("\N{BOX DRAWINGS LIGHT HORIZONTAL}{4,}")
"""Below the headings of a table: as long as the longest path in it."""


def shows(text: object, *rows: str) -> None:
    """Each of the rows stands in the text, however wide its columns are."""
    flat = " ".join(str(text).split())
    for row in rows:
        assert row in flat, f"{row!r} is not in: {flat}"


@contextmanager
def refuses(
    reason: str, *errors: type[BaseException]
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Expect one of these errors (ValueError without any), for this reason: a part of its message
    that names what is wrong, and where.
    """
    with pytest.raises(errors or ValueError) as caught:
        yield caught
    shows(caught.value, reason)


class Screens:
    """The texts of one test, compared with its file of snapshots.

    Folders of this machine are written as TMP (the test's own), BASE (the session's) and HOUSE (the
    checkout), digests as HASH, today's date as TODAY, and the time before a line as HH:MM:SS.
    """

    def __init__(self, test_file: Path, test_name: str, tmp_path: Path) -> None:
        self.file = test_file.parent / "screens" / f"{test_file.stem}.txt"
        self.test_name = test_name
        self.tmp_path = tmp_path
        self.count = 0

    def __call__(self, text: object, hide: Mapping[str, str] | None = None) -> None:
        """Compare a text, or the message of an error, with its section.

        `hide` maps a pattern of what differs between two machines to the word in its place.
        """
        self.count += 1
        heading = self.test_name if self.count == 1 else f"{self.test_name} {self.count}"
        shown = self._normal(str(text), hide or {})
        sections = read_sections(self.file)
        if WRITES:
            sections[heading] = shown
            write_sections(self.file, sections)
        kept = sections.get(heading)
        if shown != kept:
            difference = unified_diff((kept or "").splitlines(), shown.splitlines(), lineterm="")
            told = "\n".join([f"{self.file.name}: {heading} (see tests/screens.py)", *difference])
            raise AssertionError(told)

    def _normal(self, text: str, hide: Mapping[str, str]) -> str:
        text = text.replace(str(self.tmp_path), "TMP").replace(str(REPOSITORY), "HOUSE")
        base = re.escape(str(self.tmp_path.parent))
        text = re.sub(rf"{base}/(\w+?)\d+\b", r"BASE/\1", text)
        text = CLOCK.sub("HH:MM:SS", HASH.sub("HASH", text))
        text = RULE.sub("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * 4, text)
        text = text.replace(datetime.now(UTC).date().isoformat(), "TODAY")
        for pattern, word in hide.items():
            text = re.sub(pattern, word, text)
        lines = [line.rstrip() for line in text.splitlines()]
        return "\n".join(lines).strip("\n")


def read_sections(file: Path) -> dict[str, str]:
    """Return heading -> text."""
    if not file.is_file():
        return {}
    sections = {}
    for section in f"\n{file.read_text(encoding='utf-8')}".split(f"\n{MARK}")[1:]:
        heading, _, text = section.partition("\n")
        sections[heading] = text.strip("\n")
    return sections


def write_sections(file: Path, sections: Mapping[str, str]) -> None:
    file.parent.mkdir(exist_ok=True)
    texts = [f"{MARK}{heading}\n{sections[heading]}\n" for heading in sorted(sections)]
    file.write_text("\n".join(texts), encoding="utf-8")
