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
from clozelab.tasks.batches import Batch, BatchValues, in_order
from clozelab.tasks.sequences import encode_examples


class MtebEncoder:
    """Vectors of texts; queries and documents stand behind the model's prompts.

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

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        prompt_type: Any = None,
        **_: object,
    ) -> NDArray[np.float32]:
        """float32 [N, H] of batches with a key `text`; `prompt_type`: mteb's, query or document.

        A text longer than the model reads is cut, as the libraries do that mteb knows.
        """
        # Texts of other tasks are no queries, and have no prompt.
        prompt = "" if prompt_type is None else self.vectors.prompt(str(prompt_type.value))
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

    def similarity(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> Tensor:
        """[N, M]: the cosine of each vector of the first with each of the second."""
        first, second = (torch.as_tensor(vectors).float() for vectors in (embeddings1, embeddings2))
        return F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T

    def similarity_pairwise(self, embeddings1: ArrayLike, embeddings2: ArrayLike) -> Tensor:
        """[N]: the cosine of each vector of the first with the same one of the second."""
        first, second = (torch.as_tensor(vectors).float() for vectors in (embeddings1, embeddings2))
        return F.cosine_similarity(first, second)

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb writes of the model into its results."""
        from mteb.models.model_meta import ModelMeta

        return ModelMeta.create_empty(overwrites=self.names)
