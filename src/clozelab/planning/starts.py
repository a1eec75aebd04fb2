"""What a job takes besides its steps: its start and its end, measured by tiny jobs.

`python -m clozelab.planning.starts` runs them in a temporary folder, in the way a sweep runs its
jobs: a pre-training of four steps, a fine-tuning of two, one with many validations, and an
evaluation, as many side by side as jobs will run. All of their time counts as start-up, since the
model and the text are next to nothing. It is kept in the cache, unless the machine was busy.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from rich.console import Console

from clozelab.corpus.files import digest
from clozelab.launch.pool import ProcessPool
from clozelab.launch.processes import ForkServer, Job
from clozelab.planning.machine import BUSY_SHARE, is_busy_for
from clozelab.results.experiment import read_yaml
from clozelab.runs.code import code_of_results
from clozelab.runs.record import write_json
from clozelab.text.paths import CONF_DIR
from clozelab.training.host import host_facts
from clozelab.training.stopping import die_with_parent

STARTS_VERSION = 1  # raised when what is measured changes
WORKER = "clozelab.planning.starts"
CLOCK = "clozelab.planning.clock"
ANSWER = "answer: "
MAX_SECONDS = 180.0  # of all tiny jobs together
MOST_SIDE_BY_SIDE = 4  # more say nothing new
STAGES = ("pretrain", "finetune", "evaluate")
VALIDATIONS = 10  # more in one of two fine-tunings, whose difference is what a validation takes
# of the made-up text and tasks; sentences a document
NUM_WORDS = 80
NUM_DOCUMENTS = 60
NUM_SENTENCES = 10
NUM_EXAMPLES = 40
TINY_MODEL = (
    "model.num_hidden_layers=1",
    "model.hidden_size=16",
    "model.num_attention_heads=2",
    "model.intermediate_size=16",
)


@dataclass(frozen=True)
class Starts:
    """Seconds of a job of each stage besides its steps, validations and saved files."""

    server: float  # until the first job of a sweep can be forked, counted from the sweep's start
    pretrain: float
    finetune: float
    evaluate: float
    validation: float  # one validation of a fine-tuning, besides its forward passes
    is_measured: bool = False
    is_busy: bool = False  # the machine had other work meanwhile

    def of(self, stage: str) -> float:
        return float(getattr(self, stage))


SECONDS = [field.name for field in fields(Starts)][:5]


@cache
def constants() -> Mapping[str, Any]:
    """conf/planning.yaml: what is taken for granted."""
    return read_yaml(CONF_DIR / "planning.yaml")


def usual_starts() -> Starts:
    """Those of another machine, where none were measured on this one."""
    return Starts(**constants()["usual_starts"])


def measured_starts(
    trainer: Mapping[str, Any],
    cache_dir: Path,
    *,
    at_once: int,
    threads: int,
    forks: bool,
    measure: bool,
    anew: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Starts:
    """Start-ups on this machine, from the cache or measured now.

    They are the usual ones where neither is to be had.

    Args:
        trainer: a job's trainer settings.
        at_once, threads: how the jobs of a sweep run.
        forks: the sweep forks its jobs.
        measure, anew: as measured_speeds has them.
    """
    facts = host_facts()
    question = {
        "version": STARTS_VERSION,
        "code": code_of_results(),
        "torch": facts["versions"].get("torch"),
        "host": {key: facts["host"][key] for key in ("cpu", "cores", "gpus")},
    }
    question |= {
        "forks": forks,
        "accelerator": trainer["accelerator"],
        "precision": trainer["precision"],
        "at_once": min(at_once, MOST_SIDE_BY_SIDE),
        "threads": threads,
    }
    path = cache_dir / "speeds" / f"starts-{digest(question)[:16]}.json"
    if not (anew and measure):
        kept = _kept_starts(path)
        if kept is not None:
            return kept
    if not measure:
        return usual_starts()

    say("timing how jobs start")
    was_busy = is_busy_for(question["at_once"] * threads)
    measured = _ask_worker(question)
    if measured is None:
        return usual_starts()
    if was_busy or measured.is_busy:
        return replace(measured, is_busy=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {key: getattr(measured, key) for key in SECONDS} | {"question": question})
    return measured


def _kept_starts(path: Path) -> Starts | None:
    """Those of the cache; None where there are none, or damaged ones."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        seconds: dict[str, Any] = {key: float(saved[key]) for key in SECONDS}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Starts(**seconds, is_measured=True)


