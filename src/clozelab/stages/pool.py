"""`clozelab pool`: the runs of several packs become one table."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

from clozelab.files.origin import RUN_FILE
from clozelab.results.experiment import list_experiments
from clozelab.results.pooling import (
    check_archives,
    copy_files,
    merge_notes,
    open_intact_archive,
    pooling_lock,
)
from clozelab.runs.archive import EXPERIMENT, RunArchive, describe_machines
from clozelab.runs.find import find
from clozelab.terminal import ParsedArgs, path_of, say, verb

HELP = """clozelab pool FILE... [runs_dir=FOLDER]

Puts the runs of packs into runs_dir (default `runs`), beside those that are
there, so that report, status, runs and reproduce find one table. The same pack
again changes nothing.

All of it is refused, before anything is written, where a pack is damaged, was
made by newer code, judges an experiment by other claims than another pack, has
another run of a cell that is there already, or brings a second results version
into a column. Runs of one row that were made in different ways are named by the
report, which then decides nothing by them."""


@verb("pool", HELP, names=(1, None), keys=("runs_dir",))
def main(args: ParsedArgs) -> int:
    """Put the runs of packs where they belong; returns the exit status."""
    runs_dir = Path(path_of("runs_dir", args.values))
    with tempfile.TemporaryDirectory(prefix="clozelab-pool-") as folder:
        archives = []
        for number, name in enumerate(args.names):
            archives.append(open_intact_archive(name, Path(folder) / str(number)))
        check_archives(archives, runs_dir)  # refused before anything is written
        with pooling_lock(runs_dir):
            new_files = check_archives(archives, runs_dir)
            copy_files(new_files, runs_dir)
            merge_notes(archives, runs_dir)
    print_summary(runs_dir, new_files)
    for command in dict.fromkeys(report_command(archive, runs_dir) for archive in archives):
        say(f"next: {command}")
    return 0


def report_command(archive: RunArchive, runs_dir: Path) -> str:
    """The shell command that judges the runs of a pack, where they are now."""
    manifest = archive.manifest
    if not manifest.experiment:
        return shlex.join(["clozelab", "report", str(runs_dir / manifest.root)])
    settings = [f"scale={manifest.scale}", f"runs_dir={runs_dir}"]
    if manifest.experiment in list_experiments():
        return shlex.join(["clozelab", "report", manifest.experiment, *settings])
    # An experiment of somebody's own travels in the pack.
    place = f"{EXPERIMENT}/{manifest.experiment}"
    unpack = shlex.join(["unzip", str(archive.path), f"{EXPERIMENT}/*"])
    return f"{unpack} && {shlex.join(['clozelab', 'report', place, *settings])}"


def print_summary(runs_dir: Path, new_files: Mapping[str, Path]) -> None:
    """Say how many runs were added, and which machines made all that are there now."""
    num_added = sum(name.endswith(f"/{RUN_FILE}") for name in new_files)
    records = find(runs_dir).records
    sentences = [f"{num_added} runs added, {len(records) - num_added} were there"]
    machines = describe_machines(records)
    if machines:
        sentences.append(machines)
    say(f"{runs_dir}: {'; '.join(sentences)}")
