"""Text files to cleaned documents: formats, cleaning, splitting, dirt, and bounded time."""

from __future__ import annotations

import bz2
import gzip
import html
import json
import lzma
import random
import re
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from clozelab.corpus.documents import MAX_SENTENCE_CHARACTERS, read_documents, split_paragraphs
from clozelab.corpus.files import CorpusCounts, CorpusSource
from clozelab.corpus.preparation.texts import MAX_DOCUMENT_CHARACTERS
from clozelab.corpus.steps.clean import HOLDS_WORD, clean, lines_with_word

# what cleaning removes, or takes for the end of a line
UNUSUAL = "\x0b\x1c\x85\u00ad\u200b\ufffd\ud800\u2028"


def read(folder: Path, path: str, **options: str) -> tuple[list[list[str]], CorpusCounts]:
    counts = CorpusCounts()
    files = CorpusSource("source", path, **options).shards(0, folder)
    return [document.lines for document in read_documents(files, counts)], counts


def jsonl(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def split(paragraph: str) -> list[str]:
    return split_paragraphs([paragraph])


@pytest.mark.parametrize("blank", ["\u00a0", " \u2009", "\u2028 ", "\u3000"])
def test_a_capital_before_an_unusual_blank_and_a_full_stop(blank: str) -> None:
    """The library panics there; the text stays as it is."""
    text = f"It holds for all x in A{blank}. So it does, “for C{blank}.”"
    assert "".join(split(text)).replace(" ", "") == text.replace(" ", "")
    assert len(split(text)) == 2


# Formats


def test_plain_text_keeps_its_lines_and_blank_lines_part_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(
        "\ufeffMr. A. One here. Two there.\r\nTwo.\r\n\r\n \n\nThree.\nFour.".encode()
    )
    documents, counts = read(tmp_path, "a.txt")
    assert documents == [["Mr. A. One here. Two there.", "Two."], ["Three.", "Four."]]
    assert (counts.documents, counts.sentences) == (2, 4)


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "texts" / "sub").mkdir(parents=True)
    (tmp_path / "texts" / "b.txt").write_text("From b.")
    (tmp_path / "texts" / "a.txt").write_text("From a.")
    (tmp_path / "texts" / "sub" / "c.jsonl").write_bytes(jsonl({"text": "From c."}))
    (tmp_path / "texts" / ".hidden.txt").write_text("Hidden.")
    (tmp_path / "texts" / "picture.png").write_bytes(b"\x89PNG\0")
    documents, _ = read(tmp_path, "texts")
    assert documents == [["From a."], ["From b."], ["From c."]]


def test_a_glob_finds_what_is_hidden_only_by_its_dot(tmp_path: Path) -> None:
    (tmp_path / "texts" / ".notes").mkdir(parents=True)
    (tmp_path / "texts" / "a.txt").write_text("Seen.")
    (tmp_path / "texts" / ".a.txt").write_text("Hidden.")
    (tmp_path / "texts" / ".notes" / "a.txt").write_text("In a hidden folder.")
    for pattern in ("texts/*.txt", "texts/**/*", "texts/**/*.txt", f"{tmp_path}/texts/*.txt"):
        assert read(tmp_path, pattern)[0] == [["Seen."]]
    assert read(tmp_path, "texts/.*.txt")[0] == [["Hidden."]]
    assert read(tmp_path / "texts" / ".notes", "*.txt")[0] == [["In a hidden folder."]]
    assert read(tmp_path, "texts/.n*/*.txt")[0] == [["In a hidden folder."]]


# Cleaning and splitting


