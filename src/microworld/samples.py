"""What the world looks like: documents and one example of each task, as marked text for whoever prints it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from microworld.choices import Choices
from microworld.documents import tell_document
from microworld.entities import Tagged, tagged_document
from microworld.formats import TABLES, make_rows
from microworld.pairs import HOME_SCENES, Row
from microworld.sentences import continuation
from microworld.spans import squad

Parts = list[tuple[str, str]]
"""(text, mark) one after the other: mark is "right" for the answer, an entity's type, or empty."""
QUESTIONS = {
    "CoLA": "is the sentence acceptable (1), or is a word, a form or the order wrong (0)?",
    "SST-2": "does it speak well (1) or ill (0) of the thing?",
    "MRPC": "do both sentences tell the same fact?",
    "QQP": "do both questions ask for the same?",
    "STS-B": "how like: 5 less one for every part that differs",
    "RTE": "does the second text follow from the first?",
    "QNLI": "does the sentence answer the question?",
    "MNLI": "does the second text follow from the first, contradict it, or neither?",
}
INNER_KEYS = ("index", "genre", "mark", "people")


@dataclass(frozen=True)
class Sample:
    """One example: what is asked, and (name, text) of each of its lines."""

    task: str
    question: str
    lines: list[tuple[str, Parts]]


def sample_documents(count: int, world_seed: int) -> Iterator[list[str]]:
    """The first `count` documents of the corpus, each a list of sentences."""
    for number in range(count):
        yield [sentence.text for sentence in tell_document(Choices(f"{world_seed}/corpus/{number}"))]


def sample_tasks(world_seed: int) -> Iterator[Sample]:
    """The first training example of every task."""
    for name, table in TABLES.items():
        row = make_rows(table.maker, f"{world_seed}/{name}", "train", HOME_SCENES, 1)[0]
        lines = [(key, [(text, _mark(key == "label"))]) for key, text in row.items() if key not in INNER_KEYS]
        yield Sample(name, QUESTIONS[name], lines)
    yield _endings(make_rows(continuation, f"{world_seed}/SWAG", "train", HOME_SCENES, 1)[0])
    for version in ("1.1", "v2.0"):
        yield _passage(world_seed, version)
    tagged = tagged_document(Choices(f"{world_seed}/ner/train/0"), "train", HOME_SCENES)
    about = "which words name people (PER), towns (LOC), houses of trade (ORG)?"
    yield Sample("NER", about, [("", _entities(sentence)) for sentence in tagged])


def _mark(is_right: bool) -> str:
    return "right" if is_right else ""


def _endings(row: Row) -> Sample:
    lines: list[tuple[str, Parts]] = [("begins", [(f"{row['sent1']} {row['sent2']}", "")])]
    lines += [(f"ending{n}", [(row[f"ending{n}"], _mark(row["label"] == str(n)))]) for n in range(4)]
    lines.append(("label", [(row["label"], "right")]))
    return Sample("SWAG", "which ending fits?", lines)


def _passage(world_seed: int, version: str) -> Sample:
    """One question about the first passage; one without an answer where there is one."""
    paragraph = squad(str(world_seed), "train", HOME_SCENES, 3, version)["data"][0]["paragraphs"][0]
    asked = min(paragraph["qas"], key=lambda entry: bool(entry["answers"]))
    text, answer = paragraph["context"], "(none in the passage)"
    passage: Parts = [(text, "")]
    for one in asked["answers"]:
        answer, start = one["text"], one["answer_start"]
        passage = [(text[:start], ""), (answer, "right"), (text[start + len(answer) :], "")]
    lines = [("passage", passage), ("question", [(asked["question"], "")]), ("answer", [(answer, "right")])]
    return Sample(f"SQuAD {version.removeprefix('v')}", "which words of the passage answer the question?", lines)


def _entities(sentence: Tagged) -> Parts:
    """The sentence with its entities in brackets after their type: `[PER Rose Hill] owns ...`."""
    parts: Parts = []
    for token, tag in sentence:
        if tag[0] == "I":
            before, kind = parts.pop()
            parts.append((f"{before.removesuffix(']')} {token}]", kind))
            continue
        space = "" if not parts or token in ".,?" else " "
        parts += [(space, "")] if space else []
        parts.append((f"[{tag[2:]} {token}]", tag[2:]) if tag != "O" else (token, ""))
    return parts
