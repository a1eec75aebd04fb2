"""All checks of an experiment, in the order in which they are told; findings and facts as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from clozelab.checks.budget import check_disk, check_schedule, check_time
from clozelab.checks.instances import check_masks, check_pairs, sample_pairs
from clozelab.checks.machine import Fact
from clozelab.checks.ngrams import NgramIndex, search
from clozelab.checks.subject import ERROR, OK, WARNING, Finding, Subject
from clozelab.checks.tasks import check_canary, check_contamination, check_labels, check_text, sample_texts
from clozelab.checks.text import check_duplicates, check_vocabulary
from clozelab.checks.visibility import check_visibility
from clozelab.terminal import Heading, make_table

if TYPE_CHECKING:
    from clozelab.planning.jobs import Arm, Corpus


def examine(subject: Subject) -> Iterator[Finding]:
    """Every finding about an experiment; a check that fails itself is an error of its own name, never silence."""
    for what, why in subject.refusals:
        yield Finding("settings", ERROR, f"{what}: {why}", "", "the same would stop the run")
    for name in subject.unprepared:
        remedy = "run the prepare stage first; until then instances are checked on made-up text"
        yield Finding("corpus", WARNING, f"{name}: not prepared yet, so its text is not checked", "", remedy)
    yield from subject.noticed
    for arm in subject.arms:
        yield from check_schedule(arm)
    # What reads rows cannot be asked where ids or lengths are impossible.
    short_enough = [arm for arm in subject.arms if arm.longest <= arm.config.max_position_embeddings]
    sound = [one for arm in short_enough for one in arm.by_objective()]
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
        what = f"{name}: the check could not be run: {' '.join(str(error).split())[:200]}"
        yield Finding(check, ERROR, what, type(error).__name__, "see the message; the same would have stopped the run")


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """One line a finding, what went wrong last and with its remedy."""
    order = (OK, WARNING, ERROR)
    lines = []
    for one in sorted(findings, key=lambda one: order.index(one.level)):
        lines.append([one.check, one.level, one.what, one.figure])
        if one.remedy:
            lines.append(["", "", f"-> {one.remedy}", ""])
    headings = [Heading("check"), Heading("result"), Heading("what", folds=True), Heading("figure", folds=True)]
    console.print(make_table(headings, lines, console.width))
    counts = Counter(one.level for one in findings)
    console.print(", ".join(f"{counts[level]} {level}" for level in order if counts[level]))


def print_facts(facts: Iterable[Fact], versions: Mapping[str, str], console: Console) -> None:
    """Groups of facts as they come, and the versions."""
    lines = [[fact.group, fact.name, fact.value, fact.note] for fact in facts]
    lines += [["versions", name, version, ""] for name, version in versions.items()]
    for after, before in zip(reversed(lines[1:]), reversed(lines[:-1]), strict=True):
        after[0] = "" if after[0] == before[0] else after[0]  # a group is named once
    headings = [Heading("group"), Heading("what"), Heading("found", folds=True), Heading("note", folds=True)]
    console.print(make_table(headings, lines, console.width))
