"""A task's files: labels against the configuration, a canary for exchanged labels, unknown words, cut texts.

The canary is the bag of words, fitted on training examples and tried on validation examples. It is far too weak to be a
result. But where it has learnt anything, the names of the classes must mean the same in both files: if another
assignment of names fits clearly better than the given one, a label map is wrong.

The last check looks whether the texts that a task is scored on stand in the corpus of its encoders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np

from clozelab.checks.ngrams import NGRAM, NgramIndex, ngram_hashes
from clozelab.checks.subject import ERROR, OK, WARNING, Finding, Task, share
from clozelab.checks.text import unknown_tokens
from clozelab.corpus.random import uniform_u64
from clozelab.datamodules.baselines import guess_classes
from clozelab.datamodules.examples import Preview

if TYPE_CHECKING:
    from clozelab.planning.jobs import Corpus

CANARY_TRAIN, CANARY_VALIDATION = 4000, 2000
CANARY_SIGMAS = 5.0
MAX_CANARY_CLASSES = 6
MIN_CANARY_EXAMPLES = 100
"""Fewer say too little; and WNLI's 71 have the labels of their neighbours in training turned on purpose."""
SAMPLED_TEXTS = 2000
MAX_REPAIRED, MANY_LOST = 0.05, 0.2
MAX_CUT = 0.05
MAX_SEEN = 0.05
NARROW_RANGE = 0.5
"""Numbers that fill less than this of their range are on another scale."""


def check_labels(task: Task) -> Iterator[Finding]:
    """Label names in the files, in the configuration and in the encoder's folder; what the numbers of a task span."""
    preview = task.preview
    wrong: list[tuple[str, str, str, str]] = []
    if preview.is_regression:
        wrong, figure = _check_numbers(task)
    elif preview.label_names is None:
        wrong, figure = _check_answers(task)
    else:
        wrong, figure = _check_names(task)
    for level, what, number, remedy in wrong:
        yield Finding("labels", level, f"{task.name}: {what}", number, remedy)
    if not wrong:
        yield Finding("labels", OK, f"{task.name}: labels are as configured", figure)


def _check_names(task: Task) -> tuple[list[tuple[str, str, str, str]], str]:
    names = [str(name) for name in task.preview.label_names or ()]
    counts = {split: Counter(found.labels or ()) for split, found in _splits(task)}
    train, held_out = counts["train"], counts["validation"]
    total = sum(train.values())
    figure = ", ".join(f"{name} {100 * train[name] / max(1, total):.0f} %" for name in names[:6])
    wrong = []
    fix = "put task.data.labels and the files' label column (task.data.label_column) in agreement"
    for split, found in counts.items():
        foreign = sorted(set(found) - set(names))
        if foreign:
            wrong.append((ERROR, f"the {split} file has labels that are not the task's: {foreign[:5]}", figure, fix))
    if not wrong and (missing := [name for name in names if not train[name]]):
        only = "a single label" if len(names) - len(missing) == 1 else f"no example of {missing}"
        wrong.append((ERROR, f"the training file has {only}", figure, fix))
    elif not wrong and len(train) < 2:
        wrong.append((ERROR, "the training file has a single label", figure, "is it the right file and column?"))
    if not wrong and (missing := [name for name in names if not held_out[name]]):
        wrong.append((WARNING, f"the validation file has no example of {missing}", figure, "scores say nothing of it"))
    if all(name.isdecimal() for name in names) and names != sorted(names, key=int):
        fix = "list numeric labels in rising order: scores such as F1 count class 1"
        wrong.append((ERROR, f"the label map is out of order: {names}", figure, fix))
    if "f1" in task.metrics and len(names) > 2:
        wrong.append((ERROR, f"f1 is of two classes, the task has {len(names)}", figure, "choose another task.metric"))
    stored = [str(name) for name in task.stored_label_names or ()]
    if set(stored) == set(names) and stored != names:
        what = f"the encoder's folder has these labels in another order: {stored} against {names}"
        wrong.append((ERROR, what, figure, "give task.data.labels in the encoder's order: its predictions are indices"))
    return wrong, figure


