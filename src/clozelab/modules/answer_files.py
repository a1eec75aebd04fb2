"""Answers as files and lines.

They are plain text, JSON lines, tables beside the given columns, or arrays of numpy.

Letters: N rows, H hidden size.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from clozelab.files.atomic import atomic_open, atomic_write_lines
from clozelab.modules.answers import Result, Unanswered, columns_of
from clozelab.readers.cells import is_missing
from clozelab.readers.delimited import csv_line
from clozelab.readers.records import PlacedRow, Table
from clozelab.text.plain import Json, PlainDict, PlainMapping, ReadOnlyJson

ARRAYS = {".npy": ("embed",), ".npz": ("embed", "states", "attention")}
"""Suffix of an array file -> the acts whose answers it holds."""
DELIMITER_OF = {".csv": ",", ".tsv": "\t"}
MAIN_KEYS = ("label", "text", "value", "log_probability")
"""Of an answer, what a line of text says first."""
ANSWER_KEYS = ("prediction", "error")
"""Of a JSON object, what an answer adds to the record."""
Answered = Iterable[tuple[PlacedRow, object]]


def check_array_file(out: Path, act: str) -> None:
    """ValueError for an array file (.npy, .npz) that cannot hold an act's answers."""
    if out.suffix in ARRAYS and act not in ARRAYS[out.suffix]:
        raise ValueError(
            f"output={out}: only do={', '.join(ARRAYS[out.suffix])} gives what a {out.suffix} file"
            " holds; take .jsonl"
        )


def write_answers(out: Path, file: Table, answered: Answered, array_name: str) -> None:
    """Write one file, whole or not at all.

    Its suffix says what it is; of any other suffix it is a line of text for each answer.
    """
    if out.suffix in ARRAYS:
        write_arrays(out, [answer for _, answer in answered])
    elif out.suffix == ".parquet":
        write_parquet(out, file, answered, array_name)
    elif out.suffix in DELIMITER_OF:
        with atomic_open(out) as target:
            text = io.TextIOWrapper(target, encoding="utf-8", newline="")
            write_delimited(text, file, answered, array_name, out.suffix)
            # Flushes; `target` stays open, for `atomic_open` to close and rename.
            text.detach()
    elif out.suffix == ".jsonl":
        atomic_write_lines(out, json_lines(file, answered))
    else:
        atomic_write_lines(out, _text_lines(answered))


def print_answers(file: Table, answered: Answered, array_name: str, *, is_json: bool) -> None:
    """Print as a table what came as one, and lines of anything else."""
    if file.is_table and not is_json:
        suffix = {"tsv": ".tsv"}.get(file.form, ".csv")
        write_delimited(sys.stdout, file, answered, array_name, suffix)
        return
    lines = _text_lines(answered)
    if is_json:
        lines = json_lines(file, answered)
    for line in lines:
        print(line, flush=True)


def to_json_value(answer: Any) -> Json:
    """An answer as JSON holds it: lists for an array, an object for anything else."""
    if hasattr(answer, "tolist"):
        return answer.tolist()
    return answer.to_dict()


def json_lines(file: Table, answered: Answered) -> Iterator[str]:
    """A line for each answer; stderr says once which given keys are replaced."""
    replaced: set[str] = set()
    for row, answer in answered:
        new = [key for key in ANSWER_KEYS if key in row.record and key not in replaced]
        if new:
            warn_of_replaced_columns(file, new)
            replaced.update(new)
        yield json_line(answer, row.record)


def json_line(answer: object, record: PlainMapping) -> str:
    """A JSON object of the record that was read, and its prediction."""
    content = dict(record)
    # An earlier prediction's keys are replaced, and come last again.
    for key in ANSWER_KEYS:
        content.pop(key, None)
    if isinstance(answer, Unanswered):
        content |= {"prediction": None, "error": answer.error}
    else:
        content["prediction"] = to_json_value(answer)
    # What a table held may be a date, or a number of exact decimals.
    return json.dumps(content, ensure_ascii=False, default=str)


def _text_lines(answered: Answered) -> Iterator[str]:
    return (text_line(answer) for _, answer in answered)


def text_line(answer: object) -> str:
    """An answer as one line of text, its fields between tabs."""
    if isinstance(answer, Unanswered):
        return f"(not answered: it {answer.error})"
    # An answer that is a stretch of text may hold tabs and line breaks.
    fields = []
    for field in _text_fields(to_json_value(answer)):
        fields.append(" ".join(field.split()))
    return "\t".join(fields)


def _text_fields(content: ReadOnlyJson) -> list[str]:
    """What a line of text says of an answer, by the keys that the answer has."""
    if "masks" in content:
        return [_best_tokens(mask) for mask in content["masks"]]
    if "words" in content:
        spans = content["words"]
        if content.get("entities"):
            spans = content["entities"]
        return [" ".join(map(_shown_word, spans))]
    if "labels" in content:
        probabilities = content["probabilities"]
        if not content["labels"]:
            return ["(no label)"]
        labels = [f"{label} {probabilities[label]:.4f}" for label in content["labels"]]
        return [" ".join(labels)]
    fields = [str(content[key]) for key in MAIN_KEYS if key in content]
    if "probability" in content:
        fields.append(f"{content['probability']:.4f}")
    if not fields:
        raise TypeError(f"no line of text is made of an answer's {', '.join(content)}")
    return fields


