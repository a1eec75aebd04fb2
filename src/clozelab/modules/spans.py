"""From start and end logits to answer texts: the released n-best rules, on the original characters.

A candidate is dropped when it starts or ends outside the passage, starts at a token that another window sees better,
ends before it starts, or is longer than `max_answer_length` tokens. Each window offers its `n_best_size` best starts
and ends; a question keeps its `n_best_size` best different texts over all windows. A question without any candidate
answers "empty", as released (it cannot score by accident on an empty gold text).

With unanswerable questions (2.0) the span [CLS]..[CLS] competes: a question's null score is its minimum over the
windows, as released, and "null odds" are null score minus the best text's score. Which odds mean "no answer" is the
caller's to say. Unusual: an n-best list is kept from the texts first, so a text always has a place beside the null.

An answer as a span of the passage: one start and one end score a token, softmax over the tokens of a window.

With unanswerable questions (SQuAD 2.0) "no answer" is the span [CLS]..[CLS]. Unusual: exact and f1 are then those at
the threshold of the null odds that is best on the validation split itself, as in the paper; f1_untuned is the one at 0.

Letters: T tokens of the batch, B windows, S tokens of the longest window.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from clozelab.datamodules.examples import ragged_positions
from clozelab.datamodules.squad import SquadExamples, SquadFeatures, SquadSplit
from clozelab.metrics import squad
from clozelab.models.encoder import Encoder
from clozelab.modules.finetuning import Batch, Evaluation, FineTuning, Part

Floats = NDArray[np.float32]
SURELY_NULL = 1e6


@dataclass(frozen=True)
class NBestSettings:
    n_best_size: int
    max_answer_length: int
    with_unanswerable: bool = False


@dataclass(frozen=True)
class Answers:
    """Of all questions, by id. `texts`: the best text (never "no answer"); `null_odds` is empty without 2.0."""

    texts: dict[str, str]
    nbest: dict[str, list[dict[str, Any]]]
    null_odds: dict[str, float]


def predict_answers(
    features: SquadFeatures, examples: SquadExamples, start_logits: Floats, end_logits: Floats, settings: NBestSettings
) -> Answers:
    """Texts, n-best lists (text, probability, start_logit, end_logit) and null odds.

    `start_logits` and `end_logits` are [T]: one number a token of all windows, in the order of `features.sequences`.
    """
    windows_of = np.searchsorted(features.question, np.arange(len(examples) + 1))
    cls = features.sequences.offsets[:-1]
    answers = Answers({}, {}, {})
    for index, question in enumerate(examples.questions):
        low, high = windows_of[index], windows_of[index + 1]
        found = [window_candidates(features, w, start_logits, end_logits, settings) for w in range(low, high)]
        candidates = np.concatenate(found) if found else np.zeros((0, 4))
        spans = features.passage_spans[features.passage_offsets[question.passage] :]
        best = _distinct_texts(candidates, examples.passages[question.passage], spans, settings.n_best_size)
        answers.texts[question.id] = next(iter(best))
        if settings.with_unanswerable:
            null = _null_logits(start_logits[cls[low:high]], end_logits[cls[low:high]])
            answers.null_odds[question.id] = sum(null) - sum(next(iter(best.values())))
            best[""] = null
        answers.nbest[question.id] = _with_probabilities(best)
    return answers


def _null_logits(start_logits: Floats, end_logits: Floats) -> tuple[float, float]:
    """Start and end logit of [CLS] in the window where their sum is smallest; nothing to answer from: surely null."""
    if not len(start_logits):
        return SURELY_NULL, SURELY_NULL
    window = int((start_logits + end_logits).argmin())
    return float(start_logits[window]), float(end_logits[window])


def window_candidates(
    features: SquadFeatures, window: int, start_logits: Floats, end_logits: Floats, settings: NBestSettings
) -> NDArray[np.float64]:
    """Allowed spans of one window, [number, 4]: start logit, end logit, first and last token of the passage."""
    low, high = features.sequences.offsets[window], features.sequences.offsets[window + 1]
    begin = int(features.passage_starts[window])
    starts = _best_positions(start_logits[low:high], settings.n_best_size)
    ends = _best_positions(end_logits[low:high], settings.n_best_size)
    starts = starts[features.max_context[low + starts]]  # false outside the passage
    ends = ends[(ends >= begin) & (ends < high - low - 1)]
    length = ends[None, :] - starts[:, None] + 1
    row, column = np.nonzero((length >= 1) & (length <= settings.max_answer_length))
    first, last = starts[row], ends[column]
    shift = int(features.window_starts[window]) - begin
    return np.stack([start_logits[low + first], end_logits[low + last], first + shift, last + shift], axis=1).astype(
        np.float64
    )


def _best_positions(logits: Floats, number: int) -> NDArray[np.int64]:
    """Positions of the largest logits, best first; the earlier one wins a tie."""
    return np.argsort(-logits, kind="stable")[:number]


def _distinct_texts(
    candidates: NDArray[np.float64], passage: str, spans: NDArray[np.int32], number: int
) -> dict[str, tuple[float, float]]:
    """The best different texts with their start and end logits, best first; "empty" where there is none."""
    order = np.argsort(-(candidates[:, 0] + candidates[:, 1]), kind="stable")
    best: dict[str, tuple[float, float]] = {}
    for start_logit, end_logit, first, last in candidates[order]:
        text = passage[spans[int(first), 0] : spans[int(last), 1]]
        best.setdefault(text, (float(start_logit), float(end_logit)))
        if len(best) == number:
            break
    return best or {"empty": (0.0, 0.0)}


def _with_probabilities(best: dict[str, tuple[float, float]]) -> list[dict[str, Any]]:
    """The n-best list, best first, with a softmax over its own entries."""
    ordered = sorted(best.items(), key=lambda item: -sum(item[1]))
    sums = np.array([sum(pair) for _, pair in ordered])
    weights = np.exp(sums - sums.max())
    probabilities = weights / weights.sum()
    return [
        {"text": text, "probability": float(p), "start_logit": pair[0], "end_logit": pair[1]}
        for (text, pair), p in zip(ordered, probabilities, strict=True)
    ]


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

    head_kind: ClassVar[str] = "spans"
    scores_are_shares = False

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
        self.qa_outputs = encoder.config.family.head("spans", encoder, input_size=self.head_input_size)

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

    def result_files(self, best: Evaluation) -> dict[str, Iterable[str]]:
        """As the official scorer reads them: question id -> answer, n-best list and null odds."""
        files = {"predictions": "prediction", "nbest_predictions": "nbest", "null_odds": "null_odds"}
        found = {
            name: {record["id"]: record[key] for record in best.predictions if key in record}
            for name, key in files.items()
        }
        return {f"{name}.json": _json_lines(content) for name, content in found.items() if content}

    def prediction_files(self, name: str, split: Any, parts: Sequence[Part]) -> dict[str, Iterable[str]]:
        """Answers as the official scorer reads them, question id -> text, and of 2.0 the odds of "no answer".

        Above the threshold that was best on the validation split the answer is empty.
        """
        answers = self._answers(split, parts)
        files: dict[str, Mapping[str, Any]] = {f"{name}.json": answers.texts}
        if self.settings.with_unanswerable:
            threshold = self.require_best().scores["validation/threshold"]
            files = {f"{name}.json": with_threshold(answers, threshold), f"{name}_null_odds.json": answers.null_odds}
        return {file: _json_lines(content) for file, content in files.items()}

    def _answers(self, split: SquadSplit, parts: Sequence[Part]) -> Answers:
        features = split.features
        scored = torch.cat([index for index, _ in parts]).numpy()
        assert len(np.unique(scored)) == len(scored) == len(features.question), "each window is scored exactly once"
        logits = np.full((2, len(features.sequences.input_ids)), -np.inf, dtype=np.float32)
        for index, values in parts:
            windows = index.numpy()
            flat = ragged_positions(features.sequences.offsets[windows], features.sequences.lengths[windows])[1]
            logits[:, flat] = values.detach().numpy().T
        return predict_answers(features, split.examples, logits[0], logits[1], self.settings)

    def evaluate(self, parts: Sequence[Part]) -> Evaluation:
        examples, answers = self.validation.examples, self._answers(self.validation, parts)
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
        questions = self.validation.examples.questions
        return 100.0 * sum(not question.answers for question in questions) / len(questions)


def _json_lines(content: Any) -> list[str]:
    return [json.dumps(content, indent=1, ensure_ascii=False)]


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
