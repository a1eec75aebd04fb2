"""From start and end logits to answer texts: the released n-best rules, on the original characters.

A candidate is dropped when it starts or ends outside the passage, starts at a token that another
window sees better, ends before it starts, or is longer than `max_answer_length` tokens. A question
without any candidate answers "empty", as released: it cannot score by accident on an empty gold
text. With unanswerable questions (2.0) the span [CLS]..[CLS] competes: a question's null score is
its minimum over the windows, and "null odds" are null score minus the best text's.

Unusual: an n-best list is kept from the texts first, so a text always has a place beside the null.

Letters: T tokens of the batch, B windows, S tokens of the longest window.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import Tensor
from torch.nn import functional as F

from clozelab.metrics import squad
from clozelab.models.config_keys import Provenance
from clozelab.readers.squad import SquadExamples
from clozelab.tasks.baselines import OVERLAP, PhraseGuesser, Scores
from clozelab.tasks.batches import Batch
from clozelab.tasks.passages import Floats, PassageSplit, SquadFeatures
from clozelab.tasks.target import Files, Outcome, Target, saved_threshold
from clozelab.text.plain import PlainDict

log = logging.getLogger(__name__)
SURELY_NULL = 1e6
# Of the null odds, as in transformers: a text stands unless "no answer" scores higher.
DEFAULT_THRESHOLD = 0.0


@dataclass(frozen=True)
class NBestSettings:
    """The released rules' numbers; `max_answer_length` counts tokens."""

    n_best_size: int
    max_answer_length: int
    with_unanswerable: bool = False


@dataclass(frozen=True)
class Candidate:
    """A text with its start and end logit, and its characters (start, end) where it has a place."""

    text: str
    start_logit: float
    end_logit: float
    characters: tuple[int, int] | None = None

    @property
    def logit(self) -> float:
        return self.start_logit + self.end_logit


@dataclass(frozen=True)
class Answers:
    """Of all questions, by id; `null_odds` is empty without 2.0."""

    texts: dict[str, str]  # the best text, never "no answer"
    nbest: dict[str, list[Candidate]]  # best first; "no answer" is an empty text
    null_odds: dict[str, float]


def predict_answers(
    features: SquadFeatures,
    examples: SquadExamples,
    start_logits: Floats,
    end_logits: Floats,
    settings: NBestSettings,
) -> Answers:
    """Texts, n-best lists and null odds.

    `start_logits` and `end_logits` are [T]: one number a token of all windows, in the order of
    `features.sequences`.
    """
    # The windows of question n are numbers bounds[n] to bounds[n + 1].
    bounds = np.searchsorted(features.question, np.arange(len(examples) + 1))
    cls_tokens = features.sequences.offsets[:-1]
    answers = Answers({}, {}, {})
    for index, question in enumerate(examples.questions):
        low = bounds[index]
        high = bounds[index + 1]
        candidates = [np.zeros((0, 4))]
        for window in range(low, high):
            candidates.append(
                window_candidates(features, window, start_logits, end_logits, settings)
            )
        # The characters of the passage's tokens.
        spans = features.passage_spans[features.passage_offsets[question.passage] :]
        passage = examples.passages[question.passage]
        best = _best_texts(np.concatenate(candidates), spans, passage, settings.n_best_size)
        if not best:
            best = [Candidate("empty", 0.0, 0.0)]
        answers.texts[question.id] = best[0].text
        if settings.with_unanswerable:
            null = _null_candidate(start_logits, end_logits, cls_tokens[low:high])
            answers.null_odds[question.id] = null.logit - best[0].logit
            best.append(null)
        answers.nbest[question.id] = sorted(best, key=lambda candidate: -candidate.logit)
    return answers


def _best_texts(
    candidates: np.ndarray, spans: np.ndarray, passage: str, n_best_size: int
) -> list[Candidate]:
    """The different texts of a question's candidates, the best `n_best_size`, best first.

    `candidates` [.., 4]: start logit, end logit, first and last token of the passage; `spans`: the
    characters (start, end) of each of its tokens.
    """
    best: dict[str, Candidate] = {}
    order = np.argsort(-candidates[:, :2].sum(1), kind="stable")
    for start_logit, end_logit, first, last in candidates[order]:
        begin = int(spans[int(first), 0])
        end = int(spans[int(last), 1])
        # Byte-level BPE has tokens of blanks, which are no part of an answer, as released.
        whole = passage[begin:end]
        text = whole.strip()
        # Nothing else was there: no text stands for "no answer".
        if not text:
            continue
        begin += whole.index(text)
        characters = (begin, begin + len(text))
        best.setdefault(text, Candidate(text, float(start_logit), float(end_logit), characters))
        if len(best) == n_best_size:
            break
    return list(best.values())


