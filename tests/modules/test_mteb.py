"""`clozelab.MtebEncoder` is what mteb takes, and scores as sentence-transformers do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import clozelab
from clozelab.models.encoder import Encoder
from clozelab.modules.model import write_model
from clozelab.modules.sentence_folders import SentenceVectors, sentence_files


@pytest.fixture
def folder(tmp_path: Path, tiny_config: Any, tokenizer: Any) -> Path:
    torch.manual_seed(0)
    config = tiny_config(vocab_size=tokenizer.vocab_size, initializer_range=0.2)
    vectors = SentenceVectors(normalized=True, prompts={"query": "q: ", "document": "a cat: "})
    files = sentence_files(vectors, config, config.max_position_embeddings)
    write_model(tmp_path / "m", Encoder(config), {}, tokenizer, extra_files=files)
    return tmp_path / "m"


@pytest.mark.slow  # mteb takes long to import
def test_scores_and_vectors_are_sentence_transformers(folder: Path) -> None:
    mteb = pytest.importorskip("mteb")
    library = pytest.importorskip("sentence_transformers")
    from mteb.mocks.mock_tasks import MockRetrievalTask
    from mteb.models.models_protocols import EncoderProtocol
    from mteb.types import PromptType

    ours = clozelab.MtebEncoder(str(folder), precision="32-true")
    assert isinstance(ours, EncoderProtocol)
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    scores = []
    for model in (ours, theirs):
        result = mteb.evaluate(model, MockRetrievalTask(), cache=None, show_progress_bar=False)
        (found,) = result.task_results
        scores.append({split: found.scores[split][0]["ndcg_at_10"] for split in ("test", "val")})
    assert scores[0] == scores[1]
    # One text is longer than the model reads: both cut it.
    batches = [{"text": ["the cat sat", "a dog"]}, {"text": ["the cat " * 60]}]
    texts = [*batches[0]["text"], *batches[1]["text"]]
    kinds = {None: theirs.encode, PromptType.query: theirs.encode_query}
    kinds[PromptType.document] = theirs.encode_document
    for kind, encode in kinds.items():
        found = ours.encode(batches, prompt_type=kind)
        assert np.abs(found - encode(texts)).max() <= 1e-5
    others = ours.encode(batches, prompt_type=PromptType.query)
    for name in ("similarity", "similarity_pairwise"):
        expected = getattr(theirs, name)(found, others)
        assert (getattr(ours, name)(found, others) - expected).abs().max() <= 1e-5
    short = clozelab.MtebEncoder(str(folder), precision="32-true", size=4).encode(batches)
    assert np.abs(short - ours.encode(batches)[:, :4]).max() == 0.0
