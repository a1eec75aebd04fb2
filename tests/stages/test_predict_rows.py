"""`clozelab predict input=`: tables go in and come out as tables, and one odd row never loses the
others.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from tests.screens import Screens, shows

import clozelab
from clozelab.cli import main

ROWS = (
    'id,review,stars,day\n007,"a b, c\n""d""",4.0,2020-01-01\n8,,NA,\n9,\U0001f600,nan,x\n10,e'
    ' f,1e3,"y, z"\n'
)
READABLE = [0, 3]
# The second line is empty, the third one is Latin-1, the fourth one is too long.
LINES = b"a b\n\n\xe9\n" + b"a " * 100 + b"\nc\n"
ONE_ROW = '{"text": "a", "sentence2": "b"}\n'


@pytest.fixture
def predict(predictor: Any, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """predict(*words) -> (exit status, stdout, stderr in one line), in a folder with rows.csv."""
    (tmp_path / "rows.csv").write_bytes(ROWS.encode())
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(
            ["predict", str(predictor.model.folder), "precision=32-true", "device=cpu", *words]
        )
        out, err = capsys.readouterr()
        return status, out, " ".join(err.split())

    return run


def test_answers_stand_beside_the_given_columns(
    predict: Any, predictor: Any, tmp_path: Path, screen: Screens
) -> None:
    status, out, err = predict("input=rows.csv", "text=review", "output=out.csv")
    assert (status, out) == (0, "4 rows: out.csv\n")
    screen(err)
    given = list(csv.reader(io.StringIO(ROWS)))
    header, *rows = csv.reader(io.StringIO((tmp_path / "out.csv").read_text()))
    added = ["prediction", "probability", "probability_no", "probability_yes", "error"]
    assert header == [*given[0], *added]
    assert [row[:4] for row in rows] == given[1:], "as they were written"
    expected = predictor.classify(['a b, c\n"d"', "e f"])
    for number, answer in zip(READABLE, expected, strict=True):
        assert rows[number][4] == answer.label
        assert float(rows[number][5]) == pytest.approx(answer.probability)
    assert rows[1][4:8] == [""] * 4
    assert rows[1][8] == "is empty: there is nothing to read"
    assert rows[0][8] == ""
    written = (tmp_path / "out.csv").read_text()
    assert predict("input=rows.csv", "text=review")[1] == written, "also to a pipe"
    # What was written is read again, and its own columns are replaced.
    status, out, err = predict("input=out.csv", "text=review")
    assert out == written
    shows(
        err,
        f"out.csv: the column {', '.join(added)} is replaced by the answers'",
        "2 of 4 texts were",
    )


def test_piped_rows_are_written_twice(
    predict: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time the output is there, and is compared with no file named `-`."""
    for _ in range(2):
        piped = io.TextIOWrapper(io.BytesIO(b"a b\nc d\n"))
        monkeypatch.setattr("sys.stdin", piped)
        status, out, err = predict("input=-", "output=piped.csv")
        assert (status, out) == (0, "2 rows: piped.csv\n"), err
    assert len((tmp_path / "piped.csv").read_text().splitlines()) == 3


def test_parquet_keeps_its_types(predict: Any, tmp_path: Path) -> None:
    frame = pandas.DataFrame(
        {
            "text": ["a b", None, "c"],
            "when": pandas.to_datetime(["2020-01-01", None, "2021-01-01"]),
            "n": [1.5, float("nan"), 3.0],
            "i": pandas.array([1, 2, 3], dtype="int32"),
            "kind": pandas.Categorical(["a", "b", "a"]),
        }
    )
    frame.to_parquet(tmp_path / "in.parquet")
    assert predict("input=in.parquet", "output=out.parquet")[0] == 0
    table = pandas.read_parquet(tmp_path / "out.parquet")
    pandas.testing.assert_frame_equal(table[frame.columns], frame)
    assert table.prediction.notna().tolist() == [True, False, True]
    shows(table.error[1], "has no 'text': the cell is empty")
    _, out, _ = predict("input=in.parquet", "--json")
    first, second, _ = map(json.loads, out.splitlines())
    assert first["when"].startswith("2020-01-01")
    assert first["prediction"]["label"] in ("no", "yes")
    assert (second["text"], second["prediction"]) == (None, None)
    shows(second["error"], "has no 'text': the cell is empty")


def test_embeddings_of_rows(predict: Any, predictor: Any, tmp_path: Path) -> None:
    assert predict("input=rows.csv", "text=review", "do=embed", "output=v.npy")[0] == 0
    vectors = np.load(tmp_path / "v.npy")
    assert np.isnan(vectors[2]).all(), "what cannot be read has no vector"
    assert np.abs(vectors[[0, 1, 3]] - predictor.embed(['a b, c\n"d"', "", "e f"])).max() < 1e-6
    words = ["input=rows.csv", "text=review", "do=embed"]
    assert predict(*words, "output=v.npy", "empty=skip")[0] == 0
    assert np.load(tmp_path / "v.npy").shape == (3, 24)
    assert predict(*words, "output=v.parquet")[0] == 0
    table = pandas.read_parquet(tmp_path / "v.parquet")
    assert table.id.tolist() == ["007", "8", "9", "10"]
    assert table.embedding.isna().tolist() == [False, False, True, False]


def test_columns_are_named_or_found(predict: Any, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("premise\thypothesis\tlabel\na b\tc\t0\nd\te\t1\n")
    status, out, err = predict("input=pairs.tsv")
    assert status == 0
    shows(err, "pairs.tsv: text=premise,hypothesis")
    assert out.splitlines()[0].split("\t")[:4] == ["premise", "hypothesis", "label", "prediction"]
    turned = predict("input=pairs.tsv", "text=hypothesis,premise")[1]
    assert turned.splitlines()[0] == out.splitlines()[0]
    assert turned != out
    (tmp_path / "one.jsonl").write_text(ONE_ROW)
    assert predict("input=one.jsonl", "text=text")[1] == predict("text=a")[1]
    assert predict("input=one.jsonl", "text=text,sentence2")[1] == predict("text=a", "pair=b")[1]
    assert predict("input=one.jsonl", "text=text", "pair=b")[1] == predict("text=a", "pair=b")[1]


def test_a_run_reads_the_columns_that_it_was_trained_on(
    predictor: Any, writers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Nobody can tell `what it says` from `why`, and the run was trained on the first."""
    root = tmp_path / "runs" / "table5_pretraining_tasks" / "demo"
    task = {"name": "mrpc", "data": {"text_columns": ["what it says"]}}
    writers.finetune(root, "mlm", "mrpc", (1, 1), 70.0, config={"task": task})
    run = root / "finetune" / "mlm" / "pretrain-seed-1" / "mrpc" / "seed-1"
    shutil.copytree(predictor.model.folder, run / "model")
    (tmp_path / "rows.csv").write_text("why,what it says\nx,a b\ny,c\n")
    words = ["input=rows.csv", "precision=32-true", "device=cpu"]
    monkeypatch.chdir(tmp_path)
    assert main(["predict", str(run), *words]) == 0
    of_run, err = capsys.readouterr()
    assert "rows.csv: text=what it says" in err
    assert main(["predict", str(run), *words, "text=what it says"]) == 0
    assert capsys.readouterr().out == of_run
    # Python reads the same column of a table
    table = pandas.read_csv("rows.csv")
    loaded = clozelab.load(run, device="cpu", precision="32-true")
    answered = loaded.classify(table)
    pandas.testing.assert_frame_equal(answered, loaded.classify(table, columns="what it says"))
    assert pandas.read_csv(io.StringIO(of_run)).prediction.equals(answered.prediction)
    assert not answered.equals(loaded.classify(table, columns="why"))
    with pytest.raises(ValueError, match="nobody can tell which is the text"):
        loaded.classify(table.rename(columns={"what it says": "what"}))
    # also beside one that is called as texts are
    objects = [{"text": "x", "what it says": text} for text in ("a b", "c")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, objects)))
    answers = []
    for text in ([], ["text=what it says"], ["text=text"]):
        assert main(["predict", str(run), "input=rows.jsonl", *words[1:], *text]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != answers[2]
    # what the command line names comes first, and a folder without a record knows nothing
    assert main(["predict", str(run), *words, "text=why"]) == 0
    assert capsys.readouterr().out != of_run
    assert main(["predict", str(predictor.model.folder), *words]) == 1
    assert "nobody can tell which is the text" in " ".join(capsys.readouterr().err.split())


def test_one_odd_line_keeps_its_place(predict: Any, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_bytes(LINES)
    status, out, err = predict("input=lines.txt")
    lines = out.splitlines()
    assert status == 0
    assert len(lines) == 5
    shows(err, "3 of 5 texts were not answered: lines.txt:2 is empty: there is nothing")
    assert lines[1].startswith("(not answered: it is empty")
    shows(lines[2], "not UTF-8 text)")
    shows(lines[3], "(not answered: it has 102 tokens and this model reads 64 at once")
    for line, text in ((lines[0], "a b"), (lines[4], "c")):
        label, share = predict(f"text={text}")[1].split()
        # A text by itself rounds otherwise on some processors.
        assert line.split("\t")[0] == label
        assert float(line.split("\t")[1]) == pytest.approx(float(share), abs=2e-4)
    assert predict("input=lines.txt", "empty=skip")[1].splitlines() == [lines[0], *lines[2:]]


def test_labels_get_other_names(predict: Any) -> None:
    _, out, _ = predict("text=a", "label_names={no: 0, yes: 1}", "--json")
    assert json.loads(out)["prediction"]["probabilities"].keys() == {"0", "1"}


def test_a_text_of_all_rows_makes_no_empty_row_whole(predict: Any, tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text('review,n\na b,1\n"",2\n')
    _, out, _ = predict("input=two.csv", "text=review", "pair=c", "empty=skip")
    assert pandas.read_csv(io.StringIO(out)).n.tolist() == [1]


def test_a_truth_is_copied_as_json_writes_it(predict: Any, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a", "label": true}\n')
    assert predict("input=in.jsonl", "output=out.csv")[0] == 0
    (row,) = csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text()))
    assert row["label"] == "true"


@pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_a_carriage_return_inside_a_text_is_quoted(
    predict: Any, tmp_path: Path, suffix: str, delimiter: str
) -> None:
    texts = ["a\rb", "c", "d\r", "\re\n", "f\r\ng"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert predict("input=in.jsonl", f"output=out.{suffix}")[0] == 0
    with (tmp_path / f"out.{suffix}").open(newline="") as file:
        table = pandas.read_csv(file, sep=delimiter)
    assert table.text.tolist() == texts
    assert table.prediction.notna().all()
    # What was written is read here, too, and comes out as it was.
    assert predict(f"input=out.{suffix}", f"output=again.{suffix}")[0] == 0
    written = (tmp_path / f"out.{suffix}").read_bytes()
    assert (tmp_path / f"again.{suffix}").read_bytes() == written


def test_a_table_has_the_keys_of_every_object(predict: Any, tmp_path: Path) -> None:
    lines = ['{"text": "a"}', "no object", '{"text": "b", "id": 7}', '{"text": "c", "note": "x"}']
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, ""]))
    (tmp_path / "objects.jsonl").write_text("\n".join([*lines[::2], ""]))
    expected = pandas.read_json(tmp_path / "objects.jsonl", lines=True)
    for suffix, read in (("csv", pandas.read_csv), ("parquet", pandas.read_parquet)):
        assert predict("input=in.jsonl", f"output=out.{suffix}")[0] == 0
        table = read(tmp_path / f"out.{suffix}")
        assert table.columns[:3].tolist() == ["text", "id", "note"]
        assert table.id.isna().tolist() == [True, True, False, True]
        assert table.note[3] == "x"
        assert predict("input=objects.jsonl", f"output=out.{suffix}")[0] == 0
        given = read(tmp_path / f"out.{suffix}")[expected.columns]
        pandas.testing.assert_frame_equal(given, expected, check_dtype=False)


