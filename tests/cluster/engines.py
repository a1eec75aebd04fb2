"""Real engines on this machine, small sweeps for them, and how their jobs are killed."""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[2]
ONE_NODE_SLURM = Path(__file__).with_name("one_node_slurm.sh")
PATIENCE_SECONDS = 900.0


@dataclass(frozen=True)
class Engine:
    """A running engine: the words and the environment of a sweep that it takes."""

    name: str
    words: tuple[str, ...]
    environment: dict[str, str]


@contextmanager
def slurm_engine(folder: Path) -> Iterator[Engine]:
    """A Slurm of one node, which ends with this block."""
    ports = {"CONTROLLER_PORT": free_port(), "NODE_PORT": free_port()}
    start = subprocess.run(
        [ONE_NODE_SLURM, "start", folder], capture_output=True, text=True, env=os.environ | ports
    )
    try:
        assert start.returncode == 0, start.stderr
        words = ("hydra/launcher=slurm", "poll_seconds=1", "cpus_per_task=1", "grace_seconds=20")
        name, _, file = start.stdout.strip().removeprefix("export ").partition("=")
        yield Engine("slurm", launcher_words(words), {name: file})
    finally:
        subprocess.run([ONE_NODE_SLURM, "stop", folder], check=True)


@contextmanager
def ray_engine(folder: Path) -> Iterator[tuple[Engine, subprocess.Popen[bytes]]]:
    """A Ray of two nodes with a token, and the process of its head; both end with this block."""
    environment = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        # After so long without an answer a head is lost; Ray's own patience is a minute.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    }
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    address = f"127.0.0.1:{port}"
    # A path of Ray's sockets has 107 characters at most, which a folder of a test may exceed.
    sockets = Path(f"/tmp/ray-{secrets.token_hex(4)}")
    head = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={sockets}"]
    nodes = []
    try:
        for name, words in (("head", head), ("node", [f"--address={address}"])):
            log = folder / f"{name}.log"
            nodes.append(start_ray(words, log, environment))
            wait_for_node(nodes[-1], log)
        words = ("hydra/launcher=ray", f"address={address}", "grace_seconds=20")
        yield Engine("ray", launcher_words(words), environment), nodes[0]
    finally:
        for node in reversed(nodes):
            end_node(node)
        shutil.rmtree(sockets, ignore_errors=True)


def free_port() -> str:
    """A port of loopback that nothing listens on now, below those that the system gives away."""
    for port in random.sample(range(20000, 30000), 100):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return str(port)
    raise OSError("no port is free")


def start_ray(
    words: Sequence[str], log: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a node of one core in a group of its own, with its output in a log."""
    common = ["--num-cpus=1", "--node-ip-address=127.0.0.1", "--object-store-memory=80000000"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *common, *words]
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | environment,
            start_new_session=True,
        )


def wait_for_node(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a Ray node has started; a node that ended instead fails at once, with its log."""

    def has_started() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")
        return b"runtime started" in log.read_bytes()

    wait_until(has_started, f"the Ray node of {log}")


def end_node(process: subprocess.Popen[bytes]) -> None:
    """End a Ray node and all that it has started, some of it in groups of their own."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    kill_session(process.pid)
    process.wait()


def kill_session(pid: int) -> None:
    """Kill -9 every process of the session that a process has begun."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            session = int(path.read_text().rpartition(")")[2].split()[3])
            if session == pid:
                os.kill(int(path.parent.name), signal.SIGKILL)


def launcher_words(words: Sequence[str]) -> tuple[str, ...]:
    return (words[0], *(f"hydra.launcher.{word}" for word in words[1:]))


# Sweeps

RUN = "adhoc/demo/pretrain/mlm_nsp/seed-1"
"""The folder of the first run of `pretraining`."""
PAPER = """\
title: Small, on a cluster
columns:
  - {name: SST-2, task: sst2, metric: validation/accuracy}
  - {name: One document, from: evaluate, task: pairs_document, metric: validation/accuracy}
arms: {mlm: {objective: mlm}, ltr: {objective: ltr}}
rows:
  - {row: mlm, arm: mlm, floor: random}
  - {row: ltr, arm: ltr, floor: random}
  - {row: random, arm: null}
claims:
  - {text: both sides help, compare: [mlm, ltr, SST-2], direction: higher}
  - {text: pre-training helps, compare: [mlm, random, One document], direction: higher}
"""
MODEL = (
    "model.hidden_size=16",
    "model.num_hidden_layers=1",
    "model.num_attention_heads=2",
    "model.intermediate_size=32",
    "model.max_position_embeddings=64",
    "validation.interval_steps=99999",
    "validation.instances=20",
    "validation.seq_length=16",
    "checkpoint_interval_steps=20",
)
COMMON = (
    "trainer.precision=32-true",
    "trainer.threads=1",
    "trainer.log_interval_steps=1",
    "trainer.progress_bar=false",
)
CORPUS = ("corpus=text", "corpus.sources.0.path=text.txt", "corpus.validation_fraction=0.3")


