"""What a generator says of the files that it wrote: `generated.json` in `data_dir`.

Every generator may leave one.

    {"generator": "microworld",
     "sha256": {"glue/RTE/dev.tsv": "9f86d0...", ...},
     "known_loss": [
       {"reader": "left_to_right", "view": "its document from the beginning",
        "nats_per_word": 1.08, "standard_error": 0.01},
       {"reader": "masked", "view": "the unmasked words of 62 on end",
        "nats_per_word": 0.53, "standard_error": 0.05, "hidden_fraction": 0.135,
        "max_seq_length": 64}]}

`known_loss` lists losses that no model can beat on average, the tightest first. `view` says what
the reader of that bound sees. A masked bound holds for models that hide at least `hidden_fraction`
of the words, in instances of at most `max_seq_length` tokens (any length where it is missing).
Other keys are the generator's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.tokenizers import Tokenizer
from clozelab.files.digests import file_sha256
from clozelab.text.plain import PlainDict, read_json


class Bound(TypedDict, total=False):
    """A loss that no model can be below on average, a word, of readers with one view."""

    reader: str
    view: str
    nats_per_word: float
    standard_error: float
    hidden_fraction: float
    max_seq_length: int


class Generated(TypedDict):
    """What `generated.json` says."""

    generator: str | None
    sha256: dict[str, str]  # of each file
    known_loss: list[Bound]


MANIFEST = "generated.json"
# what simple methods score on a task's validation files; lies beside them
BASELINES_FILE = "baselines.json"


def generator_of(
    data_dir: str | Path, paths: Iterable[Path] = (), checksums: Iterable[str] = ()
) -> str | None:
    """The generator that wrote any of these files, or lost ones of these `checksums`.

    `data_dir` holds what it says; None for real files.
    """
    manifest = _manifest(data_dir)
    generated = set(manifest["sha256"].values())
    if not generated:
        return None
    if any(file_sha256(path) in generated for path in paths):
        return manifest["generator"]
    if not generated.isdisjoint(checksums):
        return manifest["generator"]
    return None


def known_loss(
    data_dir: str | Path,
    tokenizer: Tokenizer,
    labels: NDArray[np.int64],
    *,
    seq_length: int,
    masking: tuple[float, float] | None,
) -> PlainDict | None:
    """The loss that no model can be below on average; None where none is known.

    The manifest speaks of words. From left to right the pieces of a word cost together what the
    word costs. A masked piece can be read off the other pieces of its word, so nothing is said of
    masked models where the vocabulary splits words; nor of any where it does not know a word, or
    the tokens are no WordPieces. `labels` [P] are the token ids that the held-out loss is over,
    without [SEP]; `masking` the share of tokens that is predicted, and of those the one that stays
    in view (None: every next token). Returns nats (a predicted token), standard_error, reader and
    view.
    """
    if tokenizer.kind != "wordpiece" or not len(labels):
        return None
    if (labels == tokenizer.unk_id).any():
        return None
    later_pieces = [
        index for index, text in enumerate(tokenizer.vocabulary) if text.startswith("##")
    ]
    is_later_piece = np.isin(labels, later_pieces)
    if masking is None:
        # Of the tokens, as many as there are words cost what the manifest says of words.
        reader = "left_to_right"
        share = 1.0 - float(is_later_piece.mean())
        hidden = 1.0
    else:
        if is_later_piece.any():
            return None
        # A token that stays in view costs nothing.
        predicted, in_view = masking
        reader = "masked"
        share = 1.0 - in_view
        # 1e-9: the manifest's fraction may be rounded otherwise than this product.
        hidden = predicted * share + 1e-9
    for bound in _manifest(data_dir)["known_loss"]:
        is_hidden_enough = bound.get("hidden_fraction", 0.0) <= hidden
        is_short_enough = seq_length <= bound.get("max_seq_length", seq_length)
        if bound["reader"] == reader and is_hidden_enough and is_short_enough:
            return {
                "nats": share * bound["nats_per_word"],
                "standard_error": share * bound["standard_error"],
                "reader": reader,
                "view": bound["view"],
            }
    return None


def _manifest(data_dir: str | Path) -> Generated:
    """What `generated.json` says; of a folder without one, that nothing was generated."""
    path = Path(data_dir) / MANIFEST
    if not path.is_file():
        return {"generator": None, "sha256": {}, "known_loss": []}
    try:
        manifest = read_json(path)
        return {
            "generator": str(manifest["generator"]),
            "sha256": dict(manifest["sha256"]),
            "known_loss": list(manifest["known_loss"]),
        }
    except (ValueError, KeyError, TypeError) as problem:
        raise ValueError(
            f"{path} is damaged ({problem}); delete it and what it describes, or restore it"
        ) from problem
