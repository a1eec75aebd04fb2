"""The official scorers of SQuAD 1.1 and 2.0, as pure functions of answer and prediction texts;
every score is in percent.

Both follow the published evaluate scripts to the letter, which differ from each other in small ways
kept here: 1.1 counts a question without a prediction as wrong, 2.0 requires one for each; an empty
prediction overlaps with nothing in
1.1 but equals "no answer" in 2.0. `answers` maps a question's id to its gold texts; in 2.0 there
may be none.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

Answers = Mapping[str, Sequence[str]]
Texts = Mapping[str, str]
Scores = Mapping[str, float]
TextScore = Callable[[str, str], float]


def normalize_answer(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """1.0 when both are equal after normalisation."""
    return float(normalize_answer(prediction) == normalize_answer(gold))


def f1(prediction: str, gold: str) -> float:
    """Overlap of the two bags of normalised words (1.1: two empty texts overlap in nothing)."""
    predicted, expected = normalize_answer(prediction).split(), normalize_answer(gold).split()
    common = sum((Counter(predicted) & Counter(expected)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(expected)
    return 2 * precision * recall / (precision + recall)


def f1_or_both_empty(prediction: str, gold: str) -> float:
    """F1 as 2.0 has it: 1.0 when both are empty after normalisation."""
    if not normalize_answer(prediction) or not normalize_answer(gold):
        return exact_match(prediction, gold)
    return f1(prediction, gold)


def score_v1(answers: Answers, predictions: Mapping[str, str]) -> dict[str, float]:
    """exact_match and f1 of SQuAD 1.1 in percent, over all questions; `unanswered`: those without a
    prediction.
    """
    _require_questions(answers)
    found = {"exact_match": exact_match, "f1": f1}
    each = {name: best_over_golds(metric, answers, predictions) for name, metric in found.items()}
    scores = {name: 100.0 * sum(values.values()) / len(answers) for name, values in each.items()}
    return scores | {"unanswered": float(len(answers) - len(each["f1"]))}


def score_v2(
    answers: Answers,
    predictions: Texts,
    no_answer_scores: Scores | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """SQuAD 2.0 in percent: exact, f1, the same by HasAns_/NoAns_, and, given no-answer scores, the
    best thresholds.

    A question whose no-answer score is above `threshold` counts as answered with "no answer",
    whatever its text is."""
    _require_questions(answers)
    if missing := [question for question in answers if question not in predictions]:
        raise ValueError(
            f"SQuAD 2.0 needs every question predicted; {len(missing)} are missing, e.g."
            f" {missing[0]}"
        )
    metrics = {"exact": exact_match, "f1": f1_or_both_empty}
    each = {name: score_each(metric, answers, predictions) for name, metric in metrics.items()}
    no_answer = no_answer_scores or dict.fromkeys(answers, 0.0)
    groups = {
        "": list(answers),
        "HasAns_": [key for key in answers if answers[key]],
        "NoAns_": [key for key in answers if not answers[key]],
    }
    result: dict[str, float] = {}
    for prefix, keys in groups.items():
        if keys:
            for name, values in each.items():
                counted = (
                    float(not answers[key]) if no_answer[key] > threshold else values[key]
                    for key in keys
                )
                result[prefix + name] = 100.0 * sum(counted) / len(keys)
            result[prefix + "total"] = float(len(keys))
    if no_answer_scores is not None:
        for name, values in each.items():
            best, at = best_threshold(values, answers, predictions, no_answer_scores)
            result |= {f"best_{name}": best, f"best_{name}_thresh": at}
    return result


def tuned_threshold(
    answers: Answers, predictions: Texts, no_answer_scores: Scores
) -> tuple[float, dict[str, float]]:
    """(threshold with the highest F1 on these questions, all scores at that threshold), as the
    paper chooses tau.

    Unusual: the released search (`best_threshold`) may stop between questions of equal score, which
    no threshold can tell apart, and calls "answer nothing" 0.0; this one only looks at thresholds
    that exist."""
    answered = score_each(f1_or_both_empty, answers, predictions)
    current = best = sum(float(not answers[key]) for key in answers)
    threshold = min(no_answer_scores.values()) - 1.0
    ordered = sorted(answers, key=lambda key: no_answer_scores[key])
    for number, question in enumerate(ordered, start=1):
        current += answered[question] - float(not answers[question])
        here = no_answer_scores[question]
        is_last_of_equals = number == len(ordered) or no_answer_scores[ordered[number]] != here
        if is_last_of_equals and current > best:
            best, threshold = current, here
    return threshold, score_v2(answers, predictions, no_answer_scores, threshold)


def score_each(
    metric: TextScore, answers: Answers, predictions: Mapping[str, str]
) -> dict[str, float]:
    """A question's best score over its gold texts, as 2.0 reads them: no gold text means the empty
    one.
    """
    golds = {
        key: [text for text in texts if normalize_answer(text)] or [""]
        for key, texts in answers.items()
    }
    return best_over_golds(metric, golds, predictions)


def average_precisions(
    answers: Answers, predictions: Texts, no_answer_scores: Scores
) -> dict[str, float]:
    """Average precision in percent of answering by rising no-answer score, as the released script
    prints it with
    --out-image-dir; nothing where no question has an answer."""
    total = sum(bool(texts) for texts in answers.values())
    if not total:
        return {}
    values = {
        "pr_exact": score_each(exact_match, answers, predictions),
        "pr_f1": score_each(f1_or_both_empty, answers, predictions),
        "pr_oracle": {key: float(bool(texts)) for key, texts in answers.items()},
    }
    ordered = sorted(no_answer_scores, key=lambda key: no_answer_scores[key])
    found = {}
    for name, scores in values.items():
        true_positives = average = recall_before = 0.0
        for number, question in enumerate(ordered, start=1):
            true_positives += scores[question] if answers[question] else 0.0
            precision, recall = true_positives / number, true_positives / total
            if (
                number == len(ordered)
                or no_answer_scores[question] != no_answer_scores[ordered[number]]
            ):
                average += precision * (recall - recall_before)
                recall_before = recall
        found[f"{name}_ap"] = 100.0 * average
    return found


def best_threshold(
    each: Scores, answers: Answers, predictions: Texts, no_answer_scores: Scores
) -> tuple[float, float]:
    """The best reachable score in percent and the no-answer threshold that reaches it (released
    `find_best_thresh`).

    Walks through the questions by rising no-answer score, as if those so far were answered and all
    later ones not."""
    current = best = float(sum(not texts for texts in answers.values()))
    threshold = 0.0
    for question in sorted(no_answer_scores, key=lambda key: no_answer_scores[key]):
        if question not in each:
            continue
        if answers[question]:
            current += each[question]
        elif predictions[question]:
            current -= 1.0
        if current > best:
            best, threshold = current, no_answer_scores[question]
    return 100.0 * best / len(each), threshold


def best_over_golds(
    metric: TextScore, answers: Answers, predictions: Mapping[str, str]
) -> dict[str, float]:
    """A predicted question's best score over its gold texts, as 1.1 reads them."""
    return {
        key: max((metric(predictions[key], gold) for gold in golds), default=0.0)
        for key, golds in answers.items()
        if key in predictions
    }


def _require_questions(answers: Answers) -> None:
    if not answers:
        raise ValueError("no questions to score")
