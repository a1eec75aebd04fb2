"""A preparation that is killed goes on where it was, and its workers are light and end with it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests import forked
from tests.corpus.test_prepare import files_of
from tests.corpus.test_same_bytes import frozen
from tests.reference.corpora import CORPORA, WORDPIECE, FrozenCorpus, facts, prepare

from clozelab.corpus import prepare as prepare_module
from clozelab.corpus.files import CorpusCounts
from clozelab.corpus.preparation import passes, running, texts
from clozelab.corpus.preparation.pool import ShardPool
from clozelab.corpus.steps.clean import Clean
from clozelab.corpus.steps.repeated_lines import RepeatedLines
from clozelab.corpus.steps.step import Arrays, CorpusStep, Document, StepReport

# A whole preparation in a process of its own: corpus, folder, workers.
PROGRAM = """
import sys
from pathlib import Path
from tests.reference.corpora import CORPORA, prepare
from clozelab.corpus.preparation import texts
texts.SHARD_CHARACTERS = 20_000
prepare(CORPORA[sys.argv[1]], Path(sys.argv[2]), workers=int(sys.argv[3]))
"""


def start(name: str, folder: Path, workers: int) -> subprocess.Popen[bytes]:
    """The program, without `if __name__ == "__main__"`, in a group of processes."""
    data = folder / "data"
    if not data.exists():  # before any kill
        data.mkdir()
        CORPORA[name].write(data)
    return forked.Popen(
        [sys.executable, "-c", PROGRAM, name, str(folder), str(workers)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def alive(group: int) -> list[int]:
    """The processes of a group that still run."""
    listed = subprocess.run(["ps", "-eo", "pid,pgid,stat"], capture_output=True, text=True)
    lines = [line.split() for line in listed.stdout.splitlines()[1:]]
    return [int(pid) for pid, pgid, state in lines if int(pgid) == group and "Z" not in state]


@pytest.mark.skipif(sys.platform != "linux", reason="ps")
def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    process = start("several", tmp_path, workers=2)
    until = time.monotonic() + 60
    while len(alive(process.pid)) < 3 and time.monotonic() < until:
        time.sleep(0.02)
    assert len(alive(process.pid)) >= 3, "two workers"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + 30
    while alive(process.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(process.pid)
    # The same command goes on, and makes the same.
    assert start("several", tmp_path, workers=2).wait() == 0
    (folder,) = (tmp_path / "cache" / "corpora").glob("frozen-*")
    assert facts(folder) == frozen("several")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_thirty_kills(seed: int, tmp_path: Path) -> None:
    """Killed at random moments until it gets through; half of them with their workers at once."""
    draw = random.Random(seed)
    workers = draw.choice([1, 2])
    name = draw.choice(["several", "long", "byte_bpe_several"])
    for attempt in range(40):
        process = start(name, tmp_path, workers)
        try:
            status = process.wait(draw.uniform(0.3, 1.0) * (2 + attempt / 4))
        except subprocess.TimeoutExpired:
            kill = draw.choice([os.kill, os.killpg])
            kill(process.pid, signal.SIGKILL)
            process.wait()
            continue
        assert process.stderr is not None
        assert status == 0, process.stderr.read()
        break
    (folder,) = (tmp_path / "cache" / "corpora").glob("frozen-*")
    assert facts(folder) == frozen(name)


class Killed(Exception):
    """Stands for a kill between two files."""


SURVEYS = (Clean(), RepeatedLines(max_count=3), RepeatedLines(max_count=2))


@pytest.mark.parametrize("steps", [(Clean(),), SURVEYS], ids=["clean", "surveys"])
@pytest.mark.parametrize("distance", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_before_any_file(
    tmp_path: Path, distance: int, steps: tuple[CorpusStep, ...]
) -> None:
    """Ended before its n-th file, for every n in the long form; the same command goes on."""
    write_file = passes.write_file
    written: list[str] = []
    limit = 0

    def write_some(path: Path, *content: Any) -> None:
        if len(written) == limit:
            raise Killed
        written.append(f"{path.parent.name}/{path.name}")
        write_file(path, *content)

    with (
        patch.object(texts, "SHARD_CHARACTERS", 40_000),
        patch.object(passes, "write_file", write_some),
    ):
        limit = 1000
        whole = files_of(prepare(CORPORA["several"], tmp_path / "whole", steps=steps))
        files = sorted(written)
        assert len(files) >= 6
        for number in range(1, len(files), distance):
            limit = number
            written.clear()
            with pytest.raises(Killed):
                prepare(CORPORA["several"], tmp_path / str(number), steps=steps)
            limit = 1000
            prepared = prepare(CORPORA["several"], tmp_path / str(number), steps=steps)
            assert files_of(prepared) == whole
            assert sorted(written) == files, "no finished shard is made again"


def test_other_settings_begin_anew(tmp_path: Path) -> None:
    """Shards of another size, or of other code, are not gone on with."""
    with (
        patch.object(texts, "SHARD_CHARACTERS", 20_000),
        patch.object(running.Preparation, "tokenise", side_effect=Killed),
        pytest.raises(Killed),
    ):
        prepare(CORPORA["several"], tmp_path)
    (work,) = (tmp_path / "cache" / "corpora").glob(".frozen-*.work")
    assert len(list(work.glob("documents-0/*.npz"))) > 3
    prepared = prepare(CORPORA["several"], tmp_path)
    assert facts(prepared) == frozen("several")
    assert not work.exists()


# What a worker is


def facts_of_process(_: object, task: int) -> dict[str, Any]:
    """What the process has imported, and its largest memory in MB."""
    heavy = [
        name for name in ("torch", "lightning", "hydra", "transformers") if name in sys.modules
    ]
    peak = 0.0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            peak = int(line.split()[1]) / 1024
    return {"heavy": heavy, "peak": peak, "pid": os.getpid(), "task": task}


def test_a_worker_imports_nothing_heavy() -> None:
    with ShardPool(None, workers=2) as pool:
        results = list(pool.map(facts_of_process, range(6)))
    assert [result["task"] for result in results] == list(range(6))
    assert os.getpid() not in {result["pid"] for result in results}
    assert all(result["heavy"] == [] for result in results)


def write_three_shards(folder: Path) -> None:
    """Texts that take much memory: short lines, wide characters, many documents."""
    lines = "\n".join(f"{number} 汉字 😀" for number in range(1_000_000))
    documents = "\n\n".join(f"Text {number}." for number in range(100_000))
    (folder / "a.txt").write_text(f"{lines}\n\n{documents}\n")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_worker_stays_below_600_megabytes(tmp_path: Path) -> None:
    peaks: list[float] = []
    shutdown = ShardPool.__exit__

    def measured(pool: ShardPool, *error: Any) -> None:
        peaks.extend(result["peak"] for result in pool.map(facts_of_process, range(4)))
        shutdown(pool, *error)

    corpus = FrozenCorpus(write_three_shards, ["a.txt"], WORDPIECE | {"sample_characters": 10**6})
    with patch.object(ShardPool, "__exit__", measured):
        prepare(corpus, tmp_path, workers=2)
    assert max(peaks) < 600, peaks


@pytest.mark.parametrize("moment", ["hashed", "read"])
def test_a_text_that_changes_while_it_is_hashed_or_read_is_refused(
    tmp_path: Path, moment: str
) -> None:
    read_texts = running.Preparation.read_texts
    source_facts = prepare_module._source_facts

    def change() -> None:
        path = tmp_path / "data" / "a.jsonl.zst"
        path.write_bytes(path.read_bytes() * 2)

    def change_when_read(preparation: running.Preparation) -> CorpusCounts:
        change()
        return read_texts(preparation)

    def change_when_hashed(*arguments: Any) -> Any:
        facts = source_facts(*arguments)
        change()
        return facts

    place: tuple[Any, str, Any] = (running.Preparation, "read_texts", change_when_read)
    if moment == "hashed":
        place = (prepare_module, "_source_facts", change_when_hashed)
    with (
        patch.object(*place),
        pytest.raises(ValueError, match="changed while it was read; run the prepare stage again"),
    ):
        prepare(CORPORA["jsonl_zst"], tmp_path)
    assert not list((tmp_path / "cache" / "corpora").glob(".frozen-*.work"))


def test_a_kill_when_all_is_done_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = prepare(CORPORA["jsonl_zst"], tmp_path)
    work = folder.with_name(f".{folder.name}.work")
    work.mkdir()
    assert prepare(CORPORA["jsonl_zst"], tmp_path) == folder
    assert not work.exists()


class EndsOnce(CorpusStep):
    """Ends its process at the first document of the second shard, the first time."""

    name = "ends_once"

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def apply(
        self, documents: Iterable[Document], table: Arrays, report: StepReport
    ) -> Iterator[Document]:
        for document in documents:
            if document.shard == 1 and not Path(self.mark).exists():
                Path(self.mark).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield document


def test_what_is_finished_stays_when_a_worker_is_ended(tmp_path: Path) -> None:
    """As its message says, the same command goes on where it was."""
    steps = (Clean(), RepeatedLines(max_count=10**6), EndsOnce(str(tmp_path / "mark")))
    with patch.object(texts, "SHARD_CHARACTERS", 20_000):
        message = r"ended from outside.* goes on where it was; corpus\.workers=1 needs least"
        with pytest.raises(ValueError, match=message):
            prepare(CORPORA["several"], tmp_path, steps=steps, workers=2)
        (work,) = (tmp_path / "cache" / "corpora").glob(".frozen-*.work")
        assert (work / "texts.json").exists()
        prepare(CORPORA["several"], tmp_path, steps=steps, workers=2)
    assert not work.exists()


def test_a_process_that_may_start_no_others_works_alone() -> None:
    """As in a multiprocessing.Pool of somebody's program."""
    with get_context("spawn").Pool(1) as processes:
        assert processes.apply(squares) == [0, 1, 4]


def squares() -> list[int]:
    with ShardPool(None, workers=2) as pool:
        return list(pool.map(square, range(3)))


def square(_: object, task: int) -> int:
    return task * task