def _null_candidate(start_logits: Floats, end_logits: Floats, cls_tokens: np.ndarray) -> Candidate:
    """Start and end logit of [CLS] in the window where their sum is smallest."""
    if not len(cls_tokens):
        return Candidate("", SURELY_NULL, SURELY_NULL)
    token = cls_tokens[(start_logits[cls_tokens] + end_logits[cls_tokens]).argmin()]
    return Candidate("", float(start_logits[token]), float(end_logits[token]))


def window_candidates(
    features: SquadFeatures,
    window: int,
    start_logits: Floats,
    end_logits: Floats,
    settings: NBestSettings,
) -> NDArray[np.float64]:
    """Allowed spans of one window [.., 4]: start logit, end logit, first and last passage token."""
    low = features.sequences.offsets[window]
    high = features.sequences.offsets[window + 1]
    begin = int(features.passage_starts[window])
    # The largest logits, best first; the earlier one wins a tie. Numbers count from the window's
    # first token.
    starts = np.argsort(-start_logits[low:high], kind="stable")[: settings.n_best_size]
    ends = np.argsort(-end_logits[low:high], kind="stable")[: settings.n_best_size]
    starts = starts[features.max_context[low + starts]]  # false outside the passage
    ends = ends[(ends >= begin) & (ends < high - low - 1)]
    # every pair [starts, ends]
    length = ends[None, :] - starts[:, None] + 1
    row, column = np.nonzero((length >= 1) & (length <= settings.max_answer_length))
    first = starts[row]
    last = ends[column]
    # from numbers in the window to those in the passage
    shift = int(features.window_starts[window]) - begin
    columns = [start_logits[low + first], end_logits[low + last], first + shift, last + shift]
    return np.stack(columns, axis=1).astype(np.float64)


