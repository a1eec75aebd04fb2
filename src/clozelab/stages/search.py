"""`clozelab search`: the lines of a file that are most like a text.

They are told by the cosine of their embeddings. A file is embedded once: the cache keeps its
vectors below a name made of the file, the columns, the model and the pooling.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clozelab.datamodules.columns import trained_columns
from clozelab.datamodules.files import cached_folder, content_key
from clozelab.files.digests import file_sha256
from clozelab.readers.lines import file_suffix, text_lines
from clozelab.readers.rows import Row, RowFile, open_rows
from clozelab.readers.tables import table_format
from clozelab.stages import inference
from clozelab.stages.outputs import write_arrays
from clozelab.terminal import ParsedArgs, path_of, verb
from clozelab.text.plain import JsonObject, ReadOnlyJson

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clozelab.modules.predictor import Predictor

HELP = """\
clozelab search MODEL query=TEXT|queries=FILE in=FILE [text=COLUMN] [top_k=5] [--json]
        [cache_dir=FOLDER]

Prints the lines of a file that are most like a text: cosine, number of the
line, line. Best is a model that was trained for it (clozelab finetune
task=stsb_siamese). Lines without text, and those that the model cannot read,
are never among them; the latter are counted. The embeddings are kept in the
cache, and made again when the lines have changed; `clozelab predict MODEL
do=embed input=FILE output=FILE.npy` writes them to a file.

  queries=FILE   a query a line, or a row of a table as for in=; the lines of
                 each stand below it
  in=FILE        a text a line, or a table (.csv, .tsv, .jsonl, .parquet), as
                 for predict; text= names its column, and that of queries=
                 where it has one of that name
  errors=raise   end at the first line that cannot be read

