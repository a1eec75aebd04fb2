"""Parquet and Arrow files, as pandas and `datasets` write them, a batch of rows at a time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from clozelab.readers.lines import COMPRESSIONS, Advance
from clozelab.readers.records import Rows, Table
from clozelab.readers.remote import FilePath, RemotePath, file_size

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import RecordBatch
    from pyarrow.ipc import RecordBatchFileReader, RecordBatchStreamReader
    from pyarrow.parquet import ParquetFile

    ArrowReader: TypeAlias = RecordBatchFileReader | RecordBatchStreamReader

BATCH_ROWS = 64  # held at a time: a row may be a book
BUFFER_BYTES = 2**20
ARROW_FILE = b"ARROW1"
# Arrow's mark of a message (0xFFFFFFFF), and a length of 0: no more messages
ARROW_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
CLASS_LABEL = "ClassLabel"  # what the datasets library calls a column of numbers that have names


def open_columnar(path: FilePath, file_format: str) -> Table:
    """Open a `parquet` or `arrow` file; its columns have types, and its rows no lines."""
    if path.suffix in COMPRESSIONS:
        raise ValueError(
            f"{path}: a packed {file_format} file cannot be streamed; unpack it (it is compressed"
            " inside)"
        )
    with _opened(path, file_format) as (file, _):
        schema = file.schema_arrow if file_format == "parquet" else file.schema

    def rows(columns: list[str] | None, advance: Advance, _: Counter[str] | None) -> Rows:
        number = position = 0
        end = 0.0
        size = file_size(path)
        for batch, num_bytes in _batches(path, file_format, columns):
            for record in batch.to_pylist():
                number += 1
                end += num_bytes / len(batch)
                position_now = min(size, int(end))
                advance(position_now - position)
                position = position_now
                yield number, record
        advance(size - position)

    return Table(
        path,
        file_format,
        list(schema.names),
        rows,
        types={column.name: column.type for column in schema},
        class_names=_class_names(schema),
    )


def _class_names(schema: pyarrow.Schema) -> dict[str, list[str]]:
    """Column -> the names of its numbers.

    The datasets library notes them in a schema's metadata.
    """
    try:
        metadata = json.loads((schema.metadata or {})[b"huggingface"])
        features = dict(metadata["info"]["features"])
    except (KeyError, TypeError, ValueError):
        return {}
    names: dict[str, list[str]] = {}
    for column, feature in features.items():
        # Of lists of classes, those of an element: {"feature": {...}, "_type": "List"}, or [{...}].
        if isinstance(feature, list) and feature:
            feature = feature[0]
        elif isinstance(feature, dict):
            feature = feature.get("feature", feature)
        if not isinstance(feature, dict) or feature.get("_type") != CLASS_LABEL:
            continue
        if isinstance(feature.get("names"), list):
            names[column] = [str(name) for name in feature["names"]]
    return names


@contextmanager
def _opened(
    path: FilePath, file_format: str
) -> Iterator[tuple[ParquetFile | ArrowReader, pyarrow.NativeFile]]:
    """A reader of the file, and what it reads; ValueError where it is damaged, also meanwhile."""
    import pyarrow  # takes a third of a second: only who reads such a file pays
    from pyarrow import parquet

    try:
        with _native_file(path, file_format) as source:
            if file_format == "parquet":
                # By pages: otherwise a row group of many megabytes is read as a whole.
                options = {"buffer_size": BUFFER_BYTES, "pre_buffer": False}
                with parquet.ParquetFile(source, **options) as file:
                    yield file, source
            else:
                with _arrow_reader(source) as reader:
                    yield reader, source
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(_unreadable(path, file_format, error)) from error


@contextmanager
def _native_file(path: FilePath, file_format: str) -> Iterator[pyarrow.NativeFile]:
    """The file as Arrow reads it; one on disk is mapped into memory where it may be."""
    import pyarrow

    if isinstance(path, RemotePath):
        with path.open() as file:
            yield pyarrow.PythonFile(file, mode="r")
    elif file_format == "parquet":
        with pyarrow.OSFile(str(path)) as source:
            yield source
    else:
        with pyarrow.memory_map(str(path)) as source:
            yield source


def _batches(
    path: FilePath, file_format: str, columns: list[str] | None
) -> Iterator[tuple[RecordBatch, float]]:
    """Record batches of BATCH_ROWS rows at most, and about how many bytes of the file each is.

    That goes by rows: the order of the bytes on disk is the format's own affair.
    """
    size = file_size(path)
    with _opened(path, file_format) as (file, source):
        if file_format == "parquet":
            num_rows = max(1, file.metadata.num_rows)
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=columns):
                yield batch, size * len(batch) / num_rows
            return
        for batch, num_bytes in _arrow_batches(file, source, size):
            chosen = batch if columns is None else batch.select(columns)
            for start in range(0, len(batch), BATCH_ROWS):
                part = chosen.slice(start, BATCH_ROWS)
                yield part, num_bytes * len(part) / len(batch)


def _arrow_reader(source: pyarrow.NativeFile) -> ArrowReader:
    """A reader of Arrow's two layouts: a file (feather), or a stream (as `datasets` caches it)."""
    from pyarrow import ipc

    is_file = source.read(len(ARROW_FILE)) == ARROW_FILE
    # A stream whose writer was stopped is cut off between two batches, and reads as a shorter one.
    source.seek(max(0, source.size() - len(ARROW_STREAM_END)))
    if not is_file and source.read() != ARROW_STREAM_END:
        raise OSError("the stream does not end with its mark")
    source.seek(0)
    if is_file:
        return ipc.open_file(source)
    return ipc.open_stream(source)


def _arrow_batches(
    reader: ArrowReader, source: pyarrow.NativeFile, size: int
) -> Iterator[tuple[RecordBatch, float]]:
    """The batches of a file of this size, and about how many bytes of it each is.

    A stream does not say how many rows it has. It is read from front to back, so its position
    tells.
    """
    if hasattr(reader, "num_record_batches"):
        from pyarrow import dataset

        # The reader itself counts rows from pyarrow 26 on.
        num_rows = max(1, dataset.IpcFileFormat().make_fragment(source).count_rows())
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            yield batch, size * len(batch) / num_rows
    else:
        start = source.tell()
        for batch in reader:
            end = source.tell()
            yield batch, end - start
            start = end


def is_text_type(column_type: pyarrow.DataType) -> bool:
    """Whether a column of this type holds texts."""
    from pyarrow import types

    if types.is_dictionary(column_type):
        column_type = column_type.value_type
    is_any_string = types.is_string(column_type) or types.is_large_string(column_type)
    return is_any_string or types.is_string_view(column_type)


def is_list_of_numbers(column_type: pyarrow.DataType) -> bool:
    """Whether a column of this type holds lists of whole numbers."""
    from pyarrow import types

    is_list = types.is_list(column_type) or types.is_large_list(column_type)
    return is_list and types.is_integer(column_type.value_type)


def _unreadable(path: FilePath, file_format: str, error: Exception) -> str:
    if isinstance(error, PermissionError):
        return f"{path} cannot be read: you have no permission for it"
    reason = str(error).partition("\n")[0]
    return (
        f"{path} is no {file_format} file, or is damaged or incomplete ({reason}); fetch it again"
    )
