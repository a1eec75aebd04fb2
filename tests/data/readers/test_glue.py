"""GLUE's TSV: not CSV, byte order marks, CRLF, no header, damaged rows, labels outside the list; and the real files."""

from __future__ import annotations

import csv
import gzip
import io
import json
from functools import partial
from pathlib import Path

import pytest
import zstandard

from clozelab.datamodules.files import TableFormat, TextExamples
from clozelab.datamodules.labelled import what_is_wrong

PAIRS = TableFormat(["s1", "s2"], "label", "index")
SINGLE = TableFormat(["sentence"], "label")


def read_table_of(
    path: Path, layout: TableFormat, names: list[str] | None = None, labels: str = "required"
) -> TextExamples:
    return layout.read(path, check_label=partial(what_is_wrong, names=names, is_number=False), labels=labels)


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "train.tsv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_quotes_are_characters(tmp_path: Path) -> None:
    path = write(tmp_path, 'index\ts1\ts2\tlabel\n7\t"He said\tshe\'s "fine"\tyes\n8\tb\tc"\tno\n')
    examples = read_table_of(path, PAIRS, ["yes", "no"])
    assert examples.ids == ["7", "8"]
    assert examples.texts == [('"He said', 'she\'s "fine"'), ("b", 'c"')]
    assert examples.labels == ["yes", "no"]


def test_byte_order_mark_crlf_and_unicode_line_separators(tmp_path: Path) -> None:
    text = "\ufeffindex\ts1\ts2\tlabel\r\n0\ta\u2028b\tc\x85d\tyes\r\n\r\n\r\n"
    examples = read_table_of(write(tmp_path, text), PAIRS, ["yes"])
    assert examples.texts == [("a\u2028b", "c\x85d")]
    assert examples.labels == ["yes"]
    assert examples.num_bad_rows == 0


def test_file_without_header(tmp_path: Path) -> None:
    layout = TableFormat(["sentence"], "label", None, ["source", "label", "mark", "sentence"])
    examples = read_table_of(write(tmp_path, "gj04\t1\t\tOne.\ngj04\t0\t*\tTwo.\n"), layout, ["0", "1"])
    assert (examples.ids, examples.texts, examples.labels) == (["0", "1"], [("One.",), ("Two.",)], ["1", "0"])


def test_rare_bad_rows_are_counted(tmp_path: Path) -> None:
    rows = [f"text {i}\t{i % 2}" for i in range(300)]
    rows[5] = "torn"
    rows[200] = "a\tb\tc"
    examples = read_table_of(write(tmp_path, "sentence\tlabel\n" + "\n".join(rows)), SINGLE, ["0", "1"])
    assert (len(examples), examples.num_bad_rows) == (298, 2)
    assert examples.ids[5] == "6"  # the row's own number, so that it can be found in the file


def test_undecodable_row_is_a_bad_row(tmp_path: Path) -> None:
    content = b"sentence\tlabel\n" + b"fine\t1\n" * 150 + b"\xff\xfe broken\t1\n"
    assert read_table_of(write(tmp_path, content), SINGLE, ["1"]).num_bad_rows == 1


def test_wrong_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "sentence\tlabel\nfine\t1\nsentence, label\n")
    with pytest.raises(ValueError, match=r"train.tsv:3: 1 fields, expected 2(.|\n)*1 of 2 rows"):
        read_table_of(path, SINGLE, ["1"])


def test_unknown_label_names_line_and_known_labels(tmp_path: Path) -> None:
    path = write(tmp_path, "sentence\tlabel\na\t1\nb\tmaybe\n")
    with pytest.raises(ValueError, match=r"train.tsv:3: label 'maybe' .*\['0', '1'\]"):
        read_table_of(path, SINGLE, ["0", "1"])


def test_missing_label_column_only_for_prediction(tmp_path: Path) -> None:
    path = write(tmp_path, "index\tsentence\n0\ta\n")
    assert read_table_of(path, SINGLE, ["1"], "optional").labels is None
    with pytest.raises(ValueError, match=r"no column 'label'.*can only be predicted"):
        read_table_of(path, SINGLE, ["1"])


