"""The kinds of answers that predictions files hold: a target declares its own.

The kind stands in the record of a run, so that who reads its answers need not guess it.
"""

from __future__ import annotations

from typing import Final, Literal

AnswerKind = Literal[
    "labels", "numbers", "sets of labels", "tags", "words' numbers", "spans", "ranks"
]
WORD_NUMBERS: Final = "words' numbers"
RANKS: Final = "ranks"
