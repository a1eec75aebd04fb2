"""`clozelab verify RUN`: train a stretch of a run again, elsewhere, and say whether it is the same run.

The run's own command goes on from a copy of its earlier checkpoint, in a process of its own and a temporary folder, up
to the step of its last one. So what is tested is what a resumed run does: restore, data, masks, dropout, kernels.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clozelab.runs.fingerprint import flatten
from clozelab.runs.record import Record, write_record
from clozelab.stages.compare import open_run
from clozelab.suggestions import key_of
from clozelab.terminal import Words, make_console, say, verb
from clozelab.training.host import host_facts
from clozelab.training.measuring import read_rows
from clozelab.training.stopping import TERMINATED, die_with_parent

HELP = """clozelab verify RUN

Trains a stretch of a run again: from its earlier checkpoint (from the beginning, where there is one alone) to its last
one, in a temporary folder; nothing of the run is touched. Compares the digest of all batches, every logged figure,
weights and optimizer state. Exit status 0: the same run; 1: it is not, or it cannot be trained again.

To the bit on a CPU, or with trainer.deterministic=true, where machine and torch are those of the run. Otherwise the
digest, and figures within 1 %."""
TIMED = ("train/tokens_per_second", "train/mfu")
TOLERANCE = 0.01  # of figures, where bits cannot be expected to be the same
OWN_KEYS = ("run_dir", "logger", "stop_after_step", "share_runs", "trainer.threads")
SHOWN_CHARACTERS = 600  # of the end of what a failed process said


@verb("verify", HELP, names=(1, 1))
def main(said: Words) -> int:
    """Print one sentence; returns the exit status."""
    record, console = open_run(said.names[0]), make_console()
    with tempfile.TemporaryDirectory(prefix="clozelab-verify-") as place:
        stretch, found = train_again(record, Path(place))
    verdict = f"is not the same run: {'; '.join(found)}" if found else "is the same run"
    say(console, f"{record.folder} {verdict} ({stretch})", style="bold red" if found else "green")
    return int(bool(found))


def train_again(record: Record, place: Path) -> tuple[str, list[str]]:
    """Which stretch of a run was trained again in `place`, and how compared; what differs."""
    from clozelab.training.checkpoints import LAST, PREVIOUS, load_file  # torch: a mistake need not wait for it

    theirs, ours = record.folder / "checkpoints", place / "run" / "checkpoints"
    if record.shared or not record.config_name or not (theirs / LAST).is_file():
        why = f"shares {record.shared.run}: verify that" if record.shared else f"has no {theirs / LAST}"
        raise ValueError(f"{record.folder} {why if record.config_name else 'was not made by a command line'}")
    ours.mkdir(parents=True)
    last, first = load_file(theirs / LAST), 0
    if (theirs / PREVIOUS).is_file():
        first = load_file(Path(shutil.copyfile(theirs / PREVIOUS, ours / LAST)))["global_step"]
    write_record(record.model_copy(update={"folder": ours.parent, "status": "interrupted"}))
    words = [word for word in record.words if key_of(word) not in OWN_KEYS and not word.startswith("logger.")]
    words += ["logger=none", f"run_dir={ours.parent}", f"stop_after_step={last['global_step']}"]
    words += ["share_runs=false"] if record.stage == "pretrain" else []
    words += [f"trainer.threads={record.facts['threads']}"] if "threads" in record.facts else []
    options: Any = {"cwd": record.started_in or None, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    command = [sys.executable, "-m", "clozelab", *words]
    done = subprocess.run(command, errors="replace", preexec_fn=die_with_parent, **options)
    if done.returncode not in (0, TERMINATED) or not (ours / LAST).is_file():
        raise ValueError(f"{record.folder} cannot be trained again: {done.stderr.strip()[-SHOWN_CHARACTERS:]}")
    again, steps, is_exact = load_file(ours / LAST), range(first + 1, last["global_step"] + 1), is_reproducible(record)
    found = [] if again["batches_seen"] == last["batches_seen"] else ["other batches were read"]
    found += figures_that_differ(record.folder, ours.parent, steps, 0.0 if is_exact else TOLERANCE)
    if is_exact and not is_same_state(again, last):
        found.append("weights or optimizer state differ")
    count = sum(row.step in steps and row.key not in TIMED for row in read_rows(record.folder / "metrics.csv"))
    how = "to the bit" if is_exact else f"by all batches, and by {count} figures within {TOLERANCE:.0%}"
    return f"steps {steps[0]} to {steps[-1]} trained again and compared {how}", found


def is_reproducible(record: Record) -> bool:
    """Whether this machine should give the very same bits."""
    trainer = record.config["trainer"]
    is_same = record.environment == host_facts()["environment"] and not record.facts.get("earlier_layouts")
    return is_same and (trainer["accelerator"] == "cpu" or trainer["deterministic"])


def figures_that_differ(theirs: Path, ours: Path, steps: range, tolerance: float) -> list[str]:
    """In words, of the logged figures of a stretch."""
    files = [read_rows(folder / "metrics.csv") for folder in (theirs, ours)]
    there, here = ({(row.step, row.key): row.value for row in file if row.step in steps} for file in files)
    pairs = {key: (there.get(key, math.nan), here.get(key, math.nan)) for key in there | here if key[1] not in TIMED}
    wrong = [key for key, (one, two) in pairs.items() if not abs(one - two) <= tolerance * abs(one)]
    if not wrong:
        return []
    (step, key), (before, now) = wrong[0], pairs[wrong[0]]
    return [f"{len(wrong)} of {len(pairs)} figures differ, first {key} of step {step}: {before:.6g}, now {now:.6g}"]


def is_same_state(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether weights and optimizer states of two checkpoints are the same to the bit."""
    parts = ("state_dict", "optimizer_states")
    flat, there = (flatten({key: content.get(key, {}) for key in parts}) for content in (one, other))
    tensors = {key: value for key, value in flat.items() if hasattr(value, "equal")}
    return flat.keys() == there.keys() and all(value.equal(there[key]) for key, value in tensors.items())
