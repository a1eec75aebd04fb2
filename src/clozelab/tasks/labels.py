"""What a label is, and what is none.

The labels of one file are collected, and refused together with their lines. A label is a text, a
number or a truth. A list, a dictionary, an empty cell and NaN are none, and no row is skipped for
them: they mean that the column is wrong, or that somebody's export lost something. Of a file whose
classes nobody named, the whole set is looked at as well: two labels that differ by spaces alone are
no two classes.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import chain
from pathlib import Path

import numpy as np

from claims.text.phrases import truncate_list
from clozelab.metrics import glue
from clozelab.readers.cells import SHOWN_CHARACTERS, cell_text, is_missing
from clozelab.text.formatting import shortened

log = logging.getLogger(__name__)

SHOWN_LINES = 3  # of many, that an error names
# as libraries write a missing value; nobody calls a class so
NOT_A_LABEL = ("nan", "NaN", "NAN", "<NA>", "NaT")
MAYBE_MISSING = ("None", "null", "NULL", "N/A", "NA", "n/a")  # these may be names, too
# a list or an object that a table has written as text: "['a', 'b']", '["a"]', "{'a': 1}"
WRITTEN_LIST = re.compile(r"""\s*(\[\s*(['"].*['"])?\s*\]|\{\s*(['"].*:.*)?\})\s*""", re.DOTALL)
# so many examples, of which so many have a class of their own
MANY_CLASSES_FROM = 20
MANY_CLASSES_FRACTION = 0.5
SEPARATORS = (";", "|", ",")  # between several labels in a cell
DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
# a label of few rows that is spelt nearly as one of many is a slip of the pen
MISSPELT_FROM = 50  # rows of a file
RARE_ROWS = 2  # at most
FREQUENT_ROWS = 10  # at least
MAX_CHANGED_LETTERS = 4  # left out and put in: two letters that are others
MIN_LIKENESS = 0.8  # of 1, difflib's ratio
MAX_COMPARED_LABELS = 100  # more rare labels are names of something
# what a column of labels is expected to hold
CLASSES = "classes"
NUMBERS = "numbers"
ANY = "any"
# what to do, in messages: where classes are listed, and which key names their column
LABEL_WORDS = (
    "task.data.labels lists the classes if they are meant so",
    "task.data.label_column",
)
TAG_WORDS = ("mend the file, or read another column", "task.data.tag_column")


@dataclass
class LineNumbers:
    """How many rows, and the first of their lines."""

    count: int = 0
    lines: list[int] = field(default_factory=list)

    def add(self, line: int) -> None:
        self.count += 1
        if len(self.lines) < SHOWN_LINES:
            self.lines.append(line)

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.lines))
        if self.count == 1:
            return f"line {numbers}"
        more = ""
        if self.count > len(self.lines):
            more = ", ..."
        return f"{self.count} rows, lines {numbers}{more}"


class LabelColumn:
    """The labels of one file, as they are read; `refuse` has the last word.

    Args:
        path: where they stand, for messages.
        names: the classes that there are; None: those of the file.
        listed: classes that a configuration lists: labels whatever they look like, beside any
            others.
        expected: CLASSES | NUMBERS | ANY (names of any kind, such as groups).
        is_tag: they are tags of words, for messages.
    """

    def __init__(
        self,
        path: Path,
        names: Sequence[str] | None,
        expected: str,
        *,
        listed: Sequence[str],
        is_tag: bool = False,
    ) -> None:
        self.path = path
        self.expected = expected
        self.noun = "label"
        self.advice, self.column_key = LABEL_WORDS
        if is_tag:
            self.noun = "tag"
            self.advice, self.column_key = TAG_WORDS
        self.names: list[str] | None = None
        if expected != NUMBERS and names is not None:
            self.names = list(names)
        self.listed = frozenset(listed)
        self._problems: dict[
            tuple[str, str], LineNumbers
        ] = {}  # (what is wrong, what to do) -> where
        self._seen: dict[str, LineNumbers] = {}
        self._unknown: dict[str, None] = {}  # labels that are none of the names, in order

    def add(self, line: int, value: object) -> str:
        """The label of this line as text, whatever it is."""
        # Nearly every label was seen and found right before.
        if isinstance(value, str) and value in self._seen:
            self._seen[value].add(line)
            return value
        label, problem, advice = self._read(value)
        if problem:
            self.note_problem(line, problem, advice)
            # Whatever is written there is a label, or else none of the names.
            if self.names is not None and label.strip():
                self._unknown[label] = None
        else:
            self._seen.setdefault(label, LineNumbers()).add(line)
        return label

    def note_problem(self, line: int, problem: str, advice: str) -> None:
        """Something is wrong with this line's labels, which `refuse` will say."""
        self._problems.setdefault((problem, advice), LineNumbers()).add(line)

    def _read(self, value: object) -> tuple[str, str, str]:
        """(label, what is wrong with it, what to do)."""
        one_each = f"give each row one {self.noun}, or leave the row out"
        label = ""
        try:
            if not is_missing(value):
                label = cell_text(value)
        except ValueError as problem:
            return "", f"is {problem}, not one text or number", one_each
        # What is listed is a label whatever it looks like: an empty text, or "NaN".
        if label in self.listed or (self.names is not None and label in self.names):
            return label, "", ""
        if not label.strip():
            return label, "is empty", one_each
        if self.names is not None:
            hint = _spelling_hint(label, self.names)
            return (
                label,
                f"{label!r} is not one of the known labels {self.names}{hint}",
                f"mend the file, or leave such rows out; {self.advice}",
            )
        if self.expected == NUMBERS and not glue.is_number(label):
            return label, f"{label!r} is not a number; this task predicts one", ""
        # of ANY kind, such as groups, it may be a name
        if self.expected == CLASSES and label in NOT_A_LABEL:
            return (
                label,
                f"{label!r} is how a missing value is written",
                f"{one_each}; {self.advice}",
            )
        if self.expected == CLASSES and WRITTEN_LIST.fullmatch(label):
            shown = shortened(label, SHOWN_CHARACTERS)
            return label, f"is a list or an object ({shown})", f"{one_each}; {self.advice}"
        return label, "", ""

    def refuse(self) -> None:
        """ValueError names the first wrong label's line, and counts the others of its kind.

        Warns of odd classes.
        """
        if self._problems:
            raise ValueError(self._describe_problems())
        if self.names is not None or self.expected == NUMBERS:
            return
        # Nobody has named the classes of this file, so the whole set is looked at.
        where = f"{self.path}, {self.noun}s"
        check_unique_spellings(where, self._seen, self.advice)
        if self.expected == CLASSES:
            if self.noun == "label":
                refuse_numbers(where, self._seen, self.advice)
            refuse_many(where, self._seen, f"is {self.column_key} the right one? {self.advice}")
            warn_of_suspicious_classes(where, self._seen)

    def _describe_problems(self) -> str:
        (problem, advice), occurrences = next(iter(self._problems.items()))
        message = f"{self.path}:{occurrences.lines[0]}: {self.noun} {problem}"
        if occurrences.count > 1:
            message += f" ({occurrences})"
        # The first problem is described, the others are counted.
        num_wrong = sum(wrong.count for wrong in self._problems.values())
        num_others = num_wrong - occurrences.count
        if num_others:
            message += f"; {num_others} rows have other wrong {self.noun}s"
        if len(self._unknown) > 1:
            listed = truncate_list(list(map(repr, self._unknown)))
            message += f"; {len(self._unknown)} unknown labels in all: {listed}"
        if advice:
            message += f": {advice}"
        return message