def phases(steps: int) -> str:
    return f"phases=[{{seq_length: 16, steps: {steps}, global_batch_size: 8, micro_batch_size: 4}}]"


def pretraining(*words: str, steps: int = 400) -> list[str]:
    """A sweep of two pre-trainings, unless `words` say something else."""
    shape = [*CORPUS, "tokenizer.vocab_size=60", *MODEL, *COMMON, phases(steps)]
    return ["pretrain", "-m", *shape, *(words or ["seed=1,2"])]


def write_data(folder: Path) -> None:
    """A small text, a task of sentences in it, and an experiment over both."""
    draw = random.Random(0)
    words = [first + second for first, second in product("bcdfg", "aeiou")]
    sentences = [" ".join(draw.choices(words, k=7)) for _ in range(60 * 6)]
    documents = ["\n".join(sentences[start : start + 6]) for start in range(0, 360, 6)]
    (folder / "text.txt").write_text("\n\n".join(documents))
    task = folder / "glue/SST-2"
    task.mkdir(parents=True)
    for name, part in (("train", sentences[:120]), ("dev", sentences[120:160])):
        rows = [f"{line}\t{number % 2}" for number, line in enumerate(part)]
        (task / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    (folder / "small").mkdir()
    (folder / "small/paper.yaml").write_text(PAPER)


class Place:
    """A folder of runs, and what is started there; `engine` None is this machine alone."""

    def __init__(self, data: Path, runs: Path, engine: Engine | None) -> None:
        self.data = data
        self.runs = runs
        self.engine = engine

    def command(self, *words: str) -> list[str]:
        """The command line of a verb whose runs lie here."""
        # What prepares is to prepare; others may read what is prepared already.
        cache = self.data / "cache"
        if words[0] in ("prepare", "reproduce"):
            cache = self.runs / "cache"
        places = [f"data_dir={self.data}", f"cache_dir={cache}", f"runs_dir={self.runs}"]
        launcher = self.engine.words if self.engine else ()
        return [sys.executable, "-m", "clozelab", *words, *places, *launcher]

    def environment(self) -> dict[str, str]:
        own = {"PYTHONPATH": f"{ROOT}/src", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        own |= {"CLOZELAB_SKIP_DOCTOR": "1"}
        if self.engine:
            own |= self.engine.environment
        return os.environ | own

    def start(self, *words: str) -> subprocess.Popen[str]:
        self.runs.mkdir(parents=True, exist_ok=True)
        return subprocess.Popen(
            self.command(*words),
            cwd=self.data,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(),
        )

    def status(self) -> str:
        """What `clozelab status` prints of the runs here."""
        words = [sys.executable, "-m", "clozelab", "status", f"runs_dir={self.runs}"]
        return subprocess.run(
            words, env=self.environment(), capture_output=True, text=True, check=True
        ).stdout

    def run(self, *words: str, status: int = 0) -> str:
        return outcome(self.start(*words), status)

    def start_to_checkpoint(self, *words: str) -> subprocess.Popen[str]:
        """Start a sweep, and wait until its first run has saved."""
        launcher = self.start(*words)
        wait_until((self.runs / RUN / "checkpoints/last.ckpt").exists, "a checkpoint")
        return launcher

    def weights(self) -> dict[str, str]:
        """The checksum of the first run's encoder."""
        sums = checksums(self.runs / RUN, "encoder/model.safetensors")
        assert sums, "no encoder"
        return sums


def outcome(process: subprocess.Popen[str], status: int) -> str:
    """What a command has said by its end, which has this exit status."""
    text = process.communicate(timeout=1800)[1]
    assert process.returncode == status, text
    return text


def command(slurm: Engine, *words: str) -> str:
    """What a command of Slurm's prints."""
    environment = os.environ | slurm.environment
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout


def jobs_of(slurm: Engine) -> list[str]:
    """The numbers of the jobs that wait or run."""
    return command(slurm, "squeue", "--noheader", "--format=%A").split()


def wait_until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"{what} never came"
        time.sleep(0.05)


def kill_job(data: Path, verb: str) -> bool:
    """Kill -9 what works on a job of a verb, and the engine's worker above it; False: nothing."""
    own = (b"\0clozelab\0" + verb.encode(), f"data_dir={data}".encode(), b"hydra.mode=RUN")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes()
            if all(word in words for word in own):
                child = int(path.parent.name)
                status = path.with_name("stat").read_text()
                worker = int(status.rpartition(")")[2].split()[1])
                for process in (worker, child):
                    os.kill(process, signal.SIGKILL)
                return True
    return False


def checksums(folder: Path, *names: str) -> dict[str, str]:
    """Place below a folder -> SHA-256 of each file of these names."""
    sums = {}
    for name in names:
        for path in sorted(folder.rglob(name)):
            place = str(path.relative_to(folder))
            sums[place] = hashlib.sha256(path.read_bytes()).hexdigest()
    return sums
