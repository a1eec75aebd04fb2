"""Damaged rows of a file: a few are dirt, and skipped; many mean a wrong file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clozelab.readers.lines import COMPRESSIONS, text_lines
from clozelab.readers.records import NOT_UTF8
from clozelab.readers.tables import COLUMNAR, table_format

MAX_BAD_FRACTION = 0.01  # of all rows


def refuse_wrong_file(path: Path, bad: Sequence[str], num_rows: int, expected: str) -> None:
    """ValueError for a file without rows, or with more damaged ones than are dirt.

    `bad` says of each damaged row where it is and what is wrong ("FILE:LINE: problem").
    """
    if num_rows == 0:
        raise ValueError(f"{path} has no examples")
    most_bad = MAX_BAD_FRACTION * num_rows
    # A file that ends without a line feed, in its last damaged row, was cut off; unless it has more
    # of them, and is of another format.
    is_plain_text = path.suffix not in COMPRESSIONS and table_format(path) not in COLUMNAR
    if 0 < len(bad) <= max(1, most_bad) and is_plain_text and not path.read_bytes().endswith(b"\n"):
        *_, (number, _) = text_lines(path)
        if bad[-1].startswith(f"{path}:{number}: "):
            raise ValueError(
                f"{bad[-1]}: the file ends in the middle of this line, so it was cut; fetch it"
                " again"
            )
    if len(bad) > most_bad:
        reason = "another format, or damage"
        if bad[0].endswith(NOT_UTF8):
            reason = "another encoding (iconv -f latin1 -t utf8 converts a file in Latin-1)"
        raise ValueError(
            f"{bad[0]}\n  {len(bad)} of {num_rows} rows do not fit {expected}: {reason}"
        )
