"""`clozelab runs`: every run folder, and how it stands."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from claims.text.phrases import count_noun, duration
from claims.text.terminal import Heading
from clozelab.runs.find import find_below, is_folder_of_runs, no_match, select
from clozelab.runs.outcome import score_in_context, shown_score
from clozelab.runs.progress import elapsed, trouble_of
from clozelab.runs.record import STAGE_NAMES, STATUSES, Record
from clozelab.terminal import ParsedArgs, path_of, print_table, say, verb

HELP = """clozelab runs [EXPERIMENT] [runs_dir=FOLDER] [name=value ...] [--csv]
clozelab runs FOLDER [name=value ...] [--csv]

Every run folder: arm or row, task, seeds, status, headline score, time,
beginning, fingerprint.

  status=failed,killed   only these; status is complete, running, killed,
                         interrupted, failed or damaged
  scale= stage= name= task= seeds=   likewise (name: arm or row; seeds: 1, or
                                     pre-training/fine-tuning 1/2)
  --csv                  every field, with whole fingerprints, folders and the
                         command that makes each run

killed: the record says running, but no process holds the folder. The same
command goes on where it was."""
FILTERS = ("status", "scale", "stage", "name", "task", "seeds")
CSV_FIELDS = (
    "experiment",
    "scale",
    "stage",
    "name",
    "task",
    "seeds",
    "status",
    "metric",
    "score",
    "seconds",
    "started",
    "machine",
    "fingerprint",
    "place",
    "problem",
    "command",
)
# The columns behind those that name a run: its result, then what a narrow screen leaves out.
RESULT_HEADINGS = (Heading("status"), Heading("score", is_number=True))
OPTIONAL_HEADINGS = (
    Heading("beside", drop=1, folds=True),
    Heading("time", is_number=True, drop=2),
    Heading("started (UTC)", drop=3),
    Heading("fingerprint", drop=4),
)


@verb("runs", HELP, names=(0, 1), keys=("runs_dir", *FILTERS), flags=("csv",))
def main(args: ParsedArgs) -> int:
    """Print a line for each run folder; what is damaged is shown, not hidden."""
    filters = {}
    for key, value in args.values.items():
        if key in FILTERS:
            filters[key] = value
    experiment: str | None = next(iter(args.names), None)
    runs_dir = path_of("runs_dir", args.values)
    if experiment and "runs_dir" not in args.values and is_folder_of_runs(experiment):
        runs_dir = experiment
        experiment = None
    every_record = find_below(runs_dir)
    records = select(every_record, experiment, filters)
    if "csv" in args.flags:
        write_csv(records)
        return 0
    if every_record and not records:
        say(no_match(select(every_record, experiment, {}), filters))
        return 0
    # The records come sorted by experiment, scale and stage.
    for (experiment_name, scale, stage), group in groupby(
        records, key=lambda record: (record.experiment, record.scale, record.stage)
    ):
        title = [experiment_name, scale, STAGE_NAMES.get(stage, stage) or "unknown"]
        say(" ".join(filter(None, title)), style="bold")
        print_runs(stage, list(group))
    print_summary(records)
    return 0


def write_csv(records: Sequence[Record]) -> None:
    """Write every field of the records to the standard output; what is not known is empty."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(CSV_FIELDS)
    for record in records:
        writer.writerow([getattr(record, field) for field in CSV_FIELDS])


def print_runs(stage: str, records: Sequence[Record]) -> None:
    """Print a table of runs of one stage."""
    names = ["arm", "seed"] if stage == "pretrain" else ["row", "task", "seeds"]
    headings = [*map(Heading, names), *RESULT_HEADINGS, *OPTIONAL_HEADINGS]
    print_table(headings, [_cells(record) for record in records])


def _cells(record: Record) -> list[str]:
    """A run's line; a damaged folder that says nothing else has its place for a name."""
    names = [record.name or record.place]
    if record.stage != "pretrain":
        names.append(record.task)
    # Of "learnt nothing: 6.40 nats, ..." the first two words say enough here.
    context = ""
    if record.is_complete:
        context = score_in_context(record, with_loss=False).partition(":")[0]
    return [
        *names,
        record.seeds,
        record.status,
        shown_score(record, record.score),
        context,
        duration(elapsed(record)),
        record.started[:16].replace("T", " "),  # 2030-01-31 12:00
        record.fingerprint[:8],
    ]


def print_summary(records: Sequence[Record]) -> None:
    """Print how many runs have which status, and what is wrong with some."""
    counts = Counter(record.status for record in records)
    summary = count_noun(len(records), "run")
    if records:
        states = (f"{counts[status]} {status}" for status in STATUSES if counts[status])
        summary += f": {', '.join(states)}"
    say(summary)
    for record in records:
        trouble = trouble_of(record)
        if trouble:
            say(f"{record.status}: {record.place}: {trouble}", style="yellow")
