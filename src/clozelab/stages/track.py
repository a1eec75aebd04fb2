"""`clozelab track`: the numbers that a tracker is missing, sent from metrics.csv once it answers
again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clozelab.assembly import sending
from clozelab.files.origin import RUN_FILE
from clozelab.runs.record import LOCK_FILE, read_record
from clozelab.terminal import ParsedArgs, say, verb
from clozelab.training.host import holder

HELP = """clozelab track FOLDER ... [logger=mlflow|wandb]

Sends what a tracker is missing of runs, from their metrics.csv and scores. The
last line of a run's log gives this command where its tracker was away; after a
kill, the same training sends them when it goes on.

  FOLDER    a run folder; or one above run folders: those below it of which
            something is missing
  logger=   to which tracker (those that the run had); a run that had none can
            be sent too

A tracker that lacks something is sent all of a run, in place of what it had.
W&B online keeps what it had, too. MLflow keeps equal values once. Its server is
the one that MLFLOW_TRACKING_URI names."""


@verb("track", HELP, names=(1, None), keys=("logger",))
def main(args: ParsedArgs) -> int:
    """Send the numbers; returns the exit status."""
    folders = run_folders(args.names)
    if not folders:
        say(f"nothing is missing of the runs below {' '.join(args.names)}")
    for folder in folders:
        record = read_record(folder)
        if record is None:
            raise ValueError(f"{folder / RUN_FILE} cannot be read; give the folder of a run")
        if holder(folder / LOCK_FILE) is not None:
            say(f"{folder} is in use by another process, which sends its numbers itself")
            continue
        sending.send(record, args.values.get("logger", ""))
    return 0


def run_folders(names: Sequence[str]) -> list[Path]:
    """List run folders: those named, and of any other folder those below that lack something.

    Raises:
        ValueError: there is no such folder.
    """
    from clozelab.training.catching_up import UNSENT_FILE

    folders = []
    for path in map(Path, names):
        if not path.is_dir():
            raise ValueError(f"{path} is no folder; give the folder of a run")
        if (path / RUN_FILE).is_file():
            folders.append(path)
        else:
            # A run leaves this file where its tracker was away.
            folders += (note.parent for note in sorted(path.rglob(UNSENT_FILE)))
    return list(dict.fromkeys(folders))
