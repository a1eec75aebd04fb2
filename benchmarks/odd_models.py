"""Odd model folders for `load`, compared with transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from odd_lab import Cases
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

CASES = Cases("model folders")

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
WORDS = 'the a cat dog sat on mat ran fast slow blue red film good bad . , : ! ? " ada bob eve max'.split()
VOCABULARY = list(dict.fromkeys([*SPECIAL, *WORDS, *LETTERS, *(f"##{one}" for one in LETTERS), "中", "文"]))
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}


def plain_encoder(folder: Path) -> Path:
    """A tiny BERT without any oddity."""
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(vocab_size=len(VOCABULARY), **SIZES)).save_pretrained(folder)
    BertTokenizerFast(vocab={word: number for number, word in enumerate(VOCABULARY)}).save_pretrained(folder)
    return folder
