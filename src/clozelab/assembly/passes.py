"""How often a pre-training reads its text."""

from __future__ import annotations

from clozelab.analysis.phrases import format_count

MOST_PASSES = 40
"""Passes over its text after which an encoder learns it by heart."""


def passes(read: float, text: int) -> tuple[str, bool]:
    """A sentence about how often a pre-training reads its text, and whether that is too often.

    Args:
        read: tokens of the whole training.
        text: tokens of the training text.
    """
    sentence = f"{read / text:.1f} passes over {format_count(text)} tokens of text"
    if read <= MOST_PASSES * text:
        return sentence, False
    advice = (
        f"; beyond {MOST_PASSES} an encoder learns the text by heart: more text, or fewer steps"
        " (steps_factor=)"
    )
    return sentence + advice, True