class SpanTarget(Target):
    """One start and one end score a token, of SQuAD 1.1 and, `with_unanswerable`, 2.0.

    The softmax is over a window's tokens. `n_best_size` and `max_answer_length` (tokens) are of the
    released n-best rules.

    Unusual: of 2.0 exact and f1 are those at the threshold of the null odds that is best on the
    validation split, as in the paper; f1_untuned: that at 0. A model that is only measured keeps
    its own threshold (`restore_config`); best_f1 is the highest one then, too.
    """

    units = ("PassageUnit",)
    head_kinds = ("spans",)
    head_name = "qa_outputs"

    def __init__(
        self, *, n_best_size: int, max_answer_length: int, with_unanswerable: bool
    ) -> None:
        self.settings = NBestSettings(n_best_size, max_answer_length, with_unanswerable)
        self.metrics = squad.V2_DECLARED if with_unanswerable else squad.V1_DECLARED
        self.fixed_threshold: float | None = None  # None: chosen on the validation split

    # The model

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Of logits [T, 2]: start and end."""
        targets = torch.stack([batch["start_positions"], batch["end_positions"]], dim=1)  # [B, 2]
        padded = pad_tokens(logits, batch)  # [B, S, 2]
        # Both are classes of S: the loss is the mean of the start's and the end's.
        return F.cross_entropy(padded, targets, reduction="sum") / 2

    # Scores, and what is written down

    def evaluate(self, outputs: np.ndarray, split: PassageSplit) -> Outcome:
        """Of start and end logits [2, T] of all windows."""
        answers = self._answers(outputs, split)
        golds = {question.id: question.answers for question in split.examples.questions}
        if self.settings.with_unanswerable:
            threshold, scores = self._at_threshold(golds, answers)
            # Scores that depend on no threshold, or on 0.
            untuned = squad.score_v2(golds, answers.texts, answers.null_odds, 0.0)
            scores |= squad.average_precisions(golds, answers.texts, answers.null_odds)
            scores |= {
                "threshold": threshold,
                "exact_untuned": untuned["exact"],
                "f1_untuned": untuned["f1"],
            }
            texts = with_threshold(answers, threshold)
        else:
            texts = answers.texts
            scores = squad.score_v1(golds, texts)
        names = [metric.name for metric in self.metrics]
        scores = {name: scores[name] for name in names if name in scores}
        records = []
        for key, text in texts.items():
            nbest = _nbest_records(answers.nbest[key])
            record: PlainDict = {"id": key, "prediction": text, "nbest": nbest}
            if answers.null_odds:
                record["null_odds"] = answers.null_odds[key]
            records.append(record)
        return Outcome(scores, records, is_collapsed=len(set(texts.values())) <= 1)

    def _answers(self, outputs: np.ndarray, split: PassageSplit) -> Answers:
        start_logits, end_logits = outputs
        return predict_answers(
            split.features, split.examples, start_logits, end_logits, self.settings
        )

    def _at_threshold(
        self, golds: squad.Answers, answers: Answers
    ) -> tuple[float, dict[str, float]]:
        """The threshold of the null odds, and the scores at it."""
        if self.fixed_threshold is None:
            return squad.tuned_threshold(golds, answers.texts, answers.null_odds)
        threshold = self.fixed_threshold
        return threshold, squad.score_v2(golds, answers.texts, answers.null_odds, threshold)

    def majority_score(self, name: str, split: PassageSplit) -> float | None:
        """What "no answer" everywhere scores; None for 1.1, where it is not the most frequent.

        None also for a score of thresholds.
        """
        if not self.settings.with_unanswerable:
            return None
        golds = {question.id: question.answers for question in split.examples.questions}
        scores = squad.score_v2(golds, dict.fromkeys(golds, ""))
        # no threshold makes a difference
        return scores.get(name.removeprefix("best_").removesuffix("_untuned"))

    def baselines(self, train: SquadExamples, validation: Mapping[str, SquadExamples]) -> Scores:
        """Longest overlap.

        A question for which no phrase is known gets no answer, in 2.0 as well.
        """
        guesser = PhraseGuesser(
            [question.text for question in train.questions],
            [question.answers for question in train.questions],
        )
        examples = validation[""]
        guesses = {}
        golds = {}
        for question in examples.questions:
            passage = examples.passages[question.passage]
            guesses[question.id] = guesser.guess(passage, question.text)
            golds[question.id] = question.answers
        score = squad.score_v1
        if self.settings.with_unanswerable:
            score = squad.score_v2
        scores = score(golds, guesses)
        reported = [name for name in ("exact", "exact_match", "f1") if name in scores]
        return {OVERLAP: {name: scores[name] for name in reported}}

    def result_files(self, records: Sequence[PlainDict], split: PassageSplit, suffix: str) -> Files:
        """As the official scorer reads them: question id -> answer, n-best list and null odds."""
        files: Files = {}
        keys = {
            "predictions": "prediction",
            "nbest_predictions": "nbest",
            "null_odds": "null_odds",
        }
        for name, key in keys.items():
            values = {str(record["id"]): record[key] for record in records if key in record}
            if values:
                files[f"{name}{suffix}.json"] = _json_file(values)
        return files

    def prediction_files(
        self, name: str, split: PassageSplit, outputs: np.ndarray, scores: Mapping[str, float]
    ) -> Files:
        """As the official scorer reads them: answers, and of 2.0 null odds.

        Of 2.0 the validation's threshold decides which answers are empty.
        """
        answers = self._answers(outputs, split)
        if not self.settings.with_unanswerable:
            return {f"{name}.json": _json_file(answers.texts)}
        texts = with_threshold(answers, scores["threshold"])
        return {
            f"{name}.json": _json_file(texts),
            f"{name}_null_odds.json": _json_file(answers.null_odds),
        }

    def restore_config(self, saved_config: Provenance) -> PlainDict:
        """Takes the model's own threshold of no answer, or DEFAULT_THRESHOLD where it has none."""
        rules = saved_config.get("answers") or {}
        for name, value in asdict(self.settings).items():
            if rules.get(name, value) != value:
                log.warning(
                    "the model was fine-tuned with %s %s, and is scored with %s",
                    name,
                    rules.get(name),
                    value,
                )
        if not self.settings.with_unanswerable:
            return {}

        if rules.get("threshold") is None:
            log.warning(
                "the model records no threshold of no answer: %g is taken",
                DEFAULT_THRESHOLD,
            )
        threshold = saved_threshold(saved_config, DEFAULT_THRESHOLD)
        self.fixed_threshold = threshold["value"]
        return {"no_answer_threshold": threshold}

    def model_config_to_save(self, scores: Mapping[str, float]) -> PlainDict:
        """The n-best rules and, of 2.0, from which null odds on there is no answer."""
        return {"answers": asdict(self.settings) | {"threshold": scores.get("threshold")}}


def _json_file(by_question: Mapping[str, object]) -> list[str]:
    """An object with a question a line: indented, n-best lists would take twice as long."""
    lines = []
    for key, value in by_question.items():
        lines.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return ["{\n", ",\n".join(lines), "\n}\n"]


def _nbest_records(candidates: Sequence[Candidate]) -> list[PlainDict]:
    """As the released code writes them, with their probabilities."""
    records = []
    probabilities = softmax([candidate.logit for candidate in candidates])
    for candidate, probability in zip(candidates, probabilities, strict=True):
        records.append(
            {
                "text": candidate.text,
                "probability": float(probability),
                "start_logit": candidate.start_logit,
                "end_logit": candidate.end_logit,
            }
        )
    return records


def with_threshold(answers: Answers, threshold: float) -> dict[str, str]:
    """The texts, empty where the null odds are above the threshold."""
    texts = dict(answers.texts)
    for key in texts:
        if answers.null_odds[key] > threshold:
            texts[key] = ""
    return texts


def pad_tokens(values: Tensor, batch: Batch) -> Tensor:
    """[T, K] -> [B, S, K], minus infinity where a window has ended."""
    layout = batch["layout"]
    numbers = torch.arange(layout.batch_size, device=values.device)
    window = torch.repeat_interleave(numbers, layout.lengths, output_size=layout.num_tokens)
    padded = values.new_full((layout.batch_size, layout.max_seqlen, values.shape[1]), -torch.inf)
    return padded.index_put((window, batch["position_ids"]), values)
