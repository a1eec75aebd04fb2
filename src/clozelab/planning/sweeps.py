"""The jobs of an experiment's sweep, by configuration: seeds alone make no other shape.

What the runs so far say of an experiment's jobs: which need not run again, and how long like ones took here.

How many examples a task's files hold, and about how long they are; without a tokenizer.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from clozelab.datamodules.files import text_lines
from clozelab.launch.launcher import share_cores
from clozelab.launch.plan import Step
from clozelab.launch.sweep import LIKELY_SHARED
from clozelab.runs.find import AnyRun, Collected
from clozelab.runs.fingerprint import RESULTS_VERSIONS, SEED_KEYS, canonical
from clozelab.runs.record import JobName
from clozelab.terminal import key_of
from clozelab.training.host import host_facts


class Job(NamedTuple):
    """One job of a sweep: its words, and what it is found by."""

    words: tuple[str, ...]
    name: JobName


@dataclass(frozen=True)
class SweepPlan:
    """One stage's jobs: `configs` are composed configurations, `jobs` the repetitions of each over seeds."""

    verb: str
    configs: list[dict[str, Any]]
    jobs: list[list[Job]]
    at_once: int
    threads: int
    timed_at_once: int
    """Processes side by side in which speeds are measured here: one where the jobs run elsewhere."""
    num_seeds: int
    """Pre-training seeds."""

    @property
    def num_jobs(self) -> int:
        return sum(map(len, self.jobs))


class History(NamedTuple):
    """What runs so far say of a shape: `done` of its jobs, and what finished ones took on this machine, in seconds."""

    done: int = 0
    seconds: float | None = None


NO_HISTORY = History()
Histories = Callable[[Mapping[str, Any], Sequence[Job]], History]
"""(a configuration, its jobs) -> what runs so far tell of them."""


def sweep_plan(step: Step) -> SweepPlan:
    """Compose every job of a sweep that differs in more than its seeds."""
    sweep = step.sweep
    kinds = sweep.groups(lambda key: key not in SEED_KEYS)
    configs = [sweep.settings(repeated[0]) for repeated in kinds.values()]
    named = [
        [Job(words, JobName.of(config | _seeds(words))) for words in repeated]
        for config, repeated in zip(configs, kinds.values(), strict=True)
    ]
    launcher = sweep.master.hydra.launcher
    at_once, threads = share_cores(launcher.get("jobs_at_once", 1), sweep.master, len(sweep.jobs))
    seed = "pretrain_seed" if step.verb == "finetune" else "seed"
    num_seeds = len(sweep.groups(lambda key: key == seed))
    timed = at_once if sweep.runs_here else 1
    return SweepPlan(step.verb, configs, named, at_once, threads, timed, num_seeds)


def _seeds(words: Sequence[str]) -> dict[str, str]:
    return {key: word.partition("=")[2] for word in words if (key := key_of(word)) in SEED_KEYS}


ALIKE = {
    "pretrain": ("model", "architecture", "objective", "phases"),
    "finetune": ("epochs", "global_batch_size", "head", "learning_rate", "max_train_examples"),
}
"""Settings in which a run has to be equal to take as long."""
MACHINE = ("cpu", "cores", "gpus")
SHARED = ("shared", LIKELY_SHARED)


