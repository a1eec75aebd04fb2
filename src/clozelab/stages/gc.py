"""`clozelab gc`: what could be deleted without losing a result; it deletes nothing unless told to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clozelab.runs.find import find_below
from clozelab.runs.gc import KINDS, delete, describe_size, find_garbage
from clozelab.terminal import Heading, make_console, make_table, parse, path_of, say, wants_help

HELP = """clozelab gc [runs_dir=FOLDER] [cache_dir=FOLDER] [what=KIND,...] [older_than=DAYS] [--delete]

Lists what could be deleted, with its size; --delete deletes what is listed. A folder that a process holds is never
touched, nor is anything that changed within the last hour.

  what=KIND,...     checkpoints  of complete runs: their encoders stay, they are never trained on
                    leftovers    temporary files and folders of killed processes
                    cache        prepared corpora and tokenised tasks that no run in runs_dir refers to (runs elsewhere
                                 may; what they need is made again)
                    unfinished   failed, interrupted and killed runs, whole: what they have learnt is lost
                    without what=, the first three
  older_than=DAYS   adds unfinished runs that ended longer ago (with what=unfinished alone: any)"""
DEFAULT = ("checkpoints", "leftovers", "cache")


def main(words: Sequence[str]) -> int:
    """List, and delete if told to; 1 if something could not be deleted."""
    if wants_help(words):
        print(HELP)
        return 0
    said = parse("gc", words, names=(0, 0), keys=("runs_dir", "cache_dir", "what", "older_than"), flags=("delete",))
    kinds = said.values["what"].split(",") if "what" in said.values else [*DEFAULT]
    if set(kinds) - set(KINDS):
        raise ValueError(f"what={','.join(sorted(set(kinds) - set(KINDS)))}: there are {', '.join(KINDS)}")
    days = number_of_days(said.values.get("older_than", "0"))
    kinds += ["unfinished"] if "older_than" in said.values else []
    runs_dir, cache_dir = (Path(path_of(name, said.values)) for name in ("runs_dir", "cache_dir"))
    items = [one for one in find_garbage(find_below(str(runs_dir)), runs_dir, cache_dir, days) if one.kind in kinds]
    console = make_console()
    if not items:
        say(console, "nothing to delete; what changed within the last hour is left alone")
        return 0
    headings = [Heading("kind"), Heading("size", is_number=True), Heading("why", drop=1), Heading("path", folds=True)]
    rows = [[one.kind, describe_size(one.num_bytes), one.reason, str(one.path)] for one in items]
    console.print(make_table(headings, rows, console.width))
    for kind in KINDS:
        sizes = [one.num_bytes for one in items if one.kind == kind]
        if sizes:
            say(console, f"{describe_size(sum(sizes)):>9}  {len(sizes)} {kind}: {KINDS[kind]}")
    if "delete" not in said.flags:
        say(console, "nothing was deleted; --delete deletes the above")
        return 0
    kept = [(one, why) for one in items if (why := delete(one))]
    for one, why in kept:
        say(console, f"kept: {one.path}: {why}", style="yellow")
    freed = sum(one.num_bytes for one in items) - sum(one.num_bytes for one, _ in kept)
    say(console, f"deleted {len(items) - len(kept)}, {describe_size(freed)}")
    return 1 if kept else 0


def number_of_days(text: str) -> float:
    """A number of days that is not negative.

    Raises:
        ValueError: it is none.
    """
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not days >= 0.0:
        raise ValueError(f"older_than={text}: give a number of days")
    return days
