"""An answer as a span of the passage: one start and one end score a token, softmax over the tokens of a window.

With unanswerable questions (SQuAD 2.0) "no answer" is the span [CLS]..[CLS]. Unusual: exact and f1 are then those at
the threshold of the null odds that is best on the validation split itself, as in the paper; f1_untuned is the one at 0.

Letters: T tokens of the batch, B windows, S tokens of the longest window.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from clozelab.data.readers.rows import ragged_positions
from clozelab.data.readers.squad_answers import Answers, NBestSettings, predict_answers
from clozelab.data.readers.squad_split import SquadSplit
from clozelab.metrics import squad
from clozelab.models.encoder import Encoder
from clozelab.models.heads import SpanHead
from clozelab.modules.finetuning import Batch, Evaluation, FineTuning, Part

V1_SCORES = ("exact_match", "f1")
V2_SCORES = (
    *("exact", "f1", "threshold", "exact_untuned", "f1_untuned"),
    *("HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"),
    *("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh", "pr_exact_ap", "pr_f1_ap", "pr_oracle_ap"),
)


class SpanExtraction(FineTuning):
    """SQuAD 1.1 and 2.0.

    Args:
        encoder: with the weights to start from.
        validation: the validation split with its texts.
        metric: validation/f1 or validation/exact_match; of 2.0 validation/f1 or validation/exact.
        with_unanswerable: 2.0: questions may have no answer.
        n_best_size, max_answer_length: of the released n-best rules; the length is in tokens.
        training: what FineTuning takes beside these.
    """

    def __init__(
        self,
        *,
        encoder: Encoder,
        validation: SquadSplit,
        metric: str,
        n_best_size: int,
        max_answer_length: int,
        with_unanswerable: bool,
        **training: Any,
    ) -> None:
        keys = self.score_keys({"with_unanswerable": with_unanswerable}, {})
        super().__init__(encoder=encoder, metric=metric, score_keys=keys, **training)
        self.validation = validation
        self.settings = NBestSettings(n_best_size, max_answer_length, with_unanswerable)
        self.encoder.pooler.requires_grad_(False)
        self.qa_outputs = SpanHead(encoder.config, self.head_input_size)

    @classmethod
    def score_keys(cls, settings: Mapping[str, Any], data: Mapping[str, Any]) -> Sequence[str]:  # noqa: ARG003
        return V2_SCORES if settings["with_unanswerable"] else V1_SCORES

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

    def prediction_files(self, name: str, split: Any, parts: Sequence[Part]) -> dict[str, Iterable[str]]:
        """Answers as the official scorer reads them, question id -> text, and of 2.0 the odds of "no answer".

        Above the threshold that was best on the validation split the answer is empty.
        """
        answers = self._answers(split, parts)
        files: dict[str, Any] = {f"{name}.json": answers.texts}
        if self.settings.with_unanswerable:
            threshold = self.require_best().scores["validation/threshold"]
            files = {f"{name}.json": with_threshold(answers, threshold), f"{name}_null_odds.json": answers.null_odds}
        return {file: [json.dumps(content, indent=1, ensure_ascii=False)] for file, content in files.items()}

    def _answers(self, split: SquadSplit, parts: Sequence[Part]) -> Answers:
        features = split.features
        scored = torch.cat([index for index, _ in parts]).numpy()
        assert len(np.unique(scored)) == len(scored) == len(features.question), "each window is scored exactly once"
        logits = np.full((2, len(features.rows.input_ids)), -np.inf, dtype=np.float32)
        for index, values in parts:
            windows = index.numpy()
            flat = ragged_positions(features.rows.offsets[windows], features.rows.lengths[windows])[1]
            logits[:, flat] = values.detach().numpy().T
        return predict_answers(features, split.require_examples(), logits[0], logits[1], self.settings)

    def evaluate(self, parts: Sequence[Part]) -> Evaluation:
        examples, answers = self.validation.require_examples(), self._answers(self.validation, parts)
        golds = {question.id: question.answers for question in examples.questions}
        scores, texts = self._scores(golds, answers)
        return Evaluation(
            step=self.trainer.global_step,
            scores=scores,
            predictions=[
                {"id": key, "prediction": text, "nbest": answers.nbest[key]}
                | ({"null_odds": answers.null_odds[key]} if answers.null_odds else {})
                for key, text in texts.items()
            ],
            is_collapsed=len(set(texts.values())) <= 1,
        )

    def _scores(self, golds: Mapping[str, Sequence[str]], answers: Answers) -> tuple[dict[str, float], dict[str, str]]:
        """(scores, final answers by question)."""
        if not self.settings.with_unanswerable:
            found = squad.score_v1(golds, answers.texts)
            return {key: found[key] for key in V1_SCORES}, answers.texts
        odds = answers.null_odds
        threshold, found = squad.tuned_threshold(golds, answers.texts, odds)
        untuned = squad.score_v2(golds, answers.texts, odds, 0.0)
        found |= squad.average_precisions(golds, answers.texts, odds)
        found |= {"threshold": threshold, "exact_untuned": untuned["exact"], "f1_untuned": untuned["f1"]}
        return {key: found[key] for key in V2_SCORES if key in found}, with_threshold(answers, threshold)

    def baseline(self) -> float | None:
        """What "no answer" everywhere scores; None for 1.1, where no answer is the most frequent one."""
        if not self.settings.with_unanswerable:
            return None
        questions = self.validation.require_examples().questions
        return 100.0 * sum(not question.answers for question in questions) / len(questions)


def with_threshold(answers: Answers, threshold: float) -> dict[str, str]:
    """The texts, empty where the null odds are above the threshold."""
    return {key: "" if answers.null_odds[key] > threshold else text for key, text in answers.texts.items()}


def pad_tokens(values: Tensor, batch: Batch) -> Tensor:
    """[T, K] -> [B, S, K], minus infinity where a window has ended."""
    layout = batch["layout"]
    window = torch.repeat_interleave(
        torch.arange(layout.batch_size, device=values.device), layout.lengths, output_size=layout.num_tokens
    )
    padded = values.new_full((layout.batch_size, layout.max_seqlen, values.shape[1]), -torch.inf)
    return padded.index_put((window, batch["position_ids"]), values)
