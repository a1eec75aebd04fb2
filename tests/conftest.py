"""Fixtures that every part of the tests may use."""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import signal
import socket
import string
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import durations, forked
from tests.screens import Screens

from clozelab.corpus.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
from clozelab.models.config import EncoderConfig
from clozelab.runs.identity import RESULTS_VERSIONS
from clozelab.runs.older_scores import older_metric
from clozelab.runs.record import Score, read_record

# Sweeps of the tests are to be run, not to be looked at first; what tests the pre-flight takes it
# away again.
os.environ.setdefault("CLOZELAB_SKIP_DOCTOR", "1")
OWN = ("", "localhost", "0.0.0.0", "::", "::1", socket.gethostname())
asked: list[str] = []
"""Machines elsewhere that a test has asked for: the suite needs no network, and gets none."""


def only_here(function: Callable[..., Any], place: Callable[..., Any]) -> Callable[..., Any]:
    """A function of sockets that refuses any other machine; `place` finds the host among its
    arguments.
    """

    def guarded(*arguments: Any, **options: Any) -> Any:
        host = place(*arguments, **options)
        host = host.decode() if isinstance(host, bytes) else host
        if isinstance(host, str) and host not in OWN and not host.startswith("127."):
            asked.append(host)
            raise OSError(f"tests have no network: {host}")
        return function(*arguments, **options)

    return guarded


def host_of(_: socket.socket, address: Any, *__: Any) -> Any:
    return address[0] if isinstance(address, tuple) else None  # a path: a socket of this machine


forked.wait_for_no_disk()
for method in ("connect", "connect_ex"):
    setattr(socket.socket, method, only_here(getattr(socket.socket, method), host_of))
for name in ("getaddrinfo", "gethostbyname"):
    setattr(socket, name, only_here(getattr(socket, name), lambda host, *_, **__: host))
socket.create_connection = only_here(socket.create_connection, lambda address, *_, **__: address[0])


@pytest.fixture(autouse=True)
def no_network() -> Iterator[list[str]]:
    """No test asks another machine, not even where a library would swallow the refusal."""
    asked.clear()
    yield asked
    assert not asked


@pytest.fixture(autouse=True)
def no_ceiling() -> None:
    """Each training measures the machine for 0.3 s by a large product; no test reads how fast it
    is.
    """
    runtime = sys.modules.get("clozelab.training.runtime")
    if runtime is not None:
        forked.measure_in_no_time(runtime)


TINY = {
    "vocab_size": 97,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "initializer_range": 0.2,
    "layer_norm_eps": 1e-12,
    "position_embedding_init": "normal",
}


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., EncoderConfig]:
    """tiny_config(**changes) -> a small configuration without dropout."""
    return lambda **changes: EncoderConfig(**{**TINY, **changes})


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with real data and oracles: CLOZELAB_SHARED, or `../shared` beside the checkout;
    skips without it.
    """
    default = Path(__file__).resolve().parents[1].parent / "shared"
    name = os.environ.get("CLOZELAB_SHARED", str(default))
    folder = Path(name)
    # An empty name would be the present folder.
    if not name or not folder.is_dir():
        pytest.skip(f"real data not available: {folder} is not a folder (set CLOZELAB_SHARED)")
    return folder


def pytest_configure(config: pytest.Config) -> None:
    """What is ignored where the tests are started (nohup, a job in the background) would stay so in
    each process.
    """
    if forked.ADDRESS not in os.environ:  # else a worker of xdist's: its controller has one
        config.add_cleanup(forked.start_server())
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(
                number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            )


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Its workers begin with everything imported."""
    config.add_cleanup(forked.fork_workers(config.args))


