"""How often a pre-training reads its text, and whether that is too often or too little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from claims.text.phrases import format_count
from clozelab.corpus.mixing import PhaseReading

MOST_PASSES = 40
"""Passes over its text after which an encoder learns it by heart."""
ADVICE = (
    f"; beyond {MOST_PASSES} an encoder learns the text by heart: more text, or fewer steps"
    " (steps_factor=)"
)


def passes(times: float, text: int) -> tuple[str, bool]:
    """A sentence about how often a pre-training reads its text, and whether that is too often.

    `text` is its tokens.
    """
    sentence = f"{_times(times)} passes over {format_count(text)} tokens of text"
    return _with_advice(sentence, times)


def passes_over_text(phases: Sequence[PhaseReading]) -> tuple[float, int]:
    """How often the phases of a pre-training read their text, and its tokens.

    Text of a source that some phase alone can read counts, and each phase reads what it can.
    """
    text = dict.fromkeys(phases[0].sizes, 0)
    for phase in phases:
        for name, size in phase.sizes.items():
            text[name] = max(text[name], size)
    read = 0.0
    for name, times in passes_by_source(phases).items():
        read += times * text[name]
    total = sum(text.values())
    return read / total, total


def passes_by_source(phases: Sequence[PhaseReading]) -> dict[str, float]:
    """Name of each source -> how often the phases of a pre-training read it.

    ValueError for a source that is to be read and has no text.
    """
    result = dict.fromkeys(phases[0].sizes, 0.0)
    for phase in phases:
        for name, read in phase.tokens_of_sources().items():
            if read and not phase.sizes[name]:
                raise ValueError(
                    f"source {name} with weight {phase.weights[name]:g} has no text to train on:"
                    " add some, or give it weight 0"
                )
            if read:
                result[name] += read / phase.sizes[name]
    return result


def source_passes(by_source: Mapping[str, float]) -> tuple[str, bool]:
    """A sentence about how often each source is read, and whether one is read too often."""
    parts = [f"{name} is read {_times(times)} times" for name, times in by_source.items()]
    return _with_advice(", ".join(parts), max(by_source.values()))


def too_short(tokens: float, needed: float) -> str:
    """A sentence about a pre-training of fewer tokens than its plateau takes."""
    return (
        f"too short to learn more than word frequencies: {format_count(tokens)} tokens, where a"
        f" masked model takes about {format_count(needed)} (rule of thumb; larger models take more)"
    )


def _times(number: float) -> str:
    """Write how often to one decimal; what little of a text is read is not none of it."""
    if 0 < number < 0.1:
        return f"{number:.1g}"
    return f"{number:.1f}"


def _with_advice(sentence: str, times: float) -> tuple[str, bool]:
    if times <= MOST_PASSES:
        return sentence, False
    return sentence + ADVICE, True
