"""Odd corpora that are more than files: sizes, links, pipes, rights, archives, settings."""

from __future__ import annotations

import os
import socket
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.fuzz.corpora import (
    DOCUMENTS,
    FIRST,
    SECOND,
    SENTENCES,
    TEXT,
    holds,
    holds_text,
    make_document,
    plain,
    prepare,
    replaced,
    sentence,
    skipped,
    stored,
    text_of,
    write,
)
from tests.fuzz.lab import EITHER, READ, REFUSED, Cases, as_nobody, check, equal, heard

import clozelab

CASES = Cases("places of corpora")


# Sizes, and what is counted


@CASES.rows("prepare", "document")
def one_document_case(place: Path, sentences: Sequence[str]) -> None:
    write(place, {"text/a.txt": "\n".join(sentences)})
    holds_text(prepare(place), sentences)


long_document = [sentence(number) for number in range(1000)]
one_document_case("One long document: no blank line in 60 kB", READ, long_document)
one_document_case("One document: no blank line in 7 kB", EITHER, SENTENCES)


def beside_others(place: Path, line: str) -> set[str]:
    """What the shards hold beside the documents, where one line more was written."""
    write(place, {"text/a.txt": f"{TEXT}\n{line}\n"})
    documents = set(stored(prepare(place))[1])
    expected = {plain("".join(document)) for document in DOCUMENTS}
    check(expected <= documents, f"{len(expected - documents)} other documents are lost")
    return documents - expected


@CASES.add("prepare", READ)
def huge_line(place: Path) -> None:
    """One line of 300,000 characters among documents"""
    long = " ".join(sentence(number) for number in range(1000, 6500))
    equal(sum(map(len, beside_others(place, long))), len(plain(long)), "characters of the line")


@CASES.add("prepare", EITHER)
def huge_word(place: Path) -> None:
    """One word of 100,000 characters among documents"""
    beside_others(place, "a" * 100_000)


@CASES.add("prepare", READ)
def latin_1_line(place: Path) -> None:
    """One line of 1,000 in Latin-1: left out, counted and named"""
    documents = [make_document(number) for number in range(400)]
    odd = documents[7].pop(1)
    content = text_of([make_document(number) for number in range(400)]).encode()
    write(place, {"text/a.txt": content.replace(odd.encode(), odd.encode() + b" caf\xe9", 1)})
    folder = prepare(place)
    holds(folder, documents)
    check(sum(skipped(folder).values()) == 1, f"skipped: {skipped(folder)}")
    check(heard("a.txt:30"), "the line is not named")


@CASES.add("prepare", READ)
def copies_are_counted(place: Path) -> None:
    """Every document twice: the second one is left out and counted"""
    write(place, {"text/a.txt": f"{TEXT}\n{TEXT}"})
    folder = prepare(place)
    holds(folder, DOCUMENTS)
    equal(skipped(folder).get("duplicate document"), len(DOCUMENTS), "counted duplicates")


# Links, pipes and rights


@CASES.rows("prepare")
def link_case(place: Path, link: str, target: str, says: str = "", may_say: str = "") -> None:
    """A symbolic link beside half of the text, with the other half elsewhere; `may_say`: what is
    left out is named.
    """
    write(place, {"text/a.txt": text_of(FIRST), "elsewhere/b.txt": text_of(SECOND)})
    (place / link).symlink_to(place / target)
    folder = prepare(place)
    has_both = target.startswith("elsewhere") and not (may_say and heard(may_say))
    holds(folder, DOCUMENTS if has_both else FIRST)
    check(not says or heard(says), f"nothing is said of {says}")


link_case("a symbolic link to a file elsewhere", READ, "text/b.txt", "elsewhere/b.txt")
inner = "a folder inside the folder is a symbolic link, with half of the text"
link_case(inner, EITHER, "text/inner", "elsewhere", may_say="inner", names="inner")
link_case("a symbolic link from the folder to itself", READ, "text/again", "text")
broken = "a symbolic link to nothing beside the texts: said, whether read or refused"
link_case(broken, EITHER, "text/b.txt", "nowhere.txt", says="b.txt", names="b.txt")


@CASES.add("prepare", READ)
def linked_folder(place: Path) -> None:
    """The folder is a symbolic link"""
    write(place, {"elsewhere/a.txt": TEXT})
    (place / "text").symlink_to(place / "elsewhere")
    holds(prepare(place), DOCUMENTS)


@CASES.add("prepare", READ)
def named_pipe(place: Path) -> None:
    """A named pipe and a socket called .txt beside the texts: not waited for"""
    write(place, {"text/a.txt": TEXT})
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
    """Import what the verb imports on its way, while everything may be read."""
    with tempfile.TemporaryDirectory(prefix="clozelab-odd-warm-") as folder:
        write(Path(folder), {"text/a.txt": TEXT})
        prepare(Path(folder))


@CASES.rows("prepare")
def unreadable_case(place: Path, second: str, closed: str) -> None:
    """Half of the text is where one may not read it."""
    write(place, {"text/a.txt": text_of(FIRST), second: text_of(SECOND)})
    (place / closed).chmod(0)
    (place / "cache").mkdir()
    (place / "cache").chmod(0o777)
    warm_up()
    try:
        with as_nobody():
            prepare(place)
        check(heard(Path(closed).name), "half of the text is left out without a word")
    finally:
        (place / closed).chmod(0o755)


unreadable_case("a file that one may not read", REFUSED, "text/b.txt", "text/b.txt", names="b.txt")
folder_oddity = "a folder inside the folder that one may not look into"
unreadable_case(folder_oddity, REFUSED, "text/inner/b.txt", "text/inner", names="inner")


# Archives, several sources and settings


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


def prepare_with(place: Path, vocab_size: int = 600, **corpus: object) -> Path:
    settings = {f"corpus.{key}": value for key, value in corpus.items()}
    return clozelab.prepare(
        corpus="text",
        data_dir=place,
        cache_dir=place / "cache",
        tokenizer={"vocab_size": vocab_size},
        **settings,
    )


@CASES.add("prepare", READ)
def two_sources(place: Path) -> None:
    """Two sources, one a file and one a glob, with the same text in both: each text once"""
    more = [["Other words stand here."], ["More of them too."]]
    write(place, {"a.txt": TEXT, "b/a.txt": TEXT, "b/c.txt": text_of(more)})
    sources = [{"name": "one", "path": "a.txt"}, {"name": "two", "path": "b/*.txt"}]
    holds(prepare_with(place, sources=sources), [*DOCUMENTS, *more])


@CASES.add("prepare", READ)
def changed_file(place: Path) -> None:
    """A file that is changed after it was prepared, in its last byte: prepared again"""
    write(place, {"text/a.txt": TEXT})
    first = prepare(place)
    write(place, {"text/a.txt": TEXT.replace("day 119", "day 118")})
    second = prepare(place)
    check(first != second, "the old corpus is taken for the new one")
    holds(second, replaced(DOCUMENTS, "day 119", "day 118"))


@CASES.add("prepare", REFUSED, "empty")
def empty_folder(place: Path) -> None:
    """An empty folder"""
    (place / "empty").mkdir()
    prepare(place, "empty")


@CASES.add("prepare", REFUSED, "text")
def vocabulary_too_small(place: Path) -> None:
    """A vocabulary of 20 entries, fewer than the letters of the text"""
    write(place, {"text/a.txt": TEXT})
    prepare_with(place, 20, **{"sources.0.path": "text"})
