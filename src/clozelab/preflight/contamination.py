"""Whether the texts a task is scored on stand in the corpus that its encoders are trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clozelab.preflight.findings import OK, WARNING, Finding, share
from clozelab.preflight.ngrams import NGRAM, NgramIndex, ngram_hashes
from clozelab.preflight.subject import Corpus, Task
from clozelab.preflight.tasks import sample

SAMPLED_TEXTS = 1000
"""Of each part of a task (question, passage, ...)."""
MAX_TEXT_NGRAMS = 64
"""Of a long text that many, evenly spread: so that a thousand passages stay a small table."""
FOUND_FRACTION = 0.8
"""A text counts as found if this share of its n-grams is: a word may differ."""
MAX_FOUND = 0.01


@dataclass(frozen=True)
class TextSample:
    """The n-grams of some of a task's validation texts, in the corpus's own tokens."""

    task: str
    part: str
    hashes: np.ndarray
    """uint64, of all texts one after the other."""
    text: np.ndarray
    """int64: which text each belongs to."""
    num_texts: int
    """That are looked for; texts of fewer tokens than an n-gram are not."""


def sample_texts(task: Task, corpus: Corpus) -> Iterator[TextSample]:
    """One sample a part of the task."""
    assert corpus.tokenizer is not None
    for part, texts in task.preview.validation.texts.items():
        chosen = [texts[i] for i in sample(len(texts), SAMPLED_TEXTS)]
        hashes, owner, number = [], [], 0
        for ids in corpus.tokenizer.encode_batch(chosen):
            if len(ids) < NGRAM:
                continue
            found = ngram_hashes(ids)
            found = found[np.unique(np.linspace(0, len(found) - 1, MAX_TEXT_NGRAMS).astype(np.int64))]
            hashes.append(found)
            owner.append(np.full(len(found), number))
            number += 1
        if number:
            yield TextSample(task.name, part, np.concatenate(hashes), np.concatenate(owner), number)


def check_contamination(sampled: TextSample, corpus: Corpus, index: NgramIndex) -> Finding:
    """The share of texts that stand in the corpus, nearly word for word."""
    found = np.bincount(sampled.text, weights=index.is_found(sampled.hashes), minlength=sampled.num_texts)
    number = int((found >= FOUND_FRACTION * np.bincount(sampled.text, minlength=sampled.num_texts)).sum())
    figure = share(number, sampled.num_texts) + " sampled texts"
    if index.searched_fraction < 1:
        figure += f", in {100 * index.searched_fraction:.0f} % of the corpus"
    where = f"{sampled.task}: {sampled.part} texts"
    if number <= MAX_FOUND * sampled.num_texts:
        return Finding("contamination", OK, f"{where} do not stand in {corpus.name}", figure)
    remedy = "say so beside the score, or remove these documents from the corpus"
    return Finding("contamination", WARNING, f"{where} stand in the pre-training corpus {corpus.name}", figure, remedy)
