"""What the verbs on a finished model share: which model, read how, and its answers row by row.

An act is what a model is asked to do (fill, classify, ...). A role is what a text is for an act
(text, pair, question, ...), and stands in a column of a file or under a key of an object.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import yaml  # type: ignore[import-untyped]

from clozelab.datamodules.columns import (
    choose_columns,
    is_enough,
    named_roles,
    refuse_unread,
    roles_of,
)
from clozelab.datamodules.texts import Unreadable, UnreadableText, read_cells
from clozelab.models.locate import find_model
from clozelab.modules.answers import Cut, Unanswered, summary_of
from clozelab.readers.cells import is_missing
from clozelab.readers.conll import DOCUMENT_START
from clozelab.readers.lines import file_suffix, whole_characters
from clozelab.readers.records import PlacedRow, Table
from clozelab.text.plain import JsonObject, PlainDict, PlainMapping

if TYPE_CHECKING:
    from clozelab.modules.predictor import Predictor


ACTS = ("fill", "classify", "answer", "tag", "next", "score", "embed", "states", "attention")
METHODS = {
    "fill": "fill_mask",
    "next": "next_sentence",
    "states": "hidden_states",
    "answer": "answer_all",
    "embed": "embed_each",
}
"""Act -> the predictor's method, where that is called otherwise."""
ROLES_BY_ROW = ("answer", "tag")
"""Acts whose objects may differ in their keys: words or text, passages or text."""
TEXT_KEYS = ("text", "pair", "question")
"""Keys of the command line that give one text."""
CONSTANT_ROLES = ("pair", "question")
"""Roles whose one text the command line may give for every row of a file."""
MODEL_KEYS = ("device", "precision", "label_names")
OPTION_KEYS = ("top_k", "layer", "stride", "pooling", "prompt", "size")
WORD_OPTIONS = ("pooling", "prompt")
"""OPTION_KEYS that are no whole numbers."""
OPTIONS = {
    "fill": ("top_k",),
    "answer": ("top_k",),
    "classify": ("stride",),
    "embed": ("pooling", "layer", "stride", "prompt", "size"),
}
"""Act -> the OPTION_KEYS that it takes."""
TAGGED_SUFFIXES = (".conll", ".conllu", ".bio")
ROWS_AT_ONCE = 2048
Answered = Iterator[tuple[PlacedRow, object]]
"""Rows in order, each with its answer or `Unanswered`."""


# The command line


def load_predictor(name: str, values: Mapping[str, str]) -> Predictor:
    """Load a model by a command line's `values`; in a terminal it shows how far it is."""
    folder = find_model(name, from_hub=values.get("hub") == "true")
    # These take seconds, which --help and wrong arguments need not wait.
    from rich.console import Console
    from rich.progress import track

    from clozelab.modules.predictor import load

    predictor = load(
        folder,
        device=values.get("device", "auto"),
        precision=values.get("precision", "auto"),
        label_names=parse_label_names(values),
    )
    predictor.warns = False  # counted at the end, over all batches
    if sys.stderr.isatty() and {"input", "in"} & values.keys():
        predictor.progress = partial(
            track, description="reading", console=Console(stderr=True), transient=True
        )
    return predictor


def parse_label_names(values: Mapping[str, str]) -> dict[str, str]:
    """`label_names={NEGATIVE: 0, POSITIVE: 1}` as it is meant: names, whatever they look like."""
    text = values.get("label_names")
    if text is None:
        return {}
    # The base loader reads every value as a text: 0, no and null are names, too.
    try:
        names = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError:
        names = None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(
            f"label_names={text}: write '{{MODEL_NAME: NAME, ...}}', a name of each label to be"
            " renamed"
        )
    return names


def parse_output(key: str, text: str, suffixes: Sequence[str] = ()) -> Path:
    """Where a file goes; ValueError where none can stand, or it has none of the suffixes."""
    out = Path(text)
    is_suffix = not suffixes or out.suffix in suffixes
    if not is_suffix or out.is_dir() or not out.parent.is_dir():
        kinds = " or ".join(suffixes) or "file"
        raise ValueError(f"{key}={out}: give a {kinds}, in a folder that is there")
    # By its mode: root may write everything, and would replace it.
    if out.exists() and not out.stat().st_mode & 0o222:
        raise ValueError(f"{key}={out} is read-only: give another name, or make it writable")
    return out


