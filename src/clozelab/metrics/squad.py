"""The official scorers of SQuAD 1.1 and 2.0, as pure functions of texts; scores are in percent.

Both follow the published evaluate scripts to the letter, which differ from each other in small ways
kept here: 1.1 counts a question without a prediction as wrong, 2.0 requires one for each; an empty
prediction overlaps with nothing in 1.1 but equals "no answer" in 2.0. `answers` maps a question's
id to its gold texts; in 2.0 there may be none.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from clozelab.metrics.metric import PERCENT, Metric

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _declared(name: str) -> Metric:
    """A score in percent; from which null odds on there is no answer is neither good nor bad."""
    if name in ("threshold", "best_exact_thresh", "best_f1_thresh"):
        return Metric(name, "logits", higher_is_better=None)
    return Metric(name, PERCENT, higher_is_better=True)


V1_SCORES = ("exact_match", "f1")
# some of them need questions without an answer
V2_SCORES = (
    "exact",
    "f1",
    "threshold",
    "exact_untuned",
    "f1_untuned",
    "HasAns_exact",
    "HasAns_f1",
    "NoAns_exact",
    "NoAns_f1",
    "best_exact",
    "best_exact_thresh",
    "best_f1",
    "best_f1_thresh",
    "pr_exact_ap",
    "pr_f1_ap",
    "pr_oracle_ap",
)
V1_DECLARED = tuple(map(_declared, V1_SCORES))
V2_DECLARED = tuple(map(_declared, V2_SCORES))

Answers = Mapping[str, Sequence[str]]
Texts = Mapping[str, str]
Scores = Mapping[str, float]
TextScore = Callable[[str, str], float]


def normalize_answer(text: str) -> str:
    """Return a text in lower case, without ASCII punctuation and articles, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """Return 1.0 when both are equal after normalisation, else 0.0."""
    return float(normalize_answer(prediction) == normalize_answer(gold))


def f1(prediction: str, gold: str) -> float:
    """Return the overlap of the two bags of normalised words, from 0.0 to 1.0.

    As in 1.1, two empty texts overlap in nothing.
    """
    predicted = normalize_answer(prediction).split()
    expected = normalize_answer(gold).split()
    # Counters joined by & keep the smaller count of each word.
    num_common = sum((Counter(predicted) & Counter(expected)).values())
    if not num_common:
        return 0.0
    precision = num_common / len(predicted)
    recall = num_common / len(expected)
    return 2 * precision * recall / (precision + recall)


def f1_or_both_empty(prediction: str, gold: str) -> float:
    """Return F1 as 2.0 has it: 1.0 when both are empty after normalisation."""
    if not normalize_answer(prediction) or not normalize_answer(gold):
        return exact_match(prediction, gold)
    return f1(prediction, gold)


METRICS_V1: Mapping[str, TextScore] = {"exact_match": exact_match, "f1": f1}
METRICS_V2: Mapping[str, TextScore] = {"exact": exact_match, "f1": f1_or_both_empty}


def score_v1(answers: Answers, predictions: Texts) -> dict[str, float]:
    """Return exact_match and f1 of SQuAD 1.1 in percent, over all questions.

    `unanswered` is the number of those without a prediction.
    """
    _require_questions(answers)
    scores = {}
    num_answered = 0
    for name, metric in METRICS_V1.items():
        question_scores = best_over_golds(metric, answers, predictions)
        num_answered = len(question_scores)
        scores[name] = 100.0 * sum(question_scores.values()) / len(answers)
    scores["unanswered"] = float(len(answers) - num_answered)
    return scores


