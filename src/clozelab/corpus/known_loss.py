"""What a generated corpus says of the best loss that a model can reach on it, turned into nats a predicted token.

The generator's manifest speaks of words. From left to right the pieces of a word cost together what the word costs, and
[SEP] is taken to be free. A masked piece of a word can be read off its other pieces, so of masked models nothing is
said where the vocabulary splits words; of none where it does not know a word.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozelab.corpus.tokenizers import Tokenizer
from microworld.entropy import HIDDEN_FRACTION, WINDOW

MANIFEST = "microworld.json"


def known_loss(
    data_dir: str | Path,
    tokenizer: Tokenizer,
    labels: NDArray[np.int64],
    *,
    seq_length: int,
    masking: tuple[float, float] | None,
) -> dict[str, Any] | None:
    """The loss that no model can be below on average; None where none is known.

    Args:
        data_dir: where the generator wrote its manifest.
        labels: token ids that are predicted on the held-out rows [P].
        seq_length: of those rows.
        masking: (share of the tokens that is predicted, share of those that stays in view); None: every next token.

    Returns:
        nats (a predicted token), standard_error, reader ("masked" or "left_to_right") and `view`, what the reader of
        that bound sees.
    """
    path = Path(data_dir) / MANIFEST
    if tokenizer.kind != "wordpiece":
        return None
    manifest = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    entropy = manifest.get("entropy_nats_per_word", {})
    if "left_to_right_words" not in entropy or manifest["settings"]["shuffle_sentences"] or not len(labels):
        return None  # not measured, or of a text that is told in another order
    special = np.isin(labels, (tokenizer.sep_id, tokenizer.cls_id))
    pieces = np.isin(labels, [index for index, text in enumerate(tokenizer.vocabulary) if text.startswith("##")])
    if (labels == tokenizer.unk_id).any() or (masking is not None and pieces.any()):
        return None
    if masking is None:
        share = 1.0 - float((special | pieces).mean())
        kind, view = "left_to_right", "its document from the beginning"
    else:
        predicted, in_view = masking
        share = 1.0 - in_view
        kind, view = "masked_one", "all of its document but that word"
        if predicted * share >= HIDDEN_FRACTION - 1e-9:
            short = seq_length <= WINDOW + 2
            kind = "masked_window" if short else "masked_document"
            view = f"the unmasked words of {WINDOW} on end" if short else "all unmasked words of its document"
    return {
        "nats": share * entropy[f"{kind}_loss"],
        "standard_error": share * entropy[f"{kind}_standard_error"],
        "reader": "left_to_right" if masking is None else "masked",
        "view": view,
    }
