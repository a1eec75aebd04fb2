"""A sentiment task in SST-2's place, and a vocabulary of its words."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer

GOOD, BAD = ["good", "fine", "great"], ["bad", "dull", "awful"]
TOKENIZER = WordPieceTokenizer(
    [*SPECIAL_TOKENS, *string.ascii_lowercase, *GOOD, *BAD, "the", "film"], lowercase=True
)


def write_sentiment(data: Path, *, train: int, dev: int) -> None:
    """So many sentences a split, each with one word that decides."""
    draw = np.random.default_rng(0)
    folder = data / "glue/SST-2"
    folder.mkdir(parents=True)
    for name, count in (("train", train), ("dev", dev)):
        rows = [f"the film {draw.choice(GOOD if i % 2 else BAD)}\t{i % 2}" for i in range(count)]
        (folder / f"{name}.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