def _shown_word(word: PlainMapping) -> str:
    """A word with its number or tag, or an entity with its type."""
    if "number" in word:
        return f"{word['text']}/{word['number']:.7g}"
    return f"{word['text']}/{word['label']}"


def _best_tokens(mask: Iterable[PlainMapping]) -> str:
    return " ".join(f"{token['token']} {token['probability']:.4f}" for token in mask)


def write_delimited(
    target: IO[str],
    file: Table,
    answered: Answered,
    array_name: str,
    suffix: str,
) -> None:
    """Write the given columns, then those of the answers.

    Given cells stay as they are; a table is written as it was read.
    """
    delimiter = DELIMITER_OF[suffix]
    is_quoted = True
    if file.form == suffix[1:]:
        delimiter = file.delimiter
        is_quoted = file.is_quoted
    header = None
    for row, cells in _with_cells(answered, array_name):
        if header is None:
            header = [*_given_columns(file, cells), *cells]
            _write_line(target, header, delimiter, is_quoted)
        # An answer's cell replaces a given one of its name.
        values = {**row.record, **cells}
        line = [cell_text(values.get(name)) for name in header]
        _write_line(target, line, delimiter, is_quoted)


def _write_line(target: IO[str], cells: Sequence[str], delimiter: str, is_quoted: bool) -> None:
    if is_quoted:
        target.write(csv_line(cells, delimiter))
        return
    # In a table without quoting a tab or a line break inside an answer would be another cell.
    target.write(delimiter.join(map(_without_breaks, cells)) + "\n")


def _without_breaks(cell: str) -> str:
    if any(character in cell for character in "\t\r\n"):
        return " ".join(cell.split())
    return cell


def cell_text(value: object) -> str:
    """A value as a cell of text: nothing for None and NaN, JSON for truths, lists and objects."""
    if is_missing(value):
        return ""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, bool | list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _with_cells(answered: Answered, array_name: str) -> Iterator[tuple[PlacedRow, PlainDict]]:
    """Each row with its answer's cells: column -> value, the same columns in every row.

    The first answer tells the columns, so rows before it wait.
    """
    remaining = iter(answered)
    waiting: list[tuple[PlacedRow, object]] = []
    names = ["error"]  # where no row was answered
    for row, answer in remaining:
        waiting.append((row, answer))
        if not isinstance(answer, Unanswered):
            names = list(columns_of([answer], array_name))
            break
    for row, answer in chain(waiting, remaining):
        cells = {array_name: answer}
        if isinstance(answer, Result):
            cells = answer.to_columns()
        yield row, {name: cells.get(name) for name in names}


def _given_columns(file: Table, answer_names: Iterable[str]) -> list[str]:
    """Columns that stay; one that is called as an answer's is replaced, and stderr says so."""
    of_answers = set(answer_names)
    columns = file.columns
    # The keys of all objects, in the order in which they come up. A table's header stands first,
    # so the objects are gone through before they are answered.
    if file.form == "jsonl":
        records = (row.record for row in file.placed_rows() if row.problem is None)
        columns = list(dict.fromkeys(chain.from_iterable(records)))
    replaced = [name for name in columns if name in of_answers]
    if replaced:
        warn_of_replaced_columns(file, replaced)
    return [name for name in columns if name not in of_answers]


def warn_of_replaced_columns(file: Table, names: Sequence[str]) -> None:
    print(
        f"{file.name}: the column {', '.join(names)} is replaced by the answers'",
        file=sys.stderr,
    )


def write_parquet(out: Path, file: Table, answered: Answered, array_name: str) -> None:
    """Write the given columns with the types that they have, then those of the answers."""
    import pyarrow
    from pyarrow import parquet

    lines = list(answered)
    answer_columns = columns_of([answer for _, answer in lines], array_name)
    columns = {}
    for name in _given_columns(file, answer_columns):
        columns[name] = [row.record.get(name) for row, _ in lines]
    # Of a table without types (.csv) pyarrow finds them by the values, as of the answers.
    types = dict(file.types)
    for name in answer_columns:
        types.pop(name, None)
    columns |= answer_columns
    arrays = []
    for name, values in columns.items():
        try:
            arrays.append(pyarrow.array(values, type=types.get(name)))
        except (pyarrow.ArrowException, TypeError, ValueError) as error:
            raise ValueError(
                f"output={out}: the column {name!r} holds values of several kinds ({error}); take"
                " .jsonl"
            ) from error
    table = pyarrow.table(arrays, names=list(columns))
    with atomic_open(out) as target:
        parquet.write_table(table, target)


def write_arrays(path: Path, answers: Sequence[Any]) -> None:
    """Write the arrays of answers.

    Into .npy go embeddings as `stacked` has them. Into .npz goes each array as text_1, ..., and
    none for a text that was not answered.
    """
    with atomic_open(path) as file:
        if path.suffix != ".npz":
            np.save(file, stacked(answers))
            return
        arrays = {}
        for number, answer in enumerate(answers, 1):
            if not isinstance(answer, Unanswered):
                arrays[f"text_{number}"] = answer
        np.savez(file, **arrays)


def stacked(embeddings: Sequence[Any]) -> np.ndarray:
    """[N, H] of embeddings, a row of NaN for a text that was not answered; H is 0 if none was."""
    answered = (vector for vector in embeddings if not isinstance(vector, Unanswered))
    missing = np.full_like(next(answered, np.empty(0)), np.nan)
    vectors = []
    for vector in embeddings:
        vectors.append(missing if isinstance(vector, Unanswered) else vector)
    return np.stack(vectors)
