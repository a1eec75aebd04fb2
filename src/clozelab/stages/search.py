"""`clozelab search`: the lines of a file that are most like a text.

They are told by the cosine of their embeddings. A file is embedded once: FILE.npy holds the
vectors, and FILE.npy.json what they are of: the file, the model, the pooling. It is begun before
the vectors are written and ends with their checksum, so half a file is never taken.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clozelab.corpus.files import file_sha256, write_whole
from clozelab.corpus.rows import Row, RowFile, open_rows
from clozelab.stages import inference
from clozelab.stages.outputs import write_arrays
from clozelab.terminal import ParsedArgs, verb
from clozelab.text.plain import JsonObject, ReadOnlyJson, read_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from clozelab.modules.predictor import Predictor

HELP = """\
clozelab search MODEL query=TEXT in=FILE [text=COLUMN] [output=FILE.npy]
        [top_k=5] [--json]

Prints the lines of a file that are most like a text: cosine, number of the
line, line. Best is a model that was trained for it (clozelab finetune
task=stsb_siamese). Lines without text, and those that the model cannot read,
are never among them; the latter are counted.

  in=FILE        a text a line, or a table (.csv, .tsv, .jsonl, .parquet), as
                 for predict; text= names its column
  output=FILE    where the embeddings are kept: FILE.npy beside in=. They are
                 made once, and again when the lines have changed; those of
                 another model or pooling are refused
  errors=raise   end at the first line that cannot be read

pooling=, layer=, stride=, device=, precision=, hub=true are as for predict
do=embed."""
KEYS = (
    "query",
    "in",
    "text",
    "format",
    "output",
    "top_k",
    *inference.MODEL_KEYS,
    *inference.OPTIONS["embed"],
)


CHOICES = {"errors": inference.ERRORS, **inference.MODEL_CHOICES}


@verb("search", HELP, names=(1, 1), keys=KEYS, choices=CHOICES, flags=("json",))
def main(args: ParsedArgs) -> int:
    """Print what is most like the query; returns the exit status."""
    values = {"top_k": "5"} | args.values
    vectors_path = checked_paths(values)
    file = open_rows(values["in"], values.get("format", "auto"))
    roles = inference.roles_of_file(file, "embed", values)
    rows = list(inference.rows_of(file, roles, "embed", values))
    # Here top_k counts lines, and is no option of the model's.
    option_values = {key: value for key, value in values.items() if key != "top_k"}
    options = inference.parse_options("embed", option_values)
    errors = values.get("errors", "mark")
    predictor = inference.load_predictor(args)
    query = predictor.embed(values["query"], **options)
    note = note_of(predictor, Path(args.names[0]), file, roles, options)

    def compute() -> list[object]:
        answered = inference.answer_rows(
            predictor, "embed", rows, options, roles=roles, errors=errors
        )
        return [vector for _, vector in inference.count_rows(answered, Counter())]

    cosines = cosine_similarities(load_or_compute(vectors_path, note, compute), query)
    # A line without text has a vector, and is like nothing.
    for index, row in enumerate(rows):
        if inference.is_empty(row.record, roles):
            cosines[index] = math.nan
    for index in most_similar(cosines, int(values["top_k"])):
        print_hit(rows[index], roles, float(cosines[index]), is_json="json" in args.flags)
    return 0


def checked_paths(values: Mapping[str, str]) -> Path:
    """Where the embeddings are kept; ValueError for words that make no search."""
    is_complete = "query" in values and "in" in values
    if not is_complete or not values["top_k"].isdecimal() or values["top_k"] == "0":
        raise ValueError(
            "search needs query=TEXT and in=FILE, and top_k is a whole number above 0; see --help"
        )
    if not Path(values["in"]).is_file():
        raise ValueError(f"in={values['in']}: there is no such file")
    return inference.parse_output("output", values.get("output", f"{values['in']}.npy"), [".npy"])


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


def print_hit(row: Row, roles: Mapping[str, str], cosine: float, *, is_json: bool) -> None:
    """Print one line of the file; `line` is its number there."""
    if is_json:
        hit = row.record | {"line": row.number, "cosine": round(cosine, 4)}
        print(json.dumps(hit, ensure_ascii=False, default=str))
        return
    text = " ".join(str(row.record.get(roles["text"])).split())
    print(f"{cosine:.4f}\t{row.number}\t{text}")


def note_of(
    predictor: Predictor,
    model_path: Path,
    file: RowFile,
    roles: Mapping[str, str],
    options: ReadOnlyJson,
) -> JsonObject:
    """What a file's vectors are made by and of; those of another model cannot be compared."""
    from clozelab.modules.model import sentence_vectors
    from clozelab.runs.inputs import encoder_fingerprint

    folder = predictor.model.folder
    fingerprints = [encoder_fingerprint(folder)]
    # A file of weights may be one of several in its folder.
    if model_path.is_file():
        fingerprints.append(file_sha256(model_path))
    made_by = {"layer": None, "stride": None, **options, "model": " ".join(fingerprints)}
    # A folder whose vectors are not computed here has its encoder's own.
    if "pooling" not in made_by:
        made_by["pooling"] = sentence_vectors(folder).pooling
    # The lines, and which columns of them.
    source = " ".join([file_sha256(Path(file.name)), file.form, *roles.values()])
    return {"made_by": made_by, "file": source}


def load_or_compute(
    path: Path, note: JsonObject, compute: Callable[[], list[object]]
) -> NDArray[np.float32]:
    """float32 [rows, H]; a row of NaN for one that cannot be read.

    The kept vectors are taken where they are of these lines and this model.
    """
    note_path = path.with_name(f"{path.name}.json")
    if path.exists():
        if is_current(path, note_path, note):
            return np.load(path)
        print(
            f"{path} is not of these lines as they are now: they are embedded again",
            file=sys.stderr,
        )
    # Without a checksum in the note the vectors are never taken: they may be half written.
    write_whole(note_path, [json.dumps(note | {"sha256": ""}, indent=1)])
    write_arrays(path, compute())
    write_whole(note_path, [json.dumps(note | {"sha256": file_sha256(path)}, indent=1)])
    return np.load(path)


def is_current(path: Path, note_path: Path, note: ReadOnlyJson) -> bool:
    """Whether kept vectors are of the file as it is now.

    ValueError for vectors of another model or other settings, and for a file that is none of
    search's.
    """
    try:
        kept = read_json(note_path)
        # What made the kept vectors otherwise: the model, or how texts are pooled and cut.
        changed = []
        for key in note["made_by"]:
            if kept["made_by"][key] != note["made_by"][key]:
                changed.append(key)
    except (OSError, ValueError, LookupError, TypeError):
        raise ValueError(
            f"{path} is there, and nothing of search's beside it: name another, output=FILE"
        ) from None
    if changed:
        raise ValueError(
            f"{path} holds embeddings of another {' and '.join(sorted(changed))} than is asked"
            " with: their cosines would mean nothing. Name another file (output=), or remove this"
            " one"
        )
    return bool(kept["file"] == note["file"] and kept["sha256"] == file_sha256(path))