def _spelling_hint(label: str, names: Sequence[str]) -> str:
    """A hint where a known label differs by spaces, or by case alone."""
    for name in names:
        if _without_spaces(name) == _without_spaces(label):
            return f", and differs from {name!r} by {_difference(name, label)} alone"
        if name.casefold() == label.casefold():
            return f", and differs from {name!r} by case alone"
    return ""


def check_unique_spellings(where: str, seen: Mapping[str, LineNumbers], instead: str) -> None:
    """ValueError where two labels are one but for spaces, or for how Unicode writes a letter.

    `seen` has the lines of each label; `instead` is what else to do.
    """
    for first, second in _similar_labels(seen, _without_spaces):
        raise ValueError(
            f"{where}: {first!r} ({seen[first]}) and {second!r} ({seen[second]}) "
            f"differ by {_difference(first, second)} alone: make them one; {instead}"
        )


def _difference(first: str, second: str) -> str:
    """In what two labels differ that look alike."""
    if unicodedata.normalize("NFC", first) == unicodedata.normalize("NFC", second):
        return "how Unicode writes accents (NFC and NFD)"
    return "spaces"


def refuse_numbers(where: str, seen: Mapping[str, LineNumbers], instead: str) -> None:
    """ValueError where labels are numbers to be predicted, not classes.

    The same where two labels are the same number.
    """
    for label, occurrences in seen.items():
        number = _number(label)
        # "0.5" is no class; "1" and "1.0" are one, as the twins below show
        if number is not None and not number.is_integer():
            raise ValueError(
                f"{where}: {label!r} ({occurrences}) is a number with a fraction: "
                f"task.data.numeric_labels=true predicts numbers; {instead}"
            )
    for first, second in _similar_labels(seen, _number):
        raise ValueError(
            f"{where}: {first!r} ({seen[first]}) and {second!r} ({seen[second]}) "
            f"are the same number: make them one; {instead}"
        )


def refuse_many(where: str, seen: Mapping[str, LineNumbers], advice: str) -> None:
    """ValueError where about every example has a class of its own.

    Such a column holds a text, a date, a number, or the example's name.
    """
    # of a small file every class may be rare
    num_examples = sum(places.count for places in seen.values())
    if num_examples >= MANY_CLASSES_FROM and len(seen) > MANY_CLASSES_FRACTION * num_examples:
        example = shortened(repr(next(iter(seen))), SHOWN_CHARACTERS)
        raise ValueError(
            f"{where}: {len(seen)} different ones, such as {example}, in {num_examples} rows:"
            f" {advice}"
        )


