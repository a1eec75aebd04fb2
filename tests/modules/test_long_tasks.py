"""A Longformer from a folder: trained on a task, read back, asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import clozelab
from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.models import attention
from clozelab.models.config import EncoderConfig
from clozelab.models.encoder import Encoder
from clozelab.models.registry import family_for, family_of
from clozelab.models.trained import train_what_is_read
from clozelab.models.windows import Chunks
from clozelab.modules.model import read_model, write_model

WORDS = [f"word{number}" for number in range(55)]
TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *WORDS], lowercase=True)
LONG = {"_target_": "clozelab.models.attention.LongAttention", "window": 8}


@pytest.fixture
def write(tiny_config: Callable[..., EncoderConfig], tmp_path: Path) -> Callable[[str], Path]:
    """write(kind of head) -> a folder with random weights everywhere, of 600 positions."""

    def make(kind: str) -> Path:
        parts = family_of("longformer").parts | {"attention": LONG, "pad_token_id": 0}
        sizes = {"vocab_size": 60, "max_position_embeddings": 600, "initializer_range": 0.2}
        torch.manual_seed(0)
        encoder = Encoder(tiny_config(model_type="longformer", **parts | sizes))
        head = family_for(encoder.config).head(kind, encoder, num_labels=2)
        write_model(tmp_path / kind, encoder, {kind: head}, TOKENIZER, labels=["no", "yes"])
        return tmp_path / kind

    return make


def test_a_folder_knows_what_is_global(write: Any) -> None:
    """And trains the matrices of global tokens only where there are some."""
    for kind, is_trained in (("classification", True), ("tags", False)):
        model = read_model(write(kind))
        assert (model.encoder.choose_global is not None) == is_trained
        train_what_is_read(model.encoder, reads_pooler=True)
        names = [name for name, x in model.encoder.named_parameters() if not x.requires_grad]
        assert all("qkv_global" in name for name in names) and bool(names) != is_trained


def test_long_texts_are_classified_alike_in_chunks(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of 400 words and of few in one call, with [CLS] global."""
    texts = []
    for step, length in ((3, 400), (7, 390), (2, 5)):
        texts.append(" ".join(WORDS[number * step % 55] for number in range(length)))
    calls: list[int] = []
    attend = Chunks.attend
    monkeypatch.setattr(Chunks, "attend", lambda *given: calls.append(1) or attend(*given))
    results = []
    for least in (10**9, attention.CHUNKS_LEAST_WIDTH):
        assert not calls
        monkeypatch.setattr(attention, "CHUNKS_LEAST_WIDTH", least)
        results.append(clozelab.load(write("classification"), precision="32-true").classify(texts))
    assert calls
    for mine, expected in zip(*results, strict=True):
        assert mine.label == expected.label
        assert mine.probabilities == pytest.approx(expected.probabilities, abs=1e-5)


def test_vectors_are_those_of_the_encoder_alone(write: Any, tmp_path: Path) -> None:
    """As AutoModel and every measure read it: what is global belongs to the head."""
    classifier = clozelab.load(write("classification"), precision="32-true")
    write_model(tmp_path / "alone", classifier.encoder, {}, TOKENIZER)
    alone = clozelab.load(tmp_path / "alone", precision="32-true")
    text = "word1 word2 word3"
    before = classifier.classify(text)
    for act in ("embed", "hidden_states"):
        difference = getattr(classifier, act)(text) - getattr(alone, act)(text)
        assert abs(difference).max() < 1e-5
    assert classifier.classify(text) == before


def test_attention_of_global_tokens_is_not_shown(write: Any) -> None:
    with pytest.raises(ValueError, match="tokens that see everything by matrices of their own"):
        clozelab.load(write("classification")).attention("word1 word2")
    assert clozelab.load(write("lm")).attention("word1 word2")[0].shape[-1] == 4