def _ask_worker(question: Mapping[str, Any]) -> Starts | None:
    """The answer of a process of its own; None where it failed or took too long."""
    threads = str(question["threads"])
    environment = os.environ | {"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads}
    command = [sys.executable, "-m", WORKER, json.dumps(question)]
    try:
        worker = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=MAX_SECONDS,
            check=True,
        )
        lines = [line for line in worker.stdout.splitlines() if line.startswith(ANSWER)]
        return Starts(**json.loads(lines[-1].removeprefix(ANSWER)))
    except (subprocess.SubprocessError, OSError, ValueError, IndexError, TypeError):
        return None


class Rehearsal:
    """The tiny jobs, in a folder that is thrown away."""

    def __init__(self, folder: Path, question: Mapping[str, Any]) -> None:
        self.folder = folder
        self.at_once = int(question["at_once"])
        self.words = [
            f"data_dir={folder}",
            f"cache_dir={folder}/cache",
            f"runs_dir={folder}/runs",
            "scale=dials",
            "logger=none",
            f"trainer.accelerator={question['accelerator']}",
            f"trainer.precision={question['precision']}",
        ]
        # of each job, the share of its wall time in which it had no core
        self.waited: list[float] = []
        self.server: ForkServer | None = None
        self.server_seconds = 0.0
        write_texts(folder)
        if question["forks"]:
            self._start_server({"OMP_NUM_THREADS": str(question["threads"])})

    def _start_server(self, environment: Mapping[str, str]) -> None:
        started = time.perf_counter()
        modules = ["clozelab.launch.preloaded", "clozelab.launch.plugins"]
        modules += [f"clozelab.stages.{stage}" for stage in STAGES]
        self.server = ForkServer(CLOCK, [*modules, CLOCK], environment)
        clock = self.folder / "server.clock"
        self.server.start([str(clock), "--version"], self.folder / "server.log").wait()
        wall = time.perf_counter() - started
        processor = float(clock.read_text(encoding="utf-8").split()[1])
        # It imports in one thread: where that waited for long, its processor time counts.
        if 0.0 < processor < (1.0 - BUSY_SHARE) * wall:
            self.server_seconds = processor
        else:
            self.server_seconds = wall

    def seconds(self, stage: str, *words: str) -> float:
        """Of one job of a stage, where as many run side by side as in a sweep.

        ValueError: one has failed.
        """
        jobs = [self._job(stage, words, seed) for seed in range(1, self.at_once + 1)]
        ProcessPool(
            jobs,
            at_once=self.at_once,
            grace_seconds=1.0,
            console=Console(file=io.StringIO()),
            server=self.server,
        ).run()
        for job in jobs:
            if job.state != "complete":
                raise ValueError(f"{stage}: {job.message}")
        return fmean(self._time_of(job) for job in jobs)

    def _job(self, stage: str, words: Sequence[str], seed: int) -> Job:
        """A job that can be forked or started; a forked one leaves a clock file of its name."""
        name = f"{stage}-{digest(list(words))[:8]}-{seed}"
        command_line = [
            stage,
            *self.words,
            *words,
            f"seed={seed}",
            f"run_dir={self.folder}/runs/{name}",
            "hydra.mode=RUN",
        ]
        command = [sys.executable, "-m", "clozelab", *command_line]
        job = Job(name, command, self.folder / f"{name}.log")
        job.words = [str(self.folder / f"{name}.clock"), *command_line]
        return job

    def _time_of(self, job: Job) -> float:
        """Wall time; where other work took its core away, and it says so, processor time."""
        clock = self.folder / f"{job.name}.clock"
        try:
            processor = float(clock.read_text(encoding="utf-8").split()[0])
        except OSError:  # a process of its own, with children perhaps
            return job.seconds
        waited = max(0.0, 1.0 - processor / job.seconds)
        self.waited.append(waited)
        if waited > BUSY_SHARE:
            return processor
        return job.seconds


