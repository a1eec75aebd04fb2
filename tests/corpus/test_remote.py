"""Texts of object stores and web servers: the same corpus as of a disk, and what is refused."""

from __future__ import annotations

import gzip
import importlib.util
import threading
import tracemalloc
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pandas
import pytest
import zstandard
from tests.corpus.test_prepare import make_text, opened, run
from tests.screens import refuses

from clozelab.corpus import prepare
from clozelab.corpus.files import CorpusCounts, CorpusFile, CorpusSource, content_marks
from clozelab.corpus.preparation import running, texts
from clozelab.readers import remote

S3_MISSING = [name for name in ("moto", "s3fs", "flask") if not importlib.util.find_spec(name)]
ROWS = make_text(60).strip().split("\n\n")
TABLE = pandas.DataFrame({"id": range(60), "text": ROWS})
FILES: dict[str, bytes] = {
    "plain.txt": make_text(60).encode(),
    "packed.txt.gz": gzip.compress(make_text(60).encode()),
    "packed.txt.zst": zstandard.compress(make_text(60).encode()),
    "rows.jsonl": TABLE.to_json(orient="records", lines=True).encode(),
    "rows.csv": TABLE.to_csv(index=False).encode(),
    "rows.parquet": TABLE.to_parquet(index=False, row_group_size=7),
}


@pytest.fixture
def memory() -> Iterator[Any]:
    """An empty store in memory, `memory://store`."""
    store = fsspec.filesystem("memory")
    yield store
    store.store.clear()
    store.pseudo_dirs.clear()


def texts_at(path: str, **options: Any) -> list[str]:
    texts = []
    for file in CorpusSource("source", path, **options).shards(0, Path()):
        texts += list(file.texts(CorpusCounts()))
    return texts


