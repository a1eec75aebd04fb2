"""`clozelab plan`: what an experiment costs, before anything runs."""

from __future__ import annotations

from clozelab.planning.plan import MATCHINGS, make_plan, save_plan
from clozelab.planning.plan_screen import print_plan, print_warnings
from clozelab.planning.tables import arms_without_line, busy_lines, sums
from clozelab.terminal import ParsedArgs, say, verb

HELP = """clozelab plan EXPERIMENT [scale=NAME] [name=value ...]
        [budget=TIME [difference=POINTS]] [--no-measure]
clozelab plan EXPERIMENT ... budget=TIME matched_by=QUANTITY
clozelab plan pretrain|finetune [--config-dir FOLDER] [--config-name NAME]
        [name=value ...]

Counts parameters and FLOPs, measures tokens per second once a shape (a few
steps on made-up text, kept in the cache), and says how many jobs there are and
how many of them are left, how long all takes (measures, start-ups, pre-flight
and report included) and what of it, what it leaves on disk, and the smallest
difference that the seeds can be expected to show. Overrides are those of
`clozelab reproduce`. A speed that was measured while the machine was busy is
kept for an hour.

  budget=10h       for the whole experiment: seeds of both kinds and tokens that
                   give its primary claims (without any, all claims) most power,
                   the power of every number of seeds, and the command to run
  budget=100Mwords of `plan pretrain`: the steps_factor that reads so many words at most,
                   repeated ones counted
  difference=2     the true difference in points that is to be found (default:
                   2)
  matched_by=      instead: what each arm can afford where arms get equal steps,
                   tokens, flops or time, and its steps_factor, a line of `arms`
                   or pretrain.arm=NAME pretrain.steps_factor=...
  --no-measure     only speeds that are in the cache
  --measure-again  measures anew what the cache has, and on a GPU pre-training
                   as a run compiles it
  --brief          says the time alone, and leaves it for the sweeps of a
                   reproduction to count by

With a stage, the same of what `clozelab pretrain` or `clozelab finetune` would
start with these arguments, one run or a sweep (-m).

docs/runs.md says how times and FLOPs are counted, and what the marks beside
them mean."""


@verb(
    "plan",
    HELP,
    names=(1, 1),
    keys=("budget", "difference"),
    choices={"matched_by": MATCHINGS},
    flags=("no-measure", "measure-again", "brief"),
    options=("config-dir", "config-name"),
    takes_overrides=True,
)
def main(args: ParsedArgs) -> int:
    """Print the plan; returns the exit status."""
    plan = make_plan(args)
    for line in sums(plan.costing, plan.parts):  # what is asked first
        say(line, "bold", wraps=True)
    print_warnings(busy_lines(plan.costing))  # of these times
    print_warnings(list(arms_without_line(plan.experiment.arms, plan.runs)))
    if "brief" in args.flags:
        print_warnings([f"not timed: {problem}" for problem in plan.costing.problems])
        sweep = next(iter(plan.sweeps.values()))
        save_plan(sweep.folder, plan.parts)
    else:
        print_plan(plan)
    return 0
