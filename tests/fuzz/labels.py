"""Odd label files for `finetune`: two steps of a tiny encoder, compared with those of a clean twin.

The twin is a clean JSON-lines, column or SQuAD file of the rows that plain Python wrote. A run is
right where its weights equal the twin's byte for byte (so it trained on the same texts and labels
in the same order), its classes are the true ones, and its predictions name the true labels in the
true order.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import tempfile
import unicodedata
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas

import clozelab
from odd_lab import EITHER, READ, REFUSED, Cases, check, equal, heard
from odd_models import plain_encoder

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
def twins() -> Path:
    """A folder for what clean twins leave; it goes with the process."""
    folder = tempfile.TemporaryDirectory(prefix="clozelab-odd-twins-")
    _kept.append(folder)
    return Path(folder.name)


_kept: list[Any] = []


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


def facts(run: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((run / "run.json").read_text())["facts"]
    return read


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
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)


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
    equal(
        [one["label"] for one in predictions(run)],
        [label for _, label in validation],
        "labels that it is scored by",
    )
    twin = labelled_twin(tuple(train), tuple(validation))
    check(weights(run) == weights(twin), "the weights are not those of the clean twin")
    equal(
        [one["logits"] for one in predictions(run)],
        [one["logits"] for one in predictions(twin)],
        "logits",
    )


def labelled_case(
    name: str,
    oddity: str,
    expected: str,
    train: bytes | str,
    suffix: str = ".csv",
    validation: bytes | str | None = None,
    rows: Sequence[Row] = TRAIN,
    validation_rows: Sequence[Row] = VALIDATION,
    names: tuple[str, ...] = (),
    must_say: tuple[str, ...] = (),
    **more: Any,
) -> None:
    """A training file, and a validation file (by default a clean one, as JSON lines)."""

    def act(place: Path) -> None:
        files = {f"train{suffix}": train, "validation.jsonl": jsonl(validation_rows)}
        validation_file = "validation.jsonl"
        if validation is not None:
            validation_file = f"validation{suffix}"
            files = {f"train{suffix}": train, validation_file: validation}
        run = finetune(place, files, labelled_words(f"train{suffix}", validation_file, **more))
        said = [words for words in must_say if not heard(words)]
        is_labelled_as(run, rows, validation_rows)
        check(not said, f"nothing is said of {said}")

    CASES.add("finetune", expected, *names, name=name, oddity=oddity)(act)


def table(
    rows: Sequence[Row], separator: str = ",", line_end: str = "\n", header: str = "text,label"
) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=separator, lineterminator=line_end)
    if header:
        writer.writerow(header.split(","))
    writer.writerows(rows)
    return buffer.getvalue()


def relabelled(
    new: Callable[[int, str], Any], rows: Sequence[Row] = TRAIN
) -> list[tuple[str, Any]]:
    return [(text, new(number, label)) for number, (text, label) in enumerate(rows)]


CLEAN = table(TRAIN)
TRAIN_NAMES = ("train.csv",)
ODD_TEXTS = [(f'she said, "{text}"\nand left', label) for text, label in TRAIN]
THREE = relabelled(lambda n, label: "other" if n % 3 == 0 else label)
EMPTY = relabelled(lambda n, label: "" if n % 9 == 4 else label)
BLANK = relabelled(lambda n, label: "  " if n % 9 == 4 else label)

labelled_case("csv", "nothing: the control of the labelled texts", READ, CLEAN)
labelled_case(
    "csv_crlf",
    "Windows line ends",
    READ,
    table(TRAIN, line_end="\r\n"),
    validation=table(VALIDATION, line_end="\r\n"),
)
labelled_case(
    "csv_cr",
    "line ends of old Macintoshes (CR alone)",
    EITHER,
    table(TRAIN, line_end="\r"),
    names=TRAIN_NAMES,
)
labelled_case(
    "csv_bom", "a byte order mark, as Excel writes it", READ, codecs.BOM_UTF8 + CLEAN.encode()
)
labelled_case(
    "csv_utf16",
    "UTF-16, as Excel's “Unicode text”",
    EITHER,
    table(TRAIN, "\t").encode("utf-16"),
    ".txt",
    names=("train.txt",),
)
labelled_case(
    "csv_quotes",
    "commas, quotes and line breaks inside quoted texts",
    READ,
    table(ODD_TEXTS),
    rows=ODD_TEXTS,
)
labelled_case(
    "tsv_quotes",
    "quotation marks in a .tsv, which does not quote",
    READ,
    "text\tlabel\n" + "".join(f'"{t}\t{y}\n' for t, y in TRAIN),
    ".tsv",
    rows=[(f'"{t}', y) for t, y in TRAIN],
)
labelled_case(
    "csv_semicolons",
    "semicolons between the columns of a .csv",
    EITHER,
    table(TRAIN, ";"),
    names=TRAIN_NAMES,
)
labelled_case(
    "csv_tabs", "tabs between the columns of a .csv", EITHER, table(TRAIN, "\t"), names=TRAIN_NAMES
)
labelled_case(
    "csv_sep_line",
    "Excel's line sep=, before the header",
    EITHER,
    "sep=,\n" + CLEAN,
    names=TRAIN_NAMES,
)
labelled_case("csv_gzip", "packed by gzip", READ, gzip.compress(CLEAN.encode()), ".csv.gz")
labelled_case(
    "csv_swapped",
    "the label before the text",
    READ,
    "label,text\n" + "".join(f"{y},{t}\n" for t, y in TRAIN),
)
labelled_case(
    "csv_index",
    "an unnamed index column and others, as pandas writes them",
    READ,
    pandas.DataFrame(TRAIN, columns=["text", "label"]).assign(more=1.5).to_csv(),
)
labelled_case(
    "csv_trailing",
    "a comma at the end of every line",
    READ,
    "".join(f"{line},\n" for line in CLEAN.splitlines()),
)
labelled_case(
    "csv_trailing_rows",
    "a comma at the end of every row, but not of the header",
    EITHER,
    "text,label\n" + "".join(f"{t},{y},\n" for t, y in TRAIN),
    names=TRAIN_NAMES,
)
labelled_case(
    "csv_blanks", "a blank after every comma", EITHER, CLEAN.replace(",", ", "), names=TRAIN_NAMES
)
labelled_case(
    "csv_capitals",
    "column names in capitals",
    EITHER,
    table(TRAIN, header="Text,LABEL"),
    names=TRAIN_NAMES,
)
labelled_case("csv_no_header", "no header", REFUSED, table(TRAIN, header=""), names=TRAIN_NAMES)
labelled_case(
    "csv_no_label",
    "no column of labels",
    REFUSED,
    table(TRAIN, header="text,class"),
    names=("label", "class"),
)
labelled_case(
    "csv_two_labels",
    "two columns `label`",
    REFUSED,
    "text,label,label\n" + "".join(f"{t},{y},x\n" for t, y in TRAIN),
    names=("two columns",),
)
labelled_case(
    "csv_blank_lines",
    "a blank line after every row",
    EITHER,
    CLEAN.replace("\n", "\n\n"),
    names=TRAIN_NAMES,
)
labelled_case(
    "csv_ragged",
    "one row of 32 with a field too many",
    EITHER,
    CLEAN.replace("film 7,", "film 7,x,"),
    names=("train.csv:9",),
)
labelled_case(
    "csv_open_quote",
    "a quotation mark that is never closed",
    REFUSED,
    CLEAN.replace("the red film 4", '"the red film 4'),
    names=TRAIN_NAMES,
)
labelled_case(
    "csv_cut", "cut in the middle of its last row", REFUSED, CLEAN[:-8], names=TRAIN_NAMES
)
labelled_case("csv_empty", "an empty file", REFUSED, "", names=TRAIN_NAMES)
labelled_case("csv_header_alone", "a header and no row", REFUSED, "text,label\n", names=TRAIN_NAMES)
labelled_case(
    "csv_nul", "a NUL in one text", EITHER, CLEAN.replace("film 7", "fi\0lm 7"), names=TRAIN_NAMES
)
labelled_case(
    "csv_latin_1",
    "Latin-1 in every row",
    REFUSED,
    CLEAN.replace("film", "film\xe9").encode("latin-1"),
    names=TRAIN_NAMES,
)
labelled_case("no_last_line_end", "no line end after the last row", READ, CLEAN.rstrip("\n"))
labelled_case(
    "texts_with_separators",
    "U+2028, form feeds and vertical tabs inside texts",
    READ,
    CLEAN.replace(" film", "\u2028film").replace("the ", "the\x0b\x0c"),
    rows=[(t.replace(" film", "\u2028film").replace("the ", "the\x0b\x0c"), y) for t, y in TRAIN],
)
labelled_case(
    "labels_empty", "every ninth label is empty", REFUSED, table(EMPTY), names=("train.csv",)
)
labelled_case(
    "labels_empty_tsv",
    "every ninth label is empty in a .tsv",
    REFUSED,
    table(EMPTY, "\t", header="text,label"),
    ".tsv",
    names=("train.tsv",),
)
labelled_case(
    "labels_blank", "every ninth label is two blanks", REFUSED, table(BLANK), names=("train.csv",)
)
labelled_case(
    "labels_nan",
    "every ninth label is NaN, as pandas writes it",
    EITHER,
    table(relabelled(lambda n, y: "NaN" if n % 9 == 4 else y)),
    names=("train.csv",),
    rows=relabelled(lambda n, y: "NaN" if n % 9 == 4 else y),
    must_say=("nan",),
)
labelled_case(
    "labels_trailing_blank",
    "a blank after every other label",
    EITHER,
    table(relabelled(lambda n, y: f"{y} " if n % 2 else y)),
    names=("train.csv", "pos "),
)
labelled_case(
    "labels_case",
    "labels that differ in case alone",
    EITHER,
    table(relabelled(lambda n, y: y.capitalize() if n % 3 == 0 else y)),
    names=("train.csv", "Pos"),
    rows=relabelled(lambda n, y: y.capitalize() if n % 3 == 0 else y),
    must_say=("case",),
)
labelled_case(
    "labels_one_class",
    "one label for all",
    EITHER,
    table(relabelled(lambda _, __: "pos")),
    names=("train.csv", "one class", "one label"),
    rows=relabelled(lambda _, __: "pos"),
    validation_rows=relabelled(lambda _, __: "pos", VALIDATION),
    must_say=("one class|one label|same label|single label|single class",),
)
labelled_case(
    "labels_all_differ",
    "as many labels as rows",
    EITHER,
    table(relabelled(lambda n, _: f"c{n}")),
    names=("train.csv", "label"),
    rows=relabelled(lambda n, _: f"c{n}"),
    validation_rows=relabelled(lambda n, _: f"c{n}", VALIDATION),
    must_say=("32 classes|32 labels|32 different",),
)
labelled_case(
    "texts_as_labels",
    "the header's names swapped: texts as labels",
    REFUSED,
    table(TRAIN, header="label,text"),
    names=("label",),
)
labelled_case(
    "labels_only_in_training",
    "a label that validation does not have",
    READ,
    table(THREE),
    rows=THREE,
)
labelled_case(
    "labels_only_in_validation",
    "a label that training does not have",
    REFUSED,
    table(TRAIN),
    validation=table([*VALIDATION, ("the end", "other")]),
    names=("validation.csv:18",),
)
labelled_case(
    "labels_long",
    "labels with commas, line breaks, emoji and 500 letters",
    READ,
    table(relabelled(lambda _, y: f"{y}, “é”\n😀 {'x' * 500}")),
    rows=relabelled(lambda _, y: f"{y}, “é”\n😀 {'x' * 500}"),
    validation_rows=relabelled(lambda _, y: f"{y}, “é”\n😀 {'x' * 500}", VALIDATION),
)
labelled_case(
    "labels_floats",
    "labels 0.0 and 1.0 in training, 0 and 1 in validation",
    REFUSED,
    table(relabelled(lambda _, y: "1.0" if y == "pos" else "0.0")),
    validation=table(relabelled(lambda _, y: "1" if y == "pos" else "0", VALIDATION)),
    names=("validation.csv:2",),
)
labelled_case(
    "labels_like_numbers",
    "labels 01 and 1, which are one number",
    EITHER,
    table(relabelled(lambda _, y: "01" if y == "pos" else "1")),
    rows=relabelled(lambda _, y: "01" if y == "pos" else "1"),
    validation_rows=relabelled(lambda _, y: "01" if y == "pos" else "1", VALIDATION),
)
labelled_case(
    "labels_like_missing",
    "labels None, null and NA as words",
    EITHER,
    table(relabelled(lambda n, _: ("None", "null")[n // 2 % 2])),
    rows=relabelled(lambda n, _: ("None", "null")[n // 2 % 2]),
    validation_rows=relabelled(lambda n, _: ("None", "null")[n % 2], VALIDATION),
    names=("train.csv",),
)
labelled_case(
    "texts_empty",
    "every fourth text is empty",
    EITHER,
    table([("" if n % 4 == 1 else t, y) for n, (t, y) in enumerate(TRAIN)]),
    rows=[("" if n % 4 == 1 else t, y) for n, (t, y) in enumerate(TRAIN)],
    names=("train.csv",),
    must_say=("empty",),
)
labelled_case(
    "texts_like_missing",
    "texts that are the words NA, null and nan",
    READ,
    table([(f"NA null nan {n}" if n % 4 else "NA", y) for n, (_, y) in enumerate(TRAIN)]),
    rows=[(f"NA null nan {n}" if n % 4 else "NA", y) for n, (_, y) in enumerate(TRAIN)],
)
labelled_case(
    "texts_like_numbers",
    "texts that are the numbers 007 and 1.50",
    READ,
    table([(f"00{n}" if n % 2 else f"{n}.50", y) for n, (_, y) in enumerate(TRAIN)]),
    rows=[(f"00{n}" if n % 2 else f"{n}.50", y) for n, (_, y) in enumerate(TRAIN)],
)


def objects(rows: Sequence[tuple[Any, Any]], **options: Any) -> str:
    return "".join(
        json.dumps({"text": text, "label": label}, **options) + "\n" for text, label in rows
    )


BOOLS = relabelled(lambda _, y: y == "pos")


@CASES.add("finetune", EITHER, "train.jsonl:1")
def jsonl_lists(place: Path) -> None:
    """Labels that are lists: several at once, or refused"""
    lists = relabelled(lambda n, y: [y] if n % 2 else ["neg", "pos"])
    asked = relabelled(lambda _, y: [y], VALIDATION)
    files = {"train.jsonl": objects(lists), "validation.jsonl": objects(asked)}
    run = finetune(place, files, labelled_words("train.jsonl", "validation.jsonl"))
    equal(classes(run), ["neg", "pos"], "classes")
    config = json.loads((run / "model" / "config.json").read_text())
    equal(config.get("problem_type"), "multi_label_classification", "problem_type")
    equal(
        [one["label"] for one in predictions(run)],
        [y for _, y in asked],
        "labels that it is scored by",
    )


labelled_case(
    "jsonl_dicts",
    "labels that are objects",
    REFUSED,
    objects(relabelled(lambda _, y: {"name": y})),
    ".jsonl",
    names=("train.jsonl",),
    validation=objects(relabelled(lambda _, y: {"name": y}, VALIDATION)),
)
labelled_case(
    "jsonl_null",
    "every ninth label is null",
    REFUSED,
    objects(relabelled(lambda n, y: None if n % 9 == 4 else y)),
    ".jsonl",
    names=("train.jsonl:5",),
)
labelled_case(
    "jsonl_nan",
    "every ninth label is NaN",
    REFUSED,
    objects(relabelled(lambda n, y: float("nan") if n % 9 == 4 else y)),
    ".jsonl",
    names=("train.jsonl",),
)
labelled_case(
    "jsonl_missing",
    "every ninth row has no label",
    REFUSED,
    "".join(
        json.dumps({"text": t} if n % 9 == 4 else {"text": t, "label": y}) + "\n"
        for n, (t, y) in enumerate(TRAIN)
    ),
    ".jsonl",
    names=("train.jsonl:5",),
)
labelled_case(
    "jsonl_numbers",
    "labels as numbers in one file, as text in the other",
    READ,
    objects(relabelled(lambda _, y: int(y == "pos"))),
    ".jsonl",
    rows=relabelled(lambda _, y: str(int(y == "pos"))),
    validation=objects(relabelled(lambda _, y: str(int(y == "pos")), VALIDATION)),
    validation_rows=relabelled(lambda _, y: str(int(y == "pos")), VALIDATION),
)
labelled_case(
    "jsonl_bools",
    "labels true and false",
    READ,
    objects(BOOLS),
    ".jsonl",
    rows=relabelled(lambda _, y: str(y == "pos").lower()),
    validation=objects(relabelled(lambda _, y: y == "pos", VALIDATION)),
    validation_rows=relabelled(lambda _, y: str(y == "pos").lower(), VALIDATION),
)
labelled_case(
    "jsonl_text_number",
    "every fourth text is a number",
    EITHER,
    objects([(n if n % 4 == 1 else t, y) for n, (t, y) in enumerate(TRAIN)]),
    ".jsonl",
    rows=[(str(n) if n % 4 == 1 else t, y) for n, (t, y) in enumerate(TRAIN)],
    names=("train.jsonl",),
)
labelled_case(
    "jsonl_text_list",
    "every text is a list of words",
    REFUSED,
    objects([(t.split(), y) for t, y in TRAIN]),
    ".jsonl",
    names=("train.jsonl",),
)
labelled_case(
    "jsonl_array",
    "one JSON array called .jsonl",
    EITHER,
    json.dumps([{"text": t, "label": y} for t, y in TRAIN]),
    ".jsonl",
    names=("train.jsonl",),
)
labelled_case(
    "json_array",
    "one JSON array called .json",
    EITHER,
    json.dumps([{"text": t, "label": y} for t, y in TRAIN], indent=1),
    ".json",
    names=("train.json",),
)
labelled_case(
    "jsonl_first_lacks",
    "the first row has another order and a key less than the others",
    EITHER,
    json.dumps({"label": TRAIN[0][1], "text": TRAIN[0][0]})
    + "\n"
    + "".join(
        json.dumps({"id": n, "text": t, "label": y}) + "\n" for n, (t, y) in enumerate(TRAIN[1:])
    ),
    ".jsonl",
    names=("train.jsonl",),
)
labelled_case(
    "jsonl_keys_twice",
    "a key `label` twice in each object",
    EITHER,
    "".join(
        f'{{"text": {json.dumps(t)}, "label": "x", "label": {json.dumps(y)}}}\n' for t, y in TRAIN
    ),
    ".jsonl",
    names=("train.jsonl",),
)
labelled_case(
    "jsonl_bom_crlf",
    "a byte order mark and Windows line ends",
    READ,
    codecs.BOM_UTF8 + jsonl(TRAIN).replace("\n", "\r\n").encode(),
    ".jsonl",
)
labelled_case(
    "jsonl_blank_lines",
    "blank lines between the rows",
    EITHER,
    jsonl(TRAIN).replace("\n", "\n\n"),
    ".jsonl",
    names=("train.jsonl",),
)


def parquet(frame: pandas.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer)
    return buffer.getvalue()


labelled_case(
    "parquet",
    "a .parquet file",
    EITHER,
    parquet(pandas.DataFrame(TRAIN, columns=["text", "label"])),
    ".parquet",
    names=("train.parquet",),
)


@CASES.add("finetune", READ)
def latin_1_row(place: Path) -> None:
    """One row of 300 in Latin-1: left out, counted and named"""
    rows = [(f"the {COLOURS[n % 4]} film {n}", ("neg", "pos")[n // 2 % 2]) for n in range(300)]
    content = table(rows).encode().replace(b"film 7,", b"film 7 caf\xe9,")
    files = {"train.csv": content, "validation.jsonl": jsonl(VALIDATION)}
    run = finetune(place, files, labelled_words("train.csv", "validation.jsonl"))
    is_labelled_as(run, [row for number, row in enumerate(rows) if number != 7], VALIDATION)
    equal(facts(run)["data"]["bad_rows"], 1, "counted rows")


@CASES.add("finetune", EITHER, "id")
def ids_twice(place: Path) -> None:
    """Two rows of one id in the validation file: said, whether read or refused"""
    lines = [
        json.dumps({"text": t, "label": y, "key": "a" if n < 2 else f"b{n}"})
        for n, (t, y) in enumerate(VALIDATION)
    ]
    files = {"train.jsonl": "\n".join(lines), "validation.jsonl": "\n".join(lines)}
    run = finetune(place, files, labelled_words("train.jsonl", "validation.jsonl", id_column="key"))
    equal(
        len({one["id"] for one in predictions(run)}),
        len(VALIDATION),
        "different ids among the predictions",
    )


@CASES.add("finetune", READ)
def ids_of_numbers(place: Path) -> None:
    """Ids with zeros before them, and texts among them"""
    keys = [f"00{n}" if n % 2 else f"é {n}" for n in range(len(VALIDATION))]
    lines = [f"{key},{t},{y}" for key, (t, y) in zip(keys, VALIDATION, strict=True)]
    text = "key,text,label\n" + "\n".join(lines) + "\n"
    run = finetune(
        place,
        {"train.csv": text, "validation.csv": text},
        labelled_words("train.csv", "validation.csv", id_column="key"),
    )
    equal([one["id"] for one in predictions(run)], keys, "ids")


# GLUE's own files

PAIRS = [
    (f"the {COLOURS[n % 4]} cat {n}", f"a {COLOURS[n // 2 % 4]} cat {n}", str(n // 2 % 2))
    for n in range(32)
]
MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"


def mrpc(
    pairs: Sequence[tuple[str, str, str]] = PAIRS, line_end: str = "\n", header: str = MRPC_HEADER
) -> str:
    lines = [header] if header else []
    lines += [
        f"{label}\t{n}\t{n}\t{first}\t{second}" for n, (first, second, label) in enumerate(pairs)
    ]
    return line_end.join(lines) + line_end


@cache
def mrpc_twin(pairs: tuple[tuple[str, str, str], ...]) -> Path:
    rows = [
        {"#2 String": second, "Quality": label, "#1 String": first}
        for first, second, label in pairs
    ]
    content = "".join(json.dumps(row) + "\n" for row in rows)
    words = ["task=mrpc", "task.data.train_file=a.jsonl", "task.data.validation_file=a.jsonl"]
    return finetune(twin_place("mrpc", pairs), {"a.jsonl": content}, words)


def mrpc_case(
    name: str,
    oddity: str,
    expected: str,
    content: str | bytes,
    pairs: Sequence[tuple[str, str, str]] = PAIRS,
    names: tuple[str, ...] = ("train.tsv",),
) -> None:
    def act(place: Path) -> None:
        files = {"glue/MRPC/train.tsv": content, "glue/MRPC/dev.tsv": mrpc(pairs)}
        run = finetune(place, files, ["task=mrpc"])
        equal([one["label"] for one in predictions(run)], [label for *_, label in pairs], "labels")
        check(
            weights(run) == weights(mrpc_twin(tuple(pairs))),
            "the weights are not those of the clean twin",
        )

    CASES.add("finetune", expected, *names, name=name, oddity=oddity)(act)


QUOTED_PAIRS = [(f'"{first}', f'{second} "', label) for first, second, label in PAIRS]
mrpc_case("mrpc", "nothing: the control of GLUE's pairs", READ, mrpc())
mrpc_case(
    "mrpc_windows",
    "a byte order mark and Windows line ends, as MRPC is published",
    READ,
    codecs.BOM_UTF8 + mrpc(line_end="\r\n").encode(),
)
mrpc_case(
    "mrpc_quotes", "quotation marks that are never closed", READ, mrpc(QUOTED_PAIRS), QUOTED_PAIRS
)
mrpc_case("mrpc_no_header", "no header", REFUSED, mrpc(header=""))
mrpc_case(
    "mrpc_test_labels",
    "labels -1, as in a test split",
    REFUSED,
    mrpc([(a, b, "-1") for a, b, _ in PAIRS]),
    names=("train.tsv:2",),
)
mrpc_case(
    "mrpc_swapped",
    "columns in another order than their names",
    REFUSED,
    mrpc(header="#1 String\t#2 String\t#1 ID\t#2 ID\tQuality"),
    names=("train.tsv:2",),
)
mrpc_case(
    "mrpc_bad_row",
    "one row of 32 without its second text",
    EITHER,
    mrpc().replace("\ta blue cat 3\n", "\n"),
    names=("train.tsv:5",),
)


@CASES.add("finetune", READ)
def cola_with_header(place: Path) -> None:
    """CoLA, which has no header, with one: it is no example"""
    rows = [f"gj04\t{n // 2 % 2}\t\tthe {COLOURS[n % 4]} film {n}" for n in range(32)]
    plain = "\n".join(rows) + "\n"
    headed = "source\tlabel\tmark\tsentence\n" + plain
    first = finetune(
        place / "plain", {"glue/CoLA/train.tsv": plain, "glue/CoLA/dev.tsv": plain}, ["task=cola"]
    )
    second = finetune(
        place / "headed",
        {"glue/CoLA/train.tsv": headed, "glue/CoLA/dev.tsv": headed},
        ["task=cola"],
    )
    equal(len(predictions(second)), len(rows), "examples")
    check(weights(first) == weights(second), "the weights are not those without the header")


SCORES = [f"{n % 11 / 2}" for n in range(32)]


def stsb(scores: Sequence[str], name: str = "score") -> str:
    lines = [f"index\tsentence1\tsentence2\t{name}"]
    lines += [
        f"{n}\t{a}\t{b}\t{y}" for n, ((a, b, _), y) in enumerate(zip(PAIRS, scores, strict=True))
    ]
    return "\n".join(lines) + "\n"


def stsb_case(
    name: str,
    oddity: str,
    expected: str,
    scores: Sequence[str],
    names: tuple[str, ...] = ("train.tsv:6",),
) -> None:
    def act(place: Path) -> None:
        run = finetune(
            place,
            {"glue/STS-B/train.tsv": stsb(scores), "glue/STS-B/dev.tsv": stsb(SCORES)},
            ["task=stsb"],
        )
        given = [float(one["label"]) for one in predictions(run)]
        equal(given, [float(score) for score in SCORES], "scores")
        check(weights(run) == weights(stsb_twin()), "the weights are not those of the clean twin")

    CASES.add("finetune", expected, *names, name=name, oddity=oddity)(act)


@cache
def stsb_twin() -> Path:
    return finetune(
        twins() / "stsb",
        {"glue/STS-B/train.tsv": stsb(SCORES), "glue/STS-B/dev.tsv": stsb(SCORES)},
        ["task=stsb"],
    )


def score_4(value: str) -> list[str]:
    return [value if number == 4 else score for number, score in enumerate(SCORES)]


stsb_case("stsb_blanks", "blanks around the scores", READ, [f" {score} " for score in SCORES])
stsb_case(
    "stsb_exponents", "scores such as 5e-1", READ, [f"{float(score) * 10:g}e-1" for score in SCORES]
)
stsb_case("stsb_nan", "a score is NaN", REFUSED, score_4("NaN"))
stsb_case("stsb_infinite", "a score is inf", REFUSED, score_4("inf"))
stsb_case("stsb_comma", "a score with a decimal comma", REFUSED, score_4("2,5"))
stsb_case("stsb_empty", "a score is empty", REFUSED, score_4(""))
stsb_case("stsb_word", "a score is a word", REFUSED, score_4("high"))
stsb_case(
    "stsb_underscore", "a score 1_0, which only Python takes for a number", REFUSED, score_4("1_0")
)


@CASES.add("finetune", EITHER, "train.tsv:6")
def stsb_out_of_range(place: Path) -> None:
    """A score of 55 where 0 to 5 are: said, whether read or refused"""
    files = {"glue/STS-B/train.tsv": stsb(score_4("55")), "glue/STS-B/dev.tsv": stsb(SCORES)}
    finetune(place, files, ["task=stsb"])
    check(heard("train.tsv:6"), "nothing is said of the score")


# Tagged words

NAMES = ("ada", "bob", "eve", "max")
TAGGED = [
    (
        ["the", NAMES[n % 4], "sat", "on", NAMES[(n + 1) % 4], NAMES[(n + 2) % 4], "."],
        ["O", "B-PER", "O", "O", "B-LOC", "I-LOC", "O"],
    )
    for n in range(32)
]
ADJACENT = (["see", "ada", "bob", "max"], ["O", "B-PER", "B-PER", "I-PER"])
TAGGED[5] = ADJACENT
TAGGED[20] = ADJACENT
Sentence = tuple[list[str], list[str]]


def columns(
    sentences: Sequence[Sentence] = TAGGED,
    tags: Callable[[list[str]], list[str]] = list,
    separator: str = " ",
    line_end: str = "\n",
    between: str = "",
    row: Callable[[str, str], list[str]] = lambda word, tag: [word, tag],
) -> str:
    blocks = []
    for words, own in sentences:
        lines = [separator.join(row(word, tag)) for word, tag in zip(words, tags(own), strict=True)]
        blocks.append(line_end.join(lines) + line_end)
    return f"{between}{line_end}".join(blocks)


def iob1(tags: list[str]) -> list[str]:
    """B- only where two entities of one type touch."""
    out = []
    for place, tag in enumerate(tags):
        before = tags[place - 1] if place else "O"
        touches = before != "O" and before[2:] == tag[2:]
        out.append(f"I-{tag[2:]}" if tag.startswith("B-") and not touches else tag)
    return out


def bioes(tags: list[str]) -> list[str]:
    out = []
    for place, tag in enumerate(tags):
        after = tags[place + 1] if place + 1 < len(tags) else "O"
        ends = after != f"I-{tag[2:]}"
        if tag == "O":
            out.append(tag)
        elif tag.startswith("B-"):
            out.append(f"{'S' if ends else 'B'}-{tag[2:]}")
        else:
            out.append(f"{'E' if ends else 'I'}-{tag[2:]}")
    return out


TAG_WORDS = [
    "task=ner_conll2003",
    "task.data.train_file=train.txt",
    "task.data.validation_file=dev.txt",
]
CLEAN_TAGGED = columns()


@cache
def tagged_twin(train: str) -> Path:
    return finetune(
        twin_place("tags", train),
        {"train.txt": train, "dev.txt": CLEAN_TAGGED},
        TAG_WORDS,
    )


def tag_case(
    name: str,
    oddity: str,
    expected: str,
    train: str | bytes,
    twin: str = CLEAN_TAGGED,
    dev: str | bytes = CLEAN_TAGGED,
    names: tuple[str, ...] = ("train.txt",),
    must_say: tuple[str, ...] = (),
    words: Sequence[str] = (),
) -> None:
    def act(place: Path) -> None:
        run = finetune(place, {"train.txt": train, "dev.txt": dev}, [*TAG_WORDS, *words])
        said = [one for one in must_say if not heard(one)]
        if "not compared" not in twin:
            given = [(one["words"], one["label"]) for one in predictions(run)]
            equal(given, TAGGED, "words and tags that it is scored by")
            equal(classes(run), ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"], "classes")
            check(
                weights(run) == weights(tagged_twin(twin)),
                "the weights are not those of the clean twin",
            )
        check(not said, f"nothing is said of {said}")

    CASES.add("finetune", expected, *names, name=name, oddity=oddity)(act)


tag_case("conll", "nothing: the control of the tagged words", READ, CLEAN_TAGGED)
tag_case("conll_iob1", "IOB1 in training, IOB2 in validation", READ, columns(tags=iob1))
tag_case("conll_bioes", "BIOES in training, IOB2 in validation", READ, columns(tags=bioes))
tag_case(
    "conll_iob1_dev",
    "IOB2 in training, IOB1 in validation",
    READ,
    CLEAN_TAGGED,
    dev=columns(tags=iob1),
)
tag_case("conll_crlf", "Windows line ends", READ, columns(line_end="\r\n"))
tag_case("conll_tabs", "tabs between the columns", READ, columns(separator="\t"))
tag_case(
    "conll_blanks",
    "several blanks between the columns and at the end of lines",
    READ,
    columns(separator="   ", row=lambda w, t: [w, t, ""]),
)
tag_case(
    "conll_blank_between",
    "blanks and tabs in the lines between sentences",
    READ,
    columns(between=" \t"),
)
tag_case(
    "conll_many_between",
    "three blank lines between sentences, and before the first",
    READ,
    "\n\n" + columns(between="\n\n"),
)
tag_case("conll_no_last_line", "no line end after the last word", READ, CLEAN_TAGGED.rstrip("\n"))
tag_case("conll_bom", "a byte order mark", READ, codecs.BOM_UTF8 + CLEAN_TAGGED.encode())
tag_case(
    "conll_four_columns",
    "the four columns of CoNLL-2003",
    READ,
    columns(row=lambda w, t: [w, "NN", "B-NP", t]),
)
tag_case("conll_swapped", "the tag before the word", REFUSED, columns(row=lambda w, t: [t, w]))
tag_case(
    "conll_swapped_named",
    "the tag before the word, and said so",
    READ,
    columns(row=lambda w, t: [t, w]),
    dev=columns(row=lambda w, t: [t, w]),
    words=("task.data.word_column=1", "task.data.tag_column=0"),
)
tag_case("conll_words_alone", "no tags", REFUSED, columns(row=lambda w, _: [w]))
tag_case("conll_commas", "commas between the columns", REFUSED, columns(separator=","))
tag_case("conll_empty", "an empty file", REFUSED, "")
tag_case(
    "conll_one_tag_lacks",
    "one word of 218 without its tag",
    EITHER,
    CLEAN_TAGGED.replace("max O", "max").replace("see O", "see", 1),
    names=("train.txt:",),
    twin=columns([s for n, s in enumerate(TAGGED) if n != 5]),
)
tag_case(
    "conll_lower_case",
    "tags in lower case",
    EITHER,
    columns(tags=lambda tags: [tag.lower() for tag in tags]),
    names=("train.txt", "dev.txt"),
)
tag_case(
    "conll_unknown_tag",
    "a tag in validation that training does not have",
    REFUSED,
    CLEAN_TAGGED,
    dev=CLEAN_TAGGED.replace("B-LOC", "B-ORG", 1),
    names=("dev.txt",),
)
tag_case(
    "conll_no_entities",
    "not one entity in training",
    REFUSED,
    columns(tags=lambda tags: ["O"] * len(tags)),
    names=("train.txt", "dev.txt"),
)
tag_case(
    "conll_plain_types",
    "types without B- and I-",
    READ,
    columns(tags=lambda tags: [tag.split("-")[-1] for tag in tags]),
    # neighbours of one type are one entity
    twin=columns(tags=lambda tags: [tag.replace("B-", "I-") for tag in tags]),
    must_say=("types without B- and I-",),
)
tag_case(
    "conll_jsonl",
    "JSON lines with tokens and ner_tags, as the datasets library writes them",
    REFUSED,
    "".join(json.dumps({"tokens": w, "ner_tags": t}) + "\n" for w, t in TAGGED),
)
tag_case(
    "conll_latin_1",
    "Latin-1 in every sentence",
    REFUSED,
    CLEAN_TAGGED.replace("the ", "th\xe9 ").encode("latin-1"),
)


def odd_word(word: str) -> str:
    return word.replace("sat", "\u200b").replace("on", "a\u00a0b").replace(".", "😀")


ODD_WORDS = [([*map(odd_word, words)], tags) for words, tags in TAGGED]


@CASES.add("finetune", READ)
def conll_odd_words(place: Path) -> None:
    """Words that are an emoji, a zero-width space, or have a no-break space in them: each still one
    word
    """
    text = columns(ODD_WORDS)
    run = finetune(
        place, {"train.txt": text, "dev.txt": text}, [*TAG_WORDS, "max_unknown_share=1.0"]
    )
    equal([(one["words"], one["label"]) for one in predictions(run)], ODD_WORDS, "words and tags")


# Questions

CONTEXT = "the café: ada sat on a red mat in paris, and bob ran to the blue film."
ANSWERS = ("ada", "a red mat", "bob", "the blue film")


def third_without(key: str) -> list[dict[str, Any]]:
    """Questions of which number 3 lacks a key."""
    rows = questions()
    del rows[3][key]
    return rows


def questions(number: int = 32) -> list[dict[str, Any]]:
    rows = []
    for n in range(number):
        answer = ANSWERS[n % 4]
        context = f"{CONTEXT} {n}"
        answers = [{"text": answer, "answer_start": context.index(answer)}]
        rows.append(
            {
                "id": f"q{n}",
                "context": context,
                "question": f"what is {COLOURS[n % 4]} {n} ?",
                "answers": answers,
            }
        )
    return rows


def squad(rows: Sequence[Mapping[str, Any]]) -> str:
    paragraphs = []
    for row in rows:
        asked = {key: value for key, value in row.items() if key != "context"}
        paragraphs.append({"context": row["context"], "qas": [asked]})
    return json.dumps(
        {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}, ensure_ascii=False
    )


@cache
def squad_twin(content: str) -> Path:
    files = {"train.json": content, "dev.json": squad(questions())}
    return finetune(twin_place("squad", content), files, squad_words("json"))


def squad_words(suffix: str, task: str = "squad_v1") -> list[str]:
    return [
        f"task={task}",
        f"task.data.train_file=train.{suffix}",
        "task.data.validation_file=dev.json",
    ]


def squad_case(
    name: str,
    oddity: str,
    expected: str,
    content: str | bytes,
    names: tuple[str, ...] = ("train.json",),
    rows: Sequence[Mapping[str, Any]] | None = None,
    suffix: str = "json",
    dropped: int = 0,
) -> None:
    """`rows`: what is trained on; `dropped`: how many questions must be counted as left out."""

    def act(place: Path) -> None:
        run = finetune(
            place, {f"train.{suffix}": content, "dev.json": squad(questions())}, squad_words(suffix)
        )
        clean = squad(questions() if rows is None else rows)
        given = json.loads((run / "predictions.json").read_text())
        equal(list(given), [row["id"] for row in questions()], "ids of the predictions")
        check(
            weights(run) == weights(squad_twin(clean)),
            "the weights are not those of the clean twin",
        )
        counts = facts(run)["data"]["train_counts"]
        left_out = counts.get("answer_not_in_passage", 0) + counts.get("question_without_answer", 0)
        equal(left_out, dropped, "questions that are counted as left out")

    CASES.add("finetune", expected, *names, name=name, oddity=oddity)(act)


def with_question(number: int, **changes: Any) -> list[dict[str, Any]]:
    return [row | changes if place == number else row for place, row in enumerate(questions())]


def moved(by: int) -> list[dict[str, Any]]:
    rows = questions()
    for row in rows:
        row["answers"] = [
            {"text": a["text"], "answer_start": a["answer_start"] + by} for a in row["answers"]
        ]
    return rows


def in_bytes() -> list[dict[str, Any]]:
    rows = questions()
    for row in rows:
        text = row["answers"][0]["text"]
        row["answers"] = [
            {"text": text, "answer_start": row["context"].encode().index(text.encode())}
        ]
    return rows


def hub_rows() -> list[dict[str, Any]]:
    """As the datasets library has them."""
    rows = []
    for row in questions():
        answers = {
            "text": [a["text"] for a in row["answers"]],
            "answer_start": [a["answer_start"] for a in row["answers"]],
        }
        rows.append(row | {"title": "t", "answers": answers})
    return rows


OUTSIDE = with_question(3, answers=[{"text": "a green door", "answer_start": 5}])
without_3 = [row for row in questions() if row["id"] != "q3"]
squad_case("squad", "nothing: the control of the questions", READ, squad(questions()))
squad_case("squad_bom", "a byte order mark", EITHER, codecs.BOM_UTF8 + squad(questions()).encode())
squad_case(
    "squad_crlf",
    "indented over many lines, with Windows line ends",
    READ,
    json.dumps(json.loads(squad(questions())), indent=2).replace("\n", "\r\n"),
)
squad_case("squad_off_by_one", "every answer_start is one too small", READ, squad(moved(-1)))
squad_case("squad_bytes", "answer_start counts bytes, not characters", READ, squad(in_bytes()))
squad_case(
    "squad_outside",
    "one answer of 32 is not in its passage: left out and counted",
    READ,
    squad(OUTSIDE),
    rows=without_3,
    dropped=1,
)
squad_case(
    "squad_all_outside",
    "no answer is in its passage",
    REFUSED,
    squad([row | {"answers": [{"text": "nowhere", "answer_start": 0}]} for row in questions()]),
)
squad_case(
    "squad_no_answers",
    "no question has an answer",
    REFUSED,
    squad([row | {"answers": []} for row in questions()]),
)
squad_case(
    "squad_negative_start",
    "answer_start is -1 for one question",
    EITHER,
    squad(with_question(3, answers=[{"text": ANSWERS[3], "answer_start": -1}])),
)
squad_case(
    "squad_start_text",
    "answer_start is text for one question",
    EITHER,
    squad(
        with_question(
            3,
            answers=[{"text": ANSWERS[3], "answer_start": str((CONTEXT + " 3").index(ANSWERS[3]))}],
        )
    ),
    names=("q3",),
)
squad_case(
    "squad_start_float",
    "answer_start is 5.0 for one question",
    EITHER,
    squad(
        with_question(
            3,
            answers=[
                {"text": ANSWERS[3], "answer_start": float((CONTEXT + " 3").index(ANSWERS[3]))}
            ],
        )
    ),
    names=("q3",),
)
squad_case(
    "squad_same_id",
    "two questions of one id",
    REFUSED,
    squad(with_question(3, id="q2")),
    names=("q2",),
)
squad_case("squad_number_id", "an id is a number", EITHER, squad(with_question(3, id=3)))
squad_case(
    "squad_no_question",
    "a question without its text",
    REFUSED,
    squad(third_without("question")),
)
squad_case(
    "squad_empty_question",
    "a question that is empty",
    EITHER,
    squad(with_question(3, question="")),
    rows=with_question(3, question=""),
)
squad_case(
    "squad_empty_context",
    "a passage that is empty",
    EITHER,
    squad(with_question(3, context="")),
    rows=without_3,
    dropped=1,
)
squad_case(
    "squad_empty_answer",
    "an answer that is empty",
    EITHER,
    squad(with_question(3, answers=[{"text": "", "answer_start": 0}])),
    rows=without_3,
    dropped=1,
)
squad_case(
    "squad_answers_missing",
    "a question without the key answers",
    EITHER,
    squad(third_without("answers")),
    rows=without_3,
    dropped=1,
)
squad_case(
    "squad_answer_is_text",
    "answers that are a text",
    REFUSED,
    squad([row | {"answers": "ada"} for row in questions()]),
)
squad_case(
    "squad_answers_dict",
    "answers as the datasets library has them, inside SQuAD's layout",
    EITHER,
    squad(hub_rows()),
)
squad_case(
    "squad_hub_rows",
    "JSON lines as the datasets library writes them",
    EITHER,
    "".join(json.dumps(row) + "\n" for row in hub_rows()),
    suffix="jsonl",
    names=("train.jsonl",),
)
squad_case(
    "squad_parquet",
    "a .parquet file as the datasets library writes it",
    EITHER,
    parquet(pandas.DataFrame(hub_rows())),
    suffix="parquet",
    names=("train.parquet",),
)
squad_case("squad_cut", "cut in half", REFUSED, squad(questions())[:-500])
squad_case(
    "squad_no_data",
    "a list of questions, as the datasets library has them, called .json",
    EITHER,
    json.dumps(questions()),
)
squad_case("squad_empty_data", "no article", REFUSED, json.dumps({"version": "1.1", "data": []}))
DECOMPOSED = [
    row | {"context": unicodedata.normalize("NFD", row["context"])} for row in questions()
]
for decomposed in DECOMPOSED:
    decomposed["answers"] = [{"text": "the café", "answer_start": 0}]
squad_case(
    "squad_decomposed",
    "accents apart from their letters in the passage, but not in the answer",
    REFUSED,
    squad(DECOMPOSED),
)


# Choices

CHOICES = [
    (f"the {COLOURS[n % 4]} cat {n}", f"sat {n}", f"ran {n}", str(n // 2 % 2)) for n in range(32)
]
CHOICE_WORDS = [
    "task=codah",
    "task.data.columns=null",
    "task.data.ending_columns=[ending0,ending1]",
    "task.data.folds=null",
    "task.data.held_out_fold=null",
]
Choice = tuple[str, ...]


def choices(
    rows: Sequence[Sequence[str]] = CHOICES,
    header: str = "prompt,ending0,ending1,label",
    separator: str = ",",
) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=separator, lineterminator="\n")
    writer.writerow(header.split(","))
    writer.writerows(rows)
    return buffer.getvalue()


def choice_run(place: Path, train: str | bytes, suffix: str) -> Path:
    places = [f"task.data.train_file=train{suffix}", "task.data.validation_file=dev.csv"]
    return finetune(
        place, {f"train{suffix}": train, "dev.csv": choices()}, [*CHOICE_WORDS, *places]
    )


@cache
def choice_twin(rows: tuple[Choice, ...]) -> Path:
    keys = ("prompt", "ending0", "ending1", "label")
    content = "".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows)
    return choice_run(twin_place("choices", rows), content, ".jsonl")


def choice_case(
    name: str,
    oddity: str,
    expected: str,
    content: str | bytes,
    rows: Sequence[Choice] = CHOICES,
    names: tuple[str, ...] = ("train",),
    suffix: str = ".csv",
) -> None:
    def act(place: Path) -> None:
        run = choice_run(place, content, suffix)
        equal(
            [one["label"] for one in predictions(run)], [label for *_, label in CHOICES], "labels"
        )
        check(
            weights(run) == weights(choice_twin(tuple(rows))),
            "the weights are not those of the clean twin",
        )

    CASES.add("finetune", expected, *names, name=name, oddity=oddity)(act)


def with_label(new: Callable[[str], str]) -> list[Choice]:
    return [(a, b, c, new(label)) for a, b, c, label in CHOICES]


QUOTED_CHOICES = [(f'{a}, "so"', f"{b},\nthen", c, y) for a, b, c, y in CHOICES]
choice_case("choices", "nothing: the control of the choices", READ, choices())
choice_case(
    "choices_quotes",
    "commas, quotes and line breaks inside endings",
    READ,
    choices(QUOTED_CHOICES),
    QUOTED_CHOICES,
)
choice_case(
    "choices_swapped",
    "columns in another order",
    READ,
    choices([(y, c, a, b) for a, b, c, y in CHOICES], "label,ending1,prompt,ending0"),
)
choice_case(
    "choices_from_one",
    "labels counted from 1",
    REFUSED,
    choices(with_label(lambda y: str(int(y) + 1))),
    names=("train.csv:4",),
)
choice_case(
    "choices_letters",
    "labels A and B",
    REFUSED,
    choices(with_label(lambda y: "AB"[int(y)])),
    names=("train.csv:2",),
)
choice_case(
    "choices_floats",
    "labels 0.0 and 1.0, as pandas writes them",
    EITHER,
    choices(with_label(lambda y: f"{y}.0")),
    names=("train.csv:2",),
)
choice_case(
    "choices_no_label",
    "a label is empty",
    REFUSED,
    choices(with_label(lambda y: y if y == "0" else "")),
    names=("train.csv:4",),
)
choice_case(
    "choices_empty_ending",
    "an ending is empty",
    EITHER,
    choices([(a, b, "" if n == 3 else c, y) for n, (a, b, c, y) in enumerate(CHOICES)]),
    [(a, b, "" if n == 3 else c, y) for n, (a, b, c, y) in enumerate(CHOICES)],
    names=("train.csv:5",),
)
choice_case(
    "choices_list",
    "endings as one list, as the datasets library has HellaSwag",
    EITHER,
    "".join(
        json.dumps({"prompt": a, "endings": [b, c], "label": y}) + "\n" for a, b, c, y in CHOICES
    ),
    suffix=".jsonl",
    names=("ending0",),
)
