"""`clozelab status --watch`: what it shows while a sweep runs, when it ends, and that it spends no
interim analysis unasked.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text
from tests.screens import refuses, shows

from claims.analysis.history import ANALYSIS_LOG, read_log
from clozelab.report import standing, watching
from clozelab.report.watching import SweepWatch, claim_lines
from clozelab.runs.find import find
from clozelab.runs.progress import note_refused, write_launch
from clozelab.runs.record import JobName
from clozelab.stages import status
from clozelab.training.stopping import Interrupted

EXPERIMENT = "table5_pretraining_tasks"
JOBS = [JobName("mlm", "", seed) for seed in "1234"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists who holds a lock")


@pytest.fixture
def root(
    monkeypatch: pytest.MonkeyPatch, make_runs: Callable[..., Path], writers: Any
) -> Iterator[Path]:
    """Runs of an experiment, of which one goes on: seed 3 of mlm is at step 60 of 200."""
    root = make_runs({("mlm", "mrpc"): 70.0, ("ltr", "mrpc"): 60.0}, pretrain_seeds=(1, 2))
    writers.pretrain(root, "mlm", 3, status="running")
    folder = root / "pretrain/mlm/seed-3"
    record = json.loads((folder / "run.json").read_text())
    phase = {"seq_length": 32, "steps": 200, "global_batch_size": 10, "micro_batch_size": 10}
    record["config"]["phases"] = [phase]
    (folder / "run.json").write_text(json.dumps(record))
    lines = ["step,tokens,seconds,key,value"]
    for step in (30, 60):
        lines.append(f"{step},{320 * step},{step},train/loss,{7.0 - step / 50}")
        lines.append(f"{step},{320 * step},{step},train/tokens_per_second,320")
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    write_launch(root, ["reproduce", EXPERIMENT], {"pretrain": JOBS})
    claim_lines.cache_clear()
    monkeypatch.setenv("COLUMNS", "80")
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield root


def end_of_the_run(root: Path, known: str = "complete") -> None:
    path = root / "pretrain/mlm/seed-3/run.json"
    path.write_text(path.read_text().replace('"status": "running"', f'"status": "{known}"'))


def watch_of(root: Path, out: Path | None = None, *, verdicts: bool = False) -> SweepWatch:
    runs_dir = root.parents[1]
    return SweepWatch(lambda: find(runs_dir).records, standing.print_status, out, verdicts)


def screen(root: Path, **options: Any) -> str:
    watch = watch_of(root, **options)
    return Text.from_ansi(watch.frame(watch._current())).plain


@linux
def test_a_run_is_shown_with_its_step_loss_and_time_left(root: Path) -> None:
    text = screen(root)
    shows(text, "mlm/seed 3 60 of 200 5.80", "2.3 min")
    assert max(map(len, text.splitlines())) <= 80
    # seed 4 has not begun, and lasts as long as the others have
    (pretrain, *_) = watch_of(root)._current()[0].sweeps
    assert (pretrain.counts["running"], pretrain.not_begun, pretrain.planned) == (1, 1, 4)


@linux
def test_no_verdict_is_shown_and_none_is_noted_unless_it_is_wanted(root: Path) -> None:
    text = screen(root)
    shows(text, "claims can be tested; to see verdicts", "is an interim analysis")
    assert "p =" not in text and "holds" not in text and "inconclusive" not in text
    assert not (root / ANALYSIS_LOG).exists(), "a look was spent"
    text = screen(root, verdicts=True)
    shows(text, "noted as an analysis in looks.jsonl", ", corrected p = ")
    (noted,) = read_log(root)
    verdicts = set(noted.verdicts.values())
    assert verdicts & {"holds", "inconclusive", "contradicted"}
    # The same seeds again are no other analysis: now their verdicts cost nothing, without a p.
    claim_lines.cache_clear()
    text = screen(root)
    shows(text, "noted as an analysis in looks.jsonl")
    assert "p =" not in text and len(read_log(root)) == 1


@linux
def test_seeds_that_come_later_are_no_part_of_the_noted_analysis(root: Path, writers: Any) -> None:
    screen(root, verdicts=True)
    for row, score in (("mlm", 70.0), ("ltr", 60.0)):
        writers.pretrain(root, row, 5)
        writers.finetune(root, row, "mrpc", (5, 1), score)
        writers.finetune(root, row, "mrpc", (5, 2), score)
    shows(screen(root), "to see verdicts")
    assert len(read_log(root)) == 1


@linux
def test_a_long_silence_is_on_the_page(root: Path, tmp_path: Path) -> None:
    """Of a run of another machine nothing else tells whether it goes on."""
    long_ago = time.time() - 300.0
    os.utime(root / "pretrain/mlm/seed-3/metrics.csv", (long_ago, long_ago))
    watch = watch_of(root, tmp_path / "page.html")
    watch.write_page(watch._current(), is_live=True)
    assert "silent for 5.0 min" in (tmp_path / "page.html").read_text()


def let_sleep(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], None] = lambda: None
) -> list[float]:
    """The time, which goes on when the watch sleeps; `act` happens then."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        act()

    monkeypatch.setattr(watching.time, "sleep", sleep)
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    return now


