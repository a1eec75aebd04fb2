"""Faults of what a run waits for outside of itself, for `faults.py`: a tracker's server, and a real
Slurm.

Each row says how soon the fault was noticed: seconds until a line for the user said so. A real
MLflow server is tried where MLFLOW_SERVER names the `mlflow` that starts one (from an environment
of its own: the whole package asks for other versions than ours), and Slurm where `sinfo` answers.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from tests.runs import test_killed_trackers as killed_trackers
from tests.runs.test_pretrain_run import overrides, state
from tests.runs.test_stops import children

from clozelab.assembly import factory
from clozelab.modules.pretraining import PretrainingModule
from clozelab.training.background import BackgroundLogger
from clozelab.training.catching_up import unsent
from clozelab.training.stopping import HUNG, NOTICE_SECONDS, die_with_parent
from faults_lab import (
    SETTINGS,
    Lab,
    Row,
    Trial,
    at_call,
    changed,
    die,
    end,
    expect,
    fork,
    has_ended,
    is_same,
)
from interleaved import ROOT

NOTICED_SECONDS = 60.0  # at most
TRACKER_MUST = (
    "the run ends as if nothing was; what is missing is said, and the command that sends it"
)
SLURM_MUST = "the job is named as lost, the same command goes on to the same bits"
SAID = ("goes on without it", "is missing", "did not take something")


# Trackers


class WebTracker(Logger):
    """Posts every call to a server of this machine, as trackers do."""

    name, version = "web", ""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        body = json.dumps([step, sorted(metrics)]).encode()
        urllib.request.urlopen(f"http://127.0.0.1:{self.port}", body, timeout=2).read()

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...


def serve(port: int, log: Path) -> int:
    """A tracker's server: one line of `log` for each request; it ends with its parent."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with log.open("ab") as stream:
                stream.write(body + b"\n")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    die_with_parent(signal.SIGKILL)
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
    return 0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def answers(port: int, path: str = "") -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=1).read()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def noticed_after(trial: Trial, began: float, pid: int) -> float:
    """Seconds until a run's log says that its tracker is away; infinite where it never does."""
    while not any(words in trial.said for words in SAID):
        if has_ended(pid) and not any(words in trial.said for words in SAID):
            return float("inf")
        time.sleep(0.01)
    return time.monotonic() - began


def with_tracker(lab: Lab, name: str, port: int) -> tuple[Trial, Callable[[], None]]:
    """A run whose configuration has a tracker, and what plants ours in its place."""
    trial = lab.trial(name)
    add_logger(
        trial, "web", {"_target_": "lightning.pytorch.loggers.CSVLogger", "save_dir": "unused"}
    )

    def plant() -> None:
        factory.build_trackers = lambda *_: {"web": WebTracker(port)}

    return trial, plant


def add_logger(trial: Trial, label: str, node: dict[str, Any]) -> None:
    trial.config = changed(trial.config, {f"logger.{label}": node}, is_new=True)


def trackers(lab: Lab) -> Iterator[Row]:
    """A tracker's server that works, is down at the start, is killed, or stops answering."""
    log = lab.folder / "served"
    port = free_port()
    server = fork(partial(serve, port, log), lab.folder / "server.said")
    expect(wait_until(lambda: answers(port), 20), "no server")
    trial, plant = with_tracker(lab, "tracked", port)
    is_right = trial.train(plant) == 0 and lab.is_whole(trial) and not unsent(trial.run_dir)
    with (trial.run_dir / "metrics.csv").open() as lines:
        steps = {line.partition(",")[0] for line in lines} - {"step"}
    sent = {str(json.loads(line)[0]) for line in log.read_text().splitlines()}
    os.kill(server, signal.SIGKILL)
    end(server)
    yield Row(
        "control: a tracker that works", "it has every step", 1, int(is_right and steps <= sent)
    )

    trial, plant = with_tracker(lab, "tracker-down", free_port())
    began = time.monotonic()
    yield judged(lab, trial, "a tracker's server is down at the start", trial.start(plant), began)

    for number, words in (
        (signal.SIGKILL, "is killed in training"),
        (signal.SIGSTOP, "stops answering in training"),
    ):
        port = free_port()
        server = fork(partial(serve, port, log), lab.folder / "server.said")
        expect(wait_until(partial(answers, port), 20), "no server")
        trial, plant = with_tracker(lab, f"tracker-{number}", port)
        pid = trial.start(plant)
        expect(trial.reaches(pid, 60), trial.said)
        os.kill(server, number)
        row = judged(lab, trial, f"a tracker's server {words}", pid, time.monotonic())
        os.kill(server, signal.SIGKILL)
        end(server)
        yield row
    yield mlflow(lab)
    yield wandb(lab)
    yield from killed_with_trackers(lab)


