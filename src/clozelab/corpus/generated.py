"""What a generator says of the files that it wrote: `generated.json` in `data_dir`, which any
generator may leave.

    {"generator": "microworld",
     "sha256": {"glue/RTE/dev.tsv": "9f86d0...", ...},
     "known_loss": [
       {"reader": "left_to_right", "view": "its document from the beginning",
        "nats_per_word": 1.08, "standard_error": 0.01},
       {"reader": "masked", "view": "the unmasked words of 62 on end",
        "nats_per_word": 0.53, "standard_error": 0.05, "hidden_fraction": 0.135, "max_seq_length":
        64}]}

`known_loss` lists losses that no model can beat on average, the tightest first. `view` says what
the reader of that bound sees. A masked bound holds for models that hide at least `hidden_fraction`
of the words, in instances of at most
`max_seq_length` tokens (any length where it is missing). Other keys are the generator's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.files import file_sha256
from clozelab.corpus.tokenizers import Tokenizer

MANIFEST = "generated.json"
# what simple methods score on a task's validation files; lies beside them
BASELINES_FILE = "baselines.json"


def generator_of(
    data_dir: str | Path, paths: Iterable[Path] = (), checksums: Iterable[str] = ()
) -> str | None:
    """The generator that wrote any of these files (or lost ones of these checksums), by `data_dir`;
    None: real ones.
    """
    manifest = _manifest(data_dir)
    known = set(manifest["sha256"].values())
    is_known = known and (
        any(file_sha256(path) in known for path in paths) or not known.isdisjoint(checksums)
    )
    return manifest["generator"] if is_known else None


def known_loss(
    data_dir: str | Path,
    tokenizer: Tokenizer,
    labels: NDArray[np.int64],
    *,
    seq_length: int,
    masking: tuple[float, float] | None,
) -> dict[str, Any] | None:
    """The loss that no model can be below on average; None where none is known.

    The manifest speaks of words. From left to right the pieces of a word cost together what the
    word costs. A masked piece can be read off the other pieces of its word, so nothing is said of
    masked models where the vocabulary splits words; nor of any where it does not know a word, or
    the tokens are no WordPieces. `labels` [P] are the token ids that the held-out loss is over,
    without [SEP]; `masking` the share of tokens that is predicted, and of those the one that stays
    in view (None: every next token). Returns nats (a predicted token), standard_error, reader and
    view.
    """
    if tokenizer.kind != "wordpiece":
        return None
    pieces = np.isin(
        labels, [index for index, text in enumerate(tokenizer.vocabulary) if text.startswith("##")]
    )
    if (
        not len(labels)
        or (labels == tokenizer.unk_id).any()
        or (masking is not None and pieces.any())
    ):
        return None
    reader, share, hidden = "left_to_right", 1.0 - float(pieces.mean()), 1.0
    if masking is not None:
        reader, share = "masked", 1.0 - masking[1]
        hidden = masking[0] * share + 1e-9
    for bound in _manifest(data_dir)["known_loss"]:
        holds = (
            bound.get("hidden_fraction", 0.0) <= hidden
            and bound.get("max_seq_length", seq_length) >= seq_length
        )
        if bound["reader"] == reader and holds:
            nats, error = (share * bound[key] for key in ("nats_per_word", "standard_error"))
            return {"nats": nats, "standard_error": error, "reader": reader, "view": bound["view"]}
    return None


def _manifest(data_dir: str | Path) -> dict[str, Any]:
    """What `generated.json` says; of a folder without one, that nothing was generated."""
    path = Path(data_dir) / MANIFEST
    if not path.is_file():
        return {"generator": None, "sha256": {}, "known_loss": []}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {
            key: kind(found[key])
            for key, kind in (("generator", str), ("sha256", dict), ("known_loss", list))
        }
    except (ValueError, KeyError, TypeError) as problem:
        raise ValueError(
            f"{path} is damaged ({problem}); delete it and what it describes, or restore it"
        ) from problem
