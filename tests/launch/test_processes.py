"""The process pool on tiny shell commands: states, failures, limits, and a clean stop."""

from __future__ import annotations

import fcntl
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text
from tests.conftest import write_run
from tests.forked import gone, is_running

from clozelab.launch import pool as pooling
from clozelab.launch.pool import ProcessPool
from clozelab.launch.processes import ForkServer, Job, JobState, failure_message, start_process
from clozelab.launch.progress import SweepEstimate
from clozelab.runs.record import BUSY_STATUS, LOCK_FILE
from clozelab.training.stopping import OUT_OF_TIME, Interrupted

SRC = Path(__file__).parents[2] / "src"


def job(folder: Path, name: str, script: str, **environment: str) -> Job:
    return Job(name, ["/bin/sh", "-c", script], folder / "logs" / f"{name}.log", environment)


def pool(jobs: list[Job], at_once: int = 2, grace: float = 5.0) -> ProcessPool:
    return ProcessPool(
        jobs, at_once=at_once, grace_seconds=grace, console=Console(file=io.StringIO())
    )


def shown(jobs: list[Job], **options: Any) -> list[str]:
    """The lines that a pipe gets while jobs run, one at a time."""
    screen = io.StringIO()
    console = Console(file=screen, width=200)
    ProcessPool(jobs, at_once=1, grace_seconds=1, console=console, **options).run()
    return screen.getvalue().splitlines()


def python(folder: Path, code: str, *words: str, **options: Any) -> subprocess.Popen[str]:
    """A process of this code, which imports modules of a folder and those of this checkout."""
    paths = f"{SRC}{os.pathsep}{folder}"
    command = [sys.executable, "-c", code, *words]
    environment = os.environ | {"PYTHONPATH": paths}
    return subprocess.Popen(command, env=environment, cwd=folder, text=True, **options)


def is_ready(job: Job) -> bool:
    return job.log.exists() and "ready" in job.log.read_text()


def run_until(jobs: ProcessPool, come: Callable[[], bool], number: int = signal.SIGINT) -> int:
    """Run them until it has come and this process gets a signal; the exit status that follows."""

    def send() -> None:
        while not come():
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(Interrupted) as caught:
        jobs.run()
    thread.join()
    return caught.value.code


def test_a_failure_does_not_stop_the_others(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path, "bad", "echo start; echo 'error: no such corpus' >&2; exit 3"),
        job(tmp_path, "good", 'echo fine > "$TARGET"', TARGET=str(tmp_path / "out")),
        job(tmp_path, "killed", "kill -9 $$"),
    ]
    jobs.append(Job("done before", ["/bin/false"], tmp_path / "x.log", state=JobState.SKIPPED))
    pool(jobs).run()
    assert [one.state for one in jobs] == ["failed", "complete", "failed", "skipped"]
    assert jobs[0].message == "exit status 3: error: no such corpus"
    assert jobs[2].message.startswith("killed by signal 9")
    assert (tmp_path / "out").read_text() == "fine\n"
    assert not (tmp_path / "x.log").exists()


def test_a_job_in_another_launch_is_held_until_that_one_is_done_with_it(tmp_path: Path) -> None:
    """Others go first; as long as its folder is locked it is not even started (its log is the other
    launch's).
    """
    run = tmp_path / "run"
    run.mkdir()
    held, other = job(tmp_path, "held", "echo began"), job(tmp_path, "other", "echo began")
    held.folder = str(run)
    seen: list[tuple[str, bool]] = []

    def let_go() -> None:
        while other.state != "complete":
            time.sleep(0.02)
        seen.append((held.state, held.log.exists()))
        lock.close()

    with (run / LOCK_FILE).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=let_go)
        thread.start()
        lines = shown([held, other])
        thread.join()
    assert seen == [("held", False)]
    assert [held.state, held.message, other.state] == ["complete", "", "complete"]
    assert lines[0] == f"    held  held: process {os.getpid()} works in its folder"
    assert lines[0] not in lines[1:]
    assert held.started > other.started


def test_a_job_waits_for_those_whose_results_it_reads(tmp_path: Path) -> None:
    """Others go first, in its place; one that waits in vain begins, and says itself what lacks."""
    teacher = job(tmp_path, "teacher", 'sleep 0.3; echo done > "$OUT"', OUT=str(tmp_path / "out"))
    student = job(tmp_path, "student", 'cat "$OUT"', OUT=str(tmp_path / "out"))
    failing = job(tmp_path, "failing", "exit 3")
    orphan = job(tmp_path, "orphan", "echo 'error: no encoder here' >&2; exit 1")
    student.waits_for = [teacher]
    orphan.waits_for = [failing]
    pool([student, orphan, teacher, failing], at_once=4).run()
    assert [student.state, teacher.state] == ["complete", "complete"]
    assert student.started > teacher.started + 0.3
    assert orphan.started > failing.started
    assert orphan.message == "exit status 1: error: no encoder here"


