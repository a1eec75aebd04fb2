"""Tables as corpora: every format gives the same documents, the column of text is found or asked
for, and a table that is not whole is never taken for a shorter one."""

from __future__ import annotations

import json
import multiprocessing
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas
import pyarrow
import pytest
from pyarrow import ipc, parquet

from clozelab.corpus.documents import read_documents
from clozelab.corpus.files import CorpusCounts, CorpusSource
from clozelab.corpus.paths import matching_files
from clozelab.readers.tables import open_table

TEXTS = [
    f'She said "no, {index}", and left.\nThe second line of number {index}.' for index in range(150)
]


def frame(**columns: Sequence[object]) -> pandas.DataFrame:
    return pandas.DataFrame(
        {"id": [f"d{index}" for index in range(len(TEXTS))], "body": TEXTS, **columns}
    )


def write_stream(path: Path) -> None:
    """As the `datasets` library saves to disk."""
    table = pyarrow.Table.from_pandas(frame())
    with path.open("wb") as file, ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=40)


WRITERS: dict[str, Callable[[Path], object]] = {
    "x.csv": lambda path: frame().to_csv(path, index=False),
    "x.parquet": lambda path: frame().to_parquet(path, row_group_size=40),
    "x.feather": lambda path: frame().to_feather(path),
    "x.arrow": write_stream,
}


def read(folder: Path, path: str, **options: str) -> tuple[list[list[str]], CorpusCounts]:
    counts = CorpusCounts()
    files = CorpusSource("source", path, **options).shards(0, folder)
    for file in files:
        file.check()
    return [document.lines for document in read_documents(files, counts)], counts


def jsonl_of(texts: Sequence[str]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


@pytest.mark.parametrize("name", WRITERS)
def test_every_table_gives_the_documents_of_its_jsonl(tmp_path: Path, name: str) -> None:
    (tmp_path / "same.jsonl").write_text(jsonl_of(TEXTS))
    expected, _ = read(tmp_path, "same.jsonl")
    WRITERS[name](tmp_path / name)
    documents, counts = read(tmp_path, name)
    assert documents == expected and len(expected) == 150
    assert (counts.rows, counts.bad.total()) == (150, 0)


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (
            {"more": TEXTS},
            {},
            r"which column is the text \('id', 'body', 'more'\): name it by corpus",
        ),
        ({}, {"text_field": "story"}, "no column 'story'; its columns are 'id', 'body': name one"),
        ({"text": range(150)}, {}, r"the column 'text' holds (int64|numbers)"),
    ],
)
@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_a_column_that_is_not_the_text_is_asked_for(
    tmp_path: Path,
    name: str,
    columns: dict[str, Sequence[object]],
    options: dict[str, str],
    words: str,
) -> None:
    if name == "x.csv":
        frame(**columns).to_csv(tmp_path / name, index=False)
    else:
        frame(**columns).to_parquet(tmp_path / name)
    with pytest.raises(ValueError, match=words):
        read(tmp_path, name, **options)
    assert len(read(tmp_path, name, text_field="body")[0]) == 150, "it can be named"


def test_the_column_called_text_comes_first(tmp_path: Path) -> None:
    frame(text=[f"Number {index} is this." for index in range(150)]).to_parquet(
        tmp_path / "x.parquet"
    )
    assert read(tmp_path, "x.parquet")[0][0] == ["Number 0 is this."]


def test_what_a_folder_is_read_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Texts come first: a table beside them says something about them. A LICENSE is no corpus."""
    WRITERS["x.csv"](tmp_path / "about.csv")
    (tmp_path / "a.txt").write_text("From a.")
    assert read(tmp_path, ".")[0] == [["From a."]]
    assert "files left out: 1," in caplog.text
    (tmp_path / "a.txt").rename(tmp_path / "LICENSE")
    assert read(tmp_path, ".")[0] == [["From a."]], "files without a suffix are texts"
    WRITERS["x.parquet"](tmp_path / "x.parquet")
    assert len(read(tmp_path, ".")[0]) == 150


def test_all_bytes_are_counted_for_the_progress_bar(tmp_path: Path) -> None:
    for name in ("x.csv", "x.parquet", "x.arrow"):
        WRITERS[name](tmp_path / name)
        told: list[int] = []
        list(open_table(tmp_path / name).rows(["body"], told.append))
        assert sum(told) == (tmp_path / name).stat().st_size and len(told) > 1


def _peak_megabytes(path: Path) -> float:
    files = CorpusSource("one", str(path)).shards(0, path.parent)
    for _ in read_documents(files, CorpusCounts()):
        pass
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak) / 1024


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_memory_does_not_grow_with_a_row_group(tmp_path: Path) -> None:
    """Fifty megabytes of text in one row group, as large on disk."""
    peaks = []
    plain = {"compression": "none", "use_dictionary": False}
    for number in (1_000, 20_000):
        texts = [f"{'Some words of a text. ' * 120}{index}" for index in range(number)]
        parquet.write_table(
            pyarrow.table({"text": texts}),
            tmp_path / f"{number}.parquet",
            row_group_size=number,
            **plain,
        )
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            peaks.append(pool.apply(_peak_megabytes, (tmp_path / f"{number}.parquet",)))
    assert peaks[1] < peaks[0] + 30


def test_a_tsv_of_a_csv_writer_is_noticed_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.tsv"
    pandas.DataFrame(
        {"text": ['"No," she said.', "a film", '"Yes," he said.'], "label": [0, 1, 0]}
    ).to_csv(path, sep="\t", index=False)
    table = open_table(path)
    for _ in range(2):
        texts = [record["text"] for _, record in table.rows() if isinstance(record, dict)]
        assert texts[0] == '"""No,"" she said."'
    assert caplog.text.count("2 rows have a cell between quotation marks") == 1
    assert "task.data.file_format=csv" in caplog.text
    quoted = [
        record["text"] for _, record in open_table(path, "csv").rows() if isinstance(record, dict)
    ]
    assert quoted == ['"No," she said.', "a film", '"Yes," he said.']


