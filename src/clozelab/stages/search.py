"""`clozelab search`: the lines of a file that are most like a text, by the cosine of their
embeddings.

A file is embedded once. FILE.npy holds the vectors, and FILE.npy.json what they are of: the file,
the model, the pooling. It is begun before the vectors are written and ends with their checksum, so
half a file is never taken.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozelab.corpus.files import file_sha256, write_whole
from clozelab.corpus.rows import Row, RowFile, open_rows
from clozelab.stages import predict
from clozelab.stages.outputs import write_arrays
from clozelab.terminal import Words, verb

if TYPE_CHECKING:
    from clozelab.modules.predictor import Predictor

HELP = """clozelab search MODEL query=TEXT in=FILE [text=COLUMN] [output=FILE.npy] [top_k=5] [--json]

Prints the lines of a file that are most like a text: cosine, number of the line, line. Best is a model that was trained
for it (clozelab finetune task=stsb_siamese). Lines without text, and those that the model cannot read, are never among
them; the latter are counted.

  in=FILE        a text a line, or a table (.csv, .tsv, .jsonl, .parquet), as for predict; text= names its column
  output=FILE    where the embeddings are kept: FILE.npy beside in=. They are made once, and again when the lines have
                 changed; those of another model or pooling are refused
  errors=raise   end at the first line that cannot be read

pooling=, layer=, stride=, device=, precision=, hub=true are as for predict do=embed."""
KEYS = (
    "query",
    "in",
    "text",
    "format",
    "errors",
    "output",
    "top_k",
    *predict.PLACED,
    *predict.OPTIONS["embed"],
)


@verb("search", HELP, names=(1, 1), keys=KEYS, flags=("json",))
def main(said: Words) -> int:
    """Print what is most like the query; returns the exit status."""
    values = {"top_k": "5"} | said.values
    if (
        not {"query", "in"} <= values.keys()
        or not values["top_k"].isdecimal()
        or values["top_k"] == "0"
    ):
        raise ValueError(
            "search needs query=TEXT and in=FILE, and top_k is a whole number above 0; see --help"
        )
    kept = Path(values.get("output", f"{values['in']}.npy"))
    if kept.suffix != ".npy" or kept.is_dir() or not kept.parent.is_dir():
        raise ValueError(f"output={kept}: give a .npy file, in a folder that is there")
    if not Path(values["in"]).is_file():
        raise ValueError(f"in={values['in']}: there is no such file")
    file = open_rows(values["in"], values.get("format", "auto"))
    roles = predict.roles_of_file(file, "embed", values)
    rows = list(predict.rows_of(file, roles, "embed", values))
    import numpy as np

    options = predict.options_of(
        "embed", {key: one for key, one in values.items() if key != "top_k"}
    )
    errors = predict.choice_of("errors", values)
    predictor = predict.predictor_of(said)
    asked = predictor.embed(values["query"], **options)
    embedding = Embedding(predictor, Path(said.names[0]), file, roles, rows, options, errors)
    vectors = embedding.kept_in(kept)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(asked)
    cosines = vectors @ asked / np.maximum(lengths, 1e-12)
    # A line without text has a vector, and is like nothing; one that was not read has none.
    for index, row in enumerate(rows):
        if predict.is_empty(row.record, roles):
            cosines[index] = np.nan
    order = [
        index
        for index in np.argsort(-cosines, kind="stable").tolist()
        if np.isfinite(cosines[index])
    ]
    for index in order[: int(values["top_k"])]:
        print_hit(rows[index], roles, float(cosines[index]), is_json="json" in said.flags)
    return 0


def print_hit(row: Row, roles: Mapping[str, str], cosine: float, *, is_json: bool) -> None:
    """One line of what was found; `line` is its number in the file."""
    if is_json:
        found = row.record | {"line": row.number, "cosine": round(cosine, 4)}
        print(json.dumps(found, ensure_ascii=False, default=str))
        return
    text = " ".join(str(row.record.get(roles["text"])).split())
    print(f"{cosine:.4f}\t{row.number}\t{text}")


@dataclass(frozen=True)
class Embedding:
    """The vectors of a file's rows: by what they are made, and of what."""

    predictor: Predictor
    place: Path  # of the model
    file: RowFile
    roles: Mapping[str, str]
    rows: Sequence[Row]
    options: Mapping[str, Any]
    errors: str

    @property
    def made_by(self) -> dict[str, Any]:
        """The model and its settings; vectors of others cannot be compared."""
        from clozelab.modules.model import trained_pooling
        from clozelab.runs.inputs import encoder_fingerprint

        folder = self.predictor.model.folder
        settings = {
            "layer": None,
            "stride": None,
            "pooling": trained_pooling(folder),
            **self.options,
        }
        # In a folder there may be one of several.
        weights = []
        if self.place.is_file():
            weights = [file_sha256(self.place)]
        return settings | {"model": " ".join([encoder_fingerprint(folder), *weights])}

    @property
    def source(self) -> str:
        """The lines, and which columns of them."""
        return " ".join([file_sha256(Path(self.file.name)), self.file.form, *self.roles.values()])

    def kept_in(self, kept: Path) -> Any:
        """float32 [rows, H]: what is kept, where that is of these lines and this model; a row of
        NaN for one that cannot be read."""
        import numpy as np

        beside, made_by, source = kept.with_name(f"{kept.name}.json"), self.made_by, self.source
        if kept.exists():
            try:
                known = json.loads(beside.read_text(encoding="utf-8"))
                other = [key for key, value in made_by.items() if known["made_by"][key] != value]
            except (OSError, ValueError, LookupError, TypeError):
                raise ValueError(
                    f"{kept} is there, and nothing of search's beside it: name another, output=FILE"
                ) from None
            if other:
                raise ValueError(
                    f"{kept} holds embeddings of another {' and '.join(sorted(other))} than is"
                    " asked with: their cosines would mean nothing. Name another file (output=),"
                    " or remove this one"
                )
            if known["file"] == source and known["sha256"] == file_sha256(kept):
                return np.load(kept)
            print(
                f"{kept} is not of these lines as they are now: they are embedded again",
                file=sys.stderr,
            )
        about = {"made_by": made_by, "file": source}
        write_whole(beside, [json.dumps(about | {"sha256": ""}, indent=1)])
        answered = predict.predictions(
            self.predictor,
            "embed",
            self.rows,
            dict(self.options),
            roles=self.roles,
            errors=self.errors,
        )
        write_arrays(kept, [vector for _, vector in predict.counted(answered)])
        write_whole(beside, [json.dumps(about | {"sha256": file_sha256(kept)}, indent=1)])
        return np.load(kept)