@pytest.mark.parametrize(
    ("dirty", "lines"),
    [
        ("A<br>B <br /> C</dl>\n</dl>\nD", ["A B   C", "D"]),
        ('x <ref name="y">z</ref> <span class=a>w</span>', ["x  z   w"]),
        ("if a<b and c>d then <EOM>", ["if a<b and c>d then <EOM>"]),
        ("AT&amp;T &lt;br&gt; &nbsp;B", ["AT&T   \xa0B"]),
        ("## A heading\n#hashtag", ["A heading", "#hashtag"]),
        (
            "_one_ and **two** and *three*, not a_b_c or 2*3*4",
            ["one and two and three, not a_b_c or 2*3*4"],
        ),
        ("-----\n* * *\n...\nWord.", ["Word."]),
        ("zero\u200bwidth\ufeff \x93quoted\x94\x00", ["zerowidth quoted"]),
        ("form\x0cfeed\u2028line", ["form", "feed", "line"]),
    ],
)
def test_cleaning(dirty: str, lines: list[str]) -> None:
    assert clean(dirty) == lines


PLAIN_RULES = (  # as they would be written if time were no matter
    (r"&(?:#\d{1,7}|#x[0-9a-fA-F]{1,6}|[a-zA-Z]{2,8});", lambda match: html.unescape(match[0])),
    ("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064]", ""),
    ("[\ufeff\ufffd\ud800-\udfff]", ""),
    ("[\x0b\x0c\x1c-\x1f\x85\u2028\u2029]", "\n"),
    ("<b>|</b>", " "),
    (r"(?m)^[ \t]*#{1,6}[ \t]+", ""),
    (r"(?<![\w*])(\*{1,3}|_{1,3})(?=\S)([^*_\n]{1,400})(?<=\S)\1(?![\w*])", r"\2"),
)


def test_a_line_holds_a_word_where_the_pattern_says_so() -> None:
    characters = list(map(chr, range(0x110000)))
    lines = ["", *characters, *[f"-{character}" for character in characters]]
    assert lines_with_word(lines) == list(filter(HOLDS_WORD.search, lines))


@given(st.lists(st.sampled_from([*"**__## xz.\t\n<>&;é", "<b>", "&lt;", *UNUSUAL]), max_size=40))
@settings(max_examples=500, deadline=None)
def test_cleaning_is_that_of_its_rules_one_after_the_other(pieces: list[str]) -> None:
    text = "".join(pieces)
    expected = text
    for pattern, new in PLAIN_RULES:
        expected = re.sub(pattern, new, expected)
    lines = [line.strip() for line in expected.split("\n") if re.search(r"[^\W_]", line)]
    assert clean(text) == lines


def test_abbreviations_do_not_end_a_sentence() -> None:
    assert split("Dr. Smith met Mr. J. Doe in Washington, D.C. on Monday. They talked.") == [
        "Dr. Smith met Mr. J. Doe in Washington, D.C. on Monday.",
        "They talked.",
    ]


def test_each_sentence_holds_a_word() -> None:
    assert split("! Office") == ["Office"]
    assert split("(as she said). ). 2003") == ["(as she said).", "2003"]


def test_a_long_speech_is_split_inside_its_quotation_marks() -> None:
    speech = " ".join(
        f"This is the sentence with number {index} of a long speech." for index in range(20)
    )
    parts = split(f'"{speech}"')
    assert len(parts) == 20
    assert " ".join(parts) == f'"{speech}"'


def test_over_long_sentences_are_cut_between_words() -> None:
    words = [f"word{index}" for index in range(2000)]
    parts = split_paragraphs([" ".join(words)])
    assert max(map(len, parts)) <= MAX_SENTENCE_CHARACTERS
    assert " ".join(parts).split() == words
    assert len(parts) > 1


UNITS = ["word ", "x", '"open quotation ', "(", "etc. ", "a. ", "<b ", "*_ ", "&amp", "A \u200b"]


@pytest.mark.parametrize(
    ("unit", "form"), [*((unit, "jsonl") for unit in UNITS), ("word ", "text"), ("<b ", "text")]
)
def test_a_million_characters_without_a_boundary_take_bounded_time(
    tmp_path: Path, unit: str, form: str
) -> None:
    text = (unit * 1_000_000)[:1_000_000]
    rows = jsonl({"text": text}, {"text": "Another document."})
    (tmp_path / "file").write_bytes(
        rows if form == "jsonl" else f"{text}\n\nAnother document.".encode()
    )
    started = time.process_time()
    documents, _ = read(tmp_path, "file", format=form)
    assert time.process_time() - started < 5
    assert documents[-1] == ["Another document."]
    lengths = map(len, chain.from_iterable(documents))
    assert max(lengths) <= MAX_SENTENCE_CHARACTERS


