"""What a task's files hold, as written: for whoever looks at them before a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Preview:
    """One split as written."""

    # part of an example (sentence1, question, ...) -> the distinct or aligned texts of that part
    texts: Mapping[str, Sequence[str]]
    labels: Sequence[str] | None  # one an example, as written; None where the target is no label
    num_examples: int
    counts: Mapping[str, int] = field(default_factory=dict)  # what the reader repaired or skipped
    rows: Sequence[Sequence[str]] = ()  # the texts of each example


@dataclass(frozen=True)
class TaskPreview:
    train: Preview
    validation: Preview
    # classes in the order of their indices; None: a number, or no label at all
    label_names: Sequence[str] | None = None
    positive_label: str | None = None  # the class that an F1 is of, where it is known
    predicts_numbers: bool = False
    aligned: bool = False  # text number i of every part, and label i, are of example i
    expects_unanswerable: bool | None = None  # of questions: whether some may have no answer
    warnings: Sequence[str] = ()  # of reading the files
