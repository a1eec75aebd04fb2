"""`clozelab search`: the lines of a file that are most like a text.

They are ranked by the cosine of their embeddings. A file is embedded once: the cache keeps its
vectors below a name made of the file, the columns, the model and the pooling.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from clozelab.assembly.searching import (
    content_of,
    cosine_similarities,
    hit_object,
    is_beir_corpus,
    most_similar,
    queries_of,
    refuse_no_search,
    refuse_unread,
    vectors_of,
    vectors_of_queries,
    warn_of_hit_keys,
    with_title,
)
from clozelab.datamodules.columns import trained_columns
from clozelab.datamodules.texts import ERRORS
from clozelab.modules import answering
from clozelab.readers.records import PlacedRow
from clozelab.readers.rows import open_rows
from clozelab.tasks.cache import cached_arrays, content_key
from clozelab.terminal import SWITCH, ParsedArgs, path_of, told_if_slow, verb

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
                 where it has one of that name; without text=, a retrieval
                 run takes the columns of its training: passages of in=, and
                 queries of queries=; of a BEIR corpus (_id, title, text) the
                 title is read before the text
  errors=raise   end at the first line that cannot be read
  --json         an object a hit: the columns of its row, and line, cosine and, of
                 queries=, query. Where a column has one of these names, the
                 columns stand below row, too

pooling=, layer=, stride=, size=, device=, precision=, hub=true are as for
predict do=embed. A model's prompts stand before queries and lines."""
KEYS = (
    "query",
    "queries",
    "in",
    "text",
    "format",
    "cache_dir",
    "top_k",
    *answering.MODEL_KEYS,
    *answering.OPTIONS["embed"],
)
CHOICES = {"errors": ERRORS, "hub": SWITCH}


@verb("search", HELP, names=(1, 1), keys=KEYS, choices=CHOICES, flags=("json",))
def main(args: ParsedArgs) -> int:
    """Print what is most like the query; returns the exit status."""
    values = {"top_k": "5"} | args.values
    refuse_no_search(values)
    queries = queries_of(values, Path(args.names[0]))
    file = open_rows(values["in"], values.get("format", "auto"))
    # Here top_k counts lines, and is no option of the model's.
    option_values = {key: value for key, value in values.items() if key != "top_k"}
    options = answering.parse_options("embed", option_values)
    with told_if_slow("search: loading PyTorch and the model"):
        predictor = answering.load_predictor(args.names[0], args.values)
    # A run of retrieval has read queries, too, and passages are what is searched.
    trained = trained_columns(predictor.model.folder.parent, "passage")
    roles = answering.roles_of_file(file, "embed", values, trained)
    rows = list(answering.rows_of(file, roles, "embed", values))
    # Documents of a BEIR corpus are embedded as measure=retrieval does; hits show them as they are.
    columns = dict(roles)
    read_rows = rows
    if is_beir_corpus(file, roles, values):
        columns["title"] = "title"
        read_rows = [with_title(row) for row in rows]
    has_no_text = rows_without_text(read_rows, roles)
    if all(has_no_text):
        raise ValueError(f"in={file.name} has no text to search in")
    # Before the file: a query that cannot be read is refused at once.
    of_query = {"prompt": "query", **options}
    options = {"prompt": "document", **options}
    query_vectors = vectors_of_queries(partial(predictor.embed, **of_query), queries)
    key = content_key(content_of(predictor, Path(args.names[0]), file, columns, options))
    folder = Path(path_of("cache_dir", values)) / "embeddings" / key

    errors = values.get("errors", "mark")
    # Read only where the cache has no vectors.
    answers = answering.answer_rows(
        predictor, "embed", read_rows, options, roles=roles, errors=errors
    )
    with told_if_slow(f"search: {len(rows):,} lines of {file.name} get their vectors"):
        arrays, facts = cached_arrays(folder, Path(file.name), partial(vectors_of, answers))
    refuse_unread(rows, facts["unread"], errors)
    vectors = arrays["vectors"]
    # A line without text has a vector, and is like nothing.
    vectors[has_no_text] = math.nan
    headings: Sequence[str | None] = [None]
    if "queries" in values:
        headings = queries
    is_json = "json" in args.flags
    if is_json:
        warn_of_hit_keys(file, has_queries="queries" in values)
    for heading, query in zip(headings, query_vectors, strict=True):
        cosines = cosine_similarities(vectors, query)
        # Hits of several queries stand below their query.
        if heading is not None and not is_json:
            print(f"# {' '.join(heading.split())}")
        for index in most_similar(cosines, int(values["top_k"])):
            cosine = float(cosines[index])
            print_hit(rows[index], roles, cosine, query=heading, is_json=is_json)
    return 0


def rows_without_text(rows: Sequence[PlacedRow], roles: Mapping[str, str]) -> list[bool]:
    """Whether each row can be read and has no text."""
    return [row.problem is None and answering.is_empty(row.record, roles) for row in rows]


def print_hit(
    row: PlacedRow, roles: Mapping[str, str], cosine: float, *, query: str | None, is_json: bool
) -> None:
    """Print one line of the file; `line` is its number there, `query` one of several."""
    if is_json:
        print(json.dumps(hit_object(row, cosine, query), ensure_ascii=False, default=str))
        return
    text = " ".join(str(row.record.get(roles["text"])).split())
    print(f"{cosine:.4f}\t{row.number}\t{text}")