def test_a_text_file_without_blank_lines_becomes_several_documents(tmp_path: Path) -> None:
    line = "A line of some length that is repeated. " * 25
    count = 2 * MAX_DOCUMENT_CHARACTERS // len(line) + 2
    (tmp_path / "a.txt").write_text("\n".join(f"{index} {line}" for index in range(count)))
    documents, _ = read(tmp_path, "a.txt")
    assert len(documents) == 3
    assert sum(map(len, documents)) == count


# Dirt


def test_duplicates_and_empty_documents_are_dropped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        jsonl(*({"text": text} for text in ["One.", "", "Two.", "One.", " \n-- ", "One. "]))
    )
    documents, counts = read(tmp_path, "a.jsonl")
    assert documents == [["One."], ["Two."]]
    assert counts.dropped == {"duplicate document": 2, "empty document": 2}


def test_few_bad_rows_are_skipped_counted_and_named(tmp_path: Path) -> None:
    good = [{"text": f"Good row {index}."} for index in range(500)]
    content = (
        jsonl(*good[:99])
        + b'{"text": "\xff\xfe"}\n'
        + jsonl(*good[99:])
        + b'{"text": 7}\n{"broken\n[1]\n\n'
    )
    (tmp_path / "a.jsonl").write_bytes(content)
    documents, counts = read(tmp_path, "a.jsonl")
    assert len(documents) == 500
    assert counts.rows == 504
    assert counts.bad == {"not UTF-8 text": 1, "no text in field 'text'": 1, "no JSON object": 2}
    assert counts.first_bad[0] == "a.jsonl:100: not UTF-8 text"


def test_undecodable_lines_of_plain_text_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"Good.\nBad \xe9\xe8.\nGood again.\n")
    documents, counts = read(tmp_path, "a.txt")
    assert documents == [["Good.", "Good again."]]
    assert counts.first_bad == ["a.txt:2: not UTF-8 text"]


@pytest.mark.parametrize(
    ("name", "content", "number"),
    [
        ("a.txt", b"A sen\0tence here.", 1),
        ("a.txt", f"Größe\0 zählt{' und so weiter' * 20}.\n".encode() * 30, 30),
        ("a.txt", b"Long text. " * 2000 + b"\0" * 500, 500),  # beyond what is looked at first
        ("a.jsonl", b'{"text": "A sen\0tence here."}\n', 1),
    ],
)
def test_stray_nuls_are_removed_and_counted(
    tmp_path: Path, name: str, content: bytes, number: int
) -> None:
    """As BERT's released cleaning does; the same text without them gives the same documents."""
    (tmp_path / "plain").mkdir()
    (tmp_path / name).write_bytes(content)
    (tmp_path / "plain" / name).write_bytes(content.replace(b"\0", b""))
    documents, counts = read(tmp_path, name)
    assert documents == read(tmp_path / "plain", name)[0] and documents
    assert (counts.removed, counts.bad) == ({"NUL character": number}, {})