def test_a_job_that_finds_its_folder_taken_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody here knows who holds a folder (another machine), the job itself finds out."""
    monkeypatch.setattr(pooling, "TRY_AGAIN_SECONDS", 0.2)
    script = f'test -e "$DIR" || {{ mkdir "$DIR"; exit {BUSY_STATUS}; }}; echo in'
    busy = job(tmp_path, "busy", script, DIR=str(tmp_path / "tried"))
    pool([busy]).run()
    assert busy.state == "complete" and busy.log.read_text() == "in\n"


def test_a_held_job_does_not_keep_a_stopped_launch(tmp_path: Path) -> None:
    busy = job(tmp_path, "busy", f"exit {BUSY_STATUS}")
    assert run_until(pool([busy]), lambda: busy.state == "held") == 128 + signal.SIGINT
    assert busy.state == "held"


def test_at_most_so_many_at_a_time(tmp_path: Path) -> None:
    script = 'ls "$DIR" | wc -l; : > "$DIR/$$"; sleep 0.3; rm "$DIR/$$"'
    (tmp_path / "live").mkdir()
    jobs = [job(tmp_path, str(index), script, DIR=str(tmp_path / "live")) for index in range(4)]
    pool(jobs, at_once=1).run()
    assert {one.log.read_text().strip() for one in jobs} == {"0"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signal_stops_everything(tmp_path: Path, number: int) -> None:
    script = 'trap "echo saved; exit 143" TERM; echo ready; while :; do sleep 0.05; done'
    jobs = [job(tmp_path, name, script) for name in ("one", "two", "three")]
    status = run_until(pool(jobs), lambda: all(map(is_ready, jobs[:2])), number)
    assert status == 128 + number
    assert [one.state for one in jobs] == ["stopped", "stopped", "waiting"]
    assert all("saved" in one.log.read_text() for one in jobs[:2])
    assert all(one.process is not None and one.process.poll() is not None for one in jobs[:2])


def test_a_job_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    deaf = job(tmp_path, "deaf", 'trap "" TERM; echo ready; while :; do sleep 0.05; done')
    run_until(pool([deaf], grace=0.3), lambda: is_ready(deaf))
    assert deaf.state == "stopped" and deaf.process is not None
    assert deaf.process.returncode == -signal.SIGKILL


def test_a_job_that_is_out_of_its_time_is_stopped_and_did_not_fail(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path, "late", f"echo saved; exit {OUT_OF_TIME}"),
        job(tmp_path, "good", "exit 0"),
    ]
    pool(jobs).run()
    assert [one.state for one in jobs] == ["stopped", "complete"]


def test_jobs_die_with_a_killed_parent(tmp_path: Path) -> None:
    code = (
        "import os, time; from clozelab.training.stopping import begin_process; begin_process();"
        " print(os.getpid()); time.sleep(60)"
    )
    script = f"""