def parse_options(act: str, values: PlainMapping) -> JsonObject:
    """The options of an act among `values`; ValueError for one that is nothing for it."""
    if "question" in values and act != "answer":
        raise ValueError(f"question= is nothing for do={act}")
    options: PlainDict = {}
    for key in OPTION_KEYS:
        if key not in values:
            continue
        value = str(values[key])
        is_valid = key in WORD_OPTIONS or value.removeprefix("-").isdecimal()
        if key not in OPTIONS.get(act, ()) or not is_valid:
            raise ValueError(f"{key}={value} is nothing for do={act}, or no whole number")
        if key in WORD_OPTIONS:
            options[key] = value
        else:
            options[key] = int(value)
    return options


# Rows


def roles_of_file(
    file: Table, act: str, values: Mapping[str, str], trained: Sequence[str]
) -> dict[str, str]:
    """Role -> the column of a file that has it, or the key of the command line that gives it.

    Where no column is named, and the file has all that the model was `trained` on, it is those.
    ValueError where a column is missing, where none is named and none can be told to be the text,
    and where a key would hide a column.
    """
    constants = _constants(values)
    _refuse_constants(constants, file, act)
    if "text" not in values:
        named: Sequence[str] = ()
        if not constants and file.form != "lines" and set(trained) <= set(file.columns):
            named = trained
        return choose_columns([*file.columns, *constants], act, named=named, where=file.name)
    # text=premise,hypothesis names two columns, unless one has the whole of it as its name.
    columns = [values["text"]]
    if values["text"] not in file.columns:
        columns = values["text"].split(",")
    roles = choose_columns(file.columns, act, named=columns, where=file.name)
    for key in constants:
        if key in roles:
            raise ValueError(
                f"{key}= and text={values['text']} are {len(columns) + 1} texts: name one column",
            )
        roles[key] = key
    return roles


def _constants(values: Mapping[str, str]) -> dict[str, str]:
    return {key: values[key] for key in CONSTANT_ROLES if key in values}


def _refuse_constants(constants: Mapping[str, str], file: Table, act: str) -> None:
    for key, value in constants.items():
        if key in file.columns:
            raise ValueError(
                f"{file.name} has {key!r}, which {key}= would replace: leave one of them out",
            )
        if file.is_table and value in file.columns:
            raise ValueError(
                f"{key}={value} would be that very text for every row, and {file.name} has a column"
                f" {value!r}: say text=FIRST,{value} for the texts of two columns"
            )
        if key not in roles_of(act):
            raise ValueError(f"{key}= is nothing for do={act}")


def refuse_tagged(file: Table) -> None:
    """ValueError for lines of a word and its tag, each of which would be taken for a text."""
    if file.form != "lines":
        return
    first_line = str(next(file.placed_rows()).record["text"])
    is_tagged = file_suffix(file.path) in TAGGED_SUFFIXES
    if is_tagged or first_line.startswith(DOCUMENT_START):
        raise ValueError(
            f"{file.name} has a word a line, not a text: say test={file.name} (format=lines, if its"
            " lines are texts)"
        )


def rows_of(
    file: Table,
    roles: Mapping[str, str],
    act: str,
    values: Mapping[str, str],
    *,
    skips_empty: bool = False,
) -> Iterator[PlacedRow]:
    """A file's rows, each with what the command line says for all.

    `skips_empty` leaves out those without text.
    """
    constants = _constants(values)
    # A text that every row is given does not fill an empty one.
    varying = {role: column for role, column in roles.items() if column not in constants}
    # Objects whose texts are found by their keys may each have others.
    has_own_keys = file.form == "jsonl" and "text" not in values
    for row in file.placed_rows():
        record = {**row.record, **constants}
        problem = row.problem
        if problem is None:
            if skips_empty and is_empty(row.record, varying):
                continue
            if has_own_keys:
                problem = _unread_key(record, roles, act)
        yield PlacedRow(row.place, record, problem, row.number)


def is_empty(record: PlainMapping, roles: Mapping[str, str]) -> bool:
    """Whether nothing stands in any column that is read."""
    cells = [record.get(column) for column in roles.values()]
    return all(is_missing(cell) or (isinstance(cell, str) and not cell.strip()) for cell in cells)


def _unread_key(record: PlainMapping, roles: Mapping[str, str], act: str) -> str | None:
    """What is wrong with an object that has a text under a key that nothing reads.

    The keys of the first object count.
    """
    if act not in ROLES_BY_ROW and "pair" in record and "pair" not in roles:
        return "has 'pair', which the first object has not"
    try:
        refuse_unread(record, roles, act, "it")
    except ValueError as error:
        return str(error).removeprefix("it ")
    return None