def test_missing_text_column_names_those_found(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no column 'sentence'; its columns are \['text', 'label'\]"):
        read_table_of(write(tmp_path, "text\tlabel\na\t1\n"), SINGLE)


ROWS = [('a "quoted", text', "yes"), ("tab\tand\nline", "no"), ("Zürich", "yes")]


def as_csv(rows: list[tuple[str, str]]) -> str:
    out = io.StringIO()
    csv.writer(out).writerows([("s", "label"), *rows])
    return out.getvalue()


def as_jsonl(rows: list[tuple[str, str]]) -> str:
    return "".join(json.dumps({"other": [1], "label": label, "s": text}) + "\n" for text, label in rows)


@pytest.mark.parametrize("pack", ["", ".gz", ".zst"])
@pytest.mark.parametrize(("suffix", "content"), [(".csv", as_csv(ROWS)), (".jsonl", as_jsonl(ROWS))])
def test_every_format_gives_the_same_examples(tmp_path: Path, suffix: str, content: str, pack: str) -> None:
    packed = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[pack](content.encode())
    for name, file_format in ((f"x{suffix}{pack}", "auto"), (f"odd{pack}", suffix[1:])):
        (tmp_path / name).write_bytes(packed)
        layout = TableFormat(["s"], "label", file_format=file_format)
        found = read_table_of(tmp_path / name, layout, ["yes", "no"])
        assert (found.texts, found.labels) == ([(text,) for text, _ in ROWS], [label for _, label in ROWS])


def test_values_of_json_that_are_no_texts(tmp_path: Path) -> None:
    """Numbers and truths are labels as JSON writes them; a null text is a damaged row, and so is a broken line."""
    good = [{"s": "a", "label": 1}, {"s": "b", "label": True}, {"s": "c", "label": 2.5}] * 100
    lines = [json.dumps(line) for line in good]
    (tmp_path / "x.jsonl").write_text("\n".join([*lines, '{"s": null, "label": 1}', '{"s": "torn', "[]"]))
    found = read_table_of(tmp_path / "x.jsonl", TableFormat(["s"], "label"))
    assert (found.labels or [])[:3] == ["1", "true", "2.5"] and found.num_bad_rows == 3
    with pytest.raises(ValueError, match=r"no column 'text'; its columns are \['s', 'label'\]"):
        read_table_of(tmp_path / "x.jsonl", TableFormat(["text"], "label"))
    (tmp_path / "x.jsonl").write_text("no json\n")
    with pytest.raises(ValueError, match=r"x.jsonl:1: no JSON object"):
        read_table_of(tmp_path / "x.jsonl", TableFormat(["s"], "label"))
    with pytest.raises(ValueError, match="file_format='xml' is unknown; known: auto, tsv, csv, jsonl"):
        read_table_of(tmp_path / "x.jsonl", TableFormat(["s"], "label", file_format="xml"))


@pytest.mark.parametrize("content", ["", "sentence\tlabel\n"])
def test_empty_file(tmp_path: Path, content: str) -> None:
    with pytest.raises(ValueError, match=r"is empty|has no examples"):
        read_table_of(write(tmp_path, content), SINGLE)


def test_official_mnli_columns(tmp_path: Path) -> None:
    """Train has 12 columns, the development files 16: columns are found by name."""
    layout = TableFormat(["sentence1", "sentence2"], "gold_label", "index")
    parses = "sentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
    common = f"index\tpromptID\tpairID\tgenre\t{parses}\tsentence1\tsentence2"
    values = "0\t1\t1n\tfiction\t( a )\t( b )\t(ROOT a)\t(ROOT b)\tA.\tB."
    for extra in (1, 5):
        labels = "\t".join(f"label{i + 1}" for i in range(extra))
        path = write(tmp_path, f"{common}\t{labels}\tgold_label\n{values}" + "\tneutral" * (extra + 1) + "\n")
        examples = read_table_of(path, layout, ["neutral"])
        assert (examples.texts, examples.labels) == ([("A.", "B.")], ["neutral"])


@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "layout", "count"),
    [
        ("glue/MRPC/train.tsv", TableFormat(["#1 String", "#2 String"], "Quality", None, None), 3668),
        ("glue/MRPC/dev.tsv", TableFormat(["#1 String", "#2 String"], "Quality", None, None), 408),
        ("glue/SST-2/train.tsv", SINGLE, 67349),
        (
            "glue/CoLA/train.tsv",
            TableFormat(["sentence"], "label", None, ["source", "label", "mark", "sentence"]),
            8551,
        ),
        ("glue/RTE/train.tsv", TableFormat(["sentence1", "sentence2"], "label", "index", None), 2490),
        ("glue/QNLI/dev.tsv", TableFormat(["question", "sentence"], "label", "index", None), 5463),
        ("glue/QNLI/train-derived.tsv", TableFormat(["question", "sentence"], "label", "index", None), 87599),
        ("nli/train.tsv", TableFormat(["sentence1", "sentence2"], "gold_label", "index", None), 95231),
    ],
)
def test_real_files_give_the_published_counts(shared_dir: Path, file: str, layout: TableFormat, count: int) -> None:
    examples = read_table_of(shared_dir / "data" / file, layout)
    assert (len(examples), examples.num_bad_rows) == (count, 0)
    assert 2 <= len(set(examples.labels or [])) <= 3
