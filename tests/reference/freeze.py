"""Computes what the frozen reference is about, in one process on one thread.

    python -m tests.reference.freeze                  writes tests/reference/frozen.json anew
    python -m tests.reference.freeze FILE CASE ...    writes FILE with these cases alone (the test
    does, and compares)

Freeze anew only where other numbers are meant, and write the reason down in docs/decisions: a
refactor never does.
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
from tests.reference import doors, rejudge

FROZEN = Path(__file__).with_name("frozen.json")


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
    return found


def compute(root: Path, wanted: Collection[str] = ()) -> dict[str, Any]:
    """Case -> what it gives; of a case that fails, its traceback under "error". Of all, or of those
    that are wanted.
    """
    found: dict[str, Any] = {"machine": machine()}
    for case, give in cases(root).items():
        # which others begin from
        if not wanted or case in wanted or case in ("pretrain mlm_nsp", "pretrain ltr"):
            try:
                found[case] = give()
            except Exception:
                found[case] = {"error": traceback.format_exc()}
    return found


def machine() -> dict[str, str]:
    """What decides in which order a machine sums: bitwise equality is asked for between equal ones
    only.
    """
    cpu = Path("/proc/cpuinfo")
    lines = (
        cpu.read_text(encoding="utf-8").partition("\n\n")[0].splitlines() if cpu.is_file() else []
    )
    facts: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    return {
        "cpu": " ".join(
            facts.get(key, "") for key in ("model name", "cpu family", "model", "stepping")
        ),
        "flags": (
            hashlib.sha256(" ".join(sorted(facts.get("flags", "").split())).encode()).hexdigest()[
                :16
            ]
        ),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def text(value: Any, depth: int = 0) -> str:
    """JSON with one line a list of numbers, so that a difference can be read; floats as Python
    writes them.
    """
    pad = "\n" + " " * (depth + 1)
    if isinstance(value, dict) and value:
        lines = (f"{json.dumps(key)}: {text(one, depth + 1)}" for key, one in value.items())
        return "{" + ",".join(pad + line for line in lines) + pad[:-1] + "}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[" + ",".join(pad + json.dumps(one) for one in value) + pad[:-1] + "]"
    return json.dumps(value)


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else FROZEN
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = compute(Path(folder), sys.argv[2:])
    failed = {case: one["error"] for case, one in found.items() if "error" in one}
    if failed and path == FROZEN:
        print(
            *failed.values(),
            f"nothing frozen: {', '.join(failed)} failed",
            sep="\n",
            file=sys.stderr,
        )
        return 1
    path.write_text(text(found) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