import io, sys
from pathlib import Path
from rich.console import Console
from rich.text import Text
from clozelab.launch.pool import ProcessPool
from clozelab.launch.processes import Job
job = Job("x", [sys.executable, "-uc", {code!r}], Path({str(tmp_path / "log")!r}))
ProcessPool([job], at_once=1, grace_seconds=1, console=Console(file=io.StringIO())).run()
"""
    parent = python(tmp_path, script)
    log = tmp_path / "log"
    while not (log.exists() and log.read_text().strip()):
        time.sleep(0.02)
    child = int(log.read_text())
    parent.kill()
    parent.wait()
    assert gone([child], 5.0)


def test_a_job_that_is_forked_as_its_launcher_is_killed_does_not_begin(tmp_path: Path) -> None:
    """The launcher dies before the job has taken hold of it; without the kill the same job does
    begin.
    """
    (tmp_path / "slow_start.py").write_text(
        "import time\nfrom pathlib import Path\nfrom clozelab.launch import processes\n"
        "def late(pipe, before=processes.stop_with):\n"
        f"    Path({str(tmp_path / 'forked')!r}).touch()\n    time.sleep(1.0)\n    before(pipe)\n"
        "processes.stop_with = late\n"
        "def main(words):\n    Path(words[0]).touch()\n    return 0\n"
    )
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom clozelab.launch.processes import"
        " ForkServer\nserver = ForkServer('slow_start', ['slow_start'],"
        f" {{}})\nserver.start([sys.argv[1]], Path({str(tmp_path / 'log')!r})).wait()\n"
    )
    for kill in (False, True):
        began = tmp_path / f"began-{kill}"
        (tmp_path / "forked").unlink(missing_ok=True)
        parent = python(tmp_path, script, str(began))
        while not (tmp_path / "forked").exists():
            assert parent.poll() is None
            time.sleep(0.02)
        if kill:
            parent.kill()
        parent.wait()
        time.sleep(2.5 * kill)
        assert began.exists() is not kill


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
def test_a_server_that_still_imports_leaves_interrupts_to_its_launcher_and_ends_with_it(
    tmp_path: Path,
) -> None:
    importing = tmp_path / "importing"
    (tmp_path / "slow_import.py").write_text(
        f"import time\nfrom pathlib import Path\nPath({str(importing)!r}).touch()\ntime.sleep(60)\n"
    )
    script = (
        "import time\nfrom multiprocessing import forkserver\n"
        "from clozelab.launch.processes import ForkServer\n"
        "ForkServer('slow_import', ['clozelab.launch.preloaded', 'slow_import'], {})\n"
        "print(forkserver._forkserver._forkserver_pid, flush=True)\ntime.sleep(60)\n"
    )
    parent = python(tmp_path, script, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    while not importing.exists():
        assert parent.poll() is None and is_running(server)
        time.sleep(0.02)
    os.kill(server, signal.SIGINT)
    time.sleep(0.3)
    assert is_running(server)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone([server], 5.0)


@pytest.mark.parametrize("forks", [True, False])
def test_a_signal_to_the_whole_group_and_passed_on_lets_jobs_save(
    tmp_path: Path, forks: bool
) -> None:
    """As `timeout` and batch systems send it, with `clozelab reproduce` between them and the
    launcher.
    """
    (tmp_path / "slow_save.py").write_text(
        "import signal, sys, time\nfrom pathlib import Path\n"
        "def main(words):\n"
        "    stop = []\n    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))\n"
        "    Path(words[0] + '.began').touch()\n"
        "    while not stop:\n        time.sleep(0.01)\n"
        "    time.sleep(1.5)\n    Path(words[0] + '.saved').touch()\n    return 0\n"
        "if __name__ == '__main__':\n    sys.exit(main(sys.argv[1:]))\n"
    )
    script = (
        "import io, sys\nfrom pathlib import Path\nfrom rich.console import Console\n"
        "from clozelab.launch.pool import ProcessPool\n"
        "from clozelab.launch.processes import ForkServer, Job\n"
        "server = ForkServer('slow_save', ['clozelab.launch.preloaded'], {}) if"
        f" {forks} else None\njobs = [Job(n, [sys.executable, 'slow_save.py', n], Path(n + '.log'),"
        " argv=[n]) for n in 'ab']\nProcessPool(jobs, at_once=2, grace_seconds=20,"
        " console=Console(file=io.StringIO()), server=server).run()\n"
    )
    launcher = python(tmp_path, script, start_new_session=True, stderr=subprocess.DEVNULL)
    while not all((tmp_path / f"{name}.began").exists() for name in "ab"):
        assert launcher.poll() is None
        time.sleep(0.02)
    os.killpg(launcher.pid, signal.SIGTERM)
    time.sleep(0.1)
    launcher.send_signal(signal.SIGTERM)
    launcher.wait()
    assert all((tmp_path / f"{name}.saved").exists() for name in "ab")


def test_forked_jobs(tmp_path: Path) -> None:
    """The standard library's fork server: own logs, exit statuses, and a stop that reaches them."""
    server = ForkServer("clozelab.cli", [], {"CLOZELAB_TEST": "1"})
    scripts = {"version": "exit 9", "wrong": "exit 9", "fresh": "exit 4"}
    jobs = [job(tmp_path, name, script) for name, script in scripts.items()]
    jobs[0].argv, jobs[1].argv = ["--version"], ["nonsense"]
    shown(jobs, server=server)
    assert [one.state for one in jobs] == ["complete", "failed", "failed"]
    assert jobs[0].log.read_text().startswith("clozelab 0.")
    assert re.match("exit status 2.*nonsense", jobs[1].message)
    assert jobs[2].message == "exit status 4"
    server.start(["--version"], tmp_path / "again.log").wait()
    assert (tmp_path / "again.log").read_text().startswith("clozelab 0.")


def test_a_terminal_shows_how_all_stand(tmp_path: Path) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    line = f"12:00:00 I step 8/10  working {'hard ' * 30}"
    jobs = [job(tmp_path, "slow" * 13, f"echo '{line}'; sleep 1")]
    ProcessPool(jobs, at_once=1, grace_seconds=1, console=console).run()
    text = screen.getvalue()
    assert re.search("0 of 1 done", text) and "12:00:00" not in text and "8/10" not in text
    lines = [Text.from_ansi(line).plain.rstrip() for line in text.splitlines()]
    assert any(re.fullmatch(r" running  (slow){13} +\d s  work.*…", line) for line in lines), (
        "state, name and time stay"
    )
    assert re.search(r"complete  (slow){13} after \d s  \(1 of 1 done\)", text)


