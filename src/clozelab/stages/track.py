"""`clozelab track`: the numbers that a tracker is missing, sent from metrics.csv once it answers
again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozelab.runs.record import RUN_FILE, Record, read_record
from clozelab.terminal import Words, make_console, say, verb
from clozelab.text.formatting import several
from clozelab.training.measuring import SECONDS_KEY, TOKENS_KEY, read_rows

if TYPE_CHECKING:
    from rich.console import Console

    from clozelab.training.background import Numbers

HELP = """clozelab track FOLDER ... [logger=mlflow|wandb]

Sends what a tracker is missing of runs, from their metrics.csv and scores. The last line of a run's log gives this
command where its tracker was away.

  FOLDER    a run folder; or one above run folders: those below it of which something is missing
  logger=   to which tracker (those that the run had); a run that had none can be sent too

MLflow is asked which steps it has, and gets the others. The server is the one that MLFLOW_TRACKING_URI names."""
LOCAL = ("tensorboard", "csv")  # they write files in the run folder
NUMBERS_A_CALL = 200
# facts of a training
MEASURED = ("tokens", "flops", "training_seconds", "tokens_per_second", "mfu")


@verb("track", HELP, names=(1, None), keys=("logger",))
def main(said: Words) -> int:
    """Send the numbers; returns the exit status."""
    console = make_console()
    folders = list(dict.fromkeys(_run_folders(map(Path, said.names))))
    if not folders:
        say(console, f"nothing is missing of the runs below {' '.join(said.names)}")
    for folder in folders:
        record = read_record(folder)
        if record is None:
            raise ValueError(f"{folder / RUN_FILE} cannot be read; give the folder of a run")
        send(record, said.values.get("logger", ""), console)
    return 0


def _run_folders(places: Iterator[Path]) -> Iterator[Path]:
    """A run folder is itself; of any other folder those below it that lack something. ValueError:
    no such folder."""
    from clozelab.training.background import UNSENT_FILE

    for place in places:
        if not place.is_dir():
            raise ValueError(f"{place} is no folder; give the folder of a run")
        if (place / RUN_FILE).is_file():
            yield place
        else:
            yield from (note.parent for note in sorted(place.rglob(UNSENT_FILE)))


def send(record: Record, wanted: str, console: Console) -> None:
    """Send one run's numbers to its trackers, or to the one that is `wanted`.

    Raises ValueError where there is none, or where it is still away.
    """
    from clozelab.report.tracked import job_of_record
    from clozelab.stages import factory
    from clozelab.training.background import note_unsent, reason

    folder = Path(record.folder)
    with factory.recompose_config(record, [f"logger={wanted}"] if wanted else []) as cfg:
        job = job_of_record(cfg, record)
        trackers = factory.build_trackers(cfg, job)
    trackers = {label: tracker for label, tracker in trackers.items() if label not in LOCAL}
    if not trackers:
        raise ValueError(f"{folder} had no tracker to send to; say logger=mlflow or logger=wandb")
    calls = list(_calls(folder, record))
    for label, tracker in trackers.items():
        try:
            count = _send(tracker, calls, dict(job.config))
            _end(tracker, record)
        except Exception as error:  # whatever a tracker's package raises
            why = f"{type(error).__name__}: {reason(error)}"
            raise ValueError(
                f"{label} did not take the numbers of {folder} ({why}); try again later",
            ) from error
        note_unsent(folder, label, 0)
        say(console, f"{label} was sent {several(count, 'value')} of {folder}")


def _send(tracker: Any, calls: Sequence[Numbers], config: dict[str, Any]) -> int:
    """The number of values sent; those of steps that the tracker says it has are left out."""
    from clozelab.training.tracking import WandbTracker

    if hasattr(tracker, "load_package"):
        tracker.load_package()
    known = _known_steps(tracker, calls)
    if not isinstance(tracker, WandbTracker):  # it has the configuration from its job
        tracker.log_hyperparams(config)

    unsent = [_without_known(call, known) for call in calls]
    unsent = [call for call in unsent if call.metrics]
    for begin in range(0, len(unsent), NUMBERS_A_CALL):
        part = unsent[begin : begin + NUMBERS_A_CALL]
        if hasattr(tracker, "log_many"):
            tracker.log_many(part)
            continue
        for call in part:
            tracker.log_metrics(call.metrics, call.step)
    return sum(len(call.metrics) for call in unsent)


def _known_steps(tracker: Any, calls: Sequence[Numbers]) -> dict[str, set[int]]:
    """For each metric the steps that a tracker has; empty for one that cannot say it."""
    if not hasattr(tracker, "known_steps"):
        return {}
    keys: set[str] = set()
    for call in calls:
        keys |= call.metrics.keys()
    return {key: tracker.known_steps(key) for key in sorted(keys)}


def _end(tracker: Any, record: Record) -> None:
    """Give the final scores to a tracker that has a place of its own for them, and end its run."""
    if hasattr(tracker, "summarise"):
        tracker.summarise(_final_scores(record))
    exit_code = 1
    if record.is_complete:
        exit_code = 0
    if hasattr(tracker, "close"):
        tracker.close(exit_code)
    else:
        tracker.finalize("failed" if exit_code else "success")


def _calls(folder: Path, record: Record) -> Iterator[Numbers]:
    """What the trackers were told in training, from metrics.csv: one call a step, then the final
    scores."""
    from clozelab.training.background import Numbers

    began = datetime.fromisoformat(record.started).timestamp()
    seconds = 0.0
    for step, rows in itertools.groupby(
        read_rows(folder / "metrics.csv"),
        key=lambda row: row.step,
    ):
        metrics: dict[str, float] = {}
        for row in rows:
            metrics |= {TOKENS_KEY: float(row.tokens), SECONDS_KEY: row.seconds, row.key: row.value}
            seconds = row.seconds
        yield Numbers(metrics, step, began + seconds)
    scores = {f"final/{key}": float(value) for key, value in _final_scores(record).items()}
    yield Numbers(scores, 0, began + seconds)


def _final_scores(record: Record) -> dict[str, float]:
    """Of a complete run: the scores of a fine-tuning, the facts of a pre-training."""
    if not record.is_complete:
        return {}
    path = Path(record.folder) / "scores.json"
    if path.is_file():
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["scores"]
    else:
        values = {
            key: value
            for key, value in record.facts.items()
            if key.startswith("validation/") or key in MEASURED
        }
    return {key: value for key, value in values.items() if isinstance(value, int | float)}


def _without_known(call: Numbers, known: dict[str, set[int]]) -> Numbers:
    if call.step is None:
        step = 0
    else:
        step = call.step
    metrics = {key: value for key, value in call.metrics.items() if step not in known.get(key, ())}
    return replace(call, metrics=metrics)
