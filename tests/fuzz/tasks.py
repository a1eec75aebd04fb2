"""Odd files of pairs, tagged words, questions and choices for `finetune`, compared with clean twins
as labels.py does it.
"""

from __future__ import annotations

import codecs
import json
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas
from tests.fuzz.lab import EITHER, READ, REFUSED, Cases, check, equal, heard
from tests.fuzz.labels import (
    COLOURS,
    classes,
    facts,
    finetune,
    labels_of,
    learnt_as,
    predictions,
    twin_place,
)
from tests.fuzz.layouts import in_every_layout
from tests.fuzz.making import json_lines, parquet, table

CASES = Cases("files of tasks")


@cache
def twin(run: Callable[..., Path], *content: object) -> Path:
    """What a run makes of clean content."""
    return run(twin_place(run.__name__, content), *content)


# GLUE's own files

Pair = tuple[str, str, str]  # two texts and the label
PAIRS: list[Pair] = [
    (f"the {COLOURS[n % 4]} cat {n}", f"a {COLOURS[n // 2 % 4]} cat {n}", str(n // 2 % 2))
    for n in range(32)
]
MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"


def mrpc(pairs: Sequence[Pair] = PAIRS, header: str = MRPC_HEADER) -> str:
    lines = [header] if header else []
    lines += [f"{label}\t{n}\t{n}\t{one}\t{two}" for n, (one, two, label) in enumerate(pairs)]
    return "\n".join(lines) + "\n"


@cache
def mrpc_twin(pairs: tuple[Pair, ...]) -> Path:
    rows = [{"#2 String": two, "Quality": label, "#1 String": one} for one, two, label in pairs]
    content = json_lines(rows)
    words = ["task=mrpc", "task.data.train_file=a.jsonl", "task.data.validation_file=a.jsonl"]
    return finetune(twin_place("mrpc", pairs), {"a.jsonl": content}, words)


@CASES.rows("finetune", "train.tsv")
def mrpc_case(
    place: Path, content: str | bytes, suffix: str = ".tsv", pairs: Sequence[Pair] = PAIRS
) -> None:
    files = {f"glue/MRPC/train{suffix}": content, "glue/MRPC/dev.tsv": mrpc(pairs)}
    words = ["task=mrpc", f"task.data.train_file=glue/MRPC/train{suffix}"]
    run = finetune(place, files, words)
    equal(labels_of(run), [label for *_, label in pairs], "labels")
    learnt_as(run, mrpc_twin(tuple(pairs)))


in_every_layout(mrpc_case, "GLUE's pairs", mrpc(), ".tsv")
as_published = codecs.BOM_UTF8 + mrpc().replace("\n", "\r\n").encode()
mrpc_case("a byte order mark and Windows line ends, as MRPC is published", READ, as_published)
quoted_pairs = [(f'"{one}', f'{two} "', label) for one, two, label in PAIRS]
mrpc_case("quotation marks that are never closed", READ, mrpc(quoted_pairs), ".tsv", quoted_pairs)
mrpc_case("MRPC without its header", REFUSED, mrpc(header=""))
of_test = mrpc([(one, two, "-1") for one, two, _ in PAIRS])
mrpc_case("labels -1, as in a test split", REFUSED, of_test, names="train.tsv:2")
other_order = mrpc(header="#1 String\t#2 String\t#1 ID\t#2 ID\tQuality")
mrpc_case("columns in another order than their names", REFUSED, other_order, names="train.tsv:2")
short_row = mrpc().replace("\ta blue cat 3\n", "\n")
mrpc_case("one row of 32 without its second text", EITHER, short_row, names="train.tsv:5")


@CASES.add("finetune", READ)
def cola_with_header(place: Path) -> None:
    """CoLA, which has no header, with one: it is no example"""
    rows = [f"gj04\t{n // 2 % 2}\t\tthe {COLOURS[n % 4]} film {n}" for n in range(32)]
    plain = "\n".join(rows) + "\n"
    runs = []
    for name, content in {"a": plain, "b": "source\tlabel\tmark\tsentence\n" + plain}.items():
        files = {"glue/CoLA/train.tsv": content, "glue/CoLA/dev.tsv": content}
        runs.append(finetune(place / name, files, ["task=cola"]))
    equal(len(predictions(runs[1])), len(rows), "examples")
    learnt_as(runs[1], runs[0])


SCORES = [f"{n % 11 / 2}" for n in range(32)]


def score_run(place: Path, scores: Sequence[str]) -> Path:
    """A fine-tuning on STS-B with these scores for training."""
    files = {}
    for split, own in {"train": scores, "dev": SCORES}.items():
        rows = [(n, one, two, own[n]) for n, (one, two, _) in enumerate(PAIRS)]
        header = "index,sentence1,sentence2,score"
        files[f"glue/STS-B/{split}.tsv"] = table(rows, "\t", header=header)
    return finetune(place, files, ["task=stsb"])


@CASES.rows("finetune", "train.tsv:6")
def stsb_case(place: Path, scores: Sequence[str]) -> None:
    run = score_run(place, scores)
    equal([float(label) for label in labels_of(run)], [*map(float, SCORES)], "scores")
    learnt_as(run, twin(score_run, tuple(SCORES)))


def fifth(value: str) -> list[str]:
    return [value if number == 4 else score for number, score in enumerate(SCORES)]


stsb_case("blanks around the scores", READ, [f" {score} " for score in SCORES])
stsb_case("scores such as 5e-1", READ, [f"{float(score) * 10:g}e-1" for score in SCORES])
for _value in ("NaN", "inf", "2,5", "", "high", "1_0"):
    stsb_case(f"a score that is written {_value!r}", REFUSED, fifth(_value))


@CASES.add("finetune", EITHER, "train.tsv:6")
def stsb_out_of_range(place: Path) -> None:
    """A score of 55 where 0 to 5 are: said, whether read or refused"""
    score_run(place, fifth("55"))
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
    between: str = "",
    row: Callable[[str, str], list[str]] = lambda word, tag: [word, tag],
) -> str:
    blocks = []
    for words, own in sentences:
        lines = [separator.join(row(word, tag)) for word, tag in zip(words, tags(own), strict=True)]
        blocks.append("\n".join(lines) + "\n")
    return f"{between}\n".join(blocks)


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


TAG_WORDS = ["task=ner_conll2003", "task.data.validation_file=dev.txt"]
CLEAN_TAGGED = columns()


def tag_run(
    place: Path, train: str | bytes, suffix: str, dev: str | bytes, words: Sequence[str]
) -> Path:
    every_word = [*TAG_WORDS, f"task.data.train_file=train{suffix}", *words]
    return finetune(place, {f"train{suffix}": train, "dev.txt": dev}, every_word)


def tagged_of(run: Path) -> list[Sentence]:
    """Words and tags that a run was scored by."""
    return [(row["words"], row["label"]) for row in predictions(run)]


@CASES.rows("finetune", "train.txt")
def tag_case(
    place: Path,
    train: str | bytes,
    suffix: str = ".txt",
    *,
    clean: str = CLEAN_TAGGED,
    dev: str | bytes = CLEAN_TAGGED,
    must_say: str = "",
    words: Sequence[str] = (),
) -> None:
    run = tag_run(place, train, suffix, dev, words)
    is_said = not must_say or heard(must_say)
    equal(tagged_of(run), TAGGED, "words and tags that it is scored by")
    equal(classes(run), ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"], "classes")
    learnt_as(run, twin(tag_run, clean, ".txt", CLEAN_TAGGED, ()))
    check(is_said, f"nothing is said of {must_say}")


in_every_layout(tag_case, "tagged words", CLEAN_TAGGED, ".txt")
tag_case("IOB1 in training, IOB2 in validation", READ, columns(tags=iob1))
tag_case("BIOES in training, IOB2 in validation", READ, columns(tags=bioes))
tag_case("IOB2 in training, IOB1 in validation", READ, CLEAN_TAGGED, dev=columns(tags=iob1))
tag_case("tabs between the columns", READ, columns(separator="\t"))
wide = columns(separator="   ", row=lambda word, tag: [word, tag, ""])
tag_case("several blanks between the columns and at the end of lines", READ, wide)
tag_case("blanks and tabs in the lines between sentences", READ, columns(between=" \t"))
many_between = "\n\n" + columns(between="\n\n")
tag_case("three blank lines between sentences, and before the first", READ, many_between)
four = columns(row=lambda word, tag: [word, "NN", "B-NP", tag])
tag_case("the four columns of CoNLL-2003", READ, four)
tag_first = columns(row=lambda word, tag: [tag, word])
tag_case("the tag before the word", REFUSED, tag_first)
said = ("task.data.word_column=1", "task.data.tag_column=0")
tag_case("the tag before the word, and said so", READ, tag_first, dev=tag_first, words=said)
tag_case("no tags", REFUSED, columns(row=lambda word, _: [word]))
tag_case("commas between the columns", REFUSED, columns(separator=","))
one_less = CLEAN_TAGGED.replace("max O", "max").replace("see O", "see", 1)
others = columns([sentence for number, sentence in enumerate(TAGGED) if number != 5])
tag_case("one word of 218 without its tag", EITHER, one_less, clean=others, names="train.txt:")
lower = columns(tags=lambda tags: [tag.lower() for tag in tags])
tag_case("tags in lower case", EITHER, lower, names="train.txt|dev.txt")
new_tag = CLEAN_TAGGED.replace("B-LOC", "B-ORG", 1)
oddity = "a tag in validation that training does not have"
tag_case(oddity, REFUSED, CLEAN_TAGGED, dev=new_tag, names="dev.txt")
no_entity = columns(tags=lambda tags: ["O"] * len(tags))
tag_case("not one entity in training", REFUSED, no_entity, names="train.txt|dev.txt")
tag_case(
    "types without B- and I-",
    READ,
    columns(tags=lambda tags: [tag.split("-")[-1] for tag in tags]),
    # Neighbours of one type are one entity.
    clean=columns(tags=lambda tags: [tag.replace("B-", "I-") for tag in tags]),
    must_say="types without B- and I-",
)
rows_of_tags = [{"tokens": words, "ner_tags": tags} for words, tags in TAGGED]
oddity = "JSON lines with tokens and ner_tags, as the datasets library writes them"
tag_case(oddity, REFUSED, json_lines(rows_of_tags))
latin_1 = CLEAN_TAGGED.replace("the ", "th\xe9 ").encode("latin-1")
tag_case("Latin-1 in every sentence", REFUSED, latin_1)


@CASES.add("finetune", READ)
def conll_odd_words(place: Path) -> None:
    """Words that are an emoji, a zero-width space, or have a no-break space in them: each still one
    word
    """
    odd = {"sat": "\u200b", "on": "a\u00a0b", ".": "😀"}
    sentences = []
    for words, tags in TAGGED:
        sentences.append(([odd.get(word, word) for word in words], tags))
    text = columns(sentences)
    run = tag_run(place, text, ".txt", text, ["max_unknown_share=1.0"])
    equal(tagged_of(run), sentences, "words and tags")


# Questions

CONTEXT = "the café: ada sat on a red mat in paris, and bob ran to the blue film."
ANSWERS = ("ada", "a red mat", "bob", "the blue film")
Question = dict[str, Any]


def questions() -> list[Question]:
    rows = []
    for n in range(32):
        answer, context = ANSWERS[n % 4], f"{CONTEXT} {n}"
        answers = [{"text": answer, "answer_start": context.index(answer)}]
        asked = f"what is {COLOURS[n % 4]} {n} ?"
        rows.append({"id": f"q{n}", "context": context, "question": asked, "answers": answers})
    return rows


def squad(rows: Sequence[Mapping[str, Any]]) -> str:
    """SQuAD's own layout, a paragraph a question."""
    paragraphs = []
    for row in rows:
        asked = {key: value for key, value in row.items() if key != "context"}
        paragraphs.append({"context": row["context"], "qas": [asked]})
    articles = [{"title": "t", "paragraphs": paragraphs}]
    return json.dumps({"version": "1.1", "data": articles}, ensure_ascii=False, indent=1) + "\n"


def squad_run(place: Path, content: str | bytes, suffix: str) -> Path:
    files = {f"train{suffix}": content, "dev.json": squad(questions())}
    words = [f"task.data.train_file=train{suffix}", "task.data.validation_file=dev.json"]
    return finetune(place, files, ["task=squad_v1", *words])


@CASES.rows("finetune", "train.json")
def squad_case(
    place: Path,
    content: str | bytes,
    suffix: str = ".json",
    *,
    rows: Sequence[Mapping[str, Any]] | None = None,
    num_dropped: int = 0,
) -> None:
    """`rows`: what is trained on; `num_dropped`: questions that must be counted as left out."""
    run = squad_run(place, content, suffix)
    answered = json.loads((run / "predictions.json").read_text())
    equal(list(answered), [row["id"] for row in questions()], "ids of the predictions")
    learnt_as(run, twin(squad_run, squad(questions() if rows is None else rows), ".json"))
    counts = facts(run)["data"]["train_counts"]
    left_out = counts.get("answer_not_in_passage", 0) + counts.get("question_without_answer", 0)
    equal(left_out, num_dropped, "questions that are counted as left out")


def changed(change: Callable[[Question], object], numbers: Sequence[int] = range(32)) -> str:
    """Questions in SQuAD's layout, of which those with these numbers are changed."""
    rows = questions()
    for number in numbers:
        change(rows[number])
    return squad(rows)


def moved(by: int) -> Callable[[Question], object]:
    def change(row: Question) -> None:
        row["answers"][0]["answer_start"] += by

    return change


def in_bytes(row: Question) -> None:
    answer = row["answers"][0]
    answer["answer_start"] = row["context"].encode().index(answer["text"].encode())


def answered(*answers: Mapping[str, Any]) -> Callable[[Question], object]:
    return lambda row: row.update(answers=[*answers])


def start_as(kind: Callable[[int], Any]) -> Callable[[Question], object]:
    return lambda row: row["answers"][0].update(
        answer_start=kind(row["answers"][0]["answer_start"])
    )


def decomposed(row: Question) -> None:
    row["context"] = unicodedata.normalize("NFD", row["context"])
    row["answers"] = [{"text": "the café", "answer_start": 0}]


def hub_rows() -> list[Question]:
    """As the datasets library has them."""
    rows = []
    for row in questions():
        columns_ = {key: [row["answers"][0][key]] for key in ("text", "answer_start")}
        rows.append(row | {"title": "t", "answers": columns_})
    return rows


in_every_layout(squad_case, "questions", squad(questions()), ".json")
squad_case("every answer_start is one too small", READ, changed(moved(-1)))
squad_case("answer_start counts bytes, not characters", READ, changed(in_bytes))
without_3 = [row for row in questions() if row["id"] != "q3"]
for _oddity, _change in {
    "one answer of 32 is not in its passage": answered({"text": "a green door", "answer_start": 5}),
    "a passage that is empty": lambda row: row.update(context=""),
    "an answer that is empty": answered({"text": "", "answer_start": 0}),
    "a question without the key answers": lambda row: row.pop("answers"),
}.items():
    content = changed(_change, [3])
    oddity = f"{_oddity}: left out and counted"
    squad_case(oddity, EITHER, content, rows=without_3, num_dropped=1)
nowhere = answered({"text": "nowhere", "answer_start": 0})
squad_case("no answer is in its passage", REFUSED, changed(nowhere))
squad_case("no question has an answer", REFUSED, changed(answered()))
before = answered({"text": ANSWERS[3], "answer_start": -1})
squad_case("answer_start is -1 for one question", EITHER, changed(before, [3]))
for _kind in (str, float):
    content = changed(start_as(_kind), [3])
    squad_case(f"an answer_start of type {_kind.__name__}", EITHER, content, names="q3")
same_id = changed(lambda row: row.update(id="q2"), [3])
squad_case("two questions of one id", REFUSED, same_id, names="q2")
squad_case("an id is a number", EITHER, changed(lambda row: row.update(id=3), [3]))
no_question = changed(lambda row: row.pop("question"), [3])
squad_case("a question without its text", REFUSED, no_question)
empty_question = questions()
empty_question[3]["question"] = ""
squad_case("a question that is empty", EITHER, squad(empty_question), rows=empty_question)
squad_case("answers that are a text", REFUSED, changed(lambda row: row.update(answers="ada")))
inside = "answers as the datasets library has them, inside SQuAD's layout"
squad_case(inside, EITHER, squad(hub_rows()))
of_hub = {".jsonl": json_lines(hub_rows()), ".parquet": parquet(pandas.DataFrame(hub_rows()))}
for _suffix, _content in of_hub.items():
    oddity = f"{_suffix} as the datasets library writes it"
    squad_case(oddity, EITHER, _content, _suffix, names=f"train{_suffix}")
squad_case("cut in half", REFUSED, squad(questions())[:-500])
as_list = "a list of questions, as the datasets library has them, called .json"
squad_case(as_list, EITHER, json.dumps(questions()))
squad_case("no article", REFUSED, json.dumps({"version": "1.1", "data": []}))
apart = "accents apart from their letters in the passage, but not in the answer"
squad_case(apart, REFUSED, changed(decomposed))


# Choices

Choice = tuple[str, ...]  # a beginning, two ends and the number of the right one
CHOICES: list[Choice] = [
    (f"the {COLOURS[n % 4]} cat {n}", f"sat {n}", f"ran {n}", str(n // 2 % 2)) for n in range(32)
]
CHOICE_COLUMNS = ("prompt", "ending0", "ending1", "label")
CHOICE_WORDS = [
    "task=codah",
    "task.data.columns=null",
    "task.data.ending_columns=[ending0,ending1]",
    "task.data.folds=null",
    "task.data.held_out_fold=null",
    "task.data.validation_file=dev.csv",
]


def choices(rows: Sequence[Choice] = CHOICES, header: Sequence[str] = CHOICE_COLUMNS) -> str:
    return table(rows, header=",".join(header))


def choice_run(place: Path, train: str | bytes, suffix: str) -> Path:
    words = [*CHOICE_WORDS, f"task.data.train_file=train{suffix}"]
    return finetune(place, {f"train{suffix}": train, "dev.csv": choices()}, words)


@CASES.rows("finetune", "train")
def choice_case(
    place: Path, content: str | bytes, suffix: str = ".csv", rows: Sequence[Choice] = CHOICES
) -> None:
    run = choice_run(place, content, suffix)
    equal(labels_of(run), [label for *_, label in CHOICES], "labels")
    clean = json_lines(dict(zip(CHOICE_COLUMNS, row, strict=True)) for row in rows)
    learnt_as(run, twin(choice_run, clean, ".jsonl"))


def labelled_as(new: Callable[[str], str]) -> str:
    return choices([(*texts, new(label)) for *texts, label in CHOICES])


in_every_layout(choice_case, "choices", choices(), ".csv", ["packed by gzip"])
quoted = [(f'{start}, "so"', f"{one},\nthen", two, y) for start, one, two, y in CHOICES]
choice_case("commas, quotes and line breaks inside endings", READ, choices(quoted), rows=quoted)
turned = choices([row[::-1] for row in CHOICES], CHOICE_COLUMNS[::-1])
choice_case("columns in another order", READ, turned)
for _oddity, _new, _expected, _names in (
    ("labels counted from 1", lambda y: str(int(y) + 1), REFUSED, "train.csv:4"),
    ("labels A and B", lambda y: "AB"[int(y)], REFUSED, "train.csv:2"),
    ("labels 0.0 and 1.0, as pandas writes them", lambda y: f"{y}.0", EITHER, "train.csv:2"),
    ("a label is empty", lambda y: y if y == "0" else "", REFUSED, "train.csv:4"),
):
    choice_case(_oddity, _expected, labelled_as(_new), names=_names)
no_end = [(*row[:2], "" if n == 3 else row[2], row[3]) for n, row in enumerate(CHOICES)]
choice_case("an ending is empty", EITHER, choices(no_end), rows=no_end, names="train.csv:5")
listed = [{"prompt": a, "endings": [b, c], "label": y} for a, b, c, y in CHOICES]
oddity = "endings as one list, as the datasets library has HellaSwag"
choice_case(oddity, EITHER, json_lines(listed), ".jsonl", names="ending0")
