"""`clozelab gc`: what could be deleted without losing a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import filesize

from claims.text.terminal import Heading
from clozelab.files.origin import RUN_FILE
from clozelab.runs.cleanup import KINDS, Garbage, delete, find_garbage, unreadable_runs
from clozelab.runs.find import find_below
from clozelab.terminal import ParsedArgs, path_of, print_table, say, verb

HELP = """clozelab gc [runs_dir=FOLDER] [cache_dir=FOLDER] [what=KIND,...] [--delete]

Lists what could be deleted, with its size; --delete deletes what is listed. A
folder that a process holds is never touched, nor is anything that changed
within the last hour.

  what=KIND,...   some of checkpoints, leftovers, cache; the list says what each
                  is. Cache that runs elsewhere need is made again."""


@verb(
    "gc",
    HELP,
    names=(0, 0),
    keys=("runs_dir", "cache_dir", "what"),
    flags=("delete",),
)
def main(args: ParsedArgs) -> int:
    """List what could be deleted, and delete it if told to; 1 if something could not be."""
    items = find_items(args.values)
    if not items:
        say("nothing to delete; what changed within the last hour is left alone")
        return 0
    print_items(items)
    if "delete" not in args.flags:
        say("nothing was deleted; --delete deletes the above")
        return 0
    return delete_items(items)


def find_items(values: Mapping[str, str]) -> list[Garbage]:
    """Find what may go of the kinds that a command line names; ValueError for a wrong value."""
    kinds = list(KINDS)
    if "what" in values:
        kinds = values["what"].split(",")
    unknown_kinds = sorted(set(kinds) - set(KINDS))
    if unknown_kinds:
        raise ValueError(f"what={','.join(unknown_kinds)}: there are {', '.join(KINDS)}")
    runs_dir = Path(path_of("runs_dir", values))
    cache_dir = Path(path_of("cache_dir", values))
    records = find_below(str(runs_dir))
    items = find_garbage(records, runs_dir, cache_dir)
    for run in unreadable_runs(records)[:1]:
        path = run.folder / RUN_FILE
        say(f"the cache is left alone, because this record cannot be read: {path}", "yellow")
    return [item for item in items if item.kind in kinds]


def print_items(items: Sequence[Garbage]) -> None:
    """Print a line for each thing that may go, and the sum of each kind."""
    headings = [
        Heading("kind"),
        Heading("size", is_number=True),
        Heading("why", drop=1),
        Heading("path", folds=True),
    ]
    rows = []
    for item in items:
        rows.append([item.kind, filesize.decimal(item.num_bytes), item.reason, str(item.path)])
    print_table(headings, rows)
    for item_kind, description in KINDS.items():
        sizes = [item.num_bytes for item in items if item.kind == item_kind]
        if sizes:
            total = filesize.decimal(sum(sizes))
            say(f"{total:>9}  {len(sizes)} {item_kind}: {description}")


def delete_items(items: Sequence[Garbage]) -> int:
    """Delete what no process holds by now; returns 1 if something had to be kept."""
    num_deleted = 0
    freed_bytes = 0
    for item in items:
        num_bytes = item.num_bytes  # while it is there
        # It may be in use by now, or have changed since it was listed.
        reason = delete(item)
        if reason:
            say(f"kept: {item.path}: {reason}", style="yellow")
            continue
        num_deleted += 1
        freed_bytes += num_bytes
    say(f"deleted {num_deleted}, {filesize.decimal(freed_bytes)}")
    return int(num_deleted < len(items))