def score_v2(
    answers: Answers,
    predictions: Texts,
    no_answer_scores: Scores | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Return the scores of SQuAD 2.0 in percent.

    They are exact and f1, the same by HasAns_ and NoAns_, and, given no-answer scores, the best
    thresholds.

    Args:
        answers: question -> gold texts.
        predictions: question -> predicted text, of every question.
        no_answer_scores: question -> how sure the model is that there is no answer.
        threshold: a question whose no-answer score is above it counts as answered with
            "no answer", whatever its text is.
    """
    _require_questions(answers)
    _require_predictions(answers, predictions)
    raw_scores = {}
    for name, metric in METRICS_V2.items():
        raw_scores[name] = score_each(metric, answers, predictions)

    # all questions, those with an answer, those without one
    groups = {
        "": list(answers),
        "HasAns_": [question for question in answers if answers[question]],
        "NoAns_": [question for question in answers if not answers[question]],
    }
    no_answer = no_answer_scores or dict.fromkeys(answers, 0.0)
    result = {}
    for prefix, questions in groups.items():
        if questions:
            for name, scores in raw_scores.items():
                counted = _with_no_answers(scores, answers, questions, no_answer, threshold)
                result[prefix + name] = 100.0 * sum(counted) / len(questions)
            result[prefix + "total"] = float(len(questions))

    if no_answer_scores is not None:
        for name, scores in raw_scores.items():
            best, best_at = best_threshold(scores, answers, predictions, no_answer_scores)
            result[f"best_{name}"] = best
            result[f"best_{name}_thresh"] = best_at
    return result


def _require_predictions(answers: Answers, predictions: Texts) -> None:
    missing = [question for question in answers if question not in predictions]
    if missing:
        raise ValueError(
            f"SQuAD 2.0 needs every question predicted; {len(missing)} are missing, e.g."
            f" {missing[0]}"
        )


def _with_no_answers(
    scores: Scores,
    answers: Answers,
    questions: Sequence[str],
    no_answer_scores: Scores,
    threshold: float,
) -> list[float]:
    """Return what counts for each question, with "no answer" where the model is sure of it."""
    counted = []
    for question in questions:
        if no_answer_scores[question] > threshold:
            counted.append(float(not answers[question]))
        else:
            counted.append(scores[question])
    return counted


def tuned_threshold(
    answers: Answers, predictions: Texts, no_answer_scores: Scores
) -> tuple[float, dict[str, float]]:
    """Return the threshold with the highest F1 on these questions, and all scores at it.

    So the paper chooses tau. Unusual: the released search (`best_threshold`) may stop between
    questions of equal score, which no threshold can tell apart, and calls "answer nothing" 0.0;
    this one only looks at thresholds that exist.
    """
    answered = score_each(f1_or_both_empty, answers, predictions)
    # the sum of F1 where nothing is answered; then one question more at each step is
    current = sum(float(not answers[question]) for question in answers)
    best = current
    # Below every score, so that no question is answered.
    threshold = min(no_answer_scores.values()) - 1.0
    ordered = sorted(answers, key=lambda question: no_answer_scores[question])
    for number, question in enumerate(ordered, start=1):
        current += answered[question] - float(not answers[question])
        if _is_last_of_equals(ordered, number, no_answer_scores) and current > best:
            best = current
            threshold = no_answer_scores[question]
    return threshold, score_v2(answers, predictions, no_answer_scores, threshold)


def _is_last_of_equals(ordered: Sequence[str], number: int, scores: Scores) -> bool:
    """Whether the next question after the first `number` has another score."""
    return number == len(ordered) or scores[ordered[number]] != scores[ordered[number - 1]]


def score_each(metric: TextScore, answers: Answers, predictions: Texts) -> dict[str, float]:
    """Return each question's best score over its gold texts, as 2.0 reads them.

    No gold text means the empty one.
    """
    golds = {}
    for question, texts in answers.items():
        golds[question] = [text for text in texts if normalize_answer(text)] or [""]
    return best_over_golds(metric, golds, predictions)


def average_precisions(
    answers: Answers, predictions: Texts, no_answer_scores: Scores
) -> dict[str, float]:
    """Return the average precision in percent of answering by rising no-answer score.

    So the released script prints it with --out-image-dir. There is nothing where no question has an
    answer.
    """
    num_answerable = sum(bool(texts) for texts in answers.values())
    if not num_answerable:
        return {}
    question_scores = {
        "pr_exact": score_each(exact_match, answers, predictions),
        "pr_f1": score_each(f1_or_both_empty, answers, predictions),
        "pr_oracle": {question: float(bool(texts)) for question, texts in answers.items()},
    }
    ordered = sorted(no_answer_scores, key=lambda question: no_answer_scores[question])
    result = {}
    for name, scores in question_scores.items():
        true_positives = 0.0
        average = 0.0
        recall_before = 0.0
        # a point of the curve where a threshold can be: behind the last of equal scores
        for number, question in enumerate(ordered, start=1):
            if answers[question]:
                true_positives += scores[question]
            if _is_last_of_equals(ordered, number, no_answer_scores):
                precision = true_positives / number
                recall = true_positives / num_answerable
                average += precision * (recall - recall_before)
                recall_before = recall
        result[f"{name}_ap"] = 100.0 * average
    return result


def best_threshold(
    scores: Scores, answers: Answers, predictions: Texts, no_answer_scores: Scores
) -> tuple[float, float]:
    """Return the best reachable score in percent and the no-answer threshold that reaches it.

    This is the released `find_best_thresh`. It walks through the questions by rising no-answer
    score, as if those so far were answered and all later ones not.
    """
    # where nothing is answered, questions without an answer are right
    current = float(sum(not texts for texts in answers.values()))
    best = current
    threshold = 0.0
    for question in sorted(no_answer_scores, key=lambda question: no_answer_scores[question]):
        if question not in scores:
            continue
        if answers[question]:
            current += scores[question]
        elif predictions[question]:
            current -= 1.0
        if current > best:
            best = current
            threshold = no_answer_scores[question]
    return 100.0 * best / len(scores), threshold


def best_over_golds(metric: TextScore, answers: Answers, predictions: Texts) -> dict[str, float]:
    """Return each predicted question's best score over its gold texts, as 1.1 reads them."""
    best = {}
    for question, golds in answers.items():
        if question in predictions:
            scores = [metric(predictions[question], gold) for gold in golds]
            best[question] = max(scores, default=0.0)
    return best


def _require_questions(answers: Answers) -> None:
    if not answers:
        raise ValueError("no questions to score")
