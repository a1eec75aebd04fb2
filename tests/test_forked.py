"""A forked process of tests/forked.py is what a new one would be, as far as a test can tell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import forked

TELL = """
import os, subprocess, sys
leads = os.getsid(0) == os.getpid()
print([sys.argv[1:], os.getcwd(), os.environ.get("ONE"), sys.path[0], __name__, leads])
print(sys.stdin.read(), file=sys.stderr)
child = [sys.executable, "-c", "import os; print(os.getppid())"]
print(subprocess.run(child, capture_output=True).stdout, flush=True)
sys.exit({status})
"""


@pytest.mark.parametrize(("status", "expected"), [("3", 3), ("None", 0), ("'why'", 1)])
def test_it_is_what_a_new_process_is(tmp_path: Path, status: str, expected: int) -> None:
    words = [sys.executable, "-c", TELL.replace("{status}", status), "a", "b=c"]
    options: Any = {
        "cwd": tmp_path,
        "env": os.environ | {"ONE": "1", "PYTHONSAFEPATH": "", "PYTHONPATH": forked.SRC},
    }
    options |= {"capture_output": True, "text": True, "input": "typed", "start_new_session": True}
    done = forked.run(words, **options)
    assert done.returncode == expected, done.stderr
    told, theirs = (run.stdout.splitlines()[0] for run in (done, subprocess.run(words, **options)))
    assert told == theirs
    assert done.stderr.startswith("typed\n") and ("why" in done.stderr) == (expected == 1)


def test_it_is_killed_as_any_other(tmp_path: Path) -> None:
    process = forked.Popen(
        [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"], stdout=-1
    )
    assert (
        process.stdout is not None
        and process.stdout.readline() == b"up\n"
        and process.poll() is None
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == -signal.SIGTERM
    process.stdout.close()
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.2)


def test_it_has_the_imports_and_no_run_of_another(tmp_path: Path) -> None:
    code = (
        "import sys, torch; print('lightning' in sys.modules, torch.initial_seed() == 9);"
        " torch.manual_seed(9)"
    )
    for _ in range(2):
        assert (
            forked.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
            == "True False\n"
        )


@pytest.mark.parametrize(("words", "expected"), [(["-m"], "True\n"), ([], "False\n")])
def test_a_launcher_s_own_fork_server_has_the_imports_too(words: list[str], expected: str) -> None:
    code = (
        "import multiprocessing\nwith multiprocessing.get_context('forkserver').Pool(1) as pool:\n"
    )
    code += '    print(pool.apply(eval, (\'"lightning" in __import__("sys").modules\',)))'
    done = forked.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == expected, done.stderr
