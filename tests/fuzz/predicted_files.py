"""Odd files for `predict` and `embed`: each row answered as transformers answers its text alone."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from tests.fuzz.answering import (
    TEXTS,
    Text,
    compare,
    is_marked,
    rows_written,
    run_predict,
    vector_of,
    with_odd,
)
from tests.fuzz.lab import EITHER, READ, REFUSED, Cases, check, close, equal
from tests.fuzz.layouts import in_every_layout
from tests.fuzz.making import json_lines, parquet, table
from tests.fuzz.tasks import PAIRS, mrpc_twin

CASES = Cases("files to predict")
LINES = "".join(f"{text}\n" for text in TEXTS)
ROWS = [{"text": text} for text in TEXTS]
MARKED: list[Text | None] = with_odd(None)
SECOND = "a dog sat"
HEADER = "id,text,label"
TWO: list[Text] = [(str(text), SECOND) for text in TEXTS]


@CASES.rows("predict", "input.")
def file_case(
    place: Path, content: str | bytes, suffix: str, texts: Sequence[Text | None] | None = TEXTS
) -> None:
    """`texts` None: it is to be refused whatever comes out."""
    path, output = place / f"input{suffix}", place / "out.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    try:
        run_predict(path, output)
    except (ValueError, OSError):
        check(not output.exists(), "an output is there, half-written")
        raise
    if texts is not None:
        compare(rows_written(output), texts, "row")


def rows_of(texts: Sequence[Any] = TEXTS, separator: str = ",", header: str = HEADER) -> str:
    """A table of texts between their numbers and labels."""
    cells = [(f"00{number}", text, number % 2) for number, text in enumerate(texts)]
    return table(cells, separator, header=header)


for _suffix, _content in {
    ".csv": rows_of(),
    ".tsv": rows_of(separator="\t"),
    ".jsonl": json_lines(ROWS),
}.items():
    in_every_layout(file_case, _suffix, _content, _suffix)


# Lines: a blank one is a text that cannot be answered


def line_case(
    oddity: str,
    expected: str,
    content: str | bytes,
    texts: Sequence[Text | None] | None = TEXTS,
    names: str = "input.txt",
) -> None:
    file_case(f"lines: {oddity}", expected, content, ".txt", texts, names=names)


for _oddity, _new in {
    "a byte order mark": lambda content: b"\xef\xbb\xbf" + content,
    "Windows line ends": lambda content: content.replace(b"\n", b"\r\n"),
    "no line end after the last line": lambda content: content.rstrip(b"\n"),
    "a NUL inside a line": lambda content: content.replace(b"slow", b"sl\0ow"),
}.items():
    line_case(_oddity, READ, _new(LINES.encode()))
line_case("line ends of old Macintoshes (CR alone)", EITHER, LINES.replace("\n", "\r"))
line_case("UTF-16 with its mark", EITHER, LINES.encode("utf-16"))
file_case("lines in a file without a suffix", READ, LINES, "")
file_case("lines packed by gzip", EITHER, gzip.compress(LINES.encode()), ".txt.gz")
line_case("an empty file", REFUSED, "", None)
blank = LINES.replace(f"{TEXTS[1]}\n", f"{TEXTS[1]}\n\n")
line_case("a blank one among them", READ, blank, MARKED)
at_the_end = [*TEXTS, None, None]
line_case("two blank ones at the end", READ, LINES + "\n\n", at_the_end)
separators = LINES.replace(" film", "\u2028\x85\f\x0bfilm")
line_case("U+2028, U+0085, form feeds and vertical tabs inside", READ, separators)
without_second = [TEXTS[0], None, *TEXTS[2:]]
latin_1 = LINES.encode().replace(b"slow", b"sl\xf6w")
line_case("one in Latin-1", EITHER, latin_1, without_second)
surrogate = LINES.encode().replace(b"slow", b"\xed\xa0\x80slow")
line_case("half a surrogate pair, written as bytes", EITHER, surrogate, without_second)
line_case("an emoji", READ, LINES + "😀\n", [*TEXTS, None])
line_case("4,000 characters in one", READ, LINES + "the cat " * 500 + "\n", [*TEXTS, None])
line_case("a tab in each: pairs", READ, LINES.replace("\n", f"\t{SECOND}\n"), TWO)
line_case(
    "a tab in one of five", EITHER, LINES.replace("slow", "slow\t"), None, names="pair|column"
)
quoted = [f'"{text}' for text in TEXTS]
never_closed = LINES.replace("the", '"the')
line_case("quotation marks that are never closed", READ, never_closed, quoted)
for _first in ("{the} cat", "19"):
    line_case(f"the first is {_first}", READ, f"{_first}\n{LINES}", [_first, *TEXTS])


@CASES.add("predict", EITHER, "a.txt:6")
def lines_three(place: Path) -> None:
    """Three columns in one line: one text with tabs in it, or none"""
    (place / "a.txt").write_text(LINES + "a\tb\tc\n")
    run_predict(place / "a.txt", place / "out.jsonl")
    rows = rows_written(place / "out.jsonl")
    compare(rows, [*TEXTS, None if is_marked(rows[-1]) else "a b c"], "row")


# Tables


def csv_case(
    oddity: str,
    expected: str,
    content: str | bytes,
    texts: Sequence[Text | None] | None = TEXTS,
    names: str = "input.csv",
) -> None:
    file_case(f"csv: {oddity}", expected, content, ".csv", texts, names=names)


odd_texts = [f'"{text}", so\nit' for text in TEXTS]
read_so = [text.replace("\n", " ") for text in odd_texts]
csv_case("commas, quotes and line breaks inside quoted texts", READ, rows_of(odd_texts), read_so)
csv_case("semicolons between the columns", EITHER, rows_of(separator=";"), names="input.csv|column")
csv_case("one column", READ, "text\n" + LINES)
sentences = rows_of(header="id,sentence,label")
csv_case("a column called sentence", EITHER, sentences, names="sentence")
csv_case("columns that nobody knows", REFUSED, rows_of(header="a,b,c"), None, names="column")
csv_case("no header", REFUSED, rows_of(header=""), None, names="column|header")
two_texts = rows_of(header="text,text,label")
csv_case("two columns text", REFUSED, two_texts, None, names="text")
for _oddity, _cells in {
    "texts that are numbers, with zeros before them": ["007", "1.50", "1e5"],
    "texts that are dates": ["2020-01-02", "01/02/20"],
    "texts that are the words NA, null, None and nan": ["NA", "null", "None", "nan"],
}.items():
    csv_case(_oddity, READ, "\n".join(["text", *_cells]) + "\n", _cells)
csv_case("an empty cell", READ, rows_of(with_odd("")), MARKED)
csv_case("a comma at the end of every line", EITHER, rows_of().replace("\n", ",\n"))
ragged = rows_of().replace("slow", "slow,x")
csv_case("one row with a field too many", EITHER, ragged, without_second, names="input.csv:3")
open_quote = rows_of().replace("the slow", '"the slow')
csv_case("a quotation mark that is never closed", REFUSED, open_quote, None)
long_field = rows_of([*TEXTS, "the cat " * 25_000])
csv_case("a field of 200,000 characters", READ, long_field, [*TEXTS, None])
csv_case("a NUL inside a field", EITHER, rows_of().replace("slow", "sl\0ow"))
csv_case("a header and no row", REFUSED, "id,text\n", None)
file_case("a suffix in capitals, .CSV", READ, rows_of(), ".CSV")
in_tabs = "id\ttext\n" + "".join(f"1\t{text}\n" for text in quoted)
file_case("quotation marks in a .tsv, which does not quote", READ, in_tabs, ".tsv", quoted)
of_pairs = "sentence1,sentence2\n" + "".join(f"{one},{two}\n" for one, two in TWO)
csv_case("the columns sentence1 and sentence2", EITHER, of_pairs, TWO, names="column")
predicted = rows_of(header="prediction,text,label")
csv_case("a column prediction already", EITHER, predicted, names="prediction")

# JSON


def json_case(
    oddity: str,
    expected: str,
    rows: Sequence[Any],
    texts: Sequence[Text | None] | None = TEXTS,
    names: str = "input.jsonl",
) -> None:
    file_case(f"JSON lines: {oddity}", expected, json_lines(rows), ".jsonl", texts, names=names)


broken = [{"text": str(text).replace(" film", "\t\nfilm")} for text in TEXTS]
json_case("tabs, line breaks and \\u escapes inside texts", READ, broken)
more = [{"id": 1, "meta": {"x": [1]}, **row} for row in ROWS]
json_case("nested objects and numbers beside the text", EITHER, more, names="meta|id")
second_text = [{**row, "text_pair": SECOND} for row in ROWS]
json_case("a second text under another key", EITHER, second_text, TWO, names="text_pair")
other_key = [{"sentence": text} for text in TEXTS]
json_case("the text under the key sentence", EITHER, other_key, names="sentence")
third = "text 3|input.jsonl:3"
for _oddity, _odd in {"null": None, "a number": 7}.items():
    odd_rows = [{"text": text} for text in with_odd(_odd)]
    json_case(f"a text that is {_oddity}", EITHER, odd_rows, MARKED, names=third)
no_text = [*ROWS[:2], {"other": 1}, *ROWS[2:]]
json_case("a line without the key text", EITHER, no_text, MARKED, names=third)
json_case("lines that are lists", REFUSED, [[text] for text in TEXTS], None, names="input.jsonl:1")
json_case("lines that are texts", EITHER, TEXTS, names="input.jsonl:1")
json_case(
    "pairs and single texts", EITHER, [*ROWS[:2], {"text": "a", "pair": "b"}], None, names="pair"
)
half_pair = [{"text": text} for text in with_odd("the cat\ud800 sat")]
json_case(
    "half a surrogate pair, as an escape", EITHER, half_pair, with_odd("the cat sat"), names=third
)
between = json_lines(ROWS).replace("\n", "\n\n")
file_case("a blank line among JSON lines", EITHER, between, ".jsonl", names="input.jsonl:2")
no_json = json_lines(ROWS) + '{"text": "the\n'
file_case(
    "a line that is no JSON", EITHER, no_json, ".jsonl", [*TEXTS, None], names="input.jsonl:6"
)
file_case("one JSON array called .jsonl", EITHER, json.dumps(ROWS), ".jsonl")
file_case("one JSON array called .json", EITHER, json.dumps(ROWS, indent=1), ".json")
file_case("JSON lines called .txt", EITHER, json_lines(ROWS), ".txt", names="")
twice = json_lines(ROWS).replace('{"text"', '{"text": "x", "text"')
file_case("a key twice in a line", EITHER, twice, ".jsonl")

# Parquet and other files

frame = pandas.DataFrame({"text": TEXTS, "label": range(5)})
file_case("a .parquet with a column text", READ, parquet(frame), ".parquet")
null = parquet(pandas.DataFrame({"text": with_odd(None)}))
file_case("a .parquet with a text that is null", READ, null, ".parquet", MARKED)
numbers = parquet(pandas.DataFrame({"text": [1, 2]}))
file_case("a .parquet of numbers", EITHER, numbers, ".parquet", None, names="text|input.parquet")
unknown = parquet(frame.rename(columns={"text": "body"}))
file_case("a .parquet whose columns nobody knows", REFUSED, unknown, ".parquet", None, names="body")
file_case("a .parquet cut in half", REFUSED, parquet(frame)[:300], ".parquet", None)
picture = b"\x89PNG\r\n\x1a\n\0\0\xff"
file_case("a picture by its own name", REFUSED, picture, ".png", None)


@CASES.add("predict", REFUSED, "no such file|folder|directory")
def input_is_a_folder(place: Path) -> None:
    """A folder in place of the input"""
    run_predict(place, place / "out.jsonl")


@CASES.add("predict", EITHER, "input|output")
def output_is_the_input(place: Path) -> None:
    """The output is the input's own file"""
    path = place / "a.jsonl"
    path.write_text(json_lines(ROWS))
    try:
        run_predict(path, path)
    except ValueError:
        equal(path.read_text(), json_lines(ROWS), "the input")
        raise
    compare(rows_written(path), TEXTS, "row")


@CASES.add("predict", REFUSED, "pair")
def pair_model_one_text(place: Path) -> None:
    """One text for a model that was trained on pairs"""
    (place / "a.txt").write_text(LINES)
    run_predict(place / "a.txt", place / "out.jsonl", model_folder=mrpc_twin(tuple(PAIRS)))


def vectors_of(place: Path, texts: Sequence[str]) -> np.ndarray:
    """The array that do=embed writes of texts a line."""
    (place / "a.txt").write_text("".join(f"{text}\n" for text in texts))
    run_predict(place / "a.txt", place / "out.npy", "do=embed")
    return np.asarray(np.load(place / "out.npy"))


@CASES.add("embed", READ)
def embed_blank_line(place: Path) -> None:
    """A blank line among lines to embed: a row of the array for each line"""
    texts = ["the cat sat", "", "a dog ran"]
    close(vectors_of(place, texts), [vector_of(text) for text in texts], "vectors")


@CASES.add("embed", READ)
def embed_order(place: Path) -> None:
    """Lines of very different lengths: vectors stay in their order"""
    texts = ["the cat " * (1 + 17 * number % 29) for number in range(40)]
    close(vectors_of(place, texts), [vector_of(text) for text in texts], "vectors")
