"""A task's files: labels, exchanged labels, unknown words, cut texts, texts in the corpus.

The canary for exchanged labels is the bag of words, fitted on training examples and tried on
validation examples. Where it has learnt anything, the names of the classes must mean the same in
both files: if another assignment of names fits clearly better than the given one, a label map is
wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np

from clozelab.checks.corpus import NGRAM, NgramIndex, ngram_hashes, unknown_tokens
from clozelab.checks.subject import (
    ERROR,
    WARNING,
    Case,
    Finding,
    Task,
    all_findings,
    first_finding,
    share,
)
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.planning.arms import Corpus
from clozelab.tasks.baselines import guess_classes
from clozelab.tasks.preview import Preview, TaskPreview
from clozelab.tasks.sequences import subset
from clozelab.tasks.splitting import Overlap, swapped_hashes, text_hashes

CANARY_TRAIN = 4000
CANARY_VALIDATION = 2000
CANARY_SIGMAS = 5.0
MAX_CANARY_CLASSES = 6
# fewer say too little; WNLI's 71 turn their training neighbours' labels on purpose
MIN_CANARY_EXAMPLES = 100
SAMPLED_TEXTS = 2000
MAX_REPAIRED = 0.05
MANY_LOST = 0.2
MAX_CUT = 0.05
NARROW_RANGE = 0.5  # numbers that fill less than this of their range are on another scale
OTHER_SCALE = "the labels are on another scale than task.module.number_range, or of another column"
RIGHT_FILE = "is it the right file and column?"
LABEL_KEYS = (
    "put task.data.labels and the files' label column (task.data.label_column) in agreement"
)
LOCATED_TEXTS = 1000  # of each part of a task (question, passage, ...), looked for in the corpus
# of a long text that many, evenly spread: so that a thousand passages stay a small table
MAX_TEXT_NGRAMS = 64
FOUND_FRACTION = 0.8  # a text counts as found if this share of its n-grams is: a word may differ
MAX_FOUND = 0.01


def check_labels(task: Task) -> Iterator[Finding]:
    """Labels in the files and in the configuration."""
    check = _answers
    if task.preview.predicts_numbers:
        check = _numbers
    elif task.preview.label_names is not None:
        check = _names
    elif task.preview.expects_unanswerable is None:
        check = _no_labels
    cases, figure = check(task)
    for text in task.preview.warnings:
        cases.append(Case(True, WARNING, text, "mend the file, or know that it is read so"))
    yield from all_findings("labels", task.name, "labels are as configured", figure, cases)


def _splits(task: Task) -> list[tuple[str, Preview]]:
    return [("train", task.preview.train), ("validation", task.preview.validation)]


def _names(task: Task) -> tuple[list[Case], str]:
    """Of classes: what may be wrong with their names, and the share of each in training."""
    names = [str(name) for name in task.preview.label_names or ()]
    cases = []
    has_foreign = False
    for split, preview in _splits(task):
        foreign = sorted(set(preview.labels or ()) - set(names))
        has_foreign |= bool(foreign)
        problem = f"the {split} file has labels that are not the task's: {foreign[:5]}"
        cases.append(Case(bool(foreign), ERROR, problem, LABEL_KEYS))

    in_train = Counter(task.preview.train.labels or ())
    in_validation = Counter(task.preview.validation.labels or ())
    if not has_foreign:
        cases += _missing_labels(names, in_train, in_validation)
    cases += _label_order(task, names)
    total = max(1, in_train.total())
    shares = [f"{name} {100 * in_train[name] / total:.0f} %" for name in names[:6]]
    return cases, ", ".join(shares)


def _missing_labels(
    names: Sequence[str], in_train: Counter[str], in_validation: Counter[str]
) -> list[Case]:
    """Labels without an example; a slip that follows from another one is not said besides."""
    missing = [name for name in names if not in_train[name]]
    unasked = [name for name in names if not in_validation[name]]
    is_single = len(in_train) < 2
    return [
        Case(is_single, ERROR, "the training file has a single label", RIGHT_FILE),
        Case(
            not is_single and bool(missing),
            ERROR,
            f"no example of {missing} in training",
            LABEL_KEYS,
        ),
        Case(
            not missing and bool(unasked),
            WARNING,
            f"no example of {unasked} in validation",
            RIGHT_FILE,
        ),
    ]


def _label_order(task: Task, names: Sequence[str]) -> list[Case]:
    """The order of the configured labels, and whether the metric fits them."""
    are_numbers = all(name.isdecimal() for name in names)
    # Names that are read off a file are in the order of text: 1, 10, 2.
    is_in_order = are_numbers and list(names) in (sorted(names), sorted(names, key=int))
    numeric = Case(
        are_numbers and not is_in_order,
        ERROR,
        f"the label map is out of order: {names}",
        "list numeric labels in rising order",
    )
    binary = Case(
        "f1" in task.metrics and task.preview.positive_label is None,
        ERROR,
        "f1 is of one class, and the task does not say which",
        "name it by task.data.positive_label, or take macro_f1",
    )
    return [numeric, binary]


def _numbers(task: Task) -> tuple[list[Case], str]:
    """Of a regression: numbers, inside the range, filling it, and not all the same."""
    low, high = task.number_range or (-np.inf, np.inf)
    cases = []
    figures = []
    for split, preview in _splits(task):
        if preview.labels is None:
            continue  # texts that belong together have no numbers
        try:
            values = [float(label) for label in preview.labels]
        except ValueError as error:
            problem = f"the {split} file's labels are no numbers: {error}"
            return [Case(True, ERROR, problem, RIGHT_FILE)], ""
        # An empty file is one of a single label, too.
        least = min(values, default=0.0)
        most = max(values, default=0.0)
        is_outside = least < low or most > high
        is_narrow = np.isfinite(high - low) and most - least < NARROW_RANGE * (high - low)
        numbers = f"numbers of the {split} file"
        limits = f"{low:g} to {high:g}"
        cases += [
            Case(least == most, ERROR, f"the {split} file has a single label", RIGHT_FILE),
            Case(is_outside, ERROR, f"{numbers} lie outside {limits}", OTHER_SCALE),
            Case(bool(is_narrow), ERROR, f"{numbers} fill little of {limits}", OTHER_SCALE),
        ]
        figures.append(f"{split} {least:g} to {most:g}")
    return cases, ", ".join(figures)


def _no_labels(task: Task) -> tuple[list[Case], str]:
    """Of pairs that belong together."""
    return [], f"{task.preview.train.num_examples} pairs without labels"


def _answers(task: Task) -> tuple[list[Case], str]:
    """Of spans: answers stand where the file says, and only questions of 2.0 lack one."""
    cases = []
    figures = []
    for split, preview in _splits(task):
        repaired = preview.counts.get("answer_offset_repaired", 0)
        lost = preview.counts.get("answer_not_in_passage", 0)
        without = preview.counts.get("question_without_answer", 0)
        wrong_share = max(repaired, lost) / max(1, preview.num_examples)
        level = WARNING
        if wrong_share > MANY_LOST:
            level = ERROR
        questions = "no question"
        if without:
            questions = "questions"
        cases += [
            Case(
                wrong_share > MAX_REPAIRED,
                level,
                f"answers of the {split} file are not at their offsets",
                "see where it is from",
            ),
            Case(
                bool(without) != bool(task.preview.expects_unanswerable),
                ERROR,
                f"the {split} file has {questions} without an answer",
                "is it 1.1 or 2.0? Set task.data.with_unanswerable, or another file",
            ),
        ]
        figures.append(
            f"{split}: {repaired} offsets repaired, {lost} answers not in their passage, {without}"
            " without"
        )
    return cases, "; ".join(figures)


def check_canary(task: Task) -> Iterator[Finding]:
    """Whether the labels of both files mean the same, as far as words can tell."""
    preview = task.preview
    names = list(preview.label_names or ())
    if preview.predicts_numbers:
        names = ["low", "high"]
    if not preview.one_label_each:
        return
    if not preview.aligned or not 2 <= len(names) <= MAX_CANARY_CLASSES:
        return
    train_classes = _classes(task, names, preview.train)
    validation_classes = _classes(task, names, preview.validation)
    if train_classes is None or validation_classes is None:
        return  # check_labels has said why
    if min(len(train_classes), len(validation_classes)) < MIN_CANARY_EXAMPLES:
        return
    table = _confusion(preview, train_classes, validation_classes, len(names))

    # Hits of every assignment of names: as they are, and the other one that fits best. With three
    # classes, (1, 0, 2) counts a guess of the first as right where the truth is the second.
    classes = range(len(names))
    hits = {}
    for assignment in permutations(classes):
        hits[assignment] = int(table[classes, assignment].sum())
    given = hits.pop(tuple(classes))
    best = max(hits, key=hits.__getitem__)
    # Chance makes two such counts differ by about the root of their sum.
    is_exchanged = hits[best] - given > CANARY_SIGMAS * max(1.0, hits[best] + given) ** 0.5
    exchanged = [f"{names[i]} -> {names[j]}" for i, j in enumerate(best) if i != j]

    number = int(table.sum())
    recalls = [table[k, k] / max(1, table[:, k].sum()) for k in classes]
    good = "words say nothing of the labels: not known"
    if float(np.mean(recalls)) > 1 / len(names) + 2 / number**0.5:
        good = "labels mean the same in both files"
    yield first_finding(
        "label map",
        task.name,
        good,
        f"of {number}, {given / number:.0%} guessed from words, {hits[best] / number:.0%} with"
        " names exchanged",
        Case(
            is_exchanged,
            ERROR,
            "labels of the training and the validation file are exchanged"
            f" ({', '.join(exchanged)})",
            "one of both files has another label map: see where each is from",
        ),
    )


def _confusion(
    preview: TaskPreview,
    train_classes: np.ndarray,
    validation_classes: np.ndarray,
    num_classes: int,
) -> np.ndarray:
    """Sampled validation examples by guessed and by true class, [num_classes, num_classes]."""
    train = subset(len(train_classes), CANARY_TRAIN)
    validation = subset(len(validation_classes), CANARY_VALIDATION)
    # Balanced: a class must not win by being frequent in one of the files.
    guesses = guess_classes(
        _text_pairs(preview.train, train),
        train_classes[train],
        _text_pairs(preview.validation, validation),
        num_classes,
        balanced=True,
    )
    table = np.zeros((num_classes, num_classes), dtype=np.int64)
    np.add.at(table, (guesses, validation_classes[validation]), 1)
    return table


def _text_pairs(preview: Preview, rows: Iterable[int]) -> list[tuple[str, str]]:
    """Both texts of some examples; an empty one where there is no second."""
    first, second = [*preview.texts.values(), [""] * preview.num_examples][:2]
    return [(first[row], second[row]) for row in rows]


def _classes(task: Task, names: Sequence[str], preview: Preview) -> np.ndarray | None:
    """Index of each example's label; None: unknown.

    Of numbers: below or above the middle of the training file's.
    """
    labels = list(preview.labels or ())
    if task.preview.predicts_numbers:
        try:
            middle = float(np.median([float(label) for label in task.preview.train.labels or ()]))
            return np.array([int(float(label) > middle) for label in labels])
        except ValueError:
            return None
    index = {str(name): number for number, name in enumerate(names)}
    # A label that no class has: check_labels says so.
    if not set(labels) <= set(index):
        return None
    return np.array([index[label] for label in labels])


def check_text(task: Task) -> Iterator[Finding]:
    """Unknown words, texts that are cut, and validation examples that stand in training."""
    for arm, tokenizer in task.tokenizers.items():
        name = task.name
        if len(task.tokenizers) > 1:
            name += f", {arm}"
        yield from _check_tokens(task, name, tokenizer)
    yield _check_overlap(task)


def _check_tokens(task: Task, name: str, tokenizer: Tokenizer) -> Iterator[Finding]:
    """Unknown words, and texts that are cut."""
    num_unknown = 0
    lengths = []  # of each part of the task (question, passage, ...), in tokens
    for texts in task.preview.validation.texts.values():
        sample = [texts[i] for i in subset(len(texts), SAMPLED_TEXTS)]
        ids, text_lengths = tokenizer.encode_flat(sample)
        num_unknown += int((ids == tokenizer.unk_id).sum())
        lengths.append(text_lengths)
    num_tokens = int(sum(text_lengths.sum() for text_lengths in lengths))
    yield unknown_tokens(name, num_unknown, num_tokens)

    # What a prompt's template takes of each sequence, with its mask, is no text's.
    num_fixed = 0
    if task.preview.template:
        num_fixed = len(tokenizer.encode_flat(task.preview.template)[0]) + 1
    inputs = _input_lengths(task.preview, tokenizer, lengths) + num_fixed
    # Inputs are cut at what the encoder's training reached, whatever the task asks for.
    limit = min(task.max_seq_length, task.trained_length)
    reason = "max_seq_length"
    if task.max_seq_length > task.trained_length:
        reason = "the longest phase of pre-training"
    num_cut = int((inputs > limit).sum())
    full = Case(
        num_fixed > max(0, limit - 2 - len(lengths)),
        ERROR,
        "the template leaves no place for a text",
        f"shorten task.data.template, or raise {reason}",
    )
    case = Case(
        num_cut > MAX_CUT * len(inputs) and not task.reads_windows,
        WARNING,
        "many texts do not fit",
        f"raise {reason}, or know that these are cut (passages: seen in windows)",
    )
    figure = f"{share(num_cut, len(inputs))} longer than {limit} tokens"
    if task.reads_windows:
        figure += ", read in windows"
    yield first_finding("lengths", name, "texts fit", figure, full, case)


def _input_lengths(
    preview: TaskPreview, tokenizer: Tokenizer, lengths: Sequence[np.ndarray]
) -> np.ndarray:
    """Tokens of sampled sequences, with [CLS], and a [SEP] behind each text; `lengths` by part."""
    if preview.pairs_read == "apart":
        return np.concatenate(lengths) + 2
    if preview.pairs_read == "choices":
        rows = preview.validation.rows
        of_rows = [tokenizer.encode_flat(rows[i])[1] for i in subset(len(rows), SAMPLED_TEXTS)]
        return np.concatenate([context[0] + context[1:] for context in of_rows]) + 3
    if preview.aligned:
        return np.sum(lengths, axis=0) + 1 + len(lengths)
    return np.concatenate(lengths) + 3


def _check_overlap(task: Task) -> Finding:
    """Validation examples that stand in training."""
    train = text_hashes(task.preview.train.rows)
    rows = task.preview.validation.rows
    swapped = None
    if len(task.preview.validation.texts) == 2:
        swapped = swapped_hashes(rows)
    overlap = Overlap.between(train, text_hashes(rows), swapped=swapped)
    case = Case(
        overlap.is_large,
        WARNING,
        "validation examples stand in the training file",
        "scores flatter every arm alike: remove them from training",
    )
    figure = share(overlap.num_seen, overlap.num_rows)
    return first_finding("task overlap", task.name, "validation examples are new", figure, case)


@dataclass(frozen=True)
class TaskNgrams:
    """The n-grams of some of a task's validation texts, in the corpus's own tokens."""

    task: str
    part: str
    hashes: np.ndarray  # uint64, of all texts one after the other
    text: np.ndarray  # int64: which text each belongs to
    num_texts: int  # that are looked for; texts of fewer tokens than an n-gram are not


def sample_texts(task: Task, corpus: Corpus) -> Iterator[TaskNgrams]:
    """One sample a part of the task."""
    assert corpus.tokenizer is not None
    for part_name, texts in task.preview.validation.texts.items():
        sample = [texts[i] for i in subset(len(texts), LOCATED_TEXTS)]
        hashes = []
        for ids in corpus.tokenizer.encode_batch(sample):
            if len(ids) >= NGRAM:
                of_text = ngram_hashes(ids)
                hashes.append(of_text[_spread_places(len(of_text))])
        if hashes:
            owner = np.repeat(np.arange(len(hashes)), [len(of_text) for of_text in hashes])
            yield TaskNgrams(task.name, part_name, np.concatenate(hashes), owner, len(hashes))


@cache  # texts are of few lengths
def _spread_places(num_hashes: int) -> np.ndarray:
    """Of some n-grams of a text, MAX_TEXT_NGRAMS at most, evenly spread."""
    return np.unique(np.linspace(0, num_hashes - 1, MAX_TEXT_NGRAMS).astype(np.int64))


def check_contamination(sample: TaskNgrams, corpus: Corpus, index: NgramIndex) -> Finding:
    """The share of texts that stand in the corpus, nearly word for word."""
    num_found = np.bincount(sample.text, weights=index.is_found(sample.hashes))  # n-grams of a text
    num_texts = int((num_found >= FOUND_FRACTION * np.bincount(sample.text)).sum())
    figure = (
        f"{share(num_texts, sample.num_texts)} sampled texts, in {index.searched_fraction:.0%} of"
        " the corpus"
    )
    case = Case(
        num_texts > MAX_FOUND * sample.num_texts,
        WARNING,
        f"texts stand in the corpus {corpus.name}",
        "say so beside the score, or remove these documents from the corpus",
    )
    name = f"{sample.task}, {sample.part}"
    good = f"texts do not stand in the corpus {corpus.name}"
    return first_finding("contamination", name, good, figure, case)
