"""What the tasks of SuperGLUE predict: classes, choices and candidates, with its files to submit.

A *candidate* is a row of its own: an answer to a question, with the label 1 where it is right and 0
where not. Its id names question and candidate, `12/Rome`. A candidate is trained on by itself;
scores are of questions.

Letters: N candidates of a split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from clozelab.metrics.candidates import (
    CHOICE_METRICS,
    SET_METRICS,
    best_candidates,
    choice_scores,
    set_scores,
)
from clozelab.metrics.metric import Metric
from clozelab.tasks.baselines import BAG, Scores, guess_classes, text_pairs
from clozelab.tasks.classes import ClassTarget
from clozelab.tasks.right_choice import ChoiceTarget
from clozelab.tasks.target import Files, Outcome, json_lines
from clozelab.tasks.unit import Split
from clozelab.text.plain import Json, JsonObject

FREQUENT_CANDIDATE = "most frequent candidate"


class SubmittedClass(ClassTarget):
    """A class, which a submission names in its own way.

    Args:
        submitted: what a submission calls the classes, in their order; None: as the files do.
        classes: what ClassTarget takes.
    """

    def __init__(self, *, submitted: Sequence[str] | None = None, **classes: Any) -> None:
        self.submitted = submitted
        super().__init__(**classes)

    def writes_names(self) -> bool:
        return self.submitted is None

    def prediction_files(
        self, name: str, split: Split, outputs: np.ndarray, scores: Mapping[str, float]
    ) -> Files:
        names = self.classes if self.submitted is None else self.submitted
        answers = [names[number] for number in self.predict(outputs)]
        return submission(name, zip(split.ids, answers, strict=True))


class SubmittedChoice(ChoiceTarget):
    """The number of the right choice, from 0."""

    def prediction_files(
        self, name: str, split: Split, outputs: np.ndarray, scores: Mapping[str, float]
    ) -> Files:
        return submission(name, zip(split.ids, self.predict(outputs).tolist(), strict=True))


def submission(name: str, answers: Iterable[tuple[str, Json]]) -> Files:
    """The file of a test set from (id of an example, answer)."""
    records = [{"idx": index_of(example), "label": answer} for example, answer in answers]
    return {f"{name}.jsonl": json_lines(records)}


def index_of(written: str) -> int | str:
    """An id as the files have it: nearly always a number."""
    return int(written) if written.isdecimal() else written


class CandidateTarget(ClassTarget):
    """Base of what is predicted of candidates: whether each is right.

    Args:
        class_weights: what ClassTarget takes; few candidates may be right.
    """

    of_questions: ClassVar[Sequence[Metric]]  # the scores

    def __init__(self, *, class_weights: Mapping[object, float] | str | None = None) -> None:
        super().__init__(labels=["0", "1"], class_weights=class_weights)
        self.metrics = list(self.of_questions)

    def writes_names(self) -> bool:
        return False  # 0 and 1, or the candidate itself

    def majority_score(self, name: str, split: Split) -> float | None:
        return None

    def are_right(self, classes: np.ndarray) -> NDArray[np.bool_]:
        """Which of some classes [N] are "1"; a model may have it before "0"."""
        return classes == self.classes.index("1")

    @staticmethod
    def parts_of(ids: Iterable[str]) -> tuple[list[str], list[str]]:
        """The question [N] and the candidate [N] that each id names."""
        questions = []
        candidates = []
        for written in ids:
            question, _, candidate = written.partition("/")
            questions.append(question)
            candidates.append(candidate)
        return questions, candidates


class AnswerSetTarget(CandidateTarget):
    """MultiRC: any number of candidates may be right."""

    of_questions = SET_METRICS

    def scores_of(self, outputs: np.ndarray, split: Split) -> dict[str, float]:
        questions, _ = self.parts_of(split.ids)
        answers = self.are_right(self.predict(outputs))
        return set_scores(questions, answers, self.are_right(split.labels))

    def baselines(self, train: Any, validation: Mapping[str, Any]) -> Scores:
        """Bag of words."""
        examples = validation[""]
        guesses = guess_classes(
            text_pairs(train.texts), self.encode(train.labels), text_pairs(examples.texts), 2
        )
        questions, _ = self.parts_of(examples.ids)
        labels = self.are_right(self.encode(examples.labels))
        return {BAG: set_scores(questions, self.are_right(guesses), labels)}

    def prediction_files(
        self, name: str, split: Split, outputs: np.ndarray, scores: Mapping[str, float]
    ) -> Files:
        """A passage a line, with its questions and the label of each of their answers."""
        passages: dict[str, dict[str, list[JsonObject]]] = {}
        labels = self.are_right(self.predict(outputs)).astype(int).tolist()
        for place, answer, label in zip(*self.parts_of(split.ids), labels, strict=True):
            passage, _, question = place.partition("-")
            answers = passages.setdefault(passage, {}).setdefault(question, [])
            answers.append({"idx": index_of(answer), "label": label})
        records = []
        for passage, of_passage in passages.items():
            questions = []
            for question, answers in of_passage.items():
                questions.append({"idx": index_of(question), "answers": answers})
            records.append({"idx": index_of(passage), "passage": {"questions": questions}})
        return {f"{name}.jsonl": json_lines(records)}


class AnswerTarget(CandidateTarget):
    """ReCoRD: the candidate that is most probably right answers its question."""

    of_questions = CHOICE_METRICS

    def scores_of(self, outputs: np.ndarray, split: Split) -> dict[str, float]:
        labels = self.are_right(split.labels)
        return choice_scores(*self.parts_of(split.ids), self.margins(outputs), labels)

    def margins(self, outputs: np.ndarray) -> NDArray[np.floating]:
        """[N, 2] -> [N]: how much rather a candidate is right."""
        right = self.classes.index("1")
        return outputs[:, right] - outputs[:, 1 - right]

    def evaluate(self, outputs: np.ndarray, split: Split) -> Outcome:
        # Few candidates are right, so "none" for each of them is no collapse: their order counts.
        return replace(super().evaluate(outputs, split), is_collapsed=False)

    def baselines(self, train: Any, validation: Mapping[str, Any]) -> Scores:
        """The candidate that its passage names most often."""
        examples = validation[""]
        questions, candidates = self.parts_of(examples.ids)
        counts = []
        for candidate, (passage, _) in zip(candidates, examples.texts, strict=True):
            counts.append(passage.count(candidate))
        labels = self.are_right(self.encode(examples.labels))
        scores = choice_scores(questions, candidates, np.array(counts), labels)
        return {FREQUENT_CANDIDATE: scores}

    def prediction_files(
        self, name: str, split: Split, outputs: np.ndarray, scores: Mapping[str, float]
    ) -> Files:
        questions, candidates = self.parts_of(split.ids)
        best = best_candidates(questions, self.margins(outputs))
        return submission(
            name, ((question, candidates[number]) for question, number in best.items())
        )
