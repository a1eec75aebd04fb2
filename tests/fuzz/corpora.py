"""Odd corpora for `prepare`: each is compared with the documents that were written, read back from
the shards by numpy.

A document of the shards is compared without white space and accents and in lower case, as WordPiece
leaves it.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import itertools
import json
import lzma
import os
import random
import socket
import tarfile
import tempfile
import unicodedata
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import tokenizers
import zstandard
from pyarrow import feather

import clozelab
from tests.fuzz.lab import EITHER, READ, REFUSED, Cases, check, equal, heard

CASES = Cases("corpora")

ADJECTIVES = ("old", "red", "quiet", "small", "warm", "early", "narrow", "plain")
NOUNS = (
    "teacher",
    "garden",
    "river",
    "letter",
    "window",
    "farmer",
    "market",
    "bridge",
    "winter",
    "doctor",
)
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


def text_of(documents: Sequence[Sequence[str]], line_end: str = "\n", between: str = "") -> str:
    """One sentence a line; `between` is the line between two documents."""
    parts = [line_end.join(document) for document in documents]
    return f"{line_end}{between}{line_end}".join(parts) + line_end


TEXT = text_of(DOCUMENTS)
ROWS = [{"text": " ".join(document)} for document in DOCUMENTS]


def jsonl(rows: Sequence[Any], line_end: str = "\n", **options: Any) -> bytes:
    return "".join(json.dumps(row, **options) + line_end for row in rows).encode()


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
    """A text as it stands in the shards: no white space and, of WordPiece, no accents and no
    capital letters.
    """
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


def files_case(
    oddity: str,
    expected: str,
    files: Mapping[str, bytes | str],
    documents: Sequence[Sequence[str]] = DOCUMENTS,
    names: str = "",
    path: str = "text",
    **source: Any,
) -> None:
    def act(place: Path) -> None:
        write(place, files)
        folder = prepare(place, path, **source)
        holds(folder, documents)

    CASES.add("prepare", expected, names, oddity=oddity)(act)


def one(content: bytes | str, name: str = "a.txt") -> dict[str, bytes | str]:
    return {f"text/{name}": content}


half = len(DOCUMENTS) // 2
FIRST, SECOND = DOCUMENTS[:half], DOCUMENTS[half:]

files_case("nothing: the control of all others", READ, one(TEXT))
files_case("a byte order mark at the beginning", READ, one(codecs.BOM_UTF8 + TEXT.encode()))
files_case(
    "two files with byte order marks, put together by cat",
    READ,
    one(
        codecs.BOM_UTF8
        + text_of(FIRST).encode()
        + b"\n"
        + codecs.BOM_UTF8
        + text_of(SECOND).encode()
    ),
)
files_case("Windows line ends", READ, one(text_of(DOCUMENTS, "\r\n")))
files_case("line ends of old Macintoshes (CR alone)", EITHER, one(text_of(DOCUMENTS, "\r")))
files_case(
    "Windows line ends in half of a file",
    READ,
    one(text_of(FIRST, "\r\n") + "\r\n" + text_of(SECOND)),
)
files_case("UTF-16 with its mark", EITHER, one(TEXT.encode("utf-16")), names="a.txt")
files_case(
    "UTF-16, big end first, without a mark", REFUSED, one(TEXT.encode("utf-16-be")), names="a.txt"
)
files_case("UTF-32 with its mark", EITHER, one(TEXT.encode("utf-32")), names="a.txt")
files_case("no line end after the last line", READ, one(TEXT.rstrip("\n")))
files_case(
    "blanks and tabs in the lines between documents", READ, one(text_of(DOCUMENTS, "\n", " \t "))
)
files_case("five blank lines between documents", READ, one(text_of(DOCUMENTS, "\n", "\n\n\n\n")))
files_case(
    "a blank line after every line", READ, one("\n\n".join(SENTENCES)), [[one] for one in SENTENCES]
)
files_case(
    "tabs before and blanks after each line",
    READ,
    one(TEXT.replace("The", "\t  The").replace(".\n", ".  \n")),
)
files_case(
    "a form feed after each sentence instead of a line end",
    READ,
    one(TEXT.replace(".\nThe", ".\fThe")),
)
files_case(
    "U+2028 and U+0085 as line ends",
    READ,
    one(TEXT.replace(".\nThe", ".\u2028The", 20).replace(".\nThe", ".\x85The", 20)),
)
files_case(
    "zero-width characters inside words", READ, one(TEXT.replace("teacher", "tea\u200bch\u200der"))
)
files_case(
    "soft hyphens inside words", READ, one(TEXT.replace("remembered", "re\u00admem\u00adbered"))
)
files_case(
    "no-break and thin spaces between words", READ, one(TEXT.replace(" the ", "\u00a0the\u2009"))
)
files_case(
    "accents as characters of their own",
    READ,
    one(unicodedata.normalize("NFD", TEXT.replace("winter", "wintér"))),
)
files_case(
    "HTML tags and entities in the text",
    READ,
    one(TEXT.replace("old", "<b>old</b>").replace("red", "re&#100;")),
)
files_case("one NUL in the first line", READ, one(TEXT.replace("teacher", "tea\0cher", 1)))
files_case(
    "one NUL in the last line", READ, one(TEXT.rstrip("\n")[:-3] + "\0" + TEXT.rstrip("\n")[-3:])
)
files_case("packed by gzip", READ, one(gzip.compress(TEXT.encode()), "a.txt.gz"))
files_case(
    "two gzip files put together by cat",
    READ,
    one(
        gzip.compress(text_of(FIRST).encode() + b"\n") + gzip.compress(text_of(SECOND).encode()),
        "a.txt.gz",
    ),
)
files_case("packed by zstd", READ, one(zstandard.compress(TEXT.encode()), "a.txt.zst"))
files_case("packed by xz", EITHER, one(lzma.compress(TEXT.encode()), "a.txt.xz"))
files_case("packed by bzip2", EITHER, one(bz2.compress(TEXT.encode()), "a.txt.bz2"))
files_case(
    "packed by xz, and named itself",
    EITHER,
    one(lzma.compress(TEXT.encode()), "a.txt.xz"),
    path="text/a.txt.xz",
)
files_case(
    "a gzip file cut in half",
    REFUSED,
    one(gzip.compress(TEXT.encode())[:-200], "a.txt.gz"),
    names="a.txt.gz",
)
files_case(
    "a zstd file cut in half",
    REFUSED,
    one(zstandard.compress(TEXT.encode())[:-100], "a.txt.zst"),
    names="a.txt.zst",
)
files_case("gzip inside, .txt outside", EITHER, one(gzip.compress(TEXT.encode())), names="a.txt")
files_case("text inside, .gz outside", EITHER, one(TEXT, "a.txt.gz"), names="a.txt.gz")
files_case(
    "nothing but blank lines",
    REFUSED,
    one("\n \n\t\n" * 50),
    names="0 usable documents|empty|no text",
)
files_case("an empty file and no other", REFUSED, one(""), names="0 usable documents|empty|no text")
files_case(
    "an empty file among others", READ, {"text/a.txt": TEXT, "text/b.txt": "", "text/c.jsonl": ""}
)
files_case(
    "lines of punctuation alone",
    REFUSED,
    one("... !!! ???\n\n" * 40),
    names="usable documents|no text|empty",
)
files_case(
    "random bytes called .txt", REFUSED, one(random.Random(1).randbytes(5000)), names="a.txt"
)
files_case(
    "pictures and notes beside the texts",
    READ,
    {"text/a.txt": TEXT, "text/b.png": b"\x89PNG\r\n\x1a\n\0\0", "text/notes.pdf": b"%PDF-1.4 \0"},
)
files_case(
    "hidden files and folders beside the texts",
    READ,
    {
        "text/a.txt": TEXT,
        "text/.DS_Store": b"\0\1",
        "text/.hidden.txt": "other text\n",
        "text/.git/x.txt": "more\n",
    },
)
files_case(
    "the same file three times",
    READ,
    {"text/a.txt": TEXT, "text/b.txt": TEXT, "text/c/d.txt": TEXT},
)
files_case(
    "folders four deep",
    READ,
    {"text/1/2/3/4/a.txt": text_of(FIRST), "text/1/b.txt": text_of(SECOND)},
)
files_case(
    "suffixes in capitals", READ, {"text/A.TXT": text_of(FIRST), "text/B.JSONL": jsonl(ROWS[half:])}
)
files_case(
    "names with blanks, brackets, commas and a line break",
    READ,
    {"text/a [1], b=c.txt": text_of(FIRST), "text/é\n中.txt": text_of(SECOND)},
)
files_case(
    "a path with blanks, quotes, brackets and an equals sign",
    READ,
    {"my 'text' [v=1], é/a.txt": TEXT},
    path="my 'text' [v=1], é",
)
files_case(
    "a file that is itself called like a glob",
    READ,
    {"a[1].txt": TEXT, "a1.txt": "other words here\n"},
    path="a[1].txt",
)
files_case(
    "a glob that also meets a folder",
    READ,
    {"text/a.txt": text_of(FIRST), "text/b.txt": text_of(SECOND), "text/c.txt/d.pdf": b"\0"},
    path="text/*.txt",
)
files_case(
    "a folder of .html files alone",
    EITHER,
    one("<html><body><p>The old teacher.</p></body></html>", "a.html"),
    names="text",
)
files_case("a text of one sentence", REFUSED, one(SENTENCES[0]), names="document|small|short")

# Rows of JSON

JSONL_NAMES = ("a.jsonl",)
files_case("nothing: the control of the JSON lines", READ, one(jsonl(ROWS), "a.jsonl"))
files_case(
    "JSON lines of Windows, with a byte order mark",
    READ,
    one(codecs.BOM_UTF8 + jsonl(ROWS, "\r\n"), "a.jsonl"),
)
files_case("blank lines between JSON lines", READ, one(jsonl(ROWS, "\n\n  \n"), "a.jsonl"))
files_case(
    "line breaks inside the texts of JSON lines",
    READ,
    one(jsonl([{"text": "\r\n".join(d)} for d in DOCUMENTS]), "a.jsonl"),
)
files_case(
    "nested objects and lists beside the text",
    READ,
    one(jsonl([{"meta": {"text": "no"}, "ids": [1], **row} for row in ROWS]), "a.jsonl"),
)
files_case(
    "the text under another key, which is named",
    READ,
    one(jsonl([{"body": row["text"]} for row in ROWS]), "a.jsonl"),
    text_field="body",
)
files_case(
    "no key `text`, and none named",
    REFUSED,
    one(jsonl([{"body": row["text"]} for row in ROWS]), "a.jsonl"),
    names="body",
)
ESCAPED_DOCUMENTS = replaced(DOCUMENTS, " on day", " 𐐷𐐷 on day")
files_case(
    "letters beyond U+FFFF, written as pairs of \\u escapes",
    READ,
    one(jsonl([{"text": " ".join(document)} for document in ESCAPED_DOCUMENTS]), "a.jsonl"),
    ESCAPED_DOCUMENTS,
)
files_case(
    "half a surrogate pair in every text",
    READ,
    one(jsonl([{"text": row["text"].replace("the", "the\ud800")} for row in ROWS]), "a.jsonl"),
)
files_case(
    "one text of 200 is null",
    READ,
    one(jsonl([*ROWS, *ROWS, *ROWS, *ROWS, {"text": None}, *ROWS]), "a.jsonl"),
)
files_case(
    "numbers, lists and null as every other text",
    REFUSED,
    one(
        jsonl(
            [{"text": (row["text"], 7, None, [row["text"]])[i % 4]} for i, row in enumerate(ROWS)]
        ),
        "a.jsonl",
    ),
    names=JSONL_NAMES,
)
files_case(
    "one JSON array called .jsonl", EITHER, one(json.dumps(ROWS), "a.jsonl"), names=JSONL_NAMES
)
files_case(
    "JSON objects over several lines each",
    EITHER,
    one(jsonl(ROWS, indent=1), "a.jsonl"),
    names=JSONL_NAMES,
)
files_case("a JSON array called .json", EITHER, one(json.dumps(ROWS), "a.json"), names="json")
files_case("JSON lines called .txt", EITHER, one(jsonl(ROWS)), names="a.txt")
files_case("the last JSON line cut off", READ, one(jsonl(ROWS)[:-20], "a.jsonl"), DOCUMENTS[:-1])
files_case(
    "one line of JSON nested ten thousand deep",
    READ,
    one(jsonl(ROWS) + b'{"text": ' + b"[" * 10000 + b"]" * 10000 + b"}\n", "a.jsonl"),
)
files_case(
    "every other text empty",
    READ,
    one(jsonl([*itertools.chain.from_iterable((row, {"text": ""}) for row in ROWS)]), "a.jsonl"),
)

# Tables


def table(suffix: str, frame: pandas.DataFrame | None = None) -> bytes:
    made = pandas.DataFrame(ROWS).assign(number=range(len(ROWS))) if frame is None else frame
    buffer = io.BytesIO()
    if suffix == ".parquet":
        made.to_parquet(buffer)
    elif suffix == ".arrow":
        feather.write_feather(made, buffer)
    else:
        made.to_csv(buffer, index=False, sep="\t" if suffix == ".tsv" else ",")
    return buffer.getvalue()


quoted = pandas.DataFrame(
    {
        "id": range(len(DOCUMENTS)),
        "text": ["\n".join(d).replace("the", '"the",') for d in DOCUMENTS],
    }
)
QUOTED_DOCUMENTS = replaced(DOCUMENTS, "the", '"the",')
unnamed = pandas.DataFrame(
    {"alpha": [row["text"] for row in reversed(ROWS)], "omega": [row["text"] for row in ROWS]}
)
for suffix in (".parquet", ".arrow", ".csv", ".tsv"):
    files_case(f"a {suffix} file with a column `text`", READ, one(table(suffix), f"a{suffix}"))
files_case(
    "a .csv file with commas, quotes and line breaks inside its texts",
    READ,
    one(table(".csv", quoted), "a.csv"),
    QUOTED_DOCUMENTS,
)
files_case(
    "a .csv file without a column `text`",
    REFUSED,
    one(table(".csv", unnamed), "a.csv"),
    names="omega",
)
files_case(
    "a .parquet file without a column `text`",
    REFUSED,
    one(table(".parquet", unnamed), "a.parquet"),
    names="omega",
)
files_case(
    "a .parquet file whose column is named",
    EITHER,
    one(table(".parquet", unnamed), "a.parquet"),
    text_field="omega",
)
files_case(
    "a .parquet file with numbers in the column `text`",
    REFUSED,
    one(table(".parquet", pandas.DataFrame({"text": range(40)})), "a.parquet"),
    names="a.parquet|text",
)
files_case(
    "a .parquet file cut in half",
    REFUSED,
    one(table(".parquet")[:1000], "a.parquet"),
    names="a.parquet",
)
files_case(
    "a .csv file of texts without a header",
    EITHER,
    one("\n".join(f'{n},"{row["text"]}"' for n, row in enumerate(ROWS)), "a.csv"),
    names="a.csv",
)


# Cases that need more than files


@CASES.add("prepare", READ)
def one_document(place: Path) -> None:
    """One long document: no blank line in 60 kB"""
    sentences = [sentence(number) for number in range(1000)]
    write(place, one("\n".join(sentences)))
    holds_text(prepare(place), sentences)


@CASES.add("prepare", EITHER, "document")
def small_document(place: Path) -> None:
    """One document: no blank line in 7 kB"""
    write(place, one("\n".join(SENTENCES)))
    holds_text(prepare(place), SENTENCES)


@CASES.add("prepare", READ)
def huge_line(place: Path) -> None:
    """One line of 300,000 characters among documents"""
    long = " ".join(sentence(number) for number in range(1000, 6500))
    write(place, one(f"{TEXT}\n{long}\n"))
    folder = prepare(place)
    got = "".join(sorted(stored(folder)[1], key=len))
    check(
        plain(long) in "".join(stored(folder)[0])
        or len(got) == len(plain(TEXT)) + len(plain(long)),
        "text is lost",
    )


@CASES.add("prepare", EITHER)
def huge_word(place: Path) -> None:
    """One word of 100,000 characters among documents"""
    write(place, one(f"{TEXT}\n{'a' * 100_000}\n"))
    documents = stored(prepare(place))[1]
    missing = {plain("".join(document)) for document in DOCUMENTS} - set(documents)
    check(not missing, f"{len(missing)} other documents are lost")


@CASES.add("prepare", REFUSED, "a.txt")
def latin_1(place: Path) -> None:
    """Latin-1, with an accent in every line"""
    write(place, one(TEXT.replace("The", "Thé").encode("latin-1")))
    prepare(place)


@CASES.add("prepare", READ)
def latin_1_line(place: Path) -> None:
    """One line of 1,000 in Latin-1: left out, counted and named"""
    documents = [make_document(number) for number in range(400)]
    content = text_of(documents).encode()
    odd = documents[7][1]
    content = content.replace(odd.encode(), odd.encode() + b" caf\xe9", 1)
    write(place, one(content))
    folder = prepare(place)
    kept = []
    for sentences in documents:
        kept.append([text for text in sentences if text != odd])
    holds(folder, kept)
    check(sum(skipped(folder).values()) == 1, f"skipped: {skipped(folder)}")
    check(heard("a.txt:30"), "the line is not named")


@CASES.add("prepare", READ)
def copies_are_counted(place: Path) -> None:
    """Every document twice: the second one is left out and counted"""
    write(place, one(TEXT + "\n" + TEXT))
    folder = prepare(place)
    holds(folder, DOCUMENTS)
    equal(skipped(folder).get("duplicate document"), len(DOCUMENTS), "counted duplicates")


@CASES.add("prepare", READ)
def linked_file(place: Path) -> None:
    """A symbolic link to a file elsewhere"""
    write(place, {"elsewhere/a.txt": TEXT})
    (place / "text").mkdir()
    (place / "text" / "b.txt").symlink_to(place / "elsewhere" / "a.txt")
    holds(prepare(place), DOCUMENTS)


@CASES.add("prepare", READ)
def linked_folder(place: Path) -> None:
    """The folder is a symbolic link"""
    write(place, {"elsewhere/a.txt": TEXT})
    (place / "text").symlink_to(place / "elsewhere")
    holds(prepare(place), DOCUMENTS)


@CASES.add("prepare", EITHER, "inner")
def linked_inner_folder(place: Path) -> None:
    """A folder inside the folder is a symbolic link, with half of the text"""
    write(place, {"elsewhere/a.txt": text_of(FIRST), "text/b.txt": text_of(SECOND)})
    (place / "text" / "inner").symlink_to(place / "elsewhere")
    folder = prepare(place)
    if not heard("inner"):
        holds(folder, DOCUMENTS)


@CASES.add("prepare", READ)
def link_in_a_circle(place: Path) -> None:
    """A symbolic link from the folder to itself"""
    write(place, one(TEXT))
    (place / "text" / "again").symlink_to(place / "text")
    holds(prepare(place), DOCUMENTS)


@CASES.add("prepare", EITHER, "b.txt")
def broken_link(place: Path) -> None:
    """A symbolic link to nothing beside the texts: said, whether read or refused"""
    write(place, one(TEXT))
    (place / "text" / "b.txt").symlink_to(place / "nowhere.txt")
    holds(prepare(place), DOCUMENTS)
    check(heard("b.txt"), "the missing file is not named")


@CASES.add("prepare", READ)
def named_pipe(place: Path) -> None:
    """A named pipe and a socket called .txt beside the texts: not waited for"""
    write(place, one(TEXT))
    os.mkfifo(place / "text" / "b.txt")
    here = Path.cwd()
    os.chdir(place / "text")
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("c.txt")
            holds(prepare(place), DOCUMENTS)
    finally:
        os.chdir(here)


@cache
def warm_up() -> None:
    with tempfile.TemporaryDirectory(prefix="clozelab-odd-warm-") as folder:
        write(Path(folder), one(TEXT))
        prepare(Path(folder))


@CASES.add("prepare", REFUSED, "b.txt")
def unreadable_file(place: Path) -> None:
    """A file that one may not read"""
    write(place, {"text/a.txt": text_of(FIRST), "text/b.txt": text_of(SECOND)})
    (place / "text" / "b.txt").chmod(0)
    (place / "cache").mkdir()
    (place / "cache").chmod(0o777)
    warm_up()
    with as_nobody():
        prepare(place)


@CASES.add("prepare", REFUSED, "inner")
def unreadable_folder(place: Path) -> None:
    """A folder inside the folder that one may not look into"""
    write(place, {"text/a.txt": text_of(FIRST), "text/inner/b.txt": text_of(SECOND)})
    (place / "text" / "inner").chmod(0)
    (place / "cache").mkdir()
    (place / "cache").chmod(0o777)
    try:
        warm_up()
        with as_nobody():
            prepare(place)
        check(heard("inner"), "half of the text is left out without a word")
    finally:
        (place / "text" / "inner").chmod(0o755)


@CASES.add("prepare", EITHER, "tar")
def tar_file(place: Path) -> None:
    """A .tar.gz of texts"""
    write(place, {"a.txt": TEXT})
    (place / "text").mkdir()
    with tarfile.open(place / "text" / "a.tar.gz", "w:gz") as archive:
        archive.add(place / "a.txt", "a.txt")
    holds(prepare(place), DOCUMENTS)


@CASES.add("prepare", EITHER, "zip")
def zip_file(place: Path) -> None:
    """A .zip of texts, named itself"""
    with zipfile.ZipFile(place / "a.zip", "w") as archive:
        archive.writestr("a.txt", TEXT)
    holds(prepare(place, "a.zip"), DOCUMENTS)


@CASES.add("prepare", REFUSED, "space")
def dna(place: Path) -> None:
    """DNA: lines of 5,000 letters without a space"""
    draw = random.Random(1)
    lines = ["".join(draw.choices("ACGT", k=5000)) for _ in range(40)]
    write(place, one("\n\n".join(lines)))
    prepare(place)


@CASES.add("prepare", READ)
def dna_by_bytes(place: Path) -> None:
    """DNA with tokenizer=byte_bpe: nothing is lost"""
    draw = random.Random(1)
    lines = ["".join(draw.choices("ACGT", k=1500)) for _ in range(40)]
    write(place, one("\n\n".join(lines)))
    holds(prepare(place, kind="byte_bpe"), [[line] for line in lines], keep_case=True)


@CASES.add("prepare", READ)
def chinese(place: Path) -> None:
    """Chinese, which has no spaces"""
    signs = "老师花园小河信件窗户农夫市场大桥冬天医生红色安静温暖早晨狭窄普通表扬发现"
    lines = ["".join(random.Random(number).choices(signs, k=20)) + "。" for number in range(120)]
    write(place, one("\n\n".join(lines)))
    holds(prepare(place), [[line] for line in lines])


@CASES.add("prepare", EITHER, "space|unk")
def thai(place: Path) -> None:
    """Thai, which has no spaces between words, in lines of 60 characters"""
    words = ("ครู", "สวน", "แม่น้ำ", "จดหมาย", "หน้าต่าง", "ชาวนา", "ตลาด", "สะพาน", "ฤดูหนาว", "หมอ")
    lines = ["".join(random.Random(number).choices(words, k=12)) for number in range(200)]
    write(place, one("\n\n".join(lines)))
    holds(prepare(place), [[line] for line in lines])


@CASES.add("prepare", READ)
def thai_by_bytes(place: Path) -> None:
    """Thai with tokenizer=byte_bpe: nothing is lost"""
    words = ("ครู", "สวน", "แม่น้ำ", "จดหมาย", "หน้าต่าง", "ชาวนา", "ตลาด", "สะพาน", "ฤดูหนาว", "หมอ")
    lines = ["".join(random.Random(number).choices(words, k=12)) for number in range(200)]
    write(place, one("\n\n".join(lines)))
    holds(prepare(place, kind="byte_bpe"), [[line] for line in lines], keep_case=True)


@CASES.add("prepare", READ)
def two_sources(place: Path) -> None:
    """Two sources, one a file and one a glob, with the same text in both: each text once"""
    write(
        place,
        {
            "a.txt": TEXT,
            "b/a.txt": TEXT,
            "b/c.txt": text_of([["Other words stand here."], ["More of them too."]]),
        },
    )
    folder = clozelab.prepare(
        corpus="text",
        data_dir=place,
        cache_dir=place / "cache",
        tokenizer={"vocab_size": 600},
        **{
            "corpus.sources": [{"name": "one", "path": "a.txt"}, {"name": "two", "path": "b/*.txt"}]
        },
    )
    holds(folder, [*DOCUMENTS, ["Other words stand here."], ["More of them too."]])


@CASES.add("prepare", READ)
def changed_file(place: Path) -> None:
    """A file that is changed after it was prepared, in its last byte: prepared again"""
    write(place, one(TEXT))
    first = prepare(place)
    changed = TEXT.replace("day 119", "day 118")
    write(place, one(changed))
    second = prepare(place)
    check(first != second, "the old corpus is taken for the new one")
    holds(second, replaced(DOCUMENTS, "day 119", "day 118"))


@CASES.add("prepare", REFUSED, "nowhere")
def no_such_path(place: Path) -> None:
    """A path that is not there"""
    prepare(place, "nowhere")


@CASES.add("prepare", REFUSED, "empty")
def empty_folder(place: Path) -> None:
    """An empty folder"""
    (place / "empty").mkdir()
    prepare(place, "empty")


@CASES.add("prepare", REFUSED, "text")
def vocabulary_too_small(place: Path) -> None:
    """A vocabulary of 20 entries, fewer than the letters of the text"""
    write(place, one(TEXT))
    clozelab.prepare(
        corpus="text",
        data_dir=place,
        cache_dir=place / "cache",
        tokenizer={"vocab_size": 20},
        **{"corpus.sources.0.path": "text"},
    )
