"""A task's texts and labels as they stand in its files, untokenised: for looking at them before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Preview:
    """One split. `texts`: part (sentence1, question, ...) -> the distinct or aligned texts of that part."""

    texts: Mapping[str, Sequence[str]]
    labels: Sequence[str] | None
    """One an example, as written; None where the target is no label."""
    num_examples: int
    counts: Mapping[str, int] = field(default_factory=dict)
    """What the reader repaired or skipped."""


@dataclass(frozen=True)
class TaskPreview:
    train: Preview
    validation: Preview
    label_names: Sequence[str] | None
    """Classes in the order of their indices; None: a number, or no label at all."""
    is_regression: bool = False
    aligned: bool = False
    """Text number i of every part, and label i, are of example i."""
    expects_unanswerable: bool | None = None
    """Of questions: whether some may have no answer."""
