"""How well a frozen encoder finds documents: the cosine of a query's and a document's vector.

Letters: Q queries, S texts of a part, H hidden size.
"""

# ruff: noqa: ARG002  (Lightning fixes the signatures of its hooks)

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from clozelab.metrics.ranking import TopDocuments, metrics_of_names, score_hits
from clozelab.modules.finetuning import Evaluation
from clozelab.modules.measures import DAMAGED_WEIGHT, Measurement
from clozelab.tasks.batches import Batch
from clozelab.tasks.target import Files
from clozelab.text.did_you_mean import check_count
from clozelab.training.runtime import ReiterableLoader

if TYPE_CHECKING:
    from clozelab.datamodules.retrieval import RetrievalFolder

WRITTEN_HITS = 100  # of each query, in run.trec
log = logging.getLogger(__name__)


class Retrieval(Measurement):
    """Scores of a folder of datamodules/retrieval.py, means over its judged queries.

    Args:
        metrics: names of metrics/ranking.py.
        pooling: what a text's vector is.
        prompts: what stands before a query, and before a document.
        size: how many leading numbers of a vector are used; None: all.
        depth: how many documents of each query are kept and scored.
    """

    data: RetrievalFolder

    def __init__(
        self,
        *,
        metrics: Sequence[str],
        pooling: str,
        prompts: Mapping[str, str],
        size: int | None,
        depth: int,
        **measurement: Any,
    ) -> None:
        super().__init__(**measurement)
        width = self.encoder.config.output_size
        if size is not None and size not in range(1, width + 1):
            raise ValueError(
                f"measure.module.size={size}: a vector has {width} numbers, so give 1 to {width}"
            )
        check_count("measure.module.depth", depth)
        self.metrics = metrics_of_names(metrics)
        self.pooling = pooling
        self.prompts = prompts
        self.size = size
        self.depth = depth
        self.queries: Tensor | None = None  # [Q, H]
        self._part: list[tuple[Tensor, Tensor]] = []  # numbers and vectors of texts

    def val_dataloader(self) -> Iterable[Batch]:
        return ReiterableLoader(partial(self.data.batches, self.prompts))

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        slots = self.encoder.sentence_slots(batch["layout"], self.pooling)
        hidden = self.encoder.read(batch, read_slots=slots).sequence_output
        states = self.encoder.sentence_states(hidden, batch["layout"], self.pooling)
        self._part.append((batch["example_index"], states[:, : self.size].float()))
        names = batch["ids"]
        if names is None:
            return
        numbers, states = (torch.cat(tensors) for tensors in zip(*self._part, strict=True))
        self._part = []
        if not torch.isfinite(states).all():
            raise ValueError(f"the encoder answers NaN: {DAMAGED_WEIGHT}")
        # [S, H] of length 1, in the part's order
        vectors = F.normalize(states[numbers.argsort()], dim=1)
        if self.queries is None:
            self.queries = vectors
            self._top = TopDocuments(names, self.depth)
            return
        # One product a part, in fp32 whatever the precision of the forward.
        with torch.autocast(vectors.device.type, enabled=False):
            similarities = self.queries @ vectors.T
        self._top.add(similarities.cpu().numpy(), names)

    def evaluate(self, collected: Sequence[Any]) -> Evaluation:
        self.queries = None
        names = [metric.name for metric in self.metrics]
        records = []
        for query, hits in self._top.best.items():
            records.append({"id": query, **score_hits(names, hits, self.data.judgements[query])})
        means = {}
        for name in names:
            means[name] = float(np.mean([record[name] for record in records]))
        first = {hits[0][1] for hits in self._top.best.values() if hits}
        return Evaluation(0, means, records, len(first) == 1 < len(records))

    def result_files(self, best: Evaluation) -> Files:
        """Also the first documents of each query, as trec_eval reads them.

        It reads six columns between blanks and has no quotation marks.
        """
        lines = []
        for query, hits in self._top.best.items():
            for rank, (score, document) in enumerate(hits[:WRITTEN_HITS], 1):
                lines.append(f"{query} Q0 {document} {rank} {score:.8f} clozelab")
        files = super().result_files(best)
        for line in lines:
            if len(line.split()) != 6:
                log.warning(
                    "run.trec is left out, since trec_eval reads no id with blanks: %s", line
                )
                return files
        return files | {"run.trec": lines}
