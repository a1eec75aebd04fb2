"""`clozelab status`: what runs now and how far it is, what failed and why, what is left."""

from __future__ import annotations

from pathlib import Path

from clozelab.launch.handed_over import print_jobs_of_slurm, print_unbegun
from clozelab.report.curves import print_outside
from clozelab.report.standing import print_status
from clozelab.runs.find import find_below, no_match, select
from clozelab.runs.outcome import ignores_context, score_in_context
from clozelab.runs.status import LAUNCHER_FOLDER, experiment_statuses, failed_before_begun
from clozelab.terminal import ParsedArgs, path_of, say, verb

HELP = """clozelab status [EXPERIMENT] [scale=NAME] [runs_dir=FOLDER]
        [--watch [out=FILE.html] [--verdicts]]

For every experiment and scale: jobs by stage and state, what runs now, what
failed and why, about how long the rest takes, and the jobs that Slurm has.

The jobs are those of the last launch there; runs that are none of them are
"others". A sweep of `prepare` makes no runs, and has no jobs here. Processes on
other machines are not seen.

  --watch        shows what runs until it ends, or Ctrl-C: jobs, steps, losses,
                 time left, and how many claims can be tested
  out=FILE.html  the same as a page that refreshes itself, also without a terminal
  --verdicts     shows verdicts as soon as there are any. That is an interim
                 analysis, and is noted as one (docs/claims.md)"""


@verb("status", HELP, names=(0, 1), keys=("runs_dir", "scale", "out"), flags=("watch", "verdicts"))
def main(args: ParsedArgs) -> int:
    """Print how each experiment stands; returns the exit status."""
    runs_dir = path_of("runs_dir", args.values)
    filters = {key: args.values[key] for key in ("scale",) if key in args.values}
    experiment = next(iter(args.names), None)
    if "watch" in args.flags:
        from clozelab.report.watching import watch  # scipy takes a second

        return watch(args, print_status, lambda: select(find_below(runs_dir), experiment, filters))
    if "out" in args.values or args.flags:
        raise ValueError("status takes out= and --verdicts with --watch alone")
    every_record = find_below(runs_dir)
    records = select(every_record, experiment, filters)
    # A folder without runs is no mistake, filters that leave none may be one.
    if not every_record:
        say(f"no runs in {Path(runs_dir).resolve()}")
        for launcher in sorted(Path(runs_dir).glob(f"*/*/{LAUNCHER_FOLDER}")):
            print_unbegun(list(failed_before_begun(launcher.parent)))
    elif not records:
        say(no_match(select(every_record, experiment, {}), filters))
    for status in experiment_statuses(records):
        print_status(status)
    print_jobs_of_slurm(Path(runs_dir), experiment, args.values.get("scale"))
    print_outside(records)
    for record in records:
        if record.is_complete and ignores_context(record):
            say(f"{record.place}: {score_in_context(record)}", "yellow", wraps=True)
    return 0
