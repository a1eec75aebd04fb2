"""Computes what the frozen reference is about, in one process on one thread.

    python -m tests.reference.freeze                  writes both files of FROZEN anew
    python -m tests.reference.freeze CASE ...         freezes these cases anew in frozen_tasks.json,
    on a machine like the one that froze it
    python -m tests.reference.freeze FILE.json CASE ...    writes FILE with these cases alone (the
    test does, and compares)

Freeze anew only where other numbers are meant, and write the reason down in README.md beside this
file: a refactor never does.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy
import torch
from tests.reference import doors, rejudge, task_doors

FROZEN = Path(__file__).with_name("frozen.json")
FROZEN_TASKS = Path(__file__).with_name("frozen_tasks.json")
"""The second file has the cases of task_doors.py, and of the first one's the digests that another
machine makes.
"""
BEGUN_FROM = ("pretrain mlm_nsp", "pretrain ltr")
"""Cases that others begin from."""


def cases(root: Path) -> dict[str, Callable[[], Any]]:
    """Case -> what computes it, in the order in which one needs another."""
    found: dict[str, Callable[[], Any]] = {}
    for name in doors.PRETRAININGS:
        found[f"pretrain {name}"] = lambda name=name: doors.pretraining(doors.pretrain(root, name))
    found["world"] = lambda: doors.world(root)
    for name in doors.FINETUNINGS:
        found[f"finetune {name}"] = lambda name=name: doors.finetuning(doors.finetune(root, name))
    for name in rejudge.REPORTS:
        found[f"verdicts {name}"] = lambda name=name: {"verdicts": rejudge.rejudge(name)}
    return found | task_cases(root)


def task_cases(root: Path) -> dict[str, Callable[[], Any]]:
    """The cases of task_doors.py."""
    found: dict[str, Callable[[], Any]] = {}
    for name in task_doors.FINETUNINGS:
        found[f"finetune {name}"] = lambda name=name: doors.finetuning(
            task_doors.finetune(root, name)
        )
    for name in task_doors.EVALUATIONS:
        found[f"evaluate {name}"] = lambda name=name: task_doors.evaluation(root, name)
    found["batches"] = lambda: task_doors.batches(root)
    found["formats"] = lambda: task_doors.formats(root)
    found["fingerprints of data"] = lambda: task_doors.data_fingerprints(root)
    found["fingerprints of runs"] = lambda: task_doors.run_fingerprints(root)
    return found


def compute(root: Path, wanted: Collection[str] = ()) -> dict[str, Any]:
    """Case -> what it gives, or its traceback under "error"; of all, or of the wanted ones."""
    found: dict[str, Any] = {"machine": machine()}
    for case, give in cases(root).items():
        if not wanted or case in wanted or case in BEGUN_FROM:
            try:
                found[case] = give()
            except Exception:
                found[case] = {"error": traceback.format_exc()}
    return found


def machine() -> dict[str, str]:
    """What decides in which order a machine sums: bits are compared between equal ones."""
    cpu = Path("/proc/cpuinfo")
    content = cpu.read_text(encoding="utf-8") if cpu.is_file() else ""
    facts: dict[str, str] = {}
    for line in content.partition("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    names = ("model name", "cpu family", "model", "stepping")
    flags = " ".join(sorted(facts.get("flags", "").split()))
    return {
        "cpu": " ".join(facts.get(key, "") for key in names),
        "flags": hashlib.sha256(flags.encode()).hexdigest()[:16],
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def text(value: Any, depth: int = 0) -> str:
    """JSON with one line a list of numbers, so that a difference can be read."""
    pad = "\n" + " " * (depth + 1)
    if isinstance(value, dict) and value:
        lines = (f"{json.dumps(key)}: {text(one, depth + 1)}" for key, one in value.items())
        return "{" + ",".join(pad + line for line in lines) + pad[:-1] + "}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[" + ",".join(pad + json.dumps(one) for one in value) + pad[:-1] + "]"
    return json.dumps(value)


def digests_alone(value: Any) -> Any:
    """What a case has of texts: the digests of weights and predictions."""
    if not isinstance(value, dict):
        return value
    texts = {key: digests_alone(one) for key, one in value.items() if isinstance(one, str | dict)}
    return {key: one for key, one in texts.items() if one}


def in_two_files(found: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What frozen.json and frozen_tasks.json have."""
    of_tasks = task_cases(FROZEN)
    first = {case: one for case, one in found.items() if case not in of_tasks}
    second = {"machine": found["machine"]}
    for case, one in found.items():
        if case in of_tasks:
            second[case] = one
        elif "one_machine" in one:
            second[case] = {"one_machine": digests_alone(one["one_machine"])}
    return first, second


def renew(found: dict[str, Any], wanted: Collection[str]) -> None:
    """Freeze some cases anew, beside all others."""
    frozen = json.loads(FROZEN_TASKS.read_text(encoding="utf-8"))
    if frozen["machine"] != found["machine"]:
        raise SystemExit(f"{FROZEN_TASKS} is of another machine, so freeze all anew")
    _, now = in_two_files(found)
    save(FROZEN_TASKS, frozen | {case: now[case] for case in wanted})


def save(path: Path, found: dict[str, Any]) -> None:
    path.write_text(text(found) + "\n", encoding="utf-8")


def main() -> int:
    words = sys.argv[1:]
    is_for_test = bool(words) and words[0].endswith(".json")
    wanted = words[1:] if is_for_test else words
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = compute(Path(folder), wanted)
    failed = {case: one["error"] for case, one in found.items() if "error" in one}
    if is_for_test:
        save(Path(words[0]), found)
    elif failed:
        told = f"nothing frozen: {', '.join(failed)} failed"
        print(*failed.values(), told, sep="\n", file=sys.stderr)
        return 1
    elif wanted:
        renew(found, wanted)
    else:
        first, second = in_two_files(found)
        save(FROZEN, first)
        save(FROZEN_TASKS, second)
    return 0


if __name__ == "__main__":
    sys.exit(main())
