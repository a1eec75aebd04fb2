"""Odd labels, splits and tag sets for scores: does a score say of what, and is data looked at?

Each answer is that of scikit-learn, seqeval, or plain Python on the run's own predictions.
"""

from __future__ import annotations

import csv
import datetime
import json
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas
from sklearn import metrics
from tests.fuzz.lab import READ, REFUSED, Cases, check, equal, heard
from tests.fuzz.labels import (
    COLOURS,
    TRAIN,
    VALIDATION,
    Row,
    encoder,
    facts,
    finetune,
    jsonl,
    labelled_words,
    predictions,
    record_of,
)
from tests.fuzz.making import WORDS, json_lines

import clozelab

CASES = Cases("scores")
F1 = ["task.module.metrics=[f1,accuracy,macro_f1,weighted_f1]", "task.metric=validation/f1"]


def renamed(rows: Sequence[Row], names: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(text, names[label]) for text, label in rows]


def run_rows(
    place: Path,
    train: Sequence[Any],
    validation: Sequence[Any] | None,
    *words: str,
    allows_overlap: bool = False,
) -> Path:
    """Train on rows, and score on others; without these a part of the first is held out."""
    files = {"train.jsonl": jsonl(train)}
    validation_file = "null"
    if validation is not None:
        files["validation.jsonl"] = jsonl(validation)
        validation_file = "validation.jsonl"
    every_word = [*labelled_words("train.jsonl", validation_file), *words]
    return finetune(place, files, every_word, allows_overlap=allows_overlap)


def scores_of(run: Path) -> dict[str, float]:
    scores: dict[str, float] = json.loads((run / "scores.json").read_text())["scores"]
    return scores


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def is_f1_of(run: Path, positive: str) -> None:
    """WrongError unless F1 is scikit-learn's of this class, and the run says so."""
    labels = [row["label"] for row in predictions(run)]
    answers = [row["prediction"] for row in predictions(run)]
    expected = metrics.f1_score(labels, answers, labels=[positive], average="macro")
    found = scores_of(run)
    check(abs(found["validation/f1"] - expected) < 1e-9, f"F1 is not that of {positive}")
    equal(record_of(run)["scores"]["validation/f1"]["positive_label"], positive, "the record")
    check(heard(f"f1 of {positive}"), "the screen does not name the class")
    for name in ("macro", "weighted"):
        expected = metrics.f1_score(labels, answers, average=name)
        check(abs(found[f"validation/{name}_f1"] - expected) < 1e-9, f"{name} F1")


@CASES.rows("finetune")
def f1_case(place: Path, labels: tuple[Any, Any], positive: str, word: str = "") -> None:
    """Two labels, of which one is positive: by itself, or by the word."""
    names = dict(zip(("neg", "pos"), labels, strict=True))
    words = [*F1, f"task.data.positive_label={word}"] if word else F1
    run = run_rows(place, renamed(TRAIN, names), renamed(VALIDATION, names), *words)
    is_f1_of(run, positive)


f1_case("labels 0 and 1, as GLUE's", READ, ("0", "1"), "1")
f1_case("the numbers 0 and 1", READ, (0, 1), "1")
f1_case("JSON's false and true", READ, (False, True), "true")
f1_case("labels 0 and 1, and 0 is meant", READ, ("0", "1"), "0", "0")
f1_case("the positive class comes first in the alphabet", READ, ("fraud", "ok"), "fraud", "fraud")
f1_case("the positive class comes last", READ, ("fraud", "ok"), "ok", "ok")
f1_case("false is the positive class", READ, (False, True), "false", "false")
f1_case("a positive class of two words", READ, ("very bad", "good"), "very bad", "'very bad'")
f1_case("a positive class with an accent", READ, ("refusé", "ok"), "refusé", "'refusé'")


@CASES.add("finetune", READ)
def f1_of_three(place: Path) -> None:
    """F1 of one of three classes."""
    train = [(text, COLOURS[n % 3]) for n, (text, _) in enumerate(TRAIN)]
    validation = [(text, COLOURS[n % 3]) for n, (text, _) in enumerate(VALIDATION)]
    is_f1_of(run_rows(place, train, validation, *F1, "task.data.positive_label=slow"), "slow")


unnamed = "F1 of the labels fraud and ok, and nobody says of which"
f1_case(unnamed, REFUSED, ("ok", "fraud"), "", names="fraud, ok")
not_one = "is not one of the labels neg, pos"
f1_case("A positive label that is none", REFUSED, ("neg", "pos"), "", "positive", names=not_one)