def interrupt() -> None:
    raise Interrupted(130)


@linux
def test_the_watch_ends_with_the_sweep_and_leaves_a_page(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writers: Any
) -> None:
    """Fine-tunings here are of no launch, so the watch waits for another one for half a minute."""
    out = tmp_path / "page.html"
    pages: list[str] = []

    def end() -> None:
        pages.append(out.read_text())
        if len(pages) == 2:
            end_of_the_run(root)
            writers.pretrain(root, "mlm", 4)

    now = let_sleep(monkeypatch, end)
    watch = watch_of(root, out)
    watch._last_active = 0.0
    assert watch.run() == 0
    first, last = pages[0], out.read_text()
    shows(
        first, "60 of 200", "loss 5.80", "1 running, 1 waiting", "2 of 4 done", "interim analysis"
    )
    refresh = re.compile(r'http-equiv="refresh" content="5"')
    assert refresh.search(first) and not refresh.search(last)
    shows(last, "4 of 4 done", "Every job is complete", "not refreshed any more")
    # The run was last seen after five seconds.
    assert now == [5.0 + watching.GAP_SECONDS] and not list(tmp_path.glob(".*.tmp"))
    assert "http://" not in last and "https://" not in last, "one file, which asks nobody"


@linux
def test_a_terminal_shows_one_frame_in_the_place_of_the_last(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()

    def make_console() -> Console:
        return Console(file=terminal, force_terminal=True, width=80, height=40, highlight=False)

    monkeypatch.setattr(watching, "make_console", make_console)
    naps = iter((lambda: None, interrupt))
    let_sleep(monkeypatch, lambda: next(naps)())
    assert watch_of(root).run() == 130
    text = terminal.getvalue()
    # One more at the end: a Live draws its last frame again, in full.
    frames = re.split(r"(?:\x1b\[1A\x1b\[2K)+", text)
    assert [frame.count("mlm/seed 3") for frame in frames] == [1, 1, 1]
    hide, show = "\x1b[?25l", "\x1b[?25h"
    assert text.count(hide) == 1 and text.endswith(show), "the cursor is there again"


@linux
def test_a_sweep_in_which_nothing_runs_is_watched_for_ten_minutes(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = let_sleep(monkeypatch)
    end_of_the_run(root, "failed")
    out = tmp_path / "page.html"
    watch = watch_of(root, out)
    watch._last_active = 0.0
    assert watch.run() == 0 and now == [600.0]
    shows(out.read_text(), "1 failed", "pretrain/mlm/seed-3")


@linux
def test_the_page_has_the_reasons_that_the_terminal_has(root: Path, tmp_path: Path) -> None:
    """A killed run, and jobs that were refused since other runs lie in their folders."""
    path = root / "pretrain/mlm/seed-2/run.json"
    path.write_text(path.read_text().replace('"status": "complete"', '"status": "running"'))
    fingerprint = json.loads((root / "pretrain/mlm/seed-1/run.json").read_text())["fingerprint"]
    note_refused(root, "pretrain", [fingerprint])
    out = tmp_path / "page.html"
    watch = watch_of(root, out)
    watch.write_page(watch._current(), is_live=False)
    reasons = (
        "pretrain/mlm/seed-2: its process has gone without a word",
        "jobs refused: runs of other settings or files lie in ",
    )
    shows(screen(root), *reasons)
    shows(out.read_text(), *reasons)


@linux
def test_ctrl_c_leaves_a_page_that_says_that_it_has_ended(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_sleep(monkeypatch, interrupt)
    out = tmp_path / "page.html"
    assert watch_of(root, out).run() == 130
    shows(out.read_text(), "The watch has ended")
    assert 'http-equiv="refresh"' not in out.read_text()


def test_only_other_experiments_that_run_are_shown(
    root: Path, writers: Any, tmp_path: Path
) -> None:
    other = root.parents[1] / "another" / "demo"
    other.mkdir(parents=True)
    writers.pretrain(other, "mlm", 1)
    text = screen(root)
    assert "another" not in text and EXPERIMENT in text


def test_a_name_inside_markup_is_text(root: Path, tmp_path: Path) -> None:
    path = root / "pretrain/mlm/seed-3/run.json"
    path.write_text(path.read_text().replace('"arm": "mlm"', '"arm": "<b>x</b>"'))
    out = tmp_path / "page.html"
    watch_of(root, out).write_page(watch_of(root)._current(), is_live=False)
    assert "<b>x</b>" not in out.read_text() and "&lt;b&gt;x" in out.read_text()


def test_refusals(root: Path, tmp_path: Path) -> None:
    runs_dir = f"runs_dir={root.parents[1]}"
    with refuses("--watch needs a terminal: in a pipe, give out=FILE.html"):
        status.main([runs_dir, "--watch"])
    with refuses("out=page.txt: give a .html"):
        status.main([runs_dir, "--watch", "out=page.txt"])
    for word in ("out=page.html", "--verdicts"):
        with refuses("with --watch alone"):
            status.main([runs_dir, word])
