"""Odd files of labelled texts for `finetune`: two steps of a tiny encoder, compared with those of a
clean twin.

The twin is a clean file of the rows that plain Python wrote. A run is
right where its weights equal the twin's byte for byte (so it trained on the same texts and labels
in the same order), its classes are the true ones, and its predictions name the true labels in the
true order.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas
from tests.fuzz.lab import EITHER, READ, REFUSED, Cases, check, equal, heard
from tests.fuzz.layouts import in_every_layout
from tests.fuzz.making import json_lines, parquet, plain_encoder, table

import clozelab

CASES = Cases("label files")
Row = tuple[str, str]  # text and label
Files = Mapping[str, bytes | str]

COLOURS = ("red", "blue", "slow", "fast")
TRAIN: list[Row] = [
    (f"the {COLOURS[n % 4]} film {n}", ("neg", "pos")[n // 2 % 2]) for n in range(32)
]
VALIDATION: list[Row] = [(f"a {COLOURS[n % 4]} dog {n}", ("neg", "pos")[n % 2]) for n in range(16)]


# Runs


@cache
def twins_folder() -> tempfile.TemporaryDirectory[str]:
    """For what clean twins leave; it goes with the process."""
    return tempfile.TemporaryDirectory(prefix="clozelab-odd-twins-")


def twins() -> Path:
    return Path(twins_folder().name)


def twin_place(kind: str, content: object) -> Path:
    """The folder of the clean twin with this content. Its name is the same in every process, as
    sentences of the table quote it, which `hash` of a text would not give.
    """
    return twins() / f"{kind}-{zlib.crc32(repr(content).encode()):08x}"


@cache
def encoder() -> Path:
    return plain_encoder(twins() / "encoder")


def finetune(
    place: Path, files: Files, words: Sequence[str], *, allows_overlap: bool = True
) -> Path:
    """Write files below `place/data` and train on them for one epoch of two steps; returns the
    run's folder. Many files are both splits, which a run has to be told (`allows_overlap`).
    """
    for name, content in files.items():
        path = place / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    record = clozelab.finetune(
        *words,
        data_dir=place / "data",
        cache_dir=place / "cache",
        run_dir=place / "run",
        encoder=encoder(),
        row="odd",
        epochs=1,
        global_batch_size=16,
        evaluations_per_epoch=1,
        allow_validation_in_training=allows_overlap,
        trainer={"precision": "32-true", "progress_bar": False},
    )
    return Path(record.folder)


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def classes(run: Path) -> list[str]:
    named = json.loads((run / "model" / "config.json").read_text())["id2label"]
    return [named[str(number)] for number in range(len(named))]


def predictions(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]


def labels_of(run: Path) -> list[Any]:
    """The labels that a run was scored by."""
    return [row["label"] for row in predictions(run)]


def logits_of(run: Path) -> list[Any]:
    return [row["logits"] for row in predictions(run)]


def learnt_as(run: Path, twin: Path) -> None:
    check(weights(run) == weights(twin), "the weights are not those of the clean twin")


def record_of(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "run.json").read_text())
    return content


def facts(run: Path) -> Any:
    return record_of(run)["facts"]


# Texts with one label


def labelled_words(train: str, validation: str, **more: Any) -> list[str]:
    words = [
        "task=sst2",
        f"task.data.train_file={train}",
        f"task.data.validation_file={validation}",
        "task.data.text_columns=[text]",
        "task.data.label_column=label",
        "task.data.labels=null",
        "task.data.test_id_column=null",
    ]
    return words + [f"task.data.{key}={value}" for key, value in more.items()]


def jsonl(rows: Sequence[Row]) -> str:
    return json_lines({"text": text, "label": label} for text, label in rows)


@cache
def labelled_twin(train: tuple[Row, ...], validation: tuple[Row, ...]) -> Path:
    place = twin_place("labelled", (train, validation))
    files = {"train.jsonl": jsonl(train), "validation.jsonl": jsonl(validation)}
    run = finetune(place, files, labelled_words("train.jsonl", "validation.jsonl"))
    check_tokens(run, [text for text, _ in train])
    return run


def check_tokens(run: Path, texts: Sequence[str]) -> None:
    """WrongError unless the run has read as many tokens as transformers makes of the texts."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(encoder())
    expected = sum(len(ids) for ids in tokenizer(list(texts))["input_ids"])
    equal(facts(run)["tokens"], expected, "tokens of the clean twin")


