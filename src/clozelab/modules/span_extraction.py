"""An answer as a span of the passage: one start and one end score a token, softmax over the tokens of a window.

Letters: T tokens of the batch, B windows, S tokens of the longest window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clozelab.data.readers.rows import ragged_positions
from clozelab.data.readers.squad_answers import NBestSettings, predict_answers
from clozelab.data.readers.squad_split import SquadSplit
from clozelab.metrics import squad
from clozelab.models.encoder import Encoder
from clozelab.models.heads import BiLSTM, SpanHead
from clozelab.modules.finetuning import Batch, Evaluation, FineTuning, check_head


class SpanExtraction(FineTuning):
    """SQuAD 1.1.

    Args:
        encoder: with the weights to start from.
        head: linear | bilstm.
        validation: the validation split with its texts.
        metric: validation/f1 or validation/exact_match.
        n_best_size, max_answer_length: of the released n-best rules; the length is in tokens.
        bilstm_num_layers, bilstm_hidden_size (a direction; None: the encoder's), bilstm_dropout_prob: only for that
            head.
        training: what FineTuning takes beside these.
    """

    def __init__(
        self,
        *,
        encoder: Encoder,
        head: str,
        validation: SquadSplit,
        metric: str,
        n_best_size: int,
        max_answer_length: int,
        bilstm_num_layers: int,
        bilstm_hidden_size: int | None,
        bilstm_dropout_prob: float,
        **training: Any,
    ) -> None:
        check_head(head)
        super().__init__(encoder=encoder, metric=metric, score_keys=self.score_keys({}), **training)
        self.validation, self.settings = validation, NBestSettings(n_best_size, max_answer_length)
        self.encoder.pooler.requires_grad_(False)
        self.bilstm: BiLSTM | None = None
        input_size = hidden_size = encoder.config.hidden_size
        if head == "bilstm":
            size = bilstm_hidden_size or hidden_size
            self.bilstm = BiLSTM(hidden_size, size, bilstm_num_layers, bilstm_dropout_prob)
            input_size = 2 * size
        self.qa_outputs = SpanHead(encoder.config, input_size)
        self._collected: list[tuple[np.ndarray, np.ndarray]] = []

    @classmethod
    def score_keys(cls, settings: Mapping[str, Any]) -> Sequence[str]:  # noqa: ARG003
        return ["exact_match", "f1"]

    def logits(self, batch: Batch) -> Tensor:
        """[T, 2]: start and end."""
        hidden = self.encode(batch)
        if self.bilstm is not None:
            hidden = self.bilstm(hidden, batch["layout"])
        return self.in_fp32(self.qa_outputs, hidden)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        targets = torch.stack([batch["start_positions"], batch["end_positions"]], dim=1)  # [B, 2]
        padded = pad_tokens(logits, batch)  # [B, S, 2]
        return F.cross_entropy(padded, targets, reduction="sum") / 2

    def collect(self, logits: Tensor, batch: Batch) -> None:
        self._collected.append((batch["example_index"].cpu().numpy(), logits.cpu().numpy()))

    def evaluate(self) -> Evaluation:
        features, examples = self.validation.features, self.validation.require_examples()
        scored = np.concatenate([np.zeros(0, dtype=np.int64), *(index for index, _ in self._collected)])
        assert len(np.unique(scored)) == len(scored) == len(features.question), "each window is scored exactly once"
        logits = np.full((2, len(features.rows.input_ids)), -np.inf, dtype=np.float32)
        for index, values in self._collected:
            flat = ragged_positions(features.rows.offsets[index], features.rows.lengths[index])[1]
            logits[:, flat] = values.T
        self._collected.clear()
        predictions, nbest = predict_answers(features, examples, logits[0], logits[1], self.settings)
        answers = {question.id: question.answers for question in examples.questions}
        scores = squad.score_v1(answers, predictions)
        return Evaluation(
            step=self.trainer.global_step,
            scores={key: scores[key] for key in ("exact_match", "f1")},
            predictions=[{"id": key, "prediction": text, "nbest": nbest[key]} for key, text in predictions.items()],
            is_collapsed=len(set(predictions.values())) <= 1,
        )

    def heads(self) -> dict[str, nn.Module]:
        return {"qa_outputs": self.qa_outputs} | ({"bilstm": self.bilstm} if self.bilstm is not None else {})

    def baseline(self) -> None:
        """No answer is the most frequent one in a sense that means anything."""


def pad_tokens(values: Tensor, batch: Batch) -> Tensor:
    """[T, K] -> [B, S, K], minus infinity where a window has ended."""
    layout = batch["layout"]
    window = torch.repeat_interleave(
        torch.arange(layout.batch_size, device=values.device), layout.lengths, output_size=layout.num_tokens
    )
    padded = values.new_full((layout.batch_size, layout.max_seqlen, values.shape[1]), -torch.inf)
    return padded.index_put((window, batch["position_ids"]), values)