def test_dirt_at_the_beginning_is_no_wrong_file(tmp_path: Path) -> None:
    contents = {
        "empty.txt": b"",
        "few.txt": b"\xff\n" * 9,
        "half.txt": b"good\n\xff\n" * 20,
        "long.txt": b"no line end " * 200_000,
        "cut.txt": "é".encode() * 600_000,  # the first chunk may end inside a character
        # of long texts the beginning is a few rows
        "far.jsonl": jsonl(*[{"text": "long " * 20_000}] * 20) + b"no object\n" * 900,
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        CorpusSource("source", name).shards(0, tmp_path)[0].check()


# Pieces


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


@pytest.mark.parametrize("suffix", PACKERS)
def test_every_stream_of_a_packed_file_is_read_or_an_error(tmp_path: Path, suffix: str) -> None:
    rng = random.Random(0)
    rows = [{"text": f"Row {rng.random()}."} for _ in range(5000)]
    first, second = (PACKERS[suffix](jsonl(*half)) for half in (rows[:2500], rows[2500:]))
    path = tmp_path / f"rows.jsonl{suffix}"
    path.write_bytes(first + second)
    assert len(read(tmp_path, path.name)[0]) == 5000
    for damaged in (
        first + second[: len(second) // 2],
        first + b"no stream" + second,
        first + second + b"no stream",
        second[: len(second) // 2],
        first + bytes([second[0] ^ 255]) + second[1:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"is damaged or incomplete"):
            read(tmp_path, path.name)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_zeros_behind_a_stream_are_no_damage(tmp_path: Path, suffix: str) -> None:
    first, second = (PACKERS[suffix](jsonl({"text": f"Row {number}."})) for number in range(2))
    (tmp_path / f"rows.jsonl{suffix}").write_bytes(first + b"\0" * 8 + second + b"\0" * 4)
    assert read(tmp_path, f"rows.jsonl{suffix}")[0] == [["Row 0."], ["Row 1."]]


# What is refused


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, r"2 of 52 rows cannot be read(?s:.*)a.jsonl:51: no JSON object(?s:.*)text_field"),
        ({"text_field": "body"}, "no text in field 'body'"),
    ],
)
def test_many_bad_rows(tmp_path: Path, options: dict[str, str], sentence: str) -> None:
    rows = jsonl(*({"text": f"Good {index}."} for index in range(50)))
    (tmp_path / "a.jsonl").write_bytes(rows + b"{\n{\n")
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path, "a.jsonl", **options)


BINARY = r"a.txt is binary \(or UTF-16\)"
ALL_BYTES = bytes(range(256))
WRONG_FILES: list[tuple[str, bytes, str]] = [
    ("a.txt", ALL_BYTES * 100, BINARY),
    ("a.txt", "wide".encode("utf-16"), "UTF-16"),
    ("a.txt", b"text\0" * 30, BINARY),
    ("a.txt", b"\x7fELF\x02\x01\x01\0 and words", BINARY),
    ("a.txt", b"caf\xe9 with a \0 in another encoding", BINARY),
    ("a.txt", b"name.txt" + bytes(92) + b"0000644\0" + b"words of a text\n" * 500, BINARY),
]


@pytest.mark.parametrize(("name", "content", "sentence"), WRONG_FILES)
def test_a_binary_file_is_refused(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path, name)


WRONG_BEGINNINGS: list[tuple[str, bytes, str]] = [
    ("a.txt", b"\x89PNG\0" + ALL_BYTES * 10, "a.txt is binary"),
    ("a.txt", b"caf\xe9 latin\n" * 40, "40 of its first 40 rows .* not UTF-8 text; first: a.txt:1"),
    ("a.jsonl", jsonl(*[{"body": "x"}] * 40), "40 x no text in field 'text'"),
    ("a.jsonl", b"plain text\n" * 40, "40 x no JSON object"),
    ("a.jsonl.gz", b"not compressed", "damaged or incomplete"),
    ("a.jsonl", jsonl(*[{"title": "t", "body": "b"}] * 20), r"a\.jsonl:1: .* are body, title\)"),
]


@pytest.mark.parametrize(("name", "content", "sentence"), WRONG_BEGINNINGS)
def test_a_wrong_file_is_known_by_its_beginning(
    tmp_path: Path, name: str, content: bytes, sentence: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        for file in CorpusSource("source", name).shards(0, tmp_path):
            file.check()


@pytest.mark.parametrize("path", ["none-*.jsonl", "absent.txt", "/absent/folder"])
def test_no_text_is_said_with_what_was_expected(tmp_path: Path, path: str) -> None:
    place = rf"{re.escape(path)}, nor from here"
    sentence = rf"no text files at .*{place}(?s:.*)one sentence a line(?s:.*)set data_dir"
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path, path)
