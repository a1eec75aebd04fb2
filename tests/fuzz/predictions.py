"""Odd inputs for `predict` and `embed`: Python objects and files, each text answered as
transformers answers it alone.

A row that cannot be answered has to be marked with a reason, and every other row has to be answered
as if it stood alone.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pyarrow
import torch
import transformers

from clozelab.stages import predict
from tests.fuzz.lab import EITHER, READ, REFUSED, Cases, check, close, equal
from tests.fuzz.labels import PAIRS, mrpc_twin, twins
from tests.fuzz.making import CASED, bert, classifier, encoded, load, theirs, wordpiece

CASES = Cases("prediction inputs")
Text = str | tuple[str, str]
TEXTS: list[Text] = [
    f"the {word} film ran {number}"
    for number, word in enumerate(("red", "slow", "blue", "good", "bad"))
]


# The models, and the answers of transformers


@cache
def model() -> Path:
    return classifier(twins() / "classifier")


@cache
def predictor() -> Any:
    return load(model())


@cache
def tagger() -> Path:
    names = {
        "id2label": {0: "O", 1: "B-PER", 2: "I-PER"},
        "label2id": {"O": 0, "B-PER": 1, "I-PER": 2},
    }
    return bert(
        twins() / "tagger",
        "ForTokenClassification",
        tokenizer=wordpiece(CASED, do_lower_case=False),
        *names,
    )


@cache
def reader() -> Path:
    return bert(
        twins() / "reader", "ForQuestionAnswering", tokenizer=wordpiece(CASED, do_lower_case=False)
    )


@cache
def masked() -> Path:
    return bert(twins() / "masked")


@cache
def their_classifier() -> Any:
    return theirs(model(), "ForSequenceClassification")


@cache
def shares_of(text: Text) -> list[float]:
    """Probabilities of the classes, as transformers gives them for one text or pair."""
    inputs = encoded(model(), *(text if isinstance(text, tuple) else (text,)))
    with torch.no_grad():
        shares: list[float] = their_classifier()(**inputs).logits[0].softmax(-1).tolist()
    return shares


@cache
def vector_of(text: str) -> np.ndarray:
    """The mean of the last states of all tokens, the special ones among them."""
    with torch.no_grad():
        return np.asarray(theirs(model())(**encoded(model(), text)).last_hidden_state[0].mean(0))


def is_marked(row: Any) -> bool:
    """Whether a row has no answer, and says why."""
    values = row if isinstance(row, dict) else vars(row) if hasattr(row, "__dict__") else {}
    inner = values.get("prediction")
    flat = values | (inner if isinstance(inner, dict) else {})
    reasons = [value for key, value in flat.items() if "error" in key or "reason" in key]
    has_reason = any(isinstance(value, str) and value.strip() for value in reasons)
    return has_reason and "probabilities" not in flat


def rows_of(answers: Any) -> list[Any]:
    """One answer for each text; a table has them as columns."""
    if isinstance(answers, datasets.Dataset):
        answers = answers.to_pandas()
    if isinstance(answers, pandas.DataFrame):
        columns = [name for name in answers.columns if str(name).startswith("probability_")]
        return [{"probabilities": dict(row)} for _, row in answers[columns].iterrows()]
    return answers if isinstance(answers, list) else [answers]


def compare(rows: Sequence[Any], texts: Sequence[Text | None], subject: str) -> None:
    """WrongError unless each row is answered as transformers answers its text; None: it has to be
    marked.
    """
    equal(len(rows), len(texts), "answers")
    for number, (row, text) in enumerate(zip(rows, texts, strict=True), 1):
        if text is None:
            check(is_marked(row), f"{subject} {number} is not marked, and cannot be answered")
        else:
            close(probabilities(row, f"{subject} {number}"), shares_of(text), f"{subject} {number}")


def probabilities(row: Any, subject: str) -> list[float]:
    said = row.get("prediction", row) if isinstance(row, dict) else row
    values = (
        said.get("probabilities")
        if isinstance(said, dict)
        else getattr(said, "probabilities", None)
    )
    check(isinstance(values, dict), f"{subject} has no answer: {said!r:.60}")
    return list(values.values())


# Python objects


def object_case(
    oddity: str,
    expected: str,
    make: Callable[[], Any],
    texts: Sequence[Text | None] | None = TEXTS,
    names: str = "",
) -> None:
    """`texts` None: it is to be refused whatever comes out."""

    def act(_: Path) -> None:
        answers = predictor().classify(make())
        if texts is not None:
            compare(rows_of(answers), texts, "text")

    CASES.add("predict", expected, names, oddity=oddity)(act)


def with_odd(odd: Any) -> list[Any]:
    return [*TEXTS[:2], odd, *TEXTS[2:]]


MARKED: list[Text | None] = with_odd(None)
EXPECTED_WORDS = ("expected", "text")
frame = pandas.DataFrame({"text": TEXTS, "label": range(5)})
pairs: list[Text] = [(str(text), "a dog sat") for text in TEXTS]

object_case("nothing: the control of the objects", READ, lambda: TEXTS)
object_case("one text, not a list", READ, lambda: TEXTS[0], TEXTS[:1])
object_case("a tuple of three texts", EITHER, lambda: tuple(TEXTS[:3]), TEXTS[:3], "pair|two")
object_case("a list of pairs", READ, lambda: pairs, pairs)
object_case(
    "pairs that are lists, not tuples",
    EITHER,
    lambda: [list(pair) for pair in pairs],
    pairs,
    EXPECTED_WORDS,
)
object_case("a generator", READ, lambda: (text for text in TEXTS))
object_case("a set, which has no order", REFUSED, lambda: set(TEXTS), None, "set")
object_case("a dict with the key text", EITHER, lambda: {"text": TEXTS[0]}, TEXTS[:1], "dict|key")
object_case(
    "a dict with the keys text and pair",
    EITHER,
    lambda: {"text": TEXTS[0], "pair": "a dog sat"},
    pairs[:1],
    "dict|key",
)
object_case("a dict of lists", EITHER, lambda: {"text": TEXTS}, TEXTS, "dict|key")
object_case(
    "a dict whose keys nobody knows", REFUSED, lambda: {"headline": TEXTS}, None, "headline|dict"
)
object_case(
    "a list of dicts", EITHER, lambda: [{"text": text} for text in TEXTS], TEXTS, "dict|expected"
)
object_case("a DataFrame with a column text", EITHER, lambda: frame, TEXTS, "DataFrame|column")
object_case(
    "a DataFrame without a column text",
    REFUSED,
    lambda: frame.rename(columns={"text": "body"})[["body", "label"]],
    None,
    "DataFrame|column",
)
object_case(
    "a Series whose index is not 0, 1, 2", READ, lambda: pandas.Series(TEXTS, index=[9, 3, 3, 1, 0])
)
object_case("a Series of categories", READ, lambda: pandas.Series(TEXTS, dtype="category"))
object_case("an array of numpy", READ, lambda: np.array(TEXTS))
object_case("an array of objects", READ, lambda: np.array(TEXTS, dtype=object))
object_case(
    "an array of two dimensions",
    EITHER,
    lambda: np.array([[t, "a dog sat"] for t in TEXTS]),
    pairs,
    EXPECTED_WORDS,
)
object_case("an array of pyarrow", EITHER, lambda: pyarrow.array(TEXTS), TEXTS, EXPECTED_WORDS)
object_case(
    "a Dataset of the datasets library",
    EITHER,
    lambda: datasets.Dataset.from_pandas(frame),
    TEXTS,
    "Dataset|column|expected",
)
object_case("a column of a Dataset", READ, lambda: datasets.Dataset.from_pandas(frame)["text"])
object_case("bytes", REFUSED, lambda: b"the red film", None, "bytes")
object_case("bytes among the texts", EITHER, lambda: with_odd(b"the cat"), MARKED, "text 3")
object_case("None in place of the texts", REFUSED, lambda: None, None, "None")
object_case("None among the texts", EITHER, lambda: with_odd(None), MARKED, "text 3")
object_case(
    "NaN among the texts, as pandas has it",
    EITHER,
    lambda: with_odd(float("nan")),
    MARKED,
    "text 3",
)
object_case(
    "pandas.NA among the texts",
    EITHER,
    lambda: pandas.Series(with_odd(pandas.NA), dtype="string"),
    MARKED,
    "text 3",
)
object_case("a number among the texts", EITHER, lambda: with_odd(7), MARKED, "text 3")
object_case("numbers alone", REFUSED, lambda: [1, 2], None, "text 1")
object_case("a number in place of the texts", REFUSED, lambda: 7, None, "7|int")
object_case("a Path in place of the texts", REFUSED, lambda: Path("a.txt"), None, "path")
object_case("the keys of a Counter", EITHER, lambda: Counter(TEXTS).keys(), TEXTS, EXPECTED_WORDS)
object_case(
    "lists in lists in a list", REFUSED, lambda: [[[text] for text in TEXTS]], None, EXPECTED_WORDS
)
object_case("an empty list", EITHER, list, [], "empty")
object_case("texts of numpy's own kind", READ, lambda: [np.str_(text) for text in TEXTS])
object_case("a pair among texts", EITHER, lambda: with_odd(("a cat", "a dog")), None, "pair")
object_case(
    "a pair whose second text is None",
    EITHER,
    lambda: [*pairs[:2], ("a cat", None)],
    [*pairs[:2], None],
    "text 3",
)
object_case(
    "a pair whose second text is empty",
    EITHER,
    lambda: [*pairs[:2], ("a cat", "")],
    [*pairs[:2], None],
    "text 3",
)
object_case(
    "a tuple of three among pairs",
    EITHER,
    lambda: [*pairs[:2], ("a", "b", "c")],
    [*pairs[:2], None],
    "pair|text 3",
)
object_case("an empty text", READ, lambda: with_odd(""), MARKED)
object_case("a text of blanks, tabs and line breaks", READ, lambda: with_odd(" \t\n\u00a0"), MARKED)
object_case(
    "a text of zero-width and control characters",
    READ,
    lambda: with_odd("\u200b\u200e\0\x1b"),
    MARKED,
)
object_case(
    "an emoji alone, which the vocabulary does not know", READ, lambda: with_odd("😀"), MARKED
)
object_case("a text of a thousand words", READ, lambda: with_odd("the cat " * 500), MARKED)
object_case(
    "half a surrogate pair inside a text",
    EITHER,
    lambda: with_odd("the cat\ud800 sat"),
    with_odd("the cat sat"),
    "text 3",
)
object_case("a NUL inside a text", READ, lambda: with_odd("the c\0at sat"), with_odd("the cat sat"))
object_case(
    "accents apart from their letters",
    READ,
    lambda: with_odd(unicodedata.normalize("NFD", "thé cät")),
    with_odd("the cat"),
)
object_case(
    "marks of writing from right to left inside words",
    READ,
    lambda: with_odd("the \u202ecat\u202c sat"),
    with_odd("the cat sat"),
)
object_case(
    "letters of full width", READ, lambda: with_odd("the ｃａｔ sat"), with_odd("the ｃａｔ sat")
)
object_case(
    "line breaks and tabs inside a text",
    READ,
    lambda: with_odd("the cat\r\n\tsat"),
    with_odd("the cat sat"),
)


@CASES.add("predict", READ)
def object_special(_: Path) -> None:
    """Special tokens written in a text: read as letters (BERT's release) or as themselves
    (transformers)
    """
    text = "the [SEP] cat [PAD]"
    answer = predictor().classify([TEXTS[0], text])[1]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model())
    inner = tokenizer("the [ sep ] cat [ pad ]", add_special_tokens=False)["input_ids"]
    letters = torch.tensor([[tokenizer.cls_token_id, *inner, tokenizer.sep_token_id]])
    with torch.no_grad():
        released = their_classifier()(input_ids=letters).logits[0].softmax(-1).numpy()
    given = np.array(probabilities(answer, "text 2"))
    errors = [float(np.abs(given - expected).max()) for expected in (released, shares_of(text))]
    check(min(errors) < 2e-4, "neither as BERT's release nor as transformers reads it")


# Files


def run_predict(input_path: Path, output: Path, *words: str, place: Path | None = None) -> None:
    source = model() if place is None else place
    predict.main(
        [
            str(source),
            f"input={input_path}",
            f"output={output}",
            "precision=32-true",
            "device=cpu",
            *words,
        ]
    )


def file_case(
    oddity: str,
    expected: str,
    file: str,
    content: str | bytes,
    texts: Sequence[Text | None] | None = TEXTS,
    names: str = "",
    words: Sequence[str] = (),
) -> None:
    """`texts` None: it is to be refused whatever comes out."""

    def act(place: Path) -> None:
        path = place / file
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        output = place / "out.jsonl"
        try:
            run_predict(path, output, *words)
        except (ValueError, OSError):
            check(not output.exists(), "an output is there, half-written")
            raise
        lines = output.read_bytes().decode().removesuffix("\n").split("\n")
        if texts is not None:
            compare([json.loads(line) for line in lines], texts, "row")

    CASES.add("predict", expected, names, oddity=oddity)(act)


LINES = "".join(f"{text}\n" for text in TEXTS)
ROWS = [{"text": text} for text in TEXTS]


def jsonl(rows: Sequence[Any], **options: Any) -> str:
    return "".join(json.dumps(row, **options) + "\n" for row in rows)


def table(
    texts: Sequence[Any] = TEXTS,
    separator: str = ",",
    header: Sequence[str] = ("id", "text", "label"),
    line_end: str = "\n",
) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=separator, lineterminator=line_end)
    if header:
        writer.writerow(header)
    writer.writerows([(f"00{n}", text, n % 2) for n, text in enumerate(texts)])
    return buffer.getvalue()


file_case("nothing: the control of the files", READ, "a.txt", LINES)
file_case(
    "a byte order mark and Windows line ends",
    READ,
    "a.txt",
    codecs.BOM_UTF8 + LINES.replace("\n", "\r\n").encode(),
)
file_case(
    "line ends of old Macintoshes (CR alone)",
    EITHER,
    "a.txt",
    LINES.replace("\n", "\r"),
    names="a.txt",
)
file_case("no line end after the last line", READ, "a.txt", LINES.rstrip("\n"))
file_case(
    "a blank line among the lines",
    READ,
    "a.txt",
    LINES.replace(f"{TEXTS[1]}\n", f"{TEXTS[1]}\n\n"),
    MARKED,
)
file_case(
    "U+2028, U+0085, form feeds and vertical tabs inside lines",
    READ,
    "a.txt",
    LINES.replace(" film", "\u2028\x85\f\x0bfilm"),
)
file_case("a NUL inside a line", READ, "a.txt", LINES.replace("slow", "sl\0ow"))
file_case("UTF-16 with its mark", EITHER, "a.txt", LINES.encode("utf-16"), names="a.txt")
file_case(
    "one line in Latin-1",
    EITHER,
    "a.txt",
    LINES.encode().replace(b"slow", b"sl\xf6w"),
    [TEXTS[0], None, *TEXTS[2:]],
    names="a.txt",
)
file_case(
    "half a surrogate pair, written as bytes",
    EITHER,
    "a.txt",
    LINES.encode().replace(b"slow", b"\xed\xa0\x80slow"),
    [TEXTS[0], None, *TEXTS[2:]],
    names="a.txt",
)
file_case("a line that is an emoji", READ, "a.txt", LINES + "😀\n", [*TEXTS, None])
file_case(
    "a line of 4,000 characters", READ, "a.txt", LINES + "the cat " * 500 + "\n", [*TEXTS, None]
)
file_case("a tab in every line: pairs", READ, "a.txt", LINES.replace("\n", "\ta dog sat\n"), pairs)
file_case(
    "a tab in one line of five",
    EITHER,
    "a.txt",
    LINES.replace("slow", "slow\t"),
    None,
    "pair|column",
)


@CASES.add("predict", EITHER, "a.txt:6")
def lines_three(place: Path) -> None:
    """Three columns in one line: one text with tabs in it, or none"""
    (place / "a.txt").write_text(LINES + "a\tb\tc\n")
    run_predict(place / "a.txt", place / "out.jsonl")
    rows = [json.loads(line) for line in (place / "out.jsonl").read_text().splitlines()]
    compare(rows, [*TEXTS, None if is_marked(rows[-1]) else "a b c"], "row")


file_case(
    "quotation marks that are never closed",
    READ,
    "a.txt",
    LINES.replace("the", '"the'),
    [f'"{text}' for text in TEXTS],
)
file_case(
    "a first line that begins like JSON and is none",
    READ,
    "a.txt",
    "{the} cat\n" + LINES,
    ["{the} cat", *TEXTS],
)
file_case("a first line that is a JSON number", READ, "a.txt", "19\n" + LINES, ["19", *TEXTS])
file_case("packed by gzip", EITHER, "a.txt.gz", gzip.compress(LINES.encode()), names="a.txt.gz")
file_case("an empty file", REFUSED, "a.txt", "", None, "a.txt")
file_case("a name without a suffix", READ, "lines", LINES)

file_case("a .csv with a header and other columns", READ, "a.csv", table())
file_case(
    "a .csv with a byte order mark and Windows line ends",
    READ,
    "a.csv",
    codecs.BOM_UTF8 + table(line_end="\r\n").encode(),
)
file_case(
    "commas, quotes and line breaks inside quoted texts",
    READ,
    "a.csv",
    table([f'"{t}", so\nit' for t in TEXTS]),
    [f'"{t}", so it' for t in TEXTS],
)
file_case(
    "semicolons between the columns of a .csv",
    EITHER,
    "a.csv",
    table(separator=";"),
    names="a.csv|column",
)
file_case("a .csv with one column", READ, "a.csv", "text\n" + LINES)
file_case(
    "a .csv whose column is called sentence",
    EITHER,
    "a.csv",
    table(header=("id", "sentence", "label")),
    names="sentence",
)
file_case(
    "a .csv whose columns nobody knows",
    REFUSED,
    "a.csv",
    table(header=("a", "b", "c")),
    None,
    "column",
)
file_case("a .csv without a header", REFUSED, "a.csv", table(header=()), None, "column|header")
file_case(
    "a .csv with two columns text",
    REFUSED,
    "a.csv",
    table(header=("text", "text", "label")),
    None,
    "text",
)
file_case(
    "texts that are numbers, with zeros before them",
    READ,
    "a.csv",
    "text\n007\n1.50\n1e5\n",
    ["007", "1.50", "1e5"],
)
file_case(
    "texts that are dates",
    READ,
    "a.csv",
    "text\n2020-01-02\n01/02/20\n",
    ["2020-01-02", "01/02/20"],
)
file_case(
    "texts that are the words NA, null, None and nan",
    READ,
    "a.csv",
    "text\nNA\nnull\nNone\nnan\n",
    ["NA", "null", "None", "nan"],
)
file_case("an empty cell", READ, "a.csv", table(with_odd("")), MARKED)
file_case(
    "a comma at the end of every line", EITHER, "a.csv", table().replace("\n", ",\n"), names="a.csv"
)
file_case(
    "one row with a field too many",
    EITHER,
    "a.csv",
    table().replace("slow", "slow,x"),
    [TEXTS[0], None, *TEXTS[2:]],
    "a.csv:3",
)
file_case(
    "a quotation mark that is never closed",
    REFUSED,
    "a.csv",
    table().replace("the slow", '"the slow'),
    None,
    "a.csv",
)
file_case(
    "a field of 200,000 characters",
    READ,
    "a.csv",
    table([*TEXTS, "the cat " * 25_000]),
    [*TEXTS, None],
)
file_case("a NUL inside a field", EITHER, "a.csv", table().replace("slow", "sl\0ow"), names="a.csv")
file_case("a header and no row", REFUSED, "a.csv", "id,text\n", None, "a.csv")
file_case("a suffix in capitals, .CSV", READ, "A.CSV", table())
file_case("a .tsv with a header and other columns", READ, "a.tsv", table(separator="\t"))
file_case(
    "quotation marks in a .tsv, which does not quote",
    READ,
    "a.tsv",
    "id\ttext\n" + "".join(f'1\t"{t}\n' for t in TEXTS),
    [f'"{t}' for t in TEXTS],
)
file_case(
    "a .csv with the columns sentence1 and sentence2",
    EITHER,
    "a.csv",
    table([]).replace("id,text,label", "sentence1,sentence2")
    + "".join(f"{a},{b}\n" for a, b in pairs),
    pairs,
    "column",
)
file_case(
    "a .csv that has a column prediction already",
    EITHER,
    "a.csv",
    table(header=("prediction", "text", "label")),
    names="prediction",
)

file_case("JSON lines with the key text", READ, "a.jsonl", jsonl(ROWS))
file_case(
    "JSON lines with a byte order mark and Windows line ends",
    READ,
    "a.jsonl",
    codecs.BOM_UTF8 + jsonl(ROWS).replace("\n", "\r\n").encode(),
)
file_case(
    "tabs, line breaks and \\u escapes in JSON texts",
    READ,
    "a.jsonl",
    jsonl([{"text": str(t).replace(" film", "\t\nfilm")} for t in TEXTS]),
)
file_case(
    "a blank line among JSON lines",
    EITHER,
    "a.jsonl",
    jsonl(ROWS).replace("\n", "\n\n"),
    names="a.jsonl:2",
)
file_case(
    "nested objects and numbers beside the text",
    EITHER,
    "a.jsonl",
    jsonl([{"id": 1, "meta": {"x": [1]}, **row} for row in ROWS]),
    names="meta|id",
)
file_case(
    "a second text under a key that nobody knows",
    EITHER,
    "a.jsonl",
    jsonl([{**row, "text_pair": "a dog sat"} for row in ROWS]),
    pairs,
    "text_pair",
)
file_case(
    "the text under the key sentence",
    EITHER,
    "a.jsonl",
    jsonl([{"sentence": text} for text in TEXTS]),
    names="sentence",
)
file_case(
    "a text that is null",
    EITHER,
    "a.jsonl",
    jsonl([{"text": t} for t in with_odd(None)]),
    MARKED,
    "a.jsonl:3",
)
file_case(
    "a text that is a number",
    EITHER,
    "a.jsonl",
    jsonl([{"text": t} for t in with_odd(7)]),
    MARKED,
    "a.jsonl:3",
)
file_case(
    "a line without the key text",
    EITHER,
    "a.jsonl",
    jsonl([*ROWS[:2], {"other": 1}, *ROWS[2:]]),
    MARKED,
    "text 3|a.jsonl:3",
)
file_case(
    "a line that is no JSON",
    EITHER,
    "a.jsonl",
    jsonl(ROWS) + '{"text": "the\n',
    [*TEXTS, None],
    "a.jsonl:6",
)
file_case(
    "lines that are lists", REFUSED, "a.jsonl", jsonl([[t] for t in TEXTS]), None, "a.jsonl:1"
)
file_case("lines that are JSON texts", EITHER, "a.jsonl", jsonl(TEXTS), names="a.jsonl:1")
file_case("one JSON array called .jsonl", EITHER, "a.jsonl", json.dumps(ROWS), names="a.jsonl")
file_case(
    "one JSON array called .json", EITHER, "a.json", json.dumps(ROWS, indent=1), names="a.json"
)
file_case(
    "pairs and single texts",
    EITHER,
    "a.jsonl",
    jsonl([*ROWS[:2], {"text": "a cat", "pair": "a dog"}]),
    None,
    "pair",
)
file_case(
    "half a surrogate pair, as an escape",
    EITHER,
    "a.jsonl",
    jsonl([{"text": t} for t in with_odd("the cat\ud800 sat")]),
    with_odd("the cat sat"),
    "a.jsonl:3|text 3",
)
file_case("JSON lines called .txt", EITHER, "a.txt", jsonl(ROWS))
file_case(
    "a key twice in a line",
    EITHER,
    "a.jsonl",
    "".join(f'{{"text": "x", "text": {json.dumps(t)}}}\n' for t in TEXTS),
    names="a.jsonl",
)


def parquet(made: pandas.DataFrame) -> bytes:
    buffer = io.BytesIO()
    made.to_parquet(buffer)
    return buffer.getvalue()


file_case("a .parquet with a column text", READ, "a.parquet", parquet(frame))
file_case(
    "a .parquet with a text that is null",
    READ,
    "a.parquet",
    parquet(pandas.DataFrame({"text": with_odd(None)})),
    MARKED,
)
file_case(
    "a .parquet with numbers in the column text",
    EITHER,
    "a.parquet",
    parquet(pandas.DataFrame({"text": [1, 2]})),
    None,
    "text|a.parquet",
)
file_case(
    "a .parquet whose columns nobody knows",
    REFUSED,
    "a.parquet",
    parquet(frame.rename(columns={"text": "body"})),
    None,
    "body",
)
file_case("a .parquet cut in half", REFUSED, "a.parquet", parquet(frame)[:300], None, "a.parquet")
file_case("a picture", REFUSED, "a.png", b"\x89PNG\r\n\x1a\n\0\0\xff", None, "a.png")


@CASES.add("predict", REFUSED, "no such file|folder|directory")
def input_is_a_folder(place: Path) -> None:
    """A folder in place of the input"""
    run_predict(place, place / "out.jsonl")


@CASES.add("predict", EITHER, "input|output")
def output_is_the_input(place: Path) -> None:
    """The output is the input's own file"""
    path = place / "a.jsonl"
    path.write_text(jsonl(ROWS))
    try:
        run_predict(path, path)
    except ValueError:
        equal(path.read_text(), jsonl(ROWS), "the input")
        raise
    compare([json.loads(line) for line in path.read_text().splitlines()], TEXTS, "row")


@CASES.add("predict", REFUSED, "pair")
def pair_model_one_text(place: Path) -> None:
    """One text for a model that was trained on pairs"""
    path = place / "a.txt"
    path.write_text(LINES)
    run_predict(path, place / "out.jsonl", place=mrpc_twin(tuple(PAIRS)))


@CASES.add("predict", REFUSED, "pair")
def pair_model_python(_: Path) -> None:
    """One text for a model that was trained on pairs, from Python"""
    load(mrpc_twin(tuple(PAIRS))).classify("the cat sat")


@CASES.add("embed", READ)
def embed_blank_line(place: Path) -> None:
    """A blank line among lines to embed: a row of the array for each line"""
    path = place / "a.txt"
    path.write_text("the cat sat\n\na dog ran\n")
    run_predict(path, place / "out.npy", "do=embed")
    vectors = np.load(place / "out.npy")
    equal(vectors.shape, (3, 16), "shape")
    close(vectors[[0, 2]], [vector_of("the cat sat"), vector_of("a dog ran")], "vectors")
    close(vectors[1], vector_of(""), "the blank line's vector")


@CASES.add("embed", READ)
def embed_order(place: Path) -> None:
    """Lines of very different lengths: vectors stay in their order"""
    texts = ["the cat " * (1 + 17 * n % 29) for n in range(40)]
    path = place / "a.txt"
    path.write_text("".join(f"{text}\n" for text in texts))
    run_predict(path, place / "out.npy", "do=embed")
    close(np.load(place / "out.npy"), [vector_of(text) for text in texts], "vectors")


@CASES.add("embed", EITHER, "text 2")
def embed_unknown(_: Path) -> None:
    """A text of unknown characters alone among texts to embed"""
    vectors = predictor().embed(["the cat sat", "😀", "a dog ran"])
    close(vectors[[0, 2]], [vector_of("the cat sat"), vector_of("a dog ran")], "vectors")


@CASES.add("embed", EITHER, "text 2")
def embed_none(_: Path) -> None:
    """None among texts to embed"""
    vectors = predictor().embed(["the cat sat", None, "a dog ran"])
    close(vectors[[0, 2]], [vector_of("the cat sat"), vector_of("a dog ran")], "vectors")


SETTINGS: dict[str, tuple[str, Callable[[Any], Any], tuple[str, ...]]] = {
    "stride_zero": ("a stride of 0", lambda made: made.classify("the cat", stride=0), ("stride",)),
    "stride_text": (
        "a stride that is text",
        lambda made: made.classify("the cat", stride="3"),
        ("stride",),
    ),
    "stride_half": (
        "a stride of 1.5",
        lambda made: made.classify("the cat", stride=1.5),
        ("stride",),
    ),
    "unknown_pooling": (
        "a pooling that nobody knows",
        lambda made: made.embed("the cat", pooling="max"),
        ("pooling",),
    ),
    "layer_too_high": (
        "a layer that the encoder does not have",
        lambda made: made.embed("the cat", layer=2),
        ("layer",),
    ),
    "layer_text": (
        "a layer that is text",
        lambda made: made.embed("the cat", layer="last"),
        ("layer",),
    ),
    "fill_without_head": (
        "a mask to fill by a classifier",
        lambda made: made.fill_mask("the [MASK]"),
        ("lm",),
    ),
    "tag_without_head": (
        "words to tag by a classifier",
        lambda made: made.tag("the cat"),
        ("tag",),
    ),
}


def setting_case(oddity: str, act_on: Callable[[Any], Any], names: tuple[str, ...]) -> None:
    def act(_: Path) -> None:
        act_on(predictor())

    CASES.add("embed" if "embed" in oddity else "predict", REFUSED, names, oddity=oddity)(act)


for name, (oddity, act_on, names) in SETTINGS.items():
    setting_case(oddity, act_on, names)


@CASES.add("predict", READ)
def two_masks(_: Path) -> None:
    """A text with two masks, beside one with one"""
    made = load(masked())
    theirs_ = theirs(masked(), "ForMaskedLM")
    tokenizer = transformers.AutoTokenizer.from_pretrained(masked())
    texts = ["the [MASK] sat on[MASK]mat", "a [MASK]"]
    for text, filled in zip(texts, made.fill_mask(texts, top_k=3), strict=True):
        inputs = encoded(masked(), text)
        places = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0]
        with torch.no_grad():
            best = theirs_(**inputs).logits[0, places].topk(3).indices.tolist()
        ids = []
        for mask in filled.masks:
            ids.append([token.id for token in mask])
        equal(ids, best, f"tokens for {text!r}")


