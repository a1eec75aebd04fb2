"""Whether a complete run's inputs are untouched: every file that it reads is watched."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.composing import Given, given

from clozelab.corpus.files import CorpusSource
from clozelab.runs import inputs as watching
from clozelab.runs.inputs import UNWATCHED, watched_files
from clozelab.runs.reuse import is_done
from clozelab.runs.store import Run


def config(data: Path, **changes: Any) -> Given:
    return given("pretrain", {"arm": "mlm", "seed": 1, "data_dir": str(data)} | changes)


def finish(folder: Path, cfg: Given) -> None:
    with Run.claim(folder, stage="pretrain", config=cfg, inputs={}) as run:
        run.complete()


def test_settled_only_while_inputs_are_untouched(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "text.txt").write_text("one")
    cfg = config(data, source="text*.txt")
    folder = tmp_path / "run"
    finish(folder, cfg)
    assert watched_files(cfg).keys() == {str(data / "text.txt")}
    assert is_done(folder, stage="pretrain", config=cfg)
    assert not is_done(folder, stage="finetune", config=cfg)
    assert not is_done(folder, stage="pretrain", config=config(data, source="text*.txt", seed=2))
    assert not is_done(tmp_path / "nowhere", stage="pretrain", config=cfg)
    (data / "text.txt").write_text("changed")
    assert not is_done(folder, stage="pretrain", config=cfg)


def test_a_file_that_changed_after_it_was_hashed_is_never_settled(tmp_path: Path) -> None:
    """Else a run of the former content would be complete whatever is there now."""
    (tmp_path / "text.txt").write_text("one")
    cfg = config(tmp_path, source="text*.txt")
    time.sleep(0.02)  # a clock of files ticks slowly
    (tmp_path / "text.txt").write_text("two")
    folder = tmp_path / "run"
    finish(folder, cfg)
    assert not is_done(folder, stage="pretrain", config=cfg)
    # The next run compares what the file holds, and may watch it again.
    later = config(tmp_path, source="text*.txt")
    finish(folder, later)
    assert is_done(folder, stage="pretrain", config=later)


def test_more_files_than_can_be_watched_are_never_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run of many texts would count as complete after they have changed."""
    monkeypatch.setattr(watching, "MAX_WATCHED_FILES", 2)
    data = tmp_path / "data"
    data.mkdir()
    for index in range(2):
        (data / f"watched{index}.txt").write_text("x")
    cfg = config(data, source="watched*.txt")
    finish(tmp_path / "run", cfg)
    assert is_done(tmp_path / "run", stage="pretrain", config=cfg)
    (data / "watched2.txt").write_text("x")
    finish(tmp_path / "other", cfg)
    assert not is_done(tmp_path / "other", stage="pretrain", config=cfg)


def corpus(path: str) -> dict[str, Any]:
    return {"corpus": {"sources": [{"name": "mine", "path": path}]}}


BOOKS, MINE, WORD = "home/books/a.txt", "data/mine/a.txt", "data/word"
DEEP = ("data/deep/x/y/a.txt", "data/deep/a.txt")


@pytest.mark.parametrize(
    ("changes", "watched"),
    [
        (corpus("mine"), [MINE]),
        (corpus("~/books"), [BOOKS]),
        (corpus("deep/**/*.txt"), DEEP),
        (corpus("word"), [WORD]),
        (corpus("TMP/home/*/a.txt"), [BOOKS]),
        # A folder called by a plain word, where a folder may stand.
        ({"measure": {"data": {"files": "mine"}}}, [MINE]),
        ({"measure": {"data": {"sources": [{"name": "one", "path": "mine"}]}}}, [MINE]),
        ({"measure": {"data": {"folder": "mine"}}}, [MINE]),
        ({"task": {"data": {"train_file": "mine"}}}, [MINE]),
        ({"task": {"data": {"extra_validation_files": {"other": "mine"}}}}, [MINE]),
        ({"task": {"data": {"train_extra": ["mine"]}}}, [MINE]),
        ({"tokenizer": {"vocab_file": "mine"}}, [MINE]),
        ({"encoder": "mine"}, [MINE]),
        ({"models": ["mine"]}, [MINE]),
        ({"models": "min*"}, [MINE]),
        ({"objective": {"token": {"teacher": "mine"}}}, [MINE]),
    ],
    ids=str,
)
def test_a_changed_file_is_seen_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], watched: list[str]
) -> None:
    for name in (BOOKS, MINE, WORD, *DEEP):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one.")
    changes = json.loads(json.dumps(changes).replace("TMP", str(tmp_path)))
    data = tmp_path / "data"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(data)
    cfg = config(data, **changes)
    files = {tmp_path / name for name in watched}
    assert {Path(path).resolve() for path in watched_files(cfg)} == files
    for source in changes.get("corpus", {"sources": []})["sources"]:
        assert {file.path for file in CorpusSource(**source).shards(0, data)} == files
    finish(tmp_path / "run", cfg)
    assert is_done(tmp_path / "run", stage="pretrain", config=cfg)
    (tmp_path / watched[0]).write_text("Another text.")
    assert not is_done(tmp_path / "run", stage="pretrain", config=cfg)


