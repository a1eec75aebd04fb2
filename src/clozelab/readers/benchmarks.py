"""Official files of benchmarks that are no plain tables, opened as tables: LAYOUTS names them.

An object of a jsonl file becomes a row, or a row for each candidate answer. A folder of text files
becomes the rows of its files. A *candidate* has an id of two parts: `12/Rome` is the answer Rome to
question 12.

Marked words: the first is between asterisks, the second between number signs, as in T5 (Raffel et
al. 2020).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from clozelab.readers.lines import Advance, ignore, parse_json
from clozelab.readers.objects import first_keys, open_objects
from clozelab.readers.records import NOT_UTF8, DamagedRow, Record, Rows, Table
from clozelab.readers.remote import FilePath
from clozelab.text.plain import JsonObject

COPA_QUESTIONS = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
PLACEHOLDER = "@placeholder"  # of the missing entity in a query of ReCoRD
UNLABELLED = "unsup"  # IMDB's folder of reviews without a label


def open_rows_of_objects(
    path: FilePath, rows_of: Callable[[JsonObject], Iterable[Record]]
) -> Table:
    """A jsonl file of which each object has several rows, or one with other columns.

    ValueError names the line of an object that lacks a key.
    """
    source = open_objects(path)

    def rows(_: list[str] | None, advance: Advance, removed: Counter[str] | None) -> Rows:
        for number, record in source.rows(None, advance, removed):
            if isinstance(record, DamagedRow):
                yield number, record
                continue
            try:
                of_object = list(rows_of(record))
            except (KeyError, TypeError, IndexError, AttributeError) as problem:
                raise ValueError(
                    f"{source.place(number)}: not an object of this benchmark"
                    f" ({type(problem).__name__}: {problem}); is task.data.file_format right?"
                ) from problem
            for row in of_object:
                yield number, row

    return Table(path, "jsonl", first_keys(path, rows(None, ignore, Counter())), rows)


def open_folder(path: Path, pattern: str, rows_of: Callable[[Path], Iterable[Record]]) -> Table:
    """The rows of a folder's files, which are numbered in the order of their names."""
    files = sorted(path.glob(pattern))

    def rows(_: list[str] | None, advance: Advance, __: Counter[str] | None) -> Rows:
        for number, file in enumerate(files, 1):
            advance(file.stat().st_size)
            for row in rows_of(file):
                yield number, row

    columns = first_keys(path, rows(None, ignore, None))
    return Table(path, "jsonl", columns, rows, place_format="{path}, file {number} by name")


# SuperGLUE


def copa_rows(record: JsonObject) -> Iterator[Record]:
    """The question as a sentence."""
    yield record | {"question_text": COPA_QUESTIONS[record["question"]]}


def wic_rows(record: JsonObject) -> Iterator[Record]:
    """The word is marked in both sentences."""
    marked = {}
    for number in ("1", "2"):
        span = slice(int(record[f"start{number}"]), int(record[f"end{number}"]))
        marked[f"sentence{number}"] = mark(record[f"sentence{number}"], [(span, "*")])
    yield record | marked


def wsc_rows(record: JsonObject) -> Iterator[Record]:
    """Both spans, which the file numbers by words, are marked in the text."""
    text = record["text"]
    tokens = list(re.finditer(r"\S+", text))
    spans = []
    for name, sign in (("span1", "*"), ("span2", "#")):
        written = record["target"][f"{name}_text"]
        first = record["target"][f"{name}_index"]
        start = tokens[first].start()
        end = start + len(written)
        # A text that is spelt otherwise there has as many words.
        if text[start:end].casefold() != written.casefold():
            end = tokens[first:][: len(written.split())][-1].end()
        spans.append((slice(start, end), sign))
    yield record | {"text": mark(text, spans)}


def mark(text: str, spans: Iterable[tuple[slice, str]]) -> str:
    """The text with a sign around each span of characters."""
    # The last first: so the places of the others stay.
    for span, sign in sorted(spans, key=lambda place: -place[0].start):
        text = f"{text[: span.start]}{sign}{text[span]}{sign}{text[span.stop :]}"
    return text


def multirc_rows(record: JsonObject) -> Iterator[Record]:
    """A row for each answer to each question: the passage, and the question with the answer."""
    for question in record["passage"]["questions"]:
        for answer in question["answers"]:
            yield {
                "id": f"{record['idx']}-{question['idx']}/{answer['idx']}",
                "passage": record["passage"]["text"],
                "question_answer": f"{question['question']} {answer['text']}",
                "label": answer.get("label"),
            }


def record_rows(record: JsonObject) -> Iterator[Record]:
    """A row for each entity: the passage, and the query that has the entity filled in.

    It is right where an answer has the same text. A query whose answers are no entities is damaged.
    """
    passage = record["passage"]["text"]
    # The end is the last character's place.
    names = [passage[span["start"] : span["end"] + 1] for span in record["passage"]["entities"]]
    for question in record["qas"]:
        answers = None
        if "answers" in question:
            answers = {answer["text"] for answer in question["answers"]}
            if answers.isdisjoint(names):
                yield DamagedRow(f"no answer of query {question['idx']} is an entity")
                continue
        for name in dict.fromkeys(names):
            label = None
            if answers is not None:
                label = int(name in answers)
            yield {
                "id": f"{question['idx']}/{name}",
                "passage": passage,
                "query": question["query"].replace(PLACEHOLDER, name),
                "label": label,
            }


# Folders


def race_rows(file: Path) -> Iterator[Record]:
    """A row for each question on a file's article; the letter of the answer becomes its number."""
    content = parse_json(file.read_bytes())
    for number, question in enumerate(content["questions"]):
        row = {"article": content["article"], "question": question}
        for place, option in enumerate(content["options"][number]):
            row[f"option{place}"] = option
        if "answers" in content:
            row["label"] = str(ord(content["answers"][number]) - ord("A"))
        yield row


def text_rows(file: Path) -> Iterator[Record]:
    """One row, whose label is the name of the file's folder."""
    label = file.parent.name
    if label == UNLABELLED:
        return
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        yield DamagedRow(NOT_UTF8)
        return
    yield {"id": f"{label}/{file.stem}", "text": text, "label": label}


OBJECTS = {
    "copa": copa_rows,
    "wic": wic_rows,
    "wsc": wsc_rows,
    "multirc": multirc_rows,
    "record": record_rows,
}
FOLDERS: dict[str, Callable[..., Table]] = {
    "race": partial(open_folder, pattern="**/*.txt", rows_of=race_rows),
    "text_folders": partial(open_folder, pattern="*/*.txt", rows_of=text_rows),
}
LAYOUTS = dict(FOLDERS)
for name, rows_of_object in OBJECTS.items():
    LAYOUTS[name] = partial(open_rows_of_objects, rows_of=rows_of_object)
