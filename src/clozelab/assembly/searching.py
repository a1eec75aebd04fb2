"""The lines of a file that are most like a text, by the cosine of their embeddings."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clozelab.datamodules.columns import document_text, trained_columns
from clozelab.datamodules.texts import UnreadableText
from clozelab.files.digests import file_sha256
from clozelab.modules import answering
from clozelab.modules.answer_files import stacked
from clozelab.modules.answers import Unanswered
from clozelab.readers.lines import decoded_lines, file_suffix
from clozelab.readers.records import PlacedRow, Table
from clozelab.readers.rows import open_rows
from clozelab.readers.tables import table_format
from clozelab.tasks.cache import Arrays
from clozelab.text.plain import PlainDict, PlainMapping

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clozelab.modules.predictor import Predictor


def queries_of(values: Mapping[str, str], model_path: Path) -> list[str]:
    """The one query of a command line, or those of its file that hold something.

    ValueError where there is none, where one cannot be read, and where a query is the name of a
    file.
    """
    if "query" in values:
        query = values["query"]
        if not query.strip():
            raise ValueError("query= is empty: say what to search for")
        if Path(query).is_file():
            raise ValueError(
                f"query={query} is a file: say queries={query} to search for each line"
            )
        return [query]
    path = Path(values["queries"])
    if table_format(path) is not None or file_suffix(path) == ".json":
        queries = _queries_of_table(path, values, model_path)
    else:
        queries = [line for _, line in decoded_lines(path)]
    if not queries:
        raise ValueError(f"queries={path} has no text to search for")
    return queries


def _queries_of_table(path: Path, values: Mapping[str, str], model_path: Path) -> list[str]:
    """The texts of the column that is chosen as that of `in=` is."""
    file = open_rows(str(path))
    # A run, or a folder of weights in one.
    trained = trained_columns(model_path, "query")
    if not trained:
        trained = trained_columns(model_path.parent, "query")
    # `text=` is said of the searched file, whose columns may have other names.
    named = {}
    if values.get("text") in file.columns:
        named["text"] = values["text"]
    roles = answering.roles_of_file(file, "embed", named, trained)
    if len(roles) > 1:
        raise ValueError(f"queries={path} has two texts a row, and a query is one: leave a column")
    queries = []
    for row in answering.rows_of(file, roles, "embed", named, skips_empty=True):
        query = row.record.get(roles["text"])
        if row.problem is not None or not isinstance(query, str):
            problem = "holds no text" if row.problem is None else row.problem
            raise ValueError(f"queries: {row.place} {problem}")
        queries.append(query)
    return queries


def vectors_of_queries(
    embed: Callable[[str], NDArray[np.float32]], queries: Sequence[str]
) -> list[NDArray[np.float32]]:
    """[H] of each query; ValueError names one that the model cannot read."""
    vectors = []
    for query in queries:
        try:
            vectors.append(embed(query))
        except UnreadableText as error:
            raise ValueError(f"query {query!r} {error.reason}") from None
    return vectors


def refuse_no_search(values: Mapping[str, str]) -> None:
    """ValueError for arguments that make no search."""
    is_complete = ("query" in values) != ("queries" in values) and "in" in values
    if not is_complete or not values["top_k"].isdecimal() or values["top_k"] == "0":
        raise ValueError(
            "search needs query=TEXT or queries=FILE, and in=FILE; top_k is a whole number above 0;"
            " see --help"
        )
    for key in ("in", "queries"):
        if key in values and not Path(values[key]).is_file():
            raise ValueError(f"{key}={values[key]}: there is no such file")


def warn_of_hit_keys(file: Table, *, has_queries: bool) -> None:
    """Warn where a hit as JSON has keys of its own in the place of a row's columns."""
    hit_keys = {"line", "cosine"}
    if has_queries:
        hit_keys.add("query")
    replaced = [name for name in file.columns if name in hit_keys]
    if replaced:
        print(
            f"{file.name}: {', '.join(replaced)} of a hit is the search's own; the file's columns"
            " stand below row",
            file=sys.stderr,
        )