def write_texts(folder: Path) -> None:
    """A small text, a small task in SST-2's files and a few minimal pairs, of random words."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnoprstu"))
    words = np.unique(["".join(rng.choice(letters, 4)) for _ in range(NUM_WORDS)])

    def sentence() -> str:
        return " ".join(rng.choice(words, 8))

    documents = []
    for _ in range(NUM_DOCUMENTS):
        sentences = [sentence() for _ in range(NUM_SENTENCES)]
        documents.append("\n".join(sentences))
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    (folder / "glue/SST-2").mkdir(parents=True)
    for name in ("train", "dev"):
        rows = [f"{sentence()}\t{number % 2}" for number in range(NUM_EXAMPLES)]
        text = "\n".join(["sentence\tlabel", *rows]) + "\n"
        (folder / f"glue/SST-2/{name}.tsv").write_text(text, encoding="utf-8")
    lines = []
    for _ in range(NUM_EXAMPLES):
        pair = {"sentence_good": sentence(), "sentence_bad": sentence(), "UID": "u"}
        lines.append(json.dumps(pair))
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def rehearse(question: Mapping[str, Any], folder: Path) -> Starts:
    """Run the tiny jobs. ValueError: one has failed."""
    jobs = Rehearsal(folder, question)
    pretraining = [
        "corpus=text",
        f"corpus.sources.0.path={folder}/text.txt",
        "corpus.validation_fraction=0.1",
        "tokenizer.vocab_size=200",
        "phases=[{seq_length: 32, steps: 4, global_batch_size: 8, micro_batch_size: 8}]",
        *TINY_MODEL,
        "objective=mlm",
        "keep_encoders=[]",
    ]
    # Prepares the corpus, which in a sweep is done before.
    jobs.seconds("pretrain", *pretraining, "arm=first")
    pretrain = jobs.seconds("pretrain", *pretraining, "arm=second")

    # The later jobs begin from the encoder of one of these.
    encoder = next(folder.glob("runs/pretrain-*/encoder"))
    finetuning = [
        "task=sst2",
        f"encoder={encoder}",
        "row=tiny",
        "epochs=1",
        "global_batch_size=2",
        "max_train_examples=40",
    ]
    finetune = jobs.seconds("finetune", *finetuning, "evaluations_per_epoch=1")
    evaluated_often = f"evaluations_per_epoch={1 + VALIDATIONS}"
    with_validations = jobs.seconds("finetune", *finetuning, evaluated_often)

    evaluate = jobs.seconds(
        "evaluate",
        "measure=minimal_pairs",
        "measure.data.files=pairs.jsonl",
        "measure.data.columns.field=null",
        f"encoder={encoder}",
        "row=tiny",
        "max_unknown_share=1.0",
    )
    return Starts(
        server=jobs.server_seconds,
        pretrain=pretrain,
        finetune=finetune,
        evaluate=evaluate,
        validation=max(0.0, (with_validations - finetune) / VALIDATIONS),
        is_measured=True,
        is_busy=bool(jobs.waited) and fmean(jobs.waited) > 2 * BUSY_SHARE,
    )


def main() -> int:
    """As a process: print the start-ups for the question of the command line.

    Returns the exit status.
    """
    die_with_parent()
    with tempfile.TemporaryDirectory(prefix="clozelab-starts-") as folder:
        starts = rehearse(json.loads(sys.argv[1]), Path(folder))
    print(f"{ANSWER}{json.dumps(asdict(starts))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