pooling=, layer=, stride=, device=, precision=, hub=true are as for predict
do=embed."""
KEYS = (
    "query",
    "queries",
    "in",
    "text",
    "format",
    "cache_dir",
    "top_k",
    *inference.MODEL_KEYS,
    *inference.OPTIONS["embed"],
)


CHOICES = {"errors": inference.ERRORS, **inference.MODEL_CHOICES}


@verb("search", HELP, names=(1, 1), keys=KEYS, choices=CHOICES, flags=("json",))
def main(args: ParsedArgs) -> int:
    """Print what is most like the query; returns the exit status."""
    values = {"top_k": "5"} | args.values
    refuse_no_search(values)
    queries = queries_of(values, Path(args.names[0]))
    file = open_rows(values["in"], values.get("format", "auto"))
    # Here top_k counts lines, and is no option of the model's.
    option_values = {key: value for key, value in values.items() if key != "top_k"}
    options = inference.parse_options("embed", option_values)
    predictor = inference.load_predictor(args)
    roles = inference.roles_of_file(file, "embed", values, predictor.trained_columns)
    rows = list(inference.rows_of(file, roles, "embed", values))
    # Before the file: a query that cannot be read is refused at once.
    query_vectors = [predictor.embed(query, **options) for query in queries]
    key = content_key(content_of(predictor, Path(args.names[0]), file, roles, options))
    folder = Path(path_of("cache_dir", values)) / "embeddings" / key

    def write(target: Path) -> JsonObject:
        answered = inference.answer_rows(
            predictor, "embed", rows, options, roles=roles, errors=values.get("errors", "mark")
        )
        vectors = [vector for _, vector in inference.count_rows(answered, Counter())]
        # A row of NaN for a line that cannot be read.
        write_arrays(target / "vectors.npy", vectors)
        return {}

    cached_folder(folder, write)
    vectors = np.load(folder / "vectors.npy")
    # A line without text has a vector, and is like nothing.
    vectors[[inference.is_empty(row.record, roles) for row in rows]] = math.nan
    # Hits of several queries stand below their query.
    headings: Sequence[str | None] = [None]
    if "queries" in values:
        headings = queries
    for heading, query in zip(headings, query_vectors, strict=True):
        cosines = cosine_similarities(vectors, query)
        best = most_similar(cosines, int(values["top_k"]))
        hits = [(rows[index], float(cosines[index])) for index in best]
        print_hits(hits, roles, heading=heading, is_json="json" in args.flags)
    return 0


def print_hits(
    hits: Sequence[tuple[Row, float]],
    roles: Mapping[str, str],
    *,
    heading: str | None,
    is_json: bool,
) -> None:
    """Print the rows that are most like a query, each with its cosine."""
    if heading is not None and not is_json:
        print(f"# {' '.join(heading.split())}")
    for row, cosine in hits:
        print_hit(row, roles, cosine, query=heading, is_json=is_json)


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
        queries = _queries_of_lines(path)
    if not queries:
        raise ValueError(f"queries={path} has no text to search for")
    return queries


def _queries_of_lines(path: Path) -> list[str]:
    queries = []
    for number, line in text_lines(path):
        if line is None:
            raise ValueError(f"queries={path}: line {number} is not UTF-8")
        if line.strip():
            queries.append(line)
    return queries


def _queries_of_table(path: Path, values: Mapping[str, str], model_path: Path) -> list[str]:
    """The texts of the column that is chosen as that of `in=` is."""
    file = open_rows(str(path))
    # A run, or a folder of weights in one.
    trained = trained_columns(model_path)
    if not trained:
        trained = trained_columns(model_path.parent)
    # `text=` is said of the searched file, whose columns may have other names.
    named = {}
    if values.get("text") in file.columns:
        named["text"] = values["text"]
    roles = inference.roles_of_file(file, "embed", named, trained)
    if len(roles) > 1:
        raise ValueError(f"queries={path} has two texts a row, and a query is one: leave a column")
    queries = []
    for row in inference.rows_of(file, roles, "embed", named, skips_empty=True):
        query = row.record.get(roles["text"])
        if row.problem is not None or not isinstance(query, str):
            problem = "holds no text" if row.problem is None else row.problem
            raise ValueError(f"queries: {row.place} {problem}")
        queries.append(query)
    return queries


def refuse_no_search(values: Mapping[str, str]) -> None:
    """ValueError for words that make no search."""
    is_complete = ("query" in values) != ("queries" in values) and "in" in values
    if not is_complete or not values["top_k"].isdecimal() or values["top_k"] == "0":
        raise ValueError(
            "search needs query=TEXT or queries=FILE, and in=FILE; top_k is a whole number above 0;"
            " see --help"
        )
    for key in ("in", "queries"):
        if key in values and not Path(values[key]).is_file():
            raise ValueError(f"{key}={values[key]}: there is no such file")


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


def print_hit(
    row: Row, roles: Mapping[str, str], cosine: float, *, query: str | None, is_json: bool
) -> None:
    """Print one line of the file; `line` is its number there, `query` one of several."""
    if is_json:
        hit = row.record | {"line": row.number, "cosine": round(cosine, 4)}
        if query is not None:
            hit["query"] = query
        print(json.dumps(hit, ensure_ascii=False, default=str))
        return
    text = " ".join(str(row.record.get(roles["text"])).split())
    print(f"{cosine:.4f}\t{row.number}\t{text}")


def content_of(
    predictor: Predictor,
    model_path: Path,
    file: RowFile,
    roles: Mapping[str, str],
    options: ReadOnlyJson,
) -> JsonObject:
    """What decides a file's vectors: the model and its code, how it pools, what it reads."""
    from clozelab.modules.model import sentence_vectors
    from clozelab.runs.code import code_behind
    from clozelab.runs.inputs import encoder_fingerprint

    folder = predictor.model.folder
    precision = predictor.precision
    content: JsonObject = {
        "options": dict(options),
        "model": encoder_fingerprint(folder),
        "precision": precision,
        "code": code_behind(["clozelab.modules.predictor.Predictor"]),
        "file": file_sha256(Path(file.name)),
        "form": file.form,
        "columns": dict(roles),
    }
    # A file of weights may be one of several in its folder.
    if model_path.is_file():
        content["weights"] = file_sha256(model_path)
    # A folder whose vectors are not computed here has its encoder's own.
    if "pooling" not in options:
        vectors = sentence_vectors(folder)
        content["pooling"] = vectors.pooling
        # Without the key where all columns are kept: so vectors of older versions are found again.
        if vectors.size is not None:
            content["columns_kept"] = vectors.size
    return content
