"""`clozelab runs [EXPERIMENT]`: every run folder, one line each; what is damaged is shown, not hidden."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from clozelab.runs.find import find_below, no_match, select
from clozelab.runs.progress import elapsed
from clozelab.runs.record import STATUSES, Record
from clozelab.suggestions import DASH, duration
from clozelab.terminal import Heading, make_console, make_table, parse, path_of, say, wants_help

HELP = """clozelab runs [EXPERIMENT] [runs_dir=FOLDER] [name=value ...] [--csv]

Every run folder: arm or row, task, seeds, status, headline score, time, beginning, fingerprint.

  status=failed,killed   only these; status is complete, running, killed, interrupted, failed or damaged
  scale= stage= name= task= seeds=   likewise (name: arm or row; seeds: 1, or pre-training/fine-tuning 1/2)
  --csv                  every field, with whole fingerprints and folders

killed: the record says running, but no process holds the folder. The same command goes on where it was."""
FILTERS = ("status", "scale", "stage", "name", "task", "seeds")
FIELDS = ("experiment", "scale", "stage", "name", "task", "seeds", "status", "metric", "score", "seconds", "started",
          "fingerprint", "place", "problem")  # fmt: skip
STAGES = {"pretrain": "pre-training", "finetune": "fine-tuning"}


def main(words: Sequence[str]) -> int:
    """Print the runs; returns the exit status."""
    if wants_help(words):
        print(HELP)
        return 0
    said = parse("runs", words, names=(0, 1), keys=("runs_dir", *FILTERS), flags=("csv",))
    filters = {key: value for key, value in said.values.items() if key in FILTERS}
    found = find_below(path_of("runs_dir", said.values))
    name = said.names[0] if said.names else None
    records = select(found, name, filters)
    if "csv" in said.flags:
        return write_csv(records)
    if found and not records:
        say(make_console(), no_match(found, name, filters))
        return 0
    return show(records)


def write_csv(records: Sequence[Record]) -> int:
    """To standard output."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(FIELDS)
    writer.writerows(["" if (value := getattr(one, key)) is None else value for key in FIELDS] for one in records)
    return 0


def show(records: Sequence[Record]) -> int:
    """One table an experiment, scale and stage; the reasons of what went wrong below."""
    console = make_console()
    for key, group in groupby(records, key=lambda one: (one.experiment, one.scale, one.stage)):
        say(console, " ".join(filter(None, (*key[:2], STAGES.get(key[2], key[2]) or "unknown"))), style="bold")
        runs = list(group)
        last = (("score", True, 0), ("time", True, 2), ("started (UTC)", False, 3), ("fingerprint", False, 4))
        names = ("arm", "seed") if key[2] == "pretrain" else ("row", "task", "seeds")
        headings = [*map(Heading, names), Heading("status"), *(Heading(*one) for one in last)]
        console.print(make_table(headings, [cells(one) for one in runs], console.width))
    counts = Counter(one.status for one in records)
    parts = [f"{counts[status]} {status}" for status in STATUSES if counts[status]]
    say(console, f"{len(records)} runs{': ' if parts else ''}{', '.join(parts)}")
    for one in records:
        if one.problem:
            say(console, f"{one.status}: {one.place}: {one.problem}", style="yellow")
    return 0


def shown_time(text: str) -> str:
    """UTC, to the minute."""
    return text[:16].replace("T", " ")


def cells(one: Record) -> list[str]:
    """A run's line; a damaged folder that says nothing else has its place."""
    score = DASH if one.score is None else f"{one.score:.1f}" if one.stage == "finetune" else f"loss {one.score:.3f}"
    names = [one.name or one.place, *([] if one.stage == "pretrain" else [one.task]), one.seeds]
    return [*names, one.status, score, duration(elapsed(one)), shown_time(one.started), one.fingerprint[:8]]
