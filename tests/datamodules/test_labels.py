"""What is no label is refused with its lines, in every format; and odd sets of classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest
from pyarrow import parquet
from tests.screens import refuses, shows

from clozelab.tasks.labels import ANY, CLASSES, NUMBERS
from clozelab.tasks.several_classes import SeveralClassesTarget
from clozelab.tasks.tables import TableFormat, TextExamples

KINDS = ("jsonl", "csv", "tsv", "parquet", "feather")


def write(folder: Path, kind: str, labels: list[Any], texts: dict[int, Any] | None = None) -> Path:
    path = folder / f"x.{kind}"
    rows = [{"text": f"text {index}", "label": label} for index, label in enumerate(labels)]
    for index, text in (texts or {}).items():
        rows[index]["text"] = text
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path
    table = pandas.DataFrame(rows)
    if kind in ("csv", "tsv"):
        table.to_csv(path, index=False, sep="," if kind == "csv" else "\t")
    elif kind == "parquet":
        table.to_parquet(path)
    else:
        table.to_feather(path)
    return path


def read(path: Path, names: list[str] | None = None, expected: str = CLASSES) -> TextExamples:
    return TableFormat(["text"], "label").read(path, names=names, expected=expected)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_label_is_counted_with_its_lines(tmp_path: Path, kind: str) -> None:
    """By one sentence, however it is empty; a single one is no damaged row to be skipped."""
    labels: list[str | None] = ["1", "2"] * 40
    sentences = set()
    for nothing, expected in product(["", None, "  "], [CLASSES, NUMBERS, ANY]):
        for index in range(0, 80, 9):
            labels[index] = nothing
        with pytest.raises(ValueError) as refused:
            read(write(tmp_path, kind, labels), expected=expected)
        sentences.add(str(refused.value))
    (sentence,) = sentences
    first = 1 if kind in ("jsonl", "parquet", "feather") else 2
    lines = f"{first}, {first + 9}, {first + 18}"
    shows(sentence, f"x.{kind}:{first}: label is empty (9 rows, lines {lines}, ...): give each row")
    one = ["1", "2"] * 400
    one[3] = ""
    with refuses(f"x.{kind}:{first + 3}: label is empty: give each row one label"):
        read(write(tmp_path, kind, one), names=["1", "2"])


def test_nan_is_a_label_where_it_is_named(tmp_path: Path) -> None:
    labels = ["nan", "a", "b"]
    assert read(write(tmp_path, "jsonl", labels), names=["a", "b", "nan"]).labels == labels


UNMEANT: list[tuple[list[Any], str]] = [
    (["yes", "yes ", "no"], r"'yes' \(line 1\) and 'yes ' \(line 2\) differ by spaces alone"),
    (["new york", "new  york", "no"], "differ by spaces alone"),
    (["caf\u00e9", "cafe\u0301", "no"], r"how Unicode writes accents \(NFC and NFD\) alone"),
    ([1, 1.0, 0], "'1' .* and '1.0' .* are the same number"),
    ([0.5, 1.5, 0.5], r"'0\.5' \(2 rows, lines 1, 3\) is a number with a fraction: task"),
    (
        [f"2024-01-{day:02d}" for day in range(1, 31)],
        "30 different ones, such as '2024-01-01', in 30 rows: is task",
    ),
]


@pytest.mark.parametrize(("labels", "sentence"), UNMEANT)
def test_classes_that_nobody_can_have_meant(
    tmp_path: Path, labels: list[Any], sentence: str
) -> None:
    path = write(tmp_path, "jsonl", labels)
    with pytest.raises(ValueError, match=sentence):
        read(path)
    names = list(
        dict.fromkeys(label if isinstance(label, str) else json.dumps(label) for label in labels)
    )
    assert len(read(path, names=names)) == len(labels), "whoever names them means them"


def test_labels_that_differ_by_case_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(read(write(tmp_path, "jsonl", ["Yes", "yes", "No", "no"]))) == 4
    shows(caplog.text, "labels: 2 pairs differ by case alone, and each is two classes; the")
    caplog.clear()
    read(write(tmp_path, "jsonl", ["yes", "no", "none"]))
    assert not caplog.records


def test_a_rare_label_that_is_nearly_a_frequent_one_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels = ["Sport", "Politik", "B1"] * 20 + ["Sprot", "Kultur", "Polittik", "B2", "sport"]
    read(write(tmp_path, "jsonl", labels))
    shows(caplog.text, "'Sprot' (line 61) is a class", "'Sport' (20 rows)", "'Polittik' (line 63)")
    assert len([text for text in caplog.messages if "misspelt" in text]) == 2
    caplog.clear()
    read(write(tmp_path, "jsonl", ["Sport", "Sprot"] * 40))
    read(write(tmp_path, "jsonl", ["Sport", "Kultur"] * 10 + ["Sprot"]))
    assert not caplog.records, "frequent, or of a small file"


def test_several_unknown_labels_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, "jsonl", ["a", "w", "x", "", "y", "z"])
    with refuses("wrong labels; 4 unknown labels in all: 'w', 'x', 'y' and 1 more"):
        read(path, names=["a", "b"])


def test_a_class_that_may_be_a_missing_value_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be a name, so it stays a class; `none` is one."""
    examples = read(write(tmp_path, "jsonl", ["None", "none", "NA", "b"]), expected=CLASSES)
    assert examples.labels == ["None", "none", "NA", "b"]
    doubted = [text for text in caplog.messages if text.endswith("is it a missing value?")]
    assert ["'None' (line 1)" in doubted[0], "'NA' (line 3)" in doubted[1]] == [True, True]
    assert len(doubted) == 2