def pytest_collection_finish() -> None:
    """What is imported stays; configurations are thousands of small objects, and looking through
    all is slow.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    durations.report_durations(terminalreporter, config.getoption("numprocesses", None) or 1)


def pytest_sessionfinish() -> None:
    """pytest looks through all objects five times at the end: four times there is nothing left."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files are handed out first, so that none is left alone at the end."""
    table = durations.FILE.read_text(encoding="utf-8")
    seconds = durations.seconds_of_table(table, durations.FILE.parents[1])
    items.sort(key=lambda item: -seconds.get(item.path, 0.0))


@pytest.fixture
def screen(request: pytest.FixtureRequest, tmp_path: Path) -> Screens:
    """screen(text) compares a text that a user reads with the snapshot of this test."""
    return Screens(request.path, request.node.name, tmp_path)


@pytest.fixture(autouse=True)
def own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the console script sets for its jobs ends with a test: scripts of benchmarks/ import
    those beside them.
    """
    monkeypatch.setenv("PYTHONSAFEPATH", "")


@pytest.fixture(autouse=True)
def no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    """`allow_targets=` is remembered for a process and its jobs; no test inherits it."""
    monkeypatch.delenv("CLOZELAB_ALLOW_TARGETS", raising=False)


@pytest.fixture(autouse=True)
def no_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are those of a pipe, however wide the terminal is that the tests run in (pytest-xdist
    says so to all).
    """
    monkeypatch.delenv("COLUMNS", raising=False)


LOG_LEVELS = {
    logger: logger.level for logger in (logging.getLogger(), logging.getLogger("clozelab"))
}


@pytest.fixture(autouse=True)
def own_log_levels() -> Iterator[None]:
    """A verb sets levels for its process, which no test inherits.

    A fixture of a whole file runs its verbs before this one, so the levels at this moment are
    those of the last verb, and each test begins with the levels of a fresh process.
    """
    for logger, level in LOG_LEVELS.items():
        logger.setLevel(level)
    yield
    for logger, level in LOG_LEVELS.items():
        logger.setLevel(level)


WORDS = "the a red green blue cat dog sat ran on mat hill who where what is was did fast"


@pytest.fixture(scope="session")
def tokenizer() -> WordPieceTokenizer:
    """Of whole words, so that a test can count tokens by eye."""
    letters = [*string.ascii_lowercase, *string.digits, *".,?!'\"-"]
    pieces = [f"##{letter}" for letter in string.ascii_lowercase]
    words = [word for word in WORDS.split() if len(word) > 1]
    return WordPieceTokenizer([*SPECIAL_TOKENS, *letters, *pieces, *words], lowercase=True)


# Run folders as the stages leave them, made up: for finding, judging and reporting without training
# anything.

ARMS = ("mlm_nsp", "mlm", "ltr")
SECOND_SCORES = {
    "mnli": "mismatched_accuracy",
    "mrpc": "f1",
    "qqp": "accuracy",
    "stsb": "pearson",
    "squad_v1": "exact_match",
}
"""Task -> another score of its runs."""
ROWS = (*ARMS, "ltr_bilstm", "random", "random_bilstm")


def about_task(title: str, score: str, stand_in_for: str | None = None) -> dict[str, Any]:
    return {"title": title, "stand_in_for": stand_in_for, "metric": f"validation/{score}"}


TASKS: dict[str, dict[str, Any]] = {
    "mnli": about_task("MNLI-m", "accuracy"),
    "qnli": about_task("QNLI", "accuracy"),
    "mrpc": about_task("MRPC", "accuracy"),
    "sst2": about_task("SST-2", "accuracy"),
    "snli_95k": about_task("SNLI-95k", "accuracy", "mnli"),
    "qqp": about_task("QQP", "f1"),
    "cola": about_task("CoLA", "matthews"),
    "stsb": about_task("STS-B", "spearman"),
    "rte": about_task("RTE", "accuracy"),
    "qnli_derived": about_task("QNLI-derived", "accuracy", "qnli"),
    "squad_v1": about_task("SQuAD F1", "f1"),
    "squad_v2": about_task("SQuAD 2.0 F1", "f1"),
}


