"""A model as the benchmark library mteb takes it (its EncoderProtocol, version 2).

    mteb.evaluate(clozelab.MtebEncoder("RUN"), mteb.get_tasks(["SciFact"]))

mteb itself is imported only where it asks for what it calls the model's metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional as F

from clozelab.modules.model import sentence_vectors
from clozelab.modules.predictor import load
from clozelab.modules.sentence_folders import similarity_of
from clozelab.tasks.batches import Batch, BatchValues, in_order
from clozelab.tasks.sequences import encode_examples

# Distances by which sentence-transformers compares vectors -> the power of their norm.
DISTANCES = {"euclidean": 2.0, "manhattan": 1.0}


class MtebEncoder:
    """Vectors of texts, behind the model's prompts; they are compared as its folder says.

    Args:
        model_name: a run or a folder.
        revision: what mteb calls this version of the model in its results.
        device, precision: of `load`.
        size: how many leading numbers of a vector are kept; None: as the folder says.
    """

    def __init__(
        self,
        model_name: str,
        revision: str | None = None,
        *,
        device: str | None = None,
        precision: str = "auto",
        size: int | None = None,
    ) -> None:
        self.predictor = load(model_name, device=device or "auto", precision=precision)
        self.names = {"name": f"clozelab/{self.predictor.model.folder.name}", "revision": revision}
        self.vectors = sentence_vectors(self.predictor.model.folder)
        self.size = size or self.vectors.size
        self.comparison = similarity_of(self.predictor.model.folder) or "cosine"

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        task_metadata: Any = None,
        prompt_type: Any = None,
        **_: object,
    ) -> NDArray[np.float32]:
        """float32 [N, H] of batches with a key `text`; `prompt_type`: mteb's, query or document.

        A text longer than the model reads is cut, as the libraries do that mteb knows.
        """
        prompt = self.prompt(task_metadata, prompt_type)
        texts = []
        for batch in inputs:
            texts += [prompt + text for text in batch["text"]]
        model = self.predictor.model
        sequences = encode_examples(model.tokenizer, texts, max_seq_length=model.embedded_length)

        def read(hidden: Tensor, batch: Batch) -> BatchValues:
            states = model.encoder.sentence_states(hidden, batch["layout"], self.vectors.pooling)
            return batch["example_index"], states

        values = in_order(self.predictor.run(sequences, read), len(sequences))
        if self.vectors.normalized:
            values = F.normalize(torch.from_numpy(values), dim=1).numpy()
        return values[:, : self.size]

    def prompt(self, task_metadata: Any, prompt_type: Any) -> str:
        """What stands before each text; "" for texts of a task without queries and prompts."""
        role = ""
        if prompt_type is not None:
            role = str(prompt_type.value)
        # In mteb's order: SciFact-query, SciFact, Retrieval-query, Retrieval, then query.
        for task in (getattr(task_metadata, "name", None), getattr(task_metadata, "type", None)):
            for name in (f"{task}-{role}", str(task)):
                if name in self.vectors.prompts:
                    return self.vectors.prompts[name]
        return self.vectors.prompt(role) if role else ""

    def similarity(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> Tensor:
        """[N, M]: how alike each vector of the first and each of the second are."""
        first, second = self._comparable(embeddings1, embeddings2)
        if self.comparison in DISTANCES:
            return -torch.cdist(first, second, p=DISTANCES[self.comparison])
        return first @ second.T

    def similarity_pairwise(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> Tensor:
        """[N]: how alike each vector of the first and the same one of the second are."""
        first, second = self._comparable(embeddings1, embeddings2)
        if self.comparison in DISTANCES:
            return -torch.linalg.vector_norm(first - second, DISTANCES[self.comparison], dim=-1)
        return (first * second).sum(dim=-1)

    def _comparable(self, *embeddings: ArrayLike) -> list[Tensor]:
        """Vectors in fp32, for the cosine of length 1."""
        vectors = [torch.as_tensor(given).float() for given in embeddings]
        if self.comparison == "cosine":
            vectors = [F.normalize(of_texts, dim=-1) for of_texts in vectors]
        return vectors

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb writes of the model into its results."""
        from mteb.models.model_meta import ModelMeta

        return ModelMeta.create_empty(overwrites=self.names)
