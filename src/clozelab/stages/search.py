"""`clozelab search`: the lines of a file that are most like a text, by the cosine of their embeddings.

A file is embedded once. FILE.npy holds the vectors, and FILE.npy.json what they are of: the file, the model, the
pooling. It is begun before the vectors are written and ends with their checksum, so half a file is never taken.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozelab.corpus.files import file_sha256, whole_file, write_whole
from clozelab.stages import predict
from clozelab.terminal import Words, verb

if TYPE_CHECKING:
    from clozelab.modules.predictor import Predictor

HELP = """clozelab search MODEL query=TEXT in=FILE [output=FILE.npy] [top_k=5] [--json]

Prints the lines of a file that are most like a text: cosine, number of the line, line. Best is a model that was trained
for it (clozelab finetune task=stsb_siamese).

  in=FILE        a text a line, or JSON objects with text (and pair), as for predict
  output=FILE    where the embeddings are kept: FILE.npy beside in=. They are made once, and again when the lines have
                 changed; those of another model or pooling are refused

pooling=, layer=, stride=, device=, precision=, hub=true are as for predict do=embed."""
KEYS = ("query", "in", "output", "top_k", *predict.PLACED, *predict.OPTIONS["embed"])


@verb("search", HELP, names=(1, 1), keys=KEYS, flags=("json",))
def main(said: Words) -> int:
    """Print what is most like the query; returns the exit status."""
    values = {"top_k": "5"} | said.values
    if not {"query", "in"} <= values.keys() or not values["top_k"].isdecimal() or values["top_k"] == "0":
        raise ValueError("search needs query=TEXT and in=FILE, and top_k is a whole number above 0; see --help")
    file, kept = Path(values["in"]), Path(values.get("output", f"{values['in']}.npy"))
    if kept.suffix != ".npy" or kept.is_dir() or not kept.parent.is_dir():
        raise ValueError(f"output={kept}: give a .npy file, in a folder that is there")
    if not (records := [*predict.read_records(str(file))] if file.is_file() else []):
        raise ValueError(f"in={file}: no such file, or no line in it")
    import numpy as np

    options = predict.options_of("embed", {key: one for key, one in values.items() if key != "top_k"})
    predictor = predict.predictor_of(said)
    asked = predictor.embed(values["query"], **options)
    vectors = embedded(predictor, Path(said.names[0]), file, records, kept, options)
    cosines = vectors @ asked / np.maximum(np.linalg.norm(vectors, axis=1) * np.linalg.norm(asked), 1e-12)
    for number in np.argsort(-cosines, kind="stable")[: int(values["top_k"])].tolist():
        found = records[number] | {"line": number + 1, "cosine": round(float(cosines[number]), 4)}
        shown = f"{found['cosine']:.4f}\t{number + 1}\t{' '.join(str(found.get('text')).split())}"
        print(json.dumps(found, ensure_ascii=False) if "json" in said.flags else shown)
    return 0


def embedded(
    predictor: Predictor, place: Path, file: Path, records: list[dict[str, Any]], kept: Path, options: dict[str, Any]
) -> Any:
    """float32 [lines, H] of a file's records: what is kept, where that is of these lines and this model."""
    import numpy as np

    from clozelab.modules.model import trained_pooling
    from clozelab.runs.fingerprint import encoder_fingerprint

    beside, model = kept.with_name(f"{kept.name}.json"), predictor.model
    made_by = {"layer": None, "stride": None, "pooling": trained_pooling(model.folder), **options}
    weights = [file_sha256(place)] if place.is_file() else []  # one of several in a folder, perhaps
    which = " ".join([encoder_fingerprint(model.folder), *weights])
    about: Any = {"made_by": made_by | {"model": which}, "file": file_sha256(file)}
    if kept.exists():
        try:
            known = json.loads(beside.read_text(encoding="utf-8"))
            other = [key for key, value in about["made_by"].items() if known["made_by"][key] != value]
        except (OSError, ValueError, LookupError, TypeError):
            raise ValueError(f"{kept} is there, and nothing of search's beside it: name another, output=FILE") from None
        if other:
            raise ValueError(
                f"{kept} holds embeddings of another {' and '.join(sorted(other))} than is asked with: their cosines "
                "would mean nothing. Name another file (output=), or remove this one"
            )
        if known["file"] == about["file"] and known["sha256"] == file_sha256(kept):
            return np.load(kept)
        print(f"{kept} is not of these lines as they are now: they are embedded again", file=sys.stderr)
    write_whole(beside, [json.dumps(about | {"sha256": ""}, indent=1)])
    vectors = np.stack([vector for _, vector in predict.predictions(predictor, "embed", iter(records), options)])
    with whole_file(kept) as target:
        np.save(target, vectors)
    write_whole(beside, [json.dumps(about | {"sha256": file_sha256(kept)}, indent=1)])
    return vectors
