"""GLUE's TSV: not CSV, byte order marks, CRLF, no header, damaged rows, labels outside the list; and the real files."""

from __future__ import annotations

from pathlib import Path

import pytest

from clozelab.datamodules.labelled import TsvFormat, read_tsv

PAIRS = TsvFormat(text_columns=["s1", "s2"], label_column="label", id_column="index", columns=None)
SINGLE = TsvFormat(text_columns=["sentence"], label_column="label", id_column=None, columns=None)


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "train.tsv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_quotes_are_characters(tmp_path: Path) -> None:
    path = write(tmp_path, 'index\ts1\ts2\tlabel\n7\t"He said\tshe\'s "fine"\tyes\n8\tb\tc"\tno\n')
    examples = read_tsv(path, PAIRS, label_names=["yes", "no"], require_labels=True)
    assert examples.ids == ["7", "8"]
    assert examples.first == ['"He said', "b"]
    assert examples.second == ['she\'s "fine"', 'c"']
    assert examples.labels == ["yes", "no"]


def test_byte_order_mark_crlf_and_unicode_line_separators(tmp_path: Path) -> None:
    text = "\ufeffindex\ts1\ts2\tlabel\r\n0\ta\u2028b\tc\x85d\tyes\r\n\r\n\r\n"
    examples = read_tsv(write(tmp_path, text), PAIRS, label_names=["yes"], require_labels=True)
    assert examples.first == ["a\u2028b"]
    assert examples.labels == ["yes"]
    assert examples.num_bad_rows == 0


def test_file_without_header(tmp_path: Path) -> None:
    layout = TsvFormat(["sentence"], "label", None, columns=["source", "label", "mark", "sentence"])
    examples = read_tsv(
        write(tmp_path, "gj04\t1\t\tOne.\ngj04\t0\t*\tTwo.\n"), layout, label_names=["0", "1"], require_labels=True
    )
    assert (examples.ids, examples.first, examples.labels) == (["0", "1"], ["One.", "Two."], ["1", "0"])
    assert examples.second is None


def test_rare_bad_rows_are_counted(tmp_path: Path) -> None:
    rows = [f"text {i}\t{i % 2}" for i in range(300)]
    rows[5] = "torn"
    rows[200] = "a\tb\tc"
    examples = read_tsv(
        write(tmp_path, "sentence\tlabel\n" + "\n".join(rows)), SINGLE, label_names=["0", "1"], require_labels=True
    )
    assert (len(examples), examples.num_bad_rows) == (298, 2)
    assert examples.ids[5] == "6"  # the row's own number, so that it can be found in the file


def test_undecodable_row_is_a_bad_row(tmp_path: Path) -> None:
    content = b"sentence\tlabel\n" + b"fine\t1\n" * 150 + b"\xff\xfe broken\t1\n"
    assert read_tsv(write(tmp_path, content), SINGLE, label_names=["1"], require_labels=True).num_bad_rows == 1


def test_wrong_file_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "sentence\tlabel\nfine\t1\nsentence, label\n")
    with pytest.raises(ValueError, match=r"train.tsv:3: 1 tab-separated fields, expected 2(.|\n)*1 of 2 rows"):
        read_tsv(path, SINGLE, label_names=["1"], require_labels=True)


def test_unknown_label_names_line_and_known_labels(tmp_path: Path) -> None:
    path = write(tmp_path, "sentence\tlabel\na\t1\nb\tmaybe\n")
    with pytest.raises(ValueError, match=r"train.tsv:3: label 'maybe' .*\['0', '1'\]"):
        read_tsv(path, SINGLE, label_names=["0", "1"], require_labels=True)


def test_missing_label_column_only_for_prediction(tmp_path: Path) -> None:
    path = write(tmp_path, "index\tsentence\n0\ta\n")
    assert read_tsv(path, SINGLE, label_names=["1"], require_labels=False).labels is None
    with pytest.raises(ValueError, match=r"no column 'label'.*can only be predicted"):
        read_tsv(path, SINGLE, label_names=["1"], require_labels=True)


def test_missing_text_column_names_those_found(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no column 'sentence'; its columns are \['text', 'label'\]"):
        read_tsv(write(tmp_path, "text\tlabel\na\t1\n"), SINGLE, label_names=None, require_labels=True)


@pytest.mark.parametrize("content", ["", "sentence\tlabel\n"])
def test_empty_file(tmp_path: Path, content: str) -> None:
    with pytest.raises(ValueError, match=r"is empty|has no examples"):
        read_tsv(write(tmp_path, content), SINGLE, label_names=None, require_labels=True)


def test_official_mnli_columns(tmp_path: Path) -> None:
    """Train has 12 columns, the development files 16: columns are found by name."""
    layout = TsvFormat(["sentence1", "sentence2"], "gold_label", "index", columns=None)
    parses = "sentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse"
    common = f"index\tpromptID\tpairID\tgenre\t{parses}\tsentence1\tsentence2"
    values = "0\t1\t1n\tfiction\t( a )\t( b )\t(ROOT a)\t(ROOT b)\tA.\tB."
    for extra in (1, 5):
        labels = "\t".join(f"label{i + 1}" for i in range(extra))
        path = write(tmp_path, f"{common}\t{labels}\tgold_label\n{values}" + "\tneutral" * (extra + 1) + "\n")
        examples = read_tsv(path, layout, label_names=["neutral"], require_labels=True)
        assert (examples.first, examples.second, examples.labels) == (["A."], ["B."], ["neutral"])


@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "layout", "count"),
    [
        ("glue/MRPC/train.tsv", TsvFormat(["#1 String", "#2 String"], "Quality", None, None), 3668),
        ("glue/MRPC/dev.tsv", TsvFormat(["#1 String", "#2 String"], "Quality", None, None), 408),
        ("glue/SST-2/train.tsv", SINGLE, 67349),
        ("glue/CoLA/train.tsv", TsvFormat(["sentence"], "label", None, ["source", "label", "mark", "sentence"]), 8551),
        ("glue/RTE/train.tsv", TsvFormat(["sentence1", "sentence2"], "label", "index", None), 2490),
        ("glue/QNLI/dev.tsv", TsvFormat(["question", "sentence"], "label", "index", None), 5463),
        ("glue/QNLI/train-derived.tsv", TsvFormat(["question", "sentence"], "label", "index", None), 87599),
        ("nli/train.tsv", TsvFormat(["sentence1", "sentence2"], "gold_label", "index", None), 95231),
    ],
)
def test_real_files_give_the_published_counts(shared_dir: Path, file: str, layout: TsvFormat, count: int) -> None:
    examples = read_tsv(shared_dir / "data" / file, layout, label_names=None, require_labels=True)
    assert (len(examples), examples.num_bad_rows) == (count, 0)
    assert 2 <= len(set(examples.labels or [])) <= 3
