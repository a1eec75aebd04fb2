"""Answers as files and lines: plain text, JSON lines, tables beside the given columns, arrays of
numpy.

Letters: N rows, H hidden size.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from clozelab.corpus.files import whole_file, write_whole
from clozelab.corpus.rows import Row, RowFile
from clozelab.corpus.tables import COLUMNAR
from clozelab.datamodules.labels import is_missing
from clozelab.modules.answers import Result, Unanswered, columns_of

ARRAYS = {".npy": ("embed",), ".npz": ("embed", "states", "attention")}
"""Suffix of an array file -> the acts whose answers it holds."""
TABLES = (".csv", ".tsv", ".parquet")
DELIMITER_OF = {".csv": ",", ".tsv": "\t"}
# of an answer, what a line of text says first
MAIN_KEYS = ("label", "text", "value", "log_probability")
Answered = Iterable[tuple[Row, Any]]


def write_answers(out: Path, file: RowFile, answered: Answered, array_name: str) -> None:
    """Writes one file, whole or not at all; its suffix says what it is: a line of text each, where
    it is no other."""
    if out.suffix in ARRAYS:
        write_arrays(out, [answer for _, answer in answered])
    elif out.suffix == ".parquet":
        write_parquet(out, file, answered, array_name)
    elif out.suffix in TABLES:
        with whole_file(out) as target:
            text = io.TextIOWrapper(target, encoding="utf-8", newline="")
            write_delimited(text, file, answered, array_name, out.suffix)
            text.detach()
    else:
        is_json = out.suffix == ".jsonl"
        write_whole(
            out,
            (shown(answer, row.record if is_json else None) for row, answer in answered),
        )


def print_answers(file: RowFile, answered: Answered, array_name: str, *, is_json: bool) -> None:
    """Prints as a table what came as one, and lines of anything else."""
    if file.is_table and not is_json:
        suffix = ".csv"
        if file.form == "tsv":
            suffix = ".tsv"
        write_delimited(sys.stdout, file, answered, array_name, suffix)
        return
    for row, answer in answered:
        print(shown(answer, row.record if is_json else None), flush=True)


# Lines


def plain(answer: Any) -> Any:
    """An answer as JSON holds it."""
    if hasattr(answer, "tolist"):
        return answer.tolist()
    return answer.to_dict()


def shown(answer: Any, record: Mapping[str, Any] | None) -> str:
    """An answer as one line: its parts between tabs or, with the record that it is of, a JSON
    object of both."""
    if record is not None:
        return _json_line(answer, record)
    if isinstance(answer, Unanswered):
        return f"(not answered: it {answer.error})"
    return "\t".join(" ".join(part.split()) for part in _parts_of(plain(answer)))


def _parts_of(content: Mapping[str, Any]) -> list[str]:
    """What a line of text says of an answer, part by part."""
    if "masks" in content:
        return [_best_tokens(mask) for mask in content["masks"]]
    if "words" in content:
        spans = content["entities"] or content["words"]
        return [" ".join(f"{span['text']}/{span['label']}" for span in spans)]
    if "labels" in content:
        chosen = [f"{label} {content['probabilities'][label]:.4f}" for label in content["labels"]]
        return [" ".join(chosen) if chosen else "(no label)"]
    parts = [str(content[key]) for key in MAIN_KEYS if key in content]
    if "probability" in content:
        parts.append(f"{content['probability']:.4f}")
    return parts


def _best_tokens(mask: Iterable[Mapping[str, Any]]) -> str:
    return " ".join(f"{token['token']} {token['probability']:.4f}" for token in mask)


def _json_line(answer: Any, record: Mapping[str, Any]) -> str:
    given = {key: value for key, value in record.items() if key not in ("prediction", "error")}
    if isinstance(answer, Unanswered):
        made = {"prediction": None, "error": answer.error}
    else:
        made = {"prediction": plain(answer)}
    # What a table held may be a date, or a number of exact decimals.
    return json.dumps(given | made, ensure_ascii=False, default=str)


# Tables


def write_delimited(
    target: IO[str],
    file: RowFile,
    answered: Answered,
    array_name: str,
    suffix: str,
) -> None:
    """The given columns, then those of the answers. Given cells stay as they are; a table is
    written as it was read."""
    is_same_form = file.form == suffix[1:]
    if is_same_form:
        delimiter = file.delimiter
    else:
        delimiter = DELIMITER_OF[suffix]
    is_quoted = file.is_quoted or not is_same_form
    names: list[str] | None = None
    for row, cells, answer_names in _flat(answered, array_name):
        if names is None:
            names = [*_given_columns(file, answer_names), *answer_names]
            _write_line(target, names, delimiter, is_quoted)
        values = [cells[name] if name in cells else row.record.get(name) for name in names]
        _write_line(target, [cell_text(value) for value in values], delimiter, is_quoted)


def _write_line(target: IO[str], cells: list[str], delimiter: str, is_quoted: bool) -> None:
    if is_quoted:
        csv.writer(target, delimiter=delimiter, lineterminator="\n").writerow(cells)
        return
    # In a table without quoting a tab or a line break inside an answer would be another cell.
    target.write(
        delimiter.join(" ".join(cell.split()) if _breaks(cell) else cell for cell in cells) + "\n",
    )


def _breaks(cell: str) -> bool:
    return any(character in cell for character in "\t\r\n")


def cell_text(value: Any) -> str:
    """A value as a cell of text: nothing for None and NaN, JSON for lists and dictionaries."""
    if is_missing(value):
        return ""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _flat(answered: Answered, array_name: str) -> Iterator[tuple[Row, dict[str, Any], list[str]]]:
    """(row, cells of its answer, all names of answers' columns); rows before the first answer wait
    for its names."""
    waiting: list[tuple[Row, Any]] = []
    names: list[str] | None = None
    for row, answer in answered:
        waiting.append((row, answer))
        if names is None and isinstance(answer, Unanswered):
            continue
        if names is None:
            names = list(columns_of([answer], array_name))
        for one, known in waiting:
            yield one, _cells_of(known, array_name, names), names
        waiting = []
    for one, known in waiting:  # no row was answered
        yield one, _cells_of(known, array_name, ["error"]), ["error"]


def _cells_of(answer: Any, array_name: str, names: list[str]) -> dict[str, Any]:
    if isinstance(answer, Result):
        cells = answer.to_columns()
    else:
        cells = {array_name: answer}
    return {name: cells.get(name) for name in names}


def _given_columns(file: RowFile, answer_names: Iterable[str]) -> list[str]:
    """Columns that stay; one that is called as an answer's is replaced, and stderr says so."""
    replaced = [name for name in file.columns if name in set(answer_names)]
    if replaced:
        print(
            f"{file.name}: the column {', '.join(replaced)} is replaced by the answers'",
            file=sys.stderr,
        )
    return [name for name in file.columns if name not in replaced]


def write_parquet(out: Path, file: RowFile, answered: Answered, array_name: str) -> None:
    """The given columns with the types that they have, then those of the answers."""
    import pyarrow
    from pyarrow import parquet

    rows, results = [], []
    for row, answer in answered:
        rows.append(row)
        results.append(answer)
    columns = columns_of(results, array_name)
    given = _given_columns(file, columns)
    types = _types_of(file)
    cells = {key: [row.record.get(key) for row in rows] for key in given} | columns
    arrays = []
    for name, values in cells.items():
        try:
            arrays.append(pyarrow.array(values, type=types.get(name) if name in given else None))
        except (pyarrow.ArrowException, TypeError, ValueError) as error:
            raise ValueError(
                f"output={out}: the column {name!r} holds values of several kinds ({error}); take"
                " .jsonl"
            ) from error
    table = pyarrow.table(arrays, names=[*given, *columns])
    with whole_file(out) as target:
        parquet.write_table(table, target)


def _types_of(file: RowFile) -> dict[str, Any]:
    """Of a table that has them: column -> type."""
    if file.form not in COLUMNAR:
        return {}
    from clozelab.corpus.tables import column_types

    return column_types(Path(file.name), file.form)


# Arrays


def write_arrays(path: Path, vectors: list[Any]) -> None:
    """Embeddings [N, H] as one array, a row of NaN for a text that was not answered; of .npz each
    array as text_1, ..., and none for such a text."""
    import numpy as np

    with whole_file(path) as file:
        if path.suffix == ".npz":
            arrays = {f"text_{number}": array for number, array in enumerate(vectors, 1)}
            np.savez(
                file,
                **{
                    name: array
                    for name, array in arrays.items()
                    if not isinstance(array, Unanswered)
                },
            )
            return
        known = next(array for array in vectors if not isinstance(array, Unanswered))
        nothing = np.full_like(known, np.nan)
        np.save(
            file,
            np.stack([nothing if isinstance(array, Unanswered) else array for array in vectors]),
        )
