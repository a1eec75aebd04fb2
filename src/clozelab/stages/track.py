"""`clozelab track`: the numbers that a tracker is missing, sent from metrics.csv once it answers
again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from clozelab.files.origin import RUN_FILE
from clozelab.runs.record import LOCK_FILE, Record, read_record
from clozelab.terminal import ParsedArgs, say, verb
from clozelab.text.formatting import several
from clozelab.text.plain import JsonObject, read_json
from clozelab.training.host import holder

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

HELP = """clozelab track FOLDER ... [logger=mlflow|wandb]

Sends what a tracker is missing of runs, from their metrics.csv and scores. The
last line of a run's log gives this command where its tracker was away; after a
kill, the same training sends them when it goes on.

  FOLDER    a run folder; or one above run folders: those below it of which
            something is missing
  logger=   to which tracker (those that the run had); a run that had none can
            be sent too

A tracker gets what it lacks: MLflow is asked, W&B's and TensorBoard's files are
read. MLflow's server is the one that MLFLOW_TRACKING_URI names."""
TRAINING_FACTS = ("tokens", "flops", "training_seconds", "tokens_per_second", "mfu")


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
        send(record, args.values.get("logger", ""))
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


def send(record: Record, logger: str) -> None:
    """Send one run's numbers to the tracker that `logger` names, or to those that it had.

    Raises:
        ValueError: there is none, or it is still away.
    """
    from clozelab.report.tracked import job_of_record
    from clozelab.stages import factory
    from clozelab.training.background import reason
    from clozelab.training.catching_up import note_unsent, unsent
    from clozelab.training.tracking import WandbTracker

    folder = record.folder
    overrides = []
    if logger:
        overrides.append(f"logger={logger}")
    with factory.recompose_config(record, overrides) as composed:
        cfg = composed.config
        job = job_of_record(cfg, record)
        trackers = factory.build_trackers(cfg, job)
    if not trackers:
        raise ValueError(f"{folder} had no tracker to send to; say logger=mlflow or logger=wandb")
    for label, tracker in trackers.items():
        is_noted = label in unsent(folder)
        try:
            num_values = send_missing(tracker, record, dict(job.config))
            # W&B would begin another folder for scores that it has.
            if num_values or is_noted or not isinstance(tracker, WandbTracker):
                end_run(tracker, record)
        except Exception as error:  # whatever a tracker's package raises
            raise ValueError(
                f"{label} did not take the numbers of {folder}"
                f" ({type(error).__name__}: {reason(error)}); try again later",
            ) from error
        note_unsent(folder, label, 0)
        say(f"{label} was sent {several(num_values, 'value')} of {folder}")


def final_scores(record: Record) -> JsonObject:
    """Of a complete run: the scores of a fine-tuning, the facts of a pre-training."""
    path = record.folder / "scores.json"
    if not record.is_complete:
        return {}
    if path.is_file():
        return read_json(path)["scores"]
    scores = {}
    for key, value in record.facts.items():
        if key.startswith("validation/") or key in TRAINING_FACTS:
            scores[key] = value
    return scores


def send_missing(tracker: Logger, record: Record, config: JsonObject) -> int:
    """Send all but what the tracker says it has; returns the number of values sent."""
    from clozelab.training.background import final_numbers
    from clozelab.training.catching_up import (
        Numbers,
        catch_up,
        give,
        recorded_by,
        recorded_calls,
        unrecorded,
    )
    from clozelab.training.tracking import TensorBoardTracker, WandbTracker

    if hasattr(tracker, "load_package"):
        tracker.load_package()
    # W&B has the configuration from its job, and TensorBoard never gets it.
    if not isinstance(tracker, WandbTracker | TensorBoardTracker):
        tracker.log_hyperparams(config)
    recorded = recorded_by(tracker)
    if recorded is None:
        recorded = {}
    began = datetime.fromisoformat(record.started).timestamp()
    calls = recorded_calls(record.folder / "metrics.csv", began)
    num_values, beside = catch_up(tracker, calls, recorded)
    # Another tracker than W&B has no place of its own for the final scores.
    if not hasattr(tracker, "summarise"):
        end = calls[-1].time if calls else began
        finals = [Numbers(final_numbers(final_scores(record)), 0, end)]
        missing = unrecorded(finals, beside)
        give(tracker, missing)
        num_values += sum(call.size for call in missing)
    return num_values


def end_run(tracker: Logger, record: Record) -> None:
    """Give the final scores to a tracker that has a place of its own for them, and end its run."""
    if hasattr(tracker, "summarise"):
        tracker.summarise(final_scores(record))
    if hasattr(tracker, "close"):
        tracker.close(int(not record.is_complete))
    else:
        tracker.finalize("success" if record.is_complete else "failed")