def row_of_command_line(values: Mapping[str, str]) -> Table:
    """The one text of a command line, as a file of one row."""
    # A terminal's bytes that are not UTF-8 come as halves of characters.
    record = {key: whole_characters(values[key]) for key in TEXT_KEYS if key in values}
    return Table(
        Path("text="), "jsonl", list(record), lambda *_: iter([(1, record)]), place_format="text"
    )


def roles_of_command_line(file: Table, act: str) -> dict[str, str]:
    """What the arguments of a command line are read as.

    ValueError where one is missing, or is nothing for the act.
    """
    roles = {role: role for role in named_roles(file.columns, act)}
    for key in file.columns:
        if key not in roles:
            raise ValueError(
                f"{key}= is nothing for do={act}, which reads {', '.join(roles_of(act))}",
            )
    if not is_enough(roles, act):
        needs = "pair= beside text="
        if act == "answer":
            needs = "question= beside text=, its passage"
        raise ValueError(f"do={act} needs {needs}")
    return roles


# Answers


def answer_rows(
    predictor: Predictor,
    act: str,
    rows: Iterable[PlacedRow],
    options: PlainDict,
    *,
    roles: Mapping[str, str] | None = None,
    errors: str = "mark",
    marks_cut: bool = False,
) -> Answered:
    """What the model says of each row; a stretch of rows is held at a time.

    A row that cannot be read has `Unanswered`; with errors="raise" it is a ValueError that names
    its place. `roles`: role -> column; None: by each row's own keys. `marks_cut`: the answer to a
    text that was cut is a `Cut`.
    """
    remaining = iter(rows)
    while stretch := list(islice(remaining, ROWS_AT_ONCE)):
        answers = _answer_part(predictor, act, stretch, options, roles, errors, marks_cut)
        yield from zip(stretch, answers, strict=True)
    predictor.warn_of_cut()


def _answer_part(
    predictor: Predictor,
    act: str,
    rows: Sequence[PlacedRow],
    options: PlainDict,
    roles: Mapping[str, str] | None,
    errors: str,
    marks_cut: bool,
) -> list[object]:
    """An answer, or `Unanswered`, for each row."""
    answers: list[object] = [None] * len(rows)
    texts: dict[int, object] = {}  # index of a row that can be read -> its text
    for index, row in enumerate(rows):
        text = _text_of(row, act, roles)
        if not isinstance(text, Unreadable):
            texts[index] = text
        elif errors == "raise":
            raise ValueError(f"{row.place} {text.reason}")
        else:
            answers[index] = Unanswered(text.reason)
    if not texts:
        return answers
    # All that can be read goes to the model at once: it forms the batches.
    method: Callable[..., Iterable[object]] = getattr(predictor, METHODS.get(act, act))
    predictor.was_cut = [False] * len(texts)  # of an act that cuts none
    try:
        predictions = method(list(texts.values()), errors=errors, **options)
    except UnreadableText as error:
        # It counts the texts from 1, and knows nothing of rows.
        row = rows[list(texts)[error.number - 1]]
        raise ValueError(f"{row.place} {error.reason}") from error
    for index, prediction in zip(texts, predictions, strict=True):
        answers[index] = prediction
    for index, was_cut in zip(texts, predictor.was_cut, strict=True):
        if marks_cut and was_cut:
            answers[index] = Cut(answers[index])
    return answers


def _text_of(row: PlacedRow, act: str, roles: Mapping[str, str] | None) -> object:
    """The text of a row, or `Unreadable`."""
    if row.problem is not None:
        return Unreadable(row.problem)
    # Columns that are called as their roles are taken as each object has them.
    is_by_row = roles is not None and act in ROLES_BY_ROW and set(roles) == set(roles.values())
    if roles is None or is_by_row:
        roles = {role: role for role in named_roles(row.record, act)}
    return read_cells(row.record, roles, act)


def count_rows(answered: Answered, counts: Counter[str]) -> Answered:
    """The same rows; at the end stderr says how many were not answered, and why.

    `counts["row"]` is how many there are. ValueError where none was answered.
    """
    problems = []  # (place, reason)
    for row, answer in answered:
        counts["row"] += 1
        if isinstance(answer, Unanswered):
            problems.append((row.place, answer.error))
        yield row, answer
    total = counts["row"]
    if not total:
        raise ValueError("there is no row to read, or all of them are empty")
    if len(problems) == total:
        message = " ".join(problems[0])
        if total > 1:
            message += f" (and none of the other {total - 1:,} can be answered)"
        raise ValueError(message)
    if problems:
        print(summary_of(problems, total), file=sys.stderr)