def test_what_is_no_text_is_a_damaged_row(tmp_path: Path) -> None:
    """A number is a text as it is written; a list, null and NaN are none."""
    found = read(
        write(tmp_path, "jsonl", ["a", "b"] * 200, {0: 7, 1: ["x"], 2: None, 3: float("nan")})
    )
    assert (found.num_bad_rows, found.texts[0], len(found)) == (3, ("7",), 397)


@pytest.mark.parametrize("number", ["1_0", "infinity", "nan", "0x1", "1e999", "１"])
def test_what_only_some_readers_take_for_a_number(tmp_path: Path, number: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        read(write(tmp_path, "tsv", ["1", number, " -.5e1 "]), expected=NUMBERS)
    assert (
        read(write(tmp_path, "tsv", ["1", "+1.", " -.5e1 "]), expected=NUMBERS).labels is not None
    )


def test_a_listed_class_may_be_empty(tmp_path: Path) -> None:
    path = write(tmp_path, "csv", ["", "b"] * 4)
    layout = TableFormat(["text"], "label")
    assert layout.read(path, expected=ANY, listed=["", "b"]).labels == ["", "b"] * 4
    with refuses("label is empty"):
        layout.read(path, expected=ANY, listed=["a", "b"])


def class_label_file(
    folder: Path,
    labels: list[Any],
    names: Sequence[str] = ("sad", "glad"),
    nested: Callable[[Any], Any] = lambda feature: feature,
) -> Path:
    """As the datasets library writes a column of classes, or of lists of them."""
    feature = nested({"names": list(names), "_type": "ClassLabel"})
    noted = {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}
    table = pyarrow.table(
        {"text": [f"text {index}" for index in range(len(labels))], "label": labels}
    )
    path = folder / "x.parquet"
    parquet.write_table(table.replace_schema_metadata(noted), path)
    return path


def test_names_of_a_class_label_column(tmp_path: Path) -> None:
    path = class_label_file(tmp_path, [0, 1, 1])
    assert read(path).labels == ["sad", "glad", "glad"]
    assert read(path, names=["glad", "sad", "other"]).labels == ["sad", "glad", "glad"]
    assert read(path, names=["0", "1"]).labels == ["0", "1", "1"]
    assert read(path, expected=NUMBERS).labels == ["0", "1", "1"]
    with refuses("label is empty"):
        read(class_label_file(tmp_path, [0, 1, -1]))


@pytest.mark.parametrize(
    "nested", [lambda feature: [feature], lambda feature: {"feature": feature}]
)
def test_names_of_a_column_of_lists_of_classes(tmp_path: Path, nested: Any) -> None:
    """As older and newer releases of the datasets library write it; -1 is no label."""
    path = class_label_file(tmp_path, [[1], [0, 1], []], nested=nested)
    target = SeveralClassesTarget(separator=",")
    labels = TableFormat(["text"], "label").read(path, read_cell=target.read_cell).labels
    assert labels == [("glad",), ("sad", "glad"), ()]


def test_a_name_that_no_known_label_has_changes_no_other(tmp_path: Path) -> None:
    """The training file may lack a class that the validation file has, or both may lack it."""
    stars = class_label_file(tmp_path, [1, 2, 3], ["1", "2", "3", "4", "5"])
    assert read(stars, names=["1", "2", "3", "4"]).labels == ["2", "3", "4"]
    tones = class_label_file(tmp_path, [0, 1], ["neg", "pos", "neutral"])
    assert read(tones, names=["neg", "pos"]).labels == ["neg", "pos"]
    with refuses(
        "known labels ['neg', 'pos']: mend the file, or leave such rows out; task.data.la"
    ):
        read(class_label_file(tmp_path, [2], ["neg", "pos", "neutral"]), names=["neg", "pos"])


def test_numbers_that_are_labels_by_themselves_and_by_name_are_refused(tmp_path: Path) -> None:
    names = ["1", "2", "3", "4", "5"]
    known = ["0", "1", "2", "3", "4"]
    with refuses("the numbers of the column 'label' are labels by themselves and by their"):
        read(class_label_file(tmp_path, [0, 1, 2], names), names=known)
    with refuses("3: label '5' is not one of the known labels ['0', '1', '2', '3', '4']"):
        read(class_label_file(tmp_path, [0, 1, 4], names), names=known)
    same = class_label_file(tmp_path, [0, 2], ["0", "1", "2"])
    assert read(same, names=["0", "2", "3"]).labels == ["0", "2"]


@pytest.mark.parametrize(
    ("labels", "composites"),
    [
        (["science", "old", "science;old"], 1),
        (["a|b", "b|c", "a | c"], 3),
        (["red", "blue", "red, blue"], 1),
        (["Paris, France", "Rome, Italy", "Lyon, France"], 0),
        (["a;b", "c"], 0),
        (["a", "b;"], 0),
    ],
)
def test_several_labels_in_a_cell_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, labels: list[str], composites: int
) -> None:
    assert read(write(tmp_path, "jsonl", labels * 4)).labels == labels * 4
    warned = [text for text in caplog.messages if "seem to be several labels" in text]
    if not composites:
        assert not warned
        return
    (warning,) = warned
    assert f"{composites} of 3 classes" in warning and "write one label in each cell" in warning


