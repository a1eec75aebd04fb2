"""Send the numbers of a run to a tracker that could not be reached while the run trained."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from claims.text.phrases import count_noun
from clozelab.runs.record import Record
from clozelab.terminal import say
from clozelab.text.plain import PlainDict, hydra_text, read_json

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


# What a pre-training tells its trackers at its end, besides its held-out figures.
TRAINING_FACTS = (
    "total_steps",
    "matmul_ceiling",
    "parameters",
    "trained_parameters",
    "steps",
    "world_size",
    "batches_seen",
    "words",
    "steps_left_out",
    "tokens",
    "flops",
    "training_seconds",
    "tokens_per_second",
    "mfu",
)


def send(record: Record, logger: str) -> None:
    """Send one run's numbers to the tracker that `logger` names, or to those that it had.

    Raises:
        ValueError: there is no tracker to send to, or it cannot be reached.
    """
    from clozelab.assembly import factory
    from clozelab.runs.tracked import job_of_record
    from clozelab.training.background import reason
    from clozelab.training.catching_up import note_unsent, unsent

    folder = record.folder
    # Of a run that was moved or copied: a table in run_dir would be that of the old place.
    overrides = [f"run_dir={hydra_text(str(folder.resolve()))}"]
    if logger:
        overrides.append(f"logger={logger}")
    with factory.recompose_config(record, overrides) as composed:
        cfg = composed.config
        job = job_of_record(cfg, record)
        # Built in the folder that the run was started in: their paths may be relative to it.
        trackers = factory.build_trackers(cfg, job)
    if not trackers:
        raise ValueError(f"{folder} had no tracker to send to; say logger=mlflow or logger=wandb")
    for label, tracker in trackers.items():
        # A run notes what its trackers lack; one that is named may be new to it.
        if not logger and label not in unsent(folder):
            say(f"{label} has all values of {folder}")
            continue
        try:
            num_values = send_all(tracker, record, dict(job.config))
            end_run(tracker, record)
        except Exception as error:  # whatever a tracker's package raises
            raise ValueError(
                f"{label} did not take the numbers of {folder}"
                f" ({type(error).__name__}: {reason(error)}); try again later",
            ) from error
        note_unsent(folder, label, 0)
        say(f"{label} was sent {count_noun(num_values, 'value')} of {folder}")


def final_scores(record: Record) -> PlainDict:
    """The scores of a fine-tuning, or the facts of a pre-training; empty until it is complete."""
    path = record.folder / "scores.json"
    if not record.is_complete:
        return {}
    if path.is_file():
        results = read_json(path)
        of_training = {key: results[key] for key in ("best_step",) if key in results}
        return {**results["scores"], **of_training}
    scores = {}
    for key, value in record.facts.items():
        if key.startswith("validation/") or key in TRAINING_FACTS:
            scores[key] = value
    return scores


def send_all(tracker: Logger, record: Record, config: PlainDict) -> int:
    """Send all values of a run, in place of what the tracker had; returns how many.

    ValueError: the run has lost its metrics.csv, which what the tracker had would follow.
    """
    from clozelab.training.background import final_numbers
    from clozelab.training.catching_up import MetricCall, recorded_calls, send_again
    from clozelab.training.tracking import TensorBoardTracker, WandbTracker

    metrics_csv = record.folder / "metrics.csv"
    if not metrics_csv.is_file():
        raise ValueError(f"{metrics_csv} is missing: the tracker keeps what it has")
    if hasattr(tracker, "load_package"):
        tracker.load_package()
    # W&B has the configuration from its job, and TensorBoard never gets it.
    if not isinstance(tracker, WandbTracker | TensorBoardTracker):
        tracker.log_hyperparams(config)
    began = datetime.fromisoformat(record.started).timestamp()
    calls = recorded_calls(metrics_csv, began)
    # Another tracker than W&B has no place of its own for the final scores.
    if not hasattr(tracker, "summarise"):
        end = calls[-1].time if calls else began
        calls.append(MetricCall(final_numbers(final_scores(record)), 0, end))
    return send_again(tracker, calls)


def end_run(tracker: Logger, record: Record) -> None:
    """Give the final scores to a tracker that has a place of its own for them, and end its run."""
    if hasattr(tracker, "summarise"):
        tracker.summarise(final_scores(record))
    if hasattr(tracker, "close"):
        tracker.close(int(not record.is_complete))
    else:
        tracker.finalize("success" if record.is_complete else "failed")
