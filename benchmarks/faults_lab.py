"""Tiny runs for `faults.py`: where they lie, how they are started, and when two of them are the
same.

Unusual: this process imports what a training needs and never trains. Each process of a run is a
fork of it that goes in by the console script's door, so that a kill costs one second and not ten.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"  # forks cannot take threads along
from interleaved import ROOT

sys.path.insert(0, str(ROOT))
from omegaconf import OmegaConf
from tests.composing import composed
from tests.runs.test_pretrain_run import overrides, rows, state, tensors, write_text

from clozelab import cli
from clozelab.config import Composed
from clozelab.results.rerun import is_same_state
from clozelab.runs.code import sources_of_results
from clozelab.training.checkpoints import LAST, load_file
from clozelab.training.host import host_facts
from clozelab.training.stopping import (
    FIRST_RANK,
    TERMINATED,
    begin_process,
    interrupt,
    taken_signals,
)

STEPS, PATIENCE_SECONDS = 40, 120.0
SETTINGS = {
    "phases": f"[{{seq_length: 16, steps: {STEPS}, global_batch_size: 8, micro_batch_size: 4}}]",
    "validation.interval_steps": 10,
    "validation.instances": 12,
    "checkpoint_interval_steps": 5,
    "position_growth": "none",
}
RANKS = {"trainer": "ddp", "trainer.accelerator": "cpu"}


class Row(NamedTuple):
    """One line of the table."""

    done: str
    must: str
    trials: int
    passed: int
    noticed: str = ""  # after how long, where that is what counts


class Lab:
    """Where runs lie, and their configurations; `scale` multiplies the number of trials."""

    def __init__(self, folder: Path, is_long: bool) -> None:
        self.folder, self.is_long = folder, is_long
        write_text(folder)
        here = partial(overrides, folder, folder / "runs" / "whole")
        sources_of_results(), host_facts()  # once: forks inherit what is known
        self.single, self.double = (
            composed("pretrain", here(**SETTINGS, **more)) for more in ({}, RANKS)
        )

    def count(self, short: int, long: int) -> int:
        return long if self.is_long else short

    def trial(
        self, name: str, is_double: bool = False, place: str = "runs", **changes: Any
    ) -> Trial:
        run_dir = self.folder / place / name
        usual = self.double if is_double else self.single
        config = changed(usual, changes | {"run_dir": str(run_dir)})
        return Trial(config, is_double, self.folder / f"{name}.said")

    def stopped(self, name: str, step: int, **changes: Any) -> Trial:
        """One that has been stopped after a step, with its two checkpoints."""
        trial = self.trial(name, **changes)
        expect(trial.train(stop_after_step=step) == TERMINATED, trial.said)
        return trial

    def is_whole(self, trial: Trial, other: str = "whole") -> bool:
        """Whether a run is complete, and is that of which nobody knows any trouble."""
        return is_same(trial.run_dir, self.folder / "runs" / other)


class Trial:
    """One run folder, and the processes that work on it."""

    def __init__(self, config: Composed, is_double: bool, log: Path) -> None:
        self.config, self.is_double, self.log = config, is_double, log
        self.run_dir = Path(config.values["run_dir"])

    @property
    def said(self) -> str:
        """By its last process."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def start(self, plant: Callable[[], object] = lambda: None, **changes: Any) -> int:
        """Fork, plant the fault, train; returns the process id (of the first rank)."""
        config = changed(self.config, changes)
        self.log.unlink(missing_ok=True)

        def work() -> int:
            if self.is_double:
                be_two_ranks()
            plant()
            begin_process()
            with taken_signals(interrupt):
                return cli._with_error_report(lambda: cli.job(config), "pretrain")

        return fork(work, self.log)

    def train(self, plant: Callable[[], object] = lambda: None, **changes: Any) -> int:
        """Its exit status; the negative number of a signal that killed it."""
        return end(self.start(plant, **changes))

    def lines(self) -> int:
        """Of metrics.csv: how far the work is."""
        path = self.run_dir / "metrics.csv"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def reaches(self, pid: int, lines: float) -> bool:
        """Wait for a process to have written so many more lines; False where it ended before."""
        before = self.lines()
        while self.lines() - before < lines:
            if has_ended(pid):
                return False
            time.sleep(0.002)
        return True


def changed(config: Composed, changes: dict[str, Any], is_new: bool = False) -> Composed:
    """The same configuration with other values; `is_new`: of keys that it may lack."""
    node = config.node.copy()
    for key, value in changes.items():
        OmegaConf.update(node, key, value, force_add=is_new)
    return Composed.from_node(node)


def fork(work: Callable[[], int], log: Path) -> int:
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    status = 70
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)
        status = work()
    except SystemExit as stop:  # a training that has saved and stopped
        print(stop)
        status = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(status)


def be_two_ranks() -> None:
    """This process is the first of two ranks, its child the second, as with Lightning."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"WORLD_SIZE": "2", "NODE_RANK": "0"}
    os.environ |= {FIRST_RANK: str(os.getpid()), "LOCAL_RANK": "0"}
    if os.fork() == 0:
        os.environ["LOCAL_RANK"] = "1"


def has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end(pid: int) -> int:
    """The exit status of a child; one that does not end is killed."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not has_ended(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def is_same(run: Path, other: Path) -> bool:
    """Whether two runs have the same curve, encoder, optimizer state and batches, to the bit."""
    if not (run / "run.json").exists() or state(run)["status"] != "complete":
        return False
    mine, theirs = (load_file(one / "checkpoints" / LAST) for one in (run, other))
    weights, expected = (
        (one / "encoder" / "model.safetensors").read_bytes() for one in (run, other)
    )
    batches = mine["batches_seen"] == theirs["batches_seen"]
    return (
        batches and rows(run) == rows(other) and weights == expected and is_same_state(mine, theirs)
    )


def at_call(owner: Any, name: str, number: int, act: Callable[[], object]) -> None:
    """Do something before the number-th call, from 0, of a function."""
    original, calls = getattr(owner, name), itertools.count()

    def noticed(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == number:
            act()
        return original(*args, **kwargs)

    setattr(owner, name, noticed)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def expect(is_so: bool, said: str) -> None:
    if not is_so:
        raise RuntimeError(f"a trial could not be made: {said[-2000:]}")


def is_close(run: Path, other: Path) -> bool:
    """Whether two complete runs read the same batches, and figures and weights are within 1e-5."""
    mine = {row[:2]: float(row[2]) for row in rows(run)}
    theirs = {row[:2]: float(row[2]) for row in rows(other)}
    near = [
        abs(mine.get(key, 1e9) - value) <= 1e-5 * max(1.0, abs(value))
        for key, value in theirs.items()
    ]
    weights, expected = tensors(run), tensors(other)
    near += [bool((weights[name] - value).abs().max() <= 1e-5) for name, value in expected.items()]
    same = [
        state(run)["facts"][key] == state(other)["facts"][key] for key in ("batches_seen", "tokens")
    ]
    return mine.keys() == theirs.keys() and all(near + same)
