"""What fine-tuning needs to know of an encoder folder before it loads the weights: tokenizer and longest row."""

from __future__ import annotations

import logging
from pathlib import Path

from clozelab.data.tokenizer import WordPieceTokenizer
from clozelab.models.weights import read_config, read_config_dict, verify_checksums

log = logging.getLogger(__name__)

INITIALISATIONS = ("pretrained", "random")
MAX_PADDED_ENTRIES = 127
"""Some folders pad the embedding matrix to a multiple of up to 128 beyond the vocabulary."""


def open_tokenizer(folder: Path) -> WordPieceTokenizer:
    """The folder's tokenizer. Raises ValueError when it is not the one that the encoder was made with."""
    tokenizer = WordPieceTokenizer.from_folder(folder)
    rows, entries = read_config(folder).vocab_size, tokenizer.vocab_size
    made_with = read_config_dict(folder).get("clozelab", {}).get("tokenizer_fingerprint")
    if entries > rows or rows - entries > MAX_PADDED_ENTRIES:
        raise ValueError(
            f"{folder}: the encoder has embeddings for {rows} ids and its tokenizer files hold {entries}: "
            "they do not belong together; put back the vocab.txt and tokenizer files it was trained with"
        )
    if made_with is not None and made_with != tokenizer.fingerprint:
        raise ValueError(
            f"{folder}: the tokenizer files are not those the encoder was trained with (their fingerprint is "
            f"{tokenizer.fingerprint[:12]}, config.json says {made_with[:12]}); put the right ones back"
        )
    if entries < rows:
        log.info("%s: %d embeddings behind the vocabulary of %d are padding", folder, rows - entries, entries)
    verify_checksums(folder)  # fresh weights never read the weights file, which checks them otherwise
    return tokenizer


def max_positions(folder: Path) -> int:
    """Longest row in tokens that the encoder has seen in training, or has positions for where that is not recorded."""
    positions = read_config(folder).max_position_embeddings
    trained = max(read_config_dict(folder).get("clozelab", {}).get("trained_seq_lengths", [positions]))
    if trained < positions:
        log.info(
            "%s: trained on rows of up to %d tokens (of %d positions), longer ones are cut", folder, trained, positions
        )
    return min(positions, trained)


def check_initialisation(initialisation: str) -> None:
    """ValueError for a way of initialising that does not exist."""
    if initialisation not in INITIALISATIONS:
        raise ValueError(f"initialisation={initialisation!r} is unknown; choose {' or '.join(INITIALISATIONS)}")