def refuse_one_class(path: Path, names: Sequence[str], key: str) -> None:
    """ValueError where a training file has one class: nothing can be learnt from it.

    `key` names its column.
    """
    if len(names) == 1:
        raise ValueError(
            f"{path}: all rows have one label, {names[0]!r}, so there is nothing to learn; is {key}"
            " the right one?"
        )


def warn_of_lacking_classes(path: Path, labels: np.ndarray, names: Sequence[str]) -> None:
    """Say which classes a training file has no example of. `labels` [N]: indices into `names`."""
    present = set(labels.tolist())
    lacking = [name for number, name in enumerate(names) if number not in present]
    if lacking:
        log.warning(
            "%s has no example of %d of %d classes: %s",
            path,
            len(lacking),
            len(names),
            truncate_list(list(map(repr, lacking))),
        )


def warn_of_suspicious_classes(where: str, seen: Mapping[str, LineNumbers]) -> None:
    pairs = _similar_labels(seen, str.casefold)
    if pairs:
        first, second = pairs[0]
        log.warning(
            "%s: %d pairs differ by case alone, and each is two classes; the first: %r (%s) and %r"
            " (%s)",
            where,
            len(pairs),
            first,
            seen[first],
            second,
            seen[second],
        )
    _warn_of_misspelt(where, seen)
    _warn_of_composites(where, seen)
    for label in MAYBE_MISSING:
        if label in seen:
            log.warning(
                "%s: %r (%s) is a class: or is it a missing value?", where, label, seen[label]
            )


def _warn_of_misspelt(where: str, seen: Mapping[str, LineNumbers]) -> None:
    """Say which rare classes seem to be frequent ones with a slip of the pen."""
    if sum(places.count for places in seen.values()) < MISSPELT_FROM:
        return
    rare = [label for label, places in seen.items() if places.count <= RARE_ROWS]
    frequent = [label for label, places in seen.items() if places.count >= FREQUENT_ROWS]
    for label in rare[:MAX_COMPARED_LABELS]:
        likely = next((name for name in frequent if _is_misspelt(label, name)), None)
        if likely is not None:
            log.warning(
                "%s: %r (%s) is a class of its own, and may be a misspelt %r (%d rows): correct the"
                " file if it is",
                where,
                label,
                seen[label],
                likely,
                seen[likely].count,
            )


def _is_misspelt(label: str, name: str) -> bool:
    """Whether a slip of the pen or two make a label of a name.

    Case is told apart elsewhere, and numbers are meant: `class 1` and `class 2` are two classes.
    """
    first, second = (re.sub(r"\d", "", text).casefold() for text in (label, name))
    if first == second or abs(len(first) - len(second)) > MAX_CHANGED_LETTERS:
        return False
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    num_common = sum(block.size for block in matcher.get_matching_blocks())
    num_changed = len(first) + len(second) - 2 * num_common
    return num_changed <= MAX_CHANGED_LETTERS and matcher.ratio() >= MIN_LIKENESS


def _warn_of_composites(where: str, seen: Mapping[str, LineNumbers]) -> None:
    """Say which classes seem to be several labels in one cell."""
    for separator in SEPARATORS:
        composites = _composites(seen, separator)
        hint = ""
        if all(map(DECIMAL_COMMA.fullmatch, composites)):
            hint = " if they are numbers, write a point for the comma; else"
        if composites:
            log.warning(
                "%s: %d of %d classes seem to be several labels with %r between them, such as %r"
                " (%s): each is one class here;%s write one label in each cell, or take"
                " format/several_labels with task.data.separator=%r",
                where,
                len(composites),
                len(seen),
                separator,
                composites[0],
                seen[composites[0]],
                hint,
                separator,
            )


def _composites(labels: Iterable[str], separator: str) -> list[str]:
    """The labels of several parts, each a label itself or a part of another: `science;old`."""
    members_of_label = {}
    for label in labels:
        members_of_label[label] = set(map(str.strip, label.split(separator)))
    occurrences = Counter(chain.from_iterable(members_of_label.values()))
    composites = []
    for label, members in members_of_label.items():
        if len(members) > 1 and min(map(occurrences.__getitem__, members)) > 1:
            composites.append(label)
    return composites


def _similar_labels(labels: Iterable[str], key: Callable[[str], Hashable]) -> list[tuple[str, str]]:
    """Pairs of labels that are one by `key`; a key of None is none."""
    first = dict[Hashable, str]()
    pairs = list[tuple[str, str]]()
    for label in labels:
        value = key(label)
        if value is None:
            continue
        if value in first:
            pairs.append((first[value], label))
        else:
            first[value] = label
    return pairs


def _without_spaces(label: str) -> str:
    """With single spaces inside and none around; letters with accents are one character."""
    return " ".join(unicodedata.normalize("NFC", label).split())


def _number(label: str) -> float | None:
    if glue.is_number(label):
        return float(label)
    return None