def is_labelled_as(run: Path, train: Sequence[Row], validation: Sequence[Row]) -> None:
    """WrongError unless a run has learnt from these rows, and was scored on those."""
    equal(classes(run), sorted({label for _, label in train}), "classes")
    equal(labels_of(run), [label for _, label in validation], "labels that it is scored by")
    twin = labelled_twin(tuple(train), tuple(validation))
    learnt_as(run, twin)
    equal(logits_of(run), logits_of(twin), "logits")


@CASES.rows("finetune", "train.")
def labelled_case(
    place: Path,
    train: bytes | str,
    suffix: str = ".csv",
    *,
    rows: Sequence[Row] = TRAIN,
    validation: bytes | str | None = None,
    validation_rows: Sequence[Row] = VALIDATION,
    must_say: str = "",
) -> None:
    """A training file of `rows`, and a validation file (by default a clean one, as JSON lines)."""
    files = {f"train{suffix}": train, "validation.jsonl": jsonl(validation_rows)}
    validation_file = "validation.jsonl"
    if validation is not None:
        validation_file = f"validation{suffix}"
        files = {f"train{suffix}": train, validation_file: validation}
    run = finetune(place, files, labelled_words(f"train{suffix}", validation_file))
    is_said = not must_say or heard(must_say)
    is_labelled_as(run, rows, validation_rows)
    check(is_said, f"nothing is said of {must_say}")


def rows_case(
    oddity: str, expected: str, rows: Sequence[Row], suffix: str = ".csv", **more: Any
) -> None:
    """Odd rows in a clean file; they are to be read as they are."""
    content = jsonl(rows) if suffix == ".jsonl" else table(rows)
    labelled_case(oddity, expected, content, suffix, rows=rows, **more)


def relabelled(new: Callable[[int, str], Any], rows: Sequence[Row] = TRAIN) -> list[Any]:
    """The rows with other labels, each made of a row's number and label."""
    return [(text, new(number, label)) for number, (text, label) in enumerate(rows)]


def every_ninth(label: Any) -> list[Any]:
    return relabelled(lambda n, own: label if n % 9 == 4 else own)


def retexted(new: Callable[[int, str], Any]) -> list[Any]:
    return [(new(number, text), label) for number, (text, label) in enumerate(TRAIN)]


def as_number(_: int, label: str) -> str:
    return str(int(label == "pos"))


CLEAN = table(TRAIN)
PACKED = ("packed by gzip", "two gzip files put together by cat")
for _suffix, _content in ((".csv", CLEAN), (".tsv", table(TRAIN, "\t")), (".jsonl", jsonl(TRAIN))):
    in_every_layout(labelled_case, _suffix, _content, _suffix, PACKED)


# Columns, quotes and rows

