"""From start and end logits to answer texts: the released n-best rules, on the original characters.

A candidate is dropped when it starts or ends outside the passage, starts at a token that another
window sees better, ends before it starts, or is longer than `max_answer_length` tokens. A question
without any candidate answers "empty", as released: it cannot score by accident on an empty gold
text. With unanswerable questions (2.0) the span [CLS]..[CLS]
competes: a question's null score is its minimum over the windows, and "null odds" are null score
minus the best text's.
Unusual: an n-best list is kept from the texts first, so a text always has a place beside the null.

Letters: T tokens of the batch, B windows, S tokens of the longest window.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
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

log = logging.getLogger(__name__)
Floats = NDArray[np.float32]
SURELY_NULL = 1e6
# of the null odds, as in transformers: a text stands unless "no answer" scores higher
DEFAULT_THRESHOLD = 0.0


@dataclass(frozen=True)
class NBestSettings:
    n_best_size: int
    max_answer_length: int
    with_unanswerable: bool = False


@dataclass(frozen=True)
class Answers:
    """Of all questions, by id. `texts`: the best text (never "no answer"); `null_odds` is empty
    without 2.0. `places`: the characters (start, end) of each of `nbest`, None where there is no
    place."""

    texts: dict[str, str]
    nbest: dict[str, list[dict[str, Any]]]
    null_odds: dict[str, float]
    places: dict[str, list[tuple[int, int] | None]]


def predict_answers(
    features: SquadFeatures,
    examples: SquadExamples,
    start_logits: Floats,
    end_logits: Floats,
    settings: NBestSettings,
) -> Answers:
    """Texts, n-best lists (text, probability, start_logit, end_logit) and null odds.

    `start_logits` and `end_logits` are [T]: one number a token of all windows, in the order of
    `features.sequences`.
    """
    windows_of = np.searchsorted(features.question, np.arange(len(examples) + 1))
    cls = features.sequences.offsets[:-1]
    answers = Answers({}, {}, {}, {})
    for index, question in enumerate(examples.questions):
        low, high = windows_of[index], windows_of[index + 1]
        found = [
            window_candidates(features, w, start_logits, end_logits, settings)
            for w in range(low, high)
        ]
        candidates = np.concatenate([np.zeros((0, 4)), *found])
        spans = features.passage_spans[features.passage_offsets[question.passage] :]
        best: dict[str, tuple[float, float]] = {}  # different texts, best first
        ranges: dict[str, tuple[int, int]] = {}
        for start, end, first, last in candidates[
            np.argsort(-candidates[:, :2].sum(1), kind="stable")
        ]:
            place = int(spans[int(first), 0]), int(spans[int(last), 1])
            text = examples.passages[question.passage][slice(*place)]
            # a lone blank, which is a token of byte-level BPE: no text stands for "no answer"
            if not text.strip():
                continue
            best.setdefault(text, (float(start), float(end)))
            ranges.setdefault(text, place)
            if len(best) == settings.n_best_size:
                break
        best = best or {"empty": (0.0, 0.0)}
        answers.texts[question.id] = next(iter(best))
        if settings.with_unanswerable:
            null = SURELY_NULL, SURELY_NULL
            if high > low:  # start and end logit of [CLS] in the window where their sum is smallest
                places = cls[low:high]
                place = places[(start_logits[places] + end_logits[places]).argmin()]
                null = float(start_logits[place]), float(end_logits[place])
            answers.null_odds[question.id] = sum(null) - sum(next(iter(best.values())))
            best[""] = null
        ordered = sorted(best.items(), key=lambda item: -sum(item[1]))
        sums = np.array([sum(pair) for _, pair in ordered])
        weights = np.exp(sums - sums.max())
        answers.nbest[question.id] = [
            {"text": text, "probability": float(p), "start_logit": pair[0], "end_logit": pair[1]}
            for (text, pair), p in zip(ordered, weights / weights.sum(), strict=True)
        ]
        answers.places[question.id] = [ranges.get(text) for text, _ in ordered]
    return answers


def token_logits(features: SquadFeatures, parts: Sequence[Part]) -> tuple[Floats, Floats]:
    """Start and end logits [T] of all windows, from (numbers of windows, logits of their tokens
    [.., 2]).
    """
    scored = torch.cat([index for index, _ in parts]).numpy()
    assert len(np.unique(scored)) == len(scored) == len(features.question), (
        "each window is scored exactly once"
    )
    logits = np.full((2, len(features.sequences.input_ids)), -np.inf, dtype=np.float32)
    for index, values in parts:
        windows = index.numpy()
        flat = ragged_positions(
            features.sequences.offsets[windows], features.sequences.lengths[windows]
        )[1]
        logits[:, flat] = values.detach().numpy().T
    return logits[0], logits[1]


def window_candidates(
    features: SquadFeatures,
    window: int,
    start_logits: Floats,
    end_logits: Floats,
    settings: NBestSettings,
) -> NDArray[np.float64]:
    """Allowed spans of one window, [number, 4]: start logit, end logit, first and last token of the
    passage.
    """
    low, high = features.sequences.offsets[window], features.sequences.offsets[window + 1]
    begin = int(features.passage_starts[window])
    # The largest logits, best first; the earlier one wins a tie.
    starts, ends = (
        np.argsort(-logits[low:high], kind="stable")[: settings.n_best_size]
        for logits in (start_logits, end_logits)
    )
    starts = starts[features.max_context[low + starts]]  # false outside the passage
    ends = ends[(ends >= begin) & (ends < high - low - 1)]
    length = ends[None, :] - starts[:, None] + 1
    row, column = np.nonzero((length >= 1) & (length <= settings.max_answer_length))
    first, last = starts[row], ends[column]
    shift = int(features.window_starts[window]) - begin
    found = [start_logits[low + first], end_logits[low + last], first + shift, last + shift]
    return np.stack(found, axis=1).astype(np.float64)


V1_SCORES = ("exact_match", "f1")
V2_SCORES = (
    *("exact", "f1", "threshold", "exact_untuned", "f1_untuned"),
    *("HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"),
    *(
        "best_exact",
        "best_exact_thresh",
        "best_f1",
        "best_f1_thresh",
        "pr_exact_ap",
        "pr_f1_ap",
        "pr_oracle_ap",
    ),
)


class SpanExtraction(FineTuning):
    """SQuAD 1.1 and, `with_unanswerable`, 2.0: one start and one end score a token, softmax over a
    window's tokens.

    Unusual: of 2.0 exact and f1 are those at the threshold of the null odds that is best on the
    validation split, as in the paper; f1_untuned: that at 0. A model that is only measured keeps
    its own threshold (`recall`); best_f1 is the highest one then, too. `n_best_size` and
    `max_answer_length` (tokens) are of the released n-best rules."""

    head_kind: ClassVar[str] = "spans"
    scores_are_shares = False

    def __init__(
        self,
        *,
        encoder: Encoder,
        validation: SquadSplit,
        n_best_size: int,
        max_answer_length: int,
        with_unanswerable: bool,
        **training: Any,
    ) -> None:
        keys = self.score_keys({"with_unanswerable": with_unanswerable}, {})
        super().__init__(encoder=encoder, score_keys=keys, **training)
        self.validation = validation
        self.settings = NBestSettings(n_best_size, max_answer_length, with_unanswerable)
        self.fixed_threshold: float | None = None  # None: chosen on the validation split
        self.encoder.pooler.requires_grad_(False)
        self.qa_outputs = encoder.config.family.head(
            "spans", encoder, input_size=self.head_input_size
        )

    @classmethod
    def score_keys(cls, settings: Mapping[str, Any], data: Mapping[str, Any]) -> Sequence[str]:  # noqa: ARG003
        return V2_SCORES if settings["with_unanswerable"] else V1_SCORES

    def logits(self, batch: Batch) -> Tensor:
        """[T, 2]: start and end."""
        return self.in_fp32(self.qa_outputs, self.encode(batch))

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        targets = torch.stack([batch["start_positions"], batch["end_positions"]], dim=1)  # [B, 2]
        padded = pad_tokens(logits, batch)  # [B, S, 2]
        return F.cross_entropy(padded, targets, reduction="sum") / 2

    def result_files(self, best: Evaluation) -> dict[str, Iterable[str]]:
        """As the official scorer reads them: question id -> answer, n-best list and null odds."""
        files: dict[str, Iterable[str]] = {}
        for name, key in (
            ("predictions", "prediction"),
            ("nbest_predictions", "nbest"),
            ("null_odds", "null_odds"),
        ):
            if found := {record["id"]: record[key] for record in best.predictions if key in record}:
                files[f"{name}.json"] = _json_lines(found)
        return files

    def prediction_files(
        self, name: str, split: Any, parts: Sequence[Part]
    ) -> dict[str, Iterable[str]]:
        """As the official scorer reads them: answers, and of 2.0, where the validation's threshold
        holds, null odds.
        """
        answers = self._answers(split, parts)
        if not self.settings.with_unanswerable:
            return {f"{name}.json": _json_lines(answers.texts)}
        texts = with_threshold(answers, self.require_best().scores["validation/threshold"])
        return {
            f"{name}.json": _json_lines(texts),
            f"{name}_null_odds.json": _json_lines(answers.null_odds),
        }

    def _answers(self, split: SquadSplit, parts: Sequence[Part]) -> Answers:
        return predict_answers(
            split.features, split.examples, *token_logits(split.features, parts), self.settings
        )

    def evaluate(self, parts: Sequence[Part]) -> Evaluation:
        answers = self._answers(self.validation, parts)
        golds, odds = (
            {one.id: one.answers for one in self.validation.examples.questions},
            answers.null_odds,
        )
        keys: Sequence[str] = V1_SCORES
        if self.settings.with_unanswerable:
            threshold, scores = self._at_threshold(golds, answers)
            untuned = squad.score_v2(golds, answers.texts, odds, 0.0)
            scores |= squad.average_precisions(golds, answers.texts, odds)
            scores |= {
                "threshold": threshold,
                "exact_untuned": untuned["exact"],
                "f1_untuned": untuned["f1"],
            }
            keys, texts = V2_SCORES, with_threshold(answers, threshold)
        else:
            texts, scores = answers.texts, squad.score_v1(golds, answers.texts)
        return Evaluation(
            step=self.trainer.global_step,
            scores={key: scores[key] for key in keys if key in scores},
            predictions=[
                {"id": key, "prediction": text, "nbest": answers.nbest[key]}
                | ({"null_odds": odds[key]} if odds else {})
                for key, text in texts.items()
            ],
            is_collapsed=len(set(texts.values())) <= 1,
        )

    def _at_threshold(
        self,
        golds: squad.Answers,
        answers: Answers,
    ) -> tuple[float, dict[str, float]]:
        """The threshold of the null odds, and the scores at it."""
        if self.fixed_threshold is None:
            return squad.tuned_threshold(golds, answers.texts, answers.null_odds)
        threshold = self.fixed_threshold
        return threshold, squad.score_v2(golds, answers.texts, answers.null_odds, threshold)

    def recall(self, remembered: Mapping[str, Any]) -> dict[str, Any]:
        """Take the model's own threshold of no answer, or DEFAULT_THRESHOLD where it has none."""
        rules = remembered.get("answers") or {}
        for name, mine in asdict(self.settings).items():
            if rules.get(name, mine) != mine:
                said = "the model was fine-tuned with %s %s, and is scored with %s"
                log.warning(said, name, rules[name], mine)
        if not self.settings.with_unanswerable:
            return {}

        own = rules.get("threshold")
        if own is None:
            source = "the default: the model records none"
            self.fixed_threshold = DEFAULT_THRESHOLD
            log.warning(
                "the model records no threshold of no answer: %g is taken",
                DEFAULT_THRESHOLD,
            )
        else:
            source = "the model's own, from its fine-tuning"
            self.fixed_threshold = float(own)
        return {"no_answer_threshold": {"value": self.fixed_threshold, "source": source}}

    def remembered(self) -> dict[str, Any]:
        """The n-best rules and, of 2.0, from which null odds on there is no answer."""
        threshold = self.require_best().scores.get("validation/threshold")
        return {"answers": asdict(self.settings) | {"threshold": threshold}}

    def baseline(self) -> float | None:
        """What "no answer" everywhere scores; None for 1.1, where no answer is the most frequent
        one.
        """
        if not self.settings.with_unanswerable:
            return None
        questions = self.validation.examples.questions
        return 100.0 * sum(not question.answers for question in questions) / len(questions)


def _json_lines(content: Any) -> list[str]:
    return [json.dumps(content, indent=1, ensure_ascii=False)]


def with_threshold(answers: Answers, threshold: float) -> dict[str, str]:
    """The texts, empty where the null odds are above the threshold."""
    return {
        key: "" if answers.null_odds[key] > threshold else text
        for key, text in answers.texts.items()
    }


def pad_tokens(values: Tensor, batch: Batch) -> Tensor:
    """[T, K] -> [B, S, K], minus infinity where a window has ended."""
    layout = batch["layout"]
    numbers = torch.arange(layout.batch_size, device=values.device)
    window = torch.repeat_interleave(numbers, layout.lengths, output_size=layout.num_tokens)
    padded = values.new_full((layout.batch_size, layout.max_seqlen, values.shape[1]), -torch.inf)
    return padded.index_put((window, batch["position_ids"]), values)
