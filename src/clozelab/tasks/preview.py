"""What a task's files hold, as written: for whoever looks at them before a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Preview:
    """One split as written."""

    # part of an example (sentence1, question, ...) -> the distinct or aligned texts of that part
    texts: Mapping[str, Sequence[str]]
    # as written, one an example or as many as it has; None where the target is no label
    labels: Sequence[str] | None
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
    one_label_each: bool = True  # an example has one label, neither none nor several
    aligned: bool = False  # text number i of every part, and label i, are of example i
    pairs_read: str = ""  # as the unit has it
    template: Sequence[str] = ()  # likewise
    expects_unanswerable: bool | None = None  # of questions: whether some may have no answer
    warnings: Sequence[str] = ()  # of reading the files
