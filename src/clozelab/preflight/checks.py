"""All checks of an experiment, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from clozelab.preflight.budget import check_disk, check_schedule, check_time
from clozelab.preflight.contamination import check_contamination, sample_texts
from clozelab.preflight.findings import ERROR, WARNING, Finding
from clozelab.preflight.ngrams import NgramIndex, search
from clozelab.preflight.rows import check_masks, check_pairs, sample_pairs
from clozelab.preflight.subject import Arm, Corpus, Subject
from clozelab.preflight.tasks import check_canary, check_labels, check_text
from clozelab.preflight.text import check_duplicates, check_vocabulary
from clozelab.preflight.visibility import check_visibility


def examine(subject: Subject) -> Iterator[Finding]:
    """Every finding about an experiment; a check that fails itself is an error of its own name, never silence."""
    for what, why in subject.refusals:
        yield Finding("settings", ERROR, f"{what}: {why}", "", "the same would stop the run")
    for name in subject.unprepared:
        remedy = "run the prepare stage first; until then rows are checked on made-up text"
        yield Finding("corpus", WARNING, f"{name}: not prepared yet, so its text is not checked", "", remedy)
    yield from subject.noticed
    for arm in subject.arms:
        yield from check_schedule(arm)
    # What reads rows cannot be asked where ids or lengths are impossible.
    sound = [arm for arm in subject.arms if arm.longest <= arm.config.max_position_embeddings]
    for corpus in subject.corpora:
        found = list(_tried("corpus", corpus.name, partial(_examine_corpus, subject, corpus, sound)))
        yield from found
        if any(finding.check in ("corpus", "vocabulary") and finding.level == ERROR for finding in found):
            sound = [arm for arm in sound if arm.corpus is not corpus]
    for arm in sound:
        yield from _tried("future", arm.name, partial(check_visibility, arm))
        yield from _tried("masks", arm.name, partial(check_masks, arm))
        if arm.corpus.tokenizer is None:
            yield from _tried("pairs", arm.name, partial(_pairs_alone, arm))
    for task in subject.tasks:
        for name, check in (("labels", check_labels), ("label map", check_canary), ("unknown tokens", check_text)):
            yield from _tried(name, task.name, partial(check, task))
    yield from check_disk(subject)
    yield from check_time(subject)


def _examine_corpus(subject: Subject, corpus: Corpus, arms: list[Arm]) -> Iterator[Finding]:
    """One pass over the corpus for everything that wants to know where something stands."""
    mine = [arm for arm in arms if arm.corpus is corpus]
    pairs = [(arm, sampled) for arm in mine if (sampled := sample_pairs(arm)) is not None]
    texts = [sampled for task in subject.tasks for sampled in sample_texts(task, corpus)]
    wanted = [sampled.hashes for _, sampled in pairs] + [sampled.hashes for sampled in texts]
    index: NgramIndex = search(corpus.train, np.concatenate([*wanted, np.zeros(0, dtype=np.uint64)]), corpus.unk_id)
    yield from check_vocabulary(corpus, index)
    yield from check_duplicates(corpus)
    for arm, sampled in pairs:
        yield from check_pairs(arm, sampled, index)
    for text in texts:
        yield check_contamination(text, corpus, index)


def _pairs_alone(arm: Arm) -> Iterator[Finding]:
    sampled = sample_pairs(arm)
    if sampled is not None:
        yield from check_pairs(arm, sampled, None)


def _tried(check: str, name: str, run: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from run()
    except (ValueError, IndexError, RuntimeError) as error:
        message = " ".join(str(error).split())
        remedy = "see the message; the same would have stopped the run"
        yield Finding(
            check, ERROR, f"{name}: the check could not be run: {message[:200]}", type(error).__name__, remedy
        )
