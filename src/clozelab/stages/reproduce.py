"""`clozelab reproduce EXPERIMENT scale=NAME`: prepare, the sweeps, report."""

from __future__ import annotations

import math

from clozelab.planning import reproduction
from clozelab.planning.budget import parse_budget
from clozelab.planning.next_seed import first_seeds
from clozelab.planning.steps import make_steps
from clozelab.results.experiment import open_experiment
from clozelab.terminal import ParsedArgs, verb

HELP = """clozelab reproduce EXPERIMENT [scale=NAME] [name=value ...] [--dry-run]
clozelab reproduce EXPERIMENT until=decided [budget=8h] ...

Prepares the corpus, says how long all takes, runs every sweep and writes the
report. Stop it and start it again at any time. In a pipe or a file it prints a
line at least every 30 seconds.

  name=value             goes to every stage that has such a key
  prepare.name=value     goes to that stage alone; so do pretrain., finetune.
                         and evaluate.
  text=FOLDER            pre-trains on this folder of text (or file, or glob)
  seeds=1,2,3            the pre-training seeds, in every stage
  evaluate=none          leaves the measures out; finetune=none leaves the
                         fine-tuning out
  until=decided          gives one more pre-training seed to the claim that is
                         nearest to a verdict (a primary one first), looks, and
                         goes on so: until all are decided, or the last look of
                         the rule (stopping: in paper.yaml, written before the
                         first look)
  budget=8h              begins no seed that would end later
  --skip-doctor          goes on whatever the pre-flight (clozelab doctor) would
                         find
  --no-measure           times nothing before it begins: how long it takes is
                         said by speeds that are known alone
  --dry-run              lists the jobs and how each stands: new, running,
                         interrupted, failed, complete;
                         conflict (its folder holds a run of other settings, and
                         it will be refused);
                         check (complete, its inputs have to be read to be
                         sure);
                         shared (an equal run of another experiment will be
                         taken);
                         shared? (will be taken if the files it was trained on
                         are still the same)"""


@verb(
    "reproduce",
    HELP,
    names=(1, 1),
    keys=("until", "budget"),
    flags=("dry-run", "skip-doctor", "no-measure"),
    takes_overrides=True,
)
def main(args: ParsedArgs) -> int:
    """Run the experiment; returns 0 only if every step went well."""
    experiment = open_experiment(args.names[0])
    folder = experiment.folder
    is_checked = "skip-doctor" in args.flags
    overrides = list(args.overrides)
    if args.values:
        seeds = first_seeds(experiment, args.values.get("until"), overrides)
        budget = math.inf  # seconds
        if "budget" in args.values:
            budget = parse_budget(args.values["budget"])
        if "dry-run" not in args.flags:
            return reproduction.until_decided(
                experiment, args.argv, overrides, [seeds], budget, is_checked=is_checked
            )
        overrides.append(seeds)
    steps = make_steps(folder, overrides)
    if "dry-run" in args.flags:
        return reproduction.dry_run(steps)
    status, _ = reproduction.run_round(folder, args.argv, overrides, steps, is_checked=is_checked)
    return status