@CASES.add("finetune", REFUSED, "number")
def positive_number(place: Path) -> None:
    """A positive label of a task that predicts numbers."""
    rows = [(text, float(n)) for n, (text, _) in enumerate(TRAIN)]
    words = [
        "task.data.numeric_labels=true",
        "task.module.metrics=[spearman]",
        "task.metric=validation/spearman",
        "task.data.positive_label=1",
    ]
    run_rows(place, rows, [(f"new {text}", label) for text, label in rows], *words)


@CASES.add("evaluate", READ)
def f1_later(place: Path) -> None:
    """A stored model of the positive class fraud is scored on another file."""
    names = {"neg": "ok", "pos": "fraud"}
    word = "task.data.positive_label=fraud"
    rows = renamed(VALIDATION, names)
    run = run_rows(place, renamed(TRAIN, names), rows, *F1, word)
    words = [f"measure.{word}" for word in F1 if "metrics" in word]
    words += [f"measure.{word}" for word in labelled_words("train.jsonl", "validation.jsonl")[2:]]
    record = clozelab.evaluate(
        "measure=labelled",
        *words,
        "measure.task.metric=validation/f1",
        encoder=run / "model",
        row="odd",
        data_dir=place / "data",
        cache_dir=place / "cache",
        run_dir=place / "later",
        trainer={"precision": "32-true"},
    )
    later = Path(record.folder)
    is_f1_of(later, "fraud")
    equal(scores_of(later)["validation/f1"], scores_of(run)["validation/f1"], "F1")


# Where a classification fails


@CASES.add("finetune", READ)
def many_classes(place: Path) -> None:
    """A hundred and twenty classes."""
    train = [(f"film {n % 120} {n}", f"class {n % 120}") for n in range(360)]
    validation = [(f"dog {n % 120} {n}", f"class {n % 120}") for n in range(240)]
    classes_are_right(run_rows(place, train, validation))
    check(heard("112 more classes"), "the screen does not say how many classes it leaves out")


def classes_are_right(run: Path) -> None:
    """WrongError unless the files are scikit-learn's report of the run's predictions."""
    rows = predictions(run)
    labels = [row["label"] for row in rows]
    answers = [row["prediction"] for row in rows]
    report = metrics.classification_report(labels, answers, output_dict=True, zero_division=0.0)
    means = {"(macro mean)": "macro avg", "(weighted mean)": "weighted avg"}
    # a class that neither is a label nor an answer
    nothing = {"precision": 0, "recall": 0, "f1-score": 0, "support": 0}
    for line in read_csv(run / "classes.csv"):
        expected = report.get(means.get(line["label"], line["label"]), nothing)
        found = [float(line[key]) for key in ("precision", "recall", "f1")]
        for value, key in zip(found, ("precision", "recall", "f1-score"), strict=True):
            check(abs(value - 100 * expected[key]) < 1e-3, f"{key} of {line['label']}")
        equal(int(line["count"]), int(expected["support"]), f"count of {line['label']}")
    cells = read_csv(run / "confusion.csv")
    counts = {(cell["label"], cell["answer"]): int(cell["count"]) for cell in cells}
    equal(counts, dict(Counter(zip(labels, answers, strict=True))), "confusions")
    wrong = [row["id"] for row in rows if row["label"] != row["prediction"]]
    errors = read_csv(run / "errors.csv")
    equal(sorted(error["id"] for error in errors), sorted(wrong), "wrong answers")
    sure = [float(error["probability"]) for error in errors]
    equal(sure, sorted(sure, reverse=True), "the surest first")


ODD_NAMES = {
    "quotes": ('a "b", c', "d;e"),
    "long": ("a very long name of a class " * 4, "short"),
    "formula": ("=1+1", "-2 x"),
    "line break": ("two\nlines", "one"),
    "mean": ("(macro)", "macro mean"),
}


@CASES.rows("finetune")
def classes_case(place: Path, pair: tuple[str, str]) -> None:
    names = dict(zip(("neg", "pos"), pair, strict=True))
    classes_are_right(run_rows(place, renamed(TRAIN, names), renamed(VALIDATION, names)))


for _name, _pair in ODD_NAMES.items():
    classes_case(f"names of classes: {_name}", READ, _pair)


@CASES.add("finetune", READ)
def odd_errors(place: Path) -> None:
    """Wrong answers whose texts have quotes, commas and line breaks."""
    rows = [(f'he said, "{text}"\nand left', label) for text, label in VALIDATION]
    run = run_rows(place, TRAIN, rows)
    classes_are_right(run)
    texts = {error["text"] for error in read_csv(run / "errors.csv")}
    check(texts and texts <= {text for text, _ in rows}, "the texts of wrong answers")