@CASES.add("predict", REFUSED, "top_k")
def top_k_text(_: Path) -> None:
    """A top_k that is text"""
    load(masked()).fill_mask("the [MASK]", top_k="5")


@CASES.add("predict", EITHER, "text 2")
def no_mask(_: Path) -> None:
    """No mask in one of three texts"""
    filled = load(masked()).fill_mask(["the [MASK]", "the cat", "a [MASK]"])
    check(is_marked(filled[1]), "the text without a mask is not marked")
    equal([len(filled[0].masks), len(filled[2].masks)], [1, 1], "masks of the others")


@CASES.add("predict", READ)
def tag_odd_words(_: Path) -> None:
    """Words to tag with emoji, accents apart from their letters and zero-width characters: spans
    are their own
    """
    text = "Ada 😀 sat\u200b on\u00a0a mat, e\u0301 中文.\tBob"
    answer = load(tagger()).tag(text)
    check(len(answer.words) >= 8, f"{len(answer.words)} words")
    for span in answer.words:
        equal(text[span.start : span.end], span.text, "the text of a span")
    covered = "".join(span.text for span in answer.words)
    lost = [char for char in text if char.isalnum() and char not in covered]
    equal(lost, [], "letters in no word")


@CASES.add("predict", EITHER, "word 2|text 1")
def tag_empty_word(_: Path) -> None:
    """An empty word in a list of words to tag"""
    answer = load(tagger()).tag([["the", "", "cat"]])[0]
    equal([span.text for span in answer.words], ["the", "", "cat"], "words")