crlf, crlf_validation = (table(rows, line_end="\r\n") for rows in (TRAIN, VALIDATION))
labelled_case("Windows line ends in both files", READ, crlf, validation=crlf_validation)
utf16 = table(TRAIN, "\t").encode("utf-16")
labelled_case("UTF-16, as Excel's “Unicode text”", EITHER, utf16, ".txt")
ODD_TEXTS = retexted(lambda _, text: f'she said, "{text}"\nand left')
rows_case("commas, quotes and line breaks inside quoted texts", READ, ODD_TEXTS)
quotes = retexted(lambda _, text: f'"{text}')
in_tabs = "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in quotes)
oddity = "quotation marks in a .tsv, which does not quote"
labelled_case(oddity, READ, in_tabs, ".tsv", rows=quotes)
labelled_case("semicolons between the columns of a .csv", EITHER, table(TRAIN, ";"))
commas_inside = retexted(lambda _, text: f"{text}, a dog")
oddity = "semicolons between the columns of a .csv, and commas in its texts"
labelled_case(oddity, READ, table(commas_inside, ";"), rows=commas_inside)
labelled_case("tabs between the columns of a .csv", EITHER, table(TRAIN, "\t"))
labelled_case("Excel's line sep=, before the header", EITHER, "sep=,\n" + CLEAN)
swapped = table([(label, text) for text, label in TRAIN], header="label,text")
labelled_case("the label before the text", READ, swapped)
frame = pandas.DataFrame(TRAIN, columns=["text", "label"])
with_index = frame.assign(more=1.5).to_csv()
labelled_case("an unnamed index column and others, as pandas writes them", READ, with_index)
labelled_case("a comma at the end of every line", READ, CLEAN.replace("\n", ",\n"))
more_cells = "text,label\n" + table(TRAIN, header="").replace("\n", ",\n")
labelled_case("a comma at the end of every row, but not of the header", EITHER, more_cells)
labelled_case("a blank after every comma", EITHER, CLEAN.replace(",", ", "))
labelled_case("column names in capitals", EITHER, table(TRAIN, header="Text,LABEL"))
labelled_case("no header", REFUSED, table(TRAIN, header=""))
no_label = table(TRAIN, header="text,class")
labelled_case("no column of labels", REFUSED, no_label, names="label|class")
two_labels = table([(text, label, "x") for text, label in TRAIN], header="text,label,label")
labelled_case("two columns `label`", REFUSED, two_labels, names="two columns")
labelled_case("a blank line after every row", EITHER, CLEAN.replace("\n", "\n\n"))
long_row = CLEAN.replace("film 7,", "film 7,x,")
labelled_case("one row of 32 with a field too many", EITHER, long_row, names="train.csv:9")
open_quote = CLEAN.replace("the red film 4", '"the red film 4')
labelled_case("a quotation mark that is never closed", REFUSED, open_quote)
labelled_case("cut in the middle of its last row", REFUSED, CLEAN[:-8])
labelled_case("a header and no row", REFUSED, "text,label\n")
labelled_case("a NUL in one text", EITHER, CLEAN.replace("film 7", "fi\0lm 7"))
latin_1 = CLEAN.replace("film", "film\xe9").encode("latin-1")
labelled_case("Latin-1 in every row", REFUSED, latin_1)
separators = retexted(
    lambda _, text: text.replace(" film", "\u2028film").replace("the ", "the\x0b\x0c")
)
rows_case("U+2028, form feeds and vertical tabs inside texts", READ, separators)
labelled_case("a .parquet file", EITHER, parquet(frame), ".parquet")

# Labels