@pytest.mark.parametrize("name", FILES)
def test_a_store_gives_the_texts_of_a_disk(tmp_path: Path, memory: Any, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    memory.pipe(f"/store/{name}", FILES[name])
    assert texts_at(f"memory://store/{name}") == texts_at(str(tmp_path / name)) != []


@pytest.mark.parametrize("name", ["packed.txt.zst", "rows.parquet"])
def test_a_store_gives_the_corpus_of_a_disk(tmp_path: Path, memory: Any, name: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(FILES[name])
    memory.pipe(f"/store/{name}", FILES[name])
    local, stored = (opened(tmp_path, path) for path in (name, f"memory://store/{name}"))
    assert stored.fingerprint == local.fingerprint and stored.folder != local.folder
    (facts,) = stored.manifest["settings"]["sources"][0]["files"]
    assert facts["name"] == name and facts["size"] == len(FILES[name])
    assert content_marks(stored.manifest["settings"]["sources"]) == [facts["version"]]


def test_a_feather_file_of_a_store(tmp_path: Path, memory: Any) -> None:
    TABLE.to_feather(tmp_path / "rows.feather")
    memory.put(str(tmp_path / "rows.feather"), "/store/rows.feather")
    assert texts_at("memory://store/rows.feather") == ROWS


def test_a_folder_and_a_glob_of_a_store(memory: Any, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        memory.pipe(f"/store/{number}/part.txt", f"Text {number}.".encode())
    memory.pipe("/store/README.html", b"<p>")
    memory.pipe("/store/.gitattributes", b"*.parquet filter=lfs")
    source = CorpusSource("source", "memory://store")
    assert [file.name for file in source.shards(0, Path())] == [
        "0/part.txt",
        "1/part.txt",
        "2/part.txt",
    ]
    assert "memory://store: files left out: 1," in caplog.text
    assert texts_at("memory://store/*/part.txt") == ["Text 0.", "Text 1.", "Text 2."]
    assert texts_at("memory://store/[02]/part.txt") == ["Text 0.", "Text 2."]
    memory.pipe("/store/1/.part.txt", b"Hidden.")
    assert texts_at("memory://store/**/*.txt") == ["Text 0.", "Text 1.", "Text 2."]
    assert texts_at("memory://store/1/.*.txt") == ["Hidden."]


def test_several_paths_are_read_in_their_order(tmp_path: Path, memory: Any) -> None:
    memory.pipe("/store/a.txt", b"Of a store.")
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(f"In {folder}.")
    paths = ["y", "memory://store/a.txt", "x/*.txt"]
    files = CorpusSource("source", paths).shards(0, tmp_path)
    assert [file.name for file in files] == ["a.txt", "1/a.txt", "2/a.txt"]
    texts = [list(file.texts(CorpusCounts())) for file in files]
    assert texts == [["In y."], ["Of a store."], ["In x."]]
    with refuses("source source: no text files at memory://store/gone.txt"):
        CorpusSource("source", ["y", "memory://store/gone.txt"]).shards(0, tmp_path)


def test_a_path_of_this_machine_may_be_a_url(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Here.")
    assert texts_at(f"file://{tmp_path}/a.txt") == ["Here."]
    assert texts_at(f"file://{tmp_path}/*.txt") == ["Here."]


def test_a_file_that_changes_while_it_is_read_is_named(memory: Any) -> None:
    memory.pipe("/store/a.txt", b"One.\n" * 9)
    (file,) = CorpusSource("source", "memory://store/a.txt").shards(0, Path())
    assert len(list(file.texts(CorpusCounts()))) == 9
    memory.pipe("/store/a.txt", b"Two.\n" * 9)
    with refuses("memory:///store/a.txt was changed while this command read it"):
        list(file.texts(CorpusCounts()))
    memory.rm("/store/a.txt")
    with refuses("memory:///store/a.txt cannot be read (FileNotFoundError"):
        list(file.texts(CorpusCounts()))


def test_a_damaged_file_of_a_store_is_named(memory: Any) -> None:
    memory.pipe("/store/a.txt.gz", FILES["packed.txt.gz"][:-9])
    with refuses("memory:///store/a.txt.gz is damaged or incomplete"):
        texts_at("memory://store/a.txt.gz")
    memory.pipe("/store/a.parquet", FILES["rows.parquet"][:-9])
    with refuses("memory:///store/a.parquet cannot be read (ArrowInvalid"):
        texts_at("memory://store/a.parquet")


def test_memory_does_not_grow_with_a_file_of_a_store(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the whole file at once would be seen."""
    monkeypatch.setattr(remote, "BLOCK_BYTES", 2**19)
    text = "".join(f"Sentence {index} of some words.\n" for index in range(2**19))
    memory.pipe("/store/a.txt.zst", zstandard.compress(text.encode()))
    (file,) = CorpusSource("source", "memory://store/a.txt.zst").shards(0, Path())
    tracemalloc.start()
    assert sum(1 for _ in file.texts(CorpusCounts())) == 2**19
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22 < len(text) // 3


def test_a_store_that_fails_is_asked_again_and_what_is_done_is_kept(
    tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        memory.pipe(f"/store/{number}.txt", make_text(20, first=20 * number).encode())
    url = "memory://store/*.txt"
    expected = opened(tmp_path, url)
    real = remote.RemotePath.open

    def fail(file: remote.RemotePath, mode: str = "rb") -> Any:
        if file.name == "2.txt" and list((tmp_path / "again").rglob("*.npz")):
            raise remote.RemoteError(f"{file} cannot be read (TimeoutError)")
        return real(file, mode)

    monkeypatch.setattr(texts, "SHARD_CHARACTERS", 400)
    monkeypatch.setattr(remote.RemotePath, "open", fail)
    with refuses("memory:///store/2.txt cannot be read (TimeoutError)"):
        run(tmp_path, url, cache_dir=tmp_path / "again")
    (done,) = (tmp_path / "again/corpora").glob(".*.work")
    finished = {path: path.stat().st_mtime_ns for path in done.rglob("000000.npz")}
    assert finished
    monkeypatch.setattr(remote.RemotePath, "open", real)
    begun = running.begin_work

    def same_work(folder: Path, key: Any) -> None:
        begun(folder, key)
        assert {path: path.stat().st_mtime_ns for path in finished} == finished

    monkeypatch.setattr(prepare, "begin_work", same_work)
    again = opened(tmp_path, url, cache_dir=tmp_path / "again")
    assert again.fingerprint == expected.fingerprint


def test_files_of_a_prepared_corpus_are_not_opened(
    tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe("/store/a.jsonl", FILES["rows.jsonl"])
    url = "memory://store/a.jsonl"
    folder = run(tmp_path, url)
    opened = []
    real = remote.RemotePath.open

    def count(file: remote.RemotePath, mode: str = "rb") -> Any:
        opened.append(file.name)
        return real(file, mode)

    monkeypatch.setattr(remote.RemotePath, "open", count)
    assert run(tmp_path, url) == folder
    assert len(opened) <= 1, "at most the beginning, by which its format is known"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nowhere://a/b.txt", "nowhere://a/b.txt cannot be read (ValueError: Protocol not known"),
        ("abfs://a/b.txt", "needs a package that is not installed: Install adlfs"),
        ("memory://store/none", "source source: no text files at memory://store/none\nexpected:"),
        ("http://127.0.0.1:9/a.txt", "http://127.0.0.1:9/a.txt cannot be read (ClientConnector"),
    ],
)
def test_what_cannot_be_read_is_refused(memory: Any, url: str, reason: str) -> None:
    with refuses(" ".join(reason.split())):
        CorpusSource("source", url).shards(0, Path())


@pytest.mark.parametrize(
    "url",
    ["hf://datasets/a/b/*.parquet", "https://huggingface.co/datasets/a/b/resolve/main/x.jsonl"],
)
def test_the_hub_is_not_asked_offline(
    no_network: list[str], monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with refuses(f"{url} is on the Hugging Face hub, and HF_HUB_OFFLINE is set: unset it"):
        CorpusSource("source", url).shards(0, Path())


# A web server, and an object store


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without ranges; `version` False: without the time of the last change."""

    version = True

    def log_message(self, *_: Any) -> None:
        pass

    def send_header(self, keyword: str, value: str) -> None:
        if self.version or keyword != "Last-Modified":
            super().send_header(keyword, value)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """The URL of a server of the folder `web`."""
    (tmp_path / "web").mkdir()
    handler = partial(Quiet, directory=str(tmp_path / "web"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("name", ["plain.txt", "packed.txt.gz", "rows.jsonl"])
def test_files_of_a_web_server(tmp_path: Path, web: str, name: str) -> None:
    (tmp_path / "web" / name).write_bytes(FILES[name])
    (file,) = CorpusSource("source", f"{web}/{name}?download=true").shards(0, Path())
    assert isinstance(file, CorpusFile) and file.name == name
    assert list(file.texts(CorpusCounts())) == texts_at(str(tmp_path / "web" / name))


def test_a_server_that_marks_no_content_is_refused(
    tmp_path: Path, web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "web/a.txt").write_text("One.")
    monkeypatch.setattr(Quiet, "version", False)
    with refuses(f"{web}/a.txt cannot be read (OSError: its server does not give both a size and"):
        texts_at(f"{web}/a.txt")
    with refuses(f"{web}/none.txt cannot be read (ClientResponseError: 404"):
        texts_at(f"{web}/none.txt")


@pytest.mark.skipif(bool(S3_MISSING), reason=f"not installed: {', '.join(S3_MISSING)}")
def test_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of Amazon's protocol on this machine: folders, packed files, tables, a change."""
    from moto.server import ThreadedMotoServer

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        port = server.get_host_and_port()[1]
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        store = fsspec.filesystem("s3", skip_instance_cache=True)
        store.mkdir("bucket")
        (tmp_path / "data").mkdir()
        for name in ("packed.txt.zst", "rows.parquet"):
            (tmp_path / "data" / name).write_bytes(FILES[name])
            store.pipe(f"bucket/{name}", FILES[name])
            url = f"s3://bucket/{name}"
            local, stored = (opened(tmp_path, path) for path in (name, url))
            assert stored.fingerprint == local.fingerprint
        folder = CorpusSource("source", "s3://bucket/packed*")
        (file,) = folder.shards(0, Path())
        assert run(tmp_path, url) == stored.folder, "the same files, the same corpus"
        store.pipe("bucket/packed.txt.zst", zstandard.compress(b"Other.\n" * 99))
        with refuses("s3://bucket/packed.txt.zst was changed while this command read it"):
            list(file.texts(CorpusCounts()))
        with refuses("s3://nobodys/a.txt cannot be read ("):
            texts_at("s3://nobodys/a.txt")
    finally:
        server.stop()
