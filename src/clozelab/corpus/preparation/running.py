"""The passes of a preparation one after another, each from where a killed one left off."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from clozelab.corpus.files import CorpusCounts, Shard
from clozelab.corpus.preparation import passes
from clozelab.corpus.preparation.passes import TOKENS, PassTask, Work, pass_name
from clozelab.corpus.preparation.pool import ShardPool
from clozelab.corpus.preparation.settled import Settled, settle
from clozelab.corpus.preparation.shard_files import SurveyFiles, read_facts, write_file
from clozelab.corpus.preparation.texts import TextShard, cut_shards
from clozelab.corpus.steps.step import SurveyStep, TableStep
from clozelab.corpus.tokenizer_settings import TokenizerSettings
from clozelab.corpus.tokenizers import Tokenizer
from clozelab.files.atomic import atomic_write_lines
from clozelab.text.plain import PlainMapping, read_json

log = logging.getLogger(__name__)

LINE_SECONDS = 20  # between two lines of the log, where there is no terminal


def begin_work(folder: Path, key: PlainMapping) -> None:
    """Make the folder of a preparation, or leave a killed one's as it is.

    It is only left if it was made for the same `key`, a JSON value.
    """
    path = folder / "key.json"
    with suppress(OSError, ValueError):
        if read_json(path) == key:
            log.info("going on with a preparation that was stopped")
            return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(path, key)


def write_json(path: Path, value: PlainMapping) -> None:
    """Write a JSON file, whole or not at all."""
    atomic_write_lines(path, [json.dumps(value)])


@dataclass
class Preparation:
    """A preparation at work: its pool of processes, and how much text there is."""

    work: Work
    pool: ShardPool
    files: Sequence[Shard]
    num_shards: int = 0

    def read_texts(self) -> CorpusCounts:
        """Cut the files into shards, and take each through the first steps; counts the rows."""
        path = self.work.folder / "texts.json"
        self._write_tables(0)
        if not path.exists():
            counts = CorpusCounts()
            with self._progress("reading") as advance:
                shards = self._unfinished_texts(counts, advance)
                for num_bytes in self.pool.map(passes.first_pass, shards):
                    advance(num_bytes)
            write_json(path, {"num_shards": self.num_shards, "counts": vars(counts)})
        facts = read_json(path)
        self.num_shards = facts["num_shards"]
        counts = CorpusCounts(**facts["counts"])
        counts.bad = Counter(counts.bad)
        counts.dropped = Counter(counts.dropped)
        counts.removed = Counter(counts.removed)
        return counts

    def _unfinished_texts(
        self, counts: CorpusCounts, advance: Callable[[int], None]
    ) -> Iterator[TextShard]:
        """The shards of texts that have no file yet."""
        for shard in cut_shards(self.files, counts):
            self.num_shards = shard.number + 1
            path = self.work.shard_file(pass_name(0), shard.number)
            if path.exists() and read_facts(path)["digest"] == shard.digest():
                advance(shard.num_bytes)
            else:
                yield shard

    def take_steps(self) -> None:
        """Take all shards through the steps that have to know all documents, and those behind."""
        if not self.num_shards:
            return  # no text, which is refused when all is counted
        for number in range(1, len(self.work.passes)):
            self._write_tables(number)
            tasks = [PassTask(number, shard) for shard in self._unfinished(pass_name(number))]
            first_step = self.work.steps[self.work.passes[number][0]]
            with self._progress(first_step.name) as advance:
                for num_bytes in self.pool.map(passes.later_pass, tasks):
                    advance(num_bytes)

    def _write_tables(self, pass_number: int) -> None:
        """Settle the tables of a pass's steps."""
        for number in self.work.passes[pass_number]:
            step = self.work.steps[number]
            path = self.work.table_file(number)
            if isinstance(step, TableStep) and not path.exists():
                surveys = SurveyFiles([])
                if isinstance(step, SurveyStep):
                    surveys = SurveyFiles(self._shard_files(pass_name(pass_number - 1)))
                write_file(path, step.settle(surveys), {})

    def settle(self, validation_fraction: float, sample_characters: float) -> Settled:
        """Settle what is a copy, what is held out, and what a vocabulary is learnt from."""
        path = self.work.settled_file
        if not path.exists():
            surveys = self._shard_files(self.work.last_pass)
            settle(surveys, validation_fraction, sample_characters).write(path)
        return self.work.settled

    def write_tokenizer(self, settings: TokenizerSettings, given: Tokenizer | None) -> Tokenizer:
        """Write the tokenizer's files, of the one that is given or learnt."""
        folder = self.work.tokenizer_folder
        if not folder.exists():
            tokenizer = given
            if tokenizer is None:
                blocks = self.pool.map(passes.sample_blocks, range(self.num_shards))
                tokenizer = settings.learn(chain.from_iterable(blocks))
            temporary = folder.with_name("tokenizer.tmp")
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            for name, content in tokenizer.files().items():
                (temporary / name).write_bytes(content)
            temporary.rename(folder)
            vars(self.work)["tokenizer"] = tokenizer  # need not be read in this process
        return self.work.tokenizer

    def tokenise(self) -> Iterator[Path]:
        """Tokenise all shards; yields the file of each in order, while the next are worked at."""
        unfinished = self._unfinished(TOKENS)
        with self._progress("tokenising") as advance:
            results = self.pool.map(passes.tokenise, unfinished)
            waited_for = set(unfinished)
            for shard, path in enumerate(self.token_files()):
                if shard in waited_for:
                    advance(next(results))
                yield path

    def token_files(self) -> list[Path]:
        """The files of all shards' tokens."""
        return self._shard_files(TOKENS)

    def _shard_files(self, name: str) -> list[Path]:
        return [self.work.shard_file(name, shard) for shard in range(self.num_shards)]

    def _unfinished(self, name: str) -> list[int]:
        """The shards that a pass has not finished.

        A later pass deletes what it came from, so its file says that all before it is finished.
        """
        names = [*map(pass_name, range(len(self.work.passes))), TOKENS]
        finished = set[str]()
        for later in names[names.index(name) :]:
            finished.update(path.name for path in (self.work.folder / later).glob("*.npz"))
        paths = self._shard_files(name)
        return [shard for shard, path in enumerate(paths) if path.name not in finished]

    @contextmanager
    def _progress(self, description: str) -> Iterator[Callable[[int], None]]:
        """A progress bar over the bytes on disk, to be told of those that are done.

        Where nobody watches a terminal, a line of the log says how far it is.
        """
        console = Console(stderr=True)
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        num_bytes = sum(file.num_bytes for file in self.files)
        task = progress.add_task(description, total=num_bytes)
        last_line = time.monotonic()

        def advance(num_done: int) -> None:
            nonlocal last_line
            progress.advance(task, num_done)
            if not console.is_terminal and time.monotonic() - last_line > LINE_SECONDS:
                last_line = time.monotonic()
                done = progress.tasks[0].completed
                log.info("%s: %.0f of %.0f MB", description, done / 1e6, num_bytes / 1e6)

        with progress:
            yield advance
            progress.update(task, completed=num_bytes)