@CASES.add("finetune", READ)
def pair_errors(place: Path) -> None:
    """Wrong answers to pairs, which have two texts."""

    def lines(rows: Sequence[Row]) -> str:
        return json_lines({"a": text, "b": f"other {text}", "label": y} for text, y in rows)

    words = [*labelled_words("t.jsonl", "v.jsonl"), "task.data.text_columns=[a,b]"]
    run = finetune(place, {"t.jsonl": lines(TRAIN), "v.jsonl": lines(VALIDATION)}, words)
    classes_are_right(run)
    for error in read_csv(run / "errors.csv"):
        equal(error["text_2"], f"other {error['text']}", "the second text")


# Rows in both files


@CASES.rows("finetune", "allow_validation_in_training=true")
def overlap_case(place: Path, num_shared: int, is_allowed: bool = False) -> None:
    rows = []
    for number in range(10):
        rows += [(f"new {text} {number}", label) for text, label in VALIDATION]
    shared = [(text, "pos") for text, _ in TRAIN][:num_shared]
    validation = shared if num_shared == len(TRAIN) else [*shared, *rows]
    run = run_rows(place, TRAIN, validation, allows_overlap=is_allowed)
    equal(facts(run)["data"]["validation_in_training"], num_shared, "rows in both files")
    is_warned = heard(f"{num_shared} of {len(validation)} rows")
    equal(is_warned, num_shared > 0.01 * len(validation) and not is_allowed, "a warning")


overlap_case("no row is in both files: the control", READ, 0)
overlap_case("one of 161 rows is in both files", READ, 1)
overlap_case("eight of 168 rows are in both files", READ, 8)
overlap_case("every validation row is in training, with other labels", REFUSED, 32)
overlap_case("the same, and it is allowed", READ, 32, is_allowed=True)


# One file alone


@CASES.rows("finetune")
def held_out_case(place: Path, train: Sequence[Any], *words: str) -> None:
    """The validation rows are of the file, none of their texts is trained on, classes are there."""
    run = run_rows(place, train, None, *words)
    data = facts(run)["data"]
    found = Counter(str(row["label"]) for row in predictions(run))
    equal(data["train_examples"] + sum(found.values()), len(train), "rows of both splits")
    equal(data["validation_in_training"], 0, "texts on both sides")
    check(heard("no validation file"), "the screen does not say so")
    if "task.data.numeric_labels=true" not in words:
        texts: dict[str, set[str]] = {}
        for text, label in train:
            texts.setdefault(str(label), set()).add(text)
        expected = {label for label, of_label in texts.items() if len(of_label) > 1}
        check(expected >= set(found), "a class of one text is held out")


MANY: list[Row] = []
for number in range(5):
    MANY += [(f"{text} {number}", label) for text, label in TRAIN]
held_out_case("one file, without a validation file", READ, MANY)
held_out_case("one file with every row twice", READ, [*MANY, *MANY])
held_out_case("one file with a class of one row", READ, [*MANY, ("a rare dog", "rare")])
held_out_case("half of one file", READ, MANY, "task.data.validation_fraction=0.5")
held_out_case(
    "one file of numbers",
    READ,
    [(text, float(n % 7)) for n, (text, _) in enumerate(MANY)],
    "task.data.numeric_labels=true",
    "task.module.metrics=[spearman]",
    "task.metric=validation/spearman",
)


one_text = [("the same film", label) for _, label in TRAIN]
held_out_case("One file whose rows have one text", REFUSED, one_text, names="validation_fraction")
per_cent = "A share of 10, which is meant as per cent"
tenths = "task.data.validation_fraction=10"
held_out_case(per_cent, REFUSED, MANY, tenths, names="between 0 and 1")


@CASES.add("finetune", READ)
def alone_shuffled(place: Path) -> None:
    """One file and a shuffled copy, which have one split."""
    texts = []
    for name, rows in (("a", MANY), ("b", MANY[::-1])):
        run = run_rows(place / name, rows, None)
        texts.append({rows[int(row["id"])][0] for row in predictions(run)})
    equal(texts[0], texts[1], "texts that are held out")


# What a label is


@CASES.rows("finetune")
def composite_case(place: Path, labels: Sequence[str], is_warned: bool) -> None:
    train = [(text, labels[n % len(labels)]) for n, (text, _) in enumerate(TRAIN)]
    validation = [(text, labels[n % len(labels)]) for n, (text, _) in enumerate(VALIDATION)]
    run_rows(place, train, validation)
    equal(heard("seem to be several labels"), is_warned, "a warning")


composite_case("science;old beside science and old", READ, ("science", "old", "science;old"), True)
composite_case("a|b, b|c and a|c", READ, ("a|b", "b|c", "a|c"), True)
composite_case("red, blue beside red and blue", READ, ("red", "blue", "red, blue"), True)
composite_case("Paris, France beside Rome, Italy", READ, ("Paris, France", "Rome, Italy"), False)