def _check_numbers(task: Task) -> tuple[list[tuple[str, str, str, str]], str]:
    """Of a regression: numbers, inside the range, filling it, and not all the same."""
    values = {}
    for split, found in _splits(task):
        try:
            values[split] = np.array([float(label) for label in found.labels or ()])
        except ValueError as error:
            return [(ERROR, f"the {split} file's labels are no numbers: {error}", "", "see task.data.label_column")], ""
    figure = ", ".join(f"{split} {row.min():g} to {row.max():g}" for split, row in values.items() if len(row))
    fix = "the labels are on another scale than task.module.number_range, or of another column"
    low, high = task.number_range or (-np.inf, np.inf)
    wrong = []
    for split, numbers in values.items():
        if not len(numbers) or numbers.min() == numbers.max():
            wrong.append((ERROR, f"the {split} file has a single label", figure, "is it the right file and column?"))
        elif numbers.min() < low or numbers.max() > high:
            wrong.append((ERROR, f"numbers of the {split} file lie outside {low:g} to {high:g}", figure, fix))
        elif np.isfinite(high - low) and numbers.max() - numbers.min() < NARROW_RANGE * (high - low):
            wrong.append((ERROR, f"numbers of the {split} file fill little of {low:g} to {high:g}", figure, fix))
    return wrong, figure


def _check_answers(task: Task) -> tuple[list[tuple[str, str, str, str]], str]:
    """Of spans: answers stand where the file says, and only questions of 2.0 lack one."""
    wrong, figures = [], []
    for split, found in _splits(task):
        number = max(1, found.num_examples)
        repaired, lost = found.counts.get("answer_offset_repaired", 0), found.counts.get("answer_not_in_passage", 0)
        without = found.counts.get("question_without_answer", 0)
        figure = f"{split}: {repaired} offsets repaired, {lost} answers not in their passage, {without} without answer"
        figures.append(figure)
        misplaced = f"answers of the {split} file are not where it says"
        if lost > MANY_LOST * number or repaired > MANY_LOST * number:
            wrong.append((ERROR, misplaced, figure, "take an undamaged file"))
        elif lost > MAX_REPAIRED * number or repaired > MAX_REPAIRED * number:
            wrong.append((WARNING, misplaced, figure, "see where it is from"))
        if bool(without) != bool(task.preview.expects_unanswerable):
            what = f"the {split} file has {'questions' if without else 'no question'} without an answer"
            wrong.append((ERROR, what, figure, "is it 1.1 or 2.0? Set task.data.with_unanswerable, or another file"))
    return wrong, "; ".join(figures)


def _splits(task: Task) -> list[tuple[str, Preview]]:
    return [("train", task.preview.train), ("validation", task.preview.validation)]


def check_canary(task: Task) -> Iterator[Finding]:
    """Whether the labels of both files mean the same, as far as words can tell."""
    preview = task.preview
    names = list(preview.label_names or (("low", "high") if preview.is_regression else ()))
    if not preview.aligned or not 2 <= len(names) <= MAX_CANARY_CLASSES:
        return
    known, asked = (_classes(task, names, found) for _, found in _splits(task))
    if known is None or asked is None or min(len(known), len(asked)) < MIN_CANARY_EXAMPLES:
        return  # check_labels has said why
    train, held_out = sample(len(known), CANARY_TRAIN), sample(len(asked), CANARY_VALIDATION)
    truth = asked[held_out]
    texts = _pairs(preview.train, train), _pairs(preview.validation, held_out)
    # Balanced: a class must not win by being frequent in one of the files.
    guess = guess_classes(texts[0], known[train], texts[1], len(names), balanced=True)
    table = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(table, (guess, truth), 1)
    given, best, other = _agreement(table)
    figure = f"{100 * given / len(truth):.0f} % of {len(truth)} guessed from words"
    if (other - given) > CANARY_SIGMAS * max(1.0, other + given) ** 0.5:
        pairs = ", ".join(f"{names[i]} -> {names[j]}" for i, j in enumerate(best) if i != j)
        what = f"{task.name}: labels of the training and the validation file are exchanged ({pairs})"
        figure += f", {100 * other / len(truth):.0f} % after exchanging"
        remedy = "one of both files has another label map: see where each is from"
        yield Finding("label map", ERROR, what, figure, remedy)
    else:
        balanced = float(np.mean([table[k, k] / max(1, table[:, k].sum()) for k in range(len(names))]))
        told = balanced > 1 / len(names) + 2 / len(truth) ** 0.5
        what = "labels mean the same in both files" if told else "words say nothing of the labels: not known"
        yield Finding("label map", OK, f"{task.name}: {what}", figure)