def wandb(lab: Lab) -> Row:
    """W&B, online, where its server takes connections and answers none."""
    trial = lab.trial("wandb")
    node = {"project": "faults", "entity": None, "mode": "online", "_partial_": True}
    add_logger(trial, "wandb", node | {"_target_": "clozelab.training.tracking.build_wandb_logger"})
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen(64)
        url = f"http://127.0.0.1:{hole.getsockname()[1]}"
        address = {"WANDB_API_KEY": 40 * "0", "WANDB_BASE_URL": url}
        began = time.monotonic()
        pid = trial.start(lambda: os.environ.update(address))
        return judged(lab, trial, "W&B's server takes connections and answers none", pid, began)


def killed_with_trackers(lab: Lab) -> Iterator[Row]:
    """W&B's files, TensorBoard's and Lightning's table after kills, against metrics.csv."""
    moments = {
        "before the first save": (PretrainingModule, "training_step", 6),
        "between two saves": (PretrainingModule, "training_step", 34),
        "in a validation": (PretrainingModule, "validation_step", 2),
    }
    for name, moment in moments.items():
        trial = with_local_trackers(lab, name)
        expect(trial.train(partial(at_call, *moment, die)) == -signal.SIGKILL, trial.said)
        is_right = trial.train() == 0 and lab.is_whole(trial) and not unsent(trial.run_dir)
        # Of three trackers, how many hold every number; the two that can, once.
        passed = tracker_faults(trial.run_dir) == (0, 0)
        must = "W&B, TensorBoard and csv hold every number of metrics.csv, the last two once"
        yield Row(f"kill -9 with trackers, {name}", must, 1, int(is_right and passed))

    def no_catching_up() -> None:
        logger: Any = BackgroundLogger
        logger.go_on_after = lambda *_: None

    trial = with_local_trackers(lab, "control")
    kill = partial(at_call, *moments["between two saves"], die)
    expect(trial.train(kill) == -signal.SIGKILL, trial.said)
    expect(trial.train(no_catching_up) == 0, trial.said)
    missing, doubled = tracker_faults(trial.run_dir)
    done = "control: a tracker is not told what a killed start has lost"
    yield Row(done, "the comparison notices", 1, int(missing > 0 and doubled > 0))


def with_local_trackers(lab: Lab, name: str) -> Trial:
    trial = lab.trial(f"trackers-{name.replace(' ', '-')}")
    place = "clozelab.training.tracking.build_"
    node = {"_partial_": True, "_target_": f"{place}wandb_logger", "project": "faults"}
    add_logger(trial, "wandb", node | {"entity": None, "mode": "offline"})
    node = {"_partial_": True, "_target_": f"{place}tensorboard_logger", "flush_seconds": 30}
    add_logger(trial, "tensorboard", node)
    node = {"_target_": "lightning.pytorch.loggers.CSVLogger", "save_dir": str(trial.run_dir)}
    add_logger(trial, "csv", node | {"name": "csv", "version": ""})
    return trial


def tracker_faults(run_dir: Path) -> tuple[int, int]:
    """(numbers of metrics.csv that a tracker lacks, those that TensorBoard or csv have twice)."""
    expected = killed_trackers.figures(run_dir)
    wandb = killed_trackers.in_wandb(run_dir)
    others = [killed_trackers.in_tensorboard(run_dir), killed_trackers.in_table(run_dir)]
    missing = doubled = 0
    for place, (value,) in expected.items():
        for values in (wandb, *others):
            missing += not any(math.isclose(each, value, rel_tol=1e-6) for each in values[place])
        doubled += sum(len(values[place]) > 1 for values in others)
    return missing, doubled


def judged(lab: Lab, trial: Trial, done: str, pid: int, began: float) -> Row:
    seconds = noticed_after(trial, began, pid)
    is_whole = end(pid) == 0 and lab.is_whole(trial)
    is_said = f"clozelab track {trial.run_dir}" in trial.said and bool(unsent(trial.run_dir))
    passed = is_whole and is_said and seconds < NOTICED_SECONDS
    return Row(done, TRACKER_MUST, 1, int(passed), f"{seconds:.1f} s")


