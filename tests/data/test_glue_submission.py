"""A GLUE submission: a good one is valid, and each way of breaking it is found and said."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from clozelab.metrics.glue import TEST_SETS, placeholder, submission_problems, write_submission

Files = dict[str, bytes]
GOOD: Files = {f"{name}.tsv": placeholder(name).encode() for name in TEST_SETS}


def pack(folder: Path, files: Files) -> Path:
    path = folder / "submission.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def changed(name: str, old: bytes, new: bytes) -> Callable[[Files], Files]:
    """The good files with the first `old` of one file replaced."""

    def change(files: Files) -> Files:
        assert old in files[name]
        return files | {name: files[name].replace(old, new, 1)}

    return change


def test_good_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "glue.zip"
    contents = {name.removesuffix(".tsv"): content for name, content in GOOD.items()}
    write_submission(path, contents)
    assert submission_problems(path) == []
    first = path.read_bytes()
    write_submission(path, contents)
    assert path.read_bytes() == first
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == list(GOOD)
        assert archive.read("RTE.tsv").startswith(b"index\tprediction\n0\tentailment\n")


@pytest.mark.parametrize(
    ("breakage", "message"),
    [
        (lambda files: {k: v for k, v in files.items() if k != "WNLI.tsv"}, "WNLI.tsv: missing"),
        (lambda files: {("STSB.tsv" if k == "STS-B.tsv" else k): v for k, v in files.items()}, "STSB.tsv: no file of"),
        (lambda files: {f"glue/{k}": v for k, v in files.items()}, "without a folder"),
        (changed("MRPC.tsv", b"index\tprediction", b"id\tlabel"), "first line must be 'index<TAB>prediction'"),
        (changed("MRPC.tsv", b"index\tprediction\n", b""), "first line must be 'index<TAB>prediction'"),
        (changed("CoLA.tsv", b"1062\t0\n", b""), "CoLA.tsv: 1062 predictions, the test set has 1063"),
        (changed("RTE.tsv", b"\n7\tentailment", b"\n7\t1"), "RTE.tsv:9: prediction '1' is not one of entailment"),
        (changed("QNLI.tsv", b"\n3\t", b"\n2\t"), "QNLI.tsv:5: index '2', expected 3"),
        (changed("STS-B.tsv", b"\n5\t0.0", b"\n5\tnan"), "STS-B.tsv:7: prediction 'nan' is not a number"),
        (changed("SST-2.tsv", b"\n9\t0", b"\n9,0"), "SST-2.tsv:11: 1 tab-separated fields"),
        (changed("AX.tsv", b"0\tcontradiction\n", b"0\tcontradiction\r\n"), r"prediction 'contradiction\r'"),
        (changed("MNLI-m.tsv", b"index", b"\xef\xbb\xbfindex"), r"MNLI-m.tsv: the first line must be"),
        (changed("MNLI-mm.tsv", b"contradiction", b"\xff"), "MNLI-mm.tsv: not UTF-8 text"),
    ],
)
def test_broken_ones(tmp_path: Path, breakage: Callable[[Files], Files], message: str) -> None:
    problems = submission_problems(pack(tmp_path, breakage(GOOD)))
    assert any(message in problem for problem in problems), problems


def test_what_is_no_zip(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(b"index\tprediction\n")
    assert "not a readable zip" in submission_problems(path)[0]
    assert "no such file" in submission_problems(tmp_path / "nowhere.zip")[0]
    whole = pack(tmp_path, GOOD).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "not a readable zip" in submission_problems(path)[0]


def test_many_wrong_rows_are_counted_not_listed(tmp_path: Path) -> None:
    wrong = GOOD["WNLI.tsv"].replace(b"\t0", b"\tno")
    problems = submission_problems(pack(tmp_path, GOOD | {"WNLI.tsv": wrong}))
    assert len(problems) == 4 and problems[-1] == "WNLI.tsv: and 143 more such rows"


def test_nothing_is_written_that_would_be_refused(tmp_path: Path) -> None:
    contents = {name.removesuffix(".tsv"): content for name, content in GOOD.items()}
    with pytest.raises(ValueError, match=r"RTE.tsv: 0 predictions"):
        write_submission(tmp_path / "x.zip", contents | {"RTE": b"index\tprediction\n"})
    assert list(tmp_path.iterdir()) == []
