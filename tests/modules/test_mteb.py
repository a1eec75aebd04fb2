"""`clozelab.MtebEncoder` is what mteb takes, and scores as sentence-transformers do."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
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


TASKS = {
    "SciFact": ("SciFact", "Retrieval"),
    "FiQA2018": ("FiQA2018", "Retrieval"),
    "STS12": ("STS12", "STS"),
    "Banking77": ("Banking77", "Classification"),
}
PROMPTS = {"query": "q: ", "passage": "p: ", "Retrieval-query": "r: ", "SciFact-query": "s: "}
PROMPTS |= {"STS": "same? "}


@pytest.mark.parametrize(
    ("task", "kind", "prompt"),
    [
        ("SciFact", "query", "s: "),
        ("SciFact", "document", "p: "),
        ("FiQA2018", "query", "r: "),
        ("STS12", None, "same? "),
        ("Banking77", None, ""),
    ],
)
def test_a_task_may_have_a_prompt_of_its_own(
    folder: Path, task: str, kind: str | None, prompt: str
) -> None:
    """In the order in which mteb looks for the one of a folder of sentence-transformers."""
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
    (folder / "checksums.json").unlink()
    model = clozelab.MtebEncoder(str(folder), precision="32-true")
    name, task_type = TASKS[task]
    metadata = SimpleNamespace(name=name, type=task_type)
    prompt_type = None if kind is None else SimpleNamespace(value=kind)
    found = model.encode(
        [{"text": ["the cat sat"]}], task_metadata=metadata, prompt_type=prompt_type
    )
    plain = model.encode([{"text": [f"{prompt}the cat sat"]}])
    assert np.abs(found - plain).max() == 0.0


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_vectors_are_compared_as_the_folder_says(folder: Path, name: str) -> None:
    similarity = pytest.importorskip("sentence_transformers.util")
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"similarity_fn_name": name})
    )
    (folder / "checksums.json").unlink()
    model = clozelab.MtebEncoder(str(folder), precision="32-true")
    first, second = np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32)
    ends = {"cosine": "cos_sim", "dot": "dot_score"}
    end = ends.get(name, f"{name}_sim")
    for ours, theirs in ((model.similarity, end), (model.similarity_pairwise, f"pairwise_{end}")):
        expected = getattr(similarity, theirs)(torch.tensor(first), torch.tensor(second))
        assert (ours(first, second) - expected).abs().max() <= 1e-5