def mlflow(lab: Lab) -> Row:
    """A real MLflow server, killed in training."""
    done = "the MLflow server is killed in training"
    executable = os.environ.get("MLFLOW_SERVER", "")
    if not executable:
        return Row(f"{done} (not tried: MLFLOW_SERVER names no mlflow)", TRACKER_MUST, 0, 0)
    port, store = free_port(), lab.folder / "mlflow"
    store.mkdir()
    uri = f"http://127.0.0.1:{port}"
    node = {
        "_target_": "clozelab.training.tracking.build_mlflow_logger",
        "_partial_": True,
        "experiment_name": "faults",
        "run_name": "faults",
        "tracking_uri": uri,
        "lock": str(store / "lock"),
    }
    trial = lab.trial("mlflow")
    add_logger(trial, "mlflow", node)
    with mlflow_server(executable, port, store) as server:
        pid = trial.start()
        expect(trial.reaches(pid, 60), trial.said)
        os.killpg(server.pid, signal.SIGKILL)
        began = time.monotonic()
        return judged(lab, trial, done, pid, began)


@contextmanager
def mlflow_server(executable: str, port: int, store: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = [executable, "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{store}/mlflow.db"]
    words += ["--artifacts-destination", str(store)]
    environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
    environment.pop("PYTHONPATH", None)
    with (store / "server.log").open("wb") as log:
        server = subprocess.Popen(
            words, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        expect(wait_until(lambda: answers(port, "health"), 120), (store / "server.log").read_text())
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


# Workers


def silence(lab: Lab) -> Iterator[Row]:
    """A data worker that is there and never answers, as on a disk of a machine that is gone."""
    hang: dict[str, Any] = {"trainer.num_workers": 1, "trainer.hang_seconds": NOTICE_SECONDS + 5}
    trial = lab.trial("silent-worker", **hang)
    pid = trial.start()
    expect(trial.reaches(pid, 60), trial.said)
    (worker,) = children(pid)
    os.kill(worker, signal.SIGSTOP)
    began = time.monotonic()
    is_seen = wait_until(lambda: "nothing has moved" in trial.said, 2 * NOTICED_SECONDS)
    seconds = time.monotonic() - began
    is_whole = end(pid) == HUNG and trial.train() == 0 and lab.is_whole(trial)
    must = "it is said; trainer.hang_seconds ends it, and the same command goes on to the same bits"
    passed = is_seen and is_whole and seconds < NOTICED_SECONDS
    yield Row("a data worker stops answering", must, 1, int(passed), f"{seconds:.1f} s")


# Slurm


def slurm(lab: Lab) -> Iterator[Row]:
    """All processes of a job are killed, as without memory, on the Slurm of this machine."""
    done = "all processes of a Slurm job killed with -9"
    asked = ["sinfo", "-h"]
    if shutil.which("sinfo") is None or subprocess.run(asked, capture_output=True).returncode:
        yield Row(f"{done} (not tried: no Slurm answers here)", SLURM_MUST, 0, 0)
        return
    runs, run_dir = lab.folder / "slurm", lab.folder / "slurm" / "run"
    words = overrides(lab.folder, run_dir, **SETTINGS, runs_dir=runs, stop_after_step="null")
    more = ["hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1"]
    more += ["hydra.launcher.poll_seconds=5"]
    command = [sys.executable, "-m", "clozelab", "pretrain", "-m", *words, *more]
    launcher = launch(command, lab.folder / "slurm.said")
    seen = wait_until(
        lambda: (run_dir / "checkpoints" / "last.ckpt").exists() or launcher.poll() is not None, 120
    )
    text = (lab.folder / "slurm.said").read_text()
    expect(seen and launcher.poll() is None, text)
    killed = kill_job(run_dir)
    began = time.monotonic()
    wait_until(lambda: launcher.poll() is not None, 120)
    seconds = time.monotonic() - began
    text = (lab.folder / "slurm.said").read_text()
    expect(launcher.poll() is not None, text)
    is_named = re.search(r"job \d+ is lost", text) is not None and "sacct" not in text
    again = launch(command, lab.folder / "slurm-again.said")
    wait_until(lambda: again.poll() is not None, 240)
    is_whole = again.poll() == 0 and is_same(run_dir, lab.folder / "runs" / "whole")
    passed = killed and is_named and is_whole and seconds < NOTICED_SECONDS
    passed &= state(run_dir)["sessions"] == 2
    yield Row(done, SLURM_MUST, 1, int(passed), f"{seconds:.1f} s")


def launch(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    with log.open("wb") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )


def kill_job(run_dir: Path) -> bool:
    """Kill what trains in a folder, and submitit's worker above it; False where there is none."""
    own = [f"run_dir={run_dir}".encode(), b"hydra.mode=RUN"]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes()
            if not all(word in words for word in own):
                continue
            child = int(path.parent.name)
            worker = int(path.with_name("stat").read_text().rpartition(")")[2].split()[1])
            for pid in (worker, child):
                os.kill(pid, signal.SIGKILL)
            return True
    return False