def _agreement(table: np.ndarray) -> tuple[int, tuple[int, ...], int]:
    """(hits as the labels are, the other assignment that fits best, its hits)."""
    number = len(table)
    hits = {order: int(sum(table[i, j] for i, j in enumerate(order))) for order in permutations(range(number))}
    given = hits.pop(tuple(range(number)))
    best = max(hits, key=hits.__getitem__)
    return given, best, hits[best]


def _classes(task: Task, names: Sequence[str], found: Preview) -> np.ndarray | None:
    """Index of each example's label; of numbers, below or above the middle of the training file's; None: unknown."""
    labels = list(found.labels or ())
    if task.preview.is_regression:
        try:
            middle = float(np.median([float(label) for label in task.preview.train.labels or ()]))
            return np.array([int(float(label) > middle) for label in labels])
        except ValueError:
            return None
    index = {str(name): number for number, name in enumerate(names)}
    return np.array([index[label] for label in labels]) if set(labels) <= set(index) else None


def _pairs(found: Preview, chosen: np.ndarray) -> list[tuple[str, str]]:
    """The chosen examples; the second side of a single text is empty."""
    first, second = [*found.texts.values(), [""] * found.num_examples][:2]
    return [(first[row], second[row]) for row in chosen.tolist()]


def sample(number: int, limit: int) -> np.ndarray:
    """Up to `limit` of `number` examples, in order, the same every time."""
    if number <= limit:
        return np.arange(number)
    return np.sort(np.argsort(uniform_u64(0, 0, "preflight", np.arange(number)), kind="stable")[:limit])


def check_text(task: Task) -> Iterator[Finding]:
    """Unknown words, texts longer than the encoder's training, and validation examples that stand in training."""
    if task.tokenizer is not None:
        unknown = tokens = 0
        parts: dict[str, np.ndarray] = {}
        for name, texts in task.preview.validation.texts.items():
            chosen = [texts[i] for i in sample(len(texts), SAMPLED_TEXTS)]
            ids, lengths = task.tokenizer.encode_flat(chosen)
            unknown, tokens = unknown + int((ids == task.tokenizer.unk_id).sum()), tokens + len(ids)
            parts[name] = lengths
        yield unknown_tokens(task.name, unknown, tokens)
        yield _cut_texts(task, parts)
    if task.preview.aligned:
        yield _seen_examples(task)


def _cut_texts(task: Task, parts: dict[str, np.ndarray]) -> Finding:
    """Inputs are cut at what the encoder's training reached, whatever the task asks for."""
    limit = min(task.max_seq_length, task.trained_length)
    if task.preview.aligned:
        lengths = np.sum(list(parts.values()), axis=0) + 1 + len(parts)
    else:
        lengths = np.concatenate(list(parts.values())) + 3
    cut = int((lengths > limit).sum())
    figure = f"{share(cut, len(lengths))} longer than {limit} tokens"
    if cut <= MAX_CUT * len(lengths):
        return Finding("lengths", OK, f"{task.name}: texts fit", figure)
    why = "max_seq_length" if task.max_seq_length <= task.trained_length else "the longest phase of pre-training"
    remedy = f"raise {why}, or know that these are cut (passages: seen in windows)"
    return Finding("lengths", WARNING, f"{task.name}: many texts do not fit", figure, remedy)


def _seen_examples(task: Task) -> Finding:
    """Validation examples that training has word for word."""
    keys = [set(zip(*found.texts.values(), strict=True)) for _, found in _splits(task)]
    both, number = len(keys[0] & keys[1]), len(keys[1])
    level = WARNING if both > MAX_SEEN * number else OK
    what = "validation examples stand in the training file" if level != OK else "validation examples are new"
    remedy = "scores flatter every arm alike: remove them from training" if level != OK else ""
    return Finding("task overlap", level, f"{task.name}: {what}", share(both, number), remedy)


LOCATED_TEXTS = 1000
"""Of each part of a task (question, passage, ...), looked for in the corpus."""
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
        chosen = [texts[i] for i in sample(len(texts), LOCATED_TEXTS)]
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