def hit_object(row: PlacedRow, cosine: float, query: str | None) -> PlainDict:
    """A line of the file as JSON: its columns, its number, its cosine, and one of several queries.

    Where a column is called as one of these, `row` has all columns again.
    """
    of_hit: PlainDict = {"line": row.number, "cosine": round(cosine, 4)}
    if query is not None:
        of_hit["query"] = query
    if of_hit.keys() & row.record.keys():
        of_hit["row"] = row.record
    return row.record | of_hit


def is_beir_corpus(file: Table, roles: Mapping[str, str], values: Mapping[str, str]) -> bool:
    """Whether a file is one of documents with a title, and no column was named."""
    return "text" not in values and "_id" in file.columns and dict(roles) == {"text": "text"}


def with_title(row: PlacedRow) -> PlacedRow:
    """A document as measure=retrieval reads it."""
    if row.problem is not None:
        return row
    return replace(row, record={**row.record, "text": document_text(row.record)})


def cosine_similarities(
    vectors: NDArray[np.float32], query: NDArray[np.float32]
) -> NDArray[np.float32]:
    """[rows] from vectors [rows, H] and a query [H]; NaN for a row of NaN."""
    # A vector of zeros is like nothing rather than a division by zero.
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    return vectors @ query / np.maximum(norms, 1e-12)


def most_similar(cosines: NDArray[np.float32], top_k: int) -> list[int]:
    """Indices of the highest cosines, the highest first; NaN is never among them."""
    # Stable: of equal lines the first comes first.
    order = np.argsort(-cosines, kind="stable").tolist()
    finite = [index for index in order if np.isfinite(cosines[index])]
    return finite[:top_k]


def content_of(
    predictor: Predictor,
    model_path: Path,
    file: Table,
    columns: Mapping[str, str],
    options: PlainMapping,
) -> PlainDict:
    """What decides a file's vectors: the model and its code, how it pools, what it reads."""
    from clozelab.modules.model import sentence_vectors
    from clozelab.runs.code import code_version
    from clozelab.runs.inputs import encoder_fingerprint

    folder = predictor.model.folder
    pooling = options.get("pooling")
    vectors = sentence_vectors(folder, None if pooling is None else str(pooling))
    prompt = vectors.prompt(str(options["prompt"]))
    content: PlainDict = {
        "options": {name: value for name, value in options.items() if name != "prompt"},
        "model": encoder_fingerprint(folder),
        "precision": predictor.precision,
        "code": code_version(["clozelab.modules.predictor.Predictor"]),
    }
    content |= {"file": file_sha256(Path(file.name)), "form": file.form, "columns": dict(columns)}
    # A file of weights may be one of several in its folder.
    if model_path.is_file():
        content["weights"] = file_sha256(model_path)
    # A folder whose vectors are not computed here has its encoder's own.
    if pooling is None:
        content["pooling"] = vectors.pooling
        # Without the key where all columns are kept: so vectors of older versions are found again.
        if vectors.size is not None:
            content["columns_kept"] = vectors.size
    if prompt:
        content["prompt"] = prompt
    return content


def vectors_of(answered: answering.Answered) -> tuple[Arrays, PlainDict]:
    """A vector a line, NaN for one that cannot be read, and the reasons of those."""
    vectors = []
    unread = {}
    for index, (_, vector) in enumerate(answered):
        vectors.append(vector)
        if isinstance(vector, Unanswered):
            unread[str(index)] = vector.error
    return {"vectors": stacked(vectors)}, {"unread": unread}


def refuse_unread(rows: Sequence[PlacedRow], unread: Mapping[str, str], errors: str) -> None:
    """Say which lines have no vector; ValueError for the first where `errors` wants that, or all.

    `unread`: index of a row -> why.
    """
    answered: list[tuple[PlacedRow, object]] = [(row, None) for row in rows]
    for index, reason in unread.items():
        row = rows[int(index)]
        if errors == "raise":
            raise ValueError(f"{row.place} {reason}")
        answered[int(index)] = (row, Unanswered(reason))
    for _ in answering.count_rows(iter(answered), Counter()):
        pass