class Past:
    """Answers for one stage; callable as `Histories`.

    Args:
        step: the stage's sweep.
        collected: every run of the experiment at its scale.
    """

    def __init__(self, step: Step, collected: Collected) -> None:
        self.verb = step.verb
        self.runs = [run for run in _of(collected, step.verb) if run.is_complete]
        self._step = step
        self._shared: set[tuple[str, ...]] | None = None

    def __call__(self, config: Mapping[str, Any], jobs: Sequence[Job]) -> History:
        wanted = json.loads(json.dumps(canonical(OmegaConf.create(dict(config)))))
        named = [run for run in self.runs if _is_named_as(run, jobs)]
        names = {JobName.of(run.state["config_resolved"]) for run in named if self._is_one_of(run, wanted)}
        alike = [run for run in named if self._is_alike(run, wanted)]
        left = [job for job in jobs if job.name not in names]
        shared = sum(job.words in self.shared for job in left) if left and self.verb == "pretrain" else 0
        took = [float(run.state["seconds"]) for run in alike if _is_timed_here(run)]
        return History(len(jobs) - len(left) + shared, sum(took) / len(took) if took else None)

    @property
    def shared(self) -> set[tuple[str, ...]]:
        """Words of jobs for which a run of another experiment will be, or may be, taken."""
        if self._shared is None:
            self._shared = {job.overrides for job in self._step.sweep.planned() if job.status in SHARED}
        return self._shared

    def _is_one_of(self, run: AnyRun, wanted: Mapping[str, Any]) -> bool:
        """Whether it would be taken for a job of this configuration, its seeds aside."""
        if run.state.get("results_version") != RESULTS_VERSIONS[self.verb]:
            return False
        recorded = run.state["config_resolved"]
        keys = (recorded.keys() | wanted.keys()) - set(SEED_KEYS)
        return all(recorded.get(key) == wanted.get(key) for key in keys)

    def _is_alike(self, run: AnyRun, wanted: Mapping[str, Any]) -> bool:
        recorded = run.state["config_resolved"]
        return all(recorded.get(key) == wanted.get(key) for key in ALIKE[self.verb])


def _of(collected: Collected, verb: str) -> Iterable[AnyRun]:
    return collected.pretrain if verb == "pretrain" else collected.finetune


def _is_named_as(run: AnyRun, jobs: Sequence[Job]) -> bool:
    """Whether it is of the jobs' arm or row and task, with any seed."""
    return JobName.of(run.state["config_resolved"])[:2] == jobs[0].name[:2]


def _is_timed_here(run: AnyRun) -> bool:
    host, here = run.state.get("host") or {}, host_facts()["host"]
    is_same = all(host.get(key) == here[key] for key in MACHINE)
    return is_same and "shared" not in run.state and bool(run.state.get("seconds"))


SAMPLE_ROWS = 500


class Sample(NamedTuple):
    """Examples in a file, and their mean length; `words` of a tagged file's sentences, else 0."""

    examples: int
    characters: float
    words: float = 0.0


@cache
def sample_rows(path: Path, text_columns: tuple[str, ...], word_column: int | None) -> Sample | None:
    """What a task's file holds, by its first examples; None where the file is not there.

    Counts lines (questions of SQuAD's JSON): what the readers leave out is counted, too. With a `word_column` it is a
    tagged file, one word a line, and its sentences are counted.
    """
    if not path.is_file():
        return None
    try:
        if path.suffix == ".json":
            return _questions(path)
        lines = [line or "" for _, line in text_lines(path)]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if word_column is not None:
        return _sentences(lines, word_column)
    rows = [line for line in lines if line.strip()]
    separator = "," if path.suffix == ".csv" else "\t"
    sample = list(
        csv.reader(
            rows[: SAMPLE_ROWS + 1],
            delimiter=separator,
            quoting=csv.QUOTE_MINIMAL if separator == "," else csv.QUOTE_NONE,
        )
    )
    places = [sample[0].index(name) for name in text_columns if name in sample[0]] if sample else []
    texts = [[row[place] for place in places if place < len(row)] if places else row for row in sample[1:]]
    characters = [sum(len(text) for text in row) for row in texts]
    return Sample(max(1, len(rows) - 1), sum(characters) / max(1, len(characters)))


def _questions(path: Path) -> Sample:
    articles = json.loads(path.read_text(encoding="utf-8"))["data"]
    lengths = [
        len(paragraph["context"]) + len(question["question"])
        for article in articles for paragraph in article["paragraphs"] for question in paragraph["qas"]
    ]  # fmt: skip
    return Sample(len(lengths), sum(lengths) / max(1, len(lengths)))


def _sentences(lines: Sequence[str], word_column: int) -> Sample:
    sentences: list[list[int]] = [[]]
    for line in lines:
        cells = line.split()
        if not cells and sentences[-1]:
            sentences.append([])
        if len(cells) > word_column and line[0] != "#":
            sentences[-1].append(len(cells[word_column]) + 1)
    found = [words for words in sentences if words]
    number = max(1, len(found))
    return Sample(len(found), sum(map(sum, found)) / number, sum(map(len, found)) / number)
