"""Encoders with tokenizers that are learnt here fill, embed and score as transformers does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.corpus.test_tokenizer_kinds import KINDS, TRAINING, learnt, settings
from tests.stages.test_vocabulary import write_folder

import clozelab
from clozelab.cli import main

transformers = pytest.importorskip("transformers")

TEXTS = ["The cat's hat doesn't fit.", "a naïve cat sat on a mat, \u2603 unaffable", "日本語"]
MEMBERS = [*((kind, "bert") for kind in KINDS), ("unigram", "albert"), ("bytes", "roberta")]


@pytest.mark.parametrize(("kind", "architecture"), MEMBERS)
def test_masks_and_vectors_are_those_of_transformers(
    tmp_path: Path, kind: str, architecture: str
) -> None:
    folder = tmp_path / "encoder"
    write_folder(folder, architecture, learnt(kind))
    ours = clozelab.load(str(folder), device="cpu", precision="32-true")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = f"the {tokenizer.mask_token} sat on a mat"
    (mask,) = ours.fill_mask(text, top_k=5).masks
    encoded = tokenizer(text, return_tensors="pt")
    place = int((encoded["input_ids"][0] == tokenizer.mask_token_id).nonzero())
    with torch.no_grad():
        best = theirs(**encoded).logits[0, place].softmax(-1).topk(5)
    assert [token.id for token in mask] == best.indices.tolist()
    assert [token.probability for token in mask] == pytest.approx(best.values.tolist(), abs=1e-5)
    for text, vector in zip(TEXTS, ours.embed(TEXTS, pooling="mean"), strict=True):
        with torch.no_grad():
            states = theirs.base_model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        assert np.allclose(vector, states.mean(0).numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_added_to_a_model(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`clozelab vocabulary`: what has no new word reads as before."""
    write_folder(tmp_path / "old", "bert", learnt(kind))
    (tmp_path / "words.txt").write_text("cytokine\n")
    words = ["vocabulary", str(tmp_path / "old"), f"to={tmp_path / 'new'}"]
    assert main([*words, f"words={tmp_path / 'words.txt'}"]) == 0
    assert "rows:" in capsys.readouterr().out
    old, new = (
        clozelab.load(str(tmp_path / name), device="cpu", precision="32-true")
        for name in ("old", "new")
    )
    assert np.array_equal(old.embed(TEXTS), new.embed(TEXTS))
    assert len(new.tokenizer.encode_batch(["cytokine"])[0]) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_another_tokenizer_takes_the_place(kind: str, tmp_path: Path) -> None:
    """A WordPiece model gets one of these, and its rows come from the old pieces."""
    write_folder(tmp_path / "old", "bert", settings("unigram", lowercase=True).learn(TRAINING))
    write_folder(tmp_path / "other", "bert", learnt(kind))
    words = ["vocabulary", str(tmp_path / "old"), f"to={tmp_path / 'new'}"]
    assert main([*words, f"tokenizer={tmp_path / 'other'}"]) == 0
    new = clozelab.load(str(tmp_path / "new"), device="cpu", precision="32-true")
    assert new.tokenizer.fingerprint == learnt(kind).fingerprint
    assert np.isfinite(new.embed(TEXTS)).all()