def test_keys_that_json_answers_replace_are_told_once(predict: Any, tmp_path: Path) -> None:
    rows = [{"text": "a"}, {"prediction": 1, "text": "b"}]
    rows.append({"text": "c", "error": 2, "prediction": 3})
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, out, err = predict("input=in.jsonl", "--json")
    assert status == 0
    assert err.count("the column prediction is replaced by the answers'") == 1
    assert err.count("the column error is replaced by the answers'") == 1
    assert [list(json.loads(line)) for line in out.splitlines()] == [["text", "prediction"]] * 3
    (tmp_path / "in.csv").write_text("text,prediction,error\na,1,2\nb,3,4\n")
    err = predict("input=in.csv", "output=out.jsonl")[2]
    assert err.count("in.csv: the column prediction, error is replaced by the answers'") == 1


# The words of `clozelab predict` -> parts of the sentence that refuses them.
REFUSED = [
    (["input=rows.csv"], ["rows.csv has the columns 'id', 'review',", "text=COLUMN"]),
    (["input=rows.csv", "text=reviw"], ["no column 'reviw'; its", "did you mean 'review'"]),
    (["input=rows.csv", "text=review", "pair=day"], ["say text=FIRST,day for the texts of two"]),
    (["input=one.jsonl"], ["did you mean 'pair'? Call it so, or say text=text,sentence2"]),
    (["input=lines.txt", "errors=raise"], ["lines.txt:3 is damaged: not UTF-8"]),
    (["input=none.txt"], ["none.txt:1 has no token"]),
    (["input=one.conll", "do=tag"], ["one.conll has a word a line, not a text", "say test=one"]),
    (["input=tags.txt", "do=tag"], ["tags.txt has a word a line", "format=lines"]),
    (["input=lines.txt", "errors=skip"], ["errors=skip: choose one of mark, raise"]),
    (["text=a", "label_names={nope: x}"], ["has no label 'nope'"]),
    (["text=a", "label_names=no"], ["label_names=no: write"]),
]


@pytest.mark.parametrize(("words", "sentences"), REFUSED)
def test_what_is_refused(
    predict: Any, tmp_path: Path, words: list[str], sentences: list[str]
) -> None:
    (tmp_path / "one.jsonl").write_text(ONE_ROW)
    (tmp_path / "lines.txt").write_bytes(LINES)
    (tmp_path / "none.txt").write_text("\U0001f600\n\n")
    (tmp_path / "one.conll").write_text("the DT O\n")
    (tmp_path / "tags.txt").write_text("-DOCSTART- -X- O\n\nthe DT O\n")
    status, _, err = predict(*words, "output=out.txt")
    assert status == 1
    for sentence in sentences:
        assert sentence in err
    assert not (tmp_path / "out.txt").exists()
