"""What a terminal and the class files say of where a classification fails."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as theirs
from tests.screens import shows

from clozelab.report.classes import _class_table, _mean_figures
from clozelab.tasks.class_report import ClassReport, error_lines

NAMES = ["fraud", "ok"]
LABELS = ["fraud"] * 3 + ["ok"] * 7
ANSWERS = ["ok", "ok", "fraud"] + ["ok"] * 6 + ["fraud"]


def rows_of(lines: list[str]) -> list[list[str]]:
    return list(csv.reader(f"{line}\n" for line in lines))


def test_files_are_scikit_learns_report() -> None:
    files = ClassReport.from_pairs(NAMES, zip(LABELS, ANSWERS, strict=True)).files("_more")
    assert list(files) == ["classes_more.csv", "confusion_more.csv"]
    header, *rows = rows_of(files["classes_more.csv"])
    assert header == ["label", "precision", "recall", "f1", "count"]
    report = theirs.classification_report(LABELS, ANSWERS, output_dict=True)
    keys = ("precision", "recall", "f1-score", "support")
    for row, name in zip(rows, ("fraud", "ok", "macro avg", "weighted avg"), strict=True):
        expected = [100 * report[name][key] for key in keys[:3]] + [report[name]["support"]]
        assert [float(cell) for cell in row[1:]] == pytest.approx(expected, abs=1e-4)
    _, *cells = rows_of(files["confusion_more.csv"])
    matrix = theirs.confusion_matrix(LABELS, ANSWERS, labels=NAMES)
    assert {(one, other): int(count) for one, other, count in cells} == {
        ("fraud", "fraud"): matrix[0, 0],
        ("fraud", "ok"): matrix[0, 1],
        ("ok", "fraud"): matrix[1, 0],
        ("ok", "ok"): matrix[1, 1],
    }


def test_few_classes_show_their_matrix() -> None:
    lines = ClassReport.from_pairs(NAMES, zip(LABELS, ANSWERS, strict=True)).shown_lines()
    shows("\n".join(lines), "fraud 50.0 33.3 40.0 3", "fraud 1 2 ok 1 6")


def test_many_classes_show_the_worst_and_what_is_confused() -> None:
    names = [f"a class with a long name, number {number}" for number in range(120)]
    labels = sorted(names * 3, key=names.index)
    answers = list(labels)
    answers[30:33] = [names[11]] * 3
    lines = list(ClassReport.from_pairs(names, zip(labels, answers, strict=True)).shown_lines())
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[-4:] == ["0.0", "0.0", "0.0", "3"], "the tenth class comes first"
    assert "  112 more classes in classes.csv" in lines
    assert lines[-1].split("  ")[1].startswith("a class with") and " 3 " in lines[-1]


def test_errors_are_sorted_by_how_sure_they_are() -> None:
    rng = np.random.default_rng(0)
    records = []
    for number in range(50):
        logits = rng.normal(size=2).round(5).tolist()
        records.append(
            {
                "id": str(number),
                "label": NAMES[number % 2],
                "prediction": NAMES[int(np.argmax(logits))],
                "logits": logits,
            }
        )
    texts = [(f'"{number}",\na', f"b{number}") for number in range(50)]
    header, *rows = rows_of(error_lines(records, texts))
    assert header == ["id", "text", "text_2", "label", "answer", "probability"]
    wrong = [record for record in records if record["prediction"] != record["label"]]
    assert 10 < len(rows) == len(wrong)
    probabilities = [float(row[-1]) for row in rows]
    assert probabilities == sorted(probabilities, reverse=True)
    for row in rows:
        record = records[int(row[0])]
        shares = np.exp(record["logits"]) / np.exp(record["logits"]).sum()
        assert float(row[-1]) == pytest.approx(shares.max(), abs=1e-4)
        assert row[1:5] == [*texts[int(row[0])], record["label"], record["prediction"]]


def test_a_class_of_later_runs_stands_among_the_classes(tmp_path: Path) -> None:
    """A run writes the kinds of entities that occur in it, so a later run may have more."""
    folders = []
    for kinds in (["PER", "LOC"], ["PER", "LOC", "MISC"]):
        folder = tmp_path / str(len(kinds))
        folder.mkdir()
        answers = ["PER"] * len(kinds)
        lines = ClassReport.from_pairs(kinds, zip(kinds, answers, strict=True)).files("")
        (folder / "classes.csv").write_text("\n".join(lines["classes.csv"]) + "\n")
        folders.append(folder)
    found = _class_table("t", _mean_figures(folders), Counter())
    assert list(found.classes) == ["LOC", "MISC", "PER", "(macro mean)", "(weighted mean)"]
    assert found.num_hidden == 0


@pytest.mark.parametrize("content", ["", "label,precision,recall,f1,count\n"])
def test_a_file_without_rows_is_damaged(tmp_path: Path, content: str) -> None:
    """The report had no table of classes, and did not say why."""
    path = tmp_path / "classes.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(f"{path} is damaged: it has no rows")):
        _mean_figures([tmp_path])
