"""`clozelab track`: the numbers that a tracker is missing, sent from metrics.csv once it answers
again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from clozelab.runs.record import RUN_FILE, Record, read_record
from clozelab.terminal import ParsedArgs, say, verb
from clozelab.text.formatting import several
from clozelab.text.plain import JsonObject, read_json
from clozelab.training.measuring import SECONDS_KEY, TOKENS_KEY, read_rows

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

    from clozelab.training.background import Numbers

HELP = """clozelab track FOLDER ... [logger=mlflow|wandb]

Sends what a tracker is missing of runs, from their metrics.csv and scores. The
last line of a run's log gives this command where its tracker was away.

  FOLDER    a run folder; or one above run folders: those below it of which
            something is missing
  logger=   to which tracker (those that the run had); a run that had none can
            be sent too

MLflow is asked which steps it has, and gets the others. The server is the one
that MLFLOW_TRACKING_URI names."""
LOCAL_TRACKERS = ("tensorboard", "csv")  # they write files in the run folder
# logged steps that a tracker is sent at once
NUMBERS_A_CALL = 200
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
        send(record, args.values.get("logger", ""))
    return 0


def run_folders(names: Sequence[str]) -> list[Path]:
    """List run folders: those named, and of any other folder those below that lack something.

    Raises:
        ValueError: there is no such folder.
    """
    from clozelab.training.background import UNSENT_FILE

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
    from clozelab.training.background import note_unsent, reason

    folder = record.folder
    overrides = []
    if logger:
        overrides.append(f"logger={logger}")
    with factory.recompose_config(record, overrides) as composed:
        cfg = composed.config
        job = job_of_record(cfg, record)
        trackers = factory.build_trackers(cfg, job)
    for label in LOCAL_TRACKERS:
        trackers.pop(label, None)
    if not trackers:
        raise ValueError(f"{folder} had no tracker to send to; say logger=mlflow or logger=wandb")
    calls = list(recorded_calls(folder, record))
    for label, tracker in trackers.items():
        try:
            num_values = send_missing(tracker, calls, dict(job.config))
            end_run(tracker, record)
        except Exception as error:  # whatever a tracker's package raises
            raise ValueError(
                f"{label} did not take the numbers of {folder}"
                f" ({type(error).__name__}: {reason(error)}); try again later",
            ) from error
        note_unsent(folder, label, 0)
        say(f"{label} was sent {several(num_values, 'value')} of {folder}")


def recorded_calls(folder: Path, record: Record) -> Iterator[Numbers]:
    """What the trackers were told in training: one call a step, then the final scores."""
    from clozelab.training.background import Numbers, final_numbers

    # metrics.csv has seconds since the beginning, trackers want the time of the clock.
    began = datetime.fromisoformat(record.started).timestamp()
    seconds = 0.0
    # A line holds one figure; the lines of a step stand together, as groupby wants them.
    for step, rows in itertools.groupby(read_rows(folder / "metrics.csv"), attrgetter("step")):
        metrics: dict[str, float] = {}
        for row in rows:
            metrics |= {TOKENS_KEY: float(row.tokens), SECONDS_KEY: row.seconds, row.key: row.value}
            seconds = row.seconds
        yield Numbers(metrics, step, began + seconds)
    yield Numbers(final_numbers(final_scores(record)), 0, began + seconds)


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


def send_missing(tracker: Logger, calls: Sequence[Numbers], config: JsonObject) -> int:
    """Send all but what the tracker says it has; returns the number of values sent."""
    from clozelab.training.tracking import WandbTracker

    if hasattr(tracker, "load_package"):
        tracker.load_package()
    known_steps = _known_steps(tracker, calls)
    if not isinstance(tracker, WandbTracker):  # it has the configuration from its job
        tracker.log_hyperparams(config)

    unsent = []
    for call in calls:
        metrics = {
            key: value
            for key, value in call.metrics.items()
            if call.step not in known_steps.get(key, ())
        }
        if metrics:
            unsent.append(replace(call, metrics=metrics))
    # A long run has thousands of steps: too many for a request each.
    if hasattr(tracker, "log_many"):
        for begin in range(0, len(unsent), NUMBERS_A_CALL):
            tracker.log_many(unsent[begin : begin + NUMBERS_A_CALL])
    else:
        for call in unsent:
            tracker.log_metrics(call.metrics, call.step)
    return sum(call.size for call in unsent)


def _known_steps(tracker: object, calls: Sequence[Numbers]) -> dict[str, set[int]]:
    """For each metric the steps that a tracker has; empty for one that cannot say it."""
    if not hasattr(tracker, "known_steps"):
        return {}
    keys = set(itertools.chain.from_iterable(call.metrics for call in calls))
    return {key: tracker.known_steps(key) for key in sorted(keys)}


def end_run(tracker: Logger, record: Record) -> None:
    """Give the final scores to a tracker that has a place of its own for them, and end its run."""
    if hasattr(tracker, "summarise"):
        tracker.summarise(final_scores(record))
    if hasattr(tracker, "close"):
        tracker.close(int(not record.is_complete))
    else:
        tracker.finalize("success" if record.is_complete else "failed")
