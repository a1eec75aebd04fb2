"""Odd corpora for `prepare`: each is compared with the documents that were written, read back from
the shards by numpy.

A document of the shards is compared without white space and accents and in lower case, as WordPiece
leaves it.
"""

from __future__ import annotations

import io
import itertools
import json
import lzma
import random
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import tokenizers
from pyarrow import ipc
from tests.fuzz.lab import EITHER, READ, REFUSED, Cases, check
from tests.fuzz.layouts import in_every_layout
from tests.fuzz.making import json_lines, parquet

import clozelab

CASES = Cases("corpora")

ADJECTIVES = ("old", "red", "quiet", "small", "warm", "early", "narrow", "plain")
NOUNS = ("teacher", "garden", "river", "letter", "farmer", "market", "bridge", "winter", "doctor")
VERBS = ("praised", "found", "crossed", "painted", "remembered", "closed", "watched")


def sentence(number: int) -> str:
    adjective = ADJECTIVES[number % len(ADJECTIVES)]
    noun = NOUNS[number % len(NOUNS)]
    verb = VERBS[number % len(VERBS)]
    other = NOUNS[(number // 7 + 3) % len(NOUNS)]
    return f"The {adjective} {noun} {verb} the {other} on day {number}."


def make_document(number: int) -> list[str]:
    return [sentence(3 * number + index) for index in range(3)]


def replaced(documents: list[list[str]], old: str, new: str) -> list[list[str]]:
    """The documents with a text exchanged in all of their sentences."""
    result = []
    for sentences in documents:
        result.append([text.replace(old, new) for text in sentences])
    return result


DOCUMENTS = [make_document(number) for number in range(40)]
SENTENCES = [*itertools.chain.from_iterable(DOCUMENTS)]


def text_of(documents: Sequence[Sequence[str]], between: str = "") -> str:
    """One sentence a line; `between` is the line between two documents."""
    parts = ["\n".join(document) for document in documents]
    return f"\n{between}\n".join(parts) + "\n"


TEXT = text_of(DOCUMENTS)
ROWS = [{"text": " ".join(document)} for document in DOCUMENTS]


def write(place: Path, files: Mapping[str, bytes | str]) -> None:
    for name, content in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def prepare(place: Path, path: str = "text", kind: str = "wordpiece", **source: Any) -> Path:
    """Run the verb on `place/path`; returns the prepared folder."""
    words = [f"tokenizer={kind}"]
    settings: dict[str, Any] = {f"corpus.sources.0.{key}": value for key, value in source.items()}
    return clozelab.prepare(
        *words,
        corpus="text",
        data_dir=place,
        cache_dir=place / "cache",
        tokenizer={"vocab_size": 600},
        **{"corpus.sources.0.path": path, "corpus.validation_fraction": 0.1, **settings},
    )


# What the shards hold, read without the project


def stored(folder: Path) -> tuple[list[str], list[str]]:
    """(sentences, documents) of both splits, without white space."""
    sentences: list[str] = []
    documents: list[str] = []
    for split in ("train", "validation"):
        files = sorted((folder / split).glob("tokens-*.bin"))
        size = len(vocabulary(folder))
        dtype = "<u2" if size <= 2**16 else "<u4"
        ids = np.concatenate([np.fromfile(file, dtype) for file in files])
        ends = np.fromfile(folder / split / "sentence_offsets.bin", "<i8")
        own = [decoded(folder, ids[a:b]) for a, b in itertools.pairwise(ends)]
        places = np.fromfile(folder / split / "document_offsets.bin", "<i8")
        sentences += own
        documents += ["".join(own[a:b]) for a, b in itertools.pairwise(places)]
    return sentences, documents


def vocabulary(folder: Path) -> dict[str, int]:
    return library(folder).get_vocab()


def library(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))


def decoded(folder: Path, ids: np.ndarray) -> str:
    made = library(folder)
    if (folder / "tokenizer" / "vocab.txt").is_file():
        tokens = [str(made.id_to_token(int(number))) for number in ids]
        return "".join(token.removeprefix("##") for token in tokens)
    return "".join(made.decode(ids.tolist()).split())


def plain(text: str, keep_case: bool = False) -> str:
    """A text as it stands in the shards: without white space and, of WordPiece, accents."""
    if not keep_case:
        text = unicodedata.normalize("NFD", text.lower())
        text = "".join(char for char in text if unicodedata.category(char) != "Mn")
    return "".join(text.split())


def holds(folder: Path, documents: Sequence[Sequence[str]], keep_case: bool = False) -> None:
    """WrongError unless the shards hold these documents, each once, in any order."""
    expected = sorted(plain("".join(document), keep_case) for document in documents)
    got = sorted(stored(folder)[1])
    missing = sorted(set(expected) - set(got))
    more = sorted(set(got) - set(expected))
    said = f"{len(got)} documents, expected {len(expected)}"
    said += f"; missing: {missing[0][:40]}" if missing else ""
    said += f"; not written: {more[0][:40]}" if more else ""
    check(got == expected, said)


def holds_text(folder: Path, sentences: Sequence[str], keep_case: bool = False) -> None:
    """WrongError unless the shards hold these sentences, wherever documents begin and end."""
    expected = sorted(plain(one, keep_case) for one in sentences)
    got = sorted(stored(folder)[0])
    check(got == expected, f"{len(got)} sentences, expected {len(expected)}, or others")


def skipped(folder: Path) -> dict[str, int]:
    manifest = json.loads((folder / "manifest.json").read_text())
    counts: dict[str, int] = manifest["skipped"]
    return counts


# Cases that are some files, and the documents that are expected of them


@CASES.rows("prepare")
def files_case(
    place: Path,
    files: Mapping[str, bytes | str],
    documents: Sequence[Sequence[str]] = DOCUMENTS,
    path: str = "text",
    **source: Any,
) -> None:
    """Files below the folder `text`, unless `path` names another."""
    write(place, files)
    holds(prepare(place, path, **source), documents)


@CASES.rows("prepare", "text")
def file_case(
    place: Path,
    content: bytes | str,
    suffix: str = ".txt",
    documents: Sequence[Sequence[str]] = DOCUMENTS,
    **source: Any,
) -> None:
    """A folder with one file."""
    write(place, {f"text/text{suffix}": content})
    holds(prepare(place, **source), documents)


HALF = len(DOCUMENTS) // 2
FIRST, SECOND = DOCUMENTS[:HALF], DOCUMENTS[HALF:]
FRAME = pandas.DataFrame(ROWS).assign(number=range(len(ROWS)))
PACKED = ("packed by gzip", "two gzip files put together by cat", "packed by zstd")
for _suffix, _content in {
    ".txt": TEXT,
    ".jsonl": json_lines(ROWS),
    ".csv": FRAME.to_csv(index=False),
    ".tsv": FRAME.to_csv(index=False, sep="\t"),
}.items():
    must_read = PACKED if _suffix in (".txt", ".jsonl") else ()
    in_every_layout(file_case, _suffix, _content, _suffix, must_read)


# Lines of text

BOM = "\ufeff"
CRLF = text_of(FIRST).replace("\n", "\r\n") + "\r\n" + text_of(SECOND)
ACCENTS = unicodedata.normalize("NFD", TEXT.replace("winter", "wintér"))
marked_files = f"{BOM}{text_of(FIRST)}\n{BOM}{text_of(SECOND)}"
LINES_READ = {
    "two files with byte order marks, put together by cat": marked_files,
    "Windows line ends in half of a file": CRLF,
    "blanks and tabs in the lines between documents": text_of(DOCUMENTS, " \t "),
    "five blank lines between documents": text_of(DOCUMENTS, "\n\n\n\n"),
    "tabs before and blanks after each line": TEXT.replace("The", "\t  The").replace(".\n", ". \n"),
    "a form feed after each sentence instead of a line end": TEXT.replace(".\nThe", ".\fThe"),
    "U+2028 as line ends": TEXT.replace(".\nThe", ".\u2028The", 20),
    "U+0085 as line ends": TEXT.replace(".\nThe", ".\x85The", 20),
    "zero-width characters inside words": TEXT.replace("teacher", "tea\u200bch\u200der"),
    "soft hyphens inside words": TEXT.replace("remembered", "re\u00admem\u00adbered"),
    "no-break and thin spaces between words": TEXT.replace(" the ", "\u00a0the\u2009"),
    "accents as characters of their own": ACCENTS,
    "HTML tags in the text": TEXT.replace("old", "<b>old</b>"),
    "HTML entities in the text": TEXT.replace("red", "re&#100;"),
    "one NUL in the first line": TEXT.replace("teacher", "tea\0cher", 1),
    "one NUL in the last line": f"{TEXT[:-4]}\0{TEXT[-4:]}",
}
for _oddity, _content in LINES_READ.items():
    file_case(_oddity, READ, _content)
spaced = "\n\n".join(SENTENCES)
alone = [[text] for text in SENTENCES]
file_case("a blank line after every line", READ, spaced, documents=alone)
no_text = "usable documents|no text|empty"
file_case("lines of punctuation alone", REFUSED, "... !!! ???\n\n" * 40, names=no_text)
latin_1 = TEXT.replace("The", "Thé").encode("latin-1")
file_case("Latin-1, with an accent in every line", REFUSED, latin_1)
file_case("a text of one sentence", REFUSED, SENTENCES[0], names="document|small|short")
draw = random.Random(1)
dna = ["".join(draw.choices("ACGT", k=5000)) for _ in range(40)]
oddity = "DNA: lines of 5,000 letters without a space"
file_case(oddity, REFUSED, "\n\n".join(dna), names="space")
signs = "老师花园小河信件窗户农夫市场大桥冬天医生红色安静温暖早晨狭窄普通表扬发现"
chinese = ["".join(random.Random(seed).choices(signs, k=20)) + "。" for seed in range(120)]
in_chinese = "Chinese, which has no spaces"
file_case(in_chinese, READ, "\n\n".join(chinese), documents=[[line] for line in chinese])
words = ["ครู", "สวน", "แม่น้ำ", "จดหมาย", "หน้าต่าง", "ชาวนา", "ตลาด", "สะพาน", "ฤดูหนาว", "หมอ"]
thai = ["".join(random.Random(seed).choices(words, k=12)) for seed in range(200)]
in_thai = "Thai, which has no spaces between words"
file_case(
    in_thai, EITHER, "\n\n".join(thai), documents=[[line] for line in thai], names="space|unk"
)


@CASES.rows("prepare")
def bytes_case(place: Path, lines: Sequence[str]) -> None:
    write(place, {"text/a.txt": "\n\n".join(lines)})
    holds(prepare(place, kind="byte_bpe"), [[line] for line in lines], keep_case=True)


bytes_case("DNA with tokenizer=byte_bpe: nothing is lost", READ, [line[:1500] for line in dna])
bytes_case("Thai with tokenizer=byte_bpe: nothing is lost", READ, thai)


# Names and folders

files_case(
    "an empty file among others", READ, {"text/a.txt": TEXT, "text/b.txt": "", "text/c.jsonl": ""}
)
picture = b"\x89PNG\r\n\x1a\n\0\0"
others = {"text/a.txt": TEXT, "text/b.png": picture, "text/notes.pdf": b"%PDF-1.4 \0"}
files_case("pictures and notes beside the texts", READ, others)
hidden: dict[str, bytes | str] = {
    "text/a.txt": TEXT,
    "text/.DS_Store": b"\0\1",
    "text/.hidden.txt": "other text\n",
    "text/.git/x.txt": "more\n",
}
files_case("hidden files and folders beside the texts", READ, hidden)
copies = {"text/a.txt": TEXT, "text/b.txt": TEXT, "text/c/d.txt": TEXT}
files_case("the same file three times", READ, copies)
for _oddity, _names in {
    "folders four deep": ("1/2/3/4/a.txt", "1/b.txt"),
    "names with blanks, brackets, commas and a line break": ("a [1], b=c.txt", "é\n中.txt"),
}.items():
    halves = {f"text/{_names[0]}": text_of(FIRST), f"text/{_names[1]}": text_of(SECOND)}
    files_case(_oddity, READ, halves)
capitals = {"text/A.TXT": text_of(FIRST), "text/B.JSONL": json_lines(ROWS[HALF:])}
files_case("suffixes in capitals", READ, capitals)
odd_folder = "my 'text' [v=1], é"
in_odd_folder = {f"{odd_folder}/a.txt": TEXT}
oddity = "a path with blanks, quotes, brackets and an equals sign"
files_case(oddity, READ, in_odd_folder, path=odd_folder)
like_a_glob = {"a[1].txt": TEXT, "a1.txt": "other words here\n"}
files_case("a file that is itself called like a glob", READ, like_a_glob, path="a[1].txt")
halves = {"text/a.txt": text_of(FIRST), "text/b.txt": text_of(SECOND), "text/c.txt/d.pdf": b"\0"}
files_case("a glob that also meets a folder", READ, halves, path="text/*.txt")
packed = {"text/a.txt.xz": lzma.compress(TEXT.encode())}
files_case("packed by xz, and named itself", EITHER, packed, path="text/a.txt.xz")
page = "<html><body><p>The old teacher.</p></body></html>"
file_case("a folder of .html files alone", EITHER, page, ".html")
files_case("a path that is not there", REFUSED, {}, path="nowhere", names="nowhere")


# Rows of JSON


def rows_case(
    oddity: str,
    expected: str,
    rows: Sequence[Any],
    documents: Sequence[Sequence[str]] = DOCUMENTS,
    **more: Any,
) -> None:
    file_case(oddity, expected, json_lines(rows), ".jsonl", documents, **more)


breaks = [{"text": "\r\n".join(document)} for document in DOCUMENTS]
rows_case("line breaks inside the texts of JSON lines", READ, breaks)
nested = [{"meta": {"text": "no"}, "ids": [1], **row} for row in ROWS]
rows_case("nested objects and lists beside the text", READ, nested)
bodies = [{"body": row["text"]} for row in ROWS]
rows_case("the text under another key, which is named", READ, bodies, text_field="body")
rows_case("no key `text`, and none named", REFUSED, bodies, names="body")
beyond = replaced(DOCUMENTS, " on day", " 𐐷𐐷 on day")
beyond_rows = [{"text": " ".join(document)} for document in beyond]
oddity = "letters beyond U+FFFF, written as pairs of \\u escapes"
rows_case(oddity, READ, beyond_rows, beyond)
half_pairs = [{"text": row["text"].replace("the", "the\ud800")} for row in ROWS]
rows_case("half a surrogate pair in every text", READ, half_pairs)
rows_case("one text of 200 is null", READ, [*ROWS * 4, {"text": None}, *ROWS])
mixed = []
for _number, _row in enumerate(ROWS):
    mixed.append({"text": (_row["text"], 7, None, [_row["text"]])[_number % 4]})
rows_case("numbers, lists and null as every other text", REFUSED, mixed)
with_empty = [*itertools.chain.from_iterable((row, {"text": ""}) for row in ROWS)]
rows_case("every other text empty", READ, with_empty)
for _oddity, _suffix, _content in (
    ("one JSON array called .jsonl", ".jsonl", json.dumps(ROWS)),
    ("JSON objects over several lines each", ".jsonl", json_lines(ROWS, indent=1)),
    ("a JSON array called .json", ".json", json.dumps(ROWS)),
    ("JSON lines called .txt", ".txt", json_lines(ROWS)),
):
    file_case(_oddity, EITHER, _content, _suffix)
between = json_lines(ROWS).replace("\n", "\n\n  \n")
file_case("blank lines between JSON lines", READ, between, ".jsonl")
file_case("the last JSON line cut off", READ, json_lines(ROWS)[:-20], ".jsonl", DOCUMENTS[:-1])
deep = json_lines(ROWS) + '{"text": ' + "[" * 10000 + "]" * 10000 + "}\n"
file_case("one line of JSON nested ten thousand deep", READ, deep, ".jsonl")


# Tables

quoted_documents = replaced(DOCUMENTS, "the", '"the",')
quoted = pandas.DataFrame({"text": ["\n".join(document) for document in quoted_documents]})
oddity = "a .csv file with commas, quotes and line breaks inside its texts"
file_case(oddity, READ, quoted.to_csv(), ".csv", quoted_documents)
UNNAMED = pandas.DataFrame({"omega": [row["text"] for row in ROWS]})
UNNAMED.insert(0, "alpha", UNNAMED["omega"][::-1].to_list())
# Compressed as feather files are, and without a thread: a test module starts none when imported.
arrow = io.BytesIO()
arrow_table = pyarrow.Table.from_pandas(FRAME)
one_thread = ipc.IpcWriteOptions(compression="lz4", use_threads=False)
with ipc.new_file(arrow, arrow_table.schema, options=one_thread) as arrow_file:
    arrow_file.write_table(arrow_table)
file_case("a .parquet file with a column `text`", READ, parquet(FRAME), ".parquet")
file_case("a .arrow file with a column `text`", READ, arrow.getvalue(), ".arrow")
for _suffix, _content in ((".csv", UNNAMED.to_csv(index=False)), (".parquet", parquet(UNNAMED))):
    oddity = f"a {_suffix} file without a column `text`"
    file_case(oddity, REFUSED, _content, _suffix, names="omega")
column = parquet(UNNAMED)
file_case("a .parquet file whose column is named", EITHER, column, ".parquet", text_field="omega")
numbers = parquet(pandas.DataFrame({"text": range(40)}))
file_case("a .parquet file with numbers in the column `text`", REFUSED, numbers, ".parquet")
file_case("a .parquet file cut in half", REFUSED, parquet(FRAME)[:1000], ".parquet")
no_header = "\n".join(f'{number},"{row["text"]}"' for number, row in enumerate(ROWS))
file_case("a .csv file of texts without a header", EITHER, no_header, ".csv")