def test_of_sources_the_files_here_are_watched(tmp_path: Path) -> None:
    """Every path of a list; a data set of the hub is known by its commit."""
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("one.")
    sources = [
        {"name": "web", "path": None, "dataset": "org/web", "revision": "0" * 40},
        {"name": "mine", "path": ["a.txt", f"file://{tmp_path}/b.txt"], "dataset": None},
    ]
    cfg = config(tmp_path, corpus={"sources": sources})
    assert watched_files(cfg).keys() == {str(tmp_path / "a.txt"), str(tmp_path / "b.txt")}


@pytest.mark.parametrize(
    "path",
    ["nowhere", "nowhere/*.txt", "~nobody-of-this-name/text", "a**b/c", "memory://store/a.txt"],
)
def test_a_source_without_files_is_never_settled(tmp_path: Path, path: str) -> None:
    """Nothing was seen of it when the run was made, so nothing can be said now."""
    (tmp_path / "there.txt").write_text("one.")
    sources = [{"name": "a", "path": "there.txt"}, {"name": "b", "path": path}]
    cfg = config(tmp_path, corpus={"sources": sources})
    assert watched_files(cfg).keys() == {UNWATCHED}
    finish(tmp_path / "run", cfg)
    assert not is_done(tmp_path / "run", stage="pretrain", config=cfg)


def test_a_tasks_file_of_one_word_is_watched_and_a_folder_of_that_name_is_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "train").write_text("a")
    (tmp_path / "label").mkdir()
    (tmp_path / "label/other.txt").write_text("a")
    data = {"train_file": "train", "label_column": "label", "text": "x" * 300}
    data |= {"train_extra": ["more/extra"]}
    (tmp_path / "more").mkdir()
    (tmp_path / "more/extra").write_text("a")
    found = watched_files(config(tmp_path, task={"data": data}))
    assert found.keys() == {str(tmp_path / "train"), str(tmp_path / "more/extra")}


def test_the_generator_beside_an_encoder_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on from it as well."""
    monkeypatch.chdir(tmp_path)
    for name in ("mine/model.safetensors", "generator/config.json"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    watched = watched_files(config(tmp_path, encoder="mine"))
    assert str(tmp_path / "generator/config.json") in watched


def test_a_run_that_has_looked_is_settled_again(tmp_path: Path) -> None:
    """Copied files have new times: the first look finds them equal, the next need not look."""
    (tmp_path / "text.txt").write_text("one.")
    cfg = config(tmp_path, **corpus("text.txt"))
    finish(tmp_path / "run", cfg)
    os.utime(tmp_path / "text.txt", (1, 1))
    assert not is_done(tmp_path / "run", stage="pretrain", config=cfg)
    cfg = config(tmp_path, **corpus("text.txt"))  # as of the next command
    with Run.claim(tmp_path / "run", stage="pretrain", config=cfg, inputs={}) as run:
        assert run.is_complete
    assert is_done(tmp_path / "run", stage="pretrain", config=cfg)


@pytest.mark.parametrize("how", ["in place", "another file"])
def test_an_edit_that_keeps_size_and_time_is_seen(tmp_path: Path, how: str) -> None:
    path = tmp_path / "text.txt"
    path.write_text("one.")
    cfg = config(tmp_path, **corpus("text.txt"))
    finish(tmp_path / "run", cfg)
    assert is_done(tmp_path / "run", stage="pretrain", config=cfg)  # the control
    before = path.stat()
    time.sleep(0.02)  # a file system counts in ticks of up to 10 ms
    if how == "another file":
        path.rename(tmp_path / "old")
    path.write_text("two.")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert not is_done(tmp_path / "run", stage="pretrain", config=cfg)
