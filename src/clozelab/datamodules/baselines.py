"""What simple methods score on a task's validation split, learnt from the very examples that a run is trained on.

Scores have the names and the unit of the task's own scorer (shares of one, SQuAD's in percent). They are the same for
every encoder and seed, so they lie in the cache: the first run of a task computes them, the others read them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from clozelab.data.baselines.words import BAG, OVERLAP, TAGS, PhraseGuesser, most_frequent_tags
from clozelab.data.readers.cache import Facts, cached_folder, one_at_a_time
from clozelab.data.readers.glue import TextExamples
from clozelab.data.readers.squad import SquadExamples, SquadQuestion
from clozelab.data.readers.swag import ChoiceExamples
from clozelab.metrics import glue
from clozelab.metrics.entities import OUTSIDE, entity_scores, tag_scores
from clozelab.metrics.squad import score_v1, score_v2

log = logging.getLogger(__name__)

BASELINES_VERSION = 1
"""Raised when other code gives other scores of the same files: older cache folders are then not found."""
Scores = dict[str, dict[str, float]]
"""Baseline -> score's name -> value."""
Sentence = tuple[Sequence[str], Sequence[str]]
"""(words, tags)."""


def cached_scores(folder: Path, compute: Callable[[], Scores]) -> Scores:
    """The scores in `folder`, computed first where they are missing; a process that wants them meanwhile waits."""

    def write(_: Path) -> Facts:
        began = time.process_time()
        scores = compute()
        seconds = round(time.process_time() - began, 2)
        log.info("surface baselines of %s after %.1f CPU seconds: %s", folder.name, seconds, scores)
        return {"scores": scores, "seconds": seconds}

    if folder.is_dir():  # nobody waits for the baseline of another task
        return dict(cached_folder(folder, write)["scores"])
    with one_at_a_time(folder.parent):
        return dict(cached_folder(folder, write)["scores"])


def of_labels(train: TextExamples, asked: Mapping[str, TextExamples], names: Sequence[str]) -> Scores:
    """Bag of words. `asked`: prefix of the scores' names -> examples; `names` of the classes, none for numbers."""
    from clozelab.data.baselines.bag import guess_classes, guess_numbers  # scipy: only who computes waits for it

    index = {name: number for number, name in enumerate(names)}

    def values(examples: TextExamples) -> np.ndarray:
        labels = examples.labels or []
        return np.array([index[label] for label in labels] if names else [float(label) for label in labels])

    texts = [pair for examples in asked.values() for pair in _pairs(examples)]
    guesses: np.ndarray
    if names:
        metrics = ["accuracy", "f1", "matthews"] if len(names) == 2 else ["accuracy"]
        guesses = guess_classes(_pairs(train), values(train), texts, len(names))
    else:
        metrics = ["spearman", "pearson"]
        guesses = guess_numbers(_pairs(train), values(train), texts)
    scores: dict[str, float] = {}
    for prefix, examples in asked.items():
        mine, guesses = guesses[: len(examples)], guesses[len(examples) :]
        scores |= {f"{prefix}{name}": value for name, value in glue.score(metrics, mine, values(examples)).items()}
    return {BAG: scores}


def of_choices(train: ChoiceExamples, asked: ChoiceExamples) -> Scores:
    """Bag of words: the ending that looks most like a right one."""
    from clozelab.data.baselines.bag import guess_choices

    pairs, asked_pairs = (list(zip(one.contexts, one.endings, strict=True)) for one in (train, asked))
    labels, truth = (np.array(one.labels, dtype=np.int64) for one in (train, asked))
    return {BAG: glue.score(["accuracy"], guess_choices(pairs, labels, asked_pairs), truth)}


def of_spans(train: Sequence[SquadQuestion], asked: SquadExamples, *, with_unanswerable: bool) -> Scores:
    """Longest overlap; a question for which no phrase is known gets no answer, in 2.0 as well."""
    guesser = PhraseGuesser([one.text for one in train], [one.answers for one in train])
    guesses = {one.id: guesser.guess(asked.passages[one.passage], one.text) for one in asked.questions}
    answers = {one.id: one.answers for one in asked.questions}
    scores = score_v2(answers, guesses) if with_unanswerable else score_v1(answers, guesses)
    kept = ("exact", "f1") if with_unanswerable else ("exact_match", "f1")
    return {OVERLAP: {name: scores[name] for name in kept}}


def of_tags(train: Sequence[Sentence], asked: Sequence[Sentence], *, entity_tags: bool) -> Scores:
    """Each word's most frequent tag; an unknown word is no entity, or has the most frequent tag of all."""
    counts = Counter(name for _, names in train for name in names)
    unknown = OUTSIDE if entity_tags else counts.most_common(1)[0][0]
    guesses = most_frequent_tags(train, [words for words, _ in asked], unknown)
    return {TAGS: (entity_scores if entity_tags else tag_scores)(guesses, [names for _, names in asked])}


def _pairs(examples: TextExamples) -> list[tuple[str, str]]:
    return list(zip(examples.first, examples.second or [""] * len(examples), strict=True))