# What is refused

NO_NUMBER = [1.0, float("nan"), 0.0] * 5
BAD_LABELS: list[tuple[str, list[Any], str]] = [
    ("jsonl", [["a"], ["a"]], r":1: label is a list \(\['a'\]\), not one text or number \(2 rows"),
    ("parquet", [["a"], ["a"]], r":1: label is a list \(\['a'\]\), not one text or number"),
    ("csv", ["a", "b", "['a', 'b']"] * 3, r"label is a list or an object .* \(3 rows"),
    ("jsonl", NO_NUMBER, "label is empty"),
    ("parquet", NO_NUMBER, "label is empty"),
    ("csv", NO_NUMBER, "label is empty"),
    ("jsonl", ["nan", "a", "b"], "label 'nan' is how a missing value is written"),
]


@pytest.mark.parametrize(("kind", "labels", "sentence"), BAD_LABELS)
def test_a_bad_label_is_refused(
    tmp_path: Path, kind: str, labels: list[Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(write(tmp_path, kind, labels))


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (
            ["yes", "no", "yes ", "YES", "yes "],
            r":3: label 'yes ' is not .* from 'yes' by spaces alone \(2 rows, lines 3, 5\)",
        ),
        (["yes", "YES"], "label 'YES' .* differs from 'yes' by case alone"),
    ],
)
def test_the_known_label_that_is_near_is_named(
    tmp_path: Path, labels: list[str], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        read(write(tmp_path, "jsonl", labels), names=["yes", "no"])


def test_a_list_is_a_damaged_text(tmp_path: Path) -> None:
    path = write(tmp_path, "jsonl", ["a", "b"] * 5, {1: ["x"]})
    sentence = r"x\.jsonl:2: text is a list \(\['x'\]\), and a text was expected"
    with pytest.raises(ValueError, match=sentence):
        read(path)


def test_decimal_commas_are_told_from_several_labels(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read(write(tmp_path, "jsonl", ["2,04", "4,04", "4,02", "2,02"]))
    shows(caplog.text, "4 of 4 classes seem to be several labels", "write a point for the comma")
    caplog.clear()
    read(write(tmp_path, "jsonl", ["red,2", "red,4", "2,4"]))
    shows(caplog.text, "3 of 3 classes seem to be several labels")
    assert "write a point" not in caplog.text
