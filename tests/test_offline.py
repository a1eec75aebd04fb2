"""Nothing asks another machine: not the suite, not the demo, and not W&B offline, whose service is
no Python.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runs.test_pretrain_run import overrides, write_text

ISOLATED = Path(__file__).with_name("isolated.py")
SRC = Path(__file__).parents[1] / "src"
DEMO = """\
arms: {mlm: {objective: mlm}}
columns: [sst2]
sweeps:
  pretrain: {seed: "1"}
  finetune: {pretrain_seed: "1", seed: "1"}
"""
SMALL = {
    "corpus.generator.num_documents": 200,
    "corpus.generator.train_examples": 60,
    "corpus.generator.validation_examples": 30,
    "corpus.generator.entropy_documents": 2,
    "tokenizer.vocab_size": 600,
    "pretrain.validation.instances": 20,
    "pretrain.validation.seq_length": 32,
    "pretrain.validation.interval_steps": 99,
    "pretrain.phases": ("[{seq_length: 32, steps: 6, global_batch_size: 4, micro_batch_size: 4}]"),
    "finetune.epochs": 1,
    "finetune.max_train_examples": 40,
    "trainer.progress_bar": "false",
}


def test_the_suite_has_no_network(no_network: list[str]) -> None:
    for attempt in (
        lambda: socket.create_connection(("192.0.2.1", 80), timeout=1),
        lambda: socket.getaddrinfo("example.org", 443),
        lambda: socket.socket().connect(("192.0.2.1", 80)),
    ):
        with pytest.raises(OSError, match="tests have no network"):
            attempt()
    assert no_network == ["192.0.2.1", "example.org", "192.0.2.1"]
    no_network.clear()
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()


def isolated(cwd: Path, *command: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The command's end, and the names that it has asked for."""
    without = ("WANDB_API_KEY", "WANDB_MODE", "WANDB_ERROR_REPORTING", "HF_HUB_OFFLINE")
    environment = {key: value for key, value in os.environ.items() if key not in without}
    environment |= {
        "PYTHONPATH": str(SRC),
        "CLOZELAB_CACHE": str(cwd / "cache"),
        "HOME": str(cwd),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(ISOLATED), *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )
    last = (done.stderr.strip().splitlines() or [""])[-1]
    if not last.startswith("asked: "):
        pytest.skip(f"no namespace without a network here: {last}")
    return done, json.loads(last.removeprefix("asked: "))


def test_whoever_asks_is_seen(tmp_path: Path) -> None:
    """The control of the next: also what swallows the refusal."""
    code = (
        "import socket, contextlib\nwith contextlib.suppress(OSError):"
        " socket.getaddrinfo('example.org', 443)"
    )
    done, asked = isolated(tmp_path, sys.executable, "-c", code)
    assert done.returncode == 0 and {name for name in asked if name.startswith("example.org")}


def test_a_tracked_pretraining_needs_no_network(tmp_path: Path) -> None:
    """W&B is offline by itself without a key, and looks nothing up; the long form below is a whole
    demo.
    """
    write_text(tmp_path)
    words = overrides(tmp_path, tmp_path / "runs/tracked", logger="wandb")
    command = [sys.executable, "-m", "clozelab", "pretrain", *words]
    done, asked = isolated(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert not asked
    assert list((tmp_path / "runs").rglob("offline-run-*")), "the control: W&B was there"


@pytest.mark.slow
def test_a_small_demo_needs_no_network(tmp_path: Path) -> None:
    """From text to the table with every tracker on: W&B is offline by itself without a key, and
    looks nothing up.
    """
    (tmp_path / "small").mkdir()
    (tmp_path / "small/paper.yaml").write_text(DEMO)
    words = [f"{key}={value}" for key, value in SMALL.items()]
    command = [sys.executable, "-m", "clozelab", "reproduce", "small", "scale=demo"]
    command += ["logger=wandb", *words]
    done, asked = isolated(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert not asked
    assert (tmp_path / "runs/small/demo/report/report.md").is_file()
    assert len(list((tmp_path / "runs").rglob("offline-run-*"))) >= 2  # the control: W&B was there