rows_case("every ninth label is empty", REFUSED, every_ninth(""))
empty = table(every_ninth(""), "\t")
labelled_case("every ninth label is empty in a .tsv", REFUSED, empty, ".tsv")
rows_case("every ninth label is two blanks", REFUSED, every_ninth("  "))
nan = every_ninth("NaN")
rows_case("every ninth label is NaN, as pandas writes it", EITHER, nan, must_say="nan")
blanks = relabelled(lambda n, label: f"{label} " if n % 2 else label)
rows_case("a blank after every other label", EITHER, blanks)
in_case = relabelled(lambda n, label: label.capitalize() if n % 3 == 0 else label)
rows_case("labels that differ in case alone", EITHER, in_case, must_say="case")
alike, alike_validation = (relabelled(lambda *_: "pos", rows) for rows in (TRAIN, VALIDATION))
one_class = "one class|one label|same label|single label|single class"
rows_case("one label for all", EITHER, alike, validation_rows=alike_validation, must_say=one_class)
many, many_validation = (relabelled(lambda n, _: f"c{n}", rows) for rows in (TRAIN, VALIDATION))
rows_case(
    "as many labels as rows",
    EITHER,
    many,
    validation_rows=many_validation,
    must_say="32 classes|32 labels|32 different",
    names="train.|label",
)
oddity = "the header's names swapped: texts as labels"
labelled_case(oddity, REFUSED, table(TRAIN, header="label,text"), names="label")
other = relabelled(lambda n, label: "other" if n % 3 == 0 else label)
rows_case("a label that validation does not have", READ, other)
more = table([*VALIDATION, ("the end", "other")])
oddity = "a label that training does not have"
labelled_case(oddity, REFUSED, CLEAN, validation=more, names="validation.csv:18")


def long_label(_: int, label: str) -> str:
    return f"{label}, “é”\n😀 {'x' * 500}"


for _oddity, _new in {
    "labels with commas, line breaks, emoji and 500 letters": long_label,
    "labels None and null as words": lambda _, y: "None" if y == "pos" else "null",
}.items():
    wanted = READ if _new is long_label else EITHER
    rows_case(_oddity, wanted, relabelled(_new), validation_rows=relabelled(_new, VALIDATION))
one_number = relabelled(lambda _, label: "01" if label == "pos" else "1")
rows_case("labels 01 and 1, which are one number", REFUSED, one_number, names="the same number")
labelled_case(
    "labels 0.0 and 1.0 in training, 0 and 1 in validation",
    REFUSED,
    table(relabelled(lambda n, label: as_number(n, label) + ".0")),
    validation=table(relabelled(as_number, VALIDATION)),
    names="validation.csv:2",
)

# Texts

empty_texts = retexted(lambda n, text: "" if n % 4 == 1 else text)
rows_case("every fourth text is empty", EITHER, empty_texts, must_say="empty")
words = retexted(lambda n, _: f"NA null nan {n}" if n % 4 else "NA")
rows_case("texts that are the words NA, null and nan", READ, words)
numbers = retexted(lambda n, _: f"00{n}" if n % 2 else f"{n}.50")
rows_case("texts that are the numbers 007 and 1.50", READ, numbers)

# JSON lines


def json_case(oddity: str, expected: str, written: Sequence[Any], **more: Any) -> None:
    labelled_case(oddity, expected, jsonl(written), ".jsonl", **more)


@CASES.add("finetune", EITHER, "train.jsonl:1")
def jsonl_lists(place: Path) -> None:
    """Labels that are lists: several at once, or refused"""
    lists = relabelled(lambda n, label: [label] if n % 2 else ["neg", "pos"])
    asked = relabelled(lambda _, label: [label], VALIDATION)
    files = {"train.jsonl": jsonl(lists), "validation.jsonl": jsonl(asked)}
    run = finetune(place, files, labelled_words("train.jsonl", "validation.jsonl"))
    equal(classes(run), ["neg", "pos"], "classes")
    config = json.loads((run / "model" / "config.json").read_text())
    equal(config.get("problem_type"), "multi_label_classification", "problem_type")
    equal(labels_of(run), [label for _, label in asked], "labels that it is scored by")


