"""A task's files: labels against the configuration, exchanged labels, unknown words, cut texts,
texts in the corpus.

The canary for exchanged labels is the bag of words, fitted on training examples and tried on
validation examples. Where it has learnt anything, the names of the classes must mean the same in
both files: if another assignment of names fits clearly better than the given one, a label map is
wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from clozelab.checks.corpus import NGRAM, NgramIndex, ngram_hashes, unknown_tokens
from clozelab.checks.subject import ERROR, WARNING, Case, Finding, Task, finding, findings, share
from clozelab.datamodules.baselines import guess_classes
from clozelab.datamodules.examples import subset
from clozelab.datamodules.files import Preview
from clozelab.planning.jobs import Corpus

CANARY_TRAIN, CANARY_VALIDATION = 4000, 2000
CANARY_SIGMAS = 5.0
MAX_CANARY_CLASSES = 6
# fewer say too little; WNLI's 71 turn their training neighbours' labels on purpose
MIN_CANARY_EXAMPLES = 100
SAMPLED_TEXTS = 2000
MAX_REPAIRED, MANY_LOST = 0.05, 0.2
MAX_CUT = 0.05
MAX_SEEN = 0.05
NARROW_RANGE = 0.5  # numbers that fill less than this of their range are on another scale
RIGHT_FILE = "is it the right file and column?"
LABEL_KEYS = (
    "put task.data.labels and the files' label column (task.data.label_column) in agreement"
)


def check_labels(task: Task) -> Iterator[Finding]:
    """Label names in the files, in the configuration and in the encoder's folder; what the numbers
    of a task span.
    """
    look = _names if task.preview.label_names is not None else _answers
    cases, figure = (_numbers if task.preview.is_regression else look)(task)
    yield from findings("labels", task.name, "labels are as configured", figure, cases)


def _names(task: Task) -> tuple[list[Case], str]:
    given = task.preview.label_names, task.stored_label_names
    names, stored = ([str(name) for name in one or ()] for one in given)
    counts = [Counter(found.labels or ()) for _, found in _splits(task)]
    train = counts[0]
    foreign = [sorted(set(found) - set(names)) for found in counts]
    missing, unasked = ([name for name in names if not found[name]] for found in counts)
    is_ours, is_single = not any(foreign), len(train) < 2
    is_unsorted = all(name.isdecimal() for name in names) and names != sorted(names, key=int)
    is_reordered = set(stored) == set(names) and stored != names
    other_order = (
        f"the encoder's folder has these labels in another order: {stored} against {names}"
    )
    indices = "give task.data.labels in the encoder's order: its predictions are indices"
    cases = [
        *(
            (
                bool(found),
                ERROR,
                f"the {split} file has labels that are not the task's: {found[:5]}",
                LABEL_KEYS,
            )
            for (split, _), found in zip(_splits(task), foreign, strict=True)
        ),
        (is_ours and is_single, ERROR, "the training file has a single label", RIGHT_FILE),
        (
            is_ours and not is_single and bool(missing),
            ERROR,
            f"no example of {missing} in training",
            LABEL_KEYS,
        ),
        (
            is_ours and not missing and bool(unasked),
            WARNING,
            f"no example of {unasked} in validation",
            RIGHT_FILE,
        ),
        (
            is_unsorted,
            ERROR,
            f"the label map is out of order: {names}",
            "list numeric labels in rising order",
        ),
        (
            "f1" in task.metrics and len(names) > 2,
            ERROR,
            "f1 is of two classes alone",
            "choose another task.metric",
        ),
        (is_reordered, ERROR, other_order, indices),
    ]
    return cases, ", ".join(
        f"{name} {100 * train[name] / max(1, train.total()):.0f} %" for name in names[:6]
    )


def _numbers(task: Task) -> tuple[list[Case], str]:
    """Of a regression: numbers, inside the range, filling it, and not all the same."""
    low, high = task.number_range or (-np.inf, np.inf)
    fix = "the labels are on another scale than task.module.number_range, or of another column"
    cases, figures = [], []
    for split, found in _splits(task):
        try:
            values = [float(label) for label in found.labels or ()] or [0.0]
        except ValueError as error:
            return [
                (True, ERROR, f"the {split} file's labels are no numbers: {error}", RIGHT_FILE)
            ], ""
        least, most = min(values), max(values)
        narrow = np.isfinite(high - low) and most - least < NARROW_RANGE * (high - low)
        cases += [
            (least == most, ERROR, f"the {split} file has a single label", RIGHT_FILE),
            (
                least < low or most > high,
                ERROR,
                f"numbers of the {split} file lie outside {low:g} to {high:g}",
                fix,
            ),
            (
                bool(narrow),
                ERROR,
                f"numbers of the {split} file fill little of {low:g} to {high:g}",
                fix,
            ),
        ]
        figures.append(f"{split} {least:g} to {most:g}")
    return cases, ", ".join(figures)


def _answers(task: Task) -> tuple[list[Case], str]:
    """Of spans: answers stand where the file says, and only questions of 2.0 lack one."""
    cases, figures = [], []
    for split, found in _splits(task):
        names = ("answer_offset_repaired", "answer_not_in_passage", "question_without_answer")
        repaired, lost, without = (found.counts.get(name, 0) for name in names)
        part = max(repaired, lost) / max(1, found.num_examples)
        level, wanted = (
            ERROR if part > MANY_LOST else WARNING,
            bool(task.preview.expects_unanswerable),
        )
        fix = "is it 1.1 or 2.0? Set task.data.with_unanswerable, or another file"
        what = f"the {split} file has {'questions' if without else 'no question'} without an answer"
        cases += [
            (
                part > MAX_REPAIRED,
                level,
                f"answers of the {split} file are not where it says",
                "see where it is from",
            ),
            (bool(without) != wanted, ERROR, what, fix),
        ]
        figures.append(
            f"{split}: {repaired} offsets repaired, {lost} answers not in their passage, {without}"
            " without"
        )
    return cases, "; ".join(figures)


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
    train, held_out = subset(len(known), CANARY_TRAIN), subset(len(asked), CANARY_VALIDATION)
    truth, number, pairs = asked[held_out], len(held_out), []
    for found, chosen in ((preview.train, train), (preview.validation, held_out)):
        first, second = [*found.texts.values(), [""] * found.num_examples][:2]
        pairs.append([(first[row], second[row]) for row in chosen])
    # Balanced: a class must not win by being frequent in one of the files.
    table = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(
        table,
        (guess_classes(pairs[0], known[train], pairs[1], len(names), balanced=True), truth),
        1,
    )
    # Hits of every assignment of names: as they are, and the other one that fits best.
    hits = {
        order: int(table[range(len(names)), order].sum())
        for order in permutations(range(len(names)))
    }
    given = hits.pop(tuple(range(len(names))))
    best = max(hits, key=hits.__getitem__)
    is_exchanged = hits[best] - given > CANARY_SIGMAS * max(1.0, hits[best] + given) ** 0.5
    exchanged = ", ".join(f"{names[i]} -> {names[j]}" for i, j in enumerate(best) if i != j)
    balanced = float(np.mean([table[k, k] / max(1, table[:, k].sum()) for k in range(len(names))]))
    told = balanced > 1 / len(names) + 2 / number**0.5
    yield finding(
        "label map",
        task.name,
        (
            "labels mean the same in both files"
            if told
            else "words say nothing of the labels: not known"
        ),
        f"of {number}, {given / number:.0%} guessed from words, {hits[best] / number:.0%} with"
        " names exchanged",
        (
            is_exchanged,
            ERROR,
            f"labels of the training and the validation file are exchanged ({exchanged})",
            "one of both files has another label map: see where each is from",
        ),
    )


def _classes(task: Task, names: Sequence[str], found: Preview) -> np.ndarray | None:
    """Index of each example's label; of numbers, below or above the middle of the training file's;
    None: unknown.
    """
    labels = list(found.labels or ())
    if task.preview.is_regression:
        try:
            middle = float(np.median([float(label) for label in task.preview.train.labels or ()]))
            return np.array([int(float(label) > middle) for label in labels])
        except ValueError:
            return None
    index = {str(name): number for number, name in enumerate(names)}
    return np.array([index[label] for label in labels]) if set(labels) <= set(index) else None


def check_text(task: Task) -> Iterator[Finding]:
    """Unknown words, texts longer than the encoder's training, and validation examples that stand
    in training.
    """
    preview = task.preview
    if task.tokenizer is not None:
        unknown, lengths = 0, []
        for texts in preview.validation.texts.values():
            ids, found = task.tokenizer.encode_flat(
                [texts[i] for i in subset(len(texts), SAMPLED_TEXTS)]
            )
            unknown += int((ids == task.tokenizer.unk_id).sum())
            lengths.append(found)
        yield unknown_tokens(task.name, unknown, int(sum(found.sum() for found in lengths)))
        # Inputs are cut at what the encoder's training reached, whatever the task asks for.
        limit = min(task.max_seq_length, task.trained_length)
        whole = (
            np.sum(lengths, axis=0) + 1 + len(lengths)
            if preview.aligned
            else np.concatenate(lengths) + 3
        )
        cut = int((whole > limit).sum())
        why = (
            "max_seq_length"
            if task.max_seq_length <= task.trained_length
            else "the longest phase of pre-training"
        )
        remedy = f"raise {why}, or know that these are cut (passages: seen in windows)"
        figure = f"{share(cut, len(whole))} longer than {limit} tokens"
        many = (cut > MAX_CUT * len(whole), WARNING, "many texts do not fit", remedy)
        yield finding("lengths", task.name, "texts fit", figure, many)
    if preview.aligned:
        train, held_out = (
            set(zip(*found.texts.values(), strict=True)) for _, found in _splits(task)
        )
        seen, remedy = (
            len(train & held_out),
            "scores flatter every arm alike: remove them from training",
        )
        many = (
            seen > MAX_SEEN * len(held_out),
            WARNING,
            "validation examples stand in the training file",
            remedy,
        )
        yield finding(
            "task overlap",
            task.name,
            "validation examples are new",
            share(seen, len(held_out)),
            many,
        )


LOCATED_TEXTS = 1000  # of each part of a task (question, passage, ...), looked for in the corpus
# of a long text that many, evenly spread: so that a thousand passages stay a small table
MAX_TEXT_NGRAMS = 64
FOUND_FRACTION = 0.8  # a text counts as found if this share of its n-grams is: a word may differ
MAX_FOUND = 0.01


@dataclass(frozen=True)
class TextSample:
    """The n-grams of some of a task's validation texts, in the corpus's own tokens."""

    task: str
    part: str
    hashes: np.ndarray  # uint64, of all texts one after the other
    text: np.ndarray  # int64: which text each belongs to
    num_texts: int  # that are looked for; texts of fewer tokens than an n-gram are not


def sample_texts(task: Task, corpus: Corpus) -> Iterator[TextSample]:
    """One sample a part of the task."""
    assert corpus.tokenizer is not None
    for part, texts in task.preview.validation.texts.items():
        chosen = [texts[i] for i in subset(len(texts), LOCATED_TEXTS)]
        hashes = [
            ngram_hashes(ids) for ids in corpus.tokenizer.encode_batch(chosen) if len(ids) >= NGRAM
        ]
        spread = [
            np.unique(np.linspace(0, len(one) - 1, MAX_TEXT_NGRAMS).astype(np.int64))
            for one in hashes
        ]
        if hashes:
            found = np.concatenate(
                [one[places] for one, places in zip(hashes, spread, strict=True)]
            )
            owner = np.repeat(np.arange(len(hashes)), [len(places) for places in spread])
            yield TextSample(task.name, part, found, owner, len(hashes))


def check_contamination(sampled: TextSample, corpus: Corpus, index: NgramIndex) -> Finding:
    """The share of texts that stand in the corpus, nearly word for word."""
    found = np.bincount(sampled.text, weights=index.is_found(sampled.hashes))
    number = int((found >= FOUND_FRACTION * np.bincount(sampled.text)).sum())
    figure = (
        f"{share(number, sampled.num_texts)} sampled texts, in {index.searched_fraction:.0%} of the"
        " corpus"
    )
    remedy = "say so beside the score, or remove these documents from the corpus"
    many = (
        number > MAX_FOUND * sampled.num_texts,
        WARNING,
        f"texts stand in the corpus {corpus.name}",
        remedy,
    )
    name = f"{sampled.task}, {sampled.part}"
    return finding(
        "contamination", name, f"texts do not stand in the corpus {corpus.name}", figure, many
    )