def test_quotation_marks_of_a_text_are_no_csv_writers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.tsv"
    path.write_text('text\tlabel\n" I am , " he said .\t1\n"Yes" and "no"\t0\n' * 3)
    assert len(list(open_table(path).rows())) > 4
    assert not caplog.records


def test_json_under_a_name_that_says_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(jsonl_of(TEXTS))
    with pytest.raises(ValueError, match=r"a\.txt holds JSON.*corpus\.sources\.0\.format=jsonl"):
        read(tmp_path, "a.txt")
    assert len(read(tmp_path, "a.txt", format="jsonl")[0]) == len(TEXTS)
    (tmp_path / "b.jsonl").write_text(json.dumps([{"text": text} for text in TEXTS]))
    with pytest.raises(ValueError, match=r"b\.jsonl:1 begins a JSON array"):
        read(tmp_path, "b.jsonl")
    # exports are called .json, and hold a list or an object a line
    (tmp_path / "b.jsonl").rename(tmp_path / "b.json")
    assert read(tmp_path, "b.json")[0] == read(tmp_path, "a.txt", format="jsonl")[0]
    (tmp_path / "c.txt").write_text('"{" opens a block.\n[1] A footnote.\n{curly} words\n')
    assert read(tmp_path, "c.txt")[0]


@pytest.mark.parametrize("pattern", ["texts", "texts/*.txt"])
def test_a_path_is_looked_for_where_one_stands_if_data_dir_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    here = tmp_path / "here"
    data_dir = tmp_path / "data"
    (here / "texts").mkdir(parents=True)
    (here / "texts" / "a.txt").write_text("One sentence.\n")
    monkeypatch.chdir(here)
    files, _ = matching_files(pattern, data_dir)
    assert [path.resolve() for path in files.values()] == [here / "texts" / "a.txt"]
    # A path from the root means that place alone, whatever is called so here.
    (here / "nowhere").mkdir()
    (here / "nowhere" / "a.txt").write_text("Of another text.\n")
    assert matching_files("/nowhere/*.txt", data_dir) == ({}, 0)
    assert matching_files("/nowhere/a.txt", data_dir) == ({}, 0)
    # what data_dir has comes first
    (data_dir / "texts").mkdir(parents=True)
    (data_dir / "texts" / "b.txt").write_text("Another sentence.\n")
    files, _ = matching_files(pattern, data_dir)
    assert list(files) == ["b.txt"]


def test_linked_folders_are_read_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.txt").write_text("One sentence.\n")
    inner = tmp_path / "text" / "inner"
    inner.mkdir(parents=True)
    (inner / "b.txt").write_text("Another sentence.\n")
    (tmp_path / "text" / "again").symlink_to(inner)
    (tmp_path / "text" / "other").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "circle").symlink_to(tmp_path)
    (tmp_path / "text" / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    files, _ = matching_files("text", tmp_path)
    assert sorted(files) == ["inner/b.txt", "other/a.txt"]
    assert "gone.txt is a link to nothing" in caplog.text


# What is refused


@pytest.mark.parametrize("name", ["x.parquet", "x.feather", "x.arrow"])
def test_half_of_a_binary_table(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    sentence = r"is no (parquet|arrow) file, or is damaged or incomplete"
    with pytest.raises(ValueError, match=sentence):
        read(tmp_path, name)


def test_a_stream_whose_writer_was_stopped(tmp_path: Path) -> None:
    """It ends between two batches, so it reads well: only its end mark is missing."""
    write_stream(tmp_path / "x.arrow")
    (tmp_path / "x.arrow").write_bytes((tmp_path / "x.arrow").read_bytes()[:-8])
    with pytest.raises(ValueError, match="does not end with its mark"):
        read(tmp_path, "x.arrow")


ROWS = "".join(f'"The cat sat on mat number {number}.",{number}\n' for number in range(20))


def test_a_table_without_a_header_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(ROWS)
    with pytest.raises(ValueError, match=r"names no columns \('The cat sat on mat number 0"):
        read(tmp_path, "x.csv")