objects, asked = (
    relabelled(lambda _, label: {"name": label}, rows) for rows in (TRAIN, VALIDATION)
)
json_case("labels that are objects", REFUSED, objects, validation=jsonl(asked))
json_case("every ninth label is null", REFUSED, every_ninth(None), names="train.jsonl:5")
json_case("every ninth label is NaN in JSON", REFUSED, every_ninth(float("nan")))
lines = jsonl(TRAIN).splitlines(keepends=True)
lines[4] = json.dumps({"text": TRAIN[4][0]}) + "\n"
labelled_case("a row has no label", REFUSED, "".join(lines), ".jsonl", names="train.jsonl:5")
json_case(
    "labels as numbers in one file, as text in the other",
    READ,
    relabelled(lambda n, label: int(as_number(n, label))),
    rows=relabelled(as_number),
    validation=jsonl(relabelled(as_number, VALIDATION)),
    validation_rows=relabelled(as_number, VALIDATION),
)
json_case(
    "labels true and false",
    READ,
    relabelled(lambda _, label: label == "pos"),
    rows=relabelled(lambda _, label: str(label == "pos").lower()),
    validation=jsonl(relabelled(lambda _, label: label == "pos", VALIDATION)),
    validation_rows=relabelled(lambda _, label: str(label == "pos").lower(), VALIDATION),
)
numbers = retexted(lambda n, text: n if n % 4 == 1 else text)
read_so = [(str(text), label) for text, label in numbers]
json_case("every fourth text is a number", EITHER, numbers, rows=read_so)
json_case("every text is a list of words", REFUSED, retexted(lambda _, text: text.split()))
OBJECTS = [{"text": text, "label": label} for text, label in TRAIN]
labelled_case("one JSON array called .jsonl", EITHER, json.dumps(OBJECTS), ".jsonl")
as_array = json.dumps(OBJECTS, indent=1)
labelled_case("one JSON array called .json", EITHER, as_array, ".json", names="an object a line")
first_turned = [dict(reversed(OBJECTS[0].items())), *({"id": 1, **row} for row in OBJECTS[1:])]
oddity = "the first row has another order and a key less than the others"
labelled_case(oddity, EITHER, json_lines(first_turned), ".jsonl")
twice = jsonl(TRAIN).replace('"label": ', '"label": "x", "label": ')
labelled_case("a key `label` twice in each object", EITHER, twice, ".jsonl")
blank_lines = jsonl(TRAIN).replace("\n", "\n\n")
labelled_case("blank lines between the rows", EITHER, blank_lines, ".jsonl")

# Damaged rows and ids


@CASES.add("finetune", READ)
def latin_1_row(place: Path) -> None:
    """One row of 300 in Latin-1: left out, counted and named"""
    rows = [(f"the {COLOURS[n % 4]} film {n}", ("neg", "pos")[n // 2 % 2]) for n in range(300)]
    content = table(rows).encode().replace(b"film 7,", b"film 7 caf\xe9,")
    files = {"train.csv": content, "validation.jsonl": jsonl(VALIDATION)}
    run = finetune(place, files, labelled_words("train.csv", "validation.jsonl"))
    is_labelled_as(run, [row for number, row in enumerate(rows) if number != 7], VALIDATION)
    equal(facts(run)["data"]["bad_rows"], 1, "counted rows")


def ids_of(place: Path, keys: Sequence[str]) -> list[str]:
    """The ids among the predictions for rows with these keys."""
    rows = [(text, label, key) for key, (text, label) in zip(keys, VALIDATION, strict=True)]
    content = table(rows, header="text,label,key")
    words = labelled_words("train.csv", "validation.csv", id_column="key")
    run = finetune(place, {"train.csv": content, "validation.csv": content}, words)
    return [row["id"] for row in predictions(run)]


@CASES.add("finetune", EITHER, "id")
def ids_twice(place: Path) -> None:
    """Two rows of one id in the validation file: said, whether read or refused"""
    keys = ["a", "a", *(f"b{n}" for n in range(2, len(VALIDATION)))]
    equal(len(set(ids_of(place, keys))), len(VALIDATION), "different ids among the predictions")


@CASES.add("finetune", READ)
def ids_of_numbers(place: Path) -> None:
    """Ids with zeros before them, and texts among them"""
    keys = [f"00{n}" if n % 2 else f"é {n}" for n in range(len(VALIDATION))]
    equal(ids_of(place, keys), keys, "ids")