@pytest.fixture
def counted_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention by products, which torch's counter of operations knows: not by the flash kernel."""
    attention = "clozelab.models.attention"
    monkeypatch.setattr(f"{attention}.has_flash_kernel", lambda *_, **__: False)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take longer than everything else of a report, and are drawn from the same table."""
    monkeypatch.setattr("clozelab.report.render._plots", lambda *_: {})


def write_run(
    folder: Path, stage: str, config: dict[str, Any], status: str = "complete", **facts: Any
) -> None:
    """A folder with a record; `keys` are what it is scored by."""
    folder.mkdir(parents=True)
    config = {"experiment": "table5_pretraining_tasks"} | config
    state = {
        "started_in": "/there",
        "config_dir": "an experiment",
        "config_name": f"sweep_{stage}",
        "overrides": ["scale=demo", f"seed={config['seed']}"],
        "status": status,
        "stage": stage,
        "scale": "demo",
        "fingerprint": "f" * 64,
        "results_version": RESULTS_VERSIONS[stage],
        "inputs": {},
        "watched": {},
        "started": "2030-01-01T00:00:00+00:00",
        "seconds": 360.0,
        "error": "ValueError: broken on purpose" if status == "failed" else None,
        "facts": facts,
        "versions": {"python": "3.11", "torch": "2.13.0"},
        "git": {"commit": "0123456789abcdef", "dirty": False},
        "host": {"cpu": "A processor", "cores": 2, "gpus": []},
        "config": config,
    }
    (folder / "run.json").write_text(json.dumps(state))
    if stage == "pretrain":
        write_scores(folder, {"metric": "validation/loss", "scores": facts}, ["validation/loss"])


def write_scores(folder: Path, saved: Mapping[str, Any], keys: Iterable[str] = ()) -> None:
    """scores.json, and what a run's record takes of it."""
    if not keys:
        (folder / "scores.json").write_text(json.dumps(saved))
    record = read_record(folder)
    assert record is not None
    are_shares = not {"validation/exact_match", "validation/exact"} & saved["scores"].keys()
    keys = keys or saved["scores"]
    record.metric = saved["metric"]
    record.scores = {}
    for key in keys:
        metric = older_metric(key, ("mismatched",))
        assert metric is not None, key
        if not are_shares:
            metric = replace(metric, factor=1.0)
        record.scores[key] = Score.of(metric)
    record.take(saved)
    kept = ("title", "stand_in_for", "synthetic", "num_examples", "collapsed")
    kept += ("best_step", "total_steps")
    record.facts |= {key: saved[key] for key in kept if key in saved}
    record.facts["num_evaluations"] = len(saved.get("evaluations", ()))
    # As write_record does in twice the time: in one rename, and for people to read.
    (folder / "run.json").write_text(json.dumps(record.model_dump()))


def write_pretrain(
    root: Path,
    arm: str,
    seed: int,
    *,
    status: str = "complete",
    generator: Any = None,
    known: Any = None,
    model: Mapping[str, int] | None = None,
) -> None:
    folder = root / "pretrain" / arm / f"seed-{seed}"
    shape = model or {"num_hidden_layers": 2, "hidden_size": 128}
    config = {"arm": arm, "seed": seed, "model": dict(shape), "validation": {"seq_length": 64}}
    config["corpus"] = {"name": "text", "generator": generator}
    facts = {
        "steps": 100,
        "tokens": 1_000_000,
        "tokens_per_second": 60_000.0,
        "mfu": 0.41,
        "parameters": 1_527_680,
        "unigram_loss": 6.2,
        "validation/loss": 4.4,
    } | (known or {})
    write_run(folder, "pretrain", config, status, **facts)
    lines = ["step,tokens,seconds,key,value"]
    for step in range(1, 11):
        pace = 3 + (ARMS.index(arm) if arm in ARMS else 0)
        loss = 4.0 + 3.0 * math.exp(-step / pace) + 0.02 * seed
        lines.append(f"{step * 10},{step * 100_000},{step}.0,validation/loss,{loss}")
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")


