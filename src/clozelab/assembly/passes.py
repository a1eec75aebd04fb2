"""How often a pre-training reads its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from claims.text.phrases import format_count
from clozelab.corpus.mixing import tokens_read

MOST_PASSES = 40
"""Passes over its text after which an encoder learns it by heart."""
ADVICE = (
    f"; beyond {MOST_PASSES} an encoder learns the text by heart: more text, or fewer steps"
    " (steps_factor=)"
)


def passes(read: float, text: int) -> tuple[str, bool]:
    """A sentence about how often a pre-training reads its text, and whether that is too often.

    Args:
        read: tokens of the whole training.
        text: tokens of the training text.
    """
    sentence = f"{_times(read / text)} passes over {format_count(text)} tokens of text"
    return _with_advice(sentence, read / text)


def passes_by_source(
    phase_tokens: Sequence[float],
    weights: Sequence[Mapping[str, float]],
    sizes: Mapping[str, int],
) -> dict[str, float]:
    """Name of each source -> how often a pre-training reads it.

    Args:
        phase_tokens: tokens of each phase.
        weights: mixing weights of each phase; empty: in proportion to the sizes.
        sizes: name -> tokens of its training text.

    ValueError for a source that is to be read and has no text.
    """
    result = dict.fromkeys(sizes, 0.0)
    for tokens, of_phase in zip(phase_tokens, weights, strict=True):
        for name, read in tokens_read(tokens, of_phase, sizes).items():
            if read and not sizes[name]:
                raise ValueError(
                    f"source {name} with weight {of_phase[name]:g} has no text to train on: add"
                    " some, or give it weight 0"
                )
            if read:
                result[name] += read / sizes[name]
    return result


def source_passes(by_source: Mapping[str, float]) -> tuple[str, bool]:
    """A sentence about how often each source is read, and whether one is read too often."""
    parts = [f"{name} is read {_times(times)} times" for name, times in by_source.items()]
    return _with_advice(", ".join(parts), max(by_source.values()))


def _times(number: float) -> str:
    """Write how often to one decimal; what little of a text is read is not none of it."""
    if 0 < number < 0.1:
        return f"{number:.1g}"
    return f"{number:.1f}"


def _with_advice(sentence: str, times: float) -> tuple[str, bool]:
    if times <= MOST_PASSES:
        return sentence, False
    return sentence + ADVICE, True