def test_a_pipe_has_one_line_a_job(tmp_path: Path) -> None:
    scripts = {"one": "sleep 0.1", "two": "exit 3", "three" * 20: "sleep 0.1"}
    first, second, third = shown([job(tmp_path, *one) for one in scripts.items()])
    assert first == "complete  one after 0 s  (1 of 3 done, about 0 s left)"
    assert re.fullmatch(r" *failed  two .*  \(2 of 3 done, about 0 s left\)", second)
    assert third.endswith("(3 of 3 done)")


def test_a_pipe_hears_of_jobs_that_run_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line as often as the limit says: done of all that belongs together, what runs, and by the
    plan what is left.
    """
    monkeypatch.setattr("clozelab.launch.progress.HEARTBEAT_SECONDS", 0.2)
    run = tmp_path / "run"
    write_run(run, "finetune", {"seed": 1}, "running", total_steps=1000)
    row = "400,960,1.0,train/tokens_per_second,40.0"  # 36 s for the other 600
    jobs = [
        job(tmp_path, "long", f"sleep 0.05; echo {row} >> {run}/metrics.csv; sleep 0.7"),
        job(tmp_path, "next", ""),
    ]
    jobs[0].folder = str(run)
    for one in jobs:
        one.planned = 60.0
    place = SweepEstimate(jobs_before=3, jobs_after=7, seconds_after=600.0)
    lines = shown(jobs, estimate=place)
    assert len(lines) >= 4
    assert re.fullmatch(
        r"3 of 12 done, 1 run \(long step 400 of 1,000\), about 11.6 min left", lines[0]
    )
    assert lines[-1].startswith("complete  next after 0 s  (5 of 12 done")


class SlowServer(ForkServer):
    """Imports for 0.7 s before the first job, and starts new processes."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = jobs
        self.seconds = 0.7

    def start(self, arguments: Sequence[str], log: Path) -> Any:
        time.sleep(self.seconds)
        self.seconds = 0.0
        return start_process(next(one for one in self.jobs if one.log == log))


def test_a_pipe_hears_of_a_server_that_imports_and_no_job_is_charged_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clozelab.launch.progress.HEARTBEAT_SECONDS", 0.2)
    jobs = [job(tmp_path, "one", "sleep 0.1"), job(tmp_path, "two", "sleep 0.1")]
    for one in jobs:
        one.argv = [one.name]
    assert shown(jobs, server=SlowServer(jobs))[0] == "0 of 2 done"
    assert all(one.state == "complete" and 0.1 <= one.seconds < 0.6 for one in jobs)


def test_an_error_of_several_lines_is_kept_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "12:00 I step 1\nerror: other configuration:\n  epochs: there 1, now 2\n(CLOZELAB_DEBUG=1"
        " shows ...)\n"
    )
    assert (
        failure_message(log, 1)
        == "exit status 1: error: other configuration:\n    epochs: there 1, now 2"
    )
    assert failure_message(tmp_path / "missing", 1) == "exit status 1"
    log.write_text("Traceback:\n  File x\nRuntimeError: out of luck\n")
    assert failure_message(log, 1) == "exit status 1: RuntimeError: out of luck"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere jobs are not forked")
def test_a_forked_job_has_threads_of_its_own_and_the_servers_commit() -> None:
    """What the server imports starts no thread pool of torch's: a fork has none of its threads, and
    waits for them. A job runs the code that the server has loaded, also where another commit is
    checked out meanwhile.
    """
    code = (
        "import os, signal\n"
        "import clozelab.launch.preloaded, clozelab.launch.plugins\n"
        "from clozelab.training.host import host_facts\n"
        "from clozelab.runs.code import hash_and_imports, sources_of_results\n"
        "assert host_facts.cache_info().currsize == sources_of_results.cache_info().currsize == 1\n"
        "assert hash_and_imports.cache_info().currsize > 200\n"
        "import clozelab.stages.pretrain, clozelab.stages.finetune\n"
        "import torch\n"
        "def computes(seconds):\n"
        "    if (pid := os.fork()) == 0:\n"
        "        signal.signal(signal.SIGALRM, signal.SIG_DFL)\n"
        "        signal.alarm(seconds)\n"
        "        torch.ones(400, 400) @ torch.ones(400, 400)\n"
        "        os._exit(0)\n"
        "    return os.waitpid(pid, 0)[1] == 0\n"
        "print(torch.get_num_threads(), computes(120))\n"
        "torch.ones(400, 400) @ torch.ones(400, 400)\n"
        "print(computes(2))\n"  # the control: now there is a pool
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    assert done.stdout.split() == ["2", "True", "False"], done.stderr