@CASES.add("predict", EITHER, "words|text 1")
def tag_words_of_numbers(_: Path) -> None:
    """A number among the words to tag"""
    answer = load(tagger()).tag([["the", 7, "cat"]])[0]
    equal([span.text for span in answer.words], ["the", "7", "cat"], "words")


@CASES.add("predict", READ)
def answer_odd_passage(_: Path) -> None:
    """A passage with emoji, accents apart and line breaks: the answer is what stands at its
    place
    """
    passage = "😀 the cäfe\u0301:\r\n the cat sat on\u00a0a \u200bmat and ran. " * 6
    answer = load(reader()).answer("who sat ?", [passage], top_k=5)
    for one in [answer, *answer.others]:
        if one.text:
            equal(passage[one.start : one.end], one.text, "the text of an answer")


@CASES.add("predict", REFUSED, "passage")
def answer_empty_passage(_: Path) -> None:
    """An empty passage"""
    load(reader()).answer("who sat ?", " ")


@CASES.add("predict", REFUSED, "question")
def answer_empty_question(_: Path) -> None:
    """An empty question"""
    load(reader()).answer("", "the cat sat")


@CASES.add("predict", REFUSED, "passage|None")
def answer_none_passage(_: Path) -> None:
    """None in place of a passage"""
    load(reader()).answer("who sat ?", ["the cat sat", None])
