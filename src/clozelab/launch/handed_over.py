"""How the jobs stand that Slurm was handed: a file beside the logs of a sweep notes them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path

from claims.analysis.grouping import group_by
from claims.text.terminal import Heading
from clozelab.launch.slurm_queue import (
    IN_LINE,
    SlurmState,
    SlurmUnreachableError,
    query_slurm,
)
from clozelab.runs.find import HANDED_OVER_FILE, open_folder
from clozelab.runs.record import KILLED
from clozelab.terminal import print_table, say
from clozelab.text.plain import read_json

# how the run of a job stands that has ended -> how its job does
ENDS = {"interrupted": "stopped", "failed": "failed"}


def print_jobs_of_slurm(runs_dir: Path, experiment: str | None, scale: str | None) -> None:
    """Print how the jobs stand that Slurm was handed and that are not complete.

    Of every experiment and scale where none is named.
    """
    names = [Heading("Slurm job", is_number=True), *map(Heading, ("stands", "run", "reason"))]
    place = f"{experiment or '*'}/{scale or '*'}/launcher/slurm/{HANDED_OVER_FILE}"
    for notes_file in sorted(runs_dir.glob(place)):
        try:
            rows = unfinished_jobs(notes_file)
        except SlurmUnreachableError as error:
            say(f"Slurm does not answer ({error}); {notes_file} has what it was handed", "yellow")
            continue
        if rows:
            print_table(names, rows)


def unfinished_jobs(notes_file: Path) -> list[tuple[str, str, str, str]]:
    """Return the number of each job whose run is not complete, how it stands, run and reason.

    It stands as waiting, running, stopped, failed, cancelled or lost. The runs lie in the folder
    EXPERIMENT/SCALE that the note's own folder is in, wherever that has been moved, or where
    `run_dir=` has put them. Raises SlurmUnreachableError where the controller does not answer.
    """
    root = notes_file.parents[2]
    runs = {}
    for folder, note in read_json(notes_file).items():
        place = folder.partition(f"{root.parent.name}/{root.name}/")[2]
        if place:
            run = open_folder(root / place, root)
        else:
            run = open_folder(Path(folder), Path(folder).parent)
        if not run.is_complete:
            runs[note["job_id"]] = run
    if not runs:
        return []
    rows = []
    for job_id, state in query_slurm(runs).items():
        standing = "running"
        if state.name in IN_LINE:
            standing = "waiting"
        elif state.has_ended:
            standing = _end_of_job(state, runs[job_id].status)
        rows.append((job_id, standing, runs[job_id].place, state.reason))
    return rows


def _end_of_job(state: SlurmState, run_status: str) -> str:
    """Say how a job ended whose run is not complete."""
    if run_status in ENDS:
        return ENDS[run_status]
    if state.name == "CANCELLED":
        return "cancelled"
    # A job that comes to its own end is COMPLETED for Slurm, whatever its exit status. Such a job
    # may have failed before it had a run.
    if state.name == "COMPLETED" and run_status != KILLED:
        return "failed"
    return "lost"


def print_unbegun(jobs: Sequence[tuple[str, str, Path]]) -> None:
    """Print why jobs ended before their run began: each reason once."""
    for reason, same in group_by(jobs, itemgetter(1)).items():
        place, _, log = same[0]
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        say(f"failed before its run began: {place}{more}: {reason}", "yellow", wraps=True)
        say(f"  log: {log}", style="dim")
