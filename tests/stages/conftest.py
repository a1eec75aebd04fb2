"""A classifier of random weights over a tokenizer of letters."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import pytest
import torch

import clozelab
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.models.encoder import Encoder
from clozelab.models.registry import family_for
from clozelab.modules.model import write_model

TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *string.ascii_lowercase], lowercase=True)


@pytest.fixture(scope="module")
def predictor(
    tiny_config: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> clozelab.Predictor:
    """What `load` gives of a classifier with the labels no and yes."""
    torch.manual_seed(1)
    encoder = Encoder(tiny_config(vocab_size=TOKENIZER.vocab_size))
    heads = {
        "classification": family_for(encoder.config).head("classification", encoder, num_labels=2)
    }
    folder = tmp_path_factory.mktemp("rows") / "m"
    write_model(folder, encoder, heads, TOKENIZER, labels=("no", "yes"))
    return clozelab.load(folder, device="cpu", precision="32-true")