def write_finetune(
    root: Path, row: str, task: str, seeds: tuple[int, int], score: float, **extra: Any
) -> None:
    """`score` in percent, written in the unit that the task's scorer uses; `config` adds settings,
    `sub` a folder.
    """
    pretrain_seed, seed = seeds
    folder = root / "finetune" / row / f"pretrain-seed-{pretrain_seed}" / task
    folder = folder / extra.pop("sub", "") / f"seed-{seed}"
    about = TASKS[task]
    config = {"row": row, "pretrain_seed": pretrain_seed, "seed": seed}
    config |= {"task": {"name": task, **about}} | extra.pop("config", {})
    status = extra.pop("status", "complete")
    write_run(folder, "finetune", config, status)
    if status != "complete":
        return
    name = about["metric"]
    scores = {name: score / 100}
    if task == "squad_v1":
        scores = {name: score, "validation/exact_match": score / 2}
    saved = {"metric": name, "best_step": 10, "scores": scores}
    saved |= {"majority_baseline": None, "collapsed": False}
    write_scores(folder, saved | extra)


def write_scored(
    root: Path, row: str, task: str, seeds: tuple[int, int], score: float, **extra: Any
) -> None:
    """A run with every score that its task has: `score` percent and, for the second one, a point
    less.
    """
    factor = 1.0 if task == "squad_v1" else 0.01
    scores = {TASKS[task]["metric"]: score * factor}
    if task in SECOND_SCORES:
        scores[f"validation/{SECOND_SCORES[task]}"] = (score - 1.0) * factor
    write_finetune(root, row, task, seeds, score, scores=scores, **extra)


def write_evaluation(
    root: Path,
    row: str,
    measure: str,
    seed: int,
    scores: Mapping[str, float],
    majorities: Mapping[str, float] | None = None,
    **extra: Any,
) -> None:
    """A complete evaluation; `scores` in shares, the first is the main one."""
    folder = root / "evaluate" / row / f"pretrain-seed-{seed}" / measure / "seed-1"
    about = {"name": measure, "title": f"The {measure}"}
    config = {"row": row, "pretrain_seed": seed, "seed": 1, "measure": about}
    write_run(folder, "evaluate", config | extra)
    saved = {"metric": next(iter(scores)), "scores": dict(scores), "title": about["title"]}
    write_scores(folder, saved | {"majority_baseline": majorities})


@pytest.fixture
def make_runs(tmp_path: Path) -> Callable[..., Path]:
    """make_runs(means, pretrain_seeds, finetune_seeds) -> root; `means`: {(row, task): score in
    percent}.
    """

    def make(
        means: Mapping[tuple[str, str], float],
        pretrain_seeds: tuple[int, ...] = (1, 2, 3),
        finetune_seeds: tuple[int, ...] = (1, 2),
        generator: Any = None,
        below: str = "runs",
    ) -> Path:
        root = tmp_path / below / "table5_pretraining_tasks" / "demo"
        synthetic = "text" if generator else None
        for arm in ARMS:
            for seed in pretrain_seeds:
                write_pretrain(root, arm, seed, generator=generator)
        for (row, task), mean in means.items():
            for first in pretrain_seeds:
                for second in finetune_seeds:
                    wobble = 0.2 * ((first * 7 + ROWS.index(row) * 3) % 5 - 2) + 0.1 * (second % 2)
                    score = mean + wobble
                    write_finetune(root, row, task, (first, second), score, synthetic=synthetic)
        return root

    return make


@pytest.fixture
def writers() -> Any:
    """The single-folder writers, for tests that add an odd run."""

    return SimpleNamespace(
        pretrain=write_pretrain,
        finetune=write_finetune,
        scored=write_scored,
        scores=write_scores,
        evaluation=write_evaluation,
    )