@CASES.add("finetune", REFUSED, "NFC and NFD")
def labels_unicode(place: Path) -> None:
    """One label in NFC and in NFD."""
    names = ["café", unicodedata.normalize("NFD", "café"), "no"]
    run_rows(place, [(text, names[n % 3]) for n, (text, _) in enumerate(TRAIN)], VALIDATION)


@CASES.rows("finetune", "label")
def parquet_case(place: Path, values: Sequence[Any], classes: list[str]) -> None:
    """Labels of Parquet, which has types."""
    (place / "data").mkdir(parents=True)
    for file, rows in (("t", TRAIN), ("v", VALIDATION)):
        labels = [values[n % len(values)] for n in range(len(rows))]
        frame = pandas.DataFrame({"text": [text for text, _ in rows], "label": labels})
        frame.to_parquet(place / "data" / f"{file}.parquet")
    run = finetune(place, {}, labelled_words("t.parquet", "v.parquet"))
    equal(sorted({row["label"] for row in predictions(run)}), classes, "classes")


DAYS = [datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)]
parquet_case("labels of type bool", READ, [True, False], ["false", "true"])
parquet_case("labels of type date", READ, DAYS, [str(day) for day in DAYS])
parquet_case("labels 0.0 and 1.0 of type float", READ, [0.0, 1.0], ["0.0", "1.0"])
parquet_case("labels 0.5 and 1.5", REFUSED, [0.5, 1.5], [])


# Tags without B- and I-


def conll(tags: Sequence[str], number: int, word: str) -> str:
    sentences = []
    for first in range(number):
        rows = [f"{word}{first}x{n} {tags[(first + n) % len(tags)]}" for n in range(6)]
        sentences.append("\n".join(rows) + "\n\n")
    return "".join(sentences)


@CASES.rows("finetune")
def tag_case(place: Path, tags: Sequence[str], *words: str) -> None:
    files = {"t.conll": conll(tags, 20, "film"), "v.conll": conll(tags, 10, "dog")}
    settings = ["train_file=t.conll", "validation_file=v.conll", "document_context=false"]
    common = ["task=ner_wnut17", *(f"task.data.{word}" for word in settings)]
    run = finetune(place, files, [*common, *words])
    rows = predictions(run)
    if "task.data.entity_tags=false" in words:
        return
    check(heard("types without B- and I-"), "nothing is said of the tags")
    from seqeval.metrics import f1_score

    expected = f1_score([row["label"] for row in rows], [row["prediction"] for row in rows])
    check(abs(scores_of(run)["validation/f1"] - expected) < 1e-9, "F1 of entities")
    types = [line["label"] for line in read_csv(run / "classes.csv")]
    equal(types[:-2], ["LOC", "PER"], "types")


PLAIN = ("O", "PER", "PER", "O", "LOC")
NOUNS = ("NOUN", "VERB", "ADJ")
ACCURACY = ("task.data.entity_tags=false", "task.metric=validation/accuracy")
tag_case("tags O, PER and LOC", READ, PLAIN)
tag_case("parts of speech as entities", REFUSED, NOUNS, names="entity_tags=false")
tag_case("parts of speech as classes", READ, NOUNS, *ACCURACY)
tag_case("tags B_PER and I_PER", REFUSED, ("O", "B_PER", "I_PER"), names="B_PER")
tag_case("tags of which some have B-", REFUSED, ("O", "PER", "B-LOC"), names="PER")


@CASES.rows("predict")
def tagger_case(place: Path, labels: Sequence[str], is_grouped: bool) -> None:
    """A foreign tagger: entities are those of transformers' simple aggregation of the tags."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForTokenClassification, pipeline

    config = BertConfig.from_pretrained(encoder())
    config.id2label = dict(enumerate(labels))
    torch.manual_seed(3)
    config.initializer_range = 1.0
    folder = str(place / "tagger")
    BertForTokenClassification(config).eval().save_pretrained(folder)
    AutoTokenizer.from_pretrained(encoder()).save_pretrained(folder)
    # Each word is one token, so that both taggers see the same.
    text = " ".join(WORDS[:12])
    grouping: dict[str, Any] = {"aggregation_strategy": "simple", "device": "cpu"}
    tagger = pipeline("token-classification", model=folder, **grouping)
    expected = [(one["entity_group"], one["start"], one["end"]) for one in tagger(text)]
    ours = clozelab.load(folder, precision="32-true", device="cpu").tag([text])[0]
    found = [(one.label, one.start, one.end) for one in ours.entities]
    if is_grouped:
        check(expected, "the trial's tagger finds no entity")
        equal(found, expected, "entities")
    else:
        equal(found, [], "entities of parts of speech")


tagger_case("a tagger with O, PER and LOC", READ, ("O", "PER", "LOC"), True)
tagger_case("a tagger with B- and I-", READ, ("O", "B-PER", "I-PER"), True)
tagger_case("a tagger of parts of speech", READ, NOUNS, False)
