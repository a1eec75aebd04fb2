"""`decontaminate`: exactly the documents with planted runs of benchmarks go, from every format."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.corpus.steps.sharded import Lines, run, run_any
from tests.screens import refuses

from clozelab.corpus.steps.decontaminate import NOTHING_LEFT, Decontaminate
from clozelab.corpus.steps.example_texts import texts_of_file

EXAMPLE = (
    "In March the council said that Mr. Abel's plan would close both bridges for a year of repairs."
)
RUN = "the council said that mr abel s plan would close both bridges for"  # 13 words of it
OTHER = "Nobody knows who painted the small blue boat that hangs above the door of the town hall."


TSV = f"label\ttext\n1\tshort\n0\t{EXAMPLE}\n"
SQUAD = {
    "context": EXAMPLE,
    "qas": [{"id": "1", "question": "Who?", "answers": [{"text": "Abel", "answer_start": 1}]}],
}
RACE = {
    "answers": ["A"],
    "options": [["a", "b", "c", "d"]],
    "article": EXAMPLE.replace("Mr. Abel's", "Mr.\nAbel's"),
}


def objects(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def conllu_lines() -> str:
    rows = enumerate(EXAMPLE.split(), 1)
    return "".join("\t".join([str(number), word, *["_"] * 8]) + "\n" for number, word in rows)


def conll_lines() -> str:
    """As OntoNotes has it: the word stands in the fourth column."""
    rows = enumerate(EXAMPLE.split())
    return "".join(f"bn/abc 0 {number} {word} NN (TOP* -\n" for number, word in rows)


def parquet_bytes(table: pa.Table) -> bytes:
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


def table_of_maps() -> pa.Table:
    kind = pa.map_(pa.string(), pa.string())
    return pa.table({"answers": pa.array([[("long", EXAMPLE)]], kind)})


CONTENTS: dict[str, str | bytes] = {
    "train.tsv": TSV,
    "full_data.tsv": f"1\t{EXAMPLE}\n0\tshort\n",
    "train.csv": f'id,text\n7,"{EXAMPLE}"\n',
    "train.jsonl": objects({"pair": ["short", EXAMPLE], "label": 1}),
    "train-v2.0.json": json.dumps({"data": [{"title": "B", "paragraphs": [SQUAD]}]}, indent=1),
    "rows.json": objects({"context": "short"}, {"context": EXAMPLE}),
    "RACE": json.dumps(RACE),
    "train.json.gz": gzip.compress(json.dumps({"data": [EXAMPLE]}, indent=1).encode()),
    "rows.txt": objects({"text": "short"}, {"text": EXAMPLE.replace("council ", "council\n")}),
    "words.jsonl": json.dumps({"tokens": EXAMPLE.split(), "tags": [0] * 19}),
    "train.parquet": parquet_bytes(pa.table({"text": ["short", EXAMPLE], "label": [0, 1]})),
    "maps.parquet": parquet_bytes(table_of_maps()),
    # Two columns of one name, and a first line that is a row.
    "named_twice.csv": f"text,label,text\n{EXAMPLE},1,short\n",
    "without_header.tsv": f"short\tshort\t1\n{EXAMPLE}\tshort\t0\n",
    "lines.txt": f"short\n{EXAMPLE}\n",
    "train.txt": "-DOCSTART- O\n\n" + EXAMPLE.replace(" ", " O\n") + " O\n\nEnd O",
    "en.conllu": "# sent_id = 1\n" + conllu_lines(),
    "bn.gold_conll": "#begin document\n" + conll_lines() + "\n#end document\n",
}


def documents() -> list[Lines]:
    """The second and fourth hold 13 words of the example; the third holds 12 and its others."""
    twelve = RUN.rsplit(" ", 1)[0]
    return [
        [OTHER, "The weather was fine."],
        ["A report came first.", EXAMPLE.upper().replace(" ", "  "), "Then came the spring."],
        [OTHER, f"{twelve} six weeks.", "In March a year of repairs began."],
        # The run goes over a line end, and its last word is the line's first.
        ["Before it.", "It is true: the council said", f"{RUN.split('said ')[1]}", "After it."],
        [],
    ]


@pytest.mark.parametrize("name", CONTENTS)
def test_documents_with_a_run_of_an_example_go_whatever_the_format(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / (name if name != "RACE" else "RACE/high/1.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    content = CONTENTS[name]
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    step = Decontaminate(files=[name], data_dir=tmp_path)
    kept, report = run_any(step, documents())
    assert kept == [documents()[0], documents()[2], []]
    reason = f"13 words of {name}"
    assert report.documents == {reason: 2}
    dropped = [*documents()[1], *documents()[3]]
    assert report.characters == {reason: sum(map(len, dropped))}
    # The report shows the run, then the document.
    assert report.examples[reason][0] == (
        "in march the council said that mr abel s plan would close both"
    )


def test_without_the_benchmark_all_documents_stay(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text(EXAMPLE.replace("council", "parliament"))
    # one word is another one: runs before and after it are shorter than 13 words
    short = EXAMPLE.split("bridges")[0]
    (tmp_path / "other.txt").write_text(f"{short} bridges {short.replace('said', 'says')}")
    step = Decontaminate(files=["other.txt"], data_dir=tmp_path)
    assert run_any(step, documents()[2:3])[0] == documents()[2:3]


def test_lines_alone_go_with_those_around_them(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(TSV)
    lines = ["First.", "Second.", EXAMPLE, "Fourth.", "Fifth."]
    for around, expected in ((0, [0, 1, 3, 4]), (1, [0, 4]), (2, [])):
        step = Decontaminate(["train.tsv"], remove="lines", lines_around=around, data_dir=tmp_path)
        kept, report = run_any(step, [lines])
        assert kept == [[lines[line] for line in expected]] * bool(expected)
        if expected:
            assert report.changed == {"13 words of train.tsv": 1}
            dropped = [line for line in lines if line not in kept[0]]
            assert report.characters["13 words of train.tsv"] == sum(map(len, dropped))
        else:
            assert report.documents == {NOTHING_LEFT: 1}
            # An example stands beside the reason that is counted.
            assert list(report.examples) == [NOTHING_LEFT]


def test_a_run_over_two_lines_takes_both(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(TSV)
    step = Decontaminate(["train.tsv"], remove="lines", lines_around=0, data_dir=tmp_path)
    assert run_any(step, [documents()[3]])[0] == [["Before it.", "After it."]]


def test_a_document_counts_for_the_file_of_its_first_run(tmp_path: Path) -> None:
    (tmp_path / "glue").mkdir()
    (tmp_path / "glue" / "a.txt").write_text(EXAMPLE)
    (tmp_path / "glue" / "b.txt").write_text(f"{OTHER}\n{EXAMPLE}")
    step = Decontaminate(["glue/*.txt"], data_dir=tmp_path)
    _, report = run_any(step, [[OTHER, EXAMPLE], [EXAMPLE, OTHER]])
    assert report.documents == {
        "13 words of glue/*.txt: b.txt": 1,
        "13 words of glue/*.txt: a.txt": 1,
    }


def test_of_a_folder_every_file_counts_that_is_not_hidden(tmp_path: Path) -> None:
    """A README beside the tables is no reason to leave them out, as in a folder of a corpus."""
    (tmp_path / "glue" / "MRPC").mkdir(parents=True)
    (tmp_path / "glue" / "README.txt").write_text(OTHER)
    (tmp_path / "glue" / ".cache.txt").write_text("a b c d e f g h i j k l m n o")
    (tmp_path / "glue" / "MRPC" / "dev.tsv").write_text(TSV)
    step = Decontaminate(["glue"], data_dir=tmp_path)
    assert set(step.paths) == {"glue: MRPC/dev.tsv", "glue: README.txt"}
    kept, report = run_any(step, [[EXAMPLE], [OTHER], ["Another."]])
    assert kept == [["Another."]]
    assert report.documents["13 words of glue: MRPC/dev.tsv"] == 1


def runs_of_five(words: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words[start : start + 5]) for start in range(len(words) - 4)}


@pytest.mark.parametrize("seed", range(5))
def test_any_texts_go_that_share_a_run_by_plain_sets(seed: int, tmp_path: Path) -> None:
    generator = random.Random(seed)
    texts = [generator.choices("abc", k=generator.randrange(20)) for _ in range(60)]
    (tmp_path / "examples.txt").write_text("\n\n".join(" ".join(text) for text in texts[:6]))
    runs = set().union(*map(runs_of_five, texts[:6]))
    expected = []
    for text in texts[6:]:
        if not runs & runs_of_five(text):
            expected.append([" ".join(text)])
    step = Decontaminate(["examples.txt"], ngram=5, data_dir=tmp_path)
    kept, _ = run_any(step, [[" ".join(text)] for text in texts[6:]])
    assert kept == expected
    assert 0 < len(kept) < 54


def test_the_files_are_part_of_the_fingerprint_and_their_place_is_not(tmp_path: Path) -> None:
    identities = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.tsv").write_text(TSV)
        identities.append(Decontaminate(["train.tsv"], data_dir=tmp_path / folder).identity())
    assert identities[0] == identities[1]
    assert str(tmp_path) not in json.dumps(identities)
    (tmp_path / "b" / "train.tsv").write_text("text\nanother\n")
    assert Decontaminate(["train.tsv"], data_dir=tmp_path / "b").identity() != identities[0]


def test_a_file_may_stand_alone(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(TSV)
    alone = Decontaminate("train.tsv", data_dir=tmp_path)
    assert alone.identity() == Decontaminate(["train.tsv"], data_dir=tmp_path).identity()


def test_damaged_rows_still_count(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(f"label\ttext\n{EXAMPLE}\n")
    assert EXAMPLE in list(texts_of_file(tmp_path / "train.tsv"))


@pytest.mark.parametrize("name", ["train.conllu", "train.jsonl"])
def test_ids_and_tags_of_a_tagged_sentence_are_no_text(name: str, tmp_path: Path) -> None:
    """`1 2 3 ...` links pages of many a document, and `O O O ...` is drawn with letters."""
    words = [
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
    ]
    words += ["twelve", "thirteen", "last"]
    lines = ["# sent_id = 3", "1-2\tonetwo\t_\tO"]
    for number, word in enumerate(words, start=1):
        tag = "B-PER" if number == 14 else "O"
        lines.append(f"{number}\t{word}\t{number - 1}\t{tag}")
    content = "\n".join(lines)
    if name == "train.jsonl":
        columns = zip(*(line.split("\t") for line in lines[2:]), strict=True)
        content = objects(dict(zip(("ids", "words", "heads", "tags"), columns, strict=True)))
    (tmp_path / name).write_text(content)
    step = Decontaminate([name], data_dir=tmp_path)
    pages = " ".join(map(str, range(1, 20)))
    documents = [[pages], ["O " * 20], [" ".join(words)]]
    assert run_any(step, documents)[0] == documents[:2]


LATIN = EXAMPLE.replace("Mr.", "Señor").encode("latin-1")


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("train.tsv", b"text\nshort\n" + LATIN + b"\n", 3),
        ("train.csv", b"text,label\n" + LATIN + b",1\n", 2),
        ("train.jsonl", objects({"text": "short"}).encode() + b'{"text": "' + LATIN + b'"}\n', 2),
        ("test.txt", b"short\n\n" + LATIN + b"\n", 3),
    ],
)
def test_an_example_that_cannot_be_read_is_not_passed_over(
    name: str, content: bytes, line: int, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with refuses(f"{name}:{line}: not UTF-8 text") as caught:
        list(texts_of_file(tmp_path / name))
    assert "iconv -f latin1 -t utf8" in str(caught.value)


def test_wrong_settings_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with refuses("decontaminate: no file is called glue/MRPC/*.tsv below"):
        Decontaminate(["glue/MRPC/*.tsv"], data_dir=tmp_path)
    with refuses("decontaminate needs files"):
        Decontaminate([])
    with refuses("remove=page: choose one of document, lines"):
        Decontaminate(["x"], remove="page")  # type: ignore[arg-type]
    with refuses("ngram=0 must be a whole number of at least 1"):
        Decontaminate(["x"], ngram=0)
    (tmp_path / "short.txt").write_text("A file of a few words.")
    (tmp_path / "train.tsv").write_text(TSV)
    run(Decontaminate(["*.t*"], data_dir=tmp_path), [])
    assert "no text in *.t*: short.txt has 13 words" in caplog.text
    with refuses("decontaminate: no text in short.txt has 13 words"):
        run(Decontaminate(["short.txt"], data_dir=tmp_path), [])
