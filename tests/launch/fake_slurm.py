"""The commands of Slurm that submitit and we use, for one machine without accounting.

They are sbatch, srun, squeue, sacct, scontrol requeue, scontrol show job, scancel.

Called by the name of the command (see the fixture in test_slurm_launcher.py). FAKE_SLURM is the
folder with its state: ID.json holds a job's options, ID.state its state, ID.pids its tasks,
ID.N.place where its task N stood; where there is ID.forgotten, nobody knows the job. As in Slurm a
signal reaches all processes of a task, a batch script and its children have SLURM_PROCID=0, only
srun sets SLURM_STEP_NUM_TASKS, and tasks fill one node after the other. Nodes are addresses of this
machine: 127.0.0.[1-2].
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

STATE = Path(os.environ.get("FAKE_SLURM", "."))


def sbatch(words: list[str]) -> int:
    text = Path(words[0]).read_text()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", text, re.M))
    number = 2000 + int.from_bytes(os.urandom(2), "big") % 7000
    (STATE / f"{number}.json").write_text(json.dumps(options))
    (STATE / f"{number}.sh").write_text(text)
    (STATE / f"{number}.state").write_text("PENDING")
    if os.environ.get("FAKE_SLURM_ONLY") == "sbatch":  # for a look at what is handed over
        print(f"Submitted batch job {number}")
        return 0
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    command = [sys.executable, __file__, "run", str(number)]
    subprocess.Popen(command, start_new_session=True, **quiet)
    print(f"Submitted batch job {number}")
    return 0


def run(words: list[str]) -> int:
    number, state = words[0], STATE / f"{words[0]}.state"
    options = json.loads((STATE / f"{number}.json").read_text())
    nodes, each = options.get("nodes", "1"), options.get("ntasks-per-node", "1")
    step = {
        "SLURM_JOB_ID": number,
        "SLURM_JOB_NAME": options["job-name"],
        "SLURM_NTASKS": str(int(nodes) * int(each)),
        "SLURM_NTASKS_PER_NODE": each,
    }
    step |= dict.fromkeys(("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID"), "0")
    step |= dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), nodes)
    step |= dict.fromkeys(
        ("SLURM_NODELIST", "SLURM_JOB_NODELIST"),
        f"127.0.0.[1-{nodes}]" if nodes > "1" else "localhost",
    )
    while True:
        state.write_text("RUNNING")
        with (STATE / f"{number}.out").open("ab") as output:
            script = ["bash", str(STATE / f"{number}.sh")]
            status = subprocess.call(script, env=os.environ | step, stdout=output, stderr=output)
        if not (STATE / f"{number}.requeue").exists():
            break
        (STATE / f"{number}.requeue").unlink()
    state.write_text("FAILED" if status else "COMPLETED")
    return 0


def srun(words: list[str]) -> int:
    output = next(words[at + 1] for at, word in enumerate(words) if word == "--output")
    command = words[next(at for at, word in enumerate(words) if "python" in word) :]
    number, tasks = os.environ["SLURM_JOB_ID"], int(os.environ["SLURM_NTASKS"])
    each = int(os.environ["SLURM_NTASKS_PER_NODE"])
    started = []
    for rank in range(tasks):
        place = {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(tasks)}
        place |= {"SLURM_LOCALID": str(rank % each), "SLURM_NODEID": str(rank // each)}
        (STATE / f"{number}.{rank}.place").write_text(json.dumps(place | {"words": words}))
        with Path(output.replace("%j", number).replace("%t", str(rank))).open("ab") as log:
            own: dict[str, Any] = {"env": os.environ | place, "stdout": log, "stderr": log}
            started.append(subprocess.Popen(command, start_new_session=True, **own))
    (STATE / f"{number}.pids").write_text(" ".join(str(process.pid) for process in started))
    return max(abs(process.wait()) for process in started)


def is_known(number: str) -> bool:
    return (STATE / f"{number}.state").exists() and not (STATE / f"{number}.forgotten").exists()


def squeue(words: list[str]) -> int:
    """Of a job that is not known, as Slurm says it of one that is asked for alone."""
    numbers = next(
        word.removeprefix("--jobs=") for word in words if word.startswith("--jobs=")
    ).split(",")
    for number in filter(is_known, numbers):
        print(f"{number}|{(STATE / f'{number}.state').read_text()}|None")
    if len(numbers) == 1 and not is_known(numbers[0]):
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    return 0


def sacct(words: list[str]) -> int:
    print("Slurm accounting storage is disabled", file=sys.stderr)
    return 1


def scontrol(words: list[str]) -> int:
    if words[-3:-1] == ["show", "job"]:
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    assert words[0] == "requeue"
    (STATE / f"{words[1]}.requeue").touch()
    return 0


def scancel(words: list[str]) -> int:
    name = words[2].removeprefix("SIG") if "--signal" in words else "TERM"
    number = signal.Signals[f"SIG{name}"]
    for pid in (STATE / f"{words[0]}.pids").read_text().split():
        with suppress(ProcessLookupError):
            os.killpg(int(pid), number)
    return 0


if __name__ == "__main__":
    is_job = sys.argv[1:2] == ["run"]
    command = "run" if is_job else Path(sys.argv[0]).name
    sys.exit(globals()[command](sys.argv[2:] if is_job else sys.argv[1:]))
